//! Segments in use with much free memory, which cannot be released.

use super::{EndState, blocks, fragmentation};
use cachalot_snapshot::{Segment, Snapshot};
use serde::Serialize;
use std::cmp::Reverse;

/// A segment, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SegmentReport {
    /// The device.
    pub device: i64,
    /// Address of the first byte.
    pub address: u64,
    /// The stream.
    pub stream: i64,
    /// The pool. `[0, 0]` is the default pool.
    pub pool: (u64, u64),
    /// Whether the segment is part of an expandable segment.
    pub is_expandable: bool,
    /// Length.
    pub total: u64,
    /// Bytes of allocated blocks.
    pub allocated: u64,
    /// Bytes still in use on other streams.
    pub pending: u64,
    /// Free bytes.
    pub free: u64,
    /// Number of free blocks.
    pub free_blocks: u64,
    /// Bytes of the largest free block.
    pub largest_free: u64,
    /// Fraction of the free memory outside the largest block, 0 to 1.
    pub fragmentation: f64,
    /// Number of blocks in use, which prevent the release of the segment.
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
        match EndState::of(block) {
            EndState::Held => report.allocated += block.size,
            EndState::Pending => report.pending += block.size,
            EndState::Free => {
                report.free += block.size;
                report.free_blocks += 1;
                report.largest_free = report.largest_free.max(block.size);
            }
        }
        report.blocks_in_use += u64::from(EndState::of(block) != EndState::Free);
    }
    report.fragmentation = fragmentation(report.largest_free, report.free);
    report
}

/// Returns the segments in use with the most free memory.
pub(super) fn fragmented(snapshot: &Snapshot, most: usize) -> Vec<SegmentReport> {
    let mut reports: Vec<_> = snapshot.segments.iter().map(report).collect();
    reports.retain(|report| report.blocks_in_use > 0 && report.free > 0);
    reports.sort_by_key(|report| (Reverse(report.free), report.device, report.address));
    reports.truncate(most);
    reports
}
