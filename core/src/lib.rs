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
#[cfg(any(test, loom))]
extern crate std;

mod allocator;
mod arena;
mod block;
#[cfg_attr(not(feature = "alloc"), allow(dead_code, reason = "no heap has a carver then"))]
mod carve;
pub mod config;
mod device;
mod directory;
mod error;
mod events;
mod expand;
mod free_index;
mod frontier;
mod heap;
mod heaps;
#[cfg(feature = "alloc")]
pub mod memory_map;
mod obtain;
mod order;
mod pair_state;
mod placement;
#[cfg(feature = "alloc")]
mod planned;
mod pool;
mod reclaim;
mod release;
mod report;
pub mod rounding;
mod routing;
mod rules;
#[cfg(feature = "alloc")]
pub mod simulated;
mod sites;
#[cfg(feature = "alloc")]
mod snapshot;
mod stats;
mod sync;
mod tables;
mod trace;
mod units;

pub use allocator::{Allocation, Allocator};
pub use config::Config;
pub use device::{
    DeviceError, DeviceMemory, DeviceResult, ErrorKind, Event, MemoryInfo, PhysicalHandle, VirtualMemory,
};
pub use error::Error;
#[cfg(feature = "alloc")]
pub use planned::{Observed, ObservedStream, PlannedReport, Stage, is_planned};
pub use pool::{PoolId, PoolOptions, Route};
pub use reclaim::Forecast;
pub use report::OutOfMemory;
pub use rounding::PoolKind;
#[cfg(feature = "alloc")]
pub use snapshot::{BlockState, SnapshotBlock, SnapshotSegment};
pub use stats::{Counter, Stats};
pub use sync::Lock;
#[cfg(feature = "alloc")]
pub use tables::Growable;
pub use tables::{Fixed, Storage};
pub use trace::{Action, CallSite, TraceEntry};
pub use units::{DeviceIndex, DevicePtr, GRAIN, MAX_REQUEST, MIB, StreamId, UNIT};

#[cfg(all(test, feature = "alloc", loom))]
mod loom_tests;
#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests;
