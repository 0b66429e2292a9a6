//! Placing chains one after the other where nothing lies yet.

use super::problem::align_up;
use super::space::Space;
use super::{Chain, Chains};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

/// What a member holds alone, with its steps numbered among those at which anything begins or ends.
struct Piece {
    steps: Range<u32>,
    /// Where in its chain it lies.
    offset: u64,
    size: u64,
}

/// A half-placed problem.
pub(super) struct Placer<'a> {
    chains: &'a Chains,
    /// The pieces of all chains, one behind the other.
    pieces: Vec<Piece>,
    /// Where each chain's pieces begin, and the end of the last one's.
    first: Vec<u32>,
    space: Space,
    offsets: Vec<u64>,
    /// The offsets that are blocked for the chain in hand.
    blocked: Vec<(u64, u64)>,
    peak: u64,
}

impl<'a> Placer<'a> {
    /// Nothing is placed but what is fixed.
    pub(super) fn new(chains: &'a Chains) -> Self {
        let lives = || chains.members().iter().filter(|member| member.since < member.end);
        let mut times: Vec<u64> = lives().flat_map(|member| [member.since, member.end]).collect();
        times.sort_unstable();
        times.dedup();
        let step = |time| times.partition_point(|&other| other < time) as u32;
        let (mut pieces, mut first) = (Vec::new(), vec![0]);
        for chain in chains.all() {
            for member in chains.members_of(chain).iter().filter(|member| member.since < member.end) {
                let steps = step(member.since)..step(member.end);
                pieces.push(Piece { steps, offset: member.offset, size: member.size });
            }
            first.push(pieces.len() as u32);
        }
        let space = Space::new(times.len());
        let mut placer =
            Self { chains, pieces, first, space, offsets: vec![0; chains.len()], blocked: Vec::new(), peak: 0 };
        placer.place_fixed();
        placer
    }

    /// Forgets everything but what is fixed.
    pub(super) fn clear(&mut self) {
        self.space.clear();
        self.peak = 0;
        self.place_fixed();
    }

    fn place_fixed(&mut self) {
        for (number, chain) in self.chains.all().iter().enumerate() {
            if let Some(fixed) = chain.fixed {
                self.put(number as u32, fixed);
            }
        }
    }

    /// Where each chain lies.
    pub(super) fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// How many bytes are needed so far.
    pub(super) fn peak(&self) -> u64 {
        self.peak
    }

    /// Places a chain as low as it can lie.
    pub(super) fn first_fit(&mut self, chain: u32) {
        if self.chain(chain).fixed.is_none() {
            let offset = self.lowest(chain);
            self.put(chain, offset);
        }
    }

    /// Places a chain in the smallest gap, the lowest of those, and else above everything.
    pub(super) fn best_fit(&mut self, chain: u32) {
        if self.chain(chain).fixed.is_none() {
            let offset = self.tightest(chain);
            self.put(chain, offset);
        }
    }

    fn chain(&self, chain: u32) -> &'a Chain {
        &self.chains.all()[chain as usize]
    }

    fn pieces(&self, chain: u32) -> &[Piece] {
        &self.pieces[self.first[chain as usize] as usize..self.first[chain as usize + 1] as usize]
    }

    fn put(&mut self, chain: u32, offset: u64) {
        let whole = self.chain(chain);
        self.offsets[chain as usize] = offset;
        self.peak = self.peak.max(align_up(offset + whole.size, whole.alignment));
        for piece in &self.pieces[self.first[chain as usize] as usize..self.first[chain as usize + 1] as usize] {
            let low = offset + piece.offset;
            self.space.occupy(&piece.steps, low, low + piece.size);
        }
    }

    fn lowest(&self, chain: u32) -> u64 {
        let alignment = self.chain(chain).alignment;
        let mut runs: Vec<_> = self
            .pieces(chain)
            .iter()
            .flat_map(|piece| self.space.taken(&piece.steps).map(move |runs| (runs.all(), piece)))
            .filter(|(runs, _)| !runs.is_empty())
            .collect();
        let mut offset = 0;
        // Each run that is in the way moves the chain above itself, until a whole round finds none.
        let mut quiet = 0;
        let mut turn = 0;
        while quiet < runs.len() {
            let (rest, piece) = &mut runs[turn];
            let mut moved = false;
            loop {
                let low = offset + piece.offset;
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

    fn tightest(&mut self, chain: u32) -> u64 {
        let alignment = self.chain(chain).alignment;
        let mut blocked = core::mem::take(&mut self.blocked);
        blocked.clear();
        for piece in self.pieces(chain) {
            for runs in self.space.taken(&piece.steps) {
                let above = runs.all().iter().filter(|run| run.1 > piece.offset);
                // From the first offset at which the piece would touch the run to the first behind it.
                blocked.extend(
                    above.map(|run| ((run.0 + 1).saturating_sub(piece.offset + piece.size), run.1 - piece.offset)),
                );
            }
        }
        blocked.sort_unstable();
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

/// How many of the runs end at or before `low`: found in steps that double, for most often it is none or one.
fn passed(runs: &[(u64, u64)], low: u64) -> usize {
    let mut bound = 1;
    while bound < runs.len() && runs[bound - 1].1 <= low {
        bound *= 2;
    }
    let bound = bound.min(runs.len());
    bound / 2 + runs[bound / 2..bound].partition_point(|run| run.1 <= low)
}
