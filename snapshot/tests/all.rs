//! Tests of the files of snapshots.

mod reading;
mod recorded;
mod shared;
mod variants;
