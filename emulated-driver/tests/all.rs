//! Tests of the emulated driver.

mod c_host;
mod capture;
mod common;
mod contexts;
mod faults;
mod host;
mod kernels;
mod memory;
mod pools;
mod probe;
mod process;
mod sharing;
mod streams;
mod virtual_memory;
