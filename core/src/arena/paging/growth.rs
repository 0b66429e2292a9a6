//! Growth of heaps on pages. Pages that stay and pages that move use the same transaction.
//!
//! ```text
//! hold room ─▶ charge the tag ─▶ provide pages ─▶ list the addresses ─▶ map ─▶ extend the heap, serve the request
//! ```
//!
//! The [rules](PageRules) of its pages decide where the heap grows, under its lock. Pages that stay
//! are new and have one length. Pages that move are provided by the stitched policy (stitched/).
//! Everything after that is the same. Each step is undone if a later step fails. No lock is held
//! across a call to the device.

use crate::arena::Platform;
use crate::arena::heaps::Heaps;
use crate::arena::holdings::Holdings;
use crate::arena::paging::addresses::AddressRequest;
use crate::arena::paging::heap_mapper::HeapMapper;
use crate::arena::paging::mapper::Charge;
use crate::arena::paging::mapping::{PageGuard, Places};
use crate::arena::paging::undo::Undo;
use crate::arena::request::{Request, RequestCalls};
use crate::arena::settings::Settings;
use crate::config::rounding::{PoolKind, SMALL_SEGMENT};
use crate::device::DeviceError;
use crate::error::Error;
use crate::heap::Heap;
use crate::heap::addresses::AddressRange;
use crate::heap::growth::HeldRoom;
use crate::heap::home_pages::{HomePage, Stays};
use crate::heap::split_rules::PageRules;
use crate::page_map::Owner;
use crate::pages::{Batch, Page};
use crate::stats::Occurrence;
use crate::trace::Action;
use crate::units::DevicePtr;
use core::cell::Cell;

/// The divisor for the excess of a reserved range of addresses over the device's memory, if pages
/// stay. With 1/8 more addresses than memory, one range can always hold all memory in spite of gaps
/// (`ExpandableSegment`, `PyTorch` 2.1–2.15: 9/8 in all).
const RESERVE_EXTRA: u64 = 8;

/// The length of a range of addresses as a multiple of the device's memory, if pages move. A range
/// that is used up is used again from its beginning, and if no gap is long enough, replaced; it is
/// released once nothing is mapped in it. With 4, an 80 GiB device has room for hundreds of heaps
/// in the 128 TiB of addresses of a process; later heaps get shorter ranges.
/// `expandable_segments_reserve` sets another length.
const RANGE_TIMES_DEVICE: u64 = 4;

/// The length of the longest page of a tagged pool, in bytes. The device takes 70 µs to unmap and
/// release a page of 20 MiB, and hardly more for a longer one (H100, driver 580).
pub(in crate::arena) const LONG_PAGE: u64 = 160 << 20;

/// The growth of the heaps on pages of a device.
pub(crate) struct PageGrowth<'a, P: Platform> {
    pub(in crate::arena) mapper: HeapMapper<'a, P>,
    /// The settings that configure the lengths of ranges and pages.
    settings: &'a Settings<P::Lock>,
    rules: PageRules,
}

/// The parts of held room, as places for pages.
struct RoomParts<'a, P: Platform> {
    heaps: &'a Heaps<P>,
    slot: u32,
    held: HeldRoom,
}

impl<P: Platform> Places for RoomParts<'_, P> {
    fn begin(&self) -> u64 {
        self.next(0)
    }

    fn next(&self, end: u64) -> u64 {
        self.heaps.lock(self.slot).place_in(self.held, end).0
    }

    fn lose(&self, at: DevicePtr, _: u64, _: DeviceError) {
        self.heaps.lock(self.slot).lose_part(self.held, at.0);
    }
}

/// Returns the first part of held room that starts at `from` or after it. The heap is unlocked
/// here. In the head of a `while let` the lock would last to the end of the loop's body, which
/// locks the heap again.
fn part_from<P: Platform>(heaps: &Heaps<P>, slot: u32, held: HeldRoom, from: u64) -> Option<AddressRange> {
    heaps.lock(slot).part_from(held, from)
}

impl<'a, P: Platform> Holdings<'a, P> {
    /// Returns the growth of heaps on pages, if the device has virtual memory.
    pub(in crate::arena) fn page_growth(&self) -> Option<PageGrowth<'a, P>> {
        let settings = self.settings;
        Some(PageGrowth { mapper: self.heap_mapper()?, settings, rules: PageRules::of(settings.policy()) })
    }
}

