//! The counters of a heap.

use super::{STATS, Stat};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicI64, AtomicU64, impl_empty};

/// The counters of a heap. Any thread reads them. Only the holder of the heap's lock writes them,
/// except for `threshold`.
///
/// A pending block is active, but not allocated. The rows of [`Stat::Active`] and
/// [`Stat::ActiveBytes`] count only pending blocks, and [`HeapCounters::current`] adds the
/// allocated ones. This way a malloc and a free change two rows fewer.
#[derive(Debug)]
pub(crate) struct HeapCounters {
    /// The total ever added, indexed by [`Stat`].
    added: [AtomicU64; STATS],
    /// The current values, indexed by [`Stat`]: what was added less what was removed.
    current: [AtomicI64; STATS],
    /// The total of the pending blocks that stopped being pending, and of their bytes. The rows of
    /// [`Stat::Active`] and [`Stat::ActiveBytes`] have this and `added` in place of `current`.
    unpended: [AtomicU64; 2],
    /// When `current` exceeds this value, the peaks must be reconciled. The value is the
    /// heap's lease, which is its quota of the peak: the leases of all heaps add up to at most the
    /// peak. In the first two rows it is lower than the lease where pending blocks use up the lease
    /// on active blocks. It changes only while peaks are reconciled.
    threshold: [AtomicI64; STATS],
    /// The leases of the first two rows, [`Stat::Allocation`] and [`Stat::AllocatedBytes`].
    allocated_lease: [AtomicI64; 2],
}

impl_empty! { HeapCounters { added, current, unpended, threshold, allocated_lease } }

/// Returns the row that is counted in row `stat` as well: allocated blocks are active.
pub(super) const fn included(stat: usize) -> Option<usize> {
    const ACTIVE: usize = Stat::Active as usize;
    const ACTIVE_BYTES: usize = Stat::ActiveBytes as usize;
    match stat {
        ACTIVE => Some(Stat::Allocation as usize),
        ACTIVE_BYTES => Some(Stat::AllocatedBytes as usize),
        _ => None,
    }
}

/// Returns the row with the pending blocks that belong to the allocated blocks of `row`.
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
    /// Returns counters with the same values. The caller holds the heap's lock.
    pub(crate) fn copy(&self) -> Self {
        let copy = Self::default();
        copy.take_over(self);
        copy
    }

    /// Copies the values of other counters. The caller holds the lock of their heap.
    pub(crate) fn take_over(&self, from: &Self) {
        let totals = self.added.iter().zip(&from.added).chain(self.unpended.iter().zip(&from.unpended));
        totals.for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
        let rows = self.current.iter().zip(&from.current).chain(self.threshold.iter().zip(&from.threshold));
        let rows = rows.chain(self.allocated_lease.iter().zip(&from.allocated_lease));
        rows.for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
    }
}

/// Returns new atomics with the same values.
pub(super) fn copy_of<const N: usize>(words: &[AtomicU64; N]) -> [AtomicU64; N] {
    core::array::from_fn(|at| AtomicU64::new(words[at].load(Relaxed)))
}

impl HeapCounters {
    /// Adds `amount`. Returns true if the peaks must be reconciled.
    #[inline]
    #[must_use]
    pub(crate) fn up(&self, stat: Stat, amount: u64) -> bool {
        self.up_to(stat, amount) < 0
    }

    /// Adds `amount`. Returns how much more may be added. If this is below 0, the peaks must be
    /// reconciled.
    #[inline]
    #[must_use]
    pub(crate) fn up_to(&self, stat: Stat, amount: u64) -> i64 {
        let row = stat as usize;
        self.added[row].store(self.added[row].load(Relaxed) + amount, Relaxed);
        self.threshold[row].load(Relaxed) - self.raise(stat, amount)
    }

    /// Adds `amount` to the current value, and returns the sum.
    #[inline]
    fn raise(&self, stat: Stat, amount: u64) -> i64 {
        // Only the thread that holds the heap's lock writes the row, so a load and a store are
        // enough: this needs no locked instruction.
        let row = &self.current[stat as usize];
        let current = row.load(Relaxed) + amount as i64;
        // Pairs with the `Acquire` loads in `current_of`. A reader that sees the sum also sees what
        // was added.
        row.store(current, Release);
        current
    }

    /// Removes `amount`.
    #[inline]
    pub(crate) fn down(&self, stat: Stat, amount: u64) {
        let row = &self.current[stat as usize];
        row.store(row.load(Relaxed) - amount as i64, Relaxed);
    }

    /// Undoes a [`down`](Self::down) of `amount`.
    pub(crate) fn undo_down(&self, stat: Stat, amount: u64) {
        self.raise(stat, amount);
    }

