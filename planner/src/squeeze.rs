//! Squeezing: every buffer of a plan as low as it can lie, from the lowest up, again and again while that lowers the peak.

use super::events::{Arrival, events};
use super::first_fit::{by_offset, fill};
use super::placer::Placer;
use super::{Algorithm, Chains, Plan, Problem, Watch, pushdown};
use alloc::vec::Vec;

/// Push-down's plans, squeezed.
pub struct Squeeze;

impl Algorithm for Squeeze {
    fn name(&self) -> &'static str {
        "squeeze"
    }

    fn plan(&self, problem: &Problem, watch: &mut dyn Watch) -> Option<Plan> {
        let chains = Chains::of(problem);
        let solid = chains.solid();
        let mut best: Option<Plan> = None;
        for arrival in Arrival::ALL {
            let offsets = pushdown::offsets(&solid, &events(&solid, arrival));
            let Some(plan) = squeeze(&chains, offsets, watch) else { break };
            if best.as_ref().is_none_or(|best| plan.peak < best.peak) {
                watch.improved(&plan);
                best = Some(plan);
            }
        }
        best
    }
}

/// The best plan on the way from `offsets`, which need to be no plan themselves; `None` if it was stopped before the first.
///
/// Placed in the order of its offsets, no buffer of a plan comes to lie higher than before, so the peak never grows (where
/// something is fixed it can, the first time).
pub fn squeeze(chains: &Chains, offsets: Vec<u64>, watch: &dyn Watch) -> Option<Plan> {
    let mut placer = Placer::new(chains);
    let mut best: Option<(u64, Vec<u64>)> = None;
    let mut offsets = offsets;
    while let Some(peak) = fill(&mut placer, &by_offset(&offsets), watch) {
        if best.as_ref().is_some_and(|(lowest, _)| peak >= *lowest) {
            break;
        }
        offsets = placer.offsets().to_vec();
        best = Some((peak, offsets.clone()));
    }
    best.map(|(_, offsets)| chains.plan(&offsets))
}
