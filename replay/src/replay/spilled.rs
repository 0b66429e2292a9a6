//! The memory of the host that a program needs under `spill`, and the time that its use takes.

use crate::program::{OnDevice, Operation, Run};
use cachalot_core::DevicePtr;
use cachalot_core::simulated::SimulatedDevice;

/// The time in which the driver makes a GiB of pages of the host, in nanoseconds. Measured on an
/// H200 (driver 580).
const MAKE_NS: f64 = 0.27e9;

/// Bytes of a GiB.
const GIB: f64 = (1_u64 << 30) as f64;

/// The memory of the host that a replay used, over all passes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spilled {
    /// The most bytes of the host that were held.
    pub peak_bytes: u64,
    /// Bytes of pages of the host that were made.
    pub made_bytes: u64,
    /// Bytes of the requested blocks that lay on the host.
    pub block_bytes: u64,
    /// Bytes of the host that were held after the last call.
    held: u64,
}

impl Spilled {
    /// Notes the memory of the host after a call.
    pub(super) fn note(&mut self, run: &Run<OnDevice>, made: Operation) {
        let held = run.device().used_of_host();
        self.peak_bytes = self.peak_bytes.max(held);
        self.made_bytes += held.saturating_sub(self.held);
        self.held = held;
        if let Operation::Malloc { bytes, slot, .. } = made
            && let block = run.blocks[slot as usize]
            && block != DevicePtr::NULL
        {
            self.block_bytes += run.device().bytes_on_host(block, bytes);
        }
    }

    /// Returns the nanoseconds in which a link of `rate` bytes a second carries each block on the
    /// host twice: once to write it, and once to read it. A program that reads a block more often
    /// takes longer.
    pub fn link_ns(&self, rate: f64) -> f64 {
        2.0 * self.block_bytes as f64 / rate * 1e9
    }

    /// Returns the nanoseconds in which the driver makes the pages, once.
    pub fn make_ns(&self) -> f64 {
        self.made_bytes as f64 / GIB * MAKE_NS
    }
}

/// Creates a device of `bytes` on a host that has as much memory for `spill`, which sets the limit.
pub(super) fn device(bytes: u64) -> SimulatedDevice {
    let device = SimulatedDevice::new(bytes);
    device.set_mappable_host_memory(bytes);
    device
}
