//! Growth and release of expandable segments: maps more physical memory, and unmaps free granules.
//!
//! An expandable segment is mapped in pages of one size, its *granule*. A page that is unmapped
//! becomes spare, and serves the next mapping of its size. Every step is undone if a later step
//! fails.
//!
//! The device is never called under a heap's lock. The blocks of a run or range are first
//! *detached* from every set of the heap, so no other call can touch the blocks while the lock is
//! dropped.

use crate::arena::Platform;
use crate::arena::paging::addresses::AddressRequest;
use crate::arena::paging::mapper::{Charge, Mapper};
use crate::arena::paging::mapping::{PageGuard, Row};
use crate::arena::paging::undo::Undo;
use crate::arena::request::Request;
use crate::config::rounding::{PoolKind, SMALL_SEGMENT};
use crate::device::{DeviceError, ErrorKind, StreamOrder};
use crate::error::Error;
use crate::heap::Heap;
use crate::heap::block::{Backing, BlockEntry, State};
use crate::heap::expandable::{AddressRange, Run};
use crate::stats::Occurrence;
use crate::tables::slot_table::NONE;
use crate::trace::Action;
use crate::units::DevicePtr;
use core::cell::Cell;

/// Divisor for the excess of a reserved address range over the device's memory. With 1/8 more
/// addresses than memory, one segment can always hold all memory in spite of gaps
/// (`ExpandableSegment`, `PyTorch` 2.1–2.15: 9/8 in all).
const RESERVE_EXTRA: u64 = 8;

/// Length of the longest page of a tagged pool, in bytes: the device takes 70 µs to unmap and release a
/// page of 20 MiB, and hardly more for a longer one (H100, driver 580).
pub(in crate::arena) const LONG_PAGE: u64 = 160 << 20;

