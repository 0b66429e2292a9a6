//! Blocks still in use on other streams. A block becomes free when the events recorded on the
//! streams are complete.
//!
//! Each stream has a queue of events in the order of recording. A stream completes events in that
//! order, so only the head of a queue needs polling. No call to the device is made under the lock
//! of the queues: the queue whose head is polled is marked busy instead.
//!
//! Infallible operations reserve their entries beforehand: [`EventQueues::reserve`] before an event
//! is recorded, [`EventQueues::reserve_deferral`] before a block is deferred.

use crate::device::Event;
use crate::tables::slot_table::{NONE, SlotTable, Vacant};
use crate::tables::{CapacityError, Storage, Table};
use crate::units::StreamId;

/// An event awaited by a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub event: Event,
    /// The slot of the block's heap.
    pub heap: u32,
    /// The index of the block in the heap.
    pub block: u32,
    /// The next entry of the queue, or the next vacant entry.
    next: u32,
}

impl Vacant for Wait {
    fn vacant(next: u32) -> Self {
        Self { event: Event(0), heap: NONE, block: NONE, next }
    }

    fn next_vacant(&self) -> u32 {
        self.next
    }

    fn vacate(&mut self, next: u32) {
        self.next = next;
    }
}

/// The events recorded on a stream, oldest first.
#[derive(Clone, Copy, Debug)]
struct Queue {
    /// The stream, while the queue is in use.
    stream: StreamId,
    /// The oldest event; `NONE` ⟺ the queue is empty.
    head: u32,
    /// The newest event. Meaningful only while the queue is not empty.
    tail: u32,
    /// A thread polls the head. Set ⟹ no other thread may remove the head.
    busy: bool,
}

impl Queue {
    /// Returns whether the queue may be used for another stream.
    fn is_vacant(&self) -> bool {
        self.head == NONE && !self.busy
    }
}

/// A block whose events cannot be recorded yet, because a stream is capturing a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Deferred {
    /// The slot of the block's heap.
    pub heap: u32,
    /// The index of the block in the heap.
    pub block: u32,
    /// The capturing stream among those that use the block, if known. While it captures, no retry
    /// is made.
    pub behind: Option<StreamId>,
    /// A thread tries to record the events. Set ⟹ no other thread tries.
    busy: bool,
}

impl Deferred {
    /// Creates an entry with `busy` unset.
    pub(crate) fn new(heap: u32, block: u32, behind: Option<StreamId>) -> Self {
        Self { heap, block, behind, busy: false }
    }
}

/// The pending events of a device: a queue for each stream, a pool of idle events, and the blocks
/// whose events are not recorded yet.
pub(crate) struct EventQueues<S: Storage> {
    /// The entries of all queues.
    waits: SlotTable<Wait, S>,
    /// The queues, in use or vacant.
    queues: S::Table<Queue>,
    /// Events of no queue, recorded again, because creating one is a call to the device.
    idle_events: S::Table<Event>,
    /// Reservations by [`reserve`](Self::reserve), neither used nor cancelled. Each has an entry in
    /// `waits`, a queue, and room in `idle_events`.
    reserved: u32,
    /// The deferred blocks, in the order in which they are retried.
    deferred: S::Table<Deferred>,
    /// Reservations by [`reserve_deferral`](Self::reserve_deferral), not yet used.
    deferrals_reserved: usize,
}

impl<S: Storage> Default for EventQueues<S> {
    fn default() -> Self {
        Self {
            waits: SlotTable::default(),
            queues: S::Table::<Queue>::default(),
            idle_events: S::Table::<Event>::default(),
            reserved: 0,
            deferred: S::Table::<Deferred>::default(),
            deferrals_reserved: 0,
        }
    }
}

