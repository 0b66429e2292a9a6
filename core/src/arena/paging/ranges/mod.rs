//! Elastic ranges: addresses that the program fills with pages and empties again, part by part, in
//! the order of the streams.
//!
//! ```text
//! reserve ─▶ | gap ……………………………………………………… |
//! commit  ─▶ | page | page | page | gap ………… |   departed, spare, free pages of heaps, new ones
//! decommit ▶ | page | stale …… | page | gap … |   the page is departed: others may use it
//! commit  ─▶ | page | page …… | page | gap … |   those not yet in use are taken back, without a call
//! collect ─▶ | page | gap ………… | page | gap … |   once they serve elsewhere, and the work before is complete
//! ```
//!
//! Ranges take their pages from the pool of the device, and their bytes count against the limit of
//! the device. The host waits for the device in only two places: before memory would run out, and
//! when a commit needs addresses whose old page is used elsewhere while work on it is unfinished.
//!
//! Only one operation works on a range at a time; other threads wait for their turn. Committing is
//! in commit.rs, the search for pages in fill.rs, decommitting and releasing in decommit.rs, and
//! the removal of stale mappings in collect.rs. Pages that are mapped before they are needed are in
//! ahead.rs.

mod ahead;
mod collect;
mod commit;
mod decommit;
mod fill;
pub(crate) mod table;
#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests;

use crate::arena::debug::DebugLayer;
use crate::arena::holdings::Holdings;
use crate::arena::paging::Paging;
use crate::arena::paging::mapper::Mapper;
use crate::arena::paging::ranges::table::Part;
use crate::arena::paging::stitched::Stitcher;
use crate::arena::paging::undo::Undo;
use crate::arena::peaks::{Counters, Peaks};
use crate::arena::request::RequestCalls;
use crate::arena::{Arena, OnDevice, Platform};
use crate::config::rounding::{PoolKind, SMALL_SEGMENT};
use crate::error::Error;
use crate::stats::Stat;
use crate::units::{DevicePtr, MAX_REQUEST, RangeId, StreamId};
use core::cell::Cell;
use core::ops::Deref;

/// The maximum number of stale mappings that one decommit or one growth of a heap removes: about
/// 0.25 ms (15 µs each on an H100).
const FEW: u32 = 16;

/// A reserved elastic range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reservation {
    /// The number of the range.
    pub range: RangeId,
    /// The address of the first byte.
    pub base: DevicePtr,
    /// The reserved bytes, which are the requested bytes rounded up to whole pages.
    pub bytes: u64,
    /// The bytes of a page. Offsets and sizes of parts are multiples of a page.
    pub page_bytes: u64,
}

impl<'a, P: Platform> Holdings<'a, P> {
    /// Removes up to `most` stale mappings of ranges if their work is complete, so that their pages
    /// become spare. With `idle`, also removes those at which a commit would take the page back.
    /// Errors are not reported: a mapping that cannot be removed counts as leaked.
    pub(crate) fn collect_departed(&self, most: u32, idle: bool) {
        if let Some(mapper) = self.mapper_with_departures() {
            let _counted = mapper.collect_stale(most, idle);
        }
    }

    /// Removes a few stale mappings before a heap obtains more memory. Under a policy that moves
    /// pages, the heap takes departed pages as they are.
    pub(crate) fn collect_for_growth(&self) {
        self.collect_departed(FEW, !self.settings.policy().traits().moves_pages);
    }

    /// Removes a few stale mappings at an idle moment. Where idle memory goes back to the device,
    /// the pages of ranges do as well.
    pub(crate) fn collect_at_idle(&self) {
        let reclaims = self.settings.config.lock().reclaim().is_some();
        let is_beyond = || self.stitcher().is_some_and(|of| self.ledger.reserved() > of.most_held(0));
        self.collect_departed(FEW, reclaims || is_beyond());
    }

    /// Waits for the work before every decommit so far, and removes the stale mappings.
    ///
    /// # Errors
    /// The first error of the device, after all mappings have been tried.
    pub(crate) fn wait_for_departures(&self) -> Result<(), Error> {
        self.mapper_with_departures().map_or(Ok(()), |mapper| mapper.wait_for_departures())
    }

