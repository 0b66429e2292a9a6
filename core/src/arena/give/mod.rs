//! Memory that goes back to the device: units, the rules that choose them, and how a unit goes
//! back.
//!
//! ```text
//! heaps/units.rs   free memory of a heap as values
//!   └─▶ rules.rs   which units, in which order, until when ─▶ the first unit: a forecast
//!         └─▶ take.rs   out of the heap ─▶ release by the device
//! caches.rs   the whole cache, the cache of a heap, or as much as a target asks for
//! named.rs    the free memory of a pool or tag in use, or of a stream, for a call that names it
//! old_form.rs memory of the form of earlier settings, which serves no request any more
//! ```
//!
//! | rule | order | predicate | end |
//! |---|---|---|---|
//! | `old` (rules.rs) | heap by heap, the smallest first | a large segment of the default pool, as old as the average | the collection threshold |
//! | `oversize` (rules.rs) | the smallest sufficient, else the largest | an oversize segment of the request's heap | enough for the request |
//! | `quiet_segments` (compact.rs) | the best cover of the excess | a quiet large segment | the budget of `compact` |
//! | `largest` (rules.rs) | the largest of all heaps | a segment | the target of a trim |
//! | `units_of` (heaps/units.rs) | segments, then pages | any | the whole cache |
//! | `next` (idle/give.rs) | heap by heap, the largest first | idle, quiet and worthwhile | the time and the budget of `reclaim:auto` |
//! | `first_quiet` (stitched/maintain.rs) | the shortest page, from the emptiest surroundings | a quiet page of the default pool | the budget of `stitched` |
//! | `segments_of` (`old_form.rs`) | the smallest first | a segment of the default pool | all: they retire |
//!
//! # Several settings together
//!
//! `garbage_collection_threshold`, `compact`, `reclaim:auto` and `tune:auto` may all be set. They
//! know nothing of each other, and have only the number of held bytes in common. Each sentence
//! below has a test in this folder.
//!
//! * A request without a fitting block collects first. It then keeps to the budget of `compact`,
//!   with the bytes that are held after the collection. The collection takes the oldest segments,
//!   quiet or not; `compact` takes only quiet segments.
//! * Upkeep gives memory back for `reclaim:auto` and after a change of settings. It never collects,
//!   and it never keeps to the budget of `compact`. A request gives nothing back for
//!   `reclaim:auto`.
//! * If a request releases a segment, `reclaim:auto` counts it neither as given back nor as used
//!   again.
//! * Memory that `reclaim:auto` has given back is no longer held, so a later request collects and
//!   releases less.
//! * During a capture a request still collects, as in PyTorch. `compact` and `reclaim:auto` give
//!   nothing back.
//! * `tune:auto` replaces `compact` and `garbage_collection_threshold` together with all settings
//!   of placement, and keeps `reclaim`. At a change, all idle segments of the default pool retire,
//!   regardless of budget and threshold.
//! * A retired segment is held until the device has finished with it, and counts against the
//!   threshold and the budget of `compact`. Only the release of the whole cache gives it back
//!   sooner.

mod caches;
mod named;
#[cfg(feature = "alloc")]
mod old_form;
pub(in crate::arena) mod rules;
pub(in crate::arena) mod take;
#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests;
