//! State of one host thread: number, contexts, capture mode.
//!
//! Plain cells without destructors, so that calls during the end of the thread still find the
//! cells.

use crate::values::functions::Function;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// Greatest depth of a context stack. A real driver has no limit, but no honest program comes near
/// 32.
pub(crate) const DEPTH: usize = 32;

thread_local! {
    static NUMBER: Cell<u32> = const { Cell::new(0) };
    static CONTEXTS: Cell<([u64; DEPTH], usize)> = const { Cell::new(([0; DEPTH], 0)) };
    static CAPTURE_MODE: Cell<i32> = const { Cell::new(0) };
    static RUNNING: Cell<u64> = const { Cell::new(0) };
    static CALLING: Cell<Option<Function>> = const { Cell::new(None) };
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Returns the number of the calling thread: 1 for the first calling thread, and so on.
pub(crate) fn number() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
        }
        number.get()
    })
}

/// Returns the context on top of the calling thread's stack, or 0.
pub(crate) fn current() -> u64 {
    CONTEXTS.with(|stack| {
        let (entries, depth) = stack.get();
        depth.checked_sub(1).map_or(0, |top| entries[top])
    })
}

/// Pushes a context. Returns false if the stack is full.
pub(crate) fn push(context: u64) -> bool {
    CONTEXTS.with(|stack| {
        let (mut entries, depth) = stack.get();
        if depth == DEPTH {
            return false;
        }
        entries[depth] = context;
        stack.set((entries, depth + 1));
        true
    })
}

/// Pops the top context. `None` if the stack is empty.
pub(crate) fn pop() -> Option<u64> {
    CONTEXTS.with(|stack| {
        let (entries, depth) = stack.get();
        let top = depth.checked_sub(1)?;
        stack.set((entries, top));
        Some(entries[top])
    })
}

/// Replaces the top context. 0 removes the top context.
pub(crate) fn set_current(context: u64) {
    pop();
    if context != 0 {
        push(context);
    }
}

/// Returns the calling thread's capture mode, a `CUstreamCaptureMode`.
pub(crate) fn capture_mode() -> i32 {
    CAPTURE_MODE.get()
}

/// Sets the calling thread's capture mode and returns the previous mode.
pub(crate) fn exchange_capture_mode(mode: i32) -> i32 {
    CAPTURE_MODE.replace(mode)
}

/// Returns the driver function called last by the calling thread.
pub(crate) fn calling() -> Option<Function> {
    CALLING.get()
}

/// Records the driver function called by the calling thread.
pub(crate) fn set_calling(function: Function) {
    CALLING.set(Some(function));
}

/// Returns the context whose work the calling thread is running, or 0.
pub(crate) fn running() -> u64 {
    RUNNING.get()
}

/// Returns whether the calling thread is in a host function queued on a stream, where driver calls
/// are forbidden.
pub(crate) fn in_host_function() -> bool {
    IN_HOST_FUNCTION.get()
}

/// Runs `action` as work of `context`.
pub(crate) fn running_for(context: u64, action: impl FnOnce()) {
    let before = RUNNING.replace(context);
    action();
    RUNNING.set(before);
}

/// Runs `action` as a host function.
pub(crate) fn as_host_function(action: impl FnOnce()) {
    let before = IN_HOST_FUNCTION.replace(true);
    action();
    IN_HOST_FUNCTION.set(before);
}
