//! Expandable segments against the device: mapping more, and unmapping what is free.
//!
//! Physical memory is created, mapped and its handle dropped at once, one granule at a time: the mapping keeps the memory
//! alive, so nothing has to be remembered but what is mapped. Every step is undone if a later one fails.

use crate::arena::{Arena, Request};
use crate::block::State;
use crate::device::{DeviceMemory, DeviceResult, ErrorKind, VirtualMemory};
use crate::directory::Directory;
use crate::error::Error;
use crate::heap::Heap;
use crate::heap::expandable::{Range, Run};
use crate::rounding::{PoolKind, SMALL_SEGMENT};
use crate::slab::NONE;
use crate::stats::Event;
use crate::storage::Storage;
use crate::sync::Lock;
use crate::sync::Ordering;
use crate::trace::Action;
use crate::units::DevicePtr;

/// By what part of the device's memory its reservation is larger, so that one segment can always hold all of it
/// (`ExpandableSegment`, `PyTorch` 2.1–2.15: 9/8 in all).
const RESERVE_EXTRA: u64 = 8;

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Maps as much as the request needs behind or between what is mapped, and serves it. `None` if the device has not got it.
    pub(crate) fn expand(&self, directory: &Directory<R, S>, request: &Request) -> Result<Option<DevicePtr>, Error> {
        let Some(memory) = self.memory.virtual_memory() else { return Ok(None) };
        let Some(run) = self.hold_run(memory, request)? else { return Ok(None) };
        let mapped = self.map_run(directory, memory, request.slot, run);
        if !matches!(mapped, Ok(true)) {
            self.unmap_run(directory, memory, request.slot, run);
            return mapped.map(|_| None);
        }
        let slot = self.slot(request.slot);
        let mut heap = self.lock(request.slot);
        if heap.make_room().is_err() {
            drop(heap);
            self.unmap_run(directory, memory, request.slot, run);
            return Err(Error::TableFull("blocks"));
        }
        let joined = heap.join_run(run, &slot.tally);
        let (block, parts) = joined.value;
        for _ in 0..parts {
            self.totals.count(Event::DeviceAlloc);
        }
        let mut served = heap.hand_out(block, request.size, request.bytes, &slot.tally);
        self.trace_alloc(request, served.value);
        drop(heap);
        served.unsettled |= joined.unsettled;
        Ok(Some(self.settle(slot, served)))
    }

    /// Holds the lowest run that can become large enough; reserves a new range of addresses if there is none.
    fn hold_run(&self, memory: &dyn VirtualMemory, request: &Request) -> Result<Option<Run>, Error> {
        let mut reserved = None;
        loop {
            let mut heap = self.lock(request.slot);
            heap.make_room()?;
            if !heap.make_room_for_range() {
                return Err(Error::TableFull("segments"));
            }
            if let Some((base, bytes, granule)) = reserved.take() {
                heap.add_range(base, bytes, granule);
            }
            if let Some(first) = heap.find_run(request.size) {
                return Ok(Some(heap.hold_run(first, request.size)));
            }
            drop(heap);
            let granule = self.granule(memory, request.kind);
            let total = self.call(self.memory.memory_info())?.total;
            let largest = total + total / RESERVE_EXTRA;
            let wanted =
                self.config.lock().expandable_segments_reserve().map_or(largest, |r| r.bytes(total).min(largest));
            let bytes = wanted.max(granule).next_multiple_of(granule);
            if bytes < request.size {
                return Ok(None);
            }
            match self.call(memory.reserve(bytes)) {
                Ok(base) => reserved = Some((base, bytes, granule)),
                Err(error) if error.kind == ErrorKind::OutOfMemory => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Bytes mapped at a time: the size of an ordinary shared segment of the same kind.
    fn granule(&self, memory: &dyn VirtualMemory, kind: PoolKind) -> u64 {
        let bytes = match kind {
            PoolKind::Small => SMALL_SEGMENT,
            PoolKind::Large => self.config.lock().large_segment_size(),
        };
        bytes.next_multiple_of(memory.granularity())
    }

    /// Maps every part of a held run that is not mapped. False if the device or the limit does not allow it; what was mapped
    /// is marked so.
    fn map_run(
        &self,
        directory: &Directory<R, S>,
        memory: &dyn VirtualMemory,
        slot: u32,
        run: Run,
    ) -> Result<bool, Error> {
        loop {
            let Some((block, range)) = self.lock(slot).part_of_run(run, State::Mapping) else { return Ok(true) };
            if !self.hold(range.bytes) {
                return Ok(false);
            }
            let entered = directory.insert(range.at, range.bytes, self.place(slot));
            let result = entered.and_then(|()| {
                self.call(map(memory, range)).map_err(|error| {
                    directory.remove(range.at, range.bytes);
                    Error::from(error)
                })
            });
            match result {
                Ok(()) => self.lock(slot).blocks[block].state = State::Mapped,
                Err(error) => {
                    self.reserved.fetch_sub(range.bytes, Ordering::Relaxed);
                    let out_of_memory = matches!(error, Error::Device(e) if e.kind == ErrorKind::OutOfMemory);
                    return if out_of_memory { Ok(false) } else { Err(error) };
                }
            }
            let heap = self.lock(slot);
            self.trace_segment(Action::SegmentMap, heap.stream, range.at, range.bytes);
        }
    }

    /// Undoes [`map_run`](Self::map_run), and gives the run up. Nothing in it was ever handed out, so nothing uses it.
    fn unmap_run(&self, directory: &Directory<R, S>, memory: &dyn VirtualMemory, slot: u32, run: Run) {
        loop {
            let Some((block, range)) = self.lock(slot).part_of_run(run, State::Mapped) else { break };
            directory.remove(range.at, range.bytes);
            let state = if self.call(unmap(memory, range)).is_ok() {
                self.reserved.fetch_sub(range.bytes, Ordering::Relaxed);
                State::Mapping
            } else {
                self.leaked.fetch_add(range.bytes, Ordering::Relaxed);
                State::Lost
            };
            self.lock(slot).blocks[block].state = state;
        }
        self.lock(slot).put_back_run(run);
    }

    /// Unmaps the whole granules of every free expandable block of a heap: those of the blocks free now, in the order of the index.
    pub(crate) fn unmap_cached(&self, directory: &Directory<R, S>, slot: u32) -> Result<(), Error> {
        let Some(memory) = self.memory.virtual_memory() else { return Ok(()) };
        let Some((stream, mut held)) = self.hold_unmappable(slot)? else { return Ok(()) };
        let mut result = self.health().and_then(|()| self.call(self.memory.synchronize(stream))).map_err(Error::from);
        while held != NONE {
            let mut heap = self.lock(slot);
            let (block, next) = (held, heap.blocks[held].chain);
            held = next;
            if result.is_err() {
                heap.put_back_range(block);
                continue;
            }
            let entry = &heap.blocks[block];
            let granule = heap.segments[entry.segment].granule;
            let range = Range { at: DevicePtr(entry.addr), bytes: entry.size, granule };
            self.trace_segment(Action::SegmentUnmap, stream, range.at, range.bytes);
            drop(heap);
            result = self.unmap_held(directory, memory, slot, block, range);
        }
        result
    }

    /// Takes what can be unmapped of a heap out of its index, as a list through the blocks.
    fn hold_unmappable(&self, slot: u32) -> Result<Option<(crate::units::StreamId, u32)>, Error> {
        let mut heap = self.lock(slot);
        let (mut first, mut last, mut cursor) = (NONE, NONE, (0, 0));
        while let Some((block, range)) = next_unmappable(&heap, cursor) {
            cursor = (heap.blocks[block].size, heap.blocks[block].addr);
            if heap.make_room().is_err() || !heap.make_room_for_range() {
                return Err(Error::TableFull("blocks"));
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
        Ok((first != NONE).then_some((heap.stream, first)))
    }

    /// Unmaps a held range, and gives its segment back if nothing in it is mapped any longer.
    fn unmap_held(
        &self,
        directory: &Directory<R, S>,
        memory: &dyn VirtualMemory,
        slot: u32,
        block: u32,
        range: Range,
    ) -> Result<(), Error> {
        let tally = &self.slot(slot).tally;
        directory.remove(range.at, range.bytes);
        self.totals.count(Event::DeviceFree);
        if let Err(error) = self.call(unmap(memory, range)) {
            let bytes = self.lock(slot).lose(block, tally);
            self.leaked.fetch_add(bytes, Ordering::Relaxed);
            return Err(error.into());
        }
        self.reserved.fetch_sub(range.bytes, Ordering::Relaxed);
        let finished = self.lock(slot).finish_unmap(block, tally);
        if let Some((base, bytes)) = finished {
            self.call(memory.unreserve(base, bytes))?;
        }
        Ok(())
    }
}

/// The first free block behind `cursor` that holds whole granules of an expandable segment, and those.
pub(crate) fn next_unmappable<S: Storage>(heap: &Heap<S>, cursor: (u64, u64)) -> Option<(u32, Range)> {
    let mut at = heap.free.after(cursor, heap.blocks.entries());
    while let Some(block) = at {
        if heap.blocks[block].expandable
            && let Some(range) = heap.whole_granules(block)
        {
            return Some((block, range));
        }
        at = heap.free.next(block, heap.blocks.entries());
    }
    None
}

fn granules(range: Range) -> impl DoubleEndedIterator<Item = DevicePtr> {
    (0..range.bytes / range.granule).map(move |i| range.at.offset(i * range.granule))
}

/// Maps new memory at every granule of `range`. Nothing stays behind if that fails, as far as the device can undo it.
fn map(memory: &dyn VirtualMemory, range: Range) -> DeviceResult<()> {
    let mut mapped = 0;
    let mut result = Ok(());
    for at in granules(range) {
        result = map_granule(memory, at, range.granule);
        if result.is_err() {
            break;
        }
        mapped += range.granule;
    }
    let result = result.and_then(|()| memory.set_access(range.at, range.bytes));
    if result.is_err() {
        for at in granules(Range { bytes: mapped, ..range }).rev() {
            memory.unmap(at, range.granule)?;
        }
    }
    result
}

fn map_granule(memory: &dyn VirtualMemory, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
    let handle = memory.create(bytes)?;
    let mapped = memory.map(at, bytes, handle);
    // The mapping, if there is one, keeps the memory; without one this gives it back.
    let dropped = memory.destroy(handle);
    if mapped.is_ok() && dropped.is_err() {
        memory.unmap(at, bytes)?;
    }
    mapped.and(dropped)
}

fn unmap(memory: &dyn VirtualMemory, range: Range) -> DeviceResult<()> {
    granules(range).try_for_each(|at| memory.unmap(at, range.granule))
}
