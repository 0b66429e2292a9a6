//! A part of a history: where it begins and ends, and the snapshot that it is.
//!
//! ```text
//! moment    how a moment is written: `1200`, `3.5s`, `annotation:forward#2`, `step:3`
//! marks     annotations and steps, from the marks in a file
//! resolve   the events that a range has, or what the file has instead
//! rewind    the memory at the end of a range, by undoing the events after it
//! ```

mod marks;
mod moment;
mod resolve;
mod rewind;
#[cfg(test)]
mod tests;

pub use moment::Moment;
pub use resolve::{HistoryRange, Span, resolve};
pub use rewind::{EarlierStacks, cut, rewind};
