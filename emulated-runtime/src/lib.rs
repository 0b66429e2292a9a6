//! A `libcudart.so.13` for machines without a GPU.
//!
//! The shared library exports the functions of the CUDA runtime that most programs use: devices,
//! memory, streams, events, graphs by capture, launches. Each is a few calls of a `libcuda.so.1`,
//! the emulated driver, so what a program does through the runtime and what cachalot does through
//! the driver meet in the same contexts, streams and memory. Kernels are `__global__` functions
//! that were compiled for the host, see `include/cachalot_host_kernels.h`. See the README beside
//! this crate.
//!
//! The Rust library of the same name serves tests: [`install`](mod@install) finds the built shared
//! library and installs it.

mod device;
mod driver;
mod error;
mod event;
mod graph;
pub mod install;
mod launch;
mod memory;
mod pool;
mod stream;
