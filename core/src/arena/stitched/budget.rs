//! The budget: how much memory may be held before free pages move instead.
//!
//! ```text
//! 0 ………… live ………… peak of live ……… (1 + slack) · peak ……………… limit
//!                                      │ without a limit         │ with a limit
//!                                      └ new memory up to here   └ new memory up to here
//! ```

use super::Stitcher;
use crate::arena::request::Request;
use crate::config::Stitched;
use crate::device::DeviceMemory;
use crate::pages::counts::PageCounts;
use crate::stats::Stat;
use crate::sync::{AtomicU64, Lock, Ordering};
use crate::tables::Storage;

/// Estimated time to map a page that is mapped already, in tenths of a microsecond. Measured on an
/// H100 (driver 580): map 0.6 µs, set access 23.5 µs for each page of a range.
const MOVE_TENTHS_US: u32 = 241;

/// Estimated time to create and map a page, in tenths of a microsecond: create 9 µs more.
const CREATE_TENTHS_US: u32 = 331;

/// Divisor of the memory held for the length of new pages. With 1/512, pages that hold a live block
/// keep at most some 0.2 % of the memory from moving for each of the places at which free memory
/// ends (`docs/stitched.md`).
const PAGES_HELD: u64 = 512;

/// Length of the longest page of an ordinary request, in bytes.
const LONGEST_PAGE: u64 = 16 << 20;

/// Divisor of a request for the length of its pages: a request is made of four pages at least, so
/// that parts of its memory can move later.
const PAGES_OF_REQUEST: u64 = 4;

/// The peak of live memory, and counts of the pages that have moved.
#[derive(Debug)]
pub(crate) struct Budget {
    /// The largest number of bytes that were live at a time at which a heap grew, that request
    /// included.
    peak_live: AtomicU64,
    /// Bytes of all pages that have moved.
    moved: AtomicU64,
}

impl Budget {
    pub(crate) fn new() -> Self {
        Self { peak_live: AtomicU64::new(0), moved: AtomicU64::new(0) }
    }

    /// Raises the peak of live memory to `live` bytes, and returns the peak.
    pub(crate) fn raise(&self, live: u64) -> u64 {
        self.peak_live.fetch_max(live, Ordering::Relaxed).max(live)
    }

    /// Counts `bytes` of pages as moved.
    pub(super) fn count_moved(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes of all pages that have moved.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Stitcher<'_, D, R, S> {
    /// Returns the bytes of new memory that a request may add before free pages move.
    pub(super) fn allowance(&self, request: &Request) -> u64 {
        let reserved = self.device().ledger.reserved();
        if let Some(limit) = self.device().ledger.limit_if_set() {
            return limit.saturating_sub(reserved);
        }
        self.most_held(request.size).saturating_sub(reserved)
    }

    /// Returns the bytes that may be held at most without a limit, if `more` live bytes are added.
    pub(super) fn most_held(&self, more: u64) -> u64 {
        let device = self.device();
        let live: i64 = device.all_counters().map(|(_, counters)| counters.current(Stat::ActiveBytes)).sum();
        let peak = device.budget.raise(live.max(0) as u64 + more).max(device.device_peaks.active_bytes());
        let slack = u128::from(peak) * u128::from(self.options.slack) / u128::from(Stitched::SLACK_PARTS);
        peak.saturating_add(slack as u64)
    }

    /// Returns how many pages one request may move.
    pub(super) fn most_moves(&self) -> u32 {
        (u64::from(self.options.max_stall_us) * 10 / u64::from(MOVE_TENTHS_US)) as u32
    }

    /// Returns the length of the new pages for a request that `missing` bytes are to be created
    /// for, in bytes.
    pub(super) fn new_page_sizes(&self, request: &Request, missing: u64) -> u64 {
        let step = self.step();
        let held = self.device().ledger.reserved() / PAGES_HELD;
        let longest = (request.size / PAGES_OF_REQUEST).min(1 << held.max(1).ilog2()).min(LONGEST_PAGE);
        // A long request gets longer pages, so that creating them ends in time.
        let most = (u64::from(self.options.max_stall_us) * 10 / u64::from(CREATE_TENTHS_US)).max(1);
        let shortest = missing.div_ceil(most).next_multiple_of(step);
        (longest / step * step).max(shortest).min(PageCounts::largest(step))
    }
}
