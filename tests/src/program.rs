//! Programs: lists of operations that make sense in any order, so that they can be invented and shortened at will.
//!
//! Blocks, pools, streams and configurations are named by numbers that are taken modulo how many there are.

use cachalot_core::{Config, PoolOptions, Route, StreamId};

/// One operation. Numbers of blocks count those the program holds, in the order in which it got them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the fields say what they are")]
pub enum Op {
    /// A request.
    Malloc { bytes: u64, stream: u8 },
    /// Gives a block back.
    Free { block: u8 },
    /// Gives a block back with the size it was asked for, or another one.
    FreeSized { block: u8, right: bool },
    /// Frees an address that the program does not hold: so far behind the start of a block it does hold.
    FreeWrong { block: u8, offset: u16 },
    /// Announces another stream's use.
    RecordStream { block: u8, stream: u8 },
    /// Looks an address up: so far behind the start of a block.
    BaseOf { block: u8, offset: u32 },
    /// A stream gets past its oldest event.
    CompleteOne { stream: u8 },
    /// A stream gets past all its events.
    Complete { stream: u8 },
    /// Deferred frees are looked after.
    ProcessEvents,
    /// The cache is given back.
    EmptyCache,
    /// One pool's cache is given back.
    EmptyPool { pool: u8 },
    /// The cache is given back down to so many MiB.
    Trim { keep_mib: u16 },
    /// The limit is set to so many MiB above what is held, or lifted.
    Limit { above_mib: Option<u8> },
    /// The limit is set to so many 64ths of the device.
    Fraction { of_64: u8 },
    /// One of [`CONFIGS`] is put in force.
    Configure { config: u8 },
    /// A pool is made.
    CreatePool { use_on_oom: bool, no_split: bool },
    /// A pool gains a user, under a name that was used before.
    RetainPool { pool: u8, use_on_oom: bool, no_split: bool },
    /// A pool's options change.
    PoolOptions { pool: u8, use_on_oom: bool, no_split: bool },
    /// A pool loses a user.
    ReleasePool { pool: u8 },
    /// Requests of a stream (or, without one, all) are led into a pool.
    Route { pool: u8, stream: Option<u8> },
    /// The requests of this thread or of another one are.
    RouteThread { pool: u8, other: bool },
    /// Such a route ends.
    EndRoute { pool: u8 },
    /// Those are that the host says, on the streams whose bits are set; nobody says whether a graph is captured.
    RouteUnsaid { pool: u8, streams: u8 },
    /// Such a route ends.
    EndRouteUnsaid { pool: u8 },
    /// A stream is captured into a pool.
    Capture { pool: u8, stream: u8 },
    /// The latest capture ends. Unless `tidily`, its stream goes on capturing for a while.
    EndCapture { tidily: bool },
    /// A stream that still captures stops.
    StopCapturing { stream: u8 },
    /// A stream is no more.
    StreamDestroyed { stream: u8 },
    /// The cache is turned on or off.
    Caching { on: bool },
    /// Events are recorded from here on, so many, or none.
    Trace { capacity: u8 },
    /// Peaks start again.
    ResetPeaks,
    /// Accumulated statistics start again.
    ResetAccumulated,
}

/// The configurations that programs choose from.
pub const CONFIGS: [&str; 15] = [
    "",
    "max_split_size_mb:20",
    "max_split_size_mb:32",
    "max_split_size_mb:24,max_non_split_rounding_mb:40",
    "garbage_collection_threshold:0.6",
    "garbage_collection_threshold:0.25,max_split_size_mb:40",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:2,4:8,16:16,>:1]",
    "large_segment_size_mb:12",
    "per_process_memory_fraction:0.5",
    "throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.75",
    "expandable_segments:True",
    "expandable_segments:True,max_split_size_mb:24",
    "expandable_segments:True,garbage_collection_threshold:0.5,roundup_power2_divisions:8",
    "expandable_segments:True,expandable_segments_reserve:0.3,large_segment_size_mb:24",
];

/// The configuration of a number.
///
/// # Panics
/// If one of the strings is refused: they are all valid.
pub fn config(number: u8) -> Config {
    Config::parse(CONFIGS[usize::from(number) % CONFIGS.len()]).expect("every configuration here is valid")
}

/// The stream of a number: the default one, small ones as tests invent them, large ones as handles are.
pub fn stream(number: u8) -> StreamId {
    StreamId([0, 7, 0x7f3a_0000_5540, u64::MAX - 1][usize::from(number) % 4])
}

/// The streams whose bits are set.
pub fn streams(bits: u8) -> impl Iterator<Item = StreamId> {
    (0..STREAMS).filter(move |number| bits >> number & 1 == 1).map(stream)
}

/// How many streams there are.
pub const STREAMS: u8 = 4;

/// Options of a pool.
pub fn options(use_on_oom: bool, no_split: bool) -> PoolOptions {
    PoolOptions { use_on_oom, no_split }
}

/// The route of one stream, or of everything.
pub fn route(number: Option<u8>) -> Route {
    number.map_or(Route::All, |number| Route::Stream(stream(number)))
}
