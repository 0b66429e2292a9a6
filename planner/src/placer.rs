//! Places chains one after another in free bytes, by first fit or by best fit.

use super::problem::align_up;
use super::space::Space;
use super::{Chain, Chains};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

/// The bytes that belong only to one member.
struct Piece {
    /// The sections during which the bytes belong only to the member. Lives overlap iff they share
    /// a section, and there are far fewer sections than steps.
    sections: Range<u32>,
    /// The distance in bytes from the start of the chain.
    offset: u64,
    size: u64,
}

/// A partial placement of a problem.
pub(super) struct Placer<'a> {
    chains: &'a Chains,
    /// The pieces of all chains. The pieces of one chain are adjacent.
    pieces: Vec<Piece>,
    /// For each chain, the index of its first piece; at the end, the number of pieces.
    first: Vec<u32>,
    space: Space,
    offsets: Vec<u64>,
    /// Ranges of blocked offsets, which are scratch memory of `tightest`.
    blocked: Vec<(u64, u64)>,
    peak: u64,
}

impl<'a> Placer<'a> {
    /// Creates a placement of the fixed chains only.
    pub(super) fn new(chains: &'a Chains) -> Self {
        // A writer that ends together with its target never has bytes only for itself, so it has no
        // piece.
        let lives = || chains.members().iter().filter(|member| member.since < member.end);
        let mut events: Vec<(u64, bool)> =
            lives().flat_map(|member| [(member.since, true), (member.end, false)]).collect();
        // Within one step, ends come before starts (`false < true`).
        events.sort_unstable();
        // A section ends with the first end after a start, because just before it the most lives
        // overlap.
        let is_last = |pair: &&[(u64, bool)]| pair[0].1 && !pair[1].1;
        let ends: Vec<u64> = events.windows(2).filter(is_last).map(|pair| pair[1].0).collect();
        let section = |time| ends.partition_point(|&end| end <= time) as u32;
        let (mut pieces, mut first) = (Vec::new(), vec![0]);
        for chain in chains.all() {
            for member in chains.members_of(chain).iter().filter(|member| member.since < member.end) {
                let sections = section(member.since)..section(member.end);
                pieces.push(Piece { sections, offset: member.offset, size: member.size });
            }
            first.push(pieces.len() as u32);
        }
        let space = Space::new(ends.len());
        let mut placer =
            Self { chains, pieces, first, space, offsets: vec![0; chains.len()], blocked: Vec::new(), peak: 0 };
        placer.place_fixed();
        placer
    }

    /// Removes every chain without a fixed offset.
    pub(super) fn clear(&mut self) {
        self.space.clear();
        self.peak = 0;
        self.place_fixed();
    }

    /// Puts the fixed chains at their offsets.
    fn place_fixed(&mut self) {
        for (number, chain) in self.chains.all().iter().enumerate() {
            if let Some(fixed) = chain.fixed {
                self.put(number as u32, fixed);
            }
        }
    }

    /// Returns the offset of each placed chain.
    pub(super) fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// Returns the bytes that the chains placed so far need.
    pub(super) fn peak(&self) -> u64 {
        self.peak
    }

    /// Places a chain at the lowest possible offset. Does nothing for a fixed chain.
    pub(super) fn first_fit(&mut self, chain: u32) {
        if self.chain(chain).fixed.is_none() {
            let offset = self.lowest(chain);
            self.put(chain, offset);
        }
    }

    /// Places a chain in the smallest gap that is large enough, and in the lowest of several such
    /// gaps, or above everything if there is none. Does nothing for a fixed chain.
    pub(super) fn best_fit(&mut self, chain: u32) {
        if self.chain(chain).fixed.is_none() {
            let offset = self.tightest(chain);
            self.put(chain, offset);
        }
    }

