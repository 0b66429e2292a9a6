//! Checks a problem before planning. Every algorithm finds a plan for a problem that passes.

use super::colocations::Colocations;
use super::sweep::{Rectangle, clash};
use super::{Chain, Chains, Problem};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

/// The exclusive upper bound of sizes and alignments: 1 EiB.
pub const MAX_SIZE: u64 = 1 << 60;

/// The exclusive upper bound of the sum of sizes, alignments and fixed offsets. Below this bound,
/// no offset of any plan can overflow.
const MAX_TOTAL: u64 = 1 << 62;

/// The reason why a problem cannot be planned. Buffers, overwrites and colocations are named by
/// their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unusable {
    /// The problem has no buffers.
    Empty,
    /// The problem has more buffers than a 32-bit number can name.
    TooMany,
    /// A buffer does not end after its start.
    Lifetime {
        /// The number of the buffer in the problem.
        buffer: u32,
        /// The first step of the life of the buffer.
        start: u64,
        /// The first step after the life of the buffer.
        end: u64,
    },
    /// A buffer has size 0.
    NoBytes {
        /// The number of the buffer in the problem.
        buffer: u32,
    },
    /// A buffer has 1 EiB or more.
    TooLarge {
        /// The number of the buffer in the problem.
        buffer: u32,
        /// The size of the buffer in bytes.
        size: u64,
    },
    /// An alignment is not a power of two below 1 EiB.
    Alignment {
        /// The number of the buffer in the problem.
        buffer: u32,
        /// The alignment that was rejected, in bytes.
        alignment: u64,
    },
    /// A fixed offset is not a multiple of the alignment of the buffer, or of a colocated buffer.
    FixedMisaligned {
        /// The number of the buffer in the problem.
        buffer: u32,
        /// The fixed offset of the buffer in bytes.
        fixed: u64,
        /// The alignment that the offset violates, in bytes.
        alignment: u64,
    },
    /// The sizes, alignments and fixed offsets of the buffers up to `buffer` add up to 4 EiB or
    /// more.
    Total {
        /// The number of the buffer in the problem.
        buffer: u32,
    },
    /// Two buffers with fixed offsets share bytes while both are live.
    FixedOverlap {
        /// The number of the first buffer of the pair.
        first: u32,
        /// The number of the second buffer of the pair.
        second: u32,
        /// The first step at which the lives and the bytes overlap.
        step: u64,
    },
    /// An overwrite names a buffer that does not exist.
    NoSuchBuffer {
        /// The index of the overwrite in [`Problem::overwrites`].
        overwrite: usize,
        /// The number without a buffer in the problem.
        buffer: u32,
    },
    /// An overwrite names the same buffer as writer and as target.
    Itself {
        /// The index of the overwrite in [`Problem::overwrites`].
        overwrite: usize,
        /// The number of the buffer in the problem.
        buffer: u32,
    },
    /// A writer reaches beyond the end of its target.
    Outside {
        /// The index of the overwrite in [`Problem::overwrites`].
        overwrite: usize,
        /// The number of the writer in the problem.
        writer: u32,
        /// The number of the target in the problem.
        target: u32,
    },
    /// A colocation names a buffer that does not exist.
    ColocatedUnknown {
        /// The index of the colocation in [`Problem::colocations`].
        colocation: usize,
        /// The number without a buffer in the problem.
        buffer: u32,
    },
    /// A colocation names the same buffer twice.
    ColocatedItself {
        /// The index of the colocation in [`Problem::colocations`].
        colocation: usize,
        /// The number of the buffer in the problem.
        buffer: u32,
    },
    /// Two colocated buffers have different fixed offsets.
    ColocatedApart {
        /// The number of the first buffer of the pair.
        first: u32,
        /// The number of the second buffer of the pair.
        second: u32,
    },
    /// Two buffers at one place use the same bytes while both are live: colocated buffers, or their
    /// writers.
    ColocatedOverlap {
        /// The number of the first buffer of the pair.
        first: u32,
        /// The number of the second buffer of the pair.
        second: u32,
        /// The first step at which the lives and the bytes overlap.
        step: u64,
    },
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Empty => write!(f, "there are no buffers"),
            Self::TooMany => write!(f, "there are more than {} buffers", u32::MAX - 1),
            Self::Lifetime { buffer, start, end } => {
                write!(f, "buffer {buffer} lives from {start} to {end}: it must end after it starts")
            }
            Self::NoBytes { buffer } => write!(f, "buffer {buffer} has a size of 0 bytes: it must be above 0"),
            Self::TooLarge { buffer, size } => {
                write!(f, "buffer {buffer} has {size} bytes: it must be below {MAX_SIZE} (1 EiB)")
            }
            Self::Alignment { buffer, alignment } => {
                write!(f, "buffer {buffer} has the alignment {alignment}: it must be a power of two below {MAX_SIZE}")
            }
            Self::FixedMisaligned { buffer, fixed, alignment } => {
                write!(f, "buffer {buffer} is fixed at {fixed}, which is no multiple of its alignment {alignment}")
            }
            Self::Total { buffer } => {
                write!(
                    f,
                    "buffer {buffer} brings sizes, alignments and fixed offsets to {MAX_TOTAL} bytes (4 EiB) or more"
                )
            }
            Self::FixedOverlap { first, second, step } => {
                write!(f, "buffers {first} and {second} are fixed where they share bytes at step {step}")
            }
            Self::NoSuchBuffer { overwrite, buffer } => {
                write!(f, "overwrite {overwrite} names buffer {buffer}, which does not exist")
            }
            Self::Itself { overwrite, buffer } => {
                write!(f, "overwrite {overwrite} lets buffer {buffer} overwrite itself")
            }
            Self::Outside { overwrite, writer, target } => {
                write!(f, "overwrite {overwrite} lets buffer {writer} reach beyond the end of buffer {target}")
            }
            Self::ColocatedUnknown { colocation, buffer } => {
                write!(f, "colocation {colocation} names buffer {buffer}, which does not exist")
            }
            Self::ColocatedItself { colocation, buffer } => {
                write!(f, "colocation {colocation} lets buffer {buffer} share its place with itself")
            }
            Self::ColocatedApart { first, second } => {
                write!(f, "buffers {first} and {second} are colocated, but fixed at different offsets")
            }
            Self::ColocatedOverlap { first, second, step } => {
                write!(f, "buffers {first} and {second} hold the same bytes of their common place at step {step}")
            }
        }
    }
}

