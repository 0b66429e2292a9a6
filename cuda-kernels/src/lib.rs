//! Kernels that write, check and occupy device memory, for cachalot's tests, stress runs and
//! examples.
//!
//! A single source, `kernels/kernels.h`, is compiled by nvcc for devices and by the C++ compiler
//! for the emulated driver of the tests. Both compilers are optional at build time;
//! [`device_image`] and [`emulated_image`] report the images built. C and C++ hosts use
//! `include/cachalot_kernels.h` in place of this crate.

mod image;
mod launch;
mod pattern;

pub use image::{device_image, emulated_image};
pub use launch::{Evidence, Findings, KernelError, Kernels, ROW_BYTES, Region};
pub use pattern::{Life, checksum};
