//! The core of cachalot: every decision of a GPU memory allocator, over an abstract device.
//!
//! The crate is `no_std` and has no unsafe code. Without the feature `alloc` the tables have a
//! fixed capacity and nothing is allocated on the host. No CUDA type appears: the host implements
//! [`DeviceMemory`] for a device. The module `simulated` is a device without a GPU.
//!
//! # Layers
//! A module uses only modules further down in the list.
//!
//! ```text
//! allocator             the public interface, for any number of devices
//! arena                 one device: malloc, free, reclaim, release, pools, plans, statistics
//! page_map              address → heap or lane, without a lock
//! heap                  one stream in one pool: placement, splitting, joining, sub-allocators
//! streams · snapshot    frees waiting for events or a count · segments and blocks as values
//! error                 why a call failed
//! planned · device      recorded iterations and plans · the interface that the host implements
//! trace · stats         recorded events · counters and peaks
//! config · pool         settings, policies, rounding · names, options and routes of pools
//! tables · sync · units tables of growing or fixed capacity · atomics · addresses, streams, sizes
//! ```
//!
//! # Words
//! * A *block* is a range of device memory handed out to the program, or cached for a later
//!   request.
//! * A *segment* is a range obtained from the device as a whole, and divided into blocks.
//! * A *stream* is a queue of work on the device. Blocks are used in the order of a stream.
//! * A *pool* is a set of blocks kept apart: the default pool, or a private pool of a graph.
//! * A *heap* manages the segments of a stream in a pool.

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
pub use error::{Error, PointerFault};
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

/// Rounds sizes and chooses segment lengths as the allocator does, for programs which predict both.
pub mod rounding {
    pub use crate::arena::policy::segment_size;
    pub use crate::config::rounding::*;
}

#[cfg(all(test, feature = "alloc"))]
mod tests;
