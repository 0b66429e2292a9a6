//! A heap whose segments a suballocator cuts: buddy, size class, slab.
//!
//! ```text
//! segment   first ─▶ the block that stands for it whole: always free and in the index, to be released while `live` is 0
//! piece     a block of its own as long as it is taken, which knows the segment and the piece's number in the suballocator
//! ```
//!
//! So what releases wholly free segments needs to know nothing of sub-allocators.

#![cfg_attr(
    not(feature = "alloc"),
    allow(dead_code, unused_variables, clippy::unnecessary_wraps, reason = "there is no suballocator to be called")
)]

use super::{Heap, Outcome};
use crate::heap::block::{Block, State};
use crate::heap::suballoc::{Free, Kind, SubBlock, for_kind};
use crate::stats::{HeapCounters, Stat};
use crate::tables::{CapacityError, Storage};
use crate::units::DevicePtr;

impl<S: Storage> Heap<S> {
    /// Takes a piece of `size`, as the suballocator rounds requests, if a segment has one. Inlined, and so are the sub-allocators' own parts: a
    /// call in a call would save the same registers twice, which is a tenth of a pair.
    #[inline(always)]
    pub(super) fn malloc_suballocated(
        &mut self,
        size: u64,
        requested: u64,
        tally: &HeapCounters,
    ) -> Result<Option<Outcome<DevicePtr>>, CapacityError> {
        for_kind!(self.suballocator.as_ref().expect("what suballocates has a suballocator"), Own => self.malloc_by::<Own<S>>(size, requested, tally))
    }

    /// The same by a suballocator of one kind.
    #[inline(always)]
    fn malloc_by<C: Kind<S>>(
        &mut self,
        size: u64,
        requested: u64,
        tally: &HeapCounters,
    ) -> Result<Option<Outcome<DevicePtr>>, CapacityError> {
        let Some(suballocator) = C::of(&mut self.suballocator) else { return Ok(None) };
        let Some((SubBlock { addr, segment, number }, free)) = suballocator.take(size)? else { return Ok(None) };
        let (blocks, vacancies) = self.blocks.parts();
        // What is free counts as long as something is taken beside it.
        let mut peaks_stale = if free.alone {
            let entry = &mut self.segments[segment];
            entry.live = true;
            tally.up(Stat::InactiveSplitBytes, entry.bytes - size) | tally.up(Stat::InactiveSplit, u64::from(free.now))
        } else {
            tally.down(Stat::InactiveSplitBytes, size);
            count_sub_blocks(free, tally)
        };
        let piece = vacancies.occupy(blocks);
        blocks[piece as usize] = Block::piece(addr, size, requested, segment, number);
        self.held.insert(piece, blocks);
        peaks_stale |= tally.up(Stat::Allocation, 1);
        peaks_stale |= tally.up(Stat::AllocatedBytes, size);
        peaks_stale |= tally.up(Stat::RequestedBytes, requested);
        Ok(Some(Outcome { value: DevicePtr(addr), peaks_stale }))
    }

    /// A piece that is in no set, and that nothing uses any longer, goes back to the suballocator. True if the peaks must be settled.
    #[inline(always)]
    pub(super) fn finish_free_suballocated(&mut self, piece: u32, tally: &HeapCounters) -> bool {
        for_kind!(self.suballocator.as_ref().expect("what suballocates has a suballocator"), Own => self.complete_by::<Own<S>>(piece, tally))
    }

    /// The same by a suballocator of one kind.
    #[inline(always)]
    fn complete_by<C: Kind<S>>(&mut self, piece: u32, tally: &HeapCounters) -> bool {
        let Some(suballocator) = C::of(&mut self.suballocator) else { return false };
        let (blocks, vacancies) = self.blocks.parts();
        let Block { addr, size, requested, prev: number, segment, .. } = blocks[piece as usize];
        // Before the suballocator has its turn: the less there is to be kept in registers meanwhile.
        blocks[piece as usize].state = State::Held;
        vacancies.vacate(piece, blocks);
        tally.down(Stat::RequestedBytes, requested);
        let free = suballocator.give(SubBlock { addr, segment, number }, size);
        if !free.alone {
            let peaks_stale = tally.up(Stat::InactiveSplitBytes, size);
            return peaks_stale | count_sub_blocks(free, tally);
        }
        #[cfg(feature = "alloc")]
        if self.is_planned() {
            self.rest_if_free(segment);
            return false;
        }
        let entry = &mut self.segments[segment];
        entry.live = false;
        tally.down(Stat::InactiveSplitBytes, entry.bytes - size);
        tally.down(Stat::InactiveSplit, u64::from(free.before));
        self.blocks[entry.first].freed_at = self.clock;
        self.ended
    }

    /// Whether its segments are those of a lane of the planned policy.
    pub(crate) fn is_planned(&self) -> bool {
        matches!(&self.suballocator, Some(suballocator) if suballocator.is_planned())
    }

    /// The taken piece that contains `ptr`.
    pub(super) fn sub_block_containing(&self, ptr: DevicePtr) -> Option<u32> {
        self.pieces().find(|(_, piece)| (piece.addr..piece.end()).contains(&ptr.0)).map(|(piece, _)| piece)
    }

    /// The taken pieces, in no order. Walks the table of blocks.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (u32, &Block)> {
        let entries = (0..).zip(self.blocks.entries());
        entries.filter(|(_, block)| matches!(block.state, State::Allocated | State::Pending))
    }
}

/// Counts the pieces of a segment that are free beside taken ones, and were before. True if the peaks must be settled.
#[inline(always)]
fn count_sub_blocks(Free { before, now, .. }: Free, tally: &HeapCounters) -> bool {
    if now >= before {
        return tally.up(Stat::InactiveSplit, u64::from(now - before));
    }
    tally.down(Stat::InactiveSplit, u64::from(before - now));
    false
}
