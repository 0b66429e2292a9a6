//! The operations of a heap with a sub-allocator that cuts its segments: that of a policy, or a
//! plan.
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

use super::{Blocks, Heap, HeapSegments, Outcome};
use crate::heap::block::{BlockEntry, State};
use crate::heap::suballocator::AnySubAllocator;
use crate::stats::{HeapCounters, Stat};
use crate::suballoc::{FreeDelta, SubAllocator, SubBlock, User};
use crate::tables::hash_index::HashIndex;
use crate::tables::{CapacityError, Storage};
use crate::units::DevicePtr;

/// A request to a sub-allocator, and the parts of the heap that record what it allocates.
struct Allocate<'a, S: Storage> {
    size: u64,
    requested: u64,
    counters: &'a HeapCounters,
    blocks: &'a mut Blocks<S>,
    segments: &'a mut HeapSegments<S>,
    live: &'a mut HashIndex<S>,
}

/// Compiled once for each sub-allocator that the tables list: each copy then has all registers to
/// itself. A match in the call costs a pair up to 30 instructions more.
impl<S: Storage> User for Allocate<'_, S> {
    type Output = Result<Option<Outcome<DevicePtr>>, CapacityError>;

    #[inline(always)]
    fn with<A: SubAllocator>(self, own: &mut A) -> Self::Output {
        let Self { size, requested, counters, blocks, segments, live } = self;
        let Some((SubBlock { addr, segment, number }, free)) = own.allocate(size)? else { return Ok(None) };
        let (blocks, vacancies) = blocks.parts();
        // Free sub-blocks count as inactive only while the segment has live ones. The first live
        // sub-block makes all free ones count.
        let mut peaks_stale = if free.alone {
            let entry = &mut segments[segment];
            entry.live = true;
            counters.up(Stat::InactiveSplitBytes, entry.bytes - size)
                | counters.up(Stat::InactiveSplit, u64::from(free.now))
        } else {
            counters.down(Stat::InactiveSplitBytes, size);
            count_sub_blocks(free, counters)
        };
        let sub_block = vacancies.occupy(blocks);
        blocks[sub_block as usize] = BlockEntry::sub_block(addr, size, requested, segment, number);
        live.insert(sub_block, blocks);
        peaks_stale |= counters.up(Stat::Allocation, 1);
        peaks_stale |= counters.up(Stat::AllocatedBytes, size);
        peaks_stale |= counters.up(Stat::RequestedBytes, requested);
        Ok(Some(Outcome { value: DevicePtr(addr), peaks_stale }))
    }
}

/// A free of a detached sub-block, and the parts of the heap that record it.
struct Free<'a, S: Storage> {
    sub_block: u32,
    counters: &'a HeapCounters,
    blocks: &'a mut Blocks<S>,
    segments: &'a mut HeapSegments<S>,
    clock: u64,
    tells: bool,
}

impl<S: Storage> User for Free<'_, S> {
    type Output = bool;

    #[inline(always)]
    fn with<A: SubAllocator>(self, own: &mut A) -> bool {
        let Self { sub_block, counters, blocks, segments, clock, tells } = self;
        let (sub_block, size) = vacate(sub_block, blocks, counters);
        let free = own.free(sub_block, size);
        if !free.alone {
            let peaks_stale = counters.up(Stat::InactiveSplitBytes, size);
            return peaks_stale | count_sub_blocks(free, counters);
        }
        let entry = &mut segments[sub_block.segment];
        entry.live = false;
        counters.down(Stat::InactiveSplitBytes, entry.bytes - size);
        counters.down(Stat::InactiveSplit, u64::from(free.before));
        blocks[entry.first].freed_at = clock;
        tells
    }
}

/// Removes the entry of a detached sub-block, before the call of the sub-allocator: fewer values
/// stay in registers across the inlined call. Returns the sub-block and its size.
#[inline(always)]
fn vacate<S: Storage>(sub_block: u32, blocks: &mut Blocks<S>, counters: &HeapCounters) -> (SubBlock, u64) {
    let (blocks, vacancies) = blocks.parts();
    let BlockEntry { addr, size, requested, prev: number, segment, .. } = blocks[sub_block as usize];
    blocks[sub_block as usize].state = State::Detached;
    vacancies.vacate(sub_block, blocks);
    counters.down(Stat::RequestedBytes, requested);
    (SubBlock { addr, segment, number }, size)
}

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
        let Self { suballocator, blocks, segments, live, .. } = self;
        let allocate = Allocate { size, requested, counters, blocks, segments, live };
        let listed = suballocator.as_mut().and_then(|own| own.lend(allocate));
        listed.unwrap_or_else(|| self.malloc_by_any(size, requested, counters))
    }

    /// Allocates a sub-block from a sub-allocator that the tables do not list. Out of line, like
    /// [`free_by_any`](Self::free_by_any): it would take registers from the paths of the others.
    #[inline(never)]
    fn malloc_by_any(
        &mut self,
        size: u64,
        requested: u64,
        counters: &HeapCounters,
    ) -> Result<Option<Outcome<DevicePtr>>, CapacityError> {
        let Self { suballocator, blocks, segments, live, .. } = self;
        let Some(own) = suballocator.as_mut().and_then(AnySubAllocator::of_policy) else { return Ok(None) };
        Allocate { size, requested, counters, blocks, segments, live }.with(own)
    }

    /// Frees a detached sub-block that no stream uses any more. Returns true if the peaks must be
    /// reconciled, or if a segment of an ended stream became completely free.
    #[inline(always)]
    pub(super) fn finish_free_suballocated(&mut self, sub_block: u32, counters: &HeapCounters) -> bool {
        let Self { suballocator, blocks, segments, clock, tells, .. } = self;
        let free = Free { sub_block, counters, blocks, segments, clock: *clock, tells: *tells };
        let listed = suballocator.as_mut().and_then(|own| own.lend(free));
        listed.unwrap_or_else(|| self.free_by_any(sub_block, counters))
    }

    /// Frees a sub-block of a sub-allocator that the tables do not list, or a listed block of a
    /// plan. The segment of a plan has no counters for its free memory, and is in use as long as
    /// the plan is active.
    #[inline(never)]
    fn free_by_any(&mut self, sub_block: u32, counters: &HeapCounters) -> bool {
        let Self { suballocator, blocks, segments, clock, tells, .. } = self;
        let Some(suballocator) = suballocator else { return false };
        if let Some(own) = suballocator.of_policy() {
            return Free { sub_block, counters, blocks, segments, clock: *clock, tells: *tells }.with(own);
        }
        let (sub_block, size) = vacate(sub_block, blocks, counters);
        if suballocator.free(sub_block, size).alone {
            self.end_segment(sub_block.segment);
        }
        false
    }

    /// Notes that the last sub-block of a segment is gone.
    pub(super) fn end_segment(&mut self, segment: u32) {
        let entry = &mut self.segments[segment];
        entry.live = false;
        self.blocks[entry.first].freed_at = self.clock;
    }

    /// Returns whether the heap serves, or has served, from a plan.
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
