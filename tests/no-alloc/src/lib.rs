//! A program on a host without an operating system: the core with tables of fixed capacity, over
//! the program's own device.
//!
//! A build of the crate alone (`cargo test -p cachalot-no-alloc`) proves that the core needs no
//! heap. Neither the crate nor the core without the feature `alloc` links the `alloc` crate.

#![no_std]
#![forbid(unsafe_code)]

mod device;
mod program;

pub use device::BumpDevice;
pub use program::run;
