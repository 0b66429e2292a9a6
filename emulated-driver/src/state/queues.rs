//! The queue that a handle names, the default streams of a thread, and the first and last moment of
//! an item.

use super::driver::{State, driver};
use crate::process::{latch, thread};
use crate::tables::stream::Kind;
use crate::tables::work::Task;
use crate::values::code::{Answer, Code};

thread_local! {
    static OWN_STREAMS: OwnStreams = const { OwnStreams };
}

/// Closes the thread's own default streams at the end of the thread. As in a destruction, the
/// streams' work is done first.
struct OwnStreams;

impl Drop for OwnStreams {
    fn drop(&mut self) {
        // In a forked child the lock may be held forever.
        if !latch::is_forked() {
            close_own(&mut driver().state.lock(), thread::number());
        }
    }
}

/// Arranges that the calling thread's own default streams end with the thread. Streams created
/// during the end stay.
fn own_streams_end_with_it() {
    // An error means that the thread is ending and has closed the earlier streams.
    let _closed = OWN_STREAMS.try_with(|_| ());
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
        own_streams_end_with_it();
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
