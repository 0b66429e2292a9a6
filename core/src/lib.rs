//! The core of cachalot: every decision of a GPU memory allocator, over an abstract device.
//!
//! ```text
//! allocator   what programs call                 ─┐
//! arena       one device: the fast path           │  reclaim · obtain · release · expand · events · routing
//! heap        one (stream, pool): placement       │  free_index · sorted_list · trie · chains · block
//! device      what the host provides             ─┘  memory, order, virtual memory
//! ```
//!
//! `no_std`, no unsafe code, no heap without the `alloc` feature; names nothing of CUDA.

#![no_std]
#![forbid(unsafe_code)]
#![allow(
    clippy::inline_always,
    reason = "measured: the fast path is a chain of small functions, called from two places each"
)]

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(any(test, loom, feature = "paranoid"))]
extern crate std;

mod allocator;
mod arena;
pub mod config;
mod device;
mod error;
mod heap;
mod page_map;
#[cfg(feature = "alloc")]
mod planned;
mod pool;
#[cfg(feature = "alloc")]
mod snapshot;
mod stats;
mod streams;
mod sync;
mod tables;
mod trace;
mod units;

pub use allocator::Allocator;
pub use arena::allocation::Allocation;
pub use arena::forecast::Forecast;
pub use config::Config;
pub use config::rounding::PoolKind;
pub use device::oom::OutOfMemory;
#[cfg(feature = "alloc")]
pub use device::simulated;
pub use device::{
    DeviceError, DeviceMemory, DeviceResult, ErrorKind, Event, MemoryInfo, PhysicalHandle, VirtualMemory,
};
pub use error::Error;
#[cfg(feature = "alloc")]
pub use planned::{Observed, ObservedStream, PlannedReport, Stage, is_planned};
pub use pool::{PoolId, PoolOptions, Route};
#[cfg(feature = "alloc")]
pub use snapshot::memory_map;
#[cfg(feature = "alloc")]
pub use snapshot::{BlockState, SnapshotBlock, SnapshotSegment};
pub use stats::{Counter, Stats};
pub use sync::Lock;
#[cfg(feature = "alloc")]
pub use tables::Growable;
pub use tables::{Fixed, Storage};
pub use trace::{Action, CallSite, TraceEntry};
pub use units::{DeviceIndex, DevicePtr, GRAIN, MAX_REQUEST, MIB, StreamId, UNIT};

/// The rules by which sizes are rounded and segments are measured, for programs that reckon with them.
pub mod rounding {
    pub use crate::arena::policy::segment_size;
    pub use crate::config::rounding::*;
}

#[cfg(all(test, feature = "alloc"))]
mod tests;
