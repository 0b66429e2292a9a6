//! The planned policy: serves a repeating sequence of requests from a plan. Requests that deviate
//! from the sequence go to another policy, the *fallback*.
//!
//! ```text
//!  announce ─▶ observe an iteration ─▶ announce ─▶ plan, on any thread ─▶ announce ─▶ serve, iteration by iteration
//!                  recorder              Observed          Plan                 lanes
//! ```
//!
//! An *iteration* is the time between two announcements
//! ([`Planning::end_iteration`](crate::Planning::end_iteration)). The policy observes one
//! iteration: the sizes requested on each stream, in order, and when each block is freed. Blocks
//! that are freed before the iteration ends are planned. Blocks that live longer go to the
//! fallback, in later iterations too. The program takes the [`Observed`] iteration, computes plans
//! on any thread, and passes them back. The next announcement activates them.
//!
//! The plan of a stream is in a heap: its sequence of requests, and its segment. A **lane** leads
//! the stream to that heap. The next request of the sequence gets the planned address, without a
//! search. Sizes are rounded up to multiples of 512 bytes.
//!
//! # Deviations
//! If a request does not follow the sequence, the plan looks for it nearby: first among the
//! requests that were recently skipped (then it is *reordered*), then a little ahead (then the
//! requests in between are *missing*). If it is nowhere near, it is *extra* and goes to the
//! fallback. After eight extra requests in a row that match another part of the sequence, the plan
//! moves there. A request also goes to the fallback if its planned bytes are still *occupied*,
//! because a block is freed later than observed. So a plan never hands out the same bytes twice,
//! whatever the program does; a plan with many deviations only wastes memory. When more than a
//! quarter of the requests deviate, iteration after iteration, the plan is given up, and the next
//! iteration is observed.
//!
//! # Stream order
//! Streams do not share bytes of a plan. If several streams used a block when it was observed, it
//! is planned to live until the end of the iteration. Its bytes remain occupied until its events
//! are complete, even in the next iteration. Requests that a route or a capture leads to a private
//! pool are neither observed nor planned.
//!
//! # Memory
//! While a plan is active, its segments remain reserved. Free bytes in them count as reserved, but
//! not as `inactive_split`. When the plan or its stream ends, the segment goes to the cache.

mod address_table;
pub(crate) mod background;
pub(crate) mod deviations;
pub(crate) mod lanes;
pub(crate) mod recorder;
pub(crate) mod resync;
pub(crate) mod segment;
pub(crate) mod sequence;
pub(crate) mod state;
#[cfg(all(test, not(loom)))]
pub(crate) mod tests_sequence;

pub use recorder::{Observed, ObservedStream};

use crate::pool::PoolId;
use crate::units::MAX_REQUEST;

/// The planner accepts exactly the sizes of the allocator.
const _: () = assert!(cachalot_planner::MAX_SIZE == MAX_REQUEST);

/// The most streams of a device that are served from plans. The fallback serves the others.
pub(crate) const LANES: usize = 8;

/// The first number in the names of the plans' pools: the largest integer that every JSON reader
/// parses exactly.
pub(crate) const POOLS: u64 = (1 << 53) - 1;

/// Returns whether a pool holds the segment of a plan. Each plan has a separate pool for its
/// segment. Programs see these pools only in snapshots.
#[must_use]
pub const fn is_planned(pool: PoolId) -> bool {
    pool.0 == POOLS
}
