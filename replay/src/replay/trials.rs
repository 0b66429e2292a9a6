//! Decisions between readings of a record, for a copy of a follower.

use std::collections::HashMap;

/// The decisions so far. The key is the number of the event at which the call starts.
#[derive(Clone, Default)]
pub(super) struct Trials {
    /// Number of completions found by a request's event check, if the request's own wait found the
    /// rest.
    pub(super) waits: HashMap<usize, Option<usize>>,
    /// Whether a request released everything whose first segment is in the forecast.
    pub(super) releases_all: HashMap<usize, bool>,
    /// Whether a request released everything by the setting `compact`.
    pub(super) compacts: HashMap<usize, bool>,
    /// Number of trials so far.
    pub(super) made: usize,
}
