//! Heaps of one device: two heaps, small and large, for each (stream, pool) pair with memory.
//!
//! ```text
//! stream ─ map, no lock ─▶ pair ─▶ slots 2 · pair, 2 · pair + 1 ─▶ heap, under its own lock
//! ```
//!
//! The first request of a stream in a pool makes a pair. A pair becomes vacant, and may then be
//! assigned to another stream, when both heaps are empty and no call uses the pair. If the stream
//! has ended or the pool has no users, the pair becomes vacant at once. Other empty pairs become
//! vacant in a sweep, which runs when many pairs exist. Slots are never removed, so the slots take
//! the memory of the largest number of pairs that existed at one time. An empty heap has no tables.
//!
//! The fast path takes only the lock of one heap, and checks under the lock that the heap still
//! belongs to the stream. Every slow-path call *uses* the pair ([`PairUse`]), which keeps the pair
//! assigned to the stream until the call is done.

use crate::arena::pair_state::PairState;
use crate::arena::registry::{Pair, Registry, SharedPool};
use crate::arena::{Arena, OnDevice};
use crate::config::rounding::PoolKind;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::heap::Heap;
use crate::page_map::HeapRef;
use crate::pool::PoolOptions;
use crate::stats::{HeapCounters, Stat};
use crate::sync::{AtomicU32, AtomicU64, Lock, MutexGuard, Ordering, Rank, Ranked};
use crate::tables::{OnceTable, Storage, Table};
use crate::units::{DevicePtr, NO_STREAM, StreamId};

/// Name of the table of slots, for [`Error::TableFull`].
pub(crate) const HEAPS: &str = "heaps";
/// Name of the tables of pairs and streams, for [`Error::TableFull`].
pub(crate) const STREAMS: &str = "streams";

/// State of a heap's stream: not reported as ended.
const LIVE: u32 = 0;
/// State of a heap's stream: reported as ended.
const ENDED: u32 = 1;
/// State of a heap's stream: reported as ended, and the heap is queued in [`Arena::ended`] for the
/// release of free segments.
const QUEUED: u32 = 2;

/// One heap and its counters. Aligned to two cache lines, since the heap's own stream writes the
/// slot at every call and few other threads read the slot.
#[repr(align(128))]
pub(crate) struct Slot<R: Lock, S: Storage> {
    /// Number of the slot: `2 · pair` for the small heap, `2 · pair + 1` for the large heap.
    pub number: u32,
    /// Count of the calls that use the pair. Valid in the slot of the small heap; unused in the
    /// slot of the large heap.
    state: PairState,
    /// [`LIVE`], [`ENDED`] or [`QUEUED`]. Written under the registry's lock, except for the steps
    /// between [`ENDED`] and [`QUEUED`], which are written under the lock of [`Arena::ended`].
    stream_state: AtomicU32,
    /// Number of segments that are charged against the limit and not yet added to the heap.
    pub pending_segments: AtomicU32,
    /// Counters of the heap's statistics. Vacating the pair does not reset the counters.
    pub counters: HeapCounters,
    /// The heap, under a lock that is never held across a call to the device.
    pub heap: Ranked<R, Heap<S>>,
}

impl<R: Lock, S: Storage> Slot<R, S> {
    /// Returns the kind of the heap: small for an even slot number, large for an odd number.
    pub(crate) fn kind(&self) -> PoolKind {
        if self.number.is_multiple_of(2) { PoolKind::Small } else { PoolKind::Large }
    }
}

/// Guard that keeps a pair of heaps assigned to its stream and pool.
///
/// Dropping the guard leaves the pair. The last guard of a pair marked as leaving also vacates the
/// pair if both heaps are empty, and takes the registry's lock and both heap locks to do so.
pub(crate) struct PairUse<'a, D: DeviceMemory, R: Lock, S: Storage> {
    arena: &'a Arena<D, R, S>,
    /// Number of the pair.
    pub pair: u32,
}

