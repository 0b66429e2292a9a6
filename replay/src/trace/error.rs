//! The one line that says why a file is no usable record.

use std::fmt;
use std::path::{Path, PathBuf};

/// What is wrong with a file, and where. Displays as `FILE:LINE: what`, one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadInput {
    /// The file as the user named it.
    pub file: PathBuf,
    /// Its line, counted from 1 (in a snapshot, the event of one device's trace); `None` where the file has none yet.
    pub line: Option<u64>,
    /// What is wrong there, without a full stop.
    pub what: String,
}

impl BadInput {
    /// A complaint about one line.
    pub fn at(file: &Path, line: u64, what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line: Some(line), what: what.into() }
    }

    /// A complaint about the file as a whole.
    pub fn whole(file: &Path, what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line: None, what: what.into() }
    }
}

impl fmt::Display for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Foreign text (an error of a decoder) may hold line breaks; the promise is one line.
        let what = self.what.replace(['\n', '\r'], " ");
        match self.line {
            Some(line) => write!(f, "{}:{line}: {what}", self.file.display()),
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
