//! Frees blocks: at once if only the block's own stream used the block, and otherwise after events
//! report the end of all other uses.
//!
//! ```text
//! free_straight ─ no flag set, no rule applies, used by its own stream only ─▶ done
//!   └─ free ─┬─ no flag set ─▶ detach ─ used by its own stream only ─▶ finish ─▶ done
//!            ├─ a trace is recorded ─▶ free_traced ─ as free_straight, else ─┐
//!            └─ free_slow ─────▶ └─ otherwise ─▶ free_with_uses ─▶ waits/ ◀──┘ ─ the last wait ends ─▶ finish_pending ─▶ done
//! ```
//!
//! One heap is locked at a time, and no lock is held across a call to the device.

use crate::arena::driver::Driver;
use crate::arena::flags::FlagWord;
use crate::arena::heaps::{HeapGuard, Heaps, Slot};
use crate::arena::holdings::Holdings;
use crate::arena::invalid_pointer::not_in_heap;
use crate::arena::platform::Platform;
use crate::arena::waits::Outside;
use crate::arena::{Arena, OnDevice, debug, flags, plans};
use crate::device::{Host, Segments, StreamOrder};
use crate::error::Error;
use crate::heap::block::FRONTIER_BIT;
use crate::heap::sets::Sets;
use crate::heap::{FreeOutcome, Heap};
use crate::page_map::HeapRef;
use crate::stats::Occurrence;
use crate::streams::fences::Waiter;
use crate::streams::pending::{PendingBlock, PendingFree};
use crate::tables::slot_table::NONE;
use crate::tables::{OnceTable, Storage};
use crate::trace::CallSite;
use crate::units::{DevicePtr, StreamId};

