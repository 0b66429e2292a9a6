//! The heap that belongs to a lane of the planned policy: it contains the lane's segment, and those
//! of the lane's blocks that have an entry.
//!
//! The lane serves blocks from the plan without an entry for each of them. A block moves into the
//! heap (*delegation*) when other streams use it, when it is freed with a count, or when blocks are
//! inspected individually. From then on it has an ordinary entry. When the block becomes free, the
//! heap records its address for the lane. The heap treats the segment as if a sub-allocator cuts
//! it, and the segment counts as live as long as the lane exists.

use crate::heap::block::{BlockEntry, State};
use crate::heap::suballocator::{AnySubAllocator, PlanSegment};
use crate::heap::{Heap, Outcome};
use crate::stats::{HeapCounters, Stat};
use crate::tables::slot_table::NONE;
use crate::tables::{CapacityError, Storage};
use crate::units::DevicePtr;
use alloc::boxed::Box;
use alloc::vec::Vec;

impl<S: Storage> Heap<S> {
    /// Returns the sub-allocator of a heap that belongs to a lane, or `None` for any other heap.
    fn plan_segment(&mut self) -> Option<&mut PlanSegment> {
        match &mut self.suballocator {
            Some(AnySubAllocator::Planned(plan)) => Some(&mut **plan),
            _ => None,
        }
    }

    /// Makes a vacant heap the heap of a lane, with the lane's segment. The caller has made room
    /// for the segment.
    pub(crate) fn begin_plan(&mut self, base: DevicePtr, bytes: u64, counters: &HeapCounters) -> Outcome<()> {
        self.suballocator = Some(AnySubAllocator::Planned(Box::default()));
        self.mark_paths();
        // `sub_blocks` recognises sub-blocks by their state, so no vacant entry may have the state
        // of a live one.
        self.blocks.entries_mut().iter_mut().for_each(|block| block.state = State::Detached);
        let Outcome { value: whole, peaks_stale } = self.add_segment(base, bytes, bytes, counters);
        // The lane counts as a live sub-block, so the segment is not completely free while the lane
        // exists.
        self.segments[self.blocks[whole].segment].live = true;
        Outcome { value: (), peaks_stale }
    }

    /// Makes room for a lane's segment and for one block.
    pub(crate) fn make_room_for_plan(&mut self) -> Result<(), CapacityError> {
        self.make_room()?;
        if self.segments.make_room(1) { Ok(()) } else { Err(CapacityError) }
    }

    /// Adds an allocated block of the lane to the heap. The counts of the block move from the first
    /// counters to the second. The block counts as oversize from `oversize` bytes on. This is the
    /// threshold from when the lane allocated the block; the current settings do not matter.
    /// Returns true if the peaks must be reconciled.
    pub(crate) fn take_over(
        &mut self,
        (addr, size): (u64, u64),
        requested: u64,
        oversize: u64,
        (from, counters): (&HeapCounters, &HeapCounters),
    ) -> Result<bool, CapacityError> {
        self.make_room()?;
        let Some(plan) = self.plan_segment() else { return Err(CapacityError) };
        plan.taken.insert(addr, size);
        let segment = self.newest;
        let (blocks, vacancies) = self.blocks.parts();
        let block = vacancies.occupy(blocks);
        blocks[block as usize] = BlockEntry::sub_block(addr, size, requested, segment, NONE);
        self.live.insert(block, blocks);
        let mut peaks_stale = from.hand_over(counters, Stat::Allocation, 1);
        peaks_stale |= from.hand_over(counters, Stat::AllocatedBytes, size);
        peaks_stale |= from.hand_over(counters, Stat::RequestedBytes, requested);
        if size >= oversize {
            peaks_stale |= from.hand_over(counters, Stat::OversizeAllocations, 1);
        }
        Ok(peaks_stale)
    }

    /// Returns the addresses of the delegated blocks that were freed since the last call.
    pub(crate) fn take_returned(&mut self) -> Vec<u64> {
        self.plan_segment().map(|plan| core::mem::take(&mut plan.returned)).unwrap_or_default()
    }

    /// Ends the lane. From now on, the segment is live only while it has delegated blocks.
    pub(crate) fn end_plan(&mut self) {
        if let Some(plan) = self.plan_segment() {
            plan.ended = true;
            plan.returned = Vec::new();
        }
        if self.newest != NONE {
            self.update_live(self.newest);
        }
    }

    /// Updates whether the segment is live. It is completely free iff the lane has ended and no
    /// delegated block is left.
    pub(crate) fn update_live(&mut self, segment: u32) {
        let free = self.plan_segment().is_some_and(|plan| plan.ended && plan.taken.is_empty());
        self.segments[segment].live = !free;
        if free {
            let whole = self.segments[segment].first;
            self.blocks[whole].freed_at = self.clock;
        }
    }
}
