//! The heaps of ended streams that have segments to release: a mark on each heap, and the set of
//! marked heaps.

use crate::arena::heaps::{ENDED, Heaps, QUEUED, Slot};
use crate::arena::platform::Platform;
use crate::sync::{Ordering, impl_empty};
use crate::tables::Storage;
use crate::tables::radix_tree::{Key, Link, RadixTree};

/// The set of the marked heaps, by slot.
#[derive(Clone)]
pub(crate) struct EndedHeaps<S: Storage> {
    root: Link,
    nodes: RadixTree<S>,
}

impl_empty! { [S: Storage] EndedHeaps<S> { root, nodes } }

/// Returns the key of a slot.
fn key_of(slot: u32) -> Key {
    Key { major: 0, minor: u64::from(slot) }
}

impl<P: Platform> Heaps<P> {
    /// Marks the heap in `slot` if its stream has ended, because a segment of the heap may be
    /// wholly free. `Holdings::release_ended` releases the segments of marked heaps before the
    /// device is asked for more memory.
    #[inline]
    pub(crate) fn queue_if_ended(&self, slot: &Slot<P>) {
        // One relaxed load for a live stream. A report that is being stored at this moment is not
        // lost, because `stream_destroyed` releases the free segments itself after the report.
        if slot.stream_state.load(Ordering::Relaxed) == ENDED {
            self.queue_ended(slot);
        }
    }

    /// Marks the heap in `slot`, unless another thread has done so.
    #[cold]
    fn queue_ended(&self, slot: &Slot<P>) {
        let EndedHeaps { root, nodes } = &mut *self.ended.lock();
        // Make room first: a heap that finds the table full is marked at its next free. The
        // exchange lets in each heap only once.
        let mark = || slot.stream_state.compare_exchange(ENDED, QUEUED, Ordering::Relaxed, Ordering::Relaxed);
        if nodes.make_room(1) && mark().is_ok() {
            // A heap stays in the set when its stream is used again, and this stream may end again.
            if nodes.at_least(*root, key_of(slot.number()), key_of) != Some(slot.number()) {
                *root = nodes.insert(*root, slot.number(), key_of);
                self.ended_count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Removes the mark from the heap with the lowest slot, from `from` on, and returns the slot
    /// number.
    pub(crate) fn pop_ended(&self, from: u32) -> Option<u32> {
        // Usually there is no such heap, which is found without the lock. A heap that is marked at
        // this moment is found by the next request that needs a segment.
        if self.ended_count() == 0 {
            return None;
        }
        let EndedHeaps { root, nodes } = &mut *self.ended.lock();
        let slot = nodes.at_least(*root, key_of(from), key_of)?;
        *root = nodes.remove(*root, slot, key_of);
        self.ended_count.fetch_sub(1, Ordering::Relaxed);
        let state = &self.slot(slot).stream_state;
        // Fails if the stream was revived or the pair became vacant since it was marked. `LIVE`
        // must stay then.
        let _changed_since = state.compare_exchange(QUEUED, ENDED, Ordering::Relaxed, Ordering::Relaxed);
        Some(slot)
    }

    /// Returns the number of marked heaps, without a lock.
    pub(super) fn ended_count(&self) -> u32 {
        self.ended_count.load(Ordering::Relaxed)
    }

    /// Returns the lowest slot of a marked heap, from `from` on. Other threads may release this
    /// heap at any time.
    pub(crate) fn next_ended(&self, from: u32) -> Option<u32> {
        if self.ended_count() == 0 {
            return None;
        }
        let ended = self.ended.lock();
        ended.nodes.at_least(ended.root, key_of(from), key_of)
    }
}
