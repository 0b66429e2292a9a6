//! Tests of the files of snapshots, of snapshots taken, and of metrics.

mod device;
mod metrics;
mod reading;
mod recorded;
mod shared;
mod taken;
mod variants;
