//! Loose heaps: those that have to be read to find a sum over all heaps.
//!
//! A heap is *tight* while each of its leases is the present value, in every row of its counters.
//! The sum of the leases, which the peaks keep, then stands for all tight heaps, and a peak is
//! found by reading the loose ones only.
//!
//! ```text
//! tight ─ a thread locks the heap to work on it ────────────────▶ loose
//!       ─ a request or a free on the fast path, which reports it ▶ loose ─ too many are: leases are cut ─▶ tight
//! ```
//!
//! The fast path takes no step more for it. A request of a tight heap exceeds a lease, and reports
//! that anyway. A free that leaves a free block beside others does, too; one that empties a segment
//! reports by the flag that tells of ended streams.

use crate::arena::heaps::{Heaps, Slot};
use crate::arena::platform::Platform;
use crate::heap::Heap;
use crate::sync::{AtomicU32, Ordering, empty_by, impl_empty};
use crate::tables::slot_table::NONE;

/// The link of a tight heap, which is in no list. No heap has this number.
const TIGHT: u32 = NONE - 1;

/// The place of a heap in the list of the loose heaps: the next one, [`NONE`], or [`TIGHT`].
/// Changes to and from [`TIGHT`] under the lock of the heap.
pub(crate) struct LooseLink(AtomicU32);

empty_by!(LooseLink = Self(AtomicU32::new(TIGHT)));

impl LooseLink {
    /// Returns whether the heap is tight. Exact under the heap's lock.
    #[inline]
    pub(crate) fn is_tight(&self) -> bool {
        self.0.load(Ordering::Relaxed) == TIGHT
    }

    /// Returns the next loose heap. `None` at the end of the list, and for a tight heap.
    #[inline]
    pub(crate) fn next(&self) -> Option<u32> {
        next_of(&self.0)
    }
}

#[inline]
fn next_of(link: &AtomicU32) -> Option<u32> {
    // `Acquire` pairs with the addition: the link of the heap is there before the heap is.
    Some(link.load(Ordering::Acquire)).filter(|&next| next < TIGHT)
}

/// The list of the loose heaps. Threads add heaps at the start, each under the lock of the heap.
/// Heaps are removed, and the list is walked, under the lock of the peaks only.
pub(crate) struct LooseList {
    /// The number of the heap at the start, or [`NONE`].
    first: AtomicU32,
    /// Number of heaps that were added, less the removed ones.
    count: AtomicU32,
}

impl_empty! { LooseList { first: AtomicU32::new(NONE), count } }

impl LooseList {
    /// Adds the tight heap with a number. The heap's lock is held.
    #[cold]
    pub(crate) fn add(&self, number: u32, link: &LooseLink) {
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

    /// Removes the loose heap with a number, which is tight then. The locks of the heap and of the
    /// peaks are held.
    pub(crate) fn remove<'a>(&self, number: u32, link_of: impl Fn(u32) -> &'a LooseLink) {
        let link = link_of(number);
        let next = link.0.load(Ordering::Relaxed);
        // At the start, unless other threads have added heaps there: this one is behind another
        // then.
        if self.first.compare_exchange(number, next, Ordering::Acquire, Ordering::Relaxed).is_err() {
            let mut before = self.first();
            while let Some(of) = before.filter(|&of| link_of(of).next() != Some(number)) {
                before = link_of(of).next();
            }
            link_of(before.expect("a loose heap is in the list")).0.store(next, Ordering::Relaxed);
        }
        link.0.store(TIGHT, Ordering::Relaxed);
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of the first loose heap.
    #[inline]
    pub(crate) fn first(&self) -> Option<u32> {
        next_of(&self.first)
    }
}

impl<P: Platform> Heaps<P> {
    /// Makes a heap loose, whose lock the caller holds: before a counter changes, or after that and
    /// before the lock ends.
    #[inline]
    pub(crate) fn loosen(&self, slot: &Slot<P>, heap: &mut Heap<P::Storage>) {
        if heap.tight {
            heap.set_tight(false);
            self.loose.add(slot.number(), &slot.loose);
        }
    }

    /// Makes a loose heap tight, whose lock the caller holds, and whose leases are the present
    /// values. The lock of the peaks is held.
    pub(crate) fn tighten(&self, slot: &Slot<P>, heap: &mut Heap<P::Storage>) {
        self.loose.remove(slot.number(), |number| &self.slot(number).loose);
        heap.set_tight(true);
    }

    /// Returns the number of loose heaps. While other threads work, the number may be that of a
    /// moment before.
    pub(crate) fn loose_count(&self) -> u32 {
        self.loose.count.load(Ordering::Relaxed)
    }

    /// Iterates over the loose heaps. The lock of the peaks is held, so none leaves the list.
    pub(crate) fn loose_slots(&self) -> impl Iterator<Item = &Slot<P>> + Clone {
        let first = self.loose.first().map(|number| self.slot(number));
        core::iter::successors(first, |slot| slot.loose.next().map(|number| self.slot(number)))
    }
}
