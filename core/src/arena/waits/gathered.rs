//! Gathered frees: one event for several blocks, and no question to the device before an answer is
//! needed.
//!
//! `PyTorch` records an event at each free and polls at each request. Both are calls to the driver,
//! which lets in one thread at a time. If no decision depends on these moments, a free only queues
//! the block:
//!
//! ```text
//! free ─ open ─┬─ no event of a busy stream is incomplete ──▶ record ─ event ─┐
//!              ├─ many blocks are open ─▶ poll, record ───────────────────────┤
//!              └─ a request misses ─▶ poll ─ still misses ─▶ record, poll ────┤
//!                                                                             ▼
//!                                                      complete ⟹ every block before is free
//! ```
//!
//! If a stream is idle, [`process_events`](DeviceWaits::process_events) frees all the blocks that
//! wait for it without looking at an event.
//!
//! An idle stream needs no event, because all blocks that wait for it are free. As long as the last
//! answer was that the stream is idle, a request asks again, and a free records nothing.
//!
//! An event that is recorded later than a free covers this free as well. The stream must exist
//! until then, so the announced end of a stream first records the event.
//!
//! No event is recorded during a capture, so the blocks stay open.

use crate::arena::flags;
use crate::arena::heaps::HeapGuard;
use crate::arena::platform::Platform;
use crate::arena::request::Request;
use crate::arena::waits::{DeviceWaits, Outside};
use crate::device::{DeviceResult, Event, StreamOrder};
use crate::error::Error;
use crate::streams::event_queue::{DueRecording, GATHER};
use crate::streams::fences::Waiter;
use crate::streams::groups::GroupSet;
use crate::streams::pending::PendingFree;
use crate::tables::CapacityError;
use crate::units::DevicePtr;

