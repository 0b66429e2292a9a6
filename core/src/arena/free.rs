//! Frees: at once where only the stream of the block used it, else once events say that the other streams are done.

use crate::arena::{Arena, OnDevice, flags};
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::heap::{FreeOutcome, Heap};
use crate::page_map::HeapRef;
use crate::sync::{Lock, MutexGuard};
use crate::tables::slot_table::NONE;
use crate::tables::{OnceTable, Storage};
use crate::trace::CallSite;
use crate::units::{DevicePtr, StreamId};

/// What the program says when it frees a block.
#[derive(Clone, Copy)]
struct FreeArgs {
    ptr: DevicePtr,
    /// What it asked for, if it says so.
    size: Option<u64>,
    /// Where it is, as far as that is recorded.
    from: u32,
}

impl<D: DeviceMemory, R: Lock, S: Storage> OnDevice<'_, D, R, S> {
    /// Frees the block at `ptr` if this heap owns it. `size`, if given, is what the caller says it asked for.
    #[inline(always)]
    pub(crate) fn free(self, place: HeapRef, ptr: DevicePtr, size: Option<u64>) -> Result<(), Error> {
        let slot = self.slots.get(place.heap).expect("an owner is a heap that exists");
        if !self.has(flags::TRACE | flags::DIRECT | flags::OBSERVED) {
            let mut heap = slot.heap.lock();
            self.set_clock(&mut heap);
            let given_up = heap.detach(ptr, size, &slot.tally);
            if let FreeOutcome::Unused(block) = given_up {
                let peaks_stale = heap.finish_free(block, &slot.tally);
                drop(heap);
                if peaks_stale {
                    self.reconcile_peaks(slot);
                }
                return Ok(());
            }
            return self.free_with_uses(place.heap, heap, given_up, FreeArgs { ptr, size, from: 0 });
        }
        self.free_cold(place.heap, ptr, size)
    }

    /// The same while frees are traced, observed or passed on to the device.
    #[cold]
    fn free_cold(self, slot: u32, ptr: DevicePtr, size: Option<u64>) -> Result<(), Error> {
        if self.has(flags::DIRECT | flags::OBSERVED) {
            return self.free_slow(slot, ptr, size);
        }
        let from = self.memory.call_site(CallSite::Free);
        let found = self.slot(slot);
        let mut heap = found.heap.lock();
        self.set_clock(&mut heap);
        let given_up = heap.detach(ptr, size, &found.tally);
        if let FreeOutcome::Unused(block) = given_up {
            self.record_free(&mut heap, block, ptr, from);
            let peaks_stale = heap.finish_free(block, &found.tally);
            drop(heap);
            if peaks_stale {
                self.reconcile_peaks(found);
            }
            return Ok(());
        }
        self.free_with_uses(slot, heap, given_up, FreeArgs { ptr, size, from })
    }

    /// The same where there is more to be seen to than a record.
    #[cold]
    fn free_slow(self, slot: u32, ptr: DevicePtr, size: Option<u64>) -> Result<(), Error> {
        let from = self.call_site(CallSite::Free);
        self.note_free(ptr);
        let mut heap = self.lock(slot);
        let tally = &self.slot(slot).tally;
        let given_up = heap.detach(ptr, size, tally);
        if let FreeOutcome::Unused(block) = given_up
            && !self.has(flags::DIRECT)
        {
            if self.has(flags::TRACE) {
                self.record_free(&mut heap, block, ptr, from);
            }
            let peaks_stale = heap.finish_free(block, tally);
            drop(heap);
            if peaks_stale {
                self.reconcile_peaks(self.slot(slot));
            }
            return Ok(());
        }
        self.free_with_uses(slot, heap, given_up, FreeArgs { ptr, size, from })
    }

    /// Frees a block that other streams may use, once they do not. The lock is given up.
    #[cold]
    fn free_with_uses(
        self,
        slot: u32,
        mut heap: MutexGuard<'_, R, Heap<S>>,
        given_up: FreeOutcome,
        freed: FreeArgs,
    ) -> Result<(), Error> {
        let FreeArgs { ptr, size, from } = freed;
        let block = match (given_up, size) {
            (FreeOutcome::Unused(block) | FreeOutcome::Used(block), _) => block,
            (FreeOutcome::WrongSize(block), Some(given)) => {
                return Err(Error::WrongSize { ptr, given, requested: heap.blocks[block].requested });
            }
            _ => return Err(Error::InvalidPointer(ptr)),
        };
        let tally = &self.slot(slot).tally;
        heap.pend(block, tally);
        if heap.blocks[block].uses == NONE {
            self.trace_free(&mut heap, block, from);
            self.finish_free_if_unused(slot, heap, block);
            return Ok(());
        }
        drop(heap);
        self.wait_for_uses(slot, block, from)
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Notes that `stream` uses the block at `ptr`, if this heap owns it.
    pub(crate) fn record_stream(&self, slot: u32, ptr: DevicePtr, stream: StreamId) -> Result<(), Error> {
        let captured = self.has(flags::CAPTURE) && self.call(|| self.memory.is_capturing(stream))?;
        // The planner's lock is not taken under a heap's: lanes are locked under it, and heaps under lanes.
        if self.has(flags::OBSERVED) {
            let own = self.lock(slot).stream;
            if own != stream {
                self.note_use(ptr);
            }
        }
        let mut heap = self.lock(slot);
        let Some(block) = heap.lookup(ptr) else { return Err(Error::InvalidPointer(ptr)) };
        Ok(heap.add_use(block, stream, captured)?)
    }
}
