//! The setting `compact`: bounds the memory held beyond the most memory ever in use, without virtual
//! memory.
//!
//! ```text
//! no free block fits closely ─┬─ another segment is within the budget ─▶ obtain.rs
//!                             └─ beyond: any free block ─▶ done
//!                                  └─ none: release quiet segments ─▶ obtain.rs
//! ```
//!
//! Under `exact_segments` no free block of another size serves while the limit and the device have memory:
//! a segment of one block's size that is cut would serve no block of its own size again. The budget then
//! counts what the program holds, without pending blocks.
//!
//! The budget is `(1 + compact) · most bytes ever active`. Only large heaps take part. Segments of 2
//! MiB for small blocks are left alone: a call of the driver moves little memory there. With small
//! heaps the recorded programs need four times the time in the driver, for the same utilisation.
//!
//! A driver waits for running work before it frees memory, 75 ms behind a kernel of 80 ms. So a
//! segment is released for a request only if the segment is quiet (see quiet.rs): all work that used
//! the segment is known to be done. Without enough quiet segments the request exceeds the budget,
//! and a later request repays.

use crate::arena::give::take::give;
use crate::arena::give::units::{Unit, quiet_cover};
use crate::arena::request::Request;
use crate::arena::{OnDevice, flags};
use crate::config::rounding::PoolKind;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::heap::Heap;
use crate::heap::split_rules::Compacting;
use crate::stats::Stat;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::{DevicePtr, StreamId};
use core::iter::from_fn;

