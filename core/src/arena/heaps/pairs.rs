//! Pairs of heaps: finds, makes and uses them, and makes them vacant.

use crate::arena::heaps::pair_state::PairState;
use crate::arena::heaps::registry::{Pair, Registry};
use crate::arena::heaps::{ENDED, Heaps, LIVE, Slot, slot_of};
use crate::arena::platform::Platform;
use crate::config::rounding::PoolKind;
use crate::error::Error;
use crate::heap::Keeps;
use crate::heap::split_rules::Rules;
use crate::stats::Stat;
use crate::sync::Ordering;
use crate::tables::OnceTable;
use crate::units::{NO_STREAM, StreamId};

/// The name of the table of slots, for [`Error::TableFull`].
pub(crate) const HEAPS: &str = "heaps";
/// The name of the tables of pairs and streams, for [`Error::TableFull`].
pub(crate) const STREAMS: &str = "streams";

/// A guard that keeps a pair of heaps assigned to its stream and pool.
///
/// Dropping the guard leaves the pair. If the pair is marked as leaving, dropping its last guard
/// also makes it vacant if both heaps are empty, which takes the registry's lock and both heap
/// locks.
pub(crate) struct PairUse<'a, P: Platform> {
    heaps: &'a Heaps<P>,
    /// The number of the pair.
    pub pair: u32,
}

impl<P: Platform> PairUse<'_, P> {
    /// Returns the slot number of the pair's heap of `kind`.
    pub(crate) fn slot(&self, kind: PoolKind) -> u32 {
        slot_of(self.pair, kind)
    }
}

impl<P: Platform> Drop for PairUse<'_, P> {
    fn drop(&mut self) {
        if self.heaps.pair_state(self.pair).leave() {
            self.heaps.vacate_if_empty(self.pair);
        }
    }
}

impl<P: Platform> Heaps<P> {
    /// Returns the state word of `pair`, which is in the slot of the small heap.
    fn pair_state(&self, pair: u32) -> &PairState {
        &self.slot(slot_of(pair, PoolKind::Small)).state
    }

