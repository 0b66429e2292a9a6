//! The end of pending blocks: with the last use and the last wait, a block becomes free.

use crate::arena::{OnDevice, flags};
use crate::device::DeviceMemory;
use crate::heap::Heap;
use crate::sync::{Lock, MutexGuard};
use crate::tables::Storage;
use crate::tables::slot_table::NONE;
use crate::units::DevicePtr;

impl<D: DeviceMemory, R: Lock, S: Storage> OnDevice<'_, D, R, S> {
    /// Ends a wait of each of some pending blocks of a heap, and frees the blocks without further waits.
    pub(in crate::arena) fn end_waits(self, slot: u32, blocks: impl Iterator<Item = u32>) {
        let mut heap = self.heaps.lock(slot);
        for block in blocks {
            // The block cannot have become free or been reused: its count includes the wait.
            heap.uses().end_waits(block, 1);
            let due = self.unpend_if_unused(slot, &mut heap, block, BlockContents::Open);
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
    pub(in crate::arena) fn free_if_unused(self, slot: u32, mut heap: MutexGuard<'_, R, Heap<S>>, block: u32) {
        let due = self.unpend_if_unused(slot, &mut heap, block, BlockContents::Open);
        drop(heap);
        self.settle_due(slot, due);
    }

    /// Makes a pending block free if no user stream and no event is left. Returns the work due without the lock.
    fn unpend_if_unused(self, slot: u32, heap: &mut Heap<S>, block: u32, contents: BlockContents) -> Due {
        // `events` includes the bit for the frontier, so a free at a count is covered too.
        if heap.blocks[block].uses != NONE || heap.blocks[block].events > 0 {
            return Due::NOTHING;
        }
        // One load for all conditions: two streams that pass a block on come here each time.
        let word = self.flags.load();
        if word & flags::WATCHED != 0 && contents == BlockContents::Open && self.has_end(heap.pool) {
            // The block stays pending for this thread, which calls the device without the lock.
            heap.uses().hold(block);
            return Due { rare: Rare::End(block), ..Due::NOTHING };
        }
        self.trace(|recorder| recorder.free_completed(heap, block));
        let peaks = heap.unpend(block, &self.heaps.slot(slot).counters);
        // Under the lock under which the block became free: no request finds it.
        let rare = if word & flags::GUARDED != 0 { self.remove_guarded(slot, heap, block) } else { None };
        Due { peaks, release: word & flags::DIRECT != 0, rare: rare.map_or(Rare::Nothing, Rare::Unmap) }
    }

    /// Does the work due in the heap of `slot`. Reconciling reads the counters of other heaps, and a release calls the
    /// device, so no lock is held.
    fn settle_due(self, slot: u32, due: Due) {
        self.settle_peaks(self.heaps.slot(slot), due.peaks);
        if due.rare != Rare::Nothing {
            self.settle_rare(slot, due.rare);
        }
        if due.release {
            self.release_directly(slot);
        }
    }

    /// Does the work due for few blocks.
    #[cold]
    fn settle_rare(self, slot: u32, rare: Rare) {
        match rare {
            Rare::Nothing => {}
            Rare::Unmap(at) => {
                // The free has succeeded: the leaked bytes count a failure, and the health of the context shows a loss.
                let _counted = self.release_guarded(at);
            }
            Rare::End(block) => {
                self.end_contents(slot, block);
                let mut heap = self.heaps.lock(slot);
                heap.uses().end_waits(block, 1);
                let due = self.unpend_if_unused(slot, &mut heap, block, BlockContents::Ended);
                drop(heap);
                self.settle_due(slot, due);
            }
        }
    }
}

/// Whether the contents of a pending block are checked and filled, where the settings say so.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BlockContents {
    Open,
    Ended,
}

/// Work due after the end of a wait, once the heap is unlocked.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Due {
    /// The peaks must be reconciled.
    peaks: bool,
    /// A block became free, and nothing is cached.
    release: bool,
    /// What is due for few blocks.
    rare: Rare,
}

/// Work due for a guarded block, and for a block whose contents are checked or filled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rare {
    Nothing,
    /// The address of a guarded block to be unmapped.
    Unmap(DevicePtr),
    /// A block held for the calling thread, whose contents are checked and filled first.
    End(u32),
}

impl Due {
    /// The block still waits, or was freed without consequences.
    const NOTHING: Self = Self { peaks: false, release: false, rare: Rare::Nothing };
}
