//! The decisions of a library in front of the CUDA driver: memory served, limits for processes and
//! groups, and the holders of memory.
//!
//! ```text
//! serve      requests and frees of a program
//! record     the events of served memory, in a file
//! charge     the driver's memory calls, counted against a limit and booked
//! group      a limit shared by processes
//! everyone   groups and books of all users and containers, for root
//! control    requests of other processes: park, wake and status
//! ledger     attribution: the callers behind each piece of the device's memory
//! sleep      idle programs whose memory leaves the device
//! real       the driver behind the library in front
//! shared     files mapped by processes of a user
//! options    options passed by `cachalot run` to the program's process
//! loader     the loader's own look-up of symbols
//! ```
//!
//! ```
//! use cachalot_run::Options;
//!
//! let options = Options { limit: Some(12 << 30), zero: true, ..Options::default() };
//! assert!(options.to_variable().contains("\"zero\":true"));
//! ```
//!
//! The crate `cachalot-front` exports the driver's functions and calls the crate.

pub mod charge;
pub mod control;
pub mod everyone;
pub mod group;
pub mod ledger;
pub mod loader;
pub mod options;
pub mod real;
pub mod record;
pub mod serve;
pub mod shared;
pub mod sleep;

pub use cachalot_cuda::log::check as check_log;
pub use cachalot_cuda::{memory_of_system, set_limit_of_group};
pub use options::Options;