impl core::error::Error for Unusable {}

impl Unusable {
    /// Returns the reason with the caller's own numbers of the buffers.
    #[must_use]
    pub fn renumbered(mut self, number: impl Fn(u32) -> u32) -> Self {
        match &mut self {
            Self::Empty | Self::TooMany => {}
            Self::Lifetime { buffer, .. }
            | Self::NoBytes { buffer }
            | Self::TooLarge { buffer, .. }
            | Self::Alignment { buffer, .. }
            | Self::FixedMisaligned { buffer, .. }
            | Self::Total { buffer }
            | Self::NoSuchBuffer { buffer, .. }
            | Self::Itself { buffer, .. }
            | Self::ColocatedUnknown { buffer, .. }
            | Self::ColocatedItself { buffer, .. } => *buffer = number(*buffer),
            Self::FixedOverlap { first, second, .. }
            | Self::Outside { writer: first, target: second, .. }
            | Self::ColocatedApart { first, second }
            | Self::ColocatedOverlap { first, second, .. } => (*first, *second) = (number(*first), number(*second)),
        }
        self
    }
}

impl Problem {
    /// Checks whether the problem can be planned.
    ///
    /// # Errors
    /// The first defect that is found.
    pub fn check(&self) -> Result<(), Unusable> {
        if self.buffers.is_empty() {
            return Err(Unusable::Empty);
        }
        if self.buffers.len() >= u32::MAX as usize {
            return Err(Unusable::TooMany);
        }
        let mut total = 0_u64;
        for buffer in 0..self.buffers.len() as u32 {
            total = self.check_buffer(buffer, total)?;
        }
        for overwrite in 0..self.overwrites.len() {
            self.check_overwrite(overwrite)?;
        }
        for colocation in 0..self.colocations.len() {
            self.check_colocation(colocation)?;
        }
        self.check_places()?;
        self.check_room()
    }