impl<'a, P: Platform> PageGrowth<'a, P> {
    /// Returns the growth under other rules than those of the policy, for memory that is taken
    /// over.
    #[cfg(feature = "alloc")]
    pub(in crate::arena) fn under(self, rules: PageRules) -> Self {
        Self { rules, ..self }
    }

    /// Notes all later calls to virtual memory in `request`.
    pub(in crate::arena) fn for_request(self, request: &'a RequestCalls) -> Self {
        Self { mapper: self.mapper.for_request(request), ..self }
    }

    /// Returns whether the limit allows `more` mapped bytes.
    pub(crate) fn has_room_to_map(&self, more: u64) -> bool {
        self.mapper.has_room_to_map(more)
    }

    /// Serves a request from new pages of one length, which fill the gaps of the request's heap or
    /// follow them. Returns `None` if the device does not have the memory or the addresses.
    pub(crate) fn expand(&self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        self.expand_by(request, |bytes, _, batch| self.mapper.new_page(bytes, Charge::Checked, batch))
    }

    /// Serves a request from pages that `new_page` appends to a batch. It gets the length that a
    /// page should have, and the shortest one, of which this is a multiple.
    pub(super) fn expand_by(
        &self,
        request: &Request,
        new_page: impl Fn(u64, u64, &mut Batch) -> Result<bool, Error>,
    ) -> Result<Option<DevicePtr>, Error> {
        self.grow(request, |held, batch| {
            if self.mapper.lacks(held.needed) {
                return Ok(false);
            }
            let heaps = self.mapper.heaps;
            let long_pages = heaps.lock(request.slot).parkable;
            let mut from = 0;
            loop {
                // The parts are held, so they do not change.
                let Some(part) = part_from(heaps, request.slot, *held, from) else { return Ok(true) };
                let longest = if long_pages { LONG_PAGE / part.granule * part.granule } else { 0 };
                // Where pages move, the only part is longer than what is needed.
                let end = held.needed.min(batch.bytes + part.bytes);
                while batch.bytes < end {
                    let bytes = longest.max(part.granule).min(end - batch.bytes);
                    if !new_page(bytes, part.granule, batch)? {
                        return Ok(false);
                    }
                }
                from = part.at.0 + part.bytes;
            }
        })
    }

    /// Serves a request from pages that `provide` appends to a batch for the held room: at least
    /// the bytes needed, and at most those of the room. Returns `None` if `provide` returns false,
    /// or if the device does not have the memory or the addresses. On `Ok(None)` and on errors
    /// nothing is mapped.
    pub(super) fn grow(
        &self,
        request: &Request,
        provide: impl FnOnce(&HeldRoom, &mut Batch) -> Result<bool, Error>,
    ) -> Result<Option<DevicePtr>, Error> {
        let Some(held) = self.hold_room(request)? else { return Ok(None) };
        let mapper = &self.mapper;
        let held = Cell::new(held);
        let room = Undo::by(|| self.release_room(request.slot, held.get()));
        let Ok(_charged) = mapper.heaps.charge_tag(&mapper.driver.flags, request, held.get().needed) else {
            return Ok(None);
        };
        let mut guard = PageGuard::empty(mapper);
        if !provide(&held.get(), &mut guard.batch)? {
            return Ok(None);
        }
        let batch = guard.batch;
        held.set(self.trim_room(request.slot, held.get(), batch.bytes)?);
        let held = held.get();
        let listed = self.list(request.slot, held)?;
        let parts = RoomParts { heaps: mapper.heaps, slot: request.slot, held };
        let Some(mapping) = mapper.map(&batch, parts)? else { return Ok(None) };
        let slot = mapper.heaps.slot(request.slot);
        let mut heap = mapper.heaps.lock(request.slot);
        // Room was made before the lock was dropped, and other calls may have used it since.
        if heap.make_room().is_err() || !heap.make_room_for_range() || heap.sets.pages.make_room(batch.count).is_err() {
            return Err(Error::TableFull("blocks"));
        }
        mapping.keep();
        listed.keep();
        guard.keep();
        room.keep();
        let at = heap.place_in(held, 0);
        self.list_pages(&mut heap, held, &batch, request.site);
        let extended = heap.extend(held, &slot.counters);
        let (block, parts) = extended.value;
        // Each part counts as one allocation of the device.
        (0..parts).for_each(|_| mapper.peaks.device.count(Occurrence::DeviceAlloc));
        // The block is taken under the lock that extended the heap, so no other request can take it
        // first.
        let mut served = heap.allocate_from(block, request.size, request.bytes, &slot.counters);
        mapper.trace(|recorder| recorder.alloc(&mut heap, request.site, served.value, request.bytes));
        drop(heap);
        self.finish_moves(request.slot, &batch, at);
        // One reconciliation of the peaks covers the mapping and the block.
        served.peaks_stale |= extended.peaks_stale;
        Ok(Some(mapper.reconcile(slot, served)))
    }

