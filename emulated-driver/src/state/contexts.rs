//! Which contexts accept work, and errors that break a context.

use super::driver::State;
use crate::tables::stream::Mark;
use crate::values::code::{Answer, Code};

/// Handle of the first primary context. Handles of a real driver are also addresses of structures.
pub(crate) const PRIMARY_BASE: u64 = 0x5c00_0000_0000;
/// Distance between handles.
pub(crate) const STRIDE: u64 = 0x1000;

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

/// Returns the other devices with access to a context's memory.
pub(crate) fn accessors(state: &State, handle: u64) -> Vec<usize> {
    let others = state.contexts.values().filter(|context| context.peers.contains(&handle));
    others.map(|context| context.device).collect()
}

/// Returns the context that owns memory which is taken in a context: of a green context the primary
/// one.
pub(crate) fn owner(state: &State, handle: u64) -> u64 {
    state.contexts.get(&handle).and_then(|context| context.green_of).unwrap_or(handle)
}

/// Returns the marks after all work queued so far in a context, and in the green contexts over the
/// context.
pub(crate) fn ends(state: &State, handle: u64) -> Vec<Mark> {
    let greens = state.contexts.iter().filter(|(_, context)| context.green_of == Some(handle));
    let all = greens.map(|(&green, _)| green).chain([handle]);
    all.flat_map(|handle| state.streams.ends_of_context(handle)).collect()
}

/// Returns the marks after all work queued so far in all contexts of a context's device.
pub(crate) fn ends_of_device_of(state: &State, handle: u64) -> Vec<Mark> {
    let Ok(device) = device_of(state, handle) else { return Vec::new() };
    let its = state.contexts.iter().filter(|(_, context)| context.device == device);
    its.flat_map(|(&handle, _)| state.streams.ends_of_context(handle)).collect()
}

/// Breaks a context with an unrecoverable error: work not started is dropped, and every later call
/// answers the error.
pub(crate) fn break_down(state: &mut State, handle: u64, code: Code) {
    if let Some(context) = state.contexts.get_mut(&handle) {
        context.sticky.get_or_insert(code);
        state.streams.drop_pending(handle);
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

/// Returns the device whose primary context has the given handle, retained or not.
pub(crate) fn primary_of(state: &State, handle: u64) -> Option<usize> {
    let index = handle.checked_sub(PRIMARY_BASE)?;
    let device = (index / STRIDE) as usize;
    (index.is_multiple_of(STRIDE) && device < state.devices.len()).then_some(device)
}
