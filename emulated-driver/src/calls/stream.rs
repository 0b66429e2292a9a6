//! Streams: created, destroyed, waited for, held.

use crate::call::Call;
use crate::state::{captures, contexts, pools, queues};
use crate::tables::stream::Kind;
use crate::values::code::{Answer, Code};

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
    let queue = queues::find(&mut call.state, handle, call.context)?;
    contexts::check(&call.state, call.state.streams.queue(queue)?.context)?;
    call.state.streams.handles.remove(handle)?;
    queues::close(&mut call.state, queue);
    Ok(())
}

/// Closes or opens a gate on a stream. No item starts while a gate is closed.
pub(crate) fn hold(call: &mut Call, handle: u64, close: bool) -> Answer<()> {
    let number = queues::find(&mut call.state, handle, call.context)?;
    let queue = call.state.streams.queue_mut(number)?;
    queue.holds = if close { queue.holds + 1 } else { queue.holds.saturating_sub(1) };
    call.state.streams.wake_ready();
    call.changed();
    Ok(())
}

/// `cuStreamSynchronize`.
pub(crate) fn synchronize(call: &mut Call, stream: u64) -> Answer<()> {
    let queue = queues::find(&mut call.state, stream, call.context)?;
    captures::check_wait(&mut call.state, queue)?;
    captures::check_unsafe(&mut call.state)?;
    finish(call, queue)
}

/// `cuStreamQuery`.
pub(crate) fn query(call: &mut Call, stream: u64) -> Answer<()> {
    let queue = queues::find(&mut call.state, stream, call.context)?;
    captures::check_wait(&mut call.state, queue)?;
    captures::check_unsafe(&mut call.state)?;
    let context = call.state.streams.queue(queue)?.context;
    contexts::check(&call.state, context)?;
    let streams = &call.state.streams;
    let done = streams.ends_of_stream(queue).into_iter().all(|mark| streams.reached(mark));
    if done { Ok(()) } else { Err(Code::NOT_READY) }
}

/// Waits for everything queued so far.
pub(crate) fn finish(call: &mut Call, queue: u64) -> Answer<()> {
    let context = call.state.streams.queue(queue)?.context;
    contexts::check(&call.state, context)?;
    let marks = call.state.streams.ends_of_stream(queue);
    call.wait(|state| marks.iter().all(|&mark| state.streams.reached(mark)));
    pools::after_wait(&mut call.state);
    contexts::check(&call.state, context)
}
