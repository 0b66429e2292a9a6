//! Functions that a program calls on the plug-in directly, not through `PyTorch`.

use super::{plugin, python};
use crate::abi::{cachalot_allocator, cachalot_status};
use crate::boundary;
use crate::handle;
use crate::marshal::{self, Out, Userdata};
use crate::status::{CACHALOT_ERROR_INVALID_CONFIG, CACHALOT_ERROR_PANIC};
use core::ffi::{c_char, c_int};
use core::ptr::null_mut;

/// Sets the configuration of the allocator: before its creation for the creation, afterwards with
/// immediate effect.
///
/// # Safety
/// `config` is NULL or NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_torch_configure(config: *const c_char) -> cachalot_status {
    boundary::infallible(CACHALOT_ERROR_PANIC, || {
        plugin::configure(|| {
            if config.is_null() {
                return Ok(None);
            }
            // SAFETY: guaranteed by the caller.
            unsafe { marshal::text(config, "config", CACHALOT_ERROR_INVALID_CONFIG) }.map(Some)
        })
    })
}

/// Returns the allocator, and creates it if necessary.
///
/// # Safety
/// `out` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_torch_allocator(out: *mut *mut cachalot_allocator) -> cachalot_status {
    plugin::with_allocator(|_| {
        // SAFETY: guaranteed by the caller.
        unsafe { Out::new(out, "out") }?.write(plugin::present());
        Ok(())
    })
}

/// Returns the allocator, or NULL if there is none yet.
///
/// # Safety
/// `out` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_torch_peek(out: *mut *mut cachalot_allocator) -> cachalot_status {
    boundary::without_instance(|| {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(out, "out") }?;
        if handle::in_child() {
            return Err(handle::forked());
        }
        out.write(plugin::present());
        Ok(())
    })
}

/// Starts or stops recording the Python frames of each traced event.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_torch_record_stacks(on: c_int) -> cachalot_status {
    plugin::with_allocator(|instance| {
        let callback = if on == 0 { None } else { Some(python::describer()?) };
        instance.stacks.set(callback, Userdata(null_mut()));
        Ok(())
    })
}
