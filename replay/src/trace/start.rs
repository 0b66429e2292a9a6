//! The state at the start of a record from the middle of a program.

use super::{BlockState, Segment};
use std::fmt;

/// The memory before the first event of a record.
#[derive(Debug, Clone, Default)]
pub struct Start {
    /// Every segment with all blocks, by address. A free block with an unknown last request has the
    /// requested size 0.
    pub segments: Vec<Segment>,
    /// Number of blocks with an assumed size: the rounded request, because the history does not
    /// show the size.
    pub assumed: u64,
}

impl Start {
    /// Returns whether no memory was reserved.
    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Returns all blocks that were not free, with the segments, by address.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (&Segment, &super::ExpectedBlock)> {
        let blocks = self.segments.iter().flat_map(|segment| segment.blocks.iter().map(move |block| (segment, block)));
        blocks.filter(|(_, block)| block.state != BlockState::Inactive)
    }

    /// Returns the requested bytes of all live blocks.
    pub(crate) fn live_bytes(&self) -> u64 {
        let held = self.blocks().filter(|(_, block)| block.state == BlockState::ActiveAllocated);
        held.map(|(_, block)| block.requested_size).sum()
    }
}

/// Describes the memory in one line.
impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count: u64, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
        let count = |is: BlockState| self.blocks().filter(|(_, block)| block.state == is).count() as u64;
        let (held, pending) = (count(BlockState::ActiveAllocated), count(BlockState::ActivePendingFree));
        let reserved: u64 = self.segments.iter().map(|segment| segment.total_size).sum();
        write!(f, "the history starts in the middle: {} ({})", plural(held, "block"), size(self.live_bytes()))?;
        if pending > 0 {
            write!(f, " and {}", plural(pending, "pending block"))?;
        }
        write!(f, " in {} ({}) were there before", plural(self.segments.len() as u64, "segment"), size(reserved))?;
        match self.assumed {
            0 => Ok(()),
            1 => f.write_str("; the size of 1 block is assumed"),
            several => write!(f, "; the sizes of {several} blocks are assumed"),
        }
    }
}

/// Formats bytes as GiB, or as MiB below 1 GiB.
pub(crate) fn size(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 1024.0 { format!("{mib:.2} MiB") } else { format!("{:.2} GiB", mib / 1024.0) }
}
