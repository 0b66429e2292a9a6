//! A copy of a device's heaps, with the same pools, routes and pairs.

use crate::arena::heaps::pair_state::PairState;
use crate::arena::heaps::pairs::{HEAPS, STREAMS};
use crate::arena::heaps::{Heaps, Slot, rank_of};
use crate::error::Error;
use crate::sync::{AtomicU32, Lock, Ordering, Rank, Ranked};
use crate::tables::{OnceTable, Storage};

impl<R: Lock, S: Storage> Heaps<R, S> {
    /// Returns the same heaps, as those of device 0. No call uses a pair of the copy, and the copy has
    /// no trace. The registry stays locked during the copy, so no pair comes or goes; the heaps are locked one
    /// after another.
    ///
    /// # Errors
    /// [`Error::TableFull`].
    pub(crate) fn copy(&self) -> Result<Self, Error> {
        let registry = self.registry.lock();
        let copy = Self::new(0, self.policy);
        for pool in 0..registry.pools.len() as u32 {
            let from = if pool == 0 { Some(&self.default_pool) } else { self.pools.get(pool) };
            let Some(from) = from else { continue };
            if pool == 0 {
                copy.default_pool.take_over(from);
            } else {
                copy.pools.get_or_set(pool, Default::default).ok_or(Error::TableFull("pools"))?.take_over(from);
            }
        }
        for number in self.slot_numbers() {
            let from = self.slot(number);
            let heap = from.heap.lock();
            let make = || Slot {
                number,
                state: PairState::copy(&from.state),
                stream_state: AtomicU32::new(from.stream_state.load(Ordering::Relaxed)),
                // What other threads are adding is charged, and in no heap yet.
                pending_segments: AtomicU32::new(0),
                counters: from.counters.copy(),
                heap: Ranked::new(rank_of(from.kind()), heap.clone()),
            };
            copy.slots.get_or_set(number, make).ok_or(Error::TableFull(HEAPS))?;
        }
        for (pair, entry) in (0..).zip(registry.pairs.iter()).filter(|(_, entry)| entry.exists) {
            let streams = &copy.shared_pool(entry.pool).streams;
            if !streams.make_room(1) {
                return Err(Error::TableFull(STREAMS));
            }
            streams.insert(entry.stream.0, pair);
        }
        let mut taken = registry.clone();
        drop(registry);
        taken.pools.iter_mut().for_each(|pool| pool.requests = 0);
        *copy.registry.lock() = taken;
        let ended = self.ended.lock().clone();
        copy.ended_count.store(ended.len(), Ordering::Relaxed);
        let ended = Ranked::new(Rank::Ended, ended);
        copy.idle_due.store(self.idle_due.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(Self { ended, ..copy })
    }
}
