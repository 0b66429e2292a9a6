//! Reads and writes PyTorch's memory snapshots, the data of `torch.cuda.memory._snapshot()`, in two
//! formats.
//!
//! ```text
//! model    the data of a snapshot: segments, blocks, events, stacks, unknown keys
//! metrics  figures as OpenMetrics text: of a snapshot, and of an allocator
//! memory_map  the blocks of an allocator's segments, and the distribution of their sizes
//! take     snapshots of an allocator
//! recorder  the options and the files of a flight recorder
//! stack    stacks of the program, shared by events of one call site
//! frames   which frames of a stack a reader looks for
//! lenient  odd values that do not make a file unreadable
//! shared   values read once for all references in a file
//! harvest  events built while a pickle is read
//! stream   lists whose entries are built during the write
//! pickle   Python's own format
//! file     reading and writing files, as a pickle or as JSON
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
//! Without the feature `files`, which is on by default, the crate has [`metrics::of_allocator`] and
//! [`memory_map`] alone, and no dependency but the core.
//!
//! Source of the keys: `torch/cuda/memory.py` and `torch/csrc/cuda/Module.cpp` of `PyTorch` 2.0 to
//! 2.15.

#![forbid(unsafe_code)]

pub mod memory_map;
pub mod metrics;

#[cfg(feature = "files")]
mod event;
#[cfg(feature = "files")]
mod file;
#[cfg(feature = "files")]
mod frames;
#[cfg(feature = "files")]
mod harvest;
#[cfg(feature = "files")]
mod lenient;
#[cfg(feature = "files")]
mod model;
#[cfg(feature = "files")]
mod other;
#[cfg(feature = "files")]
pub mod pickle;
#[cfg(feature = "files")]
pub mod recorder;
#[cfg(feature = "files")]
mod shared;
#[cfg(feature = "files")]
mod stack;
#[cfg(feature = "files")]
mod stream;
#[cfg(feature = "files")]
mod take;

#[cfg(feature = "files")]
pub use {
    file::{Format, ReadError, read, read_all_from, read_all_with, read_from, read_with, write, write_file},
    frames::Origin,
    model::{Annotation, Block, Details, Event, PastAllocation, Segment, Settings, Snapshot, Text, is_private},
    other::Other,
    stack::{Frame, Stack},
    stream::Each,
    take::Taken,
};
