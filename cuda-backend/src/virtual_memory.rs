//! Virtual memory of a device: addresses and physical memory apart.

use crate::context::Context;
use crate::device::CudaDevice;
use crate::driver::result::CuResult;
use crate::driver::types::{CuDevice, CuDeviceAttribute, CuGranularity, CuMemAllocationProp, CuMemHandle};
use cachalot_core::device::{DeviceResult, PhysicalHandle, VirtualMemory};
use cachalot_core::units::DevicePtr;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};

/// What is known of a device's virtual memory.
#[derive(Debug)]
pub(crate) struct Virtual {
    /// The smallest piece, in bytes; a power of two.
    granularity: u64,
    /// Whether physical memory is made so that other devices on the bus reach it directly.
    rdma: AtomicBool,
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

impl CudaDevice {
    /// Whether physical memory is made so that other devices on the bus (network adapters) reach it directly.
    pub fn is_rdma_capable(&self) -> bool {
        self.virtual_part().is_some_and(|part| part.rdma.load(Ordering::Relaxed))
    }

    /// Makes physical memory with or without direct access from the bus.
    fn create_physical(&self, bytes: u64, rdma: bool) -> DeviceResult<CuMemHandle> {
        let properties = CuMemAllocationProp::on_device(self.device.0, rdma);
        let mut handle = CuMemHandle::default();
        self.context.call(|driver| {
            // SAFETY: both variables outlive the call, which reads the one and writes one handle to the other.
            unsafe { driver.mem_create(&raw mut handle, bytes as usize, &raw const properties, 0) }
        })?;
        Ok(handle)
    }
}

impl VirtualMemory for CudaDevice {
    fn granularity(&self) -> u64 {
        self.virtual_part().map_or(0, |part| part.granularity)
    }

    fn reserve(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        let mut address = 0;
        self.context.call(|driver| {
            // SAFETY: `address` outlives the call, which writes one address to it.
            unsafe { driver.mem_address_reserve(&raw mut address, bytes as usize, 0, 0, 0) }
        })?;
        Ok(DevicePtr(address))
    }

    fn unreserve(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.context.call(|driver| {
            // SAFETY: takes no host pointers; the allocator gives back only what `reserve` gave it, once.
            unsafe { driver.mem_address_free(base.0, bytes as usize) }
        })
    }

    /// Obtains physical memory. Should the driver refuse memory with direct access from the bus, it is asked for memory
    /// without, then and from then on.
    fn create(&self, bytes: u64) -> DeviceResult<PhysicalHandle> {
        let rdma = self.is_rdma_capable();
        let mut made = self.create_physical(bytes, rdma);
        let refused =
            [CuResult::NOT_SUPPORTED.error(), CuResult::NOT_PERMITTED.error(), CuResult::INVALID_VALUE.error()];
        if rdma && made.is_err_and(|error| refused.contains(&error)) {
            made = self.create_physical(bytes, false);
            if made.is_ok()
                && let Some(part) = self.virtual_part()
            {
                part.rdma.store(false, Ordering::Relaxed);
            }
        }
        made.map(|handle| PhysicalHandle(handle.0))
    }

    fn destroy(&self, handle: PhysicalHandle) -> DeviceResult<()> {
        self.context.call(|driver| {
            // SAFETY: takes no host pointers; the allocator drops only handles that `create` gave it, once.
            unsafe { driver.mem_release(CuMemHandle(handle.0)) }
        })
    }

    fn map(&self, at: DevicePtr, bytes: u64, handle: PhysicalHandle) -> DeviceResult<()> {
        self.context.call(|driver| {
            // SAFETY: takes no host pointers; ranges and handles that do not fit are refused by the driver.
            unsafe { driver.mem_map(at.0, bytes as usize, 0, CuMemHandle(handle.0), 0) }
        })
    }

    fn set_access(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.grant(at, bytes)
    }

    fn unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.withdraw(at, bytes)
    }
}
