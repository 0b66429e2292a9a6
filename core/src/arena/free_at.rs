//! Frees at a count: the block waits until the safe frontier has reached the count.

use crate::arena::OnDevice;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::heap::FreeOutcome;
use crate::page_map::HeapRef;
use crate::streams::frontier::AHEAD;
use crate::sync::Lock;
use crate::tables::slot_table::NONE;
use crate::tables::{CapacityError, Storage};
use crate::trace::CallSite;
use crate::units::DevicePtr;

impl<D: DeviceMemory, R: Lock, S: Storage> OnDevice<'_, D, R, S> {
    /// Frees the block at `ptr`, if this heap owns it, once the frontier has reached `count` and other streams are done with it.
    pub(crate) fn free_at(self, place: HeapRef, ptr: DevicePtr, count: u64) -> Result<(), Error> {
        self.note_use(ptr);
        self.note_free(ptr);
        let promised = self.frontier.lock().promise(count);
        if !promised.map_err(|CapacityError| Error::TableFull("frees at a count"))? {
            return self.free(place, ptr, None);
        }
        match self.detach_pending(place.heap, ptr) {
            Ok(block) => {
                let waits = self.frontier.lock().push(count, place.heap, block);
                if !waits {
                    self.reach(place.heap, block);
                }
                Ok(())
            }
            Err(error) => {
                self.frontier.lock().give_promise_back();
                Err(error)
            }
        }
    }

    /// The program gives up the block at `ptr`, which is pending from then on at least until it is [reached](Self::reach).
    fn detach_pending(self, slot: u32, ptr: DevicePtr) -> Result<u32, Error> {
        let site = self.call_site(CallSite::Free);
        let mut heap = self.lock(slot);
        let tally = &self.slot(slot).tally;
        let (FreeOutcome::Unused(block) | FreeOutcome::Used(block)) = heap.detach(ptr, None, tally) else {
            return Err(Error::InvalidPointer(ptr));
        };
        heap.pend(block, tally);
        heap.blocks[block].events |= AHEAD;
        if heap.blocks[block].uses != NONE {
            drop(heap);
            return self.wait_for_uses(slot, block, site).map(|()| block);
        }
        self.trace_free(&mut heap, block, site);
        drop(heap);
        self.with_totals(|_| tally.follow_pending());
        Ok(block)
    }

    /// The frontier has reached a block that waits for it.
    fn reach(self, slot: u32, block: u32) {
        let mut heap = self.lock(slot);
        heap.blocks[block].events &= !AHEAD;
        self.finish_free_if_unused(slot, heap, block);
    }

    /// Moves the frontier on to `count`, if it is not there yet, and frees what it reaches.
    pub(crate) fn set_safe_frontier(self, count: u64) {
        self.frontier.lock().advance(count);
        loop {
            let reached = self.frontier.lock().pop();
            let Some((heap, block)) = reached else { break };
            self.reach(heap, block);
        }
    }
}
