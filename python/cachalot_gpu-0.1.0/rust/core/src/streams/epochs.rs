//! Epochs: free blocks that no work of the device uses any longer.
//!
//! A heap stamps each block that becomes free with the heap's clock. To begin an *epoch* of a heap,
//! the caller advances the clock and records an event on the heap's stream. Blocks with an earlier
//! stamp were freed before the recording, so all work that used the blocks precedes the event. Once
//! the event is complete, the blocks are *quiet*: a release of the segment waits for no work.
//!
//! ```text
//! freed_at    7    7    8    8 │ 9    9
//! clock       7 ───▶ 8 ───────▶│ 9
//!                 epoch 8      epoch 9: its event is complete ⟹ blocks with freed_at < 9 are quiet
//! ```
//!
//! No call to the device is made under the lock of the epochs. A thread takes an entry instead while
//! it polls the event.

use crate::streams::fences::Fence;
use crate::tables::busy_list::BusyList;
use crate::tables::radix_tree::{Key, Link, RadixTree};
use crate::tables::{CapacityError, Storage};
use crate::units::StreamId;

/// The number of epochs of one heap that may be unfinished at one time.
pub(crate) const MAX_UNFINISHED: usize = 4;

/// An epoch of a heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Epoch {
    /// The slot of the heap.
    pub slot: u32,
    /// The pool of the heap when the epoch began. The heap may belong to another stream and pool
    /// before the event is complete.
    pub pool: u32,
    /// The stream of the heap when the epoch began, on which the event is recorded.
    pub stream: StreamId,
    /// The clock after the advance: blocks of the heap with an earlier stamp precede the event.
    pub stamp: u64,
}

/// An epoch with a fence not known to be complete.
#[derive(Clone, Copy, Debug)]
struct Unfinished {
    epoch: Epoch,
    /// Recorded on the stream of the epoch, after the clock's advance.
    fence: Fence,
}

/// The unfinished epochs of a device.
#[derive(Clone)]
pub(crate) struct Epochs<S: Storage> {
    /// The epochs in the order in which they began. At most [`MAX_UNFINISHED`] of each heap. A thread takes
    /// an epoch to poll its event.
    unfinished: BusyList<Unfinished, S>,
    /// Root of the set of the entries of `unfinished`, ordered by heap.
    by_heap: Link,
    /// The nodes of the set.
    nodes: RadixTree<S>,
}

impl<S: Storage> Default for Epochs<S> {
    fn default() -> Self {
        Self { unfinished: BusyList::default(), by_heap: Link::EMPTY, nodes: RadixTree::default() }
    }
}

/// Returns the key of the entry with number `entry` for an epoch of the heap in `slot`.
fn key_of(slot: u32, entry: u32) -> Key {
    Key { major: u64::from(slot), minor: u64::from(entry) }
}

/// Returns a function that orders entries by heap.
fn by_heap<S: Storage>(unfinished: &BusyList<Unfinished, S>) -> impl Fn(u32) -> Key {
    |entry| key_of(unfinished[entry].epoch.slot, entry)
}

impl<S: Storage> Epochs<S> {
    /// Iterates over the unfinished epochs of the heap in `slot`, in no order: [`MAX_UNFINISHED`] at most.
    fn of_heap(&self, slot: u32) -> impl Iterator<Item = Epoch> {
        let from = move |entry: u64| {
            let bound = Key { major: u64::from(slot), minor: entry };
            let found = self.nodes.at_least(self.by_heap, bound, by_heap(&self.unfinished))?;
            Some(found).filter(|&found| self.unfinished[found].epoch.slot == slot)
        };
        let entries = core::iter::successors(from(0), move |&entry| from(u64::from(entry) + 1));
        entries.map(|entry| self.unfinished[entry].epoch)
    }

    /// Returns whether a further epoch of the heap in `slot` may begin.
    pub(crate) fn has_room(&self, slot: u32) -> bool {
        self.of_heap(slot).count() < MAX_UNFINISHED
    }

    /// Returns the stamp of the newest unfinished epoch of the heap in `slot`: blocks with an
    /// earlier stamp become quiet without a further event. 0 without an unfinished epoch.
    pub(crate) fn newest(&self, slot: u32) -> u64 {
        self.of_heap(slot).map(|epoch| epoch.stamp).max().unwrap_or(0)
    }

