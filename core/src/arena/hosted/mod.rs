//! The parts that need a heap of the host: copies of a device's state, and snapshots.
//!
//! ```text
//! snapshot ◀── a device ──▶ all_locks ─▶ copy ─▶ rehearse       requests tried without a change
//!    └───────▶ restore                                            a device's state taken over
//! ```
//!
//! Builds without `alloc` do not contain this module.

mod all_locks;
pub(crate) mod copy;
pub(crate) mod rehearse;
pub(crate) mod restore;
mod snapshot;
