//! Streams: queues of work. Each queue has a thread for the work, or in step mode waits for a turn
//! chosen by the seed.
//!
//! A handle names a queue. The queue outlives the handle until all work is done. The number of a
//! queue is the stream's identity (`cuStreamGetId`). Handles are reused, numbers never.
//!
//! An item runs when all earlier items of the queue are done, every [`Mark`] of the item is
//! reached, and a number in memory is as the item wants. Events, the legacy stream's barriers and
//! joins are all marks.

use crate::process::sync::Condition;
use crate::tables::work::Work;
use crate::values::code::{Answer, Code};
use crate::values::handles::Handles;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A point in the order of a queue: reached when `number` items of the queue are done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    queue: u64,
    number: u64,
}

/// The kind of a queue, which determines the implicit order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// The context's stream 0: ordered with every blocking stream.
    Legacy,
    /// Ordered with the legacy stream.
    Blocking,
    /// Ordered with nothing.
    NonBlocking,
}

/// A piece of work in a queue.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) work: Work,
    pub(crate) after: Vec<Mark>,
}

/// A stream's queue.
pub(crate) struct Queue {
    pub(crate) context: u64,
    pub(crate) device: usize,
    pub(crate) kind: Kind,
    /// The requested priority, brought into range. Reported, without effect.
    pub(crate) priority: i32,
    /// The capture of the queue, if any.
    pub(crate) capture: Option<u64>,
    pub(crate) items: VecDeque<Item>,
    /// Items queued and items done so far: `issued - done == items.len() + usize::from(running)`.
    pub(crate) issued: u64,
    pub(crate) done: u64,
    /// Whether an item is running.
    pub(crate) running: bool,
    /// Number of closed gates. No item starts while a gate is closed.
    pub(crate) holds: u32,
    /// The handle is destroyed. The queue ends when empty.
    pub(crate) closed: bool,
    /// Whether the queue has a thread.
    pub(crate) has_thread: bool,
    /// Wakes the thread of the queue.
    pub(crate) wake: Arc<Condition>,
}

/// Threads started and not yet joined.
///
/// Plain pthreads, for the reason given in `sync`.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    /// The threads by queue number.
    pub(crate) threads: BTreeMap<u64, libc::pthread_t>,
    /// Queues whose threads no longer need the state and are about to end.
    pub(crate) ended: Vec<u64>,
    /// The process is ending, and so are the threads.
    pub(crate) ending: bool,
}

/// All streams.
pub(crate) struct Streams {
    /// Handles of created streams, each of a queue number.
    pub(crate) handles: Handles<u64>,
    pub(crate) queues: BTreeMap<u64, Queue>,
    /// The queues' threads.
    pub(crate) workers: Workers,
    made: u64,
}

impl Queue {
    /// Returns whether the handle is gone and all items have started.
    pub(crate) fn is_over(&self) -> bool {
        self.closed && self.items.is_empty()
    }
}

impl Streams {
    /// Creates an empty table of streams.
    pub(crate) fn new() -> Self {
        Self { handles: Handles::new(1), queues: BTreeMap::new(), workers: Workers::default(), made: 0 }
    }

    /// Adds an empty queue and returns the number.
    pub(crate) fn open(&mut self, context: u64, device: usize, kind: Kind) -> u64 {
        self.made += 1;
        let queue = Queue {
            context,
            device,
            kind,
            priority: 0,
            capture: None,
            items: VecDeque::new(),
            issued: 0,
            done: 0,
            running: false,
            holds: 0,
            closed: false,
            has_thread: false,
            wake: Arc::new(Condition::new()),
        };
        self.queues.insert(self.made, queue);
        self.made
    }

    /// Returns the queue with a number.
    pub(crate) fn queue(&self, number: u64) -> Answer<&Queue> {
        self.queues.get(&number).ok_or(Code::INVALID_HANDLE)
    }