/// The flags under which the end of a wait does more than free a block. One test covers all of
/// them, because two streams that pass blocks to each other come here each time.
const CONSEQUENCES: FlagWord = flags::TRACE | flags::DIRECT | flags::DEBUG;

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
    /// Frees the block at `ptr` if the heap owns it, after [`free_straight`](Self::free_straight)
    /// has declined. `requested`, if given, must be the size of the request.
    #[inline(always)]
    pub(crate) fn free(self, owner: HeapRef, ptr: DevicePtr, requested: Option<u64>) -> Result<(), Error> {
        // With a trace and nothing else, the free is still that of a plain heap. This comes first,
        // because a recorder is often on.
        let unusual = self.driver.flags.load() & (flags::SLOW_FREE_FLAGS | flags::RULES);
        if unusual == flags::TRACE {
            return self.free_traced(owner.heap, ptr, requested);
        }
        let slot = self.heaps.slots.peek(owner.heap).expect("an owner is a heap that exists");
        // Ages need the heap's clock to be set.
        if unusual & flags::SLOW_FREE_FLAGS != 0 {
            return self.free_slow(owner.heap, ptr, requested);
        }
        let mut heap = slot.heap.lock();
        // The heap may have lost its last segment since the page map was read. In this case it has
        // no block at `ptr`.
        let outcome = heap.detach(ptr, requested, &slot.counters);
        if let FreeOutcome::Unused(block) = outcome {
            self.finish(slot, heap, block);
            return Ok(());
        }
        self.free_with_uses(owner.heap, heap, outcome, FreeArgs { ptr, requested, site: 0 })
    }

    /// Frees a block of a plain heap that no other stream uses. False: it takes more than that, and
    /// nothing has changed, so that [`free`](Self::free) begins anew.
    #[inline(always)]
    pub(crate) fn free_straight(self, owner: HeapRef, ptr: DevicePtr, requested: Option<u64>) -> bool {
        if self.driver.flags.has(flags::SLOW_FREE_FLAGS | flags::RULES) {
            return false;
        }
        let Some(slot) = self.heaps.slots.peek(owner.heap) else { return false };
        let mut heap = slot.heap.lock();
        if !heap.straight_frees {
            return false;
        }
        let Some(peaks_stale) = heap.free_plainly(ptr, requested, &slot.counters, |_, _| ()) else { return false };
        drop(heap);
        self.settle_peaks(slot, peaks_stale);
        true
    }

    /// Frees a block and records the event. Used while a trace is recorded, and no other flag makes
    /// a free more than the return of the block to its heap.
    #[inline(never)]
    fn free_traced(self, number: u32, ptr: DevicePtr, requested: Option<u64>) -> Result<(), Error> {
        // Asked before the heap is locked, because the host may take long to find its call site.
        let site = self.driver.device().call_site(CallSite::Free);
        let slot = self.heaps.slot(number);
        let mut heap = slot.heap.lock();
        let of = (heap.pool, heap.stream);
        let record =
            |sets: &mut Sets<P::Storage>, requested| self.recorder().free(&mut sets.trace, of, requested, ptr, site);
        if heap.straight_frees
            && let Some(peaks_stale) = heap.free_plainly(ptr, requested, &slot.counters, record)
        {
            drop(heap);
            self.settle_peaks(slot, peaks_stale);
            return Ok(());
        }
        drop(heap);
        self.free_at_site(number, FreeArgs { ptr, requested, site })
    }

    /// Frees a block under any flags.
    #[cold]
    fn free_slow(self, number: u32, ptr: DevicePtr, requested: Option<u64>) -> Result<(), Error> {
        // Asked before the heap is locked, because the host may take long to find its call site.
        let site = self.call_site(CallSite::Free);
        self.free_at_site(number, FreeArgs { ptr, requested, site })
    }

    /// Frees a block under any flags, after the host was asked for the call site.
    fn free_at_site(self, number: u32, FreeArgs { ptr, requested, site }: FreeArgs) -> Result<(), Error> {
        // Observed before the block is free, because another thread may get its address at once,
        // and must be observed after this free.
        self.plans.observe_free(&self.driver.flags, ptr);
        let mut heap = self.heaps.lock(number);
        let slot = self.heaps.slot(number);
        let outcome = heap.detach(ptr, requested, &slot.counters);
        if let FreeOutcome::Unused(block) = outcome
            && !self.driver.flags.has(flags::DIRECT)
        {
            let (of, requested) = ((heap.pool, heap.stream), heap.blocks[block].requested);
            self.trace(|recorder| recorder.free(&mut heap.sets.trace, of, requested, ptr, site));
            self.finish(slot, heap, block);
            return Ok(());
        }
        if let FreeOutcome::Used(block) = outcome
            && self.driver.flags.has(flags::GUARDED)
        {
            self.heaps.mark_dirty(slot, &mut heap);
            heap.pend(block, &slot.counters);
            return self.note_and_wait(heap, PendingBlock { slot: number, index: block }, site);
        }
        self.free_with_uses(number, heap, outcome, FreeArgs { ptr, requested, site })?;
        if self.driver.flags.has(flags::DIRECT) && self.driver.device().is_ordered() {
            // A failure here is not an error of the free: the block remains pending, and a later
            // call polls its events.
            let _later = self.waiting().order_pending();
        }
        Ok(())
    }

    /// Frees a block after the other streams that may use it are done with it, or returns the
    /// reason why it cannot be freed. Unlocks the heap.
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
        // The counters have changed already, and the heap has been locked since then.
        self.heaps.mark_dirty(slot, &mut heap);
        heap.pend(block, &slot.counters);
        // A block without uses comes here only in direct mode, in which its segment is released as
        // soon as the block is free.
        if heap.blocks[block].uses == NONE {
            self.trace(|recorder| recorder.free_requested(&mut heap, block, site));
            self.free_if_unused(heap, PendingBlock { slot: number, index: block });
            return Ok(());
        }
        let block = PendingBlock { slot: number, index: block };
        self.wait_for_uses(heap, PendingFree { block, site: Some(site) })
    }
}

