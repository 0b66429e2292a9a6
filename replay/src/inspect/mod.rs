//! What a memory snapshot tells: totals, who holds the memory, where free memory is stuck, what failed requests lacked.

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

/// What is told of a snapshot. Sizes are in bytes.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Of each device that has segments or events.
    pub totals: Vec<Totals>,
    /// Each device with events at its peaks.
    pub peaks: Vec<Peak>,
    /// Blocks that are not free, by where they were allocated: those with the most bytes first.
    pub largest: Vec<Group>,
    /// The same by the age of their oldest block: the oldest first. Empty if no events were recorded.
    pub oldest: Vec<Group>,
    /// Segments in use with the most free memory first, which cannot be given back as long as they are.
    pub segments: Vec<SegmentReport>,
    /// Requests that failed, in order.
    pub failures: Vec<Failure>,
}

/// Looks at a snapshot. `most`: how many groups and segments of each kind are told.
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

/// What a block is at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Held,
    Pending,
    Free,
}

impl State {
    /// Of a block; one whose state is not known counts as held.
    fn of(block: &Block) -> Self {
        match &*block.state {
            "inactive" => Self::Free,
            "active_pending_free" | "active_awaiting_free" => Self::Pending,
            _ => Self::Held,
        }
    }
}

/// The blocks of a segment with their addresses, which the oldest snapshots lack.
fn blocks(segment: &Segment) -> impl Iterator<Item = (u64, &Block)> {
    segment.blocks.iter().scan(segment.address, |at, block| {
        let address = block.address.unwrap_or(*at);
        *at = address.saturating_add(block.size);
        Some((address, block))
    })
}

/// A part of a whole, 0 to 1; 0 of nothing.
fn part(of: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { of as f64 / whole as f64 }
}

/// How much of the free memory is not in its largest block: 0 if it is one block, or there is none.
fn fragmentation(largest: u64, free: u64) -> f64 {
    if free == 0 { 0.0 } else { 1.0 - part(largest, free) }
}

/// The frames of a stack as lines, the innermost first.
fn lines(stack: &Stack) -> Vec<String> {
    let line = |frame: &cachalot_snapshot::Frame| format!("{}:{} {}", frame.filename, frame.line, frame.name);
    stack.frames().iter().map(|frame| line(frame)).collect()
}
