//! Who is asked and told when memory runs short.

use crate::abi::{cachalot_allocator, cachalot_oom_callback, cachalot_shortage_callback, cachalot_status};
use crate::wall::{self, Userdata};
use core::ffi::c_void;

/// Sets who is asked to free memory.
///
/// # Safety
/// The callback may be called with `userdata`, from any thread, until another is set or the allocator destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_on_shortage(
    allocator: *const cachalot_allocator,
    callback: cachalot_shortage_callback,
    userdata: *mut c_void,
) -> cachalot_status {
    wall::with_host(allocator, |host| {
        host.callbacks.set_shortage(callback, Userdata(userdata));
        Ok(())
    })
}

/// Sets who is told of failures.
///
/// # Safety
/// As for [`cachalot_on_shortage`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_on_out_of_memory(
    allocator: *const cachalot_allocator,
    callback: cachalot_oom_callback,
    userdata: *mut c_void,
) -> cachalot_status {
    wall::with_host(allocator, |host| {
        host.callbacks.set_out_of_memory(callback, Userdata(userdata));
        Ok(())
    })
}