impl<D: DeviceMemory, R: Lock, S: Storage> PairUse<'_, D, R, S> {
    /// Returns the slot number of the pair's heap of `kind`.
    pub(crate) fn slot(&self, kind: PoolKind) -> u32 {
        slot_of(self.pair, kind)
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Drop for PairUse<'_, D, R, S> {
    fn drop(&mut self) {
        if self.arena.pair_state(self.pair).leave() {
            self.arena.vacate_if_empty(self.pair);
        }
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> OnDevice<'_, D, R, S> {
    /// Releases the queued free segments of ended streams, and the caches of idle streams if a
    /// sweep of the pairs has asked for the release.
    pub(crate) fn release_ended(self) {
        // The count is read without the queue's lock: zero is the common case, and a heap queued
        // at this moment is found by the next request that needs a segment.
        while self.ended_count.load(Ordering::Relaxed) > 0
            && let Some(slot) = self.pop_ended()
        {
            let Some(used) = self.enter_pair(slot / 2) else { continue };
            // The pair may serve a live stream again since the heap was queued.
            if self.lock(slot).ended {
                // Ignore a failure: `Ledger::leak` counts the bytes, and the request may succeed.
                let _counted = self.release_heap(slot);
            }
            drop(used);
        }
        // `swap` gives the sweep to one thread only.
        if self.idle_due.swap(0, Ordering::Relaxed) != 0 {
            self.release_idle();
        }
    }

    /// Releases the caches of idle pairs, and makes the pairs vacant. A pair is idle if the program
    /// has no block of the pair and the pair has served no request since the previous sweep.
    ///
    /// The sweep also finds streams that ended without a report: a driver does not report the end
    /// of a stream.
    #[cold]
    fn release_idle(self) {
        let mut next = 0;
        while let Some((pair, idle)) = self.sweep_pair(next) {
            next = pair + 1;
            if let Some(used) = idle.then(|| self.enter_pair(pair)).flatten() {
                self.release_pair(used);
            }
        }
        // Set the threshold of the next sweep from the pairs left after the release.
        self.registry.lock().finish_sweep();
    }

    /// Releases the cache of one idle pair, and makes the pair vacant. Returns false if no pair is
    /// idle, or if the pair could not be emptied.
    #[cold]
    pub(crate) fn release_one_idle(self) -> bool {
        let Some(used) = self.idle_pair() else { return false };
        let pair = used.pair;
        self.release_pair(used);
        !self.registry.lock().pairs[pair as usize].exists
    }

    /// Releases the caches of both heaps of a pair, and makes the pair vacant if nothing is left.
    fn release_pair(self, used: PairUse<'_, D, R, S>) {
        for kind in [PoolKind::Small, PoolKind::Large] {
            // Ignore a failure: `Ledger::leak` counts the bytes, and the request may succeed.
            let _counted = self.release_heap(used.slot(kind));
        }
        let pair = used.pair;
        // A pair in use cannot become vacant, so the guard is dropped first.
        drop(used);
        self.vacate_if_empty(pair);
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Locks the heap in `slot`, and sets the heap's clock.
    pub(crate) fn lock(&self, slot: u32) -> MutexGuard<'_, R, Heap<S>> {
        let mut heap = self.slot(slot).heap.lock();
        self.set_clock(&mut heap);
        heap
    }

    /// Sets the heap's clock to the search count of the heap's pool, if free blocks have ages.
    #[inline(always)]
    pub(crate) fn set_clock(&self, heap: &mut Heap<S>) {
        // Ages need both a limit and a collection threshold. Without them the clock stands still,
        // and the fast path pays for one test of a field of the locked heap.
        if heap.rules.ages {
            heap.clock = self.searches(heap).load(Ordering::Relaxed);
        }
    }

    /// Returns the count of searches through free blocks of the heap's pool and kind.
    // Cold, so that `set_clock`, which is inlined everywhere, stays one test and one jump.
    #[cold]
    pub(crate) fn searches(&self, heap: &Heap<S>) -> &AtomicU64 {
        &self.shared_pool(heap.pool).searches[heap.rules.kind as usize]
    }

    /// Returns the slot with number `slot`, which must have been made.
    pub(crate) fn slot(&self, slot: u32) -> &Slot<R, S> {
        self.slots.get(slot).expect("slots are never removed")
    }

    /// Iterates over the slot numbers of all heaps, heaps of vacant pairs included.
    pub(crate) fn slot_numbers(&self) -> impl Iterator<Item = u32> {
        (0..).take_while(|&slot| self.slots.get(slot).is_some())
    }

    /// Returns the lock-free part of the pool with number `pool`.
    pub(crate) fn shared_pool(&self, pool: u32) -> &SharedPool<S> {
        // The default pool lies in the arena itself: one load less on the way to a stream's pair.
        if pool == 0 {
            return &self.default_pool;
        }
        self.pools.get(pool).expect("a pool in the registry has a shared part")
    }

    /// Returns the reference under which the page map lists the segments of the heap in `slot`.
    pub(crate) fn heap_ref(&self, slot: u32) -> HeapRef {
        HeapRef { device: self.number, heap: slot }
    }

    /// Returns the state word of `pair`, which lies in the slot of the small heap.
    fn pair_state(&self, pair: u32) -> &PairState {
        &self.slot(slot_of(pair, PoolKind::Small)).state
    }

    /// Uses the pair of (stream, pool) for a request. Makes the pair if none exists, and clears the
    /// marks of a pair whose stream was reported as ended or whose pool had no users.
    pub(crate) fn use_pair(&self, pool: u32, stream: StreamId) -> Result<PairUse<'_, D, R, S>, Error> {
        let found = match self.find_pair(pool, stream) {
            Some(found) => found,
            None => self.make_pair(pool, stream, true)?,
        };
        // A relaxed load is enough: the pair is in use, so a pair still marked cannot be vacated
        // before `revive_pair` has taken the registry's lock.
        if self.pair_state(found.pair).is_leaving() {
            self.revive_pair(found.pair);
        }
        Ok(found)
    }

    /// Uses the pair of (stream, pool) for a forecast. Does not revive a pair whose stream has
    /// ended; a pair made for the forecast becomes vacant when the guard is dropped.
    pub(crate) fn use_pair_for_forecast(&self, pool: u32, stream: StreamId) -> Result<PairUse<'_, D, R, S>, Error> {
        self.find_pair(pool, stream).map_or_else(|| self.make_pair(pool, stream, false), Ok)
    }

    /// Uses the pair of (stream, pool). Returns `None` if no pair exists.
    pub(crate) fn find_pair(&self, pool: u32, stream: StreamId) -> Option<PairUse<'_, D, R, S>> {
        loop {
            let pair = self.shared_pool(pool).streams.get(stream.0)?;
            let found = self.enter_pair(pair);
            if let Some(found) = found {
                // The lookup took no lock: check under the heap's lock that the pair still belongs
                // to the stream. From here on the use keeps the assignment.
                let heap = self.slot(found.slot(PoolKind::Small)).heap.lock();
                if heap.stream == stream && heap.pool == pool {
                    drop(heap);
                    return Some(found);
                }
                // Drop order matters: `heap` unlocks before `found` leaves, since leaving may lock
                // the registry and this heap.
            }
            // The pair was vacated or assigned to another stream after the lookup. `vacate` is
            // about to remove the stream from the map, so the loop ends soon.
            core::hint::spin_loop();
        }
    }

    /// Uses `pair`, whichever stream has the pair. Returns `None` if the pair is vacant.
    pub(crate) fn enter_pair(&self, pair: u32) -> Option<PairUse<'_, D, R, S>> {
        let open = self.pair_state(pair).enter();
        // `enter` counts the caller even if the pair is vacant. The guard is made in either case,
        // and dropping the guard of a vacant pair undoes the count.
        let entered = PairUse { arena: self, pair };
        open.then_some(entered)
    }

    /// Uses the pair of `pool` with the lowest stream above `after`, and returns the stream too.
    pub(crate) fn next_pair(&self, pool: u32, after: Option<StreamId>) -> Option<(StreamId, PairUse<'_, D, R, S>)> {
        let registry = self.registry.lock();
        let (stream, pair) = registry.next_pair(pool, after)?;
        // The registry is locked, so the pair cannot become vacant before the caller enters.
        Some((stream, self.enter_pair(pair)?))
    }

    /// Makes and uses the pair of (stream, pool), or uses a pair that another thread has made since
    /// the caller looked. If `permanent` is false, the pair becomes vacant after the call unless the
    /// call adds a segment.
    #[cold]
    fn make_pair(&self, pool: u32, stream: StreamId, permanent: bool) -> Result<PairUse<'_, D, R, S>, Error> {
        if stream == NO_STREAM {
            return Err(Error::InvalidStream);
        }
        let streams = &self.shared_pool(pool).streams;
        let mut registry = self.registry.lock();
        // The map names no vacant pair while the registry is locked, so entering succeeds.
        if let Some(made) = streams.get(stream.0).and_then(|pair| self.enter_pair(pair)) {
            return Ok(made);
        }
        // Only empty pairs can be vacated here: releasing the caches of idle pairs calls the
        // device, which must not happen under the registry's lock. `release_ended` does so later.
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
        // All room is reserved before the first change, so a full table leaves nothing to undo.
        if !streams.make_room(1) {
            return Err(Error::TableFull(STREAMS));
        }
        self.assign_heaps(&registry, pair, pool, stream);
        registry.add_pair(stream, pool);
        self.set_leaving(&registry, pair, !permanent);
        // Open before publishing: a thread that finds the pair in the map finds the pair open.
        self.pair_state(pair).open();
        streams.insert(stream.0, pair);
        Ok(PairUse { arena: self, pair })
    }

    /// Returns the number of a vacant pair with both slots made.
    ///
    /// # Errors
    ///
    /// [`Error::TableFull`] with [`STREAMS`] or [`HEAPS`].
    fn room_for_pair(&self, registry: &mut Registry<S>) -> Result<u32, Error> {
        let pair = registry.room_for_pair().ok_or(Error::TableFull(STREAMS))?;
        for kind in [PoolKind::Small, PoolKind::Large] {
            let make = || Slot {
                number: slot_of(pair, kind),
                state: PairState::default(),
                stream_state: AtomicU32::new(LIVE),
                pending_segments: AtomicU32::new(0),
                counters: HeapCounters::default(),
                heap: Ranked::new(rank_of(kind), Heap::vacant(kind)),
            };
            self.slots.get_or_set(slot_of(pair, kind), make).ok_or(Error::TableFull(HEAPS))?;
        }
        Ok(pair)
    }

    /// Assigns both heaps of a vacant pair to (stream, pool).
    fn assign_heaps(&self, registry: &Registry<S>, pair: u32, pool: u32, stream: StreamId) {
        let config = self.config.lock().clone();
        let options = registry.pools[pool as usize].options;
        for kind in [PoolKind::Small, PoolKind::Large] {
            let mut heap = self.slot(slot_of(pair, kind)).heap.lock();
            debug_assert!(heap.is_empty(), "a vacant pair has no segment");
            heap.begin(stream, pool, self.rules(&config, kind, options), self.policy.suballocator(kind));
            heap.retained = pool != 0 && !registry.is_unused(pool);
            heap.clock = self.shared_pool(pool).searches[kind as usize].load(Ordering::Relaxed);
            heap.region = self.first_region();
        }
    }

    /// Clears the marks of a pair that was to become vacant: a request shows that the stream is
    /// live and the pool is in use.
    #[cold]
    fn revive_pair(&self, pair: u32) {
        let registry = self.registry.lock();
        self.set_leaving(&registry, pair, false);
        self.set_ended(&registry, pair, false);
    }

    /// Marks `pair` to become vacant as soon as both heaps are empty and no call uses the pair, or
    /// clears the mark. The parameter `_registry` shows that the registry is locked.
    pub(crate) fn set_leaving(&self, _registry: &Registry<S>, pair: u32, leaving: bool) {
        self.pair_state(pair).set_leaving(leaving);
    }

    /// Records whether the stream of `pair` has ended. Segments of an ended stream are released
    /// when they become wholly free. The parameter `_registry` shows that the registry is locked.
    pub(crate) fn set_ended(&self, _registry: &Registry<S>, pair: u32, ended: bool) {
        for kind in [PoolKind::Small, PoolKind::Large] {
            let slot = self.slot(slot_of(pair, kind));
            slot.heap.lock().set_ended(ended);
            slot.stream_state.store(if ended { ENDED } else { LIVE }, Ordering::Relaxed);
        }
    }

    /// Makes `pair` vacant if both heaps are empty and no call uses the pair.
    pub(crate) fn vacate_if_empty(&self, pair: u32) {
        self.vacate(&mut self.registry.lock(), pair);
    }

    /// Makes every pair vacant whose heaps are empty and which no call uses.
    fn vacate_empty_pairs(&self, registry: &mut Registry<S>) {
        for pair in 0..registry.pairs.len() as u32 {
            self.vacate(registry, pair);
        }
        registry.finish_sweep();
    }

    /// Makes `pair` vacant under the registry's lock, if both heaps are empty and no call uses the
    /// pair. Also removes a private pool that has lost its last pair and has no users.
    pub(crate) fn vacate(&self, registry: &mut Registry<S>, pair: u32) {
        let Pair { stream, pool, exists, .. } = registry.pairs[pair as usize];
        if !exists {
            return;
        }
        {
            // The only place that holds two heap locks. The fast path takes blocks only from
            // segments in the heap, and the slow path enters first: a closed pair stays empty.
            let mut small = self.slot(slot_of(pair, PoolKind::Small)).heap.lock();
            let mut large = self.slot(slot_of(pair, PoolKind::Large)).heap.lock();
            if !small.is_empty() || !large.is_empty() || !self.pair_state(pair).close() {
                return;
            }
            for heap in [&mut small, &mut large] {
                self.drop_tables(heap);
                // A fast-path call that looked the pair up earlier compares its stream with
                // `NO_STREAM` under the heap's lock, and turns to the slow path.
                let rules = heap.rules;
                heap.begin(NO_STREAM, 0, rules, None);
            }
            for kind in [PoolKind::Small, PoolKind::Large] {
                self.slot(slot_of(pair, kind)).stream_state.store(LIVE, Ordering::Relaxed);
            }
        }
        // `find_pair` spins on the stream between `close` and the removal.
        self.shared_pool(pool).streams.remove(stream.0);
        registry.remove_pair(pair);
        registry.remove_pool_if_empty(pool);
    }

    /// Drops the tables of a heap without segments, after writing the heap's events to the trace.
    pub(crate) fn drop_tables(&self, heap: &mut Heap<S>) {
        if heap.is_empty() {
            self.flush_trace(heap);
            heap.drop_tables();
        }
    }

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
            self.ended_count.store(ended.len() as u32, Ordering::Relaxed);
        }
    }

    /// Returns the address of the first segment or range that
    /// [`release_ended`](OnDevice::release_ended) would release for a request of `pair`. Skips the
    /// heaps of `pair`, whose stream the request would revive.
    pub(crate) fn first_ended(&self, pair: u32) -> Option<DevicePtr> {
        // From the end of the queue, as `pop_ended` takes heaps.
        let mut number = self.ended_count.load(Ordering::Relaxed) as usize;
        loop {
            number = number.checked_sub(1)?;
            // The queue's lock is dropped before the heap's lock is taken.
            let slot = self.ended.lock().get(number).copied();
            let Some(slot) = slot else { continue };
            let Some(_used) = self.enter_pair(slot / 2) else { continue };
            let ended = slot / 2 != pair && self.lock(slot).ended;
            if ended && let Some(first) = self.first_of_heap(slot) {
                return Some(first);
            }
        }
    }

    /// Removes the heap queued last from the queue of ended heaps, and returns the slot number.
    fn pop_ended(&self) -> Option<u32> {
        let mut ended = self.ended.lock();
        let slot = ended.pop()?;
        self.ended_count.store(ended.len() as u32, Ordering::Relaxed);
        let state = &self.slot(slot).stream_state;
        // Fails if the stream was revived or the pair vacated since it was queued: then `LIVE` must stay.
        let _changed_since = state.compare_exchange(QUEUED, ENDED, Ordering::Relaxed, Ordering::Relaxed);
        Some(slot)
    }

    /// Uses the first pair without live blocks all of whose segments may be released.
    fn idle_pair(&self) -> Option<PairUse<'_, D, R, S>> {
        let mut next = 0;
        loop {
            // The registry's lock ends with this block: `is_idle` locks heaps one at a time, and
            // dropping a guard may lock the registry again.
            let used = {
                let registry = self.registry.lock();
                next = registry.existing_pair(next)?;
                self.enter_pair(next)
            };
            next += 1;
            let is_idle = |used: &PairUse<'_, D, R, S>| {
                [PoolKind::Small, PoolKind::Large].into_iter().all(|kind| {
                    let slot = self.slot(used.slot(kind));
                    let retained = slot.heap.lock().retained;
                    // A pending segment is about to get a live block: the pair is not idle.
                    !retained
                        && slot.counters.current(Stat::Active) == 0
                        && slot.pending_segments.load(Ordering::Relaxed) == 0
                })
            };
            if let Some(idle) = used.filter(is_idle) {
                return Some(idle);
            }
        }
    }

    /// Returns the address of the first segment or range that
    /// [`release_one_idle`](OnDevice::release_one_idle) would release.
    pub(crate) fn first_idle(&self) -> Option<DevicePtr> {
        let used = self.idle_pair()?;
        [PoolKind::Small, PoolKind::Large].into_iter().find_map(|kind| self.first_of_heap(used.slot(kind)))
    }

    /// Returns the first existing pair from number `from` on and whether the pair is idle, and
    /// records the pair's allocation count for the next sweep. An idle pair has no live block and
    /// has served no request since the previous sweep.
    fn sweep_pair(&self, from: u32) -> Option<(u32, bool)> {
        let mut registry = self.registry.lock();
        let pair = registry.existing_pair(from)?;
        let counters = [PoolKind::Small, PoolKind::Large].map(|kind| &self.slot(slot_of(pair, kind)).counters);
        let allocations = counters.iter().map(|counters| counters.ever_added(Stat::Allocation)).sum();
        let active: i64 = counters.iter().map(|counters| counters.current(Stat::Active)).sum();
        let previous = core::mem::replace(&mut registry.pairs[pair as usize].allocations_at_sweep, allocations);
        Some((pair, active == 0 && previous == allocations))
    }

    /// Iterates over the counters of every heap. Includes the heaps of vacant pairs, whose totals
    /// remain part of the device's statistics.
    pub(crate) fn heap_counters(&self) -> impl Iterator<Item = (PoolKind, &HeapCounters)> + Clone {
        (0..).map_while(|slot| self.slots.get(slot).map(|found| (found.kind(), &found.counters)))
    }
}

