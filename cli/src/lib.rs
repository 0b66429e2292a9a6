//! Recorded programs and what is done with them without a GPU: the library behind the `cachalot` command.
#![forbid(unsafe_code)]

pub mod trace;
