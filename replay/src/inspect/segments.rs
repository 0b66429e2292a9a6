//! Where free memory is stuck: segments that are in use, and of which much is free.

use super::{State, blocks, fragmentation};
use cachalot_snapshot::{Segment, Snapshot};
use serde::Serialize;
use std::cmp::Reverse;

/// A segment, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SegmentReport {
    /// Its device.
    pub device: i64,
    /// Its first byte.
    pub address: u64,
    /// Its stream.
    pub stream: i64,
    /// Its pool; `[0, 0]` is the default one.
    pub pool: (u64, u64),
    /// Whether it is part of an expandable segment.
    pub is_expandable: bool,
    /// Its length.
    pub total: u64,
    /// How much the program holds of it.
    pub allocated: u64,
    /// How much other streams still use.
    pub pending: u64,
    /// How much is free.
    pub free: u64,
    /// In how many blocks.
    pub free_blocks: u64,
    /// The largest of those.
    pub largest_free: u64,
    /// How much of the free memory is not in the largest block, 0 to 1.
    pub fragmentation: f64,
    /// How many blocks keep it from being given back.
    pub blocks_in_use: u64,
}

fn report(segment: &Segment) -> SegmentReport {
    let mut report = SegmentReport {
        device: segment.device,
        address: segment.address,
        stream: segment.stream,
        pool: segment.segment_pool_id.unwrap_or_default(),
        is_expandable: segment.is_expandable.unwrap_or_default(),
        total: segment.total_size,
        allocated: 0,
        pending: 0,
        free: 0,
        free_blocks: 0,
        largest_free: 0,
        fragmentation: 0.0,
        blocks_in_use: 0,
    };
    for (_, block) in blocks(segment) {
        match State::of(block) {
            State::Held => report.allocated += block.size,
            State::Pending => report.pending += block.size,
            State::Free => {
                report.free += block.size;
                report.free_blocks += 1;
                report.largest_free = report.largest_free.max(block.size);
            }
        }
        report.blocks_in_use += u64::from(State::of(block) != State::Free);
    }
    report.fragmentation = fragmentation(report.largest_free, report.free);
    report
}

/// The segments in use with the most free memory.
pub(super) fn fragmented(snapshot: &Snapshot, most: usize) -> Vec<SegmentReport> {
    let mut reports: Vec<_> = snapshot.segments.iter().map(report).collect();
    reports.retain(|report| report.blocks_in_use > 0 && report.free > 0);
    reports.sort_by_key(|report| (Reverse(report.free), report.device, report.address));
    reports.truncate(most);
    reports
}
