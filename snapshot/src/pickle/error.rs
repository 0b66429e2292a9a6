//! The reasons why a pickle cannot be read or written.

use super::limits::{MOST_VALUES_PER_BYTE, SOME_VALUES};
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
    /// Its values refer to each other so often that they expand to more than this many.
    Expands(u64),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Unsupported(what) => write!(f, "{what} cannot be pickled"),
            Self::Truncated(at) => write!(f, "the pickle ends early, behind byte {at}"),
            Self::Invalid(at, what) => write!(f, "{what} at byte {at}"),
            Self::Unexpected(what) => f.write_str(what),
            Self::Expands(most) => write!(
                f,
                "shared values expand to more than {most}: accepted are {MOST_VALUES_PER_BYTE} values for each byte of \
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
