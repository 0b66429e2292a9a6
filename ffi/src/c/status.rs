//! Status codes, and the conversion of each failure into a code.
//!
//! The constructor of a `Status` also writes the text for `cachalot_last_error`, so a failure
//! travels up as one number.

use crate::c::abi::cachalot_status;
use crate::c::last_error;
use crate::c::recorder;
use cachalot_core::config::ConfigError;
use cachalot_core::{DeviceError, Error, ErrorKind};
use cachalot_cuda::{CuResult, LoadError};
use core::ffi::{CStr, c_char};
use core::fmt::{self, Display};
use core::num::NonZeroI32;

/// Defines the status codes, and the table of names and meanings.
macro_rules! statuses {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        $(
            #[doc = $text]
            pub const $name: cachalot_status = $number;
        )*

        /// Number, name and meaning of every status.
        pub(crate) const STATUSES: &[(cachalot_status, &CStr, &CStr)] = &[
            $(($name, c(concat!(stringify!($name), "\0")), c(concat!($text, "\0"))),)*
        ];
    };
}

/// Converts a text with a trailing NUL for C.
const fn c(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the only NUL is the last byte"),
    }
}

// The numbers are part of the interface: no number ever changes or gets another meaning.
statuses! {
    CACHALOT_OK = 0, "success";
    CACHALOT_ERROR_NULL = 110, "a required pointer is NULL";
    CACHALOT_ERROR_STRUCT_SIZE = 114, "a structure's size is not one that the library can read or write";
    CACHALOT_ERROR_INVALID_HANDLE = 120, "not an allocator, or one that was destroyed";
    CACHALOT_ERROR_POISONED = 124, "an earlier call of this allocator ended in a fault of the library";
    CACHALOT_ERROR_BUSY = 128, "an allocator cannot be destroyed in its own callback";
    CACHALOT_ERROR_UNKNOWN_DEVICE = 132, "no device has this number";
    CACHALOT_ERROR_INVALID_POINTER = 136, "the address is not an allocated block";
    CACHALOT_ERROR_WRONG_SIZE = 140, "the block was requested with another size";
    CACHALOT_ERROR_NOT_PINNED = 142, "no memory at this address is pinned";
    CACHALOT_ERROR_TOO_LARGE = 144, "no device could ever have so much memory";
    CACHALOT_ERROR_INVALID_STREAM = 148, "no stream can have this handle";
    CACHALOT_ERROR_UNKNOWN_POOL = 152, "there is no such private pool";
    CACHALOT_ERROR_UNKNOWN_TAG = 153, "no pool has this tag";
    CACHALOT_ERROR_UNKNOWN_RANGE = 154, "there is no such elastic range";
    CACHALOT_ERROR_NOT_ROUTED = 156, "no route and no capture leads to the pool";
    CACHALOT_ERROR_INVALID_CONFIG = 160, "the configuration string is not valid";
    CACHALOT_ERROR_INVALID_FRACTION = 164, "the fraction is not from 0 to 1";
    CACHALOT_ERROR_UNKNOWN_KEY = 168, "no statistic has this name";
    CACHALOT_ERROR_INVALID_ARGUMENT = 172, "flags or another argument are not valid";
    CACHALOT_ERROR_BUFFER_TOO_SMALL = 176, "the result does not fit";
    CACHALOT_ERROR_PARKED = 180, "the memory is parked or lent";
    CACHALOT_ERROR_NOT_PARKABLE = 184, "the memory cannot be parked, woken or lent now";
    CACHALOT_ERROR_OUT_OF_MEMORY = 210, "out of device memory";
    CACHALOT_ERROR_REJECTED = 214, "more device memory than the configured fraction allows";
    CACHALOT_ERROR_TABLE_FULL = 220, "out of host memory, or a table of the library is full";
    CACHALOT_ERROR_STILL_HELD = 230, "blocks, ranges or pools were still in use; their memory was not given back";
    CACHALOT_ERROR_NO_DRIVER = 310, "no CUDA driver, or it did not start";
    CACHALOT_ERROR_DRIVER_TOO_OLD = 314, "the CUDA driver is too old";
    CACHALOT_ERROR_DRIVER = 320, "the CUDA driver failed";
    CACHALOT_ERROR_UNSUPPORTED = 330, "the device or the driver does not have this feature";
    CACHALOT_ERROR_CAPTURING = 340, "not possible while a stream captures a graph";
    CACHALOT_ERROR_CONTEXT_LOST = 350, "the CUDA context is lost";
    CACHALOT_ERROR_SHUTDOWN = 354, "the CUDA driver is shutting down";
    CACHALOT_ERROR_FORKED = 358, "called in a forked child process";
    CACHALOT_ERROR_IO = 410, "a file could not be written";
    CACHALOT_ERROR_STOPPED = 420, "a callback stopped the operation";
    CACHALOT_ERROR_PANIC = 910, "a fault inside the library";
}

