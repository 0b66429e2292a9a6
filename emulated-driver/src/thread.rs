//! What belongs to one host thread: its number, its contexts, its capture mode, its own default streams.
//!
//! Plain cells without destructors, so that calls made while the thread itself ends still find them. Only the thread's own
//! default streams end with it.

use crate::driver::driver;
use crate::functions::Function;
use crate::{latch, stream};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// How deep a context stack may be. Real ones have no such limit; no honest program comes near.
pub(crate) const DEPTH: usize = 32;

thread_local! {
    static NUMBER: Cell<u32> = const { Cell::new(0) };
    static CONTEXTS: Cell<([u64; DEPTH], usize)> = const { Cell::new(([0; DEPTH], 0)) };
    static CAPTURE_MODE: Cell<i32> = const { Cell::new(0) };
    static RUNNING: Cell<u64> = const { Cell::new(0) };
    static CALLING: Cell<Option<Function>> = const { Cell::new(None) };
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
    static OWN_STREAMS: OwnStreams = const { OwnStreams };
}

/// Closes the thread's own default streams when the thread ends, as destroying them would: their work is done first.
struct OwnStreams;

impl Drop for OwnStreams {
    fn drop(&mut self) {
        // In a forked child the lock may be held for ever.
        if !latch::is_forked() {
            stream::close_own(&mut driver().state.lock(), number());
        }
    }
}

/// Lets this thread's own default streams end with it. Those that it makes while it ends stay.
pub(crate) fn own_streams_end_with_it() {
    // An error: the thread is ending, and the streams that it had are closed.
    let _closed = OWN_STREAMS.try_with(|_| ());
}

/// This thread's number: 1 for the first thread that called, and so on.
pub(crate) fn number() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
        }
        number.get()
    })
}

/// The context on top of this thread's stack; 0 for none.
pub(crate) fn current() -> u64 {
    CONTEXTS.with(|stack| {
        let (entries, depth) = stack.get();
        depth.checked_sub(1).map_or(0, |top| entries[top])
    })
}

/// Puts a context on top; whether there was room.
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

/// Takes the top context off; `None` if there is none.
pub(crate) fn pop() -> Option<u64> {
    CONTEXTS.with(|stack| {
        let (entries, depth) = stack.get();
        let top = depth.checked_sub(1)?;
        stack.set((entries, top));
        Some(entries[top])
    })
}

/// Replaces the top context; 0 takes it off.
pub(crate) fn set_current(context: u64) {
    pop();
    if context != 0 {
        push(context);
    }
}

/// This thread's capture mode, a `CUstreamCaptureMode`.
pub(crate) fn capture_mode() -> i32 {
    CAPTURE_MODE.get()
}

/// Sets this thread's capture mode and returns the one before.
pub(crate) fn exchange_capture_mode(mode: i32) -> i32 {
    CAPTURE_MODE.replace(mode)
}

/// The driver function that this thread called last.
pub(crate) fn calling() -> Option<Function> {
    CALLING.get()
}

/// Notes the driver function that this thread calls.
pub(crate) fn set_calling(function: Function) {
    CALLING.set(Some(function));
}

/// The context whose work this thread is running; 0 for none.
pub(crate) fn running() -> u64 {
    RUNNING.get()
}

/// Whether this thread is inside a host function queued on a stream, where driver calls are forbidden.
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
