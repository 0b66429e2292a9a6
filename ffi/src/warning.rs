//! Warnings: lines on the standard error, about what no status can tell.

use cachalot_core::Config;
use core::fmt::Display;
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// The notes that the process was told already.
static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Writes a warning to the standard error, behind the name of the library.
pub(crate) fn warn(text: impl Display) {
    // A failure to write the warning cannot be reported either.
    let _ = writeln!(std::io::stderr(), "cachalot: {text}");
}

/// Writes a warning for each key of a configuration that has no effect, once in a process. `limited` tells whether a
/// memory limit is set apart from the configuration.
pub(crate) fn tell_notes(config: &Config, limited: bool) {
    let notes = config.notes(limited).map(|note| note.to_string());
    let is_new = |note: &String| TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert(note.clone());
    notes.filter(is_new).for_each(warn);
}
