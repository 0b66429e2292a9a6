//! Contexts: the primary one of each device, created ones, each thread's stack of them, and how they break.

use crate::call::Call;
use crate::code::{Answer, Code};
use crate::device;
use crate::driver::State;
use crate::{capture, memory, pool, stream, thread};
use std::collections::{BTreeMap, BTreeSet};

/// The first primary context's handle; real ones are addresses of structures too.
const PRIMARY_BASE: u64 = 0x5c00_0000_0000;
/// The first created context's handle.
const CREATED_BASE: u64 = 0x5d00_0000_0000;
/// Distance between handles.
const STRIDE: u64 = 0x1000;

/// A context.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: usize,
    /// Retains of a primary context; 1 for a created one.
    retains: u64,
    /// The first error of its work that cannot be undone: every later call answers it.
    pub(crate) sticky: Option<Code>,
    /// The queues of its legacy stream (`None`) and of its threads' own streams.
    pub(crate) own_queues: BTreeMap<Option<u32>, u64>,
    /// Contexts whose memory its device may access.
    pub(crate) peers: BTreeSet<u64>,
}

impl Context {
    /// A context without work.
    fn new(device: usize) -> Self {
        Self { device, retains: 1, sticky: None, own_queues: BTreeMap::new(), peers: BTreeSet::new() }
    }
}

/// Whether work may be given to a context.
///
/// # Errors
/// `CONTEXT_IS_DESTROYED` if it is gone, its sticky error if it is broken.
pub(crate) fn check(state: &State, handle: u64) -> Answer<()> {
    let context = state.contexts.get(&handle).ok_or(Code::CONTEXT_IS_DESTROYED)?;
    context.sticky.map_or(Ok(()), Err)
}

/// The device of a context; of a primary one also while nobody retains it.
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

/// `cuDevicePrimaryCtxRelease_v2`: the last one ends the context and everything in it.
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

/// `cuCtxDestroy_v2`. Other threads may still have it on their stacks; their calls are refused from now on.
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

/// `cuCtxEnablePeerAccess`: the current context's device may use the peer's memory, present and future.
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

/// Devices other than its own that may use a context's memory.
pub(crate) fn accessors(state: &State, handle: u64) -> Vec<usize> {
    let others = state.contexts.values().filter(|context| context.peers.contains(&handle));
    others.map(|context| context.device).collect()
}

/// `cuCtxSynchronize`: waits for everything queued in a context so far.
pub(crate) fn synchronize(call: &mut Call, handle: u64) -> Answer<()> {
    capture::check_context_wait(&mut call.state, handle)?;
    let marks = call.state.streams.ends_of_context(handle);
    call.wait(|state| marks.iter().all(|&mark| state.streams.reached(mark)));
    pool::after_wait(&mut call.state);
    check(&call.state, handle)
}

/// Breaks a context with an error that cannot be undone: work not begun is dropped, every later call answers it.
pub(crate) fn break_down(state: &mut State, handle: u64, code: Code) {
    if let Some(context) = state.contexts.get_mut(&handle) {
        context.sticky.get_or_insert(code);
        stream::drop_pending(state, handle);
    }
}

/// Loses a device: its contexts break, and none can be had again.
pub(crate) fn lose_device(state: &mut State, index: usize, code: Code) {
    state.devices[index].lost = Some(code);
    let its: Vec<u64> =
        state.contexts.iter().filter(|(_, context)| context.device == index).map(|(&handle, _)| handle).collect();
    for handle in its {
        break_down(state, handle, code);
    }
}

/// How often each primary context is retained, and every created one: handle and count.
pub(crate) fn held(state: &State) -> Vec<(u64, u64)> {
    state.contexts.iter().map(|(&handle, context)| (handle, context.retains)).collect()
}

/// Whether a handle names a context that may be made current: a primary one also while nobody retains it.
fn known(call: &Call, handle: u64) -> Answer<()> {
    let alive = call.state.contexts.contains_key(&handle) || primary_of(&call.state, handle).is_some();
    if alive { Ok(()) } else { Err(Code::INVALID_CONTEXT) }
}

/// The device whose primary context has this handle, retained or not.
fn primary_of(state: &State, handle: u64) -> Option<usize> {
    let index = handle.checked_sub(PRIMARY_BASE)?;
    let device = (index / STRIDE) as usize;
    (index.is_multiple_of(STRIDE) && device < state.devices.len()).then_some(device)
}

/// Ends a context once its work is done: streams, events, modules and memory go with it.
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
