//! Deviations of a stream's requests from the sequence: their counts, and what is needed to find
//! the position in the sequence again.

use alloc::vec::Vec;

/// The deviations from a sequence, and the recent requests with which the position is found again.
#[derive(Clone, Default)]
pub(crate) struct Deviations {
    /// The requests skipped last. This is a ring: `skipped_len % SKIPPED` is overwritten next.
    pub skipped: [u32; SKIPPED],
    /// How many requests were skipped since the sequence last started.
    pub skipped_len: usize,
    /// The sizes of the latest extra requests in a row. This is a ring: `extras % RUN` is
    /// overwritten next.
    pub run: [u64; RUN],
    /// How many extra requests came in a row.
    pub extras: u32,
    /// The cursor at the latest extra request. Extra requests are in a row while the cursor does
    /// not move.
    pub at: u32,
    /// The count of extra requests when the whole sequence was last searched.
    pub searched: u64,
    /// The slots of overdue blocks, as far as they are known.
    pub overdue: Vec<u32>,
    /// The request at which the current pass started.
    pub began: u32,
    /// The number of requests in earlier passes.
    pub passed: u64,
    /// The number of requests in all passes that were not served from the plan.
    pub unserved: u64,
    /// How often the program deviated.
    pub counts: Counts,
}

/// How often a program deviated, by kind.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Counts {
    /// Requests that were observed to outlive their iteration.
    pub lasting: u64,
    /// Requests that do not match the sequence anywhere near the current position.
    pub extra: u64,
    /// Requests of the sequence that the program did not make.
    pub missing: u64,
    /// Requests that were made later than in the sequence.
    pub reordered: u64,
    /// Requests for which the planned bytes were in use.
    pub occupied: u64,
}

impl Deviations {
    /// Forgets the skipped requests, when the sequence starts again.
    pub(crate) fn clear_skipped(&mut self) {
        self.skipped_len = 0;
    }
}

/// How many skipped requests can still be served.
pub(crate) const SKIPPED: usize = 8;

/// How many extra requests in a row it takes to locate the program anywhere in the sequence.
pub(crate) const RUN: usize = 8;
