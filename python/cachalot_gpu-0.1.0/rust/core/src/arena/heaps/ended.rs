//! The queue of heaps of ended streams with segments to release.

use crate::arena::heaps::{ENDED, Heaps, QUEUED, Slot};
use crate::sync::{Lock, Ordering};
use crate::tables::Storage;

impl<R: Lock, S: Storage> Heaps<R, S> {
    /// Queues the heap in `slot` if its stream has ended: a segment of the heap may be wholly free.
    /// [`release_ended`](OnDevice::release_ended) releases queued segments before the device is
    /// asked for more memory.
    #[inline]
    pub(crate) fn queue_if_ended(&self, slot: &Slot<R, S>) {
        // One relaxed load for a live stream. A report that is just being stored is not lost:
        // `stream_destroyed` releases the free segments itself after the report.
        if slot.stream_state.load(Ordering::Relaxed) == ENDED {
            self.queue_ended(slot);
        }
    }

    /// Adds the heap in `slot` to the queue of ended heaps, unless another thread has done so.
    #[cold]
    fn queue_ended(&self, slot: &Slot<R, S>) {
        let mut ended = self.ended.lock();
        // Room first: a heap that found the table full is queued at its next free. The exchange
        // admits a heap once.
        let queue = || slot.stream_state.compare_exchange(ENDED, QUEUED, Ordering::Relaxed, Ordering::Relaxed);
        if ended.make_room(1) && queue().is_ok() {
            ended.add(slot.number);
            self.ended_count.store(ended.len(), Ordering::Relaxed);
        }
    }

    /// Removes the heap queued first from the queue of ended heaps, and returns the slot number.
    pub(crate) fn pop_ended(&self) -> Option<u32> {
        let mut ended = self.ended.lock();
        let first = ended.take_first(|_| true)?;
        let slot = ended.remove(first);
        self.ended_count.store(ended.len(), Ordering::Relaxed);
        let state = &self.slot(slot).stream_state;
        // Fails if the stream was revived or the pair vacated since it was queued: then `LIVE` must stay.
        let _changed_since = state.compare_exchange(QUEUED, ENDED, Ordering::Relaxed, Ordering::Relaxed);
        Some(slot)
    }

    /// Returns the length of the queue, without its lock: a heap queued at this moment is found by
    /// the next request that needs a segment.
    pub(crate) fn ended_count(&self) -> u32 {
        self.ended_count.load(Ordering::Relaxed)
    }

    /// Takes the first heap of the queue behind `entry`, which the caller has taken and which keeps its place; the
    /// first of all, if `entry` is `None`. Returns the entry in the queue and the slot number. The caller calls this
    /// again, or [`stop_at`](Self::stop_at).
    pub(crate) fn next_ended(&self, entry: Option<u32>) -> Option<(u32, u32)> {
        let mut ended = self.ended.lock();
        let next = match entry {
            Some(entry) => {
                let next = ended.take_after(entry, |_| true);
                ended.keep(entry);
                next?
            }
            None => ended.take_first(|_| true)?,
        };
        Some((next, ended[next]))
    }

    /// Ends a walk through the queue at `entry`, which the caller has taken.
    pub(crate) fn stop_at(&self, entry: u32) {
        self.ended.lock().keep(entry);
    }
}
