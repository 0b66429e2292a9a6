//! Report of a failed request for lack of memory.

use crate::arena::request::Request;
use crate::arena::{Arena, Platform, flags};
use crate::device::oom::OutOfMemory;
use crate::device::{MemoryInfo, Segments};
use crate::heap::split_rules::Source;
use crate::stats::Stat;
use crate::units::DeviceIndex;

impl<P: Platform> Arena<P> {
    /// Returns whether the setting `expandable_segments` has an effect on this device.
    fn may_expand(&self) -> bool {
        let has_key = self.settings.policy().traits().expands;
        has_key && !self.driver.flags.has(flags::DIRECT) && self.driver.is_virtual()
    }

    /// Returns the report of a failed request.
    pub(crate) fn out_of_memory(&self, request: &Request) -> OutOfMemory {
        let segment = self.segment_bytes(request);
        let report = self.memory_report(request.bytes, request.size, segment, Some(request.slot));
        OutOfMemory {
            capturing: request.capturing,
            address_lack: request.mapping.lack(),
            host_lack: request.mapping.host_lack.get(),
            ..report
        }
    }

    /// Returns the report of `requested` bytes that failed, in a block of `block` bytes for which
    /// `segment` bytes were to be obtained: the device's memory, and sums over all heaps and
    /// ranges. `slot` is the heap of the request. Heaps are read in turn, so the sums may disagree
    /// slightly while threads allocate.
    pub(crate) fn memory_report(&self, requested: u64, block: u64, segment: u64, slot: Option<u32>) -> OutOfMemory {
        let report = self.report_of(self.ledger.memory_info(&self.driver).unwrap_or_default(), slot);
        OutOfMemory { requested, block, segment, ..report }
    }

    /// Returns the report of no request, on a device with the given memory. Otherwise as
    /// [`memory_report`](Self::memory_report).
    pub(super) fn report_of(&self, memory: MemoryInfo, slot: Option<u32>) -> OutOfMemory {
        let pages = self.paging.bytes();
        let of_ranges = |stat| self.paging.range_counters().current(stat) as u64;
        let mut report = OutOfMemory {
            device: DeviceIndex(self.number()),
            memory,
            process: self.driver.device().process_use(),
            shares_host_memory: self.driver.device().shares_host_memory(),
            limit: self.ledger.limit_if_set(),
            allocated: of_ranges(Stat::AllocatedBytes),
            reserved: of_ranges(Stat::ReservedBytes),
            spare: pages.unused(),
            beside_guarded: pages.beside_guarded(),
            parked: pages.asleep,
            spilled: self.paging.spilled_bytes(),
            address_bytes: self.paging.address_bytes(),
            expandable_available: self.may_expand(),
            ..OutOfMemory::default()
        };
        for number in self.heaps.slot_numbers() {
            let heap_slot = self.heaps.slot(number);
            let heap = self.heaps.lock(number);
            let [allocated, active, reserved] = [Stat::AllocatedBytes, Stat::ActiveBytes, Stat::ReservedBytes]
                .map(|stat| heap_slot.counters.current(stat) as u64);
            // Before it was parked, a heap gave up the memory that blocks did not use. So what is
            // on the device is in use, and the blocks beyond it are parked.
            let [allocated, active] =
                [allocated, active].map(|bytes| if heap.asleep { bytes.min(reserved) } else { bytes });
            report.allocated += allocated;
            report.reserved += reserved;
            // Active blocks are live or pending, so the difference is the pending bytes.
            report.pending += active - allocated;
            if heap.pool != 0 {
                report.private_free += reserved - active;
            }
            if !heap.is_empty() {
                report.pinned += heap.sets.pages.pinned();
            }
            if heap.asleep {
                continue;
            }
            let largest = heap.largest_free();
            if Some(number) == slot {
                report.largest_free = largest;
                report.expandable = heap.rules.source.maps_pages();
                report.supplied = heap.rules.source == Source::Host;
            } else {
                report.largest_free_elsewhere = report.largest_free_elsewhere.max(largest);
            }
        }
        report
    }
}
