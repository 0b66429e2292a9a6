//! Settings without effect, told in the log.

use crate::log;
use cachalot_core::Config;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The notes that the process was told already.
static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Logs a warning for each key of a configuration that has no effect, once in a process. `limited` tells whether a
/// memory limit is set apart from the configuration.
pub(crate) fn tell(config: &Config, limited: bool) {
    let notes = config.notes(limited).map(|note| note.to_string());
    let is_new = |note: &String| TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert(note.clone());
    notes.filter(is_new).for_each(log::warning);
}
