//! Settings without effect, told in the log.

use cachalot_core::Config;
use cachalot_cuda::log;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The notes that the process was told already.
static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Logs a warning for each key of a configuration that has no effect, once in a process. `limited`
/// says whether a memory limit is set apart from the configuration.
pub(crate) fn tell(config: &Config, limited: bool) {
    let notes = config.notes(limited).map(|note| note.to_string());
    notes.filter(|note| mark_as_told(note)).for_each(log::warning);
}

/// Returns the notes on a configuration, for a host with warnings of its own. No later warning
/// repeats them.
pub(crate) fn take(config: &Config) -> Vec<String> {
    let notes: Vec<String> = config.notes(false).map(|note| note.to_string()).collect();
    for note in &notes {
        mark_as_told(note);
    }
    notes
}

/// Marks a note as told. Returns whether the note is new.
fn mark_as_told(note: &str) -> bool {
    TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert(note.to_owned())
}
