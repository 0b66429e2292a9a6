//! What is remembered of the requests that deviated from a sequence.

use alloc::vec::Vec;

/// What is remembered of deviations, and how often there was which.
#[derive(Clone, Default)]
pub(crate) struct Deviations {
    /// The requests that were passed over last; `missed % BEHIND` is overwritten next.
    pub missed: [u32; BEHIND],
    pub missed_len: usize,
    /// The last extra requests in a row; `extras % TRACE` is overwritten next.
    pub trace: [u64; TRACE],
    /// How many there are in a row.
    pub extras: u32,
    /// Where the cursor stood then: they are in a row as long as it stays.
    pub at: u32,
    /// How many extra requests there were when the whole sequence was searched last.
    pub searched: u64,
    /// The numbers of the places of late blocks, as far as they are known.
    pub late: Vec<u32>,
    /// Where the present pass began.
    pub began: u32,
    /// How many requests earlier passes have come by.
    pub passed: u64,
    /// Of all of those, how many were not served.
    pub unserved: u64,
    pub counts: Counts,
}

/// How often a lane deviated.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Counts {
    /// Requests that outlive their iteration, as observed.
    pub lasting: u64,
    /// Requests that are nowhere near in the sequence.
    pub extra: u64,
    /// Requests of the sequence that were not made.
    pub missing: u64,
    /// Requests that were made later than in the sequence.
    pub reordered: u64,
    /// Requests whose bytes were occupied.
    pub occupied: u64,
}

impl Deviations {
    /// What was passed over is not to be served any more: the sequence begins anew.
    pub(crate) fn forget_missed(&mut self) {
        self.missed_len = 0;
    }
}

/// How many requests that were passed over can still be served.
pub(crate) const BEHIND: usize = 8;

/// So many extra requests in a row say where in the whole sequence the program is.
pub(crate) const TRACE: usize = 8;