    /// Detaches addresses of the request's heap for the bytes that it is short of, together with
    /// the free blocks among them. Reserves a new range if no range has the addresses. Returns
    /// `None` if there are not enough addresses.
    fn hold_room(&self, request: &Request) -> Result<Option<HeldRoom>, Error> {
        // When pages move, the chosen ones may exceed the wanted bytes by less than the largest
        // page.
        let spare_room = match self.rules {
            PageRules::Stay => 0,
            PageRules::Move => self.mapper.paging.pool.lock().largest.max(self.granule(request.kind)),
        };
        let wanted = || {
            let (bytes, granule) = self.range_to_reserve(request.kind)?;
            // Without this test, a range that is too short would be reserved again and again.
            let fits = bytes >= self.least_range(request);
            Ok(fits.then_some(AddressRequest { bytes, least: request.size.next_multiple_of(granule), granule }))
        };
        let hold = |heap: &mut Heap<P::Storage>| heap.hold_room(request.size, spare_room);
        self.mapper.hold_addresses(request.slot, wanted, hold)
    }

    /// Returns the length of the shortest range for a request. When pages move, the chosen ones may
    /// exceed the request.
    fn least_range(&self, request: &Request) -> u64 {
        let more = if self.rules == PageRules::Move { self.granule(request.kind) } else { 0 };
        request.size + more
    }

    /// Returns whether there are addresses for a request, in a range of the heap or in one that
    /// [`grow`](Self::grow) would reserve.
    pub(crate) fn has_addresses(&self, request: &Request) -> Result<bool, Error> {
        let in_a_range = self.mapper.heaps.lock(request.slot).lacking(request.size).is_some();
        Ok(in_a_range || self.range_to_reserve(request.kind)?.0 >= self.least_range(request))
    }

    /// Returns the bytes that must be mapped in the request's heap to serve the request. For a heap
    /// without addresses, these are all bytes of the request.
    pub(in crate::arena) fn bytes_to_map(&self, request: &Request) -> u64 {
        let lacking = self.mapper.heaps.lock(request.slot).lacking(request.size);
        lacking.map_or_else(|| request.size.next_multiple_of(self.granule(request.kind)), |lacking| lacking.needed)
    }

    /// Returns the length of a new range of addresses and the length of its granules, in bytes.
    pub(in crate::arena) fn range_to_reserve(&self, kind: PoolKind) -> Result<(u64, u64), Error> {
        let total = self.mapper.ledger.memory_info(self.mapper.driver)?.total;
        let longest = match self.rules {
            PageRules::Stay => total + total / RESERVE_EXTRA,
            PageRules::Move => total.saturating_mul(RANGE_TIMES_DEVICE),
        };
        let reserve = self.settings.config.lock().expandable_segments_reserve();
        let wanted = reserve.map_or(longest, |reserve| reserve.bytes(total).min(longest));
        let granule = self.granule(kind);
        Ok((wanted.max(granule).next_multiple_of(granule), granule))
    }

    /// Returns the granule in bytes. The lengths of pages are multiples of it. A page that stays is
    /// as long as an ordinary shared segment of the same kind, rounded up to the device's
    /// granularity.
    pub(in crate::arena) fn granule(&self, kind: PoolKind) -> u64 {
        let bytes = match (self.rules, kind) {
            (PageRules::Stay, PoolKind::Large) => self.settings.config.lock().large_segment_size(),
            _ => SMALL_SEGMENT,
        };
        bytes.next_multiple_of(self.mapper.memory.granularity())
    }

