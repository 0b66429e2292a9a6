//! Restores the state in which a record starts, for a record from the middle of a program.

use super::follow::{Follower, RecordedBlock};
use crate::program::{DEVICE, Operation};
use crate::trace::{BlockState, Segment, Start};
use cachalot_core::{
    BlockState as State, DeviceIndex, DevicePtr, Error, PoolId, PoolKind, SnapshotBlock, SnapshotSegment, StreamId,
};

impl Follower<'_> {
    /// Puts the allocator into the state before the first event.
    ///
    /// Restores the recorded segments block by block. The recorded program instead starts with
    /// requests for the same blocks, in the order of addresses. On another allocator, such requests
    /// come close to the recorded state.
    pub(super) fn begin(&mut self, start: &Start) -> Result<(), Error> {
        let segments: Vec<SnapshotSegment> = start.segments.iter().map(segment).collect();
        for segment in &segments {
            if segment.pool != PoolId::DEFAULT {
                // Its segments are released once its graphs are destroyed.
                self.run.keep(segment.pool)?;
            }
            self.recorded_bytes += segment.total_size;
        }
        self.run.device().script_addresses(self.ranges.first_addresses(start));
        self.run.allocator.restore(DEVICE, &segments)?;
        let mut route = PoolId::DEFAULT;
        for (segment, block) in start.blocks() {
            let pool = PoolId(segment.segment_pool_id.0, segment.segment_pool_id.1);
            if std::mem::replace(&mut route, pool) != pool {
                self.program.operations.push(Operation::Route { pool });
            }
            let (bytes, stream, slot) = (block.requested_size, StreamId(segment.stream), self.program.slots);
            self.program.slots += 1;
            self.program.operations.push(Operation::Malloc { bytes, stream, slot });
            self.run.blocks.push(DevicePtr(block.address));
            self.held.insert(block.address, RecordedBlock { slot, waits_for: None });
        }
        if route != PoolId::DEFAULT {
            self.program.operations.push(Operation::Route { pool: PoolId::DEFAULT });
        }
        for (_, block) in start.blocks().filter(|(_, block)| block.state == BlockState::ActivePendingFree) {
            self.free_and_wait(block.address)?;
        }
        Ok(())
    }
}

/// Returns a segment in the core's terms. A pending block is restored as allocated, for a later
/// free.
fn segment(segment: &Segment) -> SnapshotSegment {
    let blocks = segment.blocks.iter().map(|block| SnapshotBlock {
        address: DevicePtr(block.address),
        size: block.size,
        spilled: 0,
        requested_size: block.requested_size,
        state: if block.state == BlockState::Inactive { State::Inactive } else { State::ActiveAllocated },
        site: 0,
    });
    SnapshotSegment {
        device: DeviceIndex(0),
        address: DevicePtr(segment.address),
        total_size: segment.total_size,
        parked: 0,
        spilled: 0,
        stream: StreamId(segment.stream),
        kind: if segment.segment_type == "small" { PoolKind::Small } else { PoolKind::Large },
        pool: PoolId(segment.segment_pool_id.0, segment.segment_pool_id.1),
        is_expandable: segment.is_expandable,
        site: 0,
        blocks: blocks.collect(),
    }
}