impl<D: DeviceMemory, R: Lock, S: Storage> OnDevice<'_, D, R, S> {
    /// Returns whether any free block serves a request beyond the budget before segments are released. Under
    /// `exact_segments` only where the limit would not allow the request's segment in place of a released one.
    pub(super) fn any_block_serves_first(self, request: &Request) -> bool {
        let arena = self.arena;
        let is_exact = arena.heaps.lock(request.slot).rules.compact == Compacting::Exact;
        // A cut segment of one block's size would serve no block of that size again. A released one makes room
        // for at least `request.size`: that is too little if the limit was lowered below what is held.
        let any = !is_exact || !arena.ledger.has_room_for(arena.segment_bytes(request).saturating_sub(request.size));
        any && self.excess_of(request).is_some()
    }

    /// Serves a request from the smallest free block of its heap that is large enough, although more
    /// of a segment may be lost than `compact` allows. Returns `None` without such a block, and
    /// unless `compact` is in force for the heap.
    pub(super) fn search_any_block(self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        let arena = self.arena;
        let slot = arena.heaps.slot(request.slot);
        let mut heap = arena.heaps.lock(request.slot);
        let Some(block) = find_any(&mut heap, request.size) else { return Ok(None) };
        heap.make_room()?;
        let served = heap.allocate_from(block, request.size, request.bytes, &slot.counters);
        if let Some(recorder) = arena.tracing() {
            recorder.alloc(&mut heap, request.site, served.value, request.bytes);
        }
        drop(heap);
        Ok(Some(arena.reconcile(slot, served)))
    }

    /// Returns the block from which [`search_any`](Self::search_any_block) would serve a request.
    pub(super) fn peek_any_block(self, request: &Request) -> Option<DevicePtr> {
        let mut heap = self.arena.heaps.lock(request.slot);
        find_any(&mut heap, request.size).map(|block| DevicePtr(heap.blocks[block].addr))
    }

    /// Returns by how many bytes another segment for the request would exceed the budget. Returns
    /// `None` within the budget, and unless `compact` is in force for the request's heap.
    fn excess_of(self, request: &Request) -> Option<u64> {
        let arena = self.arena;
        let stat = {
            let heap = arena.heaps.lock(request.slot);
            if !is_compact(&heap) {
                return None;
            }
            if heap.rules.compact == Compacting::Exact { Stat::AllocatedBytes } else { Stat::ActiveBytes }
        };
        let compact = arena.settings.config.lock().compact()?;
        // The request is part of what will be in use.
        let most = arena.most_with(stat, request.size);
        let held = arena.ledger.reserved().saturating_add(arena.segment_bytes(request));
        held.checked_sub(budget(most, compact)).filter(|&excess| excess > 0)
    }

    /// Releases quiet segments until a segment for the request is within the budget, or no quiet
    /// segment is left. Does not wait for the device, and serves nothing.
    pub(super) fn release_excess(self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        if self.excess_of(request).is_none() || !self.may_release_quiet(request) {
            return Ok(None);
        }
        self.poll_epochs();
        give(self, self.quiet_segments(request))?;
        // What is free and not quiet becomes quiet for a later request; at once on a stream without
        // unfinished work.
        if self.excess_of(request).is_some() && self.begin_all_epochs(request.stream) {
            self.poll_epochs();
            give(self, self.quiet_segments(request))?;
        }
        Ok(None)
    }

    /// The rule of `compact`: of all large heaps the quiet segment that covers the excess best, until a segment for
    /// the request is within the budget. Yields what is known to be quiet, and does not ask the device.
    pub(super) fn quiet_segments(self, request: &Request) -> impl Iterator<Item = Unit> {
        let heaps = &self.arena.heaps;
        // The excess shrinks with each unit, unless other threads allocate.
        from_fn(move || {
            let excess = self.excess_of(request).filter(|_| self.may_release_quiet(request))?;
            let large = heaps.heaps_of(heaps.giving_pools(), |_| [PoolKind::Large]);
            let of_each = large.filter_map(|(slot, _used)| quiet_cover(&mut heaps.lock(slot), slot, excess));
            of_each.min_by_key(|unit| (rank(unit.bytes, excess), unit.at))
        })
    }

    /// Returns whether segments may be released for a request: not for a graph that is captured, nor while an event
    /// might become part of a graph.
    fn may_release_quiet(self, request: &Request) -> bool {
        !request.capturing && !self.arena.flags.has(flags::CAPTURE)
    }

    /// Begins an epoch of each heap with a free segment that no epoch covers yet, for a call that names
    /// the stream `named`. Returns whether any began.
    fn begin_all_epochs(self, named: StreamId) -> bool {
        let heaps = &self.arena.heaps;
        let mut began = false;
        for (slot, _used) in heaps.heaps_of(heaps.giving_pools(), |_| [PoolKind::Large]) {
            let newest = self.arena.waits.newest_epoch(slot);
            let uncovered = |unit: Unit| !unit.is_quiet() && unit.freed_at >= newest;
            began |= heaps.segments_of(slot).any(uncovered) && self.begin_epoch(slot, named);
        }
        began
    }
}

/// Whether `compact` is in force for a heap. A sub-allocator places by its own rules.
fn is_compact<S: Storage>(heap: &Heap<S>) -> bool {
    heap.rules.compact != Compacting::No && heap.suballocator.is_none()
}

/// Finds the smallest free block of a heap under `compact` for a request of `size` bytes.
fn find_any<S: Storage>(heap: &mut Heap<S>, size: u64) -> Option<u32> {
    if is_compact(heap) { heap.find_any(size) } else { None }
}

/// Returns the most bytes to hold while at most `most` bytes were ever in use.
fn budget(most: u64, compact: f64) -> u64 {
    // The conversion rounds towards zero and saturates.
    most.saturating_add((most as f64 * compact) as u64)
}

