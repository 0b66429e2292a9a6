//! The budget: how much memory may be held before free pages move instead.
//!
//! ```text
//! 0 ………… live ………… peak of live ……… (1 + slack) · peak ………… + pending ……………… limit
//!                                                             │ without a limit  │ with a limit
//!                                      new memory up to here ─┴──────────────────┘
//! ```
//!
//! Pending memory waits for work of other streams, and the host runs ahead of the work. Consider a
//! program with a stream that feeds a second stream. Without room for pending memory, the streams
//! wait for each other at every step, and the pages move between the streams.

use super::Stitcher;
use crate::arena::Platform;
use crate::arena::paging::growth::LONG_PAGE;
use crate::arena::request::Request;
use crate::config::Stitched;
use crate::config::rounding::PoolKind;
use crate::pages::counts::PageCounts;
use crate::stats::Stat;
use crate::sync::Ordering;

/// Estimated time to map an already mapped page, in tenths of a microsecond. Measured on an H100
/// (driver 580): map 0.6 µs, set access 23.5 µs for each page of a range.
const MOVE_TENTHS_US: u32 = 241;

/// Estimated time to create and map a page, in tenths of a microsecond: create 9 µs more.
pub(super) const CREATE_TENTHS_US: u32 = 331;

/// Divisor of the memory held for the length of new pages. A page with a live block does not move,
/// and keeps the free rest of the page in place: with 1/2048, a hundred pages with a partial rest
/// keep some 2.5 % of the memory (`docs/stitched.md`).
const PAGES_HELD: u64 = 2048;

/// Length of the longest page of an ordinary request, in bytes.
const LONGEST_PAGE: u64 = 16 << 20;

/// Divisor of a request for the longest page: a request has at least four pages, so parts of the
/// request's memory can move later.
const FEWEST_PAGES: u64 = 4;

/// Divisor of a request for the shortest page. The pages of a request of 80 pages can all move
/// within the default bound on time, 80 · 24.1 µs.
const MOST_PAGES: u64 = 80;

/// Divisor of the memory held for the longest page of any request. A page with a live block does
/// not move, and keeps the free rest of the page in place: at 1/192, 0.5 % of the memory at most,
/// so two partly free pages keep less than the default `slack`. The pages of a request for all
/// memory move in 4.6 ms, 192 · 24.1 µs.
const LONGEST_HELD: u64 = 192;

/// Number of new pages for which time is kept in a request with as many moves as the time allows.
const PAGES_KEPT: u32 = 6;

/// The time for short pages in a request beyond the budget, as a multiple of the bound on time.
const SHORT_PAGES_TIME: u32 = 4;

/// Divisor of the peak of live memory for the room for pending memory. With 1/28, no more than 3.6
/// % of the peak is held beside the slack. A prefetcher with 2.2 % pending took 6 ms of driver time
/// for a step of 16 ms without the room, and 1 ms with the room (H100).
const PENDING_HELD: u64 = 28;

/// Divisor of the peak of live memory for the memory held beyond the budget by requests to save
/// time. With 1/100, a request with a larger excess takes longer instead.
const BEYOND_BUDGET: u64 = 100;

