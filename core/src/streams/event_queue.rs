//! Stream order: blocks that other streams still use are freed when events say that they no longer do.
//!
//! Each stream that uses such blocks has a queue of events in the order in which they were recorded, so only the head of a queue
//! has to be asked. Nothing here holds its lock across a call to the device: the queue that is being asked is marked busy instead.

use crate::device::Event;
use crate::tables::slot_table::{NONE, SlotTable, Vacant};
use crate::tables::{CapacityError, Storage, Table};
use crate::units::StreamId;

/// One event that a block waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub event: Event,
    /// The slot of the heap.
    pub heap: u32,
    pub block: u32,
    /// Next in the queue, or next vacant entry.
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

/// The events recorded on one stream, oldest first.
#[derive(Clone, Copy, Debug)]
struct Queue {
    stream: StreamId,
    /// `NONE` ⟺ the queue is empty, and may become that of another stream.
    head: u32,
    tail: u32,
    /// Somebody is asking after the head; nobody else may remove it.
    busy: bool,
}

impl Queue {
    /// Whether it may become that of another stream.
    fn is_vacant(&self) -> bool {
        self.head == NONE && !self.busy
    }
}

/// A block whose events cannot be recorded yet, because a graph is being captured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Deferred {
    /// The slot of the heap.
    pub heap: u32,
    pub block: u32,
    /// The stream that uses the block and was capturing, as far as that is known. It is asked first when they are tried again.
    pub behind: Option<StreamId>,
    /// A thread is trying to record them; no other does.
    busy: bool,
}

impl Deferred {
    pub(crate) fn new(heap: u32, block: u32, behind: Option<StreamId>) -> Self {
        Self { heap, block, behind, busy: false }
    }
}

pub(crate) struct EventQueues<S: Storage> {
    waits: SlotTable<Wait, S>,
    queues: S::Table<Queue>,
    /// Events at rest.
    events: S::Table<Event>,
    /// How many of `events` are at rest; those behind are in use.
    events_len: usize,
    /// Events that are being recorded: room is kept for them.
    promised: u32,
    /// In the order in which they were deferred, as far as they are still.
    deferred: S::Table<Deferred>,
    /// How many of `deferred` are still deferred.
    deferred_len: usize,
    /// Blocks that are about to be deferred: room is kept for them.
    deferrals_promised: usize,
}

impl<S: Storage> Default for EventQueues<S> {
    fn default() -> Self {
        Self {
            waits: SlotTable::default(),
            queues: S::Table::<Queue>::default(),
            events: S::Table::<Event>::default(),
            events_len: 0,
            promised: 0,
            deferred: S::Table::<Deferred>::default(),
            deferred_len: 0,
            deferrals_promised: 0,
        }
    }
}

impl<S: Storage> EventQueues<S> {
    /// Promises that one more event can be waited for and put to rest afterwards: one at rest, if there is any, or else one that
    /// the caller makes. An error if there is no room. The promise is kept by [`push`](Self::push), or given back.
    pub(crate) fn promise(&mut self) -> Result<Option<Event>, CapacityError> {
        let vacant = self.queues.iter().filter(|queue| queue.is_vacant()).count();
        let all_events = self.waits.len() as usize + self.promised as usize + self.events_len.max(1);
        let room = self.waits.make_room(self.promised + 1)
            && self.queues.make_room((self.promised as usize + 1).saturating_sub(vacant))
            && self.events.make_room(all_events.saturating_sub(self.events.len()));
        if !room {
            return Err(CapacityError);
        }
        self.promised += 1;
        let Some(resting) = self.events_len.checked_sub(1) else { return Ok(None) };
        self.events_len = resting;
        Ok(Some(self.events[resting]))
    }

    /// The promise is not needed: the event, if there is one, could not be recorded.
    pub(crate) fn give_promise_back(&mut self, event: Option<Event>) {
        self.promised -= 1;
        if let Some(event) = event {
            self.rest(event);
        }
    }

    /// Puts an event to rest.
    fn rest(&mut self, event: Event) {
        if self.events_len < self.events.len() {
            self.events[self.events_len] = event;
        } else {
            self.events.add(event);
        }
        self.events_len += 1;
    }

