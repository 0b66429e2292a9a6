//! The invariants of one device: those of its heaps, and the sum of the bytes held.

use crate::arena::Arena;
use crate::arena::peaks::{Counters, Peaks};
use crate::arena::platform::Platform;
use crate::heap::Heap;
use crate::heap::block::{BlockEntry, State};
use crate::sync::Lock;
use crate::tables::Storage;

impl<P: Platform> Arena<P> {
    /// Checks every invariant of the device, and returns how many blocks were visited.
    /// `is_exclusive` is false while other operations run. Then only the invariants that hold under
    /// the lock of one heap are checked.
    ///
    /// # Errors
    /// A description of the first invariant that does not hold.
    pub(crate) fn check_invariants(&self, is_exclusive: bool) -> Result<u64, &'static str> {
        self.heaps.registry.lock().check()?;
        let (mut visits, mut reserved) = (0, self.leaked_bytes());
        let (mut home, mut asleep, mut stale) = (0, 0, 0);
        for number in self.heaps.slot_numbers() {
            let slot = self.heaps.slot(number);
            let heap = slot.heap.lock();
            if is_exclusive || !is_held_in_part(&heap) {
                reserved += heap.check_invariants(&slot.counters)?;
                if !heap.is_empty() {
                    home += heap.sets.pages.check()?;
                    self.paging.check_kinds(&heap)?;
                    asleep += heap.sets.pages.asleep(0, u64::MAX);
                }
            }
            stale += if heap.is_empty() { 0 } else { heap.sets.stale.count };
            let unlisted = heap.suballocator.as_ref().map_or(0, |own| own.unlisted().0);
            visits += 1 + u64::from(heap.blocks.len() + unlisted);
        }
        if is_exclusive {
            self.peaks.check_leases(&self.counters())?;
            self.heaps.check_tags()?;
            let of_ranges = self.paging.check_ranges(stale)?;
            (home, reserved) = (home + of_ranges, reserved + of_ranges);
        }
        reserved += self.paging.retired_bytes();
        let pages = self.paging.check()?;
        reserved += pages.unused() + pages.spare_of_host;
        if is_exclusive && (pages.moving, pages.home, pages.asleep) != (0, home - asleep, asleep) {
            return Err("the bytes of the pages at home are not those of the heaps and ranges");
        }
        if is_exclusive && reserved != self.ledger.reserved() + self.paging.spilled.reserved() {
            return Err("the bytes held from the device and the host are not the sum of the segments");
        }
        Ok(visits)
    }
}

impl<R: Lock> Peaks<R> {
    /// Checks that each heap is either clean or in the list of dirty heaps, and checks the sums of
    /// the leases.
    ///
    /// A call that only reads makes a heap dirty, too, and does not count as an operation. The
    /// heap's lock keeps the heap as it is.
    fn check_leases<P: Platform<Lock = R>>(&self, counters: &Counters<'_, P>) -> Result<(), &'static str> {
        for slot in counters.heaps.slot_numbers().map(|number| counters.heaps.slot(number)) {
            let heap = slot.heap.lock();
            if heap.clean != slot.dirty.is_clean() || heap.clean && !slot.counters.is_clean() {
                return Err("a lease of a clean heap is not the present value");
            }
            let is_listed = || counters.heaps.dirty_slots().any(|dirty| dirty.number() == slot.number());
            if heap.clean == self.locked(|_| is_listed()) {
                return Err("the list of the dirty heaps does not hold exactly those");
            }
        }
        self.locked(
            |peaks| {
                if peaks.has_summed_leases(counters.all()) { Ok(()) } else { Err("the leases are not their sum") }
            },
        )
    }
}

/// Returns whether an operation holds blocks of the heap for a mapping or a release, while it calls
/// the device without the lock.
fn is_held_in_part<S: Storage>(heap: &Heap<S>) -> bool {
    let held = |block: &BlockEntry| matches!(block.state, State::Detached | State::Mapping);
    heap.segments().any(|(_, segment)| heap.tiles(segment).any(|(_, block)| held(block)))
}
