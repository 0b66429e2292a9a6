//! The callbacks of the program.

use crate::finding;
use crate::permitted::Situation;
use crate::world::World;
use cachalot::c::abi::{cachalot_oom_report, cachalot_stack};
use std::ffi::{CStr, c_int, c_void};

/// Returns the world of a callback.
///
/// # Safety
/// `userdata` comes from [`set`].
unsafe fn world(userdata: *mut c_void) -> &'static World {
    // SAFETY: guaranteed by the caller; the world lasts as long as the process.
    unsafe { &*userdata.cast::<World>() }
}

/// `cachalot_on_map`.
unsafe extern "C" fn on_map(userdata: *mut c_void, _: c_int, address: *mut c_void, bytes: usize) {
    // SAFETY: the user data of `set`.
    unsafe { world(userdata) }.mapped(address.addr() as u64, bytes as u64);
}

/// `cachalot_on_unmap`.
unsafe extern "C" fn on_unmap(userdata: *mut c_void, _: c_int, address: *mut c_void, bytes: usize) {
    // SAFETY: the user data of `set`.
    unsafe { world(userdata) }.unmapped(address.addr() as u64, bytes as u64);
}

/// `cachalot_on_shortage`: has nothing to free.
unsafe extern "C" fn on_shortage(_: *mut c_void, _: c_int, _: usize) -> c_int {
    0
}

/// `cachalot_on_out_of_memory`: reads the report.
unsafe extern "C" fn on_out_of_memory(_: *mut c_void, report: *const cachalot_oom_report) {
    // SAFETY: the report is valid during the call.
    let report = unsafe { &*report };
    // SAFETY: the text is part of the report.
    let text = unsafe { CStr::from_ptr(report.text) };
    if text.is_empty() || report.requested_bytes == 0 {
        finding::report("report", &format!("{report:?}"));
    }
}

/// `cachalot_on_stack`: two frames.
unsafe extern "C" fn on_stack(_: *mut c_void, stack: *mut cachalot_stack, action: i32) {
    for line in 1..3 {
        // SAFETY: the stack of this callback.
        unsafe { crate::abi::stack_push(stack, c"fuzz", line + action) };
    }
}

/// Sets all callbacks.
pub(crate) fn set(world: &'static World) {
    let userdata: *mut c_void = std::ptr::from_ref(world).cast_mut().cast();
    let allocator = world.allocator;
    allocator.on_map(Some(on_map), userdata).judge(Situation::NONE);
    allocator.on_unmap(Some(on_unmap), userdata).judge(Situation::NONE);
    allocator.on_shortage(Some(on_shortage), userdata).judge(Situation::NONE);
    allocator.on_out_of_memory(Some(on_out_of_memory), userdata).judge(Situation::NONE);
    if world.case.seed.is_multiple_of(4) {
        allocator.on_stack(Some(on_stack), userdata).judge(Situation::NONE);
    }
}
