//! Blocks that other streams still use. Such a block becomes free when the events recorded on these
//! streams are complete.
//!
//! Each stream has a queue of waiting blocks, in the order of their frees. An event is stored at
//! the last of the blocks that it covers. A stream completes events in the order in which they were
//! recorded, so only the first event of a queue has to be polled.
//!
//! ```text
//! one event a block       block ● block ● block ●
//! gathered                block   block   block ●  block   block        the last two are open
//! ```
//!
//! The device is never called under the lock of the queues. What a thread is doing with a queue
//! meanwhile is recorded in the queue ([`QueueWork`]).

use crate::device::Event;
use crate::streams::fences::{Fence, IdleEvents, Waiter};
use crate::streams::pending::PendingBlock;
use crate::streams::queue_work::QueueWork;
use crate::sync::impl_empty;
use crate::tables::slot_table::{NONE, SlotTable, vacant};
use crate::tables::{CapacityError, Storage, Table};
use crate::units::StreamId;

/// When this many blocks wait without an event, one event is recorded for all of them, even though
/// an earlier event of the stream is incomplete. The two driver calls that this takes, of about 1
/// µs each, then cost 0.1 µs per free.
pub(crate) const GATHER: u32 = 16;

/// The most blocks that one call of [`EventQueues::take_finished`] returns.
const FINISHED: usize = 8;

/// A block that waits for an event.
#[derive(Clone, Copy, Debug)]
struct QueuedBlock {
    /// The event. It also covers the blocks before this one that have no event. `None` if the next
    /// event of the queue covers the block, or if the block is open: no event covers it yet.
    event: Option<Event>,
    /// The block.
    block: PendingBlock,
    /// The next entry of the queue. In a vacant entry, the next vacant entry.
    next: u32,
}

vacant!(QueuedBlock, next, keeps, |next| Self { event: None, block: PendingBlock { slot: NONE, index: NONE }, next });

/// Expectations about a stream, based on the latest answers of the device. If a hint is wrong, this
/// only costs calls. Hints are kept while the queue is vacant.
#[derive(Clone, Copy, Debug)]
struct Hints {
    /// Whether the last event recorded for a request was complete at once, or the stream was idle:
    /// then the stream has little to do. In this case the next event is again recorded for a
    /// request, not for the first block, which halves the number of calls.
    completes_at_once: bool,
    /// Whether the stream was idle at the last poll, or was never polled. Then asking again may
    /// free all blocks.
    may_be_idle: bool,
}

impl Hints {
    /// The hints for a stream about which nothing is known.
    const UNKNOWN: Self = Self { completes_at_once: false, may_be_idle: true };
}

/// The blocks that wait for a stream, oldest first.
#[derive(Clone, Copy, Debug)]
struct StreamQueue {
    /// The stream, while the queue is in use.
    stream: StreamId,
    /// The oldest block; `NONE` ⟺ the queue is empty.
    head: u32,
    /// The newest block. Only meaningful while the queue is not empty.
    tail: u32,
    /// The slot of the heap to which the blocks belong, or `NONE` if they belong to several heaps.
    /// Only meaningful while the queue is not empty.
    heap: u32,
    /// The number of blocks at the end of the queue that no event covers.
    open: u32,
    /// The number of events in the queue.
    events: u32,
    /// The work that threads are doing on the queue right now, without its lock.
    work: QueueWork,
    /// The expectations about the stream.
    hints: Hints,
}

impl StreamQueue {
    /// Creates a queue without blocks.
    const fn new(stream: StreamId) -> Self {
        Self {
            stream,
            head: NONE,
            tail: NONE,
            heap: NONE,
            open: 0,
            events: 0,
            work: QueueWork::Idle,
            hints: Hints::UNKNOWN,
        }
    }

    /// Returns whether blocks of the heap in `slot` may wait here, or blocks of any heap if `slot`
    /// is `None`.
    fn may_have(&self, slot: Option<u32>) -> bool {
        self.head != NONE && slot.is_none_or(|slot| self.heap == slot || self.heap == NONE)
    }

    /// Returns whether the queue may be reused for another stream.
    fn is_vacant(&self) -> bool {
        self.head == NONE && !self.work.polls()
    }
}

