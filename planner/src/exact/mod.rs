//! The exact search: decides whether a problem fits into a capacity, with a plan or a proof.
//!
//! ```text
//! Chains ─▶ Instance ─▶ Search ── run 0, 1, 2 … ─▶ a plan, or a proof that there is none
//!                        │ decide: pick a buffer, place it at its lowest offset, or postpone it
//!                        │ check:  can every section still hold its unplaced buffers?
//!                        └ retreat: to the last decision on which the failure depends
//! ```
//!
//! These ideas are from MiniMalloc (Moffitt, ASPLOS 2023): canonical solutions, dominance between
//! solutions, and the bound of each section.
//!
//! These are new:
//!
//! - A decision has two sides, so it is also checked whether a buffer can be postponed.
//! - A failure records the sections on which it depends, and the search retreats past all unrelated
//!   decisions at once (backjumping). So the problem need not be split.
//! - Of interchangeable buffers, only one is tried.
//! - A buffer needs to be due only where it lives, so the tightest section may come first.
//! - Many short runs use different orders.
//!
//! A node sorts nothing and rebuilds nothing: a move changes only the affected entries, and an undo
//! trail restores them. In the worst case, the search takes exponential time.

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

/// The number of nodes that are searched between two calls of [`Watch::stop`].
pub const PATIENCE: u64 = 1 << 12;

/// The answer to the question whether a problem fits into a capacity.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The problem fits, with this plan.
    Fits(Plan),
    /// The problem does not fit. This is proven.
    DoesNotFit,
    /// The answer is not known, because the search was stopped or the problem is too large for it.
    Undecided,
}

/// Decides whether a problem fits into `capacity` bytes. Runs until the answer is known or `watch`
/// stops the search.
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
