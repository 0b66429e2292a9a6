//! A gate before calls that use memory, passed by every thread and closed by one.
//!
//! ```text
//! a thread                              the closer
//!   its slot becomes odd                  closed becomes true
//!   (light barrier)                       (heavy barrier)
//!   closed? ─ yes ─▶ its slot goes back   slots odd? ─ yes ─▶ threads are inside
//! ```
//!
//! The closer sees the odd slot of every thread without a view of the closed gate. So a closer without an odd slot in sight has the
//! memory alone until the gate opens.
//!
//! The barriers are asymmetric: a thread's is an order for the compiler only, and the closer's makes the system interrupt
//! every running thread of the process (`membarrier`, Linux 4.14). If the system refuses, both sides use a fence.

#![forbid(clippy::undocumented_unsafe_blocks)]

mod barrier;
mod gate;
mod reader_slot;
#[cfg(all(test, loom))]
mod model;

pub use gate::{Closed, Gate, Inside, Visit};
pub use reader_slot::{Look, ReaderSlot, look};
