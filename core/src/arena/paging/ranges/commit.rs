//! Committing a part of a range: pages are mapped into its gaps, and later work on a stream may use
//! them.
//!
//! Either all steps of a commit succeed, or the range is as before: pages return to where they came
//! from, and new mappings are removed. If the device fails to remove a mapping, its addresses are
//! lost: a commit of them is refused, and nothing else is mapped there.

use super::RangeMapper;
use crate::arena::flags;
use crate::arena::paging::Paging;
use crate::arena::paging::departures::in_capture;
use crate::arena::paging::mapping::{PageGuard, Places};
use crate::arena::paging::ranges::table::{Ahead, MOST_STEPS, Part, Piece, RangeTable};
use crate::arena::paging::undo::Undo;
use crate::arena::request::RequestCalls;
use crate::arena::{OnDevice, Platform};
use crate::device::oom::OutOfMemory;
use crate::device::{DeviceError, Host, StreamOrder};
use crate::error::Error;
use crate::pages::Batch;
use crate::pages::departures::Departing;
use crate::stats::{Occurrence, Stat};
use crate::tables::slot_table::NONE;
use crate::units::{DevicePtr, RangeId, StreamId};

/// The gaps in a part of a range, which pages fill. Room for lost pieces has been promised.
pub(super) struct Gaps<'a, P: Platform> {
    pub paging: &'a Paging<P>,
    pub part: Part,
}

impl<P: Platform> Places for Gaps<'_, P> {
    fn begin(&self) -> u64 {
        self.part.begin
    }

    fn next(&self, end: u64) -> u64 {
        let gap = self.paging.ranges.lock().gap(self.part, end);
        gap.expect("the pages fill the gaps").0
    }

    fn lose(&self, at: DevicePtr, bytes: u64, error: DeviceError) {
        self.paging.ranges.lock().add_lost(self.part.range, at.0, bytes, error);
    }
}

impl<P: Platform> Paging<P> {
    /// Takes back the page of a stale piece, if it is still departed.
    fn revive(&self, part: Part, piece: &Piece) -> bool {
        let mut ranges = self.ranges.lock();
        let revived = self.pool.lock().take_back(piece.page, piece.departure);
        if revived {
            ranges.change(part, piece.at, |piece| piece.is_revived = true);
        }
        revived
    }

    /// Lists the pages that [`clear_part`](RangeMapper::clear_part) took back as departed again.
    fn put_part_back(&self, part: Part) {
        let mut ranges = self.ranges.lock();
        let mut at = part.begin;
        while let Some(piece) = ranges.piece(part, at) {
            if piece.is_revived {
                self.pool.lock().depart_again(piece.page);
                ranges.change(part, piece.at, |piece| piece.is_revived = false);
            }
            at = piece.end();
        }
    }
}