    /// Returns a chain by number, with the lifetime of the problem.
    fn chain(&self, chain: u32) -> &'a Chain {
        &self.chains.all()[chain as usize]
    }

    /// Returns the pieces of a chain.
    fn pieces(&self, chain: u32) -> &[Piece] {
        &self.pieces[self.first[chain as usize] as usize..self.first[chain as usize + 1] as usize]
    }

    /// Records the offset of a chain and occupies the bytes of all its pieces.
    fn put(&mut self, chain: u32, offset: u64) {
        let whole = self.chain(chain);
        self.offsets[chain as usize] = offset;
        self.peak = self.peak.max(offset + whole.size);
        for piece in &self.pieces[self.first[chain as usize] as usize..self.first[chain as usize + 1] as usize] {
            let low = offset + piece.offset;
            self.space.occupy(&piece.sections, low, low + piece.size);
        }
    }

    /// Finds the lowest offset at which all pieces of a chain are free.
    ///
    /// This goes round robin over the lists of occupied runs. Each list is sorted and only
    /// advances, so every run is passed at most once.
    fn lowest(&self, chain: u32) -> u64 {
        let alignment = self.chain(chain).alignment;
        let mut runs: Vec<_> = self
            .pieces(chain)
            .iter()
            .flat_map(|piece| self.space.taken(&piece.sections).map(move |runs| (runs.all(), piece)))
            .filter(|(runs, _)| !runs.is_empty())
            .collect();
        let mut offset = 0;
        // A run in the way moves the chain above it. The offset is final when a whole round of
        // lists has moved nothing: `quiet` counts the lists that were checked since the last move.
        let mut quiet = 0;
        let mut turn = 0;
        while quiet < runs.len() {
            let (rest, piece) = &mut runs[turn];
            let mut moved = false;
            loop {
                let low = offset + piece.offset;
                // The offset only rises, so runs that were passed never get in the way again.
                let passed = passed(rest, low);
                *rest = &rest[passed..];
                match rest.first() {
                    Some(&(begin, end)) if begin < low + piece.size => {
                        offset = align_up(end - piece.offset, alignment);
                        moved = true;
                    }
                    _ => break,
                }
            }
            quiet = if moved { 1 } else { quiet + 1 };
            turn = (turn + 1) % runs.len();
        }
        offset
    }

    /// Finds the offset with the least unused space above the chain, or the lowest offset above
    /// everything if no gap is large enough.
    fn tightest(&mut self, chain: u32) -> u64 {
        let alignment = self.chain(chain).alignment;
        let mut blocked = core::mem::take(&mut self.blocked);
        blocked.clear();
        for piece in self.pieces(chain) {
            for runs in self.space.taken(&piece.sections) {
                // A run that ends below the piece at offset 0 blocks no offset.
                let above = runs.all().iter().filter(|run| run.1 > piece.offset);
                // The blocked offsets are those from the first at which the piece would touch the
                // run, up to the first after the run.
                blocked.extend(
                    above.map(|run| ((run.0 + 1).saturating_sub(piece.offset + piece.size), run.1 - piece.offset)),
                );
            }
        }
        blocked.sort_unstable();
        // This sweeps over the blocked ranges in ascending order. `offset` is the first one that is
        // not blocked yet.
        let (mut best, mut offset) = (None, 0);
        for &(low, high) in &blocked {
            if offset < low {
                let slack = low - 1 - offset;
                if best.is_none_or(|(least, _)| slack < least) {
                    best = Some((slack, offset));
                }
            }
            if high > offset {
                offset = align_up(high, alignment);
            }
        }
        self.blocked = blocked;
        best.map_or(offset, |(_, offset)| offset)
    }
}

/// Counts the leading runs with an end at or below `low`. This is an exponential search, because
/// the count is 0 or 1 most of the time.
fn passed(runs: &[(u64, u64)], low: u64) -> usize {
    let mut bound = 1;
    // The bound doubles until the run at `bound - 1` ends above `low`, and then the last interval
    // is searched.
    while bound < runs.len() && runs[bound - 1].1 <= low {
        bound *= 2;
    }
    let bound = bound.min(runs.len());
    bound / 2 + runs[bound / 2..bound].partition_point(|run| run.1 <= low)
}
