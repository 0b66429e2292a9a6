//! The calling thread's last error: a text of bounded length in thread-local storage.
//!
//! The text needs no heap and no destructor. So an error can be recorded when host memory is
//! exhausted, and read until the thread has ended.

use core::cell::UnsafeCell;
use core::ffi::c_char;
use core::fmt::{self, Write};

/// Size of the text in bytes, including the NUL. An out-of-memory report takes some 1,500.
pub(crate) const CAPACITY: usize = 4096;

/// The last failure of a thread.
#[repr(C)] // the text comes first
struct LastError {
    /// The text, terminated by a NUL at `length`.
    text: [u8; CAPACITY],
    length: usize,
    /// The driver's error code, which is 0 iff the driver had no part in the failure.
    driver_code: u32,
}

thread_local! {
    static LAST: UnsafeCell<LastError> =
        const { UnsafeCell::new(LastError { text: [0; CAPACITY], length: 0, driver_code: 0 }) };
}

impl Write for LastError {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = CAPACITY - 1 - self.length;
        let mut end = text.len().min(room);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let fits = &text[..end];
        self.text[self.length..self.length + fits.len()].copy_from_slice(fits.as_bytes());
        self.length += fits.len();
        self.text[self.length] = 0;
        if fits.len() == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

/// Records a failure of the calling thread. Cuts a text that is too long; a NUL inside ends the
/// text.
pub(crate) fn set(driver_code: u32, text: fmt::Arguments<'_>) {
    LAST.with(|last| {
        // SAFETY: thread-local, and no formatting of an error calls `set`: no other reference
        // exists.
        let last = unsafe { &mut *last.get() };
        (last.length, last.text[0], last.driver_code) = (0, 0, driver_code);
        // An error only means that the text was cut.
        let _ = last.write_fmt(text);
    });
}

/// Returns the text of the calling thread's last failure.
pub(crate) fn text() -> *const c_char {
    LAST.with(|last| last.get().cast::<c_char>().cast_const())
}

/// Returns the driver's code of the calling thread's last failure.
pub(crate) fn driver_code() -> u32 {
    LAST.with(|last| {
        // SAFETY: thread-local, and no reference outlives `set`.
        unsafe { (*last.get()).driver_code }
    })
}
