//! Frees: at once where only the block's own stream used the block, else once events tell the end of all further uses.
//!
//! ```text
//! free ─ no flag set ─▶ detach ─ used by its own stream only ─▶ finish ─▶ done
//!   └─ free_slow ────────▶  └─ otherwise ─▶ free_with_uses ─▶ events.rs
//! ```

use crate::arena::heaps::{HeapGuard, Slot};
use crate::arena::invalid_pointer::not_in_heap;
use crate::arena::{Arena, OnDevice, Platform, flags};
use crate::device::{Segments, StreamOrder};
use crate::error::Error;
use crate::heap::FreeOutcome;
use crate::page_map::HeapRef;
use crate::streams::fences::Waiter;
use crate::tables::OnceTable;
use crate::tables::slot_table::NONE;
use crate::trace::CallSite;
use crate::units::{DevicePtr, StreamId};

/// The arguments of a free, as the program gave them.
#[derive(Clone, Copy)]
struct FreeArgs {
    ptr: DevicePtr,
    /// The requested size in bytes, if the program states the size at the free.
    requested: Option<u64>,
    /// The call site of the free; 0 if none is recorded.
    site: u32,
}

impl<P: Platform> OnDevice<'_, P> {
    /// Frees the block at `ptr` if the heap owns it. `requested`, if given, must be the size of the request.
    #[inline(always)]
    pub(crate) fn free<E: From<Error>>(self, owner: HeapRef, ptr: DevicePtr, requested: Option<u64>) -> Result<(), E> {
        let slot = self.heaps.slots.get(owner.heap).expect("an owner is a heap that exists");
        // Ages need the heap's clock set: 3 instructions of a pair, which only programs pay that collect garbage.
        if !self.driver.flags.has(flags::SLOW_FREE_FLAGS) {
            return self.free_in::<false, _>(slot, slot.heap.lock(), owner, ptr, requested);
        }
        Ok(self.free_slow(owner.heap, ptr, requested)?)
    }

    /// Frees the block at `ptr` as [`free`](Self::free) does. The straight path, for plain heaps, is inlined, and all else is a call.
    #[inline(always)]
    pub(crate) fn free_inlined<E: From<Error>>(
        self,
        owner: HeapRef,
        ptr: DevicePtr,
        requested: Option<u64>,
    ) -> Result<(), E> {
        if let Some(slot) = self.heaps.slots.get(owner.heap)
            && !self.driver.flags.has(flags::SLOW_FREE_FLAGS | flags::RULES)
        {
            let heap = slot.heap.lock();
            if heap.plain {
                return self.free_in::<true, _>(slot, heap, owner, ptr, requested);
            }
        }
        Ok(self.free_outlined(owner, ptr, requested)?)
    }

    /// Frees the block at `ptr` as [`free`](Self::free) does.
    #[inline(never)]
    pub(crate) fn free_outlined(self, owner: HeapRef, ptr: DevicePtr, requested: Option<u64>) -> Result<(), Error> {
        self.free(owner, ptr, requested)
    }

    /// Frees the block at `ptr` of the heap in `slot`, and unlocks the heap. `PLAIN`: the heap is plain.
    #[inline(always)]
    fn free_in<const PLAIN: bool, E: From<Error>>(
        self,
        slot: &Slot<P>,
        mut heap: HeapGuard<'_, P>,
        owner: HeapRef,
        ptr: DevicePtr,
        requested: Option<u64>,
    ) -> Result<(), E> {
        // The heap may have lost its last segment since the page map was read. It then holds no block at `ptr`.
        let outcome = heap.detach_from::<PLAIN>(ptr, requested, &slot.counters);
        if let FreeOutcome::Unused(block) = outcome {
            self.finish::<PLAIN>(slot, heap, block);
            return Ok(());
        }
        Ok(self.free_with_uses(owner.heap, heap, outcome, FreeArgs { ptr, requested, site: 0 })?)
    }

    /// Frees a block under any flags.
    #[cold]
    fn free_slow(self, number: u32, ptr: DevicePtr, requested: Option<u64>) -> Result<(), Error> {
        // Before the heap is locked: the host may take long to find its call site.
        let site = self.call_site(CallSite::Free);
        // Before the block is free: another thread may be handed its address at once, and is then observed after this free.
        self.plans.observe_free(&self.driver.flags, ptr);
        let mut heap = self.heaps.lock(number);
        let slot = self.heaps.slot(number);
        let outcome = heap.detach(ptr, requested, &slot.counters);
        if let FreeOutcome::Unused(block) = outcome
            && !self.driver.flags.has(flags::DIRECT)
        {
            self.trace(|recorder| recorder.free(&mut heap, block, ptr, site));
            self.finish::<false>(slot, heap, block);
            return Ok(());
        }
        if let FreeOutcome::Used(block) = outcome
            && self.driver.flags.has(flags::GUARDED)
        {
            self.heaps.loosen(slot, &mut heap);
            heap.pend(block, &slot.counters);
            return self.note_and_wait(number, heap, block, site);
        }
        self.free_with_uses(number, heap, outcome, FreeArgs { ptr, requested, site })?;
        if self.driver.flags.has(flags::DIRECT) && self.driver.device().is_ordered() {
            // A failure is no error of the free: the block stays pending, and a later call polls its events.
            let _later = self.order_pending();
        }
        Ok(())
    }

    /// Frees a block that other streams may use, once they are done with it; or says why the block cannot be freed. Unlocks
    /// the heap.
    #[cold]
    fn free_with_uses(
        self,
        number: u32,
        mut heap: HeapGuard<'_, P>,
        outcome: FreeOutcome,
        FreeArgs { ptr, requested, site }: FreeArgs,
    ) -> Result<(), Error> {
        let block = match (outcome, requested) {
            (FreeOutcome::Unused(block) | FreeOutcome::Used(block), _) => block,
            (FreeOutcome::WrongSize(block), Some(given)) => {
                return Err(Error::WrongSize { ptr, given, requested: heap.blocks[block].requested });
            }
            _ => return Err(not_in_heap(&heap, ptr)),
        };
        let slot = self.heaps.slot(number);
        // The counters have changed already, and the lock was not left since.
        self.heaps.loosen(slot, &mut heap);
        heap.pend(block, &slot.counters);
        // A block without uses comes here only in direct mode: its segment is released as soon as the block is free.
        if heap.blocks[block].uses == NONE {
            self.trace(|recorder| recorder.free_requested(&mut heap, block, site));
            self.free_if_unused(number, heap, block);
            return Ok(());
        }
        self.wait_for_uses(number, heap, block, site)
    }
}

