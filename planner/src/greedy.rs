//! Greedy planning: the most demanding buffers first, each in the smallest gap between those that lie already, or in the lowest.
//!
//! As TensorFlow Lite's `ArenaPlanner` and XLA's `GlobalDecreasingSizeBestFit` do it, with other orders beside theirs. The lowest
//! gap is what XLA's packing search tries, too; on long records it leaves less between buffers of mixed sizes.

use super::first_fit::PATIENCE;
use super::placer::Placer;
use super::{Algorithm, Chain, Chains, Plan, Problem, Watch};
use alloc::vec::Vec;
use core::cmp::Reverse;

/// Which buffers come first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Greedy {
    /// The largest; of those the longest-lived.
    Size,
    /// Those of the most bytes times steps.
    Area,
    /// Those that live at once with the most others (TVM's `greedy_by_conflicts`).
    Conflicts,
    /// The earliest; of those the largest.
    Birth,
    /// The largest, of those the longest-lived, and each in the lowest gap.
    LowestSize,
    /// Those of the largest power of two in their size, of those the earliest, and each in the lowest gap.
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
        let mut placer = Placer::new(&chains);
        for some in self.order(&chains).chunks(PATIENCE) {
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
    /// Every order.
    pub const ALL: [Self; 6] =
        [Self::Size, Self::Area, Self::Conflicts, Self::Birth, Self::LowestSize, Self::LowestScale];

    /// The chains in this order; what is equal in it stays in the problem's own.
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

/// With how many chains each one lives at once, itself included: those that begin before its end and do not end before its start.
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
