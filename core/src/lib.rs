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

pub mod allocator;
mod arena;
pub mod atomic_map;
mod block;
#[cfg_attr(not(feature = "alloc"), allow(dead_code, reason = "no heap has a carver then"))]
mod carve;
mod chains;
pub mod config;
pub mod device;
mod directory;
pub mod error;
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
pub mod planned;
pub mod pool;
pub mod reclaim;
mod release;
pub mod report;
pub mod rounding;
mod routing;
mod rules;
#[cfg(feature = "alloc")]
pub mod simulated;
mod sites;
mod slab;
#[cfg(feature = "alloc")]
pub mod snapshot;
mod sorted_list;
pub mod stats;
pub mod storage;
pub mod sync;
pub mod trace;
mod trie;
pub mod units;

pub use allocator::{Allocation, Allocator};
pub use config::Config;
pub use error::Error;

#[cfg(all(test, feature = "alloc", loom))]
mod loom_tests;
#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests;
