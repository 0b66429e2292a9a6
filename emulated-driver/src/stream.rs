//! Streams: queues of work. Each queue has a thread for the work, or in step mode waits for a turn
//! chosen by the seed.
//!
//! A handle names a queue. The queue outlives the handle until all work is done. The number of a
//! queue is the stream's identity (`cuStreamGetId`). Handles are reused, numbers never.
//!
//! An item runs when all earlier items of the queue are done and every [`Mark`] of the item is
//! reached. Events, the legacy stream's barriers and joins are all marks.

use crate::call::Call;
use crate::code::{Answer, Code};
use crate::driver::State;
use crate::handles::Handles;
use crate::sync::Condition;
use crate::thread;
use crate::work::{self, Task, Work};
use crate::worker::Workers;
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
struct Item {
    work: Work,
    after: Vec<Mark>,
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
    items: VecDeque<Item>,
    /// Items queued and items done so far: `issued - done == items.len() + usize::from(running)`.
    issued: u64,
    done: u64,
    /// Whether an item is running.
    pub(crate) running: bool,
    /// Number of closed gates. No item starts while a gate is closed.
    holds: u32,
    /// The handle is destroyed. The queue ends when empty.
    closed: bool,
    /// Whether the queue has a thread.
    has_thread: bool,
    /// Wakes the thread of the queue.
    pub(crate) wake: Arc<Condition>,
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
    /// Returns whether the handle is gone and all items have begun.
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
    fn implied(&self, number: u64) -> Vec<Mark> {
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
        let front = queue.items.front().filter(|_| queue.holds == 0 && !queue.running);
        front.is_some_and(|item| item.after.iter().all(|&mark| self.reached(mark)))
    }

    /// Returns the numbers of all queues whose front item may start.
    fn ready(&self) -> Vec<u64> {
        self.queues.iter().filter(|(_, queue)| self.is_ready(queue)).map(|(&number, _)| number).collect()
    }

    /// Wakes the thread of every queue whose front item may start.
    fn wake_ready(&self) {
        for queue in self.queues.values().filter(|queue| queue.has_thread && self.is_ready(queue)) {
            queue.wake.notify_all();
        }
    }
}

/// Returns the queue of a `CUstream`, for a call in `context`.
pub(crate) fn find(state: &mut State, handle: u64, context: u64) -> Answer<u64> {
    match handle {
        0 | 1 => own_queue(state, context, None),
        2 => own_queue(state, context, Some(thread::number())),
        handle => {
            state.refuse_retired("stream", &state.streams.handles, handle);
            let queue = state.streams.handles.get(handle).copied();
            queue.map_err(|code| state.answers.outcome("stream_unknown").err().unwrap_or(code))
        }
    }
}

/// Returns the queue of a context's legacy stream, or of a thread's own default stream. Creates the
/// queue on first use.
fn own_queue(state: &mut State, handle: u64, thread: Option<u32>) -> Answer<u64> {
    let missing = if handle == 0 { Code::INVALID_CONTEXT } else { Code::CONTEXT_IS_DESTROYED };
    let context = state.contexts.get_mut(&handle).ok_or(missing)?;
    if let Some(&queue) = context.own_queues.get(&thread) {
        return Ok(queue);
    }
    let kind = if thread.is_none() { Kind::Legacy } else { Kind::Blocking };
    let queue = state.streams.open(handle, context.device, kind);
    context.own_queues.insert(thread, queue);
    if thread.is_some() {
        thread::own_streams_end_with_it();
    }
    Ok(queue)
}

/// Closes the thread's own default streams in every context, at the end of the thread.
pub(crate) fn close_own(state: &mut State, thread: u32) {
    let contexts = state.contexts.values_mut();
    let queues: Vec<u64> = contexts.filter_map(|context| context.own_queues.remove(&Some(thread))).collect();
    for queue in queues {
        close(state, queue);
    }
}

/// The least and the greatest priority of a stream, as on the devices of the last ten years.
pub(crate) const PRIORITIES: (i32, i32) = (0, -5);

