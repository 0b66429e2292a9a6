//! A `libnvidia-ml.so.1` for machines without a GPU.
//!
//! The library tells of the emulated driver's devices: the same names, UUIDs, memory and versions,
//! by the same settings. A description in a JSON file changes what it tells, and makes functions
//! fail on demand. See the README next to the crate.
#![allow(non_snake_case, reason = "NVML's own names")]

mod calls;
mod code;
mod description;
mod entry;
mod handle;
mod machine;
mod pointers;
mod state;
mod structs;
mod values;
