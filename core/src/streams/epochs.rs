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
//! it records or polls the event.

use crate::device::Event;
use crate::tables::busy_list::BusyList;
use crate::tables::radix_tree::{Key, Link, RadixTree};
use crate::tables::{CapacityError, Storage, Table};
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

/// An epoch with an event not known to be complete.
#[derive(Clone, Copy, Debug)]
struct Unfinished {
    epoch: Epoch,
    /// The recorded event; `None` while the event is being recorded, by the thread that has taken the entry.
    event: Option<Event>,
}

/// The unfinished epochs of a device, and events to record again.
#[derive(Clone)]
pub(crate) struct Epochs<S: Storage> {
    /// The epochs in the order in which they began. At most [`MAX_UNFINISHED`] of each heap. A thread takes
    /// an epoch to record or to poll its event.
    unfinished: BusyList<Unfinished, S>,
    /// Root of the set of the entries of `unfinished`, ordered by heap.
    by_heap: Link,
    /// The nodes of the set.
    nodes: RadixTree<S>,
    /// Events of no epoch, recorded again, because creating one is a call to the device. Has room
    /// for the events of all entries of `unfinished`.
    idle_events: S::Table<Event>,
}

impl<S: Storage> Default for Epochs<S> {
    fn default() -> Self {
        Self {
            unfinished: BusyList::default(),
            by_heap: Link::EMPTY,
            nodes: RadixTree::default(),
            idle_events: S::Table::<Event>::default(),
        }
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

    /// Begins an epoch. Returns the number of its entry, and an idle event, or `None` if the caller must
    /// create an event. The caller records the event with no lock held, and then calls
    /// [`recorded`](Self::recorded) or [`cancel`](Self::cancel).
    ///
    /// # Errors
    /// [`CapacityError`] if the heap has [`MAX_UNFINISHED`] epochs, or if a table is full.
    pub(crate) fn begin(&mut self, epoch: Epoch) -> Result<(u32, Option<Event>), CapacityError> {
        // Room for the event of every epoch, so that `recycle` cannot fail, and for an event that
        // the caller creates.
        let events = self.unfinished.len() as usize + usize::from(self.idle_events.is_empty());
        let room = self.unfinished.make_room(1) && self.nodes.make_room(1);
        if !self.has_room(epoch.slot) || !room || !self.idle_events.make_room(events) {
            return Err(CapacityError);
        }
        let entry = self.unfinished.add_taken(Unfinished { epoch, event: None });
        self.by_heap = self.nodes.insert(self.by_heap, entry, by_heap(&self.unfinished));
        Ok((entry, self.idle_events.pop()))
    }

    /// Notes that the event of an epoch that was begun is recorded.
    pub(crate) fn recorded(&mut self, entry: u32, event: Event) {
        self.unfinished[entry].event = Some(event);
        self.unfinished.keep(entry);
    }

    /// Drops an epoch after the recording of the event has failed. The event, if created, becomes
    /// idle.
    pub(crate) fn cancel(&mut self, entry: u32, event: Option<Event>) {
        self.remove(entry);
        self.recycle(event);
    }

    /// Takes the oldest epoch with a recorded event on which no thread works. Returns the number of the
    /// entry, the epoch, and the event to poll with no lock held.
    pub(crate) fn first_to_poll(&mut self) -> Option<(u32, Epoch, Event)> {
        let entry = self.unfinished.take_first(is_recorded)?;
        Some(self.to_poll(entry))
    }

    /// Ends the poll of an epoch that was taken, and takes the next one, as
    /// [`first_to_poll`](Self::first_to_poll) does. If `finished`, the event is complete or cannot be polled:
    /// the epoch is removed, and the event becomes idle.
    pub(crate) fn poll_next(&mut self, entry: u32, finished: bool) -> Option<(u32, Epoch, Event)> {
        let next = self.unfinished.take_after(entry, is_recorded);
        if finished {
            let event = self.remove(entry);
            self.recycle(event);
        } else {
            self.unfinished.keep(entry);
        }
        next.map(|next| self.to_poll(next))
    }

    fn to_poll(&self, entry: u32) -> (u32, Epoch, Event) {
        let Unfinished { epoch, event } = self.unfinished[entry];
        (entry, epoch, event.expect("a recorded epoch was taken"))
    }

    /// Removes an epoch that the caller has taken. Returns the event, if recorded.
    fn remove(&mut self, entry: u32) -> Option<Event> {
        self.by_heap = self.nodes.remove(self.by_heap, entry, by_heap(&self.unfinished));
        self.unfinished.remove(entry).event
    }

    /// Takes an idle event, which the caller destroys.
    pub(crate) fn take_idle(&mut self) -> Option<Event> {
        self.idle_events.pop()
    }

    /// Adds an event to the idle events.
    fn recycle(&mut self, event: Option<Event>) {
        if let Some(event) = event {
            self.idle_events.add(event);
        }
    }
}

/// Returns whether the event of an epoch is recorded.
fn is_recorded(entry: &Unfinished) -> bool {
    entry.event.is_some()
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::*;
    use crate::tables::{Fixed, Growable};

    fn epoch(slot: u32, stamp: u64) -> Epoch {
        Epoch { slot, pool: 0, stream: StreamId(u64::from(slot)), stamp }
    }

    #[test]
    fn the_unfinished_epochs_of_a_heap_are_bounded() {
        let mut epochs = Epochs::<Growable>::default();
        for stamp in 1..=MAX_UNFINISHED as u64 {
            let (entry, idle) = epochs.begin(epoch(3, stamp)).unwrap();
            assert_eq!(idle, None, "an event is to be created");
            epochs.recorded(entry, Event(stamp));
        }
        assert_eq!(epochs.begin(epoch(3, 9)), Err(CapacityError));
        assert!(!epochs.has_room(3) && epochs.has_room(2) && epochs.has_room(4), "the bound is that of one heap");
        assert_eq!((epochs.newest(3), epochs.newest(4)), (MAX_UNFINISHED as u64, 0));
    }

    #[test]
    fn an_epoch_is_polled_by_one_thread_at_a_time_and_its_event_is_used_again() {
        let mut epochs = Epochs::<Growable>::default();
        let [first, second] = [0, 1].map(|slot| epochs.begin(epoch(slot, 1)).unwrap().0);
        assert_eq!(epochs.first_to_poll(), None, "both events are still being recorded");
        epochs.recorded(first, Event(10));
        epochs.recorded(second, Event(11));
        assert_eq!(epochs.first_to_poll(), Some((first, epoch(0, 1), Event(10))));
        assert_eq!(epochs.first_to_poll(), Some((second, epoch(1, 1), Event(11))), "the first is being polled");
        assert_eq!(epochs.poll_next(first, true), None, "the second is being polled");
        assert_eq!(epochs.poll_next(second, false), None);
        assert_eq!(epochs.first_to_poll(), Some((second, epoch(1, 1), Event(11))));
        let (third, idle) = epochs.begin(epoch(0, 2)).unwrap();
        assert_eq!(idle, Some(Event(10)), "the first event is idle");
        epochs.recorded(third, Event(10));
        assert_eq!(epochs.poll_next(second, true), Some((third, epoch(0, 2), Event(10))), "and behind the second");
        epochs.cancel(third, Some(Event(10)));
        assert_eq!(epochs.first_to_poll(), None);
    }

    #[test]
    fn a_full_table_begins_no_epoch() {
        let mut epochs = Epochs::<Fixed<1, 8, 2, 64>>::default();
        let (first, _) = epochs.begin(epoch(0, 1)).unwrap();
        assert!(epochs.begin(epoch(1, 1)).is_ok());
        assert_eq!(epochs.begin(epoch(2, 1)), Err(CapacityError));
        epochs.cancel(first, Some(Event(1)));
        assert_eq!(epochs.begin(epoch(2, 1)).unwrap().1, Some(Event(1)));
    }
}