impl<'a, P: Platform, O: Outside<'a, P>> DeviceWaits<'a, P, O> {
    /// Queues a pending block for the next event of each user stream, and traces the free. Unlocks
    /// the heap, and then updates the peaks for the pending block.
    ///
    /// # Errors
    /// [`Error::TableFull`], and the loss of the context. The block is then in no queue. Other
    /// failures of the device are not errors here: the blocks stay open, and a later call tries
    /// again.
    pub(in crate::arena) fn gather(self, heap: HeapGuard<'_, P>, free: PendingFree) -> Result<(), Error> {
        let mut due = None;
        let queued = self.queue_waits(heap, free.block, |stream| {
            let group = self.waits.queues.of(stream);
            let mut order = self.waits.queues.lock(group);
            let queue = order.gather(stream, free.block).map_err(|CapacityError| Error::TableFull("events"))?;
            self.driver().flags.follow(group, &order);
            due = queue.map(|queue| (group, queue)).or(due);
            Ok(())
        });
        let heap = queued.map_err(|(_, error)| error)?;
        self.end_uses(heap, free);
        if let Some((group, queue)) = due {
            let _later = self.advance_queue(group, queue);
        }
        Ok(())
    }

    /// Frees the blocks of one queue whose work is complete, and records an event for the open
    /// ones.
    fn advance_queue(self, group: u32, queue: usize) -> Result<(), Error> {
        while self.poll_queue(group, queue)? > 0 {}
        if self.ask_whether_idle(group, queue, GATHER)? > 0 {
            return Ok(());
        }
        let Some(_permission) = self.driver().may_record() else { return Ok(()) };
        self.record_queue(group, queue, false).map(|_ended| ())
    }

    /// Serves a request that no free block could serve, from blocks whose work is complete. Polls
    /// the events that blocks of the request's own heap wait for. Under `stitched`, polls all other
    /// events afterwards, because the pages of other heaps can serve the request as well.
    pub(in crate::arena) fn search_gathered(
        self,
        request: &Request,
        search: &mut impl FnMut() -> Result<Option<DevicePtr>, Error>,
    ) -> Result<Option<DevicePtr>, Error> {
        if !self.driver().flags.has(flags::GATHERED | flags::DEFERRED) || request.capturing {
            return Ok(None);
        }
        self.driver().health()?;
        // These were deferred by a capture, before frees were gathered.
        self.record_deferred()?;
        let served = self.search_queues(Some(request.slot), search)?;
        if served.is_none() && self.heaps().moves_pages(request) {
            self.search_queues(None, search)
        } else {
            Ok(served)
        }
    }

    /// Serves a request from blocks in the queues that hold blocks of the heap in `slot`, or in all
    /// queues if `slot` is `None`. First polls the recorded events, and asks whether streams
    /// without an event are idle. Records events for open blocks only if this is not enough.
    fn search_queues(
        self,
        slot: Option<u32>,
        search: &mut impl FnMut() -> Result<Option<DevicePtr>, Error>,
    ) -> Result<Option<DevicePtr>, Error> {
        let groups = slot.map_or_else(|| self.driver().flags.waiting(), |slot| self.heaps().lock(slot).waiting());
        let ended = self.poll_queues(groups, slot, false)? + self.ask_idle(groups, slot)?;
        if ended > 0
            && let Some(ptr) = search()?
        {
            return Ok(Some(ptr));
        }
        if self.record_queues(groups, slot)? == 0 { Ok(None) } else { search() }
    }

    /// Waits for the oldest event of one stream after the other, until a block that becomes free
    /// can serve the request. Returns `None` if all events are complete and no block could serve
    /// it.
    pub(in crate::arena) fn search_event_by_event(
        self,
        search: &mut impl FnMut() -> Result<Option<DevicePtr>, Error>,
    ) -> Result<Option<DevicePtr>, Error> {
        if !self.driver().flags.has(flags::GATHERED) || self.driver().holds_frees() {
            return Ok(None);
        }
        self.record_queues(self.driver().flags.waiting(), None)?;
        loop {
            let mut any = false;
            for (group, queue) in
                self.each_queue(self.driver().flags.waiting(), |order, from| order.next_queue(from, None))
            {
                let wait = |memory: &P::Device, event| memory.wait(event).map(|()| true);
                let Some(_ended) = self.ask_of_first(group, queue, wait)? else { continue };
                any = true;
                if let Some(ptr) = search()? {
                    return Ok(Some(ptr));
                }
            }
            if !any {
                return Ok(None);
            }
        }
    }

    /// Records events for the blocks that have none yet.
    pub(in crate::arena) fn record_open(self) -> Result<u32, Error> {
        // Under PyTorch's decisions each request polls, and a look at the queues would cost 142
        // instructions of a cycle of two streams.
        if !self.driver().flags.has(flags::HAS_GATHERED) {
            return Ok(0);
        }
        let asked = self.free_behind_idle();
        let recorded = self.record_queues(self.driver().flags.waiting(), None);
        asked.and(recorded)
    }

    /// Frees the blocks that wait for idle streams, if an earlier event of the stream has not been
    /// polled yet. An event recorded now might not be complete when it is polled right away, even
    /// if the stream had nothing to do.
    ///
    /// # Errors
    /// The first error of the device.
    fn free_behind_idle(self) -> Result<(), Error> {
        for (group, queue) in self.each_queue(self.driver().flags.waiting(), |order, from| order.next_open(from, None))
        {
            let Some(_permission) = self.driver().may_record() else { break };
            let begun = self.waits.queues.lock(group).begin_recording(queue);
            let Some(DueRecording { stream, is_first }) = begun else { continue };
            // If there is no earlier event, recording asks the same question.
            let answer = if is_first { Ok(None) } else { self.driver().call(|memory| memory.is_idle(stream)) };
            if answer != Ok(Some(true)) {
                self.waits.queues.lock(group).finish_recording(queue, None);
                answer?;
                continue;
            }
            let mut polled = Ok(1);
            while matches!(polled, Ok(1..)) {
                polled = self.poll_queue(group, queue);
            }
            let mut order = self.waits.queues.lock(group);
            let first = order.finish_idle(queue);
            self.free_from(group, order, first, None);
            polled?;
        }
        Ok(())
    }

    /// Records events for all blocks that are open at the call. Waits for another thread that is
    /// recording, because its event may come before the latest blocks.
    ///
    /// # Errors
    /// As for [`record_queues`](Self::record_queues).
    pub(in crate::arena) fn record_all_open(self) -> Result<(), Error> {
        let mut result = Ok(());
        for group in self.driver().flags.waiting().iter() {
            let mut from = 0;
            while let Some(_permission) = self.driver().may_record() {
                // The look and the start under one lock: a thread that starts in between may leave
                // the blocks open, if it finds the stream idle and another thread at the first
                // event.
                let next = {
                    let mut order = self.waits.queues.lock(group);
                    order.next_open(from, None).map(|queue| (queue, order.begin_recording(queue)))
                };
                let Some((queue, begun)) = next else { break };
                let Some(due) = begun else {
                    self.driver().give_way();
                    continue;
                };
                from = queue + 1;
                result = result.and(self.record_begun(group, queue, due, true).map(|_ended| ()));
            }
        }
        result
    }

    /// Records an event for the open blocks of each queue in `groups` that holds blocks of the heap
    /// in `slot`, or of every queue if `slot` is `None`. Polls an event at once if it is the only
    /// one of its stream. Returns the number of waits that have ended.
    ///
    /// # Errors
    /// The first error of the device, after all streams have been tried. If a stream captures, its
    /// blocks stay open, which is not an error.
    pub(in crate::arena) fn record_queues(self, groups: GroupSet, slot: Option<u32>) -> Result<u32, Error> {
        let (mut sum, mut result) = (0, Ok(()));
        for (group, queue) in self.each_queue(groups, move |order, from| order.next_open(from, slot)) {
            let recorded = match self.driver().may_record() {
                Some(_permission) => self.record_queue(group, queue, true),
                None => Ok(0),
            };
            match recorded {
                Ok(ended) => sum += ended,
                Err(error) => result = result.and(Err(error)),
            }
        }
        result.map(|()| sum)
    }

    /// Asks whether streams are idle, for the queues in `groups` that have open blocks and hold
    /// blocks of the heap in `slot` (of any heap, if `slot` is `None`). Returns the number of waits
    /// that have ended.
    fn ask_idle(self, groups: GroupSet, slot: Option<u32>) -> Result<u32, Error> {
        let mut open = self.each_queue(groups, move |order, from| order.next_open(from, slot));
        open.try_fold(0, |sum, (group, queue)| Ok(sum + self.ask_whether_idle(group, queue, 1)?))
    }

    /// Asks whether the stream of a queue is idle, if at least `least` blocks are open and an idle
    /// stream can be hoped for. This one question then replaces an event and a poll. Returns the
    /// number of waits that have ended.
    fn ask_whether_idle(self, group: u32, queue: usize, least: u32) -> Result<u32, Error> {
        let Some(_permission) = self.driver().may_record() else { return Ok(0) };
        let begun = self.waits.queues.lock(group).begin_question(queue, least);
        let Some(stream) = begun else { return Ok(0) };
        let answer = self.driver().call(|memory| memory.is_idle(stream));
        let ended = self.finish_question(group, queue, answer.unwrap_or(None));
        answer.map(|_idle| ended).map_err(Error::from)
    }

    /// Records an event for the open blocks of a queue. `asks` is true if a request needs the
    /// blocks now. No event is then recorded if the stream is idle, and the event is polled at once
    /// if it is the only one of the queue. Returns the number of waits that have ended. The caller
    /// has permission to record.
    fn record_queue(self, group: u32, queue: usize, asks: bool) -> Result<u32, Error> {
        let begun = self.waits.queues.lock(group).begin_recording(queue);
        begun.map_or(Ok(0), |due| self.record_begun(group, queue, due, asks))
    }

    /// Records an event as [`record_queue`](Self::record_queue) does, after the start.
    fn record_begun(self, group: u32, queue: usize, due: DueRecording, asks: bool) -> Result<u32, Error> {
        let DueRecording { stream, is_first } = due;
        let answer = if asks && is_first { self.driver().call(|memory| memory.is_idle(stream)) } else { Ok(None) };
        if answer == Ok(Some(true)) {
            return Ok(self.finish_question(group, queue, Some(true)));
        }
        let recorded =
            answer.map_err(Error::from).and_then(|_| self.waits.record_fence(self.driver(), stream, Waiter::Blocks));
        let mut order = self.waits.queues.lock(group);
        order.finish_recording(queue, recorded.as_ref().ok().copied());
        if answer == Ok(Some(false)) {
            order.note_at_once(queue, false);
        }
        drop(order);
        match recorded {
            Ok(_fence) if asks && is_first && answer == Ok(None) => self.poll_recorded(group, queue),
            Ok(_fence) => Ok(0),
            Err(error) if error.is_of_capture() => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Polls the only event of a queue, which has just been recorded. Returns the number of waits
    /// that have ended.
    fn poll_recorded(self, group: u32, queue: usize) -> Result<u32, Error> {
        let ended = self.poll_queue(group, queue)?;
        self.waits.queues.lock(group).note_at_once(queue, ended > 0);
        Ok(ended)
    }

    /// Polls the oldest event of a queue. Returns the number of waits that have ended.
    fn poll_queue(self, group: u32, queue: usize) -> Result<u32, Error> {
        let polled = self.ask_of_first(group, queue, P::Device::is_complete)?;
        Ok(polled.unwrap_or(0))
    }

    /// Asks the device with `ask` whether the oldest event of a queue is complete, and frees the
    /// blocks that waited for nothing else. Returns the number of waits that have ended, or `None`
    /// if the queue has no event to poll now.
    fn ask_of_first(
        self,
        group: u32,
        queue: usize,
        ask: impl FnOnce(&P::Device, Event) -> DeviceResult<bool>,
    ) -> Result<Option<u32>, Error> {
        let begun = self.waits.queues.lock(group).begin_poll(queue);
        let Some(event) = begun else { return Ok(None) };
        let answer = self.driver().call(|memory| ask(memory, event));
        let ended = self.finish_poll(group, queue, |_heap| answer == Ok(true));
        Ok(answer.map(|_complete| Some(ended))?)
    }
}
