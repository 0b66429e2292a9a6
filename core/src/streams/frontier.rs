//! Frees that wait for a count. A program that numbers its work frees a block with the number of
//! the last work that uses the block. From time to time the program reports up to which number all
//! work is done: the safe frontier (`SetSafeFrontier`, TensorFlow 2.16).
//!
//! A block serves no request before the frontier has reached its count. TensorFlow differs: short
//! of memory, it hands such blocks to requests without a count.

use crate::tables::{CapacityError, Storage, Table};

/// The bit of [`BlockEntry::events`](crate::heap::block::BlockEntry::events) for the frontier: set while the
/// block waits for its count.
pub(crate) const FRONTIER_BIT: u32 = 1 << 31;

/// A block whose count the frontier has not reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CountedBlock {
    /// The number of the last work that uses the block.
    count: u64,
    /// The slot of the block's heap.
    heap: u32,
    /// The index of the block in the heap.
    block: u32,
}

/// The safe frontier of a device, and the blocks ahead of it.
#[derive(Clone)]
pub(crate) struct Frontier<S: Storage> {
    /// All work up to this count is done. Never decreases.
    reached: u64,
    /// The waiting blocks, as a binary heap by count: the count of entry `n` is at most those of entries `2n + 1` and
    /// `2n + 2`. Blocks of equal counts are not ordered, so a thousand frees at one count move no entry.
    waits: S::Table<CountedBlock>,
    /// Reservations neither used nor cancelled. Each has room in `waits`.
    reserved: usize,
}

impl<S: Storage> Default for Frontier<S> {
    fn default() -> Self {
        Self { reached: 0, waits: S::Table::<CountedBlock>::default(), reserved: 0 }
    }
}

impl<S: Storage> Frontier<S> {
    /// Reserves an entry for a block that waits for `count`. Returns false, and reserves nothing,
    /// if the frontier has reached the count. The reservation is used by [`push`](Self::push), or
    /// cancelled by [`cancel_reservation`](Self::cancel_reservation).
    ///
    /// # Errors
    /// [`CapacityError`] if the table is full. Nothing is reserved then.
    pub(crate) fn reserve(&mut self, count: u64) -> Result<bool, CapacityError> {
        if count <= self.reached {
            return Ok(false);
        }
        if !self.waits.make_room(self.reserved + 1) {
            return Err(CapacityError);
        }
        self.reserved += 1;
        Ok(true)
    }

    /// Cancels a reservation.
    pub(crate) fn cancel_reservation(&mut self) {
        debug_assert!(self.reserved > 0, "a reservation is used or cancelled once");
        self.reserved -= 1;
    }

    /// Adds a waiting block, using a reservation. Returns false, and adds nothing, if the frontier
    /// has reached the count since.
    pub(crate) fn push(&mut self, count: u64, heap: u32, block: u32) -> bool {
        debug_assert!(self.reserved > 0, "a reservation is used or cancelled once");
        self.reserved -= 1;
        if count <= self.reached {
            return false;
        }
        let wait = CountedBlock { count, heap, block };
        let mut at = self.waits.len();
        self.waits.add(wait);
        // Sift up.
        while let Some(parent) =
            at.checked_sub(1).map(|below| below / 2).filter(|&parent| count < self.waits[parent].count)
        {
            self.waits.swap(at, parent);
            at = parent;
        }
        true
    }

    /// Moves the frontier to `count`, unless it is further already.
    pub(crate) fn advance(&mut self, count: u64) {
        self.reached = self.reached.max(count);
    }

    /// Removes a block whose count the frontier has reached, lowest count first. Returns its heap
    /// and its index.
    pub(crate) fn pop(&mut self) -> Option<(u32, u32)> {
        let first = *self.waits.first().filter(|wait| wait.count <= self.reached)?;
        let end = self.waits.len() - 1;
        self.waits.swap(0, end);
        self.waits.pop();
        let waits = &mut *self.waits;
        let mut at = 0;
        let least = |at: usize, waits: &[CountedBlock]| {
            (2 * at + 1..waits.len().min(2 * at + 3))
                .min_by_key(|&child| waits[child].count)
                .filter(|&child| waits[child].count < waits[at].count)
        };
        // Sift the former last entry down from the root.
        while let Some(child) = least(at, waits) {
            waits.swap(at, child);
            at = child;
        }
        Some((first.heap, first.block))
    }
}
