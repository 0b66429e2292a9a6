//! Contexts: the primary context of each device, created contexts, and each thread's stack of
//! contexts.

use super::event;
use crate::call::Call;
use crate::process::thread;
use crate::state::contexts::{self, PRIMARY_BASE, STRIDE};
use crate::state::driver::State;
use crate::state::{arrays, captures, devices, modules, pools, queues, regions};
use crate::tables::context::Context;
use crate::tables::event::NO_CONTEXT;
use crate::values::code::{Answer, Code};
use crate::values::pointers::Out;
use std::collections::btree_map::Entry;
use std::ffi::c_int;

/// The first created context's handle.
const CREATED_BASE: u64 = 0x5d00_0000_0000;

/// `cuDevicePrimaryCtxRetain`.
pub(crate) fn cuDevicePrimaryCtxRetain(call: &mut Call, context: Out<u64>, device: c_int) -> Answer<()> {
    call.answer(context, |call| retain(call, device))
}

/// Retains the primary context of a device.
pub(super) fn retain(call: &mut Call, device: i32) -> Answer<u64> {
    let index = devices::index(&call.state, device)?;
    if let Some(code) = call.state.devices[index].lost {
        return Err(code);
    }
    let handle = PRIMARY_BASE + index as u64 * STRIDE;
    let state = &mut *call.state;
    let made = state.contexts.entry(handle).and_modify(|context| context.retains += 1);
    if let Entry::Vacant(place) = made {
        let own_memory = state.devices[index].spend(state.config.context_bytes)?;
        let retains = 1 + std::mem::take(&mut state.devices[index].reset_retains);
        place.insert(Context { retains, ..Context::new(index, own_memory) });
    }
    call.made("primary context", handle);
    Ok(handle)
}

/// `cuDevicePrimaryCtxRelease_v2`: the last release ends the context with all objects.
pub(crate) fn cuDevicePrimaryCtxRelease_v2(call: &mut Call, device: i32) -> Answer<()> {
    let index = devices::index(&call.state, device)?;
    let handle = PRIMARY_BASE + index as u64 * STRIDE;
    let Some(context) = call.state.contexts.get_mut(&handle) else {
        let left = &mut call.state.devices[index].reset_retains;
        *left = left.checked_sub(1).ok_or(Code::INVALID_CONTEXT)?;
        return Ok(());
    };
    context.retains -= 1;
    if context.retains == 0 {
        end(call, handle);
    }
    Ok(())
}

/// `cuDevicePrimaryCtxReset_v2`: ends the context with all objects and flags, and keeps the
/// retains.
pub(crate) fn cuDevicePrimaryCtxReset_v2(call: &mut Call, device: i32) -> Answer<()> {
    let index = devices::index(&call.state, device)?;
    let handle = PRIMARY_BASE + index as u64 * STRIDE;
    if let Some(context) = call.state.contexts.get(&handle) {
        call.state.devices[index].reset_retains = context.retains;
        call.state.devices[index].primary_flags = 0;
        end(call, handle);
    }
    Ok(())
}

/// `cuDevicePrimaryCtxGetState`.
pub(crate) fn cuDevicePrimaryCtxGetState(
    call: &mut Call,
    device: c_int,
    flags: Out<u32>,
    active: Out<c_int>,
) -> Answer<()> {
    flags.check()?;
    active.check()?;
    let index = devices::index(&call.state, device)?;
    let alive = call.state.contexts.contains_key(&(PRIMARY_BASE + index as u64 * STRIDE));
    let its_flags = call.state.devices[index].primary_flags;
    call.give(flags, its_flags);
    call.give(active, alive.into());
    Ok(())
}

/// `cuDevicePrimaryCtxSetFlags_v2`. The flags are stored without effect.
pub(crate) fn cuDevicePrimaryCtxSetFlags_v2(call: &mut Call, device: c_int, flags: u32) -> Answer<()> {
    let index = devices::index(&call.state, device)?;
    check_flags(flags)?;
    call.state.devices[index].primary_flags = flags;
    Ok(())
}