/// Returns the name and the meaning of a status, or `None` for an unknown number.
fn describe(status: cachalot_status) -> Option<(&'static CStr, &'static CStr)> {
    STATUSES.iter().find(|(number, ..)| *number == status).map(|&(_, name, text)| (name, text))
}

/// Returns the name of a status, or `CACHALOT_ERROR_UNKNOWN` for an unknown number.
pub(crate) fn name_of(status: cachalot_status) -> *const c_char {
    describe(status).map_or(c"CACHALOT_ERROR_UNKNOWN", |(name, _)| name).as_ptr()
}

/// Returns the meaning of a status, or a text about an unknown number.
pub(crate) fn meaning_of(status: cachalot_status) -> *const c_char {
    describe(status).map_or(c"a status that this version does not know", |(_, text)| text).as_ptr()
}

/// The kind of program that reads the texts. Determines wording and advice.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Host {
    /// A direct caller of the library.
    #[default]
    Program,
    /// `PyTorch`, through the plug-in.
    PyTorch,
}

/// A failure. The calling thread's last error has the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Status(NonZeroI32);

/// The result of a call.
pub(crate) type Outcome<T = ()> = Result<T, Status>;

impl Status {
    /// Records a failure in which the driver had no part.
    #[cold]
    pub(crate) fn new(status: cachalot_status, text: impl Display) -> Self {
        Self::with_driver_code(status, 0, text)
    }

    /// Records a failure with the driver's own code.
    #[cold]
    pub(crate) fn with_driver_code(status: cachalot_status, code: u32, text: impl Display) -> Self {
        last_error::set(code, format_args!("{text}"));
        Self(NonZeroI32::new(status).expect("success is no failure"))
    }

    /// Records that the pointer named `what` is NULL.
    #[cold]
    pub(crate) fn null(what: &str) -> Self {
        Self::new(CACHALOT_ERROR_NULL, format_args!("{what} is NULL"))
    }

    /// Records an invalid argument.
    #[cold]
    pub(crate) fn argument(text: fmt::Arguments<'_>) -> Self {
        Self::new(CACHALOT_ERROR_INVALID_ARGUMENT, text)
    }

    /// Returns the number for C.
    pub(crate) fn number(self) -> cachalot_status {
        self.0.get()
    }
}

impl From<DeviceError> for Status {
    #[cold]
    fn from(error: DeviceError) -> Self {
        let status = match error.kind {
            ErrorKind::OutOfMemory => CACHALOT_ERROR_OUT_OF_MEMORY,
            ErrorKind::NotPermittedInCapture => CACHALOT_ERROR_CAPTURING,
            ErrorKind::Unsupported => CACHALOT_ERROR_UNSUPPORTED,
            ErrorKind::ContextLost => CACHALOT_ERROR_CONTEXT_LOST,
            ErrorKind::Deinitialized => CACHALOT_ERROR_SHUTDOWN,
            ErrorKind::Forked => CACHALOT_ERROR_FORKED,
            _ => CACHALOT_ERROR_DRIVER,
        };
        if error.code == CuResult::INVALID_HANDLE.0 && error.kind == ErrorKind::InvalidArgument {
            let text = "the driver knows no stream by a handle that the allocator has: \
                        call cachalot_stream_destroyed before a stream is destroyed";
            return Self::with_driver_code(status, error.code, format_args!("{text} (code {})", error.code));
        }
        Self::with_driver_code(status, error.code, error)
    }
}

impl From<Error> for Status {
    #[cold]
    fn from(error: Error) -> Self {
        Self::of(&error, error)
    }
}

