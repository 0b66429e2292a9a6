//! Whether a device has virtual memory, in which granularity, and whether network adapters can reach it directly.

use crate::context::Context;
use crate::driver::result::CuResult;
use crate::driver::types::{CuDevice, CuDeviceAttribute, CuGranularity, CuMemAllocationProp};
use cachalot_core::DeviceResult;
use core::ffi::c_int;
use core::sync::atomic::AtomicBool;

/// What is known of a device's virtual memory.
#[derive(Debug)]
pub(crate) struct Virtual {
    /// The smallest piece, in bytes; a power of two.
    pub(crate) granularity: u64,
    /// Whether physical memory is made so that other devices on the bus reach it directly.
    pub(crate) rdma: AtomicBool,
}

impl Virtual {
    /// What the device has, or `None` if it lacks virtual memory or the driver lacks an entry point for it.
    /// The caller has entered the context.
    ///
    /// # Errors
    /// Those after which no call would succeed. A refusal to answer counts as not having it.
    pub(crate) fn of(context: &Context, device: CuDevice) -> DeviceResult<Option<Self>> {
        let driver = context.driver();
        let complete = driver.mem_get_allocation_granularity.is_some()
            && driver.mem_address_reserve.is_some()
            && driver.mem_address_free.is_some()
            && driver.mem_create.is_some()
            && driver.mem_release.is_some()
            && driver.mem_map.is_some()
            && driver.mem_unmap.is_some()
            && driver.mem_set_access.is_some();
        if !complete || !has(context, device, CuDeviceAttribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)? {
            return Ok(None);
        }
        let rdma = has(context, device, CuDeviceAttribute::GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)?;
        // A device can claim direct access and refuse it, so that the question without it is the second try.
        for rdma in if rdma { &[true, false][..] } else { &[false] } {
            let properties = CuMemAllocationProp::on_device(device.0, *rdma);
            let mut granularity = 0;
            // SAFETY: both variables outlive the call, which reads the one and writes one integer to the other.
            let code = unsafe {
                driver.mem_get_allocation_granularity(
                    &raw mut granularity,
                    &raw const properties,
                    CuGranularity::MINIMUM,
                )
            };
            if code.is_success() && granularity.is_power_of_two() {
                return Ok(Some(Self { granularity: granularity as u64, rdma: AtomicBool::new(*rdma) }));
            }
            stop_if_sticky(context, code)?;
        }
        Ok(None)
    }
}

/// Whether an attribute of the device is 1. A refusal to answer counts as 0.
fn has(context: &Context, device: CuDevice, attribute: CuDeviceAttribute) -> DeviceResult<bool> {
    let mut value: c_int = 0;
    // SAFETY: `value` outlives the call, which writes one integer to it.
    let code = unsafe { context.driver().device_get_attribute(&raw mut value, attribute, device) };
    stop_if_sticky(context, code)?;
    Ok(code.is_success() && value == 1)
}

/// An error if the code is one after which no call would succeed.
fn stop_if_sticky(context: &Context, code: CuResult) -> DeviceResult<()> {
    if code.is_sticky() { context.check(code) } else { Ok(()) }
}
