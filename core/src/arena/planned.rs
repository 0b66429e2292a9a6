//! Serves requests and frees from the plans in force.
//!
//! A *lane* serves one stream from a plan: the lane has the sequence of planned requests, a
//! segment, and a lock. The segment belongs to a heap, the lane's *home*. A block of a lane is in
//! one of two states:
//!
//! * *resident*: the block is tracked by the lane alone. A malloc or free of a resident block takes
//!   the lane's lock and no other, and searches nothing.
//! * *delegated*: the home heap has an entry for the block, as for any block of a heap. A block is
//!   delegated once the program does more with the block than malloc and free: a use on another
//!   stream, a free at a count, a traced free. The bytes return to the lane when the heap has freed
//!   the block.
//!
//! ```text
//! malloc ─ stream → lane slot (no lock) ─ try lane lock ─ next request, bytes free? ─▶ done
//!                                              └─ no ─▶ malloc_unplanned ─▶ malloc_deviating
//! free ─── page map → lane (no lock) ──── try lane lock ─ resident? ────────────────▶ done
//!                                              └─ no ─▶ free_planned_slow
//! ```
//!
//! The lane is locked before the home heap, never after.

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

/// Flags under which requests still take the fast path of the plans. Pending frees are among them:
/// a plan gives out only bytes known to be free.
const ALLOWED: u32 = flags::PLANNED | flags::PENDING | flags::DEFERRED | flags::FAST_PATH_FLAGS;

/// Flags under which plans serve no request at all.
const DISALLOWED: u32 = flags::CAPTURE | flags::DIRECT | flags::LOST | flags::OBSERVED;

/// Counts a block of a lane as allocated. Returns true if the peaks must be reconciled.
#[inline(always)]
fn count_allocated(counters: &HeapCounters, lane: &Lane, size: u64, requested: u64) -> bool {
    // `up_to` returns the distance to a threshold, negative once the threshold is exceeded. The OR
    // of the distances is negative iff any of them is: one test instead of four.
    let mut left = counters.up_to(Stat::RequestedBytes, requested);
    left |= counters.up_to(Stat::AllocatedBytes, size);
    left |= counters.up_to(Stat::Allocation, 1);
    if size >= lane.oversize {
        left |= counters.up_to(Stat::OversizeAllocations, 1);
    }
    left < 0
}