impl<P: Platform> OnDevice<'_, P> {
    /// Frees a pending block after all streams that use it have finished with it. Unlocks the heap.
    ///
    /// On an error the free is undone: the block is allocated again, with all its uses.
    pub(in crate::arena) fn wait_for_uses(self, heap: HeapGuard<'_, P>, free: PendingFree) -> Result<(), Error> {
        let waiting = self.waiting().wait_for_uses(heap, free);
        if waiting.is_err() {
            let PendingBlock { slot, index: block } = free.block;
            let mut heap = self.heaps.lock(slot);
            // No event of the block is queued any longer, so only the frontier's bit can be set
            // here. A free at a count fails as a whole, so this bit is cleared too.
            debug_assert_eq!(heap.blocks[block].events & !FRONTIER_BIT, 0, "a cancelled event is still counted");
            heap.blocks[block].events = 0;
            heap.undo_free(block, &self.heaps.slot(slot).counters);
            debug::undo_freed(&self.driver.flags, &self.paging, DevicePtr(heap.blocks[block].addr));
        }
        waiting
    }

    /// Frees a pending block that has no use and waits for nothing, under any flags. Unlocks the
    /// heap, because reconciling reads the counters of other heaps, and the debug layer and a
    /// release call the device.
    #[cold]
    fn finish_pending(self, heap: HeapGuard<'_, P>, block: PendingBlock) {
        let held = self.holdings();
        let is_free = if self.driver.flags.has(flags::DEBUG) {
            self.debug.completed(&held, heap, block)
        } else {
            held.end_pending(heap, block, |_| ());
            true
        };
        if is_free && self.driver.flags.has(flags::DIRECT) {
            held.release_directly(block.slot);
        }
    }

    /// Frees a pending block as [`wait_for_uses`](Self::wait_for_uses) does, after the debug layer
    /// has noted the free. Unlocks the heap; no other call touches a pending block.
    fn note_and_wait(self, heap: HeapGuard<'_, P>, block: PendingBlock, site: u32) -> Result<(), Error> {
        let (heap, site) = if self.driver.flags.has(flags::GUARDED) {
            debug::freed(&self.holdings(), heap, block, site)
        } else {
            (heap, site)
        };
        self.wait_for_uses(heap, PendingFree { block, site: Some(site) })
    }
}

impl<P: Platform> Holdings<'_, P> {
    /// Makes a pending block free, records it in the trace, and calls `then` with the heap still
    /// locked. Unlocks the heap.
    pub(in crate::arena) fn end_pending<T>(
        &self,
        heap: HeapGuard<'_, P>,
        PendingBlock { slot, index }: PendingBlock,
        then: impl FnOnce(&mut Heap<P::Storage>) -> T,
    ) -> T {
        let (mut heap, slot) = (heap, self.heaps.slot(slot));
        self.trace(|recorder| recorder.free_completed(&mut heap, index));
        let peaks_stale = heap.unpend(index, &slot.counters);
        let done = then(&mut heap);
        drop(heap);
        self.settle_peaks(slot, peaks_stale);
        done
    }
}

impl<'a, P: Platform> Outside<'a, P> for OnDevice<'a, P> {
    #[inline(always)]
    fn driver(self) -> &'a Driver<P::Device> {
        &self.arena.driver
    }

    #[inline(always)]
    fn heaps(self) -> &'a Heaps<P> {
        &self.arena.heaps
    }

    #[inline]
    fn follow_pending(self, slot: u32) {
        self.peaks.follow_pending(&self.heaps.slot(slot).counters);
    }

    #[inline]
    fn free_requested(self, heap: &mut Heap<P::Storage>, block: u32, site: u32) {
        self.trace(|recorder| recorder.free_requested(heap, block, site));
    }

    fn count_sync(self) {
        self.peaks.device.count(Occurrence::SyncAllStreams);
    }

    fn end_waits(self, slot: u32, blocks: impl Iterator<Item = u32>) {
        let mut heap = self.arena.heaps.lock(slot);
        for block in blocks {
            // The block cannot have become free or been reused: its count includes the wait.
            heap.uses().end_waits(block, 1);
            if is_waiting(&heap, block) {
                continue;
            }
            if self.driver.flags.has(CONSEQUENCES) {
                self.finish_pending(heap, PendingBlock { slot, index: block });
            } else if heap.unpend(block, &self.arena.heaps.slot(slot).counters) {
                // A peak must be recorded now, because the next block may lower the counter that
                // has just risen.
                drop(heap);
                self.reconcile_peaks(self.arena.heaps.slot(slot));
            } else {
                continue;
            }
            heap = self.arena.heaps.lock(slot);
        }
    }

    fn free_if_unused(self, mut heap: HeapGuard<'_, P>, block: PendingBlock) {
        if is_waiting(&heap, block.index) {
            return;
        }
        if self.driver.flags.has(CONSEQUENCES) {
            return self.finish_pending(heap, block);
        }
        let slot = self.arena.heaps.slot(block.slot);
        let peaks_stale = heap.unpend(block.index, &slot.counters);
        drop(heap);
        self.settle_peaks(slot, peaks_stale);
    }
}

