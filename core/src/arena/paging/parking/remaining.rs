//! The memory that is in use on a device, by name, for example after everything was parked.

use crate::arena::{OnDevice, Platform};
use crate::device::Segments;
use crate::error::Error;

/// The memory in use on a device, in bytes: `used` + `spilled` = `blocks` + `pending` + `cached` +
/// `spare` + `leaked` + `other`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Remaining {
    /// Memory of the device that any process uses.
    pub used: u64,
    /// Live blocks and committed ranges.
    pub blocks: u64,
    /// Blocks that the program has freed, and that still wait for other streams or for the safe
    /// frontier.
    pub pending: u64,
    /// Free memory in segments and mapped ranges, including private pools.
    pub cached: u64,
    /// Pages of virtual memory that no block uses and that have not been given back yet.
    pub spare: u64,
    /// Memory that may be lost after a failure of the device.
    pub leaked: u64,
    /// Memory that the allocator does not hold: that of the device's context, of modules and
    /// graphs, of other allocators and of other processes.
    pub other: u64,
    /// Pages that the program has pinned, which are never parked. Part of the sums above.
    pub pinned: u64,
    /// Parked memory, which is addresses without memory of the device. Part of none of the sums
    /// above.
    pub parked: u64,
    /// Memory of the host under blocks, pending blocks and free memory (`spill`). Part of these
    /// sums, and not of `used`.
    pub spilled: u64,
}

impl Remaining {
    /// Returns the memory in use on the device. The heaps are read one after the other.
    pub(crate) fn on<P: Platform>(device: OnDevice<'_, P>) -> Result<Self, Error> {
        let memory = device.driver.call(P::Device::memory_info)?;
        let report = device.report_of(memory, None);
        let (used, leaked) = (memory.total.saturating_sub(memory.free), device.ledger.leaked());
        let spilled = device.paging.spilled_bytes();
        let held = (report.reserved + report.spare + leaked).saturating_sub(spilled);
        Ok(Self {
            used,
            blocks: report.allocated,
            pending: report.pending,
            cached: report.reserved.saturating_sub(report.allocated + report.pending),
            spare: report.spare,
            leaked,
            other: used.saturating_sub(held),
            pinned: report.pinned,
            parked: report.parked,
            spilled,
        })
    }
}
