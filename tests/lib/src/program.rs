//! Test programs: lists of operations that are valid in any order, so that a generator can create
//! and shrink them freely.
//!
//! Numbers of blocks, pools, streams and configurations are taken modulo the count.

use cachalot_core::{Config, PoolOptions, Route, StreamId};

/// One operation. Blocks are numbered among the blocks that the program holds, in the order of
/// allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the fields say what they are")]
pub enum Op {
    /// Allocates a block of a given size on a stream.
    Malloc { bytes: u64, stream: u8 },
    /// Frees a block that the program holds.
    Free { block: u8 },
    /// Frees a block with its requested size, or with a wrong size.
    FreeSized { block: u8, right: bool },
    /// Frees an address without a block: a given distance behind the start of an allocated block.
    FreeWrong { block: u8, offset: u16 },
    /// Records the use of a block on another stream.
    RecordStream { block: u8, stream: u8 },
    /// Looks up an address: a given distance behind the start of a block.
    BaseOf { block: u8, offset: u32 },
    /// Completes the oldest event of a stream.
    CompleteOne { stream: u8 },
    /// Completes all events of a stream.
    Complete { stream: u8 },
    /// Processes pending frees whose events are complete.
    ProcessEvents,
    /// Empties the cache of the default pool and of unused pools.
    EmptyCache,
    /// Empties the cache of one pool.
    EmptyPool { pool: u8 },
    /// Releases cached memory down to a number of MiB.
    Trim { keep_mib: u16 },
    /// Sets the limit to a number of MiB above the reserved bytes, or removes the limit.
    Limit { above_mib: Option<u8> },
    /// Sets the limit to a number of 64ths of the device.
    Fraction { of_64: u8 },
    /// Applies one of [`CONFIGS`].
    Configure { config: u8 },
    /// Creates a pool.
    CreatePool { use_on_oom: bool, no_split: bool },
    /// Adds a user to a pool, under a name used before.
    RetainPool { pool: u8, use_on_oom: bool, no_split: bool },
    /// Changes the options of a pool.
    PoolOptions { pool: u8, use_on_oom: bool, no_split: bool },
    /// Removes a user from a pool.
    ReleasePool { pool: u8 },
    /// Begins a route for the requests of a stream, or for all requests.
    Route { pool: u8, stream: Option<u8> },
    /// Begins a route for the requests of this thread or of another thread.
    RouteThread { pool: u8, other: bool },
    /// Ends a route of a stream or thread.
    EndRoute { pool: u8 },
    /// Begins a host-decided route for the streams whose bits are set, without a declared purpose.
    RouteUnsaid { pool: u8, streams: u8 },
    /// Ends a host-decided route.
    EndRouteUnsaid { pool: u8 },
    /// Begins a capture of a stream into a pool.
    Capture { pool: u8, stream: u8 },
    /// Ends the latest capture. Unless `tidily`, the stream goes on capturing for a while.
    EndCapture { tidily: bool },
    /// Stops the capture of a stream whose route has ended.
    StopCapturing { stream: u8 },
    /// Captures a piece of work on a stream, if the stream captures.
    CaptureWork { stream: u8 },
    /// Lets a stream wait for what another has captured, and capture as well, if the other
    /// captures.
    CaptureWait { stream: u8, awaited: u8 },
    /// Reports a stream as destroyed to the allocator.
    StreamDestroyed { stream: u8 },
    /// Turns the cache on or off.
    Caching { on: bool },
    /// Starts a trace of a given length, or stops tracing.
    Trace { capacity: u8 },
    /// Resets the peaks to the present values.
    ResetPeaks,
    /// Resets the accumulated statistics to 0.
    ResetAccumulated,
}

/// The configurations of [`Op::Configure`].
pub const CONFIGS: [&str; 16] = [
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
    "graph_capture_record_stream_reuse:True",
];

/// Configurations of [`Op::Configure`] without `PyTorch`'s moments.
const WITHOUT_PARITY: [&str; 4] = [
    "parity:False",
    "parity:False,garbage_collection_threshold:0.4",
    "parity:False,expandable_segments:True,max_split_size_mb:24",
    "parity:False,graph_capture_record_stream_reuse:True",
];

/// The first number of a configuration with `parity:False`. Generated programs change to the
/// configurations below.
pub const FIRST_WITHOUT_PARITY: u8 = 192;

/// Returns the configuration with a number.
///
/// # Panics
/// If a configuration is rejected; all are valid.
pub fn config(number: u8) -> Config {
    let text = match number.checked_sub(FIRST_WITHOUT_PARITY) {
        Some(number) => WITHOUT_PARITY[usize::from(number) % WITHOUT_PARITY.len()],
        None => CONFIGS[usize::from(number) % CONFIGS.len()],
    };
    cachalot_policies::parse(text).expect("every configuration here is valid")
}

/// Returns the stream with a number: the default stream, small numbers as tests use, or large
/// numbers like handles.
pub fn stream(number: u8) -> StreamId {
    StreamId([0, 7, 0x7f3a_0000_5540, u64::MAX - 1][usize::from(number) % 4])
}

/// Returns the streams whose bits are set.
pub fn streams(bits: u8) -> impl Iterator<Item = StreamId> {
    (0..STREAMS).filter(move |number| bits >> number & 1 == 1).map(stream)
}

/// Returns the number of streams.
pub const STREAMS: u8 = 4;

/// Returns the options of a pool.
pub fn options(use_on_oom: bool, no_split: bool) -> PoolOptions {
    PoolOptions { use_on_oom, no_split }
}

/// Returns the route of one stream, or of all requests.
pub fn route(number: Option<u8>) -> Route {
    number.map_or(Route::All, |number| Route::Stream(stream(number)))
}
