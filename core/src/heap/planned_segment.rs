//! A heap with a plan: the plan's segment, and requests served in the planned order.
//!
//! A block of a plan is in one of two states:
//!
//! * *unlisted*: only the plan knows the block. A malloc or free of an unlisted block changes the
//!   plan and the counters, and searches nothing.
//! * *listed*: the heap has an entry for the block, as for any other. A block is listed once the
//!   program does more with it than malloc and free: a use on another stream, a free at a count, a
//!   traced free, a snapshot. When the block becomes free, the plan gets its bytes back.
//!
//! The heap treats the segment as if a sub-allocator cuts it, and the segment counts as live as
//! long as the plan is active.

use crate::heap::block::{BlockEntry, State};
use crate::heap::suballocator::AnySubAllocator;
use crate::heap::{Heap, Outcome};
use crate::planned::segment::PlanSegment;
use crate::planned::sequence::{Placement, Sequence};
use crate::pool::PoolId;
use crate::stats::{HeapCounters, PlannedReport, Stat};
use crate::tables::slot_table::NONE;
use crate::tables::{CapacityError, Storage};
use crate::units::{DevicePtr, StreamId};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// A block that a plan has served.
type Served = Outcome<DevicePtr>;

impl<S: Storage> Heap<S> {
    /// Returns the plan of the heap, active or ended.
    fn plan(&self) -> Option<&PlanSegment> {
        match &self.suballocator {
            Some(AnySubAllocator::Planned(plan)) => Some(&**plan),
            _ => None,
        }
    }

    /// Returns the plan of the heap, active or ended.
    #[inline(always)]
    fn plan_mut(&mut self) -> Option<&mut PlanSegment> {
        match &mut self.suballocator {
            Some(AnySubAllocator::Planned(plan)) => Some(&mut **plan),
            _ => None,
        }
    }

    /// Returns the sequence of the active plan, if the heap serves `stream` from one.
    fn sequence_for(&mut self, stream: StreamId) -> Option<&mut Sequence> {
        if self.stream != stream {
            return None;
        }
        self.plan_mut().filter(|plan| !plan.ended).map(|plan| &mut plan.sequence)
    }

    /// Begins to serve from a plan, with a new segment. The heap is empty, in the pool `pool`, and
    /// has [room](Self::make_room_for_plan).
    pub(crate) fn begin_plan(
        &mut self,
        (base, bytes): (DevicePtr, u64),
        sequence: Sequence,
        pool: PoolId,
        counters: &HeapCounters,
    ) -> Outcome<()> {
        let oversize = self.rules.max_split;
        let plan = PlanSegment { sequence, ended: false, pool, base: base.0, bytes, oversize };
        self.suballocator = Some(AnySubAllocator::Planned(Box::new(plan)));
        self.mark_paths();
        // `sub_blocks` recognises sub-blocks by their state, so no vacant entry may have the state
        // of a live one.
        self.blocks.entries_mut().iter_mut().for_each(|block| block.state = State::Detached);
        let Outcome { value: whole, peaks_stale } = self.add_segment(base, bytes, bytes, counters);
        // The plan counts as a live sub-block, so the segment is not completely free while the plan
        // is active.
        self.segments[self.blocks[whole].segment].live = true;
        Outcome { value: (), peaks_stale }
    }

    /// Makes room for a plan's segment and for one block.
    pub(crate) fn make_room_for_plan(&mut self) -> Result<(), CapacityError> {
        self.make_room()?;
        if self.segments.make_room(1) { Ok(()) } else { Err(CapacityError) }
    }

    /// Serves a request of `stream` if it is the next one of the plan, and no block is overdue.
    #[inline(always)]
    pub(crate) fn malloc_planned(&mut self, bytes: u64, stream: StreamId, counters: &HeapCounters) -> Option<Served> {
        if self.stream != stream {
            return None;
        }
        // An ended plan has no next request.
        let plan = self.plan_mut()?;
        let placement = plan.sequence.next(bytes)?;
        let peaks_stale = plan.count_allocated(placement, bytes, counters);
        Some(Outcome { value: DevicePtr(placement.addr), peaks_stale })
    }

    /// Serves a request of `stream` in any order: searches nearby requests of the sequence, and
    /// moves the cursor if the program has skipped some. Returns `None`, and counts a deviation, if
    /// the plan has no place for the request or the planned bytes are still in use.
    pub(crate) fn malloc_deviating(&mut self, bytes: u64, stream: StreamId, counters: &HeapCounters) -> Option<Served> {
        let placement = self.sequence_for(stream)?.next_deviating(bytes)?;
        let peaks_stale = self.plan()?.count_allocated(placement, bytes, counters);
        Some(Outcome { value: DevicePtr(placement.addr), peaks_stale })
    }

