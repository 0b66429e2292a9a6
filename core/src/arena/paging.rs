//! The memory of a device that lies on pages: physical handles, elastic ranges, and what is counted of both.

use crate::arena::ranges::table::RangeTable;
use crate::pages::Pages;
use crate::stats::{HeapCounters, MemoryCallCounters};
use crate::sync::{AtomicU32, AtomicU64, Lock, Rank, Ranked, Turn};
#[cfg(feature = "alloc")]
use crate::sync::{MutexGuard, Ordering};
use crate::tables::Storage;

/// The pages of one device.
pub(crate) struct Paging<R: Lock, S: Storage> {
    /// The physical handles.
    pub pool: Ranked<R, Pages<S>>,
    /// The elastic ranges.
    pub ranges: Ranked<R, RangeTable<S>>,
    /// The counters of the elastic ranges. Written under their lock.
    pub range_counters: HeapCounters,
    /// Calls to the device's virtual memory.
    pub calls: MemoryCallCounters,
    /// Bytes of all pages that have moved. Written by the stitched policy.
    pub moved_bytes: AtomicU64,
    /// Number of stale mappings in heaps: old places of pages that have moved. Written under the lock of the heap.
    pub stale_mappings: AtomicU32,
    /// Bytes of all pages that have replaced shorter ones. Written by the stitched policy.
    pub consolidated_bytes: AtomicU64,
    /// The most bytes that were pending when a request lacked memory under the stitched policy, which writes the number.
    pub most_pending: AtomicU64,
    /// Taken by the call that parks or wakes memory, or gives up the places of parked memory.
    pub parking: Turn,
}

impl<R: Lock, S: Storage> Paging<R, S> {
    /// Returns a device without pages.
    pub(super) fn new() -> Self {
        Self {
            pool: Ranked::new(Rank::Pages, Pages::default()),
            ranges: Ranked::new(Rank::Ranges, RangeTable::default()),
            range_counters: HeapCounters::default(),
            calls: MemoryCallCounters::new(),
            moved_bytes: AtomicU64::new(0),
            stale_mappings: AtomicU32::new(0),
            consolidated_bytes: AtomicU64::new(0),
            most_pending: AtomicU64::new(0),
            parking: Turn::default(),
        }
    }
}

/// The pages and the ranges of one device, locked.
#[cfg(feature = "alloc")]
pub(super) struct LockedPaging<'a, R: Lock, S: Storage> {
    paging: &'a Paging<R, S>,
    ranges: MutexGuard<'a, R, RangeTable<S>>,
    pool: MutexGuard<'a, R, Pages<S>>,
}

#[cfg(feature = "alloc")]
impl<R: Lock, S: Storage> Paging<R, S> {
    /// Locks the ranges and the pages.
    pub(super) fn lock_all(&self) -> LockedPaging<'_, R, S> {
        // Fields are evaluated from top to bottom: in the order of the ranks.
        LockedPaging { paging: self, ranges: self.ranges.lock_beside(), pool: self.pool.lock_beside() }
    }
}

#[cfg(feature = "alloc")]
impl<R: Lock, S: Storage> LockedPaging<'_, R, S> {
    /// Returns a copy, whose calls to the device are counted anew.
    pub(super) fn copy(&self) -> Paging<R, S> {
        let Paging { range_counters, moved_bytes, stale_mappings, consolidated_bytes, most_pending, .. } = self.paging;
        let count = |word: &AtomicU64| AtomicU64::new(word.load(Ordering::Relaxed));
        Paging {
            pool: Ranked::new(Rank::Pages, self.pool.clone()),
            ranges: Ranked::new(Rank::Ranges, self.ranges.clone()),
            range_counters: range_counters.copy(),
            calls: MemoryCallCounters::new(),
            moved_bytes: count(moved_bytes),
            stale_mappings: AtomicU32::new(stale_mappings.load(Ordering::Relaxed)),
            consolidated_bytes: count(consolidated_bytes),
            most_pending: count(most_pending),
            parking: Turn::default(),
        }
    }
}
