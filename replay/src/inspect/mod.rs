//! Reports on memory snapshots: totals, holders of memory, fragmentation, failed requests.

mod failures;
mod groups;
mod history;
mod holdings;
mod lines;
mod past;
mod peaks;
mod segments;
mod totals;

pub use failures::{Failure, RefusedBy, Remedy};
pub use groups::{By, Group, Lists};
pub use history::{Change, History, Life};
pub use holdings::{Holding, holdings};
pub use lines::StackLines;
pub use past::Placement;
pub use peaks::{Peak, PeakOf};
pub use segments::SegmentReport;
pub use totals::Totals;

pub(crate) use past::{large_page, page};
pub(crate) use segments::at_end as segments_at_end;

use cachalot_snapshot::{Block, Segment, Snapshot};
use serde::Serialize;
use std::collections::BTreeMap;

/// The report on a snapshot. Sizes are in bytes.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Totals of each device with segments or events.
    pub totals: Vec<Totals>,
    /// The peaks of each device with more than one event.
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

/// The first events of a report, by device. Peaks and failures before them are not in the report;
/// what they tell of blocks is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Since(pub BTreeMap<i64, usize>);

impl Since {
    /// Returns the number of a device's events before the report.
    fn of(&self, device: i64) -> usize {
        self.0.get(&device).copied().unwrap_or(0)
    }
}

/// Reports on a snapshot, from its first events on.
pub fn inspect(snapshot: &Snapshot, since: &Since, lists: Lists) -> Report {
    let live = groups::live(snapshot, since);
    let mut peaks = peaks::peaks(snapshot, since, lists);
    // One event, as with enabled='state', is no history.
    let events = |device: i64| snapshot.device_traces.get(usize::try_from(device).ok()?).map(Vec::len);
    peaks.retain(|peak| events(peak.device) != Some(1));
    Report {
        totals: totals::totals(snapshot, since),
        peaks,
        largest: groups::largest(&live, lists),
        oldest: groups::oldest(snapshot, &live, lists),
        segments: segments::fragmented(snapshot, lists.most),
        failures: failures::failures(snapshot, since),
    }
}

/// The state of a block at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EndState {
    Held,
    Pending,
    Free,
}

impl EndState {
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

/// The time of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// The end.
    End,
    /// The first peak of reserved memory. Devices without events are left out.
    Reserved,
    /// The first peak of memory in use: allocated or pending. Devices without events are left out.
    Allocated,
}

/// Totals of a device at a time, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Sums {
    /// Memory reserved from the device.
    pub reserved: u64,
    /// Memory of allocated blocks.
    pub allocated: u64,
    /// Memory freed by the program and still in use on other streams.
    pub pending: u64,
}

/// Returns the totals by device, and all groups of blocks that are not free.
pub(crate) fn held(snapshot: &Snapshot, since: &Since, at: At, by: By) -> (Vec<(i64, Sums)>, Vec<Group>) {
    if at == At::End {
        let of = |totals: Totals| {
            let Totals { reserved, allocated, pending, .. } = totals;
            (totals.device, Sums { reserved, allocated, pending })
        };
        let totals = totals::totals(snapshot, since).into_iter().map(of).collect();
        return (totals, groups::group(&groups::live(snapshot, since), by));
    }
    let other = if at == At::Reserved { PeakOf::InUse } else { PeakOf::Reserved };
    let mut peaks = peaks::peaks(snapshot, since, Lists { most: usize::MAX, by });
    peaks.retain(|peak| peak.of != other);
    let of = |peak: &Peak| {
        let Peak { reserved, allocated, pending, .. } = *peak;
        (peak.device, Sums { reserved, allocated, pending })
    };
    (peaks.iter().map(of).collect(), peaks.into_iter().flat_map(|peak| peak.largest).collect())
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
