//! Failures that can be injected into a simulated device.

use crate::device::{Call, DeviceError};

/// A failure that is injected with [`SimulatedDevice::fail`](super::SimulatedDevice::fail).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The call that fails.
    pub call: Call,
    /// The number of the first such call that fails, counted from 1 since the device was created.
    pub nth: u64,
    /// Whether all later calls fail too.
    pub persistent: bool,
    /// The error that is returned. After
    /// [`ErrorKind::ContextLost`](crate::device::ErrorKind::ContextLost), every later call of any
    /// kind fails.
    pub error: DeviceError,
}