/// Counts a block of a lane as freed. A falling count never makes the peaks stale.
#[inline(always)]
fn count_freed(counters: &HeapCounters, lane: &Lane, size: u64, requested: u64) {
    counters.down(Stat::Allocation, 1);
    counters.down(Stat::AllocatedBytes, size);
    counters.down(Stat::RequestedBytes, requested);
    if size >= lane.oversize {
        counters.down(Stat::OversizeAllocations, 1);
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> OnDevice<'_, D, R, S> {
    /// Serves a request from the plan of its stream if the request is the next in the sequence, and
    /// passes on to [`malloc_unplanned`](Self::malloc_unplanned) otherwise.
    #[inline(always)]
    pub(crate) fn malloc_next(self, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        // Every call in this function is inlined or a tail call. Waiting for the lane's lock, or
        // any call that returns here, would need saved registers: 23 instructions. Hence
        // `try_lock`, and hence `reconcile_and_return`. Without plans in force no stream has a lane
        // slot, so `flags::PLANNED` needs no test.
        if !self.flags.has(!ALLOWED)
            && let Some(server) = self.planned.as_deref()
            && let Some(lane_slot) = server.lane_slot(stream)
            && let Some(mut guard) = lane_slot.lane.try_lock()
            && let Some(lane) = &mut *guard
            // The slot may have been given to another stream between the look-up and the lock.
            && lane.stream == stream
            && let Some(Placement { addr, size }) = lane.sequence.next(bytes)
        {
            debug_assert!(lane.contains(DevicePtr(addr)), "a plan places its blocks in the lane's segment");
            let peaks_stale = count_allocated(&lane_slot.counters, lane, size, bytes);
            // Reconciling looks at other lanes and heaps, and takes its own lock: unlock first.
            drop(guard);
            if peaks_stale {
                return self.reconcile_and_return(&lane_slot.counters, DevicePtr(addr));
            }
            return Ok(DevicePtr(addr));
        }
        self.malloc_unplanned(bytes, stream)
    }

    /// Serves a request that [`malloc_next`](Self::malloc_next) has not served from a plan, or
    /// returns `None` if a heap has to serve the request. `flags_set` are the flags as the caller
    /// read them.
    pub(crate) fn malloc_planned(self, flags_set: u32, bytes: u64, stream: StreamId) -> Option<DevicePtr> {
        if flags_set & !ALLOWED == 0 {
            self.malloc_deviating(bytes, stream)
        } else {
            self.malloc_planned_slow(bytes, stream)
        }
    }

    /// Serves a request from a plan while flags outside of [`ALLOWED`] are set.
    #[cold]
    fn malloc_planned_slow(self, bytes: u64, stream: StreamId) -> Option<DevicePtr> {
        if self.flags.has(DISALLOWED) {
            return None;
        }
        // Routes go before plans: a request led into a private pool is not the plan's.
        if self.flags.has(flags::ROUTES)
            && let Some(route) = self.enter_pool(stream)
        {
            self.leave_pool(route.pool);
            return None;
        }
        // The host may make requests of its own when asked for the call site: no lock may be held.
        let site = self.call_site(CallSite::Alloc);
        let ptr = self.malloc_deviating(bytes, stream)?;
        if self.flags.has(flags::TRACE) {
            self.trace_planned(stream, site, ptr, bytes);
        }
        Some(ptr)
    }

    /// Serves a request from the plan of its stream, in order or not. Returns `None`, and counts a
    /// deviation, if the plan has no place for the request or the planned bytes are still in use.
    #[cold]
    fn malloc_deviating(self, bytes: u64, stream: StreamId) -> Option<DevicePtr> {
        let server = self.planned.as_deref()?;
        let Some(lane_slot) = server.lane_slot(stream) else {
            server.elsewhere.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        // Poll only if the result matters: the planned bytes are occupied, and a delegated block
        // may be the reason. The lane is unlocked for the device calls.
        if self.flags.has(flags::PENDING)
            && lane_slot.lane.lock().as_mut().is_some_and(|lane| self.may_wait_for_events(lane, bytes))
        {
            // On an error the bytes stay occupied, and a heap serves the request.
            let _polled = self.process_events();
        }
        let mut guard = lane_slot.lane.lock();
        let lane = guard.as_mut().filter(|lane| lane.stream == stream)?;
        self.reclaim_returned(lane);
        // Searches nearby requests of the sequence, and moves the cursor if the program has skipped
        // some.
        let Placement { addr, size } = lane.sequence.otherwise(bytes)?;
        let peaks_stale = count_allocated(&lane_slot.counters, lane, size, bytes);
        drop(guard);
        if peaks_stale {
            self.reconcile_lane(&lane_slot.counters);
        }
        Some(DevicePtr(addr))
    }

    /// Frees the block at `ptr` on a page that the page map assigns to the lane `owner`.
    /// `requested` is the size in bytes that the caller claims to have requested, if given.
    #[inline(always)]
    pub(crate) fn free_planned(self, owner: LaneRef, ptr: DevicePtr, requested: Option<u64>) -> Result<(), Error> {
        // Two instances of the functions below. `SizeUnknown` takes no register, unlike `None`, so
        // no argument goes to the stack and tail calls need no frame: 8 instructions. After
        // inlining the caller knows which case applies, and the match costs nothing.
        match requested {
            None => self.free_planned_fast(owner, ptr, SizeUnknown),
            Some(requested) => self.free_planned_fast(owner, ptr, requested),
        }
    }

    /// Frees a resident block if the lane's lock is free and no trace is recorded, and passes on to
    /// [`free_planned_slow`](Self::free_planned_slow) otherwise.
    #[inline(never)]
    fn free_planned_fast(
        self,
        owner: LaneRef,
        ptr: DevicePtr,
        requested: impl Into<Option<u64>> + Copy,
    ) -> Result<(), Error> {
        // `try_lock` for the reason given in `malloc_next`: nothing here may return from a call.
        if !self.flags.has(flags::TRACE)
            && let Some(server) = self.planned.as_deref()
            && let Some(lane_slot) = server.numbered(owner.lane)
            && let Some(mut guard) = lane_slot.lane.try_lock()
            && let Some(lane) = &mut *guard
            && free_resident(lane_slot, lane, ptr, requested.into())
        {
            return Ok(());
        }
        self.free_planned_slow(owner, ptr, requested)
    }

    /// Frees a resident or delegated block of a lane, waiting for the lane's lock, or returns the
    /// error for a wrong pointer or size.
    #[cold]
    fn free_planned_slow(self, owner: LaneRef, ptr: DevicePtr, requested: impl Into<Option<u64>>) -> Result<(), Error> {
        let requested = requested.into();
        if self.flags.has(flags::TRACE) {
            return self.free_planned_traced(owner, ptr, requested);
        }
        let lane_slot = self.planned.as_deref().and_then(|server| server.numbered(owner.lane));
        let lane_slot = lane_slot.ok_or(Error::foreign(ptr))?;
        let mut guard = lane_slot.lane.lock();
        if let Some(lane) = &mut *guard
            && free_resident(lane_slot, lane, ptr, requested)
        {
            return Ok(());
        }
        let home = match guard.as_ref().map(|lane| (lane.sequence.held_at(ptr.0), lane.home)) {
            Some((Held::Away, home)) => Some(self.heap_ref(home)),
            Some((Held::Here(actual), _)) => match requested {
                Some(given) if given != actual => return Err(Error::WrongSize { ptr, given, requested: actual }),
                // `free_resident` frees every resident block but for a wrong size.
                _ => None,
            },
            Some((Held::Nowhere, _)) | None => None,
        };
        drop(guard);
        match home {
            Some(home) => self.free(home, ptr, requested),
            None => self.free_of_ended(owner, ptr, requested),
        }
    }

    /// Frees a block of a lane while a trace is recorded. Delegates the block first, so that the
    /// home heap frees and traces the block as any other.
    #[cold]
    fn free_planned_traced(self, owner: LaneRef, ptr: DevicePtr, requested: Option<u64>) -> Result<(), Error> {
        // `home_of` accepts addresses inside a block; a free does not.
        if self.planned_allocation(owner, ptr).is_some_and(|held| held.base != ptr) {
            return Err(self.not_in_lane(owner, ptr));
        }
        match self.home_of(owner, ptr) {
            Ok(home) => self.free(home, ptr, requested),
            Err(_) => self.free_of_ended(owner, ptr, requested),
        }
    }

    /// Frees a block that the lane `owner` does not hold. The lane may have ended since the page
    /// map was read: reads the map again, and fails if the map still names the lane.
    #[cold]
    fn free_of_ended(self, owner: LaneRef, ptr: DevicePtr, requested: Option<u64>) -> Result<(), Error> {
        match self.pages.owner(ptr) {
            Owner::Heap(home) => self.free(home, ptr, requested),
            Owner::Lane(now) if now != owner => self.free_planned(now, ptr, requested),
            Owner::Lane(_) => Err(self.not_in_lane(owner, ptr)),
            Owner::Shared | Owner::None => Err(Error::foreign(ptr)),
        }
    }

    /// Delegates the block that contains `ptr`, if resident, and returns the home heap. `ptr` may
    /// point anywhere into the block.
    ///
    /// Succeeds for any address of the lane's segment: the heap then finds no block there.
    pub(crate) fn home_of(self, mut owner: LaneRef, ptr: DevicePtr) -> Result<HeapRef, Error> {
        while let Some(lane_slot) = self.planned.as_deref().and_then(|server| server.numbered(owner.lane)) {
            let mut guard = lane_slot.lane.lock();
            if let Some(lane) = guard.as_mut().filter(|lane| lane.contains(ptr)) {
                let block = resident_block(lane, ptr).map(|(block, _)| block.addr);
                let home = self.heap_ref(lane.home);
                let peaks_stale = match block {
                    Some(addr) => self.move_to_plan_segment(lane_slot, lane, addr)?,
                    None => false,
                };
                drop(guard);
                if peaks_stale {
                    self.reconcile_peaks(self.slot(home.heap));
                }
                return Ok(home);
            }
            drop(guard);
            // The lane has ended since the page map was read. Read again: a lane that ends hands
            // its pages to the home heap before its slot can be reused.
            match self.pages.owner(ptr) {
                Owner::Heap(home) => return Ok(home),
                Owner::Lane(now) if now != owner => owner = now,
                _ => break,
            }
        }
        Err(Error::foreign(ptr))
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Reconciles the peaks for a lane, and returns `ptr`. Lets `malloc_next` end in a tail call.
    #[cold]
    #[inline(never)]
    #[expect(clippy::unnecessary_wraps, reason = "a tail call needs the return type of the caller")]
    fn reconcile_and_return(&self, counters: &HeapCounters, ptr: DevicePtr) -> Result<DevicePtr, Error> {
        self.reconcile_lane(counters);
        Ok(ptr)
    }

    /// Records in the trace that a lane has handed out a block. The record goes to the buffer of
    /// the home heap, since lanes have none.
    #[cold]
    fn trace_planned(&self, stream: StreamId, site: u32, ptr: DevicePtr, bytes: u64) {
        let lane_slot = self.planned.as_deref().and_then(|server| server.lane_slot(stream));
        let home = lane_slot.and_then(|lane_slot| Some(lane_slot.lane.lock().as_ref()?.home));
        // If the lane has ended since the request was served, the event is left out of the trace.
        if let Some(home) = home {
            self.record_alloc(&mut self.lock(home), site, ptr, bytes);
        }
    }

    /// Returns whether a request finds the planned bytes occupied while blocks are delegated:
    /// complete events may then free the bytes.
    fn may_wait_for_events(&self, lane: &mut Lane, bytes: u64) -> bool {
        self.reclaim_returned(lane);
        lane.sequence.away > 0 && lane.sequence.is_occupied(bytes)
    }

    /// Returns the bytes of delegated blocks to a lane, if the home heap has freed the
    /// blocks.
    pub(super) fn reclaim_returned(&self, lane: &mut Lane) {
        // Without delegated blocks the home heap need not be locked.
        if lane.sequence.away > 0 {
            let returned = self.slot(lane.home).heap.lock().take_returned();
            for addr in returned {
                lane.sequence.come_back(addr);
            }
        }
    }

    /// Reconciles the peaks for the counters of a lane.
    #[cold]
    fn reconcile_lane(&self, counters: &HeapCounters) {
        self.reconcile_peaks_of((PoolKind::Large, counters), None);
    }

    /// Iterates over the counters of all lanes. Blocks of lanes count as large.
    pub(super) fn lane_counters(&self) -> impl Iterator<Item = KindCounters<'_>> + Clone {
        self.planned.iter().flat_map(|server| server.all_counters()).map(|counters| (PoolKind::Large, counters))
    }

    /// Sets the planned policy's settings in `config` to the settings the allocator was made with.
    /// A later configuration cannot change them.
    pub(super) fn pin_planned(&self, config: &mut Config) {
        config.set_planned(self.planned.as_ref().map(|server| server.options));
    }

    /// Delegates the resident block at `addr` to the home heap. Returns true if the peaks must be
    /// reconciled. Does nothing if no resident block begins at `addr`.
    fn move_to_plan_segment(&self, lane_slot: &LaneSlot<R>, lane: &mut Lane, addr: u64) -> Result<bool, Error> {
        let slot = self.slot(lane.home);
        let mut heap = self.lock(lane.home);
        let Some((block, requested)) = lane.sequence.here(addr) else { return Ok(false) };
        // Can fail for want of a table entry, so this comes before the lane is changed. The counts
        // move from the lane's counters to the heap's, and no sum changes.
        let peaks_stale =
            heap.take_over((addr, block.size), requested, lane.oversize, (&lane_slot.counters, &slot.counters))?;
        lane.sequence.go_away(addr);
        Ok(peaks_stale)
    }

    /// Delegates every resident block of a lane to the home heap, for callers that walk heaps.
    /// Returns true if the peaks must be reconciled.
    pub(super) fn move_all_to_plan_segment(&self, lane_slot: &LaneSlot<R>, lane: &mut Lane) -> Result<bool, Error> {
        // Collected first: delegating changes the table that `held` iterates over.
        let held: alloc::vec::Vec<u64> = lane.sequence.held().map(|(block, _)| block.addr).collect();
        let mut peaks_stale = false;
        for addr in held {
            peaks_stale |= self.move_to_plan_segment(lane_slot, lane, addr)?;
        }
        Ok(peaks_stale)
    }

    /// Delegates the resident blocks of all lanes, so that a walk over the heaps finds every block.
    /// Blocks for which a home heap has no room stay resident, and are not found.
    pub(crate) fn show_lanes(&self) {
        let Some(server) = self.planned.as_deref() else { return };
        for lane_slot in &server.lane_slots {
            let mut guard = lane_slot.lane.lock();
            let Some(lane) = guard.as_mut() else { continue };
            let home = lane.home;
            let shown = self.move_all_to_plan_segment(lane_slot, lane);
            drop(guard);
            // An error hides whether the blocks moved so far made the peaks stale: assume so.
            if shown.unwrap_or(true) {
                self.reconcile_peaks(self.slot(home));
            }
        }
    }

    /// Checks the invariants of every lane, for tests. Returns a description of the first
    /// violation.
    pub(crate) fn check_lanes(&self) -> Result<(), &'static str> {
        let Some(server) = self.planned.as_deref() else { return Ok(()) };
        for lane_slot in &server.lane_slots {
            let guard = lane_slot.lane.lock();
            let (mut blocks, mut bytes, mut requested_bytes) = (0, 0, 0);
            if let Some(lane) = guard.as_ref() {
                lane.sequence.check()?;
                for (block, requested) in lane.sequence.held() {
                    (blocks, bytes, requested_bytes) = (blocks + 1, bytes + block.size, requested_bytes + requested);
                }
            }
            // Delegated blocks are counted by the home heap. A slot without a lane counts nothing.
            let counted =
                [(Stat::Allocation, blocks), (Stat::AllocatedBytes, bytes), (Stat::RequestedBytes, requested_bytes)];
            if counted.iter().any(|&(stat, sum)| lane_slot.counters.current(stat) != sum as i64) {
                return Err("a counter of a lane differs from the sum over its blocks");
            }
        }
        Ok(())
    }

    /// Describes the resident block that contains `ptr`. Returns `None` if there is none, or if the
    /// block is delegated.
    pub(crate) fn planned_allocation(&self, owner: LaneRef, ptr: DevicePtr) -> Option<Allocation> {
        let guard = self.planned.as_deref()?.numbered(owner.lane)?.lane.lock();
        let lane = guard.as_ref()?;
        let (block, requested) = resident_block(lane, ptr)?;
        Some(Allocation {
            base: DevicePtr(block.addr),
            size: block.size,
            requested,
            stream: lane.stream,
            device: DeviceIndex(self.number),
            segment: DevicePtr(lane.base),
            segment_bytes: lane.bytes,
        })
    }

    /// Returns whether a resident block begins at exactly `ptr` and was allocated on `stream`.
    pub(crate) fn is_planned_on(&self, owner: LaneRef, ptr: DevicePtr, stream: StreamId) -> bool {
        let held = self.planned_allocation(owner, ptr);
        held.is_some_and(|held| held.base == ptr && held.stream == stream)
    }

    /// Returns the address at which a plan would serve a request made now, or `None` if the request
    /// would go to the heaps. Takes back freed bytes from the home heap, as the request would.
    pub(crate) fn planned_forecast(&self, bytes: u64, stream: StreamId) -> Option<DevicePtr> {
        // Larger requests do not reach the plans.
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

/// Frees the block at exactly `ptr` if the block is resident and `requested`, if given, is the size
/// in bytes that the program requested. Returns whether the block was freed.
#[inline(always)]
fn free_resident<R: Lock>(lane_slot: &LaneSlot<R>, lane: &mut Lane, ptr: DevicePtr, requested: Option<u64>) -> bool {
    let Some((block, requested)) = lane.sequence.free(ptr.0, requested) else { return false };
    count_freed(&lane_slot.counters, lane, block.size, requested);
    true
}

/// Finds the resident block that contains `ptr`, with the requested size in bytes.
fn resident_block(lane: &Lane, ptr: DevicePtr) -> Option<(Placement, u64)> {
    // Most callers pass the first byte: one probe of the address table. Only an address inside a
    // block needs the walk over all blocks of the lane.
    if let Some(block) = lane.sequence.here(ptr.0) {
        return Some(block);
    }
    lane.sequence.held().find(|(block, _)| (block.addr..block.addr + block.size).contains(&ptr.0))
}
