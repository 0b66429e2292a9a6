//! A gate before calls that use memory, passed by every thread and closed by one.
//!
//! ```text
//! a thread                              the closer
//!   its mark becomes odd                  closed becomes true
//!   (light barrier)                       (heavy barrier)
//!   closed? ─ yes ─▶ its mark goes back   marks odd? ─ yes ─▶ threads are inside
//! ```
//!
//! A thread that does not see the closed gate has an odd mark that the closer sees. So a closer that finds no odd mark has the
//! memory for itself until the gate opens.
//!
//! The barriers are asymmetric: a thread's is an order for the compiler only, and the closer's makes the system interrupt
//! every running thread of the process (`membarrier`, Linux 4.14). Where the system refuses, both sides use a fence.

#![forbid(clippy::undocumented_unsafe_blocks)]

mod barrier;
mod gate;
mod mark;
#[cfg(all(test, loom))]
mod model;

pub use gate::{Closed, Gate, Inside};
pub use mark::{Look, Mark, look};
