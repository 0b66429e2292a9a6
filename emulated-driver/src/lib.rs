//! A `libcuda.so.1` for machines without a GPU.
//!
//! The shared library exports the driver API's symbols that the CUDA backend resolves, and behaves
//! as a driver: streams are threads, device memory consists of real mappings that only work on a
//! stream can touch, and every code is strict. On demand the library also does what no driver does:
//! fails the n-th call of a function, holds a stream, reuses addresses and handles at once, loses a
//! device, and reports leaks. See the README beside the crate.
//!
//! The Rust library serves tests: [`install`](mod@install) finds and installs the built shared
//! library, complete or as an older driver. [`client`](mod@client) loads and controls the shared
//! library.

mod answers;
pub mod api;
mod call;
mod capture;
pub mod client;
mod code;
mod config;
mod context;
mod control;
mod device;
mod driver;
mod event;
mod exports;
mod faults;
mod functions;
mod handles;
mod host;
pub mod install;
mod latch;
mod log;
mod memory;
mod module;
mod pages;
mod pool;
mod random;
mod ranges;
mod report;
mod sharing;
mod space;
mod stream;
mod sync;
mod thread;
mod transfer;
mod virtual_memory;
mod work;
mod worker;
