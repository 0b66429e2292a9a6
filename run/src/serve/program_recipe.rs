//! The recipe of physical memory: how the program's memory is created, and created again.

use cachalot_cuda::driver::types::{
    CuDevice, CuMemAccessDesc, CuMemAccessFlags, CuMemAllocationFlags, CuMemAllocationProp, CuMemAllocationType,
    CuMemHandleType, CuMemLocation, CuMemLocationType,
};

/// Memory for sparse arrays (`CU_MEM_CREATE_USAGE_TILE_POOL`), whose handles the driver reads from
/// structures of calls.
const TILE_POOL: u16 = 1;

/// The properties with which physical memory is created.
#[derive(Clone, Copy)]
pub(super) struct Recipe {
    pub(super) bytes: u64,
    kind: CuMemAllocationType,
    handle_types: CuMemHandleType,
    location: CuMemLocation,
    flags: CuMemAllocationFlags,
}

impl Recipe {
    /// Returns how to create memory of a device again. `None`: a park leaves such memory on the
    /// device.
    pub(super) fn of(bytes: u64, properties: &CuMemAllocationProp, flags: u64) -> Option<Self> {
        let is_known = properties.kind == CuMemAllocationType::PINNED
            && properties.location.kind == CuMemLocationType::DEVICE
            && properties.win32_handle_metadata.is_null()
            && properties.flags.usage & TILE_POOL == 0
            && flags == 0;
        is_known.then_some(Self {
            bytes,
            kind: properties.kind,
            handle_types: properties.requested_handle_types,
            location: properties.location,
            flags: properties.flags,
        })
    }

    /// Returns the properties for the driver.
    pub(super) fn properties(&self) -> CuMemAllocationProp {
        CuMemAllocationProp {
            kind: self.kind,
            requested_handle_types: self.handle_types,
            location: self.location,
            win32_handle_metadata: core::ptr::null_mut(),
            flags: self.flags,
        }
    }

    /// Returns the device of the memory.
    pub(super) fn device(&self) -> CuDevice {
        CuDevice(self.location.id)
    }

    /// Returns the access that the memory's own device needs for copies.
    pub(super) fn own_access(&self) -> CuMemAccessDesc {
        CuMemAccessDesc { location: self.location, flags: CuMemAccessFlags::READ_WRITE }
    }
}

#[cfg(test)]
mod tests {
    use super::Recipe;
    use cachalot_cuda::driver::types::{CuMemAllocationProp, CuMemLocationType};

    const PAGE: u64 = 2 << 20;

    #[test]
    fn memory_for_sparse_arrays_and_of_the_host_is_the_drivers() {
        let mut properties = CuMemAllocationProp::on_device(0, true, false);
        assert!(Recipe::of(PAGE, &properties, 0).is_some() && Recipe::of(PAGE, &properties, 1).is_none());
        properties.flags.usage = 1;
        assert!(Recipe::of(PAGE, &properties, 0).is_none());
        properties.flags.usage = 0;
        properties.location.kind = CuMemLocationType(2);
        assert!(Recipe::of(PAGE, &properties, 0).is_none());
    }
}
