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

use crate::arena::driver::record_event;
use crate::arena::invalid_pointer::not_in_heap;
use crate::arena::request::Request;
use crate::arena::{OnDevice, flags};
use crate::device::{DeviceMemory, ErrorKind, Event};
use crate::error::Error;
use crate::heap::split_rules::Source;
use crate::heap::uses::SOME;
use crate::sync::Lock;
use crate::tables::{CapacityError, Storage};
use crate::units::{DevicePtr, StreamId};

/// The treatment of an incomplete event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Incomplete {
    /// Leave the block.
    Leave,
    /// Order the block's own stream behind the event; in private pools only with `private`.
    Order { named: StreamId, private: bool },
    /// Wait for the event.
    Wait,
}

/// The uses with events, of a device's blocks.
pub(crate) struct Ordered<'a, D, R: Lock, S: Storage>(pub OnDevice<'a, D, R, S>);

impl<D: DeviceMemory, R: Lock, S: Storage> Ordered<'_, D, R, S> {
    /// Notes the use of the block at `ptr` by the present work of `stream`, and records an event behind the
    /// work. While a graph is captured, calls [`record_stream`](crate::arena::Arena::record_stream)
    /// instead.
    pub(crate) fn record_use(&self, slot: u32, ptr: DevicePtr, stream: StreamId) -> Result<(), Error> {
        let device = self.0;
        let is_own = {
            let heap = device.heaps.lock(slot);
            if heap.lookup(ptr).is_none() {
                return Err(not_in_heap(&heap, ptr));
            }
            heap.stream == stream
        };
        if is_own {
            return Ok(());
        }
        let permission = device.driver.may_record(&device.flags);
        let event = match permission.map(|_permission| self.record(stream)) {
            Some(Ok(event)) => event,
            None => return device.record_stream(slot, ptr, stream),
            // The program captures without `begin_capture`.
            Some(Err(error)) if error.is_of_capture() => return device.record_stream(slot, ptr, stream),
            Some(Err(error)) => return Err(error),
        };
        let mut heap = device.heaps.lock(slot);
        let noted = match heap.lookup(ptr) {
            Some(block) => heap.uses().add_until(block, stream, event).map_err(Error::from),
            None => Err(not_in_heap(&heap, ptr)),
        };
        drop(heap);
        let unneeded = noted.as_ref().map_or(Some(event), |earlier| *earlier);
        if let Some(event) = unneeded {
            self.give_back(&[(stream, event)]);
        }
        noted.map(|_earlier| ())
    }

    /// Records an event at the present end of `stream`.
    fn record(&self, stream: StreamId) -> Result<Event, Error> {
        let device = self.0;
        device.health()?;
        let idle = device.event_queues.lock_of(stream).lend()?;
        record_event(&device, idle, stream, D::record).map_err(|(made, error)| {
            device.event_queues.lock_of(stream).end_loan(made);
            error.into()
        })
    }

    /// Gives events of uses, with their streams, back to the idle events.
    fn give_back(&self, events: &[(StreamId, Event)]) {
        for &(stream, event) in events {
            self.0.event_queues.lock_of(stream).end_loan(Some(event));
        }
    }

    /// Drops the events of a pending block's uses: the block gets new ones at the free.
    pub(super) fn drop_events(&self, slot: u32, block: u32) {
        loop {
            let events = self.0.heaps.lock(slot).uses().take_events(block);
            self.give_back(&events);
            if events.len() < SOME {
                return;
            }
        }
    }

    /// Adds a pending block whose uses all have events, and traces the free with the call site `site`.
    ///
    /// # Errors
    /// [`Error::TableFull`]. The block is not added then.
    pub(super) fn add(&self, slot: u32, block: u32, site: u32) -> Result<(), Error> {
        let device = self.0;
        // The entry is busy until the free is traced: afterwards the free can no longer fail.
        let added = device.ordered.lock().add(slot, block);
        added.map_err(|CapacityError| Error::TableFull("events"))?;
        if let Some(recorder) = device.tracing() {
            recorder.free_requested(&mut device.heaps.lock(slot), block, site);
        }
        let mut blocks = device.ordered.lock();
        blocks.keep(slot, block);
        device.flags.follow_ordered(&blocks);
        Ok(())
    }

    /// Serves a request that no free block could serve: from blocks of its heap whose uses are complete,
    /// else by ordering the heap's stream behind the uses of one block after the other.
    pub(super) fn search(&self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        let device = self.0;
        if !device.flags.has(flags::ORDERED) || request.capturing {
            return Ok(None);
        }
        device.health()?;
        // The pages of other heaps can serve as well under `stitched`.
        let is_stitched = device.heaps.source(request) == Source::Stitched;
        if self.advance((!is_stitched).then_some(request.slot), Incomplete::Leave)? > 0
            && let Some(ptr) = device.search(request)?
        {
            return Ok(Some(ptr));
        }
        if !device.driver.device().can_order(request.stream) {
            return Ok(None);
        }
        // An event of no graph must not be waited for inside a graph, and none is captured while the
        // permission lasts. The device is asked as well, for programs that announce no capture.
        let Some(_permission) = device.driver.may_record(&device.flags) else { return Ok(None) };
        if device.call(|memory| memory.is_capturing(request.stream))? {
            return Ok(None);
        }
        self.pass(Some(request.slot), request.stream, &mut || device.search(request))
    }

    /// Orders the own stream of one block after the other behind the block's uses, the oldest block first,
    /// and calls `done` after each. Takes blocks of the heap in `slot`; without one, of all heaps of the
    /// default pool: a graph may use the memory of a private pool on any stream. `named` is the stream that the
    /// call names. Returns the first value of `done`, or `None` if no block can be ordered any more. The caller
    /// has the permission to record.
    ///
    /// # Errors
    /// The first error of the device, and those of `done`. The block stays pending then.
    pub(super) fn pass<T>(
        &self,
        slot: Option<u32>,
        named: StreamId,
        done: &mut impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        let mut from = 0;
        let order = Incomplete::Order { named, private: slot.is_some() };
        while let Some(has_ended) = self.advance_one(&mut from, slot, order)? {
            if has_ended {
                let value = done()?;
                if value.is_some() {
                    return Ok(value);
                }
            }
        }
        Ok(None)
    }

    /// Returns the stream of the heap in `slot`, if a call that names the stream `named` may order it behind uses of
    /// the heap's blocks: not if the stream has ended, may have gone or captures, nor if the host would wait, nor in a
    /// private pool unless `private`. The heap has a pending block, so it keeps its stream.
    pub(super) fn stream_to_order(&self, slot: u32, named: StreamId, private: bool) -> Result<Option<StreamId>, Error> {
        let device = self.0;
        let (own, may) = {
            let heap = device.heaps.lock(slot);
            (heap.stream, device.driver.may_use_stream_of(&heap, named) && (private || heap.pool == 0))
        };
        let may = may && device.driver.device().can_order(own) && !device.call(|memory| memory.is_capturing(own))?;
        Ok(may.then_some(own))
    }

    /// Frees the blocks whose uses are complete. Does not wait.
    pub(super) fn ask(&self) -> Result<(), Error> {
        if !self.0.flags.has(flags::ORDERED) {
            return Ok(());
        }
        self.advance(None, Incomplete::Leave).map(|_freed| ())
    }

    /// Waits until the uses of all blocks are complete, and frees the blocks, also blocks on which another
    /// thread works.
    pub(super) fn wait(&self) -> Result<(), Error> {
        while self.0.flags.has(flags::ORDERED) {
            self.advance(None, Incomplete::Wait)?;
            if self.0.ordered.lock().is_at_work() {
                self.0.driver.give_way();
            }
        }
        Ok(())
    }

    /// Works on the blocks of the heap in `slot`, or of all heaps, the oldest first. Returns the number
    /// of blocks whose waits for events have ended.
    fn advance(&self, slot: Option<u32>, incomplete: Incomplete) -> Result<u32, Error> {
        let (mut from, mut ended) = (0, 0);
        while let Some(has_ended) = self.advance_one(&mut from, slot, incomplete)? {
            ended += u32::from(has_ended);
        }
        Ok(ended)
    }

    /// Works on the first block at or after `from`, and moves `from` to the next. Returns whether the
    /// block's waits for events have ended, `None` if there is no block.
    fn advance_one(&self, from: &mut usize, slot: Option<u32>, incomplete: Incomplete) -> Result<Option<bool>, Error> {
        let device = self.0;
        let taken = device.ordered.lock().take(*from, slot);
        let Some((place, heap, block)) = taken else { return Ok(None) };
        let passed = self.pass_events(heap, block, incomplete);
        if passed == Ok(true) {
            self.end(heap, block);
            // The next block has moved to the place of this one.
            *from = place;
        } else {
            device.ordered.lock().keep(heap, block);
            *from = place + 1;
        }
        passed.map(Some)
    }

    /// Returns whether all events of a busy block are complete, or the own stream is behind them.
    fn pass_events(&self, slot: u32, block: u32, incomplete: Incomplete) -> Result<bool, Error> {
        let device = self.0;
        let mut next = device.heaps.lock(slot).blocks[block].uses;
        let own = match incomplete {
            Incomplete::Order { named, private } => self.stream_to_order(slot, named, private)?,
            Incomplete::Leave | Incomplete::Wait => None,
        };
        loop {
            let event = device.heaps.lock(slot).uses().next_event(&mut next);
            let Some(event) = event else { return Ok(true) };
            match incomplete {
                Incomplete::Leave => {
                    if !device.call(|memory| memory.is_complete(event))? {
                        return Ok(false);
                    }
                }
                Incomplete::Order { .. } => {
                    let Some(own) = own else { return Ok(false) };
                    match device.call(|memory| memory.order_behind(own, event)) {
                        // The capture of a program that announces none has begun since.
                        Err(error) if error.kind == ErrorKind::NotPermittedInCapture => return Ok(false),
                        ordered => ordered?,
                    }
                }
                Incomplete::Wait => device.call(|memory| memory.wait(event))?,
            }
        }
    }

    /// Ends the waits of a busy block, whose events become idle, and frees the block.
    fn end(&self, slot: u32, block: u32) {
        let device = self.0;
        self.drop_events(slot, block);
        {
            let mut blocks = device.ordered.lock();
            blocks.remove(slot, block);
            device.flags.follow_ordered(&blocks);
        }
        device.end_uses(slot, device.heaps.lock(slot), block, None);
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
            let event = crate::device::DeviceMemory::create_event(device).unwrap();
            crate::device::DeviceMemory::record(device, event, STREAM).unwrap();
            assert_eq!(crate::device::DeviceMemory::is_complete(device, event), Ok(false));
            SIDES.into_iter().for_each(|side| device.complete(side));
            device.complete(STREAM);
            assert_eq!(crate::device::DeviceMemory::is_complete(device, event), Ok(true));
            allocator.check_invariants().unwrap();
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
