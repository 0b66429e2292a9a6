//! Where the memory of a target is, and how much of it.

use super::{ParkReport, ParkState, ParkTarget};
use crate::arena::Arena;
use crate::config::rounding::PoolKind;
use crate::device::DeviceMemory;
use crate::pages::Kept;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::tables::slot_table::NONE;

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Returns the report of a target. Heaps are read in turn.
    pub(crate) fn park_report(&self, target: ParkTarget) -> ParkReport {
        let mut report = ParkReport::default();
        if let ParkTarget::Tag(tag) = target {
            let registry = self.heaps.registry.lock();
            let first = registry.next_tagged(0, tag);
            if first.is_some_and(|pool| registry.pools[pool as usize].asleep) {
                report.state = ParkState::Asleep;
            }
        }
        for used in self.heaps.pairs_of_target(target) {
            for kind in [PoolKind::Small, PoolKind::Large] {
                self.add_to_report(used.slot(kind), &mut report);
            }
        }
        report
    }

    /// Adds the memory of the heap in `slot`.
    fn add_to_report(&self, slot: u32, report: &mut ParkReport) {
        let heap = self.heaps.lock(slot);
        if heap.asleep && report.state == ParkState::Awake {
            report.state = ParkState::Asleep;
        }
        if heap.is_empty() {
            return;
        }
        let pages = self.page_pool.lock();
        for home in heap.sets.pages.within(0, u64::MAX) {
            let page = &pages[home.page];
            if home.pins > 0 {
                report.pinned += home.bytes;
            }
            if !home.asleep {
                report.mapped += home.bytes;
                continue;
            }
            report.parked += home.bytes;
            if matches!(page.kept, Kept::Saved(_)) {
                report.kept += home.bytes;
            }
            if page.replacement != NONE {
                report.state = ParkState::Waking;
                report.mapped += home.bytes;
            }
        }
        let mut segment = heap.newest;
        while segment != NONE {
            let entry = &heap.segments[segment];
            if entry.granule == 0 {
                report.ordinary += entry.bytes;
            }
            segment = entry.next;
        }
    }
}