/// Orders segments of `size` bytes by how well they cover `excess` bytes: first the sufficient ones,
/// the smallest first; then the rest, the largest first.
fn rank(size: u64, excess: u64) -> (bool, u64) {
    if size >= excess { (false, size) } else { (true, u64::MAX - size) }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::*;
    use crate::allocator::Allocator;
    use crate::arena::forecast::Forecast;
    use crate::config::Config;
    use crate::device::simulated::{Call, SimulatedDevice};
    use crate::pool::{PoolOptions, Route};
    use crate::tables::{Growable, Lazy};
    use crate::units::{DeviceIndex, MIB, StreamId};
    use std::vec::Vec;

    const DEVICE: DeviceIndex = DeviceIndex(0);
    const STREAM: StreamId = StreamId(1);
    const OTHER: StreamId = StreamId(2);

    type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

    fn allocator(config: &str) -> Simulated {
        Simulated::new([SimulatedDevice::new(1 << 40)], &Config::parse(config).unwrap()).unwrap()
    }

    /// Allocates blocks of `mib` on `stream`, all live at one time, and frees them.
    fn cache(allocator: &Simulated, stream: StreamId, mib: &[u64]) {
        let blocks: Vec<_> = mib.iter().map(|mib| malloc(allocator, stream, *mib)).collect();
        blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    }

    fn malloc(allocator: &Simulated, stream: StreamId, mib: u64) -> DevicePtr {
        allocator.malloc(DEVICE, mib * MIB, stream).unwrap()
    }

    /// Makes all free blocks of the stream quiet.
    fn quiesce(allocator: &Simulated, stream: StreamId) {
        let arena = allocator.arena(DEVICE).unwrap();
        let slot = arena.heaps.find_pair(0, stream).unwrap().slot(PoolKind::Large);
        assert!(arena.begin_epoch(slot, STREAM));
        allocator.device(DEVICE).unwrap().complete(stream);
    }

    /// The sizes of all segments in MiB, ascending.
    fn segments(allocator: &Simulated) -> Vec<u64> {
        let mut sizes: Vec<_> = allocator.snapshot().iter().map(|segment| segment.total_size / MIB).collect();
        sizes.sort_unstable();
        sizes
    }

    /// The number of calls that made the device wait for its work.
    fn waits(allocator: &Simulated) -> u64 {
        let device = allocator.device(DEVICE).unwrap();
        [Call::Wait, Call::Synchronize].map(|call| device.calls(call)).iter().sum()
    }

    #[test]
    fn the_budget_is_a_part_of_the_most_ever_in_use() {
        assert_eq!([budget(1000, 0.0), budget(1000, 0.05), budget(1000, 1.0)], [1000, 1050, 2000]);
        assert_eq!(budget(u64::MAX, 1.0), u64::MAX);
        let mut sizes = [10, 20, 30, 40, 50];
        sizes.sort_by_key(|&size| rank(size, 30));
        assert_eq!(sizes, [30, 40, 50, 20, 10]);
    }

    #[test]
    fn nothing_is_released_for_a_request_before_the_device_has_finished_with_it() {
        let allocator = allocator("compact:0.05");
        cache(&allocator, STREAM, &[100, 100]);
        let larger = malloc(&allocator, STREAM, 140);
        assert_eq!(segments(&allocator), [100, 100, 140], "the event is pending: the budget is exceeded");
        allocator.free(larger).unwrap();
        allocator.device(DEVICE).unwrap().complete(STREAM);
        let largest = malloc(&allocator, STREAM, 180);
        assert_eq!(segments(&allocator), [140, 180], "what was freed before the event is released, and no more");
        assert_eq!(waits(&allocator), 0);
        allocator.free(largest).unwrap();
        allocator.check_invariants().unwrap();
    }

    #[test]
    fn the_smallest_segments_that_suffice_are_released() {
        let allocator = allocator("compact:0.05");
        cache(&allocator, STREAM, &[40, 60, 100]);
        quiesce(&allocator, STREAM);
        // 120 MiB beyond the budget of 210: no segment suffices alone, and 40 do for the rest of 20.
        malloc(&allocator, STREAM, 130);
        assert_eq!(segments(&allocator), [60, 130]);
    }

    #[test]
    fn of_equal_segments_too_small_alone_the_last_is_released_first() {
        let allocator = allocator("compact:0");
        let blocks = [60, 60].map(|mib| malloc(&allocator, STREAM, mib));
        blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
        quiesce(&allocator, STREAM);
        allocator.arena(DEVICE).unwrap().poll_epochs();
        let last = blocks.into_iter().max_by_key(|block| block.0).unwrap();
        assert_eq!(allocator.forecast(DEVICE, 200 * MIB, STREAM), Ok(Forecast::Release(last)));
        malloc(&allocator, STREAM, 200);
        assert_eq!(segments(&allocator), [200]);
    }

    #[test]
    fn segments_of_other_streams_are_released_and_those_of_pools_in_use_are_not() {
        let allocator = allocator("compact:0");
        let pool = allocator.create_pool(DEVICE, PoolOptions::default()).unwrap();
        allocator.begin_allocate_to_pool(DEVICE, pool, Route::Stream(OTHER)).unwrap();
        cache(&allocator, OTHER, &[100]);
        allocator.end_allocate_to_pool(DEVICE, pool).unwrap();
        cache(&allocator, OTHER, &[60]);
        quiesce(&allocator, OTHER);
        let arena = allocator.arena(DEVICE).unwrap();
        for slot in arena.heaps.slot_numbers() {
            // As if every event were complete.
            let mut heap = arena.heaps.lock(slot);
            if heap.sets.is_made() {
                heap.sets.quiet = u64::MAX;
            }
        }
        malloc(&allocator, STREAM, 80);
        assert_eq!(segments(&allocator), [80, 100]);
    }

    #[test]
    fn a_whole_segment_serves_close_sizes_only_within_the_budget() {
        let allocator = allocator("compact:1");
        let _live = malloc(&allocator, STREAM, 200);
        let hundred = malloc(&allocator, STREAM, 100);
        allocator.free(hundred).unwrap();
        // A fifth of the segment may be lost, and no more.
        let close = malloc(&allocator, STREAM, 80);
        assert_eq!(close, hundred);
        allocator.free(close).unwrap();
        let smaller = malloc(&allocator, STREAM, 78);
        assert_eq!(segments(&allocator), [78, 100, 200]);
        // A segment that is cut serves any size.
        allocator.free(smaller).unwrap();
        let (cut, part) = (malloc(&allocator, STREAM, 76), malloc(&allocator, STREAM, 80));
        assert_eq!((cut, part), (smaller, hundred));
        assert_eq!(malloc(&allocator, STREAM, 15), part.offset(80 * MIB));
        // Beyond the budget, any block serves.
        allocator.configure(&Config::parse("compact:0").unwrap());
        allocator.free(cut).unwrap();
        assert_eq!(allocator.forecast(DEVICE, 30 * MIB, STREAM), Ok(Forecast::Hit(cut)));
        assert_eq!(malloc(&allocator, STREAM, 30), cut);
        assert_eq!(allocator.device(DEVICE).unwrap().calls(Call::Release), 0);
    }

    #[test]
    fn any_block_serves_where_the_limit_allows_no_segment() {
        let allocator = allocator("compact:1");
        allocator.set_limit(DEVICE, Some(110 * MIB)).unwrap();
        cache(&allocator, STREAM, &[100]);
        let forecast = allocator.forecast(DEVICE, 40 * MIB, STREAM);
        assert_eq!(forecast, Ok(Forecast::Hit(malloc(&allocator, STREAM, 40))));
        assert_eq!(segments(&allocator), [100]);
        assert_eq!(waits(&allocator), 0);
    }

    #[test]
    fn segments_of_one_block_are_exact_and_released_before_a_larger_one_is_cut() {
        let allocator = allocator("parity:False,compact:0,exact_segments:True");
        let bytes = 3 * MIB + 100;
        let first = allocator.malloc(DEVICE, bytes, STREAM).unwrap();
        let segment = allocator.base_of(first).unwrap().segment_bytes;
        assert_eq!(segment, bytes.next_multiple_of(4096), "neither 20 MiB nor a multiple of 2 MiB");
        // A request of 128 MiB may lose 1 MiB of a segment.
        cache(&allocator, STREAM, &[129]);
        quiesce(&allocator, STREAM);
        let close = malloc(&allocator, STREAM, 128);
        assert_eq!(segments(&allocator), [3, 129]);
        allocator.free(close).unwrap();
        quiesce(&allocator, STREAM);
        allocator.arena(DEVICE).unwrap().poll_epochs();
        assert_eq!(allocator.forecast(DEVICE, 127 * MIB, STREAM), Ok(Forecast::Release(close)));
        malloc(&allocator, STREAM, 127);
        assert_eq!(segments(&allocator), [3, 127]);
        assert_eq!(waits(&allocator), 0);
        allocator.check_invariants().unwrap();
    }

    #[test]
    fn no_segment_is_released_for_an_exact_one_that_a_lowered_limit_forbids() {
        let allocator = allocator("parity:False,compact:0,exact_segments:True");
        let _live = malloc(&allocator, STREAM, 50);
        cache(&allocator, STREAM, &[7]);
        quiesce(&allocator, STREAM);
        allocator.arena(DEVICE).unwrap().poll_epochs();
        allocator.set_limit(DEVICE, Some(40 * MIB)).unwrap();
        let forecast = allocator.forecast(DEVICE, 2 * MIB, STREAM);
        assert_eq!(forecast, Ok(Forecast::Hit(malloc(&allocator, STREAM, 2))));
        assert_eq!(segments(&allocator), [7, 50]);
        allocator.check_invariants().unwrap();
    }

    #[test]
    fn a_release_of_a_quiet_segment_is_foretold() {
        let allocator = allocator("compact:0");
        cache(&allocator, STREAM, &[40, 60]);
        let forecast = || allocator.forecast(DEVICE, 80 * MIB, STREAM).unwrap();
        assert_eq!(forecast(), Forecast::Obtain(80 * MIB), "the device may still use both");
        quiesce(&allocator, STREAM);
        allocator.arena(DEVICE).unwrap().poll_epochs();
        let Forecast::Release(first) = forecast() else { panic!("{:?}", forecast()) };
        malloc(&allocator, STREAM, 80);
        assert_eq!(segments(&allocator), [80]);
        assert!(allocator.base_of(first).is_err());
    }

    #[test]
    fn during_a_capture_nothing_is_released_and_no_event_is_recorded() {
        let allocator = allocator("compact:0");
        cache(&allocator, STREAM, &[60]);
        quiesce(&allocator, STREAM);
        let device = allocator.device(DEVICE).unwrap();
        let pool = allocator.create_pool(DEVICE, PoolOptions::default()).unwrap();
        let recorded = device.calls(Call::Record);
        allocator.begin_capture(DEVICE, pool, Route::Stream(OTHER)).unwrap();
        device.set_capturing(OTHER, true);
        for stream in [OTHER, STREAM] {
            malloc(&allocator, stream, 80);
        }
        assert_eq!(segments(&allocator), [60, 80, 80]);
        assert_eq!(device.calls(Call::Record), recorded);
        device.set_capturing(OTHER, false);
        allocator.end_capture(DEVICE, pool).unwrap();
        malloc(&allocator, STREAM, 100);
        assert_eq!(segments(&allocator), [80, 80, 100], "the capture is over");
    }

    #[test]
    fn the_most_in_use_survives_a_reset_of_the_peaks() {
        let allocator = allocator("compact:0");
        cache(&allocator, STREAM, &[100, 100]);
        allocator.reset_peak_stats(DEVICE).unwrap();
        quiesce(&allocator, STREAM);
        let live = malloc(&allocator, STREAM, 100);
        let most = allocator.arena(DEVICE).unwrap().peaks.device.most(Stat::ActiveBytes);
        assert_eq!(most, 200 * MIB);
        allocator.reset_peak_stats(DEVICE).unwrap();
        assert_eq!(allocator.arena(DEVICE).unwrap().peaks.device.most(Stat::ActiveBytes), most);
        allocator.free(live).unwrap();
    }
}