    /// Queues an event that was promised, and recorded on `stream`.
    pub(crate) fn push(&mut self, stream: StreamId, event: Event, heap: u32, block: u32) {
        self.promised -= 1;
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

    /// Reserves the oldest event of the first queue at or after number `from` that nobody else is asking after.
    pub(crate) fn ask(&mut self, from: usize) -> Option<(usize, Wait)> {
        let queue =
            (from..self.queues.len()).find(|&queue| self.queues[queue].head != NONE && !self.queues[queue].busy)?;
        self.queues[queue].busy = true;
        Some((queue, self.waits[self.queues[queue].head]))
    }

    /// Ends what [`ask`](Self::ask) began. A complete event leaves the queue and is put to rest.
    pub(crate) fn answer(&mut self, queue: usize, complete: bool) {
        let entry = &mut self.queues[queue];
        entry.busy = false;
        if complete {
            let head = entry.head;
            let Wait { event, next, .. } = self.waits[head];
            entry.head = next;
            self.waits.remove(head);
            self.rest(event);
        }
    }

    /// Whether somebody is asking after an event.
    pub(crate) fn is_asked(&self) -> bool {
        self.queues.iter().any(|queue| queue.busy)
    }

    /// Takes every event of one block back out, and says how many: it is not to be freed after all. One that somebody is
    /// asking after stays.
    pub(crate) fn withdraw(&mut self, heap: u32, block: u32) -> u32 {
        let mut withdrawn = 0;
        for queue in 0..self.queues.len() {
            let Queue { head, busy, .. } = self.queues[queue];
            let (mut kept, mut at) = (NONE, if busy { self.waits[head].next } else { head });
            if busy {
                kept = head;
            }
            while at != NONE {
                let Wait { event, heap: of_heap, block: of_block, next } = self.waits[at];
                if (of_heap, of_block) == (heap, block) {
                    self.waits.remove(at);
                    self.rest(event);
                    withdrawn += 1;
                    if kept == NONE { self.queues[queue].head = next } else { self.waits[kept].next = next }
                } else {
                    kept = at;
                }
                at = next;
            }
            self.queues[queue].tail = kept;
        }
        withdrawn
    }

    /// Keeps room for a block to be [deferred](Self::defer). False if there is none.
    pub(crate) fn promise_deferral(&mut self) -> bool {
        let wanted = self.deferred_len + self.deferrals_promised + 1;
        let room = self.deferred.make_room(wanted.saturating_sub(self.deferred.len()));
        self.deferrals_promised += usize::from(room);
        room
    }

    /// Defers the recording of a block's events, as promised.
    pub(crate) fn defer(&mut self, block: Deferred) {
        self.deferrals_promised -= 1;
        if self.deferred_len == self.deferred.len() {
            self.deferred.add(block);
        }
        self.deferred[self.deferred_len] = block;
        self.deferred_len += 1;
    }

    /// The first deferred block from number `from` on that no other thread tries, and that is not behind the stream `capturing`: its
    /// number, and itself. The caller tries to record its events, and then [ends](Self::end_deferral) its deferral, or lets it
    /// [go on](Self::defer_longer) or [begin anew](Self::defer_again).
    pub(crate) fn try_deferred(&mut self, from: usize, capturing: Option<StreamId>) -> Option<(usize, Deferred)> {
        let ready = |entry: &Deferred| !entry.busy && (entry.behind.is_none() || entry.behind != capturing);
        let number = (from..self.deferred_len).find(|&number| ready(&self.deferred[number]))?;
        self.deferred[number].busy = true;
        Some((number, self.deferred[number]))
    }

    /// The number of a deferred block that the caller tries: others may have ended their deferrals since.
    fn tried(&self, block: Deferred) -> Option<usize> {
        let tried = |entry: &Deferred| entry.busy && (entry.heap, entry.block) == (block.heap, block.block);
        self.deferred[..self.deferred_len].iter().position(tried)
    }

    /// The events of a block that was tried are recorded.
    pub(crate) fn end_deferral(&mut self, block: Deferred) {
        if let Some(number) = self.tried(block) {
            self.deferred[number..self.deferred_len].rotate_left(1);
            self.deferred_len -= 1;
        }
    }

    /// A stream that uses the block which was tried captures: it keeps its place.
    pub(crate) fn defer_longer(&mut self, block: Deferred, behind: StreamId) {
        if let Some(number) = self.tried(block) {
            self.deferred[number] = Deferred::new(block.heap, block.block, Some(behind));
        }
    }

    /// The events of a block that was tried cannot be recorded: others come first from now on.
    pub(crate) fn defer_again(&mut self, block: Deferred) {
        if let Some(number) = self.tried(block) {
            self.deferred[number] = Deferred::new(block.heap, block.block, block.behind);
            self.deferred[number..self.deferred_len].rotate_left(1);
        }
    }

    /// Whether any block is deferred.
    pub(crate) fn has_deferred(&self) -> bool {
        self.deferred_len > 0
    }

    /// Whether any event is waited for.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waits.len() > 0
    }

    /// Whether anything is waited for or deferred.
    pub(crate) fn is_idle(&self) -> bool {
        self.waits.len() == 0 && self.deferred_len == 0
    }
}
