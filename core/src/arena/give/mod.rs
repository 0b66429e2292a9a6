//! Memory back to the device: units, rules, and the way of a unit.
//!
//! ```text
//! units.rs   free memory of a heap as values
//!   └─▶ rules.rs   which units, in which order, until when ─▶ the first unit: a forecast
//!         └─▶ take.rs   out of the heap ─▶ release by the device
//! caches.rs   the whole cache, the cache of a heap, or as much as a target asks for
//! ```
//!
//! | rule | order | predicate | end |
//! |---|---|---|---|
//! | `old` (rules.rs) | heap by heap, the smallest first | a large segment of the default pool, as old as the average | the collection threshold |
//! | `oversize` (rules.rs) | the smallest sufficient, else the largest | an oversize segment of the request's heap | enough for the request |
//! | `quiet_segments` (compact.rs) | the best cover of the excess | a quiet large segment | the budget of `compact` |
//! | `largest` (rules.rs) | the largest of all heaps | a segment | the target of a trim |
//! | `units_of` (units.rs) | segments, then pages | any | the whole cache |
//! | `next` (idle/give.rs) | heap by heap, the largest first | idle, quiet and worthwhile | the time and the budget of `reclaim:auto` |
//! | `first_quiet` (stitched/maintain.rs) | the shortest page, from the emptiest surroundings | a quiet page of the default pool | the budget of `stitched` |
//! | `segments_of` (`old_form.rs`) | the smallest first | a segment of the default pool | all: they retire |

pub(crate) mod caches;
pub(in crate::arena) mod rules;
pub(in crate::arena) mod take;
pub(in crate::arena) mod units;
