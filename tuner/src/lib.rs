//! Runs recorded requests exactly on a simulated device, and searches the best settings for them. A
//! living allocator can do the same (`tune:auto`).
//!
//! ```
//! use cachalot_core::simulated::SimulatedDevice;
//! use cachalot_core::{Allocator, Config, Growable, StreamId};
//! use cachalot_tuner::judge::{Part, cost};
//! use cachalot_tuner::program::{Operation, Program};
//!
//! let malloc = Operation::Malloc { bytes: 5 << 20, stream: StreamId::DEFAULT, slot: 0 };
//! let program = Program { operations: vec![malloc, Operation::Free { slot: 0 }], slots: 1, start: 0 };
//! let part = Part { name: "one block".to_owned(), program, limit: None, ..Part::default() };
//! let costs = cachalot_core::simulated::DriverCosts::h200();
//! type OnDevice = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;
//! let cost = cost::<OnDevice>(&part, &Config::new(), &costs, &|| false).expect("it fits");
//! assert_eq!(cost.reserved_bytes, 20 << 20);
//! ```
//!
//! ```text
//! live        a living allocator: window, search, switch, trial
//! tune        a whole search
//! search      rounds of candidates
//! options     options and results of a search
//! space       the searched settings
//! split       the programs to search with, and those held back
//! verdict     rules for a recommendation
//! judge       the cost of a program with a configuration
//! program     calls, run on an allocator
//! section     the repeated part of a sequence
//! ```
#![forbid(unsafe_code)]
#![allow(clippy::result_large_err, reason = "the core's errors are values without a heap, and rare")]

pub mod judge;
pub mod live;
pub mod program;
pub mod section;
pub mod tune;

mod options;
mod search;
mod space;
mod split;
mod verdict;

pub use search::{InTurn, Progress, Runner};
pub use space::{Candidate, Realm, Space};
pub use split::{HoldBack, Parts};
pub use verdict::{Aim, Budget, Note, Summary};