/// An event that has to be recorded for the open blocks of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DueRecording {
    /// The stream on which the caller records the event.
    pub stream: StreamId,
    /// Whether the queue has no earlier event, so that polling this one could find it complete.
    pub is_first: bool,
}

/// The pending events of a group of streams: a queue for each stream, and the idle events.
#[derive(Clone)]
pub(crate) struct EventQueues<S: Storage> {
    /// The entries of all queues.
    waits: SlotTable<QueuedBlock, S>,
    /// The queues, in use or vacant.
    queues: S::Table<StreamQueue>,
    /// The events for blocks on the group's streams. Those in the queues are on loan.
    events: IdleEvents<S>,
    /// The events on the group's streams after which other streams are ordered.
    orders: IdleEvents<S>,
}

impl_empty! { [S: Storage] EventQueues<S> { waits, queues, events, orders } }

impl<S: Storage> EventQueues<S> {
    /// Returns the events for one kind of waiter.
    pub(crate) fn events_for(&mut self, waiter: Waiter) -> &mut IdleEvents<S> {
        match waiter {
            Waiter::Blocks => &mut self.events,
            Waiter::Streams => &mut self.orders,
        }
    }

    /// Takes an idle event, which the caller destroys, [if](IdleEvents::take_idle_above) one kind
    /// of waiter has more than `kept`.
    pub(crate) fn take_idle_above(&mut self, kept: usize, is_spare: impl Fn(Event) -> bool) -> Option<Event> {
        let order = self.orders.take_idle_above(kept, &is_spare);
        order.or_else(|| self.events.take_idle_above(kept, is_spare))
    }

    /// Queues a block with a fence, which also covers the open blocks of the stream. The queue will
    /// end the fence.
    ///
    /// # Errors
    /// [`CapacityError`] if a table is full. The block is not queued then.
    pub(crate) fn push(&mut self, fence: Fence, block: PendingBlock) -> Result<(), CapacityError> {
        let queue = self.append(fence.stream, QueuedBlock { event: Some(fence.event), block, next: NONE })?;
        self.queues[queue].open = 0;
        self.queues[queue].events += 1;
        Ok(())
    }

    /// Queues a block that the next event of `stream` will cover. Returns the queue if this event
    /// should be recorded now: either a [busy](Self::note_at_once) stream has no incomplete event,
    /// or many blocks are open.
    ///
    /// # Errors
    /// [`CapacityError`] if a table is full. The block is not queued then.
    pub(crate) fn gather(&mut self, stream: StreamId, block: PendingBlock) -> Result<Option<usize>, CapacityError> {
        let queue = self.append(stream, QueuedBlock { event: None, block, next: NONE })?;
        let entry = &mut self.queues[queue];
        entry.open += 1;
        let is_first = entry.events == 0 && !entry.hints.completes_at_once;
        let is_due = entry.work.last() == NONE && (is_first || entry.open >= GATHER);
        Ok(is_due.then_some(queue))
    }

    /// Appends a block to the queue of `stream`, and returns the queue.
    ///
    /// # Errors
    /// [`CapacityError`] if a table is full. Nothing has changed then.
    fn append(&mut self, stream: StreamId, wait: QueuedBlock) -> Result<usize, CapacityError> {
        if !self.waits.make_room(1) {
            return Err(CapacityError);
        }
        let at = self.queue_for(stream)?;
        let slot = wait.block.slot;
        let wait = self.waits.insert(wait);
        let queue = &mut self.queues[at];
        if queue.head == NONE {
            (queue.head, queue.heap) = (wait, slot);
        } else {
            self.waits[queue.tail].next = wait;
            if queue.heap != slot {
                queue.heap = NONE;
            }
        }
        queue.tail = wait;
        Ok(at)
    }

