//! Expandable segments against the device: mapping more, and unmapping what is free.
//!
//! Physical memory is created, mapped and its handle dropped at once, one granule at a time: the mapping keeps the memory
//! alive, so nothing has to be remembered but what is mapped. Every step is undone if a later one fails.

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

/// By what part of the device's memory its reservation is larger, so that one segment can always hold all of it
/// (`ExpandableSegment`, `PyTorch` 2.1–2.15: 9/8 in all).
const RESERVE_EXTRA: u64 = 8;

impl<D: DeviceMemory, R: Lock, S: Storage> OnDevice<'_, D, R, S> {
    /// Maps as much as the request needs behind or between what is mapped, and serves it. `None` if the device has not got it.
    pub(crate) fn expand(self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        let Some(memory) = self.driver.device().virtual_memory() else { return Ok(None) };
        let Some(run) = self.hold_run(memory, request)? else { return Ok(None) };
        let mapped = self.map_run(memory, request, run);
        if !matches!(mapped, Ok(true)) {
            self.unmap_run(memory, request.slot, run);
            return mapped.map(|_| None);
        }
        let slot = self.slot(request.slot);
        let mut heap = self.lock(request.slot);
        if heap.make_room().is_err() {
            drop(heap);
            self.unmap_run(memory, request.slot, run);
            return Err(Error::TableFull("blocks"));
        }
        let joined = heap.join_run(run, &slot.tally);
        let (block, parts) = joined.value;
        for _ in 0..parts {
            self.totals.count(Event::DeviceAlloc);
        }
        let mut served = heap.allocate_from(block, request.size, request.bytes, &slot.tally);
        self.trace_alloc(&mut heap, request, served.value);
        drop(heap);
        served.peaks_stale |= joined.peaks_stale;
        Ok(Some(self.settle(slot, served)))
    }

    /// Maps every part of a held run that is not mapped. False if the device has not got the memory; what was mapped is marked
    /// so.
    fn map_run(self, memory: &dyn VirtualMemory, request: &Request, run: Run) -> Result<bool, Error> {
        let slot = request.slot;
        loop {
            let Some((block, range)) = self.lock(slot).part_of_run(run, State::Mapping) else { return Ok(true) };
            self.health()?;
            self.pages.insert(range.at, range.bytes, Owner::Heap(self.heap_ref(slot)))?;
            if let Err(failure) = map(memory, range) {
                self.pages.remove(range.at, range.bytes);
                if failure.in_doubt > 0 {
                    self.ledger.add(failure.in_doubt);
                    self.ledger.leak(failure.in_doubt);
                    self.lock(slot).blocks[block].state = State::Lost;
                }
                let Err(error) = self.note_loss::<()>(Err(failure.error)) else { return Ok(false) };
                return if error.kind == ErrorKind::OutOfMemory { Ok(false) } else { Err(error.into()) };
            }
            self.ledger.add(range.bytes);
            let mut heap = self.lock(slot);
            heap.blocks[block].state = State::Mapped;
            self.trace_segment(&mut heap, Action::SegmentMap, request.site, range.at, range.bytes);
        }
    }

    /// Undoes [`map_run`](Self::map_run), and gives the run up. Nothing in it was ever handed out, so nothing uses it.
    fn unmap_run(self, memory: &dyn VirtualMemory, slot: u32, run: Run) {
        loop {
            let Some((block, range)) = self.lock(slot).part_of_run(run, State::Mapped) else { break };
            self.pages.remove(range.at, range.bytes);
            let unmapped = self.unmap_counted(memory, range);
            let mut heap = self.lock(slot);
            heap.blocks[block].state = if unmapped.is_ok() { State::Mapping } else { State::Lost };
            self.trace_release(&mut heap, Action::SegmentUnmap, range.at, range.bytes);
        }
        let emptied = self.lock(slot).put_back_run(run);
        self.unreserve(memory, emptied);
    }

    /// Unmaps the whole granules of every free expandable block of a heap: those of the blocks free now, in the order of the index.
    pub(crate) fn unmap_cached(self, slot: u32) -> Result<(), Error> {
        let Some(memory) = self.driver.device().virtual_memory() else { return Ok(()) };
        let (stream, mut held, mut result) = self.hold_unmappable(slot);
        if held == NONE {
            return result;
        }
        let waited = self.call(|device| device.synchronize(stream));
        // Nothing can wait for a stream that captures a graph: what is free of it stays mapped.
        if !matches!(waited, Err(DeviceError { kind: ErrorKind::NotPermittedInCapture, .. })) {
            result = result.and(waited.map_err(Error::from));
        }
        while held != NONE {
            let mut heap = self.lock(slot);
            let (block, next) = (held, heap.blocks[held].chain);
            held = next;
            if waited.is_err() || self.health().is_err() {
                heap.put_back_range(block);
                continue;
            }
            let entry = &heap.blocks[block];
            let granule = heap.segments[entry.segment].granule;
            let range = Range { at: DevicePtr(entry.addr), bytes: entry.size, granule };
            self.trace_release(&mut heap, Action::SegmentUnmap, range.at, range.bytes);
            drop(heap);
            result = result.and(self.unmap_held(memory, slot, block, range));
        }
        result
    }

    /// Unmaps a held range, and gives its segment back if nothing in it is mapped any longer.
    fn unmap_held(self, memory: &dyn VirtualMemory, slot: u32, block: u32, range: Range) -> Result<(), Error> {
        let tally = &self.slot(slot).tally;
        self.pages.remove(range.at, range.bytes);
        self.totals.count(Event::DeviceFree);
        if let Err(error) = self.unmap_counted(memory, range) {
            self.lock(slot).lose(block, tally);
            return Err(error);
        }
        let emptied = self.lock(slot).finish_unmap(block, tally);
        self.unreserve(memory, emptied);
        Ok(())
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Holds the lowest run that can become large enough; reserves a new range of addresses if there is none.
    fn hold_run(&self, memory: &dyn VirtualMemory, request: &Request) -> Result<Option<Run>, Error> {
        let mut reserved = None;
        loop {
            let mut heap = self.lock(request.slot);
            if heap.make_room().is_err() || !heap.make_room_for_range() {
                drop(heap);
                self.unreserve(memory, reserved.map(|(base, bytes, _)| (base, bytes)));
                return Err(Error::TableFull("blocks"));
            }
            // Another thread may have added a range since, which is enough for both.
            let mut first = heap.find_run(request.size);
            if first.is_none()
                && let Some((base, bytes, granule)) = reserved.take()
            {
                heap.add_range(base, bytes, granule);
                first = heap.find_run(request.size);
            }
            if let Some(first) = first {
                let run = heap.hold_run(first, request.size);
                drop(heap);
                self.unreserve(memory, reserved.map(|(base, bytes, _)| (base, bytes)));
                return Ok(Some(run));
            }
            drop(heap);
            let (bytes, granule) = self.range_to_reserve(memory, request.kind)?;
            if bytes < request.size {
                return Ok(None);
            }
            match self.call(|_| memory.reserve(bytes)) {
                Ok(base) => reserved = Some((base, bytes, granule)),
                Err(error) if error.kind == ErrorKind::OutOfMemory => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether there are addresses for a request, or may be: in a run, or in a range that would be reserved.
    pub(crate) fn has_addresses(&self, request: &Request) -> Result<bool, Error> {
        let Some(memory) = self.driver.device().virtual_memory() else { return Ok(false) };
        let in_a_run = self.lock(request.slot).find_run(request.size).is_some();
        Ok(in_a_run || self.range_to_reserve(memory, request.kind)?.0 >= request.size)
    }

    /// The length of a new range of addresses, and of its granules.
    fn range_to_reserve(&self, memory: &dyn VirtualMemory, kind: PoolKind) -> Result<(u64, u64), Error> {
        let granule = self.granule(memory, kind);
        let total = self.call(D::memory_info)?.total;
        let largest = total + total / RESERVE_EXTRA;
        let wanted = self.config.lock().expandable_segments_reserve().map_or(largest, |r| r.bytes(total).min(largest));
        Ok((wanted.max(granule).next_multiple_of(granule), granule))
    }

    /// Bytes mapped at a time: the size of an ordinary shared segment of the same kind.
    fn granule(&self, memory: &dyn VirtualMemory, kind: PoolKind) -> u64 {
        let bytes = match kind {
            PoolKind::Small => SMALL_SEGMENT,
            PoolKind::Large => self.config.lock().large_segment_size(),
        };
        bytes.next_multiple_of(memory.granularity())
    }

    /// Gives the addresses of a segment back. If the device does not take them they are not used again; nothing else is lost.
    fn unreserve(&self, memory: &dyn VirtualMemory, segment: Option<(DevicePtr, u64)>) {
        if let Some((base, bytes)) = segment
            && self.health().is_ok()
        {
            let _addresses_lost = self.call(|_| memory.unreserve(base, bytes));
        }
    }

    /// Unmaps a range and counts what is held no longer, and what is in doubt.
    fn unmap_counted(&self, memory: &dyn VirtualMemory, range: Range) -> Result<(), Error> {
        let unmapped = self.health().map_err(with_doubt(range.bytes)).and_then(|()| unmap(memory, range));
        let (result, in_doubt) = match unmapped {
            Ok(()) => (Ok(()), 0),
            Err(Failure { error, in_doubt }) => (Err(error), in_doubt),
        };
        self.ledger.refund(range.bytes - in_doubt);
        self.ledger.leak(in_doubt);
        Ok(self.note_loss(result)?)
    }

    /// Takes what can be unmapped of a heap out of its index, as a list through the blocks. Blocks that would have to be cut
    /// stay where they are if there are no entries for their parts.
    fn hold_unmappable(&self, slot: u32) -> (StreamId, u32, Result<(), Error>) {
        let mut heap = self.lock(slot);
        let (mut first, mut last, mut cursor) = (NONE, NONE, (0, 0));
        let mut result = Ok(());
        while let Some((block, range)) = next_unmappable(&mut heap, cursor) {
            cursor = (heap.blocks[block].size, heap.blocks[block].addr);
            let whole = range.bytes == heap.blocks[block].size;
            if !whole && heap.make_room().is_err() || !heap.make_room_for_range() {
                result = Err(Error::TableFull("blocks"));
                continue;
            }
            let held = heap.hold_range(block, range);
            heap.blocks[held].chain = NONE;
            if last == NONE {
                first = held;
            } else {
                heap.blocks[last].chain = held;
            }
            last = held;
        }
        (heap.stream, first, result)
    }
}

/// A failed change of mappings.
struct Failure {
    error: DeviceError,
    /// Bytes that could not be brought back to what they were: the device may hold them or not.
    in_doubt: u64,
}

impl Failure {
    /// What a failure comes to after an attempt to undo what led to it, `bytes` of memory. None is made if the context is lost.
    fn undo(self, bytes: u64, attempt: impl FnOnce() -> Result<(), Self>) -> Self {
        let lost = Self { error: self.error, in_doubt: bytes };
        match if is_well(self.error) { attempt() } else { Err(lost) } {
            Ok(()) => self,
            Err(Self { error, in_doubt }) => {
                let error = if is_well(error) { self.error } else { error };
                Self { error, in_doubt: self.in_doubt + in_doubt }
            }
        }
    }
}

/// A failure with so many bytes in doubt.
fn with_doubt(in_doubt: u64) -> impl Fn(DeviceError) -> Failure {
    move |error| Failure { error, in_doubt }
}

/// Whether the device may be called after an error.
fn is_well(error: DeviceError) -> bool {
    error.kind != ErrorKind::ContextLost
}

/// The first free block behind `cursor` that holds whole granules of an expandable segment, and those.
pub(crate) fn next_unmappable<S: Storage>(heap: &mut Heap<S>, cursor: (u64, u64)) -> Option<(u32, Range)> {
    if heap.kept || heap.is_empty() {
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

fn granules(range: Range) -> impl DoubleEndedIterator<Item = DevicePtr> {
    (0..range.bytes / range.granule).map(move |i| range.at.offset(i * range.granule))
}

/// Maps new memory at every granule of `range`. Nothing stays behind if that fails, as far as the device can undo it.
fn map(memory: &dyn VirtualMemory, range: Range) -> Result<(), Failure> {
    let mut mapped = 0;
    let mut result = Ok(());
    for at in granules(range) {
        result = map_granule(memory, at, range.granule);
        if result.is_err() {
            break;
        }
        mapped += range.granule;
    }
    let accessible = || memory.set_access(range.at, range.bytes).map_err(with_doubt(0));
    let mapped = Range { bytes: mapped, ..range };
    result.and_then(|()| accessible()).map_err(|failure| failure.undo(mapped.bytes, || unmap(memory, mapped)))
}

fn map_granule(memory: &dyn VirtualMemory, at: DevicePtr, bytes: u64) -> Result<(), Failure> {
    let handle = memory.create(bytes).map_err(with_doubt(0))?;
    let drop_handle = || memory.destroy(handle).map_err(with_doubt(bytes));
    memory.map(at, bytes, handle).map_err(with_doubt(0)).map_err(|failure| failure.undo(bytes, drop_handle))?;
    // The mapping keeps the memory. With the handle in doubt it would stay when it is unmapped, so it is in doubt as well.
    let unmapped = || memory.unmap(at, bytes).map_err(with_doubt(0));
    drop_handle().map_err(|failure| failure.undo(0, unmapped))
}

/// Unmaps every granule of `range`, as far as that is possible; reports the first error.
fn unmap(memory: &dyn VirtualMemory, range: Range) -> Result<(), Failure> {
    let (mut first, mut in_doubt) = (None, 0);
    for at in granules(range) {
        let result =
            if first.is_none_or(is_well) { memory.unmap(at, range.granule) } else { first.map_or(Ok(()), Err) };
        if let Err(error) = result {
            // One that lost the context counts before one that did not.
            first = first.filter(|_| is_well(error)).or(Some(error));
            in_doubt += range.granule;
        }
    }
    first.map_or(Ok(()), |error| Err(Failure { error, in_doubt }))
}
