//! The heap behind a lane: it holds the lane's segment, and cares for those of its blocks that are more than handed out and freed.
//!
//! That is: blocks that other streams use, that are freed at a count, or that are looked at one by one. Such a block has an entry
//! like any other heap's, and everything that holds for those holds for it; when it has become free the heap notes its address
//! for the lane. To the heap the segment is one that a suballocator cuts. It is held as long as the lane is there, whatever is in use.

use crate::heap::block::{Block, State};
use crate::heap::suballoc::AnySubAllocator;
use crate::heap::suballoc::planned::PlanSegment;
use crate::heap::{Heap, Outcome};
use crate::stats::{HeapCounters, Stat};
use crate::tables::slot_table::NONE;
use crate::tables::{CapacityError, Storage};
use crate::units::DevicePtr;
use alloc::boxed::Box;
use alloc::vec::Vec;

impl<S: Storage> Heap<S> {
    /// The suballocator, if the heap is one behind a lane.
    fn home(&mut self) -> Option<&mut PlanSegment<S>> {
        match &mut self.suballocator {
            Some(AnySubAllocator::Planned(home)) => Some(home),
            _ => None,
        }
    }

    /// Makes it the heap behind a lane with this segment. Room for it was made.
    pub(crate) fn begin_plan(&mut self, base: DevicePtr, bytes: u64, tally: &HeapCounters) -> Outcome<()> {
        self.suballocator = Some(AnySubAllocator::Planned(Box::default()));
        // No vacant block passes for a piece.
        self.blocks.entries_mut().iter_mut().for_each(|block| block.state = State::Held);
        let Outcome { value: whole, peaks_stale } = self.add_segment(base, bytes, bytes, tally);
        // The lane counts as one that is taken, so that the segment is never wholly free.
        self.segments[self.blocks[whole].segment].live = true;
        Outcome { value: (), peaks_stale }
    }

    /// Room for a lane's segment, and for one block.
    pub(crate) fn make_room_for_plan(&mut self) -> Result<(), CapacityError> {
        self.make_room()?;
        if self.segments.make_room(1) { Ok(()) } else { Err(CapacityError) }
    }

    /// Takes a block into its care, which counts from here on by `tally`; as an oversize one from `oversize` bytes on, as it did in its
    /// lane, whatever the settings are now. True if the peaks must be settled.
    pub(crate) fn take_over(
        &mut self,
        (addr, size): (u64, u64),
        requested: u64,
        oversize: u64,
        (from, tally): (&HeapCounters, &HeapCounters),
    ) -> Result<bool, CapacityError> {
        self.make_room()?;
        let Some(home) = self.home() else { return Err(CapacityError) };
        home.taken.insert(addr, size);
        let segment = self.newest;
        let (blocks, vacancies) = self.blocks.parts();
        let piece = vacancies.occupy(blocks);
        blocks[piece as usize] = Block::piece(addr, size, requested, segment, NONE);
        self.held.insert(piece, blocks);
        let mut peaks_stale = from.hand_over(tally, Stat::Allocation, 1);
        peaks_stale |= from.hand_over(tally, Stat::AllocatedBytes, size);
        peaks_stale |= from.hand_over(tally, Stat::RequestedBytes, requested);
        if size >= oversize {
            peaks_stale |= from.hand_over(tally, Stat::OversizeAllocations, 1);
        }
        Ok(peaks_stale)
    }

    /// Passes on the address of each block in its care that has become free.
    pub(crate) fn take_returned(&mut self) -> Vec<u64> {
        self.home().map(|home| core::mem::take(&mut home.returned)).unwrap_or_default()
    }

    /// The lane is gone: what is in the heap's care keeps the segment from being wholly free, and nothing else.
    pub(crate) fn end_plan(&mut self) {
        if let Some(home) = self.home() {
            home.ended = true;
            home.returned = Vec::new();
        }
        if self.newest != NONE {
            self.rest_if_free(self.newest);
        }
    }

    /// The segment is wholly free if the lane is gone and nothing of it is taken.
    pub(crate) fn rest_if_free(&mut self, segment: u32) {
        let free = self.home().is_some_and(|home| home.ended && home.taken.is_empty());
        self.segments[segment].live = !free;
        if free {
            let whole = self.segments[segment].first;
            self.blocks[whole].freed_at = self.clock;
        }
    }
}
