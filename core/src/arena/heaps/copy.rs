//! Copying of a device's heaps, with the same pools, routes and pairs.

use crate::arena::heaps::ended::EndedHeaps;
use crate::arena::heaps::pairs::{HEAPS, STREAMS};
use crate::arena::heaps::registry::Registry;
use crate::arena::heaps::{HeapGuard, Heaps, Slot};
use crate::arena::platform::Platform;
use crate::error::Error;
use crate::sync::{MutexGuard, Ordering, Rank, Ranked};
use crate::tables::OnceTable;
use alloc::vec::Vec;

/// The locks of a device's heaps, pools and pairs.
pub(crate) struct LockedHeaps<'a, P: Platform> {
    /// The registry. While it is locked, no pair and no pool is added or removed.
    registry: MutexGuard<'a, P::Lock, Registry<P::Storage>>,
    /// The heaps, by slot.
    heaps: Vec<HeapGuard<'a, P>>,
}

impl<P: Platform> Heaps<P> {
    /// Locks the registry.
    pub(crate) fn lock_registry(&self) -> LockedHeaps<'_, P> {
        LockedHeaps { registry: self.registry.lock(), heaps: Vec::new() }
    }

    /// Locks all heaps. `locked` holds the registry, so no heap is added.
    pub(crate) fn lock_all<'a>(&'a self, locked: &mut LockedHeaps<'a, P>) {
        locked.heaps.extend(self.slot_numbers().map(|slot| self.slot(slot).heap.lock_beside()));
    }

    /// Locks the heaps of ended streams that wait to be released.
    pub(crate) fn lock_ended(&self) -> MutexGuard<'_, P::Lock, EndedHeaps<P::Storage>> {
        self.ended.lock_beside()
    }

    /// Returns a copy of the heaps, as those of device 0. No call uses a pair of the copy, and the
    /// copy has no trace.
    ///
    /// # Errors
    /// [`Error::TableFull`].
    pub(crate) fn copy_of<Q: Platform<Lock = P::Lock, Storage = P::Storage>>(
        &self,
        locked: &LockedHeaps<'_, P>,
        ended: &EndedHeaps<P::Storage>,
    ) -> Result<Heaps<Q>, Error> {
        let registry = &locked.registry;
        let copy = Heaps::<Q>::default();
        for pool in 0..registry.pools.len() as u32 {
            let from = if pool == 0 { Some(&self.default_pool) } else { self.pools.get(pool) };
            let Some(from) = from else { continue };
            if pool == 0 {
                copy.default_pool.take_over(from);
            } else {
                copy.pools.get_or_set(pool, |_| ()).ok_or(Error::TableFull("pools"))?.take_over(from);
            }
        }
        for (number, heap) in (0..).zip(&locked.heaps) {
            let from = self.slot(number);
            let set = |slot: &Slot<Q>| {
                slot.start(number, |to| *to = (**heap).clone());
                slot.state.take_over(&from.state);
                slot.stream_state.store(from.stream_state.load(Ordering::Relaxed), Ordering::Relaxed);
                // Memory that other threads are adding is already charged, but in no heap yet.
                slot.counters.take_over(&from.counters);
            };
            copy.slots.get_or_set(number, set).ok_or(Error::TableFull(HEAPS))?;
        }
        for (pair, entry) in (0..).zip(registry.pairs.iter()).filter(|(_, entry)| entry.exists) {
            let streams = &copy.shared_pool(entry.pool).streams;
            if !streams.make_room(1) {
                return Err(Error::TableFull(STREAMS));
            }
            streams.insert(entry.stream.0, pair);
        }
        let mut taken = (**registry).clone();
        taken.pools.iter_mut().for_each(|pool| pool.requests = 0);
        let registry = Ranked::new(Rank::Registry, taken);
        copy.ended_count.store(self.ended_count(), Ordering::Relaxed);
        let ended = Ranked::new(Rank::Ended, ended.clone());
        copy.idle_due.store(self.idle_due.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(Heaps { registry, ended, ..copy })
    }

    /// Adds the heaps of a copy to the list of dirty heaps. A copy has its own list, which is empty
    /// at first.
    pub(crate) fn list_as_dirty(&self) {
        for number in self.slot_numbers() {
            let slot = self.slot(number);
            let mut heap = slot.heap.lock();
            heap.set_clean(true);
            self.mark_dirty(slot, &mut heap);
        }
    }
}
