//! Version of the library, status texts, and the last error.

use crate::c::abi::cachalot_status;
use crate::c::{boundary, last_error, status};
use core::ffi::c_char;

/// The version as a number, equal to the header's `CACHALOT_VERSION`.
const VERSION: u32 = number(env!("CARGO_PKG_VERSION_MAJOR")) * 1_000_000
    + number(env!("CARGO_PKG_VERSION_MINOR")) * 1_000
    + number(env!("CARGO_PKG_VERSION_PATCH"));

/// Parses a decimal number at compile time.
const fn number(text: &str) -> u32 {
    let (bytes, mut at, mut value) = (text.as_bytes(), 0, 0);
    while at < bytes.len() {
        value = value * 10 + (bytes[at] - b'0') as u32;
        at += 1;
    }
    value
}

/// Returns the version of the library as a number.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_version() -> u32 {
    boundary::infallible(VERSION, || VERSION)
}

/// Returns the version of the library as a text.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_version_string() -> *const c_char {
    const TEXT: *const c_char = concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast();
    boundary::infallible(TEXT, || TEXT)
}

/// Returns the name of a status.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_status_name(status: cachalot_status) -> *const c_char {
    boundary::infallible(c"".as_ptr(), || status::name_of(status))
}

/// Returns the meaning of a status.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_status_text(status: cachalot_status) -> *const c_char {
    boundary::infallible(c"".as_ptr(), || status::meaning_of(status))
}

/// Returns the message of the calling thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_last_error() -> *const c_char {
    boundary::infallible(c"".as_ptr(), last_error::text)
}

/// Returns the driver's code of the calling thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_last_driver_code() -> u32 {
    boundary::infallible(0, last_error::driver_code)
}
