//! What a call reads on its way to the driver.
//!
//! All of it lies behind one symbol. Each further symbol of another crate costs a launch the load of the symbol's address, from a cache
//! line that the launch before has pushed out of the nearest cache.

use crate::sleep::marks::{PLACES, Seat};
use cachalot_gate::Gate;
use core::sync::atomic::AtomicBool;
use std::sync::OnceLock;

/// What calls read: the flags and the gate in one cache line, and the seats of the threads.
#[repr(C, align(128))]
pub(crate) struct Passage {
    /// Whether first launches are told apart.
    pub(crate) tells_first_launches: AtomicBool,
    /// Whether the process has memory to park.
    pub(crate) sleeps: AtomicBool,
    /// The gate before the memory of the process.
    pub(crate) gate: OnceLock<Gate>,
    pub(super) seats: [Seat; PLACES],
}

pub(crate) static PASSAGE: Passage = Passage {
    tells_first_launches: AtomicBool::new(false),
    sleeps: AtomicBool::new(false),
    gate: OnceLock::new(),
    seats: [const { Seat::new() }; PLACES],
};
