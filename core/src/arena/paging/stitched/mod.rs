//! The stitched policy: growth of a heap from pages that lie free elsewhere, before new memory.
//!
//! ```text
//! grow ─▶ a free block of the stream's other heap fits ─▶ done
//!   └─▶ hold unmapped addresses ──▶ spare pages, and new ones within the budget ─┐
//!         └─▶ budget spent: wholly free pages of this stream, then of others ─────┤
//!                                              map all, set access once, extend ◀─┘
//! ```
//!
//! A moving page is mapped a second time, in the heap of the request, and the old mapping becomes stale. Nothing
//! waits: work on the page's own stream precedes the work of the request in stream order, and for pages of other
//! streams the requesting stream is ordered behind the page's stream. A stale mapping is removed once the work on the
//! old addresses is complete (stale.rs). Only wholly free pages move, so no two live blocks ever see a page through
//! two mappings, and a live block never moves.
//!
//! The budget is in budget.rs, the search for pages in gather.rs, blocks of other streams in lend.rs, giving memory back in
//! maintain.rs, and the replacement of short pages in consolidate.rs.

mod budget;
mod consolidate;
mod forecast;
mod gather;
mod lend;
mod maintain;
mod pending;
mod stale;

pub(in crate::arena) use gather::{PageRequest, Requester};

use crate::arena::paging::addresses::AddressRequest;
use crate::arena::paging::mapper::{Charge, Mapper};
use crate::arena::paging::mapping::{PageGuard, Row};
use crate::arena::paging::undo::Undo;
use crate::arena::request::{Request, RequestCalls};
use crate::arena::{OnDevice, Platform};
use crate::config::{Policy, Stitched};
use crate::error::Error;
use crate::heap::Heap;
use crate::heap::block::Backing;
use crate::heap::home_pages::Stays;
use crate::heap::stitched::{HeldRoom, PagedHeap};
use crate::pages::Batch;
use crate::stats::Occurrence;
use crate::sync::Ordering;
use crate::trace::Action;
use crate::units::DevicePtr;
use core::cell::Cell;

/// Length of a range of addresses, as a multiple of the device's memory. A used-up range is replaced, and released
/// once nothing in the range is mapped. With 4, an 80 GiB device has room for hundreds of heaps in the 128 TiB of
/// addresses of a process; later heaps get shorter ranges. `expandable_segments_reserve` sets another length.
const RANGE_TIMES_DEVICE: u64 = 4;

/// The stitched policy of a device: the operations that map and move pages.
pub(crate) struct Stitcher<'a, P: Platform> {
    mapper: Mapper<'a, P>,
    pub(in crate::arena) options: Stitched,
}

impl<'a, P: Platform> Stitcher<'a, P> {
    /// Returns the operations of the stitched policy on a device, if the policy is in force and the device has virtual
    /// memory.
    pub(in crate::arena) fn of(device: OnDevice<'a, P>) -> Option<Self> {
        let Policy::Stitched(options) = device.settings.policy() else { return None };
        // Asking a device that no request has reached yet may open the device.
        if !device.driver.has_virtual_memory() {
            return None;
        }
        Some(Self { mapper: Mapper::of(device)?, options })
    }

    /// Notes all later calls to virtual memory in `request`.
    pub(crate) fn for_request(self, request: &'a RequestCalls) -> Self {
        Self { mapper: self.mapper.for_request(request), ..self }
    }

