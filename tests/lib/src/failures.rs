//! Failing calls of a simulated device, by enumeration.

use cachalot_core::simulated::{Call, Failure, SimulatedDevice};
use cachalot_core::{DeviceError, ErrorKind};
use std::collections::BTreeMap;

/// The code of an injected error.
pub const INJECTED: u32 = 77;

/// Returns how often a device was called.
pub fn calls(device: &SimulatedDevice) -> BTreeMap<Call, u64> {
    Call::ALL.into_iter().map(|call| (call, device.calls(call))).collect()
}

/// Returns the failures of each call at each of its first occurrences, of which there are as many
/// as `made` says: once, or from then on.
pub fn each(made: &BTreeMap<Call, u64>, kind: ErrorKind, persistent: bool) -> impl Iterator<Item = Failure> {
    let error = DeviceError::new(kind, INJECTED);
    made.iter().flat_map(move |(&call, &made)| (1..=made).map(move |nth| Failure { call, nth, persistent, error }))
}

/// Returns the failures of [`each`] once, for each kind of error that a program survives. Only the
/// calls that order streams are refused by a capture.
pub fn of_every_kind(made: &BTreeMap<Call, u64>) -> impl Iterator<Item = Failure> {
    let kinds = [ErrorKind::Other, ErrorKind::OutOfMemory, ErrorKind::NotPermittedInCapture];
    kinds.into_iter().flat_map(|kind| each(made, kind, false)).filter(|Failure { call, error, .. }| {
        error.kind != ErrorKind::NotPermittedInCapture || matches!(call, Call::Record | Call::OrderBehind)
    })
}

/// Lets a later call fail once, after so many of its kind.
pub fn fail_after(device: &SimulatedDevice, call: Call, after: u64, kind: ErrorKind) {
    let nth = device.calls(call) + 1 + after;
    device.fail(Failure { call, nth, persistent: false, error: DeviceError::new(kind, INJECTED) });
}
