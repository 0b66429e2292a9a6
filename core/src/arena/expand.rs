//! Growth and release of expandable segments: maps more physical memory, and unmaps free granules.
//!
//! Physical memory is created and mapped one granule at a time. The handle of a granule is
//! destroyed right after the mapping: the mapping keeps the memory alive, so the only state to
//! remember is which blocks are mapped. Every step is undone if a later step fails.
//!
//! The device is never called under a heap's lock. The blocks of a run or range are first
//! *detached* from every set of the heap, so no other call can touch the blocks while the lock is
//! dropped.

use crate::arena::request::Request;
use crate::arena::{Arena, OnDevice};
use crate::config::rounding::{PoolKind, SMALL_SEGMENT};
use crate::device::{DeviceError, DeviceMemory, ErrorKind, VirtualMemory};
use crate::error::Error;
use crate::heap::Heap;
use crate::heap::block::State;
use crate::heap::expandable::{Range, Run};
use crate::page_map::Owner;
use crate::stats::Event;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::tables::slot_table::NONE;
use crate::trace::Action;
use crate::units::{DevicePtr, StreamId};

/// Divisor for the excess of a reserved address range over the device's memory. With 1/8 more
/// addresses than memory, one segment can always hold all memory in spite of gaps
/// (`ExpandableSegment`, `PyTorch` 2.1–2.15: 9/8 in all).
const RESERVE_EXTRA: u64 = 8;

/// The expandable segments of one device: the operations that need its virtual memory.
pub(crate) struct Expandable<'a, D, R: Lock, S: Storage> {
    pub(super) device: OnDevice<'a, D, R, S>,
    pub(super) memory: &'a dyn VirtualMemory,
}