/// Returns the pool options in force in `heap`. The heap's rules hold `no_split` only.
pub(crate) fn options_of<S: Storage>(heap: &Heap<S>) -> PoolOptions {
    PoolOptions { no_split: heap.rules.no_split, ..PoolOptions::default() }
}

/// The rank of a heap's lock: of a pair, the small heap is locked first.
fn rank_of(kind: PoolKind) -> Rank {
    match kind {
        PoolKind::Small => Rank::SmallHeap,
        PoolKind::Large => Rank::LargeHeap,
    }
}

/// Returns the slot number of the heap of `kind` in `pair`.
#[inline]
pub(crate) const fn slot_of(pair: u32, kind: PoolKind) -> u32 {
    // `PoolKind::Small` is 0 and `PoolKind::Large` is 1.
    pair * 2 + kind as u32
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::*;
    use crate::allocator::Allocator;
    use crate::config::Config;
    use crate::device::simulated::SimulatedDevice;
    use crate::tables::{Growable, Lazy};
    use crate::units::{DeviceIndex, MIB};

    #[test]
    fn heaps_without_a_segment_have_no_tables() {
        const DEVICE: DeviceIndex = DeviceIndex(0);
        for (config, bytes) in [("", MIB), ("expandable_segments:True", MIB), ("max_split_size_mb:20", 40 * MIB)] {
            type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;
            let device = SimulatedDevice::new(1 << 30);
            let allocator = Simulated::new([device], &Config::parse(config).unwrap()).unwrap();
            let arena = allocator.arena(DEVICE).unwrap();
            let has_tables = || arena.slot_numbers().any(|slot| arena.lock(slot).sets.is_made());
            assert!(allocator.malloc(DEVICE, 2 << 30, StreamId(1)).is_err() && !has_tables(), "`{config}`: it failed");
            let block = allocator.malloc(DEVICE, bytes, StreamId(2)).unwrap();
            allocator.free(block).unwrap();
            assert!(has_tables());
            allocator.trim(DEVICE, 0).unwrap();
            assert!(!has_tables(), "`{config}`: everything was released");
        }
    }

    #[test]
    #[cfg_attr(feature = "paranoid", ignore = "a lock that stores its rank is larger")]
    fn an_empty_pair_of_heaps_costs_a_kibibyte_at_most() {
        assert!(2 * size_of::<Slot<spin::mutex::SpinMutex<()>, Growable>>() <= 1024);
    }
}
