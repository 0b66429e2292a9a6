//! Streams and events.

use super::Out;
use crate::call::make;
use crate::calls::submit::submit;
use crate::calls::{capture, event, stream};
use crate::state::{captures, contexts, queues};
use crate::tables::stream::Kind;
use crate::tables::work::{HostFunction, Work};
use crate::values::code::Code;
use crate::values::functions::Function;
use std::ffi::{c_int, c_void};

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(handle: *mut u64, flags: u32) -> u32 {
    let out = Out(handle);
    make(
        Function::cuStreamCreate,
        &[handle as u64, flags.into()],
        |call| out.check().and_then(|()| stream::create(call, flags, stream::PRIORITIES.0)),
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreateWithPriority(handle: *mut u64, flags: u32, priority: c_int) -> u32 {
    let out = Out(handle);
    make(
        Function::cuStreamCreateWithPriority,
        &[handle as u64, flags.into(), priority as u64],
        |call| out.check().and_then(|()| stream::create(call, flags, priority)),
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetPriority(handle: u64, priority: *mut c_int) -> u32 {
    let out = Out(priority);
    make(
        Function::cuStreamGetPriority,
        &[handle, priority as u64],
        |call| {
            out.check()?;
            let queue = queues::find(&mut call.state, handle, call.context)?;
            Ok(call.state.streams.queue(queue)?.priority)
        },
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetFlags(handle: u64, flags: *mut u32) -> u32 {
    let out = Out(flags);
    make(
        Function::cuStreamGetFlags,
        &[handle, flags as u64],
        |call| {
            out.check()?;
            let queue = queues::find(&mut call.state, handle, call.context)?;
            Ok(u32::from(call.state.streams.queue(queue)?.kind == Kind::NonBlocking))
        },
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> u32 {
    // Either may be null.
    let (least_out, greatest_out) = (Out(least), Out(greatest));
    make(
        Function::cuCtxGetStreamPriorityRange,
        &[least as u64, greatest as u64],
        |_| Ok(stream::PRIORITIES),
        |(least, greatest)| {
            least_out.write(least);
            greatest_out.write(greatest);
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(handle: u64) -> u32 {
    make(Function::cuStreamDestroy_v2, &[handle], |call| stream::destroy(call, handle), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(handle: u64) -> u32 {
    make(Function::cuStreamSynchronize, &[handle], |call| stream::synchronize(call, handle), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(handle: u64) -> u32 {
    make(Function::cuStreamQuery, &[handle], |call| stream::query(call, handle), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(handle: u64, event: u64, flags: u32) -> u32 {
    make(
        Function::cuStreamWaitEvent,
        &[handle, event, flags.into()],
        |call| event::make_stream_wait(call, handle, event, flags),
        drop,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetId(handle: u64, id: *mut u64) -> u32 {
    let out = Out(id);
    make(
        Function::cuStreamGetId,
        &[handle, id as u64],
        |call| {
            out.check()?;
            let queue = queues::find(&mut call.state, handle, call.context)?;
            contexts::check(&call.state, call.state.streams.queue(queue)?.context)?;
            captures::check_wait(&mut call.state, queue)?;
            call.out = Some(queue);
            Ok(queue)
        },
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCtx(handle: u64, context: *mut u64) -> u32 {
    let out = Out(context);
    make(
        Function::cuStreamGetCtx,
        &[handle, context as u64],
        |call| {
            out.check()?;
            let queue = queues::find(&mut call.state, handle, call.context)?;
            let context = call.state.streams.queue(queue)?.context;
            contexts::check(&call.state, context).map(|()| context)
        },
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamIsCapturing(handle: u64, status: *mut c_int) -> u32 {
    let out = Out(status);
    make(
        Function::cuStreamIsCapturing,
        &[handle, status as u64],
        |call| out.check().and_then(|()| capture::status(call, handle)),
        |(status, _)| out.write(status),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCaptureInfo_v2(
    handle: u64,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut u64,
    nodes: *mut *const u64,
    count: *mut usize,
) -> u32 {
    // All pointers but the status may be null. The graph of a capture in progress is not shown.
    let (status_out, id_out) = (Out(status), Out(id));
    let (graph_out, nodes_out, count_out) = (Out(graph), Out(nodes), Out(count));
    make(
        Function::cuStreamGetCaptureInfo_v2,
        &[handle, status as u64, id as u64, graph as u64, nodes as u64, count as u64],
        |call| {
            status_out.check()?;
            Ok((capture::status(call, handle)?, capture::shown_frontier(call, handle)?))
        },
        |((status, id), (shown, length))| {
            status_out.write(status);
            id_out.write(id);
            graph_out.write(0);
            nodes_out.write(shown);
            count_out.write(length);
        },
    )
}

/// # Safety
/// As for the real function: `mode` is null or valid for reading and writing.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> u32 {
    let out = Out(mode);
    make(
        Function::cuThreadExchangeStreamCaptureMode,
        &[mode as u64],
        |call| {
            out.check()?;
            // SAFETY: not null, the rest is guaranteed by the caller.
            let wanted = unsafe { *mode };
            call.out = Some(wanted as u64);
            capture::exchange_mode(wanted)
        },
        |before| out.write(before),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchHostFunc(handle: u64, function: Option<HostFunction>, argument: *mut c_void) -> u32 {
    let argument = argument as u64;
    let number = function.map_or(0, |function| function as usize as u64);
    make(
        Function::cuLaunchHostFunc,
        &[handle, number, argument],
        |call| {
            let function = function.ok_or(Code::INVALID_VALUE)?;
            submit(call, handle, Work::Call { function, argument })
        },
        drop,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(handle: *mut u64, flags: u32) -> u32 {
    let out = Out(handle);
    make(
        Function::cuEventCreate,
        &[handle as u64, flags.into()],
        |call| out.check().and_then(|()| event::create(call, flags)),
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(handle: u64) -> u32 {
    make(Function::cuEventDestroy_v2, &[handle], |call| event::destroy(call, handle), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(handle: u64, stream: u64) -> u32 {
    make(Function::cuEventRecord, &[handle, stream], |call| event::record(call, handle, stream), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(handle: u64) -> u32 {
    make(Function::cuEventQuery, &[handle], |call| event::query(call, handle), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(handle: u64) -> u32 {
    make(Function::cuEventSynchronize, &[handle], |call| event::synchronize(call, handle), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, from: u64, to: u64) -> u32 {
    let out = Out(milliseconds);
    make(
        Function::cuEventElapsedTime,
        &[milliseconds as u64, from, to],
        |call| out.check().and_then(|()| event::elapsed(call, from, to)),
        |value| out.write(value),
    )
}
