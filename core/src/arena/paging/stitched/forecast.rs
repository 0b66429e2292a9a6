//! The forecast of a growth: predicts whether free pages and new memory together would serve a
//! request.

use super::Stitcher;
use crate::arena::Platform;
use crate::arena::request::Forecast;
use crate::arena::request::Request;
use crate::device::StreamOrder;
use crate::error::Error;
use crate::heap::growth::Lacking;
use crate::heap::moves::Wanted;
use crate::pages::counts::PageCounts;
use crate::units::{DevicePtr, NO_STREAM};

impl<P: Platform> Stitcher<'_, P> {
    /// Returns the effect of [`grow`](Self::grow) with `spare` bytes of spare and `lent` bytes of
    /// lent pages, or `None` if `grow` could not serve the request. Free pages count whether or not
    /// their work is complete, because a request that cannot move a page would wait for its work
    /// and use it anyway.
    pub(crate) fn forecast(&self, request: &Request, spare: u64, lent: u64) -> Result<Option<Forecast>, Error> {
        if let Some(ptr) = self.peek_other_heap(request) {
            return Ok(Some(Forecast::Hit(ptr)));
        }
        if let Some(ptr) = self.peek_loan(request, self.allowance(request))? {
            return Ok(Some(Forecast::Hit(ptr)));
        }
        let ledger = self.mapper().ledger;
        let room = ledger.limit().saturating_sub(ledger.reserved().saturating_sub(lent));
        let new = self.new_bytes_beside(request, room, spare)?;
        Ok(new.is_some_and(|bytes| bytes <= room).then_some(Forecast::Expand))
    }

    /// Returns the bytes of new memory for a request that may obtain at most `room` bytes, or 0 if
    /// another stream would lend a block. A request without enough addresses continues, and fails
    /// because of them.
    pub(crate) fn bytes_to_obtain(&self, request: &Request, room: u64) -> Result<u64, Error> {
        let bytes = self.new_bytes(request, room)?.unwrap_or(0);
        let is_lent = bytes > room && self.peek_loan(request, self.allowance(request))?.is_some();
        Ok(if is_lent { 0 } else { bytes })
    }

    /// Returns the bytes of new memory that [`grow`](Self::grow) needs for a request: 0 if a free
    /// block or spare pages are enough. If the request would need more than `room`, the free pages
    /// that may move are subtracted. Returns `None` if there are not enough addresses.
    pub(crate) fn new_bytes(&self, request: &Request, room: u64) -> Result<Option<u64>, Error> {
        let spare = self.mapper().paging.pool.lock().bytes.spare;
        self.new_bytes_beside(request, room, spare)
    }

    /// Returns the bytes of new memory for a request, as [`new_bytes`](Self::new_bytes) does, with
    /// `spare` bytes of spare pages. These are the present spare pages, and possibly the departed
    /// pages.
    fn new_bytes_beside(&self, request: &Request, room: u64, spare: u64) -> Result<Option<u64>, Error> {
        if self.peek_other_heap(request).is_some() {
            return Ok(Some(0));
        }
        if !self.growth.has_addresses(request)? {
            return Ok(None);
        }
        let lacking = self.mapper().heaps.lock(request.slot).lacking(request.size);
        // A heap without addresses needs all the bytes.
        let whole = Lacking { needed: request.size.next_multiple_of(self.step()), beside: 0 };
        let Lacking { needed, beside } = lacking.unwrap_or(whole);
        let pages = self.mapper().paging.pool.lock().bytes;
        let new = needed.saturating_sub(spare);
        let may_move = new > room && self.may_move(request);
        let departed = (pages.spare + pages.departed).saturating_sub(spare);
        let movable = if may_move { self.movable_bytes(request)?.saturating_sub(beside) + departed } else { 0 };
        Ok(Some(new.saturating_sub(movable)))
    }

    /// Returns the free block for a request in the stream's heap of the other kind.
    fn peek_other_heap(&self, request: &Request) -> Option<DevicePtr> {
        let other = self.other_heap(request)?;
        self.mapper().heaps.lock(other).peek(request.size)
    }

    /// Returns whether a stale mapping would outlast the release of all cached memory, because its
    /// heap's stream captures.
    pub(crate) fn keeps_stale(&self) -> Result<bool, Error> {
        let mapper = self.mapper();
        for slot in mapper.heaps.slot_numbers() {
            let stream = {
                let heap = mapper.heaps.lock(slot);
                let stale = !heap.is_empty() && heap.sets.stale.count > 0;
                mapper.driver.usable_stream(&heap, NO_STREAM).filter(|_| stale)
            };
            if let Some(stream) = stream
                && mapper.driver.call(|memory| memory.is_capturing(stream))?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the bytes of the free pages that may move to the heap of a request.
    fn movable_bytes(&self, request: &Request) -> Result<u64, Error> {
        let mapper = self.mapper();
        let mut counts = PageCounts::new(self.step());
        // A capture that was not announced permits no wait for the request's own pages.
        let waits =
            !self.options.completed_pages_only || !mapper.driver.call(|memory| memory.is_capturing(request.stream))?;
        self.count_free(if waits { Wanted::Free } else { Wanted::Quiet }, request.slot / 2, &mut counts);
        for other in self.others(request.into()) {
            let slot = super::gather::slots_of(other.pair)[0];
            let stream = mapper.driver.usable_stream(&mapper.heaps.lock(slot), request.stream);
            // Another stream that captures can neither be ordered before the request nor waited
            // for.
            let waits = match stream {
                Some(stream) => !mapper.driver.call(|memory| memory.is_capturing(stream))?,
                None => false,
            };
            self.count_free(if waits { Wanted::Free } else { Wanted::Quiet }, other.pair, &mut counts);
        }
        Ok(counts.bytes())
    }
}
