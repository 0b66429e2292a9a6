//! The memory of a device that is made of pages: physical handles, elastic ranges, and the counters
//! of both.
//!
//! ```text
//! ranges/          growth.rs · stitched/          parking/           extents.rs
//! elastic ranges   heaps on pages · moving pages  pages given back   what lies under a block
//!      └────────────────┴──── mapping.rs ──────────────┘             pages at new places, undone unless kept
//!                             mapper.rs                              pages made, mapped, spare, destroyed
//!                             heap_mapper.rs                         pages of heaps, noted in page map, trace and peaks
//!                             spill.rs · moves.rs                    pages of the host · pages under live blocks, moved
//!                             addresses.rs                           addresses reserved and released
//!                             virtual_calls.rs                       the calls of the device, counted
//!                             release.rs                             free pages of heaps unmapped
//!                             departures.rs · retired.rs             fences after memory given up · retired segments
//! ```
//!
//! The pages and the ranges are private to this folder. Other modules ask [`Paging`] for sums.

mod addresses;
mod batches;
pub(crate) mod departures;
mod epochs;
pub(crate) mod extents;
pub(in crate::arena) mod growth;
mod guarded;
pub(in crate::arena) mod heap_mapper;
pub(in crate::arena) mod mapper;
pub(in crate::arena) mod mapping;
pub(crate) mod moves;
pub(crate) mod parking;
pub(crate) mod ranges;
mod release;
mod retired;
pub(in crate::arena) mod spill;
pub(in crate::arena) mod stitched;
mod undo;
mod virtual_calls;

use crate::arena::Platform;
use crate::arena::ledger::Ledger;
use crate::arena::paging::ranges::table::RangeTable;
use crate::heap::Heap;
use crate::pages::{PageBytes, PagePool};
use crate::stats::{HeapCounters, MemoryCallCounters};
use crate::sync::{AtomicU32, AtomicU64, MutexGuard, Ordering, Rank, Ranked, Turn, empty, impl_empty};

/// The pages of one device.
pub(crate) struct Paging<P: Platform> {
    /// The physical handles.
    pool: Ranked<P::Lock, PagePool<P::Storage>>,
    /// The elastic ranges.
    ranges: Ranked<P::Lock, RangeTable<P::Storage>>,
    /// The counters of the elastic ranges. Written under their lock.
    range_counters: HeapCounters,
    /// Bytes of addresses that are reserved. Written when addresses are reserved or released.
    address_bytes: AtomicU64,
    /// Bytes of the pages of the host, and the limit that `spill` sets. The ledger of the device
    /// does not have them.
    pub spilled: Ledger,
    /// Calls to the device's virtual memory.
    pub calls: MemoryCallCounters,
    /// Bytes of all pages that have moved. Written by the stitched policy.
    pub moved_bytes: AtomicU64,
    /// The number of stale mappings in heaps, which are the old places of pages that have moved.
    /// Written under the lock of the heap.
    stale_mappings: AtomicU32,
    /// Bytes of all pages that have replaced shorter ones. Written by the stitched policy.
    pub consolidated_bytes: AtomicU64,
    /// The most bytes that were ever pending when a request was short of memory under the stitched
    /// policy. Written by this policy.
    most_pending: AtomicU64,
    /// Bytes of retired segments that have gone back to the device.
    retired_given_back: AtomicU64,
    /// Taken by the call that parks or wakes memory, or that gives up the places of parked memory.
    parking: Turn,
    /// Taken by the call that unmaps or maps pages of parked or lent memory. A thread that has
    /// `parking` waits for it; a request leaves lent pages alone if it is taken.
    taking: Turn,
    /// 1 if a pool may be lent, and 0 if none is. Written under the registry's lock.
    lent: AtomicU32,
}

impl_empty! {
    [P: Platform] Paging<P> {
        pool: Ranked::new(Rank::Pages, empty!()),
        ranges: Ranked::new(Rank::Ranges, empty!()),
        range_counters,
        address_bytes,
        spilled,
        calls,
        moved_bytes,
        stale_mappings,
        consolidated_bytes,
        most_pending,
        retired_given_back,
        parking,
        taking,
        lent,
    }
}

impl<P: Platform> Paging<P> {
    /// Returns the bytes of the spare pages that can go back to the device at once.
    pub(crate) fn destroyable_bytes(&self) -> u64 {
        self.pool.lock().destroyable_bytes()
    }

    /// Returns the bytes of all pages, by the place of the page.
    pub(crate) fn bytes(&self) -> PageBytes {
        self.pool.lock().bytes
    }

