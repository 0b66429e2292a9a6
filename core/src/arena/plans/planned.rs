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

use crate::arena::flags::FlagWord;
use crate::arena::heaps::Heaps;
use crate::arena::plans::resident_block;
use crate::arena::{Arena, OnDevice, Platform, flags};
use crate::config::rounding::PoolKind;
use crate::error::Error;
use crate::page_map::{HeapRef, LaneRef, Owner};
use crate::planned::lanes::{Lane, LaneSlot, SizeUnknown};
use crate::planned::sequence::{AddressOwner, Placement};
use crate::stats::{HeapCounters, Stat};
use crate::sync::{Lock, Ordering};
use crate::trace::CallSite;
use crate::units::{DevicePtr, MAX_REQUEST, StreamId, UNIT};

/// Flags under which requests still take the fast path of the plans. Pending frees are among them:
/// a plan gives out only bytes known to be free.
const ALLOWED: FlagWord = flags::PLANNED | flags::PENDING | flags::DEFERRED | flags::FAST_PATH_FLAGS;

/// Flags under which plans serve no request at all.
const DISALLOWED: FlagWord = flags::CAPTURE | flags::DIRECT | flags::LOST | flags::OBSERVED;

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

impl<P: Platform> OnDevice<'_, P> {
    /// Serves a request from the plan of its stream if the request is the next in the sequence, and
    /// passes on to [`malloc_unplanned`](Self::malloc_unplanned) otherwise.
    #[inline(always)]
    pub(crate) fn malloc_next(self, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        // Every call in this function is inlined or a tail call. Waiting for the lane's lock, or
        // any call that returns here, would need saved registers: 23 instructions. Hence
        // `try_lock`, and hence `reconcile_and_return`. Without plans in force no stream has a lane
        // slot, so `flags::PLANNED` needs no test.
        if !self.driver.flags.has(!ALLOWED)
            && let Some(server) = self.plans.server()
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
    pub(crate) fn malloc_planned(self, flags_set: FlagWord, bytes: u64, stream: StreamId) -> Option<DevicePtr> {
        if flags_set & !ALLOWED == 0 {
            self.malloc_deviating(bytes, stream)
        } else {
            self.malloc_planned_slow(bytes, stream)
        }
    }

    /// Serves a request from a plan while flags outside of [`ALLOWED`] are set.
    #[cold]
    fn malloc_planned_slow(self, bytes: u64, stream: StreamId) -> Option<DevicePtr> {
        if self.driver.flags.has(DISALLOWED) {
            return None;
        }
        // Routes go before plans: a request led into a private pool is not the plan's.
        if self.is_routed(stream) {
            return None;
        }
        // The host may make requests of its own when asked for the call site: no lock may be held.
        let site = self.call_site(CallSite::Alloc);
        let ptr = self.malloc_deviating(bytes, stream)?;
        if self.driver.flags.has(flags::TRACE) {
            self.trace_planned(stream, site, ptr, bytes);
        }
        Some(ptr)
    }

    /// Serves a request from the plan of its stream, in order or not. Returns `None`, and counts a
    /// deviation, if the plan has no place for the request or the planned bytes are still in use.
    #[cold]
    fn malloc_deviating(self, bytes: u64, stream: StreamId) -> Option<DevicePtr> {
        let server = self.plans.server()?;
        let Some(lane_slot) = server.lane_slot(stream) else {
            server.without_lane.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        // Poll only if the result matters: the planned bytes are occupied, and a delegated block
        // may be the reason. The lane is unlocked for the device calls.
        if self.driver.flags.has(flags::PENDING | flags::GATHERED | flags::DEFERRED)
            && lane_slot.lane.lock().as_mut().is_some_and(|lane| may_wait_for_events(&self.heaps, lane, bytes))
        {
            // On an error the bytes stay occupied, and a heap serves the request.
            let _polled = self.process_events();
        }
        let mut guard = lane_slot.lane.lock();
        let lane = guard.as_mut().filter(|lane| lane.stream == stream)?;
        self.heaps.reclaim_returned(lane);
        // Searches nearby requests of the sequence, and moves the cursor if the program has skipped
        // some.
        let Placement { addr, size } = lane.sequence.next_deviating(bytes)?;
        let peaks_stale = count_allocated(&lane_slot.counters, lane, size, bytes);
        drop(guard);
        if peaks_stale {
            self.reconcile_peaks_of((PoolKind::Large, &lane_slot.counters), None);
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
        if !self.driver.flags.has(flags::TRACE)
            && let Some(server) = self.plans.server()
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
        if self.driver.flags.has(flags::TRACE) {
            return self.free_planned_traced(owner, ptr, requested);
        }
        let lane_slot = self.plans.server().and_then(|server| server.numbered(owner.lane));
        let lane_slot = lane_slot.ok_or(Error::foreign(ptr))?;
        let mut guard = lane_slot.lane.lock();
        if let Some(lane) = &mut *guard
            && free_resident(lane_slot, lane, ptr, requested)
        {
            return Ok(());
        }
        let home = match guard.as_ref().map(|lane| (lane.sequence.find(ptr.0), lane.home)) {
            Some((AddressOwner::Delegated, home)) => Some(self.heaps.heap_ref(home)),
            Some((AddressOwner::Resident(actual), _)) => match requested {
                Some(given) if given != actual => return Err(Error::WrongSize { ptr, given, requested: actual }),
                // `free_resident` frees every resident block but for a wrong size.
                _ => None,
            },
            Some((AddressOwner::Nothing, _)) | None => None,
        };
        drop(guard);
        match home {
            Some(home) => self.free(home, ptr, requested),
            None => self.free_of_ended(owner, ptr, requested),
        }
    }

    /// Frees a block of a lane while a trace is recorded. Delegates the block first, so the
    /// home heap frees and traces the block as any other.
    #[cold]
    fn free_planned_traced(self, owner: LaneRef, ptr: DevicePtr, requested: Option<u64>) -> Result<(), Error> {
        // `home_of` accepts addresses inside a block; a free does not.
        if self.plans.allocation(owner, ptr).is_some_and(|held| held.base != ptr) {
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
        while let Some(lane_slot) = self.plans.server().and_then(|server| server.numbered(owner.lane)) {
            let mut guard = lane_slot.lane.lock();
            if let Some(lane) = guard.as_mut().filter(|lane| lane.contains(ptr)) {
                let block = resident_block(lane, ptr).map(|(block, _)| block.addr);
                let home = self.heaps.heap_ref(lane.home);
                let peaks_stale = match block {
                    Some(addr) => self.heaps.delegate(lane_slot, lane, addr)?,
                    None => false,
                };
                drop(guard);
                self.settle_peaks(self.heaps.slot(home.heap), peaks_stale);
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

impl<P: Platform> Arena<P> {
    /// Reconciles the peaks for a lane, and returns `ptr`. Lets `malloc_next` end in a tail call.
    #[cold]
    #[inline(never)]
    #[expect(clippy::unnecessary_wraps, reason = "a tail call needs the return type of the caller")]
    fn reconcile_and_return(&self, counters: &HeapCounters, ptr: DevicePtr) -> Result<DevicePtr, Error> {
        self.reconcile_peaks_of((PoolKind::Large, counters), None);
        Ok(ptr)
    }

    /// Records in the trace that a lane has handed out a block. The record goes to the buffer of
    /// the home heap, since lanes have none.
    #[cold]
    fn trace_planned(&self, stream: StreamId, site: u32, ptr: DevicePtr, bytes: u64) {
        let lane_slot = self.plans.server().and_then(|server| server.lane_slot(stream));
        let home = lane_slot.and_then(|lane_slot| Some(lane_slot.lane.lock().as_ref()?.home));
        // If the lane has ended since the request was served, the event is left out of the trace.
        if let Some(home) = home {
            self.recorder().alloc(&mut self.heaps.lock(home), site, ptr, bytes);
        }
    }

    /// Delegates the resident blocks of all lanes, so a walk over the heaps finds every block.
    /// Blocks for which a home heap has no room stay resident, and are not found.
    pub(crate) fn delegate_lanes(&self) {
        let Some(server) = self.plans.server() else { return };
        for lane_slot in &server.lane_slots {
            let mut guard = lane_slot.lane.lock();
            let Some(lane) = guard.as_mut() else { continue };
            let home = lane.home;
            let shown = self.heaps.delegate_all(lane_slot, lane);
            drop(guard);
            // An error hides whether the blocks moved so far made the peaks stale: assume so.
            self.settle_peaks(self.heaps.slot(home), shown.unwrap_or(true));
        }
    }

    /// Returns whether a route leads a request on `stream` into a private pool.
    fn is_routed(&self, stream: StreamId) -> bool {
        let route = if self.driver.flags.has(flags::ROUTES) { self.enter_pool(stream) } else { None };
        route.inspect(|route| self.heaps.leave_pool(route.pool)).is_some()
    }

    /// Returns the address at which a plan would serve a request made now, or `None` if the request
    /// would go to the heaps. Takes back freed bytes from the home heap, as the request would.
    pub(crate) fn planned_forecast(&self, bytes: u64, stream: StreamId) -> Option<DevicePtr> {
        // Larger requests do not reach the plans.
        let is_larger = bytes > MAX_REQUEST - UNIT;
        if !self.driver.flags.has(flags::PLANNED) || self.driver.flags.has(DISALLOWED) || is_larger || self.is_routed(stream) {
            return None;
        }
        let mut guard = self.plans.server()?.lane_slot(stream)?.lane.lock();
        let lane = guard.as_mut().filter(|lane| lane.stream == stream)?;
        self.heaps.reclaim_returned(lane);
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

/// Returns whether a request finds the planned bytes occupied while blocks are delegated:
/// complete events may then free the bytes.
fn may_wait_for_events<P: Platform>(heaps: &Heaps<P>, lane: &mut Lane, bytes: u64) -> bool {
    heaps.reclaim_returned(lane);
    lane.sequence.delegated > 0 && lane.sequence.is_occupied(bytes)
}
