//! The calls of a program, as letters, and the alphabets.

use std::fmt;

/// Pages of the elastic range.
pub const RANGE_PAGES: usize = 2;

/// A call of a program. Blocks are numbered by address, among the live blocks. Streams are numbered
/// by order of appearance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Letter {
    /// Requests a block: the number of the size, and the stream.
    Malloc(u8, u8),
    /// Frees a block.
    Free(u8),
    /// Uses a block on the other stream, and announces the stream.
    Record(u8),
    /// Uses a block on the other stream, and announces the use.
    Use(u8),
    /// Completes all work of a stream.
    Complete(u8),
    /// Begins the capture of a stream.
    Begin(u8),
    /// Ends the capture.
    End,
    /// Commits a page of the range on a stream.
    Commit(u8, u8),
    /// Decommits a page of the range on a stream.
    Decommit(u8, u8),
    /// Parks the memory of a stream, with the contents.
    Park(u8),
    /// Wakes the memory of a stream.
    Wake(u8),
    /// Does the work put off.
    Maintain,
    /// Empties the cache.
    Empty,
    /// Turns the cache on or off.
    Caching(bool),
    /// Lets a later call of the driver fail: the calls before the failing call.
    Fail(u8),
    /// Lets the next call of the driver for memory run out of memory.
    RunOut,
}

use Letter::{
    Begin, Caching, Commit, Complete, Decommit, Empty, End, Fail, Free, Maintain, Malloc, Park, Record, RunOut, Use,
    Wake,
};

impl fmt::Display for Letter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malloc(size, stream) => write!(f, "malloc {size} on {stream}"),
            Free(block) => write!(f, "free {block}"),
            Record(block) => write!(f, "record {block}"),
            Use(block) => write!(f, "use {block}"),
            Complete(stream) => write!(f, "complete {stream}"),
            Begin(stream) => write!(f, "capture {stream}"),
            End => f.write_str("end capture"),
            Commit(page, stream) => write!(f, "commit {page} on {stream}"),
            Decommit(page, stream) => write!(f, "decommit {page} on {stream}"),
            Park(stream) => write!(f, "park {stream}"),
            Wake(stream) => write!(f, "wake {stream}"),
            Maintain => f.write_str("maintain"),
            Empty => f.write_str("empty cache"),
            Caching(true) => f.write_str("cache on"),
            Caching(false) => f.write_str("cache off"),
            Fail(0) => f.write_str("fail next call"),
            Fail(after) => write!(f, "fail call {}", after + 1),
            RunOut => f.write_str("run out next"),
        }
    }
}

/// Writes a program, with a comma between two calls.
#[must_use]
pub fn text(program: &[Letter]) -> String {
    program.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The parts of an alphabet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each part is there or not")]
pub struct Alphabet {
    /// The numbers of the sizes requested.
    pub sizes: &'static [u8],
    /// The most live blocks of a program.
    pub blocks: u8,
    /// Uses announced by stream.
    pub records: bool,
    /// Uses announced by event.
    pub uses: bool,
    /// Captures.
    pub captures: bool,
    /// The elastic range.
    pub ranges: bool,
    /// Parked memory.
    pub parking: bool,
    /// Work put off, and an emptied cache.
    pub upkeep: bool,
    /// The cache turned off and on.
    pub switches: bool,
    /// The longest number of calls before a failing call; 0 without failures.
    pub failures: u8,
}

impl Alphabet {
    /// Requests, frees and completed work only.
    pub const PLAIN: Self = Self {
        sizes: &[0, 1, 2, 3],
        blocks: 3,
        records: false,
        uses: false,
        captures: false,
        ranges: false,
        parking: false,
        upkeep: false,
        switches: false,
        failures: 0,
    };

    /// Returns the letters.
    #[must_use]
    pub fn letters(&self) -> Vec<Letter> {
        let blocks = || 0..self.blocks;
        let pages = || (0..RANGE_PAGES as u8).flat_map(|page| [(page, 0), (page, 1)]);
        let mut letters: Vec<Letter> = self.sizes.iter().flat_map(|&size| [Malloc(size, 0), Malloc(size, 1)]).collect();
        letters.extend(blocks().map(Free));
        let mut add = |is_part: bool, more: &mut dyn Iterator<Item = Letter>| {
            if is_part {
                letters.extend(more);
            }
        };
        add(self.records, &mut blocks().map(Record));
        add(self.uses, &mut blocks().map(Use));
        add(true, &mut (0..2).map(Complete));
        add(self.captures, &mut [Begin(0), Begin(1), End].into_iter());
        add(self.ranges, &mut pages().map(|(page, stream)| Commit(page, stream)));
        add(self.ranges, &mut pages().map(|(page, stream)| Decommit(page, stream)));
        add(self.parking, &mut (0..2).flat_map(|stream| [Park(stream), Wake(stream)]));
        add(self.upkeep, &mut [Maintain, Empty].into_iter());
        add(self.switches, &mut [Caching(false), Caching(true)].into_iter());
        add(self.failures > 0, &mut (0..self.failures).map(Fail).chain([RunOut]));
        letters
    }
}