    /// Counts an allocated block of `bytes` as pending: it was freed, and waits for other streams.
    /// The block remains active, so fewer blocks may be allocated within the lease. The caller then
    /// calls `Peaks::follow_pending` of the arena, unless the block stops pending at once.
    #[inline]
    pub(crate) fn pend(&self, bytes: u64) {
        for (row, amount) in [(Stat::Active, 1), (Stat::ActiveBytes, bytes)] {
            let added = &self.added[row as usize];
            added.store(added.load(Relaxed) + amount, Release);
        }
    }

    /// Returns whether the thresholds leave room for the pending blocks in the lease on active
    /// blocks, so that [`follow_pending`](Self::follow_pending) would lower none of them.
    #[inline]
    pub(crate) fn covers_pending(&self) -> bool {
        [Stat::Allocation as usize, Stat::AllocatedBytes as usize].into_iter().all(|row| {
            let allowed = self.left_beside_pending(row).unwrap_or(i64::MAX);
            self.threshold[row].load(Relaxed) <= allowed
        })
    }

    /// Returns what is left of the lease on active blocks for the allocated blocks, after the
    /// pending ones are subtracted. Returns `None` for rows other than the first two.
    #[inline]
    fn left_beside_pending(&self, row: usize) -> Option<i64> {
        let active = active_of(row)?;
        let pending = self.added[active].load(Acquire) as i64 - self.unpended[row].load(Relaxed) as i64;
        Some(self.lease(active).load(Relaxed) - pending)
    }

    /// Adjusts the thresholds to the pending blocks. The caller holds the lock under which peaks
    /// are reconciled. Without it, this could overwrite a threshold that another thread just set.
    #[inline]
    pub(crate) fn follow_pending(&self) {
        self.set_threshold(Stat::Allocation as usize);
        self.set_threshold(Stat::AllocatedBytes as usize);
    }

    /// Returns whether every row is within its lease. The thresholds must have followed the pending
    /// blocks before.
    #[inline]
    pub(super) fn is_within_leases(&self) -> bool {
        // Active blocks are within their lease iff the allocated ones are within their threshold,
        // because that leaves room for the pending ones.
        let is_within = |row: usize| self.current[row].load(Acquire) <= self.threshold[row].load(Relaxed);
        (0..STATS).all(|row| included(row).is_some() || is_within(row))
    }

    /// Returns whether each lease equals the current value (the heap is *clean*). The caller holds
    /// the lock of the heap.
    pub(crate) fn is_clean(&self) -> bool {
        (0..STATS).all(|row| self.lease(row).load(Relaxed) == self.current_of(row))
    }

    /// Returns the lease of a row. It is the threshold in all rows but the first two.
    #[inline]
    pub(super) fn lease(&self, row: usize) -> &AtomicI64 {
        self.allocated_lease.get(row).unwrap_or(&self.threshold[row])
    }

    /// Computes the threshold of one of the first two rows, from the lease of the row and from the
    /// lease on active blocks. Does nothing for other rows.
    #[inline]
    pub(super) fn set_threshold(&self, row: usize) {
        let Some(left) = self.left_beside_pending(row) else { return };
        self.threshold[row].store(self.lease(row).load(Relaxed).min(left), Relaxed);
    }

    /// Counts a pending block of `bytes` as free.
    pub(crate) fn unpend(&self, bytes: u64) {
        for (unpended, amount) in self.unpended.iter().zip([1, bytes]) {
            unpended.store(unpended.load(Relaxed) + amount, Relaxed);
        }
    }

    /// Returns the total of `stat` that this heap has ever added.
    pub(crate) fn ever_added(&self, stat: Stat) -> u64 {
        self.added[stat as usize].load(Relaxed)
    }

    /// Returns the current value of `stat` in this heap.
    pub(crate) fn current(&self, stat: Stat) -> i64 {
        self.current_of(stat as usize)
    }

    /// Returns the current value of a row. The rows of active blocks include the allocated blocks.
    #[inline]
    pub(super) fn current_of(&self, stat: usize) -> i64 {
        let Some(row) = included(stat) else { return self.current[stat].load(Acquire) };
        // In this order, a block that moves between the rows meanwhile may be missing from the sum,
        // but is never counted twice: a reader that sees it pending also sees that it was no longer
        // allocated, and one that sees it allocated again also sees that it stopped being pending.
        let pended = self.added[stat].load(Acquire) as i64;
        let allocated = self.current[row].load(Acquire);
        pended + allocated - self.unpended[row].load(Relaxed) as i64
    }

    /// Returns the total ever added to a row. Every active block was allocated once, so the total
    /// for active blocks is that of the row of allocated blocks.
    pub(super) fn added_of(&self, stat: usize) -> i64 {
        self.added[included(stat).unwrap_or(stat)].load(Relaxed) as i64
    }
}
