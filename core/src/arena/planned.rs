//! Requests and frees while plans are in force: the fast path, and what is done with a block beyond that.

use crate::arena::allocation::Allocation;
use crate::arena::{Arena, OnDevice, flags};
use crate::config::Config;
use crate::config::rounding::PoolKind;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::page_map::{HeapRef, LaneRef, Owner};
use crate::planned::lanes::{Lane, LaneSlot, SizeUnknown};
use crate::planned::sequence::{Held, Placement};
use crate::stats::{HeapCounters, KindCounters, Stat};
use crate::sync::{Lock, Ordering};
use crate::tables::Storage;
use crate::trace::CallSite;
use crate::units::{DeviceIndex, DevicePtr, MAX_REQUEST, StreamId, UNIT};

/// Circumstances in which requests are served from plans as ever.
const ALLOWED: u32 = flags::PLANNED | flags::PENDING | flags::DEFERRED | flags::FAST_PATH_FLAGS;

/// Circumstances in which none is.
const DISALLOWED: u32 = flags::CAPTURE | flags::DIRECT | flags::LOST | flags::OBSERVED;

/// Counts a block that is handed out. True if the peaks must be settled.
#[inline(always)]
fn count_up(tally: &HeapCounters, lane: &Lane, size: u64, requested: u64) -> bool {
    // One negative number makes all of them negative: that is one test.
    let mut left = tally.up_to(Stat::RequestedBytes, requested);
    left |= tally.up_to(Stat::AllocatedBytes, size);
    left |= tally.up_to(Stat::Allocation, 1);
    if size >= lane.oversize {
        left |= tally.up_to(Stat::OversizeAllocations, 1);
    }
    left < 0
}