    /// Returns the granule of large heaps in bytes.
    pub(super) fn granule_of_large(&self) -> u64 {
        self.granule(PoolKind::Large)
    }

    /// Returns held room to the heap.
    fn release_room(&self, slot: u32, held: HeldRoom) {
        let emptied = self.mapper.heaps.lock(slot).release_room(held);
        self.mapper.unreserve(emptied);
    }

    /// Returns the room beyond `bytes` to the heap.
    ///
    /// # Errors
    /// [`Error::TableFull`]. Nothing has changed then.
    fn trim_room(&self, slot: u32, held: HeldRoom, bytes: u64) -> Result<HeldRoom, Error> {
        if bytes == held.room {
            return Ok(held);
        }
        let mut heap = self.mapper.heaps.lock(slot);
        // Other calls may have used the room in the tables that was made when the addresses were
        // held.
        if heap.make_room().is_err() || !heap.make_room_for_range() {
            return Err(Error::TableFull("blocks"));
        }
        Ok(heap.trim_room(held, bytes))
    }

    /// Enters the parts of held room in the page map as addresses of the heap in `slot`. Undoing
    /// this removes them again.
    ///
    /// # Errors
    /// [`Error::TableFull`].
    fn list(&self, slot: u32, held: HeldRoom) -> Result<Undo<impl FnOnce()>, Error> {
        let (heaps, owners) = (self.mapper.heaps, self.mapper.owners);
        let listed = Cell::new(0);
        // Removes the parts that start below the end of what has been entered.
        let undo = move |end: u64| {
            let mut from = 0;
            while let Some(part) = part_from(heaps, slot, held, from).filter(|part| part.at.0 < end) {
                owners.remove(part.at, part.bytes);
                from = part.at.0 + part.bytes;
            }
        };
        while let Some(part) = part_from(heaps, slot, held, listed.get()) {
            if let Err(error) = owners.insert(part.at, part.bytes, Owner::Heap(heaps.heap_ref(slot))) {
                undo(listed.get());
                return Err(error);
            }
            listed.set(part.at.0 + part.bytes);
        }
        Ok(Undo::by(move || undo(listed.get())))
    }

    /// Adds the pages of a batch, which are mapped in the parts of held room, to the pages of
    /// `heap`, and traces the parts. The caller has made room. The pages are marked as arriving,
    /// because another request must not move them before they have left their old places.
    fn list_pages(&self, heap: &mut Heap<P::Storage>, held: HeldRoom, batch: &Batch, site: u32) {
        let mut end = 0;
        for page in self.mapper.paging.numbers_of(batch) {
            let Page { bytes, is_host, .. } = self.mapper.paging.pool.lock()[page];
            let at = heap.place_in(held, end).0;
            heap.add_page(HomePage { stays: Stays::Arriving, of_host: is_host, ..HomePage::new(at, bytes, page) });
            end = at + bytes;
        }
        let mut from = 0;
        while let Some(part) = heap.part_from(held, from) {
            self.mapper.trace(|recorder| recorder.segment(heap, Action::SegmentMap, site, part.at, part.bytes));
            from = part.at.0 + part.bytes;
        }
        self.mapper.trace_spilled(heap);
    }

    /// Leaves the old places of the batch's pages. The pages are in the heap of `slot`, in the
    /// order of their addresses, and the first is at `at`. From then on they may move again.
    fn finish_moves(&self, slot: u32, batch: &Batch, at: DevicePtr) {
        if self.rules == PageRules::Move {
            self.mapper.leave_origins(batch);
            self.mapper.paging.pool.lock().count_meetings(batch);
        }
        self.mapper.paging.settle_batch(batch);
        let mut heap = self.mapper.heaps.lock(slot);
        let mut at = at.0;
        for page in self.mapper.paging.numbers_of(batch) {
            // Pages that were there before are between those of the batch. An arriving page stays.
            while let Some(home) = heap.sets.pages.from(at) {
                at = home.end();
                if home.page == page {
                    heap.sets.pages.change(home.at, |home| home.stays = Stays::No);
                    break;
                }
            }
        }
    }
}
