//! Streams: created, destroyed, waited for, held.

use super::submit::submit;
use crate::call::Call;
use crate::state::{captures, contexts, pools, queues};
use crate::tables::stream::Kind;
use crate::tables::work::{HostFunction, Work};
use crate::values::code::{Answer, Code};
use crate::values::pointers::Out;
use std::ffi::c_int;

/// The least and the greatest priority of a stream, as on the devices of the last ten years.
const PRIORITIES: (i32, i32) = (0, -5);

/// `cuStreamCreate`.
pub(crate) fn cuStreamCreate(call: &mut Call, stream: Out<u64>, flags: u32) -> Answer<()> {
    call.answer(stream, |call| create(call, flags, PRIORITIES.0))
}

/// `cuStreamCreateWithPriority`.
pub(crate) fn cuStreamCreateWithPriority(call: &mut Call, stream: Out<u64>, flags: u32, priority: c_int) -> Answer<()> {
    call.answer(stream, |call| create(call, flags, priority))
}

/// `cuCtxGetStreamPriorityRange`.
pub(crate) fn cuCtxGetStreamPriorityRange(call: &mut Call, least: Out<c_int>, greatest: Out<c_int>) -> Answer<()> {
    call.give(least, PRIORITIES.0);
    call.give(greatest, PRIORITIES.1);
    Ok(())
}

/// `cuStreamGetPriority`.
pub(crate) fn cuStreamGetPriority(call: &mut Call, stream: u64, priority: Out<c_int>) -> Answer<()> {
    call.answer(priority, |call| {
        let queue = call.queue(stream)?;
        Ok(call.state.streams.queue(queue)?.priority)
    })
}

/// `cuStreamGetFlags`.
pub(crate) fn cuStreamGetFlags(call: &mut Call, stream: u64, flags: Out<u32>) -> Answer<()> {
    call.answer(flags, |call| {
        let queue = call.queue(stream)?;
        Ok(u32::from(call.state.streams.queue(queue)?.kind == Kind::NonBlocking))
    })
}

/// `cuStreamGetId`: the number of the queue.
pub(crate) fn cuStreamGetId(call: &mut Call, stream: u64, id: Out<u64>) -> Answer<()> {
    call.answer(id, |call| {
        let queue = call.queue(stream)?;
        contexts::check(&call.state, call.state.streams.queue(queue)?.context)?;
        captures::check_wait(&mut call.state, queue)?;
        call.out = Some(queue);
        Ok(queue)
    })
}

/// `cuStreamGetCtx`.
pub(crate) fn cuStreamGetCtx(call: &mut Call, stream: u64, context: Out<u64>) -> Answer<()> {
    call.answer(context, |call| {
        let queue = call.queue(stream)?;
        let context = call.state.streams.queue(queue)?.context;
        contexts::check(&call.state, context).map(|()| context)
    })
}

/// `cuStreamGetCtx_v2`. No stream of the emulated driver belongs to a green context.
pub(crate) fn cuStreamGetCtx_v2(call: &mut Call, stream: u64, context: Out<u64>, green: Out<u64>) -> Answer<()> {
    cuStreamGetCtx(call, stream, context)?;
    call.give(green, 0);
    Ok(())
}

/// `cuLaunchHostFunc`.
pub(crate) fn cuLaunchHostFunc(
    call: &mut Call,
    stream: u64,
    function: Option<HostFunction>,
    argument: u64,
) -> Answer<()> {
    let function = function.ok_or(Code::INVALID_VALUE)?;
    submit(call, stream, Work::Call { function, argument })
}

/// Creates a stream. A priority out of range is clamped.
fn create(call: &mut Call, flags: u32, priority: i32) -> Answer<u64> {
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
pub(crate) fn cuStreamDestroy_v2(call: &mut Call, handle: u64) -> Answer<()> {
    if handle <= 2 {
        return Err(Code::INVALID_HANDLE);
    }
    let queue = call.queue(handle)?;
    contexts::check(&call.state, call.state.streams.queue(queue)?.context)?;
    call.state.streams.handles.remove(handle)?;
    queues::close(&mut call.state, queue);
    Ok(())
}

/// Closes or opens a gate on a stream. No item starts while a gate is closed.
pub(crate) fn hold(call: &mut Call, handle: u64, close: bool) -> Answer<()> {
    let number = call.queue(handle)?;
    let queue = call.state.streams.queue_mut(number)?;
    queue.holds = if close { queue.holds + 1 } else { queue.holds.saturating_sub(1) };
    call.state.streams.wake_ready();
    call.changed();
    Ok(())
}

/// `cuStreamSynchronize`.
pub(crate) fn cuStreamSynchronize(call: &mut Call, stream: u64) -> Answer<()> {
    let queue = call.queue(stream)?;
    captures::check_wait(&mut call.state, queue)?;
    captures::check_unsafe(&mut call.state)?;
    finish(call, queue)
}

/// `cuStreamQuery`.
pub(crate) fn cuStreamQuery(call: &mut Call, stream: u64) -> Answer<()> {
    let queue = call.queue(stream)?;
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
