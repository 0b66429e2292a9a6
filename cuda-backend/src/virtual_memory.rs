//! Virtual memory of a device: reserved addresses, physical memory, and mappings between the two.

use crate::device::CudaDevice;
use crate::driver::result::CuResult;
use crate::driver::types::{CuMemAllocationProp, CuMemHandle};
use cachalot_core::{DevicePtr, DeviceResult, PhysicalHandle, VirtualMemory};
use core::sync::atomic::Ordering;

impl CudaDevice {
    /// Returns whether physical memory is created for direct access by other devices on the bus,
    /// such as network adapters.
    pub fn is_rdma_capable(&self) -> bool {
        self.virtual_part().is_some_and(|part| part.rdma.load(Ordering::Relaxed))
    }

    /// Creates physical memory, with direct access from the bus if `rdma`.
    fn create_physical(&self, bytes: u64, rdma: bool) -> DeviceResult<CuMemHandle> {
        let properties = CuMemAllocationProp::on_device(self.device.0, rdma);
        let mut handle = CuMemHandle::default();
        self.context.call(|driver| {
            // SAFETY: both variables outlive the call, which reads `properties` and writes one
            // handle to `handle`.
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
            // SAFETY: takes no host pointers; the allocator frees each range of `reserve` once.
            unsafe { driver.mem_address_free(base.0, bytes as usize) }
        })
    }

    /// Creates physical memory. If the driver refuses memory with direct access from the bus,
    /// creates memory without direct access, now and in all later calls.
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
            // SAFETY: takes no host pointers; the allocator releases each handle of `create` once.
            unsafe { driver.mem_release(CuMemHandle(handle.0)) }
        })
    }

    fn begin_mapping(&self) {
        if let Some(part) = self.virtual_part() {
            part.mappings.begin();
        }
    }

    fn end_mapping(&self) {
        if let Some(part) = self.virtual_part() {
            part.mappings.end();
        }
    }

    fn map(&self, at: DevicePtr, bytes: u64, handle: PhysicalHandle) -> DeviceResult<()> {
        self.context.call(|driver| {
            // SAFETY: takes no host pointers; the driver refuses a range or handle that does not
            // fit.
            unsafe { driver.mem_map(at.0, bytes as usize, 0, CuMemHandle(handle.0), 0) }
        })
    }

    fn set_access(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.grant(at, bytes)
    }

    fn unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.begin_mapping();
        let revoked = self.revoke(at, bytes);
        self.end_mapping();
        revoked
    }
}
