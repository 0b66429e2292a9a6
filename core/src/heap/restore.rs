//! Blocks restored from a snapshot: a segment receives given blocks, without a search and without
//! the split rules.

use super::Heap;
use crate::heap::block::State;
use crate::snapshot::{BlockState, SnapshotBlock};
use crate::stats::{HeapCounters, Stat};
use crate::tables::slot_table::NONE;
use crate::tables::{CapacityError, Lazy, Storage};
use crate::units::DevicePtr;

impl<S: Storage> Heap<S> {
    /// Makes room for a segment or a mapped part with `count` blocks, and for the unmapped blocks
    /// before and behind the part.
    pub(crate) fn make_room_for_blocks(&mut self, count: usize) -> Result<(), CapacityError> {
        let count = u32::try_from(count).ok().and_then(|count| count.checked_add(2)).ok_or(CapacityError)?;
        let sets = self.sets.get_or_make();
        let room = self.blocks.make_room(count)
            && sets.free.make_room_for(self.blocks.capacity())
            && self.live.make_room(self.blocks.entries_mut())
            && self.make_room_for_range();
        if room { Ok(()) } else { Err(CapacityError) }
    }

    /// Adds an ordinary segment with the given blocks, which tile the segment. Returns true if the
    /// peaks must be reconciled. Room was made.
    pub(crate) fn restore_segment(
        &mut self,
        base: DevicePtr,
        bytes: u64,
        blocks: &[SnapshotBlock],
        counters: &HeapCounters,
    ) -> bool {
        let block = self.new_segment(base, bytes, 0);
        let mut peaks_stale = counters.up(Stat::Segment, 1) | counters.up(Stat::ReservedBytes, bytes);
        if self.rules.is_oversize(bytes) {
            peaks_stale |= counters.up(Stat::OversizeSegments, 1);
        }
        peaks_stale | self.divide(block, blocks, counters)
    }

    /// Adds the given blocks, which tile a part that the device has mapped, to the expandable
    /// segment around the part. In the heap the part is still unmapped. Returns true if the peaks
    /// must be reconciled. Room was made.
    pub(crate) fn restore_part(
        &mut self,
        base: DevicePtr,
        bytes: u64,
        blocks: &[SnapshotBlock],
        counters: &HeapCounters,
    ) -> bool {
        let block = self.containing(base).expect("the caller has added a range of addresses around the part");
        self.sets.detach(block, &mut self.blocks);
        let before = base.0 - self.blocks[block].addr;
        if before > 0 {
            let front = self.blocks.cut(block, before, &mut self.segments);
            self.sets.insert_unmapped(front, &mut self.blocks);
        }
        let mut part = block;
        if bytes < self.blocks[block].size {
            part = self.blocks.cut(block, bytes, &mut self.segments);
            self.sets.insert_unmapped(block, &mut self.blocks);
        }
        counters.up(Stat::ReservedBytes, bytes) | self.divide(part, blocks, counters)
    }

    /// Divides the detached block `whole` into the given blocks, which tile the block.
    fn divide(&mut self, whole: u32, blocks: &[SnapshotBlock], counters: &HeapCounters) -> bool {
        let mut peaks_stale = false;
        for block in blocks {
            let is_last = block.size == self.blocks[whole].size;
            let entry = if is_last { whole } else { self.blocks.cut(whole, block.size, &mut self.segments) };
            self.blocks[entry].requested = block.requested_size;
            peaks_stale |= if block.state == BlockState::Inactive {
                self.restore_free(entry, counters)
            } else {
                self.restore_allocated(entry, counters)
            };
        }
        peaks_stale
    }

    /// Adds a detached block to the free index. Returns true if the peaks must be reconciled.
    fn restore_free(&mut self, block: u32, counters: &HeapCounters) -> bool {
        self.sets.insert_free(block, self.clock, self.blocks.entries_mut());
        let entry = &self.blocks[block];
        if entry.expandable || !entry.is_split() {
            return false;
        }
        counters.up(Stat::InactiveSplit, 1) | counters.up(Stat::InactiveSplitBytes, entry.size)
    }

    /// Adds a detached block to the allocated blocks. Returns true if the peaks must be reconciled.
    fn restore_allocated(&mut self, block: u32, counters: &HeapCounters) -> bool {
        let entry = &mut self.blocks[block];
        debug_assert!(entry.uses == NONE && entry.events == 0, "the block was never in use");
        entry.state = State::Allocated;
        let (size, requested) = (entry.size, entry.requested);
        self.live.insert(block, self.blocks.entries_mut());
        let mut peaks_stale = counters.up(Stat::Allocation, 1)
            | counters.up(Stat::AllocatedBytes, size)
            | counters.up(Stat::RequestedBytes, requested);
        if self.rules.is_oversize(size) {
            peaks_stale |= counters.up(Stat::OversizeAllocations, 1);
        }
        peaks_stale
    }
}
