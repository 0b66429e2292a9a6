//! Uses with an event of their own: later work of the stream delays no reuse.
//!
//! [`Allocator::record_stream`](crate::Allocator::record_stream) has the event recorded at the free,
//! behind all work queued until then. [`Allocator::record_use`](crate::Allocator::record_use) records
//! it at the use. A block whose uses all have events costs no call to the device at its free:
//!
//! ```text
//!                                                   ┌─ events complete ────────────────────▶ block free
//! free ─▶ ordered ─ a request of its heap misses ─ ask
//!                                                   └─ own stream ordered behind the events ▶ block free
//! ```
//!
//! Ordering makes the own stream wait, and not the host; a stream that is the host's is not ordered. A request orders only as many blocks as
//! needed, the oldest first, and only before it would obtain memory. A captured graph cannot wait for an
//! event from outside, so during a capture only complete events free a block.
//!
//! Where some uses of a block have events and others need one, all get an event at the free.

use crate::arena::invalid_pointer::not_in_heap;
use crate::arena::request::Request;
use crate::arena::{OnDevice, flags};
use crate::device::{DeviceMemory, DeviceResult, ErrorKind, Event};
use crate::error::Error;
use crate::heap::split_rules::Source;
use crate::streams::fences::Fence;
use crate::streams::ordered::OrderedBlock;
use crate::sync::Lock;
use crate::tables::slot_table::NONE;
use crate::tables::{CapacityError, Storage};
use crate::units::{DevicePtr, StreamId};

