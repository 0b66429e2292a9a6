//! The refusals of a thread, until the thread's request fails for one or is served.

use super::DeviceCharge;
use crate::group::Refusal;
use std::cell::RefCell;

thread_local! {
    /// The last refusal, and the address of the charge that has refused.
    static LAST: RefCell<Option<(usize, Refusal)>> = const { RefCell::new(None) };
}

/// Calls `act` with the place of the calling thread's last refusal. `None` at the end of the
/// thread.
fn with_last<T>(act: impl FnOnce(&mut Option<(usize, Refusal)>) -> T) -> Option<T> {
    LAST.try_with(|last| last.try_borrow_mut().ok().map(|mut last| act(&mut last))).ok().flatten()
}

/// Returns whether a refusal is of a charge.
fn is_of(charge: &DeviceCharge, refused: &(usize, Refusal)) -> bool {
    refused.0 == std::ptr::from_ref(charge).addr()
}

/// Notes a refusal.
pub(super) fn note_refusal(charge: &DeviceCharge, refusal: Refusal) {
    with_last(|last| *last = Some((std::ptr::from_ref(charge).addr(), refusal)));
}

/// Forgets the refusal, after a success.
pub(super) fn forget_refusal() {
    with_last(|last| *last = None);
}

/// Returns whether a charge was the last to refuse.
pub(super) fn has_refusal(charge: &DeviceCharge) -> bool {
    with_last(|last| last.as_ref().is_some_and(|last| is_of(charge, last))).unwrap_or(false)
}

/// Takes the last refusal, if it is of the charge.
pub(super) fn last_refusal(charge: &DeviceCharge) -> Option<Refusal> {
    with_last(|last| last.take_if(|last| is_of(charge, last))).flatten().map(|(_, refusal)| refusal)
}
