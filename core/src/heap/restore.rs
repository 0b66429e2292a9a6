//! Blocks that are restored from a snapshot: a segment gets the given blocks, without a search and
//! without the rules for splitting.

use super::Heap;
use crate::heap::addresses::cut_out;
use crate::heap::block::{Backing, BlockEntry, State};
use crate::snapshot::{BlockState, SnapshotBlock};
use crate::stats::{HeapCounters, Stat};
use crate::tables::slot_table::NONE;
use crate::tables::{CapacityError, Lazy, Storage};
use crate::units::DevicePtr;

/// A heap into which segments are restored.
pub(crate) struct Restoring<'a, S: Storage> {
    pub heap: &'a mut Heap<S>,
    pub counters: &'a HeapCounters,
}

impl<S: Storage> Restoring<'_, S> {
    /// Makes room for a segment or a mapped part with `count` blocks, and for the unmapped blocks
    /// before and after the part.
    pub(crate) fn make_room_for_blocks(&mut self, count: usize) -> Result<(), CapacityError> {
        let count = u32::try_from(count).ok().and_then(|count| count.checked_add(2)).ok_or(CapacityError)?;
        let sets = self.heap.sets.get_or_make();
        let room = self.heap.blocks.make_room(count)
            && sets.free.make_room_for(self.heap.blocks.capacity())
            && self.heap.live.make_room(self.heap.blocks.entries_mut())
            && self.heap.make_room_for_range();
        if room { Ok(()) } else { Err(CapacityError) }
    }

    /// Adds an ordinary segment with the given blocks, which must tile it. Returns true if the
    /// peaks must be reconciled. The caller has made room.
    pub(crate) fn restore_segment(&mut self, base: DevicePtr, bytes: u64, blocks: &[SnapshotBlock]) -> bool {
        let block = self.heap.new_segment(base, bytes, 0, Backing::Ordinary);
        let mut peaks_stale = self.counters.up(Stat::Segment, 1) | self.counters.up(Stat::ReservedBytes, bytes);
        if self.heap.rules.is_oversize(bytes) {
            peaks_stale |= self.counters.up(Stat::OversizeSegments, 1);
        }
        peaks_stale | self.divide(block, blocks)
    }

    /// Adds the given blocks, which must tile the detached block `part` of an expandable segment.
    /// The device has mapped the part. Returns true if the peaks must be reconciled.
    pub(crate) fn restore_part(&mut self, part: u32, blocks: &[SnapshotBlock]) -> bool {
        let bytes = self.heap.blocks[part].size;
        self.counters.up(Stat::ReservedBytes, bytes) | self.divide(part, blocks)
    }

    /// Allocates the `size` bytes from `ptr` on, for a request of `requested` bytes. The free
    /// memory before and after remains free. Returns whether the peaks must be reconciled, or
    /// `None` if the bytes are not all in one free block. The caller has made room for two blocks.
    pub(crate) fn allocate_at(&mut self, ptr: DevicePtr, size: u64, requested: u64) -> Option<bool> {
        let mut block = self.heap.containing(ptr)?;
        let BlockEntry { addr, size: whole, state, backing, .. } = self.heap.blocks[block];
        let before = ptr.0 - addr;
        // Pages of the stitched policy move, so a block there has no address to which it could
        // return.
        let moves = backing == Backing::Pages && !self.heap.fills_gaps(backing);
        if state != State::Free || moves || before.checked_add(size)? > whole {
            return None;
        }
        if backing == Backing::Ordinary && self.heap.blocks[block].is_split() {
            self.counters.down(Stat::InactiveSplit, 1);
            self.counters.down(Stat::InactiveSplitBytes, whole);
        }
        let Heap { blocks, segments, sets, .. } = &mut *self.heap;
        sets.detach(block, blocks);
        let front = (before > 0).then(|| blocks.cut(block, before, segments));
        let mut behind = None;
        if before + size < whole {
            behind = Some(block);
            block = blocks.cut(block, size, segments);
        }
        // Both cuts have been made, so what remains free now counts as part of a split segment.
        let mut peaks_stale = false;
        for free in front.into_iter().chain(behind) {
            peaks_stale |= self.restore_free(free);
        }
        self.heap.blocks[block].requested = requested;
        Some(peaks_stale | self.restore_allocated(block))
    }

    /// Divides the detached block `whole` into the given blocks, which must tile it.
    fn divide(&mut self, whole: u32, blocks: &[SnapshotBlock]) -> bool {
        let mut peaks_stale = false;
        for block in blocks {
            let is_last = block.size == self.heap.blocks[whole].size;
            let entry = if is_last { whole } else { self.heap.blocks.cut(whole, block.size, &mut self.heap.segments) };
            self.heap.blocks[entry].requested = block.requested_size;
            peaks_stale |= if block.state == BlockState::Inactive {
                self.restore_free(entry)
            } else {
                self.restore_allocated(entry)
            };
        }
        peaks_stale
    }

    /// Adds a detached block to the free index. Returns true if the peaks must be reconciled.
    fn restore_free(&mut self, block: u32) -> bool {
        self.heap.sets.insert_free(block, self.heap.clock, self.heap.blocks.entries_mut());
        let entry = &self.heap.blocks[block];
        if entry.backing != Backing::Ordinary || !entry.is_split() {
            return false;
        }
        self.counters.up(Stat::InactiveSplit, 1) | self.counters.up(Stat::InactiveSplitBytes, entry.size)
    }

    /// Adds a detached block to the allocated blocks. Returns true if the peaks must be reconciled.
    fn restore_allocated(&mut self, block: u32) -> bool {
        let entry = &mut self.heap.blocks[block];
        debug_assert!(entry.uses == NONE && entry.events == 0, "the block was never in use");
        entry.state = State::Allocated;
        let (size, requested) = (entry.size, entry.requested);
        self.heap.live.insert(block, self.heap.blocks.entries_mut());
        let mut peaks_stale = self.counters.up(Stat::Allocation, 1)
            | self.counters.up(Stat::AllocatedBytes, size)
            | self.counters.up(Stat::RequestedBytes, requested);
        if self.heap.rules.is_oversize(size) {
            peaks_stale |= self.counters.up(Stat::OversizeAllocations, 1);
        }
        peaks_stale
    }
}

impl<S: Storage> Heap<S> {
    /// Detaches a part of the unmapped block `block`, so that it can be mapped without the lock.
    /// Returns the detached block. The parts before and after remain unmapped. The caller has made
    /// room for two blocks.
    pub(crate) fn detach_part(&mut self, block: u32, at: DevicePtr, bytes: u64) -> u32 {
        let part = cut_out(self, block, at.0, at.0 + bytes).part;
        self.blocks[part].state = State::Mapping;
        part
    }
}