    /// Begins an epoch with a fence, which the caller ends when the epoch is over.
    ///
    /// # Errors
    /// [`CapacityError`] if the heap has [`MAX_UNFINISHED`] epochs, or if a table is full. No epoch has begun then.
    pub(crate) fn begin(&mut self, epoch: Epoch, fence: Fence) -> Result<(), CapacityError> {
        if !self.has_room(epoch.slot) || !self.unfinished.make_room(1) || !self.nodes.make_room(1) {
            return Err(CapacityError);
        }
        let entry = self.unfinished.add(Unfinished { epoch, fence });
        self.by_heap = self.nodes.insert(self.by_heap, entry, by_heap(&self.unfinished));
        Ok(())
    }

    /// Takes the oldest epoch on which no thread works. Returns the number of the entry, the epoch, and the fence to poll
    /// with no lock held.
    pub(crate) fn first_to_poll(&mut self) -> Option<(u32, Epoch, Fence)> {
        let entry = self.unfinished.take_first(|_| true)?;
        Some(self.to_poll(entry))
    }

    /// Ends the poll of an epoch that was taken, and takes the next one, as
    /// [`first_to_poll`](Self::first_to_poll) does. An epoch that `is_over` is removed.
    pub(crate) fn poll_next(&mut self, entry: u32, is_over: bool) -> Option<(u32, Epoch, Fence)> {
        let next = self.unfinished.take_after(entry, |_| true);
        if is_over {
            self.by_heap = self.nodes.remove(self.by_heap, entry, by_heap(&self.unfinished));
            self.unfinished.remove(entry);
        } else {
            self.unfinished.keep(entry);
        }
        next.map(|next| self.to_poll(next))
    }

    fn to_poll(&self, entry: u32) -> (u32, Epoch, Fence) {
        let Unfinished { epoch, fence } = self.unfinished[entry];
        (entry, epoch, fence)
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::*;
    use crate::device::Event;
    use crate::tables::{Fixed, Growable};

    fn epoch(slot: u32, stamp: u64) -> Epoch {
        Epoch { slot, pool: 0, stream: StreamId(u64::from(slot)), stamp }
    }

    fn fence(number: u64) -> Fence {
        Fence { stream: StreamId(1), number, event: Event(number) }
    }

    #[test]
    fn the_unfinished_epochs_of_a_heap_are_bounded() {
        let mut epochs = Epochs::<Growable>::default();
        for stamp in 1..=MAX_UNFINISHED as u64 {
            epochs.begin(epoch(3, stamp), fence(stamp)).unwrap();
        }
        assert_eq!(epochs.begin(epoch(3, 9), fence(9)), Err(CapacityError));
        assert!(!epochs.has_room(3) && epochs.has_room(2) && epochs.has_room(4), "the bound is that of one heap");
        assert_eq!((epochs.newest(3), epochs.newest(4)), (MAX_UNFINISHED as u64, 0));
    }

    #[test]
    fn an_epoch_is_polled_by_one_thread_at_a_time() {
        let mut epochs = Epochs::<Growable>::default();
        assert_eq!(epochs.first_to_poll(), None);
        for slot in [0, 1] {
            epochs.begin(epoch(slot, 1), fence(u64::from(slot))).unwrap();
        }
        let (first, ..) = epochs.first_to_poll().unwrap();
        let (second, of_second, fence_of_second) = epochs.first_to_poll().unwrap();
        assert_eq!((of_second, fence_of_second), (epoch(1, 1), fence(1)), "the first is being polled");
        assert_eq!(epochs.poll_next(first, true), None, "the second is being polled");
        assert_eq!(epochs.poll_next(second, false), None);
        assert_eq!(epochs.first_to_poll(), Some((second, epoch(1, 1), fence(1))));
        epochs.begin(epoch(0, 2), fence(2)).unwrap();
        let (third, of_third, _) = epochs.poll_next(second, true).unwrap();
        assert_eq!(of_third, epoch(0, 2));
        assert_eq!(epochs.poll_next(third, true), None);
        assert_eq!(epochs.first_to_poll(), None);
    }

    #[test]
    fn a_full_table_begins_no_epoch() {
        let mut epochs = Epochs::<Fixed<1, 8, 2, 64>>::default();
        epochs.begin(epoch(0, 1), fence(1)).unwrap();
        epochs.begin(epoch(1, 1), fence(2)).unwrap();
        assert_eq!(epochs.begin(epoch(2, 1), fence(3)), Err(CapacityError));
        let (entry, ..) = epochs.first_to_poll().unwrap();
        epochs.poll_next(entry, true);
        assert!(epochs.begin(epoch(2, 1), fence(3)).is_ok());
    }
}
