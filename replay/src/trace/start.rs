//! The state in which a record begins, if it begins in the middle of its program.

use super::{BlockState, Segment};
use std::fmt;

/// What was there before the first event of a record.
#[derive(Debug, Clone, Default)]
pub struct Start {
    /// Every segment with its blocks, by address. Free blocks whose last request is not known have a requested size of 0.
    pub segments: Vec<Segment>,
    /// Blocks whose sizes the history does not show: they count as their requests, rounded.
    pub assumed: u64,
}

impl Start {
    /// Whether nothing was there.
    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// The blocks that were not free, with their segments, by address.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (&Segment, &super::Block)> {
        let blocks = self.segments.iter().flat_map(|segment| segment.blocks.iter().map(move |block| (segment, block)));
        blocks.filter(|(_, block)| block.state != BlockState::Inactive)
    }

    /// Bytes that the program had asked for and not given back.
    pub(crate) fn live_bytes(&self) -> u64 {
        let held = self.blocks().filter(|(_, block)| block.state == BlockState::ActiveAllocated);
        held.map(|(_, block)| block.requested_size).sum()
    }
}

/// One line: what was there.
impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count: u64, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
        let count = |is: BlockState| self.blocks().filter(|(_, block)| block.state == is).count() as u64;
        let (held, pending) = (count(BlockState::ActiveAllocated), count(BlockState::ActivePendingFree));
        let reserved: u64 = self.segments.iter().map(|segment| segment.total_size).sum();
        write!(f, "the history begins in the middle: {} ({})", plural(held, "block"), size(self.live_bytes()))?;
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

/// Bytes as GiB, or as MiB below one.
fn size(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 1024.0 { format!("{mib:.2} MiB") } else { format!("{:.2} GiB", mib / 1024.0) }
}
