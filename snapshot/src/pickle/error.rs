//! The reasons why a pickle cannot be read or written.

use std::fmt;
use std::io;

/// Why a pickle cannot be written or read.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The writer failed.
    Io(io::Error),
    /// A value has no counterpart among Python's plain ones.
    Unsupported(&'static str),
    /// It ends early, behind this byte.
    Truncated(usize),
    /// It does something at this byte that plain values do not need, or that makes no sense.
    Invalid(usize, String),
    /// It is a pickle, of something else.
    Unexpected(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Unsupported(what) => write!(f, "{what} cannot be pickled"),
            Self::Truncated(at) => write!(f, "the pickle ends early, behind byte {at}"),
            Self::Invalid(at, what) => write!(f, "{what} at byte {at}"),
            Self::Unexpected(what) => f.write_str(what),
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
