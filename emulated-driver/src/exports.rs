//! The exported driver functions. Each function checks the pointers, makes the call and writes the
//! results.
//!
//! Only the C interface is here, without the bodies. A function writes to the result pointers if
//! and only if the function returns `CUDA_SUCCESS`.

#![allow(non_snake_case, reason = "the driver's own names")]
#![allow(clippy::too_many_arguments, reason = "the driver's own signatures")]

mod contexts;
mod devices;
mod graphs;
mod memory;
mod pools;
mod start;
mod streams;
mod virtual_memory;

use crate::values::code::{Answer, Code};

/// A pointer to a result.
struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Refuses null.
    fn check(&self) -> Answer<()> {
        if self.0.is_null() { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    /// Writes the result. Skips a null pointer, where a function allows null.
    fn write(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the caller of the exported function promised a valid pointer to write to.
            unsafe { self.0.write(value) };
        }
    }
}