impl<P: Platform> RangeMapper<'_, P> {
    /// Gives every page of a part of a range memory that later work on `stream` may use. Pages that
    /// are already committed stay as they are.
    ///
    /// When memory is short, follows the steps of a request: the program's callback, then pending
    /// frees and the cache, then the plans, and last the host, if `spill` is set.
    pub(crate) fn commit(
        self,
        device: OnDevice<'_, P>,
        id: RangeId,
        (offset, bytes): (u64, u64),
        stream: StreamId,
    ) -> Result<(), Error> {
        Error::refuse_reserved(stream)?;
        let time = RequestCalls::default();
        let timed = self.for_request(&time);
        let attempt = || timed.try_commit(id, offset, bytes, stream);
        let committed = timed.commit_by_steps(device, bytes, stream, attempt);
        time.count(&device.driver, &device.settings, &device.paging);
        committed
    }

    /// Commits `bytes` with `attempt`, following the steps of a request.
    fn commit_by_steps(
        &self,
        device: OnDevice<'_, P>,
        bytes: u64,
        stream: StreamId,
        attempt: impl Fn() -> Result<bool, Error>,
    ) -> Result<(), Error> {
        if device.paging.may_lend() {
            let longest = bytes.min(MOST_STEPS * self.range_step());
            device.holdings().take_lent(bytes, |page| page <= longest, self.captures(stream)?)?;
        }
        if attempt()? || self.driver.device().on_shortage(bytes) && attempt()? {
            return Ok(());
        }
        let capturing = self.captures(stream)?;
        if !capturing {
            device.waiting().wait_for_events()?;
            self.wait_for_departures()?;
            while device.holdings().give_by_shares(bytes)? > 0 {
                if attempt()? {
                    return Ok(());
                }
            }
            let releases = device.settings.policy().releases_cache();
            let again = || Ok(attempt()?.then_some(()));
            let committed = if releases { device.holdings().release_and_retry(again) } else { again() };
            if committed?.is_some() {
                return Ok(());
            }
            if self.driver.flags.has(flags::PLANNED) {
                device.plan_switch().map_or(Ok(()), |plans| plans.give_up())?;
                if attempt()? {
                    return Ok(());
                }
            }
        }
        self.spills.set(device.holdings().set_limit_of_host()?);
        if self.spills.get() && attempt()? {
            return Ok(());
        }
        self.peaks.device.count(Occurrence::OutOfMemory);
        let host_lack = self.request.map(|request| request.host_lack.get()).unwrap_or_default();
        let report = OutOfMemory { host_lack, capturing, ..device.memory_report(bytes, bytes, bytes, None) };
        self.driver.device().on_out_of_memory(&report);
        Err(Error::OutOfMemory(report))
    }

    /// Returns whether a capture forbids waiting, because the program captures a graph or `stream`
    /// does.
    fn captures(&self, stream: StreamId) -> Result<bool, Error> {
        Ok(self.driver.may_record().is_none() || self.driver.call(|memory| memory.is_capturing(stream))?)
    }

    /// Commits a part with the memory that is available. Returns false if this is not enough.
    fn try_commit(&self, id: RangeId, offset: u64, bytes: u64, stream: StreamId) -> Result<bool, Error> {
        let (held, part) = self.hold_range(id, offset, Some(bytes))?;
        self.given_up().poll_departures();
        self.driver.health()?;
        let was_short = self.is_short.get();
        let mut guard = PageGuard::empty(&self.mapper);
        let committed = self.try_part(part, stream, &mut guard.batch);
        if matches!(committed, Ok(true)) {
            let batch = guard.keep();
            if let Some(stitcher) = &self.stitcher {
                stitcher.growth.mapper.leave_origins(&batch);
            }
            self.paging.settle_batch(&batch);
        } else {
            self.is_short.set(true);
            self.paging.put_part_back(part);
            drop(guard);
        }
        drop(held);
        if !was_short && matches!(committed, Err(Error::TableFull(_))) {
            // There may be room for the part without pages ahead.
            return self.try_commit(id, offset, bytes, stream);
        }
        committed
    }

    /// Commits a held part. The pages taken are in `batch`, even after a failure.
    fn try_part(&self, part: Part, stream: StreamId, batch: &mut Batch) -> Result<bool, Error> {
        // Held until everything is ordered, so that no capture starts in between.
        let permission = self.driver.may_record();
        let orders = permission.is_some() && !self.driver.call(|memory| memory.is_capturing(stream))?;
        self.clear_part(part, orders)?;
        if !self.fill_part(part, stream, orders, batch)? {
            return Ok(false);
        }
        let asked = batch.bytes;
        let ahead = if orders && !self.is_short.get() { self.fill_ahead(part, batch)? } else { None };
        // Each page becomes a piece, either mapped or lost.
        if !self.paging.ranges.lock().promise_pieces(batch.count) {
            return Err(Error::TableFull("pieces of ranges"));
        }
        let count = batch.count;
        let committed = self.map_and_publish(part, ahead, stream, orders, batch);
        self.paging.ranges.lock().end_promise(count);
        if let Some(departure) = committed? {
            if let Some(ahead) = ahead {
                // The pages ahead are no longer in hand.
                self.paging.pool.lock().cut(batch, asked);
                self.leave_ahead(ahead.tail, departure);
            }
            self.paging.ranges.lock().note_front(part);
            return Ok(true);
        }
        Ok(false)
    }

    /// Commits a held part with the pages of a batch, of which the last are mapped `ahead`. Room
    /// for them among the pieces has been promised. Returns the departure of the pages ahead, or
    /// [`NONE`] without such pages. Returns `None` if the device does not have the memory.
    fn map_and_publish(
        &self,
        part: Part,
        ahead: Option<Ahead>,
        stream: StreamId,
        orders: bool,
        batch: &Batch,
    ) -> Result<Option<u32>, Error> {
        let end = ahead.map_or(part.end, |ahead| ahead.tail.end);
        let gaps = Gaps { paging: self.paging, part: Part { end, ..part } };
        let Some(mapping) = self.map(batch, gaps)? else { return Ok(None) };
        self.order_part(part, stream, orders)?;
        self.order_batch(batch, stream, orders)?;
        let departure = match ahead {
            Some(_) => self.given_up().begin_departure(None, Departing::Pages)?,
            None => NONE,
        };
        let release = Undo::by(|| {
            if departure != NONE {
                self.given_up().release_departure(departure);
            }
        });
        self.publish_part(part, ahead, stream, batch)?;
        mapping.keep();
        release.keep();
        Ok(Some(departure))
    }

    /// Frees the addresses of the part's stale mappings, or takes their pages back, because a page
    /// that is still at its old place needs no call to the device.
    ///
    /// # Errors
    /// The errors of the device. If the part contains lost addresses, the error with which the
    /// device failed to unmap them.
    fn clear_part(&self, part: Part, orders: bool) -> Result<(), Error> {
        let mut at = part.begin;
        loop {
            let next = self.paging.ranges.lock().piece(part, at);
            let Some(piece) = next else { return Ok(()) };
            at = piece.end();
            if let Some(error) = piece.error() {
                return Err(error.into());
            }
            if !piece.is_stale() {
                continue;
            }
            let complete = self.paging.pool.lock().departures[piece.departure].complete;
            if !complete && !orders {
                return Err(in_capture().into());
            }
            // A page that is longer than the part is taken back only if its addresses are not free
            // yet.
            let is_whole = part.begin <= piece.at && piece.end() <= part.end;
            if (is_whole || !complete) && self.paging.revive(part, &piece) {
                continue;
            }
            if !complete {
                // The page is used elsewhere, and work still uses it here, so nothing else can be
                // mapped.
                self.given_up().wait_for_departure(piece.departure)?;
            }
            self.unmap_stale_piece(piece.at)?;
        }
    }

    /// Orders later work on `stream` after the decommits of everything that is committed again.
    fn order_part(&self, part: Part, stream: StreamId, orders: bool) -> Result<(), Error> {
        let (mut at, mut last) = (part.begin, NONE);
        loop {
            let next = self.paging.ranges.lock().piece(part, at);
            let Some(piece) = next else { return Ok(()) };
            let added = piece.bits(part.begin, part.end, self.range_step()) & !piece.mask;
            if added != 0 && piece.departure != last {
                self.given_up().order_behind_departure(stream, piece.departure, orders)?;
                last = piece.departure;
            }
            at = piece.end();
        }
    }

    /// Adds the mapped pages of the batch as pieces, for which room has been promised, and marks
    /// every step of the part as committed. Pieces `ahead` are stale, and have no departure yet.
    ///
    /// # Errors
    /// [`Error::TableFull`]. Nothing has changed then.
    fn publish_part(&self, part: Part, ahead: Option<Ahead>, stream: StreamId, batch: &Batch) -> Result<(), Error> {
        let step = self.range_step();
        let mut ranges = self.paging.ranges.lock();
        if !ranges.note_use(part.range, stream) {
            return Err(Error::TableFull("streams of ranges"));
        }
        let (end, growths) = ahead.map_or((part.end, 0), |ahead| (ahead.tail.end, ahead.growths));
        // Stale until the steps are set below, where all pieces are treated alike.
        self.add_pieces(&mut ranges, Part { end, ..part }, batch, growths);
        let (mut reserved, mut committed, mut at) = (0, 0, part.begin);
        while let Some(end) = ranges.change(part, at, |piece| {
            let added = piece.bits(part.begin, part.end, step) & !piece.mask;
            reserved += if piece.is_stale() { piece.bytes } else { 0 };
            committed += u64::from(added.count_ones()) * step;
            piece.mask |= added;
            let mut pages = self.paging.pool.lock();
            if core::mem::take(&mut piece.is_revived) {
                pages.settle(piece.page);
                pages.remove_alias(piece.page, false);
            }
            let mut over = None;
            if piece.mask == piece.all_bits(step) && piece.departure != NONE {
                over = pages.departures.release(piece.departure);
                piece.departure = NONE;
            }
            drop(pages);
            self.given_up().end_departure(over);
        }) {
            at = end;
        }
        let counters = &self.paging.range_counters;
        let sums =
            [(Stat::AllocatedBytes, committed), (Stat::RequestedBytes, committed), (Stat::ReservedBytes, reserved)];
        let stale = sums.into_iter().fold(false, |stale, (stat, bytes)| counters.up(stat, bytes) | stale);
        drop(ranges);
        if batch.count > 0 {
            self.peaks.device.count(Occurrence::DeviceAlloc);
        }
        self.reconcile_ranges(stale);
        Ok(())
    }

    /// Adds the mapped pages of a batch as stale pieces in the gaps of `part`. `growths` is how
    /// often the memory before has grown in a row.
    pub(super) fn add_pieces(&self, ranges: &mut RangeTable<P::Storage>, part: Part, batch: &Batch, growths: u8) {
        let mut at = part.begin;
        for page in self.paging.numbers_of(batch) {
            let bytes = self.paging.pool.lock()[page].bytes;
            let (begin, _) = ranges.gap(part, at).expect("the pages fill the gaps");
            let mut piece = Piece::mapped(part.range, begin, bytes, page);
            piece.growths = growths;
            ranges.add_piece(piece);
            at = begin + bytes;
        }
    }
}