impl<P: Platform> OnDevice<'_, P> {
    /// Frees the block at `ptr` once the frontier has reached `count` and no other stream uses the
    /// block. Fails with [`Error::InvalidPointer`] if the heap does not own the block.
    pub(crate) fn free_at(self, place: HeapRef, ptr: DevicePtr, count: u64) -> Result<(), Error> {
        // Tells a planner that observes this iteration that the bytes are not free at the moment of
        // the free.
        self.plans.observe_use(&self.driver.flags, ptr);
        self.plans.observe_free(&self.driver.flags, ptr);
        // The entry is added first, because the free must not fail after the block is detached. It
        // is busy until it has the block.
        let Some(entry) = self.waits.begin_free_at(place.heap, count)? else { return self.free(place, ptr, None) };
        let reached = self.waits.end_free_at(entry, self.detach_pending(place.heap, ptr))?;
        // The frontier may have moved while the entry was busy.
        if count <= reached {
            self.waiting().set_safe_frontier(reached);
        }
        Ok(())
    }

    /// Detaches the block at `ptr` from the program. The block stays pending at least until the
    /// frontier has reached its count.
    fn detach_pending(self, slot: u32, ptr: DevicePtr) -> Result<u32, Error> {
        // No lock may be held, because the host's callback may make its own requests.
        let site = self.call_site(CallSite::Free);
        let mut heap = self.heaps.lock(slot);
        let counters = &self.heaps.slot(slot).counters;
        let (FreeOutcome::Unused(block) | FreeOutcome::Used(block)) = heap.detach(ptr, None, counters) else {
            return Err(not_in_heap(&heap, ptr));
        };
        heap.pend(block, counters);
        debug_assert_eq!(heap.blocks[block].events, 0, "an allocated block waits for nothing");
        // Set before the heap is unlocked, so that an event that completes right afterwards does
        // not free the block.
        heap.blocks[block].events |= FRONTIER_BIT;
        if heap.blocks[block].uses != NONE {
            // On an error the block is allocated again, without the bit.
            return self.note_and_wait(heap, PendingBlock { slot, index: block }, site).map(|()| block);
        }
        self.trace(|recorder| recorder.free_requested(&mut heap, block, site));
        drop(heap);
        self.follow_pending(slot);
        Ok(block)
    }

    /// Frees a new block that the program does not get.
    pub(super) fn free_unfilled(self, owner: HeapRef, ptr: DevicePtr, stream: StreamId) {
        if self.free(owner, ptr, None).is_ok() {
            return;
        }
        // No event could be recorded. Only a fill has used the block.
        let _shown_by_health = self.driver.synchronize(stream);
        {
            let mut heap = self.heaps.lock(owner.heap);
            if let Some(block) = heap.lookup(ptr) {
                heap.uses().clear(block);
            }
        }
        // Without uses, a free needs no event from the device.
        let _is_free = self.free(owner, ptr, None);
    }

    /// Notes the use of the block at `ptr` by the present work of `stream`, and records an event
    /// after the work. While a graph is captured, notes a use by the [stream](Arena::record_stream)
    /// instead.
    pub(crate) fn record_use(self, slot: u32, ptr: DevicePtr, stream: StreamId) -> Result<(), Error> {
        let is_recorded = self.waiting().record_use(slot, ptr, stream)?;
        if is_recorded { Ok(()) } else { self.record_stream(slot, ptr, stream) }
    }
}

