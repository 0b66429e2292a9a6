//! Recorded programs of GPU memory, and what can be done with them without a GPU. The `cachalot` command is built on this
//! library.
//!
//! ```text
//! compare     every policy and configuration, side by side     snapshot   the state a program ends in, as a file
//! replay      every decision repeated and checked              inspect    what a snapshot shows
//! program     the calls that a record implies
//! plan        problems for the planner, and solving them on every core
//! trace       records: CSV, pickles, JSON
//! ```
#![forbid(unsafe_code)]
#![allow(clippy::result_large_err, reason = "the core's errors are values without a heap, and rare")]

pub mod compare;
pub mod inspect;
pub mod plan;
pub mod program;
pub mod replay;
pub mod snapshot;
pub mod trace;
