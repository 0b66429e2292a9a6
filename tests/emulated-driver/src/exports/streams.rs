//! Streams and events.

use super::Out;
use crate::capture;
use crate::code::Code;
use crate::context;
use crate::event;
use crate::functions::Function;
use crate::session::call;
use crate::stream;
use crate::transfer;
use crate::work::{HostFunction, Work};
use std::ffi::{c_int, c_void};

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(handle: *mut u64, flags: u32) -> u32 {
    let out = Out(handle);
    call(
        Function::cuStreamCreate,
        &[handle as u64, flags.into()],
        |session| out.check().and_then(|()| stream::create(session, flags)),
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(handle: u64) -> u32 {
    call(Function::cuStreamDestroy_v2, &[handle], |session| stream::destroy(session, handle), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(handle: u64) -> u32 {
    call(Function::cuStreamSynchronize, &[handle], |session| transfer::synchronize(session, handle), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(handle: u64) -> u32 {
    call(Function::cuStreamQuery, &[handle], |session| transfer::query(session, handle), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(handle: u64, event: u64, flags: u32) -> u32 {
    call(
        Function::cuStreamWaitEvent,
        &[handle, event, flags.into()],
        |session| event::make_stream_wait(session, handle, event, flags),
        drop,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetId(handle: u64, id: *mut u64) -> u32 {
    let out = Out(id);
    call(
        Function::cuStreamGetId,
        &[handle, id as u64],
        |session| {
            out.check()?;
            let queue = stream::find(&mut session.state, handle, session.context)?;
            context::check(&session.state, session.state.streams.queue(queue)?.context)?;
            capture::check_wait(&mut session.state, queue)?;
            session.out = Some(queue);
            Ok(queue)
        },
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCtx(handle: u64, context: *mut u64) -> u32 {
    let out = Out(context);
    call(
        Function::cuStreamGetCtx,
        &[handle, context as u64],
        |session| {
            out.check()?;
            let queue = stream::find(&mut session.state, handle, session.context)?;
            let context = session.state.streams.queue(queue)?.context;
            context::check(&session.state, context).map(|()| context)
        },
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamIsCapturing(handle: u64, status: *mut c_int) -> u32 {
    let out = Out(status);
    call(
        Function::cuStreamIsCapturing,
        &[handle, status as u64],
        |session| out.check().and_then(|()| capture::status(session, handle)),
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
    // All but the status may be null. Graph and nodes of a capture under way are not shown: null, none.
    let (status_out, id_out) = (Out(status), Out(id));
    let (graph_out, nodes_out, count_out) = (Out(graph), Out(nodes), Out(count));
    call(
        Function::cuStreamGetCaptureInfo_v2,
        &[handle, status as u64, id as u64, graph as u64, nodes as u64, count as u64],
        |session| status_out.check().and_then(|()| capture::status(session, handle)),
        |(status, id)| {
            status_out.write(status);
            id_out.write(id);
            graph_out.write(0);
            nodes_out.write(std::ptr::null());
            count_out.write(0);
        },
    )
}

/// # Safety
/// As for the real function: `mode` is null or valid for reading and writing.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> u32 {
    let out = Out(mode);
    call(
        Function::cuThreadExchangeStreamCaptureMode,
        &[mode as u64],
        |session| {
            out.check()?;
            // SAFETY: not null, and the caller's promise.
            let wanted = unsafe { *mode };
            session.out = Some(wanted as u64);
            capture::exchange_mode(wanted)
        },
        |before| out.write(before),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchHostFunc(handle: u64, function: Option<HostFunction>, argument: *mut c_void) -> u32 {
    let argument = argument as u64;
    let number = function.map_or(0, |function| function as usize as u64);
    call(
        Function::cuLaunchHostFunc,
        &[handle, number, argument],
        |session| {
            let function = function.ok_or(Code::INVALID_VALUE)?;
            capture::submit(session, handle, Work::Call { function, argument })
        },
        drop,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(handle: *mut u64, flags: u32) -> u32 {
    let out = Out(handle);
    call(
        Function::cuEventCreate,
        &[handle as u64, flags.into()],
        |session| out.check().and_then(|()| event::create(session, flags)),
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(handle: u64) -> u32 {
    call(Function::cuEventDestroy_v2, &[handle], |session| event::destroy(session, handle), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(handle: u64, stream: u64) -> u32 {
    call(Function::cuEventRecord, &[handle, stream], |session| event::record(session, handle, stream), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(handle: u64) -> u32 {
    call(Function::cuEventQuery, &[handle], |session| event::query(session, handle), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(handle: u64) -> u32 {
    call(Function::cuEventSynchronize, &[handle], |session| event::synchronize(session, handle), drop)
}
