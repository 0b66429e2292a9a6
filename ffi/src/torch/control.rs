//! What the program asks of the plug-in beside `PyTorch`.

use super::{plugin, python};
use crate::abi::{cachalot_allocator, cachalot_status};
use crate::boundary;
use crate::handle;
use crate::marshal::{self, Out, Userdata};
use crate::status::{CACHALOT_ERROR_INVALID_CONFIG, CACHALOT_ERROR_PANIC};
use core::ffi::{c_char, c_int};
use core::ptr::null_mut;

/// Sets what the allocator is made with, or puts it in force.
///
/// # Safety
/// The text is NULL or ended by NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_torch_configure(config: *const c_char) -> cachalot_status {
    boundary::infallible(CACHALOT_ERROR_PANIC, || {
        plugin::configure(|| {
            if config.is_null() {
                return Ok(None);
            }
            // SAFETY: the caller's promise.
            unsafe { marshal::text(config, "config", CACHALOT_ERROR_INVALID_CONFIG) }.map(Some)
        })
    })
}

/// The allocator, made if there is none yet.
///
/// # Safety
/// `out` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_torch_allocator(out: *mut *mut cachalot_allocator) -> cachalot_status {
    plugin::with_allocator(|_| {
        // SAFETY: the caller's promise.
        unsafe { Out::new(out, "out") }?.write(plugin::present());
        Ok(())
    })
}

/// The allocator, if there is one.
///
/// # Safety
/// `out` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_torch_peek(out: *mut *mut cachalot_allocator) -> cachalot_status {
    boundary::alone(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(out, "out") }?;
        if handle::in_child() {
            return Err(handle::forked());
        }
        out.write(plugin::present());
        Ok(())
    })
}

/// Describes the stacks of recorded events by their Python frames, or no longer.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_torch_record_stacks(on: c_int) -> cachalot_status {
    plugin::with_allocator(|instance| {
        let callback = if on == 0 { None } else { Some(python::describer()?) };
        instance.stacks.set(callback, Userdata(null_mut()));
        Ok(())
    })
}
