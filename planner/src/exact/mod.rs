//! Exact search: whether a problem fits into so many bytes, answered by a plan or by a proof.
//!
//! ```text
//! Chains ─▶ Instance ─▶ Search ── run 0, 1, 2 … ─▶ a plan, or a proof that there is none
//!                        │ decide: pick a buffer, place it at its lowest offset, or postpone it
//!                        │ check:  can every section still hold what it must?
//!                        └ retreat: to the last decision that the failure depends on
//! ```
//!
//! The canonical solutions, the dominance between them and the bound of each section are MiniMalloc's (Moffitt, ASPLOS 2023).
//! New are: a decision has two sides, so postponing a buffer is itself checked; a failure knows what it depends on and goes
//! back that far at once, which takes the place of splitting the problem; buffers that are equal are tried once; a buffer
//! need only be due where it lives, so the tightest section may come first; and many short runs in different orders. Nothing
//! is sorted or rebuilt at a node: moves change what they touch, and an undo trail takes them back.

mod bits;
mod check;
mod instance;
mod order;
mod pick;
mod search;
mod skyline;
mod span;
mod state;

pub use instance::Instance;
pub use search::{Progress, Search};
pub use skyline::Skyline;

use super::{Chains, Plan, Problem, Watch, lower_bound};
use alloc::sync::Arc;

/// Between two questions whether to stop, so many nodes are searched.
pub const PATIENCE: u64 = 1 << 12;

/// Whether a problem fits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It does, in this way.
    Fits(Plan),
    /// It does not, which is proven.
    DoesNotFit,
    /// It was stopped, or the problem is too large to be searched.
    Undecided,
}

/// Whether a problem fits into so many bytes. Runs until that is decided, or until `watch` stops it.
pub fn fits(problem: &Problem, capacity: u64, watch: &mut dyn Watch) -> Verdict {
    if capacity < lower_bound(problem) {
        return Verdict::DoesNotFit;
    }
    let Some(instance) = Instance::of(Chains::of(problem)) else { return Verdict::Undecided };
    let proves = instance.proves();
    let mut search = Search::new(Arc::new(instance));
    for run in 0.. {
        search.begin(run, capacity);
        loop {
            match search.advance(PATIENCE) {
                Progress::Fits => return search.plan().map_or(Verdict::Undecided, Verdict::Fits),
                Progress::DoesNotFit if proves => return Verdict::DoesNotFit,
                Progress::DoesNotFit => return Verdict::Undecided,
                Progress::Spent => break,
                Progress::Working => {}
            }
            if watch.stop() {
                return Verdict::Undecided;
            }
        }
        if watch.stop() {
            return Verdict::Undecided;
        }
    }
    Verdict::Undecided
}
