//! The states of the whole library from which there is no way back: a forked child, and a driver torn down.
//!
//! Looked at before anything else and without a lock: in a forked child the lock may be held for ever by a thread
//! that was not copied, and after the teardown the state may be gone.

use crate::code::Code;
use crate::config::Manner;
use std::sync::atomic::{AtomicU32, Ordering};

/// Not yet initialised, or initialised and well.
const OPEN: u32 = 0;
/// Initialised and well: a fork from here leaves the child with [`FORKED`].
const READY: u32 = 1;
/// A child of the process that initialised; calls answer `NOT_INITIALIZED`.
const FORKED: u32 = 2;
/// The same; calls abort the process.
const FORKED_CRASH: u32 = 3;
/// Torn down; calls answer `DEINITIALIZED`.
const TORN_DOWN: u32 = 4;
/// The same; calls abort the process.
const TORN_DOWN_CRASH: u32 = 5;

static LATCH: AtomicU32 = AtomicU32::new(OPEN);
/// What a fork makes of the child's latch.
static AFTER_FORK: AtomicU32 = AtomicU32::new(FORKED);

/// Whether `cuInit` has succeeded and nothing happened since.
pub(crate) fn is_ready() -> bool {
    LATCH.load(Ordering::Acquire) == READY
}

/// Whether this process is a child of the one that initialised.
pub(crate) fn is_forked() -> bool {
    matches!(LATCH.load(Ordering::Acquire), FORKED | FORKED_CRASH)
}

/// The answer to every call in the present state, or `None` if calls may go on.
pub(crate) fn refusal() -> Option<Code> {
    match LATCH.load(Ordering::Acquire) {
        OPEN | READY => None,
        FORKED => Some(Code::NOT_INITIALIZED),
        TORN_DOWN => Some(Code::DEINITIALIZED),
        state => {
            let when = if state == FORKED_CRASH { "in a forked child" } else { "after its teardown" };
            eprintln!("emulated driver: called {when}");
            std::process::abort()
        }
    }
}

/// Marks the library as initialised; the first time, also watches for forks and for the end of the process.
pub(crate) fn ready(fork: Manner) {
    AFTER_FORK.store(if fork == Manner::Crash { FORKED_CRASH } else { FORKED }, Ordering::Release);
    if LATCH.compare_exchange(OPEN, READY, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        // SAFETY: the handler only uses atomics, which is allowed in a forked child.
        unsafe { libc::pthread_atfork(None, None, Some(in_forked_child)) };
        // SAFETY: the handler takes no arguments, and the library is never unloaded.
        unsafe { libc::atexit(at_exit) };
    }
}

/// Ends the driver for this process, as its own exit handler does.
pub(crate) fn tear_down(how: Manner) {
    let state = if how == Manner::Crash { TORN_DOWN_CRASH } else { TORN_DOWN };
    LATCH.store(state, Ordering::Release);
}

extern "C" fn in_forked_child() {
    if is_ready() {
        LATCH.store(AFTER_FORK.load(Ordering::Acquire), Ordering::Release);
    }
}

extern "C" fn at_exit() {
    if is_ready() {
        let how = crate::driver::at_exit();
        tear_down(how);
    }
}
