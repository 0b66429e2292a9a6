//! The heaps of one device. Each (stream, pool) pair with memory has two, a small and a large one.
//!
//! ```text
//! stream ─ map, no lock ─▶ pair ─▶ slots 2 · pair, 2 · pair + 1 ─▶ heap, under its own lock
//! ```
//!
//! The first request of a stream in a pool makes a pair. A pair becomes vacant, and may then be
//! assigned to another stream, when both heaps are empty and no call uses the pair. If the stream
//! has ended or the pool has no users, this happens at once. Other empty pairs become vacant in a
//! sweep, which runs when there are many pairs. Slots are never removed, so they take the memory of
//! the largest number of pairs that existed at one time. An empty heap has no tables.
//!
//! The fast path takes only the lock of one heap, and checks under this lock that the heap still
//! belongs to the stream. Every slow-path call *uses* the pair ([`PairUse`](pairs::PairUse)), which
//! keeps it assigned to the stream until the call is done.
//!
//! Nothing in this folder calls the device.

#[cfg(feature = "alloc")]
pub(crate) mod copy;
pub(crate) mod dirty;
pub(crate) mod ended;
pub(crate) mod hints;
pub(crate) mod limited;
pub(crate) mod pair_state;
pub(crate) mod pairs;
pub(crate) mod pools;
pub(crate) mod registry;
pub(crate) mod reserved;
pub(in crate::arena) mod units;

use crate::arena::heaps::dirty::{DirtyLink, DirtyList};
use crate::arena::heaps::ended::EndedHeaps;
use crate::arena::heaps::hints::StreamHints;
use crate::arena::heaps::pair_state::PairState;
use crate::arena::heaps::registry::{Registry, SharedPool};
use crate::arena::platform::Platform;
use crate::config::Policy;
use crate::config::rounding::PoolKind;
use crate::heap::Heap;
use crate::page_map::HeapRef;
use crate::stats::HeapCounters;
use crate::sync::{AtomicU32, AtomicU64, CachePadded, MutexGuard, Ordering, Rank, Ranked, empty, impl_empty};
use crate::tables::{Lazy, OnceTable, Storage};
use crate::trace::ring::Trace;

/// The state of a heap's stream that has not been reported as ended.
const LIVE: u32 = 0;
/// The state of a heap's stream that has been reported as ended.
const ENDED: u32 = 1;
/// The state of a heap's stream that has been reported as ended, if the heap is also marked in
/// [`Heaps::ended`] for the release of free segments.
const QUEUED: u32 = 2;

/// One heap and its counters. Aligned to two cache lines, because the heap's own stream writes the
/// slot at every call, and few other threads read it.
///
/// The fields are in the order written here, with the heap first. The compiler would place the heap
/// by the trailing zeros of its size. After the counters, a `malloc` takes two instructions more
/// and a `free` four, because the address of the lock is computed and kept.
#[repr(C, align(128))]
pub(crate) struct Slot<P: Platform> {
    /// The heap, under a lock that is never held across a call to the device. Code that locks it
    /// directly, without [`Heaps::lock`], and changes a counter must call [`Heaps::mark_dirty`].
    pub heap: Ranked<P::Lock, Heap<P::Storage>>,
    /// The number of the slot: `2 · pair` for the small heap, `2 · pair + 1` for the large heap.
    number: AtomicU32,
    /// The number of calls that use the pair. Valid in the slot of the small heap, unused in that
    /// of the large heap.
    state: PairState,
    /// [`LIVE`], [`ENDED`] or [`QUEUED`]. Written under the registry's lock, except for the steps
    /// between [`ENDED`] and [`QUEUED`], which are written under the lock of [`Heaps::ended`].
    stream_state: AtomicU32,
    /// The number of segments that are charged against the limit and not yet added to the heap.
    pub pending_segments: AtomicU32,
    /// The link of the heap in the list of dirty heaps.
    pub dirty: DirtyLink,
    /// The counters of the heap's statistics. They are not reset when the pair becomes vacant.
    pub counters: HeapCounters,
}

impl_empty! {
    [P: Platform] Slot<P> {
        number,
        state,
        stream_state,
        pending_segments,
        dirty,
        counters,
        heap: Ranked::new(Rank::SmallHeap, empty!()),
    }
}

