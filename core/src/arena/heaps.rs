//! The heaps of one device: a pair, small and large, for each (stream, pool) that has memory.
//!
//! ```text
//! stream ─ map, no lock ─▶ pair ─▶ slots 2 · pair, 2 · pair + 1 ─▶ heap, under its own lock
//! ```
//!
//! A pair is made for the first request of a stream in a pool. It becomes vacant, and may become another stream's, when its
//! heaps are empty and no call uses it: at once if the stream has ended or the pool has no users, else when so many pairs exist
//! that the empty ones are looked for. Slots are never removed, so the memory they take is that of the most pairs that
//! existed at one time; an empty heap has no tables.
//!
//! The fast path holds nothing but a heap's lock. It checks under that lock that the heap is still the stream's. Every other
//! call *uses* the pair ([`PairUse`]), which keeps the pair as it is.

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

/// The names of the tables that a new pair needs room in, for the error of a request that finds one full.
pub(crate) const HEAPS: &str = "heaps";
pub(crate) const STREAMS: &str = "streams";

/// The heap's stream was not reported as ended.
const LIVES: u32 = 0;
/// The heap's stream was reported as ended.
const ENDED: u32 = 1;
/// The heap's stream was reported as ended, and the heap waits in [`Arena::ended`] for its free segments to be released.
const QUEUED: u32 = 2;

/// One heap and its counters, on cache lines of their own: their stream writes them, and few others read them.
#[repr(align(128))]
pub(crate) struct Slot<R: Lock, S: Storage> {
    pub number: u32,
    /// In the slot of the small heap: which calls use the pair. Not used in the other.
    state: PairState,
    /// [`LIVES`], [`ENDED`] or [`QUEUED`]. Written under the registry's lock, but for the step from ended to queued and back.
    stream_state: AtomicU32,
    /// Calls that have counted a segment as held and not added it to the heap yet.
    pub obtaining: AtomicU32,
    pub tally: HeapCounters,
    pub heap: Ranked<R, Heap<S>>,
}

impl<R: Lock, S: Storage> Slot<R, S> {
    /// The kind of the heap: slots with an even number are small.
    pub(crate) fn kind(&self) -> PoolKind {
        if self.number.is_multiple_of(2) { PoolKind::Small } else { PoolKind::Large }
    }
}

/// Keeps a pair of heaps with its stream and pool as long as it is there.
pub(crate) struct PairUse<'a, D: DeviceMemory, R: Lock, S: Storage> {
    arena: &'a Arena<D, R, S>,
    pub pair: u32,
}

