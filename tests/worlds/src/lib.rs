//! A seed is a world: a program of several threads on the core, with streams, faults and parks, repeated call by call by its seed.
//!
//! All threads of a world are coroutines on one thread of the system. A thread gives its turn up only at a lock of the core or at
//! a call to the device, and the seed chooses whose turn is next. The device is simulated: its streams advance in turns of their
//! own.
//!
//! ```text
//! campaign      worlds in turn, until a finding or the end of the time
//! world         the core, its device, what all threads share, and the checks at rest
//! program       the steps of a thread
//! claims        which memory a live block has, and the marks that must stay there
//! device        a simulated device that offers the turn at each call, and fails by the seed
//! latch turns   a lock that gives the turn up · coroutines, and the choice of the next
//! ```

pub mod campaign;
mod claims;
pub mod device;
pub mod latch;
mod program;
pub mod turns;
pub mod world;