#[inline(always)]
fn count_down(tally: &HeapCounters, lane: &Lane, size: u64, requested: u64) {
    tally.down(Stat::Allocation, 1);
    tally.down(Stat::AllocatedBytes, size);
    tally.down(Stat::RequestedBytes, requested);
    if size >= lane.oversize {
        tally.down(Stat::OversizeAllocations, 1);
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> OnDevice<'_, D, R, S> {
    /// Serves a request that is the next of its stream, unless the lane is locked: whoever waits, as whoever calls anything but
    /// last, saves registers, 23 instructions. Without plans in force no stream has a lane.
    #[inline(always)]
    pub(crate) fn malloc_next(self, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        if !self.flags.has(!ALLOWED)
            && let Some(front) = self.planned.as_deref()
            && let Some(lane_slot) = front.lane_slot(stream)
            && let Some(mut guard) = lane_slot.lane.try_lock()
            && let Some(lane) = &mut *guard
            && lane.stream == stream
            && let Some(Placement { addr, size }) = lane.sequence.next(bytes)
        {
            let peaks_stale = count_up(&lane_slot.tally, lane, size, bytes);
            drop(guard);
            if peaks_stale {
                return self.reconcile_and_return(&lane_slot.tally, DevicePtr(addr));
            }
            return Ok(DevicePtr(addr));
        }
        self.malloc_unplanned(bytes, stream)
    }

    /// Serves a request from a plan, whatever there is to be seen to, if it is that one's to serve.
    pub(crate) fn malloc_planned(self, noted: u32, bytes: u64, stream: StreamId) -> Option<DevicePtr> {
        if noted & !ALLOWED == 0 {
            self.malloc_deviating(bytes, stream)
        } else {
            self.malloc_planned_slow(bytes, stream)
        }
    }

    /// The same where routes and the trace have to be looked at.
    #[cold]
    fn malloc_planned_slow(self, bytes: u64, stream: StreamId) -> Option<DevicePtr> {
        if self.flags.has(DISALLOWED) {
            return None;
        }
        if self.flags.has(flags::ROUTES)
            && let Some(route) = self.enter_pool(stream)
        {
            self.leave_pool(route.pool);
            return None;
        }
        let site = self.call_site(CallSite::Alloc);
        let ptr = self.malloc_deviating(bytes, stream)?;
        if self.flags.has(flags::TRACE) {
            self.trace_planned(stream, site, ptr, bytes);
        }
        Some(ptr)
    }

    /// Serves a request whatever it is: the next of its stream or not, its bytes occupied or not.
    #[cold]
    fn malloc_deviating(self, bytes: u64, stream: StreamId) -> Option<DevicePtr> {
        let front = self.planned.as_deref()?;
        let Some(lane_slot) = front.lane_slot(stream) else {
            front.elsewhere.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        if self.flags.has(flags::PENDING) && lane_slot.lane.lock().as_mut().is_some_and(|lane| self.waits(lane, bytes))
        {
            // An event that cannot be asked after leaves the bytes occupied.
            let _asked = self.process_events();
        }
        let mut guard = lane_slot.lane.lock();
        let lane = guard.as_mut().filter(|lane| lane.stream == stream)?;
        self.reclaim_returned(lane);
        let Placement { addr, size } = lane.sequence.otherwise(bytes)?;
        let peaks_stale = count_up(&lane_slot.tally, lane, size, bytes);
        drop(guard);
        if peaks_stale {
            self.reconcile_lane(&lane_slot.tally);
        }
        Some(DevicePtr(addr))
    }

    /// Frees the block of a lane at `ptr`. `requested`, if given, is what the caller says it asked for.
    #[inline(always)]
    pub(crate) fn free_planned(self, lane: LaneRef, ptr: DevicePtr, requested: Option<u64>) -> Result<(), Error> {
        // One instance for each case: callers know which it is, and the instance for an unknown size passes nothing.
        match requested {
            None => self.free_planned_fast(lane, ptr, SizeUnknown),
            Some(requested) => self.free_planned_fast(lane, ptr, requested),
        }
    }

    /// Frees a block that the directory says is a lane's, unless that is locked or has to be looked at closer.
    #[inline(never)]
    fn free_planned_fast(
        self,
        lane: LaneRef,
        ptr: DevicePtr,
        requested: impl Into<Option<u64>> + Copy,
    ) -> Result<(), Error> {
        if !self.flags.has(flags::TRACE)
            && let Some(front) = self.planned.as_deref()
            && let Some(lane_slot) = front.numbered(lane.lane)
            && let Some(mut guard) = lane_slot.lane.try_lock()
            && let Some(served) = &mut *guard
            && free_held(lane_slot, served, ptr, requested.into())
        {
            return Ok(());
        }
        self.free_planned_slow(lane, ptr, requested)
    }

    /// Frees a block whatever its lane is at, or one that a heap cares for, or says why not.
    #[cold]
    fn free_planned_slow(self, lane: LaneRef, ptr: DevicePtr, requested: impl Into<Option<u64>>) -> Result<(), Error> {
        let requested = requested.into();
        if self.flags.has(flags::TRACE) {
            return self.free_planned_traced(lane, ptr, requested);
        }
        let lane_slot = self.planned.as_deref().and_then(|front| front.numbered(lane.lane));
        let lane_slot = lane_slot.ok_or(Error::InvalidPointer(ptr))?;
        let mut guard = lane_slot.lane.lock();
        if let Some(served) = &mut *guard
            && free_held(lane_slot, served, ptr, requested)
        {
            return Ok(());
        }
        let home = match guard.as_ref().map(|lane| (lane.sequence.held_at(ptr.0), lane.home)) {
            Some((Held::Away, home)) => Some(self.heap_ref(home)),
            Some((Held::Here(actual), _)) => match requested {
                Some(given) if given != actual => return Err(Error::WrongSize { ptr, given, requested: actual }),
                // It was handed out since.
                _ => None,
            },
            Some((Held::Nowhere, _)) | None => None,
        };
        drop(guard);
        match home {
            Some(home) => self.free(home, ptr, requested),
            None => self.free_of_ended(lane, ptr, requested),
        }
    }

    /// Frees a block of a plan while frees are traced: its heap cares for it from here on, and records the free.
    #[cold]
    fn free_planned_traced(self, lane: LaneRef, ptr: DevicePtr, requested: Option<u64>) -> Result<(), Error> {
        if self.planned_allocation(lane, ptr).is_some_and(|held| held.base != ptr) {
            return Err(Error::InvalidPointer(ptr));
        }
        match self.home_of(lane, ptr) {
            Ok(home) => self.free(home, ptr, requested),
            Err(_) => self.free_of_ended(lane, ptr, requested),
        }
    }

    /// Frees a block that the lane does not hold: the lane may have ended since the page map was read. If it has not, the program
    /// holds no such block.
    #[cold]
    fn free_of_ended(self, lane: LaneRef, ptr: DevicePtr, requested: Option<u64>) -> Result<(), Error> {
        match self.pages.owner(ptr) {
            Owner::Heap(home) => self.free(home, ptr, requested),
            Owner::Lane(now) if now != lane => self.free_planned(now, ptr, requested),
            _ => Err(Error::InvalidPointer(ptr)),
        }
    }

    /// The heap that cares for a block of a lane, from here on if it did not before. `ptr` may point anywhere into the block.
    pub(crate) fn home_of(self, mut lane: LaneRef, ptr: DevicePtr) -> Result<HeapRef, Error> {
        while let Some(lane_slot) = self.planned.as_deref().and_then(|front| front.numbered(lane.lane)) {
            let mut guard = lane_slot.lane.lock();
            if let Some(served) = guard.as_mut().filter(|served| served.contains(ptr)) {
                let block = holding(served, ptr).map(|(block, _)| block.addr);
                let home = self.heap_ref(served.home);
                let peaks_stale = match block {
                    Some(addr) => self.move_to_plan_segment(lane_slot, served, addr)?,
                    None => false,
                };
                drop(guard);
                if peaks_stale {
                    self.reconcile_peaks(self.slot(home.heap));
                }
                return Ok(home);
            }
            drop(guard);
            // The lane has ended since the page map was read. The map says now where the block is.
            match self.pages.owner(ptr) {
                Owner::Heap(home) => return Ok(home),
                Owner::Lane(now) if now != lane => lane = now,
                _ => break,
            }
        }
        Err(Error::InvalidPointer(ptr))
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Brings the peaks up to date, and passes a block on.
    #[cold]
    #[inline(never)]
    #[expect(clippy::unnecessary_wraps, reason = "its caller answers what it does")]
    fn reconcile_and_return(&self, tally: &HeapCounters, ptr: DevicePtr) -> Result<DevicePtr, Error> {
        self.reconcile_lane(tally);
        Ok(ptr)
    }

    /// Records in its lane's heap that a block was handed out.
    #[cold]
    fn trace_planned(&self, stream: StreamId, site: u32, ptr: DevicePtr, bytes: u64) {
        let lane_slot = self.planned.as_deref().and_then(|front| front.lane_slot(stream));
        let home = lane_slot.and_then(|lane_slot| Some(lane_slot.lane.lock().as_ref()?.home));
        if let Some(home) = home {
            self.record_alloc(&mut self.lock(home), site, ptr, bytes);
        }
    }

    /// Whether a request is served only if events have freed what is late.
    fn waits(&self, lane: &mut Lane, bytes: u64) -> bool {
        self.reclaim_returned(lane);
        lane.sequence.away > 0 && lane.sequence.is_occupied(bytes)
    }

    /// The blocks that a lane's heap cared for and that are free now are the lane's again.
    pub(super) fn reclaim_returned(&self, lane: &mut Lane) {
        if lane.sequence.away > 0 {
            let returned = self.slot(lane.home).heap.lock().take_returned();
            for addr in returned {
                lane.sequence.come_back(addr);
            }
        }
    }

    #[cold]
    fn reconcile_lane(&self, tally: &HeapCounters) {
        self.reconcile_peaks_of((PoolKind::Large, tally), None);
    }

    /// The counters of the lanes, which count as large.
    pub(super) fn lane_counters(&self) -> impl Iterator<Item = KindCounters<'_>> + Clone {
        self.planned.iter().flat_map(|front| front.tallies()).map(|tally| (PoolKind::Large, tally))
    }

    /// Keeps the settings of the planned policy as they were when the allocator was made.
    pub(super) fn pin_planned(&self, config: &mut Config) {
        config.set_planned(self.planned.as_ref().map(|front| front.options));
    }

    /// A lane's heap cares for the block at `addr` from here on. True if the peaks must be settled.
    fn move_to_plan_segment(&self, lane_slot: &LaneSlot<R>, lane: &mut Lane, addr: u64) -> Result<bool, Error> {
        let slot = self.slot(lane.home);
        let mut heap = self.lock(lane.home);
        let Some((block, requested)) = lane.sequence.here(addr) else { return Ok(false) };
        let peaks_stale =
            heap.take_over((addr, block.size), requested, lane.oversize, (&lane_slot.tally, &slot.tally))?;
        lane.sequence.go_away(addr);
        Ok(peaks_stale)
    }

    /// Every block of a lane is in its heap's care from here on, so that whoever looks at heaps sees all of them.
    pub(super) fn move_all_to_plan_segment(&self, lane_slot: &LaneSlot<R>, lane: &mut Lane) -> Result<bool, Error> {
        let held: alloc::vec::Vec<u64> = lane.sequence.held().map(|(block, _)| block.addr).collect();
        let mut peaks_stale = false;
        for addr in held {
            peaks_stale |= self.move_to_plan_segment(lane_slot, lane, addr)?;
        }
        Ok(peaks_stale)
    }

    /// The same for every lane. What there is no room for stays out of sight.
    pub(crate) fn show_lanes(&self) {
        let Some(front) = self.planned.as_deref() else { return };
        for lane_slot in &front.lane_slots {
            let mut guard = lane_slot.lane.lock();
            let Some(lane) = guard.as_mut() else { continue };
            let home = lane.home;
            let shown = self.move_all_to_plan_segment(lane_slot, lane);
            drop(guard);
            if shown.unwrap_or(true) {
                self.reconcile_peaks(self.slot(home));
            }
        }
    }

    /// Checks every lane, for tests.
    pub(crate) fn check_lanes(&self) -> Result<(), &'static str> {
        let Some(front) = self.planned.as_deref() else { return Ok(()) };
        for lane_slot in &front.lane_slots {
            let guard = lane_slot.lane.lock();
            let (mut blocks, mut bytes, mut asked) = (0, 0, 0);
            if let Some(lane) = guard.as_ref() {
                lane.sequence.check()?;
                for (block, requested) in lane.sequence.held() {
                    (blocks, bytes, asked) = (blocks + 1, bytes + block.size, asked + requested);
                }
            }
            let counted = [(Stat::Allocation, blocks), (Stat::AllocatedBytes, bytes), (Stat::RequestedBytes, asked)];
            if counted.iter().any(|&(stat, sum)| lane_slot.tally.current(stat) != sum as i64) {
                return Err("a lane's statistic is not what its blocks add up to");
            }
        }
        Ok(())
    }

    /// The block that contains `ptr`, if a lane holds it and its heap does not care for it.
    pub(crate) fn planned_allocation(&self, lane: LaneRef, ptr: DevicePtr) -> Option<Allocation> {
        let guard = self.planned.as_deref()?.numbered(lane.lane)?.lane.lock();
        let served = guard.as_ref()?;
        let (block, requested) = holding(served, ptr)?;
        Some(Allocation {
            base: DevicePtr(block.addr),
            size: block.size,
            requested,
            stream: served.stream,
            device: DeviceIndex(self.number),
            segment: DevicePtr(served.base),
            segment_bytes: served.bytes,
        })
    }

    /// Whether a lane holds the block at exactly `ptr`, and it was allocated on this stream.
    pub(crate) fn is_planned_on(&self, lane: LaneRef, ptr: DevicePtr, stream: StreamId) -> bool {
        let held = self.planned_allocation(lane, ptr);
        held.is_some_and(|held| held.base == ptr && held.stream == stream)
    }

    /// The address that a plan would serve a request from, if one would. What its heap has freed is the lane's again, as it would be
    /// at the next request.
    pub(crate) fn planned_forecast(&self, bytes: u64, stream: StreamId) -> Option<DevicePtr> {
        if !self.flags.has(flags::PLANNED) || self.flags.has(DISALLOWED) || bytes > MAX_REQUEST - UNIT {
            return None;
        }
        if self.flags.has(flags::ROUTES)
            && let Some(route) = self.enter_pool(stream)
        {
            self.leave_pool(route.pool);
            return None;
        }
        let mut guard = self.planned.as_deref()?.lane_slot(stream)?.lane.lock();
        let lane = guard.as_mut().filter(|lane| lane.stream == stream)?;
        self.reclaim_returned(lane);
        lane.sequence.peek(bytes).map(DevicePtr)
    }
}

/// Frees a block if its lane holds it, and no heap cares for it.
#[inline(always)]
fn free_held<R: Lock>(lane_slot: &LaneSlot<R>, lane: &mut Lane, ptr: DevicePtr, requested: Option<u64>) -> bool {
    let Some((block, requested)) = lane.sequence.free(ptr.0, requested) else { return false };
    count_down(&lane_slot.tally, lane, block.size, requested);
    true
}

/// The block of a lane that contains `ptr`, unless its heap cares for it.
fn holding(lane: &Lane, ptr: DevicePtr) -> Option<(Placement, u64)> {
    if let Some(block) = lane.sequence.here(ptr.0) {
        return Some(block);
    }
    lane.sequence.held().find(|(block, _)| (block.addr..block.addr + block.size).contains(&ptr.0))
}
