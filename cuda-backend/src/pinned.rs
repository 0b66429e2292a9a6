//! Pinned memory of the host: mapped and touched here, and registered with the driver.

use crate::device::CudaDevice;
use crate::driver::result::CuResult;
use crate::driver::types::CuMemHostRegisterFlags;
use crate::host_memory::{self, Failure};
use cachalot_core::DeviceResult;
use core::ffi::c_void;
use core::ptr::NonNull;

/// Memory of the host that the driver copies from and to without a stop between. Every GPU of the process may
/// use it. Given back by [`CudaDevice::unpin_host`], or never.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub(crate) base: NonNull<c_void>,
    pub(crate) bytes: u64,
}

// SAFETY: the memory belongs to the process, and this is its only owner.
unsafe impl Send for Pinned {}
// SAFETY: a shared reference tells only where the memory is.
unsafe impl Sync for Pinned {}

impl CudaDevice {
    /// Maps, touches and registers memory. Takes about 45 ms for each GiB, on 16 processors.
    ///
    /// # Errors
    /// [`OutOfMemory`](cachalot_core::ErrorKind::OutOfMemory) if the system has too little memory left,
    /// because a program that touches more is ended by the system; the driver's.
    pub(crate) fn pin_host(&self, bytes: u64, node: Option<u32>) -> DeviceResult<Pinned> {
        self.health()?;
        if host_memory::of_system().is_some_and(|(_, free)| bytes > free) {
            return Err(CuResult::OUT_OF_MEMORY.error());
        }
        let base = host_memory::map(bytes, node).map_err(|failure| match failure {
            Failure::OutOfMemory => CuResult::OUT_OF_MEMORY.error(),
            Failure::Refused => CuResult::OPERATING_SYSTEM.error(),
        })?;
        let flags = CuMemHostRegisterFlags(CuMemHostRegisterFlags::PORTABLE.0 | CuMemHostRegisterFlags::DEVICEMAP.0);
        let registered = self.with_context(|driver| {
            // SAFETY: the range is mapped, and stays mapped until it is unregistered.
            unsafe { driver.mem_host_register(base.as_ptr(), bytes as usize, flags) }
        });
        let pinned = Pinned { base, bytes };
        match registered {
            Ok(()) => Ok(pinned),
            Err(error) => {
                self.give_up(pinned);
                Err(error)
            }
        }
    }

    /// Unregisters and unmaps memory, which no copy uses any longer.
    ///
    /// # Errors
    /// The driver's, or the system's. The memory stays then, for ever unused.
    pub(crate) fn unpin_host(&self, pinned: Pinned) -> DeviceResult<()> {
        self.unregister(&pinned)?;
        if host_memory::unmap(pinned.base, pinned.bytes) { Ok(()) } else { Err(CuResult::OPERATING_SYSTEM.error()) }
    }

    /// Ends the registration of memory.
    fn unregister(&self, pinned: &Pinned) -> DeviceResult<()> {
        self.with_context(|driver| {
            // SAFETY: takes an address that the driver does not follow; the owner has waited for all work
            // that uses the memory.
            unsafe { driver.mem_host_unregister(pinned.base.as_ptr()) }
        })
    }

    /// Unmaps memory whose registration has failed. A call that reports an error of earlier work may have
    /// registered the memory nevertheless.
    fn give_up(&self, pinned: Pinned) {
        let never = CuResult::HOST_MEMORY_NOT_REGISTERED.error();
        let unregistered = self.unregister(&pinned);
        // In a lost context no work is left. In any other doubt the mapping stays, for ever unused: at the
        // same address, the driver would copy other memory's old pages.
        if unregistered.is_ok() || unregistered == Err(never) || self.health().is_err() {
            host_memory::unmap(pinned.base, pinned.bytes);
        }
    }
}
