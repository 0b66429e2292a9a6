//! What a library in front of the CUDA driver decides: which memory is served, how much a process
//! and its group may hold, and who holds it.
//!
//! ```text
//! serve      requests and frees of a program that calls the driver
//! record     the events of served memory, in a file
//! charge     the driver's memory calls, counted against a limit and booked
//! group      a limit that several processes share
//! ledger     who asked for each piece of the device's memory
//! real       the driver behind the library in front
//! shared     files that processes of a user map together
//! options    what `cachalot run` passes to the program's process
//! types      types of `cuda.h` that only a library in front of the driver needs
//! ```
//!
//! The crate `cachalot-front` exports the driver's functions and calls this crate.

pub mod charge;
pub mod group;
pub mod ledger;
pub mod options;
pub mod real;
pub mod record;
pub mod serve;
pub mod shared;
pub mod types;

pub use options::Options;
