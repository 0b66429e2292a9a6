//! Freed blocks whose uses have events of their own, in the order of the frees.
//!
//! A block stays here with its uses until all the events are complete, or until the block's own stream
//! is ordered behind them. The thread that works on a block marks the block busy, since the device is
//! called with no lock held.

use crate::tables::{CapacityError, Storage, Table};

/// A pending block whose uses have events.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The slot of the block's heap.
    heap: u32,
    /// The index of the block in the heap.
    block: u32,
    /// A thread works on the block. Set ⟹ no other thread touches the block or its uses.
    busy: bool,
}

/// The freed blocks of a device whose uses have events.
#[derive(Clone)]
pub(crate) struct OrderedBlocks<S: Storage> {
    entries: S::Table<Entry>,
}

impl<S: Storage> Default for OrderedBlocks<S> {
    fn default() -> Self {
        Self { entries: S::Table::<Entry>::default() }
    }
}

impl<S: Storage> OrderedBlocks<S> {
    /// Returns whether the list is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a block at the end, busy.
    ///
    /// # Errors
    /// [`CapacityError`] if the table is full.
    pub(crate) fn add(&mut self, heap: u32, block: u32) -> Result<(), CapacityError> {
        if !self.entries.make_room(1) {
            return Err(CapacityError);
        }
        self.entries.add(Entry { heap, block, busy: true });
        Ok(())
    }

    /// Marks the first block at or after `from` busy that is not, and is in the heap `slot` if given.
    /// Returns the place, the heap and the number of the block. The caller ends with [`keep`](Self::keep) or
    /// [`remove`](Self::remove).
    pub(crate) fn take(&mut self, from: usize, slot: Option<u32>) -> Option<(usize, u32, u32)> {
        let wanted = |entry: &Entry| !entry.busy && slot.is_none_or(|slot| entry.heap == slot);
        let place = (from..self.entries.len()).find(|&place| wanted(&self.entries[place]))?;
        let Entry { heap, block, .. } = self.entries[place];
        self.entries[place].busy = true;
        Some((place, heap, block))
    }

    /// Keeps a busy block, whose events are not all complete. The block is no longer busy.
    pub(crate) fn keep(&mut self, heap: u32, block: u32) {
        let place = self.place(heap, block);
        self.entries[place].busy = false;
    }

    /// Removes a busy block, which is about to become free.
    pub(crate) fn remove(&mut self, heap: u32, block: u32) {
        let place = self.place(heap, block);
        // The others keep their order: the entry moves to the end.
        self.entries[place..].rotate_left(1);
        self.entries.pop();
    }

    /// Returns the present place of a busy block. Blocks before it may have left.
    fn place(&self, heap: u32, block: u32) -> usize {
        let wanted = |entry: &Entry| entry.busy && (entry.heap, entry.block) == (heap, block);
        self.entries.iter().position(wanted).expect("`take` has marked the block")
    }

    /// Returns whether a thread works on a block.
    pub(crate) fn is_at_work(&self) -> bool {
        self.entries.iter().any(|entry| entry.busy)
    }
}
