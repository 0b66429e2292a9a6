//! What needs a heap of the host: copies of a device's state, snapshots, and memory of earlier settings.
//!
//! ```text
//! snapshot ◀── a device ──▶ standstill ─▶ copy ─▶ rehearse       requests tried without a change
//!    └───────▶ restore                                            a device's state taken over
//!              old_form ─▶ retired                                segments of earlier settings, given back later
//! ```
//!
//! Builds without `alloc` have `none.rs` in the place of the module.

pub(crate) mod copy;
pub(crate) mod old_form;
pub(crate) mod rehearse;
pub(crate) mod restore;
mod retired;
mod snapshot;
mod standstill;

pub(crate) use retired::RetiredList;
