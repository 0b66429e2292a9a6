//! Serves requests and frees from the active plans.
//!
//! A *lane* serves one stream from a plan. It consists of the sequence of planned requests, a
//! segment, and a lock. The segment belongs to a heap, which is the lane's *home*. A block of a
//! lane is in one of two states:
//!
//! * *resident*: only the lane tracks the block. A malloc or free of a resident block takes only
//!   the lane's lock, and searches nothing.
//! * *delegated*: the home heap has an entry for the block, as for any of its blocks. A block is
//!   delegated once the program does more with it than malloc and free: a use on another stream, a
//!   free at a count, or a traced free. The bytes return to the lane when the heap has freed the
//!   block.
//!
//! ```text
//! next ───── stream → lane slot (no lock) ─ try lane lock ─ next request, bytes free? ─▶ done
//!                                                └─ no ─▶ deviating ─▶ a heap
//! try_free ─ page map → lane (no lock) ──── try lane lock ─ resident? ────────────────▶ done
//!                                                └─ no ─▶ free ─▶ the home heap
//! ```
//!
//! The lane is locked before the home heap, never after it. `arena/malloc.rs` and `arena/free.rs`
//! call these functions.

use crate::arena::flags::{self, FlagWord, Flags};
use crate::arena::heaps::Heaps;
use crate::arena::plans::{Plans, resident_block};
use crate::arena::platform::{OwnerMap, Platform};
use crate::error::Error;
use crate::page_map::{HeapRef, LaneRef, Owner};
use crate::planned::lanes::{Lane, LaneSlot};
use crate::planned::sequence::{AddressOwner, Placement};
use crate::stats::{HeapCounters, Stat};
use crate::sync::{Lock, Ordering};
use crate::units::{DevicePtr, StreamId};

/// The flags under which requests still take the fast path of the plans. Pending frees are among
/// them, because a plan gives out only bytes that are known to be free.
const ALLOWED: FlagWord = flags::PLANNED | flags::PENDING | flags::DEFERRED | flags::FAST_PATH_FLAGS;

/// The flags under which plans serve no request at all.
const DISALLOWED: FlagWord = flags::CAPTURE | flags::DIRECT | flags::LOST | flags::OBSERVED;

/// Counts a block of a lane as allocated. Returns true if the peaks must be reconciled.
#[inline(always)]
fn count_allocated(counters: &HeapCounters, lane: &Lane, size: u64, requested: u64) -> bool {
    // `up_to` returns the distance to a threshold, which is negative once the threshold is
    // exceeded. The OR of the distances is negative iff any of them is, so this takes one test
    // instead of four.
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

/// A block that a plan has handed out.
pub(in crate::arena) struct PlannedBlock<'a> {
    pub ptr: DevicePtr,
    /// The counters of the lane.
    pub counters: &'a HeapCounters,
    /// Whether the peaks must be reconciled. This reads other lanes and heaps, so it is left to the
    /// caller.
    pub peaks_stale: bool,
}

/// Returns whether any flag is set that keeps requests from the fast path of the plans.
pub(in crate::arena) fn is_unusual(word: FlagWord) -> bool {
    word & !ALLOWED != 0
}

/// Returns whether plans serve no request at all.
pub(in crate::arena) fn are_off(flags: &Flags) -> bool {
    flags.has(DISALLOWED)
}

/// The outcome of freeing a block of a lane.
pub(in crate::arena) enum FreedOf {
    /// The block is free.
    Lane,
    /// The block is an entry of this heap.
    Home(HeapRef),
    /// The lane does not hold the block. It may have ended since the page map was read.
    Nothing,
}

