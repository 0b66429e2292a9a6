//! The virtual memory of a device: reserved addresses, physical memory, and mappings between the
//! two.

use crate::device::CudaDevice;
use crate::driver::result::CuResult;
use crate::driver::types::{CuMemAllocationProp, CuMemHandle, CuMemHandleType, CuMemLocation, CuMemLocationType};
use crate::host_memory;
use crate::virtual_support::{Uses, Virtual};
use cachalot_core::{Descriptor, DeviceError, DevicePtr, DeviceResult, ErrorKind, PhysicalHandle, VirtualMemory};
use core::ffi::c_int;

/// The part of the host's memory that is left to other programs, as a divisor.
const KEPT_FOR_HOST: u64 = 8;

impl CudaDevice {
    /// Returns whether physical memory is created in a form that other devices on the bus, such as
    /// network adapters, can access directly.
    pub fn is_rdma_capable(&self) -> bool {
        self.uses().include(Uses::RDMA)
    }

    /// Returns whether physical memory is created in a form that can be exported to other
    /// processes.
    pub fn can_export(&self) -> bool {
        self.uses().include(Uses::EXPORT)
    }

    /// Returns whether physical memory is created in a form that can be exported to processes on
    /// other nodes of the device's fabric.
    pub fn is_fabric_capable(&self) -> bool {
        self.uses().include(Uses::FABRIC)
    }

    /// Returns whether physical memory is created in a locality domain of the device.
    pub fn is_localized(&self) -> bool {
        self.virtual_part().is_some_and(|part| part.home.kind == CuMemLocationType::DEVICE_LOCALITY_DOMAIN)
    }

    /// Returns whether the device's decompression engine can read and write physical memory.
    pub fn serves_decompression(&self) -> bool {
        self.uses().include(Uses::DECOMPRESSION)
    }

    /// Returns the uses for which physical memory is created.
    fn uses(&self) -> Uses {
        self.virtual_part().map_or(Uses::default(), Virtual::uses)
    }

    /// Returns where physical memory is created.
    fn home(&self) -> CuMemLocation {
        self.virtual_part().map_or(CuMemLocation::device(self.device), |part| part.home)
    }

    /// Creates physical memory with the given properties.
    fn create_physical(&self, bytes: u64, properties: CuMemAllocationProp) -> DeviceResult<CuMemHandle> {
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

    /// Creates physical memory for all uses that the device reports. If the driver refuses some of
    /// them, creates memory without these, now and in all later calls.
    fn create(&self, bytes: u64) -> DeviceResult<PhysicalHandle> {
        let refused =
            [CuResult::NOT_SUPPORTED.error(), CuResult::NOT_PERMITTED.error(), CuResult::INVALID_VALUE.error()];
        let _claim = self.claim_of_host(bytes)?;
        let (wanted, home) = (self.uses(), self.home());
        let mut made = Err(CuResult::NOT_SUPPORTED.error());
        for uses in wanted.or_fewer() {
            made = self.create_physical(bytes, uses.at(home));
            if made.is_err_and(|error| refused.contains(&error)) {
                continue;
            }
            if made.is_ok()
                && uses != wanted
                && let Some(part) = self.virtual_part()
            {
                part.set_uses(uses);
            }
            break;
        }
        if made.is_ok() {
            self.keep_bytes_for_pages();
        }
        made.map(|handle| PhysicalHandle(handle.0))
    }

    /// Creates memory of the host, which the driver pins, unless the system or a control group of
    /// the process would have less than an eighth left.
    fn create_at_host(&self, bytes: u64) -> DeviceResult<PhysicalHandle> {
        let location = self.virtual_part().and_then(|part| part.host);
        let location = location.ok_or(DeviceError::new(ErrorKind::Unsupported, CuResult::NOT_SUPPORTED.0))?;
        let kept = host_memory::of_system().map_or(0, |(total, _)| total / KEPT_FOR_HOST);
        let too_little_left = DeviceError::new(ErrorKind::OutOfMemory, 0);
        let claim = host_memory::claim(bytes.saturating_add(kept)).ok_or(too_little_left)?;
        let made = self.create_physical(bytes, CuMemAllocationProp::at(location));
        drop(claim);
        if made.is_ok() {
            self.keep_bytes_for_pages();
        }
        made.map(|handle| PhysicalHandle(handle.0))
    }

    fn destroy(&self, handle: PhysicalHandle) -> DeviceResult<()> {
        self.context.call(|driver| {
            // SAFETY: takes no host pointers; the allocator releases each handle of `create` once.
            unsafe { driver.mem_release(CuMemHandle(handle.0)) }
        })
    }

    fn export(&self, handle: PhysicalHandle) -> DeviceResult<Descriptor> {
        let mut descriptor: c_int = -1;
        self.context.call(|driver| {
            if !self.can_export() {
                return CuResult::NOT_SUPPORTED;
            }
            let kind = CuMemHandleType::POSIX_FD;
            // SAFETY: `descriptor` outlives the call, which writes one descriptor of this kind to
            // it.
            unsafe { driver.mem_export((&raw mut descriptor).cast(), CuMemHandle(handle.0), kind, 0) }
        })?;
        Ok(Descriptor(descriptor))
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
