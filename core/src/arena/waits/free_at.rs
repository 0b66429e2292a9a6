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

use crate::arena::Platform;
use crate::arena::waits::{Outside, Waits};
use crate::error::Error;
use crate::heap::block::FRONTIER_BIT;
use crate::streams::deferred_frees::{DeferredFree, Until};
use crate::tables::CapacityError;
use crate::tables::slot_table::NONE;

impl<P: Platform> Waits<P> {
    /// Adds a free at `count`, without its block yet. Returns the entry; `None` if the frontier has reached the count.
    ///
    /// # Errors
    /// [`Error::TableFull`].
    pub(in crate::arena) fn begin_free_at(&self, slot: u32, count: u64) -> Result<Option<u32>, Error> {
        let mut kept = self.deferred.lock();
        let added = (count > kept.reached).then(|| kept.add(slot, NONE, Until::Count(count)));
        added.transpose().map_err(|CapacityError| Error::TableFull("frees at a count"))
    }

    /// Names the block of a free at a count, or drops the free if the block could not be detached. Returns the frontier.
    pub(in crate::arena) fn end_free_at(&self, entry: u32, detached: Result<u32, Error>) -> Result<u64, Error> {
        let mut kept = self.deferred.lock();
        match detached {
            Ok(block) => {
                kept.name(entry, block);
                kept.keep(entry);
                Ok(kept.reached)
            }
            Err(error) => {
                kept.remove(entry);
                Err(error)
            }
        }
    }

    /// Moves the frontier up to `count`, and frees the blocks reached. Does nothing if the frontier
    /// is there already.
    pub(crate) fn set_safe_frontier<'a>(&self, on: impl Outside<'a, P>, count: u64) {
        // One block at a time: `reach` locks a heap, which must not happen under the lock of the kept blocks.
        // Several threads may take blocks out at once, each block goes to one of them.
        loop {
            let DeferredFree { heap, block, .. } = {
                let mut kept = self.deferred.lock();
                kept.reached = kept.reached.max(count);
                let Some(entry) = kept.take_reached() else { return };
                let reached = kept.block(entry);
                kept.remove(entry);
                reached
            };
            reach(on, heap, block);
        }
    }
}

/// Ends a block's wait for the frontier, and frees the block unless events are still awaited.
fn reach<'a, P: Platform>(on: impl Outside<'a, P>, slot: u32, block: u32) {
    let mut heap = on.heaps().lock(slot);
    debug_assert!(heap.blocks[block].events & FRONTIER_BIT != 0, "the block waits for the frontier");
    heap.blocks[block].events &= !FRONTIER_BIT;
    on.free_if_unused(slot, heap, block);
}
