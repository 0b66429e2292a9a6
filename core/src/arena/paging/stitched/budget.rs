//! The budget: the amount of memory that may be held before free pages move instead.
//!
//! ```text
//! 0 ………… live ………… peak of live ……… (1 + slack) · peak ………… + pending ……………… limit
//!                                                             │ without a limit  │ with a limit
//!                                      new memory up to here ─┴──────────────────┘
//! ```
//!
//! Pending memory waits for work of other streams, and the host runs ahead of this work. Consider a
//! program in which one stream feeds another. Without room for pending memory, the streams would
//! wait for each other at every step, and the pages would move back and forth between them.

use super::Stitcher;
use crate::arena::Platform;
use crate::arena::paging::growth::LONG_PAGE;
use crate::arena::request::Request;
use crate::config::Stitched;
use crate::config::rounding::PoolKind;
use crate::pages::counts::PageCounts;
use crate::stats::Stat;
use crate::sync::Ordering;

/// The estimated time to map a page that already exists, in tenths of a microsecond. Measured on an
/// H100 (driver 580): map 0.6 µs, set access 23.5 µs for each page of a range.
const MOVE_TENTHS_US: u32 = 241;

/// The estimated time to create and map a page, in tenths of a microsecond: creating takes 9 µs
/// more.
pub(super) const CREATE_TENTHS_US: u32 = 331;

/// The length of new pages is the memory held divided by this. A page with a live block does not
/// move, and it keeps its free rest in place. With 1/2048, a hundred partly free pages keep about
/// 2.5 % of the memory (`docs/stitched.md`).
const PAGES_HELD: u64 = 2048;

/// The length of the longest page of an ordinary request, in bytes.
const LONGEST_PAGE: u64 = 16 << 20;

/// The length of the shortest page of a large request in a pool that can be parked, in bytes. To
/// copy so much takes three times as long as to create and map a page (H200).
const SHORTEST_PARKED: u64 = 8 << 20;

/// The length of the longest page of such a request, in bytes. A GiB of memory whose contents are
/// dropped parks in 77 µs a page (H200), so in 5 ms with pages of 16 MiB.
const LONGEST_PARKED: u64 = 64 << 20;

/// The longest page of such a request is the request divided by this. A model that is converted in
/// a tag holds 3 % more than what lives, and with a quarter of the request 9 %.
const FEWEST_PARKED: u64 = 8;

/// The longest page is the request divided by this. A request therefore gets at least four pages,
/// so that parts of its memory can move later.
const FEWEST_PAGES: u64 = 4;

/// The shortest page is the request divided by this. The pages of a request of 80 pages can all
/// move within the default bound on time, 80 · 24.1 µs.
const MOST_PAGES: u64 = 80;

/// The longest page of any request is the memory held divided by this. A page with a live block
/// does not move, and it keeps its free rest in place. At 1/192 this is 0.5 % of the memory at
/// most, so two partly free pages keep less than the default `slack`. The pages of a request for
/// all memory move in 4.6 ms, 192 · 24.1 µs.
const LONGEST_HELD: u64 = 192;

/// The number of new pages for which time is reserved in a request that makes as many moves as the
/// time allows.
const PAGES_KEPT: u32 = 6;

/// The time for short pages in a request beyond the budget, as a multiple of the bound on time.
const SHORT_PAGES_TIME: u32 = 4;

/// The room for pending memory is the peak of live memory divided by this. With 1/28, at most 3.6 %
/// of the peak is held in addition to the slack. A prefetcher with 2.2 % pending took 6 ms of
/// driver time for a step of 16 ms without this room, and 1 ms with it (H100).
const PENDING_HELD: u64 = 28;

