//! Pages of the host (`spill`): the growth of heaps on them, and pages made ahead of need.
//!
//! ```text
//! a request at the end of the ladder ─▶ pages of the device, then of the host ┐
//! a request of a pool on the host    ─▶ pages of the host, then of the device ┴▶ growth.rs
//! upkeep, where the device has little left ─▶ spare pages of the host
//! ```

use crate::arena::holdings::Holdings;
use crate::arena::paging::growth::PageGrowth;
use crate::arena::paging::mapper::{Charge, Mapper};
use crate::arena::request::Request;
use crate::arena::{Platform, flags};
use crate::error::Error;
use crate::heap::split_rules::PoolMemory;
use crate::pages::Batch;
use crate::pool::PoolId;
use crate::units::DevicePtr;
use core::cell::Cell;

/// The memory that a request which may use both kinds of pages gets first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::arena) enum First {
    /// Pages of the device.
    Device,
    /// Pages of the host.
    Host,
}

/// The part of the device's memory, as a divisor, that pages of the host are made ahead for: while
/// the device has less than this left, upkeep keeps as much ready on the host.
const AHEAD: u64 = 64;

impl<P: Platform> Holdings<'_, P> {
    /// Sets the limit of pages of the host as `spill` says. Returns false if the key is unset.
    pub(in crate::arena) fn set_limit_of_host(&self) -> Result<bool, Error> {
        // The lock ends with this statement, before the device is asked.
        let spill = self.settings.config.lock().spill();
        let Some(spill) = spill else { return Ok(false) };
        let total = self.ledger.memory_info(self.driver)?.total;
        self.paging.spilled.set_limit(spill.bytes(total));
        Ok(true)
    }

    /// Returns whether pages of the host may serve the request: it is in a heap on pages, and its
    /// tag allows it. Sets their limit.
    fn may_spill(&self, request: &Request) -> Result<bool, Error> {
        let is_on_pages = self.heaps.source_now(&self.driver.flags, request).maps_pages();
        Ok(is_on_pages && !self.is_held_to_max(request) && self.set_limit_of_host()?)
    }

    /// Returns whether new pages of the request's pool are to be memory of the host.
    pub(in crate::arena) fn lies_on_host(&self, request: &Request) -> bool {
        // The default pool never is, and pays for this test alone.
        request.pool != 0 && self.heaps.registry.lock().pools[request.pool as usize].spills
    }

    /// Serves a request of a pool on the host from pages of the host, and from those of the device
    /// once the host has no more. Returns `None` for any other request, and if neither has the
    /// memory.
    pub(in crate::arena) fn grow_on_host(&self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        if self.lies_on_host(request) { self.spill(request, First::Host) } else { Ok(None) }
    }

    /// Serves a request from pages of both kinds. Returns `None` if nothing spills, or if there is
    /// not enough memory of both kinds together.
    pub(in crate::arena) fn spill(&self, request: &Request, first: First) -> Result<Option<DevicePtr>, Error> {
        if !self.may_spill(request)? {
            return Ok(None);
        }
        self.page_growth().map_or(Ok(None), |growth| growth.for_request(&request.mapping).on_both(request, first))
    }

    /// Returns whether [`spill`](Self::spill) would serve the request, as far as limits tell.
    pub(in crate::arena) fn would_spill(&self, request: &Request) -> Result<bool, Error> {
        let Some(growth) = self.page_growth() else { return Ok(false) };
        Ok(self.may_spill(request)?
            && growth.has_addresses(request)?
            && self.paging.has_room_to_spill(growth.bytes_to_map(request)))
    }

    /// Sets whether new pages of the private pool named `id` are memory of the host.
    ///
    /// # Errors
    /// [`Error::UnknownPool`]; [`Error::SpillRefused`] if they cannot be.
    pub(crate) fn set_on_host(&self, id: PoolId, on: bool) -> Result<(), Error> {
        if on && !self.set_limit_of_host()? {
            return Err(Error::SpillRefused(UNSET));
        }
        if on && !self.settings.uses_pages(PoolMemory::Paged) {
            return Err(Error::SpillRefused("the policy maps no memory"));
        }
        self.heaps.set_pool_on_host(id, on)
    }

    /// Makes pages of the host ahead of need for about `max_us` microseconds, one at least, while
    /// the device has little memory left. Returns true if the time ended before enough were made.
    pub(crate) fn make_pages_of_host_ahead(&self, max_us: u64) -> Result<bool, Error> {
        if self.driver.flags.has(flags::CAPTURE) || !self.set_limit_of_host()? {
            return Ok(false);
        }
        let Some(growth) = self.page_growth() else { return Ok(false) };
        let memory = self.ledger.memory_info(self.driver)?;
        let (ahead, spare) = (memory.total / AHEAD, self.paging.bytes().spare);
        let room = self.ledger.limit().saturating_sub(self.ledger.reserved()).min(memory.free);
        if room.saturating_add(spare) >= ahead {
            return Ok(false);
        }
        // Those that large heaps ask for: they have nearly all of the bytes.
        let bytes = growth.granule_of_large();
        let mut left = max_us;
        while self.paging.bytes().spare_of_host + bytes <= ahead {
            let (made, ticks) = self.driver.timed(|| growth.mapper.make_page_of_host_ahead(bytes));
            if !made? {
                break;
            }
            // Without a clock, a call makes one page.
            let us = self.driver.ticks_to_us(ticks);
            if us == 0 || us >= left {
                return Ok(self.paging.bytes().spare_of_host + bytes <= ahead);
            }
            left -= us;
        }
        Ok(false)
    }
}

/// The reason for not placing memory on the host where the settings do not say how much.
pub(in crate::arena) const UNSET: &str = "`spill` is not set";

impl<P: Platform> PageGrowth<'_, P> {
    /// Serves a request as [`expand`](Self::expand) does, from pages of one kind for as long as
    /// there are any, and then from the other. Returns `None` if both together do not have the
    /// memory, or if there are no addresses.
    fn on_both(&self, request: &Request, first: First) -> Result<Option<DevicePtr>, Error> {
        let first_has = Cell::new(true);
        self.expand_by(request, |bytes, granule, batch| {
            // After the first refusal, the first kind is not asked again for this request.
            first_has.set(first_has.get() && self.mapper.page_of(first, bytes, granule, batch)?);
            let second = if first == First::Device { First::Host } else { First::Device };
            if first_has.get() { Ok(true) } else { self.mapper.page_of(second, bytes, granule, batch) }
        })
    }
}

impl<P: Platform> Mapper<'_, P> {
    /// Appends a page of one kind to `batch`. Pages of the host have the length `granule`, so that
    /// those made ahead serve every large heap. Returns false if there is none.
    fn page_of(&self, kind: First, bytes: u64, granule: u64, batch: &mut Batch) -> Result<bool, Error> {
        match kind {
            First::Device => self.new_page(bytes, Charge::WithinLimit, batch),
            First::Host => self.new_page_of_host(granule, batch),
        }
    }
}