impl<P: Platform> Mapper<'_, P> {
    /// Maps as much memory as the request needs, in gaps of the mapped blocks or behind them, and
    /// serves the request. Returns `None` if the device lacks the memory or the addresses.
    pub(crate) fn expand(&self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        let Some(run) = self.detach_run(request)? else { return Ok(None) };
        let detached = Undo::by(|| self.unmap_run(request.slot, run));
        let lacking = self.device.heaps.lock(request.slot).lacking_in(run);
        let Ok(_charged) = self.device.heaps.charge_tag(&self.device.driver.flags, request, lacking) else {
            return Ok(None);
        };
        if !self.map_run(request, run)? {
            return Ok(None);
        }
        let slot = self.device.heaps.slot(request.slot);
        let mut heap = self.device.heaps.lock(request.slot);
        // Serving may split the joined block. Other calls may have used the room since the run was
        // detached, so room is made again before the run can no longer be undone.
        if heap.make_room().is_err() {
            return Err(Error::TableFull("blocks"));
        }
        detached.keep();
        let joined = heap.join_run(run, &slot.counters);
        let (block, parts) = joined.value;
        // Each newly mapped part counts as one allocation of the device.
        for _ in 0..parts {
            self.device.peaks.device.count(Occurrence::DeviceAlloc);
        }
        // Served under the lock that joined the run: no other request can take the block first.
        let mut served = heap.allocate_from(block, request.size, request.bytes, &slot.counters);
        self.device.trace(|recorder| recorder.alloc(&mut heap, request.site, served.value, request.bytes));
        drop(heap);
        // One reconciliation of the peaks covers the mapping and the block.
        served.peaks_stale |= joined.peaks_stale;
        Ok(Some(self.device.reconcile(slot, served)))
    }

    /// Maps every unmapped part of a detached run, and marks each part as mapped. Returns false if
    /// the device lacks the memory; parts mapped before then stay mapped.
    fn map_run(&self, request: &Request, run: Run) -> Result<bool, Error> {
        let slot = request.slot;
        loop {
            // The lock ends with this statement. The run is detached, so its blocks stay as found.
            let Some((block, range)) = self.device.heaps.lock(slot).part_of_run(run, State::Mapping) else {
                return Ok(true);
            };
            self.device.driver.health()?;
            let lost = Cell::new(false);
            let mapped = self.map_range(slot, range, &lost);
            if mapped != Ok(true) {
                if lost.get() {
                    self.device.heaps.lock(slot).blocks[block].state = State::Lost;
                }
                return mapped;
            }
            let mut heap = self.device.heaps.lock(slot);
            heap.blocks[block].state = State::Mapped;
            self.device
                .trace(|recorder| recorder.segment(&mut heap, Action::SegmentMap, request.site, range.at, range.bytes));
        }
    }

    /// Maps pages over `range`, and lists them in the heap of `slot` and in the page map. Returns false if the device lacks
    /// the memory. The limit was checked before. After a failure nothing is mapped, unless addresses are `lost`.
    pub(in crate::arena) fn map_range(&self, slot: u32, range: AddressRange, lost: &Cell<bool>) -> Result<bool, Error> {
        let long_pages = self.device.heaps.lock(slot).parkable;
        let longest = if long_pages { LONG_PAGE / range.granule * range.granule } else { range.granule };
        let mut guard = PageGuard::empty(*self);
        while guard.batch.bytes < range.bytes {
            let bytes = longest.max(range.granule).min(range.bytes - guard.batch.bytes);
            if !self.new_page(bytes, Charge::Checked, &mut guard.batch)? {
                return Ok(false);
            }
        }
        let Some(mapping) = self.map(&guard.batch, Row { at: range.at, lost })? else { return Ok(false) };
        let listed = self.list(slot, range.at, range.bytes)?;
        let mut heap = self.device.heaps.lock(slot);
        heap.sets.pages.make_room(guard.batch.count).map_err(|_| Error::TableFull("pages of memory"))?;
        self.list_batch(&mut heap, &guard.batch, range.at, false);
        drop(heap);
        listed.keep();
        mapping.keep();
        self.settle_batch(&guard.keep());
        Ok(true)
    }

    /// Undoes [`map_run`](Self::map_run), and returns the run's blocks to the heap's sets. No block
    /// of the run was ever handed out, so no stream uses the memory and no wait is needed.
    fn unmap_run(&self, slot: u32, run: Run) {
        loop {
            let Some((block, range)) = self.device.heaps.lock(slot).part_of_run(run, State::Mapped) else { break };
            self.device.pages.remove(range.at, range.bytes);
            let unmapped = self.unmap_pages(slot, range);
            let mut heap = self.device.heaps.lock(slot);
            // A range in doubt is lost: its addresses are never mapped again.
            heap.blocks[block].state = if unmapped.is_ok() { State::Mapping } else { State::Lost };
            self.device.trace(|recorder| recorder.release(&mut heap, Action::SegmentUnmap, range.at, range.bytes));
        }
        let _counted = self.destroy_spares();
        let emptied = self.device.heaps.lock(slot).attach_run(run);
        self.unreserve(emptied);
    }

    /// Unmaps the whole granules of every free expandable block in the heap of `slot`. Covers the
    /// blocks that are free at the call, in the order of the free index.
    ///
    /// # Errors
    ///
    /// The first failure; the unmapping goes on after a failure unless the context is lost.
    pub(crate) fn unmap_cached(&self, slot: u32) -> Result<(), Error> {
        self.unmap_all_detached(slot, self.detach_unmappable(slot))
    }

    /// Detaches the free pages of the heap in `slot`. Returns the first block of a list linked by
    /// [`BlockEntry::chain`](crate::heap::block::BlockEntry::chain), and an error if blocks were skipped because a table is full.
    pub(in crate::arena) fn detach_unmappable(&self, slot: u32) -> (u32, Result<(), Error>) {
        let (mut first, mut last, mut result) = (NONE, NONE, Ok(()));
        for unit in self.device.heaps.pages_of(slot) {
            let mut heap = self.device.heaps.lock(slot);
            match unit.detach(&mut heap) {
                Ok(None) => {}
                Ok(Some(block)) => {
                    // A detached block is in no index, so `chain` is free to link the list.
                    heap.blocks[block].chain = NONE;
                    if last == NONE {
                        first = block;
                    } else {
                        heap.blocks[last].chain = block;
                    }
                    last = block;
                }
                Err(error) => result = Err(error),
            }
        }
        (first, result)
    }

    /// Unmaps what [`detach_unmappable`](Self::detach_unmappable) has detached in the heap of `slot`.
    pub(in crate::arena) fn unmap_all_detached(
        &self,
        slot: u32,
        (mut detached, mut result): (u32, Result<(), Error>),
    ) -> Result<(), Error> {
        // All blocks are detached, so one synchronization of the stream serves all of them.
        if detached == NONE {
            return result;
        }
        let stream = self.device.heaps.lock(slot).stream;
        let waited = self.device.driver.call(|device| device.synchronize(stream));
        // A capturing stream permits no wait: its free blocks stay mapped, which is no error.
        if !matches!(waited, Err(DeviceError { kind: ErrorKind::NotPermittedInCapture, .. })) {
            result = result.and(waited.map_err(Error::from));
        }
        while detached != NONE {
            let mut heap = self.device.heaps.lock(slot);
            // `chain` links the detached blocks; read before the block returns to a set.
            let (block, next) = (detached, heap.blocks[detached].chain);
            detached = next;
            // Without the wait a kernel may still use the memory: keep the mapping.
            if waited.is_err() || self.device.driver.health().is_err() {
                heap.attach_range(block);
                continue;
            }
            drop(heap);
            result = result.and(self.unmap_detached(slot, block));
        }
        result
    }

    /// Unmaps the pages of a detached block, which become spare, and gives the addresses up. Pages of a tag with `clear` are
    /// filled with zeroes before.
    pub(in crate::arena) fn unmap_detached(&self, slot: u32, block: u32) -> Result<(), Error> {
        self.device.clear_detached(slot, block)?;
        self.give_up_detached(slot, block, |range| self.unmap_pages(slot, range))
    }

    /// Gives the addresses of a detached block up, whose pages `unmap` removes. Releases the addresses of the segment if
    /// no part of the segment is mapped any more. After an error of `unmap`, the addresses are lost.
    pub(in crate::arena) fn give_up_detached<E>(
        &self,
        slot: u32,
        block: u32,
        unmap: impl FnOnce(AddressRange) -> Result<(), E>,
    ) -> Result<(), E> {
        let counters = &self.device.heaps.slot(slot).counters;
        let range = {
            let mut heap = self.device.heaps.lock(slot);
            let BlockEntry { addr, size, segment, .. } = heap.blocks[block];
            self.device.trace(|recorder| recorder.release(&mut heap, Action::SegmentUnmap, DevicePtr(addr), size));
            AddressRange { at: DevicePtr(addr), bytes: size, granule: heap.segments[segment].granule }
        };
        self.device.pages.remove(range.at, range.bytes);
        self.device.peaks.device.count(Occurrence::DeviceFree);
        let unmapped = unmap(range);
        let mut heap = self.device.heaps.lock(slot);
        if unmapped.is_err() {
            heap.lose(block, counters);
            return unmapped;
        }
        let emptied = heap.finish_unmap(block, counters);
        drop(heap);
        self.unreserve(emptied);
        unmapped
    }

    /// Detaches the lowest run of free and unmapped blocks that can hold the request. Reserves a
    /// new range of addresses if no run is large enough. Returns `None` without enough addresses.
    fn detach_run(&self, request: &Request) -> Result<Option<Run>, Error> {
        let wanted = || {
            let (bytes, granule) = self.range_to_reserve(request.kind)?;
            // Without this test a too short range would be reserved again and again.
            let fits = bytes >= request.size;
            Ok(fits.then_some(AddressRequest { bytes, least: request.size.next_multiple_of(granule), granule }))
        };
        let detach = |heap: &mut Heap<P::Storage>| {
            let first = heap.find_run(request.size)?;
            Some(heap.detach_run(first, request.size))
        };
        self.hold_addresses(request.slot, Backing::Expandable, wanted, detach)
    }

    /// Returns whether addresses for a request exist, in a run of the heap or in a range that
    /// [`expand`](Self::expand) would reserve.
    pub(crate) fn has_addresses(&self, request: &Request) -> Result<bool, Error> {
        let in_a_run = self.device.heaps.lock(request.slot).find_run(request.size).is_some();
        Ok(in_a_run || self.range_to_reserve(request.kind)?.0 >= request.size)
    }

    /// Returns the length of a new range of addresses and the length of its granules, in bytes.
    pub(in crate::arena) fn range_to_reserve(&self, kind: PoolKind) -> Result<(u64, u64), Error> {
        let total = self.device.ledger.memory_info(&self.device.driver)?.total;
        let largest = total + total / RESERVE_EXTRA;
        let reserve = self.device.settings.config.lock().expandable_segments_reserve();
        let wanted = reserve.map_or(largest, |reserve| reserve.bytes(total).min(largest));
        let granule = self.granule(kind);
        Ok((wanted.max(granule).next_multiple_of(granule), granule))
    }

    /// Returns the length of the granules of a new range of addresses, in bytes.
    pub(in crate::arena) fn granule(&self, kind: PoolKind) -> u64 {
        // A granule is as long as an ordinary shared segment of the same kind, rounded to the device's
        // granularity.
        let segment = match kind {
            PoolKind::Small => SMALL_SEGMENT,
            PoolKind::Large => self.device.settings.config.lock().large_segment_size(),
        };
        segment.next_multiple_of(self.memory.granularity())
    }
}
