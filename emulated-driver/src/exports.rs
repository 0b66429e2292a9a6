//! The exported driver functions: each checks its pointers, makes its call and writes its results.
//!
//! The bodies are elsewhere; here is only the C interface. A function writes to its result pointers if and only if
//! it returns `CUDA_SUCCESS`.

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

use crate::code::{Answer, Code};

/// A pointer to a result.
struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Refuses null.
    fn check(&self) -> Answer<()> {
        if self.0.is_null() { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    /// Writes the result; a null pointer, where a function allows one, is passed over.
    fn write(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the caller of the exported function promised a valid pointer to write to.
            unsafe { self.0.write(value) };
        }
    }
}
