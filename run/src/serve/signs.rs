//! Signs for calls on their way to the driver, which most programs need not stop for.

use crate::sleep::{CALL_STATE, visit as visit_at};
use cachalot_gate::{Gate, Visit};
use core::sync::atomic::Ordering;

/// Has first launches told apart from now on.
pub(super) fn tell_first_launches() {
    CALL_STATE.tells_first_launches.store(true, Ordering::Relaxed);
}

/// Returns whether first launches are told apart: once the options ask for full books.
#[inline]
pub fn tells_first_launches() -> bool {
    CALL_STATE.tells_first_launches.load(Ordering::Relaxed)
}

/// Notes that the process has memory to park. Returns the gate before the memory.
pub(super) fn sleeps() -> &'static Gate {
    let gate = CALL_STATE.gate.get_or_init(Gate::new);
    CALL_STATE.sleeps.store(true, Ordering::Relaxed);
    gate
}

/// Returns whether the calling process may have memory parked. Costs a load.
#[inline]
pub fn may_sleep() -> bool {
    // Written before the process's first memory is served, and the program orders its uses of memory behind the request.
    CALL_STATE.sleeps.load(Ordering::Relaxed)
}

/// Begins a call of the driver as [`enter`](super::enter) does, where nothing has to be called for it.
#[inline]
pub fn visit() -> Option<Visit<'static>> {
    visit_at(CALL_STATE.gate.get()?)
}
