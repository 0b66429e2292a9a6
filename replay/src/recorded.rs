//! The memory of a recording: sums of its events, without a replay.

use crate::memory::{self, Block, HistoryReader, Memory, Part, SMALL_PAGE, Stuck};
use crate::trace::{Action, BlockState, Event, ExpectedBlock, Pools, RecordFacts, Segment, Trace};
use cachalot_core::PoolId;
use std::collections::{HashMap, HashSet};

/// The memory of a recording: held from the device, and live for the program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordedPeaks {
    /// Peak of the bytes reserved from the device.
    pub peak_reserved_bytes: u64,
    /// Peak of the requested bytes of all live blocks.
    pub peak_live_bytes: u64,
    /// Number of failed requests.
    pub ooms: u64,
    /// Size of the largest failed request in bytes.
    pub largest_failed_bytes: u64,
    /// The memory when the most was in use, for the first time.
    pub fullest: Stuck,
    /// Bytes of the segments outside of private pools that were idle before the first event, that
    /// no request of the history used, and that were still held at the peak: without them, the
    /// history would have been the same. 0 for a record that does not have its segments.
    pub idle_before_bytes: u64,
    /// Bytes of the segments of private pools that were idle before the first event, that no
    /// request of the history used, and that were still held when the first request failed. A
    /// replay starts without them, and they count for the limit.
    pub kept_before_bytes: u64,
    /// Whether the first failed request was refused although the device had enough free memory: by
    /// a limit of the process.
    pub was_refused_by_limit: bool,
    /// The memory limit in bytes: the recorded limit, or the limit implied by the first failed
    /// request.
    pub limit_bytes: Option<u64>,
    /// Whether the record tells the limit, or the memory that was held when the first request
    /// failed.
    pub tells_limit: bool,
}

/// The memory of a record. A part has the number of its stream, and whether its pool is private.
struct RecordFold<'t> {
    memory: Memory<(u64, bool), ()>,
    pools: &'t Pools,
    /// The sizes of blocks that are allocated at the end, by the number of the request's event.
    sizes: HashMap<usize, u64>,
    events: &'t [Event],
    large_page: u64,
}

/// Returns whether a replay holds other memory than the recording, by more than a two-hundredth: it
/// starts without the idle memory, or has other addresses.
pub fn differ(recorded_bytes: u64, replayed_bytes: u64) -> bool {
    replayed_bytes.abs_diff(recorded_bytes) as f64 > 0.005 * recorded_bytes as f64
}

impl RecordedPeaks {
    /// Adds up the events of a record.
    pub fn of(trace: &Trace) -> Self {
        let fold = || RecordFold::begin(trace);
        let mut recorded = Self { limit_bytes: trace.limit_bytes(), ..Self::default() };
        let (mut walk, mut live) = (fold(), trace.start.as_ref().map_or(0, crate::trace::Start::live_bytes));
        let in_use = |walk: &RecordFold<'_>| walk.memory.allocated() + walk.memory.pending();
        let (mut most, mut fullest, mut refused_at) = (in_use(&walk), 0, None);
        recorded.peak_reserved_bytes = walk.memory.reserved();
        recorded.peak_live_bytes = live;
        let mut reserved_at = 0;
        for (number, event) in trace.events.iter().enumerate() {
            walk.apply(number);
            match event.action {
                Action::Alloc => live += event.size,
                Action::FreeRequested => live -= event.size,
                Action::OutOfMemory => {
                    recorded.ooms += 1;
                    recorded.largest_failed_bytes = recorded.largest_failed_bytes.max(event.size);
                    refused_at.get_or_insert((walk.memory.reserved(), event.size, number));
                }
                _ => {}
            }
            if walk.memory.reserved() > recorded.peak_reserved_bytes {
                (recorded.peak_reserved_bytes, reserved_at) = (walk.memory.reserved(), number + 1);
            }
            recorded.peak_live_bytes = recorded.peak_live_bytes.max(live);
            if in_use(&walk) > most {
                (most, fullest) = (in_use(&walk), number + 1);
            }
        }
        recorded.idle_before_bytes = if trace.is_rebuilt { 0 } else { unused(trace, reserved_at, false) };
        recorded.peak_reserved_bytes = trace.stated_peak_bytes.unwrap_or(recorded.peak_reserved_bytes);
        let mut again = fold();
        (0..fullest).for_each(|number| again.apply(number));
        recorded.fullest = again.memory.stuck(|(_, is_private)| is_private);
        // A log of calls alone does not tell what was held when a request failed.
        let tells_reserved = trace.expected.as_ref().is_none_or(|end| !end.end_is_unknown);
        recorded.tells_limit = recorded.limit_bytes.is_some() || (refused_at.is_some() && tells_reserved);
        recorded.kept_before_bytes = refused_at.map_or(0, |(_, _, number)| unused(trace, number, true));
        if let (None, Some((reserved, wanted, _))) = (recorded.limit_bytes, refused_at) {
            // A device with enough free memory refused for a limit, which is above all that was
            // held.
            recorded.was_refused_by_limit = trace.device_free.is_some_and(|free| free >= wanted);
            let left = trace.device_free.filter(|&free| free < wanted).unwrap_or(0);
            recorded.limit_bytes = Some(recorded.peak_reserved_bytes.max(reserved.saturating_add(left)));
        }
        recorded
    }
}

