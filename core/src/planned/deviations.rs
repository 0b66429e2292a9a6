//! Deviations of a lane's requests from the lane's sequence: their counts, and the state for
//! resynchronization.

use alloc::vec::Vec;

/// The deviations of a lane, and the recent requests for finding the lane's place again.
#[derive(Clone, Default)]
pub(crate) struct Deviations {
    /// The requests skipped last, a ring: `skipped_len % SKIPPED` is overwritten next.
    pub skipped: [u32; SKIPPED],
    /// How many requests were skipped since the sequence last began.
    pub skipped_len: usize,
    /// The sizes of the latest consecutive extra requests, a ring: `extras % RUN` is overwritten
    /// next.
    pub run: [u64; RUN],
    /// The number of consecutive extra requests.
    pub extras: u32,
    /// The cursor at the latest extra request. Extra requests are consecutive while the cursor
    /// stays.
    pub at: u32,
    /// The count of extra requests when the whole sequence was last searched.
    pub searched: u64,
    /// The slots of overdue blocks, as far as known.
    pub overdue: Vec<u32>,
    /// The request at which the present pass began.
    pub began: u32,
    /// The requests of earlier passes.
    pub passed: u64,
    /// The requests of all passes not served from the plan.
    pub unserved: u64,
    /// How often the lane deviated.
    pub counts: Counts,
}

/// How often a lane deviated, by kind.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Counts {
    /// Requests observed to outlive their iteration.
    pub lasting: u64,
    /// Requests found nowhere near in the sequence.
    pub extra: u64,
    /// Requests of the sequence not made by the program.
    pub missing: u64,
    /// Requests made later than in the sequence.
    pub reordered: u64,
    /// Requests whose planned bytes were in use.
    pub occupied: u64,
}

impl Deviations {
    /// Forgets the skipped requests, when the sequence begins again.
    pub(crate) fn clear_skipped(&mut self) {
        self.skipped_len = 0;
    }
}

/// The number of skipped requests still servable.
pub(crate) const SKIPPED: usize = 8;

/// The number of consecutive extra requests needed to locate the program anywhere in the sequence.
pub(crate) const RUN: usize = 8;
