//! Pinned memory of the host: registration with the driver.

use crate::context::Context;
use crate::driver::types::CuMemHostRegisterFlags;
use cachalot_core::DeviceResult;
use core::ffi::c_void;
use core::ptr::NonNull;

/// Registers mapped memory with the driver, for copies without a stop between. Every GPU of the process may use
/// it.
///
/// # Errors
/// The driver's.
pub(crate) fn register(context: &Context, base: NonNull<c_void>, bytes: u64) -> DeviceResult<()> {
    let flags = CuMemHostRegisterFlags(CuMemHostRegisterFlags::PORTABLE.0 | CuMemHostRegisterFlags::DEVICEMAP.0);
    context.call(|driver| {
        // SAFETY: the range is mapped, and stays mapped until it is unregistered.
        unsafe { driver.mem_host_register(base.as_ptr(), bytes as usize, flags) }
    })
}

/// Ends the registration of memory that begins at `base`. No copy uses it any longer.
///
/// # Errors
/// The driver's.
pub(crate) fn unregister(context: &Context, base: NonNull<c_void>) -> DeviceResult<()> {
    context.call(|driver| {
        // SAFETY: takes an address that the driver does not follow; the owner has waited for all work that
        // uses the memory.
        unsafe { driver.mem_host_unregister(base.as_ptr()) }
    })
}