impl<D: DeviceMemory, R: Lock, S: Storage> PairUse<'_, D, R, S> {
    /// The slot of one of the two heaps.
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
    /// Releases what ended streams have cached since they were reported, and what idle streams have where many pairs exist.
    pub(crate) fn release_ended(self) {
        while self.ended_count.load(Ordering::Relaxed) > 0
            && let Some(slot) = self.take_ended()
        {
            let Some(used) = self.enter_pair(slot / 2) else { continue };
            if self.lock(slot).ended {
                // As in `release_idle`, a failure shows in the leaked bytes and not in this request.
                let _counted = self.release_heap(slot);
            }
            drop(used);
        }
        if self.idle_due.swap(0, Ordering::Relaxed) != 0 {
            self.release_idle();
        }
    }

    /// Releases the caches of pairs that hold nothing for the program and have handed out nothing since they were looked at before,
    /// and makes the pairs vacant. Streams that ended without a report are found by this: a driver does not tell of them.
    #[cold]
    fn release_idle(self) {
        let mut next = 0;
        while let Some((pair, idle)) = self.look_at_pair(next) {
            next = pair + 1;
            let Some(used) = idle.then(|| self.enter_pair(pair)).flatten() else { continue };
            for kind in [PoolKind::Small, PoolKind::Large] {
                // What could not be released counts as leaked; the request that led here may succeed all the same.
                let _counted = self.release_heap(used.slot(kind));
            }
            drop(used);
            self.vacate_if_empty(pair);
        }
        // The next look comes by the number of pairs that are left, not of those there were before the release.
        self.registry.lock().finish_sweep();
    }

    /// Releases the cache of one idle pair, which becomes vacant. False if there is none.
    #[cold]
    pub(crate) fn release_one_idle(self) -> bool {
        let Some(used) = self.idle_pair() else { return false };
        for kind in [PoolKind::Small, PoolKind::Large] {
            let _counted = self.release_heap(used.slot(kind));
        }
        let pair = used.pair;
        drop(used);
        self.vacate_if_empty(pair);
        !self.registry.lock().pairs[pair as usize].exists
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// The heap in `slot`, locked, its clock set.
    pub(crate) fn lock(&self, slot: u32) -> MutexGuard<'_, R, Heap<S>> {
        let mut heap = self.slot(slot).heap.lock();
        self.set_clock(&mut heap);
        heap
    }

    /// Sets a heap's clock, if the free blocks of the heap carry their age.
    #[inline(always)]
    pub(crate) fn set_clock(&self, heap: &mut Heap<S>) {
        if heap.rules.ages {
            heap.clock = self.searches(heap).load(Ordering::Relaxed);
        }
    }

    /// How often the free blocks of a heap's pool and kind were searched.
    #[cold]
    pub(crate) fn searches(&self, heap: &Heap<S>) -> &AtomicU64 {
        &self.shared_pool(heap.pool).searches[heap.rules.kind as usize]
    }

    pub(crate) fn slot(&self, slot: u32) -> &Slot<R, S> {
        self.slots.get(slot).expect("slots are never removed")
    }

    /// Every heap's slot number.
    pub(crate) fn slot_numbers(&self) -> impl Iterator<Item = u32> {
        (0..).take_while(|&slot| self.slots.get(slot).is_some())
    }

    pub(crate) fn shared_pool(&self, pool: u32) -> &SharedPool<S> {
        if pool == 0 {
            return &self.default_pool;
        }
        self.pools.get(pool).expect("a pool in the registry is on the shelf")
    }

    pub(crate) fn heap_ref(&self, slot: u32) -> HeapRef {
        HeapRef { device: self.number, heap: slot }
    }

    fn pair_state(&self, pair: u32) -> &PairState {
        &self.slot(slot_of(pair, PoolKind::Small)).state
    }

    /// Uses the pair of (stream, pool), which is made if there is none.
    pub(crate) fn use_pair(&self, pool: u32, stream: StreamId) -> Result<PairUse<'_, D, R, S>, Error> {
        let found = match self.find_pair(pool, stream) {
            Some(found) => found,
            None => self.make_pair(pool, stream, true)?,
        };
        if self.pair_state(found.pair).is_leaving() {
            self.keep_pair(found.pair);
        }
        Ok(found)
    }

    /// Uses the pair of (stream, pool) to say what a request would do. A pair whose stream has ended does not live again by that,
    /// and a pair that had to be made is vacant afterwards.
    pub(crate) fn ask_pair(&self, pool: u32, stream: StreamId) -> Result<PairUse<'_, D, R, S>, Error> {
        self.find_pair(pool, stream).map_or_else(|| self.make_pair(pool, stream, false), Ok)
    }

    /// Uses the pair of (stream, pool), if there is one.
    pub(crate) fn find_pair(&self, pool: u32, stream: StreamId) -> Option<PairUse<'_, D, R, S>> {
        loop {
            let pair = self.shared_pool(pool).streams.get(stream.0)?;
            let found = self.enter_pair(pair);
            if let Some(found) = found {
                let heap = self.slot(found.slot(PoolKind::Small)).heap.lock();
                if heap.stream == stream && heap.pool == pool {
                    drop(heap);
                    return Some(found);
                }
            }
            // The pair was given to another stream after it was looked up.
            core::hint::spin_loop();
        }
    }

    /// Uses a pair, whatever stream has it. `None` if it is vacant.
    pub(crate) fn enter_pair(&self, pair: u32) -> Option<PairUse<'_, D, R, S>> {
        let open = self.pair_state(pair).enter();
        let entered = PairUse { arena: self, pair };
        open.then_some(entered)
    }

    /// Uses the pair of `pool` with the lowest stream above `after`.
    pub(crate) fn next_pair(&self, pool: u32, after: Option<StreamId>) -> Option<(StreamId, PairUse<'_, D, R, S>)> {
        let registry = self.registry.lock();
        let (stream, pair) = registry.next_pair(pool, after)?;
        // The registry is locked, so the pair cannot become vacant before it is entered.
        Some((stream, self.enter_pair(pair)?))
    }

    /// Makes the pair of (stream, pool) unless another thread has made it, and uses it. The pair stays if `stays`, or if memory is
    /// added to it while it is used.
    #[cold]
    fn make_pair(&self, pool: u32, stream: StreamId, stays: bool) -> Result<PairUse<'_, D, R, S>, Error> {
        if stream == NO_STREAM {
            return Err(Error::InvalidStream);
        }
        let streams = &self.shared_pool(pool).streams;
        let mut registry = self.registry.lock();
        if let Some(made) = streams.get(stream.0).and_then(|pair| self.enter_pair(pair)) {
            return Ok(made);
        }
        if stays && registry.is_sweep_due() {
            self.vacate_empty_pairs(&mut registry);
            self.idle_due.store(1, Ordering::Relaxed);
        }
        let mut room = self.room_for_pair(&mut registry);
        if room.is_err() {
            self.vacate_empty_pairs(&mut registry);
            room = self.room_for_pair(&mut registry);
        }
        let pair = room?;
        if !streams.make_room(1) {
            return Err(Error::TableFull(STREAMS));
        }
        self.begin_heaps(&registry, pair, pool, stream);
        registry.add_pair(stream, pool);
        self.set_leaving(&registry, pair, !stays);
        self.pair_state(pair).open();
        streams.insert(stream.0, pair);
        Ok(PairUse { arena: self, pair })
    }

    /// The number of a vacant pair, whose slots are there. An error if a table is full.
    fn room_for_pair(&self, registry: &mut Registry<S>) -> Result<u32, Error> {
        let pair = registry.room_for_pair().ok_or(Error::TableFull(STREAMS))?;
        for kind in [PoolKind::Small, PoolKind::Large] {
            let make = || Slot {
                number: slot_of(pair, kind),
                state: PairState::default(),
                stream_state: AtomicU32::new(LIVES),
                obtaining: AtomicU32::new(0),
                tally: HeapCounters::default(),
                heap: Ranked::new(rank_of(kind), Heap::vacant(kind)),
            };
            self.slots.get_or_set(slot_of(pair, kind), make).ok_or(Error::TableFull(HEAPS))?;
        }
        Ok(pair)
    }

    /// Gives the heaps of a vacant pair to (stream, pool).
    fn begin_heaps(&self, registry: &Registry<S>, pair: u32, pool: u32, stream: StreamId) {
        let config = self.config.lock().clone();
        let options = registry.pools[pool as usize].options;
        for kind in [PoolKind::Small, PoolKind::Large] {
            let mut heap = self.slot(slot_of(pair, kind)).heap.lock();
            heap.begin(stream, pool, self.rules(&config, kind, options), self.policy.suballocator(kind));
            heap.kept = pool != 0 && !registry.is_unused(pool);
            heap.clock = self.shared_pool(pool).searches[kind as usize].load(Ordering::Relaxed);
            heap.region = self.first_region();
        }
    }

    /// A request came for a pair that was to become vacant: its stream lives, and its pool is in use.
    #[cold]
    fn keep_pair(&self, pair: u32) {
        let registry = self.registry.lock();
        self.set_leaving(&registry, pair, false);
        self.set_ended(&registry, pair, false);
    }

    /// Says whether a pair is to become vacant as soon as it is empty and unused.
    pub(crate) fn set_leaving(&self, _registry: &Registry<S>, pair: u32, leaving: bool) {
        self.pair_state(pair).set_leaving(leaving);
    }

    /// Says whether the stream of a pair has ended, so that segments of it that become free are to be released.
    pub(crate) fn set_ended(&self, _registry: &Registry<S>, pair: u32, ended: bool) {
        for kind in [PoolKind::Small, PoolKind::Large] {
            let slot = self.slot(slot_of(pair, kind));
            slot.heap.lock().set_ended(ended);
            slot.stream_state.store(if ended { ENDED } else { LIVES }, Ordering::Relaxed);
        }
    }

    /// Makes a pair vacant if its heaps are empty and no call uses it.
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

    pub(crate) fn vacate(&self, registry: &mut Registry<S>, pair: u32) {
        let Pair { stream, pool, exists, .. } = registry.pairs[pair as usize];
        if !exists {
            return;
        }
        {
            let mut small = self.slot(slot_of(pair, PoolKind::Small)).heap.lock();
            let mut large = self.slot(slot_of(pair, PoolKind::Large)).heap.lock();
            if !small.is_empty() || !large.is_empty() || !self.pair_state(pair).close() {
                return;
            }
            for heap in [&mut small, &mut large] {
                self.drop_tables(heap);
                // A call on the fast path that looked the pair up before finds that it is no stream's.
                let rules = heap.rules;
                heap.begin(NO_STREAM, 0, rules, None);
            }
            for kind in [PoolKind::Small, PoolKind::Large] {
                self.slot(slot_of(pair, kind)).stream_state.store(LIVES, Ordering::Relaxed);
            }
        }
        self.shared_pool(pool).streams.remove(stream.0);
        registry.remove_pair(pair);
        registry.remove_pool_if_empty(pool);
    }

    /// Drops the tables of a heap in which no segment is left. Its events go to the trace's ring.
    pub(crate) fn drop_tables(&self, heap: &mut Heap<S>) {
        if heap.is_empty() {
            self.flush_trace(heap);
            heap.drop_tables();
        }
    }

    /// If the stream of a heap has ended, queues the heap: a segment of it may be wholly free now, and is released before more is
    /// obtained from the device. A full queue loses nothing but that: the segment stays until the cache is released.
    #[inline]
    pub(crate) fn queue_if_ended(&self, slot: &Slot<R, S>) {
        if slot.stream_state.load(Ordering::Relaxed) == ENDED {
            self.queue_ended(slot);
        }
    }

    #[cold]
    fn queue_ended(&self, slot: &Slot<R, S>) {
        let mut ended = self.ended.lock();
        let queued = slot.stream_state.compare_exchange(ENDED, QUEUED, Ordering::Relaxed, Ordering::Relaxed);
        if queued.is_ok() && ended.make_room(1) {
            ended.add(slot.number);
            self.ended_count.store(ended.len() as u32, Ordering::Relaxed);
        }
    }

    /// The first segment or range of an ended stream that [`release_ended`](Self::release_ended) would release for a request of
    /// `pair`, whose stream lives by that request.
    pub(crate) fn first_ended(&self, pair: u32) -> Option<DevicePtr> {
        let mut number = self.ended_count.load(Ordering::Relaxed) as usize;
        loop {
            number = number.checked_sub(1)?;
            let slot = self.ended.lock().get(number).copied();
            let Some(slot) = slot else { continue };
            let Some(_used) = self.enter_pair(slot / 2) else { continue };
            let ended = slot / 2 != pair && self.lock(slot).ended;
            if ended && let Some(first) = self.first_of_heap(slot) {
                return Some(first);
            }
        }
    }

    /// The heap that was queued last.
    fn take_ended(&self) -> Option<u32> {
        let mut ended = self.ended.lock();
        let slot = ended.pop()?;
        self.ended_count.store(ended.len() as u32, Ordering::Relaxed);
        let state = &self.slot(slot).stream_state;
        let _changed_since = state.compare_exchange(QUEUED, ENDED, Ordering::Relaxed, Ordering::Relaxed);
        Some(slot)
    }

    /// Uses the first pair that holds nothing for the program and all of whose segments may be released.
    fn idle_pair(&self) -> Option<PairUse<'_, D, R, S>> {
        let mut next = 0;
        loop {
            let used = {
                let registry = self.registry.lock();
                let pairs = registry.pairs.get(next as usize..)?;
                next += pairs.iter().position(|pair| pair.exists)? as u32;
                self.enter_pair(next)
            };
            next += 1;
            let is_idle = |used: &PairUse<'_, D, R, S>| {
                [PoolKind::Small, PoolKind::Large].into_iter().all(|kind| {
                    let slot = self.slot(used.slot(kind));
                    let kept = slot.heap.lock().kept;
                    !kept && slot.tally.current(Stat::Active) == 0 && slot.obtaining.load(Ordering::Relaxed) == 0
                })
            };
            if let Some(idle) = used.filter(is_idle) {
                return Some(idle);
            }
        }
    }

    /// The first segment or range that [`release_one_idle`](Self::release_one_idle) would release.
    pub(crate) fn first_idle(&self) -> Option<DevicePtr> {
        let used = self.idle_pair()?;
        [PoolKind::Small, PoolKind::Large].into_iter().find_map(|kind| self.first_of_heap(used.slot(kind)))
    }

    /// The next pair that exists, from `from` on, and whether it is idle: it holds nothing for the program and has handed out
    /// nothing since it was looked at before.
    fn look_at_pair(&self, from: u32) -> Option<(u32, bool)> {
        let mut registry = self.registry.lock();
        let pairs = registry.pairs.get(from as usize..)?;
        let pair = from + pairs.iter().position(|pair| pair.exists)? as u32;
        let tallies = [PoolKind::Small, PoolKind::Large].map(|kind| &self.slot(slot_of(pair, kind)).tally);
        let handed_out = tallies.iter().map(|tally| tally.ever_added(Stat::Allocation)).sum();
        let active: i64 = tallies.iter().map(|tally| tally.current(Stat::Active)).sum();
        let seen = core::mem::replace(&mut registry.pairs[pair as usize].seen, handed_out);
        Some((pair, active == 0 && seen == handed_out))
    }

    /// Every heap's counters, those of vacant pairs too: what they counted still counts.
    pub(crate) fn heap_tallies(&self) -> impl Iterator<Item = (PoolKind, &HeapCounters)> + Clone {
        (0..).map_while(|slot| self.slots.get(slot).map(|found| (found.kind(), &found.tally)))
    }
}

/// The options of a pool that a heap of it has.
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

/// The slot of one kind of a pair.
#[inline]
pub(crate) const fn slot_of(pair: u32, kind: PoolKind) -> u32 {
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
