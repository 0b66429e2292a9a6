//! The planned policy: serves a repeating sequence of requests from a plan. Requests deviating from
//! the sequence go to a second policy, the *fallback*.
//!
//! ```text
//!  announce ─▶ observe an iteration ─▶ announce ─▶ plan, on any thread ─▶ announce ─▶ serve, iteration by iteration
//!                  recorder              Observed          Plan                 lanes
//! ```
//!
//! An *iteration* is the time between two announcements
//! ([`Planning::end_iteration`](crate::Planning::end_iteration)). The policy observes an iteration:
//! the sizes requested on each stream, in order, and the time of each free. Blocks freed before the
//! iteration ends are planned. Blocks with a longer life go to the fallback, in later iterations
//! too. The program takes the [`Observed`] iteration out, computes plans on any thread, and passes
//! the plans back. The next announcement activates the plans.
//!
//! A **lane** serves a stream. Each lane has a sequence, a segment and a lock of its own. The next
//! request of the sequence gets the planned address, without a search. Sizes are rounded up to
//! multiples of 512 bytes.
//!
//! # Deviations
//! A request out of sequence is looked for nearby: among the requests skipped recently
//! (*reordered*), then a little further on (the requests between are *missing*). A request found
//! nowhere near is *extra* and goes to the fallback. Eight extra requests in a row with a match in
//! another part of the sequence move the lane to the match. A request also goes to the fallback if
//! the planned bytes are still *occupied*, because a block is freed later than observed. So the
//! lane hands no bytes out twice, for every program; a lane with many deviations only wastes
//! memory. When more than a quarter of the requests deviate, iteration after iteration, the plan is
//! given up, and the next iteration is observed.
//!
//! # Stream order
//! Streams share no bytes of a plan. A block used by several streams when observed is planned to
//! the end of the iteration. The bytes of the block stay occupied until the block's events are
//! complete, even in the next iteration. Requests led into a private pool by a route or a capture
//! are neither observed nor planned.
//!
//! # Memory
//! While a plan is active, the segments of the plan stay reserved. Free bytes in the segments
//! count as reserved, and not as `inactive_split`. After the end of a plan or of the plan's stream,
//! the segment goes to the cache.

mod address_table;
pub(crate) mod background;
pub(crate) mod deviations;
pub(crate) mod lanes;
pub(crate) mod recorder;
pub(crate) mod resync;
pub(crate) mod sequence;
pub(crate) mod state;
#[cfg(all(test, not(loom)))]
pub(crate) mod tests_sequence;

pub use recorder::{Observed, ObservedStream};

use crate::pool::PoolId;
use crate::units::MAX_REQUEST;

/// The planner accepts exactly the sizes of the allocator.
const _: () = assert!(cachalot_planner::MAX_SIZE == MAX_REQUEST);

/// The most streams of a device served from plans. The fallback serves all other streams.
pub(crate) const LANES: usize = 8;

/// The first number in the names of the plans' pools: the largest integer parsed exactly by every
/// JSON reader.
pub(crate) const POOLS: u64 = (1 << 53) - 1;

/// Returns whether a pool holds the segment of a plan. Each lane has a pool for the segment.
/// Programs see these pools in snapshots only.
#[must_use]
pub const fn is_planned(pool: PoolId) -> bool {
    pool.0 == POOLS
}
