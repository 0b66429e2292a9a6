//! The pointers of a caller: where results, texts and lists go.

use crate::code::{Answer, Code};
use std::ffi::{CStr, c_char};

/// Where a result goes.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    /// Writes a result, or refuses null.
    pub(crate) fn write(&self, value: T) -> Answer<()> {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: the caller of the exported function guarantees room for the type. Nothing is
        // said of alignment, as packed structures of foreign bindings exist.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Reads what the caller has put there, or refuses null.
    pub(crate) fn read(&self) -> Answer<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: the caller of the exported function guarantees an initialised value of the type.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Writes the place `index` of a list that is not null and has so many places.
    fn write_nth(&self, index: usize, value: T) {
        // SAFETY: the caller of the exported function guarantees the places of the list.
        unsafe { self.0.wrapping_add(index).write_unaligned(value) };
    }

    /// Returns the place `index` of a list.
    pub(crate) fn nth(&self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }

    /// Writes a list for which the caller has `room` places.
    ///
    /// # Errors
    /// `INSUFFICIENT_SIZE` if the list is longer, `INVALID_ARGUMENT` for null.
    pub(crate) fn write_list(&self, room: u32, values: &[T]) -> Answer<()> {
        if values.len() > room as usize {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        if self.0.is_null() && !values.is_empty() {
            return Err(Code::INVALID_ARGUMENT);
        }
        values.iter().enumerate().for_each(|(index, &value)| self.write_nth(index, value));
        Ok(())
    }

    /// Writes a list and its length. `count` has the number of places before, and the length of the
    /// list afterwards, also if the list does not fit.
    ///
    /// # Errors
    /// Those of [`Out::write_list`].
    pub(crate) fn write_counted(&self, count: &Out<u32>, values: &[T]) -> Answer<()> {
        let room = count.read()?;
        count.write(values.len() as u32)?;
        self.write_list(room, values)
    }
}

/// A text from the caller.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// Returns the text, or refuses null. What is not UTF-8 is no name of anything.
    pub(crate) fn read(&self) -> Answer<&str> {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: the caller of the exported function guarantees a text with a final NUL.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| Code::NOT_FOUND)
    }
}

/// Writes a text with a final NUL to a buffer of `bytes` bytes.
///
/// # Errors
/// `INSUFFICIENT_SIZE` if it does not fit, `INVALID_ARGUMENT` for null.
pub(crate) fn write_text(buffer: &Out<u8>, bytes: u32, text: &str) -> Answer<()> {
    let text: Vec<u8> = text.bytes().chain([0]).collect();
    buffer.write_list(bytes, &text)
}
