//! Pending memory that serves requests before the device has finished with it.
//!
//! A block that other streams use is pending until the events of these uses are complete. When a
//! request would otherwise run short of device memory, the block's own stream is ordered after the
//! events. The block is then free for later work of its own stream, and its pages may move like
//! those of any free block. The host does not wait.
//!
//! ```text
//! pending ─┬─ the events are complete ────────────────────────────────▶ free
//!          └─ a request is short ─ own stream ordered after them ────▶ free
//! ```
//!
//! The oldest uses of each stream come first, because their events complete first. The request's
//! own heap is searched before the others, because its blocks serve the request in place. Events
//! are passed one at a time, so that no stream waits for more work than the request needs.
//!
//! Some blocks stay pending:
//! * blocks in private pools, because graphs may use them on any stream;
//! * blocks whose own stream has ended, may be gone or captures;
//! * blocks that the host uses, because it would wait;
//! * blocks that wait for an event for which only the host can wait. Such events are used when the
//!   device has no more of the others.
//!
//! Until their event is complete, these blocks delay what waits after them in the queue of the same
//! user stream. Nothing is ordered while a graph is captured.

use crate::arena::platform::Platform;
use crate::arena::request::Request;
use crate::arena::waits::{DeviceWaits, Outside};
use crate::device::{ErrorKind, Event, StreamOrder};
use crate::error::Error;
use crate::units::{NO_STREAM, StreamId};

/// The maximum number of streams ordered after one event.
const STREAMS: usize = 16;

impl<'a, P: Platform, O: Outside<'a, P>> DeviceWaits<'a, P, O> {
    /// Passes one event after the other for a request, and calls `done` after each one that has
    /// freed a block. Returns the first value of `done`, or `None` if no other event can be passed.
    /// Passes no event while a graph is captured.
    ///
    /// # Errors
    /// The first error of the device, and those of `done`. Each block is pending or free then.
    pub(in crate::arena) fn order_events<T>(
        self,
        request: &Request,
        mut done: impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        // A graph must not wait for an event from outside, and no capture starts while this
        // permission is held. The device is asked too, because some programs announce no capture.
        let Some(_permission) = self.driver().may_record() else { return Ok(None) };
        if self.driver().call(|memory| memory.is_capturing(request.stream))? {
            return Ok(None);
        }
        let passed = self.order_heaps(request.stream, &mut done)?;
        if passed.is_some() {
            return Ok(passed);
        }
        for slot in [Some(request.slot), None] {
            let passed = self.order_queues(request.stream, slot, &mut done)?;
            if passed.is_some() {
                return Ok(passed);
            }
        }
        Ok(None)
    }

    /// Passes all events, as [`order_events`](Self::order_events) does. Used on a device that
    /// releases segments in the order of their streams, because a memory checker follows this
    /// order, and not the answers that the host got.
    ///
    /// # Errors
    /// The first error of the device. Each block is pending or free then.
    pub(in crate::arena) fn order_pending(self) -> Result<(), Error> {
        self.record_queues(self.driver().flags.waiting(), None)?;
        let Some(_permission) = self.driver().may_record() else { return Ok(()) };
        let done = &mut || Ok(None::<()>);
        self.order_heaps(NO_STREAM, done)?;
        self.order_queues(NO_STREAM, None, done)?;
        Ok(())
    }

    /// [Passes](Self::order_events) the events of the queues in which blocks of the heap in `slot`
    /// wait, or of all queues if `slot` is `None`. Takes the first event of each queue, then the
    /// next one of each.
    fn order_queues<T>(
        self,
        named: StreamId,
        slot: Option<u32>,
        done: &mut impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        loop {
            let mut any = false;
            let waiting = self.driver().flags.waiting();
            for (group, queue) in self.each_queue(waiting, move |order, from| order.next_queue(from, slot)) {
                if self.order_first(named, group, queue)? == 0 {
                    continue;
                }
                any = true;
                let value = done()?;
                if value.is_some() {
                    return Ok(value);
                }
            }
            if !any {
                return Ok(None);
            }
        }
    }

    /// Orders the own streams of the blocks that wait for the first event of a queue after this
    /// event. Returns the number of waits that have ended.
    fn order_first(self, named: StreamId, group: u32, queue: usize) -> Result<u32, Error> {
        let (event, heaps) = {
            let mut order = self.waits.queues.lock(group);
            let Some(event) = order.begin_poll(queue) else { return Ok(0) };
            (event, order.covered_heaps(queue))
        };
        let mut passed = heapless::Vec::<u32, STREAMS>::new();
        let mut streams = heapless::Vec::<StreamId, STREAMS>::new();
        let mut result = Ok(());
        for slot in heaps {
            match self.order_behind(named, slot, event, &mut streams) {
                Ok(true) => {
                    let _room = passed.push(slot);
                }
                Ok(false) => {}
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        let ended = self.finish_poll(group, queue, |heap| passed.contains(&heap));
        result.map(|()| ended)
    }

    /// Orders the own stream of a heap after an event, unless it is one of `streams`, which are
    /// already ordered. Returns false if the stream must not be ordered. The heap keeps its stream
    /// meanwhile, because it has a pending block.
    fn order_behind(
        self,
        named: StreamId,
        slot: u32,
        event: Event,
        streams: &mut heapless::Vec<StreamId, STREAMS>,
    ) -> Result<bool, Error> {
        if !self.driver().device().orders(event) {
            return Ok(false);
        }
        // A graph may use the memory of a private pool on any stream.
        let Some(own) = self.stream_to_order(slot, named, false)? else { return Ok(false) };
        if streams.contains(&own) {
            return Ok(true);
        }
        match self.driver().call(|memory| memory.order_behind(own, event)) {
            Err(error) if error.kind == ErrorKind::NotPermittedInCapture => return Ok(false),
            ordered => ordered?,
        }
        let _room = streams.push(own);
        Ok(true)
    }
}
