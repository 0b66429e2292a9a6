//! Forecast of a request: the first effect the request would have if it were made now.
//!
//! The order of the checks is the order of the reclaim ladder in reclaim.rs.

use crate::arena::compact::Compact;
use crate::arena::give::{caches, rules};
use crate::arena::heaps::Heaps;
use crate::arena::heaps::pairs::{HEAPS, STREAMS};
use crate::arena::request::Request;
use crate::arena::{OnDevice, flags};
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::heap::split_rules::Source;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::{DevicePtr, StreamId};
use core::cell::Cell;

/// First effect of a request if the request were made now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forecast {
    /// The block at the given address would be handed out, from the cache or a plan. The address is
    /// null for a request of zero bytes.
    Hit(DevicePtr),
    /// A segment of the given number of bytes would be allocated from the device.
    Obtain(u64),
    /// An expandable segment would be extended by mapping more memory.
    Expand,
    /// The segment at the given address would be released; of an expandable segment, the mapped
    /// range at the address.
    Release(DevicePtr),
    /// The request would fail for lack of memory.
    OutOfMemory,
}

impl<D: DeviceMemory, R: Lock, S: Storage> OnDevice<'_, D, R, S> {
    /// Returns the first effect of a request for `bytes` on `stream`. Changes no block and no
    /// segment, and does not poll pending events.
    pub(crate) fn forecast(self, bytes: u64, stream: StreamId) -> Result<Forecast, Error> {
        if bytes == 0 {
            return Ok(Forecast::Hit(DevicePtr::NULL));
        }
        self.health()?;
        if let Some(ptr) = self.planned_forecast(bytes, stream) {
            return Ok(Forecast::Hit(ptr));
        }
        let forecast =
            self.with_request(bytes, stream, 0, Heaps::use_pair_for_forecast, |request| self.forecast_of(request));
        // As in `malloc_at_site`: a full table of pairs makes the request release an idle pair.
        if let Err(Error::TableFull(HEAPS | STREAMS)) = forecast
            && let Some(first) = self.first_idle()
        {
            return Ok(Forecast::Release(first));
        }
        forecast
    }

    /// Returns the first effect of a routed request.
    fn forecast_of(self, request: &Request) -> Result<Forecast, Error> {
        let bytes = self.segment_bytes(request);
        if self.flags.has(flags::DIRECT) {
            let has_room = self.ledger.has_room_without(self.spare_after_wait(request), bytes);
            return Ok(if has_room { Forecast::Obtain(bytes) } else { Forecast::OutOfMemory });
        }
        if let Some(ptr) = self.heaps.lock(request.slot).peek(request.size) {
            return Ok(Forecast::Hit(ptr));
        }
        // Step 2 of the ladder.
        if !request.capturing
            && let Some(first) = self.first_ended(request.slot / 2)
        {
            return Ok(Forecast::Release(first));
        }
        if let Some(first) = rules::old(self.arena).next() {
            return Ok(Forecast::Release(first.ptr()));
        }
        if self.rejected(request)?.is_some() {
            return Ok(Forecast::OutOfMemory);
        }
        // Step 3.
        let compact = Compact::on(self.arena);
        if compact.excess(request).is_some()
            && compact.any_serves_first(request)
            && let Some(ptr) = compact.peek_any(request)
        {
            return Ok(Forecast::Hit(ptr));
        }
        if let Some(first) = compact.quiet_segments(request).next() {
            return Ok(Forecast::Release(first.ptr()));
        }
        let spare = self.page_pool.lock().bytes.spare;
        if let Some(growth) = self.forecast_of_growth(request, bytes, spare)? {
            return Ok(growth);
        }
        if let Some(ptr) = compact.peek_any(request) {
            return Ok(Forecast::Hit(ptr));
        }
        // Step 4.
        if let Some(ptr) = self.in_oom_pools(request, |request| self.heaps.lock(request.slot).peek(request.size)) {
            return Ok(Forecast::Hit(ptr));
        }
        // Step 5.
        if let Some(first) = rules::oversize(&self.heaps, request, &Cell::new(0)).next() {
            return Ok(Forecast::Release(first.ptr()));
        }
        // Steps 6 and 7. Pending events are taken as they are, so the second search is left out.
        let releases = !request.capturing && self.settings.policy.releases_cache();
        let first = if releases { caches::first_releasable(self.arena) } else { None };
        let first = first.or_else(|| self.plans.first_idle(&self.heaps).filter(|_| !request.capturing));
        if let Some(first) = first {
            return Ok(Forecast::Release(first));
        }
        // The request waits for the work before decommits in step 6, and then grows.
        let grown =
            if releases { self.forecast_of_growth(request, bytes, self.spare_after_wait(request))? } else { None };
        Ok(grown.unwrap_or(Forecast::OutOfMemory))
    }

    /// Returns the bytes of spare pages once the request has waited for the work before all decommits. A request of a
    /// capture does not wait.
    fn spare_after_wait(self, request: &Request) -> u64 {
        let pages = self.page_pool.lock().bytes;
        if request.capturing { pages.spare } else { pages.spare + pages.departed }
    }

    /// Returns the effect of a growth of the request's heap by a segment of `bytes` while `spare` bytes of pages are
    /// spare, or `None` if the limit or the addresses do not allow it.
    fn forecast_of_growth(self, request: &Request, bytes: u64, spare: u64) -> Result<Option<Forecast>, Error> {
        match self.heaps.source(request) {
            // Spare pages go back to the device first.
            Source::Device | Source::Host => {
                Ok(self.ledger.has_room_without(spare, bytes).then_some(Forecast::Obtain(bytes)))
            }
            Source::Expandable => {
                let mapper = self.mapper().filter(|_| self.ledger.has_room_without(spare, bytes));
                let Some(mapper) = mapper else { return Ok(None) };
                Ok(mapper.has_addresses(request)?.then_some(Forecast::Expand))
            }
            Source::Stitched => self.stitcher().map_or(Ok(None), |stitcher| stitcher.forecast(request, spare)),
        }
    }
}
