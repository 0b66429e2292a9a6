//! The interface between a planning algorithm and its caller.

use super::{Plan, Problem};

/// Watches a running algorithm: says when it should stop, and receives each better plan.
pub trait Watch {
    /// Returns whether the algorithm should stop. This is called every few thousand steps, so it
    /// may read a clock.
    fn stop(&self) -> bool {
        false
    }

    /// Receives a plan with a lower peak than every plan before.
    fn improved(&mut self, plan: &Plan) {
        let _ = plan;
    }
}

/// Does nothing, so the algorithm runs to its end.
impl Watch for () {}

/// A planning algorithm. It is deterministic: the same problem gives the same plan, whatever the
/// order in which the buffers are listed.
pub trait Algorithm {
    /// Returns the name of the algorithm on the command line.
    fn name(&self) -> &'static str;

    /// Returns the best plan that was found, or `None` if `watch` stopped the algorithm before the
    /// first plan.
    fn plan(&self, problem: &Problem, watch: &mut dyn Watch) -> Option<Plan>;
}
