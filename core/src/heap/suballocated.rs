//! The operations of a heap with a sub-allocator that cuts its segments: buddy, size class, slab,
//! or the segment of a plan.
//!
//! ```text
//! segment     first ─▶ one block for the whole segment: always free, releasable while not `live`
//! sub-block   an entry while allocated or pending: its segment, and its sub-allocator's number
//! ```
//!
//! Therefore the code that releases completely free segments works for every policy.

#![cfg_attr(
    not(feature = "alloc"),
    allow(unused_variables, clippy::unnecessary_wraps, reason = "there is no suballocator to be called")
)]

use super::{Heap, Outcome};
use crate::heap::block::{BlockEntry, State};
use crate::heap::suballoc::{FreeDelta, Kind, SubBlock, for_kind};
use crate::stats::{HeapCounters, Stat};
use crate::tables::{CapacityError, Storage};
use crate::units::DevicePtr;

impl<S: Storage> Heap<S> {
    /// Allocates a sub-block of `size` bytes, which the policy has rounded, if a segment has one.
    /// Inlined together with the code of the sub-allocator: a nested call would save the same
    /// registers twice, which costs a tenth of a pair.
    #[inline(always)]
    pub(super) fn malloc_suballocated(
        &mut self,
        size: u64,
        requested: u64,
        counters: &HeapCounters,
    ) -> Result<Option<Outcome<DevicePtr>>, CapacityError> {
        for_kind!(self.suballocator.as_ref().expect("a heap with sub-blocks has a sub-allocator"), Own => self.malloc_sub_block::<Own<S>>(size, requested, counters))
    }

    /// Allocates a sub-block from a sub-allocator of kind `C`.
    #[inline(always)]
    fn malloc_sub_block<C: Kind<S>>(
        &mut self,
        size: u64,
        requested: u64,
        counters: &HeapCounters,
    ) -> Result<Option<Outcome<DevicePtr>>, CapacityError> {
        let Some(suballocator) = C::of(&mut self.suballocator) else { return Ok(None) };
        let Some((SubBlock { addr, segment, number }, free)) = suballocator.allocate(size)? else { return Ok(None) };
        let (blocks, vacancies) = self.blocks.parts();
        // Free sub-blocks count as inactive only while the segment has live ones. With the first
        // live sub-block, all free ones start to count.
        let mut peaks_stale = if free.alone {
            let entry = &mut self.segments[segment];
            entry.live = true;
            counters.up(Stat::InactiveSplitBytes, entry.bytes - size)
                | counters.up(Stat::InactiveSplit, u64::from(free.now))
        } else {
            counters.down(Stat::InactiveSplitBytes, size);
            count_sub_blocks(free, counters)
        };
        let sub_block = vacancies.occupy(blocks);
        blocks[sub_block as usize] = BlockEntry::sub_block(addr, size, requested, segment, number);
        self.live.insert(sub_block, blocks);
        peaks_stale |= counters.up(Stat::Allocation, 1);
        peaks_stale |= counters.up(Stat::AllocatedBytes, size);
        peaks_stale |= counters.up(Stat::RequestedBytes, requested);
        Ok(Some(Outcome { value: DevicePtr(addr), peaks_stale }))
    }

    /// Frees a detached sub-block that no stream uses any more. Returns true if the peaks must be
    /// reconciled, or if a segment of an ended stream became completely free.
    #[inline(always)]
    pub(super) fn finish_free_suballocated(&mut self, sub_block: u32, counters: &HeapCounters) -> bool {
        for_kind!(self.suballocator.as_ref().expect("a heap with sub-blocks has a sub-allocator"), Own => self.free_sub_block::<Own<S>>(sub_block, counters))
    }

    /// Frees a detached sub-block of a sub-allocator of kind `C`.
    #[inline(always)]
    fn free_sub_block<C: Kind<S>>(&mut self, sub_block: u32, counters: &HeapCounters) -> bool {
        let Some(suballocator) = C::of(&mut self.suballocator) else { return false };
        let (blocks, vacancies) = self.blocks.parts();
        let BlockEntry { addr, size, requested, prev: number, segment, .. } = blocks[sub_block as usize];
        // Vacate the entry before calling the sub-allocator, so that fewer values stay in registers
        // across the inlined call.
        blocks[sub_block as usize].state = State::Detached;
        vacancies.vacate(sub_block, blocks);
        counters.down(Stat::RequestedBytes, requested);
        let free = suballocator.free(SubBlock { addr, segment, number }, size);
        if !free.alone {
            let peaks_stale = counters.up(Stat::InactiveSplitBytes, size);
            return peaks_stale | count_sub_blocks(free, counters);
        }
        // The segment of a plan has no counters for its free memory, and is in use as long as the
        // lane exists.
        #[cfg(feature = "alloc")]
        if self.is_planned() {
            self.update_live(segment);
            return false;
        }
        let entry = &mut self.segments[segment];
        entry.live = false;
        counters.down(Stat::InactiveSplitBytes, entry.bytes - size);
        counters.down(Stat::InactiveSplit, u64::from(free.before));
        self.blocks[entry.first].freed_at = self.clock;
        self.tells
    }

    /// Returns whether the heap manages the segment of a lane of the planned policy.
    pub(crate) fn is_planned(&self) -> bool {
        matches!(&self.suballocator, Some(suballocator) if suballocator.is_planned())
    }

    /// Returns the live sub-blocks (allocated or pending) and their entries, in no order. Walks the
    /// table of blocks.
    pub(crate) fn sub_blocks(&self) -> impl Iterator<Item = (u32, &BlockEntry)> {
        let entries = (0..).zip(self.blocks.entries());
        // Vacant entries, and the blocks for whole segments, are in other states.
        entries.filter(|(_, block)| matches!(block.state, State::Allocated | State::Pending))
    }
}

/// Updates the number of inactive sub-blocks of a segment that still has live ones. Returns true if
/// the peaks must be reconciled.
#[inline(always)]
fn count_sub_blocks(FreeDelta { before, now, .. }: FreeDelta, counters: &HeapCounters) -> bool {
    if now >= before {
        return counters.up(Stat::InactiveSplit, u64::from(now - before));
    }
    counters.down(Stat::InactiveSplit, u64::from(before - now));
    false
}