impl<'t> RecordFold<'t> {
    fn begin(trace: &'t Trace) -> Self {
        let config = cachalot_policies::parse(trace.config()).unwrap_or_default();
        let mut fold = Self {
            memory: Memory::default(),
            pools: &trace.pools,
            sizes: sizes(trace),
            events: &trace.events,
            large_page: config.large_segment_size(),
        };
        let freed = freed(trace);
        for segment in trace.start.iter().flat_map(|start| &start.segments) {
            let end = segment.address.saturating_add(segment.total_size);
            let page = fold.page(segment);
            fold.memory.insert(segment.address, Part { end, page, of: (segment.stream, segment.is_private()) });
            for block in segment.blocks.iter().filter(|block| block.state != BlockState::Inactive) {
                let pending = block.state == BlockState::ActivePendingFree;
                let size = freed.get(&block.address).copied().unwrap_or(block.size);
                fold.memory.set_block(block.address, Some(Block { size, pending, of: () }));
            }
        }
        fold
    }

    fn page(&self, segment: &Segment) -> u64 {
        match (segment.is_expandable, segment.segment_type.as_str()) {
            (false, _) => 0,
            (true, "small") => SMALL_PAGE,
            (true, _) => self.large_page,
        }
    }

    /// Makes the changes of event number `number`.
    fn apply(&mut self, number: usize) {
        let (pools, large_page) = (self.pools, self.large_page);
        let size = self.sizes.get(&number).copied();
        self.memory.apply(&self.events[number], &mut RecordReader { pools, large_page, size });
    }
}

/// Reads an event of a record.
struct RecordReader<'t> {
    pools: &'t Pools,
    large_page: u64,
    /// The size of the block, if it is known.
    size: Option<u64>,
}

impl HistoryReader for RecordReader<'_> {
    type Part = (u64, bool);
    type Block = ();
    type Event = RecordFacts;

    fn part(&mut self, event: &Event, _: &Memory<(u64, bool), ()>) -> Part<(u64, bool)> {
        let is_private = self.pools.of(event).is_some_and(|pool| pool != PoolId::DEFAULT);
        Part { end: event.end(), page: event.page(self.large_page), of: (event.of.stream, is_private) }
    }

    fn block(&mut self, event: &Event, _: &Memory<(u64, bool), ()>) -> Block<()> {
        let size = self.size.unwrap_or_else(|| memory::rounded(event.size));
        Block { size, pending: false, of: () }
    }

    fn join(&self, new: &mut Part<(u64, bool)>, beside: &Part<(u64, bool)>, _: bool) -> bool {
        new.of == beside.of
    }
}

/// Returns the bytes of the segments of private pools, or of the others, that were idle before the
/// first event, that no request used, and that were held before event number `peak`.
fn unused(trace: &Trace, peak: usize, is_private: bool) -> u64 {
    let is_idle = |segment: &&Segment| {
        segment.is_private() == is_private && segment.blocks.iter().all(|block| block.state == BlockState::Inactive)
    };
    let mut idle = Memory::default();
    for segment in trace.start.iter().flat_map(|start| &start.segments).filter(is_idle) {
        let end = segment.address.saturating_add(segment.total_size);
        idle.insert(segment.address, Part { end, page: 0, of: (segment.stream, false) });
    }
    let mut reader = RecordReader { pools: &trace.pools, large_page: SMALL_PAGE, size: None };
    // What is released after the peak was idle at it, and cannot be used any more.
    let mut released = 0;
    for (number, event) in trace.events.iter().enumerate() {
        if event.action == Action::Alloc {
            let used = idle.part_at(event.addr).map(|(start, part)| (start, part.end));
            used.into_iter().for_each(|(start, end)| idle.cut(start, end, &mut reader));
        } else if event.action.is_release() {
            let before = idle.reserved();
            idle.apply(event, &mut reader);
            if number >= peak {
                released += before - idle.reserved();
            }
        }
    }
    idle.reserved() + released
}

/// Returns the sizes of blocks that are allocated at the end, by the number of the request's event.
/// A history has only the requested sizes.
fn sizes(trace: &Trace) -> HashMap<usize, u64> {
    let segments = trace.expected.iter().flat_map(|expected| &expected.segments);
    let used = segments.flat_map(|segment| &segment.blocks).filter(|block| block.state != BlockState::Inactive);
    let mut left: HashMap<u64, u64> = used.map(|&ExpectedBlock { address, size, .. }| (address, size)).collect();
    let mut sizes = HashMap::new();
    for (number, event) in trace.events.iter().enumerate().rev().filter(|(_, event)| event.action == Action::Alloc) {
        if left.is_empty() {
            break;
        }
        if let Some(size) = left.remove(&event.addr) {
            sizes.insert(number, size);
        }
    }
    sizes
}

/// Returns the sizes of blocks from before the first event that are freed later, by address. As
/// every block that is freed, such a block counts with the rounded request.
fn freed(trace: &Trace) -> HashMap<u64, u64> {
    let mut held: HashSet<u64> =
        trace.start.iter().flat_map(crate::trace::Start::blocks).map(|(_, block)| block.address).collect();
    let mut freed = HashMap::new();
    for event in &trace.events {
        if event.action == Action::FreeCompleted && held.remove(&event.addr) {
            freed.insert(event.addr, memory::rounded(event.size));
        }
    }
    freed
}