/// `cuCtxCreate_v2`.
pub(crate) fn cuCtxCreate_v2(call: &mut Call, context: Out<u64>, flags: u32, device: c_int) -> Answer<()> {
    call.answer(context, |call| create(call, flags, device))
}

/// `cuCtxCreate_v3`. A context with a part of the device's multiprocessors is not emulated.
pub(crate) fn cuCtxCreate_v3(
    call: &mut Call,
    context: Out<u64>,
    affinities: u64,
    count: c_int,
    flags: u32,
    device: c_int,
) -> Answer<()> {
    if affinities != 0 || count != 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    cuCtxCreate_v2(call, context, flags, device)
}

/// `cuCtxCreate_v4`. A context with a part of the multiprocessors, or for graphics, is not
/// emulated. `parameters` is null or has a list, its length in four bytes, and a pointer.
pub(crate) fn cuCtxCreate_v4(
    call: &mut Call,
    context: Out<u64>,
    parameters: Out<[u64; 3]>,
    flags: u32,
    device: c_int,
) -> Answer<()> {
    if !parameters.is_null() {
        let [affinities, count, graphics] = parameters.read()?;
        if affinities != 0 || count as u32 != 0 || graphics != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
    }
    cuCtxCreate_v2(call, context, flags, device)
}

