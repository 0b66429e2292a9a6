//! What belongs to the process and to its threads: locks, threads, memory faults, the final states.

pub(crate) mod latch;
pub(crate) mod sync;
pub(crate) mod thread;
pub(crate) mod trap;
