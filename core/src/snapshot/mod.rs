//! The snapshot: every segment and block as they stand, in the terms of PyTorch's `memory_snapshot()`.

pub mod memory_map;

use crate::config::rounding::PoolKind;
use crate::pool::PoolId;
use crate::units::{DeviceIndex, DevicePtr, StreamId};
use alloc::vec::Vec;

/// What a block is to the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockState {
    /// The program holds it.
    ActiveAllocated,
    /// The program freed it, and other streams still use it, or the frontier has not reached its count.
    ActivePendingFree,
    /// It is cached.
    Inactive,
}

impl BlockState {
    /// The name in PyTorch's snapshots.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ActiveAllocated => "active_allocated",
            Self::ActivePendingFree => "active_pending_free",
            Self::Inactive => "inactive",
        }
    }
}

/// One block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotBlock {
    /// Its first byte.
    pub address: DevicePtr,
    /// Its length in bytes.
    pub size: u64,
    /// What the program asked for when it was last handed out; 0 if it never was.
    pub requested_size: u64,
    /// What it is now.
    pub state: BlockState,
    /// Where in the program it was allocated, as the host [numbers](DeviceMemory::call_site) its places; 0 if it is not known.
    pub site: u32,
}

/// One segment, or one contiguous mapped part of an expandable one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotSegment {
    /// Its device.
    pub device: DeviceIndex,
    /// Its first byte.
    pub address: DevicePtr,
    /// Its length in bytes.
    pub total_size: u64,
    /// Its stream.
    pub stream: StreamId,
    /// Its kind.
    pub kind: PoolKind,
    /// Its pool.
    pub pool: PoolId,
    /// Whether it is part of an expandable segment.
    pub is_expandable: bool,
    /// Where in the program it was obtained, as of a block.
    pub site: u32,
    /// Its blocks, by address; they tile it.
    pub blocks: Vec<SnapshotBlock>,
}

impl SnapshotSegment {
    fn bytes(&self, is: impl Fn(BlockState) -> bool, of: impl Fn(&SnapshotBlock) -> u64) -> u64 {
        self.blocks.iter().filter(|block| is(block.state)).map(of).sum()
    }

    /// Bytes of the blocks that the program holds.
    pub fn allocated_size(&self) -> u64 {
        self.bytes(|state| state == BlockState::ActiveAllocated, |block| block.size)
    }

    /// Bytes of the blocks that cannot be reused.
    pub fn active_size(&self) -> u64 {
        self.bytes(|state| state != BlockState::Inactive, |block| block.size)
    }

    /// What the program asked for, of the blocks that cannot be reused.
    pub fn requested_size(&self) -> u64 {
        self.bytes(|state| state != BlockState::Inactive, |block| block.requested_size)
    }
}
