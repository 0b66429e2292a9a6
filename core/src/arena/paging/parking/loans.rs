//! Loans: a private pool lends the pages of its free blocks until it needs them again.
//!
//! ```text
//!          lend: refuse requests, order the streams                  others take pages (lent.rs)
//!  awake ───────────────────────────────────────────▶ lent ────────────────────────────────────▶ lent, places asleep
//!    ▲                                                 │                                            │
//!    └────────────── nothing was taken ────────────────┴─ reclaim: spare, lent, cached, new pages ◀─┘
//! ```
//!
//! A captured graph writes to its blocks at every replay, and needs most of them only while it
//! runs: they are free in the pool, and nothing else may use them. Between two replays the pool
//! lends their pages. The addresses stay, the contents are lost, and live blocks keep both.
//!
//! A heap that lends is asleep, so everything that spares parked memory spares lent memory. Unlike
//! a park, a loan waits for nothing: the streams of the heaps are ordered after the graph's work,
//! and whoever takes the first page waits for them. A page that was taken is spare before others
//! map it, and spare again before it comes back, so no work ever finds it in two places.

use super::{NO_PAGES, ParkTarget, Parker};
use crate::arena::driver::RecordPermission;
use crate::arena::give::rules::by_pool;
use crate::arena::heaps::registry::{PoolEntry, Replays};
use crate::arena::heaps::units::UnitKind;
use crate::arena::paging::departures::in_capture;
use crate::arena::paging::mapper::Mapper;
use crate::arena::paging::undo::Undo;
use crate::arena::settings::Settings;
use crate::arena::waits::{DeviceWaits, Outside};
use crate::arena::{OnDevice, Platform};
use crate::config::rounding::PoolKind;
use crate::device::StreamOrder;
use crate::error::Error;
use crate::heap::home_pages::HomePage;
use crate::sync::Ordering;
use crate::tables::slot_table::NONE;
use crate::units::{NO_STREAM, StreamId};

