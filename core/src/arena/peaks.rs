//! Peaks of the statistics: heaps count by themselves, and ask for room when a count rises above its threshold.

use crate::arena::Arena;
use crate::arena::heaps::Slot;
use crate::config::rounding::PoolKind;
use crate::device::DeviceMemory;
use crate::heap::Outcome;
use crate::stats::{DevicePeaks, HeapCounters, KindCounters};
use crate::sync::Lock;
use crate::tables::{OnceTable, Storage};

/// How many heaps are asked for room before all are.
const NEAR: usize = 4;

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Brings the peaks up to date if `done` says so, and passes its value on.
    #[inline]
    pub(crate) fn settle<T>(&self, slot: &Slot<R, S>, done: Outcome<T>) -> T {
        if done.peaks_stale {
            self.reconcile_peaks(slot);
        }
        done.value
    }

    #[cold]
    pub(crate) fn reconcile_peaks(&self, slot: &Slot<R, S>) {
        self.queue_if_ended(slot);
        self.reconcile_peaks_of((slot.kind(), &slot.tally), Some(slot.number));
    }

    /// The same for what is counted by `asking`, which is a heap's if it has a number.
    pub(crate) fn reconcile_peaks_of(&self, asking: KindCounters<'_>, number: Option<u32>) {
        // Whoever is settling does so for a call that overlaps this one: to wait for them would let threads queue up here.
        // Looking first keeps the line of whoever settles from being taken away.
        if self.peaks.is_locked() {
            return;
        }
        let Some(mut settled) = self.peaks.try_lock() else { return };
        // The heap that was settled last, and those behind it: they have the room, or are in turn to give some.
        let last = *settled;
        let near =
            (last..).take(NEAR).map_while(|number| self.slots.get(number)).map(|near| (near.kind(), &near.tally));
        self.totals.settle(&self.tallies(), asking, &near);
        *settled = number.unwrap_or(last);
    }

    /// With the peaks held still.
    pub(crate) fn with_totals<T>(&self, use_them: impl FnOnce(&DevicePeaks) -> T) -> T {
        let _peaks = self.peaks.lock();
        use_them(&self.totals)
    }

    /// Every heap's counters, those of vacant pairs too: what they counted still counts.
    pub(crate) fn tallies(&self) -> impl Iterator<Item = (PoolKind, &HeapCounters)> + Clone {
        self.heap_tallies().chain(self.lane_counters())
    }
}
