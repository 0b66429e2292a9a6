//! Keeps the peaks of the statistics exact without a lock shared by all heaps.
//!
//! Each heap counts under the lock of the heap. A heap has a *lease* for every statistic: an amount
//! up to which the heap may rise unnoticed. The leases of all heaps together never exceed the
//! recorded peak. A heap rising above the threshold given by the lease *reconciles* the peaks: the
//! heap takes lease from other heaps, and raises the peak only if all leases together are too
//! small.

use crate::arena::Arena;
use crate::arena::heaps::Slot;
use crate::config::rounding::PoolKind;
use crate::device::DeviceMemory;
use crate::heap::Outcome;
use crate::stats::{DevicePeaks, HeapCounters, KindCounters, Stat};
use crate::sync::{Lock, Ordering, fence};
use crate::tables::{OnceTable, Storage};

/// Number of heaps to take lease from before all heaps are visited.
const NEAR: usize = 4;

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Unwraps the outcome of a heap operation, and reconciles the peaks if the operation made them
    /// stale. The caller has unlocked the heap.
    #[inline]
    pub(crate) fn reconcile<T>(&self, slot: &Slot<R, S>, done: Outcome<T>) -> T {
        if done.peaks_stale {
            self.reconcile_peaks(slot);
        }
        done.value
    }

    /// Reconciles the peaks for a heap that rose above a threshold, or whose stream has ended. The
    /// fast path tests one flag for both.
    #[cold]
    pub(crate) fn reconcile_peaks(&self, slot: &Slot<R, S>) {
        self.heaps.queue_if_ended(slot);
        self.reconcile_peaks_of((slot.kind(), &slot.counters), Some(slot.number));
    }

    /// Reconciles the peaks for the counters `rising`. `number` is the slot of their heap, `None`
    /// for the counters of a lane.
    pub(crate) fn reconcile_peaks_of(&self, rising: KindCounters<'_>, number: Option<u32>) {
        // Do not wait for another thread: threads would queue up here. The thread that holds the
        // lock reconciles for a call that overlaps this one, and the statistics allow one of two
        // overlapping calls to be missing from a peak. Load before trying to lock: a failed
        // compare-exchange would take the cache line away from the lock's owner.
        if self.peaks.is_locked() {
            return;
        }
        let Some(mut reconciled) = self.peaks.try_lock() else { return };
        // Try the heap that reconciled last and its successors first. That heap has just gained
        // lease, and starting there takes from the heaps by turns.
        let last = *reconciled;
        let near = (last..)
            .take(NEAR)
            .map_while(|number| self.heaps.slots.get(number))
            .map(|near| (near.kind(), &near.counters));
        self.device_peaks.reconcile(&self.all_counters(), rising, &near);
        *reconciled = number.unwrap_or(last);
    }

    /// Keeps the peak of active blocks exact after a block of the heap in `slot` has become pending. The
    /// block stays active, so fewer blocks may be allocated before the peaks are reconciled.
    pub(crate) fn follow_pending(&self, slot: u32) {
        let counters = &self.heaps.slot(slot).counters;
        // Without the lock wherever the lease has room: every free of a block with user streams comes
        // here, of all threads. The thread that changes leases passes a fence, too, once it holds the
        // lock: either this thread sees the lock taken, or that thread sees the pending block.
        fence(Ordering::SeqCst);
        let is_locked = self.peaks.is_locked();
        // This thread may also see that the lock is free again. It must then see the leases that were set
        // under the lock.
        fence(Ordering::Acquire);
        if is_locked || !counters.covers_pending() {
            self.with_device_peaks(|_| counters.follow_pending());
        }
    }

    /// Returns the most bytes that were ever allocated at one time, or are if `more` bytes are allocated
    /// now. A reset of the peaks does not lower the number. Pending blocks do not count. Neither do blocks
    /// in parked memory: of what was allocated at one time since memory was parked first, only moments of
    /// these calls are known.
    pub(crate) fn most_live_with(&self, more: u64) -> u64 {
        match self.most_awake.load(Ordering::Relaxed) {
            0 => self.device_peaks.most_with(Stat::AllocatedBytes, self.all_counters(), more),
            most => {
                let counters = self.all_counters();
                let live: i64 = counters.map(|(_, counters)| counters.current(Stat::AllocatedBytes)).sum();
                let awake = (live.max(0) as u64 + more).saturating_sub(self.page_pool.lock().bytes.asleep);
                self.most_awake.fetch_max(awake, Ordering::Relaxed);
                most.max(awake)
            }
        }
    }

    /// Calls `act` with the peaks of the device, under the lock that keeps them from changing.
    pub(crate) fn with_device_peaks<T>(&self, act: impl FnOnce(&DevicePeaks) -> T) -> T {
        let _peaks = self.peaks.lock();
        act(&self.device_peaks)
    }

    /// Iterates over the counters of every heap and lane, and of the elastic ranges. Vacant pairs are
    /// included: their accumulated counts are still part of the sums.
    pub(crate) fn all_counters(&self) -> impl Iterator<Item = (PoolKind, &HeapCounters)> + Clone {
        let ranges = core::iter::once((PoolKind::Large, &self.range_counters));
        self.heaps.heap_counters().chain(self.plans.lane_counters()).chain(ranges)
    }
}
