//! The counters of one heap.

use super::{STATS, Stat};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicI64, AtomicU64};

/// One heap's counters. Written only under the heap's lock, except `threshold`; read by anyone.
///
/// Of an active block only what makes it differ from an allocated one is counted apart, that it is pending: the rows of
/// [`Stat::Active`] and [`Stat::ActiveBytes`] hold pending blocks, and [`HeapCounters::current`] adds the allocated ones.
#[derive(Debug)]
pub(crate) struct HeapCounters {
    /// How much was ever added.
    added: [AtomicU64; STATS],
    /// How much was ever taken away.
    removed: [AtomicU64; STATS],
    /// As far as `added − removed` may rise before the peaks must be settled: the heap's lease, of which the leases of all heaps
    /// add up to no more than the peak. Of the first two rows, if that is less, what the lease on active blocks leaves to allocated
    /// ones. Changed only when peaks are settled.
    threshold: [AtomicI64; STATS],
    /// The leases of the first two rows, [`Stat::Allocation`] and [`Stat::AllocatedBytes`].
    allocated_lease: [AtomicI64; 2],
}

impl Default for HeapCounters {
    fn default() -> Self {
        Self {
            added: core::array::from_fn(|_| AtomicU64::new(0)),
            removed: core::array::from_fn(|_| AtomicU64::new(0)),
            threshold: core::array::from_fn(|_| AtomicI64::new(0)),
            allocated_lease: core::array::from_fn(|_| AtomicI64::new(0)),
        }
    }
}

/// The row whose blocks count as `stat` too.
pub(super) const fn included(stat: usize) -> Option<usize> {
    const ACTIVE: usize = Stat::Active as usize;
    const ACTIVE_BYTES: usize = Stat::ActiveBytes as usize;
    match stat {
        ACTIVE => Some(Stat::Allocation as usize),
        ACTIVE_BYTES => Some(Stat::AllocatedBytes as usize),
        _ => None,
    }
}

/// The row in which the pending blocks among those that `row` counts too are counted.
const fn active_of(row: usize) -> Option<usize> {
    const ALLOCATION: usize = Stat::Allocation as usize;
    const ALLOCATED_BYTES: usize = Stat::AllocatedBytes as usize;
    match row {
        ALLOCATION => Some(Stat::Active as usize),
        ALLOCATED_BYTES => Some(Stat::ActiveBytes as usize),
        _ => None,
    }
}

impl HeapCounters {
    /// Adds `amount`. True if the peaks must be settled.
    #[inline]
    #[must_use]
    pub(crate) fn up(&self, stat: Stat, amount: u64) -> bool {
        self.up_to(stat, amount) < 0
    }

    /// Adds `amount`. How much more may be added; below 0 the peaks must be settled.
    #[inline]
    #[must_use]
    pub(crate) fn up_to(&self, stat: Stat, amount: u64) -> i64 {
        let row = stat as usize;
        let added = self.added[row].load(Relaxed) + amount;
        // Whoever sees what was added sees what had been taken away before: sums may lack something, but count nothing twice.
        self.added[row].store(added, Release);
        self.removed[row].load(Relaxed) as i64 + self.threshold[row].load(Relaxed) - added as i64
    }

    /// Takes `amount` away.
    #[inline]
    pub(crate) fn down(&self, stat: Stat, amount: u64) {
        let removed = &self.removed[stat as usize];
        removed.store(removed.load(Relaxed) + amount, Relaxed);
    }

    /// `amount` was not taken away after all.
    pub(crate) fn undo_down(&self, stat: Stat, amount: u64) {
        let removed = &self.removed[stat as usize];
        removed.store(removed.load(Relaxed) - amount, Relaxed);
    }

    /// What is counted here, `amount` of it, is counted by `other` from now on, as if it always had been. True if the peaks must
    /// be settled.
    #[cfg(feature = "alloc")]
    pub(crate) fn hand_over(&self, other: &Self, stat: Stat, amount: u64) -> bool {
        let added = &self.added[stat as usize];
        added.store(added.load(Relaxed) - amount, Relaxed);
        other.up(stat, amount)
    }

    /// A block of `bytes` that was allocated is pending now. It stays active, so what is allocated may rise less: unless it is
    /// pending no longer at once, [`follow_pending`](Self::follow_pending) comes next.
    pub(crate) fn pend(&self, bytes: u64) {
        for (row, amount) in [(Stat::Active, 1), (Stat::ActiveBytes, bytes)] {
            let added = &self.added[row as usize];
            added.store(added.load(Relaxed) + amount, Release);
        }
    }

    /// The ceilings follow what has become pending. The lock of the one who settles is held: ceilings are set under it alone, for
    /// whoever sets them without may overwrite what others make of the leases meanwhile.
    pub(crate) fn follow_pending(&self) {
        self.set_threshold(Stat::Allocation as usize);
        self.set_threshold(Stat::AllocatedBytes as usize);
    }

    /// The lease of a row. Where nothing lowers the threshold it is the threshold.
    pub(super) fn lease(&self, row: usize) -> &AtomicI64 {
        self.allocated_lease.get(row).unwrap_or(&self.threshold[row])
    }

    /// The threshold of one of the first two rows follows from its lease, and from that on active blocks.
    pub(super) fn set_threshold(&self, row: usize) {
        let Some(active) = active_of(row) else { return };
        let pending = self.added[active].load(Acquire) as i64 - self.removed[active].load(Relaxed) as i64;
        let left = self.lease(active).load(Relaxed) - pending;
        self.threshold[row].store(self.lease(row).load(Relaxed).min(left), Relaxed);
    }

    /// A block of `bytes` is pending no longer.
    pub(crate) fn unpend(&self, bytes: u64) {
        self.down(Stat::Active, 1);
        self.down(Stat::ActiveBytes, bytes);
    }

    /// How much of `stat` this heap has ever counted.
    pub(crate) fn ever_added(&self, stat: Stat) -> u64 {
        self.added[stat as usize].load(Relaxed)
    }

    /// How much there is of `stat` in this heap.
    pub(crate) fn current(&self, stat: Stat) -> i64 {
        self.current_of(stat as usize)
    }

    pub(super) fn current_of(&self, stat: usize) -> i64 {
        // All that was added before anything that was removed, pending blocks first: what moves between the rows meanwhile may be
        // missing, but never counts twice.
        let rows = [Some(stat), included(stat)];
        let added: i64 = rows.iter().flatten().map(|&row| self.added[row].load(Acquire) as i64).sum();
        let removed: i64 = rows.iter().flatten().map(|&row| self.removed[row].load(Relaxed) as i64).sum();
        added - removed
    }

    /// How much of `stat` was ever added.
    pub(super) fn added_of(&self, stat: usize) -> i64 {
        self.added[included(stat).unwrap_or(stat)].load(Relaxed) as i64
    }
}
