//! Errors of unusable files, each a single line.

use std::fmt;
use std::path::{Path, PathBuf};

/// A place in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A line, counted from 1.
    Line(u32),
    /// An event of a snapshot: number in the trace of the device, counted from 0.
    Event(u32),
}

impl Place {
    /// Returns the place of a line. All lines after the first four billion count as the last of
    /// these.
    pub fn line(line: u64) -> Self {
        Self::Line(u32::try_from(line).unwrap_or(u32::MAX))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Event(event) => write!(f, "event {event}"),
        }
    }
}

/// A mistake in a file, with the place. Displays as `FILE:LINE: what` or `FILE: event N: what`, on
/// a single line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadInput {
    /// The file, as named by the user.
    pub file: PathBuf,
    /// The place in the file. `None` for a mistake without a place.
    pub place: Option<Place>,
    /// Description of the mistake, without a full stop.
    pub what: String,
}

impl BadInput {
    /// Creates an error about a line.
    pub fn at(file: &Path, line: u64, what: impl Into<String>) -> Self {
        Self::at_place(file, Place::line(line), what)
    }

    /// Creates an error about a line or an event.
    pub fn at_place(file: &Path, place: Place, what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), place: Some(place), what: what.into() }
    }

    /// Creates an error about the file as a whole.
    pub fn whole(file: &Path, what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), place: None, what: what.into() }
    }

    /// Returns the place and the description without the name of the file.
    pub fn without_file(&self) -> String {
        let what = self.on_one_line();
        self.place.map_or_else(|| what.clone(), |place| format!("{place}: {what}"))
    }

    /// Returns the description on a single line: foreign text (an error of a decoder) may have line
    /// breaks.
    fn on_one_line(&self) -> String {
        self.what.replace(['\n', '\r'], " ")
    }
}

impl fmt::Display for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some(Place::Line(line)) => write!(f, "{}:{line}: {}", self.file.display(), self.on_one_line()),
            _ => write!(f, "{}: {}", self.file.display(), self.without_file()),
        }
    }
}

impl std::error::Error for BadInput {}

/// Describes a failed read for the user. A truncated gzip stream has a different text from a
/// failing disk.
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
