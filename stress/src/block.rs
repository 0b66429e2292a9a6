//! A live block of the run.

use crate::checker::Row;
use crate::stage::{Line, block_region};
use crate::visit::Visit;
use cachalot_core::{DevicePtr, StreamId};
use cachalot_kernels::{Life, Region};
use std::sync::Arc;

/// A block that the allocator has served and the run has not freed yet.
#[derive(Debug)]
pub(crate) struct Block {
    /// The block's address.
    pub(crate) ptr: DevicePtr,
    /// Requested bytes.
    pub(crate) bytes: u64,
    /// Index of the device with the memory.
    pub(crate) device: usize,
    /// The stream of the request.
    pub(crate) home: StreamId,
    /// The pattern last written to the block.
    pub(crate) life: Life,
    /// Whether the write of the pattern was queued without an error.
    pub(crate) written: bool,
    /// Uses by other streams that may be incomplete.
    pub(crate) visits: Vec<Arc<Visit>>,
    /// Whether the block has its own claim in the shadow map. The claim of a graph's block
    /// belongs to the graph.
    pub(crate) claimed: bool,
}

impl Block {
    /// Returns the block's memory for use by kernels.
    pub(crate) fn region(&self) -> Region {
        // SAFETY: the allocator has served the block to this run only. The block is freed only
        // after the kernels that use the memory: in the order of the block's stream, or announced
        // by `record_stream`.
        unsafe { block_region(self.ptr, self.bytes) }
    }

    /// Returns the block's memory and pattern, for filling and checking.
    pub(crate) fn row(&self) -> Row {
        (self.region(), self.life)
    }

    /// Returns whether `line` is another stream than the block's own.
    pub(crate) fn is_foreign_to(&self, line: Line) -> bool {
        self.home != line.id
    }

    /// Adds a use by another stream. Replaces an earlier use on the stream of `visit`, which ends
    /// before the new use.
    pub(crate) fn add_visit(&mut self, visit: &Arc<Visit>) {
        self.visits.retain(|earlier| earlier.stream() != visit.stream());
        self.visits.push(Arc::clone(visit));
    }
}
