//! MegEngine's interval move: inserts the longest-lived buffers first, each into the gap for which
//! other buffers must move least.
//!
//! A gap may be too small. Then the buffers above it move up, and push up those above them as far
//! as necessary. This takes O(n² log n) time and O(n) memory, because a sweep over the addresses
//! with a segment tree over the steps finds how far each buffer can move and must move, without a
//! list of pairs.

use super::first_fit;
use super::levels::Levels;
use super::problem::align_up;
use super::{Algorithm, Chain, Chains, Plan, Problem, Watch};
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::ops::Range;

/// Interval move: `StaticMemAllocIntervalMove` of MegEngine (2022). In a problem with several
/// alignments, every buffer gets the coarsest one.
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
        let plan = chains.plan(&first_fit::refit(&chains, stack.lows, watch)?);
        watch.improved(&plan);
        Some(plan)
    }
}

/// Sorts the chains: the longest-lived first, then the earliest, then the largest.
fn order(chains: &Chains) -> Vec<u32> {
    let key = |chain: &Chain| (Reverse(chain.length()), chain.start, Reverse(chain.size));
    let mut order: Vec<u32> = (0..chains.len() as u32).collect();
    order.sort_by_key(|&chain| key(&chains.all()[chain as usize]));
    order
}

/// The placed chains.
struct Stack {
    /// The steps of each chain, numbered among the steps at which a life starts or ends.
    steps: Vec<Range<u32>>,
    /// The aligned size of each chain.
    sizes: Vec<u64>,
    /// The offset of each placed chain.
    lows: Vec<u64>,
    /// The highest offset of each placed chain that does not raise the peak.
    highest: Vec<u64>,
    /// The placed chains in the order of their offsets.
    placed: Vec<u32>,
    peak: u64,
    levels: Levels,
}

/// A candidate offset for a chain, with its cost.
#[derive(Clone, Copy)]
struct Opening {
    low: u64,
    /// The bytes by which the peak would rise.
    rise: u64,
    /// The bytes by which the gap is too small.
    missing: u64,
    /// The bytes of the gap that would remain free.
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

    /// Places a chain in the best gap and moves other chains up as necessary.
    fn insert(&mut self, chain: u32) {
        self.find_highest();
        let gap = self.choose(chain);
        self.lows[chain as usize] = gap.low;
        self.push_up(chain);
        let lows = &self.lows;
        self.placed.push(chain);
        // Moving up keeps the order of chains with overlapping lives, so the list is almost sorted.
        self.placed.sort_by_key(|&chain| lows[chain as usize]);
    }

    /// Computes for each placed chain the highest offset below the peak and below the chains above.
    fn find_highest(&mut self) {
        // Depths are counted downwards from the peak, so that one tree of largest values serves
        // both directions.
        self.levels.clear();
        for &chain in self.placed.iter().rev() {
            let (steps, size) = (&self.steps[chain as usize], self.sizes[chain as usize]);
            let depth = self.levels.largest(steps) + size;
            self.levels.raise(steps, depth);
            self.highest[chain as usize] = self.peak - depth;
        }
    }

    /// Chooses the gap with the least rise of the peak, then the fewest missing bytes, then the
    /// best fit.
    fn choose(&self, chain: u32) -> Opening {
        let (steps, size) = (&self.steps[chain as usize], self.sizes[chain as usize]);
        let meets = |other: &Range<u32>| other.start < steps.end && steps.start < other.end;
        let met: Vec<u32> = self.placed.iter().copied().filter(|&other| meets(&self.steps[other as usize])).collect();
        let mut best: Option<Opening> = None;
        let mut low = 0;
        for (number, &other) in met.iter().enumerate() {
            let high = self.lows[other as usize];
            if high >= low {
                self.consider(&mut best, low..high, size, &met[number..]);
            }
            low = low.max(high + self.sizes[other as usize]);
        }
        self.consider(&mut best, low..self.peak.max(low), size, &[]);
        best.unwrap_or(Opening { low, rise: 0, missing: 0, rest: 0 })
    }

    /// Replaces `best` by a gap with a lower cost. `above` lists the chains that the new chain
    /// would push up.
    fn consider(&self, best: &mut Option<Opening>, gap: Range<u64>, size: u64, above: &[u32]) {
        let room = gap.end - gap.start;
        let missing = size.saturating_sub(room);
        let mut rise = (gap.start + size).saturating_sub(self.peak);
        // A chain above absorbs a part of the push: the free bytes below it, and as much as it can
        // rise below the peak. The remainder raises the peak.
        if missing > 0 {
            for &other in above {
                let distance = self.lows[other as usize] - gap.end;
                let free = self.highest[other as usize] - self.lows[other as usize];
                rise = rise.max(missing.saturating_sub(distance + free));
            }
        }
        let new = Opening { low: gap.start, rise, missing, rest: room.saturating_sub(size) };
        let key = |gap: &Opening| (gap.rise, gap.missing, gap.rest);
        if best.as_ref().is_none_or(|best| key(&new) < key(best)) {
            *best = Some(new);
        }
    }

    /// Moves up all chains that are in the way of `chain`, directly or through others. Starts with
    /// the lowest, so each chain moves at most once.
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
