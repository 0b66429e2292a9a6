//! Texts of the library.

use crate::common::subject::last_error;
use cachalot::c::capi::{
    cachalot_free, cachalot_last_driver_code, cachalot_status_name, cachalot_status_text, cachalot_version_string,
};
use cachalot::c::status::{CACHALOT_ERROR_BUSY, CACHALOT_ERROR_NULL, CACHALOT_OK};
use std::ffi::{CStr, c_char};
use std::ptr::{null, null_mut};

#[test]
fn texts_of_the_library_are_what_the_header_says() {
    // SAFETY: the library's texts last forever.
    let text = |pointer: *const c_char| unsafe { CStr::from_ptr(pointer) }.to_str().expect("ASCII");
    assert_eq!(text(cachalot_status_name(CACHALOT_ERROR_BUSY)), "CACHALOT_ERROR_BUSY");
    assert_eq!(text(cachalot_status_name(1)), "CACHALOT_ERROR_UNKNOWN");
    assert_eq!(text(cachalot_status_name(i32::MIN)), "CACHALOT_ERROR_UNKNOWN");
    assert_eq!(text(cachalot_status_text(CACHALOT_OK)), "success");
    assert!(!text(cachalot_status_text(-1)).is_empty());
    assert_eq!(text(cachalot_version_string()), env!("CARGO_PKG_VERSION"));
    // Of a thread in which nothing has failed.
    let fresh = std::thread::spawn(move || (last_error(), cachalot_last_driver_code()));
    assert_eq!(fresh.join().expect("it returns"), (String::new(), 0));
    assert_eq!(cachalot_free(null(), null_mut()), CACHALOT_ERROR_NULL);
    assert_eq!(last_error(), "the allocator is NULL");
}
