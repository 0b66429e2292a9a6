//! What a request would do if it were made now.

use crate::arena::heaps::{HEAPS, STREAMS};
use crate::arena::request::Request;
use crate::arena::{Arena, flags};
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::{DevicePtr, StreamId};

/// What a request would do first if it were made now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forecast {
    /// The block at this address would be handed out, from the cache or a plan; for zero bytes, the null address.
    Hit(DevicePtr),
    /// A segment of so many bytes would be obtained.
    Obtain(u64),
    /// An expandable segment would grow.
    Expand,
    /// The segment (or, if it is expandable, the mapped range) at this address would be released.
    Release(DevicePtr),
    /// It would fail.
    OutOfMemory,
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// What [`malloc`](Self::malloc) would do first. Changes nothing; pending events are taken as they are.
    pub(crate) fn forecast(&self, bytes: u64, stream: StreamId) -> Result<Forecast, Error> {
        if bytes == 0 {
            return Ok(Forecast::Hit(DevicePtr::NULL));
        }
        self.health()?;
        if let Some(ptr) = self.planned_forecast(bytes, stream) {
            return Ok(Forecast::Hit(ptr));
        }
        let foretold =
            self.with_request(bytes, stream, 0, Self::use_pair_for_forecast, |request| self.forecast_of(request));
        if let Err(Error::TableFull(HEAPS | STREAMS)) = foretold
            && let Some(first) = self.first_idle()
        {
            return Ok(Forecast::Release(first));
        }
        foretold
    }

    fn forecast_of(&self, request: &Request) -> Result<Forecast, Error> {
        let bytes = self.segment_bytes(request);
        if self.flags.has(flags::DIRECT) {
            return Ok(if self.ledger.has_room_for(bytes) { Forecast::Obtain(bytes) } else { Forecast::OutOfMemory });
        }
        if let Some(ptr) = self.found(request) {
            return Ok(Forecast::Hit(ptr));
        }
        if !request.capturing
            && let Some(first) = self.first_ended(request.slot / 2)
        {
            return Ok(Forecast::Release(first));
        }
        if let Some(first) = self.first_garbage() {
            return Ok(Forecast::Release(first));
        }
        if self.rejected(request)?.is_some() {
            return Ok(Forecast::OutOfMemory);
        }
        if self.ledger.has_room_for(bytes) && !self.expands(request) {
            return Ok(Forecast::Obtain(bytes));
        }
        if self.ledger.has_room_for(bytes) && self.has_addresses(request)? {
            return Ok(Forecast::Expand);
        }
        if let Some(ptr) = self.in_oom_pools(request, |request| self.found(request)) {
            return Ok(Forecast::Hit(ptr));
        }
        if let Some(ptr) = self.oversize_victim(request) {
            return Ok(Forecast::Release(ptr));
        }
        let releases = !request.capturing && self.releases_to_obtain();
        let first = if releases { self.first_releasable() } else { None };
        let first = first.or_else(|| self.first_idle_lane().filter(|_| !request.capturing));
        Ok(first.map_or(Forecast::OutOfMemory, Forecast::Release))
    }

    /// The free block that would serve a request.
    fn found(&self, request: &Request) -> Option<DevicePtr> {
        self.lock(request.slot).peek(request.size)
    }
}
