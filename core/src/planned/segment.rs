//! A plan as the sub-allocator of a heap: the sequence, and the segment in which it places blocks.
//! The heap knows the listed blocks, and the plan knows all of them.

use super::sequence::{Placement, Sequence};
use crate::pool::PoolId;
use crate::stats::{HeapCounters, Stat};
use crate::suballoc::{CapacityError, FreeDelta, SubAllocator, SubBlock};
use alloc::boxed::Box;

/// The sub-allocator of a heap with a plan.
#[derive(Clone)]
pub(crate) struct PlanSegment {
    /// The requests with their planned addresses, and the current position.
    pub(crate) sequence: Sequence,
    /// Whether the plan has ended. Then every block is listed.
    pub(crate) ended: bool,
    /// The pool that was made for the plan.
    pub(crate) pool: PoolId,
    /// The address of the segment.
    pub(crate) base: u64,
    /// The size of the segment in bytes.
    pub(crate) bytes: u64,
    /// The size in bytes from which a block counts as oversize. The settings may change while the
    /// plan is active.
    pub(crate) oversize: u64,
}

impl SubAllocator for PlanSegment {
    fn segment_bytes(&self, size: u64) -> u64 {
        size
    }

    fn make_room(&mut self, _bytes: u64, _size: u64) -> bool {
        true
    }

    fn add_segment(&mut self, _segment: u32, base: u64, bytes: u64, _size: u64) {
        (self.base, self.bytes) = (base, bytes);
    }

    fn remove_segment(&mut self, _segment: u32) {}

    fn allocate(&mut self, _size: u64) -> Result<Option<(SubBlock, FreeDelta)>, CapacityError> {
        Ok(None)
    }

    fn peek(&self, _size: u64) -> Option<u64> {
        None
    }

    /// Ends a listed block. The free memory of a plan's segment does not count as inactive, so
    /// nothing of it is in the result.
    fn free(&mut self, sub_block: SubBlock, _size: u64) -> FreeDelta {
        self.sequence.end_listed(sub_block.addr);
        FreeDelta { alone: self.is_unused(), before: 0, now: 0 }
    }

    fn visit_free(&self, _segment: u32, visit: &mut dyn FnMut(u64, u64)) {
        let mut at = self.base;
        let end = Placement { addr: self.base + self.bytes, size: 0 };
        for Placement { addr, size } in self.sequence.live().into_iter().chain([end]) {
            if addr > at {
                visit(at, addr - at);
            }
            at = addr + size;
        }
    }

    fn copy(&self) -> Box<dyn SubAllocator> {
        Box::new(self.clone())
    }

    fn check(&self) -> Result<(), &'static str> {
        self.sequence.check()
    }
}

impl PlanSegment {
    /// Returns whether the plan has ended and no block of it is left.
    pub(crate) fn is_unused(&self) -> bool {
        self.ended && self.sequence.listed == 0
    }

    /// Returns the number of unlisted blocks, their bytes and their requested bytes.
    pub(crate) fn unlisted(&self) -> (u32, u64, u64) {
        let add = |(blocks, bytes, sum): (u32, u64, u64), (block, requested): (Placement, u64)| {
            (blocks + 1, bytes + block.size, sum + requested)
        };
        self.sequence.unlisted().fold((0, 0, 0), add)
    }

    /// Counts a block as allocated. Returns true if the peaks must be reconciled.
    #[inline(always)]
    pub(crate) fn count_allocated(&self, block: Placement, requested: u64, counters: &HeapCounters) -> bool {
        let Placement { addr, size } = block;
        debug_assert!((self.base..self.base + self.bytes).contains(&addr), "a plan's blocks are in its segment");
        // `up_to` returns the distance to a threshold, which is negative once the threshold is
        // exceeded. The OR of the distances is negative iff any of them is, so this takes one test
        // instead of four.
        let mut left = counters.up_to(Stat::RequestedBytes, requested);
        left |= counters.up_to(Stat::AllocatedBytes, size);
        left |= counters.up_to(Stat::Allocation, 1);
        if size >= self.oversize {
            left |= counters.up_to(Stat::OversizeAllocations, 1);
        }
        left < 0
    }
}
