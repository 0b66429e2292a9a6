//! Recorded programs and what is done with them without a GPU: the library behind the `cachalot` command.
#![forbid(unsafe_code)]
#![allow(clippy::result_large_err, reason = "the core's errors are values without a heap, and rare")]

pub mod compare;
pub mod inspect;
pub mod plan;
pub mod program;
pub mod replay;
pub mod snapshot;
pub mod trace;