/// A failed request of `PyTorch`, whose text has the words of `PyTorch`.
pub(crate) struct InWordsOfPyTorch(Status);

impl From<Error> for InWordsOfPyTorch {
    #[cold]
    fn from(error: Error) -> Self {
        Self(Status::of(&error, error.in_words_of_pytorch()))
    }
}

impl From<Status> for InWordsOfPyTorch {
    fn from(status: Status) -> Self {
        Self(status)
    }
}

impl From<InWordsOfPyTorch> for Status {
    fn from(InWordsOfPyTorch(status): InWordsOfPyTorch) -> Self {
        status
    }
}

impl Status {
    /// Records a failure of the core as `text`.
    fn of(error: &Error, text: impl Display) -> Self {
        let status = match *error {
            Error::Device(error) => return error.into(),
            Error::OutOfMemory(_) | Error::OutOfAddresses { .. } => CACHALOT_ERROR_OUT_OF_MEMORY,
            Error::Rejected(_) => CACHALOT_ERROR_REJECTED,
            Error::TooLarge(_) => CACHALOT_ERROR_TOO_LARGE,
            Error::InvalidPointer { .. } => CACHALOT_ERROR_INVALID_POINTER,
            Error::WrongSize { .. } => CACHALOT_ERROR_WRONG_SIZE,
            Error::NotPinned(_) => CACHALOT_ERROR_NOT_PINNED,
            Error::NotExportable(_) | Error::SpillRefused(_) => CACHALOT_ERROR_UNSUPPORTED,
            Error::UnknownDevice(_) => CACHALOT_ERROR_UNKNOWN_DEVICE,
            Error::UnknownPool(_) => CACHALOT_ERROR_UNKNOWN_POOL,
            Error::GraphMemory(_) => CACHALOT_ERROR_STILL_HELD,
            Error::UnknownTag(_) => CACHALOT_ERROR_UNKNOWN_TAG,
            Error::Parked => CACHALOT_ERROR_PARKED,
            Error::ParkingRefused(_) | Error::NoHostMemory => CACHALOT_ERROR_NOT_PARKABLE,
            Error::UnknownRange(_) => CACHALOT_ERROR_UNKNOWN_RANGE,
            Error::NotRouted(_) => CACHALOT_ERROR_NOT_ROUTED,
            Error::InvalidFraction(_) => CACHALOT_ERROR_INVALID_FRACTION,
            Error::InvalidStream => CACHALOT_ERROR_INVALID_STREAM,
            Error::TableFull(_) => CACHALOT_ERROR_TABLE_FULL,
            _ => CACHALOT_ERROR_INVALID_ARGUMENT,
        };
        match (error, recorder::take_written()) {
            (Error::OutOfMemory(_), Some(path)) => {
                Self::new(status, format_args!("{text} The latest events are in {}.", path.display()))
            }
            _ => Self::new(status, text),
        }
    }
}

impl From<ConfigError> for Status {
    #[cold]
    fn from(error: ConfigError) -> Self {
        Self::new(CACHALOT_ERROR_INVALID_CONFIG, error)
    }
}

