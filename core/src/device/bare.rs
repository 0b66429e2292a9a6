//! The device without any part.

use crate::device::{DeviceError, ErrorKind};

/// The error of a missing part of a device.
pub(super) const LACKING: DeviceError = DeviceError::new(ErrorKind::Unsupported, 0);

/// A device without memory, events and a clock, which tells the program nothing.
///
/// A device with only some methods of a trait forwards the trait ([`forward`](crate::forward)) to a
/// bare device.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Bare;