impl<P: Platform> Parker<'_, P> {
    /// Lends the pages of the target's free blocks. Does nothing for pools that lend already.
    ///
    /// # Errors
    /// [`Error::Parked`], [`Error::ParkingRefused`], errors of the device. Nothing is lent by this
    /// call then.
    pub(crate) fn lend<'w>(
        &self,
        settings: &Settings<P::Lock>,
        on: DeviceWaits<'w, P, impl Outside<'w, P>>,
    ) -> Result<(), Error> {
        let Mapper { driver, heaps, paging, .. } = *self.mapper;
        self.check_pools()?;
        if self.any_pool(|pool| pool.asleep && !pool.lent) {
            return Err(Error::Parked);
        }
        if !self.uses_pages(settings) {
            return Err(Error::ParkingRefused(NO_PAGES));
        }
        // Held until everything is ordered, so that no capture starts in between.
        let _permission = driver.may_record().ok_or_else(in_capture)?;
        self.refuse_captured()?;
        on.process_events()?;
        self.target.set_asleep(heaps, true);
        let awake = Undo::by(|| self.wake_unlent());
        self.wait_for_requests()?;
        self.order_heaps()?;
        awake.keep();
        for slot in self.slots() {
            let mut heap = heaps.lock(slot);
            if heap.loan.since == 0 {
                let stamp = heaps.stamp(&mut heap);
                heap.lend_pages(stamp);
            }
        }
        let mut registry = heaps.registry.lock();
        self.target.each_pool(&mut registry, |registry, pool| {
            let pool = &mut registry.pools[pool as usize];
            (pool.lent, pool.replays) = (true, Replays::NONE);
        });
        paging.lent.store(1, Ordering::Relaxed);
        Ok(())
    }

    /// Returns an error if the target is memory of the default pool.
    fn check_pools(&self) -> Result<(), Error> {
        match self.target {
            ParkTarget::Tag(_) | ParkTarget::Pool(_) => Ok(()),
            _ => Err(Error::ParkingRefused("only private pools lend memory")),
        }
    }

    /// Returns whether `is_so` is true of a pool of the target.
    fn any_pool(&self, is_so: impl Fn(&PoolEntry) -> bool) -> bool {
        let mut found = false;
        self.target.each_pool(&mut self.mapper.heaps.registry.lock(), |registry, pool| {
            found |= is_so(&registry.pools[pool as usize]);
        });
        found
    }

    /// Lets the pools of the target that lend nothing serve requests again.
    fn wake_unlent(&self) {
        let heaps = self.mapper.heaps;
        self.target.each_pool(&mut heaps.registry.lock(), |registry, pool| {
            if !registry.pools[pool as usize].lent {
                heaps.set_pool_asleep(registry, pool, false);
            }
        });
    }

    /// Orders the streams of the target's heaps after all work that uses the free blocks of their
    /// pools, or waits for this work. The caller has permission to record.
    ///
    /// # Errors
    /// Those of the device.
    fn order_heaps(&self) -> Result<(), Error> {
        let Mapper { driver, heaps, .. } = *self.mapper;
        for used in self.pairs() {
            let (stream, pool) = {
                let heap = heaps.lock(used.slot(PoolKind::Small));
                (driver.usable_stream(&heap, NO_STREAM), heap.pool)
            };
            let Replays { last, is_all } = heaps.registry.lock().pools[pool as usize].replays;
            let is_ordered = match stream {
                Some(stream) if is_all => stream == last || last == NO_STREAM || self.order(stream, last)?,
                _ => false,
            };
            if !is_ordered {
                // This is the end of all work, on whatever stream, so no other heap must be
                // ordered.
                return Ok(driver.wait(P::Device::synchronize_all)?);
            }
        }
        Ok(())
    }

    /// Maps the target's lent pages again where others have taken them, and lets the pools serve
    /// requests. Notes that work of `stream` is about to use their free blocks.
    ///
    /// # Errors
    /// [`Error::Parked`], [`Error::OutOfMemory`], errors of the device. Everything is lent then, as
    /// before.
    pub(crate) fn reclaim(&self, on: OnDevice<'_, P>, stream: StreamId) -> Result<(), Error> {
        self.check_pools()?;
        if self.any_pool(|pool| pool.asleep && !pool.lent) {
            return Err(Error::Parked);
        }
        self.announce(stream)?;
        if self.any_pool(|pool| pool.lent) {
            if self.slots().any(|slot| self.has_asleep(slot)) {
                self.bring_back(on.waiting(), |page| self.begin_to_wake(on, page))?;
            }
            self.end_sleep();
            self.end_loans();
        }
        Ok(())
    }

    /// Returns whether pages of the heap in `slot` have been taken.
    fn has_asleep(&self, slot: u32) -> bool {
        let heap = self.mapper.heaps.lock(slot);
        !heap.is_empty() && heap.sets.pages.has_asleep()
    }

    /// Maps pages at all places whose pages have been taken, with `map`.
    fn bring_back<'w>(
        &self,
        on: DeviceWaits<'w, P, impl Outside<'w, P>>,
        map: impl Fn(HomePage) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mapper = &self.mapper;
        let unbegun = || self.pages().filter(|(_, page)| self.is_unbegun(page));
        let lent = Undo::by(|| self.stay_asleep());
        self.collect(on, unbegun().map(|(_, page)| page.bytes).sum())?;
        let has_spare = |page: &HomePage| mapper.paging.pool.lock().has_spare(page.bytes);
        let mut ready = unbegun().filter(|(_, page)| has_spare(page));
        ready.try_for_each(|(_, page)| map(page))?;
        if unbegun().next().is_some() {
            // What is spare now has other lengths. New pages are made from its bytes.
            mapper.destroy_spares()?;
            unbegun().try_for_each(|(_, page)| map(page))?;
        }
        self.renew_canaries()?;
        lent.keep();
        if self.debug.tends_frees() {
            self.slots().filter(|&slot| self.has_asleep(slot)).for_each(|slot| mapper.heaps.lock(slot).miss_contents());
        }
        self.pages().filter(|(_, page)| page.asleep).for_each(|(slot, page)| self.finish_waking(slot, page));
        Ok(())
    }

    /// Makes pages of `bytes` spare, or as many as there are: pages that other pools lend, and then
    /// free pages of the heaps that serve everybody. Their work is complete. So the memory that
    /// others took while this pool lent it comes back, and does not stay in their caches.
    fn collect<'w>(&self, on: DeviceWaits<'w, P, impl Outside<'w, P>>, bytes: u64) -> Result<(), Error> {
        let mapper = &self.mapper;
        let permission = mapper.driver.may_record();
        let missing = || bytes.saturating_sub(mapper.paging.bytes().spare);
        mapper.take_lent_pages(missing(), |_| true, permission.as_ref(), Some(self.target))?;
        let Some(permission) = permission else { return Ok(()) };
        on.process_events()?;
        for (slot, _used) in mapper.heaps.heaps_of(mapper.heaps.giving_pools(), by_pool) {
            self.collect_free(slot, missing(), &permission)?;
        }
        Ok(())
    }

    /// Makes free pages of `bytes` in the heap of `slot` spare, or all, after a wait for its
    /// stream.
    fn collect_free(&self, slot: u32, mut bytes: u64, _permission: &RecordPermission<'_>) -> Result<(), Error> {
        let heaps = self.mapper.heaps;
        let mut first = NONE;
        while bytes > 0
            && let Some(unit) = heaps.unit_within(slot, bytes, u64::MAX).filter(|unit| unit.kind == UnitKind::Pages)
            && let Ok(Some(block)) = unit.take_pages(heaps)
        {
            // A detached block is in no index, so `chain` can link the list.
            heaps.lock(slot).blocks[block].chain = first;
            first = block;
            bytes = bytes.saturating_sub(unit.bytes);
        }
        self.mapper.unmap_all_detached(slot, (first, Ok(())))
    }

    /// Marks the pools of the target as not lent.
    fn end_loans(&self) {
        let Mapper { heaps, paging, .. } = *self.mapper;
        let mut registry = heaps.registry.lock();
        self.target.each_pool(&mut registry, |registry, pool| registry.pools[pool as usize].lent = false);
        let any = registry.pools.iter().any(|pool| pool.exists && pool.lent);
        paging.lent.store(u32::from(any), Ordering::Relaxed);
    }

    /// Notes that work of `stream` is about to use the free blocks of the target's pools, and
    /// orders it after the work of the stream noted before.
    ///
    /// # Errors
    /// Those of the device.
    fn announce(&self, stream: StreamId) -> Result<(), Error> {
        let Mapper { driver, heaps, .. } = *self.mapper;
        let mut from = 1;
        loop {
            // The lock ends with this statement.
            let next = self.next_entry(from);
            let Some((pool, Replays { last, is_all })) = next else { return Ok(()) };
            from = pool + 1;
            let follows = last == stream || last == NO_STREAM || {
                // Held until the streams are ordered, so that no capture starts in between.
                let permission = driver.may_record();
                permission.is_some()
                    && !driver.call(|memory| memory.is_capturing(stream))?
                    && self.order(stream, last)?
            };
            let replays = Replays { last: stream, is_all: is_all && follows };
            heaps.registry.lock().pools[pool as usize].replays = replays;
        }
    }

    /// Orders later work on `stream` after the present work on `last`. Returns false if `last` may
    /// be gone, or if only the host could wait. The caller has permission to record.
    ///
    /// # Errors
    /// Those of the device.
    fn order(&self, stream: StreamId, last: StreamId) -> Result<bool, Error> {
        Ok(self.mapper.driver.may_use(last, NO_STREAM) && self.mapper.order_behind_stream(stream, last)?)
    }

    /// Returns the first pool of the target from number `from` on, and the streams of its replays.
    fn next_entry(&self, from: u32) -> Option<(u32, Replays)> {
        let registry = self.mapper.heaps.registry.lock();
        let pool = self.target.next_pool(&registry, from)?;
        Some((pool, registry.pools[pool as usize].replays))
    }
}
