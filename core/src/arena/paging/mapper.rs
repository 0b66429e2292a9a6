//! Pages and their mappings.
//!
//! ```text
//! new_page ─▶ Batch ─▶ map ─▶ (a heap's range)
//!    ▲                             │ unmap_pages
//!    └── spare pages ◀─────────────┘
//!           └─▶ destroy_spares ─▶ (device)
//! ```
//!
//! The bytes of a page are charged to the ledger from its creation to its destruction. If the
//! device fails to remove a page or a mapping, its bytes count as leaked, and it is never used
//! again. No lock is held across a call to the device.

use crate::arena::Platform;
use crate::arena::driver::Driver;
use crate::arena::heaps::Heaps;
use crate::arena::holdings::Holdings;
use crate::arena::ledger::Ledger;
use crate::arena::paging::Paging;
use crate::arena::paging::departures::GivenUp;
use crate::arena::request::RequestCalls;
use crate::arena::waits::Waits;
use crate::device::{DeviceError, DeviceResult, ErrorKind, Host, HostLack, Segments, VirtualMemory};
use crate::error::Error;
use crate::heap::addresses::AddressRange;
use crate::heap::moves::PagedHeap;
use crate::pages::{Batch, Page, PagePool, Place};
use crate::stats::MemoryCall;
use crate::tables::slot_table::NONE;
use crate::units::{DevicePtr, StreamId};

/// The virtual memory of one device: its pages, its addresses, and the bytes that it holds.
pub(crate) struct Mapper<'a, P: Platform> {
    pub(in crate::arena) driver: &'a Driver<P::Device>,
    /// The heaps. Pages that were not mapped elsewhere return to them.
    pub(in crate::arena) heaps: &'a Heaps<P>,
    pub(in crate::arena) paging: &'a Paging<P>,
    /// The fences of pages that have departed.
    waits: &'a Waits<P>,
    pub(in crate::arena) ledger: &'a Ledger,
    pub(in crate::arena) memory: &'a dyn VirtualMemory,
    /// The request in which the calls are noted, if they are made for one.
    pub(super) request: Option<&'a RequestCalls>,
}

/// Whether the memory limit applies to a new page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::arena) enum Charge {
    /// The page is not created if the limit does not allow its bytes.
    WithinLimit,
    /// The limit has already been checked for the request as a whole.
    Checked,
}

impl<'a, P: Platform> Holdings<'a, P> {
    /// Returns the operations on the virtual memory of the device, if it has any.
    pub(in crate::arena) fn mapper(&self) -> Option<Mapper<'a, P>> {
        let &Self { driver, heaps, paging, waits, ledger, .. } = self;
        let memory = driver.device().virtual_memory()?;
        Some(Mapper { driver, heaps, paging, waits, ledger, memory, request: None })
    }
}

