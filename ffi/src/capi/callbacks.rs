//! Who is asked and told when memory runs short, and who describes stacks.

use crate::abi::{
    cachalot_allocator, cachalot_oom_callback, cachalot_shortage_callback, cachalot_stack, cachalot_stack_callback,
    cachalot_status,
};
use crate::boundary;
use crate::marshal::Userdata;
use crate::stacks::Described;
use core::ffi::{CStr, c_char, c_int, c_void};

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
    boundary::with_instance(allocator, |instance| {
        instance.callbacks.set_shortage(callback, Userdata(userdata));
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
    boundary::with_instance(allocator, |instance| {
        instance.callbacks.set_out_of_memory(callback, Userdata(userdata));
        Ok(())
    })
}

/// Sets who describes stacks.
///
/// # Safety
/// As for [`cachalot_on_shortage`].
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

/// Adds a frame.
///
/// # Safety
/// The stack is NULL, or the one that the callback which is running got; the texts are NULL or ended by NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_stack_push(
    stack: *mut cachalot_stack,
    function_name: *const c_char,
    file_name: *const c_char,
    line: c_int,
) {
    boundary::infallible((), || {
        // SAFETY: the caller's promise; the callback's own thread is in this call, so nobody else uses the stack.
        let Some(stack) = (unsafe { stack.cast::<Described>().as_mut() }) else { return };
        let texts = [function_name, file_name].map(|text| {
            // SAFETY: not NULL, and the caller's promise.
            if text.is_null() { &[][..] } else { unsafe { CStr::from_ptr(text) }.to_bytes() }
        });
        stack.push(texts[0], texts[1], line);
    });
}
