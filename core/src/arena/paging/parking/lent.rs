//! Lent pages taken by others: a request that needs memory takes them before it takes new memory of
//! the device.
//!
//! ```text
//! lent page ─ wait once for the work before the loan ─▶ unmap ─┬─▶ spare, if the request can use its length
//!                                                              └─▶ destroyed, so that the device has its bytes
//! ```
//!
//! The place of a page that was taken is asleep, like that of a parked page, and a reclaim wakes
//! it. Pages that nobody takes stay mapped, so a loan without a taker costs nothing.

use crate::arena::Platform;
use crate::arena::driver::RecordPermission;
use crate::arena::holdings::Holdings;
use crate::arena::paging::heap_mapper::HeapMapper;
use crate::arena::paging::parking::ParkTarget;
use crate::arena::request::Request;
use crate::config::rounding::PoolKind;
use crate::device::StreamOrder;
use crate::error::Error;
use crate::heap::home_pages::HomePage;
use crate::pages::Page;
use crate::stats::Stat;
use crate::trace::Action;
use crate::units::{DevicePtr, NO_STREAM, StreamId};

/// The most pages that are found under one lock of a heap.
const FOUND: usize = 64;

/// The work that used the pages of a heap before it lent them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EarlierWork {
    /// It is complete.
    Complete,
    /// It may be waited for on the stream, or if that has ended, on all streams.
    On(Option<StreamId>),
    /// A wait would break a capture.
    MustNotWait,
}

impl<P: Platform> Holdings<'_, P> {
    /// Takes lent pages of at least `wanted` bytes, or all that there are, for a request that
    /// otherwise needs new memory. Those with a length that `fits` become spare, and come first.
    /// Takes none while another call parks, wakes, lends or reclaims memory. `capturing` is true if
    /// the request is part of a capture, which permits no wait. The caller has asked whether a pool
    /// [may lend](crate::arena::paging::Paging::may_lend): this walks over all pools.
    ///
    /// # Errors
    /// Those of the device. No other page is taken.
    #[cold]
    pub(in crate::arena) fn take_lent(
        &self,
        wanted: u64,
        fits: impl Fn(u64) -> bool,
        capturing: bool,
    ) -> Result<(), Error> {
        let Some(mapper) = self.heap_mapper() else { return Ok(()) };
        let Some(_turn) = mapper.paging.taking.try_take() else { return Ok(()) };
        let permission = if capturing { None } else { mapper.driver.may_record() };
        let spare = mapper.paging.bytes().spare;
        mapper.take_lent_pages(wanted.saturating_sub(spare), fits, permission.as_ref(), None)
    }

    /// Takes lent pages as [`take_lent`](Self::take_lent) does, for the pages of a request, if
    /// their lengths are those of the heap.
    #[cold]
    pub(in crate::arena) fn take_lent_granules(&self, request: &Request) -> Result<(), Error> {
        let Some(growth) = self.page_growth() else { return Ok(()) };
        // A pool with a tag cuts its memory into longer pages.
        let granule = if self.heaps.lock(request.slot).parkable { 0 } else { growth.granule(request.kind) };
        self.take_lent(growth.bytes_to_map(request), |bytes| bytes == granule, request.capturing)
    }

    /// Returns the bytes of the pages that [`take_lent`](Self::take_lent) would take for a request
    /// of any size.
    ///
    /// # Errors
    /// Those of the device, if it is asked about a capture.
    pub(in crate::arena) fn lent_bytes(&self, capturing: bool) -> Result<u64, Error> {
        if !self.paging.may_lend() {
            return Ok(0);
        }
        let Some(mapper) = self.heap_mapper() else { return Ok(0) };
        let may_wait = !capturing && mapper.driver.may_record().is_some();
        let (mut bytes, mut from) = (0, 0);
        let mut add = |home: HomePage| {
            bytes += home.bytes;
            true
        };
        while let Some(pool) = mapper.next_lent_pool(from, None) {
            from = pool + 1;
            for used in mapper.heaps.pairs_of(pool) {
                for slot in [PoolKind::Small, PoolKind::Large].map(|kind| used.slot(kind)) {
                    if mapper.work_before_loan(slot, may_wait)? != EarlierWork::MustNotWait {
                        mapper.visit_lent(slot, |_| true, &mut add);
                    }
                }
            }
        }
        Ok(bytes)
    }
}

