//! The decisions made so far about readings of a record, which a copy of a follower takes over.

use std::collections::HashMap;

/// What was decided so far, by the event with which the request's part of the record begins.
#[derive(Clone, Default)]
pub(super) struct Trials {
    /// How many completions the request's event check found, if its own wait found the others.
    pub(super) waits: HashMap<usize, Option<usize>>,
    /// Whether the request released everything that a forecast says it began to release.
    pub(super) releases_all: HashMap<usize, bool>,
    /// How many readings were tried out.
    pub(super) made: usize,
}