    fn device(&self) -> OnDevice<'a, P> {
        self.mapper.device
    }

    /// Returns the length of which the sizes of pages are multiples, in bytes.
    fn step(&self) -> u64 {
        crate::config::rounding::SMALL_SEGMENT.next_multiple_of(self.mapper.memory.granularity())
    }

    /// Serves a request without a fitting free block in the request's heap. Returns `None` if neither free pages nor
    /// the limit and the device allow the growth.
    pub(crate) fn grow(&self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        if let Some(ptr) = self.search_other_heap(request)? {
            return Ok(Some(ptr));
        }
        self.unmap_some_stale(request);
        let allowed = self.allowance(request);
        if let Some(ptr) = self.borrow(request, allowed)? {
            return Ok(Some(ptr));
        }
        let served = self.grow_with_pending(request, allowed)?;
        if served.is_some() || allowed == 0 {
            return Ok(served);
        }
        // The limit or the device allows less than the budget: free pages may still do.
        self.grow_with_pending(request, 0)
    }

    /// Extends the request's heap as [`grow_within`](Self::grow_within) does, after pending memory has
    /// become free where new memory would exceed `allowed` bytes.
    fn grow_with_pending(&self, request: &Request, allowed: u64) -> Result<Option<DevicePtr>, Error> {
        match self.use_pending(request, allowed)? {
            Some(ptr) => Ok(Some(ptr)),
            None => self.grow_within(request, allowed),
        }
    }

    /// Serves a request from the stream's heap of the other kind, which costs nothing.
    fn search_other_heap(&self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        let Some(slot) = self.other_heap(request) else { return Ok(None) };
        self.device().search(&Request { slot, mapping: RequestCalls::default(), ..*request })
    }

    /// Returns the slot of the stream's heap of the other kind, if the heap may serve the request.
    fn other_heap(&self, request: &Request) -> Option<u32> {
        let serves = request.pool == 0 && !self.device().heaps.lock(request.slot).rules.no_split();
        // The small heap of a pair has an even slot, and the large heap the slot behind.
        serves.then_some(request.slot ^ 1)
    }

    /// Extends the request's heap, with at most `allowed` bytes of new memory as long as free pages
    /// can provide the rest, and serves the request. Returns `None` if the memory does not suffice. On `Ok(None)` and on
    /// errors nothing is mapped.
    fn grow_within(&self, request: &Request, allowed: u64) -> Result<Option<DevicePtr>, Error> {
        let Some(held) = self.hold_room(request)? else { return Ok(None) };
        let device = self.device();
        let lost = Cell::new(false);
        let room = Undo::by(|| self.release_room(request.slot, held, lost.get()));
        let Ok(_charged) = device.heaps.charge_tag(&device.driver.flags, request, held.needed) else { return Ok(None) };
        let mut guard = PageGuard::empty(self.mapper);
        if !self.provide(request, &held, allowed, &mut guard.batch)? {
            return Ok(None);
        }
        let batch = guard.batch;
        let at = PagedHeap(&mut device.heaps.lock(request.slot)).place_in(held, batch.bytes);
        let listed = self.mapper.list(request.slot, at, batch.bytes)?;
        let Some(mapping) = self.mapper.map(&batch, Row { at, lost: &lost })? else { return Ok(None) };
        let slot = device.heaps.slot(request.slot);
        let mut heap = device.heaps.lock(request.slot);
        // Room was made before the lock was dropped; other calls may have used the room since.
        if heap.make_room().is_err() || !heap.make_room_for_range() || heap.sets.pages.make_room(batch.count).is_err() {
            return Err(Error::TableFull("blocks"));
        }
        mapping.keep();
        listed.keep();
        guard.keep();
        room.keep();
        // Another request must not move the pages again before their old places are stale.
        self.mapper.list_batch(&mut heap, &batch, at, true);
        let extended = PagedHeap(&mut heap).extend(held, batch.bytes, &slot.counters);
        device.peaks.device.count(Occurrence::DeviceAlloc);
        device.trace(|recorder| recorder.segment(&mut heap, Action::SegmentMap, request.site, at, batch.bytes));
        // Served under the lock that extended the heap: no other request can take the block first.
        let mut served = heap.allocate_from(extended.value, request.size, request.bytes, &slot.counters);
        device.trace(|recorder| recorder.alloc(&mut heap, request.site, served.value, request.bytes));
        drop(heap);
        self.finish_moves(request.slot, &batch, at);
        served.peaks_stale |= extended.peaks_stale;
        Ok(Some(device.reconcile(slot, served)))
    }

    /// Returns held room to the heap.
    fn release_room(&self, slot: u32, held: HeldRoom, lost: bool) {
        let emptied = PagedHeap(&mut self.device().heaps.lock(slot)).release_room(held, lost);
        self.mapper.unreserve(emptied);
    }

    /// Collects pages of at least `needed` bytes: spare pages, free pages of the request's stream and of other
    /// streams, and new pages. Returns false if the limit or the device does not allow the rest.
    fn provide(&self, request: &Request, held: &HeldRoom, allowed: u64, batch: &mut Batch) -> Result<bool, Error> {
        let HeldRoom { needed, room, .. } = *held;
        self.mapper.take_spares(needed, u64::MAX, batch);
        // The permission is kept until the pages are ordered: no capture begins in between. Only
        // departed pages have a departure.
        if may_move(request)
            && let Some(_permission) = self.mapper.may_record()
        {
            self.mapper.take_departed(request.stream, needed, batch)?;
            self.mapper.order_batch(batch, request.stream, true)?;
        }
        let missing = |batch: &Batch| needed.saturating_sub(batch.bytes);
        let mut count = 0;
        let to_move = missing(batch).saturating_sub(allowed);
        if to_move > 0 && may_move(request) {
            let mut moves = self.most_moves(request, to_move, room);
            let before = batch.count;
            let wanted = PageRequest { end: batch.bytes + to_move, room };
            self.gather(request.into(), wanted, &mut moves, batch)?;
            count = batch.count - before;
        }
        let sizes = self.new_page_sizes(request, missing(batch), allowed, count);
        while batch.bytes < needed {
            let bytes = sizes.min(missing(batch));
            if !self.mapper.new_page(bytes, Charge::WithinLimit, batch)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Detaches unmapped addresses of the request's heap, for the bytes missing in the heap. Reserves a new range if
    /// no range has the addresses. Returns `None` without enough addresses.
    fn hold_room(&self, request: &Request) -> Result<Option<HeldRoom>, Error> {
        // The choice of pages may have more bytes than wanted, by less than the largest page.
        let spare_room = self.device().paging.pool.lock().largest.max(self.step());
        let granule = self.step();
        let wanted = || {
            let bytes = self.range_to_reserve()?;
            // Room for a choice of pages that exceeds the request, unless addresses are short.
            let fits = bytes >= request.size + granule;
            Ok(fits.then_some(AddressRequest { bytes, least: request.size.next_multiple_of(granule), granule }))
        };
        let hold = |heap: &mut Heap<P::Storage>| PagedHeap(heap).hold_room(request.size, spare_room);
        self.mapper.hold_addresses(request.slot, Backing::Stitched, wanted, hold)
    }

    /// Returns the length of a new range of addresses, in bytes.
    fn range_to_reserve(&self) -> Result<u64, Error> {
        let total = self.device().ledger.memory_info(&self.device().driver)?.total;
        let longest = total.saturating_mul(RANGE_TIMES_DEVICE);
        let reserve = self.device().settings.config.lock().expandable_segments_reserve();
        let wanted = reserve.map_or(longest, |reserve| reserve.bytes(total).min(longest));
        Ok(wanted.max(1).next_multiple_of(self.step()))
    }

    /// Leaves the old places of the batch's pages stale. The pages lie from `at` on in the heap of
    /// `slot`, and may move again afterwards.
    fn finish_moves(&self, slot: u32, batch: &Batch, at: DevicePtr) {
        let device = self.device();
        self.leave_origins(batch);
        device.paging.pool.lock().count_meetings(batch);
        self.mapper.settle_batch(batch);
        let mut heap = device.heaps.lock(slot);
        let mut at = at.0;
        let end = at + batch.bytes;
        while at < end
            && let Some(page) = heap.sets.pages.from(at)
        {
            // The old place is stale, and the page may go.
            heap.sets.pages.change(page.at, |home| home.stays = Stays::No);
            at = page.end();
        }
    }

    /// Leaves the old places of the batch's pages stale.
    pub(in crate::arena) fn leave_origins(&self, batch: &Batch) {
        let device = self.device();
        let mut moved = 0;
        for page in self.mapper.numbers_of(batch) {
            let origin = device.paging.pool.lock().count_alias_of_origin(page);
            let Some((from, block)) = origin else { continue };
            let counters = &device.heaps.slot(from).counters;
            let mut heap = device.heaps.lock(from);
            let (addr, bytes) = PagedHeap(&mut heap).leave_stale(block, counters);
            device.paging.stale_mappings.fetch_add(1, Ordering::Relaxed);
            device.trace(|recorder| recorder.release(&mut heap, Action::SegmentUnmap, addr, bytes));
            drop(heap);
            moved += bytes;
        }
        device.paging.moved_bytes.fetch_add(moved, Ordering::Relaxed);
    }
}

/// Returns whether pages may move for a request: never into a private pool, and not while the request's stream
/// captures a graph. The graph would write to the pages at every replay.
fn may_move(request: &Request) -> bool {
    request.pool == 0 && !request.capturing
}
