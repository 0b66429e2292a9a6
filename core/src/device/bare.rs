//! The device that lacks everything.

use crate::device::{DeviceError, ErrorKind};

/// The error of a part that a device lacks.
pub(super) const LACKING: DeviceError = DeviceError::new(ErrorKind::Unsupported, 0);

/// A device that can do nothing: it has no memory and no events, no clock, and tells the program nothing.
///
/// A device that lacks some methods of a trait forwards the trait ([`forward`](crate::forward)) to a bare device.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Bare;
