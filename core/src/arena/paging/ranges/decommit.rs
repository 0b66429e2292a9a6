//! Decommitting parts and releasing ranges. The pages depart after an event, and serve requests
//! from then on.
//!
//! Nothing waits, and nothing is unmapped at once. The mappings become stale. Those whose pages
//! serve elsewhere are removed once the event is complete (collect.rs), and the others when memory
//! is wanted for another use.

use super::{FEW, RangeMapper};
use crate::arena::Platform;
use crate::arena::driver::RecordPermission;
use crate::arena::paging::departures::in_capture;
use crate::arena::paging::ranges::table::Part;
use crate::device::Segments;
use crate::error::Error;
use crate::pages::departures::Departing;
use crate::stats::{Occurrence, Stat};
use crate::tables::slot_table::NONE;
use crate::units::{DevicePtr, NO_STREAM, RangeId, StreamId};

impl<P: Platform> RangeMapper<'_, P> {
    /// Gives up the memory of a part, after the present work on `stream`. Uncommitted pages stay as
    /// they are. A page that is longer than the part goes once the whole page is given up.
    pub(crate) fn decommit(&self, id: RangeId, offset: u64, bytes: u64, stream: StreamId) -> Result<(), Error> {
        Error::refuse_reserved(stream)?;
        let (held, part) = self.hold_range(id, offset, Some(bytes))?;
        let departure = if self.has_committed(part) {
            let _permission = self.must_record()?;
            self.order_departures(part, stream)?;
            self.fill_given_up(part, stream)?;
            Some(self.given_up().begin_departure(Some(stream), Departing::Pages)?)
        } else {
            None
        };
        // Work on the stream may use the rest of the range, whether or not this part has memory.
        if !self.paging.ranges.lock().note_use(part.range, stream) {
            if let Some(departure) = departure {
                self.given_up().release_departure(departure);
            }
            return Err(Error::TableFull("streams of ranges"));
        }
        if let Some(departure) = departure {
            self.give_part_up(part, departure);
            self.sink_ahead(part);
        }
        drop(held);
        // Removing mappings can wait, so a failure here is only counted, and the decommit succeeds.
        let _counted = self.collect_stale(FEW, false);
        Ok(())
    }

    /// Releases a range: gives up all its memory after the present work of every stream that was
    /// named in a commit or a decommit. The addresses are released once this work is complete.
    pub(crate) fn release_elastic(&self, id: RangeId) -> Result<(), Error> {
        let (held, part) = self.hold_range(id, 0, None)?;
        let permission = self.must_record()?;
        let departure = if self.has_committed(part) { Some(self.begin_departures(part)?) } else { None };
        drop(permission);
        if let Some(departure) = departure {
            self.give_part_up(part, departure);
        }
        let mut ranges = self.paging.ranges.lock();
        ranges.forget_uses(part.range, None);
        let range = ranges.range(part.range);
        range.is_held = false;
        let ended = core::mem::replace(&mut range.ended, NONE);
        ranges.leave_all(part.range);
        self.paging.range_counters.down(Stat::Allocation, 1);
        self.paging.range_counters.down(Stat::Segment, 1);
        if ended != NONE {
            self.given_up().release_departure(ended);
        }
        drop(ranges);
        drop(held);
        let _counted = self.collect_stale(FEW, false);
        Ok(())
    }

    /// Keeps the order after the work of a stream that is about to be destroyed, for every range
    /// used on it.
    pub(crate) fn forget_range_stream(&self, stream: StreamId) -> Result<(), Error> {
        loop {
            let next = self.paging.ranges.lock().range_on(stream);
            let Some(number) = next else { break };
            let Some(held) = self.try_hold_range(number) else {
                self.driver.give_way();
                continue;
            };
            let ended = self.paging.ranges.lock().range(number).ended;
            // While a graph is captured no event may be recorded, so this waits for the work
            // instead.
            let departed = self.must_record().and_then(|_permission| {
                self.given_up().order_behind_departure(stream, ended, true)?;
                self.given_up().begin_departure(Some(stream), Departing::Pages)
            });
            let departure = if let Ok(departure) = departed {
                departure
            } else {
                self.driver.synchronize(stream)?;
                ended
            };
            let mut ranges = self.paging.ranges.lock();
            ranges.range(number).ended = departure;
            ranges.forget_uses(number, Some(stream));
            if departure != ended && ended != NONE {
                self.given_up().release_departure(ended);
            }
            drop(ranges);
            drop(held);
        }
        Ok(())
    }

    /// Returns whether any step of a part is committed.
    fn has_committed(&self, part: Part) -> bool {
        let (step, ranges) = (self.range_step(), self.paging.ranges.lock());
        let mut at = part.begin;
        while let Some(piece) = ranges.piece(part, at) {
            if piece.mask & piece.bits(part.begin, part.end, step) != 0 {
                return true;
            }
            at = piece.end();
        }
        false
    }

    /// Orders later work on `stream` after the earlier decommits of the part's pages, because the
    /// next departure replaces the earlier ones.
    fn order_departures(&self, part: Part, stream: StreamId) -> Result<(), Error> {
        let mut at = part.begin;
        loop {
            let next = self.paging.ranges.lock().piece(part, at);
            let Some(piece) = next else { return Ok(()) };
            if !piece.is_stale() {
                self.given_up().order_behind_departure(stream, piece.departure, true)?;
            }
            at = piece.end();
        }
    }

    /// Returns the permission to record events, which is valid while the value lives.
    ///
    /// # Errors
    /// [`ErrorKind::NotPermittedInCapture`](crate::device::ErrorKind) while a graph is captured.
    fn must_record(&self) -> Result<RecordPermission<'_>, Error> {
        self.driver.may_record().ok_or(in_capture().into())
    }

    /// Waits for the work of every stream that has used a range and may be gone, because no event
    /// can be recorded there.
    fn wait_for_unreported(&self, range: u32) -> Result<(), Error> {
        let mut nth = 0;
        loop {
            let next = self.paging.ranges.lock().used_by(range, nth);
            let Some(stream) = next else { return Ok(()) };
            if self.driver.may_use(stream, NO_STREAM) {
                nth += 1;
                continue;
            }
            self.driver.synchronize(stream)?;
            self.paging.ranges.lock().forget_uses(range, Some(stream));
        }
    }

    /// Fills memory that is about to be given up with the value for freed memory, in the order of
    /// `stream`. The departure to come is after this fill.
    fn fill_given_up(&self, part: Part, stream: StreamId) -> Result<(), Error> {
        let step = self.range_step();
        let (Some(value), Some(contents)) = (self.debug.value_of_freed(), self.driver.device().contents()) else {
            return Ok(());
        };
        let mut at = part.begin;
        loop {
            // The lock ends with this statement. The part is held, so its pieces do not change.
            let next = self.paging.ranges.lock().piece(part, at);
            let Some(piece) = next else { return Ok(()) };
            let (mut left, mut from) = (piece.mask & piece.bits(part.begin, part.end, step), piece.at);
            while left != 0 {
                let (skipped, run) = (left.trailing_zeros(), (left >> left.trailing_zeros()).trailing_ones());
                let first = from + u64::from(skipped) * step;
                self.driver.call(|_| contents.fill(stream, DevicePtr(first), u64::from(run) * step, value))?;
                left = left.checked_shr(skipped + run).unwrap_or(0);
                from = first + u64::from(run) * step;
            }
            at = piece.end();
        }
    }

    /// Records an event after the present work of every stream that has used the range. `part` is
    /// the whole range. The first stream waits for the others, so a single event covers all of
    /// them.
    fn begin_departures(&self, part: Part) -> Result<u32, Error> {
        let range = part.range;
        self.wait_for_unreported(range)?;
        let (first, ended) = {
            let mut ranges = self.paging.ranges.lock();
            (ranges.used_by(range, 0), ranges.range(range).ended)
        };
        let Some(first) = first else {
            // All streams have ended. Without a departure, their work has already been waited for.
            if self.debug.value_of_freed().is_some() {
                // On no stream, only the host can order a fill. The caller keeps captures from
                // starting.
                if ended != NONE {
                    self.given_up().wait_for_departure(ended)?;
                }
                self.fill_given_up(part, NO_STREAM)?;
            }
            if ended == NONE {
                return self.given_up().begin_departure(None, Departing::Pages);
            }
            self.paging.pool.lock().departures.hold(ended);
            return Ok(ended);
        };
        self.given_up().order_behind_departure(first, ended, true)?;
        for nth in 1.. {
            let next = self.paging.ranges.lock().used_by(range, nth);
            let Some(stream) = next else { break };
            let departure = self.given_up().begin_departure(Some(stream), Departing::Pages)?;
            let ordered = self.given_up().order_behind_departure(first, departure, true);
            self.given_up().release_departure(departure);
            ordered?;
        }
        self.fill_given_up(part, first)?;
        self.given_up().begin_departure(Some(first), Departing::Pages)
    }

    /// Marks every step of a part as given up after a departure, and lists the pages with no step
    /// left as departed. Takes over the reference to the departure.
    fn give_part_up(&self, part: Part, departure: u32) {
        let step = self.range_step();
        let (mut committed, mut reserved, mut at) = (0, 0, part.begin);
        let mut ranges = self.paging.ranges.lock();
        while let Some(end) = ranges.change(part, at, |piece| {
            let removed = piece.mask & piece.bits(part.begin, part.end, step);
            if removed == 0 {
                return;
            }
            piece.mask &= !removed;
            committed += u64::from(removed.count_ones()) * step;
            let mut pages = self.paging.pool.lock();
            pages.departures.hold(departure);
            let earlier = core::mem::replace(&mut piece.departure, departure);
            let over = if earlier == NONE { None } else { pages.departures.release(earlier) };
            if piece.is_stale() {
                reserved += piece.bytes;
                pages.leave_home(piece.page);
                pages.add_alias(piece.page);
                pages.depart(piece.page, departure, piece.at, piece.at.saturating_sub(part.begin));
            }
            drop(pages);
            self.given_up().end_departure(over);
        }) {
            at = end;
        }
        let counters = &self.paging.range_counters;
        counters.down(Stat::AllocatedBytes, committed);
        counters.down(Stat::RequestedBytes, committed);
        counters.down(Stat::ReservedBytes, reserved);
        self.given_up().release_departure(departure);
        drop(ranges);
        if reserved > 0 {
            self.peaks.device.count(Occurrence::DeviceFree);
        }
    }
}
