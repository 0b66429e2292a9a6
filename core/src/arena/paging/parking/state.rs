//! The state of a target's memory, and its size.

use super::{ParkReport, ParkState, ParkTarget};
use crate::arena::Platform;
use crate::arena::heaps::Heaps;
use crate::arena::paging::Paging;
use crate::pages::Kept;
use crate::tables::slot_table::NONE;

impl ParkReport {
    /// Returns the report of a target. The heaps are read one after the other.
    pub(crate) fn of<P: Platform>(heaps: &Heaps<P>, paging: &Paging<P>, target: ParkTarget) -> Self {
        let mut report = Self::default();
        let mut is_lent = false;
        target.each_pool(&mut heaps.registry.lock(), |registry, pool| {
            let pool = &registry.pools[pool as usize];
            is_lent |= pool.lent;
            if pool.asleep {
                report.state = ParkState::Asleep;
            }
        });
        target.slots(heaps).for_each(|slot| report.add(heaps, paging, slot));
        if is_lent {
            report.state = ParkState::Lent;
        }
        report
    }

    /// Adds the memory of the heap in `slot`.
    fn add<P: Platform>(&mut self, heaps: &Heaps<P>, paging: &Paging<P>, slot: u32) {
        let heap = heaps.lock(slot);
        if heap.asleep && self.state == ParkState::Awake {
            self.state = ParkState::Asleep;
        }
        if heap.is_empty() {
            return;
        }
        let pages = paging.pool.lock();
        for home in heap.sets.pages.within(0, u64::MAX) {
            let page = &pages[home.page];
            if home.pins > 0 {
                self.pinned += home.bytes;
            }
            if !home.asleep {
                self.mapped += if page.is_host { 0 } else { home.bytes };
                continue;
            }
            self.parked += home.bytes;
            if matches!(page.kept, Kept::Saved(_)) {
                self.kept += home.bytes;
            }
            if page.replacement != NONE {
                self.mapped += home.bytes;
                if pages.left(home.page).is_none() {
                    self.state = ParkState::Waking;
                }
            }
        }
        let ordinary = heap.segments().filter(|(_, segment)| segment.granule == 0);
        self.ordinary += ordinary.map(|(_, segment)| segment.bytes).sum::<u64>();
    }
}
