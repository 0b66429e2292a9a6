//! A seed is a world: a program of several threads on the core, with streams, faults and parks.
//! Equal seeds repeat every call.
//!
//! All threads of a world are coroutines on one thread of the system. A thread gives its turn up
//! only at a lock of the core or at a call to the device, and the seed chooses whose turn is next.
//! The device is simulated: its streams advance in turns of their own.
//!
//! ```text
//! campaign      worlds in turn, until a finding or the end of the time
//! world         the core, the device, the state shared by all threads, and the checks at rest
//! program       the steps of a thread
//! block         a block of a thread, and the checks of its memory
//! device        a simulated device: each call offers the turn, and may fail
//! latch turns   the lock of a world · coroutines, and the choice of the next
//! ```

mod block;
pub mod campaign;
pub mod device;
pub mod latch;
mod program;
pub mod turns;
pub mod world;
