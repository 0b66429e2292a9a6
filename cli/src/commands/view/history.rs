//! The history of a device, in a form small enough for 10 million events.

use super::stacks::Stacks;
use cachalot_core::config::POLICIES;
use cachalot_replay::memory;
use cachalot_replay::tune::Answer;
use cachalot_snapshot::Annotation;
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// What a page knows of an event. Of a failed request, the address of the event is the free bytes
/// of the device. Marks and unknown actions keep their numbers, and a mark has its text as a note.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Seen {
    /// The time in microseconds. 0 if unknown.
    pub(super) time: i64,
    /// The number of the stack in [`Stacks`].
    pub(super) stack: u32,
    /// The number of the stream in [`Names`].
    pub(super) stream: u16,
    /// The number of the pool in [`Names`], or [`UNKNOWN`].
    pub(super) pool: u16,
}

/// An event, of 40 bytes.
pub(super) type Event = memory::EventOf<Seen>;

const _: () = assert!(size_of::<Event>() == 40, "10 million events take 400 MB");

/// The number of an unknown pool.
pub(super) const UNKNOWN: u16 = u16::MAX;

/// Most streams, and most pools, with their own names. All other ones share the last number.
const MOST_NAMES: usize = 1 << 12;

/// Numbers for streams and pools.
#[derive(Clone, Default, Debug)]
pub(super) struct Names {
    pub(super) streams: Vec<i64>,
    pub(super) pools: Vec<(u64, u64)>,
}

impl Names {
    /// Returns the number of a stream.
    pub(super) fn stream(&mut self, stream: i64) -> u16 {
        number(&mut self.streams, stream)
    }

    /// Returns whether a pool is known, and not the default pool.
    pub(super) fn is_private(&self, pool: u16) -> bool {
        cachalot_snapshot::is_private(self.pools.get(usize::from(pool)).copied())
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

/// A part of the memory from the device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Origin {
    pub(super) stream: u16,
    /// The pool, or [`UNKNOWN`].
    pub(super) pool: u16,
    pub(super) expandable: bool,
    pub(super) kind: Kind,
    pub(super) stack: u32,
}

/// The kind of the blocks of a segment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) enum Kind {
    #[default]
    Unknown,
    /// Blocks of at most 1 MiB.
    Small,
    /// All larger blocks.
    Large,
}

impl Kind {
    /// Returns the kind of memory that an event obtains or releases.
    pub(super) fn of(bytes: u64, expandable: bool, pages: Pages) -> Self {
        match pages.tell_kinds {
            false => Self::Unknown,
            true if expandable && memory::page_of(bytes, pages.large) == pages.large => Self::Large,
            true if expandable || bytes == memory::SMALL_PAGE => Self::Small,
            true => Self::Large,
        }
    }

    /// Returns the kind with a name in a snapshot.
    pub(super) fn named(name: Option<&str>) -> Self {
        match name {
            Some("small") => Self::Small,
            Some("large") => Self::Large,
            _ => Self::Unknown,
        }
    }
}

/// The sizes of memory from the device, from the configuration of a program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pages {
    /// The size of large pages.
    pub(super) large: u64,
    /// Whether the size of a segment tells the kind: under the caching policy.
    tell_kinds: bool,
}

impl Pages {
    pub(super) fn of(config: &str) -> Self {
        let config = cachalot_policies::parse(config).unwrap_or_default();
        Self { large: config.large_segment_size(), tell_kinds: config.policy_name() == POLICIES[0] }
    }

    /// Returns the size of a segment's pages, or 0 for a segment that is released as a whole.
    pub(super) fn page(self, bytes: u64, expandable: bool, kind: Kind) -> u64 {
        match (expandable, kind) {
            (false, _) => 0,
            (true, Kind::Small) => memory::SMALL_PAGE,
            (true, Kind::Large) => self.large,
            (true, Kind::Unknown) => memory::page_of(bytes, self.large),
        }
    }
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
    /// The findings about the record. `None` without events, for a record that is too long or
    /// contradicts itself, and for a replay.
    pub(super) answer: Option<Answer>,
    /// Why the history cannot be used, if it contradicts itself.
    pub(super) contradiction: Option<String>,
    /// What was left out of the history or filled in, in sentences without a full stop.
    pub(super) remarks: Vec<String>,
    /// Whether the file tells the configuration.
    pub(super) tells_config: bool,
    /// Whether the history starts in the middle of the program.
    pub(super) is_cut: bool,
    /// The place of a range in the whole history. `None` for all of it.
    pub(super) part: Option<HistoryPart>,
}

/// The place of a range in a history.
#[derive(Debug, Clone)]
pub(super) struct HistoryPart {
    /// The range in words.
    pub(super) words: String,
    /// Number of events before the range, and in the whole history.
    pub(super) first: usize,
    pub(super) events: usize,
    /// The numbers of the stacks of the blocks from before the range, by address.
    pub(super) before: FxHashMap<u64, u32>,
}
