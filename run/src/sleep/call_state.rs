//! The state that a call reads on its way to the driver.
//!
//! One symbol leads to all of it. Another symbol of this crate would cost a launch one more load,
//! of the symbol's address, from a cache line that the launch before has pushed out of the nearest
//! cache.

use cachalot_gate::{AsymmetricRwLock, ReaderSlot};
use core::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::OnceLock;

/// Entries of the table of threads: a power of two. Programs call the driver with some ten threads.
pub(super) const TABLE_LEN: usize = 256;

/// The state of a thread, on its own cache lines, because the thread writes it at each call. Only
/// the thread itself changes it, except for `owner`.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct ThreadState {
    /// The pointer to the data of the thread that has this entry of the table. 0: no thread has it.
    /// Always 0 in a state outside the table, which is only found through the loader's thread-local
    /// data.
    pub(super) owner: AtomicUsize,
    pub(super) reader: ReaderSlot,
    /// Whether the thread is inside a served call.
    pub(super) serving: AtomicBool,
}

impl ThreadState {
    pub(super) const fn new() -> Self {
        Self { owner: AtomicUsize::new(0), reader: ReaderSlot::new(), serving: AtomicBool::new(false) }
    }
}

/// The state that calls read: the flags and the lock in one cache line, and the states of the
/// threads.
#[repr(C, align(128))]
pub(crate) struct CallState {
    /// Whether first launches are told apart.
    pub(crate) tells_first_launches: AtomicBool,
    /// Whether the process has memory to park.
    pub(crate) sleeps: AtomicBool,
    /// The lock of the memory of the process: calls read, parks and wakes write.
    pub(crate) lock: OnceLock<AsymmetricRwLock>,
    pub(super) states: [ThreadState; TABLE_LEN],
}

pub(crate) static CALL_STATE: CallState = CallState {
    tells_first_launches: AtomicBool::new(false),
    sleeps: AtomicBool::new(false),
    lock: OnceLock::new(),
    states: [const { ThreadState::new() }; TABLE_LEN],
};
