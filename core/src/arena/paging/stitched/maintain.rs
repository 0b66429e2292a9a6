//! Upkeep at quiet moments: work that requests put off so that they do not wait.
//!
//! Upkeep does three things, until the time is used up:
//! 1. stale mappings whose work is complete are removed;
//! 2. memory beyond the budget goes back to the device: spare pages, and then free pages without
//!    unfinished work;
//! 3. runs of short pages with repeated meetings are replaced by longer pages (consolidate.rs).

use super::Stitcher;
use super::gather::slots_of;
use crate::arena::Platform;
use crate::arena::heaps::units::{Unit, UnitKind, units_down};
use crate::device::ErrorKind;
use crate::error::Error;
use crate::pages::Place;
use crate::pages::counts::PageCounts;
use crate::units::NO_STREAM;

/// The estimated time to unmap a page, in tenths of a microsecond (measured on an H100: 14 to 17
/// µs).
const UNMAP_TENTHS_US: u64 = 150;

/// The estimated time to unmap and destroy a page, in tenths of a microsecond: destroying takes 10
/// to 14 µs more.
pub(super) const RELEASE_TENTHS_US: u64 = 290;

/// The time left to a call, in tenths of a microsecond, estimated from the measured costs of the
/// driver's calls.
pub(super) struct TimeLeft(u64);

impl TimeLeft {
    /// Returns whether the time is too short for giving back another page.
    pub(super) fn is_over(&self) -> bool {
        self.0 < RELEASE_TENTHS_US
    }

    /// Takes `tenths` of a microsecond. Returns false, and takes nothing, if less is left.
    pub(super) fn take(&mut self, tenths: u64) -> bool {
        let left = self.0.checked_sub(tenths);
        self.0 = left.unwrap_or(self.0);
        left.is_some()
    }
}

impl<P: Platform> Stitcher<'_, P> {
    /// Does the work that requests have put off, for about `max_us` microseconds of driver time.
    /// Returns true if work is left.
    ///
    /// # Errors
    /// The first error of the device. The rest is left to the next call.
    pub(crate) fn maintain(&self, max_us: u64) -> Result<bool, Error> {
        let mapper = self.mapper();
        if mapper.driver.holds_frees() {
            return Ok(false);
        }
        let mut left = TimeLeft(max_us.saturating_mul(10));
        mapper.given_up().poll_departures();
        let stale = self.remove_stale(&mut left)?;
        let indebted = self.give_back(&mut left, || mapper.ledger.reserved().saturating_sub(self.most_held(0)))?;
        let short = self.consolidate(&mut left)?;
        // The pages that are free now will be quiet at one of the next calls.
        for used in mapper.heaps.pairs_of(0) {
            self.begin_epochs(used.pair, NO_STREAM);
        }
        Ok(stale | indebted | short)
    }

    /// Gives free memory back to the device, so that `bytes` of parked memory can wake within the
    /// budget. Waits for the streams of the default pool if completed work does not leave enough.
    /// Does nothing if there is a limit, because then the limit is the budget.
    ///
    /// # Errors
    /// The first error of the device. A capturing stream permits no wait, which is not an error.
    pub(in crate::arena) fn make_room_to_wake(&self, bytes: u64) -> Result<(), Error> {
        let mapper = self.mapper();
        if mapper.ledger.limit_if_set().is_some() {
            return Ok(());
        }
        let excess = || mapper.ledger.reserved().saturating_add(bytes).saturating_sub(self.most_held(bytes));
        let mut left = TimeLeft(u64::MAX);
        mapper.given_up().poll_departures();
        if self.give_back(&mut left, excess)? {
            for used in mapper.heaps.pairs_of(0) {
                self.begin_epochs(used.pair, NO_STREAM);
                let (stream, ended) = {
                    let heap = mapper.heaps.lock(slots_of(used.pair)[0]);
                    (heap.stream, heap.ended)
                };
                // The handle of an ended stream may not be used.
                if ended {
                    continue;
                }
                match mapper.driver.synchronize(stream) {
                    Err(error) if error.kind == ErrorKind::NotPermittedInCapture => {}
                    waited => waited?,
                }
            }
            mapper.given_up().poll_departures();
            self.give_back(&mut left, excess)?;
        }
        Ok(())
    }

    /// Removes stale mappings if their work is complete. Returns true if some are left.
    fn remove_stale(&self, left: &mut TimeLeft) -> Result<bool, Error> {
        let mapper = self.mapper();
        let mut some = false;
        for slot in mapper.heaps.slot_numbers() {
            while left.take(UNMAP_TENTHS_US) {
                if self.unmap_stale(slot, 1)? == 0 {
                    // Nothing was removed, so no time was used.
                    left.0 += UNMAP_TENTHS_US;
                    break;
                }
            }
            let heap = mapper.heaps.lock(slot);
            some |= !heap.is_empty() && heap.sets.stale.count > 0;
        }
        Ok(some)
    }

    /// Gives memory back to the device as long as `excess` is above 0. Returns true if some excess
    /// is left.
    pub(super) fn give_back(&self, left: &mut TimeLeft, excess: impl Fn() -> u64) -> Result<bool, Error> {
        while excess() > 0 && left.take(RELEASE_TENTHS_US) {
            if self.mapper().destroy_spare(Place::Spare)? {
                continue;
            }
            let Some(page) = self.first_quiet() else { return Ok(true) };
            match self.give_pages(page) {
                // A page that cannot be cut out of its block stays.
                Err(Error::TableFull(_)) => return Ok(true),
                given => given?,
            }
        }
        Ok(excess() > 0)
    }

    /// Gives quiet pages of a heap back, which makes them spare.
    ///
    /// # Errors
    /// [`Error::TableFull`] if the pages cannot be cut out of their block; the first error of the
    /// device.
    fn give_pages(&self, unit: Unit) -> Result<(), Error> {
        let mapper = self.mapper();
        mapper.driver.health()?;
        let Some(_used) = mapper.heaps.enter_pair(unit.slot / 2) else { return Ok(()) };
        unit.take_pages(mapper.heaps)?.map_or(Ok(()), |block| mapper.unmap_detached(unit.slot, block))
    }

    /// The rule of the budget. Returns the shortest page of the device without unfinished work from
    /// the first pair of heaps that has one; among equals, the first in the order in which pages
    /// move. Private pools are left out, because their memory may be in use on any stream as long
    /// as the last replays are running.
    fn first_quiet(&self) -> Option<Unit> {
        let (heaps, paging) = (self.mapper().heaps, self.mapper().paging);
        let most = PageCounts::largest(self.step());
        let of_heap = |slot: u32| {
            let heap = heaps.lock(slot);
            let pages = units_down(&heap, slot).filter(|unit| unit.kind == UnitKind::Pages && unit.bytes <= most);
            // A page of the host is no part of the budget.
            let of_device = |unit: &Unit| {
                let page = heap.sets.pages.from(unit.at).expect("a unit is a page at home").page;
                !paging.pool.lock()[page].is_host
            };
            let pages = pages.filter(of_device);
            pages.filter(Unit::is_quiet).min_by_key(|unit| (unit.bytes, heap.order_of_page(unit.block, unit.at)))
        };
        let of_pair = |pair| slots_of(pair).into_iter().filter_map(of_heap).min_by_key(|unit| unit.bytes);
        heaps.pairs_of(0).find_map(|used| of_pair(used.pair))
    }
}
