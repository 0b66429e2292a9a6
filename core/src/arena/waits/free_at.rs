//! Frees at a count: a block stays pending until the safe frontier reaches the count.
//!
//! A program that numbers its work frees a block with the number of the last work that uses it. The
//! *safe frontier* is the number up to which all work is done. While a block waits for the
//! frontier, the bit [`FRONTIER_BIT`](crate::heap::block::FRONTIER_BIT) of its `events` is set, so
//! the same test ends a wait for the frontier and waits for events.
//!
//! ```text
//! free_at ─ add, busy ─ detach ─ pend, set FRONTIER_BIT ─ put back, by count
//!                                                     │ frontier ≥ count
//!                                                     └─▶ clear FRONTIER_BIT ─▶ free
//! ```

use crate::arena::platform::Platform;
use crate::arena::waits::{DeviceWaits, Outside, Waits};
use crate::error::Error;
use crate::streams::deferred_frees::Until;
use crate::streams::pending::PendingBlock;
use crate::tables::CapacityError;
use crate::tables::slot_table::NONE;

impl<P: Platform> Waits<P> {
    /// Adds a free at `count`, for now without its block. Returns the entry, or `None` if the
    /// frontier has already reached the count.
    ///
    /// # Errors
    /// [`Error::TableFull`].
    pub(in crate::arena) fn begin_free_at(&self, slot: u32, count: u64) -> Result<Option<u32>, Error> {
        let mut frees = self.deferred.lock();
        let added = (count > frees.reached).then(|| frees.add(PendingBlock { slot, index: NONE }, Until::Count(count)));
        added.transpose().map_err(|CapacityError| Error::TableFull("frees at a count"))
    }

    /// Sets the block of a free at a count, or drops the free if the block could not be detached.
    /// Returns the frontier.
    pub(in crate::arena) fn end_free_at(&self, entry: u32, detached: Result<u32, Error>) -> Result<u64, Error> {
        let mut frees = self.deferred.lock();
        match detached {
            Ok(block) => {
                frees.set_block(entry, block);
                frees.put_back(entry);
                Ok(frees.reached)
            }
            Err(error) => {
                frees.remove(entry);
                Err(error)
            }
        }
    }
}

impl<'a, P: Platform, O: Outside<'a, P>> DeviceWaits<'a, P, O> {
    /// Moves the frontier up to `count`, and frees the blocks that it reaches. Does nothing if the
    /// frontier is already there.
    pub(crate) fn set_safe_frontier(self, count: u64) {
        // One block at a time, because the end of a wait locks a heap, which must not happen under
        // the lock of the deferred frees. Several threads may take blocks out at once; each block
        // goes to one of them.
        loop {
            let taken = {
                let mut frees = self.waits.deferred.lock();
                frees.reached = frees.reached.max(count);
                frees.take_reached()
            };
            let Some(entry) = taken else { return };
            self.end_deferred(entry);
        }
    }
}
