//! Tests of the emulated driver.

#![allow(clippy::borrow_as_ptr, reason = "results are passed as in C")]

mod arrays;
mod c_host;
mod capture;
mod common;
mod contexts;
mod faults;
mod host;
mod ipc;
mod kernels;
mod libraries;
mod lookup;
mod managed;
mod memory;
mod orders;
mod pointers;
mod pools;
mod probe;
mod process;
mod sharing;
mod streams;
mod transfers;
mod values;
mod virtual_memory;
