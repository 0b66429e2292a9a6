//! The peaks of a device's statistics, and the leases (quotas) of its heaps.

use super::counters::{HeapCounters, copy_of, included};
use super::{ALL, Counter, EVENTS, Occurrence, STATS, Stat, Stats, column};
use crate::config::rounding::PoolKind;
use crate::sync::Ordering::{Relaxed, SeqCst};
use crate::sync::{AtomicI64, AtomicU64, fence, impl_empty};

/// The peaks and event counts of a device, and the totals at the last resets.
#[derive(Debug)]
pub(crate) struct DevicePeaks {
    /// The recorded peaks, indexed by column ([`ALL`], small, large) and statistic.
    peak: [[AtomicI64; STATS]; 3],
    /// The highest value of each statistic before the last reset of the peaks.
    highest_before: [AtomicU64; STATS],
    /// The sum of all heaps' leases, indexed by column and statistic. It is at most the peak while
    /// every heap is within its lease. If all heaps are clean, so that their leases equal their
    /// values, it is also the sum of the values.
    leased: [[AtomicI64; STATS]; 3],
    /// The total ever added when the accumulated statistics were last reset.
    allocated_before: [[AtomicU64; STATS]; 3],
    /// The total ever removed when the accumulated statistics were last reset.
    freed_before: [[AtomicU64; STATS]; 3],
    /// How often each [`Occurrence`] happened since the accumulated statistics were last reset.
    events: [AtomicU64; EVENTS],
    /// The setting `max_split_size` at creation, as PyTorch reports it: −1 if there is no limit.
    max_split_size: AtomicI64,
}

impl_empty! { DevicePeaks { peak, highest_before, leased, allocated_before, freed_before, events, max_split_size } }

impl DevicePeaks {
    /// Records the setting `max_split_size`.
    pub(crate) fn start(&self, max_split_size: Option<u64>) {
        self.max_split_size.store(max_split_size.map_or(-1, |bytes| bytes as i64), Relaxed);
    }

    /// Returns peaks with the same values.
    pub(crate) fn copy(&self) -> Self {
        let signed = |words: &[[AtomicI64; STATS]; 3]| {
            core::array::from_fn(|column| core::array::from_fn(|row| AtomicI64::new(words[column][row].load(Relaxed))))
        };
        Self {
            peak: signed(&self.peak),
            highest_before: copy_of(&self.highest_before),
            leased: signed(&self.leased),
            allocated_before: core::array::from_fn(|column| copy_of(&self.allocated_before[column])),
            freed_before: core::array::from_fn(|column| copy_of(&self.freed_before[column])),
            events: copy_of(&self.events),
            max_split_size: AtomicI64::new(self.max_split_size.load(Relaxed)),
        }
    }

    /// Counts one event.
    pub(crate) fn count(&self, event: Occurrence) {
        self.events[event as usize].fetch_add(1, Relaxed);
    }

    /// Returns the highest value that a statistic ever had. A reset of the peaks does not lower it.
    #[inline]
    pub(crate) fn most(&self, stat: Stat) -> u64 {
        let peak = self.peak[ALL][stat as usize].load(Relaxed).max(0) as u64;
        peak.max(self.highest_before[stat as usize].load(Relaxed))
    }

