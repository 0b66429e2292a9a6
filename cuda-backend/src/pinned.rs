//! Registers memory of the host with the driver, which pins it.

use crate::context::Context;
use crate::driver::result::CuResult;
use crate::driver::types::CuMemHostRegisterFlags;
use cachalot_core::{DeviceError, DeviceResult};
use core::ffi::c_void;
use core::ptr::NonNull;

/// The failure of a registration.
#[derive(Debug)]
pub(crate) struct Refused {
    /// The driver's error.
    pub(crate) error: DeviceError,
    /// Whether the memory may be registered in spite of the error. If so, it must remain mapped and
    /// unused forever, because for new memory at the address the driver would copy the old pages.
    pub(crate) is_in_doubt: bool,
}

/// Registers mapped memory with the driver, so that copies need no intermediate buffer. Every GPU
/// of the process may use the memory.
///
/// # Errors
/// [`Refused`]. If the call reports an error of earlier work, the memory may be registered. In this
/// case this function ends the registration.
pub(crate) fn register(context: &Context, base: NonNull<c_void>, bytes: u64) -> Result<(), Refused> {
    let flags = CuMemHostRegisterFlags(CuMemHostRegisterFlags::PORTABLE.0 | CuMemHostRegisterFlags::DEVICEMAP.0);
    let registered = context.call(|driver| {
        // SAFETY: the range is mapped, and stays mapped until it is unregistered.
        unsafe { driver.mem_host_register(base.as_ptr(), bytes as usize, flags) }
    });
    registered.map_err(|error| {
        let ended = unregister(context, base);
        let never = ended == Err(CuResult::HOST_MEMORY_NOT_REGISTERED.error());
        // In a lost context there is no work and no registration left.
        let is_in_doubt = ended.is_err() && !never && context.health().is_ok();
        Refused { error, is_in_doubt }
    })
}

/// Ends the registration of the memory at `base`. All copies have ended.
///
/// # Errors
/// The driver's error.
pub(crate) fn unregister(context: &Context, base: NonNull<c_void>) -> DeviceResult<()> {
    context.call(|driver| {
        // SAFETY: takes an address that the driver does not follow; the owner has waited for all
        // work that uses the memory.
        unsafe { driver.mem_host_unregister(base.as_ptr()) }
    })
}
