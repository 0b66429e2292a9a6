//! The tables of a heap that has memory: the free index, the uses by other streams, and the
//! unmapped blocks.

use crate::device::CopyMark;
use crate::heap::block::{BlockEntry, Blocks, State};
use crate::heap::free_index::FreeIndex;
use crate::heap::home_pages::{HomePages, StaleList};
use crate::heap::uses::{EventWaits, StreamUse};
use crate::sync::impl_empty;
use crate::tables::Storage;
use crate::tables::radix_tree::{Key, Link, RadixTree};
use crate::tables::slot_table::SlotTable;
use crate::trace::chunk::EventBuffer;

/// The large tables of a heap. They are allocated with its first block.
#[derive(Clone)]
pub(crate) struct Sets<S: Storage> {
    /// Contains exactly the [`State::Free`] blocks.
    pub free: FreeIndex<S>,
    /// The events that pending blocks wait for.
    pub waits: EventWaits,
    /// The uses of blocks by other streams: each block has a list, which starts at
    /// [`BlockEntry::uses`].
    pub uses: SlotTable<StreamUse, S>,
    /// The root of the set of the [`State::Unmapped`] blocks, sorted by address.
    unmapped: Link,
    /// The nodes of the set `unmapped`.
    by_address: RadixTree<S>,
    /// The pages mapped in the heap's ranges of addresses.
    pub pages: HomePages<S>,
    /// A mark after the copies of the contents of waking pages.
    pub copied: CopyMark,
    /// The [`State::Stale`] blocks.
    pub stale: StaleList,
    /// The address at which moving pages are mapped next, if it is unmapped: the end of the last
    /// mapped ones, or the start of the newest range.
    pub front: u64,
    /// Free blocks with an earlier `freed_at` are quiet: no work on the heap's stream uses them any
    /// more (see [`epochs`](crate::heap::epochs)). This is at most the heap's clock; 0 means that
    /// no block is known to be quiet. When a heap is assigned to a new stream or pool, it is empty,
    /// and has dropped the sets or resets the stamp.
    pub quiet: u64,
    /// The heap's clock at the last [look](crate::heap::idle). Free blocks with an earlier
    /// `freed_at` were not touched since then. 0 before the first look.
    pub mark: u64,
    /// The latest events of the heap. Empty while no events are recorded.
    pub trace: EventBuffer<S>,
}

impl_empty! {
    [S: Storage] Sets<S> {
        free,
        waits,
        uses,
        unmapped,
        by_address,
        pages,
        copied: CopyMark(0),
        stale,
        front,
        quiet,
        mark,
        trace,
    }
}

/// Returns a function that sorts blocks by address.
fn by_address<S: Storage>(blocks: &Blocks<S>) -> impl Fn(u32) -> Key {
    |block| Key { major: 0, minor: blocks[block].addr }
}

impl<S: Storage> Sets<S> {
    /// Marks a detached block that has no free neighbours as free at time `clock`, and adds it to
    /// the free index.
    #[inline(always)]
    pub(super) fn insert_free(&mut self, block: u32, clock: u64, blocks: &mut [BlockEntry]) {
        let entry = &mut blocks[block as usize];
        debug_assert!(!matches!(entry.state, State::Free | State::Unmapped), "the block is in no set yet");
        entry.state = State::Free;
        entry.freed_at = clock;
        self.free.insert(block, blocks);
    }

    /// Marks a detached block that has no unmapped neighbours as unmapped, and adds it to the
    /// unmapped set.
    pub(super) fn insert_unmapped(&mut self, block: u32, blocks: &mut Blocks<S>) {
        debug_assert!(!matches!(blocks[block].state, State::Free | State::Unmapped), "the block is in no set yet");
        blocks[block].state = State::Unmapped;
        self.unmapped = self.by_address.insert(self.unmapped, block, by_address(blocks));
    }

    /// Removes a free or unmapped block from its set, and marks it as [`State::Detached`].
    pub(super) fn detach(&mut self, block: u32, blocks: &mut Blocks<S>) {
        debug_assert!(matches!(blocks[block].state, State::Free | State::Unmapped), "the block is in a set");
        if blocks[block].state == State::Unmapped {
            self.unmapped = self.by_address.remove(self.unmapped, block, by_address(blocks));
        } else {
            self.free.remove(block, blocks.entries_mut());
        }
        blocks[block].state = State::Detached;
    }

    /// Finds the unmapped block with the lowest address from `addr` on.
    pub(super) fn unmapped_from(&self, addr: u64, blocks: &Blocks<S>) -> Option<u32> {
        self.by_address.at_least(self.unmapped, Key { major: 0, minor: addr }, by_address(blocks))
    }

    /// Finds the unmapped block at the highest address below `addr`.
    pub(super) fn unmapped_below(&self, addr: u64, blocks: &Blocks<S>) -> Option<u32> {
        self.by_address.below(self.unmapped, Key { major: 0, minor: addr }, by_address(blocks))
    }

    /// Makes room for `count` blocks in the unmapped set. Returns false if the table is full.
    pub(super) fn make_room_for_unmapped(&mut self, count: u32) -> bool {
        self.by_address.make_room_for(count)
    }

    /// Checks that the unmapped set contains `count` blocks, and that they are all unmapped.
    pub(super) fn check_unmapped(&self, count: u32, blocks: &Blocks<S>) -> Result<(), &'static str> {
        let (mut seen, mut from) = (0, 0);
        while let Some(block) = self.unmapped_from(from, blocks) {
            if blocks[block].state != State::Unmapped {
                return Err("the unmapped set holds a block that is mapped");
            }
            (seen, from) = (seen + 1, blocks[block].addr + 1);
        }
        if seen == count { Ok(()) } else { Err("an unmapped block is missing from the set") }
    }
}
