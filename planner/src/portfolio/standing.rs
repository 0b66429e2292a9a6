//! The best plan so far, and the lower bound of all plans.

use crate::{Chains, Plan, Problem, lower_bound};

/// The best plan and the lower bound of a problem.
pub struct Standing {
    best: Option<Plan>,
    algorithm: &'static str,
    lower: u64,
    /// The lowest peak in bytes that the search may still find. It is above `lower` only if the
    /// search proves nothing about the problem.
    searched: u64,
}

impl Standing {
    /// Creates the state before the first plan. A problem without buffers has an empty plan.
    pub fn new(problem: &Problem) -> Self {
        let lower = lower_bound(problem);
        let best = problem.buffers.is_empty().then(|| Chains::of(problem).plan(&[]));
        Self { best, algorithm: "", lower, searched: lower }
    }

    /// Keeps a plan if it is better than the best so far. Returns whether it was kept.
    pub fn offer(&mut self, plan: Plan, algorithm: &'static str) -> bool {
        let better = self.best.as_ref().is_none_or(|best| plan.peak < best.peak);
        if better {
            (self.best, self.algorithm) = (Some(plan), algorithm);
        }
        better
    }

    /// Raises the bound of the search to `peak` bytes, and with `proven` also the lower bound of
    /// the problem.
    pub fn refute(&mut self, peak: u64, proven: bool) {
        self.searched = self.searched.max(peak);
        if proven {
            self.lower = self.lower.max(peak);
        }
    }

    /// Returns the best plan.
    pub fn best(&self) -> Option<&Plan> {
        self.best.as_ref()
    }

    /// Consumes the state, and returns the best plan.
    pub fn into_best(self) -> Option<Plan> {
        self.best
    }

    /// Returns the algorithm of the best plan. Empty if there is no plan.
    pub fn algorithm(&self) -> &'static str {
        self.algorithm
    }

    /// Returns the lower bound of all peaks in bytes.
    pub fn lower_bound(&self) -> u64 {
        self.lower
    }

    /// Returns the lowest peak in bytes that the search may still find, at least the lower bound.
    pub fn searched(&self) -> u64 {
        self.searched
    }

    /// Returns whether the best plan is proven optimal.
    pub fn optimal(&self) -> bool {
        self.best.as_ref().is_some_and(|best| best.peak <= self.lower)
    }

    /// Returns whether the search can find no better plan.
    pub fn settled(&self) -> bool {
        self.best.as_ref().is_some_and(|best| best.peak <= self.searched)
    }

    /// Returns the capacity in bytes for a run of the search.
    ///
    /// Most programs fit into their lower bound. If a program does not, a plan with a peak just
    /// below the best one is found much sooner than the bound is refuted. So the runs try the
    /// bound, the next smaller peak, and capacities in between.
    pub fn target(&self, run: u64) -> u64 {
        const EIGHTHS: [u64; 8] = [0, 4, 8, 6, 7, 0, 8, 7];
        let highest = match &self.best {
            Some(best) => best.peak.saturating_sub(1),
            // If there is no plan, capacities grow until there is one.
            None => self.searched.saturating_mul(1 << (run / 8 + 1).min(62)),
        };
        let (gap, eighths) = (highest.saturating_sub(self.searched), EIGHTHS[(run % 8) as usize]);
        self.searched + gap / 8 * eighths + gap % 8 * eighths / 8
    }
}