    /// Returns the queue with a number for changes.
    pub(crate) fn queue_mut(&mut self, number: u64) -> Answer<&mut Queue> {
        self.queues.get_mut(&number).ok_or(Code::INVALID_HANDLE)
    }

    /// Returns the mark after all items queued so far.
    pub(crate) fn end_of(&self, queue: u64) -> Mark {
        Mark { queue, number: self.queues.get(&queue).map_or(0, |queue| queue.issued) }
    }

    /// Returns whether a mark is reached. A removed queue has done all work.
    pub(crate) fn reached(&self, mark: Mark) -> bool {
        self.queues.get(&mark.queue).is_none_or(|queue| queue.done >= mark.number)
    }

    /// Returns the marks after all work queued so far on a stream. A legacy stream includes every
    /// blocking stream.
    pub(crate) fn ends_of_stream(&self, queue: u64) -> Vec<Mark> {
        let legacy = self.queues.get(&queue).is_some_and(|queue| queue.kind == Kind::Legacy);
        let mut marks = if legacy { self.implied(queue) } else { Vec::new() };
        marks.push(self.end_of(queue));
        marks
    }

    /// Returns the marks after all work queued so far on the queues of `context`.
    pub(crate) fn ends_of_context(&self, context: u64) -> Vec<Mark> {
        let its = self.queues.iter().filter(|(_, queue)| queue.context == context);
        its.map(|(&number, queue)| Mark { queue: number, number: queue.issued }).collect()
    }

    /// Returns the number of unfinished items of a queue.
    pub(crate) fn pending(&self, queue: u64) -> u64 {
        self.queues.get(&queue).map_or(0, |queue| queue.issued - queue.done)
    }

    /// Returns the legacy barrier: the marks implied for an item queued now on `number`.
    pub(crate) fn implied(&self, number: u64) -> Vec<Mark> {
        let Some(queue) = self.queues.get(&number) else { return Vec::new() };
        let wanted = match queue.kind {
            Kind::Legacy => Kind::Blocking,
            Kind::Blocking => Kind::Legacy,
            Kind::NonBlocking => return Vec::new(),
        };
        let others = self.queues.iter();
        let others = others.filter(|(_, other)| other.kind == wanted && other.context == queue.context);
        let pending = others.filter(|(_, other)| other.issued > other.done);
        pending.map(|(&number, other)| Mark { queue: number, number: other.issued }).collect()
    }

    /// Returns whether a queue's front item may start.
    pub(crate) fn is_ready(&self, queue: &Queue) -> bool {
        self.next_of(queue).is_some_and(|item| item.work.is_due())
    }

    /// Returns whether only a number in memory keeps a queue's front item from its start.
    pub(crate) fn watches(&self, queue: &Queue) -> bool {
        self.next_of(queue).is_some_and(|item| !item.work.is_due())
    }

    /// Returns a queue's front item, if nothing but memory keeps the item from its start.
    pub(crate) fn next_of<'a>(&self, queue: &'a Queue) -> Option<&'a Item> {
        let front = queue.items.front().filter(|_| queue.holds == 0 && !queue.running);
        front.filter(|item| item.after.iter().all(|&mark| self.reached(mark)))
    }

    /// Returns the numbers of all queues whose front item may start.
    pub(crate) fn ready(&self) -> Vec<u64> {
        self.queues.iter().filter(|(_, queue)| self.is_ready(queue)).map(|(&number, _)| number).collect()
    }

    /// Wakes the thread of every queue whose front item may start.
    pub(crate) fn wake_ready(&self) {
        for queue in self.queues.values().filter(|queue| queue.has_thread && self.is_ready(queue)) {
            queue.wake.notify_all();
        }
    }

    /// Drops all items not started in the queues of a broken or destroyed context.
    pub(crate) fn drop_pending(&mut self, context: u64) {
        for queue in self.queues.values_mut().filter(|queue| queue.context == context) {
            queue.done += queue.items.len() as u64;
            queue.items.clear();
            queue.holds = 0;
            queue.wake.notify_all();
        }
        self.wake_ready();
    }
}
