//! Reads and writes pickles, Python's own format, as far as snapshots need.
//!
//! The writer uses only operations known to the pages and scripts of `PyTorch` 2.0 to 2.15. The
//! reader accepts all operations of `pickle.dump` for plain values, in protocols 0 to 5. Objects of
//! any other type are refused.
//!
//! No existing library writes a value once and refers to the value later. Without references a
//! trace with stacks is ten times as long. `serde-pickle` 1.2 mistakes shared values below shared
//! values for recursion.

mod error;
mod input;
mod limits;
mod lines;
mod memo;
mod opcode;
mod read;
mod tree;
mod write;

#[cfg(test)]
mod tests;

pub use error::Error;
pub use read::from_slice;
pub(crate) use read::{outlines_from, snapshots_from};
pub use write::to_writer;
