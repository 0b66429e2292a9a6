//! Pinned memory of the host: registration with the driver.

use crate::device::CudaDevice;
use crate::driver::types::CuMemHostRegisterFlags;
use crate::host_memory;
use cachalot_core::DeviceResult;
use core::ffi::{CStr, c_void};
use core::ptr::NonNull;

impl CudaDevice {
    /// Registers mapped memory with the driver, for copies without a stop between. Every GPU of the process
    /// may use it.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn register_host(&self, base: NonNull<c_void>, bytes: u64) -> DeviceResult<()> {
        let flags = CuMemHostRegisterFlags(CuMemHostRegisterFlags::PORTABLE.0 | CuMemHostRegisterFlags::DEVICEMAP.0);
        self.with_context(|driver| {
            // SAFETY: the range is mapped, and stays mapped until it is unregistered.
            unsafe { driver.mem_host_register(base.as_ptr(), bytes as usize, flags) }
        })
    }

    /// Ends the registration of memory that begins at `base`. No copy uses it any longer.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn unregister_host(&self, base: NonNull<c_void>) -> DeviceResult<()> {
        self.with_context(|driver| {
            // SAFETY: takes an address that the driver does not follow; the owner has waited for all work
            // that uses the memory.
            unsafe { driver.mem_host_unregister(base.as_ptr()) }
        })
    }

    /// Returns the NUMA node of the GPU, if the system has several nodes.
    pub(crate) fn numa_node_of_gpu(&self) -> Option<u32> {
        let _scope = self.context.enter().ok()?;
        let bus_id = self.bus_id()?.map(|letter| letter as u8);
        host_memory::node_of(CStr::from_bytes_until_nul(&bus_id).ok()?.to_str().ok()?)
    }
}
