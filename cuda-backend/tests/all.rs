//! Tests of the device over a driver, and of the bindings against NVIDIA's header.

mod driver;
mod header;
mod threads;
