//! Uses that have their own events, so that later work of the stream does not delay the reuse.
//!
//! With [`Allocator::record_stream`](crate::Allocator::record_stream), the event is recorded at the
//! free, after all work that is queued by then. With
//! [`Allocator::record_use`](crate::Allocator::record_use), it is recorded at the use. If all uses
//! of a block have events, the free makes no call to the device:
//!
//! ```text
//!                                                   ┌─ events complete ────────────────────▶ block free
//! free ─▶ ordered ─ a request of its heap misses ─ ask
//!                                                   └─ own stream ordered after the events ▶ block free
//! ```
//!
//! Ordering makes the own stream wait, and not the host. A stream that belongs to the host is not
//! ordered. A request orders only as many blocks as it needs, the oldest first, and only before it
//! would obtain memory. If the device has no more events for streams
//! ([`orders`](crate::device::StreamOrder::orders)), the uses of one stream share an event, and a
//! use without any event waits as a pending block does. A captured graph cannot wait for an event
//! from outside, so during a capture a block becomes free only when its events are complete.
//!
//! If some uses of a block have events and others do not, all of them get new events at the free.

use crate::arena::driver::Driver;
use crate::arena::flags;
use crate::arena::invalid_pointer::not_in_heap;
use crate::arena::platform::Platform;
use crate::arena::request::Request;
use crate::arena::waits::{DeviceWaits, Outside};
use crate::device::{DeviceMemory, DeviceResult, ErrorKind, Event, StreamOrder};
use crate::error::Error;
use crate::streams::deferred_frees::{Until, UseFence};
use crate::streams::fences::{Fence, Waiter};
use crate::streams::pending::{PendingBlock, PendingFree};
use crate::tables::slot_table::NONE;
use crate::units::{DevicePtr, StreamId};

