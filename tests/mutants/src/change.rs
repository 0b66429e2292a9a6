//! A change: a place of a crate, written otherwise.

use serde::{Deserialize, Serialize};

/// A change of the code. The number of a change is the place in the list, counted from 1: the
/// switch is 0 for no change.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Change {
    /// The file, relative to the workspace.
    pub(crate) file: String,
    /// The line, counted from 1.
    pub(crate) line: usize,
    /// The column, counted from 1.
    pub(crate) column: usize,
    /// The change in words.
    pub(crate) text: String,
    /// Whether the change is in the build.
    pub(crate) state: State,
}

/// Whether a change is in the build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum State {
    /// In the build.
    Built,
    /// Refused by the compiler.
    Unviable,
    /// In a value computed by the compiler, where no switch is read.
    Constant,
}

impl Change {
    /// Returns the name of the change in files of results: the place and the words.
    pub(crate) fn name(&self) -> String {
        format!("{}:{}:{}: {}", self.file, self.line, self.column, self.text)
    }
}
