//! Flags that a call reads on its way to the driver. In most programs they are off.

use crate::sleep::{CALL_STATE, fast_guard as guard_of};
use cachalot_gate::{AsymmetricRwLock, OuterReadGuard};
use core::sync::atomic::Ordering;

/// Turns the distinction of first launches on.
pub(super) fn tell_first_launches() {
    CALL_STATE.tells_first_launches.store(true, Ordering::Relaxed);
}

/// Returns whether first launches are told apart: if the options ask for full books.
#[inline]
pub fn tells_first_launches() -> bool {
    CALL_STATE.tells_first_launches.load(Ordering::Relaxed)
}

/// Notes that the process has memory to park. Returns the lock of the memory.
pub(super) fn sleeps() -> &'static AsymmetricRwLock {
    let lock = CALL_STATE.lock.get_or_init(AsymmetricRwLock::new);
    CALL_STATE.sleeps.store(true, Ordering::Relaxed);
    lock
}

/// Returns whether the calling process may have memory parked. Costs a load.
#[inline]
pub fn may_sleep() -> bool {
    // Written before the process's first memory is served, and the program uses the memory after
    // the request.
    CALL_STATE.sleeps.load(Ordering::Relaxed)
}

/// Starts a call of the driver as [`enter`](super::enter) does, where nothing has to be called for
/// it.
#[inline]
pub fn fast_guard() -> Option<OuterReadGuard<'static>> {
    guard_of(CALL_STATE.lock.get()?)
}