impl<S: Storage> EventQueues<S> {
    /// Reserves the entries for a further event, and returns an idle event, or `None` if the caller
    /// must create one. The reservation is used by [`push`](Self::push), or cancelled by
    /// [`cancel_reservation`](Self::cancel_reservation).
    ///
    /// # Errors
    /// [`CapacityError`] if a table is full. Nothing is reserved then.
    pub(crate) fn reserve(&mut self) -> Result<Option<Event>, CapacityError> {
        // Every reservation may turn out to be on a stream of its own, and then needs a queue.
        let vacant = self.queues.iter().filter(|queue| queue.is_vacant()).count();
        // Room for every event in use, so that `recycle` cannot fail, and for the one the caller
        // creates.
        let missing = usize::from(self.idle_events.is_empty());
        let in_use = self.waits.len() as usize + self.reserved as usize;
        let room = self.waits.make_room(self.reserved + 1)
            && self.queues.make_room((self.reserved as usize + 1).saturating_sub(vacant))
            && self.idle_events.make_room(in_use + missing);
        if !room {
            return Err(CapacityError);
        }
        self.reserved += 1;
        Ok(self.idle_events.pop())
    }

    /// Cancels a reservation: the event was not recorded. An event, if the caller has one, becomes
    /// idle.
    pub(crate) fn cancel_reservation(&mut self, event: Option<Event>) {
        debug_assert!(self.reserved > 0, "a reservation is cancelled once");
        self.reserved -= 1;
        if let Some(event) = event {
            self.recycle(event);
        }
    }

    /// Returns an event to the pool of idle events.
    fn recycle(&mut self, event: Event) {
        self.idle_events.add(event);
    }

    /// Queues an event recorded on `stream`, using a reservation.
    pub(crate) fn push(&mut self, stream: StreamId, event: Event, heap: u32, block: u32) {
        debug_assert!(self.reserved > 0, "an event is queued after `reserve`");
        self.reserved -= 1;
        let wait = self.waits.insert(Wait { event, heap, block, next: NONE });
        let known = self.queues.iter().position(|queue| queue.stream == stream && queue.head != NONE);
        let place = known.or_else(|| self.queues.iter().position(Queue::is_vacant));
        match (known, place) {
            (Some(known), _) => {
                let queue = &mut self.queues[known];
                let tail = core::mem::replace(&mut queue.tail, wait);
                self.waits[tail].next = wait;
            }
            (None, Some(vacant)) => self.queues[vacant] = Queue { stream, head: wait, tail: wait, busy: false },
            (None, None) => self.queues.add(Queue { stream, head: wait, tail: wait, busy: false }),
        }
    }

    /// Marks the first queue at or after `from` busy that has an event and is not busy. Returns the
    /// queue and its oldest event, which the caller polls without the lock.
    pub(crate) fn next_to_poll(&mut self, from: usize) -> Option<(usize, Wait)> {
        let queue =
            (from..self.queues.len()).find(|&queue| self.queues[queue].head != NONE && !self.queues[queue].busy)?;
        self.queues[queue].busy = true;
        Some((queue, self.waits[self.queues[queue].head]))
    }

    /// Ends what [`ask`](Self::ask) began: the queue is no longer busy. A complete event leaves the
    /// queue and becomes idle.
    pub(crate) fn finish_poll(&mut self, queue: usize, complete: bool) {
        let entry = &mut self.queues[queue];
        debug_assert!(entry.busy, "`ask` chose the queue");
        entry.busy = false;
        if complete {
            let head = entry.head;
            let Wait { event, next, .. } = self.waits[head];
            entry.head = next;
            self.waits.remove(head);
            self.recycle(event);
        }
    }

    /// Returns whether a thread is polling an event.
    pub(crate) fn is_polling(&self) -> bool {
        self.queues.iter().any(|queue| queue.busy)
    }