/// `cuStreamCreateWithPriority`, and `cuStreamCreate` with the least priority. A priority out of
/// range is clamped.
pub(crate) fn create(call: &mut Call, flags: u32, priority: i32) -> Answer<u64> {
    let kind = match flags {
        0 => Kind::Blocking,
        1 => Kind::NonBlocking,
        _ => return Err(Code::INVALID_VALUE),
    };
    let context = call.context;
    let device = call.state.contexts[&context].device;
    let queue = call.state.streams.open(context, device, kind);
    call.state.streams.queue_mut(queue)?.priority = priority.clamp(PRIORITIES.1, PRIORITIES.0);
    let handle = call.state.streams.handles.add(queue);
    call.made("stream", handle);
    Ok(handle)
}

/// `cuStreamDestroy`: destroys the handle at once, and the queue after the last item.
pub(crate) fn destroy(call: &mut Call, handle: u64) -> Answer<()> {
    if handle <= 2 {
        return Err(Code::INVALID_HANDLE);
    }
    let queue = find(&mut call.state, handle, call.context)?;
    crate::context::check(&call.state, call.state.streams.queue(queue)?.context)?;
    call.state.streams.handles.remove(handle)?;
    close(&mut call.state, queue);
    Ok(())
}

/// Lets a queue end after the last item.
pub(crate) fn close(state: &mut State, number: u64) {
    if let Ok(queue) = state.streams.queue_mut(number) {
        queue.closed = true;
        queue.capture = None;
        queue.wake.notify_all();
        // An idle queue without a thread has no thread to remove the queue later.
        if queue.issued == queue.done && !queue.has_thread {
            state.streams.queues.remove(&number);
        }
    }
}

/// Queues work, after the marks in `after` and the marks implied by the kind of stream.
pub(crate) fn push(state: &mut State, number: u64, work: Work, mut after: Vec<Mark>) -> Answer<()> {
    let step = state.config.step;
    after.extend(state.streams.implied(number));
    let queue = state.streams.queue_mut(number)?;
    queue.items.push_back(Item { work, after });
    queue.issued += 1;
    if step {
        return Ok(());
    }
    if queue.has_thread {
        queue.wake.notify_all();
        return Ok(());
    }
    queue.has_thread = true;
    state.streams.workers.start(number)
}

/// Marks a ready queue's front item as running. Work of a broken context is skipped and counts as
/// done.
pub(crate) fn start(state: &mut State, number: u64) -> (Vec<Task>, u64) {
    let State { streams, contexts, space, .. } = state;
    let (Some(queue), Some(space)) = (streams.queues.get_mut(&number), space) else {
        return (Vec::new(), 0);
    };
    queue.running = true;
    let broken = contexts.get(&queue.context).is_none_or(|context| context.sticky.is_some());
    let item = queue.items.pop_front().filter(|_| !broken);
    (item.map_or_else(Vec::new, |item| item.work.tasks(queue.device, space)), queue.context)
}

/// Marks a queue's running item as done.
pub(crate) fn finish(state: &mut State, number: u64) {
    if let Ok(queue) = state.streams.queue_mut(number) {
        queue.running = false;
        queue.done += 1;
        if queue.is_over() && !queue.has_thread {
            state.streams.queues.remove(&number);
        }
    }
    state.streams.wake_ready();
}

/// In step mode, runs one ready piece of work, chosen by the seed, on the calling thread. Returns
/// false without ready work.
pub(crate) fn step(call: &mut Call) -> bool {
    let ready = call.state.streams.ready();
    let choice = call.state.random.below(ready.len() as u64) as usize;
    let Some(&number) = ready.get(choice) else { return false };
    let (tasks, context) = start(&mut call.state, number);
    call.state.unlocked(|| work::run(tasks, context));
    finish(&mut call.state, number);
    call.changed();
    true
}

/// Closes or opens a gate on a stream. No item starts while a gate is closed.
pub(crate) fn hold(call: &mut Call, handle: u64, close: bool) -> Answer<()> {
    let number = find(&mut call.state, handle, call.context)?;
    let queue = call.state.streams.queue_mut(number)?;
    queue.holds = if close { queue.holds + 1 } else { queue.holds.saturating_sub(1) };
    call.state.streams.wake_ready();
    call.changed();
    Ok(())
}

/// Drops all items not begun in the queues of a broken or destroyed context.
pub(crate) fn drop_pending(state: &mut State, context: u64) {
    for queue in state.streams.queues.values_mut().filter(|queue| queue.context == context) {
        queue.done += queue.items.len() as u64;
        queue.items.clear();
        queue.holds = 0;
        queue.wake.notify_all();
    }
    state.streams.wake_ready();
}
