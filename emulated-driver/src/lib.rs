//! A `libcuda.so.1` for machines without a GPU.
//!
//! The shared library exports the driver API's symbols that the CUDA backend resolves, and behaves
//! as a driver: streams are threads, device memory consists of real mappings that only work on a
//! stream can touch, and every code is strict. On demand the library also does what no driver does:
//! fails the n-th call of a function, holds a stream, reuses addresses and handles at once, loses a
//! device, and reports leaks. See the README next to the crate.
//!
//! The Rust library serves tests: [`install`](mod@install) finds and installs the built shared
//! library, complete or as an older driver. [`client`](mod@client) loads and controls the shared
//! library.

pub mod api;
mod backing;
mod call;
mod calls;
pub mod client;
mod control;
mod exit;
mod exports;
pub mod install;
mod process;
mod state;
mod tables;
mod values;