impl<P: Platform> Stitcher<'_, P> {
    /// Returns the bytes of new memory allowed for a request before free pages move.
    pub(super) fn allowance(&self, request: &Request) -> u64 {
        let reserved = self.mapper().ledger.reserved();
        if let Some(limit) = self.mapper().ledger.limit_if_set() {
            return limit.saturating_sub(reserved);
        }
        self.note_pending();
        self.most_held(request.size).saturating_sub(reserved)
    }

    /// Raises the room for pending memory to the present number of pending bytes. The room stays,
    /// since the next step of a program has as many pending bytes.
    fn note_pending(&self) {
        let mapper = self.mapper();
        let now = mapper.current(Stat::ActiveBytes).saturating_sub(mapper.current(Stat::AllocatedBytes));
        mapper.paging.most_pending.fetch_max(now, Ordering::Relaxed);
    }

    /// Returns the most bytes held without a limit, if `more` live bytes are added.
    pub(in crate::arena) fn most_held(&self, more: u64) -> u64 {
        let peak = self.mapper().most_live_with(more);
        let slack = u128::from(peak) * u128::from(self.options.slack) / u128::from(Stitched::SLACK_PARTS);
        let pending = self.mapper().paging.most_pending.load(Ordering::Relaxed).min(peak / PENDING_HELD);
        peak.saturating_add(slack as u64).saturating_add(pending)
    }

    /// Returns how many pages a request with `wanted` missing bytes beyond the budget may move. The
    /// pages are mapped into `room` bytes.
    ///
    /// The moves stay within the time bound if the bytes fit, or if few enough bytes are left to be
    /// allocated beyond the budget. Otherwise the request may move as many pages as needed: the
    /// bound on time yields, unless the bound is strict.
    pub(super) fn most_moves(&self, request: &Request, wanted: u64, room: u64) -> u32 {
        let free = self.free_pages(request);
        let in_time = self.options.max_stall_us.saturating_mul(10) / MOVE_TENTHS_US;
        if free.choose(wanted, room, u32::MAX).count() <= in_time {
            return u32::MAX;
        }
        let mapper = self.mapper();
        if mapper.ledger.limit_if_set().is_some() {
            // The limit allows nothing beyond it.
            return u32::MAX;
        }
        let kept = PAGES_KEPT * CREATE_TENTHS_US / MOVE_TENTHS_US;
        let bounded = in_time.saturating_sub(kept);
        // What earlier requests hold beyond the budget counts as well.
        let debt = mapper.ledger.reserved().saturating_sub(self.most_held(request.size));
        let beyond = wanted.saturating_sub(free.choose(wanted, room, bounded).bytes()) + debt;
        let bearable = beyond <= mapper.most_live_with(request.size) / BEYOND_BUDGET;
        if self.options.strict_stall || bearable { bounded } else { u32::MAX }
    }

    /// Returns the length of a page of the `parts`-th part of the memory held, in bytes: a power of
    /// two, and no longer than the longest page of an ordinary request.
    pub(super) fn page_of(&self, parts: u64) -> u64 {
        let held = self.mapper().ledger.reserved() / parts;
        (1 << held.max(1).ilog2()).min(LONGEST_PAGE)
    }

    /// Returns the length of the new pages for a request with `missing` bytes to create, after
    /// `moves` moved pages, in bytes. The budget covers `allowed` of the missing bytes.
    pub(super) fn new_page_sizes(&self, request: &Request, missing: u64, allowed: u64, moves: u32) -> u64 {
        let step = self.step();
        if request.kind == PoolKind::Small {
            return step;
        }
        // The pages of a private pool never move, and a tagged pool is parked and woken page by
        // page. While another thread parks or wakes memory, each call waits for that thread's calls
        // in the driver: a request of 32 MiB in four pages took 3.6 ms (H200), so it gets one.
        if self.mapper().heaps.lock(request.slot).parkable || self.mapper().paging.parking.is_taken() {
            return missing.min(LONG_PAGE);
        }
        let held = self.mapper().ledger.reserved();
        let longest = (request.size / FEWEST_PAGES).min(self.page_of(PAGES_HELD));
        // Where pages have moved, the new ones are created in the time that the moves have left.
        // Not under a limit: long pages move less easily later.
        let mut shortest = if moves > 0 && self.mapper().ledger.limit_if_set().is_none() {
            let used = moves.saturating_mul(MOVE_TENTHS_US);
            let left = self.options.max_stall_us.saturating_mul(10).saturating_sub(used) / CREATE_TENTHS_US;
            missing.div_ceil(u64::from(left.max(PAGES_KEPT)))
        } else {
            request.size.div_ceil(MOST_PAGES)
        };
        if !self.options.strict_stall {
            shortest = shortest.min((held.max(request.size) / LONGEST_HELD).max(step) / step * step);
        }
        let ordinary = (longest / step * step).max(shortest.next_multiple_of(step)).min(PageCounts::largest(step));
        if missing <= allowed || self.options.strict_stall {
            return ordinary;
        }
        // Beyond the budget no free page is left. What is free shares pages with live blocks, and
        // would share less of shorter ones.
        let in_time = self.options.max_stall_us.saturating_mul(10) / CREATE_TENTHS_US;
        let most = in_time.saturating_mul(SHORT_PAGES_TIME).max(PAGES_KEPT);
        ordinary.min(missing.div_ceil(u64::from(most)).next_multiple_of(step))
    }
}