    /// Returns the queue of a stream: the one that contains its blocks, or else a vacant one. Of
    /// the vacant ones it prefers the queue that the stream had last, because that has its hints.
    fn queue_for(&mut self, stream: StreamId) -> Result<usize, CapacityError> {
        let (mut last, mut vacant) = (None, None);
        for (at, queue) in self.queues.iter().enumerate() {
            if queue.stream == stream && queue.head != NONE {
                return Ok(at);
            }
            if queue.is_vacant() {
                if queue.stream == stream {
                    last = last.or(Some(at));
                }
                vacant = vacant.or(Some(at));
            }
        }
        if let Some(last) = last {
            let StreamQueue { open, events, work, .. } = self.queues[last];
            debug_assert_eq!((open, events, work), (0, 0, QueueWork::Idle), "nothing waits in a vacant queue");
            return Ok(last);
        }
        if let Some(vacant) = vacant {
            self.queues[vacant] = StreamQueue::new(stream);
            return Ok(vacant);
        }
        if !self.queues.make_room(1) {
            return Err(CapacityError);
        }
        self.queues.add(StreamQueue::new(stream));
        Ok(self.queues.len() - 1)
    }

    /// Returns the first queue from `from` on in which blocks of the heap in `slot` may wait, or
    /// blocks of any heap if `slot` is `None`.
    pub(crate) fn next_queue(&self, from: usize, slot: Option<u32>) -> Option<usize> {
        (from..self.queues.len()).find(|&queue| self.queues[queue].may_have(slot))
    }

    /// Returns the first [queue](Self::next_queue) from `from` on that has an open block.
    pub(crate) fn next_open(&self, mut from: usize, slot: Option<u32>) -> Option<usize> {
        loop {
            let queue = self.next_queue(from, slot)?;
            if self.queues[queue].open > 0 {
                return Some(queue);
            }
            from = queue + 1;
        }
    }

    /// Starts to record an event for the open blocks of a queue. Returns `None` if no block is
    /// open, or if another thread is recording. The caller records an event on the stream with no
    /// lock held, and then calls [`finish_recording`](Self::finish_recording).
    pub(crate) fn begin_recording(&mut self, queue: usize) -> Option<DueRecording> {
        let entry = self.queues.get_mut(queue).filter(|entry| entry.open > 0 && entry.work.last() == NONE)?;
        entry.work = entry.work.with_recording(entry.tail);
        Some(DueRecording { stream: entry.stream, is_first: entry.events == 0 })
    }

    /// Ends what [`begin_recording`](Self::begin_recording) started. The fence covers the blocks
    /// that were open then, and the queue will end it. Without a fence these blocks remain open.
    pub(crate) fn finish_recording(&mut self, queue: usize, fence: Option<Fence>) {
        let last = self.end_recording(queue);
        if let Some(fence) = fence {
            debug_assert_eq!(fence.stream, self.queues[queue].stream, "the queue's stream has the fence");
            self.waits[last].event = Some(fence.event);
            self.queues[queue].events += 1;
            self.queues[queue].open = self.open_from(self.waits[last].next);
        }
    }

    /// Starts to ask the device whether the stream of a queue is idle, which would free all blocks
    /// that wait for it now. Returns `None` if the stream was busy the last time, if fewer than
    /// `least` blocks are open, if the queue has an event, which alone may keep the stream busy, or
    /// if another thread works on the queue. The caller asks with no lock held, and then calls
    /// [`finish_question`](Self::finish_question).
    pub(crate) fn begin_question(&mut self, queue: usize, least: u32) -> Option<StreamId> {
        let entry = self.queues.get_mut(queue).filter(|entry| entry.hints.may_be_idle && entry.open >= least)?;
        if entry.events > 0 || entry.work != QueueWork::Idle {
            return None;
        }
        entry.work = QueueWork::Asking(entry.tail);
        Some(entry.stream)
    }

    /// Records the device's answer, and ends what [`begin_question`](Self::begin_question) started,
    /// or what [`begin_recording`](Self::begin_recording) started if no event was needed. If the
    /// stream was idle, the blocks that were waiting when the question started leave the queue.
    /// Returns the first of them, for [`take_finished`](Self::take_finished), or `NONE`.
    pub(crate) fn finish_question(&mut self, queue: usize, idle: Option<bool>) -> u32 {
        let last = self.end_recording(queue);
        let Hints { completes_at_once, may_be_idle } = &mut self.queues[queue].hints;
        *may_be_idle = idle == Some(true);
        *completes_at_once = idle.unwrap_or(*completes_at_once);
        if idle == Some(true) { self.take_until(queue, last) } else { NONE }
    }

