//! The parts that belong to the process and its threads: locks, threads, memory faults, the final
//! states.

pub(crate) mod latch;
pub(crate) mod sync;
pub(crate) mod thread;
pub(crate) mod trap;
