//! Keeps the peaks of the statistics exact without a lock that all heaps share.
//!
//! Each heap counts under its own lock. For every statistic, a heap has a *lease*: an amount up to
//! which it may rise unnoticed. The leases of all heaps together never exceed the recorded peak. A
//! heap that rises above the threshold given by its lease *reconciles* the peaks: it takes lease
//! from other heaps, and raises the peak only if all leases together are too small.

use crate::arena::heaps::{Heaps, Slot};
use crate::arena::platform::Platform;
use crate::config::rounding::PoolKind;
use crate::stats::{DevicePeaks, HeapCounters, KindCounters, Stat};
use crate::sync::{AtomicU64, CachePadded, Lock, Ordering, Rank, Ranked, fence, impl_empty};
use crate::tables::OnceTable;

/// The number of heaps from which lease is taken before all dirty heaps are visited.
const NEAR: usize = 4;

/// The number of dirty heaps above which they are made clean, once all of them had to be read.
const MOST_DIRTY: u32 = 128;

/// The peaks of one device.
pub(crate) struct Peaks<R: Lock> {
    /// Locked while peaks are reconciled. Holds the slot of the last reconciliation.
    pub(super) turn: CachePadded<Ranked<R, u32>>,
    /// The peaks and the event counts.
    pub device: CachePadded<DevicePeaks>,
    /// The most bytes that were allocated and awake at one time. 0 until memory is first parked,
    /// which starts the count; before that, all allocated bytes are awake.
    pub most_awake: AtomicU64,
}

impl_empty! { [R: Lock] Peaks<R> { turn: CachePadded(Ranked::new(Rank::Peaks, 0)), device, most_awake } }

impl<R: Lock> Peaks<R> {
    /// Returns a copy. `last` is the slot for which peaks were last reconciled.
    pub(super) fn copy(&self, last: u32) -> Self {
        Self {
            turn: CachePadded(Ranked::new(Rank::Peaks, last)),
            device: CachePadded(self.device.copy()),
            most_awake: AtomicU64::new(self.most_awake.load(Ordering::Relaxed)),
        }
    }
}

/// The counters of a device: of the heaps, and of the elastic ranges.
pub(crate) struct Counters<'a, P: Platform> {
    pub(super) heaps: &'a Heaps<P>,
    pub(super) ranges: &'a HeapCounters,
}

impl<'a, P: Platform> Counters<'a, P> {
    /// Iterates over the counters of every heap, and of the elastic ranges. Includes vacant pairs,
    /// because their counts are still part of the sums.
    pub(crate) fn all(&self) -> impl Iterator<Item = KindCounters<'a>> + Clone {
        self.heaps.heap_counters().chain(self.of_ranges())
    }

    /// Iterates over the counters that must be read for a sum: those of the dirty heaps, and of
    /// the elastic ranges. The lock of the peaks is held.
    fn dirty(&self) -> impl Iterator<Item = KindCounters<'a>> + Clone {
        self.heaps.dirty_slots().map(|slot| (slot.kind(), &slot.counters)).chain(self.of_ranges())
    }

    /// Iterates over the counters of the elastic ranges.
    fn of_ranges(&self) -> impl Iterator<Item = KindCounters<'a>> + Clone {
        core::iter::once((PoolKind::Large, self.ranges))
    }
}

impl<R: Lock> Peaks<R> {
    /// Reconciles the peaks for a heap that rose above a threshold, or that has an ended stream.
    /// The caller has unlocked the heap.
    pub(super) fn reconcile_slot<P: Platform<Lock = R>>(&self, counters: &Counters<'_, P>, slot: &Slot<P>) {
        counters.heaps.queue_if_ended(slot);
        if slot.dirty.is_clean() {
            counters.heaps.mark_dirty(slot, &mut slot.heap.lock());
        }
        self.reconcile(counters, (slot.kind(), &slot.counters), Some(slot.number()));
    }

    /// Reconciles the peaks for the counters `rising`. `number` is the slot of their heap, or
    /// `None` if they are not those of a heap.
    pub(super) fn reconcile<P>(&self, counters: &Counters<'_, P>, rising: KindCounters<'_>, number: Option<u32>)
    where
        P: Platform<Lock = R>,
    {
        // Do not wait for another thread, because threads would queue up here. The thread that
        // holds the lock reconciles for a call that overlaps this one, and the statistics allow a
        // peak to miss one of two overlapping calls. Load before trying to lock, because a failed
        // compare-exchange would take the cache line away from the lock's owner.
        if self.turn.is_locked() {
            return;
        }
        let Some(mut reconciled) = self.turn.try_lock() else { return };
        // Try the heap that reconciled last and its successors first. That heap has just gained
        // lease, and starting there takes lease from the heaps in turn.
        let last = *reconciled;
        let near = (last..)
            .take(NEAR)
            .map_while(|number| counters.heaps.slots.get(number))
            .map(|near| (near.kind(), &near.counters));
        let has_read = self.device.reconcile(&counters.dirty(), rising, &near);
        *reconciled = number.unwrap_or(last);
        drop(reconciled);
        if has_read && counters.heaps.dirty_count() > MOST_DIRTY {
            self.mark_clean(counters.heaps);
        }
    }

