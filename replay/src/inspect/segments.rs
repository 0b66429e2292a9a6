//! Segments in use with much free memory that cannot be released.

use super::{EndState, blocks, fragmentation, past};
use crate::memory::{FreeMemory, free_between};
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
    /// Bytes that lie on the host (`spill`).
    pub spilled: u64,
    /// Bytes of allocated blocks.
    pub allocated: u64,
    /// Bytes still in use on other streams.
    pub pending: u64,
    /// Free bytes that cannot be released while the segment is in use: all but wholly free pages.
    pub free: u64,
    /// Number of free blocks.
    pub free_blocks: u64,
    /// Bytes of the largest piece of `free`.
    pub largest_free: u64,
    /// Fraction of the free memory outside the largest block, 0 to 1.
    pub fragmentation: f64,
    /// Number of blocks in use, which prevent the release of the segment.
    pub blocks_in_use: u64,
}

fn report(segment: &Segment, large_page: u64) -> SegmentReport {
    let mut report = SegmentReport {
        device: segment.device,
        address: segment.address,
        stream: segment.stream,
        pool: segment.segment_pool_id.unwrap_or_default(),
        is_expandable: segment.is_expandable.unwrap_or_default(),
        total: segment.total_size,
        spilled: segment.spilled_size.unwrap_or(0),
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
            EndState::Free => report.free_blocks += 1,
        }
        report.blocks_in_use += u64::from(EndState::of(block) != EndState::Free);
    }
    let free = free_of(segment, large_page);
    (report.free, report.largest_free) = (free.holes, free.largest_hole);
    report.fragmentation = fragmentation(report.largest_free, report.free);
    report
}

/// Returns the device, the reserved bytes and the free memory of each segment at the end, and
/// whether its pool is private. Parked memory is not reserved, and a park gives up what is free.
pub(crate) fn at_end(snapshot: &Snapshot) -> impl Iterator<Item = (i64, u64, FreeMemory, bool)> {
    let large_page = past::large_page(snapshot);
    snapshot.segments.iter().filter_map(move |segment| {
        let reserved = segment.total_size.saturating_sub(segment.parked_size.unwrap_or(0));
        let free = free_of(segment, large_page);
        let (idle, holes) = (free.idle.min(reserved), free.holes.min(reserved));
        let free = FreeMemory { idle, holes, ..free };
        (reserved > 0).then_some((segment.device, reserved, free, segment.is_private()))
    })
}

/// Returns the free memory of a segment.
pub(super) fn free_of(segment: &Segment, large_page: u64) -> FreeMemory {
    let used = blocks(segment).filter(|(_, block)| EndState::of(block) != EndState::Free);
    let end = segment.address.saturating_add(segment.total_size);
    let page = past::page(segment, large_page);
    free_between(segment.address, end, page, used.map(|(address, block)| (address, block.size)))
}

/// Returns the segments in use with the most free memory.
pub(super) fn fragmented(snapshot: &Snapshot, most: usize) -> Vec<SegmentReport> {
    let large_page = past::large_page(snapshot);
    let mut reports: Vec<_> = snapshot.segments.iter().map(|segment| report(segment, large_page)).collect();
    reports.retain(|report| report.blocks_in_use > 0 && report.free > 0);
    reports.sort_by_key(|report| (Reverse(report.free), report.device, report.address));
    reports.truncate(most);
    reports
}
