//! Contexts: the primary context of each device, created contexts, each thread's stack of contexts,
//! and errors that break a context.

use crate::call::Call;
use crate::code::{Answer, Code};
use crate::device;
use crate::driver::State;
use crate::{capture, memory, pool, stream, thread};
use std::collections::{BTreeMap, BTreeSet};

/// Handle of the first primary context. Handles of a real driver are also addresses of structures.
const PRIMARY_BASE: u64 = 0x5c00_0000_0000;
/// The first created context's handle.
const CREATED_BASE: u64 = 0x5d00_0000_0000;
/// Distance between handles.
const STRIDE: u64 = 0x1000;

/// A context.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: usize,
    /// Number of retains of a primary context. 1 for a created context.
    retains: u64,
    /// The first unrecoverable error of the context's work. Every later call answers the error.
    pub(crate) sticky: Option<Code>,
    /// The queues of the legacy stream (key `None`) and of the threads' own default streams.
    pub(crate) own_queues: BTreeMap<Option<u32>, u64>,
    /// Contexts whose memory the device may access.
    pub(crate) peers: BTreeSet<u64>,
}

impl Context {
    /// Creates a context without work.
    fn new(device: usize) -> Self {
        Self { device, retains: 1, sticky: None, own_queues: BTreeMap::new(), peers: BTreeSet::new() }
    }
}

/// Checks that a context accepts work.
///
/// # Errors
/// `CONTEXT_IS_DESTROYED` for a dead context, the sticky error for a broken context.
pub(crate) fn check(state: &State, handle: u64) -> Answer<()> {
    let context = state.contexts.get(&handle).ok_or(Code::CONTEXT_IS_DESTROYED)?;
    context.sticky.map_or(Ok(()), Err)
}

/// Returns the device of a context. A primary context need not be retained.
pub(crate) fn device_of(state: &State, handle: u64) -> Answer<usize> {
    let alive = state.contexts.get(&handle).map(|context| context.device);
    alive.or_else(|| primary_of(state, handle)).ok_or(Code::CONTEXT_IS_DESTROYED)
}

/// `cuDevicePrimaryCtxRetain`.
pub(crate) fn retain(call: &mut Call, device: i32) -> Answer<u64> {
    let index = device::index(&call.state, device)?;
    if let Some(code) = call.state.devices[index].lost {
        return Err(code);
    }
    let handle = PRIMARY_BASE + index as u64 * STRIDE;
    let made = call.state.contexts.entry(handle).and_modify(|context| context.retains += 1);
    made.or_insert_with(|| Context::new(index));
    call.made("primary context", handle);
    Ok(handle)
}

/// `cuDevicePrimaryCtxRelease_v2`: the last release ends the context with all objects.
pub(crate) fn release(call: &mut Call, device: i32) -> Answer<()> {
    let index = device::index(&call.state, device)?;
    let handle = PRIMARY_BASE + index as u64 * STRIDE;
    let context = call.state.contexts.get_mut(&handle).ok_or(Code::INVALID_CONTEXT)?;
    context.retains -= 1;
    if context.retains == 0 {
        end(call, handle);
    }
    Ok(())
}

/// `cuCtxCreate_v2`: the new context becomes current.
pub(crate) fn create(call: &mut Call, device: i32) -> Answer<u64> {
    let index = device::index(&call.state, device)?;
    if let Some(code) = call.state.devices[index].lost {
        return Err(code);
    }
    let last = call.state.contexts.range(CREATED_BASE..).next_back();
    let handle = last.map_or(CREATED_BASE, |(&handle, _)| handle + STRIDE);
    if !thread::push(handle) {
        return Err(Code::INVALID_CONTEXT);
    }
    call.state.contexts.insert(handle, Context::new(index));
    call.made("context", handle);
    Ok(handle)
}

/// `cuCtxDestroy_v2`. The handle may remain on stacks of other threads, whose calls are then
/// refused.
pub(crate) fn destroy(call: &mut Call, handle: u64) -> Answer<()> {
    if handle < CREATED_BASE || !call.state.contexts.contains_key(&handle) {
        return Err(Code::INVALID_CONTEXT);
    }
    if call.context == handle {
        thread::pop();
    }
    end(call, handle);
    Ok(())
}

