//! What a launch reads before it goes to the driver, in one cache line: a launch finds none of the library's lines where the launch
//! before has left them.

use crate::sleep::MemorySleep;
use cachalot_cuda::CuResult;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;

#[repr(align(64))]
struct Signs {
    /// Whether first launches are told apart.
    tells_first_launches: AtomicBool,
    /// Whether the process has memory to park.
    sleeps: AtomicBool,
    /// The sleeper of the process.
    sleeper: OnceLock<&'static MemorySleep<CuResult>>,
}

static SIGNS: Signs =
    Signs { tells_first_launches: AtomicBool::new(false), sleeps: AtomicBool::new(false), sleeper: OnceLock::new() };

/// Has first launches told apart from now on.
pub(super) fn tell_first_launches() {
    SIGNS.tells_first_launches.store(true, Ordering::Relaxed);
}

/// Returns whether first launches are told apart: once the options ask for full books.
#[inline]
pub fn tells_first_launches() -> bool {
    SIGNS.tells_first_launches.load(Ordering::Relaxed)
}

/// Notes that the process has memory to park.
pub(super) fn sleeps() {
    SIGNS.sleeps.store(true, Ordering::Relaxed);
}

/// Returns whether the calling process may have memory parked. Costs a load.
#[inline]
pub fn may_sleep() -> bool {
    // Written before the process's first memory is served, and the program orders its uses of memory behind the request.
    SIGNS.sleeps.load(Ordering::Relaxed)
}

/// Names the sleeper of the process, which [sleeps](sleeps).
pub(super) fn set_sleeper(sleeper: &'static MemorySleep<CuResult>) {
    // Another thread has set the same.
    let _same = SIGNS.sleeper.set(sleeper);
}

/// Returns the sleeper of the process.
#[inline]
pub(super) fn sleeper() -> Option<&'static MemorySleep<CuResult>> {
    SIGNS.sleeper.get().copied()
}
