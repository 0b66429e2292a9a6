//! Errors of calls to a device.

use core::fmt;

/// The reason why a call to the device failed, as far as the allocator's next step depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The device certainly has no memory or addresses left for this call, and is otherwise
    /// working. The allocator releases cached memory and retries.
    OutOfMemory,
    /// The call is not permitted while a stream captures a graph. The allocator makes it later.
    NotPermittedInCapture,
    /// The device refused an argument.
    InvalidArgument,
    /// The device or its driver does not support the feature.
    Unsupported,
    /// The context is lost, so every later call would fail too. The allocator makes no more calls.
    ContextLost,
    /// The driver is shutting down.
    Deinitialized,
    /// The call came from a forked child of the process that initialised the device.
    Forked,
    /// Any other reason; see [`DeviceError::code`].
    Other,
}

/// A failed call to the device: the kind of error, and the device's own code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceError {
    /// The kind of error. The allocator's next step depends on it.
    pub kind: ErrorKind,
    /// The device's own code, which is only used in messages (a `CUresult` in the CUDA backend).
    pub code: u32,
}

impl DeviceError {
    /// Creates an error of this kind, with the device's own `code`.
    pub const fn new(kind: ErrorKind, code: u32) -> Self {
        Self { kind, code }
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            ErrorKind::OutOfMemory => "out of device memory",
            ErrorKind::NotPermittedInCapture => "not permitted while a stream is capturing",
            ErrorKind::InvalidArgument => "invalid argument",
            ErrorKind::Unsupported => "not supported by this device or driver",
            ErrorKind::ContextLost => "the device context is lost",
            ErrorKind::Deinitialized => "the driver is shutting down",
            ErrorKind::Forked => "called in a forked child process",
            ErrorKind::Other => "device error",
        };
        write!(f, "{what} (code {})", self.code)
    }
}

impl core::error::Error for DeviceError {}

/// The result of a call to the device.
pub type DeviceResult<T> = Result<T, DeviceError>;

#[cfg(test)]
mod tests {
    extern crate std;
    use super::{DeviceError, ErrorKind};
    use std::string::ToString;

    #[test]
    fn an_error_names_its_kind_and_the_code_of_the_device() {
        for (kind, text) in [
            (ErrorKind::OutOfMemory, "out of device memory (code 2)"),
            (ErrorKind::NotPermittedInCapture, "not permitted while a stream is capturing (code 2)"),
            (ErrorKind::ContextLost, "the device context is lost (code 2)"),
            (ErrorKind::Other, "device error (code 2)"),
        ] {
            assert_eq!(DeviceError::new(kind, 2).to_string(), text);
        }
    }
}
