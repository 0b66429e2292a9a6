//! Kernels that write, check and occupy device memory, for cachalot's tests, stress and examples.
//!
//! One text, `kernels/kernels.h`, is compiled by nvcc for devices and by the C++ compiler for the emulated driver of the
//! tests. Both compilers are optional when the crate is built; [`device_image`] and [`emulated_image`] say what there is.
//! C and C++ hosts use `include/cachalot_kernels.h` in place of this crate.

mod image;
mod launch;
mod pattern;

pub use image::{device_image, emulated_image};
pub use launch::{Findings, KernelError, Kernels, ROW_BYTES, Region};
pub use pattern::{Life, checksum};
