//! A program on a host without an operating system: the core with tables of fixed capacity, over a device of its own.
//!
//! Built by itself (`cargo test -p cachalot-no-alloc`) it proves that the core needs no heap: neither this crate nor the core
//! without its `alloc` feature links the `alloc` crate.

#![no_std]
#![forbid(unsafe_code)]

mod device;
mod program;

pub use device::BumpDevice;
pub use program::run;
