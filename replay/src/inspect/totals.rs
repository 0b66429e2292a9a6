//! Totals of each device.

use super::{EndState, Since, blocks, fragmentation, past};
use cachalot_snapshot::Snapshot;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Totals of a device, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Totals {
    /// Number of the device, or -1 for pinned host memory.
    pub device: i64,
    /// Number of segments.
    pub segments: u64,
    /// Bytes of the segments, reserved from the device.
    pub reserved: u64,
    /// Bytes of parked memory: addresses without memory of the device. Part of no other sum but
    /// those of blocks.
    pub parked: u64,
    /// Bytes that lie on the host (`spill`). Part of `reserved`.
    pub spilled: u64,
    /// Bytes of segments in private pools.
    pub reserved_private: u64,
    /// Number of allocated blocks.
    pub allocations: u64,
    /// Bytes of allocated blocks.
    pub allocated: u64,
    /// Bytes requested by the program in the allocated blocks.
    pub requested: u64,
    /// Bytes freed by the program and still in use on other streams.
    pub pending: u64,
    /// Free bytes.
    pub cached: u64,
    /// Number of free blocks.
    pub free_blocks: u64,
    /// Bytes of the largest free block.
    pub largest_free: u64,
    /// Free bytes that cannot be released.
    pub in_holes: u64,
    /// The largest piece of `in_holes`.
    pub largest_hole: u64,
    /// Fraction of `in_holes` outside the largest piece, 0 to 1.
    pub fragmentation: f64,
    /// Bytes of wholly free segments, and of wholly free pages of expandable segments, which could
    /// be released. Not those in private pools.
    pub releasable: u64,
    /// Bytes of the same in private pools, which keep them as long as their graphs live.
    pub kept: u64,
    /// Number of streams with segments.
    pub streams: u64,
    /// Number of recorded events.
    pub events: u64,
}

pub(super) fn totals(snapshot: &Snapshot, since: &Since) -> Vec<Totals> {
    let mut devices = BTreeMap::<i64, (Totals, BTreeSet<i64>)>::new();
    let large_page = past::large_page(snapshot);
    let host = snapshot.host_segments.iter().flatten();
    for segment in snapshot.segments.iter().chain(host) {
        let (totals, streams) = devices.entry(segment.device).or_default();
        streams.insert(segment.stream);
        totals.segments += 1;
        let parked = segment.parked_size.unwrap_or(0).min(segment.total_size);
        let reserved = segment.total_size - parked;
        totals.parked += parked;
        totals.spilled += segment.spilled_size.unwrap_or(0).min(reserved);
        totals.reserved += reserved;
        let is_private = segment.is_private();
        if is_private {
            totals.reserved_private += reserved;
        }
        for (_, block) in blocks(segment) {
            match EndState::of(block) {
                EndState::Held => {
                    totals.allocations += 1;
                    totals.allocated += block.size;
                    totals.requested += block.requested_size.unwrap_or(block.size);
                }
                EndState::Pending => totals.pending += block.size,
                EndState::Free => {
                    totals.free_blocks += 1;
                    totals.cached += block.size;
                    totals.largest_free = totals.largest_free.max(block.size);
                }
            }
        }
        let free = super::segments::free_of(segment, large_page);
        // What is parked is not reserved, and was free or is asleep.
        totals.in_holes += free.holes.min(reserved);
        totals.largest_hole = totals.largest_hole.max(free.largest_hole.min(reserved));
        *(if is_private { &mut totals.kept } else { &mut totals.releasable }) += free.idle.min(reserved);
    }
    for (device, events) in (0..).zip(&snapshot.device_traces) {
        if !events.is_empty() {
            devices.entry(device).or_default().0.events = events.len().saturating_sub(since.of(device)) as u64;
        }
    }
    let finish = |(device, (mut totals, streams)): (i64, (Totals, BTreeSet<i64>))| {
        totals.device = device;
        totals.streams = streams.len() as u64;
        totals.fragmentation = fragmentation(totals.largest_hole, totals.in_holes);
        totals
    };
    devices.into_iter().map(finish).collect()
}