    /// Checks one buffer by itself. Returns `total` plus its size, alignment and fixed offset.
    fn check_buffer(&self, number: u32, total: u64) -> Result<u64, Unusable> {
        let buffer = &self.buffers[number as usize];
        let (size, alignment) = (buffer.size, buffer.alignment);
        if buffer.start >= buffer.end {
            return Err(Unusable::Lifetime { buffer: number, start: buffer.start, end: buffer.end });
        }
        if size == 0 {
            return Err(Unusable::NoBytes { buffer: number });
        }
        if size >= MAX_SIZE {
            return Err(Unusable::TooLarge { buffer: number, size });
        }
        if !alignment.is_power_of_two() || alignment >= MAX_SIZE {
            return Err(Unusable::Alignment { buffer: number, alignment });
        }
        let fixed = buffer.fixed.unwrap_or(0);
        if !fixed.is_multiple_of(alignment) {
            return Err(Unusable::FixedMisaligned { buffer: number, fixed, alignment });
        }
        [size, alignment, fixed]
            .into_iter()
            .try_fold(total, u64::checked_add)
            .filter(|&total| total < MAX_TOTAL)
            .ok_or(Unusable::Total { buffer: number })
    }

    fn check_overwrite(&self, overwrite: usize) -> Result<(), Unusable> {
        let pair = self.overwrites[overwrite];
        let buffer = |buffer| self.buffers.get(buffer as usize).ok_or(Unusable::NoSuchBuffer { overwrite, buffer });
        let (writer, target) = (buffer(pair.writer)?, buffer(pair.target)?);
        if pair.writer == pair.target {
            return Err(Unusable::Itself { overwrite, buffer: pair.writer });
        }
        match pair.offset.checked_add(writer.size) {
            Some(end) if end <= target.size => Ok(()),
            _ => Err(Unusable::Outside { overwrite, writer: pair.writer, target: pair.target }),
        }
    }

    fn check_colocation(&self, colocation: usize) -> Result<(), Unusable> {
        let pair = self.colocations[colocation];
        if let Some(buffer) =
            [pair.first, pair.second].into_iter().find(|&buffer| buffer as usize >= self.buffers.len())
        {
            return Err(Unusable::ColocatedUnknown { colocation, buffer });
        }
        if pair.first == pair.second {
            return Err(Unusable::ColocatedItself { colocation, buffer: pair.first });
        }
        Ok(())
    }

    /// Checks that the fixed offsets within each group of colocated buffers agree.
    fn check_places(&self) -> Result<(), Unusable> {
        if self.colocations.is_empty() {
            return Ok(());
        }
        let colocations = Colocations::of(self);
        let mut settled: Vec<Option<(u32, u64)>> = vec![None; self.buffers.len()];
        for (number, buffer) in (0..).zip(&self.buffers) {
            let Some(fixed) = buffer.fixed else { continue };
            let alignment = colocations.alignment[number as usize];
            if !fixed.is_multiple_of(alignment) {
                return Err(Unusable::FixedMisaligned { buffer: number, fixed, alignment });
            }
            let (first, place) = *settled[colocations.leader[number as usize] as usize].get_or_insert((number, fixed));
            if place != fixed {
                return Err(Unusable::ColocatedApart { first, second: number });
            }
        }
        Ok(())
    }

    /// Checks that the required offsets leave room: inside each chain, and between fixed chains.
    fn check_room(&self) -> Result<(), Unusable> {
        if self.colocations.is_empty() && self.buffers.iter().all(|buffer| buffer.fixed.is_none()) {
            return Ok(());
        }
        let chains = Chains::of(self);
        for chain in chains.all().iter().filter(|chain| chain.gaps) {
            if let Some(clash) = clash(&rectangles(&chains, chain, 0).collect::<Vec<_>>()) {
                let (first, second) = (clash.first, clash.second);
                return Err(Unusable::ColocatedOverlap { first, second, step: clash.step });
            }
        }
        let fixed = chains.all().iter().filter_map(|chain| Some(rectangles(&chains, chain, chain.fixed?)));
        match clash(&fixed.flatten().collect::<Vec<_>>()) {
            Some(clash) => Err(Unusable::FixedOverlap { first: clash.first, second: clash.second, step: clash.step }),
            None => Ok(()),
        }
    }
}

/// Returns the rectangles of the members of a chain at an offset.
fn rectangles(chains: &Chains, chain: &Chain, offset: u64) -> impl Iterator<Item = Rectangle> {
    chains.members_of(chain).iter().map(move |member| {
        let low = offset + member.offset;
        Rectangle { start: member.since, end: member.end, low, high: low + member.size, buffer: member.buffer }
    })
}
