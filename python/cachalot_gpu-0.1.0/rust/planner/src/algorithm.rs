//! The interface between a planning algorithm and its caller.

use super::{Plan, Problem};

/// Observes a running algorithm: tells the algorithm when to stop, and receives each better plan.
pub trait Watch {
    /// Returns whether the algorithm should stop. Called every few thousand steps, so reading a
    /// clock is cheap enough.
    fn stop(&self) -> bool {
        false
    }

    /// Receives a plan with a lower peak than every plan before.
    fn improved(&mut self, plan: &Plan) {
        let _ = plan;
    }
}

/// Observes nothing: the algorithm runs to completion.
impl Watch for () {}

/// A planning algorithm. Deterministic: equal problems give equal plans, in whatever order the
/// buffers are listed.
pub trait Algorithm {
    /// Returns the name of the algorithm on the command line.
    fn name(&self) -> &'static str;

    /// Returns the best plan found, or `None` if `watch` stopped the algorithm before the first
    /// plan.
    fn plan(&self, problem: &Problem, watch: &mut dyn Watch) -> Option<Plan>;
}