/// To save time, requests may hold the peak of live memory divided by this beyond the budget. With
/// 1/100, a request that would exceed it takes longer instead.
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

    /// Raises the room for pending memory to the bytes that are pending now. The room remains,
    /// because the next step of a program has as many pending bytes.
    fn note_pending(&self) {
        let mapper = self.mapper();
        let now = mapper.current(Stat::ActiveBytes).saturating_sub(mapper.current(Stat::AllocatedBytes));
        mapper.paging.most_pending.fetch_max(now, Ordering::Relaxed);
    }

    /// Returns the most bytes that may be held without a limit, if `more` live bytes are added.
    pub(in crate::arena) fn most_held(&self, more: u64) -> u64 {
        let peak = self.mapper().most_live_with(more);
        let slack = u128::from(peak) * u128::from(self.options.slack) / u128::from(Stitched::SLACK_PARTS);
        let pending = self.mapper().paging.most_pending.load(Ordering::Relaxed).min(peak / PENDING_HELD);
        peak.saturating_add(slack as u64).saturating_add(pending)
    }

    /// Returns how many pages a request may move if `wanted` of its missing bytes are beyond the
    /// budget. The pages are mapped into `room` bytes.
    ///
    /// The moves stay within the time bound if the bytes fit, or if only a few bytes are left to
    /// allocate beyond the budget. Otherwise the request may move as many pages as it needs, in
    /// spite of the bound, unless the bound is strict.
    pub(super) fn most_moves(&self, request: &Request, wanted: u64, room: u64) -> u32 {
        let free = self.free_pages(request);
        let in_time = self.options.max_stall_us.saturating_mul(10) / MOVE_TENTHS_US;
        if free.choose(wanted, room, u32::MAX).count() <= in_time {
            return u32::MAX;
        }
        let mapper = self.mapper();
        if mapper.ledger.limit_if_set().is_some() {
            // Nothing may be allocated beyond a limit.
            return u32::MAX;
        }
        let kept = PAGES_KEPT * CREATE_TENTHS_US / MOVE_TENTHS_US;
        let bounded = in_time.saturating_sub(kept);
        // The bytes that earlier requests hold beyond the budget count as well.
        let debt = mapper.ledger.reserved().saturating_sub(self.most_held(request.size));
        let beyond = wanted.saturating_sub(free.choose(wanted, room, bounded).bytes()) + debt;
        let bearable = beyond <= mapper.most_live_with(request.size) / BEYOND_BUDGET;
        if self.options.strict_stall || bearable { bounded } else { u32::MAX }
    }

    /// Returns the length in bytes of a page of 1/`parts` of the memory held: a power of two, and
    /// no longer than the longest page of an ordinary request.
    pub(super) fn page_of(&self, parts: u64) -> u64 {
        let held = self.mapper().ledger.reserved() / parts;
        (1 << held.max(1).ilog2()).min(LONGEST_PAGE)
    }

    /// Returns the length in bytes of the new pages for a request that must create `missing` bytes
    /// after moving `moves` pages. The budget covers `allowed` of the missing bytes.
    pub(super) fn new_page_sizes(&self, request: &Request, missing: u64, allowed: u64, moves: u32) -> u64 {
        let step = self.step();
        if request.kind == PoolKind::Small {
            return step;
        }
        // While another thread parks or wakes memory, each call waits for that thread's calls in
        // the driver: a request of 32 MiB in four pages took 3.6 ms (H200), so it gets one page.
        if self.mapper().paging.parking.is_taken() {
            return missing.min(LONG_PAGE);
        }
        // A tagged pool is parked and woken page by page.
        if self.mapper().heaps.lock(request.slot).parkable {
            let longest = (request.size / FEWEST_PARKED).clamp(SHORTEST_PARKED, LONGEST_PARKED);
            return missing.min(longest / step * step);
        }
        let held = self.mapper().ledger.reserved();
        let longest = (request.size / FEWEST_PAGES).min(self.page_of(PAGES_HELD));
        // If pages have moved, the new ones must be created in the time that the moves have left.
        // This does not apply under a limit, because long pages are harder to move later.
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
        // Beyond the budget no free page is left. The free memory shares pages with live blocks,
        // and would share less of shorter pages.
        let in_time = self.options.max_stall_us.saturating_mul(10) / CREATE_TENTHS_US;
        let most = in_time.saturating_mul(SHORT_PAGES_TIME).max(PAGES_KEPT);
        ordinary.min(missing.div_ceil(u64::from(most)).next_multiple_of(step))
    }
}
