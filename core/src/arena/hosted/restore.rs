//! Takes over a device's state from a snapshot: segments at the recorded addresses, with the
//! recorded blocks.
//!
//! A history of events that starts in the middle can then be continued from the state at its start.
//! No requests could reproduce this state, because where a free block starts and ends depends on
//! requests that are no longer known.

use crate::arena::paging::growth::{LONG_PAGE, PageGrowth};
use crate::arena::paging::mapper::Charge;
use crate::arena::paging::mapping::{PageGuard, Row};
use crate::arena::{OnDevice, Platform, flags};
use crate::config::rounding::PoolKind;
use crate::device::{DeviceError, Segments};
use crate::error::Error;
use crate::heap::addresses::{AddressRange, Run};
use crate::heap::block::State;
use crate::heap::restore::Restoring;
use crate::heap::split_rules::PageRules;
use crate::page_map::Owner;
use crate::pool::PoolId;
use crate::snapshot::{BlockState, SnapshotSegment};
use crate::trace::CallSite;
use crate::units::{DevicePtr, NO_STREAM};
use core::cell::Cell;

/// The device reserved addresses that do not contain the needed part.
const NOT_AROUND: Error = Error::SnapshotRefused("the device does not reserve addresses around a part");

/// The device has no memory left for a segment or a part.
const LACKS_MEMORY: Error = Error::SnapshotRefused("the device lacks the memory for the segments");

/// Some bytes of a block at a chosen address are in use, or have no memory.
const NOT_FREE: Error = Error::SnapshotRefused("the bytes of the block are not free");

/// The limit of the device has no room for a segment or a part.
const OVER_LIMIT: &str = "the segments exceed the limit";

/// Returns [`Error::SnapshotRefused`] with the reason `why`, unless `holds`.
fn require(holds: bool, why: &'static str) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(Error::SnapshotRefused(why)) }
}