    /// Cancels the events of a block whose free is undone, and returns their number. An event that
    /// another thread is polling stays in its queue: that thread decrements the block's count
    /// itself.
    pub(crate) fn cancel(&mut self, heap: u32, block: u32) -> u32 {
        let mut cancelled = 0;
        for queue in 0..self.queues.len() {
            // The head of a busy queue belongs to the polling thread: start behind it.
            let Queue { head, busy, .. } = self.queues[queue];
            let (mut previous, mut at) = (NONE, if busy { self.waits[head].next } else { head });
            if busy {
                previous = head;
            }
            while at != NONE {
                let Wait { event, heap: of_heap, block: of_block, next } = self.waits[at];
                if (of_heap, of_block) == (heap, block) {
                    self.waits.remove(at);
                    self.recycle(event);
                    cancelled += 1;
                    if previous == NONE { self.queues[queue].head = next } else { self.waits[previous].next = next }
                } else {
                    previous = at;
                }
                at = next;
            }
            self.queues[queue].tail = previous;
        }
        cancelled
    }

    /// Reserves an entry for [`defer`](Self::defer). Returns false if there is no room.
    pub(crate) fn reserve_deferral(&mut self) -> bool {
        let room = self.deferred.make_room(self.deferrals_reserved + 1);
        self.deferrals_reserved += usize::from(room);
        room
    }

    /// Defers the recording of a block's events, using a reservation.
    pub(crate) fn defer(&mut self, block: Deferred) {
        debug_assert!(self.deferrals_reserved > 0, "a block is deferred after `reserve_deferral`");
        self.deferrals_reserved -= 1;
        self.deferred.add(block);
    }

    /// Marks the first deferred block at or after `from` busy that no other thread tries and that
    /// does not wait for the stream `capturing`. Returns its number and a copy of the entry.
    ///
    /// The caller tries to record the events, and then calls [`end_deferral`](Self::end_deferral),
    /// [`defer_longer`](Self::defer_longer) or [`defer_again`](Self::defer_again).
    pub(crate) fn try_deferred(&mut self, from: usize, capturing: Option<StreamId>) -> Option<(usize, Deferred)> {
        let ready = |entry: &Deferred| !entry.busy && (entry.behind.is_none() || entry.behind != capturing);
        let number = (from..self.deferred.len()).find(|&number| ready(&self.deferred[number]))?;
        self.deferred[number].busy = true;
        Some((number, self.deferred[number]))
    }

    /// Returns the present number of the block `block`, tried by the caller. Entries before it may
    /// have left.
    fn tried(&self, block: Deferred) -> Option<usize> {
        let is_tried = |entry: &Deferred| entry.busy && (entry.heap, entry.block) == (block.heap, block.block);
        self.deferred.iter().position(is_tried)
    }

    /// Removes a tried block, whose events are recorded now.
    pub(crate) fn end_deferral(&mut self, block: Deferred) {
        if let Some(number) = self.tried(block) {
            // Removal that keeps the order: the entry moves to the end.
            self.deferred[number..].rotate_left(1);
            self.deferred.pop();
        }
    }

    /// Keeps a tried block at its place: the stream `behind` uses it and is capturing.
    pub(crate) fn defer_longer(&mut self, block: Deferred, behind: StreamId) {
        if let Some(number) = self.tried(block) {
            self.deferred[number] = Deferred::new(block.heap, block.block, Some(behind));
        }
    }

    /// Moves a tried block to the end: its events cannot be recorded, and other blocks come first.
    pub(crate) fn defer_again(&mut self, block: Deferred) {
        if let Some(number) = self.tried(block) {
            self.deferred[number] = Deferred::new(block.heap, block.block, block.behind);
            self.deferred[number..].rotate_left(1);
        }
    }

    /// Returns whether any block is deferred.
    pub(crate) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Returns whether any event is pending.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waits.len() > 0
    }

    /// Returns whether no event is pending and no block is deferred.
    pub(crate) fn is_idle(&self) -> bool {
        self.waits.len() == 0 && self.deferred.is_empty()
    }
}
