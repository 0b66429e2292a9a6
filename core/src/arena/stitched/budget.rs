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
use crate::config::rounding::PoolKind;
use crate::device::DeviceMemory;
use crate::pages::counts::PageCounts;
use crate::sync::Lock;
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

/// Divisor of a request for the longest page: a request is made of four pages at least, so that
/// parts of its memory can move later.
const FEWEST_PAGES: u64 = 4;

/// Divisor of a request for the shortest page. The pages of a request of 80 pages can all move
/// within the default bound on time, 80 · 24.1 µs.
const MOST_PAGES: u64 = 80;

/// Number of new pages for which a request that moves as many pages as the time allows keeps time.
const PAGES_KEPT: u32 = 6;

/// Divisor of the peak of live memory for what requests may hold beyond the budget to save time.
/// With 1/100, a request that would exceed the budget by more takes longer instead.
const BEYOND_BUDGET: u64 = 100;

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
    pub(in crate::arena) fn most_held(&self, more: u64) -> u64 {
        let peak = self.device().most_active_with(more);
        let slack = u128::from(peak) * u128::from(self.options.slack) / u128::from(Stitched::SLACK_PARTS);
        peak.saturating_add(slack as u64)
    }

    /// Returns how many pages a request may move that lacks `wanted` bytes beyond the budget. They
    /// are mapped into `room` bytes.
    ///
    /// Within the time bound if the bytes fit, or if few enough are left to be allocated beyond the
    /// budget. Else as many as it takes: the bound on time gives way, unless it is strict.
    pub(super) fn most_moves(&self, request: &Request, wanted: u64, room: u64) -> u32 {
        let free = self.free_pages(request);
        let in_time = self.options.max_stall_us.saturating_mul(10) / MOVE_TENTHS_US;
        if free.choose(wanted, room, u32::MAX).count() <= in_time {
            return u32::MAX;
        }
        let device = self.device();
        if device.ledger.limit_if_set().is_some() {
            // The limit allows nothing beyond it.
            return u32::MAX;
        }
        let kept = PAGES_KEPT * CREATE_TENTHS_US / MOVE_TENTHS_US;
        let bounded = in_time.saturating_sub(kept);
        // What earlier requests hold beyond the budget counts as well.
        let debt = device.ledger.reserved().saturating_sub(self.most_held(request.size));
        let beyond = wanted.saturating_sub(free.choose(wanted, room, bounded).bytes()) + debt;
        let bearable = beyond <= device.most_active_with(request.size) / BEYOND_BUDGET;
        if self.options.strict_stall || bearable { bounded } else { u32::MAX }
    }

    /// Returns the length of the new pages for a request that `missing` bytes are to be created for,
    /// after `moves` pages have moved, in bytes.
    pub(super) fn new_page_sizes(&self, request: &Request, missing: u64, moves: u32) -> u64 {
        let step = self.step();
        if request.kind == PoolKind::Small {
            return step;
        }
        let held = self.device().ledger.reserved() / PAGES_HELD;
        let longest = (request.size / FEWEST_PAGES).min(1 << held.max(1).ilog2()).min(LONGEST_PAGE);
        let mut shortest = request.size.div_ceil(MOST_PAGES);
        // Longer pages are created in the time that moves have left. Not under a limit: they move
        // less easily later.
        if moves > 0 && self.device().ledger.limit_if_set().is_none() {
            let used = moves.saturating_mul(MOVE_TENTHS_US);
            let left = self.options.max_stall_us.saturating_mul(10).saturating_sub(used) / CREATE_TENTHS_US;
            shortest = shortest.max(missing.div_ceil(u64::from(left.max(PAGES_KEPT))));
        }
        (longest / step * step).max(shortest.next_multiple_of(step)).min(PageCounts::largest(step))
    }
}