impl Status {
    /// Records why there is no driver. The text for a direct caller names the flag for simulated
    /// devices.
    #[cold]
    pub(crate) fn no_driver(error: &LoadError, host: Host) -> Self {
        let (status, code) = match *error {
            LoadError::MissingSymbol(_) | LoadError::TooOld { .. } => (CACHALOT_ERROR_DRIVER_TOO_OLD, 0),
            LoadError::Start(code) => (CACHALOT_ERROR_NO_DRIVER, code.0),
            LoadError::Forked => (CACHALOT_ERROR_FORKED, 0),
            _ => (CACHALOT_ERROR_NO_DRIVER, 0),
        };
        let without = match (error, host) {
            (LoadError::NotFound { .. } | LoadError::Start(CuResult::NO_DEVICE), Host::Program) => {
                "; to try without a GPU, set the flag CACHALOT_SIMULATED"
            }
            _ => "",
        };
        Self::with_driver_code(status, code, format_args!("{error}{without}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cachalot_core::DeviceIndex;

    #[test]
    fn numbers_and_names_are_unique_and_only_success_is_zero() {
        for (at, (number, name, _)) in STATUSES.iter().enumerate() {
            assert_eq!(*number == 0, at == 0);
            assert!(STATUSES[at + 1..].iter().all(|(other, other_name, _)| other != number && other_name != name));
        }
    }

    #[test]
    fn a_failure_of_the_driver_keeps_its_code() {
        let status = Status::from(Error::Device(DeviceError::new(ErrorKind::ContextLost, 719)));
        assert_eq!((status.number(), last_error::driver_code()), (CACHALOT_ERROR_CONTEXT_LOST, 719));
        let status = Status::null("out");
        assert_eq!((status.number(), last_error::driver_code()), (CACHALOT_ERROR_NULL, 0));
    }

    #[test]
    fn a_refused_handle_is_told_as_a_stream_whose_end_was_not_reported() {
        let refused = Status::from(CuResult::INVALID_HANDLE.error());
        assert_eq!((refused.number(), last_error::driver_code()), (CACHALOT_ERROR_DRIVER, 400));
        // SAFETY: the text belongs to this thread and is NUL-terminated.
        let text = unsafe { CStr::from_ptr(last_error::text()) }.to_string_lossy();
        assert!(text.contains("cachalot_stream_destroyed") && text.contains("(code 400)"), "{text}");
    }

    #[test]
    fn each_failure_has_its_status() {
        for (kind, status) in [
            (ErrorKind::OutOfMemory, CACHALOT_ERROR_OUT_OF_MEMORY),
            (ErrorKind::NotPermittedInCapture, CACHALOT_ERROR_CAPTURING),
            (ErrorKind::InvalidArgument, CACHALOT_ERROR_DRIVER),
            (ErrorKind::Unsupported, CACHALOT_ERROR_UNSUPPORTED),
            (ErrorKind::Deinitialized, CACHALOT_ERROR_SHUTDOWN),
            (ErrorKind::Forked, CACHALOT_ERROR_FORKED),
        ] {
            assert_eq!(Status::from(DeviceError::new(kind, 1)).number(), status, "{kind:?}");
        }
        for (error, status) in [
            (Error::UnknownDevice(DeviceIndex(7)), CACHALOT_ERROR_UNKNOWN_DEVICE),
            (Error::ParkingRefused("it is in use"), CACHALOT_ERROR_NOT_PARKABLE),
            (Error::NoHostMemory, CACHALOT_ERROR_NOT_PARKABLE),
            (Error::InvalidStream, CACHALOT_ERROR_INVALID_STREAM),
            (Error::TableFull("streams"), CACHALOT_ERROR_TABLE_FULL),
            (Error::PlanRefused("it overlaps"), CACHALOT_ERROR_INVALID_ARGUMENT),
        ] {
            assert_eq!(Status::from(error).number(), status, "{error:?}");
        }
        for (error, status, code) in [
            (LoadError::TooOld { version: 9000 }, CACHALOT_ERROR_DRIVER_TOO_OLD, 0),
            (LoadError::Start(CuResult::NO_DEVICE), CACHALOT_ERROR_NO_DRIVER, CuResult::NO_DEVICE.0),
            (LoadError::Forked, CACHALOT_ERROR_FORKED, 0),
        ] {
            let told = Status::no_driver(&error, Host::Program).number();
            assert_eq!((told, last_error::driver_code()), (status, code), "{error:?}");
        }
    }

    #[test]
    fn a_missing_driver_names_each_file_once_and_the_remedies_of_its_host() {
        let missing = LoadError::NotFound {
            tried: vec!["libcuda.so.1".into(), "libcuda.so".into()],
            reason: "cannot open shared object file".into(),
        };
        let text = |host| {
            Status::no_driver(&missing, host);
            // SAFETY: the text belongs to this thread and is NUL-terminated.
            unsafe { CStr::from_ptr(last_error::text()) }.to_str().expect("it is UTF-8").to_owned()
        };
        let installed = "no CUDA driver: cannot load libcuda.so.1 or libcuda.so (cannot open shared object file); \
                         install NVIDIA's driver, start a container with `--gpus all`, or name the library in \
                         CACHALOT_LIBCUDA";
        assert_eq!(text(Host::PyTorch), installed);
        assert_eq!(text(Host::Program), format!("{installed}; to try without a GPU, set the flag CACHALOT_SIMULATED"));
    }
}
