//! PyTorch's memory snapshots, as `torch.cuda.memory._snapshot()` returns them: one model, two formats.
//!
//! ```text
//! model    what a snapshot holds: segments, blocks, events, stacks      ─┐  keys that are not known are kept
//! take     a snapshot of an allocator                                     │
//! stack    where in the program: shared by what comes from the same place  │
//! shared   values that are read once, for every place that refers to them  │
//! stream   lists that are written while they are made                    │
//! pickle   Python's own format                                           │
//! file     a snapshot written and read, as a pickle or as JSON          ─┘
//! ```
//!
//! ```
//! use cachalot_snapshot::{Format, Segment, Snapshot, read, write};
//!
//! let segment = Segment { address: 0x7f00_0000_0000, total_size: 2 << 20, ..Segment::default() };
//! let snapshot = Snapshot { segments: vec![segment], device_traces: vec![Vec::new()], ..Snapshot::default() };
//! let mut bytes = Vec::new();
//! write(&mut bytes, Format::Pickle, &snapshot)?;
//! assert_eq!(read(&bytes)?, snapshot);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Key by key: `torch/cuda/memory.py` and `torch/csrc/cuda/Module.cpp` of `PyTorch` 2.0 to 2.15.

#![forbid(unsafe_code)]

mod event;
mod file;
mod harvest;
mod model;
mod other;
pub mod pickle;
mod shared;
mod stack;
mod stream;
mod take;

pub use file::{Format, ReadError, read, read_from, write, write_file};
pub use model::{Annotation, Block, Details, Event, Segment, Settings, Snapshot, Text};
pub use other::Other;
pub use stack::{Frame, Stack};
pub use stream::Each;
pub use take::Taken;
