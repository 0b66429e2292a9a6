//! Pickles, Python's own format: as much of it as snapshots need.
//!
//! What is written uses the operations that the pages and scripts of `PyTorch` 2.0 to 2.15 can read, and no others. What is read may
//! use all that `pickle.dump` of plain values writes, in protocols 1 to 5; objects of other types are refused.
//!
//! There are libraries for pickles; none writes a value once and refers to it, without which a trace with stacks is ten times as
//! long, and `serde-pickle` 1.2 takes values that are shared below shared ones for recursion.

mod error;
mod input;
mod limits;
mod memo;
mod opcode;
mod read;
mod tree;
mod write;

#[cfg(test)]
mod tests;

pub use error::Error;
pub use read::from_slice;
pub(crate) use read::snapshot_from;
pub use write::to_writer;