    /// Returns the operations on virtual memory, if ranges may have stale mappings.
    fn mapper_with_departures(&self) -> Option<Mapper<'a, P>> {
        if self.paging.has_departures() { self.mapper() } else { None }
    }
}

impl<P: Platform> OnDevice<'_, P> {
    /// Keeps the order after the work of a stream that is about to be destroyed, for every range
    /// used on it. From then on, departures of a later stream with the same number can be told
    /// apart.
    ///
    /// # Errors
    /// The errors of the device.
    pub(crate) fn forget_range_stream(self, stream: StreamId) -> Result<(), Error> {
        // The lock's guard must be dropped before the device is asked.
        let none = self.paging.ranges.lock().range_on(stream).is_none();
        if !none {
            self.require_ranges()?.forget_range_stream(stream)?;
        }
        self.paging.pool.lock().departures.forget_stream(stream);
        Ok(())
    }
}

impl<P: Platform> Paging<P> {
    /// Returns whether ranges may have stale mappings.
    pub(in crate::arena) fn has_departures(&self) -> bool {
        self.pool.lock().departures.has_pages()
    }
}

/// The elastic ranges of one device: its virtual memory, and the places that note a change of a
/// range's memory.
pub(crate) struct RangeMapper<'a, P: Platform> {
    mapper: Mapper<'a, P>,
    /// The stitched policy. Its budget applies to ranges, and its heaps give free pages.
    stitcher: Option<Stitcher<'a, P>>,
    /// The value with which memory is filled when it is given up.
    debug: &'a DebugLayer,
    peaks: &'a Peaks<P::Lock>,
    /// The counters that the peaks follow.
    counters: Counters<'a, P>,
    /// Whether pages of the host may fill a part, because everything else was tried.
    spills: Cell<bool>,
    /// Whether the first attempt has failed, so that memory is too short to map pages ahead.
    is_short: Cell<bool>,
}

impl<'a, P: Platform> Deref for RangeMapper<'a, P> {
    type Target = Mapper<'a, P>;

    fn deref(&self) -> &Self::Target {
        &self.mapper
    }
}

impl<'a, P: Platform> RangeMapper<'a, P> {
    /// Returns the operations on the elastic ranges of a device, if it has virtual memory.
    pub(in crate::arena) fn of(device: OnDevice<'a, P>) -> Option<Self> {
        let Arena { debug, peaks, .. } = device.arena;
        let held = device.holdings();
        let (mapper, stitcher) = (held.mapper()?, held.stitcher());
        let counters = held.counters();
        Some(Self { mapper, stitcher, debug, peaks, counters, spills: Cell::new(false), is_short: Cell::new(false) })
    }

    /// Notes all later calls to virtual memory in `request`.
    fn for_request(self, request: &'a RequestCalls) -> Self {
        Self { mapper: self.mapper.for_request(request), ..self }
    }

    /// Reserves addresses for `bytes`, rounded up to whole pages. No memory is used.
    pub(crate) fn reserve_elastic(&self, on: &Holdings<'_, P>, bytes: u64) -> Result<Reservation, Error> {
        let page_bytes = self.range_step();
        if bytes == 0 {
            return Err(Error::RangeRefused("it has no bytes"));
        }
        if bytes >= MAX_REQUEST {
            return Err(Error::TooLarge(bytes));
        }
        let bytes = bytes.next_multiple_of(page_bytes);
        if !self.paging.ranges.lock().make_room_for_range() {
            return Err(Error::TableFull("ranges"));
        }
        let base = self.reserve_for_range(on, bytes)?;
        let mut ranges = self.paging.ranges.lock();
        if !ranges.make_room_for_range() {
            // Another thread has filled the table since room was made.
            drop(ranges);
            self.unreserve(Some((base, bytes)));
            return Err(Error::TableFull("ranges"));
        }
        let (number, generation) = ranges.add_range(base.0, bytes, page_bytes);
        let counters = &self.paging.range_counters;
        let stale = counters.up(Stat::Allocation, 1) | counters.up(Stat::Segment, 1);
        drop(ranges);
        self.reconcile_ranges(stale);
        let range = RangeId(u64::from(generation) << 32 | u64::from(number));
        Ok(Reservation { range, base, bytes, page_bytes })
    }