    /// Uses the pair of (stream, pool) for a request. Makes the pair if there is none. Clears the
    /// marks of a pair if its stream was reported as ended or its pool had no users.
    pub(crate) fn use_pair(&self, pool: u32, stream: StreamId) -> Result<PairUse<'_, P>, Error> {
        let found = match self.find_pair(pool, stream) {
            Some(found) => found,
            None => self.make_pair(pool, stream, true)?,
        };
        // A relaxed load is enough. The pair is in use, so even if it is still marked, it cannot
        // become vacant before `revive_pair` has taken the registry's lock.
        if self.pair_state(found.pair).is_leaving() {
            self.revive_pair(found.pair);
        }
        Ok(found)
    }

    /// Uses the pair of (stream, pool) for a forecast. Does not revive a pair if its stream has
    /// ended. A pair that is made for the forecast becomes vacant when the guard is dropped.
    pub(crate) fn use_pair_for_forecast(&self, pool: u32, stream: StreamId) -> Result<PairUse<'_, P>, Error> {
        self.find_pair(pool, stream).map_or_else(|| self.make_pair(pool, stream, false), Ok)
    }

    /// Uses the pair of (stream, pool). Returns `None` if no pair exists.
    pub(crate) fn find_pair(&self, pool: u32, stream: StreamId) -> Option<PairUse<'_, P>> {
        loop {
            let pair = self.shared_pool(pool).streams.get(stream.0)?;
            let found = self.enter_pair(pair);
            if let Some(found) = found {
                // The lookup took no lock, so check under the heap's lock that the pair still
                // belongs to the stream. From here on the use keeps the assignment.
                let heap = self.slot(found.slot(PoolKind::Small)).heap.lock();
                if heap.stream == stream && heap.pool == pool {
                    drop(heap);
                    return Some(found);
                }
                // The drop order matters: `heap` is unlocked before `found` leaves, because leaving
                // may lock the registry and this heap.
            }
            // The pair became vacant or was assigned to another stream after the lookup. `vacate`
            // removes the stream from the map before it unlocks the registry.
            drop(self.registry.lock());
        }
    }

    /// Returns whether the caller is the only user of `used`.
    pub(crate) fn is_only_user(&self, used: &PairUse<'_, P>) -> bool {
        self.pair_state(used.pair).users() == 1
    }

    /// Uses `pair`, whichever stream it belongs to. Returns `None` if the pair is vacant.
    pub(crate) fn enter_pair(&self, pair: u32) -> Option<PairUse<'_, P>> {
        let open = self.pair_state(pair).enter();
        // `enter` counts the caller even if the pair is vacant. The guard is made in either case,
        // and dropping the guard of a vacant pair undoes the count.
        let entered = PairUse { heaps: self, pair };
        if open { Some(entered) } else { None }
    }

    /// Uses the pair of `pool` with the lowest stream above `after`, and returns the stream too.
    pub(crate) fn next_pair(&self, pool: u32, after: Option<StreamId>) -> Option<(StreamId, PairUse<'_, P>)> {
        let registry = self.registry.lock();
        let (stream, pair) = registry.next_pair(pool, after)?;
        // The registry is locked, so the pair cannot become vacant before the caller enters.
        Some((stream, self.enter_pair(pair)?))
    }

    /// Iterates over the pairs of a pool, by ascending stream. Each item is a guard, so the pair
    /// keeps its stream while the caller holds the item.
    pub(crate) fn pairs_of(&self, pool: u32) -> impl Iterator<Item = PairUse<'_, P>> {
        let mut after = None;
        // Steps by stream and not by pair number, so pairs that come or go between two steps do no
        // harm.
        core::iter::from_fn(move || {
            let (stream, pair) = self.next_pair(pool, after)?;
            after = Some(stream);
            Some(pair)
        })
    }

    /// Makes and uses the pair of (stream, pool), or uses a pair that another thread has made since
    /// the caller looked. If `permanent` is false, the pair becomes vacant after the call, unless
    /// the call adds a segment.
    #[cold]
    fn make_pair(&self, pool: u32, stream: StreamId, permanent: bool) -> Result<PairUse<'_, P>, Error> {
        Error::refuse_reserved(stream)?;
        let streams = &self.shared_pool(pool).streams;
        let mut registry = self.registry.lock();
        // The map contains no vacant pair while the registry is locked, so entering succeeds.
        if let Some(made) = streams.get(stream.0).and_then(|pair| self.enter_pair(pair)) {
            return Ok(made);
        }
        // Only empty pairs can become vacant here. Releasing the caches of idle pairs calls the
        // device, which must not happen under the registry's lock; `release_ended` does this later.
        if permanent && registry.is_sweep_due() {
            self.vacate_empty_pairs(&mut registry);
            self.idle_due.store(1, Ordering::Relaxed);
        }
        let mut room = self.room_for_pair(&mut registry);
        if room.is_err() {
            self.vacate_empty_pairs(&mut registry);
            room = self.room_for_pair(&mut registry);
        }
        let pair = room?;
        // All room is made before the first change, so a full table leaves nothing to undo.
        if !streams.make_room(1) {
            return Err(Error::TableFull(STREAMS));
        }
        self.assign_heaps(&registry, pair, pool, stream);
        registry.add_pair(stream, pool);
        self.set_leaving(&registry, pair, !permanent);
        // Open before publishing, so that a thread that finds the pair in the map finds it open.
        self.pair_state(pair).open();
        streams.insert(stream.0, pair);
        if pool == 0 {
            self.hints.set(stream, pair);
        }
        Ok(PairUse { heaps: self, pair })
    }

    /// Returns the number of a vacant pair with both slots made.
    ///
    /// # Errors
    ///
    /// [`Error::TableFull`] with [`STREAMS`] or [`HEAPS`].
    fn room_for_pair(&self, registry: &mut Registry<P::Storage>) -> Result<u32, Error> {
        let pair = registry.room_for_pair().ok_or(Error::TableFull(STREAMS))?;
        for kind in [PoolKind::Small, PoolKind::Large] {
            let number = slot_of(pair, kind);
            let set = |slot: &Slot<P>| slot.start(number, |heap| heap.set_rules(Rules::unset(kind)));
            self.slots.get_or_set(number, set).ok_or(Error::TableFull(HEAPS))?;
        }
        Ok(pair)
    }

    /// Assigns both heaps of a vacant pair to (stream, pool).
    fn assign_heaps(&self, registry: &Registry<P::Storage>, pair: u32, pool: u32, stream: StreamId) {
        let supplied = self.shared_pool(pool).is_supplied();
        for kind in [PoolKind::Small, PoolKind::Large] {
            let mut heap = self.slot(slot_of(pair, kind)).heap.lock();
            debug_assert!(heap.is_empty(), "a vacant pair has no segment");
            heap.begin(stream, pool, registry.rules_of(pool, kind, supplied), registry.policy.suballocator(kind));
            heap.parkable = registry.pools[pool as usize].tag.is_some();
            heap.clears = registry.clears(pool);
            heap.mark(false, registry.pools[pool as usize].asleep);
            heap.keeps = registry.keeps(pool);
            heap.clock = self.shared_pool(pool).searches[kind as usize].load(Ordering::Relaxed);
            heap.region = registry.policy.first_region();
        }
    }

    /// Clears the marks of a pair that was about to become vacant, because a request shows that the
    /// stream is live and the pool is in use.
    #[cold]
    fn revive_pair(&self, pair: u32) {
        let registry = self.registry.lock();
        self.set_leaving(&registry, pair, false);
        self.set_ended(&registry, pair, false);
    }

    /// Marks `pair` to become vacant as soon as both heaps are empty and no call uses it, or clears
    /// the mark. The parameter `_registry` shows that the registry is locked.
    pub(crate) fn set_leaving(&self, _registry: &Registry<P::Storage>, pair: u32, leaving: bool) {
        self.pair_state(pair).set_leaving(leaving);
    }

    /// Records whether the stream of `pair` has ended. Segments of an ended stream are released
    /// when they become wholly free. The parameter `_registry` shows that the registry is locked.
    pub(crate) fn set_ended(&self, _registry: &Registry<P::Storage>, pair: u32, ended: bool) {
        for kind in [PoolKind::Small, PoolKind::Large] {
            let slot = self.slot(slot_of(pair, kind));
            let mut heap = slot.heap.lock();
            let asleep = heap.asleep;
            heap.mark(ended, asleep);
            drop(heap);
            slot.stream_state.store(if ended { ENDED } else { LIVE }, Ordering::Relaxed);
        }
    }

    /// Makes `pair` vacant if both heaps are empty and no call uses the pair.
    pub(crate) fn vacate_if_empty(&self, pair: u32) {
        self.vacate(&mut self.registry.lock(), pair);
    }

    /// Makes every pair vacant that no call uses, if its heaps are empty.
    fn vacate_empty_pairs(&self, registry: &mut Registry<P::Storage>) {
        for pair in 0..registry.pairs.len() as u32 {
            self.vacate(registry, pair);
        }
        registry.finish_sweep();
    }

    /// Makes `pair` vacant under the registry's lock, if both heaps are empty and no call uses it.
    /// Also removes a private pool that has lost its last pair and has no users.
    pub(crate) fn vacate(&self, registry: &mut Registry<P::Storage>, pair: u32) {
        let Pair { stream, pool, exists, .. } = registry.pairs[pair as usize];
        if !exists {
            return;
        }
        {
            // This is the only place that holds two heap locks. The fast path takes blocks only
            // from segments in the heap, and the slow path enters first, so a closed pair stays
            // empty.
            let mut small = self.slot(slot_of(pair, PoolKind::Small)).heap.lock();
            let mut large = self.slot(slot_of(pair, PoolKind::Large)).heap.lock();
            if !small.is_empty() || !large.is_empty() || !self.pair_state(pair).close() {
                return;
            }
            for heap in [&mut small, &mut large] {
                self.drop_tables(heap);
                // A fast-path call that looked up the pair earlier compares its stream with
                // `NO_STREAM` under the heap's lock, and takes the slow path.
                let rules = heap.rules;
                heap.begin(NO_STREAM, 0, rules, None);
            }
            for kind in [PoolKind::Small, PoolKind::Large] {
                self.slot(slot_of(pair, kind)).stream_state.store(LIVE, Ordering::Relaxed);
            }
        }
        // Between `close` and the removal, `find_pair` waits for the registry's lock.
        self.shared_pool(pool).streams.remove(stream.0);
        registry.remove_pair(pair);
        registry.remove_pool_if_empty(pool);
    }

    /// Uses the first pair that has no live blocks and may release all its segments.
    pub(crate) fn idle_pair(&self) -> Option<PairUse<'_, P>> {
        let mut next = 0;
        loop {
            // The registry's lock ends with this block, because `is_idle` locks heaps one at a
            // time, and dropping a guard may lock the registry again.
            let used = {
                let registry = self.registry.lock();
                next = registry.existing_pair(next)?;
                self.enter_pair(next)
            };
            next += 1;
            let is_idle = |used: &PairUse<'_, P>| {
                [PoolKind::Small, PoolKind::Large].into_iter().all(|kind| {
                    let slot = self.slot(used.slot(kind));
                    let gives = slot.heap.lock().keeps == Keeps::Nothing;
                    // A pending segment is about to get a live block, so the pair is not idle.
                    gives
                        && slot.counters.current(Stat::Active) == 0
                        && slot.pending_segments.load(Ordering::Relaxed) == 0
                })
            };
            if let Some(idle) = used.filter(is_idle) {
                return Some(idle);
            }
        }
    }

    /// Returns the first existing pair from number `from` on, and whether it is idle. Records the
    /// pair's allocation count for the next sweep. An idle pair has no live block and has served no
    /// request since the previous sweep.
    pub(crate) fn sweep_pair(&self, from: u32) -> Option<(u32, bool)> {
        let mut registry = self.registry.lock();
        let pair = registry.existing_pair(from)?;
        let counters = [PoolKind::Small, PoolKind::Large].map(|kind| &self.slot(slot_of(pair, kind)).counters);
        let allocations = counters.iter().map(|counters| counters.ever_added(Stat::Allocation)).sum();
        let active: i64 = counters.iter().map(|counters| counters.current(Stat::Active)).sum();
        let previous = core::mem::replace(&mut registry.pairs[pair as usize].allocations_at_sweep, allocations);
        Some((pair, active == 0 && previous == allocations))
    }
}
