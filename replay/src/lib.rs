//! Recorded programs of GPU memory: replay, comparison, planning and reports without a GPU. The
//! library behind the `cachalot` command.
//!
//! ```
//! use cachalot_replay::replay::{Options, replay};
//! use cachalot_replay::trace::Trace;
//! use std::path::Path;
//!
//! let record = b"action,addr,size,stream,pool\n\
//!     A,7f0000000000,2097152,0,0.0\n\
//!     a,7f0000000000,4096,0,0.0\n\
//!     f,7f0000000000,4096,0,0.0\n\
//!     c,7f0000000000,4096,0,0.0\n";
//! let traces = Trace::load_bytes(Path::new("record.csv"), record)?;
//! let outcome = replay(&traces[0], &Options::default())?;
//! assert_eq!((outcome.allocations, outcome.peak_reserved_bytes), (1, 2 << 20));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ```text
//! tune        the best settings for recorded programs, searched and checked
//! predict     the memory of a program before it runs
//! compare     every policy and configuration, side by side
//! replay      every decision repeated and checked
//! snapshot    the state at the end of a program, as a file
//! diff        the difference of two snapshots
//! range       a part of a history: where it begins and ends, and the snapshot that it is
//! inspect     reports on snapshots
//! program     the calls implied by a record
//! recorded    what a recording held, by its events
//! plan        problems for the planner, and solving them on every core
//! trace       records: CSV, pickles, JSON
//! memory      the memory of a device at any time of a history
//! ```
#![forbid(unsafe_code)]
#![allow(clippy::result_large_err, reason = "the core's errors are values without a heap, and rare")]

pub mod compare;
pub mod diff;
pub mod inspect;
pub mod memory;
pub mod plan;
pub mod predict;
pub mod program;
pub mod range;
pub mod recorded;
pub mod replay;
pub mod snapshot;
pub mod trace;
pub mod tune;
