//! The peaks of one device.

use super::tally::{HeapCounters, included};
use super::{ALL, Counter, EVENTS, Event, STATS, Stats, column};
use crate::config::rounding::PoolKind;
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicI64, AtomicU64};

/// One device's peaks and event counts, and what the resets subtract.
#[derive(Debug)]
pub(crate) struct DevicePeaks {
    /// The highest sums on record, by [`ALL`], small, large.
    peak: [[AtomicI64; STATS]; 3],
    /// The sums of all leases, likewise; no higher than the peak while every heap is settled.
    leased: [[AtomicI64; STATS]; 3],
    /// What had ever been added when the accumulated statistics were last reset.
    allocated_before: [[AtomicU64; STATS]; 3],
    /// What had ever been taken away then.
    freed_before: [[AtomicU64; STATS]; 3],
    events: [AtomicU64; EVENTS],
    /// `max_split_size` when the allocator was made, as PyTorch reports it: −1 for none.
    max_split_size: i64,
}

impl DevicePeaks {
    pub(crate) fn new(max_split_size: Option<u64>) -> Self {
        let zeros = || core::array::from_fn(|_| core::array::from_fn(|_| AtomicU64::new(0)));
        let sums = || core::array::from_fn(|_| core::array::from_fn(|_| AtomicI64::new(0)));
        Self {
            peak: sums(),
            leased: sums(),
            allocated_before: zeros(),
            freed_before: zeros(),
            events: core::array::from_fn(|_| AtomicU64::new(0)),
            max_split_size: max_split_size.map_or(-1, |bytes| bytes as i64),
        }
    }

    /// Counts one event.
    pub(crate) fn count(&self, event: Event) {
        self.events[event as usize].fetch_add(1, Relaxed);
    }

    /// Leases the heap that asks as much as it holds: from what nobody has leased, else from half of what room the heaps `near`
    /// have, else from everyone's, after the peaks were brought up to date. One caller at a time (the owner's lock).
    pub(crate) fn settle<'a, I, N>(&self, heaps: &I, asking: KindCounters<'a>, near: &N)
    where
        I: Iterator<Item = KindCounters<'a>> + Clone,
        N: Iterator<Item = KindCounters<'a>> + Clone,
    {
        // What was pending when the ceilings were set may not be any longer.
        asking.1.follow_pending();
        let is_other = |other: &KindCounters<'_>| !core::ptr::eq(other.1, asking.1);
        for stat in 0..STATS {
            let lacking = asking.1.current_of(stat) - asking.1.lease(stat).load(Relaxed);
            if lacking <= 0 {
                continue;
            }
            let short = || lacking - self.unleased(stat, asking.0);
            for other in near.clone().filter(is_other).take_while(|_| short() > 0) {
                let left = room_of(other.1, stat);
                self.lease(other, stat, (left - short().min(left)) / 2);
            }
            if short() > 0 {
                self.recall(stat, asking, heaps.clone().filter(is_other));
            }
            self.lease(asking, stat, (-short()).max(0));
        }
    }

    /// How much of a statistic a heap of `kind` may lease without anyone giving anything up.
    fn unleased(&self, stat: usize, kind: PoolKind) -> i64 {
        let below = |of: usize| self.peak[of][stat].load(Relaxed) - self.leased[of][stat].load(Relaxed);
        below(ALL).min(below(column(kind)))
    }

    /// Brings the peaks of one statistic up to date, and takes the other heaps all of their room: heaps that rise in turn get it
    /// back from each other without anyone looking at the rest.
    fn recall<'a>(&self, stat: usize, asking: KindCounters<'a>, others: impl Iterator<Item = KindCounters<'a>>) {
        let wanted = asking.1.current_of(stat);
        let (mut all, mut alike) = (wanted, wanted);
        for other in others {
            let held = other.1.current_of(stat);
            all += held;
            alike += if other.0 == asking.0 { held } else { 0 };
            self.lease(other, stat, 0);
        }
        self.peak[ALL][stat].fetch_max(all, Relaxed);
        self.peak[column(asking.0)][stat].fetch_max(alike, Relaxed);
    }

    /// Leases a heap what it holds and `room` beyond.
    fn lease(&self, (kind, tally): KindCounters<'_>, stat: usize, room: i64) {
        let lease = tally.current_of(stat) + room;
        let more = lease - tally.lease(stat).load(Relaxed);
        if more != 0 {
            for of in [ALL, column(kind)] {
                self.leased[of][stat].fetch_add(more, Relaxed);
            }
            tally.lease(stat).store(lease, Relaxed);
            tally.set_threshold(included(stat).unwrap_or(stat));
        }
    }

    /// Every peak becomes what there is now. The owner's lock is held.
    pub(crate) fn reset_peaks<'a>(&self, heaps: impl Iterator<Item = (PoolKind, &'a HeapCounters)> + Clone) {
        for party in heaps.clone() {
            for stat in 0..STATS {
                self.lease(party, stat, 0);
            }
        }
        let now = self.sums(heaps);
        for column in 0..3 {
            for stat in 0..STATS {
                self.peak[column][stat].store(now[column][stat].current, Relaxed);
            }
        }
    }

    /// Everything ever added or taken away counts as 0 from here on, as do the events. The owner's lock is held.
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

    /// Everything as it stands.
    pub(crate) fn stats<'a>(&self, heaps: impl Iterator<Item = (PoolKind, &'a HeapCounters)>) -> Stats {
        Stats {
            counters: self.sums(heaps),
            events: core::array::from_fn(|event| self.events[event].load(Relaxed)),
            max_split_size: self.max_split_size,
        }
    }

    fn sums<'a>(&self, heaps: impl Iterator<Item = (PoolKind, &'a HeapCounters)>) -> [[Counter; STATS]; 3] {
        let mut sums = [[Counter::default(); STATS]; 3];
        for (kind, tally) in heaps {
            for column in [ALL, column(kind)] {
                for (stat, sum) in sums[column].iter_mut().enumerate() {
                    sum.current += tally.current_of(stat);
                    sum.allocated += tally.added_of(stat);
                }
            }
        }
        for column in 0..3 {
            for stat in 0..STATS {
                let sum = &mut sums[column][stat];
                sum.peak = self.peak[column][stat].load(Relaxed).max(sum.current);
                sum.freed = sum.allocated - sum.current - self.freed_before[column][stat].load(Relaxed) as i64;
                sum.allocated -= self.allocated_before[column][stat].load(Relaxed) as i64;
            }
        }
        sums
    }
}

/// A heap as the peaks see it.
pub(crate) type KindCounters<'a> = (PoolKind, &'a HeapCounters);

/// How much more of a statistic a heap has leased than it holds.
fn room_of(tally: &HeapCounters, stat: usize) -> i64 {
    (tally.lease(stat).load(Relaxed) - tally.current_of(stat)).max(0)
}
