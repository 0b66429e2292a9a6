//! The forecast of a request: the first effect that it would have if it were made now.
//!
//! A request that no free block of its heap serves goes down the ladder (ladder.rs).

use crate::arena::heaps::Heaps;
use crate::arena::heaps::pairs::{HEAPS, STREAMS};
use crate::arena::paging::Paging;
use crate::arena::plans;
use crate::arena::platform::Platform;
use crate::arena::request::{Forecast, Request};
use crate::arena::{OnDevice, flags};
use crate::error::Error;
use crate::heap::split_rules::Source;
use crate::units::{DevicePtr, MAX_REQUEST, StreamId, UNIT};

impl<P: Platform> OnDevice<'_, P> {
    /// Returns the first effect of a request for `bytes` on `stream`. Changes no block and no
    /// segment, and does not poll pending events.
    pub(crate) fn forecast(self, bytes: u64, stream: StreamId) -> Result<Forecast, Error> {
        if bytes == 0 {
            return Ok(Forecast::Hit(DevicePtr::NULL));
        }
        self.driver.health()?;
        let may_plan = self.driver.flags.has(flags::PLANNED) && !plans::are_off(&self.driver.flags);
        if may_plan
            && bytes <= MAX_REQUEST - UNIT
            && !self.heaps.is_routed(&self.driver, stream)
            && let Some(ptr) = self.plans.forecast(&self.heaps, bytes, stream)
        {
            return Ok(Forecast::Hit(ptr));
        }
        let forecast =
            self.with_request(bytes, stream, 0, Heaps::use_pair_for_forecast, |request| self.forecast_of(request));
        // As in `serve` of malloc.rs, a full table of pairs makes the request release an idle pair.
        if let Err(Error::TableFull(HEAPS | STREAMS)) = forecast
            && let Some(first) = self.heaps.first_idle(&self.driver)
        {
            return Ok(Forecast::Release(first));
        }
        forecast
    }

    /// Returns the first effect of a request that has been routed.
    fn forecast_of(self, request: &Request) -> Result<Forecast, Error> {
        if self.debug.would_guard(&self.holdings(), request) {
            return Ok(Forecast::Expand);
        }
        let first = if self.driver.flags.has(flags::DIRECT) {
            self.forecast_of_growth(request, false)?
        } else {
            self.heaps.lock(request.slot).peek(request.size).map(Forecast::Hit)
        };
        first.map_or_else(|| self.forecast_of_reclaim(request), Ok)
    }

    /// Returns the effect of growing the request's heap, or `None` if the limit or the addresses do
    /// not allow it. `has_waited` is true if the request has waited for the work before all
    /// decommits.
    pub(super) fn forecast_of_growth(self, request: &Request, has_waited: bool) -> Result<Option<Forecast>, Error> {
        if self.holdings().is_held_to_max(request) {
            let first = if request.capturing { None } else { self.holdings().first_for_max(request) };
            return Ok(first.map(Forecast::Release));
        }
        let (bytes, spare) = (self.segment_bytes(request), self.paging.spare(has_waited));
        let (source, held) = (self.heaps.source_now(&self.driver.flags, request), self.holdings());
        if source.maps_pages() && held.lies_on_host(request) && held.would_spill(request)? {
            return Ok(Some(Forecast::Expand));
        }
        let lent = held.lent_bytes(request.capturing)?;
        match source {
            // Spare and lent pages go back to the device first. Those with a stale mapping only do
            // so after the wait for its stream.
            Source::Device | Source::Host => {
                let unmaps = has_waited && !self.stitcher().map_or(Ok(false), |stitcher| stitcher.keeps_stale())?;
                let back = if unmaps { spare } else { self.paging.destroyable_bytes() };
                Ok(self.ledger.has_room_without(back + lent, bytes).then_some(Forecast::Obtain(bytes)))
            }
            Source::Pages if self.settings.policy().traits().moves_pages => {
                self.stitcher().map_or(Ok(None), |stitcher| stitcher.forecast(request, spare, lent))
            }
            Source::Pages => {
                let growth = held.page_growth().filter(|_| self.ledger.has_room_without(spare + lent, bytes));
                let Some(growth) = growth else { return Ok(None) };
                Ok(growth.has_addresses(request)?.then_some(Forecast::Expand))
            }
        }
    }
}

impl<P: Platform> Paging<P> {
    /// Returns the bytes of spare pages. With `has_waited`, returns those after the request has
    /// waited for the work before all decommits.
    fn spare(&self, has_waited: bool) -> u64 {
        let pages = self.bytes();
        pages.spare + if has_waited { pages.departed } else { 0 }
    }
}
