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
//! No call to the device is made under the lock of the epochs. An entry is marked busy instead while
//! a thread records or polls the event.

use crate::device::Event;
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

/// An epoch with an event that is not known to be complete.
#[derive(Clone, Copy, Debug)]
struct Unfinished {
    epoch: Epoch,
    /// The recorded event; `None` while the event is being recorded.
    event: Option<Event>,
    /// A thread records or polls the event. Set ⟹ no other thread removes the entry.
    busy: bool,
}

/// The unfinished epochs of a device, and events to record again.
#[derive(Clone)]
pub(crate) struct Epochs<S: Storage> {
    /// The epochs in the order in which they began. At most [`MAX_UNFINISHED`] of each heap.
    unfinished: S::Table<Unfinished>,
    /// Events of no epoch, recorded again, because creating one is a call to the device. Has room
    /// for the events of all entries of `unfinished`.
    idle_events: S::Table<Event>,
}

impl<S: Storage> Default for Epochs<S> {
    fn default() -> Self {
        Self { unfinished: S::Table::<Unfinished>::default(), idle_events: S::Table::<Event>::default() }
    }
}

impl<S: Storage> Epochs<S> {
    /// Returns whether a further epoch of the heap in `slot` may begin.
    pub(crate) fn has_room(&self, slot: u32) -> bool {
        self.unfinished.iter().filter(|entry| entry.epoch.slot == slot).count() < MAX_UNFINISHED
    }

    /// Returns the stamp of the newest unfinished epoch of the heap in `slot`: blocks with an
    /// earlier stamp become quiet without a further event. 0 without an unfinished epoch.
    pub(crate) fn newest(&self, slot: u32) -> u64 {
        let of_heap = self.unfinished.iter().filter(|entry| entry.epoch.slot == slot);
        of_heap.map(|entry| entry.epoch.stamp).max().unwrap_or(0)
    }

    /// Begins an epoch. Returns an idle event, or `None` if the caller must create an event. The
    /// caller records the event with no lock held, and then calls [`recorded`](Self::recorded) or
    /// [`cancel`](Self::cancel).
    ///
    /// # Errors
    /// [`CapacityError`] if the heap has [`MAX_UNFINISHED`] epochs, or if a table is full.
    pub(crate) fn begin(&mut self, epoch: Epoch) -> Result<Option<Event>, CapacityError> {
        // Room for the event of every epoch, so that `recycle` cannot fail, and for an event that
        // the caller creates.
        let events = self.unfinished.len() + usize::from(self.idle_events.is_empty());
        if !self.has_room(epoch.slot) || !self.unfinished.make_room(1) || !self.idle_events.make_room(events) {
            return Err(CapacityError);
        }
        self.unfinished.add(Unfinished { epoch, event: None, busy: true });
        Ok(self.idle_events.pop())
    }

    /// Notes that the event of an epoch that was begun is recorded.
    pub(crate) fn recorded(&mut self, epoch: Epoch, event: Event) {
        if let Some(at) = self.place(epoch) {
            (self.unfinished[at].event, self.unfinished[at].busy) = (Some(event), false);
        }
    }

    /// Drops an epoch after the recording of the event has failed. The event, if created, becomes
    /// idle.
    pub(crate) fn cancel(&mut self, epoch: Epoch, event: Option<Event>) {
        self.remove(epoch);
        self.recycle(event);
    }

    /// Marks an epoch busy: the oldest at or after place `from` with a recorded event and without a
    /// thread at work. Returns the place, the epoch, and the event to poll with no lock held.
    pub(crate) fn next_to_poll(&mut self, from: usize) -> Option<(usize, Epoch, Event)> {
        let ready = |at: usize| self.unfinished[at].event.filter(|_| !self.unfinished[at].busy);
        let (at, event) = (from..self.unfinished.len()).find_map(|at| Some((at, ready(at)?)))?;
        self.unfinished[at].busy = true;
        Some((at, self.unfinished[at].epoch, event))
    }

    /// Ends a poll begun by [`next_to_poll`](Self::next_to_poll). If `finished`, the event is complete
    /// or cannot be polled: the epoch is removed, and the event becomes idle.
    pub(crate) fn finish_poll(&mut self, epoch: Epoch, finished: bool) {
        if finished {
            let removed = self.remove(epoch);
            self.recycle(removed.and_then(|entry| entry.event));
        } else if let Some(at) = self.place(epoch) {
            self.unfinished[at].busy = false;
        }
    }

    /// Returns the place of a busy epoch of the caller.
    fn place(&self, epoch: Epoch) -> Option<usize> {
        let at = self.unfinished.iter().position(|entry| entry.busy && entry.epoch == epoch);
        debug_assert!(at.is_some(), "a busy epoch is removed by the thread that works on it");
        at
    }

    /// Removes a busy epoch of the caller. The other epochs keep their order.
    fn remove(&mut self, epoch: Epoch) -> Option<Unfinished> {
        let at = self.place(epoch)?;
        self.unfinished[at..].rotate_left(1);
        self.unfinished.pop()
    }

    /// Adds an event to the idle events.
    fn recycle(&mut self, event: Option<Event>) {
        if let Some(event) = event {
            self.idle_events.add(event);
        }
    }
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
            assert_eq!(epochs.begin(epoch(3, stamp)), Ok(None), "an event is to be created");
            epochs.recorded(epoch(3, stamp), Event(stamp));
        }
        assert_eq!(epochs.begin(epoch(3, 9)), Err(CapacityError));
        assert!(!epochs.has_room(3) && epochs.has_room(4), "the bound is that of one heap");
        assert_eq!((epochs.newest(3), epochs.newest(4)), (MAX_UNFINISHED as u64, 0));
    }

    #[test]
    fn an_epoch_is_polled_by_one_thread_at_a_time_and_its_event_is_used_again() {
        let mut epochs = Epochs::<Growable>::default();
        for (slot, stamp) in [(0, 1), (1, 1)] {
            epochs.begin(epoch(slot, stamp)).unwrap();
        }
        assert_eq!(epochs.next_to_poll(0), None, "both events are still being recorded");
        epochs.recorded(epoch(0, 1), Event(10));
        epochs.recorded(epoch(1, 1), Event(11));
        assert_eq!(epochs.next_to_poll(0), Some((0, epoch(0, 1), Event(10))));
        assert_eq!(epochs.next_to_poll(0), Some((1, epoch(1, 1), Event(11))), "the first is being polled");
        epochs.finish_poll(epoch(0, 1), true);
        epochs.finish_poll(epoch(1, 1), false);
        assert_eq!(epochs.next_to_poll(0), Some((0, epoch(1, 1), Event(11))), "the second has moved up");
        assert_eq!(epochs.begin(epoch(0, 2)), Ok(Some(Event(10))), "the first event is idle");
        epochs.cancel(epoch(0, 2), Some(Event(10)));
        epochs.finish_poll(epoch(1, 1), true);
        assert_eq!(epochs.next_to_poll(0), None);
    }

    #[test]
    fn a_full_table_begins_no_epoch() {
        let mut epochs = Epochs::<Fixed<1, 8, 2, 64>>::default();
        assert!(epochs.begin(epoch(0, 1)).is_ok() && epochs.begin(epoch(1, 1)).is_ok());
        assert_eq!(epochs.begin(epoch(2, 1)), Err(CapacityError));
        epochs.cancel(epoch(0, 1), Some(Event(1)));
        assert_eq!(epochs.begin(epoch(2, 1)), Ok(Some(Event(1))));
    }
}