impl<'a, P: Platform> Mapper<'a, P> {
    /// Returns the parts needed to give up memory that work may still use.
    pub(in crate::arena) fn given_up(&self) -> GivenUp<'a, P> {
        GivenUp { driver: self.driver, heaps: self.heaps, paging: self.paging, waits: self.waits }
    }

    /// Orders later work on `stream` after the present work on `other`, as
    /// [`Waits::order_behind_stream`] does.
    pub(super) fn order_behind_stream(&self, stream: StreamId, other: StreamId) -> Result<bool, Error> {
        self.waits.order_behind_stream(self.driver, stream, other)
    }

    /// Notes all later calls to virtual memory in `request`.
    pub(in crate::arena) fn for_request(self, request: &'a RequestCalls) -> Self {
        Self { request: Some(request), ..self }
    }

    /// Returns whether the limit allows `more` mapped bytes. Spare pages do not count, because they
    /// are used or destroyed first.
    pub(crate) fn has_room_to_map(&self, more: u64) -> bool {
        let spare = self.paging.pool.lock().bytes.spare;
        self.ledger.has_room_without(spare, more)
    }

    /// Returns whether the device certainly does not have `more` bytes besides the spare pages.
    /// Otherwise a request that takes page by page would have all that a shared host has, before a
    /// page is refused.
    pub(in crate::arena) fn lacks(&self, more: u64) -> bool {
        let device = self.driver.device();
        device.shares_host_memory() && device.lacks(more.saturating_sub(self.paging.bytes().spare))
    }

    /// Creates a page of `bytes`, or takes a spare page of this length, and appends it to `batch`.
    /// Returns false if the limit or the device does not allow the bytes.
    ///
    /// Spare pages of other lengths are destroyed if the memory is needed.
    pub(in crate::arena) fn new_page(&self, bytes: u64, charge: Charge, batch: &mut Batch) -> Result<bool, Error> {
        {
            let mut pages = self.paging.pool.lock();
            if let Some(page) = pages.take_spare(Place::Spare, bytes) {
                pages.append(batch, page);
                return Ok(true);
            }
            // Before the call to the device, so that nothing must be undone if the table is full.
            pages.make_room().map_err(|_| Error::TableFull("pages of memory"))?;
        }
        if !self.ledger.charge(bytes) {
            self.destroy_spares()?;
            if !self.ledger.charge(bytes) {
                if charge == Charge::WithinLimit {
                    return Ok(false);
                }
                self.ledger.add(bytes);
            }
        }
        let mut created = self.call(MemoryCall::Create, |memory| memory.create(bytes));
        if matches!(created, Err(error) if error.kind == ErrorKind::OutOfMemory) {
            match self.destroy_spares() {
                Ok(true) => created = self.call(MemoryCall::Create, |memory| memory.create(bytes)),
                Ok(false) => {}
                Err(error) => {
                    self.ledger.refund(bytes);
                    return Err(error);
                }
            }
        }
        let handle = match created {
            Ok(handle) => handle,
            Err(error) => {
                self.ledger.refund(bytes);
                return if error.kind == ErrorKind::OutOfMemory { Ok(false) } else { Err(error.into()) };
            }
        };
        self.add_page(Page::created(handle, bytes, false), batch)
    }

    /// Creates a page of `bytes` of the host, or takes a spare one of this length, and appends it
    /// to `batch`. Returns false if the limit of such pages or the host does not allow the bytes.
    pub(in crate::arena) fn new_page_of_host(&self, bytes: u64, batch: &mut Batch) -> Result<bool, Error> {
        {
            let mut pages = self.paging.pool.lock();
            if let Some(page) = pages.take_spare(Place::SpareOfHost, bytes) {
                pages.append(batch, page);
                return Ok(true);
            }
            pages.make_room().map_err(|_| Error::TableFull("pages of memory"))?;
        }
        if self.paging.spilled.charge(bytes) {
            return self.create_page_of_host(bytes, batch);
        }
        // Those of other lengths.
        self.destroy_spares_of_host()?;
        if self.paging.spilled.charge(bytes) {
            return self.create_page_of_host(bytes, batch);
        }
        self.note_host_lack(HostLack::Limit);
        Ok(false)
    }

    /// Notes why the request gets no page of the host, for its report.
    fn note_host_lack(&self, lack: HostLack) {
        if let Some(calls) = self.request {
            calls.host_lack.set(lack);
        }
    }

    /// Makes a spare page of `bytes` of the host. Returns false if the limit of such pages or the
    /// host does not allow the bytes.
    pub(super) fn make_page_of_host_ahead(&self, bytes: u64) -> Result<bool, Error> {
        self.paging.pool.lock().make_room().map_err(|_| Error::TableFull("pages of memory"))?;
        let mut batch = Batch::EMPTY;
        let made = self.paging.spilled.charge(bytes) && self.create_page_of_host(bytes, &mut batch)?;
        self.paging.numbers_of(&batch).for_each(|page| self.spare_page(page));
        Ok(made)
    }

    /// Creates a page of the host, whose bytes are already charged, and appends it to `batch`.
    /// Returns false if the host does not have the memory.
    fn create_page_of_host(&self, bytes: u64, batch: &mut Batch) -> Result<bool, Error> {
        let spilled = &self.paging.spilled;
        match self.call(MemoryCall::Create, |memory| memory.create_at_host(bytes)) {
            Ok(handle) => self.add_page(Page::created(handle, bytes, true), batch),
            Err(error) => {
                spilled.refund(bytes);
                self.note_host_lack(match error {
                    DeviceError { kind: ErrorKind::OutOfMemory, code: 0 } => HostLack::Share,
                    DeviceError { kind: ErrorKind::OutOfMemory, .. } => HostLack::Memory,
                    DeviceError { kind: ErrorKind::Unsupported, .. } => HostLack::Unsupported,
                    error => return Err(error.into()),
                });
                Ok(false)
            }
        }
    }

    /// Appends a page that the device just created to `batch`.
    fn add_page(&self, page: Page, batch: &mut Batch) -> Result<bool, Error> {
        let mut pages = self.paging.pool.lock();
        if pages.make_room().is_err() {
            // Another thread has filled the table since room was made.
            drop(pages);
            self.destroy(page)?;
            return Err(Error::TableFull("pages of memory"));
        }
        let page = pages.add(page);
        pages.append(batch, page);
        Ok(true)
    }

    /// Returns the ledger with the bytes of a page: that of the device or that of the host.
    fn ledger_of(&self, page: &Page) -> &'a Ledger {
        if page.is_host { &self.paging.spilled } else { self.ledger }
    }

    /// Unmaps the pages at home in `range`, which is in a detached block of the heap in `slot`, and
    /// makes them spare. No stream uses the range. If the mapping of a page cannot be removed, its
    /// bytes count as leaked.
    ///
    /// # Errors
    /// The first error of the device, after all pages have been tried.
    pub(in crate::arena) fn unmap_pages(&self, slot: u32, range: AddressRange) -> Result<(), Error> {
        self.unmap_each(slot, range, PagePool::make_spare)
    }

    /// Unmaps the pages at home in `range`, as [`unmap_pages`](Self::unmap_pages) does, and calls
    /// `unmapped` with each page, which is then moving.
    pub(in crate::arena) fn unmap_each(
        &self,
        slot: u32,
        range: AddressRange,
        mut unmapped: impl FnMut(&mut PagePool<P::Storage>, u32),
    ) -> Result<(), Error> {
        let mut result = Ok(());
        let end = range.at.0 + range.bytes;
        let mut at = range.at.0;
        while at < end {
            let home = {
                let mut heap = self.heaps.lock(slot);
                let home = heap.sets.pages.remove(at);
                #[cfg(any(test, feature = "paranoid"))]
                heap.assert_unused(&home, true);
                home
            };
            at = home.end();
            let removed = self.unmap(DevicePtr(home.at), home.bytes);
            let mut pages = self.paging.pool.lock();
            pages.leave_home(home.page);
            match removed {
                Ok(()) => unmapped(&mut pages, home.page),
                Err(error) => {
                    // The handle stays with the mapping that could not be removed.
                    self.ledger_of(&pages[home.page]).leak(home.bytes);
                    pages.lose(home.page);
                    result = result.and(Err(error.into()));
                }
            }
        }
        result
    }

    /// Removes the mapping of a page that is to go back to the device, as [`unmap`](Self::unmap)
    /// does. If the device fails, the page stays in use, and the program is told about it once
    /// more.
    pub(in crate::arena) fn unmap_or_stay(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.unmap(at, bytes).inspect_err(|_| self.driver.device().on_map(at, bytes))
    }

    /// Tells the program about a page that goes, and removes its mapping. If the device fails, the
    /// addresses are never used again.
    pub(in crate::arena) fn unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.driver.device().on_unmap(at, bytes);
        self.call(MemoryCall::Unmap, |memory| memory.unmap(at, bytes))
    }

    /// Returns the pages of a batch that was not mapped. Pages that came from heaps go back to
    /// them, and the others to the device. A page that is stuck in a mapping counts as leaked.
    pub(in crate::arena) fn return_batch(&self, batch: &Batch) {
        for page in self.paging.numbers_of(batch) {
            let origin = self.return_page(page);
            if let Some((slot, block)) = origin {
                PagedHeap(&mut self.heaps.lock(slot)).return_block(block);
            }
        }
        // Beyond a lowered limit no page can be made again, so the spare ones are left to the rest
        // of the request, which releases them at last.
        if self.ledger.reserved() <= self.ledger.limit() {
            // If a call to the device fails, the bytes stay counted, and the request reports its
            // own error.
            let _counted = self.destroy_spares();
        }
    }

    /// Marks a page that was not mapped as home again, and returns its origin. Disposes of the page
    /// if it has no origin.
    fn return_page(&self, page: u32) -> Option<(u32, u32)> {
        let mut pages = self.paging.pool.lock();
        let origin = pages[page].origin;
        if origin.is_some() {
            pages.settle(page);
        } else {
            drop(pages);
            self.spare_page(page);
        }
        origin
    }

    /// Makes a page that came from no heap spare. A departed page departs again, and a page that is
    /// stuck in a mapping counts as leaked.
    pub(in crate::arena) fn spare_page(&self, page: u32) {
        let mut pages = self.paging.pool.lock();
        let entry = pages[page];
        if entry.behind != NONE {
            pages.depart_again(page);
        } else if entry.stuck {
            self.ledger_of(&entry).leak(entry.bytes);
            pages.lose(page);
        } else {
            pages.make_spare(page);
        }
    }

    /// Destroys the spare pages of the device that have no aliases. Returns true if memory went
    /// back to the device.
    ///
    /// # Errors
    /// The first error of the device, after all pages have been tried.
    pub(crate) fn destroy_spares(&self) -> Result<bool, Error> {
        self.destroy_spares_in(Place::Spare)
    }

    /// Destroys the spare pages of the host that have no aliases.
    ///
    /// # Errors
    /// The first error of the device, after all pages have been tried.
    pub(crate) fn destroy_spares_of_host(&self) -> Result<(), Error> {
        self.destroy_spares_in(Place::SpareOfHost).map(|_any| ())
    }

    /// Destroys the pages in the list of `place` that have no aliases. Returns true if any was
    /// destroyed.
    fn destroy_spares_in(&self, place: Place) -> Result<bool, Error> {
        let (mut any, mut result) = (false, Ok(()));
        loop {
            match self.destroy_spare(place) {
                Ok(true) => any = true,
                Ok(false) => return result.map(|()| any),
                Err(error) => result = result.and(Err(error)),
            }
        }
    }

    /// Destroys one page in the list of `place` that has no aliases. Returns false if there is
    /// none, or if frees are held off.
    pub(in crate::arena) fn destroy_spare(&self, place: Place) -> Result<bool, Error> {
        if self.driver.holds_frees() {
            return Ok(false);
        }
        let taken = {
            let mut pages = self.paging.pool.lock();
            pages.take_destroyable(place).map(|page| pages.remove(page))
        };
        taken.map_or(Ok(false), |page| self.destroy(page).map(|()| true))
    }

    /// Destroys the handle of a page that is in no table, and refunds its bytes.
    ///
    /// # Errors
    /// The error of the device. The bytes then count as leaked.
    pub(in crate::arena) fn destroy(&self, page: Page) -> Result<(), Error> {
        let destroyed = self.call(MemoryCall::Destroy, |memory| memory.destroy(page.handle));
        let ledger = self.ledger_of(&page);
        if destroyed.is_ok() && !page.stuck {
            ledger.refund(page.bytes);
        } else {
            ledger.leak(page.bytes);
        }
        Ok(destroyed?)
    }
}
