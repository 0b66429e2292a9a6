//! What is known so far: the best plan, and what no plan can be better than.

use crate::{Chains, Plan, Problem, lower_bound};

/// The best plan and the lower bound of a problem.
pub struct Standing {
    best: Option<Plan>,
    algorithm: &'static str,
    lower: u64,
    /// The search has found that it can find nothing below so many bytes. Above `lower` only where that proves nothing.
    searched: u64,
}

impl Standing {
    /// No plan yet; no buffers need none.
    pub fn new(problem: &Problem) -> Self {
        let lower = lower_bound(problem);
        let best = problem.buffers.is_empty().then(|| Chains::of(problem).plan(&[]));
        Self { best, algorithm: "", lower, searched: lower }
    }

    /// Keeps a plan if it is better than the one before, and says whether it is.
    pub fn offer(&mut self, plan: Plan, algorithm: &'static str) -> bool {
        let better = self.best.as_ref().is_none_or(|best| plan.peak < best.peak);
        if better {
            (self.best, self.algorithm) = (Some(plan), algorithm);
        }
        better
    }

    /// The search has found that no plan has a peak below so many bytes; `proven` if that holds for the problem itself.
    pub fn refute(&mut self, peak: u64, proven: bool) {
        self.searched = self.searched.max(peak);
        if proven {
            self.lower = self.lower.max(peak);
        }
    }

    /// The best plan.
    pub fn best(&self) -> Option<&Plan> {
        self.best.as_ref()
    }

    /// The best plan, for good.
    pub fn into_best(self) -> Option<Plan> {
        self.best
    }

    /// Who found it; empty if nobody has.
    pub fn algorithm(&self) -> &'static str {
        self.algorithm
    }

    /// No plan has a peak below so many bytes.
    pub fn lower_bound(&self) -> u64 {
        self.lower
    }

    /// The search can find no plan with a peak below so many bytes; not less than the lower bound.
    pub fn searched(&self) -> u64 {
        self.searched
    }

    /// Whether the best plan is proven to be that.
    pub fn optimal(&self) -> bool {
        self.best.as_ref().is_some_and(|best| best.peak <= self.lower)
    }

    /// Whether the search can find nothing better.
    pub fn settled(&self) -> bool {
        self.best.as_ref().is_some_and(|best| best.peak <= self.searched)
    }

    /// The capacity in bytes that a run of the search is to try.
    ///
    /// Most programs fit into their lower bound; where one does not, the next smaller peak is much more easily found than that is
    /// refuted. So the runs try the bound, the peak itself, and what lies between.
    pub fn target(&self, run: u64) -> u64 {
        const EIGHTHS: [u64; 8] = [0, 4, 8, 6, 7, 0, 8, 7];
        let highest = match &self.best {
            Some(best) => best.peak.saturating_sub(1),
            // Without a plan, capacities grow until there is one.
            None => self.searched.saturating_mul(1 << (run / 8 + 1).min(62)),
        };
        let (gap, eighths) = (highest.saturating_sub(self.searched), EIGHTHS[(run % 8) as usize]);
        self.searched + gap / 8 * eighths + gap % 8 * eighths / 8
    }
}
