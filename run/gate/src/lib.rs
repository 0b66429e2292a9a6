//! An asymmetric readers-writer lock: cheap for the readers, expensive for the writer.
//!
//! ```text
//! a reader                              the writer
//!   its slot becomes odd                  readers_blocked becomes true
//!   (light barrier)                       (heavy barrier)
//!   readers_blocked? ─ yes ─▶ restore     a slot is odd? ─ yes ─▶ threads still read
//! ```
//!
//! The writer sees the odd slot of every reader that did not see `readers_blocked`. So once it
//! finds no odd slot, it has the memory to itself until it unlocks.
//!
//! The barriers are asymmetric: a reader's barrier only keeps the compiler from reordering, and the
//! writer's makes the system interrupt every running thread of the process (`membarrier`, Linux
//! 4.14). If the system refuses, both sides use a fence.

#![forbid(clippy::undocumented_unsafe_blocks)]

mod barrier;
#[cfg(all(test, loom))]
mod model;
mod reader_slot;
mod rwlock;

pub use reader_slot::{ReaderSlot, Scan, scan};
pub use rwlock::{AsymmetricRwLock, OuterReadGuard, ReadGuard, ReadersBlocked};
