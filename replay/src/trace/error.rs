//! The one line that says why a file is no usable record.

use std::fmt;
use std::path::{Path, PathBuf};

/// A place in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A line, counted from 1.
    Line(u64),
    /// An event of a snapshot: its number in the trace of its device, counted from 0.
    Event(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Event(event) => write!(f, "event {event}"),
        }
    }
}

/// What is wrong with a file, and where. Displays as `FILE:LINE: what` or `FILE: event N: what`, one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadInput {
    /// The file as the user named it.
    pub file: PathBuf,
    /// Where in the file; `None` where it has no places yet.
    pub place: Option<Place>,
    /// What is wrong there, without a full stop.
    pub what: String,
}

impl BadInput {
    /// A complaint about one line.
    pub fn at(file: &Path, line: u64, what: impl Into<String>) -> Self {
        Self::at_place(file, Place::Line(line), what)
    }

    /// A complaint about one line or one event.
    pub fn at_place(file: &Path, place: Place, what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), place: Some(place), what: what.into() }
    }

    /// A complaint about the file as a whole.
    pub fn whole(file: &Path, what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), place: None, what: what.into() }
    }
}

impl fmt::Display for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Foreign text (an error of a decoder) may hold line breaks; the promise is one line.
        let what = self.what.replace(['\n', '\r'], " ");
        match self.place {
            Some(Place::Line(line)) => write!(f, "{}:{line}: {what}", self.file.display()),
            Some(place) => write!(f, "{}: {place}: {what}", self.file.display()),
            None => write!(f, "{}: {what}", self.file.display()),
        }
    }
}

impl std::error::Error for BadInput {}

/// What a failed read means to the user: a cut gzip stream is told apart from a failing disk.
pub(crate) fn describe_io(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => "the compressed data ends early: the file is truncated".to_owned(),
        std::io::ErrorKind::InvalidInput | std::io::ErrorKind::InvalidData => {
            format!("the compressed data is damaged: {error}")
        }
        std::io::ErrorKind::FileTooLarge => error.to_string(),
        _ => format!("cannot be read: {error}"),
    }
}
