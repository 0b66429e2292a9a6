//! The driver's result codes, as integers. A code that a newer driver adds is a value like any
//! other.

use cachalot_core::{DeviceError, ErrorKind};
use core::fmt;

/// The result code of a driver call (`CUresult` in `cuda.h`).
///
/// Every number is valid. The constants name the codes that this crate knows, and a newer driver
/// may return others.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
#[must_use]
pub struct CuResult(pub u32);

/// Declares the known codes, and the list that the header test compares with `cuda.h`.
macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        impl CuResult {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// The known codes: names without prefix, and numbers.
            pub const KNOWN: &'static [(&'static str, Self)] = &[$((stringify!($name), Self::$name),)*];
        }
    };
}

codes! {
    /// The call succeeded, and all results are written.
    SUCCESS = 0;
    /// An argument is out of range.
    INVALID_VALUE = 1;
    /// Not enough memory, or not enough of another resource.
    OUT_OF_MEMORY = 2;
    /// `cuInit` was not called, or failed, or was called in the parent of a forked child.
    NOT_INITIALIZED = 3;
    /// The driver is shutting down.
    DEINITIALIZED = 4;
    /// The loaded library is the toolkit's stub, not a driver.
    STUB_LIBRARY = 34;
    /// The driver is older than the call. Also returned for an entry point that the loaded driver
    /// does not export.
    CALL_REQUIRES_NEWER_DRIVER = 36;
    /// The device is in use exclusively, or prohibited.
    DEVICE_UNAVAILABLE = 46;
    /// The driver sees no device.
    NO_DEVICE = 100;
    /// No device has this ordinal.
    INVALID_DEVICE = 101;
    /// This driver cannot read the image of a module.
    INVALID_IMAGE = 200;
    /// No context is current, or the context is no longer valid.
    INVALID_CONTEXT = 201;
    /// The module holds no code for this device.
    NO_BINARY_FOR_GPU = 209;
    /// Memory failed beyond correction.
    ECC_UNCORRECTABLE = 214;
    /// The two devices cannot reach each other's memory.
    PEER_ACCESS_UNSUPPORTED = 217;
    /// A link between devices failed beyond correction.
    NVLINK_UNCORRECTABLE = 220;
    /// An error of the device was contained, and the process must be restarted.
    CONTAINED = 226;
    /// A named file does not exist.
    FILE_NOT_FOUND = 301;
    /// A call to the operating system failed.
    OPERATING_SYSTEM = 304;
    /// A handle does not belong to the current context.
    INVALID_HANDLE = 400;
    /// A resource is not in the state that the call needs.
    ILLEGAL_STATE = 401;
    /// A named symbol does not exist.
    NOT_FOUND = 500;
    /// The queried work is not complete yet, which is no error.
    NOT_READY = 600;
    /// A kernel touched an address that is not mapped.
    ILLEGAL_ADDRESS = 700;
    /// A kernel ran for longer than the watchdog allows.
    LAUNCH_TIMEOUT = 702;
    /// The peer access was enabled before.
    PEER_ACCESS_ALREADY_ENABLED = 704;
    /// The context was destroyed.
    CONTEXT_IS_DESTROYED = 709;
    /// An assertion in a kernel failed.
    ASSERT = 710;
    /// More peers than the device has room for.
    TOO_MANY_PEERS = 711;
    /// The host memory is registered already.
    HOST_MEMORY_ALREADY_REGISTERED = 712;
    /// The host memory is not registered.
    HOST_MEMORY_NOT_REGISTERED = 713;
    /// A kernel's stack is broken.
    HARDWARE_STACK_ERROR = 714;
    /// A kernel ran into an instruction that does not exist.
    ILLEGAL_INSTRUCTION = 715;
    /// A kernel touched an address that is not aligned.
    MISALIGNED_ADDRESS = 716;
    /// A kernel used an address in the wrong space.
    INVALID_ADDRESS_SPACE = 717;
    /// A kernel's program counter left its space.
    INVALID_PC = 718;
    /// A kernel failed in another way.
    LAUNCH_FAILED = 719;
    /// A kernel exited without freeing tensor memory.
    TENSOR_MEMORY_LEAK = 721;
    /// The attempted operation is not permitted.
    NOT_PERMITTED = 800;
    /// The device or the system does not have the feature.
    NOT_SUPPORTED = 801;
    /// The server that shares the device ended this client.
    MPS_CLIENT_TERMINATED = 810;
    /// The call is not permitted while the stream captures.
    STREAM_CAPTURE_UNSUPPORTED = 900;
    /// The capture was invalidated by an earlier error.
    STREAM_CAPTURE_INVALIDATED = 901;
    /// The call would merge two captures.
    STREAM_CAPTURE_MERGE = 902;
    /// The capture was not started on this stream.
    STREAM_CAPTURE_UNMATCHED = 903;
    /// A branch of the capture was not joined.
    STREAM_CAPTURE_UNJOINED = 904;
    /// The call would make a dependency across the capture's boundary.
    STREAM_CAPTURE_ISOLATION = 905;
    /// The legacy stream cannot be used while a blocking stream captures.
    STREAM_CAPTURE_IMPLICIT = 906;
    /// The event was last recorded in a capture.
    CAPTURED_EVENT = 907;
    /// Another thread started the capture.
    STREAM_CAPTURE_WRONG_THREAD = 908;
    /// A device outside of CUDA failed while a CUDA device waited for it.
    EXTERNAL_DEVICE = 911;
    /// The driver does not know what failed.
    UNKNOWN = 999;
}