    /// Makes the dirty heaps clean, so that no thread must read them until they change again. This
    /// costs each heap as much as becoming dirty.
    #[cold]
    fn mark_clean<P: Platform<Lock = R>>(&self, heaps: &Heaps<P>) {
        let mut next = heaps.dirty.first();
        // Bounded by the number of dirty heaps. A heap that another thread has made dirty again is
        // at the start of the list, and from there the walk would go through the list once more.
        for _ in 0..heaps.dirty_count() {
            let Some(number) = next else { return };
            let slot = heaps.slot(number);
            let mut heap = slot.heap.lock();
            next = slot.dirty.next();
            // A free of a planned block may report nothing.
            if !heap.clean && !heap.is_planned() {
                let _peaks = self.turn.lock();
                self.device.cut_leases((slot.kind(), &slot.counters));
                heaps.mark_clean(slot, &mut heap);
            }
        }
    }

    /// Keeps the peak of active blocks exact after a block of the heap with `counters` has become
    /// pending. The block stays active, so fewer blocks may be allocated before the peaks are
    /// reconciled.
    #[inline]
    pub(super) fn follow_pending(&self, counters: &HeapCounters) {
        // If the lease has room, this takes no lock, because every free of a block with user
        // streams comes here, from all threads. A thread that changes leases also passes a fence
        // once it holds the lock, so either this thread sees that the lock is taken, or the other
        // thread sees the pending block.
        fence(Ordering::SeqCst);
        let is_locked = self.turn.is_locked();
        // This thread may also see that the lock has been released again. It must then see the
        // leases that were set under the lock.
        fence(Ordering::Acquire);
        if is_locked || !counters.covers_pending() {
            self.locked(|_| counters.follow_pending());
        }
    }

    /// Returns the most bytes that were ever allocated at one time, or would be if `more` bytes are
    /// allocated now. A reset of the peaks does not lower this number. Pending blocks do not count,
    /// and neither do blocks in parked memory, of which `asleep` bytes are pages. Since memory was
    /// first parked, the number allocated at one time is known only at the moments of these calls.
    pub(super) fn most_live_with<P>(&self, counters: &Counters<'_, P>, more: u64, asleep: impl FnOnce() -> u64) -> u64
    where
        P: Platform<Lock = R>,
    {
        match self.most_awake.load(Ordering::Relaxed) {
            0 => self.most_with(counters, Stat::AllocatedBytes, more),
            most => {
                let live = self.current(counters, Stat::AllocatedBytes);
                let awake = (live + more).saturating_sub(asleep());
                self.most_awake.fetch_max(awake, Ordering::Relaxed);
                most.max(awake)
            }
        }
    }

    /// Returns the current sum of a statistic over the device.
    pub(super) fn current<P: Platform<Lock = R>>(&self, counters: &Counters<'_, P>, stat: Stat) -> u64 {
        self.locked(|peaks| peaks.current(stat, counters.dirty()))
    }

    /// Returns the highest value of a statistic so far, or its value with `more` added now.
    pub(super) fn most_with<P: Platform<Lock = R>>(&self, counters: &Counters<'_, P>, stat: Stat, more: u64) -> u64 {
        self.device.most(stat).max(self.current(counters, stat) + more)
    }

    /// Calls `act` with the peaks of the device, under the lock that keeps them from changing.
    pub(crate) fn locked<T>(&self, act: impl FnOnce(&DevicePeaks) -> T) -> T {
        let _peaks = self.turn.lock();
        act(&self.device)
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::MOST_DIRTY;
    use crate::allocator::Allocator;
    use crate::device::simulated::SimulatedDevice;
    use crate::tables::Growable;
    use crate::tests::own::parse;
    use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
    use std::vec::Vec;

    const DEVICE: DeviceIndex = DeviceIndex(0);
    const STREAMS: u64 = 400;

    type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

    #[test]
    fn a_peak_is_exact_and_found_among_few_heaps_however_many_there_are() {
        for config in ["", "expandable_segments:True", "policy:stitched", "policy:first_fit", "policy:small_first_fit"]
        {
            let allocator = Simulated::new([SimulatedDevice::new(1 << 44)], &parse(config)).unwrap();
            let dirty = || allocator.arena(DEVICE).unwrap().heaps.dirty_count();
            // The blocks that are held, and bytes as the allocator counts them: now, and the most
            // since the last reset.
            let (mut held, mut number, mut peak) = (Vec::<DevicePtr>::new(), 1_u64, 0);
            for step in 0..6 * STREAMS {
                number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let random = number >> 33;
                // First each stream gets a block; then blocks come and go.
                if step < STREAMS || random % 3 > 0 {
                    let stream = if step < STREAMS { step } else { random % STREAMS };
                    let bytes = if random % 8 == 0 { 3 * MIB } else { 1000 + random % 5000 };
                    held.push(allocator.malloc(DEVICE, bytes, StreamId(1 + stream)).unwrap());
                } else if !held.is_empty() {
                    allocator.free(held.swap_remove(random as usize % held.len())).unwrap();
                }
                if step == 3 * STREAMS {
                    allocator.stats(DEVICE).unwrap().reset_peaks();
                    peak = 0;
                }
                let stats = allocator.stats(DEVICE).unwrap().totals();
                peak = stats.allocated_bytes().current.max(peak);
                assert_eq!(stats.allocated_bytes().peak, peak, "`{config}`, step {step}");
                // Later blocks come and go below the peak, and none of the heaps has to be read.
                let few = step >= STREAMS || dirty() <= MOST_DIRTY + 4;
                assert!(few, "`{config}`: {} heaps of {step} streams are dirty", dirty());
                if step % 100 == 0 {
                    allocator.check_invariants().unwrap();
                }
            }
            held.into_iter().for_each(|ptr| allocator.free(ptr).unwrap());
            allocator.empty_cache(DEVICE).unwrap();
            allocator.check_invariants().unwrap();
        }
    }
}
