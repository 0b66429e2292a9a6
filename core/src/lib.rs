//! The core of cachalot: every decision of a GPU memory allocator, over an abstract device.
//!
//! The crate is `no_std` and has no unsafe code. No CUDA type appears in it: the host implements
//! the device, which is a [`DeviceMemory`]. The module [`simulated`] has a device that needs no
//! GPU.
//!
//! ```
//! use cachalot_core::simulated::SimulatedDevice;
//! use cachalot_core::{Allocator, Config, DeviceIndex, Growable, StreamId};
//!
//! let device = SimulatedDevice::new(16 << 30);
//! let config = Config::parse("max_split_size_mb:128")?;
//! let allocator = Allocator::<_, spin::Mutex<()>, Growable>::new([device], &config)?;
//! let block = allocator.block(DeviceIndex(0), 1 << 20, StreamId::DEFAULT)?;
//! assert_eq!(allocator.stats(DeviceIndex(0))?.totals().allocated_bytes().current, 1 << 20);
//! drop(block); // frees the memory
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where to start
//! * [`Allocator`]: what programs call. [`Block`] and [`Buffer`] own device memory.
//! * [`config`]: the list of all settings, and the policies.
//! * [`Fixed`]: tables that need no heap, and how many bytes a given capacity takes.
//! * [`suballoc`]: how to write a policy that cuts segments by itself, and [`records`] for it.
//! * [`BasicDevice`]: how to implement a device in ten methods, and [`forward`]: how to wrap
//!   another device.
//!
//! # Features
//! | feature | effect |
//! |---|---|
//! | `alloc` (default) | tables that grow on the heap, the simulated device, snapshots, `would_fit`, plans, and policies of the host |
//! | `paranoid` | checks every invariant and the order of locks around each operation; needs std |
//!
//! The target needs 64-bit atomic operations.
//!
//! # Layers
//! A module uses only modules on lower lines.
//!
//! ```text
//! allocator             what programs call, for any number of devices
//! arena                 one device: every operation that takes more than one of the parts below
//! page_map · heap       which heap an address belongs to · one stream in one pool: placement, splitting, joining
//! planned · pages       requests served from plans · physical handles
//! streams               fences, and the frees that wait for them or for a count
//! snapshot · error      segments and blocks as values · why a call failed
//! device                the interface that the host implements
//! stats · trace         counters and peaks · recorded events
//! config · pool         settings, policies, rounding · names, options and routes of pools
//! suballoc              the contract of a policy that cuts segments by itself
//! tables                tables of growing or fixed capacity
//! sync · units · shares locks and atomics · addresses, streams, sizes · shares of limited memory
//! ```
//!
//! # Words
//! * A *block* is a range of device memory that the program uses, or that is cached for a later
//!   request.
//! * A *segment* is a range that was obtained from the device as a whole. It is divided into
//!   blocks.
//! * A *stream* is a queue of work on the device. The work runs in order, and so does the use of
//!   blocks on one stream.
//! * A *pool* is a set of blocks that is kept separate: the default pool, or a private pool, for
//!   example that of a graph.
//! * A *heap* manages the segments of one stream in one pool.

#![no_std]
#![forbid(unsafe_code)]
#![allow(
    clippy::inline_always,
    reason = "measured: the fast path is a chain of small functions, called from two places each"
)]
#![cfg_attr(
    not(feature = "alloc"),
    allow(dead_code, reason = "copies, plans and sub-allocators need a heap of the host")
)]

#[cfg(not(target_has_atomic = "64"))]
compile_error!(
    "cachalot-core needs atomic operations on 64 bits, which this target lacks: GPUs are driven by 64-bit hosts"
);

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(any(test, loom, feature = "paranoid"))]
extern crate std;
// The tests compile an example of the crate.
#[cfg(all(test, feature = "alloc", not(loom)))]
extern crate self as cachalot_core;

mod allocator;
mod arena;
pub mod config;
mod device;
mod error;
mod heap;
mod page_map;
mod pages;
#[cfg(feature = "alloc")]
mod planned;
mod pool;
pub mod shares;
#[cfg(feature = "alloc")]
mod snapshot;
mod stats;
mod streams;
pub mod suballoc;
mod sync;
mod tables;
mod trace;
mod units;

pub use allocator::{
    Allocator, Block, BlockAllocator, Buffer, DeviceSettings, FailedDrop, Forecasts, PageStats, Pages, Parking,
    Planning, Pools, Range, Ranges, Reading, RouteScope, Statistic, StatisticKind, Statistics, Tags, Tracing, Tuning,
};
#[cfg(feature = "alloc")]
pub use allocator::{Bound, Fit, Window};
pub use arena::allocation::Allocation;
pub use arena::paging::extents::{Extent, Physical};
pub use arena::paging::moves::Advice;
pub use arena::paging::parking::{ParkMode, ParkOrder, ParkReport, ParkState, ParkTarget, Remaining};
pub use arena::paging::ranges::Reservation;
pub use arena::request::Forecast;
pub use arena::tuning::{TuneReport, TuneStage};
/// The core's own tables, for the records of a policy that you write.
///
/// An entry is a number, and room is made in advance, so a table without room refuses before
/// anything changes.
pub mod records {
    pub use crate::tables::Table;
    pub use crate::tables::hash_index::{HashIndex, Indexed};
    pub use crate::tables::radix_tree::{Key, Link, RadixTree};
    pub use crate::tables::slot_table::{NONE, SlotTable, Vacant};
}

pub use config::Config;
pub use config::rounding::PoolKind;
pub use device::HostLack;
pub use device::oom::{AddressLack, OutOfMemory, PyTorchSize, TagReport, TagShares};
#[cfg(feature = "alloc")]
pub use device::simulated;
pub use device::{
    Bare, BasicDevice, Call, CaptureMark, Contents, CopyMark, Descriptor, DeviceError, DeviceMemory, DeviceResult,
    ErrorKind, Event, Explanation, Holder, Host, MemoryInfo, Offset, PhysicalHandle, Saved, Segments, StreamOrder,
    VirtualMemory, forward,
};
pub use error::{Error, PointerFault};
#[cfg(feature = "alloc")]
pub use planned::{Observed, ObservedStream, is_planned};
pub use pool::{PoolId, PoolOptions, Route, RoutePurpose, Tag, TagLimits, TagUse};
#[cfg(feature = "alloc")]
pub use snapshot::{BlockState, SnapshotBlock, SnapshotSegment};
pub use stats::{CallCount, Counter, MemoryCalls, PlannedReport, ReclaimStats, Stage, Stats};
pub use sync::Lock;
#[cfg(feature = "alloc")]
pub use tables::Growable;
pub use tables::{Fixed, Storage};
pub use trace::{Action, CallSite, EventTimes, TraceEntry, TraceExtent};
pub use units::{DeviceIndex, DevicePtr, GRAIN, MAX_REQUEST, MIB, RangeId, StreamId, UNIT};

/// The steps of a request for which no free block fits, for programs that explain what a request
/// does.
pub mod ladder {
    pub use crate::arena::ladder::{Step, steps};
}

/// Rounds sizes and chooses segment lengths as the allocator does, for programs that predict both.
pub mod rounding {
    pub use crate::arena::policy::segment_size;
    pub use crate::config::rounding::*;
}

#[cfg(all(test, feature = "alloc"))]
mod tests;
