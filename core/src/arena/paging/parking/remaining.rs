//! The memory in use on a device, by name, for example once everything was parked.

use crate::arena::{OnDevice, Platform};
use crate::device::Segments;
use crate::error::Error;

/// The memory of a device in use, in bytes: `used` = `blocks` + `pending` + `cached` + `spare` +
/// `leaked` + `other`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Remaining {
    /// Memory of the device in use, by all processes.
    pub used: u64,
    /// Live blocks and committed ranges.
    pub blocks: u64,
    /// Blocks freed by the program, and still waiting for other streams or for the safe frontier.
    pub pending: u64,
    /// Free memory of segments and mapped ranges, of private pools, too.
    pub cached: u64,
    /// Pages of virtual memory in use by no block and not yet given back.
    pub spare: u64,
    /// Memory in doubt after a failure of the device.
    pub leaked: u64,
    /// Memory not held by the allocator: of the device's context, of modules and graphs, of other
    /// allocators and of other processes.
    pub other: u64,
    /// Pages pinned by the program, which are never parked. Part of the sums above.
    pub pinned: u64,
    /// Parked memory: addresses without memory of the device. Part of no sum above.
    pub parked: u64,
}

impl Remaining {
    /// Returns the memory in use on the device. Heaps are read in turn.
    pub(crate) fn on<P: Platform>(device: OnDevice<'_, P>) -> Result<Self, Error> {
        let memory = device.driver.call(P::Device::memory_info)?;
        let report = device.report_of(memory, None);
        let (used, leaked) = (memory.total.saturating_sub(memory.free), device.ledger.leaked());
        let held = report.reserved + report.spare + leaked;
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
        })
    }
}
