//! The search for the pages of a commit: first spare and departed pages, then new ones within the
//! limit and the budget, then free pages of heaps, and last those of the host.

use super::RangeMapper;
use crate::arena::Platform;
use crate::arena::paging::mapper::{Charge, Mapper};
use crate::arena::paging::ranges::table::{MOST_STEPS, Part};
use crate::arena::paging::stitched::{PageRequest, Requester};
use crate::error::Error;
use crate::pages::Batch;
use crate::pages::departed::Behind;
use crate::tables::slot_table::NONE;
use crate::units::StreamId;

/// A new page is at most this part of the commit, so that parts can be decommitted.
const PAGES_OF_COMMIT: u64 = 4;

/// A new page is at most this part of the memory held.
const PAGES_HELD: u64 = 512;

/// The length of the longest new page, in bytes.
const LONGEST_PAGE: u64 = 16 << 20;

impl<P: Platform> RangeMapper<'_, P> {
    /// Collects pages to fill the gaps of `part`, in the order of the gaps. Returns false if the
    /// limit or the device does not allow them. With `orders`, may take pages with unfinished work,
    /// after which `stream` is then ordered.
    pub(super) fn fill_part(
        &self,
        part: Part,
        stream: StreamId,
        orders: bool,
        batch: &mut Batch,
    ) -> Result<bool, Error> {
        let mut at = part.begin;
        loop {
            let gap = self.paging.ranges.lock().gap(part, at);
            let Some((begin, end)) = gap else { return Ok(true) };
            if !self.fill_part_to(batch.bytes + (end - begin), part, stream, orders, batch)? {
                return Ok(false);
            }
            at = end;
        }
    }

    /// Collects pages until the batch has exactly `wanted` bytes, as [`fill_part`](Self::fill_part)
    /// does.
    fn fill_part_to(
        &self,
        wanted: u64,
        part: Part,
        stream: StreamId,
        orders: bool,
        batch: &mut Batch,
    ) -> Result<bool, Error> {
        // A spare page leaves no mapping behind.
        self.paging.take_spares(wanted, MOST_STEPS * self.range_step(), batch);
        if orders {
            let completed_only = self.stitcher.as_ref().is_some_and(|of| of.options.completed_pages_only);
            self.take_departed(stream, wanted, completed_only, batch)?;
        }
        let bytes = part.end - part.begin;
        let to_move = wanted.saturating_sub(batch.bytes).saturating_sub(self.allowance(bytes));
        if orders && to_move > 0 {
            self.take_free(stream, to_move.next_multiple_of(self.range_step()), batch)?;
        }
        let longest = self.new_page_bytes(bytes);
        while batch.bytes < wanted {
            let bytes = longest.min(wanted - batch.bytes);
            if !self.new_page(bytes, Charge::WithinLimit, batch)? {
                // The limit or the device allows less than the budget, but free pages may still be
                // enough.
                let before = batch.bytes;
                if orders {
                    self.take_free(stream, wanted - batch.bytes, batch)?;
                }
                if batch.bytes == before && !(self.spills.get() && self.new_page_of_host(bytes, batch)?) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Takes wholly free pages of heaps, under the stitched policy, of at most `wanted` bytes.
    fn take_free(&self, stream: StreamId, wanted: u64, batch: &mut Batch) -> Result<(), Error> {
        let Some(stitcher) = &self.stitcher else { return Ok(()) };
        // Using the pair keeps it with this stream.
        let own = self.heaps.find_pair(0, stream);
        let requester = Requester { stream, pool: 0, own: own.as_ref().map(|own| own.pair) };
        let end = batch.bytes + wanted;
        // Every page of a commit is mapped anyway, so moving fewer pages would save nothing.
        let mut moves = u32::MAX;
        stitcher.gather(requester, PageRequest { end, room: end }, &mut moves, batch)
    }

    /// Returns the bytes of new memory that a commit of `bytes` may add before free pages move.
    pub(super) fn allowance(&self, bytes: u64) -> u64 {
        let ledger = self.ledger;
        let most = match (ledger.limit_if_set(), &self.stitcher) {
            (Some(limit), _) => limit,
            (None, Some(stitcher)) => stitcher.most_held(bytes),
            (None, None) => u64::MAX,
        };
        most.saturating_sub(ledger.reserved())
    }

    /// Returns the length of the new pages for a commit of `bytes`, in bytes.
    fn new_page_bytes(&self, bytes: u64) -> u64 {
        let held = self.ledger.reserved() / PAGES_HELD;
        let longest = (bytes / PAGES_OF_COMMIT).min(1 << held.max(1).ilog2()).min(LONGEST_PAGE);
        (longest / self.range_step() * self.range_step()).max(self.range_step())
    }
}

impl<P: Platform> Mapper<'_, P> {
    /// Takes departed pages that fit below `wanted` bytes, starting with those whose work precedes
    /// that of `stream` anyway. The caller must then call [`order_batch`](Self::order_batch).
    pub(in crate::arena) fn take_departed(
        &self,
        stream: StreamId,
        wanted: u64,
        completed_only: bool,
        batch: &mut Batch,
    ) -> Result<(), Error> {
        if self.paging.pool.lock().bytes.departed == 0 {
            return Ok(());
        }
        self.given_up().poll_departures();
        self.driver.health()?;
        let longest = MOST_STEPS * self.range_step();
        let mut pages = self.paging.pool.lock();
        let scopes = if completed_only { [Behind::Complete; 2] } else { [Behind::Stream(stream), Behind::Any] };
        for behind in scopes {
            while let Some(page) = pages.take_departed(longest.min(wanted - batch.bytes), behind) {
                pages.append(batch, page);
            }
        }
        Ok(())
    }

    /// Orders later work on `stream` after the departures of the batch's pages, if `orders` permits
    /// this.
    pub(in crate::arena) fn order_batch(&self, batch: &Batch, stream: StreamId, orders: bool) -> Result<(), Error> {
        let mut last = NONE;
        for page in self.paging.numbers_of(batch) {
            last = self.given_up().order_behind_page(stream, page, last, orders)?;
        }
        Ok(())
    }
}
