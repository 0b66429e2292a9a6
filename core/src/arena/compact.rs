//! The setting `compact` limits how much more memory is held than was ever in use at one time. It
//! does not need virtual memory.
//!
//! ```text
//! no free block fits closely ─┬─ another segment is within the budget ─▶ obtain.rs
//!                             └─ beyond: any free block ─▶ done
//!                                  └─ none: release quiet segments ─▶ obtain.rs
//! ```
//!
//! Under `exact_segments` no free block is cut while the limit and the device have memory. A
//! segment has the size of one block, and once it is cut it can serve no block of this size again.
//! The budget then counts what the program holds, without pending blocks.
//!
//! The budget is `(1 + compact) · most bytes ever active`, plus `compact_slack_mb` for freed memory
//! that waits. It applies only to large heaps. Segments of 2 MiB for small blocks are left alone,
//! because a call to the driver moves little memory there. With small heaps, the recorded programs
//! need four times the time in the driver, for the same utilisation.
//!
//! A driver waits for running work before it frees memory: 75 ms after a kernel of 80 ms. So a
//! segment is released for a request only if it is quiet (see paging/epochs.rs), which means that
//! all work that used it is known to be done. If there are not enough quiet segments, the request
//! exceeds the budget, and a later request repays this.

use crate::arena::flags::{self, Flags};
use crate::arena::heaps::Heaps;
use crate::arena::heaps::units::{Unit, quiet_cover};
use crate::arena::holdings::Holdings;
use crate::arena::paging::departures::GivenUp;
use crate::arena::platform::Platform;
use crate::arena::request::Request;
use crate::config::rounding::{Divisions, INTERVALS, PoolKind};
use crate::device::Segments;
use crate::error::Error;
use crate::heap::Heap;
use crate::heap::split_rules::Compacting;
use crate::stats::Stat;
use crate::sync::Ordering;
use crate::tables::Storage;
use crate::units::{DevicePtr, StreamId};
use core::iter::from_fn;

/// The number of segments given back for one of another size before sizes are rounded up, on a
/// device that [pins](crate::Segments::pins). A program with equal sizes exchanges none, and one
/// that has just started exchanges some.
const EXCHANGES: u32 = 16;

/// The number of such exchanges before the budget is raised from [`TIGHT`] to [`WIDE`], on the same
/// devices. A program with live blocks of many sizes at once pins at most requests even if sizes
/// are rounded up.
const MANY_EXCHANGES: u32 = 64;
/// The budget of pinned memory, unless the settings specify another one.
const TIGHT: f64 = 0.01;
/// The raised budget. Of the recorded programs that exchange so much, one pins 7,737 times in 9,600
/// requests within 0.01, 7,372 within 0.05, 6,943 within 0.1, 3,005 within 0.25 and 1,560 within
/// 0.5, and holds 1.05, 1.09, 1.14, 1.33 and 1.60 of what it uses.
const WIDE: f64 = 0.25;

impl<P: Platform> Holdings<'_, P> {
    /// Returns whether any free block serves a request beyond the budget before segments are
    /// released. Under `exact_segments`, this is so only if the limit would not allow the request's
    /// segment in exchange for a released one.
    pub(super) fn any_block_serves_first(&self, request: &Request) -> bool {
        let is_exact = self.heaps.lock(request.slot).rules.compact.parts_segments();
        // Once a segment of one block's size is cut, it can serve no block of this size again. A
        // released one makes room for at least `request.size`, which is too little if the limit was
        // lowered below what is held.
        let any = !is_exact || !self.ledger.has_room_for(self.segment_bytes(request).saturating_sub(request.size));
        any && self.excess_of(request).is_some()
    }

    /// Returns the number of bytes by which another segment for the request would exceed the
    /// budget. Returns `None` within the budget, or if `compact` is not active for the request's
    /// heap.
    fn excess_of(&self, request: &Request) -> Option<u64> {
        let stat = {
            let heap = self.heaps.lock(request.slot);
            if !is_compact(&heap) {
                return None;
            }
            if heap.rules.compact.parts_segments() { Stat::AllocatedBytes } else { Stat::ActiveBytes }
        };
        let (compact, slack) = {
            let config = self.settings.config.lock();
            (config.compact()?, config.compact_slack())
        };
        // The request is part of what will be in use.
        let most = self.peaks.most_with(&self.counters(), stat, request.size);
        let held = self.ledger.reserved().saturating_add(self.segment_bytes(request));
        held.checked_sub(budget(most, compact, slack)).filter(|&excess| excess > 0)
    }

    /// Releases quiet segments until a segment for the request is within the budget, or no quiet
    /// segment is left. Does not wait for the device. Returns whether the settings have changed,
    /// which the caller must apply.
    pub(super) fn release_excess(&self, request: &Request) -> Result<bool, Error> {
        if self.excess_of(request).is_none() || !may_release_quiet(&self.driver.flags, request) {
            return Ok(false);
        }
        self.given_up().poll_departures();
        let mut given = self.give(self.quiet_segments(request))?;
        // Memory that is free but not quiet becomes quiet for a later request, or at once on a
        // stream without unfinished work.
        if self.excess_of(request).is_some() && self.given_up().begin_all_epochs(request.stream) {
            self.given_up().poll_departures();
            given += self.give(self.quiet_segments(request))?;
        }
        Ok(given > 0 && self.note_exchange(request))
    }

    /// Notes that memory was given back for a segment of another size. If each byte of a segment
    /// costs time, sizes are rounded up after some such exchanges, because segments of equal sizes
    /// serve each other's requests. After many exchanges, more memory is held. Returns whether the
    /// settings have changed.
    fn note_exchange(&self, request: &Request) -> bool {
        let is_exact = self.heaps.lock(request.slot).rules.compact == Compacting::Exact;
        let is_costly = is_exact && self.driver.device().pins();
        if !is_costly {
            return false;
        }
        match self.settings.exchanges.fetch_add(1, Ordering::Relaxed).wrapping_add(1) {
            // A step is at most an eighth of the size.
            EXCHANGES => {
                let divisions = Divisions::new([8; INTERVALS]);
                divisions.is_some_and(|divisions| self.settings.round_up(divisions))
            }
            MANY_EXCHANGES => self.settings.raise_budget(TIGHT, WIDE),
            _ => false,
        }
    }

    /// The rule of `compact`. Yields the quiet segment of all large heaps that covers the excess
    /// best, until a segment for the request is within the budget. Yields only segments that are
    /// known to be quiet, and does not ask the device.
    pub(super) fn quiet_segments(&self, request: &Request) -> impl Iterator<Item = Unit> {
        let heaps = self.heaps;
        // The excess shrinks with each unit, unless other threads allocate.
        from_fn(move || {
            let excess = self.excess_of(request).filter(|_| may_release_quiet(&self.driver.flags, request))?;
            let large = heaps.heaps_of(heaps.giving_pools(), |_| [PoolKind::Large]);
            let of_each = large.filter_map(|(slot, _used)| quiet_cover(&mut heaps.lock(slot), slot, excess));
            of_each.min_by_key(|unit| (rank(unit.bytes, excess), unit.at))
        })
    }
}