    /// Ends what [`begin_recording`](Self::begin_recording) started, after the device answered that
    /// the stream was idle. The blocks that were queued then leave the queue if no event is left in
    /// it, because the caller has polled them. Returns the first of these blocks, for
    /// [`take_finished`](Self::take_finished), or `NONE`. The hints remain as after a recording.
    pub(crate) fn finish_idle(&mut self, queue: usize) -> u32 {
        let last = self.end_recording(queue);
        let is_left = self.queues[queue].events == 0 && self.queues[queue].work == QueueWork::Idle;
        if is_left { self.take_until(queue, last) } else { NONE }
    }

    /// Ends a recording or a question. Returns the block that was the last one when it started.
    fn end_recording(&mut self, queue: usize) -> u32 {
        let entry = &mut self.queues[queue];
        let last = entry.work.last();
        debug_assert!(last != NONE, "a recording or a question has begun");
        entry.work = entry.work.without_recording();
        last
    }

    /// Takes the blocks up to `last` out of a queue without events. Returns the first of them.
    fn take_until(&mut self, queue: usize, last: u32) -> u32 {
        let (first, next) = (self.queues[queue].head, self.waits[last].next);
        self.waits[last].next = NONE;
        self.queues[queue].head = next;
        // A question or a first recording starts when no event is in the queue, and what is queued
        // later comes after `last`.
        debug_assert!(
            self.waits.chain(first, |wait| wait.next).all(|(_, wait)| wait.event.is_none()),
            "nothing has an event"
        );
        self.queues[queue].open = self.open_from(next);
        first
    }

    /// Records whether an event that was recorded for a request was complete at once.
    pub(crate) fn note_at_once(&mut self, queue: usize, at_once: bool) {
        self.queues[queue].hints.completes_at_once = at_once;
    }

    /// Returns how many blocks of a queue are open, counting from `at` on.
    fn open_from(&self, at: u32) -> u32 {
        let waits = self.waits.chain(at, |wait| wait.next);
        waits.fold(0, |open, (_, wait)| if wait.event.is_some() { 0 } else { open + 1 })
    }

    /// Returns the first event of a queue, and the last of the blocks that it covers. Returns
    /// `None` if there is no event, or while an event is being recorded for an earlier block.
    fn first_event(&self, queue: &StreamQueue) -> Option<(u32, Event)> {
        let recording = queue.work.last();
        let mut at = if queue.events > 0 { queue.head } else { NONE };
        while at != NONE && at != recording {
            let QueuedBlock { event, next, .. } = self.waits[at];
            if let Some(event) = event {
                return Some((at, event));
            }
            at = next;
        }
        None
    }

    /// Marks a queue as busy with a poll, if it has a recorded event and no thread polls it.
    /// Returns the oldest event, which the caller polls without the lock.
    pub(crate) fn begin_poll(&mut self, queue: usize) -> Option<Event> {
        let entry = self.queues.get(queue)?;
        let work = entry.work.with_poll()?;
        let (_, event) = self.first_event(entry)?;
        self.queues[queue].work = work;
        Some(event)
    }

    /// Starts to poll the first [queue](Self::next_queue) from `from` on that can be polled.
    /// Returns the queue and the event.
    pub(crate) fn next_to_poll(&mut self, from: usize, slot: Option<u32>) -> Option<(usize, Event)> {
        (from..self.queues.len()).find_map(|queue| {
            let polls = self.queues[queue].may_have(slot);
            polls.then(|| self.begin_poll(queue)).flatten().map(|event| (queue, event))
        })
    }

    /// Returns the heaps of the blocks that the first event of a busy queue covers, each once.
    /// These are all of them, unless there are more than [`FINISHED`].
    pub(crate) fn covered_heaps(&self, queue: usize) -> heapless::Vec<u32, FINISHED> {
        let mut heaps = heapless::Vec::new();
        let last = self.first_event(&self.queues[queue]).map_or(NONE, |(last, _)| last);
        let mut at = if last == NONE { NONE } else { self.queues[queue].head };
        while at != NONE && !heaps.is_full() {
            let QueuedBlock { block, next, .. } = self.waits[at];
            if !heaps.contains(&block.slot) {
                let _room = heaps.push(block.slot);
            }
            at = if at == last { NONE } else { next };
        }
        heaps
    }

