//! Serves requests and frees from the active plans.
//!
//! ```text
//! next ───── stream → heap (no lock) ─── try heap lock ─ next request, bytes free? ─▶ done
//!                                             └─ no ─▶ deviating ─ in the plan? ────▶ done
//!                                                          └─ no ─▶ another heap
//! try_free ─ page map → heap (no lock) ─ try heap lock ─ unlisted block? ───────────▶ done
//!                                             └─ no ─▶ free_planned_slow of free.rs ─ listed, and freed as any block
//! ```
//!
//! `arena/malloc.rs` and `arena/free.rs` call these functions.

use crate::arena::allocation::Allocation;
use crate::arena::flags::{self, FlagWord, Flags};
use crate::arena::heaps::{HeapGuard, Heaps, Slot};
use crate::arena::invalid_pointer::not_in_heap;
use crate::arena::plans::Plans;
use crate::arena::platform::Platform;
use crate::error::Error;
use crate::heap::Outcome;
use crate::sync::{Lock, Ordering};
use crate::tables::OnceTable;
use crate::units::{DeviceIndex, DevicePtr, StreamId};

/// The flags under which requests still take the fast path of the plans. Pending frees are among
/// them, because a plan gives out only bytes that are known to be free.
const ALLOWED: FlagWord = flags::PLANNED | flags::PENDING | flags::DEFERRED | flags::FAST_PATH_FLAGS;

/// The flags under which plans serve no request at all.
const DISALLOWED: FlagWord = flags::CAPTURE | flags::DIRECT | flags::LOST | flags::OBSERVED;

/// Returns whether any flag is set that keeps requests from the fast path of the plans.
pub(in crate::arena) fn is_unusual(word: FlagWord) -> bool {
    word & !ALLOWED != 0
}

/// Returns whether plans serve no request at all.
pub(in crate::arena) fn are_off(flags: &Flags) -> bool {
    flags.has(DISALLOWED)
}

impl<R: Lock> Plans<R> {
    /// Serves a request from the plan of its stream, if it is the next one in the sequence.
    #[inline(always)]
    pub(in crate::arena) fn next<'a, P>(
        &self,
        heaps: &'a Heaps<P>,
        flags: &Flags,
        bytes: u64,
        stream: StreamId,
    ) -> Option<(&'a Slot<P>, Outcome<DevicePtr>)>
    where
        P: Platform<Lock = R>,
    {
        // `try_lock`, because waiting for the heap's lock would need saved registers. If no plans
        // are active, no stream has a lane, so `flags::PLANNED` needs no test.
        if !flags.has(!ALLOWED)
            && let Some(server) = self.server()
            && let Some(heap) = server.heap_of(stream)
            && let Some(slot) = heaps.slots.get(heap)
            && let Some(mut heap) = slot.heap.try_lock()
            && let Some(served) = heap.malloc_planned(bytes, stream, &slot.counters)
        {
            debug_assert!(!heap.clean, "a heap with a plan stays dirty");
            drop(heap);
            return Some((slot, served));
        }
        None
    }

    /// Returns whether a request finds its planned bytes occupied while blocks are listed. Complete
    /// events may then free these bytes.
    pub(in crate::arena) fn is_occupied<P>(&self, heaps: &Heaps<P>, bytes: u64, stream: StreamId) -> bool
    where
        P: Platform<Lock = R>,
    {
        let heap = self.server().and_then(|server| server.heap_of(stream));
        heap.is_some_and(|heap| heaps.lock(heap).is_occupied(bytes, stream))
    }

    /// Serves a request from the plan of its stream, in order or not. Returns the block with the
    /// locked heap, or `None` if another heap has to serve the request.
    #[cold]
    pub(in crate::arena) fn deviating<'a, P>(
        &self,
        heaps: &'a Heaps<P>,
        bytes: u64,
        stream: StreamId,
    ) -> Option<(&'a Slot<P>, HeapGuard<'a, P>, Outcome<DevicePtr>)>
    where
        P: Platform<Lock = R>,
    {
        let server = self.server()?;
        let Some(heap) = server.heap_of(stream) else {
            server.without_lane.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let (slot, mut heap) = (heaps.slot(heap), heaps.lock(heap));
        let block = heap.malloc_deviating(bytes, stream, &slot.counters)?;
        Some((slot, heap, block))
    }

    /// Lists the blocks of all plans, so that a walk over the heaps finds every block. If a heap
    /// has no room for a block, the block stays unlisted and is not found.
    pub(crate) fn list_all<P: Platform<Lock = R>>(&self, heaps: &Heaps<P>) {
        for heap in self.heaps() {
            let _all = heaps.lock(heap).list_all();
        }
    }

    /// Returns the address at which a plan would serve a request made now, or `None` if the request
    /// would go to another heap.
    pub(in crate::arena) fn forecast<P>(&self, heaps: &Heaps<P>, bytes: u64, stream: StreamId) -> Option<DevicePtr>
    where
        P: Platform<Lock = R>,
    {
        let heap = self.server()?.heap_of(stream)?;
        heaps.lock(heap).peek_planned(bytes, stream)
    }
}

/// Frees the unlisted block at exactly `ptr` of the heap in `slot`, if the heap's lock is free.
/// Returns whether the block was freed.
#[inline(always)]
pub(in crate::arena) fn try_free<P: Platform>(
    heaps: &Heaps<P>,
    slot: u32,
    ptr: DevicePtr,
    requested: Option<u64>,
) -> bool {
    // `try_lock` as in `next`.
    if let Some(slot) = heaps.slots.get(slot)
        && let Some(mut heap) = slot.heap.try_lock()
    {
        return heap.free_planned(ptr, requested, &slot.counters);
    }
    false
}

/// Frees the unlisted block at exactly `ptr` of the heap in `slot`, unless a trace `records` the
/// free, or lists the block that contains `ptr`. Returns whether the block was freed.
///
/// # Errors
/// [`Error::InvalidPointer`] if `ptr` is inside an unlisted block.
pub(in crate::arena) fn free_or_list<P: Platform>(
    heaps: &Heaps<P>,
    slot: u32,
    ptr: DevicePtr,
    requested: Option<u64>,
    records: bool,
) -> Result<bool, Error> {
    let mut heap = heaps.lock(slot);
    if !records && heap.free_planned(ptr, requested, &heaps.slot(slot).counters) {
        return Ok(true);
    }
    let listed = heap.list_block(ptr)?;
    if listed.is_some_and(|block| block != ptr) { Err(not_in_heap(&heap, ptr)) } else { Ok(false) }
}

/// Lists the block of the heap in `slot` that contains `ptr`, if it is unlisted.
pub(crate) fn list_block<P: Platform>(heaps: &Heaps<P>, slot: u32, ptr: DevicePtr) -> Result<(), Error> {
    heaps.lock(slot).list_block(ptr)?;
    Ok(())
}

/// Describes the unlisted block of the heap in `slot` that contains `ptr`. Returns `None` if there
/// is none.
pub(crate) fn allocation<P: Platform>(heaps: &Heaps<P>, slot: u32, ptr: DevicePtr) -> Option<Allocation> {
    let heap = heaps.lock(slot);
    let (block, requested) = heap.unlisted_at(ptr)?;
    let segment = &heap.segments[heap.newest];
    Some(Allocation {
        base: DevicePtr(block.addr),
        size: block.size,
        requested,
        stream: heap.stream,
        device: DeviceIndex(heaps.device()),
        segment: DevicePtr(segment.base),
        segment_bytes: segment.bytes,
    })
}
