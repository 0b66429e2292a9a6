//! Failed calls to a device.

use core::fmt;

/// Why a call to the device failed, as far as the allocator's next step depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The device certainly has no memory (or address space) left for this call; nothing else is wrong.
    OutOfMemory,
    /// The call is not permitted while a stream captures a graph.
    NotPermittedInCapture,
    /// The device refused an argument.
    InvalidArgument,
    /// The device or its driver lacks the feature.
    Unsupported,
    /// The context is lost: every later call would fail in the same way.
    ContextLost,
    /// The driver is shutting down.
    Deinitialized,
    /// The call came from a forked child of the process that set the device up.
    Forked,
    /// Anything else; the code says what.
    Other,
}

/// A failed call: its kind, and the device's own code for the report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceError {
    /// What the allocator acts upon.
    pub kind: ErrorKind,
    /// The device's own code (a `CUresult` in the CUDA backend), kept as a plain integer.
    pub code: u32,
}

impl DeviceError {
    /// An error of `kind` with the device's own `code`.
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