    /// Returns the current sum of a statistic over all heaps. All heaps except those in `dirty`
    /// must be clean: their leases equal their values. The caller holds the owner's lock.
    pub(crate) fn current<'a>(&self, stat: Stat, dirty: impl Iterator<Item = KindCounters<'a>>) -> u64 {
        let row = stat as usize;
        let room: i64 = dirty.map(|(_, heap)| heap.lease(row).load(Relaxed) - heap.current_of(row)).sum();
        (self.leased[ALL][row].load(Relaxed) - room).max(0) as u64
    }

    /// Sets every lease of a heap to the current value. The caller holds the owner's lock and the
    /// heap's.
    pub(crate) fn cut_leases(&self, heap: KindCounters<'_>) {
        // As in `reconcile`.
        fence(SeqCst);
        for stat in 0..STATS {
            self.lease(heap, stat, 0);
        }
        heap.1.follow_pending();
    }

    /// Computes the sums of leases from `heaps`, which must be all of them.
    pub(crate) fn sum_leases<'a>(&self, heaps: impl Iterator<Item = KindCounters<'a>>) {
        for (of, sums) in leases_of(heaps).iter().enumerate() {
            for (stat, &sum) in sums.iter().enumerate() {
                self.leased[of][stat].store(sum, Relaxed);
            }
        }
    }

    /// Returns whether the sums of leases match `heaps`, which must be all of them. The caller
    /// holds the owner's lock.
    pub(crate) fn has_summed_leases<'a>(&self, heaps: impl Iterator<Item = KindCounters<'a>>) -> bool {
        let sums = leases_of(heaps);
        (0..3).all(|of| (0..STATS).all(|stat| self.leased[of][stat].load(Relaxed) == sums[of][stat]))
    }

    /// Reconciles the peaks: gives the heap `asking` leases of at least its current values. Returns
    /// whether all of `dirty` were read.
    ///
    /// The lease comes from the part of the peak that no heap has leased. If that is not enough,
    /// the heaps in `near` give up half of the room that they have left. If that is not enough
    /// either, all heaps are read, and the peaks are raised to the current sums. Only the heaps in
    /// `dirty` have to be read for this, because the others are clean. The caller holds the owner's
    /// lock, so only one thread reconciles at a time.
    pub(crate) fn reconcile<'a, I, N>(&self, dirty: &I, asking: KindCounters<'a>, near: &N) -> bool
    where
        I: Iterator<Item = KindCounters<'a>> + Clone,
        N: Iterator<Item = KindCounters<'a>> + Clone,
    {
        // Another thread may make a block pending right now. Either the sums below count that
        // block, or that thread finds the lock taken: this fence pairs with the one in
        // `Arena::follow_pending`.
        fence(SeqCst);
        // Thresholds depend on the pending blocks, which may have changed since the thresholds were
        // set.
        asking.1.follow_pending();
        // In most cases the heap had pending blocks earlier, and they lowered a threshold.
        let mut has_read = false;
        if asking.1.is_within_leases() {
            return has_read;
        }
        let is_other = |other: &KindCounters<'_>| !core::ptr::eq(other.1, asking.1);
        for stat in 0..STATS {
            let lacking = asking.1.current_of(stat) - asking.1.lease(stat).load(Relaxed);
            if lacking <= 0 {
                continue;
            }
            let short = || lacking - self.unleased(stat, asking.0);
            // A neighbour gives up the missing amount and half of the room that remains. This way,
            // two heaps that grow in turn do not take room from each other at every step.
            for other in near.clone().filter(is_other).take_while(|_| short() > 0) {
                let left = room_of(other.1, stat);
                self.lease(other, stat, (left - short().min(left)) / 2);
            }
            if short() > 0 {
                self.recall(stat, asking, dirty.clone().filter(is_other));
                has_read = true;
            }
            // Lease all of the free part of the peak, so that the next growth does not have to
            // reconcile.
            self.lease(asking, stat, (-short()).max(0));
        }
        has_read
    }

    /// Returns how much more of a statistic a heap of `kind` may lease while all other leases
    /// remain the same.
    #[inline]
    fn unleased(&self, stat: usize, kind: PoolKind) -> i64 {
        let below = |of: usize| self.peak[of][stat].load(Relaxed) - self.leased[of][stat].load(Relaxed);
        below(ALL).min(below(column(kind)))
    }

    /// Raises the peaks of a statistic to the current sums, and cuts the leases of the other heaps
    /// to their current values. When heaps grow in turn after this, they lease the freed room from
    /// their neighbours, and no thread has to read the heaps again.
    fn recall<'a>(&self, stat: usize, asking: KindCounters<'a>, others: impl Iterator<Item = KindCounters<'a>>) {
        for other in others {
            self.lease(other, stat, 0);
        }
        // Every other lease equals the current value now.
        let more = asking.1.current_of(stat) - asking.1.lease(stat).load(Relaxed);
        for of in [ALL, column(asking.0)] {
            self.peak[of][stat].fetch_max(self.leased[of][stat].load(Relaxed) + more, Relaxed);
        }
    }

    /// Sets the lease of a heap to its current value plus `room`.
    #[inline]
    fn lease(&self, (kind, counters): KindCounters<'_>, stat: usize, room: i64) {
        let lease = counters.current_of(stat) + room;
        let more = lease - counters.lease(stat).load(Relaxed);
        // The sums of leases change by the difference, both in the column of this kind and in that
        // of all blocks.
        if more != 0 {
            for of in [ALL, column(kind)] {
                self.leased[of][stat].fetch_add(more, Relaxed);
            }
            counters.lease(stat).store(lease, Relaxed);
            counters.set_threshold(included(stat).unwrap_or(stat));
        }
    }

    /// Lowers every peak to the current value. The caller holds the owner's lock.
    pub(crate) fn reset_peaks<'a>(&self, heaps: impl Iterator<Item = (PoolKind, &'a HeapCounters)> + Clone) {
        // As in `reconcile`, because the leases change.
        fence(SeqCst);
        for (stat, before) in self.highest_before.iter().enumerate() {
            before.fetch_max(self.peak[ALL][stat].load(Relaxed).max(0) as u64, Relaxed);
        }
        // Cut the leases first: then they add up to the current sums, which become the peaks.
        for heap in heaps.clone() {
            for stat in 0..STATS {
                self.lease(heap, stat, 0);
            }
        }
        let now = self.sums(heaps);
        for column in 0..3 {
            for stat in 0..STATS {
                self.peak[column][stat].store(now[column][stat].current, Relaxed);
            }
        }
    }

    /// Restarts the totals and the event counts at 0. The caller holds the owner's lock.
    pub(crate) fn reset_accumulated<'a>(&self, heaps: impl Iterator<Item = (PoolKind, &'a HeapCounters)>) {
        let now = self.sums(heaps);
        for column in 0..3 {
            for stat in 0..STATS {
                let counter = now[column][stat];
                self.allocated_before[column][stat].fetch_add(counter.allocated as u64, Relaxed);
                self.freed_before[column][stat].fetch_add(counter.freed as u64, Relaxed);
            }
        }
        for event in &self.events {
            event.store(0, Relaxed);
        }
    }

    /// Returns the current statistics.
    pub(crate) fn stats<'a>(&self, heaps: impl Iterator<Item = (PoolKind, &'a HeapCounters)>) -> Stats {
        Stats {
            counters: self.sums(heaps),
            events: core::array::from_fn(|event| self.events[event].load(Relaxed)),
            max_split_size: self.max_split_size.load(Relaxed),
        }
    }

    /// Returns the sums of all statistics over the heaps, by column.
    fn sums<'a>(&self, heaps: impl Iterator<Item = (PoolKind, &'a HeapCounters)>) -> [[Counter; STATS]; 3] {
        let mut sums = [[Counter::default(); STATS]; 3];
        for (kind, counters) in heaps {
            for column in [ALL, column(kind)] {
                for (stat, sum) in sums[column].iter_mut().enumerate() {
                    sum.current += counters.current_of(stat);
                    sum.allocated += counters.added_of(stat);
                }
            }
        }
        for column in 0..3 {
            for stat in 0..STATS {
                let sum = &mut sums[column][stat];
                // The sum may exceed the recorded peak while a heap is about to reconcile.
                sum.peak = self.peak[column][stat].load(Relaxed).max(sum.current);
                sum.freed = sum.allocated - sum.current - self.freed_before[column][stat].load(Relaxed) as i64;
                sum.allocated -= self.allocated_before[column][stat].load(Relaxed) as i64;
            }
        }
        sums
    }
}

/// Returns the sums of the heaps' leases, by column and statistic.
fn leases_of<'a>(heaps: impl Iterator<Item = KindCounters<'a>>) -> [[i64; STATS]; 3] {
    let mut sums = [[0; STATS]; 3];
    for (kind, heap) in heaps {
        for of in [ALL, column(kind)] {
            (0..STATS).for_each(|stat| sums[of][stat] += heap.lease(stat).load(Relaxed));
        }
    }
    sums
}

/// The counters of a heap, with the kind of pool that it belongs to.
pub(crate) type KindCounters<'a> = (PoolKind, &'a HeapCounters);

/// Returns how much a heap's value may rise within its lease.
#[inline]
fn room_of(counters: &HeapCounters, stat: usize) -> i64 {
    (counters.lease(stat).load(Relaxed) - counters.current_of(stat)).max(0)
}