/// `cuCtxPushCurrent_v2`.
pub(crate) fn push(call: &Call, handle: u64) -> Answer<()> {
    if handle == 0 {
        return Err(Code::INVALID_VALUE);
    }
    known(call, handle)?;
    if thread::push(handle) { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

/// `cuCtxPopCurrent_v2`.
pub(crate) fn pop() -> Answer<u64> {
    thread::pop().ok_or(Code::INVALID_CONTEXT)
}

/// `cuCtxSetCurrent`; 0 leaves the thread without a context.
pub(crate) fn set_current(call: &Call, handle: u64) -> Answer<()> {
    if handle != 0 {
        known(call, handle)?;
    }
    thread::set_current(handle);
    Ok(())
}

/// `cuCtxEnablePeerAccess`: gives the current context's device access to the peer's memory, present
/// and future.
pub(crate) fn enable_peer(call: &mut Call, peer: u64, flags: u32) -> Answer<()> {
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    known(call, peer)?;
    let own = call.context;
    let devices = (device_of(&call.state, own)?, device_of(&call.state, peer)?);
    if !device::can_access_peer(&call.state, devices.0 as i32, devices.1 as i32)? {
        return Err(Code::PEER_ACCESS_UNSUPPORTED);
    }
    let context = call.state.contexts.get_mut(&own).ok_or(Code::INVALID_CONTEXT)?;
    if !context.peers.insert(peer) {
        return Err(Code::PEER_ACCESS_ALREADY_ENABLED);
    }
    memory::share(&mut call.state, peer, devices.0, true)
}

/// `cuCtxDisablePeerAccess`.
pub(crate) fn disable_peer(call: &mut Call, peer: u64) -> Answer<()> {
    let own = call.context;
    let device = device_of(&call.state, own)?;
    let context = call.state.contexts.get_mut(&own).ok_or(Code::INVALID_CONTEXT)?;
    if !context.peers.remove(&peer) {
        return Err(Code::PEER_ACCESS_NOT_ENABLED);
    }
    memory::share(&mut call.state, peer, device, false)
}

/// Returns the other devices with access to a context's memory.
pub(crate) fn accessors(state: &State, handle: u64) -> Vec<usize> {
    let others = state.contexts.values().filter(|context| context.peers.contains(&handle));
    others.map(|context| context.device).collect()
}

/// `cuCtxSynchronize`: waits for all work queued in a context so far.
pub(crate) fn synchronize(call: &mut Call, handle: u64) -> Answer<()> {
    capture::check_context_wait(&mut call.state, handle)?;
    let marks = call.state.streams.ends_of_context(handle);
    call.wait(|state| marks.iter().all(|&mark| state.streams.reached(mark)));
    pool::after_wait(&mut call.state);
    check(&call.state, handle)
}

/// Breaks a context with an unrecoverable error: work not begun is dropped, and every later call
/// answers the error.
pub(crate) fn break_down(state: &mut State, handle: u64, code: Code) {
    if let Some(context) = state.contexts.get_mut(&handle) {
        context.sticky.get_or_insert(code);
        stream::drop_pending(state, handle);
    }
}

/// Loses a device: the contexts of the device break, and no new context can be created.
pub(crate) fn lose_device(state: &mut State, index: usize, code: Code) {
    state.devices[index].lost = Some(code);
    let its: Vec<u64> =
        state.contexts.iter().filter(|(_, context)| context.device == index).map(|(&handle, _)| handle).collect();
    for handle in its {
        break_down(state, handle, code);
    }
}

/// Returns the number of retains of each primary context, and every created context, by handle.
pub(crate) fn held(state: &State) -> Vec<(u64, u64)> {
    state.contexts.iter().map(|(&handle, context)| (handle, context.retains)).collect()
}

/// Checks that a handle names a context that may be made current. A primary context need not be
/// retained.
fn known(call: &Call, handle: u64) -> Answer<()> {
    let alive = call.state.contexts.contains_key(&handle) || primary_of(&call.state, handle).is_some();
    if alive { Ok(()) } else { Err(Code::INVALID_CONTEXT) }
}

/// Returns the device whose primary context has the given handle, retained or not.
fn primary_of(state: &State, handle: u64) -> Option<usize> {
    let index = handle.checked_sub(PRIMARY_BASE)?;
    let device = (index / STRIDE) as usize;
    (index.is_multiple_of(STRIDE) && device < state.devices.len()).then_some(device)
}

/// Ends a context after the work is done, with all streams, events, modules and memory.
fn end(call: &mut Call, handle: u64) {
    let marks = call.state.streams.ends_of_context(handle);
    call.wait(|state| marks.iter().all(|&mark| state.streams.reached(mark)));
    let state = &mut *call.state;
    state.contexts.remove(&handle);
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
        stream::close(state, queue);
    }
    let events: Vec<u64> =
        state.events.iter().filter(|(_, event)| event.context == handle).map(|(event, _)| event).collect();
    for event in events {
        let _gone = state.events.remove(event);
    }
    memory::free_all(state, handle);
    call.changed();
}