/// The unstated size of a free. Unlike `None`, a value of this type takes no register: no argument
/// is passed on the stack, and the last call in the function becomes a tail call without a frame.
/// This saves 8 instructions.
#[derive(Clone, Copy)]
struct SizeUnknown;

impl From<SizeUnknown> for Option<u64> {
    fn from(_: SizeUnknown) -> Self {
        None
    }
}

impl<P: Platform> OnDevice<'_, P> {
    /// Frees the block at `ptr` on a page that the heap `owner` serves from a plan. `requested` is
    /// the size in bytes that the caller claims to have requested, if given.
    #[inline(always)]
    pub(crate) fn free_planned(self, owner: HeapRef, ptr: DevicePtr, requested: Option<u64>) -> Result<(), Error> {
        // This makes two instances of the functions below, because of what [`SizeUnknown`] saves.
        // After inlining the caller knows which case applies, so the match costs nothing.
        match requested {
            None => self.free_planned_fast(owner, ptr, SizeUnknown),
            Some(requested) => self.free_planned_fast(owner, ptr, requested),
        }
    }

    /// Frees an unlisted block if the heap's lock is free and no trace is recorded. Otherwise calls
    /// [`free_planned_slow`](Self::free_planned_slow).
    #[inline(never)]
    fn free_planned_fast(
        self,
        owner: HeapRef,
        ptr: DevicePtr,
        requested: impl Into<Option<u64>> + Copy,
    ) -> Result<(), Error> {
        let records = self.driver.flags.has(flags::TRACE);
        if !records && plans::try_free(&self.heaps, owner.heap, ptr, requested.into()) {
            return Ok(());
        }
        self.free_planned_slow(owner, ptr, requested)
    }

    /// Frees an unlisted block of a plan, waiting for the heap's lock. Lists any other block, so
    /// that the heap frees and traces the block, or refuses to, as any other.
    #[cold]
    fn free_planned_slow(self, owner: HeapRef, ptr: DevicePtr, requested: impl Into<Option<u64>>) -> Result<(), Error> {
        let (requested, records) = (requested.into(), self.driver.flags.has(flags::TRACE));
        if plans::free_or_list(&self.heaps, owner.heap, ptr, requested, records)? {
            return Ok(());
        }
        self.free(owner, ptr, requested)
    }
}

impl<P: Platform> Arena<P> {
    /// Joins a detached block with its free neighbours and unlocks the heap.
    #[inline(always)]
    fn finish(&self, slot: &Slot<P>, mut heap: HeapGuard<'_, P>, block: u32) {
        let peaks_stale = heap.finish_free(block, &slot.counters);
        // Reconciling the peaks takes another lock, so this one goes first.
        drop(heap);
        self.settle_peaks(slot, peaks_stale);
    }

    /// Notes that `stream` uses the block at `ptr`, if the heap owns the block. May ask the device
    /// whether the stream captures.
    pub(crate) fn record_stream(&self, number: u32, ptr: DevicePtr, stream: StreamId) -> Result<(), Error> {
        let captured =
            self.driver.flags.has(flags::CAPTURE) && self.driver.call(|device| device.is_capturing(stream))?;
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
            self.waits.end_fence(&self.driver, fence, Waiter::Streams);
        }
        Ok(())
    }
}

/// Returns whether a pending block is used or waits for something. `events` includes the bit for
/// the frontier, so a free at a count counts too.
fn is_waiting<S: Storage>(heap: &Heap<S>, block: u32) -> bool {
    heap.blocks[block].uses != NONE || heap.blocks[block].events > 0
}