    /// Reserves `bytes` of addresses for a range. If there are none, releases the cache and tries
    /// once more, because the cache and the work with released ranges hold addresses.
    ///
    /// # Errors
    /// [`Error::OutOfAddresses`]; those of the device.
    fn reserve_for_range(&self, on: &Holdings<'_, P>, bytes: u64) -> Result<DevicePtr, Error> {
        if let Some(base) = self.reserve_again(bytes)? {
            return Ok(base);
        }
        // A capture permits no wait, and the cache can only be released after waits.
        if self.driver.may_record().is_some() {
            on.release_cached(None)?;
            if let Some(base) = self.reserve_again(bytes)? {
                return Ok(base);
            }
        }
        Err(Error::OutOfAddresses { requested: bytes, reserved: self.paging.address_bytes() })
    }

    /// Reconciles the peaks if the counters of the ranges have risen above a threshold. The ranges
    /// are not locked.
    fn reconcile_ranges(&self, peaks_stale: bool) {
        if peaks_stale {
            self.peaks.reconcile(&self.counters, (PoolKind::Large, &self.paging.range_counters), None);
        }
    }
}

impl<P: Platform> Mapper<'_, P> {
    /// Returns the step of a range in bytes. Offsets and sizes are multiples of it.
    fn range_step(&self) -> u64 {
        SMALL_SEGMENT.next_multiple_of(self.memory.granularity())
    }

    /// Returns the committed bytes of a range.
    pub(crate) fn committed_bytes(&self, id: RangeId) -> Result<u64, Error> {
        let (held, part) = self.hold_range(id, 0, None)?;
        let (mut bytes, mut at) = (0, part.begin);
        let ranges = self.paging.ranges.lock();
        while let Some(piece) = ranges.piece(part, at) {
            bytes += u64::from(piece.mask.count_ones()) * self.range_step();
            at = piece.end();
        }
        drop((ranges, held));
        Ok(bytes)
    }

    /// Holds a range, and returns its part with the given offset and size, or the whole range if
    /// `bytes` is `None`. Waits for operations of other threads on the range.
    fn hold_range(&self, id: RangeId, offset: u64, bytes: Option<u64>) -> Result<(Undo<impl FnOnce()>, Part), Error> {
        let (number, generation) = (id.0 as u32, (id.0 >> 32) as u32);
        let step = self.range_step();
        loop {
            {
                let mut ranges = self.paging.ranges.lock();
                let range = ranges.find(number, generation).ok_or(Error::UnknownRange(id))?;
                let bytes = bytes.unwrap_or(range.bytes);
                if !offset.is_multiple_of(step) || !bytes.is_multiple_of(step) {
                    return Err(Error::RangeRefused("offset and bytes must be multiples of the page size"));
                }
                if offset > range.bytes || bytes > range.bytes - offset {
                    return Err(Error::RangeRefused("it ends behind the reserved bytes"));
                }
                if !range.is_busy {
                    range.is_busy = true;
                    let begin = range.base + offset;
                    return Ok((
                        Undo::by(move || self.end_hold(number)),
                        Part { range: number, begin, end: begin + bytes },
                    ));
                }
            }
            self.driver.give_way();
        }
    }

    /// Holds the range with the given number, even if the program has released it. Returns `None`
    /// if another operation holds it.
    fn try_hold_range(&self, number: u32) -> Option<Undo<impl FnOnce()>> {
        let mut ranges = self.paging.ranges.lock();
        let range = ranges.range(number);
        if range.is_busy {
            return None;
        }
        range.is_busy = true;
        Some(Undo::by(move || self.end_hold(number)))
    }

    /// Ends the hold of a range. If the program has released the range, releases its addresses once
    /// no page is mapped in it.
    fn end_hold(&self, number: u32) {
        let mut ranges = self.paging.ranges.lock();
        let range = ranges.range(number);
        range.is_busy = false;
        if range.is_held || range.pieces > 0 || range.bytes == 0 {
            return;
        }
        let addresses = (DevicePtr(range.base), range.bytes);
        let is_lost = range.is_lost;
        ranges.remove_range(number);
        drop(ranges);
        if !is_lost {
            self.unreserve(Some(addresses));
        }
    }
}
