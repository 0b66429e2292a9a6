//! Quiet memory: starts epochs of heaps. Each heap keeps a mark, and free blocks below it are no
//! longer used by any work of the device. The end of an epoch moves this mark
//! ([`poll_departures`](GivenUp::poll_departures)).
//!
//! Nothing here waits for the device. If a call fails, blocks that may be quiet stay busy, which is
//! not an error of the request: it is served without them. If the context is lost, this is noted,
//! and the next call to the device reports it.

use crate::arena::Platform;
use crate::arena::paging::departures::GivenUp;
use crate::device::StreamOrder;
use crate::heap::Heap;
use crate::pages::departures::Departing;
use crate::streams::fences::Waiter;
use crate::units::{NO_STREAM, StreamId};

/// The number of heaps that share one fence of all streams.
const HEAPS_OF_FENCE: usize = 32;

impl<P: Platform> GivenUp<'_, P> {
    /// Starts an epoch of the heap in `slot`: once its fence is complete, all blocks that are free
    /// now are quiet. Returns false and starts none while a graph is captured, if the stream has
    /// ended or captures, if the stream may be gone and is not the stream `named` by the call
    /// ([`reports_end`](crate::device::StreamOrder::reports_end)), if the heap has
    /// [`MAX_UNFINISHED`](crate::heap::epochs::MAX_UNFINISHED) unfinished epochs, or if the device
    /// refuses. The caller uses the pair.
    pub(crate) fn begin_epoch(&self, slot: u32, named: StreamId) -> bool {
        // Held until the fence is recorded, so that no capture starts in between.
        let Some(_permission) = self.driver.may_record() else { return false };
        let Some((stream, what)) = self.stamp_epoch(slot, |heap| self.driver.usable_stream(heap, named)) else {
            return false;
        };
        let begun = self.begin_departure(Some(stream), what);
        self.keep_epoch(slot, begun.is_ok())
    }

    /// Starts epochs of the heaps in `slots`, as [`begin_epoch`](Self::begin_epoch) does, after the
    /// work of every stream of the device. This is for streams that may be gone and are not named
    /// by the call. Starts none for a stream that can have its own fence, and none at all if the
    /// device has no such fence. The caller knows that the calling thread captures no graph.
    ///
    /// One fence serves [`HEAPS_OF_FENCE`] heaps. This is as good as a fence for each, because
    /// every heap is stamped before the fence is recorded. A block with an earlier stamp was free
    /// when its heap was stamped, so the work that used it was queued before the fence, on whatever
    /// stream. A block freed since then carries the later clock of the heap.
    pub(in crate::arena) fn begin_epochs_of_all(&self, slots: impl IntoIterator<Item = u32>) -> bool {
        if !self.driver.device().can_record_all() {
            return false;
        }
        let Some(_permission) = self.driver.may_record() else { return false };
        let unreported = |heap: &Heap<P::Storage>| {
            let may_be_gone = heap.stream != NO_STREAM && !heap.ended && !self.driver.may_use(heap.stream, NO_STREAM);
            may_be_gone.then_some(heap.stream)
        };
        let (mut stamped, mut begun) = (heapless::Vec::new(), false);
        for slot in slots {
            if stamped.is_full() {
                begun |= self.begin_behind_all(&mut stamped);
            }
            if let Some((stream, what)) = self.stamp_epoch(slot, unreported) {
                let _room = stamped.push((slot, stream, what));
            }
        }
        self.begin_behind_all(&mut stamped) | begun
    }

    /// Starts the stamped epochs of heaps (slot, stream, what departs) with one fence after the
    /// work of every stream. Returns whether any epoch was started.
    fn begin_behind_all(&self, stamped: &mut heapless::Vec<(u32, StreamId, Departing), HEAPS_OF_FENCE>) -> bool {
        let Some(&(_, first, _)) = stamped.first() else { return false };
        let fence = self.waits.record_fence_of_all(self.driver, first, Waiter::Streams);
        let keeper = fence.ok().and_then(|fence| {
            let added = self.paging.pool.lock().departures.add_keeper(fence);
            added.inspect_err(|_| self.end_departure(Some(fence))).ok()
        });
        let mut begun = false;
        for &(slot, stream, what) in stamped.iter() {
            let added = keeper.map(|keeper| self.paging.pool.lock().departures.add_behind(keeper, stream, what));
            begun |= self.keep_epoch(slot, matches!(added, Some(Ok(_))));
        }
        stamped.clear();
        if let Some(keeper) = keeper {
            self.release_departure(keeper);
        }
        begun
    }

    /// Stamps the free blocks of the heap in `slot` for an epoch of the stream that `of` returns.
    /// Returns this stream, and what departs after its fence. Returns `None` if there is no stream
    /// or no room.
    fn stamp_epoch(
        &self,
        slot: u32,
        of: impl FnOnce(&Heap<P::Storage>) -> Option<StreamId>,
    ) -> Option<(StreamId, Departing)> {
        let (stream, pool, stamp) = {
            let mut heap = self.heaps.lock(slot);
            let stream = of(&heap)?;
            if !heap.epochs.has_room() {
                return None;
            }
            let stamp = self.heaps.stamp(&mut heap);
            heap.epochs.begin(stamp);
            (stream, heap.pool, stamp)
        };
        Some((stream, Departing::Blocks { slot, pool, stamp }))
    }

    /// Ends a stamped epoch at once, unless its fence has `begun`. Returns `begun`.
    fn keep_epoch(&self, slot: u32, begun: bool) -> bool {
        if !begun {
            self.heaps.lock(slot).epochs.end();
        }
        begun
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use crate::allocator::Allocator;
    use crate::config::Config;
    use crate::config::rounding::PoolKind;
    use crate::device::simulated::{Call, Failure, SimulatedDevice};
    use crate::device::{DeviceError, ErrorKind};
    use crate::heap::epochs::MAX_UNFINISHED;
    use crate::pool::{PoolOptions, Route, RoutePurpose};
    use crate::tables::Growable;
    use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};

    const DEVICE: DeviceIndex = DeviceIndex(0);
    const STREAM: StreamId = StreamId(1);

    type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

    /// An allocator, and a large block of stream 1.
    fn with_block() -> (Simulated, DevicePtr) {
        let allocator = Simulated::new([SimulatedDevice::new(1 << 30)], &Config::default()).unwrap();
        let block = allocator.malloc(DEVICE, 40 * MIB, STREAM).unwrap();
        (allocator, block)
    }

    /// The slot of stream 1's large heap.
    fn slot(allocator: &Simulated) -> u32 {
        allocator.arena(DEVICE).unwrap().heaps.find_pair(0, STREAM).unwrap().slot(PoolKind::Large)
    }

    /// Whether the only free block of stream 1's large heap is quiet.
    fn is_quiet(allocator: &Simulated) -> bool {
        let heap = allocator.arena(DEVICE).unwrap().heaps.lock(slot(allocator));
        let block = heap.sets.free.last(heap.blocks.entries()).expect("a free block");
        heap.blocks[block].freed_at < heap.sets.quiet
    }

    #[test]
    fn a_block_is_quiet_once_an_event_recorded_after_its_free_is_complete() {
        let (allocator, block) = with_block();
        let device = allocator.device(DEVICE).unwrap();
        let (held, slot) = (allocator.on(DEVICE).unwrap().holdings(), slot(&allocator));
        assert!(held.given_up().begin_epoch(slot, STREAM), "an epoch before the free");
        allocator.free(block).unwrap();
        device.complete(STREAM);
        held.given_up().poll_departures();
        assert!(!is_quiet(&allocator), "the event precedes the last work on the block");
        assert!(held.given_up().begin_epoch(slot, STREAM));
        held.given_up().poll_departures();
        assert!(!is_quiet(&allocator), "the event is pending");
        device.complete(STREAM);
        held.given_up().poll_departures();
        assert!(is_quiet(&allocator));
        assert_eq!(device.calls(Call::CreateEvent), 1, "the second epoch uses the first event again");
        assert_eq!(device.calls(Call::Wait) + device.calls(Call::Synchronize), 0);
    }

    #[test]
    fn no_epoch_begins_during_a_capture_nor_on_an_ended_stream_nor_beyond_the_bound() {
        let (allocator, block) = with_block();
        let device = allocator.device(DEVICE).unwrap();
        let (held, slot) = (allocator.on(DEVICE).unwrap().holdings(), slot(&allocator));
        let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
        allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(StreamId(2)), RoutePurpose::Capture).unwrap();
        assert!(!held.given_up().begin_epoch(slot, STREAM), "a graph is captured on another stream");
        allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
        device.set_capturing(STREAM, true);
        assert!(!held.given_up().begin_epoch(slot, STREAM), "the stream captures, which nothing announced");
        device.set_capturing(STREAM, false);
        for _ in 0..MAX_UNFINISHED {
            assert!(held.given_up().begin_epoch(slot, STREAM));
        }
        assert!(!held.given_up().begin_epoch(slot, STREAM), "as many epochs as may be unfinished");
        device.complete(STREAM);
        held.given_up().poll_departures();
        allocator.stream_destroyed(DEVICE, STREAM).unwrap();
        let recorded = device.calls(Call::Record);
        assert!(!held.given_up().begin_epoch(slot, STREAM), "the stream has ended");
        assert_eq!(device.calls(Call::Record), recorded);
        allocator.free(block).unwrap();
    }

    #[test]
    fn a_failed_call_begins_no_epoch_or_ends_one_and_leaves_blocks_busy() {
        let (allocator, block) = with_block();
        let device = allocator.device(DEVICE).unwrap();
        let (held, slot) = (allocator.on(DEVICE).unwrap().holdings(), slot(&allocator));
        allocator.free(block).unwrap();
        let error = DeviceError::new(ErrorKind::Other, 7);
        for call in [Call::CreateEvent, Call::Record, Call::IsComplete] {
            let nth = device.calls(call) + 1;
            device.fail(Failure { call, nth, persistent: false, error });
            assert_eq!(held.given_up().begin_epoch(slot, STREAM), call == Call::IsComplete);
            device.complete(STREAM);
            held.given_up().poll_departures();
            assert!(!is_quiet(&allocator), "{call:?} failed");
            assert_eq!(held.heaps.lock(slot).epochs.newest(), 0, "{call:?} failed");
        }
        assert!(held.given_up().begin_epoch(slot, STREAM));
        device.complete(STREAM);
        held.given_up().poll_departures();
        assert!(is_quiet(&allocator));
    }

    #[test]
    fn an_epoch_says_nothing_of_a_heap_that_has_changed_hands() {
        let (allocator, block) = with_block();
        let device = allocator.device(DEVICE).unwrap();
        let (held, old) = (allocator.on(DEVICE).unwrap().holdings(), slot(&allocator));
        assert!(held.given_up().begin_epoch(old, STREAM));
        allocator.stream_destroyed(DEVICE, STREAM).unwrap();
        allocator.free(block).unwrap();
        allocator.empty_cache(DEVICE).unwrap();
        let other = allocator.malloc(DEVICE, 40 * MIB, StreamId(9)).unwrap();
        allocator.free(other).unwrap();
        let heap = |slot| allocator.arena(DEVICE).unwrap().heaps.lock(slot);
        assert_eq!(heap(old).stream, StreamId(9), "the heap has changed hands");
        device.complete(STREAM);
        held.given_up().poll_departures();
        assert_eq!(heap(old).sets.quiet, 0);
        assert_eq!(heap(old).epochs.newest(), 0);
    }

    #[test]
    fn one_fence_makes_the_memory_of_all_streams_quiet_that_may_be_gone() {
        let config = Config::parse("policy:stitched,slack:0").unwrap();
        let device = SimulatedDevice::new(1 << 30).with_unreported_ends().with_fences_of_all();
        let allocator = Simulated::new([device], &config).unwrap();
        let malloc = |bytes, stream| allocator.malloc(DEVICE, bytes, StreamId(stream)).unwrap();
        for block in [1, 2, 3, 4, 5].map(|stream| malloc(8 * MIB, stream)) {
            allocator.free(block).unwrap();
        }
        let device = allocator.device(DEVICE).unwrap();
        let calls = || [Call::Record, Call::Create].map(|call| device.calls(call));
        let before = calls();
        malloc(40 * MIB, 6);
        let [recorded, created] = calls();
        assert_eq!(
            recorded - before[0],
            2 + 1,
            "one for each heap of the request's own stream, and one for the five others"
        );
        assert_eq!(created, before[1], "no new page");
        allocator.check_invariants().unwrap();
    }
}
