//! Dirty heaps: those that must be read to find a sum over all heaps.
//!
//! A heap is *clean* while each of its leases equals the present value, in every row of its
//! counters. (A lease is a heap's quota of a peak.) The sum of the leases, which the peaks keep, is
//! then the sum over all clean heaps, so only the dirty heaps must be read to find a peak.
//!
//! ```text
//! clean ─ a thread locks the heap to work on it ────────────────▶ dirty
//!       ─ a request or a free on the fast path, which reports it ▶ dirty ─ too many are: leases are cut ─▶ clean
//! ```
//!
//! This takes no extra step on the fast path. A request of a clean heap exceeds a lease, and
//! reports this anyway. A free that leaves a free block next to others reports too, and one that
//! empties a segment reports through the flag for ended streams.

use crate::arena::heaps::{Heaps, Slot};
use crate::arena::platform::Platform;
use crate::heap::Heap;
use crate::sync::{AtomicU32, Ordering, empty_by, impl_empty};
use crate::tables::slot_table::NONE;

/// The link of a clean heap, which is in no list. No heap uses this as its number.
const CLEAN: u32 = NONE - 1;

/// The link of a heap in the list of dirty heaps: the next one, [`NONE`], or [`CLEAN`]. It changes
/// to and from [`CLEAN`] under the lock of the heap.
pub(crate) struct DirtyLink(AtomicU32);

empty_by!(DirtyLink = Self(AtomicU32::new(CLEAN)));

impl DirtyLink {
    /// Returns whether the heap is clean. Exact under the heap's lock.
    #[inline]
    pub(crate) fn is_clean(&self) -> bool {
        self.0.load(Ordering::Relaxed) == CLEAN
    }

    /// Returns the next dirty heap, or `None` at the end of the list and for a clean heap.
    #[inline]
    pub(crate) fn next(&self) -> Option<u32> {
        next_of(&self.0)
    }
}

#[inline]
fn next_of(link: &AtomicU32) -> Option<u32> {
    // `Acquire` pairs with the addition, so the link of a heap is visible before the heap is.
    Some(link.load(Ordering::Acquire)).filter(|&next| next < CLEAN)
}

/// The list of the dirty heaps. Threads add heaps at the start, each under the lock of its heap.
/// Removing heaps and walking the list require the lock of the peaks.
pub(crate) struct DirtyList {
    /// The number of the heap at the start, or [`NONE`].
    first: AtomicU32,
    /// The number of heaps that were added, minus those that were removed.
    count: AtomicU32,
}

impl_empty! { DirtyList { first: AtomicU32::new(NONE), count } }

impl DirtyList {
    /// Adds the clean heap with the given number. The heap's lock is held.
    #[cold]
    pub(crate) fn add(&self, number: u32, link: &DirtyLink) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut first = self.first.load(Ordering::Relaxed);
        loop {
            link.0.store(first, Ordering::Relaxed);
            match self.first.compare_exchange(first, number, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// Removes the dirty heap with the given number, which is then clean. The locks of the heap and
    /// of the peaks are held.
    pub(crate) fn remove<'a>(&self, number: u32, link_of: impl Fn(u32) -> &'a DirtyLink) {
        let link = link_of(number);
        let next = link.0.load(Ordering::Relaxed);
        // This heap is at the start, unless other threads have added heaps there. In that case it
        // follows another one.
        if self.first.compare_exchange(number, next, Ordering::Acquire, Ordering::Relaxed).is_err() {
            let mut before = self.first();
            while let Some(of) = before.filter(|&of| link_of(of).next() != Some(number)) {
                before = link_of(of).next();
            }
            link_of(before.expect("a dirty heap is in the list")).0.store(next, Ordering::Relaxed);
        }
        link.0.store(CLEAN, Ordering::Relaxed);
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of the first dirty heap.
    #[inline]
    pub(crate) fn first(&self) -> Option<u32> {
        next_of(&self.first)
    }
}

impl<P: Platform> Heaps<P> {
    /// Marks a heap as dirty, before a counter changes or after it but before the lock ends. The
    /// caller holds the heap's lock.
    #[inline]
    pub(crate) fn mark_dirty(&self, slot: &Slot<P>, heap: &mut Heap<P::Storage>) {
        if heap.clean {
            heap.set_clean(false);
            self.dirty.add(slot.number(), &slot.dirty);
        }
    }

    /// Marks a dirty heap as clean, once its leases equal the present values. The caller holds the
    /// locks of the heap and of the peaks.
    pub(crate) fn mark_clean(&self, slot: &Slot<P>, heap: &mut Heap<P::Storage>) {
        self.dirty.remove(slot.number(), |number| &self.slot(number).dirty);
        heap.set_clean(true);
    }

    /// Returns the number of dirty heaps. While other threads work, the number may be slightly out
    /// of date.
    pub(crate) fn dirty_count(&self) -> u32 {
        self.dirty.count.load(Ordering::Relaxed)
    }

    /// Iterates over the dirty heaps. The lock of the peaks is held, so none leaves the list.
    pub(crate) fn dirty_slots(&self) -> impl Iterator<Item = &Slot<P>> + Clone {
        let first = self.dirty.first().map(|number| self.slot(number));
        core::iter::successors(first, |slot| slot.dirty.next().map(|number| self.slot(number)))
    }
}
