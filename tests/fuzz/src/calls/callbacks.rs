//! Functions called by the library. The userdata counts the remaining calls before a function
//! stops.

use cachalot::c::abi::{cachalot_action, cachalot_oom_report, cachalot_stack, cachalot_trace_entry};
use cachalot::c::capi::cachalot_stack_push;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::slice;

/// Counts a call. Returns whether to stop.
///
/// # Safety
/// `userdata` points to a counter without another user during the call.
unsafe fn stops(userdata: *mut c_void) -> c_int {
    // SAFETY: guaranteed by the caller.
    let left = unsafe { &mut *userdata.cast::<u8>() };
    match left.checked_sub(1) {
        Some(fewer) => {
            *left = fewer;
            0
        }
        None => 1,
    }
}

/// # Safety
/// As for a call by the library.
pub(super) unsafe extern "C" fn write(userdata: *mut c_void, text: *const c_char, bytes: usize) -> c_int {
    // SAFETY: guaranteed by the library.
    let part = unsafe { slice::from_raw_parts(text.cast::<u8>(), bytes) };
    assert!(!part.is_empty() && part.len() <= 64 << 10);
    // SAFETY: the counter of the call that writes.
    unsafe { stops(userdata) }
}

/// # Safety
/// As for a call by the library.
pub(super) unsafe extern "C" fn see_statistic(userdata: *mut c_void, key: *const c_char, _: i64) -> c_int {
    // SAFETY: guaranteed by the library.
    let key = unsafe { CStr::from_ptr(key) };
    assert!(!key.is_empty());
    // SAFETY: the counter of the call that visits the statistics.
    unsafe { stops(userdata) }
}

/// # Safety
/// As for a call by the library.
pub(super) unsafe extern "C" fn see_event(userdata: *mut c_void, entry: *const cachalot_trace_entry) -> c_int {
    // SAFETY: guaranteed by the library.
    let entry = unsafe { &*entry };
    assert_eq!(entry.struct_size, size_of::<cachalot_trace_entry>());
    // SAFETY: the counter of the call that visits the events.
    unsafe { stops(userdata) }
}

/// # Safety
/// As for a call by the library.
pub(super) unsafe extern "C" fn free_nothing(_: *mut c_void, _: c_int, bytes: usize) -> c_int {
    // Sometimes claims to have freed memory, without a free.
    c_int::from(bytes.is_multiple_of(3))
}

/// # Safety
/// As for a call by the library.
pub(super) unsafe extern "C" fn read_report(_: *mut c_void, report: *const cachalot_oom_report) {
    // SAFETY: guaranteed by the library.
    let report = unsafe { &*report };
    // SAFETY: the report's text lasts as long as the report.
    let text = unsafe { CStr::from_ptr(report.text) };
    assert!(!text.is_empty());
}

/// # Safety
/// As for a call by the library.
pub(super) unsafe extern "C" fn describe(_: *mut c_void, stack: *mut cachalot_stack, action: cachalot_action) {
    for line in 0..action {
        // SAFETY: the stack is the library's, and both texts end in NUL.
        unsafe { cachalot_stack_push(stack, c"function".as_ptr(), c"file".as_ptr(), line) };
    }
}
