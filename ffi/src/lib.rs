//! A GPU memory allocator: for Rust programs, and as the C library `libcachalot`.
//!
//! # Rust
//! [`open_cuda`] opens an allocator over GPUs, and [`open_simulated`] over a device that needs no
//! GPU. A [`Block`] or a [`Buffer`] owns device memory, and frees it when dropped:
//!
//! ```
//! use cachalot::prelude::*;
//!
//! let allocator = cachalot::open_simulated(16 << 30, &Config::parse("expandable_segments:True")?)?;
//! let block = allocator.block(DeviceIndex(0), 1 << 20, StreamId::DEFAULT)?;
//! let buffer = allocator.buffer::<f32>(DeviceIndex(0), 1000, StreamId::DEFAULT)?;
//! assert_eq!(allocator.stats(DeviceIndex(0))?.totals().allocations().current, 2);
//! drop((block, buffer));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`open_host`] opens an allocator of pinned host memory, whose blocks belong to [`HOST_STREAM`].
//!
//! [`Allocator`] has everything else: streams, limits, private pools, statistics. [`Config`]
//! describes the policies, and [`config`] lists all settings. [`cuda`] is the driver:
//! devices, streams, peers.
//!
//! # Features
//! * `tune`, on by default: [`AutoTuner`], the search for better settings (`tune:auto`).
//! * `metrics`, on by default: [`metrics`], the statistics as text for Prometheus.
//! * `policies`, on by default: the policies `buddy`, `size_class` and `slab` in the texts of
//!   [`parse`] and of the C interface.
//! * `linked`: takes the driver's functions from a program that links `-lcuda`, in place of loading
//!   `libcuda.so.1`.
//! * `c`: the C interface, for the crate `cachalot-library`, which makes `libcachalot.a` and
//!   `libcachalot.so`.
//!
//! # C and C++
//! Programs include `include/cachalot.h`, which is the contract, and link `libcachalot.a` or
//! `libcachalot.so`. With the feature `c`, the module `c` has the functions.

#![allow(
    clippy::inline_always,
    reason = "measured: the boundary around malloc and free is a chain of small functions, each called from a few places"
)]

#[cfg(feature = "c")]
pub mod c;
pub mod prelude;

mod open;
mod planner;
#[cfg(feature = "tune")]
mod tuning;

// Every name of the core, once.
pub use cachalot_core::*;
pub use cachalot_cuda as cuda;
pub use cachalot_cuda::lock::{self, HeapLock};
pub use cachalot_cuda::{CudaDevice, Driver, HOST_STREAM, HostDevice};
#[cfg(feature = "metrics")]
pub use cachalot_snapshot::metrics::of_allocator as metrics;
pub use open::{
    CudaAllocator, HostAllocator, OpenError, POLICIES, SimulatedAllocator, Tables, open_cuda, open_host,
    open_simulated, parse, settings,
};
pub use planner::Planner;
#[cfg(feature = "tune")]
pub use tuning::AutoTuner;