    /// Ends what [`begin_poll`](Self::begin_poll) started, so the queue is no longer busy. Of the
    /// blocks that the event covers, those leave the queue for which `leaves` is true of their
    /// heap. If others remain, the event is stored at the last of them; otherwise it becomes idle.
    /// Returns the first block that has left, for [`take_finished`](Self::take_finished), or
    /// `NONE`.
    pub(crate) fn finish_poll(&mut self, queue: usize, leaves: impl Fn(u32) -> bool) -> u32 {
        debug_assert!(self.queues[queue].work.polls(), "`begin_poll` chose the queue");
        self.queues[queue].work = self.queues[queue].work.without_poll();
        let Some((last, event)) = self.first_event(&self.queues[queue]) else { return NONE };
        let rest = core::mem::replace(&mut self.waits[last].next, NONE);
        self.waits[last].event = None;
        // The first and the last entry of the blocks that remain, and of those that leave.
        let mut ends = [(NONE, NONE); 2];
        let mut at = self.queues[queue].head;
        while at != NONE {
            let next = core::mem::replace(&mut self.waits[at].next, NONE);
            let (first, tail) = &mut ends[usize::from(leaves(self.waits[at].block.slot))];
            if *first == NONE {
                *first = at;
            } else {
                self.waits[*tail].next = at;
            }
            (*tail, at) = (at, next);
        }
        let [(stays, tail), (left, _)] = ends;
        if stays == NONE {
            self.queues[queue].head = rest;
            self.queues[queue].events -= 1;
            self.events.end(Some(event));
        } else {
            (self.waits[tail].event, self.waits[tail].next) = (Some(event), rest);
            self.queues[queue].head = stays;
            if rest == NONE {
                self.queues[queue].tail = tail;
            }
        }
        left
    }

    /// Removes some of the blocks that have left a queue, starting with `first`, and moves `first`
    /// to the next one. Returns them. Returns none once `first` is `NONE`.
    pub(crate) fn take_finished(&mut self, first: &mut u32) -> heapless::Vec<PendingBlock, FINISHED> {
        let mut finished = heapless::Vec::new();
        while *first != NONE && !finished.is_full() {
            let QueuedBlock { block, next, .. } = self.waits[*first];
            self.waits.remove(*first);
            *first = next;
            let _fits = finished.push(block);
        }
        finished
    }

    /// Returns whether a thread is polling or recording an event.
    pub(crate) fn is_at_work(&self) -> bool {
        self.queues.iter().any(|queue| queue.work != QueueWork::Idle)
    }

    /// Cancels the waits of a block when its free is undone, and returns how many they were. A wait
    /// is kept in its queue while another thread polls its event, because that thread then
    /// decrements the block's count, or while another thread records its event.
    pub(crate) fn cancel(&mut self, undone: PendingBlock) -> u32 {
        let mut cancelled = 0;
        for queue in 0..self.queues.len() {
            let StreamQueue { head, work, .. } = self.queues[queue];
            let recording = work.last();
            // What the first event of a busy queue covers belongs to the thread that polls it.
            let polled = if work.polls() { self.first_event(&self.queues[queue]) } else { None };
            let (mut previous, mut at) = polled.map_or((NONE, head), |(last, _)| (last, self.waits[last].next));
            while at != NONE {
                let QueuedBlock { event, block, next } = self.waits[at];
                if block == undone && at != recording {
                    self.waits.remove(at);
                    cancelled += 1;
                    if previous == NONE {
                        self.queues[queue].head = next;
                    } else {
                        self.waits[previous].next = next;
                    }
                    match event {
                        // The event also covers the block before, unless that one gets a separate
                        // event.
                        Some(_)
                            if previous != NONE && previous != recording && self.waits[previous].event.is_none() =>
                        {
                            self.waits[previous].event = event;
                        }
                        Some(event) => {
                            self.queues[queue].events -= 1;
                            self.events.end(Some(event));
                        }
                        None => {}
                    }
                } else {
                    previous = at;
                }
                at = next;
            }
            self.queues[queue].tail = previous;
            self.queues[queue].open = self.open_from(self.queues[queue].head);
        }
        cancelled
    }

