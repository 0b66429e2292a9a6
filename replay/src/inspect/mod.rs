//! Reports on memory snapshots: totals, holders of memory, fragmentation, failed requests.

mod failures;
mod groups;
mod past;
mod peaks;
mod segments;
mod totals;

pub use failures::{Failure, Remedy};
pub use groups::Group;
pub use peaks::{Peak, PeakOf};
pub use segments::SegmentReport;
pub use totals::Totals;

use cachalot_snapshot::{Block, Segment, Snapshot, Stack};
use serde::Serialize;

/// The report on a snapshot. Sizes are in bytes.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Totals of each device with segments or events.
    pub totals: Vec<Totals>,
    /// The peaks of each device with events.
    pub peaks: Vec<Peak>,
    /// Blocks not free, by the place of the allocation: the groups with the most bytes first.
    pub largest: Vec<Group>,
    /// Blocks not free, by the place of the allocation: the groups with the oldest block first.
    /// Empty without recorded events.
    pub oldest: Vec<Group>,
    /// Segments in use, the most free memory first. A segment in use cannot be released.
    pub segments: Vec<SegmentReport>,
    /// Failed requests, in order.
    pub failures: Vec<Failure>,
}

/// Reports on a snapshot. `most` limits the number of groups and segments in each list.
pub fn inspect(snapshot: &Snapshot, most: usize) -> Report {
    let live = groups::live(snapshot);
    Report {
        totals: totals::totals(snapshot),
        peaks: peaks::peaks(snapshot, most),
        largest: groups::largest(&live, most),
        oldest: groups::oldest(snapshot, &live, most),
        segments: segments::fragmented(snapshot, most),
        failures: failures::failures(snapshot),
    }
}

/// The state of a block at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Held,
    Pending,
    Free,
}

impl State {
    /// Returns the state of a block. An unknown state counts as allocated.
    fn of(block: &Block) -> Self {
        match &*block.state {
            "inactive" => Self::Free,
            "active_pending_free" | "active_awaiting_free" => Self::Pending,
            _ => Self::Held,
        }
    }
}

/// Returns the blocks of a segment with addresses, also for the oldest snapshots, which have none.
fn blocks(segment: &Segment) -> impl Iterator<Item = (u64, &Block)> {
    segment.blocks.iter().scan(segment.address, |at, block| {
        let address = block.address.unwrap_or(*at);
        *at = address.saturating_add(block.size);
        Some((address, block))
    })
}

/// Returns a part as a fraction of a whole, or 0 for an empty whole.
fn part(of: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { of as f64 / whole as f64 }
}

/// Returns the fraction of free memory outside the largest block: 0 for a single block and without
/// free memory.
fn fragmentation(largest: u64, free: u64) -> f64 {
    if free == 0 { 0.0 } else { 1.0 - part(largest, free) }
}

/// Formats the frames of a stack as lines, the innermost first.
fn lines(stack: &Stack) -> Vec<String> {
    let line = |frame: &cachalot_snapshot::Frame| format!("{}:{} {}", frame.filename, frame.line, frame.name);
    stack.frames().iter().map(|frame| line(frame)).collect()
}