    /// Returns whether a pool may be lent. Callers ask before they call anything for lent pages,
    /// because almost no program lends memory.
    #[inline]
    pub(in crate::arena) fn may_lend(&self) -> bool {
        self.lent.load(Ordering::Relaxed) != 0
    }

    /// Returns the length of every page of the device in bytes, by handle.
    #[cfg(feature = "alloc")]
    pub(in crate::arena) fn lengths(&self) -> alloc::collections::BTreeMap<u64, u64> {
        self.pool.lock().lengths()
    }

    /// Returns whether the limit of pages of the host allows `more` bytes. Spare ones do not count.
    pub(crate) fn has_room_to_spill(&self, more: u64) -> bool {
        self.spilled.has_room_without(self.bytes().spare_of_host, more)
    }

    /// Returns the bytes of the pages of the host that are mapped.
    pub(crate) fn spilled_bytes(&self) -> u64 {
        self.spilled.live().saturating_sub(self.bytes().spare_of_host)
    }

    /// Returns the bytes of the addresses that are reserved.
    pub(crate) fn address_bytes(&self) -> u64 {
        self.address_bytes.load(Ordering::Relaxed)
    }

    /// Returns the counters of the elastic ranges.
    pub(in crate::arena) fn range_counters(&self) -> &HeapCounters {
        &self.range_counters
    }

    /// Checks the pages. Returns their bytes by place.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub(in crate::arena) fn check(&self) -> Result<PageBytes, &'static str> {
        self.pool.lock().check()
    }

    /// Checks that the pages of a heap say of themselves whether they are memory of the host.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub(in crate::arena) fn check_kinds(&self, heap: &Heap<P::Storage>) -> Result<(), &'static str> {
        let pool = self.pool.lock();
        let mut pages = heap.sets.pages.within(0, u64::MAX);
        let agree = pages.all(|home| home.asleep || home.of_host == pool[home.page].is_host);
        if agree { Ok(()) } else { Err("a page of the host counts as one of the device, or the other way round") }
    }

    /// Checks the ranges of a device on which no other operation runs, and compares the number of
    /// stale mappings with `stale`, the number counted in the heaps. Returns the bytes of the pages
    /// in ranges.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub(in crate::arena) fn check_ranges(&self, stale: u32) -> Result<u64, &'static str> {
        if stale != self.stale_mappings.load(Ordering::Relaxed) {
            return Err("the stale mappings are not those of the heaps");
        }
        self.ranges.lock().check(&self.range_counters)
    }
}

/// The pages and the ranges of one device, locked.
pub(in crate::arena) struct LockedPaging<'a, P: Platform> {
    paging: &'a Paging<P>,
    ranges: MutexGuard<'a, P::Lock, RangeTable<P::Storage>>,
    pool: MutexGuard<'a, P::Lock, PagePool<P::Storage>>,
}

impl<P: Platform> Paging<P> {
    /// Locks the ranges and the pages.
    pub(in crate::arena) fn lock_all(&self) -> LockedPaging<'_, P> {
        // Fields are evaluated from top to bottom, which is the order of the ranks.
        LockedPaging { paging: self, ranges: self.ranges.lock_beside(), pool: self.pool.lock_beside() }
    }
}

impl<P: Platform> LockedPaging<'_, P> {
    /// Returns a copy. It counts its own calls to the device, from zero on.
    pub(in crate::arena) fn copy<Q: Platform<Lock = P::Lock, Storage = P::Storage>>(&self) -> Paging<Q> {
        let Paging {
            range_counters,
            address_bytes,
            spilled,
            moved_bytes,
            stale_mappings,
            consolidated_bytes,
            most_pending,
            retired_given_back,
            lent,
            ..
        } = self.paging;
        let count = |word: &AtomicU64| AtomicU64::new(word.load(Ordering::Relaxed));
        Paging {
            pool: Ranked::new(Rank::Pages, self.pool.clone()),
            ranges: Ranked::new(Rank::Ranges, self.ranges.clone()),
            range_counters: range_counters.copy(),
            address_bytes: count(address_bytes),
            spilled: spilled.copy(),
            calls: MemoryCallCounters::default(),
            moved_bytes: count(moved_bytes),
            stale_mappings: AtomicU32::new(stale_mappings.load(Ordering::Relaxed)),
            consolidated_bytes: count(consolidated_bytes),
            most_pending: count(most_pending),
            retired_given_back: count(retired_given_back),
            parking: Turn::default(),
            taking: Turn::default(),
            lent: AtomicU32::new(lent.load(Ordering::Relaxed)),
        }
    }
}
