//! Squeezing: lowers every buffer of a plan as far as possible, from the lowest up, and repeats
//! while the peak falls.

use super::events::{events, orders};
use super::first_fit::{by_offset, fill};
use super::placer::Placer;
use super::{Algorithm, Chains, Plan, Problem, Watch, pushdown};
use alloc::vec::Vec;

/// Squeezes the plans of push-down, for every order of arrival.
pub struct Squeeze;

impl Algorithm for Squeeze {
    fn name(&self) -> &'static str {
        "squeeze"
    }

    fn plan(&self, problem: &Problem, watch: &mut dyn Watch) -> Option<Plan> {
        let chains = Chains::of(problem);
        let solid = chains.solid();
        let mut best: Option<Plan> = None;
        for ranks in orders(&solid) {
            let offsets = pushdown::offsets(&solid, &events(&solid, &ranks), watch);
            let Some(plan) = offsets.and_then(|offsets| squeeze(&chains, offsets, watch)) else { break };
            if best.as_ref().is_none_or(|best| plan.peak < best.peak) {
                watch.improved(&plan);
                best = Some(plan);
            }
        }
        best
    }
}

/// Returns the best plan that is reached from `offsets`, or `None` if `watch` stopped before the
/// first plan. The offsets need not be a valid plan.
///
/// First fit in the order of a plan's offsets moves no buffer up, so the peak never rises. Only the
/// first round may raise it, if some offsets are fixed.
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