impl<P: Platform> Heaps<P> {
    /// Returns the block from which [`search_any_block`](crate::arena::Arena::search_any_block)
    /// would serve a request.
    pub(super) fn predict_any_block(&self, request: &Request) -> Option<DevicePtr> {
        let mut heap = self.lock(request.slot);
        find_any(&mut heap, request.size).map(|block| DevicePtr(heap.blocks[block].addr))
    }
}

impl<P: Platform> GivenUp<'_, P> {
    /// Starts an epoch of each heap with a free segment that no epoch covers yet, for a call that
    /// names the stream `named`. Returns whether any epoch was started.
    fn begin_all_epochs(&self, named: StreamId) -> bool {
        let heaps = self.heaps;
        let mut began = false;
        for (slot, _used) in heaps.heaps_of(heaps.giving_pools(), |_| [PoolKind::Large]) {
            let newest = heaps.lock(slot).epochs.newest();
            let uncovered = |unit: Unit| !unit.is_quiet() && unit.freed_at >= newest;
            began |= heaps.segments_of(slot).any(uncovered) && self.begin_epoch(slot, named);
        }
        began
    }
}

/// Returns whether segments may be released for a request. They may not while a graph is captured,
/// nor while an event might become part of a graph.
fn may_release_quiet(flags: &Flags, request: &Request) -> bool {
    !request.capturing && !flags.has(flags::CAPTURE)
}

/// Returns whether `compact` is active for a heap. A sub-allocator places blocks by its own rules.
fn is_compact<S: Storage>(heap: &Heap<S>) -> bool {
    heap.rules.compact != Compacting::No && heap.suballocator.is_none()
}

/// Finds the smallest free block of a heap under `compact` for a request of `size` bytes.
pub(super) fn find_any<S: Storage>(heap: &mut Heap<S>, size: u64) -> Option<u32> {
    if is_compact(heap) { heap.find_any(size) } else { None }
}

/// Returns the most bytes that may be held if at most `most` bytes were ever in use.
fn budget(most: u64, compact: f64, slack: u64) -> u64 {
    // The conversion rounds towards zero and saturates.
    most.saturating_add((most as f64 * compact) as u64).saturating_add(slack)
}

/// Orders segments of `size` bytes by how well they cover `excess` bytes: first those that are
/// large enough, the smallest first; then the others, the largest first.
fn rank(size: u64, excess: u64) -> (bool, u64) {
    if size >= excess { (false, size) } else { (true, u64::MAX - size) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{budget, rank};

    #[test]
    fn the_budget_is_a_part_of_the_most_ever_in_use() {
        assert_eq!([0.0, 0.05, 1.0].map(|compact| budget(1000, compact, 0)), [1000, 1050, 2000]);
        assert_eq!([0.0, 0.05, 1.0].map(|compact| budget(1000, compact, 60)), [1060, 1110, 2060]);
        assert_eq!(budget(u64::MAX, 1.0, 1), u64::MAX);
        let mut sizes = [10, 20, 30, 40, 50];
        sizes.sort_by_key(|&size| rank(size, 30));
        assert_eq!(sizes, [30, 40, 50, 20, 10]);
    }
}
