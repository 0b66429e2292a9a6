//! The history of a device, in a form small enough for 10 million events.

use super::stacks::Stacks;
use cachalot_replay::memory;
use cachalot_replay::tune::Answer;
use cachalot_snapshot::Annotation;
use std::rc::Rc;

/// The kind of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// A request was served.
    Alloc,
    /// The program freed a block.
    FreeRequested,
    /// The block is free.
    FreeCompleted,
    /// Memory came from the device: a segment, or a part of an expandable segment.
    Obtain { expandable: bool },
    /// Memory went back to the device.
    Release { expandable: bool },
    /// A request failed.
    OutOfMemory,
    /// A mark of the program, with the text as a note.
    Mark,
    /// A snapshot was taken. The event keeps its number.
    Snapshot,
    /// An action that no version known here has. The event keeps its number.
    Unknown,
}

/// An event.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Event {
    /// The address. For a failed request the free bytes of the device.
    pub(super) addr: u64,
    /// The size in bytes.
    pub(super) size: u64,
    /// The time in microseconds. 0 if unknown.
    pub(super) time: i64,
    /// The number of the stack in [`Stacks`].
    pub(super) stack: u32,
    /// The number of the stream in [`Names`].
    pub(super) stream: u16,
    /// The number of the pool in [`Names`], or [`UNKNOWN`].
    pub(super) pool: u16,
    pub(super) action: Action,
}

/// The number of an unknown pool.
pub(super) const UNKNOWN: u16 = u16::MAX;

/// Most streams, and most pools, with names of their own. All further ones share the last number.
const MOST_NAMES: usize = 1 << 12;

/// Numbers for streams and pools.
#[derive(Default, Debug)]
pub(super) struct Names {
    pub(super) streams: Vec<i64>,
    pub(super) pools: Vec<(u64, u64)>,
}

impl Names {
    /// Returns the number of a stream.
    pub(super) fn stream(&mut self, stream: i64) -> u16 {
        number(&mut self.streams, stream)
    }

    /// Returns the number of a pool.
    pub(super) fn pool(&mut self, pool: (u64, u64)) -> u16 {
        number(&mut self.pools, pool)
    }
}

/// Returns the number of a name, and adds a new name.
fn number<T: PartialEq>(names: &mut Vec<T>, name: T) -> u16 {
    let found = names.iter().position(|known| *known == name);
    let at = found.unwrap_or_else(|| {
        if names.len() < MOST_NAMES {
            names.push(name);
        }
        names.len() - 1
    });
    at as u16
}

/// What is known of memory from the device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Origin {
    pub(super) stream: u16,
    /// The pool, or [`UNKNOWN`].
    pub(super) pool: u16,
    pub(super) expandable: bool,
    pub(super) stack: u32,
}

/// The memory at some time, with the number of each block's stack.
pub(super) type HistoryMemory = memory::Memory<Origin, u32>;

/// All events of a device, with the memory at the end.
#[derive(Debug)]
pub(super) struct History {
    /// The name of the file, and of the configuration of a replay.
    pub(super) label: String,
    pub(super) device: i64,
    /// The configuration that the program ran with, or empty.
    pub(super) config: String,
    pub(super) events: Vec<Event>,
    /// The memory at the end. `None` if the file does not have the end.
    pub(super) end: Option<HistoryMemory>,
    pub(super) annotations: Vec<Annotation>,
    pub(super) names: Rc<Names>,
    /// The stacks, shared by all devices of a file.
    pub(super) stacks: Rc<Stacks>,
    /// Whether times are recorded.
    pub(super) has_times: bool,
    /// What a replay of the record tells. `None` without events, for a record that is too long or
    /// cannot be replayed, and for a replay.
    pub(super) answer: Option<Answer>,
}
