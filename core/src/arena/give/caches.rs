//! Cached memory that is given back: the whole cache, the cache of one heap, or down to a target.
//!
//! No two heaps are locked at the same time, and no heap is locked across a call to the device.

use crate::arena::driver::Driver;
use crate::arena::flags;
use crate::arena::give::rules;
use crate::arena::heaps::Heaps;
use crate::arena::heaps::units::{Unit, UnitKind};
use crate::arena::holdings::Holdings;
use crate::arena::paging::Paging;
use crate::arena::plans::PlanSwitch;
use crate::arena::platform::Platform;
use crate::config::rounding::PoolKind;
use crate::device::StreamOrder;
use crate::error::Error;
use crate::stats::Occurrence;
use crate::units::{DevicePtr, NO_STREAM};

impl<P: Platform> Holdings<'_, P> {
    /// Gives every unit back.
    ///
    /// # Errors
    /// The first failure. The release continues after it, unless the context is lost.
    fn give_each(&self, units: impl Iterator<Item = Unit>) -> Result<(), Error> {
        let mut result = Ok(());
        if self.driver.holds_frees() {
            return result;
        }
        for unit in units {
            result = result.and(self.give([unit]).map(|_bytes| ()));
            if self.driver.flags.has(flags::LOST) {
                break;
            }
        }
        result
    }

    /// Releases the free segments of the heap in `slot`, after a block was freed in direct mode.
    ///
    /// The free has already succeeded, so a failed release is not reported here. It shows in the
    /// number of leaked bytes, and a lost device in the health of the context.
    pub(in crate::arena) fn release_directly(&self, slot: u32) {
        // If the freed block was the pair's last, another stream may have the pair by now. In
        // direct mode its free segments should be released as well.
        if let Some(_used) = self.heaps.enter_pair(slot / 2) {
            let _counted = self.give_each(self.heaps.segments_of(slot));
        }
    }

    /// Releases every wholly free segment of the heap in `slot`, and unmaps the free granules of
    /// expandable segments. The caller uses the pair.
    ///
    /// # Errors
    /// The first failure. The release continues after it, unless the context is lost.
    pub(in crate::arena) fn release_heap(&self, slot: u32) -> Result<(), Error> {
        // The addresses that pages have left would keep the pair from becoming vacant.
        let unmapped = self.stitcher().map_or(Ok(()), |stitcher| stitcher.unmap_stale_of(slot));
        let emptied = unmapped.and(self.empty_heap(slot));
        // Under the stitched policy, spare pages serve other heaps within the same budget.
        if self.settings.policy().traits().moves_pages { emptied } else { emptied.and(self.destroy_spares()) }
    }

    /// Releases every wholly free segment of the heap in `slot`. Pages of virtual memory become
    /// spare.
    pub(super) fn empty_heap(&self, slot: u32) -> Result<(), Error> {
        let segments = self.give_each(self.heaps.segments_of(slot));
        let released = segments.and(self.unmap_cached(slot));
        self.heaps.drop_tables(&mut self.heaps.lock(slot));
        released
    }

    /// Unmaps the free granules of the heap in `slot`, if the device has virtual memory. If the
    /// heap is parked, also gives up the places of freed pages. The caller uses the pair, so no
    /// park can start.
    pub(in crate::arena) fn unmap_cached(&self, slot: u32) -> Result<(), Error> {
        let Some(mapper) = self.heap_mapper() else { return Ok(()) };
        if self.heaps.lock(slot).asleep { mapper.try_to_give_up_freed(slot) } else { mapper.unmap_cached(slot) }
    }

    /// Returns the memory of spare pages to the device.
    ///
    /// # Errors
    /// The first error of the device, after all pages have been tried.
    pub(in crate::arena) fn destroy_spares(&self) -> Result<(), Error> {
        // Asking a device for its virtual memory may open the device.
        if self.paging.bytes().spare == 0 {
            return Ok(());
        }
        self.mapper().map_or(Ok(()), |mapper| mapper.destroy_spares().map(|_any| ()))
    }

    /// Returns the memory of spare pages to the device and to the host. Those of the host are kept
    /// until then because the host takes a quarter of a second to make a GiB of them.
    fn destroy_all_spares(&self) -> Result<(), Error> {
        let bytes = self.paging.bytes();
        if bytes.spare == 0 && bytes.spare_of_host == 0 {
            return Ok(());
        }
        self.mapper().map_or(Ok(()), |mapper| {
            let destroyed = mapper.destroy_spares().map(|_any| ());
            destroyed.and(mapper.destroy_spares_of_host())
        })
    }

    /// Releases every wholly free segment and every spare page, as
    /// [`empty_heaps`](Self::empty_heaps) does.
    pub(crate) fn release_cached(&self, only: Option<u32>) -> Result<(), Error> {
        // A page with a stale mapping cannot go back to the device.
        let unmapped = self.stitcher().map_or(Ok(()), |stitcher| stitcher.unmap_all_stale());
        let decommitted = if only.is_none() { self.wait_for_departures() } else { Ok(()) };
        // Nobody uses it either. A reclaim makes pages for it again.
        let takes = only.is_none() && self.paging.may_lend();
        let lent = if takes { self.take_lent(u64::MAX, |_| false, false) } else { Ok(()) };
        unmapped.and(decommitted).and(lent).and(self.empty_heaps(only)).and(self.destroy_all_spares())
    }

    /// Releases every wholly free segment because memory could not be obtained before, and then
    /// tries to obtain it with `attempt`. Returns the result of the attempt.
    ///
    /// # Errors
    /// Those of the attempt. If it gets no memory, the first failure of a release.
    pub(in crate::arena) fn release_and_retry<T>(
        &self,
        attempt: impl FnOnce() -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        // A page with a stale mapping cannot go back to the device in exchange for a longer one.
        self.stitcher().map_or(Ok(()), |stitcher| stitcher.unmap_all_stale())?;
        self.empty_heaps(None)?;
        self.peaks.device.count(Occurrence::AllocRetry);
        // The attempt maps spare pages first. Those that are left go back to the device.
        let served = attempt()?;
        let destroyed = self.destroy_spares();
        // A failed release counts as leaked, and must not lose the memory that was obtained.
        if served.is_none() {
            destroyed?;
        }
        Ok(served)
    }

    /// Releases every wholly free segment, first of the default pool, and then of the private pools
    /// without users. With `only`, releases the segments of one private pool without users. Pages
    /// of virtual memory become spare.
    ///
    /// # Errors
    /// The first failure. The release continues after it, unless the context is lost.
    pub(in crate::arena) fn empty_heaps(&self, only: Option<u32>) -> Result<(), Error> {
        let retired = if only.is_none() { self.release_retired(true) } else { Ok(()) };
        let pools = self.heaps.giving_pools().filter(|&pool| only.is_none_or(|only| only == pool));
        let heaps = self.heaps.heaps_of(pools, rules::by_pool);
        heaps.fold(retired, |result, (slot, _used)| result.and(self.empty_heap(slot)))
    }

    /// Releases wholly free segments, the largest first, until at most `keep` bytes are held from
    /// the device. Then unmaps free granules of expandable segments, gives back free memory of
    /// pools in use if their tags have limits, and ends plans without a block in use. Does not wait
    /// for pending events.
    ///
    /// # Errors
    /// The first failure, which ends the trimming.
    pub(crate) fn trim(&self, keep: u64, plans: Option<PlanSwitch<'_, P>>) -> Result<(), Error> {
        let exceeds = || self.ledger.reserved() > keep;
        self.collect_departed(u32::MAX, true);
        if exceeds() {
            self.release_retired(true)?;
        }
        self.give(rules::largest(self, keep))?;
        if exceeds()
            && let Some(stitcher) = self.stitcher()
        {
            stitcher.unmap_all_stale()?;
        }
        for (slot, _used) in self.heaps.heaps_of(self.heaps.giving_pools(), |_| [PoolKind::Large, PoolKind::Small]) {
            if exceeds() {
                self.unmap_cached(slot)?;
                self.destroy_spares()?;
                self.heaps.drop_tables(&mut self.heaps.lock(slot));
            }
        }
        if exceeds() {
            self.destroy_spares()?;
        }
        self.trim_pools(self.heaps.tenant_pools(), || self.ledger.reserved(), keep)?;
        // This comes last, because what a plan has learned is lost with its memory.
        plans.map_or(Ok(()), |plans| plans.give_idle_up(keep))
    }
}

