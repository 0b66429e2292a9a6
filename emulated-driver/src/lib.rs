//! A `libcuda.so.1` for machines without a GPU.
//!
//! The shared library exports the driver API's symbols that the CUDA backend resolves, and behaves as the driver does:
//! streams are threads, device memory is real mappings that only work on a stream can touch, every code is strict.
//! Beyond that it does what no driver does on demand: it fails the n-th call of a function, holds a stream, reuses
//! addresses and handles at once, loses its device, and tells what leaked. See the README beside this crate.
//!
//! The Rust library of the same name serves tests: [`install`](mod@install) finds the built shared library and installs it, whole
//! or as an older driver; [`client`](mod@client) loads it and steers it.

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
mod space;
mod stream;
mod sync;
mod thread;
mod transfer;
mod virtual_memory;
mod work;
mod worker;
