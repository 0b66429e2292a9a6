//! What every algorithm is to its caller.

use super::{Plan, Problem};

/// Who looks on while an algorithm works: says when it is to stop, and is shown what it has.
pub trait Watch {
    /// Whether to stop now. Asked every few thousand steps, so it may read a clock.
    fn stop(&self) -> bool {
        false
    }

    /// A plan better than every one before.
    fn improved(&mut self, plan: &Plan) {
        let _ = plan;
    }
}

/// Nobody: an algorithm runs to its end.
impl Watch for () {}

/// A way to find a plan. The same problem gives the same plan, in whatever order its buffers come.
pub trait Algorithm {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// The best plan it has found; `None` if it was stopped before it had one.
    fn plan(&self, problem: &Problem, watch: &mut dyn Watch) -> Option<Plan>;
}
