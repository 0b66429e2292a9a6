//! The reasons why a pickle cannot be read or written.

use super::limits::{MOST_VALUES_PER_BYTE, SOME_VALUES};
use std::fmt;
use std::io;

/// The reason why a pickle cannot be written or read.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The writer failed.
    Io(io::Error),
    /// A value has no counterpart among Python's plain values.
    Unsupported(&'static str),
    /// The pickle ends early, after the given byte.
    Truncated(usize),
    /// The operation at the given byte makes no sense, or is not needed for plain values.
    Invalid(usize, String),
    /// The pickle contains a value of an unexpected type.
    Unexpected(String),
    /// Shared values expand to more values than the given number.
    Expands(u64),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Unsupported(what) => write!(f, "{what} cannot be pickled"),
            Self::Truncated(at) => write!(f, "the pickle ends early, after byte {at}"),
            Self::Invalid(at, what) => write!(f, "{what} at byte {at}"),
            Self::Unexpected(what) => f.write_str(what),
            Self::Expands(most) => write!(
                f,
                "shared values expand to more than {most}: the most is {MOST_VALUES_PER_BYTE} values for each byte of \
                 the pickle, or {SOME_VALUES} if that is more"
            ),
        }
    }
}

impl std::error::Error for Error {}

impl serde::ser::Error for Error {
    fn custom<T: fmt::Display>(what: T) -> Self {
        Self::Unexpected(what.to_string())
    }
}

impl serde::de::Error for Error {
    fn custom<T: fmt::Display>(what: T) -> Self {
        Self::Unexpected(what.to_string())
    }
}
