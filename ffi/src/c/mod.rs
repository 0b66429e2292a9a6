//! The C interface, and the plug-in for `PyTorch`.
//!
//! The functions are in [`capi`], their types in [`abi`], their numbers in [`status`]. The
//! functions of the plug-in for `PyTorch`, described by `include/cachalot_torch.h`, are in
//! [`torch`].
//!
//! ```text
//! capi       the exported functions          ─┐
//! boundary   catches panics                    │  snapshot · recording
//! handle     which allocator a handle is       │
//! instance   an allocator over its devices     │  device · lazy_device · upkeep · callbacks · filters · stacks
//! marshal    NULL, texts, structures' sizes   ─┘  status · last_error · abi
//! ```

pub mod abi;
pub mod capi;
pub mod status;
pub mod torch;

mod announced;
mod births;
mod boundary;
mod callbacks;
mod changes;
mod device;
mod explanation;
mod filters;
mod handle;
mod idle;
mod instance;
mod known_streams;
mod last_error;
mod lazy_device;
mod marshal;
mod notes;
mod recorder;
mod recording;
mod snapshot;
mod stacks;
mod supplies;
mod upkeep;

#[cfg(test)]
mod tests;
