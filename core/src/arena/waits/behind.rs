//! Pending memory used for requests before the device has finished.
//!
//! A block that other streams use is pending until the events of the uses are complete. A request
//! that would otherwise make the device's memory short has the block's own stream ordered after the
//! events: the block is then free for later work of the own stream, and its pages may move as those
//! of any free block. The host does not wait.
//!
//! ```text
//! pending ─┬─ the events are complete ────────────────────────────────▶ free
//!          └─ a request is short ─ own stream ordered after them ────▶ free
//! ```
//!
//! The oldest uses of each stream come first, since their events are the first to be complete:
//! those of the request's own heap, whose blocks serve the request in place, and then the rest. One
//! event after the other is passed, so no stream waits for more work than the request needs.
//!
//! Blocks in private pools stay pending, since graphs may use them on any stream, and so do blocks
//! if their own stream has ended, may have gone or captures, blocks that the host uses, which would
//! wait, and blocks that wait for an event for which only the host can wait, where the device has
//! no more of the others. They delay what waits after them in the queue of the same using stream,
//! until their event is complete. Nothing is ordered while a graph is captured.

use crate::arena::platform::Platform;
use crate::arena::request::Request;
use crate::arena::waits::{DeviceWaits, Outside};
use crate::device::{ErrorKind, Event, StreamOrder};
use crate::error::Error;
use crate::units::{NO_STREAM, StreamId};

/// Number of streams ordered after one event at most.
const STREAMS: usize = 16;

impl<'a, P: Platform, O: Outside<'a, P>> DeviceWaits<'a, P, O> {
    /// Passes one event after the other for a request, and calls `done` after each that has freed a
    /// block. Returns the first value of `done`, or `None` if no event can be passed any more.
    /// Passes none while a graph is captured.
    ///
    /// # Errors
    /// The first error of the device, and those of `done`. Each block is pending or free then.
    pub(in crate::arena) fn order_events<T>(
        self,
        request: &Request,
        mut done: impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        // An event of no graph must not be waited for inside a graph, and none is captured while
        // the permission lasts. The device is asked as well, for programs that announce no capture.
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

    /// Passes all events, as [`order_events`](Self::order_events) does, for a device whose segments
    /// are released in the order of their streams: a memory checker follows that order, and not
    /// what the host has asked.
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

    /// [Passes](Self::order_events) the events of queues in which blocks of the heap in `slot`
    /// wait; of any heap, if `slot` is `None`: the first event of each queue, then the next of
    /// each.
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

    /// Orders the own streams of the blocks covered by the first event of a queue after the event.
    /// Returns the number of ended waits.
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

    /// Orders the own stream of a heap after an event, unless the stream is one of `streams`, which
    /// are ordered already. Returns false if the stream must not be ordered. The heap has a pending
    /// block, so it keeps its stream.
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
