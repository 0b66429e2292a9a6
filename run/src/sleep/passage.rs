//! What a call reads on its way to the driver.
//!
//! All of it lies behind one symbol. Each further symbol of another crate costs a launch the load of the symbol's address, from a cache
//! line that the launch before has pushed out of the nearest cache.

use cachalot_gate::{Gate, ReaderSlot};
use core::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::OnceLock;

/// Places of the table: a power of two. Programs call the driver with some ten threads.
pub(super) const TABLE_LEN: usize = 256;

/// What a thread has, on cache lines of its own, because the thread writes at each visit. But for `owner`, the thread alone changes it.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct ThreadState {
    /// The pointer to the data of the thread that has this place of the table. 0: no thread has it. Always 0 in a state beside the
    /// table, which only the loader's data of a thread leads to.
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

/// What calls read: the flags and the gate in one cache line, and the states of the threads.
#[repr(C, align(128))]
pub(crate) struct Passage {
    /// Whether first launches are told apart.
    pub(crate) tells_first_launches: AtomicBool,
    /// Whether the process has memory to park.
    pub(crate) sleeps: AtomicBool,
    /// The gate before the memory of the process.
    pub(crate) gate: OnceLock<Gate>,
    pub(super) states: [ThreadState; TABLE_LEN],
}

pub(crate) static PASSAGE: Passage = Passage {
    tells_first_launches: AtomicBool::new(false),
    sleeps: AtomicBool::new(false),
    gate: OnceLock::new(),
    states: [const { ThreadState::new() }; TABLE_LEN],
};
