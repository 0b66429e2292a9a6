//! The device that has none of the optional parts.

use crate::device::{DeviceError, ErrorKind};

/// The error of a part that the device does not have.
pub(super) const LACKING: DeviceError = DeviceError::new(ErrorKind::Unsupported, 0);

/// A device that has no memory, no events and no clock, and that reports nothing to the program.
///
/// A device that implements only some methods of a trait forwards the trait
/// ([`forward`](crate::forward)) to a bare device.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Bare;
