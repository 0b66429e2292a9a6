//! The snapshot: every segment and block of a device at one moment, in the terms of PyTorch's
//! `memory_snapshot()`.

use crate::config::rounding::PoolKind;
use crate::pool::PoolId;
use crate::units::{DeviceIndex, DevicePtr, StreamId};
use alloc::vec::Vec;

/// The state of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockState {
    /// The program uses the block.
    ActiveAllocated,
    /// The program freed the block, but other streams still use it, or the frontier has not reached
    /// its count.
    ActivePendingFree,
    /// The block is free, and cached.
    Inactive,
}

impl BlockState {
    /// Returns the state's name in PyTorch's snapshots.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ActiveAllocated => "active_allocated",
            Self::ActivePendingFree => "active_pending_free",
            Self::Inactive => "inactive",
        }
    }
}

/// A block of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotBlock {
    /// The address of the first byte.
    pub address: DevicePtr,
    /// The size in bytes.
    pub size: u64,
    /// How many of its bytes lie on the host (`spill`).
    pub spilled: u64,
    /// The size of the latest request that the block served, in bytes; 0 if it never served one.
    pub requested_size: u64,
    /// The state.
    pub state: BlockState,
    /// The call site of the allocation, as numbered by [`Host::call_site`](crate::Host::call_site);
    /// 0 if it is unknown.
    pub site: u32,
}

/// A segment of a snapshot, or a contiguous mapped part of an expandable segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotSegment {
    /// The device.
    pub device: DeviceIndex,
    /// The address of the first byte.
    pub address: DevicePtr,
    /// The size in bytes.
    pub total_size: u64,
    /// How many bytes of the segment are parked: these addresses have no device memory. They are
    /// part of `total_size`.
    pub parked: u64,
    /// How many bytes of the segment lie on the host (`spill`). They are part of `total_size`.
    pub spilled: u64,
    /// The stream.
    pub stream: StreamId,
    /// The kind of the blocks, small or large.
    pub kind: PoolKind,
    /// The pool.
    pub pool: PoolId,
    /// Whether this is a part of an expandable segment.
    pub is_expandable: bool,
    /// The call site of the allocation of the segment; 0 if it is unknown.
    pub site: u32,
    /// The blocks, in the order of their addresses. They cover the segment without gaps.
    pub blocks: Vec<SnapshotBlock>,
}

impl SnapshotSegment {
    /// Sums `of` over the blocks that have a state selected by `is`.
    fn bytes(&self, is: impl Fn(BlockState) -> bool, of: impl Fn(&SnapshotBlock) -> u64) -> u64 {
        self.blocks.iter().filter(|block| is(block.state)).map(of).sum()
    }

    /// Returns the bytes of the blocks that the program uses.
    pub fn allocated_size(&self) -> u64 {
        self.bytes(|state| state == BlockState::ActiveAllocated, |block| block.size)
    }

    /// Returns the bytes of the blocks that cannot be reused yet, because they are in use or
    /// pending.
    pub fn active_size(&self) -> u64 {
        self.bytes(|state| state != BlockState::Inactive, |block| block.size)
    }

    /// Returns the requested bytes of the blocks that cannot be reused yet.
    pub fn requested_size(&self) -> u64 {
        self.bytes(|state| state != BlockState::Inactive, |block| block.requested_size)
    }
}
