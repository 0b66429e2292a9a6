//! Whether a problem can be planned at all.

use super::colocations::Colocations;
use super::sweep::{Held, clash};
use super::{Chain, Chains, Problem};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

/// Sizes and alignments are below this, 1 EiB.
pub const MAX_SIZE: u64 = 1 << 60;

/// No sum of sizes, alignments and fixed offsets reaches this, so no offset of any plan can overflow.
const MAX_TOTAL: u64 = 1 << 62;

/// Why a problem cannot be planned. Buffers, overwrites and colocations are named by their number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unusable {
    /// There are no buffers.
    Empty,
    /// There are more buffers than numbers for them.
    TooMany,
    /// A buffer ends before it has begun.
    Lifetime {
        /// Which.
        buffer: u32,
        /// Its first step.
        start: u64,
        /// Its end.
        end: u64,
    },
    /// A buffer has no bytes.
    NoBytes {
        /// Which.
        buffer: u32,
    },
    /// A buffer has 1 EiB or more.
    TooLarge {
        /// Which.
        buffer: u32,
        /// Its size.
        size: u64,
    },
    /// An alignment is not a power of two below 1 EiB.
    Alignment {
        /// Whose.
        buffer: u32,
        /// The alignment.
        alignment: u64,
    },
    /// A fixed offset is no multiple of the alignment, or of that of a colocated buffer.
    FixedMisaligned {
        /// Whose.
        buffer: u32,
        /// The offset.
        fixed: u64,
        /// The alignment.
        alignment: u64,
    },
    /// Up to this buffer, sizes, alignments and fixed offsets add up to 4 EiB or more.
    Total {
        /// Which.
        buffer: u32,
    },
    /// Two buffers are fixed where they share bytes, and live at once.
    FixedOverlap {
        /// One.
        first: u32,
        /// The other.
        second: u32,
        /// The first step at which they do.
        step: u64,
    },
    /// An overwrite names a buffer that does not exist.
    NoSuchBuffer {
        /// The overwrite.
        overwrite: usize,
        /// The number it names.
        buffer: u32,
    },
    /// A buffer is to overwrite itself.
    Itself {
        /// The overwrite.
        overwrite: usize,
        /// The buffer.
        buffer: u32,
    },
    /// A writer reaches beyond the end of its target.
    Outside {
        /// The overwrite.
        overwrite: usize,
        /// The writer.
        writer: u32,
        /// The target.
        target: u32,
    },
    /// A colocation names a buffer that does not exist.
    ColocatedUnknown {
        /// The colocation.
        colocation: usize,
        /// The number it names.
        buffer: u32,
    },
    /// A buffer is to share its place with itself.
    ColocatedItself {
        /// The colocation.
        colocation: usize,
        /// The buffer.
        buffer: u32,
    },
    /// Two buffers of one place are fixed at different offsets.
    ColocatedApart {
        /// One.
        first: u32,
        /// The other.
        second: u32,
    },
    /// Two buffers of one place hold the same bytes at once: two colocated ones, or one and what is written over another.
    ColocatedOverlap {
        /// One.
        first: u32,
        /// The other.
        second: u32,
        /// The first step at which they do.
        step: u64,
    },
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Empty => write!(f, "there are no buffers"),
            Self::TooMany => write!(f, "there are more than {} buffers", u32::MAX - 1),
            Self::Lifetime { buffer, start, end } => {
                write!(f, "buffer {buffer} lives from {start} to {end}: it must end after it begins")
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

impl Problem {
    /// Whether the problem can be planned: every algorithm has a plan for one that can.
    ///
    /// # Errors
    /// The first thing that is wrong.
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

    /// Checks one buffer by itself, and answers the total with it.
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

    /// Whether the buffers of one place agree on where it is fixed.
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

    /// Whether what is settled leaves itself room: the buffers of each place, and what is fixed.
    fn check_room(&self) -> Result<(), Unusable> {
        if self.colocations.is_empty() && self.buffers.iter().all(|buffer| buffer.fixed.is_none()) {
            return Ok(());
        }
        let chains = Chains::of(self);
        for chain in chains.all().iter().filter(|chain| chain.gaps) {
            if let Some(clash) = clash(&held(&chains, chain, 0).collect::<Vec<_>>()) {
                let (first, second) = (clash.first, clash.second);
                return Err(Unusable::ColocatedOverlap { first, second, step: clash.step });
            }
        }
        let fixed = chains.all().iter().filter_map(|chain| Some(held(&chains, chain, chain.fixed?)));
        match clash(&fixed.flatten().collect::<Vec<_>>()) {
            Some(clash) => Err(Unusable::FixedOverlap { first: clash.first, second: clash.second, step: clash.step }),
            None => Ok(()),
        }
    }
}

/// What the members of a chain hold, if that lies at an offset.
fn held(chains: &Chains, chain: &Chain, offset: u64) -> impl Iterator<Item = Held> {
    chains.members_of(chain).iter().map(move |member| {
        let low = offset + member.offset;
        Held { start: member.since, end: member.end, low, high: low + member.size, buffer: member.buffer }
    })
}