    /// Forgets which threads poll and record events, in a copy on which no threads work.
    pub(crate) fn forget_threads(&mut self) {
        for queue in self.queues.iter_mut() {
            queue.work = QueueWork::Idle;
        }
    }

    /// Returns whether any event is pending.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waits.is_empty()
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::*;
    use crate::tables::Growable;
    use std::vec::Vec;

    const HEAP: u32 = 3;
    const ONE: StreamId = StreamId(1);
    const TWO: StreamId = StreamId(2);

    type Queues = EventQueues<Growable>;

    /// Returns a block of the heap.
    fn of(block: u32) -> PendingBlock {
        PendingBlock { slot: HEAP, index: block }
    }

    /// Lends an event of the queues for a fence.
    fn fence(queues: &mut Queues, stream: StreamId) -> Fence {
        let (number, event) = queues.events_for(Waiter::Blocks).lend().unwrap();
        Fence { stream, number, event: event.unwrap_or(Event(number)) }
    }

    fn push(queues: &mut Queues, stream: StreamId, block: u32) {
        let fence = fence(queues, stream);
        queues.push(fence, of(block)).unwrap();
    }

    /// Adds a block without an event. Returns the queue if an event is due.
    fn gather(queues: &mut Queues, stream: StreamId, block: u32) -> Option<usize> {
        queues.gather(stream, of(block)).unwrap()
    }

    fn record(queues: &mut Queues, queue: usize) {
        let DueRecording { stream, .. } = queues.begin_recording(queue).unwrap();
        let fence = fence(queues, stream);
        queues.finish_recording(queue, Some(fence));
    }

    /// Completes the first event of a queue, and returns the blocks that it covers.
    fn complete(queues: &mut Queues, queue: usize) -> Vec<u32> {
        queues.begin_poll(queue).unwrap();
        let first = queues.finish_poll(queue, |_| true);
        finished(queues, first)
    }

    fn finished(queues: &mut Queues, mut first: u32) -> Vec<u32> {
        let mut blocks = Vec::new();
        while first != NONE {
            blocks.extend(queues.take_finished(&mut first).into_iter().map(|block| block.index));
        }
        blocks
    }

    #[test]
    fn each_stream_has_a_queue_and_an_empty_one_serves_another_stream() {
        let mut queues = Queues::default();
        let (one, two) = (gather(&mut queues, ONE, 10).unwrap(), gather(&mut queues, TWO, 20).unwrap());
        assert_ne!(one, two);
        record(&mut queues, one);
        assert_eq!(complete(&mut queues, one), [10]);
        assert_eq!(queues.next_queue(0, None), Some(two), "a queue without blocks is none to look at");
        assert_eq!(gather(&mut queues, StreamId(9), 90), Some(one));
    }

    #[test]
    fn an_event_is_due_for_the_first_block_and_for_each_16_behind_an_event() {
        let mut queues = Queues::default();
        let queue = gather(&mut queues, ONE, 0).unwrap();
        record(&mut queues, queue);
        assert_eq!(queues.next_open(0, None), None, "the event covers the block");
        assert!(queues.begin_recording(queue).is_none());
        for block in 1..GATHER {
            assert_eq!(gather(&mut queues, ONE, block), None);
        }
        assert_eq!(gather(&mut queues, ONE, GATHER), Some(queue));
        assert_eq!(queues.next_open(0, None), Some(queue));
        // Blocks that are queued during the recording remain open, because the event may have been
        // recorded before them.
        queues.begin_recording(queue).unwrap();
        assert!(queues.is_at_work());
        assert!(queues.begin_recording(queue).is_none(), "another thread records");
        (100..103).for_each(|block| assert_eq!(gather(&mut queues, ONE, block), None));
        let fence = fence(&mut queues, ONE);
        queues.finish_recording(queue, Some(fence));
        assert!(!queues.is_at_work());
        assert_eq!((queues.queues[queue].open, queues.queues[queue].events), (3, 2));
        assert_eq!(complete(&mut queues, queue), [0]);
        assert_eq!(complete(&mut queues, queue), (1..=GATHER).collect::<Vec<_>>());
    }

