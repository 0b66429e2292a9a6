//! MegEngine's interval move: the longest-lived buffers first, each into the gap for which the others must move least.
//!
//! A gap that is too small grows: what lies above it moves up, and what lies above that as far as it is in the way. O(n² log n)
//! with nothing kept for a pair of buffers: how far each can move, and how far it must, is found by a sweep over the
//! addresses with a tree over the steps.

use super::first_fit;
use super::levels::Levels;
use super::problem::align_up;
use super::{Algorithm, Chain, Chains, Plan, Problem, Watch};
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::ops::Range;

/// `StaticMemAllocIntervalMove` of MegEngine (2022). With several alignments in a problem, everything is aligned to the coarsest.
pub struct IntervalMove;

impl Algorithm for IntervalMove {
    fn name(&self) -> &'static str {
        "interval-move"
    }

    fn plan(&self, problem: &Problem, watch: &mut dyn Watch) -> Option<Plan> {
        let chains = Chains::of(problem);
        let mut stack = Stack::new(&chains);
        for chain in order(&chains) {
            if watch.stop() {
                return None;
            }
            stack.insert(chain);
        }
        let plan = chains.plan(&first_fit::refit(&chains, stack.lows));
        watch.improved(&plan);
        Some(plan)
    }
}

/// The longest-lived chains first, of those the earliest, of those the largest.
fn order(chains: &Chains) -> Vec<u32> {
    let key = |chain: &Chain| (Reverse(chain.length()), chain.start, Reverse(chain.size));
    let mut order: Vec<u32> = (0..chains.len() as u32).collect();
    order.sort_by_key(|&chain| key(&chains.all()[chain as usize]));
    order
}

/// The chains that are placed.
struct Stack {
    /// Each chain's steps, numbered among those at which anything begins or ends.
    steps: Vec<Range<u32>>,
    /// Each chain's size, aligned.
    sizes: Vec<u64>,
    /// Where each chain lies, if it is placed.
    lows: Vec<u64>,
    /// How high each could lie without raising the peak.
    highest: Vec<u64>,
    /// The placed ones in the order of their addresses.
    placed: Vec<u32>,
    peak: u64,
    levels: Levels,
}

/// A place for a chain, and what it asks of the others.
#[derive(Clone, Copy)]
struct Gap {
    low: u64,
    /// By how much the peak rises.
    rise: u64,
    /// How many bytes are missing.
    missing: u64,
    /// How many are left over.
    rest: u64,
}

impl Stack {
    fn new(chains: &Chains) -> Self {
        let all = chains.all();
        let alignment = all.iter().map(|chain| chain.alignment).max().unwrap_or(1);
        let mut times: Vec<u64> = all.iter().flat_map(|chain| [chain.start, chain.end]).collect();
        times.sort_unstable();
        times.dedup();
        let step = |time| times.partition_point(|&other| other < time) as u32;
        Self {
            steps: all.iter().map(|chain| step(chain.start)..step(chain.end)).collect(),
            sizes: all.iter().map(|chain| align_up(chain.size, alignment)).collect(),
            lows: vec![0; all.len()],
            highest: vec![0; all.len()],
            placed: Vec::with_capacity(all.len()),
            peak: 0,
            levels: Levels::new(times.len()),
        }
    }

    fn insert(&mut self, chain: u32) {
        self.find_highest();
        let gap = self.choose(chain);
        self.lows[chain as usize] = gap.low;
        self.push_up(chain);
        let lows = &self.lows;
        self.placed.push(chain);
        // Who is placed above another stays above it, so all but one are in order already.
        self.placed.sort_by_key(|&chain| lows[chain as usize]);
    }

    /// Works out for each placed chain how high it could lie: below the peak, and below whoever lies above it.
    fn find_highest(&mut self) {
        // Counted downwards from the peak, so that one tree of largest values serves both directions.
        self.levels.clear();
        for &chain in self.placed.iter().rev() {
            let (steps, size) = (&self.steps[chain as usize], self.sizes[chain as usize]);
            let depth = self.levels.largest(steps) + size;
            self.levels.raise(steps, depth);
            self.highest[chain as usize] = self.peak - depth;
        }
    }

    /// The gap that fits best; if none does, the one for which the peak rises least.
    fn choose(&self, chain: u32) -> Gap {
        let (steps, size) = (&self.steps[chain as usize], self.sizes[chain as usize]);
        let meets = |other: &Range<u32>| other.start < steps.end && steps.start < other.end;
        let met: Vec<u32> = self.placed.iter().copied().filter(|&other| meets(&self.steps[other as usize])).collect();
        let mut best: Option<Gap> = None;
        let mut low = 0;
        for (number, &other) in met.iter().enumerate() {
            let high = self.lows[other as usize];
            if high >= low {
                self.consider(&mut best, low..high, size, &met[number..]);
            }
            low = low.max(high + self.sizes[other as usize]);
        }
        self.consider(&mut best, low..self.peak.max(low), size, &[]);
        best.unwrap_or(Gap { low, rise: 0, missing: 0, rest: 0 })
    }

    /// Keeps a gap if it is better than the best one before; `above` are those that the chain would push up.
    fn consider(&self, best: &mut Option<Gap>, gap: Range<u64>, size: u64, above: &[u32]) {
        let room = gap.end - gap.start;
        let missing = size.saturating_sub(room);
        let mut rise = (gap.start + size).saturating_sub(self.peak);
        if missing > 0 {
            for &other in above {
                let distance = self.lows[other as usize] - gap.end;
                let free = self.highest[other as usize] - self.lows[other as usize];
                rise = rise.max(missing.saturating_sub(distance + free));
            }
        }
        let new = Gap { low: gap.start, rise, missing, rest: room.saturating_sub(size) };
        let key = |gap: &Gap| (gap.rise, gap.missing, gap.rest);
        if best.as_ref().is_none_or(|best| key(&new) < key(best)) {
            *best = Some(new);
        }
    }

    /// Moves up what is in the way of `chain`, and what is in the way of that; the lowest first, so that each moves once.
    fn push_up(&mut self, chain: u32) {
        let low = self.lows[chain as usize];
        self.levels.clear();
        self.levels.raise(&self.steps[chain as usize], low + self.sizes[chain as usize]);
        self.peak = self.peak.max(low + self.sizes[chain as usize]);
        for &other in &self.placed {
            if self.lows[other as usize] < low {
                continue;
            }
            let (steps, size) = (&self.steps[other as usize], self.sizes[other as usize]);
            let floor = self.levels.largest(steps);
            if floor > self.lows[other as usize] {
                self.lows[other as usize] = floor;
                self.levels.raise(steps, floor + size);
                self.peak = self.peak.max(floor + size);
            }
        }
    }
}
