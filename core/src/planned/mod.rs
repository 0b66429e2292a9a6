//! The planned policy: a sequence of requests that repeats is served from a plan; whatever deviates from it goes to another policy,
//! the *fallback*.
//!
//! ```text
//!  announce ─▶ observe one iteration ─▶ announce ─▶ plan, somewhere else ─▶ announce ─▶ serve, iteration by iteration
//!                    log                  Observed        Plan                 lanes
//! ```
//!
//! An *iteration* is what lies between two announcements ([`Allocator::iteration`](crate::Allocator::iteration)). One of them is
//! observed: the sizes that are requested on each stream, in order, and when each block is freed. What is freed before the
//! iteration ends is planned; what lives on is the fallback's, in later iterations too. The plan is made by whoever takes the
//! [`Observed`] out and brings plans back; the next announcement puts them in force.
//!
//! A **lane** serves one stream: its sequence, a segment of its own, and a lock of its own. A request that is the next of its
//! stream's sequence gets the address that the plan has for it; nothing is searched. Sizes are rounded to 512 bytes.
//!
//! # Deviations
//! A request that is not the next one is looked for nearby: passed over a short while ago (*reordered*), or a little further on
//! (those between are *missing*). If it is nowhere near it is *extra*, and the fallback's; eight extra ones in a row that stand in
//! the sequence elsewhere move the lane there. A block whose bytes are still *occupied*, because something is freed later than it
//! was observed to be, is the fallback's too. So no bytes are handed out twice, whatever the program does; a lane that deviates
//! wastes memory, nothing else. When more than a quarter of the requests deviate, iteration after iteration, the plan is given up,
//! and the next iteration is observed.
//!
//! # Stream order
//! Streams share no bytes of a plan. A block that was used by other streams when it was observed is planned to the end of its
//! iteration, and its bytes are occupied until their events are complete, in the next iteration too. Requests that a route or a
//! capture leads elsewhere are neither observed nor planned.
//!
//! # Memory
//! While a plan is in force its segments are held, whatever of them is in use; what is free in them counts as reserved and not as
//! `inactive_split`. A plan that is given up, or whose stream is destroyed, leaves its segment to the cache.

mod address_table;
pub(crate) mod background;
pub(crate) mod deviations;
pub(crate) mod lanes;
pub(crate) mod recorder;
pub(crate) mod report;
pub(crate) mod resync;
pub(crate) mod sequence;
pub(crate) mod state;
#[cfg(all(test, not(loom)))]
pub(crate) mod tests_sequence;

pub use recorder::{Observed, ObservedStream};
pub use report::{PlannedReport, Stage};

use crate::pool::PoolId;
use crate::units::MAX_REQUEST;

/// The planner takes every size that the allocator does, and none beyond.
const _: () = assert!(cachalot_planner::MAX_SIZE == MAX_REQUEST);

/// How many streams of a device can be served from plans. Requests of others are the fallback's.
pub(crate) const LANES: usize = 8;

/// The first number of the names of pools that plans keep their memory in: the largest that every reader of JSON has exactly.
pub(crate) const POOLS: u64 = (1 << 53) - 1;

/// Whether a pool is one that a plan keeps its memory in: each lane has one, of which the program knows by snapshots only.
#[must_use]
pub const fn is_planned(pool: PoolId) -> bool {
    pool.0 == POOLS
}