impl<P: Platform> OnDevice<'_, P> {
    /// Takes over the given segments, in their order.
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotRefused`] before any change if the segments contradict each other or the
    /// policy. After any later error, the segments before the failing one remain.
    pub(crate) fn restore(self, segments: &[SnapshotSegment]) -> Result<(), Error> {
        let divides =
            [PoolKind::Small, PoolKind::Large].into_iter().any(|kind| self.settings.policy().suballocates(kind));
        require(!divides, "the policy divides segments by rules of its own")?;
        require(!self.driver.flags.has(flags::DIRECT), "the cache is turned off")?;
        require(self.ledger.reserved() == 0, "the device's allocator holds memory already")?;
        let mut end = 0;
        for segment in segments {
            require(end <= segment.address.0, "two segments overlap, or are not in the order of their addresses")?;
            check(segment, self.settings.policy().unit())?;
            end = segment.address.0 + segment.total_size;
        }
        segments.iter().try_for_each(|segment| self.restore_segment(segment))
    }

    /// Allocates the bytes at `ptr` in the heap in `slot`, if the heap belongs to `pool` and the
    /// bytes are free. `sizes` are the bytes of the block and the bytes of the request.
    pub(crate) fn malloc_at(self, slot: u32, pool: PoolId, ptr: DevicePtr, sizes: (u64, u64)) -> Result<(), Error> {
        let (bytes, requested) = sizes;
        let unit = self.settings.policy().unit();
        let whole = ptr.0.is_multiple_of(unit) && bytes.is_multiple_of(unit);
        require(
            whole && 0 < bytes && requested <= bytes,
            "the address or the size of the block is no multiple of the unit",
        )?;
        let site = self.call_site(CallSite::Alloc);
        let counters = &self.heaps.slot(slot).counters;
        let mut heap = self.heaps.lock(slot);
        if heap.asleep {
            return Err(Error::Parked);
        }
        require(heap.suballocator.is_none(), "the policy divides segments by rules of its own")?;
        require(self.heaps.shared_pool(heap.pool).id() == pool, "the block is in another pool")?;
        let mut restoring = Restoring { heap: &mut heap, counters };
        restoring.make_room_for_blocks(1)?;
        let peaks_stale = restoring.allocate_at(ptr, bytes, requested).ok_or(NOT_FREE)?;
        self.trace(|recorder| recorder.alloc(&mut heap, site, ptr, requested));
        drop(heap);
        self.settle_peaks(self.heaps.slot(slot), peaks_stale);
        Ok(())
    }

    /// Takes over a segment, or a mapped part of an expandable segment.
    fn restore_segment(self, segment: &SnapshotSegment) -> Result<(), Error> {
        let (base, bytes) = (segment.address, segment.total_size);
        let pool =
            if segment.pool == PoolId::DEFAULT { 0 } else { self.heaps.registry.lock().private_pool(segment.pool)? };
        let pair = self.heaps.use_pair(pool, segment.stream)?;
        let slot = pair.slot(segment.kind);
        let counters = &self.heaps.slot(slot).counters;
        Restoring { heap: &mut self.heaps.lock(slot), counters }.make_room_for_blocks(segment.blocks.len())?;
        let peaks_stale = if segment.is_expandable {
            require(self.ledger.has_room_for(bytes), OVER_LIMIT)?;
            let growth =
                self.holdings().page_growth().ok_or(Error::SnapshotRefused("the device has no virtual memory"))?;
            // The pages stay, as they did where the snapshot was made, whatever the policy is here.
            let growth = growth.under(PageRules::Stay);
            let part = growth.map_part(slot, segment)?;
            Restoring { heap: &mut self.heaps.lock(slot), counters }.restore_part(part, &segment.blocks)
        } else {
            self.obtain_at(base, bytes, Owner::Heap(self.heaps.heap_ref(slot)))?;
            Restoring { heap: &mut self.heaps.lock(slot), counters }.restore_segment(base, bytes, &segment.blocks)
        };
        self.settle_peaks(self.heaps.slot(slot), peaks_stale);
        Ok(())
    }

    /// Allocates the memory of an ordinary segment, which the device must place at `base`.
    fn obtain_at(self, base: DevicePtr, bytes: u64, owner: Owner) -> Result<(), Error> {
        require(self.ledger.charge(bytes), OVER_LIMIT)?;
        let obtained = self
            .ledger
            .allocate_charged::<P>(&self.driver, self.pages, bytes, owner, |device| device.obtain(bytes))?
            .ok_or(LACKS_MEMORY)?;
        if obtained != base {
            self.ledger.undo_allocation::<P>(&self.driver, self.pages, obtained, bytes)?;
            return Err(Error::SnapshotRefused("the device does not place a segment where it was"));
        }
        Ok(())
    }
}

impl<P: Platform> PageGrowth<'_, P> {
    /// Maps memory for a part of an expandable segment, and adds it to the page map. Reserves
    /// addresses for the segment at its first part. Returns the part's detached block.
    fn map_part(&self, slot: u32, segment: &SnapshotSegment) -> Result<u32, Error> {
        let (at, bytes) = (segment.address, segment.total_size);
        let block = self.mapper.heaps.lock(slot).containing(at);
        if block.is_none() {
            self.reserve_range(slot, segment)?;
        }
        let mut heap = self.mapper.heaps.lock(slot);
        let block = heap.containing(at).ok_or(NOT_AROUND)?;
        let entry = &heap.segments[heap.blocks[block].segment];
        let (granule, inside) = (entry.granule, at.0 + bytes <= entry.base + entry.bytes);
        let whole = granule != 0 && (at.0 - entry.base).is_multiple_of(granule) && bytes.is_multiple_of(granule);
        require(inside && whole, "a part of an expandable segment does not begin and end on granules")?;
        let part = heap.detach_part(block, at, bytes);
        drop(heap);
        let lost = Cell::new(None);
        let healthy = self.mapper.driver.health().map_err(Error::from);
        let mapped = healthy.and_then(|()| self.map_range(slot, AddressRange { at, bytes, granule }, &lost));
        if mapped != Ok(true) {
            let mut heap = self.mapper.heaps.lock(slot);
            if lost.get().is_some() {
                heap.blocks[part].state = State::Lost;
            }
            let emptied = heap.attach_run(Run { first: part, last: part });
            drop(heap);
            self.mapper.unreserve(emptied);
            return Err(mapped.err().unwrap_or(LACKS_MEMORY));
        }
        Ok(part)
    }

    /// Maps pages over `range`, and adds them to the heap in `slot` and to the page map. Returns
    /// false if the device does not have the memory. The limit has already been checked. After a
    /// failure nothing is mapped, unless addresses are `lost`.
    fn map_range(&self, slot: u32, range: AddressRange, lost: &Cell<Option<DeviceError>>) -> Result<bool, Error> {
        let long_pages = self.mapper.heaps.lock(slot).parkable;
        let longest = if long_pages { LONG_PAGE / range.granule * range.granule } else { range.granule };
        let mut guard = PageGuard::empty(&self.mapper);
        while guard.batch.bytes < range.bytes {
            let bytes = longest.max(range.granule).min(range.bytes - guard.batch.bytes);
            if !self.mapper.new_page(bytes, Charge::Checked, &mut guard.batch)? {
                return Ok(false);
            }
        }
        let Some(mapping) = self.mapper.map(&guard.batch, Row { at: range.at, lost })? else { return Ok(false) };
        let listed = self.mapper.list(slot, range.at, range.bytes)?;
        let mut heap = self.mapper.heaps.lock(slot);
        heap.sets.pages.make_room(guard.batch.count).map_err(|_| Error::TableFull("pages of memory"))?;
        self.mapper.paging.list_batch(&mut heap, &guard.batch, range.at);
        drop(heap);
        listed.keep();
        mapping.keep();
        self.mapper.paging.settle_batch(&guard.keep());
        Ok(true)
    }

    /// Reserves addresses around the first part of an expandable segment.
    fn reserve_range(&self, slot: u32, segment: &SnapshotSegment) -> Result<(), Error> {
        let (bytes, granule) = self.range_to_reserve(segment.kind)?;
        let reserved = self.mapper.paging.address_bytes();
        let base = self.mapper.reserve(bytes)?.ok_or(Error::OutOfAddresses { requested: bytes, reserved })?;
        let range = base..DevicePtr(base.0.saturating_add(bytes));
        if !range.contains(&segment.address) {
            self.mapper.unreserve(Some((base, bytes)));
            return Err(NOT_AROUND);
        }
        self.mapper.heaps.lock(slot).add_range(base, bytes, granule);
        Ok(())
    }
}

/// Checks a segment on its own: blocks of whole `unit`s tile it, and no two free blocks are
/// adjacent.
fn check(segment: &SnapshotSegment, unit: u64) -> Result<(), Error> {
    require(segment.stream != NO_STREAM, "the stream number u64::MAX is reserved")?;
    require(segment.address.0 > 0 && segment.address.0.is_multiple_of(unit), "a segment's address is not aligned")?;
    let mut at = segment.address.0;
    let mut after_free = false;
    for block in &segment.blocks {
        require(block.address.0 == at, "the blocks do not tile their segment")?;
        require(block.size > 0 && block.size.is_multiple_of(unit), "a block's size is no multiple of the unit")?;
        let is_free = block.state == BlockState::Inactive;
        require(!(is_free && after_free), "two free blocks are neighbours")?;
        require(is_free || block.requested_size <= block.size, "a block is smaller than its request")?;
        at = at.checked_add(block.size).ok_or(Error::SnapshotRefused("a segment ends beyond the last address"))?;
        after_free = is_free;
    }
    require(
        at > segment.address.0 && at - segment.address.0 == segment.total_size,
        "the blocks do not tile their segment",
    )
}
