//! The end of pending blocks: with the last use and the last wait, a block becomes free.

use crate::arena::heaps::HeapGuard;
use crate::arena::{OnDevice, Platform, flags};
use crate::heap::Heap;
use crate::tables::slot_table::NONE;

impl<P: Platform> OnDevice<'_, P> {
    /// Ends a wait of each of some pending blocks of a heap, and frees the blocks without further waits.
    pub(in crate::arena) fn end_waits(self, slot: u32, blocks: impl Iterator<Item = u32>) {
        let mut heap = self.heaps.lock(slot);
        for block in blocks {
            // The block cannot have become free or been reused: its count includes the wait.
            heap.uses().end_waits(block, 1);
            let due = self.unpend_if_unused(slot, &mut heap, block);
            if due != Due::NOTHING {
                // A peak is due now: the next block may lower what rose.
                drop(heap);
                self.settle_due(slot, due);
                heap = self.heaps.lock(slot);
            }
        }
    }

    /// Frees a pending block if no user stream and no event is left. Unlocks the heap.
    ///
    /// The caller removed a use or an event under the lock passed here. Of several threads removing
    /// uses and events of a block, exactly one finds the block unused.
    pub(in crate::arena) fn free_if_unused(self, slot: u32, mut heap: HeapGuard<'_, P>, block: u32) {
        let due = self.unpend_if_unused(slot, &mut heap, block);
        drop(heap);
        self.settle_due(slot, due);
    }

    /// Makes a pending block free if no user stream and no event is left. Returns the work due without the lock.
    fn unpend_if_unused(self, slot: u32, heap: &mut Heap<P::Storage>, block: u32) -> Due {
        // `events` includes the bit for the frontier, so a free at a count is covered too.
        if heap.blocks[block].uses != NONE || heap.blocks[block].events > 0 {
            return Due::NOTHING;
        }
        self.trace(|recorder| recorder.free_completed(heap, block));
        let peaks = heap.unpend(block, &self.heaps.slot(slot).counters);
        Due { peaks, release: self.flags.has(flags::DIRECT) }
    }

    /// Does the work due in the heap of `slot`. Reconciling reads the counters of other heaps, and a release calls the
    /// device, so no lock is held.
    fn settle_due(self, slot: u32, due: Due) {
        self.settle_peaks(self.heaps.slot(slot), due.peaks);
        if due.release {
            self.release_directly(slot);
        }
    }
}

/// Work due after the end of a wait, once the heap is unlocked.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Due {
    /// The peaks must be reconciled.
    peaks: bool,
    /// A block became free, and nothing is cached.
    release: bool,
}

impl Due {
    /// The block still waits, or was freed without consequences.
    const NOTHING: Self = Self { peaks: false, release: false };
}
