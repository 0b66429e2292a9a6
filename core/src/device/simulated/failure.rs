//! Failures to inject into a simulated device.

use crate::device::{Call, DeviceError};

/// A failure to inject, with [`SimulatedDevice::fail`](super::SimulatedDevice::fail).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The failing call.
    pub call: Call,
    /// The first failing call, counted from 1 since the device was created.
    pub nth: u64,
    /// Makes all later calls fail too.
    pub persistent: bool,
    /// The error returned. [`ErrorKind::ContextLost`](crate::device::ErrorKind::ContextLost) makes
    /// every later call of any kind fail.
    pub error: DeviceError,
}