impl<R: Lock> Plans<R> {
    /// Serves a request from the plan of its stream, if it is the next one in the sequence.
    #[inline(always)]
    pub(in crate::arena) fn next(&self, flags: &Flags, bytes: u64, stream: StreamId) -> Option<PlannedBlock<'_>> {
        // `try_lock`, because waiting for the lane's lock would need saved registers. If no plans
        // are active, no stream has a lane slot, so `flags::PLANNED` needs no test.
        if !flags.has(!ALLOWED)
            && let Some(server) = self.server()
            && let Some(lane_slot) = server.lane_slot(stream)
            && let Some(mut guard) = lane_slot.lane.try_lock()
            && let Some(lane) = &mut *guard
            // The slot may have been given to another stream between the lookup and the lock.
            && lane.stream == stream
            && let Some(Placement { addr, size }) = lane.sequence.next(bytes)
        {
            debug_assert!(lane.contains(DevicePtr(addr)), "a plan places its blocks in the lane's segment");
            let counters = &lane_slot.counters;
            let peaks_stale = count_allocated(counters, lane, size, bytes);
            drop(guard);
            return Some(PlannedBlock { ptr: DevicePtr(addr), counters, peaks_stale });
        }
        None
    }

    /// Returns whether a request finds its planned bytes occupied while blocks are delegated.
    /// Complete events may then free these bytes.
    pub(in crate::arena) fn is_occupied<P>(&self, heaps: &Heaps<P>, bytes: u64, stream: StreamId) -> bool
    where
        P: Platform<Lock = R>,
    {
        let Some(lane_slot) = self.server().and_then(|server| server.lane_slot(stream)) else { return false };
        lane_slot.lane.lock().as_mut().is_some_and(|lane| {
            heaps.reclaim_returned(lane);
            lane.sequence.delegated > 0 && lane.sequence.is_occupied(bytes)
        })
    }

    /// Serves a request from the plan of its stream, in order or not. Returns `None`, and counts a
    /// deviation, if the plan has no place for the request or the planned bytes are still in use.
    #[cold]
    pub(in crate::arena) fn deviating<P>(
        &self,
        heaps: &Heaps<P>,
        bytes: u64,
        stream: StreamId,
    ) -> Option<PlannedBlock<'_>>
    where
        P: Platform<Lock = R>,
    {
        let server = self.server()?;
        let Some(lane_slot) = server.lane_slot(stream) else {
            server.without_lane.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let mut guard = lane_slot.lane.lock();
        let lane = guard.as_mut().filter(|lane| lane.stream == stream)?;
        heaps.reclaim_returned(lane);
        // Searches nearby requests of the sequence, and moves the cursor if the program has skipped
        // some.
        let Placement { addr, size } = lane.sequence.next_deviating(bytes)?;
        let counters = &lane_slot.counters;
        let peaks_stale = count_allocated(counters, lane, size, bytes);
        Some(PlannedBlock { ptr: DevicePtr(addr), counters, peaks_stale })
    }

    /// Returns the slot of the home heap of a stream's lane.
    pub(in crate::arena) fn home_of_stream(&self, stream: StreamId) -> Option<u32> {
        let lane_slot = self.server()?.lane_slot(stream)?;
        Some(lane_slot.lane.lock().as_ref()?.home)
    }

    /// Frees a resident block if the lane's lock is free. Returns whether the block was freed.
    #[inline(always)]
    pub(in crate::arena) fn try_free(&self, owner: LaneRef, ptr: DevicePtr, requested: Option<u64>) -> bool {
        // `try_lock` as in `next`.
        if let Some(server) = self.server()
            && let Some(lane_slot) = server.numbered(owner.lane)
            && let Some(mut guard) = lane_slot.lane.try_lock()
            && let Some(lane) = &mut *guard
        {
            return free_resident(lane_slot, lane, ptr, requested);
        }
        false
    }

    /// Frees a resident block of a lane, waiting for the lane's lock, or returns where the block
    /// is.
    ///
    /// # Errors
    /// [`Error::WrongSize`]; [`Error::InvalidPointer`] if there is no such lane.
    pub(in crate::arena) fn free<P>(
        &self,
        heaps: &Heaps<P>,
        owner: LaneRef,
        ptr: DevicePtr,
        requested: Option<u64>,
    ) -> Result<FreedOf, Error>
    where
        P: Platform<Lock = R>,
    {
        let lane_slot = self.server().and_then(|server| server.numbered(owner.lane));
        let lane_slot = lane_slot.ok_or(Error::foreign(ptr))?;
        let mut guard = lane_slot.lane.lock();
        let Some(lane) = &mut *guard else { return Ok(FreedOf::Nothing) };
        if free_resident(lane_slot, lane, ptr, requested) {
            return Ok(FreedOf::Lane);
        }
        match (lane.sequence.find(ptr.0), requested) {
            (AddressOwner::Delegated, _) => Ok(FreedOf::Home(heaps.heap_ref(lane.home))),
            (AddressOwner::Resident(actual), Some(given)) if given != actual => {
                Err(Error::WrongSize { ptr, given, requested: actual })
            }
            // `free_resident` frees every resident block, unless the size is wrong.
            (AddressOwner::Resident(_) | AddressOwner::Nothing, _) => Ok(FreedOf::Nothing),
        }
    }

    /// Delegates the block that contains `ptr`, if it is resident. Returns the home heap, and
    /// whether its peaks must be reconciled. `ptr` may point anywhere into the block.
    ///
    /// Succeeds for any address of the lane's segment. If there is no block, the heap reports it.
    pub(in crate::arena) fn home_of<P: Platform<Lock = R>>(
        &self,
        heaps: &Heaps<P>,
        pages: &OwnerMap<P>,
        mut owner: LaneRef,
        ptr: DevicePtr,
    ) -> Result<(HeapRef, bool), Error> {
        while let Some(lane_slot) = self.server().and_then(|server| server.numbered(owner.lane)) {
            let mut guard = lane_slot.lane.lock();
            if let Some(lane) = guard.as_mut().filter(|lane| lane.contains(ptr)) {
                let home = heaps.heap_ref(lane.home);
                let peaks_stale = match resident_block(lane, ptr) {
                    Some((block, _)) => heaps.delegate(lane_slot, lane, block.addr)?,
                    None => false,
                };
                return Ok((home, peaks_stale));
            }
            drop(guard);
            // The lane has ended since the page map was read. Read it again: a lane that ends hands
            // its pages to the home heap before its slot can be reused.
            match pages.owner(ptr) {
                Owner::Heap(home) => return Ok((home, false)),
                Owner::Lane(now) if now != owner => owner = now,
                _ => break,
            }
        }
        Err(Error::foreign(ptr))
    }

    /// Delegates the resident blocks of all lanes, so that a walk over the heaps finds every block.
    /// Calls `settle` with each home heap, and with whether its peaks must be reconciled. If a home
    /// heap has no room for a block, the block stays resident and is not found.
    pub(in crate::arena) fn delegate_all<P: Platform<Lock = R>>(&self, heaps: &Heaps<P>, settle: impl Fn(u32, bool)) {
        let Some(server) = self.server() else { return };
        for lane_slot in &server.lane_slots {
            let mut guard = lane_slot.lane.lock();
            let Some(lane) = guard.as_mut() else { continue };
            let home = lane.home;
            let shown = heaps.delegate_all(lane_slot, lane);
            drop(guard);
            // An error hides whether the blocks moved so far have made the peaks stale, so assume
            // that they have.
            settle(home, shown.unwrap_or(true));
        }
    }

    /// Returns the address at which a plan would serve a request made now, or `None` if the request
    /// would go to the heaps. Takes freed bytes back from the home heap, as the request would.
    pub(in crate::arena) fn forecast<P>(&self, heaps: &Heaps<P>, bytes: u64, stream: StreamId) -> Option<DevicePtr>
    where
        P: Platform<Lock = R>,
    {
        let mut guard = self.server()?.lane_slot(stream)?.lane.lock();
        let lane = guard.as_mut().filter(|lane| lane.stream == stream)?;
        heaps.reclaim_returned(lane);
        lane.sequence.peek(bytes).map(DevicePtr)
    }
}

/// Frees the block at exactly `ptr` if it is resident, and if `requested`, when given, is the size
/// in bytes that the program requested. Returns whether the block was freed.
#[inline(always)]
fn free_resident<R: Lock>(lane_slot: &LaneSlot<R>, lane: &mut Lane, ptr: DevicePtr, requested: Option<u64>) -> bool {
    let Some((block, requested)) = lane.sequence.free(ptr.0, requested) else { return false };
    count_freed(&lane_slot.counters, lane, block.size, requested);
    true
}
