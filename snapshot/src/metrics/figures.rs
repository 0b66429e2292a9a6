//! The figures of each device, and of each pool and stream.

#[cfg(feature = "files")]
use crate::model::Segment;
use cachalot_core::{BlockState, SnapshotSegment};
use std::collections::BTreeMap;

/// The pool and the stream of a segment.
pub(super) type Place = ((u64, u64), i64);

/// The memory of a device, in bytes and counts.
#[derive(Default)]
pub(super) struct DeviceFigures {
    pub(super) reserved: u64,
    pub(super) allocated: u64,
    pub(super) pending: u64,
    pub(super) requested: u64,
    pub(super) free: u64,
    pub(super) largest_free: u64,
    /// Bytes of segments without a block in use.
    pub(super) releasable: u64,
    pub(super) segments: u64,
    /// Number of allocated blocks.
    pub(super) blocks: u64,
    pub(super) places: BTreeMap<Place, PlaceFigures>,
}

/// The memory of a pool and stream, in bytes.
#[derive(Default)]
pub(super) struct PlaceFigures {
    pub(super) reserved: u64,
    pub(super) allocated: u64,
    pub(super) pending: u64,
}

/// The memory of every device.
#[derive(Default)]
pub(super) struct Figures {
    pub(super) devices: BTreeMap<i64, DeviceFigures>,
}

impl Figures {
    /// Adds a segment of a snapshot. A block with an unknown state counts as allocated.
    #[cfg(feature = "files")]
    pub(super) fn add_segment(&mut self, segment: &Segment) {
        let blocks = segment.blocks.iter().map(|block| {
            let state = match &*block.state {
                "inactive" => BlockState::Inactive,
                "active_pending_free" | "active_awaiting_free" => BlockState::ActivePendingFree,
                _ => BlockState::ActiveAllocated,
            };
            (block.size, block.requested_size.unwrap_or(block.size), state)
        });
        let place = (segment.segment_pool_id.unwrap_or_default(), segment.stream);
        self.add(segment.device, place, segment.total_size, blocks);
    }

    /// Adds a segment of an allocator.
    pub(super) fn add_taken(&mut self, segment: &SnapshotSegment) {
        let blocks = segment.blocks.iter().map(|block| (block.size, block.requested_size, block.state));
        let place = ((segment.pool.0, segment.pool.1), segment.stream.0.cast_signed());
        self.add(segment.device.0.into(), place, segment.total_size, blocks);
    }

    fn add(&mut self, device: i64, place: Place, bytes: u64, blocks: impl Iterator<Item = (u64, u64, BlockState)>) {
        let device = self.devices.entry(device).or_default();
        device.segments += 1;
        device.reserved += bytes;
        let of_place = device.places.entry(place).or_default();
        of_place.reserved += bytes;
        let mut in_use = false;
        for (size, requested, state) in blocks {
            in_use |= state != BlockState::Inactive;
            match state {
                BlockState::ActiveAllocated => {
                    device.blocks += 1;
                    device.allocated += size;
                    device.requested += requested;
                    of_place.allocated += size;
                }
                BlockState::ActivePendingFree => {
                    device.pending += size;
                    of_place.pending += size;
                }
                BlockState::Inactive => {
                    device.free += size;
                    device.largest_free = device.largest_free.max(size);
                }
            }
        }
        device.releasable += if in_use { 0 } else { bytes };
    }
}
