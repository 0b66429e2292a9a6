//! Pages mapped ahead of the growth of a range, so that the next commits find them in place.
//!
//! ```text
//! commit  ─▶ | page | page |                            a first part, such as a prompt
//! commit  ─▶ | page | page | page | ahead |             it grows: in the same calls, more pages are mapped,
//! commit  ─▶ | page | page | page | page |              which later commits take back without a call
//! commit  ─▶ | page | page | page | page | page | ahead | ahead | ahead |
//! upkeep  ─▶ the same, before the next commit comes
//! ```
//!
//! A page ahead is like one that the program has committed and given up: it is idle at its place,
//! and serves any request that needs memory. So it is not held for the range, and the range has no
//! more bytes than the program has committed. A batch has two pages after a first growth, then
//! four, then eight: on an H100, to map one page beside a kernel took 98 µs, and 68, 56 and 49 µs a
//! page in batches of these lengths.
//!
//! Pages ahead come from memory that is idle anyway, and new ones only as long as the idle memory
//! is a small part of what ranges have.

use super::RangeMapper;
use crate::arena::paging::mapper::Charge;
use crate::arena::paging::mapping::PageGuard;
use crate::arena::paging::ranges::commit::Gaps;
use crate::arena::paging::ranges::table::{Ahead, MOST_AHEAD, Part};
use crate::arena::{Platform, flags};
use crate::error::Error;
use crate::pages::Batch;
use crate::pages::departures::Departing;
use crate::stats::Stat;

/// The part of the memory of ranges, as a divisor, up to which memory may be idle when a new page
/// is made ahead.
const IDLE: u64 = 128;

