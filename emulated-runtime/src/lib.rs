//! A `libcudart.so.13` for machines without a GPU.
//!
//! The shared library exports the functions of the CUDA runtime used by most programs: devices,
//! memory, streams, events, graphs by capture, launches. Each function makes a few calls of the
//! emulated driver's `libcuda.so.1`, so a program that uses the runtime shares contexts, streams
//! and memory with cachalot, which uses the driver. Kernels are `__global__` functions compiled for
//! the host, see `include/cachalot_host_kernels.h`. See the README next to the crate.
//!
//! `cachalot-emulated-driver` finds and installs the built shared library.

mod code;
mod device;
mod driver;
mod error;
mod event;
mod graph;
mod launch;
mod memory;
mod pool;
mod properties;
mod rows;
mod stream;
mod unsupported;