impl<D: DeviceMemory, R: Lock, S: Storage> OnDevice<'_, D, R, S> {
    /// Notes the use of the block at `ptr` by the present work of `stream`, and records an event behind the
    /// work. While a graph is captured, calls [`record_stream`](crate::arena::Arena::record_stream)
    /// instead.
    pub(crate) fn record_use(self, slot: u32, ptr: DevicePtr, stream: StreamId) -> Result<(), Error> {
        let is_own = {
            let heap = self.heaps.lock(slot);
            if heap.lookup(ptr).is_none() {
                return Err(not_in_heap(&heap, ptr));
            }
            heap.stream == stream
        };
        if is_own {
            return Ok(());
        }
        let permission = self.driver.may_record(&self.flags);
        let fence = match permission.map(|_permission| self.record_fence(stream, D::record)) {
            Some(Ok(fence)) => fence,
            None => return self.record_stream(slot, ptr, stream),
            // The program captures without `begin_capture`.
            Some(Err(error)) if error.is_of_capture() => return self.record_stream(slot, ptr, stream),
            Some(Err(error)) => return Err(error),
        };
        let mut heap = self.heaps.lock(slot);
        let noted = match heap.lookup(ptr) {
            Some(block) => heap.uses().add_until(block, fence).map_err(Error::from),
            None => Err(not_in_heap(&heap, ptr)),
        };
        drop(heap);
        let unneeded = noted.as_ref().map_or(Some(fence), |earlier| *earlier);
        if let Some(fence) = unneeded {
            self.end_fence(fence);
        }
        noted.map(|_earlier| ())
    }

    /// Drops the events of a pending block's uses: the block gets new ones at the free.
    pub(in crate::arena) fn end_use_fences(self, slot: u32, block: u32) {
        let mut next = self.heaps.lock(slot).blocks[block].uses;
        while next != NONE {
            let ended = self.heaps.lock(slot).uses().take_fences(&mut next);
            ended.into_iter().for_each(|fence| self.end_fence(fence));
        }
    }

    /// Adds a pending block whose uses all have events, and traces the free with the call site `site`.
    ///
    /// # Errors
    /// [`Error::TableFull`]. The block is not added then.
    pub(in crate::arena) fn wait_for_uses_so_far(self, slot: u32, block: u32, site: u32) -> Result<(), Error> {
        let first = {
            let mut heap = self.heaps.lock(slot);
            let uses = heap.blocks[block].uses;
            heap.uses().next_fence(uses).expect("every use in need of an event has one")
        };
        // The entry is busy until the free is traced: afterwards the free can no longer fail.
        let added = self.waits.ordered.lock().add(slot, block, first);
        let entry = added.map_err(|CapacityError| Error::TableFull("events"))?;
        if let Some(recorder) = self.tracing() {
            recorder.free_requested(&mut self.heaps.lock(slot), block, site);
        }
        let mut blocks = self.waits.ordered.lock();
        blocks.keep(entry);
        self.flags.follow_ordered(&blocks);
        Ok(())
    }

    /// Serves a request that no free block could serve: from blocks of its heap whose uses are complete,
    /// else by ordering the heap's stream behind the uses of one block after the other.
    pub(in crate::arena) fn search_ordered(self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        if !self.flags.has(flags::ORDERED) || request.capturing {
            return Ok(None);
        }
        self.health()?;
        // The pages of other heaps can serve as well under `stitched`.
        let is_stitched = self.heaps.source(request) == Source::Stitched;
        let ended = if is_stitched { self.poll_ordered()? } else { self.poll_ordered_of(request.slot)? };
        if ended > 0
            && let Some(ptr) = self.search(request)?
        {
            return Ok(Some(ptr));
        }
        if !self.driver.device().can_order(request.stream) {
            return Ok(None);
        }
        // An event of no graph must not be waited for inside a graph, and none is captured while the
        // permission lasts. The device is asked as well, for programs that announce no capture.
        let Some(_permission) = self.driver.may_record(&self.flags) else { return Ok(None) };
        if self.call(|memory| memory.is_capturing(request.stream))? {
            return Ok(None);
        }
        self.order_heap(request.slot, request.stream, &mut || self.search(request))
    }

    /// Orders the stream of the heap in `slot` behind the uses of one of its blocks after the other, the oldest block
    /// first, and calls `done` after each. `named` is the stream that the call names. Returns the first value of `done`, or
    /// `None` if no block can be ordered any more. The caller has the permission to record.
    ///
    /// # Errors
    /// The first error of the device, and those of `done`. The block stays pending then.
    fn order_heap<T>(
        self,
        slot: u32,
        named: StreamId,
        done: &mut impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        let mut own = None;
        loop {
            let taken = self.waits.ordered.lock().take_oldest(slot);
            let Some(entry) = taken else { return Ok(None) };
            // Asked once: all blocks of a heap have the same stream.
            if own.is_none() {
                own = self.or_keep(entry, self.stream_to_order(slot, named, true))?;
            }
            let passed = own.map_or(Ok(false), |own| self.order_behind_uses(own, entry));
            if !self.end_or_keep(entry, passed)? {
                return Ok(None);
            }
            let value = done()?;
            if value.is_some() {
                return Ok(value);
            }
        }
    }

    /// Orders the streams of heaps of the default pool as [`pass_heap`](Self::order_heap) does, the oldest block of all
    /// first: a graph may use the memory of a private pool on any stream.
    ///
    /// # Errors
    /// The first error of the device, and those of `done`. The block stays pending then.
    pub(in crate::arena) fn order_heaps<T>(
        self,
        named: StreamId,
        done: &mut impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        let mut age = 0;
        loop {
            let taken = self.waits.ordered.lock().take_oldest_from(age);
            let Some((entry, oldest)) = taken else { return Ok(None) };
            // The later blocks of a heap that cannot be ordered are passed over with the oldest.
            age = oldest + 1;
            let slot = self.waits.ordered.lock().block(entry).heap;
            let own = self.or_keep(entry, self.stream_to_order(slot, named, false))?;
            let passed = own.map_or(Ok(false), |own| self.order_behind_uses(own, entry));
            if self.end_or_keep(entry, passed)? {
                let value = done()?;
                if value.is_some() {
                    return Ok(value);
                }
            }
        }
    }

    /// Returns the stream of the heap in `slot`, if a call that names the stream `named` may order it behind uses of
    /// the heap's blocks: not if the stream has ended, may have gone or captures, nor if the host would wait, nor in a
    /// private pool unless `private`. The heap has a pending block, so it keeps its stream.
    pub(in crate::arena) fn stream_to_order(
        self,
        slot: u32,
        named: StreamId,
        private: bool,
    ) -> Result<Option<StreamId>, Error> {
        let (own, may) = {
            let heap = self.heaps.lock(slot);
            (heap.stream, self.driver.may_use_stream_of(&heap, named) && (private || heap.pool == 0))
        };
        let may = may && self.driver.device().can_order(own) && !self.call(|memory| memory.is_capturing(own))?;
        Ok(may.then_some(own))
    }

    /// Frees the blocks of all heaps whose uses are complete, without a wait. Returns the number of blocks whose waits for
    /// events have ended.
    pub(in crate::arena) fn poll_ordered(self) -> Result<u32, Error> {
        let (mut from, mut ended) = (0, 0);
        while self.flags.has(flags::ORDERED) {
            let next = self.waits.ordered.lock().next_heap(from);
            let Some(slot) = next else { break };
            ended += self.poll_ordered_of(slot)?;
            from = slot + 1;
        }
        Ok(ended)
    }

    /// Frees the blocks of the heap in `slot` whose uses are complete. Returns the number of blocks whose waits for
    /// events have ended.
    ///
    /// Asks after the events of one stream after the other, in the order of their recording, as long as they are
    /// complete: the later ones are not complete before.
    fn poll_ordered_of(self, slot: u32) -> Result<u32, Error> {
        let (mut from, mut ended) = ((StreamId(0), 0), 0);
        loop {
            let taken = self.waits.ordered.lock().take_watched(slot, from);
            let Some(entry) = taken else { return Ok(ended) };
            let Fence { stream, number, event } = self.waits.ordered.lock().block(entry).watched.fence;
            let complete = self.or_keep(entry, self.is_complete(event))?;
            let all = complete && self.or_keep(entry, self.watch_on(entry))?;
            if all {
                self.end_ordered(entry);
                ended += 1;
            } else if !complete {
                self.waits.ordered.lock().keep(entry);
            }
            // Behind an event that is not complete, the next stream.
            from = (stream, if complete { number + 1 } else { u64::MAX });
        }
    }

    /// Asks after the uses of a taken block behind the watched one, whose event is complete. Returns whether all are
    /// complete; if not, the block is watched at the first that is not, and no longer taken.
    fn watch_on(self, entry: u32) -> Result<bool, Error> {
        let OrderedBlock { heap, watched, .. } = self.waits.ordered.lock().block(entry);
        let mut next = watched.next;
        loop {
            let later = self.heaps.lock(heap).uses().next_fence(next);
            let Some(later) = later else { return Ok(true) };
            if !self.is_complete(later.fence.event)? {
                self.waits.ordered.lock().watch(entry, later);
                return Ok(false);
            }
            next = later.next;
        }
    }

    fn is_complete(self, event: Event) -> Result<bool, Error> {
        Ok(self.call(|memory| memory.is_complete(event))?)
    }

    /// Waits until the uses of all blocks are complete, and frees the blocks, also blocks on which another
    /// thread works.
    pub(in crate::arena) fn wait_for_ordered(self) -> Result<(), Error> {
        while self.flags.has(flags::ORDERED) {
            let taken = self.waits.ordered.lock().take_first();
            if let Some(entry) = taken {
                let waited = self.each_fence(entry, D::wait);
                self.end_or_keep(entry, waited.map(|()| true))?;
            } else if self.waits.ordered.lock().is_at_work() {
                self.driver.give_way();
            }
        }
        Ok(())
    }

    /// Orders the own stream of a taken block behind its uses. Returns false if a capture of the stream forbids it.
    fn order_behind_uses(self, own: StreamId, entry: u32) -> Result<bool, Error> {
        match self.each_fence(entry, |memory, event| memory.order_behind(own, event)) {
            // The capture of a program that announces none has begun since.
            Err(Error::Device(error)) if error.kind == ErrorKind::NotPermittedInCapture => Ok(false),
            ordered => ordered.map(|()| true),
        }
    }

    /// Calls the device for each event of a taken block not known to be complete.
    fn each_fence(self, entry: u32, call: impl Fn(&D, Event) -> DeviceResult<()>) -> Result<(), Error> {
        let OrderedBlock { heap, watched, .. } = self.waits.ordered.lock().block(entry);
        let mut next = Some(watched);
        while let Some(used) = next {
            self.call(|memory| call(memory, used.fence.event))?;
            next = self.heaps.lock(heap).uses().next_fence(used.next);
        }
        Ok(())
    }

    /// Returns a result, after an error with the block no longer taken.
    fn or_keep<T>(self, entry: u32, result: Result<T, Error>) -> Result<T, Error> {
        result.inspect_err(|_| self.waits.ordered.lock().keep(entry))
    }

    /// Ends the waits of a taken block if `ends`, else keeps the block.
    fn end_or_keep(self, entry: u32, ends: Result<bool, Error>) -> Result<bool, Error> {
        if ends == Ok(true) {
            self.end_ordered(entry);
        } else {
            self.waits.ordered.lock().keep(entry);
        }
        ends
    }

    /// Ends the waits of a taken block, whose events become idle, and frees the block.
    fn end_ordered(self, entry: u32) {
        let OrderedBlock { heap: slot, block, .. } = self.waits.ordered.lock().block(entry);
        self.end_use_fences(slot, block);
        {
            let mut blocks = self.waits.ordered.lock();
            blocks.remove(entry);
            self.flags.follow_ordered(&blocks);
        }
        self.end_uses(slot, self.heaps.lock(slot), block, None);
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use crate::allocator::Allocator;
    use crate::config::Config;
    use crate::device::simulated::{Call, Failure, SimulatedDevice};
    use crate::device::{DeviceError, ErrorKind};
    use crate::error::Error;
    use crate::pool::{PoolOptions, Route};
    use crate::tables::Growable;
    use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
    use std::vec::Vec;

    const DEVICE: DeviceIndex = DeviceIndex(0);
    const STREAM: StreamId = StreamId(1);
    const SIDES: [StreamId; 2] = [StreamId(2), StreamId(3)];
    /// Every way in which events are asked after.
    const CONFIGS: [&str; 3] = ["", "parity:False", "policy:stitched"];

    type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

    fn allocator(config: &str, capacity: u64) -> Simulated {
        Simulated::new([SimulatedDevice::new(capacity)], &Config::parse(config).unwrap()).unwrap()
    }

    fn malloc(allocator: &Simulated) -> DevicePtr {
        allocator.malloc(DEVICE, 40 * MIB, STREAM).unwrap()
    }

    fn calls(allocator: &Simulated, call: Call) -> u64 {
        allocator.device(DEVICE).unwrap().calls(call)
    }

    fn device(allocator: &Simulated) -> &SimulatedDevice {
        allocator.device(DEVICE).unwrap()
    }

    fn active(allocator: &Simulated) -> u64 {
        allocator.stats(DEVICE).unwrap().active_bytes().current as u64 / MIB
    }

    #[test]
    fn work_after_the_use_delays_no_reuse() {
        for config in CONFIGS {
            let allocator = allocator(config, 100 * MIB);
            let ptr = malloc(&allocator);
            allocator.record_use(ptr, SIDES[0]).unwrap();
            assert_eq!(calls(&allocator, Call::Record), 1, "the event is recorded at the use");
            // A second block's use stands for the work that follows on the stream.
            let later = malloc(&allocator);
            allocator.record_use(later, SIDES[0]).unwrap();
            allocator.free(ptr).unwrap();
            assert_eq!(calls(&allocator, Call::Record), 2, "a free calls nothing");
            device(&allocator).complete_one(SIDES[0]);
            assert_eq!(malloc(&allocator), ptr, "{config}");
            assert_eq!(calls(&allocator, Call::OrderBehind), 0);
            allocator.free(later).unwrap();
            allocator.check_invariants().unwrap();
        }
    }

    #[test]
    fn a_request_is_ordered_behind_the_use_and_does_not_wait() {
        for config in CONFIGS {
            let allocator = allocator(config, 1 << 30);
            let blocks = [malloc(&allocator), malloc(&allocator)];
            for ptr in blocks {
                allocator.record_use(ptr, SIDES[0]).unwrap();
                allocator.record_use(ptr, SIDES[1]).unwrap();
                allocator.free(ptr).unwrap();
            }
            assert_eq!(malloc(&allocator), blocks[0], "{config}: the oldest");
            assert_eq!(calls(&allocator, Call::OrderBehind), 2, "one block is enough");
            assert_eq!((calls(&allocator, Call::Wait), active(&allocator)), (0, 80));
            // The order holds: the own stream has not passed the uses.
            let device = device(&allocator);
            let event = crate::device::StreamOrder::create_event(device).unwrap();
            crate::device::StreamOrder::record(device, event, STREAM).unwrap();
            assert_eq!(crate::device::StreamOrder::is_complete(device, event), Ok(false));
            SIDES.into_iter().for_each(|side| device.complete(side));
            device.complete(STREAM);
            assert_eq!(crate::device::StreamOrder::is_complete(device, event), Ok(true));
            allocator.check_invariants().unwrap();
        }
    }

    #[test]
    fn the_calls_of_a_request_do_not_grow_with_the_blocks_that_wait() {
        for config in CONFIGS {
            for count in [10, 1000] {
                let allocator = allocator(config, 1 << 40);
                let blocks: Vec<DevicePtr> = (0..count).map(|_| malloc(&allocator)).collect();
                for (number, &ptr) in blocks.iter().enumerate() {
                    // Every third block is used by both.
                    let used = [number % 3 != 1, number % 3 != 0];
                    let streams = SIDES.into_iter().zip(used).filter(|(_, used)| *used);
                    streams.for_each(|(side, _)| allocator.record_use(ptr, side).unwrap());
                }
                blocks.iter().rev().for_each(|&ptr| allocator.free(ptr).unwrap());
                allocator.process_events(DEVICE).unwrap();
                assert_eq!(calls(&allocator, Call::IsComplete), 2, "{config}: one question a stream");
                assert_eq!(malloc(&allocator), blocks[count - 1], "{config}: the block freed first");
                assert_eq!((calls(&allocator, Call::IsComplete), calls(&allocator, Call::OrderBehind)), (4, 1));
                // The first and the third block are used no more on the first stream.
                (0..2).for_each(|_| device(&allocator).complete_one(SIDES[0]));
                allocator.process_events(DEVICE).unwrap();
                assert_eq!(calls(&allocator, Call::IsComplete), 4 + 3, "{config}: a question a free block and stream");
                assert_eq!(malloc(&allocator), blocks[0]);
                // The second and the third block are used no more on the second stream.
                (0..2).for_each(|_| device(&allocator).complete_one(SIDES[1]));
                allocator.process_events(DEVICE).unwrap();
                assert_eq!(calls(&allocator, Call::IsComplete), 7 + 5, "{config}: a question a use, and one a stream");
                assert_eq!([malloc(&allocator), malloc(&allocator)], [blocks[1], blocks[2]]);
                assert_eq!(calls(&allocator, Call::OrderBehind), 1);
                allocator.check_invariants().unwrap();
            }
        }
    }

    #[test]
    fn the_events_are_recorded_again_and_not_lost() {
        let allocator = allocator("", 1 << 30);
        for round in 0..100 {
            let ptr = malloc(&allocator);
            allocator.record_use(ptr, SIDES[0]).unwrap();
            allocator.record_use(ptr, SIDES[0]).unwrap();
            match round % 4 {
                // The event of the use is not needed: the block's uses last until the free.
                0 => allocator.record_stream(ptr, SIDES[0]).unwrap(),
                1 => allocator.record_stream(ptr, SIDES[1]).unwrap(),
                _ => {}
            }
            allocator.free(ptr).unwrap();
            SIDES.into_iter().for_each(|side| device(&allocator).complete(side));
        }
        assert!(calls(&allocator, Call::CreateEvent) <= 4, "{}", calls(&allocator, Call::CreateEvent));
        allocator.empty_cache(DEVICE).unwrap();
        assert_eq!(device(&allocator).outstanding().segments, 0);
    }

    #[test]
    fn a_use_announced_for_the_free_as_well_lasts_until_the_free() {
        let allocator = allocator("", 100 * MIB);
        let ptr = malloc(&allocator);
        allocator.record_use(ptr, SIDES[0]).unwrap();
        allocator.record_stream(ptr, SIDES[1]).unwrap();
        device(&allocator).complete(SIDES[0]);
        allocator.free(ptr).unwrap();
        assert_eq!(calls(&allocator, Call::Record), 3, "one at the use, two at the free");
        device(&allocator).complete(SIDES[1]);
        allocator.process_events(DEVICE).unwrap();
        assert_eq!(active(&allocator), 40, "work queued after the use on the first stream counts");
        device(&allocator).complete(SIDES[0]);
        allocator.process_events(DEVICE).unwrap();
        assert_eq!(active(&allocator), 0);
    }

    #[test]
    fn what_complete_events_free_is_asked_for_by_name_or_waited_for() {
        let allocator = allocator("", 1 << 30);
        let ptr = malloc(&allocator);
        allocator.record_use(ptr, SIDES[0]).unwrap();
        allocator.free(ptr).unwrap();
        assert!(allocator.free(ptr).is_err(), "freed already");
        allocator.process_events(DEVICE).unwrap();
        assert_eq!(active(&allocator), 40);
        allocator.empty_cache(DEVICE).unwrap();
        assert_eq!((active(&allocator), calls(&allocator, Call::Wait)), (0, 1));
        assert_eq!(device(&allocator).outstanding().segments, 0);
    }

    #[test]
    fn during_a_capture_uses_last_until_the_free_and_nothing_is_ordered() {
        let allocator = allocator("", 1 << 30);
        let (before, inside) = (malloc(&allocator), malloc(&allocator));
        allocator.record_use(before, SIDES[0]).unwrap();
        allocator.free(before).unwrap();
        let pool = allocator.create_pool(DEVICE, PoolOptions::default()).unwrap();
        allocator.begin_capture(DEVICE, pool, Route::Stream(SIDES[1])).unwrap();
        allocator.record_use(inside, SIDES[0]).unwrap();
        allocator.free(inside).unwrap();
        assert_eq!(calls(&allocator, Call::Record), 1);
        let other = malloc(&allocator);
        assert!(other != before && other != inside, "nothing can be ordered now");
        assert_eq!(calls(&allocator, Call::OrderBehind), 0);
        allocator.end_capture(DEVICE, pool).unwrap();
        assert_eq!(malloc(&allocator), before);
        assert_eq!(calls(&allocator, Call::OrderBehind), 1);
        // A capture that nothing announced.
        device(&allocator).set_capturing(SIDES[1], true);
        let ptr = malloc(&allocator);
        allocator.record_use(ptr, SIDES[1]).unwrap();
        device(&allocator).set_capturing(SIDES[1], false);
        allocator.free(ptr).unwrap();
        assert_eq!(active(&allocator), 160);
        SIDES.into_iter().for_each(|side| device(&allocator).complete(side));
        allocator.process_events(DEVICE).unwrap();
        assert_eq!(active(&allocator), 80);
        allocator.check_invariants().unwrap();
    }

    #[test]
    fn a_failure_changes_nothing() {
        let allocator = allocator("", 1 << 30);
        let error = DeviceError::new(ErrorKind::Other, 77);
        let fail = |call| device(&allocator).fail(Failure { call, nth: 1, persistent: false, error });
        let ptr = malloc(&allocator);
        for call in [Call::CreateEvent, Call::Record] {
            fail(call);
            assert_eq!(allocator.record_use(ptr, SIDES[0]), Err(Error::Device(error)));
        }
        allocator.record_use(ptr, SIDES[0]).unwrap();
        allocator.free(ptr).unwrap();
        for call in [Call::IsComplete, Call::IsCapturing, Call::OrderBehind] {
            fail(call);
            assert_eq!(allocator.malloc(DEVICE, 40 * MIB, STREAM), Err(Error::Device(error)), "{call:?}");
            allocator.check_invariants().unwrap();
        }
        assert_eq!(malloc(&allocator), ptr);
        assert!(allocator.record_use(DevicePtr(ptr.0 + 512), SIDES[0]).is_err());
        allocator.record_use(ptr, STREAM).unwrap();
        allocator.record_use(DevicePtr::NULL, STREAM).unwrap();
        allocator.free(ptr).unwrap();
        assert_eq!(active(&allocator), 0, "the own stream needs no event");
    }
}