impl<'a, P: Platform, O: Outside<'a, P>> DeviceWaits<'a, P, O> {
    /// Notes that the present work of `stream` uses the block at `ptr`, and records an event after
    /// this work. Returns false and notes nothing while a graph is captured.
    pub(in crate::arena) fn record_use(self, slot: u32, ptr: DevicePtr, stream: StreamId) -> Result<bool, Error> {
        let is_own = {
            let heap = self.heaps().lock(slot);
            if heap.lookup(ptr).is_none() {
                return Err(not_in_heap(&heap, ptr));
            }
            heap.stream == stream
        };
        if is_own {
            return Ok(true);
        }
        if self.waits.is_short_of_events() {
            // Before events are shared, complete uses give theirs back.
            self.poll_ordered()?;
        }
        let permission = self.driver().may_record();
        let fence = match permission.map(|_permission| self.waits.record_fence(self.driver(), stream, Waiter::Streams))
        {
            Some(Ok(fence)) => fence,
            None => return Ok(false),
            // The program captures without `begin_capture`.
            Some(Err(error)) if error.is_of_capture() => return Ok(false),
            Some(Err(error)) => return Err(error),
        };
        let mut heap = self.heaps().lock(slot);
        let noted = match heap.lookup(ptr) {
            Some(block) => heap.uses().add_until(block, fence).map_err(Error::from),
            None => Err(not_in_heap(&heap, ptr)),
        };
        drop(heap);
        let unneeded = noted.as_ref().map_or(Some(fence), |earlier| *earlier);
        if let Some(fence) = unneeded {
            self.waits.end_fence(self.driver(), fence, Waiter::Streams);
        }
        noted.map(|_earlier| true)
    }

    /// Drops the events of a pending block's uses, because the block gets new ones at the free.
    pub(in crate::arena) fn end_use_fences(self, block: PendingBlock) {
        let PendingBlock { slot, index } = block;
        let mut next = self.heaps().lock(slot).blocks[index].uses;
        while next != NONE {
            let ended = self.heaps().lock(slot).uses().take_fences(&mut next);
            ended.into_iter().for_each(|fence| self.waits.end_fence(self.driver(), fence, Waiter::Streams));
        }
    }

    /// Adds a pending block whose uses all have events, and traces the free.
    ///
    /// # Errors
    /// [`Error::TableFull`]. The block is not added then.
    pub(in crate::arena) fn wait_for_uses_so_far(self, free: PendingFree) -> Result<(), Error> {
        let first = {
            let mut heap = self.heaps().lock(free.block.slot);
            let uses = heap.blocks[free.block.index].uses;
            heap.uses().next_fence(uses).expect("every use in need of an event has one")
        };
        self.defer(free, Until::Fence(first))
    }

    /// Serves a request that no free block could serve. Tries blocks of its heap whose uses are
    /// complete, and then orders the heap's stream after the uses of one block after the other.
    pub(in crate::arena) fn search_ordered(
        self,
        request: &Request,
        search: &mut impl FnMut() -> Result<Option<DevicePtr>, Error>,
    ) -> Result<Option<DevicePtr>, Error> {
        if !self.driver().flags.has(flags::ORDERED) || request.capturing {
            return Ok(None);
        }
        self.driver().health()?;
        // Under `stitched`, the pages of other heaps can serve the request as well.
        let is_stitched = self.heaps().moves_pages(request);
        let ended = if is_stitched { self.poll_ordered()? } else { self.poll_ordered_of(request.slot)? };
        if ended > 0
            && let Some(ptr) = search()?
        {
            return Ok(Some(ptr));
        }
        if !self.driver().device().can_order(request.stream) {
            return Ok(None);
        }
        // A graph must not wait for an event from outside, and no capture starts while this
        // permission is held. The device is asked too, because some programs announce no capture.
        let Some(_permission) = self.driver().may_record() else { return Ok(None) };
        if self.driver().call(|memory| memory.is_capturing(request.stream))? {
            return Ok(None);
        }
        self.order_heap(request.slot, request.stream, search)
    }

    /// Orders the stream of the heap in `slot` after the uses of its blocks, one block after the
    /// other from the oldest on, and calls `done` after each. `named` is the stream that the call
    /// names. Returns the first value of `done`, or `None` if no other block can be ordered. The
    /// caller has permission to record.
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
            let taken = self.waits.deferred.lock().take_oldest(slot);
            let Some(entry) = taken else { return Ok(None) };
            // One question is enough, because all blocks of a heap have the same stream.
            if own.is_none() {
                own = self.or_put_back(entry, self.stream_to_order(slot, named, true))?;
            }
            let passed = own.map_or(Ok(false), |own| self.order_behind_uses(own, entry));
            if !self.end_or_put_back(entry, passed)? {
                return Ok(None);
            }
            let value = done()?;
            if value.is_some() {
                return Ok(value);
            }
        }
    }

    /// Orders the streams of heaps of the default pool as [`order_heap`](Self::order_heap) does,
    /// starting with the oldest block of all heaps. Private pools are left out, because a graph may
    /// use their memory on any stream.
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
            let taken = self.waits.deferred.lock().take_oldest_from(age);
            let Some((entry, oldest)) = taken else { return Ok(None) };
            // If a heap cannot be ordered, its later blocks are skipped along with the oldest.
            age = oldest + 1;
            let slot = self.waits.deferred.lock().get(entry).block.slot;
            let own = self.or_put_back(entry, self.stream_to_order(slot, named, false))?;
            let passed = own.map_or(Ok(false), |own| self.order_behind_uses(own, entry));
            if self.end_or_put_back(entry, passed)? {
                let value = done()?;
                if value.is_some() {
                    return Ok(value);
                }
            }
        }
    }

    /// Frees the blocks of all heaps whose uses are complete, without waiting. Returns the number
    /// of blocks whose waits for events have ended.
    pub(in crate::arena) fn poll_ordered(self) -> Result<u32, Error> {
        let (mut from, mut ended) = (0, 0);
        while self.driver().flags.has(flags::ORDERED) {
            let next = self.waits.deferred.lock().next_heap(from);
            let Some(slot) = next else { break };
            ended += self.poll_ordered_of(slot)?;
            from = slot + 1;
        }
        Ok(ended)
    }

    /// Frees the blocks of the heap in `slot` whose uses are complete. Returns the number of blocks
    /// whose waits for events have ended.
    ///
    /// Polls the events of one stream after the other. The events of a stream are polled in the
    /// order of their recording until one is not complete, because the later ones are not complete
    /// before it.
    fn poll_ordered_of(self, slot: u32) -> Result<u32, Error> {
        let (mut from, mut ended) = ((StreamId(0), 0), 0);
        loop {
            let taken = self.waits.deferred.lock().take_watched(slot, from);
            let Some((entry, watched)) = taken else { return Ok(ended) };
            let Fence { stream, number, event } = watched.fence;
            let complete = self.or_put_back(entry, is_complete(self.driver(), event))?;
            let all = complete && self.or_put_back(entry, self.watch_on(entry, watched))?;
            if all {
                self.end_deferred(entry);
                ended += 1;
            } else if !complete {
                self.waits.deferred.lock().put_back(entry);
            }
            // After an incomplete event, go on with the next stream.
            from = (stream, if complete { number + 1 } else { u64::MAX });
        }
    }

    /// Polls the uses of a taken block that come after the watched one, whose event is complete.
    /// Returns whether all are complete. If not, the block is now watched at the first incomplete
    /// one, and is no longer taken.
    fn watch_on(self, entry: u32, watched: UseFence) -> Result<bool, Error> {
        let slot = self.waits.deferred.lock().get(entry).block.slot;
        let mut next = watched.next;
        loop {
            let later = self.heaps().lock(slot).uses().next_fence(next);
            let Some(later) = later else { return Ok(true) };
            if !is_complete(self.driver(), later.fence.event)? {
                self.waits.deferred.lock().watch(entry, later);
                return Ok(false);
            }
            next = later.next;
        }
    }

    /// Waits until the uses of all blocks are complete, and frees the blocks. This includes blocks
    /// on which another thread is working.
    pub(in crate::arena) fn wait_for_ordered(self) -> Result<(), Error> {
        while self.driver().flags.has(flags::ORDERED) {
            let taken = self.waits.deferred.lock().take_oldest_from(0);
            if let Some((entry, _)) = taken {
                let waited = self.each_fence(entry, P::Device::wait);
                self.end_or_put_back(entry, waited.map(|()| true))?;
            } else if self.waits.deferred.lock().is_at_work() {
                self.driver().give_way();
            }
        }
        Ok(())
    }

    /// Orders the own stream of a taken block after its uses. Returns false if a capture of the
    /// stream forbids it, or if only the host could wait for a use.
    fn order_behind_uses(self, own: StreamId, entry: u32) -> Result<bool, Error> {
        let mut all = true;
        // The host must not wait, because it holds the permission to record.
        self.each_fence(entry, |memory, event| {
            all &= memory.orders(event);
            Ok(())
        })?;
        if !all {
            return Ok(false);
        }
        match self.each_fence(entry, |memory, event| memory.order_behind(own, event)) {
            // The program announces no capture, and one has started in the meantime.
            Err(Error::Device(error)) if error.kind == ErrorKind::NotPermittedInCapture => Ok(false),
            ordered => ordered.map(|()| true),
        }
    }

    /// Calls the device for each event of a taken block that is not known to be complete.
    fn each_fence(self, entry: u32, mut call: impl FnMut(&P::Device, Event) -> DeviceResult<()>) -> Result<(), Error> {
        let deferred = self.waits.deferred.lock().get(entry);
        let mut next = deferred.watched();
        while let Some(used) = next {
            self.driver().call(|memory| call(memory, used.fence.event))?;
            next = self.heaps().lock(deferred.block.slot).uses().next_fence(used.next);
        }
        Ok(())
    }

    /// Returns the result. If it is an error, the block is no longer taken.
    fn or_put_back<T>(self, entry: u32, result: Result<T, Error>) -> Result<T, Error> {
        result.inspect_err(|_| self.waits.deferred.lock().put_back(entry))
    }

    /// Ends the waits of a taken block if `ends`; otherwise puts the block back.
    fn end_or_put_back(self, entry: u32, ends: Result<bool, Error>) -> Result<bool, Error> {
        if ends == Ok(true) {
            self.end_deferred(entry);
        } else {
            self.waits.deferred.lock().put_back(entry);
        }
        ends
    }

    /// Returns the stream of the heap in `slot` if a call that names the stream `named` may order
    /// it after uses of the heap's blocks. Returns `None` if the stream has ended, may be gone or
    /// captures, if the host would wait, or if the pool is private and `private` is false. The heap
    /// keeps its stream meanwhile, because it has a pending block.
    pub(in crate::arena) fn stream_to_order(
        self,
        slot: u32,
        named: StreamId,
        private: bool,
    ) -> Result<Option<StreamId>, Error> {
        let own = {
            let heap = self.heaps().lock(slot);
            self.driver().usable_stream(&heap, named).filter(|_| private || heap.pool == 0)
        };
        let Some(own) = own.filter(|&own| self.driver().device().can_order(own)) else { return Ok(None) };
        Ok((!self.driver().call(|memory| memory.is_capturing(own))?).then_some(own))
    }
}

fn is_complete<D: DeviceMemory>(driver: &Driver<D>, event: Event) -> Result<bool, Error> {
    Ok(driver.call(|memory| memory.is_complete(event))?)
}
