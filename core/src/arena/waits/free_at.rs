//! Frees at a count: a block stays pending until the safe frontier reaches the count.
//!
//! A program that numbers its work frees a block with the number of the last work using the block.
//! The *safe frontier* is the number up to which all work is done. The bit [`FRONTIER_BIT`] of a block's
//! `events` is set while the block waits for the frontier, so a wait for the frontier and waits for
//! events end by the same test.
//!
//! ```text
//! free_at ─ add, busy ─ detach ─ pend, set FRONTIER_BIT ─ keep by count
//!                                                     │ frontier ≥ count
//!                                                     └─▶ clear FRONTIER_BIT ─▶ free
//! ```

use crate::arena::invalid_pointer::not_in_heap;
use crate::arena::{OnDevice, Platform};
use crate::error::Error;
use crate::heap::FreeOutcome;
use crate::heap::block::FRONTIER_BIT;
use crate::page_map::HeapRef;
use crate::streams::kept::{KeptBlock, Until};
use crate::tables::CapacityError;
use crate::tables::slot_table::NONE;
use crate::trace::CallSite;
use crate::units::DevicePtr;

impl<P: Platform> OnDevice<'_, P> {
    /// Frees the block at `ptr` once the frontier has reached `count` and no user stream is left.
    /// Fails with [`Error::InvalidPointer`] if the heap does not own the block.
    pub(crate) fn free_at(self, place: HeapRef, ptr: DevicePtr, count: u64) -> Result<(), Error> {
        // To a planner that observes this iteration: the bytes are not free at the moment of the
        // free.
        self.plans.observe_use(&self.driver.flags, ptr);
        self.plans.observe_free(&self.driver.flags, ptr);
        let added = {
            let mut kept = self.waits.kept.lock();
            (count > kept.reached).then(|| kept.add(place.heap, NONE, Until::Count(count)))
        };
        // The frontier has reached the count already.
        let Some(added) = added else { return self.free(place, ptr, None) };
        // Added first: once the block is detached, the free must not fail. The entry is busy until it has the block.
        let entry = added.map_err(|CapacityError| Error::TableFull("frees at a count"))?;
        let detached = self.detach_pending(place.heap, ptr);
        let mut kept = self.waits.kept.lock();
        match detached {
            Ok(block) => {
                kept.name(entry, block);
                kept.keep(entry);
            }
            Err(error) => {
                kept.remove(entry);
                return Err(error);
            }
        }
        // The frontier may have moved while the entry was busy.
        let reached = kept.reached;
        drop(kept);
        if count <= reached {
            self.set_safe_frontier(reached);
        }
        Ok(())
    }

    /// Detaches the block at `ptr` from the program. The block stays pending at least until
    /// [reached](Self::reach).
    fn detach_pending(self, slot: u32, ptr: DevicePtr) -> Result<u32, Error> {
        // The host's callback may make requests of its own: no lock may be held.
        let site = self.call_site(CallSite::Free);
        let mut heap = self.heaps.lock(slot);
        let counters = &self.heaps.slot(slot).counters;
        let (FreeOutcome::Unused(block) | FreeOutcome::Used(block)) = heap.detach(ptr, None, counters) else {
            return Err(not_in_heap(&heap, ptr));
        };
        heap.pend(block, counters);
        debug_assert_eq!(heap.blocks[block].events, 0, "an allocated block waits for nothing");
        // Set before the heap is unlocked: an event that completes right afterwards must not free the block.
        heap.blocks[block].events |= FRONTIER_BIT;
        if heap.blocks[block].uses != NONE {
            // On an error the block is allocated again, without the bit.
            return self.note_and_wait(slot, heap, block, site).map(|()| block);
        }
        self.trace(|recorder| recorder.free_requested(&mut heap, block, site));
        drop(heap);
        self.follow_pending(slot);
        Ok(block)
    }

    /// Ends a block's wait for the frontier, and frees the block unless events are still awaited.
    fn reach(self, slot: u32, block: u32) {
        let mut heap = self.heaps.lock(slot);
        debug_assert!(heap.blocks[block].events & FRONTIER_BIT != 0, "the block waits for the frontier");
        heap.blocks[block].events &= !FRONTIER_BIT;
        self.free_if_unused(slot, heap, block);
    }

    /// Moves the frontier up to `count`, and frees the blocks reached. Does nothing if the frontier
    /// is there already.
    pub(crate) fn set_safe_frontier(self, count: u64) {
        // One block at a time: `reach` locks a heap, which must not happen under the lock of the kept blocks.
        // Several threads may take blocks out at once, each block goes to one of them.
        loop {
            let KeptBlock { heap, block, .. } = {
                let mut kept = self.waits.kept.lock();
                kept.reached = kept.reached.max(count);
                let Some(entry) = kept.take_reached() else { return };
                let reached = kept.block(entry);
                kept.remove(entry);
                reached
            };
            self.reach(heap, block);
        }
    }
}
