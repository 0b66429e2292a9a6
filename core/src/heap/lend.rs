//! Loans: a heap on pages lends its free blocks to other streams.

use crate::heap::Outcome;
use crate::heap::block::{Backing, BlockEntry};
use crate::heap::moves::{PagedHeap, Wanted};
use crate::stats::HeapCounters;
use crate::tables::{CapacityError, Storage};
use crate::units::{DevicePtr, StreamId};

impl<S: Storage> PagedHeap<'_, S> {
    /// Returns the length, in bytes, of the free block that would serve a request of `size` bytes
    /// of another stream. `None` if no block is large enough, or if the heap lends nothing: because
    /// its stream has ended, because it is parked, or because it belongs to a private pool.
    pub(crate) fn lendable(&mut self, size: u64) -> Option<u64> {
        if !self.gives_pages()
            || self.0.ended
            || self.0.pool != 0
            || self.0.rules.no_split()
            || self.0.suballocator.is_some()
        {
            return None;
        }
        let block = self.0.sets.free.best_fit(size, self.0.blocks.entries())?;
        let BlockEntry { size, backing, .. } = self.0.blocks[block];
        (backing == Backing::Pages && size < self.0.rules.refuse_from).then_some(size)
    }

    /// Allocates the block that [`lendable`](Self::lendable) found, for work of `borrower`. Also
    /// returns whether the work of the heap's own stream that used the block is known to be
    /// complete.
    ///
    /// # Errors
    /// [`CapacityError`] if a table is full. Nothing has changed then.
    pub(crate) fn lend(
        &mut self,
        size: u64,
        requested: u64,
        borrower: StreamId,
        counters: &HeapCounters,
    ) -> Result<(Outcome<DevicePtr>, bool), CapacityError> {
        self.0.make_room()?;
        self.0.uses().make_room()?;
        let found = self.0.sets.free.best_fit(size, self.0.blocks.entries()).ok_or(CapacityError)?;
        let is_quiet = self.admits(Wanted::Quiet, found);
        let served = self.0.allocate_from(found, size, requested, counters);
        if let Some(block) = self.0.lookup(served.value) {
            self.0.uses().lend(block, borrower);
        }
        Ok((served, is_quiet))
    }
}
