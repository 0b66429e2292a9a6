//! The contents of blocks while their heap is parked: what the end of a free would do to them is
//! postponed until the wake.
//!
//! A fill is work, just like a kernel. A park unmaps pages once the work on them is complete, so
//! from some point on, the end of a free must not queue more work. Blocks become free anyway, and
//! the wake fills the free memory.

use crate::heap::Heap;
use crate::heap::block::{BlockEntry, State};
use crate::heap::staying::tiles;
use crate::tables::Storage;

/// Whether the end of a free may read and write the block.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Rest {
    /// It may read and write the block.
    #[default]
    No,
    /// The pages may be unmapped, so it leaves the block as it is.
    Begun,
    /// Like `Begun`, and blocks have become free since then.
    Missed,
}

impl<S: Storage> Heap<S> {
    /// Makes the ends of frees leave the blocks as they are, if the heap is asleep.
    pub(crate) fn rest(&mut self) {
        if self.asleep && self.rest == Rest::No {
            self.rest = Rest::Begun;
        }
    }

    /// Returns whether the end of a free must leave the block as it is, and records that it
    /// happened.
    pub(crate) fn rests(&mut self) -> bool {
        if self.rest != Rest::No {
            self.rest = Rest::Missed;
        }
        self.rest != Rest::No
    }

    /// Notes that free memory has lost its contents, because its pages were unmapped.
    pub(crate) fn miss_contents(&mut self) {
        self.rest = Rest::Missed;
    }

    /// Lets the ends of frees read and write blocks again. Returns whether blocks were freed
    /// meanwhile.
    pub(crate) fn end_rest(&mut self) -> bool {
        core::mem::take(&mut self.rest) == Rest::Missed
    }

    /// Returns the lowest free block from the address `from` on. `None` with a sub-allocator,
    /// because its free segments have live sub-blocks.
    pub(crate) fn next_free(&self, from: u64) -> Option<BlockEntry> {
        if self.is_empty() || self.suballocator.is_some() {
            return None;
        }
        let free = |block: &&BlockEntry| block.addr >= from && block.state == State::Free;
        tiles(self.newest, &self.segments, &self.blocks).filter(free).min_by_key(|block| block.addr).copied()
    }

    /// Returns the lowest live or pending block that starts at `from` or above, ends above `begin`,
    /// and starts below `end`.
    pub(crate) fn next_used(&self, from: u64, begin: u64, end: u64) -> Option<BlockEntry> {
        let used = |block: &&BlockEntry| {
            let is_there = block.addr >= from && block.end() > begin && block.addr < end;
            is_there && matches!(block.state, State::Allocated | State::Pending)
        };
        self.blocks.entries().iter().filter(used).min_by_key(|block| block.addr).copied()
    }
}
