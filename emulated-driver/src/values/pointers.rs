//! Pointers of a C caller: results to write, values and lists to read, texts.
//!
//! The caller of an exported function promises, as for the real function, that each pointer is null
//! or valid. The types here rest on that promise, so no driver call has unsafe code for the
//! arguments.

use super::code::{Answer, Code};
use std::ffi::{CStr, c_char};

/// A pointer to a result, or to a value that the call replaces.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// Takes a pointer out of a list of the caller.
    pub(crate) fn from_caller(pointer: *mut T) -> Self {
        Self(pointer)
    }

    /// Returns whether the caller wants no result.
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Returns the address, for the log.
    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }

    /// Refuses null.
    pub(crate) fn check(self) -> Answer<()> {
        if self.is_null() { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    /// Writes the result. Skips a null pointer, where a function allows null.
    pub(crate) fn write(self, value: T) {
        if !self.is_null() {
            // SAFETY: not null, the rest is the promise of the caller.
            unsafe { self.0.write(value) };
        }
    }

    /// Returns the pointer to the element with a number, of a list of results.
    pub(crate) fn nth(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }

    /// Returns the same pointer to a result of another type.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl<T: Copy> Out<T> {
    /// Reads the value that the call replaces. Refuses null.
    pub(crate) fn read(self) -> Answer<T> {
        self.check()?;
        // SAFETY: not null, the rest is the promise of the caller.
        Ok(unsafe { self.0.read() })
    }
}

/// A pointer to a value or a list of values.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T> In<T> {
    /// Takes a pointer of the caller.
    pub(crate) fn from_caller(pointer: *const T) -> Self {
        Self(pointer)
    }

    /// Returns whether the caller passes nothing.
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Returns the pointer to the element with a number, of a list. Null stays null.
    pub(crate) fn nth(self, index: usize) -> Self {
        if self.is_null() { self } else { Self(self.0.wrapping_add(index)) }
    }
}

impl<T: Copy> In<T> {
    /// Reads the value. Refuses null.
    pub(crate) fn read(self) -> Answer<T> {
        if self.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, the rest is the promise of the caller. A value may have any alignment.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Reads a list of values. Refuses null.
    pub(crate) fn list(self, count: usize) -> Answer<Vec<T>> {
        if self.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        (0..count).map(|index| self.nth(index).read()).collect()
    }
}

impl In<c_char> {
    /// Returns the text. Refuses null.
    pub(crate) fn text<'a>(self) -> Answer<&'a CStr> {
        if self.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, the rest is the promise of the caller: a C string that lives longer
        // than the call.
        Ok(unsafe { CStr::from_ptr(self.0) })
    }
}