impl<P: Platform> Holdings<'_, P> {
    /// Gives retired segments back if the device is known to have finished with them. With `all`,
    /// gives back every retired segment, which may wait for the device.
    ///
    /// # Errors
    /// The last failure. All other segments are given back nevertheless.
    pub(in crate::arena) fn release_retired(&self, all: bool) -> Result<(), Error> {
        let mut outcome = Ok(());
        while !self.driver.flags.has(flags::LOST | flags::HELD)
            && let Some((base, bytes)) = self.given_up().take_retired(all)
        {
            self.peaks.device.count(Occurrence::DeviceFree);
            match self.ledger.release(self.driver, base, bytes) {
                Ok(()) => self.paging.note_retired_end(bytes),
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }
}

impl<P: Platform> Heaps<P> {
    /// Returns the address of the first segment or range that [`Holdings::release_heap`] would
    /// release.
    pub(in crate::arena) fn first_of_heap(&self, driver: &Driver<P::Device>, slot: u32) -> Option<DevicePtr> {
        let goes = |unit: &Unit| {
            let stream = self.lock(slot).stream;
            // The pages of a capturing stream stay mapped.
            unit.kind == UnitKind::Segment
                || !driver.may_use(stream, NO_STREAM)
                || driver.call(|memory| memory.is_capturing(stream)) != Ok(true)
        };
        self.units_of(slot).find(goes).map(|unit| unit.ptr())
    }

    /// Returns the address of the first segment or range that [`Holdings::release_cached`] would
    /// release.
    pub(in crate::arena) fn first_releasable(
        &self,
        driver: &Driver<P::Device>,
        paging: &Paging<P>,
    ) -> Option<DevicePtr> {
        let heaps = || self.heaps_of(self.giving_pools(), rules::by_pool);
        paging.first_retired().or_else(|| heaps().find_map(|(slot, _used)| self.first_of_heap(driver, slot)))
    }
}