impl<P: Platform> Arena<P> {
    /// Joins a detached block with its free neighbours and unlocks the heap.
    #[inline(always)]
    fn finish<const PLAIN: bool>(&self, slot: &Slot<P>, mut heap: HeapGuard<'_, P>, block: u32) {
        let peaks_stale = heap.finish_free_to::<PLAIN>(block, &slot.counters);
        // Reconciling the peaks takes another lock, so this one goes first.
        drop(heap);
        self.settle_peaks(slot, peaks_stale);
    }

    /// Notes that `stream` uses the block at `ptr`, if the heap owns the block. May ask the device whether the stream captures.
    pub(crate) fn record_stream(&self, number: u32, ptr: DevicePtr, stream: StreamId) -> Result<(), Error> {
        let captured = self.driver.flags.has(flags::CAPTURE) && self.driver.call(|device| device.is_capturing(stream))?;
        // The planner's lock is not taken under a heap's: lanes are locked under it, and heaps under lanes.
        if self.driver.flags.has(flags::OBSERVED) {
            let own = self.heaps.lock(number).stream;
            if own != stream {
                self.plans.observe_use(&self.driver.flags, ptr);
            }
        }
        let mut heap = self.heaps.lock(number);
        let Some(block) = heap.lookup(ptr) else { return Err(not_in_heap(&heap, ptr)) };
        let unneeded = heap.uses().add(block, stream, captured)?;
        drop(heap);
        if let Some(fence) = unneeded {
            self.end_fence(fence, Waiter::Streams);
        }
        Ok(())
    }
}
