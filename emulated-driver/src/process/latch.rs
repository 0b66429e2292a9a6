//! Final states of the whole library: a forked child, and a driver torn down.
//!
//! Every call checks the state first and without a lock. In a forked child a thread that was not
//! copied may hold the lock forever, and after the teardown the state may be gone.

use crate::values::code::Code;
use crate::values::config::Manner;
use std::sync::atomic::{AtomicU32, Ordering};

/// Not yet initialised, or initialised and well.
const OPEN: u32 = 0;
/// Initialised and well: a fork from here leaves the child with [`FORKED`].
const READY: u32 = 1;
/// A child of the initializing process. Calls answer `NOT_INITIALIZED`.
const FORKED: u32 = 2;
/// A child of the initializing process. Calls abort the process.
const FORKED_CRASH: u32 = 3;
/// Torn down; calls answer `DEINITIALIZED`.
const TORN_DOWN: u32 = 4;
/// Torn down. Calls abort the process.
const TORN_DOWN_CRASH: u32 = 5;
static LATCH: AtomicU32 = AtomicU32::new(OPEN);
/// State of a child after a fork.
static AFTER_FORK: AtomicU32 = AtomicU32::new(FORKED);

/// Returns whether `cuInit` has succeeded, with no fork or teardown since.
pub(crate) fn is_ready() -> bool {
    LATCH.load(Ordering::Acquire) == READY
}

/// Returns whether the process is a child of the initializing process.
pub(crate) fn is_forked() -> bool {
    matches!(LATCH.load(Ordering::Acquire), FORKED | FORKED_CRASH)
}

/// Returns the answer to every call in the present state, or `None` if calls are allowed.
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

/// Marks the library as initialized. The first call also registers a handler for forks, and
/// `at_exit` for the end of the process.
pub(crate) fn ready(fork: Manner, at_exit: extern "C" fn()) {
    AFTER_FORK.store(if fork == Manner::Crash { FORKED_CRASH } else { FORKED }, Ordering::Release);
    if LATCH.compare_exchange(OPEN, READY, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        // SAFETY: the handler only uses atomics, which is allowed in a forked child.
        unsafe { libc::pthread_atfork(None, None, Some(in_forked_child)) };
        // SAFETY: the handler takes no arguments, and the library is never unloaded.
        unsafe { libc::atexit(at_exit) };
    }
}

/// Ends the driver of the process, as does the driver's exit handler.
pub(crate) fn tear_down(how: Manner) {
    let state = if how == Manner::Crash { TORN_DOWN_CRASH } else { TORN_DOWN };
    LATCH.store(state, Ordering::Release);
}

extern "C" fn in_forked_child() {
    if is_ready() {
        LATCH.store(AFTER_FORK.load(Ordering::Acquire), Ordering::Release);
    }
}
