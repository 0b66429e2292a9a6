//! A block that the run holds.

use crate::checker::Row;
use crate::stage::{Line, block_region};
use crate::visit::Visit;
use cachalot_core::{DevicePtr, StreamId};
use cachalot_kernels::{Life, Region};
use std::sync::Arc;

/// A block that the allocator handed out and that was not freed yet.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) ptr: DevicePtr,
    /// As many as were asked for.
    pub(crate) bytes: u64,
    /// The device whose memory it is, by its place.
    pub(crate) device: usize,
    /// The stream that it was obtained on.
    pub(crate) home: StreamId,
    /// What was written to it last.
    pub(crate) life: Life,
    /// Whether that is known to have been written.
    pub(crate) written: bool,
    /// Stays of other streams that may not be over.
    pub(crate) visits: Vec<Arc<Visit>>,
    /// Its memory is claimed for it alone; that of a graph's blocks is claimed for the graph.
    pub(crate) claimed: bool,
}

impl Block {
    /// What kernels may use.
    pub(crate) fn region(&self) -> Region {
        // SAFETY: a block is memory that the allocator handed out and that nobody else was given; it is freed only behind
        // the kernels that use it, in the order of its stream or announced by `record_stream`.
        unsafe { block_region(self.ptr, self.bytes) }
    }

    /// The block as kernels fill and check it.
    pub(crate) fn row(&self) -> Row {
        (self.region(), self.life)
    }

    /// Whether `line` is another stream than its own.
    pub(crate) fn is_abroad(&self, line: Line) -> bool {
        self.home != line.id
    }

    /// Notes a stay. One that began earlier on the same stream is over by then.
    pub(crate) fn add_visit(&mut self, visit: &Arc<Visit>) {
        self.visits.retain(|earlier| earlier.stream() != visit.stream());
        self.visits.push(Arc::clone(visit));
    }
}