impl<P: Platform> HeapMapper<'_, P> {
    /// Takes lent pages, as [`Holdings::take_lent`] does, except those of `borrower`. The caller
    /// has the turn to take pages. Without `permission`, takes only pages with complete work.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) fn take_lent_pages(
        &self,
        wanted: u64,
        fits: impl Fn(u64) -> bool,
        permission: Option<&RecordPermission<'_>>,
        borrower: Option<ParkTarget>,
    ) -> Result<(), Error> {
        let mut taken = 0;
        // A page of another length costs a call to destroy it and one to create its successor.
        for is_fitting in [true, false] {
            let mut from = 0;
            while taken < wanted
                && let Some(pool) = self.next_lent_pool(from, borrower)
            {
                from = pool + 1;
                for used in self.heaps.pairs_of(pool) {
                    for slot in [PoolKind::Small, PoolKind::Large].map(|kind| used.slot(kind)) {
                        let is_wanted = |page: &HomePage| fits(page.bytes) == is_fitting;
                        taken +=
                            self.take_lent_of(slot, wanted - taken.min(wanted), is_wanted, is_fitting, permission)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the first lent pool, from number `from` on, that is not part of `borrower`.
    fn next_lent_pool(&self, from: u32, borrower: Option<ParkTarget>) -> Option<u32> {
        let registry = self.heaps.registry.lock();
        let is_own = |pool: u32| borrower.is_some_and(|target| target.next_pool(&registry, pool) == Some(pool));
        (from..registry.pools.len() as u32).find(|&pool| {
            let entry = &registry.pools[pool as usize];
            entry.exists && entry.lent && !is_own(pool)
        })
    }

    /// Takes wanted lent pages of the heap in `slot`, of at least `bytes`, or all. They become
    /// spare if they are `fitting`, and are destroyed otherwise. Returns the bytes. The caller uses
    /// the pair.
    fn take_lent_of(
        &self,
        slot: u32,
        bytes: u64,
        wanted: impl Fn(&HomePage) -> bool,
        fitting: bool,
        permission: Option<&RecordPermission<'_>>,
    ) -> Result<u64, Error> {
        let mut taken = 0;
        while taken < bytes {
            let found = self.find_lent(slot, bytes - taken, &wanted);
            if found.is_empty() || !self.is_lent_quiet(slot, permission)? {
                break;
            }
            for home in found {
                taken += home.bytes;
                self.take_lent_page(slot, home, fitting)?;
            }
        }
        Ok(taken)
    }

    /// Finds wanted lent pages of the heap in `slot`, of at least `bytes`, or some of them.
    fn find_lent(
        &self,
        slot: u32,
        mut bytes: u64,
        wanted: impl Fn(&HomePage) -> bool,
    ) -> heapless::Vec<HomePage, FOUND> {
        let mut found = heapless::Vec::new();
        self.visit_lent(slot, wanted, |home| {
            bytes = bytes.saturating_sub(home.bytes);
            found.push(home).is_ok() && bytes > 0 && !found.is_full()
        });
        found
    }

    /// Calls `visit` with the wanted lent pages of the heap in `slot`, until it returns false.
    fn visit_lent(&self, slot: u32, wanted: impl Fn(&HomePage) -> bool, visit: impl FnMut(HomePage) -> bool) {
        let heap = self.heaps.lock(slot);
        let pages = self.paging.pool.lock();
        // A page with an old mapping elsewhere cannot go back to the device.
        let is_free = |home: &HomePage| {
            wanted(home) && pages.is_home(home.page) && pages.has_one_mapping(home.page) && !pages[home.page].is_host
        };
        heap.lent_pages(is_free, visit);
    }

    /// Returns what is known of the work before the loan of the heap in `slot`. Without `may_wait`,
    /// nothing can be waited for.
    ///
    /// # Errors
    /// Those of the device, if it is asked about a capture.
    fn work_before_loan(&self, slot: u32, may_wait: bool) -> Result<EarlierWork, Error> {
        let stream = {
            let heap = self.heaps.lock(slot);
            if heap.loan.is_quiet {
                return Ok(EarlierWork::Complete);
            }
            if !may_wait {
                return Ok(EarlierWork::MustNotWait);
            }
            self.driver.usable_stream(&heap, NO_STREAM)
        };
        match stream {
            Some(stream) if self.driver.call(|memory| memory.is_capturing(stream))? => Ok(EarlierWork::MustNotWait),
            _ => Ok(EarlierWork::On(stream)),
        }
    }

    /// Waits for the work before the loan of the heap in `slot`, if this is permitted and the work
    /// is not known to be complete. Returns whether it is complete.
    ///
    /// # Errors
    /// Those of the device.
    fn is_lent_quiet(&self, slot: u32, permission: Option<&RecordPermission<'_>>) -> Result<bool, Error> {
        match self.work_before_loan(slot, permission.is_some())? {
            EarlierWork::Complete => return Ok(true),
            EarlierWork::MustNotWait => return Ok(false),
            // The loan has ordered the stream after all other work that uses the pages.
            EarlierWork::On(Some(stream)) => self.driver.synchronize(stream)?,
            EarlierWork::On(None) => self.driver.wait(P::Device::synchronize_all)?,
        }
        // A reclaim would need the turn that the caller has, so this is still the same loan.
        self.heaps.lock(slot).loan.is_quiet = true;
        Ok(true)
    }

    /// Unmaps a lent page, which becomes spare if it is `fitting`, and is destroyed otherwise. If
    /// the device fails to unmap it, it stays lent.
    fn take_lent_page(&self, slot: u32, home: HomePage, fitting: bool) -> Result<(), Error> {
        // Before the call to the device, so that nothing must be undone if the table is full.
        self.paging.pool.lock().make_room().map_err(|_| Error::TableFull("pages of memory"))?;
        #[cfg(any(test, feature = "paranoid"))]
        self.heaps.lock(slot).assert_unused(&home, true);
        self.unmap_or_stay(DevicePtr(home.at), home.bytes)?;
        let page = self.fall_asleep(slot, home);
        if !fitting {
            return self.destroy(page);
        }
        let mut pages = self.paging.pool.lock();
        if pages.make_room().is_err() {
            // Another thread has filled the table since room was made.
            drop(pages);
            return self.destroy(page);
        }
        let page = pages.add(Page::created(page.handle, page.bytes, false));
        pages.make_spare(page);
        Ok(())
    }

    /// Notes that a page of the heap in `slot` was unmapped, and that its place stays. Returns the
    /// page, which is in no table.
    pub(super) fn fall_asleep(&self, slot: u32, home: HomePage) -> Page {
        let mut heap = self.heaps.lock(slot);
        heap.sets.pages.change(home.at, |home| home.asleep = true);
        self.heaps.slot(slot).counters.down(Stat::ReservedBytes, home.bytes);
        let page = self.paging.pool.lock().fall_asleep(home.page);
        self.trace(|recorder| recorder.release(&mut heap, Action::SegmentUnmap, DevicePtr(home.at), home.bytes));
        page
    }
}
