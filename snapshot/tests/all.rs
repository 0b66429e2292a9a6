//! Tests of the files of snapshots.

mod recorded;
mod shared;
mod variants;