impl<P: Platform> Slot<P> {
    /// Returns the kind of the heap: small for an even slot number, large for an odd number.
    pub(crate) fn kind(&self) -> PoolKind {
        if self.number().is_multiple_of(2) { PoolKind::Small } else { PoolKind::Large }
    }

    /// Returns the number of the slot.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    /// Gives the slot its number, and changes its heap with `set`, before any other thread can find
    /// the slot.
    pub(super) fn start(&self, number: u32, set: impl FnOnce(&mut Heap<P::Storage>)) {
        self.number.store(number, Ordering::Relaxed);
        self.heap.start(rank_of(self.kind()), set);
    }
}

/// The guard of a locked heap.
pub(crate) type HeapGuard<'a, P> = MutexGuard<'a, <P as Platform>::Lock, Heap<<P as Platform>::Storage>>;

/// The heaps of one device, with the pairs and pools that they belong to.
///
/// The fields are in the order written here, with the slots first: behind other fields, the address
/// of a slot takes an addition more, in every request and every free.
#[repr(C)]
pub(crate) struct Heaps<P: Platform> {
    /// The heaps. Pair `p` has its small heap in slot `2 · p` and its large heap in slot `2 · p +
    /// 1`. Slots are never removed.
    pub slots: <P::Storage as Storage>::InPlaceTable<Slot<P>>,
    /// The number of the device in the allocator.
    device: AtomicU32,
    /// The default pool. It is stored in place, so the fast path reaches its streams without
    /// looking up the pool.
    pub default_pool: SharedPool<P::Storage>,
    /// Where the straight path looks first for the heaps of a stream in the default pool.
    pub hints: StreamHints,
    /// The private pools. Entry `p` is pool `p`, and entry 0 is not used.
    pools: <P::Storage as Storage>::OnceTable<SharedPool<P::Storage>>,
    /// The pools, routes and pairs that exist.
    pub registry: Ranked<P::Lock, Registry<P::Storage>>,
    /// The heaps of ended streams in which a segment has become wholly free since the end.
    ended: Ranked<P::Lock, EndedHeaps<P::Storage>>,
    /// The number of heaps in `ended`. Read without its lock, and written under it.
    ended_count: AtomicU32,
    /// The heaps that are not clean.
    pub dirty: DirtyList,
    /// Not 0 ⟺ the caches of idle pairs should be released before more memory is obtained.
    pub idle_due: AtomicU32,
    /// The recorded events of all heaps, except those still in the buffers of the heaps.
    pub trace: CachePadded<Trace<P::Lock, P::Storage>>,
}

impl_empty! {
    [P: Platform] Heaps<P> {
        device,
        default_pool,
        hints: empty!(),
        pools,
        slots,
        registry: Ranked::new(Rank::Registry, empty!()),
        ended: Ranked::new(Rank::Ended, empty!()),
        ended_count,
        dirty,
        idle_due,
        trace,
    }
}

impl<P: Platform> Heaps<P> {
    /// Sets the number of the device, and creates the default pool.
    pub(crate) fn start(&self, device: u32, policy: Policy) {
        self.device.store(device, Ordering::Relaxed);
        self.registry.lock().start(policy);
    }

    /// Returns the number of the device in the allocator.
    pub(crate) fn device(&self) -> u32 {
        self.device.load(Ordering::Relaxed)
    }

