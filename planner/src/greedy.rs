//! Greedy planning: places the most demanding buffers first, each in the smallest or in the lowest
//! gap.
//!
//! The smallest gap is the choice of TensorFlow Lite's `ArenaPlanner` and of XLA's
//! `GlobalDecreasingSizeBestFit`. XLA's packing search also tries the lowest gap, which leaves less
//! space between buffers of mixed sizes in long records. Greedy algorithms do not limit the
//! distance from the best plan.

use super::first_fit::PATIENCE;
use super::placer::Placer;
use super::{Algorithm, Chain, Chains, Plan, Problem, Watch};
use alloc::vec::Vec;
use core::cmp::Reverse;

/// Greedy placement, by the order in which buffers are placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Greedy {
    /// The largest first, then the longest-lived.
    Size,
    /// The largest product of bytes and steps first.
    Area,
    /// The buffers with the most overlapping lives first (TVM's `greedy_by_conflicts`).
    Conflicts,
    /// The earliest first, then the largest.
    Birth,
    /// The largest first, then the longest-lived, each in the lowest gap.
    LowestSize,
    /// The largest power of two in the size first, then the earliest, each in the lowest gap.
    LowestScale,
}

impl Algorithm for Greedy {
    fn name(&self) -> &'static str {
        match self {
            Self::Size => "greedy-size",
            Self::Area => "greedy-area",
            Self::Conflicts => "greedy-conflicts",
            Self::Birth => "greedy-birth",
            Self::LowestSize => "lowest-size",
            Self::LowestScale => "lowest-scale",
        }
    }

    fn plan(&self, problem: &Problem, watch: &mut dyn Watch) -> Option<Plan> {
        let chains = Chains::of(problem);
        let order = self.order(&chains);
        // Sorting a million chains takes a good part of a second, and so does preparing their
        // places.
        if watch.stop() {
            return None;
        }
        let mut placer = Placer::new(&chains);
        for some in order.chunks(PATIENCE) {
            if watch.stop() {
                return None;
            }
            for &chain in some {
                if matches!(self, Self::LowestSize | Self::LowestScale) {
                    placer.first_fit(chain);
                } else {
                    placer.best_fit(chain);
                }
            }
        }
        let plan = chains.plan(placer.offsets());
        watch.improved(&plan);
        Some(plan)
    }
}

impl Greedy {
    /// All orders.
    pub const ALL: [Self; 6] =
        [Self::Size, Self::Area, Self::Conflicts, Self::Birth, Self::LowestSize, Self::LowestScale];

    /// Sorts the chains by this order. Chains with the same rank keep the order of the problem.
    pub fn order(self, chains: &Chains) -> Vec<u32> {
        let all = chains.all();
        let mut order: Vec<u32> = (0..all.len() as u32).collect();
        let of = |chain: u32| &all[chain as usize];
        let bulk = |chain: &Chain| (Reverse(chain.size), Reverse(chain.length()));
        match self {
            Self::Size | Self::LowestSize => order.sort_by_key(|&chain| bulk(of(chain))),
            Self::Area => order.sort_by_key(|&chain| {
                (Reverse(u128::from(of(chain).size) * u128::from(of(chain).length())), bulk(of(chain)))
            }),
            Self::Conflicts => {
                let conflicts = conflicts(all);
                order.sort_by_key(|&chain| (Reverse(conflicts[chain as usize]), bulk(of(chain))));
            }
            Self::Birth => order.sort_by_key(|&chain| (of(chain).start, bulk(of(chain)))),
            Self::LowestScale => order.sort_by_key(|&chain| {
                let scale = of(chain).size.checked_ilog2();
                (Reverse(scale), of(chain).start, bulk(of(chain)))
            }),
        }
        order
    }
}

/// Counts for each chain the chains with overlapping lives, including itself. O(n log n): the
/// chains that start before its end, minus those that end before its start.
fn conflicts(chains: &[Chain]) -> Vec<usize> {
    let mut starts: Vec<u64> = chains.iter().map(|chain| chain.start).collect();
    let mut ends: Vec<u64> = chains.iter().map(|chain| chain.end).collect();
    starts.sort_unstable();
    ends.sort_unstable();
    let count = |chain: &Chain| {
        let begun = starts.partition_point(|&start| start < chain.end);
        let ended = ends.partition_point(|&end| end <= chain.start);
        begun - ended
    };
    chains.iter().map(count).collect()
}
