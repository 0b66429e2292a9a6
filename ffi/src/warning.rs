//! Warnings: lines on the standard error, about what no status can tell.

use core::fmt::Display;
use std::io::Write;

/// Writes a warning to the standard error, behind the name of the library.
pub(crate) fn warn(text: impl Display) {
    // A failure to write the warning cannot be reported either.
    let _ = writeln!(std::io::stderr(), "cachalot: {text}");
}