    #[test]
    fn a_stream_that_completes_at_once_has_its_event_when_a_request_wants_it() {
        let mut queues = Queues::default();
        let queue = gather(&mut queues, ONE, 1).unwrap();
        record(&mut queues, queue);
        queues.note_at_once(queue, true);
        assert_eq!(complete(&mut queues, queue), [1]);
        assert_eq!(gather(&mut queues, ONE, 2), None, "also after the queue was empty");
        queues.note_at_once(queue, false);
        assert_eq!(gather(&mut queues, ONE, 3), Some(queue));
    }

    #[test]
    fn a_stream_is_asked_whether_idle_if_nothing_else_is_known_of_it() {
        let mut queues = Queues::default();
        let queue = gather(&mut queues, ONE, 1).unwrap();
        assert_eq!(queues.begin_question(queue, 2), None, "too few blocks");
        queues.begin_recording(queue).unwrap();
        assert_eq!(queues.begin_question(queue, 1), None, "another thread records");
        queues.finish_recording(queue, None);
        assert_eq!(queues.begin_question(queue, 1), Some(ONE));
        assert!(queues.is_at_work());
        assert_eq!(queues.begin_question(queue, 1), None, "another thread asks");
        gather(&mut queues, ONE, 2);
        let first = queues.finish_question(queue, Some(true));
        assert_eq!(finished(&mut queues, first), [1], "block 2 came later");
        assert_eq!((queues.queues[queue].open, queues.queues[queue].events), (1, 0));
        push(&mut queues, ONE, 3);
        gather(&mut queues, ONE, 4);
        assert_eq!(queues.begin_question(queue, 1), None, "the event may keep the stream busy alone");
        queues.begin_poll(queue).unwrap();
        assert!(queues.is_at_work(), "a poll");
        queues.finish_poll(queue, |_| true);
        assert_eq!(queues.begin_question(queue, 1), Some(ONE));
        assert_eq!(queues.finish_question(queue, Some(false)), NONE);
        assert_eq!(queues.begin_question(queue, 1), None, "the stream was busy");
    }

    #[test]
    fn a_cancelled_wait_leaves_its_event_to_the_blocks_that_the_event_covers() {
        let mut queues = Queues::default();
        let queue = gather(&mut queues, ONE, 1).unwrap();
        gather(&mut queues, ONE, 2);
        gather(&mut queues, ONE, 3);
        record(&mut queues, queue);
        assert_eq!(queues.cancel(of(3)), 1);
        assert_eq!(queues.cancel(of(1)), 1, "it has no event");
        assert_eq!((queues.queues[queue].open, queues.queues[queue].events), (0, 1));
        assert_eq!(complete(&mut queues, queue), [2]);
        // Each block has an event. When a block is cancelled, its event ends.
        push(&mut queues, ONE, 4);
        push(&mut queues, ONE, 5);
        assert_eq!(queues.cancel(of(5)), 1);
        assert_eq!(queues.queues[queue].events, 1);
        assert_eq!(queues.cancel(of(4)), 1);
        assert_eq!(queues.queues[queue].events, 0);
        assert!([queues.events.take_idle(), queues.events.take_idle()].iter().all(Option::is_some));
        assert!(!queues.is_waiting());
        // A block that is having an event recorded does not take another event.
        let queue = gather(&mut queues, ONE, 6).unwrap();
        queues.begin_recording(queue).unwrap();
        push(&mut queues, ONE, 7);
        assert_eq!((queues.cancel(of(6)), queues.cancel(of(7))), (0, 1));
        assert_eq!(queues.queues[queue].events, 0);
        let fence = fence(&mut queues, ONE);
        queues.finish_recording(queue, Some(fence));
        assert_eq!(complete(&mut queues, queue), [6]);
        // The first block is cancelled while the event of another one is being recorded.
        push(&mut queues, TWO, 8);
        let queue = queues.next_queue(0, None).unwrap();
        gather(&mut queues, TWO, 9);
        queues.begin_recording(queue).unwrap();
        assert_eq!((queues.cancel(of(8)), queues.queues[queue].events), (1, 0));
        queues.finish_recording(queue, None);
        assert_eq!(queues.queues[queue].open, 1);
    }
}
