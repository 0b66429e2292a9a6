//! Registration of callbacks: memory shortage, out-of-memory reports, mappings, call stacks.

use crate::c::abi::{
    cachalot_allocator, cachalot_mapping_callback, cachalot_oom_callback, cachalot_shortage_callback, cachalot_stack,
    cachalot_stack_callback, cachalot_status,
};
use crate::c::boundary;
use crate::c::marshal::Userdata;
use crate::c::stacks::Described;
use core::ffi::{CStr, c_char, c_int, c_void};

/// Sets the callback that frees memory of the program when a request cannot be served.
///
/// # Safety
/// The callback may be called with `userdata`, from any thread, until another is set or the
/// allocator is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_on_shortage(
    allocator: *const cachalot_allocator,
    callback: cachalot_shortage_callback,
    userdata: *mut c_void,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        instance.callbacks.set_shortage(callback, Userdata(userdata));
        Ok(())
    })
}

/// Sets the callback that receives out-of-memory reports.
///
/// # Safety
/// The callback may be called with `userdata`, from any thread, until another is set or the
/// allocator is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_on_out_of_memory(
    allocator: *const cachalot_allocator,
    callback: cachalot_oom_callback,
    userdata: *mut c_void,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        instance.callbacks.set_out_of_memory(callback, Userdata(userdata));
        Ok(())
    })
}

/// Sets the callback that learns of every page of virtual memory that is mapped.
///
/// # Safety
/// The callback may be called with `userdata`, from any thread, until another is set or the
/// allocator is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_on_map(
    allocator: *const cachalot_allocator,
    callback: cachalot_mapping_callback,
    userdata: *mut c_void,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        instance.callbacks.set_map(callback, Userdata(userdata));
        Ok(())
    })
}

/// Sets the callback that learns of every page of virtual memory that is about to be unmapped.
///
/// # Safety
/// The callback may be called with `userdata`, from any thread, until another is set or the
/// allocator is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_on_unmap(
    allocator: *const cachalot_allocator,
    callback: cachalot_mapping_callback,
    userdata: *mut c_void,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        instance.callbacks.set_unmap(callback, Userdata(userdata));
        Ok(())
    })
}

/// Sets the callback that describes call stacks.
///
/// # Safety
/// The callback may be called with `userdata`, from any thread, until another is set or the
/// allocator is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_on_stack(
    allocator: *const cachalot_allocator,
    callback: cachalot_stack_callback,
    userdata: *mut c_void,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        instance.stacks.set(callback, Userdata(userdata));
        Ok(())
    })
}

/// Appends a frame to a stack. Callable only from a stack callback.
///
/// # Safety
/// `stack` is NULL, or the argument of the running callback, and the texts are NULL or
/// NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_stack_push(
    stack: *mut cachalot_stack,
    function_name: *const c_char,
    file_name: *const c_char,
    line: c_int,
) {
    boundary::infallible((), || {
        // SAFETY: guaranteed by the caller. The callback's own thread is in this call, so no other
        // reference to the stack is in use.
        let Some(stack) = (unsafe { stack.cast::<Described>().as_mut() }) else { return };
        let texts = [function_name, file_name].map(|text| {
            // SAFETY: not NULL; the rest is guaranteed by the caller.
            if text.is_null() { &[][..] } else { unsafe { CStr::from_ptr(text) }.to_bytes() }
        });
        stack.push(texts[0], texts[1], line);
    });
}