impl<P: Platform> RangeMapper<'_, P> {
    /// Maps pages ahead where ranges have grown, for about `max_us` microseconds, and one batch at
    /// least. Returns true if the time ended before the work did.
    pub(crate) fn map_ahead(&self, max_us: u64) -> Result<bool, Error> {
        // A page that is mapped during a capture is not in the captured order.
        if self.driver.flags.has(flags::CAPTURE) || !self.paging.ranges.lock().has_fronts() {
            return Ok(false);
        }
        let mut left = max_us;
        loop {
            // The lock's guard must be dropped before the device is called.
            let front = self.paging.ranges.lock().take_front();
            let Some(at) = front else { return Ok(false) };
            let (mapped, ticks) = self.driver.timed(|| self.map_ahead_of(at));
            if !mapped? {
                continue;
            }
            // Without a clock, a call maps one batch.
            let us = self.driver.ticks_to_us(ticks);
            if us == 0 || us >= left {
                return Ok(self.paging.ranges.lock().has_fronts());
            }
            left -= us;
        }
    }

    /// Collects pages to map ahead of `part`, if the part grows and all of it is a gap. The pages
    /// are appended to the batch of the part.
    pub(super) fn fill_ahead(&self, part: Part, batch: &mut Batch) -> Result<Option<Ahead>, Error> {
        let ahead = {
            let ranges = self.paging.ranges.lock();
            if ranges.piece(part, part.begin).is_some() { None } else { ranges.ahead_of(part) }
        };
        let Some(mut ahead) = ahead else { return Ok(None) };
        let asked = batch.bytes;
        self.fill_idle(ahead.tail.end - ahead.tail.begin, batch)?;
        ahead.tail.end = ahead.tail.begin + (batch.bytes - asked);
        Ok((batch.bytes > asked).then_some(ahead))
    }

    /// Appends pages of one step each to `batch`, at most `bytes`: spare ones, those that nobody is
    /// likely to take back, and new ones while little memory is idle.
    fn fill_idle(&self, bytes: u64, batch: &mut Batch) -> Result<(), Error> {
        let (step, begin) = (self.range_step(), batch.bytes);
        let end = begin + bytes;
        self.paging.take_spares(end, step, batch);
        {
            let mut pages = self.paging.pool.lock();
            // Pages without depth, which others have ahead, are probably wanted as soon as these.
            while batch.bytes < end
                && let Some(page) = pages.take_deep(step)
            {
                pages.append(batch, page);
            }
        }
        let may_create = |batch: &Batch| {
            let idle = self.paging.bytes().spare + self.paging.bytes().departed + (batch.bytes - begin);
            let most = self.paging.range_counters.current(Stat::ReservedBytes).unsigned_abs() / IDLE;
            idle + step <= most && self.allowance(step) >= step
        };
        while batch.bytes < end && may_create(batch) && self.new_page(step, Charge::WithinLimit, batch)? {}
        Ok(())
    }

    /// Gives up the mapped pages of `tail`, which are in hand and in no list, so that they are
    /// ahead. Takes over the reference to `departure`, which is complete.
    pub(super) fn leave_ahead(&self, tail: Part, departure: u32) {
        let mut ranges = self.paging.ranges.lock();
        let mut at = tail.begin;
        while let Some(piece) = ranges.piece(tail, at) {
            let left = {
                let mut pages = self.paging.pool.lock();
                let left = pages.left_place(piece.page);
                pages.departures.hold(departure);
                pages.add_alias(piece.page);
                pages.depart(piece.page, departure, piece.at, piece.at - tail.begin);
                left
            };
            ranges.change(tail, piece.at, |piece| piece.departure = departure);
            if let Some(left) = left {
                ranges.leave(left, piece.page);
            }
            at = piece.end();
        }
        drop(ranges);
        self.given_up().release_departure(departure);
    }

    /// Counts the depth of the pages ahead of a part that is given up from the start of the part,
    /// because the next user of the place comes from there.
    pub(super) fn sink_ahead(&self, part: Part) {
        let after = Part { begin: part.end, end: part.end.saturating_add(MOST_AHEAD * self.range_step()), ..part };
        let ranges = self.paging.ranges.lock();
        let mut at = after.begin;
        while let Some(piece) = ranges.piece(after, at).filter(|piece| piece.at == at && piece.is_stale()) {
            let mut pages = self.paging.pool.lock();
            if pages.take_back(piece.page, piece.departure) {
                pages.depart(piece.page, piece.departure, piece.at, piece.at - part.begin);
            }
            at = piece.end();
        }
    }

    /// Maps a batch of pages ahead of the committed memory that ends at `at`, if it can grow.
    /// Returns whether it did.
    fn map_ahead_of(&self, at: u64) -> Result<bool, Error> {
        let found = self.paging.ranges.lock().range_before(at);
        let Some(range) = found else { return Ok(false) };
        // Another thread is working on the range, and commits there map pages ahead as well.
        let Some(held) = self.try_hold_range(range) else { return Ok(false) };
        let ahead = self.paging.ranges.lock().ahead_of(Part { range, begin: at, end: at });
        let Some(mut ahead) = ahead else { return Ok(false) };
        let mut guard = PageGuard::empty(&self.mapper);
        self.fill_idle(ahead.tail.end - at, &mut guard.batch)?;
        let count = guard.batch.count;
        ahead.tail.end = at + guard.batch.bytes;
        if count == 0 || !self.paging.ranges.lock().promise_pieces(count) {
            return Ok(false);
        }
        let mapped = self.map_at(ahead, &guard.batch);
        self.paging.ranges.lock().end_promise(count);
        let mapped = mapped?;
        if mapped {
            guard.keep();
        }
        drop(held);
        Ok(mapped)
    }

    /// Maps the pages of a batch at `ahead` of a held range. Returns false if the device does not
    /// have the memory.
    fn map_at(&self, ahead: Ahead, batch: &Batch) -> Result<bool, Error> {
        let Some(mapping) = self.map(batch, Gaps { paging: self.paging, part: ahead.tail })? else { return Ok(false) };
        let departure = self.given_up().begin_departure(None, Departing::Pages)?;
        self.add_pieces(&mut self.paging.ranges.lock(), ahead.tail, batch, ahead.growths);
        mapping.keep();
        self.leave_ahead(ahead.tail, departure);
        Ok(true)
    }
}