    /// Returns the address at which the active plan would serve a request of `stream`.
    pub(crate) fn peek_planned(&mut self, bytes: u64, stream: StreamId) -> Option<DevicePtr> {
        self.sequence_for(stream)?.peek(bytes).map(DevicePtr)
    }

    /// Returns whether a request of `stream` finds its planned bytes occupied while blocks are
    /// listed. Complete events may then free these bytes.
    pub(crate) fn is_occupied(&mut self, bytes: u64, stream: StreamId) -> bool {
        self.sequence_for(stream).is_some_and(|sequence| sequence.listed > 0 && sequence.is_occupied(bytes))
    }

    /// Starts the sequence of the active plan again.
    pub(crate) fn restart_plan(&mut self) {
        if let Some(plan) = self.plan_mut().filter(|plan| !plan.ended) {
            plan.sequence.restart();
        }
    }

    /// Frees the unlisted block at exactly `ptr`, if there is one and if `requested`, when given,
    /// is the size in bytes that the program requested. Returns whether the block was freed.
    #[inline(always)]
    pub(crate) fn free_planned(&mut self, ptr: DevicePtr, requested: Option<u64>, counters: &HeapCounters) -> bool {
        let Some(plan) = self.plan_mut() else { return false };
        let Some((Placement { size, .. }, requested)) = plan.sequence.free(ptr.0, requested) else { return false };
        counters.down(Stat::Allocation, 1);
        counters.down(Stat::AllocatedBytes, size);
        counters.down(Stat::RequestedBytes, requested);
        if size >= plan.oversize {
            counters.down(Stat::OversizeAllocations, 1);
        }
        true
    }

    /// Returns the unlisted block that contains `ptr`, with the requested size.
    pub(crate) fn unlisted_at(&self, ptr: DevicePtr) -> Option<(Placement, u64)> {
        self.plan()?.sequence.unlisted_at(ptr.0)
    }

    /// Lists the block that contains `ptr`, if it is unlisted. Returns its address.
    pub(crate) fn list_block(&mut self, ptr: DevicePtr) -> Result<Option<DevicePtr>, CapacityError> {
        // The entry may not fit, so this comes first.
        self.make_room()?;
        let Some((Placement { addr, size }, requested)) = self.plan_mut().and_then(|plan| plan.sequence.list(ptr.0))
        else {
            return Ok(None);
        };
        let segment = self.newest;
        let (blocks, vacancies) = self.blocks.parts();
        let block = vacancies.occupy(blocks);
        blocks[block as usize] = BlockEntry::sub_block(addr, size, requested, segment, NONE);
        self.live.insert(block, blocks);
        Ok(Some(DevicePtr(addr)))
    }

    /// Lists every block of the plan, so that a walk over the entries finds it.
    pub(crate) fn list_all(&mut self) -> Result<(), CapacityError> {
        let Some(plan) = self.plan() else { return Ok(()) };
        // Collected first, because listing changes the table that `unlisted` iterates over.
        let unlisted: Vec<u64> = plan.sequence.unlisted().map(|(block, _)| block.addr).collect();
        unlisted.into_iter().try_for_each(|addr| self.list_block(DevicePtr(addr)).map(drop))
    }

    /// Returns the segment of the active plan if the program has no block in it.
    pub(crate) fn idle_plan(&self, counters: &HeapCounters) -> Option<(u64, u64)> {
        let plan = self.plan().filter(|plan| !plan.ended)?;
        let idle = counters.current(Stat::Allocation) == 0 && self.sub_blocks().next().is_none();
        idle.then_some((plan.base, plan.bytes))
    }

    /// Adds the counts of the active plan to a report. Returns the bytes of the plan's segment, and
    /// 0 without a plan.
    pub(crate) fn report_plan(&self, report: &mut PlannedReport) -> u64 {
        let Some(plan) = self.plan().filter(|plan| !plan.ended) else { return 0 };
        plan.sequence.add_to(report);
        plan.bytes
    }

    /// Ends the active plan, all of whose blocks are listed. From now on, the segment is live only
    /// while it has blocks. Returns the pool of the plan, and the segment.
    pub(crate) fn end_plan(&mut self) -> Option<(PoolId, DevicePtr, u64)> {
        let plan = self.plan_mut().filter(|plan| !plan.ended)?;
        debug_assert!(plan.sequence.unlisted().next().is_none(), "the caller has listed every block");
        plan.ended = true;
        plan.sequence.retire();
        let (ended, is_unused) = ((plan.pool, DevicePtr(plan.base), plan.bytes), plan.is_unused());
        if is_unused {
            self.end_segment(self.newest);
        }
        Some(ended)
    }
}
