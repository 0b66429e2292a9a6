//! What the driver, or the system, says of a device at this moment.

use crate::real::Real;
use cachalot_cuda::driver::types::{CuDevice, CuDeviceAttribute};
use cachalot_cuda::{CuResult, free_if_shared};

/// The figures of a device, in bytes: the driver's, or the system's if the device shares the host's
/// memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DriverFigures {
    /// Used by all processes.
    pub used: u64,
    /// Of the device.
    pub total: u64,
}

impl DriverFigures {
    /// Returns the figures of the current context's device. What a program can still get on a
    /// device that shares the host's memory is [what the system has](free_if_shared).
    ///
    /// # Errors
    /// The driver's code without a context, and after a failure of the context.
    pub fn of_current(real: &Real) -> Result<Self, CuResult> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both variables outlive the call, which writes one integer to each.
        let code = unsafe { real.mem_get_info(&raw mut free, &raw mut total) };
        if !code.is_success() {
            return Err(code);
        }
        let (free, total) = (free as u64, total as u64);
        let shares = current_device(real).is_some_and(|device| shares_host_memory(real, device));
        let free = if shares { free_if_shared(free, total) } else { free };
        Ok(Self { used: total.saturating_sub(free), total })
    }
}

/// Returns the device of the thread's context. `None` without a context.
pub fn current_device(real: &Real) -> Option<CuDevice> {
    let mut device = CuDevice::default();
    // SAFETY: the variable outlives the call, which writes one integer to it.
    let code = unsafe { real.ctx_get_device(&raw mut device) };
    code.is_success().then_some(device)
}

/// Returns whether a device shares the host's memory.
pub(super) fn shares_host_memory(real: &Real, device: CuDevice) -> bool {
    let mut is_integrated = 0;
    // SAFETY: the variable outlives the call, which writes one integer to it.
    let code = unsafe { real.device_get_attribute(&raw mut is_integrated, CuDeviceAttribute::INTEGRATED, device) };
    code.is_success() && is_integrated == 1
}