/// Refuses unknown flags of a context: scheduling, mapped host memory, local memory, core dumps,
/// synchronous copies are known.
fn check_flags(flags: u32) -> Answer<()> {
    if flags & !0xff == 0 { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

/// Creates a context, which becomes current.
fn create(call: &mut Call, flags: u32, device: i32) -> Answer<u64> {
    check_flags(flags)?;
    let index = devices::index(&call.state, device)?;
    if let Some(code) = call.state.devices[index].lost {
        return Err(code);
    }
    let last = call.state.contexts.range(CREATED_BASE..).next_back();
    let handle = last.map_or(CREATED_BASE, |(&handle, _)| handle + STRIDE);
    let bytes = call.state.config.context_bytes;
    let own_memory = call.state.devices[index].spend(bytes)?;
    if !thread::push(handle) {
        call.state.devices[index].pages.give(&own_memory);
        return Err(Code::INVALID_CONTEXT);
    }
    call.state.contexts.insert(handle, Context::new(index, own_memory));
    call.made("context", handle);
    Ok(handle)
}

/// `cuCtxDestroy_v2`. The handle may remain on stacks of other threads, whose calls are then
/// refused.
pub(crate) fn cuCtxDestroy_v2(call: &mut Call, handle: u64) -> Answer<()> {
    created(call, handle)?;
    if call.context == handle {
        thread::pop();
    }
    end(call, handle);
    Ok(())
}

/// `cuCtxAttach`: the current context is detached once more before it ends.
pub(crate) fn cuCtxAttach(call: &mut Call, context: Out<u64>, flags: u32) -> Answer<()> {
    call.answer(context, |call| {
        let handle = call.context;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        created(call, handle)?.retains += 1;
        Ok(handle)
    })
}

/// `cuCtxDetach`. The last detachment ends the context, which must be current.
pub(crate) fn cuCtxDetach(call: &mut Call, handle: u64) -> Answer<()> {
    if call.context != handle {
        return Err(Code::INVALID_CONTEXT);
    }
    let context = created(call, handle)?;
    if context.retains == 1 {
        return cuCtxDestroy_v2(call, handle);
    }
    context.retains -= 1;
    Ok(())
}

/// Returns a created context.
fn created(call: &mut Call, handle: u64) -> Answer<&mut Context> {
    let context = call.state.contexts.get_mut(&handle);
    context.filter(|_| handle >= CREATED_BASE).ok_or(Code::INVALID_CONTEXT)
}

/// `cuCtxPushCurrent_v2`.
pub(crate) fn cuCtxPushCurrent_v2(call: &mut Call, handle: u64) -> Answer<()> {
    if handle == 0 {
        return Err(Code::INVALID_VALUE);
    }
    known(call, handle)?;
    if thread::push(handle) { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

/// `cuCtxPopCurrent_v2`.
pub(crate) fn cuCtxPopCurrent_v2(call: &mut Call, context: Out<u64>) -> Answer<()> {
    let popped = thread::pop().ok_or(Code::INVALID_CONTEXT)?;
    call.out = Some(popped);
    call.give(context, popped);
    Ok(())
}

/// `cuCtxGetCurrent`.
pub(crate) fn cuCtxGetCurrent(call: &mut Call, context: Out<u64>) -> Answer<()> {
    context.check()?;
    let current = call.context;
    call.out = Some(current);
    call.give(context, current);
    Ok(())
}

/// `cuCtxGetDevice`.
pub(crate) fn cuCtxGetDevice(call: &mut Call, device: Out<c_int>) -> Answer<()> {
    call.answer(device, |call| {
        if call.context == 0 {
            return Err(Code::INVALID_CONTEXT);
        }
        contexts::device_of(&call.state, call.context).map(|index| index as c_int)
    })
}

/// `cuCtxSetCurrent`; 0 leaves the thread without a context.
pub(crate) fn cuCtxSetCurrent(call: &mut Call, handle: u64) -> Answer<()> {
    if handle != 0 {
        known(call, handle)?;
    }
    thread::set_current(handle);
    Ok(())
}

/// `cuCtxEnablePeerAccess`: gives the current context's device access to the peer's memory, present
/// and future.
pub(crate) fn cuCtxEnablePeerAccess(call: &mut Call, peer: u64, flags: u32) -> Answer<()> {
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    known(call, peer)?;
    let own = call.context;
    let devices = (contexts::device_of(&call.state, own)?, contexts::device_of(&call.state, peer)?);
    if !devices::can_access_peer(&call.state, devices.0 as i32, devices.1 as i32)? {
        return Err(Code::PEER_ACCESS_UNSUPPORTED);
    }
    let context = call.state.contexts.get_mut(&own).ok_or(Code::INVALID_CONTEXT)?;
    if !context.peers.insert(peer) {
        return Err(Code::PEER_ACCESS_ALREADY_ENABLED);
    }
    regions::share(&mut call.state, peer, devices.0, true)
}

/// `cuCtxDisablePeerAccess`.
pub(crate) fn cuCtxDisablePeerAccess(call: &mut Call, peer: u64) -> Answer<()> {
    let own = call.context;
    let device = contexts::device_of(&call.state, own)?;
    let context = call.state.contexts.get_mut(&own).ok_or(Code::INVALID_CONTEXT)?;
    if !context.peers.remove(&peer) {
        return Err(Code::PEER_ACCESS_NOT_ENABLED);
    }
    regions::share(&mut call.state, peer, device, false)
}

/// `cuCtxGetId`: of any context, and of the current one for null. No other context of the process
/// ever has the id, a primary context made anew after a reset included.
pub(crate) fn cuCtxGetId(call: &mut Call, context: u64, id: Out<u64>) -> Answer<()> {
    call.answer(id, |call| {
        let handle = if context == 0 { call.context } else { context };
        if handle == 0 {
            return Err(Code::INVALID_CONTEXT);
        }
        call.state.contexts.get(&handle).map(|context| context.id).ok_or(Code::CONTEXT_IS_DESTROYED)
    })
}

/// `cuCtxGetDevice_v2`: of any context, and of the current one for null.
pub(crate) fn cuCtxGetDevice_v2(call: &mut Call, device: Out<c_int>, context: u64) -> Answer<()> {
    call.answer(device, |call| {
        let context = if context == 0 { call.context } else { context };
        if context == 0 {
            return Err(Code::INVALID_CONTEXT);
        }
        contexts::device_of(&call.state, context).map(|index| index as c_int)
    })
}

/// `cuCtxSynchronize_v2`: of any context, and of the current one for null.
pub(crate) fn cuCtxSynchronize_v2(call: &mut Call, context: u64) -> Answer<()> {
    let context = if context == 0 { call.context } else { context };
    if context == 0 {
        return Err(Code::INVALID_CONTEXT);
    }
    contexts::check(&call.state, context)?;
    synchronize(call, context)
}

/// `cuCtxRecordEvent`: the event is complete when all work of the context so far is, on streams of
/// every kind.
pub(crate) fn cuCtxRecordEvent(call: &mut Call, context: u64, event: u64) -> Answer<()> {
    usable(call, context)?;
    event::record_on_context(call, context, event)
}

/// `cuCtxWaitEvent`: all later work of the context comes after the event, also on streams that come
/// later.
pub(crate) fn cuCtxWaitEvent(call: &mut Call, context: u64, event: u64) -> Answer<()> {
    usable(call, context)?;
    event::make_context_wait(call, context, event)
}

/// Refuses a context that takes part in no order of events: none, a dead one, one with a capture.
fn usable(call: &mut Call, context: u64) -> Answer<()> {
    if context == 0 {
        return Err(Code::INVALID_CONTEXT);
    }
    contexts::check(&call.state, context)?;
    captures::check_context_event(&mut call.state, context)
}

/// `cuCtxSynchronize`.
pub(crate) fn cuCtxSynchronize(call: &mut Call) -> Answer<()> {
    let context = call.context;
    synchronize(call, context)
}

/// Waits for all work queued in a context so far.
fn synchronize(call: &mut Call, handle: u64) -> Answer<()> {
    captures::check_context_wait(&mut call.state, handle)?;
    let marks = contexts::ends(&call.state, handle);
    call.wait(|state| marks.iter().all(|&mark| state.streams.reached(mark)));
    pools::after_wait(&mut call.state);
    contexts::check(&call.state, handle)
}

/// Checks that a handle names a context that may be made current. A primary context need not be
/// retained.
fn known(call: &Call, handle: u64) -> Answer<()> {
    let alive = call.state.contexts.contains_key(&handle) || contexts::primary_of(&call.state, handle).is_some();
    if alive { Ok(()) } else { Err(Code::INVALID_CONTEXT) }
}

/// Ends a context with all streams, modules and memory, after the work of all contexts of the
/// device. Events and executable graphs stay as objects of no context.
pub(super) fn end(call: &mut Call, handle: u64) {
    let marks = contexts::ends_of_device_of(&call.state, handle);
    call.wait(|state| marks.iter().all(|&mark| state.streams.reached(mark)));
    let state = &mut *call.state;
    modules::remove_all(state, handle);
    arrays::remove_all(state, handle);
    if let Some(context) = state.contexts.remove(&handle) {
        state.devices[context.device].pages.give(&context.own_memory);
    }
    for context in state.contexts.values_mut() {
        context.peers.remove(&handle);
    }
    let of_context = |queue: &u64| state.streams.queue(*queue).is_ok_and(|queue| queue.context == handle);
    let streams: Vec<u64> =
        state.streams.handles.iter().filter(|(_, queue)| of_context(queue)).map(|(handle, _)| handle).collect();
    for stream in streams {
        let _gone = state.streams.handles.remove(stream);
    }
    let queues: Vec<u64> =
        state.streams.queues.iter().filter(|(_, queue)| queue.context == handle).map(|(&queue, _)| queue).collect();
    for queue in queues {
        queues::close(state, queue);
    }
    for event in state.events.values_mut().filter(|event| event.context == handle) {
        event.context = NO_CONTEXT;
    }
    for executable in state.executables.values_mut().filter(|executable| executable.context == handle) {
        executable.is_over = true;
    }
    free_all(state, handle);
    call.changed();
}

/// Frees all memory of an ending context. Memory of pools stays.
fn free_all(state: &mut State, context: u64) {
    state.shared.opened.retain(|_, opened| opened.context != context);
    regions::give_back_all(state, context);
    pools::after_wait(state);
    state.host_memory.forget_all(context);
    regions::release_all(state, context);
}