    /// Locks the heap in `slot` for any work, and sets the heap's clock.
    pub(crate) fn lock(&self, slot: u32) -> HeapGuard<'_, P> {
        let slot = self.slot(slot);
        let mut heap = slot.heap.lock();
        self.mark_dirty(slot, &mut heap);
        self.set_clock(&mut heap);
        heap
    }

    /// Sets the heap's clock to the search count of its pool, if free blocks have ages.
    #[inline(always)]
    pub(crate) fn set_clock(&self, heap: &mut Heap<P::Storage>) {
        // Ages need both a limit and a collection threshold. Without them the clock stands still,
        // and the fast path only pays for one test of a field of the locked heap.
        if heap.rules.ages {
            heap.clock = self.searches(heap).load(Ordering::Relaxed);
        }
    }

    /// Advances the heap's clock, and returns it. No block of the pool that is free has this stamp,
    /// because the count of the pool never decreases, and it becomes the clock of the heap even
    /// when the heap changes hands.
    pub(crate) fn stamp(&self, heap: &mut Heap<P::Storage>) -> u64 {
        heap.clock = self.searches(heap).fetch_add(1, Ordering::Relaxed) + 1;
        heap.clock
    }

    /// Returns the number of searches through free blocks in the heap's pool, for its kind.
    // Cold, so that `set_clock`, which is inlined everywhere, stays one test and one jump.
    #[cold]
    pub(crate) fn searches(&self, heap: &Heap<P::Storage>) -> &AtomicU64 {
        &self.shared_pool(heap.pool).searches[heap.rules.kind as usize]
    }

    /// Returns the slot with number `slot`, which must have been made.
    pub(crate) fn slot(&self, slot: u32) -> &Slot<P> {
        self.slots.get(slot).expect("slots are never removed")
    }

    /// Iterates over the slot numbers of all heaps, including those of vacant pairs.
    pub(crate) fn slot_numbers(&self) -> impl Iterator<Item = u32> {
        (0..).take_while(|&slot| self.slots.get(slot).is_some())
    }

    /// Returns the lock-free part of the pool with number `pool`.
    pub(crate) fn shared_pool(&self, pool: u32) -> &SharedPool<P::Storage> {
        // The default pool is in the arena itself, which saves a load on the way to a stream's
        // pair.
        if pool == 0 {
            return &self.default_pool;
        }
        self.pools.get(pool).expect("a pool in the registry has a shared part")
    }

    /// Returns the reference that the page map uses for segments of the heap in `slot`.
    pub(crate) fn heap_ref(&self, slot: u32) -> HeapRef {
        HeapRef { device: self.device(), heap: slot }
    }

    /// Drops the tables of a heap without segments, after writing its events to the trace.
    pub(crate) fn drop_tables(&self, heap: &mut Heap<P::Storage>) {
        if heap.is_empty() {
            self.flush_trace(heap);
            heap.drop_tables();
        }
    }

    /// Moves the events in a heap's buffer to the ring.
    #[cold]
    pub(crate) fn flush_trace(&self, heap: &mut Heap<P::Storage>) {
        // A heap with sets that were never made has no buffer, and must not get one here.
        if heap.sets.is_made() {
            self.trace.gather(&mut heap.sets.trace);
        }
    }

    /// Iterates over the counters of every heap. Includes the heaps of vacant pairs, because their
    /// totals remain part of the device's statistics.
    pub(crate) fn heap_counters(&self) -> impl Iterator<Item = (PoolKind, &HeapCounters)> + Clone {
        (0..).map_while(|slot| self.slots.get(slot).map(|found| (found.kind(), &found.counters)))
    }
}

/// Returns the rank of a heap's lock. The small heap of a pair is locked first.
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
    use crate::units::{DeviceIndex, MIB, StreamId};

    mod registry;

    #[test]
    fn heaps_without_a_segment_have_no_tables() {
        const DEVICE: DeviceIndex = DeviceIndex(0);
        for (config, bytes) in [("", MIB), ("expandable_segments:True", MIB), ("max_split_size_mb:20", 40 * MIB)] {
            type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;
            let device = SimulatedDevice::new(1 << 30);
            let allocator = Simulated::new([device], &Config::parse(config).unwrap()).unwrap();
            let arena = allocator.arena(DEVICE).unwrap();
            let has_tables = || arena.heaps.slot_numbers().any(|slot| arena.heaps.lock(slot).sets.is_made());
            assert!(allocator.malloc(DEVICE, 2 << 30, StreamId(1)).is_err() && !has_tables(), "`{config}`: it failed");
            let block = allocator.malloc(DEVICE, bytes, StreamId(2)).unwrap();
            allocator.free(block).unwrap();
            assert!(has_tables());
            allocator.trim(DEVICE, 0).unwrap();
            assert!(!has_tables(), "`{config}`: everything was released");
        }
    }

    #[test]
    fn an_empty_pair_of_heaps_is_small() {
        let bytes = 2 * size_of::<Slot<crate::arena::Built<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>>>();
        assert!(bytes <= 1280, "{bytes}");
    }
}