impl CuResult {
    /// Returns whether the call succeeded.
    #[inline]
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 == Self::SUCCESS.0
    }

    /// Returns whether every later call in the context would fail too, so that no call should be
    /// made.
    ///
    /// These are the codes after which `cuda.h` demands a new process, those of a destroyed or
    /// ended context, those of failed hardware, and [`DEINITIALIZED`](Self::DEINITIALIZED).
    #[must_use]
    pub const fn is_sticky(self) -> bool {
        matches!(
            self,
            Self::DEINITIALIZED
                | Self::ECC_UNCORRECTABLE
                | Self::NVLINK_UNCORRECTABLE
                | Self::CONTAINED
                | Self::ILLEGAL_ADDRESS
                | Self::LAUNCH_TIMEOUT
                | Self::CONTEXT_IS_DESTROYED
                | Self::ASSERT
                | Self::HARDWARE_STACK_ERROR
                | Self::ILLEGAL_INSTRUCTION
                | Self::MISALIGNED_ADDRESS
                | Self::INVALID_ADDRESS_SPACE
                | Self::INVALID_PC
                | Self::LAUNCH_FAILED
                | Self::TENSOR_MEMORY_LEAK
                | Self::MPS_CLIENT_TERMINATED
                | Self::EXTERNAL_DEVICE
        )
    }

    /// Returns the kind of the code, by which the allocator chooses its next step. Returns
    /// [`ErrorKind::Other`] for an unknown code.
    #[must_use]
    pub const fn kind(self) -> ErrorKind {
        match self {
            Self::OUT_OF_MEMORY => ErrorKind::OutOfMemory,
            Self::DEINITIALIZED => ErrorKind::Deinitialized,
            Self::INVALID_VALUE | Self::INVALID_DEVICE | Self::INVALID_CONTEXT | Self::INVALID_HANDLE => {
                ErrorKind::InvalidArgument
            }
            Self::CALL_REQUIRES_NEWER_DRIVER | Self::NOT_SUPPORTED | Self::PEER_ACCESS_UNSUPPORTED => {
                ErrorKind::Unsupported
            }
            Self(900..=908) => ErrorKind::NotPermittedInCapture,
            sticky if sticky.is_sticky() => ErrorKind::ContextLost,
            _ => ErrorKind::Other,
        }
    }

    /// Converts the code to the core's error type.
    #[must_use]
    pub const fn error(self) -> DeviceError {
        DeviceError::new(self.kind(), self.0)
    }

    /// Returns the name of the code without its prefix, if this crate knows the code. Calls no
    /// driver.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        Self::KNOWN.iter().find(|(_, code)| *code == self).map(|(name, _)| *name)
    }
}

impl fmt::Debug for CuResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "CUDA result {}", self.0),
        }
    }
}

impl fmt::Display for CuResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_follow_the_code() {
        let expected = [
            (2, ErrorKind::OutOfMemory),
            (4, ErrorKind::Deinitialized),
            (1, ErrorKind::InvalidArgument),
            (400, ErrorKind::InvalidArgument),
            (36, ErrorKind::Unsupported),
            (801, ErrorKind::Unsupported),
            (700, ErrorKind::ContextLost),
            (719, ErrorKind::ContextLost),
            (721, ErrorKind::ContextLost),
            (709, ErrorKind::ContextLost),
            (720, ErrorKind::Other),
            (899, ErrorKind::Other),
            (900, ErrorKind::NotPermittedInCapture),
            (908, ErrorKind::NotPermittedInCapture),
            (909, ErrorKind::Other),
            (123_456, ErrorKind::Other),
        ];
        for (code, kind) in expected {
            assert_eq!(CuResult(code).kind(), kind, "{}", CuResult(code));
            assert_eq!(CuResult(code).error(), DeviceError::new(kind, code));
        }
    }

    #[test]
    fn a_sticky_code_loses_the_context_or_the_driver() {
        for code in (0..1100).map(CuResult) {
            let lost = matches!(code.kind(), ErrorKind::ContextLost | ErrorKind::Deinitialized);
            assert_eq!(code.is_sticky(), lost, "{code}");
        }
    }

    #[test]
    fn an_unknown_code_is_shown_as_its_number() {
        assert_eq!(CuResult(4711).to_string(), "CUDA result 4711");
        assert_eq!(CuResult::ILLEGAL_ADDRESS.to_string(), "ILLEGAL_ADDRESS (700)");
    }
}
