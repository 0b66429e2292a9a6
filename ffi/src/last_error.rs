//! The calling thread's last error: a text of bounded length that needs no heap and has no destructor, so that it can
//! be written when the host's memory has run out and read until the thread is gone.

use core::cell::UnsafeCell;
use core::ffi::c_char;
use core::fmt::{self, Write};

/// Bytes of the text, NUL included. An out-of-memory report has some 1,500.
pub(crate) const CAPACITY: usize = 4096;

/// What a thread's latest failure left.
#[repr(C)] // the text comes first
struct LastError {
    /// The text; a NUL stands at `length`.
    text: [u8; CAPACITY],
    length: usize,
    /// The driver's own code; 0 iff it had no part in the failure.
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

/// Records a failure of the calling thread. What does not fit is left off; a NUL inside ends the text.
pub(crate) fn set(driver_code: u32, text: fmt::Arguments<'_>) {
    LAST.with(|last| {
        // SAFETY: of this thread alone, and nothing that formats an error comes back here: no other reference exists.
        let last = unsafe { &mut *last.get() };
        (last.length, last.text[0], last.driver_code) = (0, 0, driver_code);
        // An error means only that the text was cut.
        let _ = last.write_fmt(text);
    });
}

/// The text of the calling thread's last failure.
pub(crate) fn text() -> *const c_char {
    LAST.with(|last| last.get().cast::<c_char>().cast_const())
}

/// The driver's code in the calling thread's last failure.
pub(crate) fn driver_code() -> u32 {
    LAST.with(|last| {
        // SAFETY: of this thread alone, and no reference to it is held beyond `set`.
        unsafe { (*last.get()).driver_code }
    })
}
