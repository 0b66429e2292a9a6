//! The end of pending blocks: with the last use and the last wait, a block becomes free.

use crate::arena::flags::FlagWord;
use crate::arena::heaps::HeapGuard;
use crate::arena::{OnDevice, Platform, flags};
use crate::heap::Heap;
use crate::tables::Storage;
use crate::tables::slot_table::NONE;

/// The flags under which the end of a wait has consequences beyond a free block. One test for all: two streams that
/// pass a block on come here each time.
const CONSEQUENCES: FlagWord = flags::TRACE | flags::DIRECT | flags::APART;

impl<P: Platform> OnDevice<'_, P> {
    /// Ends a wait of each of some pending blocks of a heap, and frees the blocks without further waits.
    pub(in crate::arena) fn end_waits(self, slot: u32, blocks: impl Iterator<Item = u32>) {
        let mut heap = self.heaps.lock(slot);
        for block in blocks {
            // The block cannot have become free or been reused: its count includes the wait.
            heap.uses().end_waits(block, 1);
            if is_waiting(&heap, block) {
                continue;
            }
            if self.driver.flags.has(CONSEQUENCES) {
                self.finish_pending(slot, heap, block);
            } else if heap.unpend(block, &self.heaps.slot(slot).counters) {
                // A peak is due now: the next block may lower what rose.
                drop(heap);
                self.reconcile_peaks(self.heaps.slot(slot));
            } else {
                continue;
            }
            heap = self.heaps.lock(slot);
        }
    }

    /// Frees a pending block if no user stream and no event is left. Unlocks the heap.
    ///
    /// The caller removed a use or an event under the lock passed here. Of several threads removing
    /// uses and events of a block, exactly one finds the block unused.
    pub(in crate::arena) fn free_if_unused(self, slot: u32, mut heap: HeapGuard<'_, P>, block: u32) {
        if is_waiting(&heap, block) {
            return;
        }
        if self.driver.flags.has(CONSEQUENCES) {
            return self.finish_pending(slot, heap, block);
        }
        let peaks_stale = heap.unpend(block, &self.heaps.slot(slot).counters);
        drop(heap);
        self.settle_peaks(self.heaps.slot(slot), peaks_stale);
    }

    /// Frees a pending block without uses and waits, under any flags. Unlocks the heap: reconciling reads the counters of
    /// other heaps, and the contents, the guards and a release need calls to the device.
    #[cold]
    fn finish_pending(self, slot: u32, heap: HeapGuard<'_, P>, block: u32) {
        let mut heap = heap;
        if self.stays_pinned(&mut heap, block) {
            return;
        }
        if self.has_end(heap.pool) {
            // The block stays pending for this thread, which calls the device without the lock.
            heap.uses().hold(block);
            drop(heap);
            self.end_contents(slot, block);
            heap = self.heaps.lock(slot);
            heap.uses().end_waits(block, 1);
        }
        self.trace(|recorder| recorder.free_completed(&mut heap, block));
        let peaks_stale = heap.unpend(block, &self.heaps.slot(slot).counters);
        // Under the lock under which the block became free: no request finds the block.
        let guarded = self.remove_guarded(slot, &mut heap, block);
        drop(heap);
        self.settle_peaks(self.heaps.slot(slot), peaks_stale);
        if let Some(at) = guarded {
            // The free has succeeded: the leaked bytes count a failure, and the health of the context shows a loss.
            let _counted = self.release_guarded(at, None);
        }
        if self.driver.flags.has(flags::DIRECT) {
            self.release_directly(slot);
        }
    }
}

/// Returns whether a pending block is used or waits. `events` includes the bit for the frontier, so a free at a count
/// is covered too.
fn is_waiting<S: Storage>(heap: &Heap<S>, block: u32) -> bool {
    heap.blocks[block].uses != NONE || heap.blocks[block].events > 0
}
