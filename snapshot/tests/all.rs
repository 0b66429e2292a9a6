//! Tests of the files of snapshots, and of metrics.

mod device;
mod metrics;
mod reading;
mod recorded;
mod shared;
mod variants;
