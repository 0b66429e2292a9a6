//! The C ABI of cachalot, and the same allocator for Rust programs.
//!
//! C and C++ programs include `include/cachalot.h`, which is the contract, and link `libcachalot.a` or `libcachalot.so`.
//! The functions are in [`capi`], their types in [`abi`], their numbers in [`status`]; those of the plug-in for `PyTorch`, which
//! `include/cachalot_torch.h` describes, in [`torch`].
//!
//! Rust programs use the allocator itself: [`CudaAllocator`], or [`Allocator`] over a device of their own.
//!
//! ```
//! use cachalot::{Allocator, Config, DeviceIndex, Growable, HeapLock, SimulatedDevice, StreamId};
//!
//! let device = SimulatedDevice::new(1 << 30);
//! let allocator = Allocator::<_, HeapLock, Growable>::new([device], &Config::new())?;
//! let block = allocator.malloc(DeviceIndex(0), 4096, StreamId::DEFAULT)?;
//! allocator.free(block)?;
//! # Ok::<(), cachalot::Error>(())
//! ```
//!
//! ```text
//! capi       the exported functions          ─┐
//! boundary   catches panics                    │  snapshot
//! handle     which allocator a handle is       │
//! instance   an allocator over its devices     │  device · lazy_device · callbacks · filters · stacks · planner · lock
//! marshal    NULL, texts, structures' sizes   ─┘  status · last_error · abi
//! ```

#![allow(
    clippy::inline_always,
    reason = "measured: the boundary around malloc and free is a chain of small functions, each called from a few places"
)]

pub mod abi;
pub mod capi;
pub mod lock;
pub mod status;
pub mod torch;

mod boundary;
mod callbacks;
mod device;
mod filters;
mod handle;
mod instance;
mod last_error;
mod lazy_device;
mod marshal;
mod planner;
mod snapshot;
mod stacks;

#[cfg(test)]
mod tests;

pub use cachalot_core as core_api;
pub use cachalot_core::simulated::SimulatedDevice;
pub use cachalot_core::{Allocation, Allocator, Config, DeviceIndex, DevicePtr, Error, Growable, StreamId};
pub use cachalot_cuda as cuda;
pub use cachalot_cuda::{CudaDevice, Driver};
pub use lock::HeapLock;
pub use planner::Planner;

/// The allocator over devices of the CUDA driver, as the C ABI has it.
pub type CudaAllocator = Allocator<CudaDevice, HeapLock, Growable>;