impl<'a, D: DeviceMemory, R: Lock, S: Storage> OnDevice<'a, D, R, S> {
    /// Returns the operations on expandable segments, if the device has virtual memory.
    pub(crate) fn expandable(self) -> Option<Expandable<'a, D, R, S>> {
        Some(Expandable { device: self, memory: self.arena.driver.device().virtual_memory()? })
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Expandable<'_, D, R, S> {
    /// Maps as much memory as the request needs, in gaps of the mapped blocks or behind them, and
    /// serves the request. Returns `None` if the device lacks the memory or the addresses.
    pub(crate) fn expand(&self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        let Some(run) = self.detach_run(request)? else { return Ok(None) };
        let mapped = self.map_run(request, run);
        if !matches!(mapped, Ok(true)) {
            self.unmap_run(request.slot, run);
            return mapped.map(|_| None);
        }
        let slot = self.device.heaps.slot(request.slot);
        let mut heap = self.device.heaps.lock(request.slot);
        // Serving may split the joined block. Other calls may have used the room since the run was
        // detached, so room is made again before the run can no longer be undone.
        if heap.make_room().is_err() {
            drop(heap);
            self.unmap_run(request.slot, run);
            return Err(Error::TableFull("blocks"));
        }
        let joined = heap.join_run(run, &slot.counters);
        let (block, parts) = joined.value;
        // Each newly mapped part counts as one allocation of the device.
        for _ in 0..parts {
            self.device.device_peaks.count(Event::DeviceAlloc);
        }
        // Served under the lock that joined the run: no other request can take the block first.
        let mut served = heap.allocate_from(block, request.size, request.bytes, &slot.counters);
        if let Some(recorder) = self.device.tracing() {
            recorder.alloc(&mut heap, request.site, served.value, request.bytes);
        }
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
            self.device.health()?;
            // Listed before the mapping: a full page map is cheaper to undo than a mapping.
            self.device.pages.insert(range.at, range.bytes, Owner::Heap(self.device.heaps.heap_ref(slot)))?;
            if let Err(failure) = map(self.memory, range) {
                self.device.pages.remove(range.at, range.bytes);
                // The device may still hold bytes that the undo did not release: count the bytes as
                // held and leaked, and never use the addresses again.
                if failure.in_doubt > 0 {
                    self.device.ledger.add(failure.in_doubt);
                    self.device.ledger.leak(failure.in_doubt);
                    self.device.heaps.lock(slot).blocks[block].state = State::Lost;
                }
                let Err(error) = self.device.note_loss::<()>(Err(failure.error)) else { return Ok(false) };
                return if error.kind == ErrorKind::OutOfMemory { Ok(false) } else { Err(error.into()) };
            }
            self.device.ledger.add(range.bytes);
            let mut heap = self.device.heaps.lock(slot);
            heap.blocks[block].state = State::Mapped;
            if let Some(recorder) = self.device.tracing() {
                recorder.segment(&mut heap, Action::SegmentMap, request.site, range.at, range.bytes);
            }
        }
    }

    /// Undoes [`map_run`](Self::map_run), and returns the run's blocks to the heap's sets. No block
    /// of the run was ever handed out, so no stream uses the memory and no wait is needed.
    fn unmap_run(&self, slot: u32, run: Run) {
        loop {
            let Some((block, range)) = self.device.heaps.lock(slot).part_of_run(run, State::Mapped) else { break };
            self.device.pages.remove(range.at, range.bytes);
            let unmapped = self.unmap_counted(range);
            let mut heap = self.device.heaps.lock(slot);
            // A range in doubt is lost: its addresses are never mapped again.
            heap.blocks[block].state = if unmapped.is_ok() { State::Mapping } else { State::Lost };
            if let Some(recorder) = self.device.tracing() {
                recorder.release(&mut heap, Action::SegmentUnmap, range.at, range.bytes);
            }
        }
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
        // All blocks are detached first, so one synchronization of the stream serves all of them.
        let (stream, mut detached, mut result) = self.detach_unmappable(slot);
        if detached == NONE {
            return result;
        }
        let waited = self.device.call(|device| device.synchronize(stream));
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
            if waited.is_err() || self.device.health().is_err() {
                heap.attach_range(block);
                continue;
            }
            let entry = &heap.blocks[block];
            let granule = heap.segments[entry.segment].granule;
            let range = Range { at: DevicePtr(entry.addr), bytes: entry.size, granule };
            if let Some(recorder) = self.device.tracing() {
                recorder.release(&mut heap, Action::SegmentUnmap, range.at, range.bytes);
            }
            drop(heap);
            result = result.and(self.unmap_detached(slot, block, range));
        }
        result
    }

    /// Unmaps a detached range, and releases the addresses of the segment if no part of the segment
    /// is mapped any more.
    fn unmap_detached(&self, slot: u32, block: u32, range: Range) -> Result<(), Error> {
        let counters = &self.device.heaps.slot(slot).counters;
        self.device.pages.remove(range.at, range.bytes);
        self.device.device_peaks.count(Event::DeviceFree);
        if let Err(error) = self.unmap_counted(range) {
            self.device.heaps.lock(slot).lose(block, counters);
            return Err(error);
        }
        let emptied = self.device.heaps.lock(slot).finish_unmap(block, counters);
        self.unreserve(emptied);
        Ok(())
    }

    /// Detaches the lowest run of free and unmapped blocks that can hold the request. Reserves a
    /// new range of addresses if no run is large enough. Returns `None` without enough addresses.
    fn detach_run(&self, request: &Request) -> Result<Option<Run>, Error> {
        let mut reserved = None;
        // At most two passes in the common case: search, reserve without the lock, search again.
        loop {
            let mut heap = self.device.heaps.lock(request.slot);
            if heap.make_room().is_err() || !heap.make_room_for_range() {
                drop(heap);
                self.unreserve(reserved.map(|(base, bytes, _)| (base, bytes)));
                return Err(Error::TableFull("blocks"));
            }
            // Another thread may have added a range while the lock was dropped. If the other range
            // suffices for both threads, the range reserved here is not needed.
            let mut first = heap.find_run(request.size);
            if first.is_none()
                && let Some((base, bytes, granule)) = reserved.take()
            {
                heap.add_range(base, bytes, granule);
                first = heap.find_run(request.size);
            }
            if let Some(first) = first {
                let run = heap.detach_run(first, request.size);
                drop(heap);
                // Still `Some` only if the reserved range was not needed.
                self.unreserve(reserved.map(|(base, bytes, _)| (base, bytes)));
                return Ok(Some(run));
            }
            drop(heap);
            let (bytes, granule) = range_to_reserve(&self.device, self.memory, request.kind)?;
            // Without this test a too short range would be reserved again and again.
            if bytes < request.size {
                return Ok(None);
            }
            match self.device.call(|_| self.memory.reserve(bytes)) {
                Ok(base) => reserved = Some((base, bytes, granule)),
                Err(error) if error.kind == ErrorKind::OutOfMemory => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Releases the addresses of a segment without mapped parts. If the device refuses, the
    /// addresses are never used again; no memory is lost.
    pub(super) fn unreserve(&self, segment: Option<(DevicePtr, u64)>) {
        if let Some((base, bytes)) = segment
            && self.device.health().is_ok()
        {
            let _addresses_lost = self.device.call(|_| self.memory.unreserve(base, bytes));
        }
    }

    /// Unmaps a range, refunds the bytes that were unmapped, and counts the bytes in doubt as
    /// leaked.
    fn unmap_counted(&self, range: Range) -> Result<(), Error> {
        let unmapped = self.device.health().map_err(with_doubt(range.bytes)).and_then(|()| unmap(self.memory, range));
        let (result, in_doubt) = match unmapped {
            Ok(()) => (Ok(()), 0),
            Err(Failure { error, in_doubt }) => (Err(error), in_doubt),
        };
        // No underflow: `unmap` puts each granule of the range in doubt at most once.
        self.device.ledger.refund(range.bytes - in_doubt);
        self.device.ledger.leak(in_doubt);
        Ok(self.device.note_loss(result)?)
    }

    /// Detaches the unmappable ranges of the heap in `slot`. Returns the heap's stream, the first
    /// block of a list linked by [`Block::chain`](crate::heap::block::Block::chain), and an error
    /// if blocks were skipped because a table is full.
    fn detach_unmappable(&self, slot: u32) -> (StreamId, u32, Result<(), Error>) {
        let mut heap = self.device.heaps.lock(slot);
        let (mut first, mut last, mut cursor) = (NONE, NONE, (0, 0));
        let mut result = Ok(());
        while let Some((block, range)) = next_unmappable(&mut heap, cursor) {
            // Read before the block is cut: the cursor must move past the whole block.
            cursor = (heap.blocks[block].size, heap.blocks[block].addr);
            let whole = range.bytes == heap.blocks[block].size;
            // A block with parts of granules at its ends is cut, which takes entries of the table.
            if !whole && heap.make_room().is_err() || !heap.make_room_for_range() {
                result = Err(Error::TableFull("blocks"));
                continue;
            }
            let detached = heap.detach_range(block, range);
            // A detached block is in no index, so `chain` is free to link the list.
            heap.blocks[detached].chain = NONE;
            if last == NONE {
                first = detached;
            } else {
                heap.blocks[last].chain = detached;
            }
            last = detached;
        }
        (heap.stream, first, result)
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Returns whether addresses for a request exist, in a run of the heap or in a range that
    /// [`expand`](Expandable::expand) would reserve.
    pub(crate) fn has_addresses(&self, request: &Request) -> Result<bool, Error> {
        let Some(memory) = self.driver.device().virtual_memory() else { return Ok(false) };
        let in_a_run = self.heaps.lock(request.slot).find_run(request.size).is_some();
        Ok(in_a_run || range_to_reserve(self, memory, request.kind)?.0 >= request.size)
    }
}

/// Returns the length of a new range of addresses and the length of its granules, in bytes.
pub(super) fn range_to_reserve<D: DeviceMemory, R: Lock, S: Storage>(
    arena: &Arena<D, R, S>,
    memory: &dyn VirtualMemory,
    kind: PoolKind,
) -> Result<(u64, u64), Error> {
    let total = arena.call(D::memory_info)?.total;
    let largest = total + total / RESERVE_EXTRA;
    let config = arena.settings.config.lock();
    let wanted = config.expandable_segments_reserve().map_or(largest, |reserve| reserve.bytes(total).min(largest));
    // A granule is as long as an ordinary shared segment of the same kind, rounded to the device's
    // granularity.
    let segment = match kind {
        PoolKind::Small => SMALL_SEGMENT,
        PoolKind::Large => config.large_segment_size(),
    };
    let granule = segment.next_multiple_of(memory.granularity());
    Ok((wanted.max(granule).next_multiple_of(granule), granule))
}

/// A failed change of mappings.
pub(super) struct Failure {
    /// Error to report.
    pub(super) error: DeviceError,
    /// Number of bytes whose former state could not be restored: the device may or may not hold
    /// the bytes.
    pub(super) in_doubt: u64,
}

impl Failure {
    /// Runs `attempt` to undo the steps before a failure, which concern `bytes` of memory, and
    /// returns the failure that results. Makes no attempt if the context is lost.
    fn undo(self, bytes: u64, attempt: impl FnOnce() -> Result<(), Self>) -> Self {
        let lost = Self { error: self.error, in_doubt: bytes };
        match if is_usable(self.error) { attempt() } else { Err(lost) } {
            Ok(()) => self,
            Err(Self { error, in_doubt }) => {
                // The first error is the cause, and is reported unless the undo lost the context.
                let error = if is_usable(error) { self.error } else { error };
                Self { error, in_doubt: self.in_doubt + in_doubt }
            }
        }
    }
}

/// Returns a conversion from an error to a failure with `in_doubt` bytes in doubt.
fn with_doubt(in_doubt: u64) -> impl Fn(DeviceError) -> Failure {
    move |error| Failure { error, in_doubt }
}

/// Returns whether the device may be called after `error`.
fn is_usable(error: DeviceError) -> bool {
    error.kind != ErrorKind::ContextLost
}

/// Returns the first free block behind `cursor` with whole granules of an expandable segment, and
/// the range of the granules. A heap of a private pool in use has no such block.
pub(crate) fn next_unmappable<S: Storage>(heap: &mut Heap<S>, cursor: (u64, u64)) -> Option<(u32, Range)> {
    // An empty heap may have no tables, and `heap.sets` panics without tables.
    if heap.retained || heap.is_empty() {
        return None;
    }
    let mut at = heap.sets.free.after(cursor, heap.blocks.entries());
    while let Some(block) = at {
        if heap.blocks[block].expandable
            && let Some(range) = heap.whole_granules(block)
        {
            return Some((block, range));
        }
        at = heap.sets.free.next(block, heap.blocks.entries());
    }
    None
}

/// Iterates over the addresses of the granules of `range`, ascending.
fn granules(range: Range) -> impl DoubleEndedIterator<Item = DevicePtr> {
    (0..range.bytes / range.granule).map(move |i| range.at.offset(i * range.granule))
}

/// Maps new memory at every granule of `range`. Unmaps the mapped granules if a later granule
/// fails, unless the device cannot undo the mapping.
pub(super) fn map(memory: &dyn VirtualMemory, range: Range) -> Result<(), Failure> {
    let mut mapped = 0;
    let mut result = Ok(());
    for at in granules(range) {
        result = map_granule(memory, at, range.granule);
        if result.is_err() {
            break;
        }
        mapped += range.granule;
    }
    // Access is set once for the whole range: one call to the device instead of one a granule.
    let accessible = || memory.set_access(range.at, range.bytes).map_err(with_doubt(0));
    let mapped = Range { bytes: mapped, ..range };
    result.and_then(|()| accessible()).map_err(|failure| failure.undo(mapped.bytes, || unmap(memory, mapped)))
}

/// Creates, maps and destroys the handle of one granule of physical memory.
fn map_granule(memory: &dyn VirtualMemory, at: DevicePtr, bytes: u64) -> Result<(), Failure> {
    let handle = memory.create(bytes).map_err(with_doubt(0))?;
    let drop_handle = || memory.destroy(handle).map_err(with_doubt(bytes));
    memory.map(at, bytes, handle).map_err(with_doubt(0)).map_err(|failure| failure.undo(bytes, drop_handle))?;
    // The mapping keeps the memory alive. A handle in doubt would keep the memory alive after the
    // unmapping as well, so the bytes stay in doubt even if the unmapping succeeds.
    let unmapped = || memory.unmap(at, bytes).map_err(with_doubt(0));
    drop_handle().map_err(|failure| failure.undo(0, unmapped))
}

/// Unmaps every granule of `range` that the device can unmap.
///
/// # Errors
///
/// The first error that lost the context, or else the first error.
fn unmap(memory: &dyn VirtualMemory, range: Range) -> Result<(), Failure> {
    let (mut first, mut in_doubt) = (None, 0);
    for at in granules(range) {
        // After a lost context the device is not called: each further granule is in doubt.
        let result =
            if first.is_none_or(is_usable) { memory.unmap(at, range.granule) } else { first.map_or(Ok(()), Err) };
        if let Err(error) = result {
            // An error that lost the context replaces an earlier error that did not.
            first = first.filter(|_| is_usable(error)).or(Some(error));
            in_doubt += range.granule;
        }
    }
    first.map_or(Ok(()), |error| Err(Failure { error, in_doubt }))
}
