//! Pages that a park leaves mapped: those that the program has pinned, and those under blocks that
//! the program does not park or that work still uses.
//!
//! A heap that is asleep lends nothing, so the park leaves exactly the blocks that were lent when
//! it started, and marks the pages under them. The borrower may free such a block in the middle of
//! the park, after its own work. The page keeps the mark until the park has ended, whether or
//! not the block is still live.

use crate::heap::Heap;
use crate::heap::block::{BlockEntry, Blocks, FRONTIER_BIT, HeapSegments, Segment, State};
use crate::heap::home_pages::{HomePage, Stays};
use crate::heap::uses::{self, StreamUse};
use crate::tables::Storage;
use crate::tables::slot_table::{NONE, SlotTable};

impl<S: Storage> Heap<S> {
    /// Marks the pages under blocks that are lent to other streams. The heap lends no more blocks.
    pub(crate) fn keep_lent_pages(&mut self) {
        self.keep_pages_under(|block, uses| block.state == State::Allocated && uses::is_lent(block, uses));
    }

    /// Marks the pinned pages. Another thread may unpin them before the park has ended, but the
    /// park has not prepared to save their contents.
    pub(crate) fn keep_pinned_pages(&mut self) {
        if !self.is_empty() && self.asleep {
            let stays = |page: &HomePage| if page.pins > 0 { Stays::Parking } else { page.stays };
            self.sets.pages.for_each(|page| page.stays = stays(page));
        }
    }

    /// Marks the pages under pending blocks that wait for the safe frontier. The program numbers
    /// the work on these blocks, and no wait of the park ends this work. The work on all other
    /// pending blocks was announced before the park waited.
    pub(crate) fn keep_pages_of_numbered_work(&mut self) {
        self.keep_pages_under(|block, _| block.state == State::Pending && block.events & FRONTIER_BIT != 0);
    }

    /// Marks the pages under blocks for which `stays` returns true.
    fn keep_pages_under(&mut self, stays: impl Fn(&BlockEntry, &SlotTable<StreamUse, S>) -> bool) {
        if self.is_empty() || !self.asleep {
            return;
        }
        let sets = &mut *self.sets;
        for block in tiles(self.newest, &self.segments, &self.blocks).filter(|block| stays(block, &sets.uses)) {
            sets.pages.keep_mapped(block.addr, block.end());
        }
    }

    /// Removes the marks, because the park has ended.
    pub(crate) fn end_stay(&mut self) {
        if !self.is_empty() {
            let marked = |page: &HomePage| page.stays == Stays::Parking;
            self.sets.pages.for_each(|page| page.stays = if marked(page) { Stays::No } else { page.stays });
        }
    }

    /// Panics if `page` must not be unmapped, because it is under a block in use that the program
    /// does not park. `lent_stays` means that blocks lent to other streams are not parked.
    #[cfg(any(test, feature = "paranoid"))]
    pub(crate) fn assert_unused(&self, page: &HomePage, lent_stays: bool) {
        let is_there = |block: &&BlockEntry| block.addr < page.end() && page.at < block.end();
        for block in tiles(self.newest, &self.segments, &self.blocks).filter(is_there) {
            let is_parked =
                self.asleep && page.stays == Stays::No && !(lent_stays && uses::is_lent(block, &self.sets.uses));
            let is_used = matches!(block.state, State::Allocated | State::Pending);
            assert!(!is_used || is_parked, "a page is unmapped under a block in use: {block:?}");
        }
    }
}

/// Iterates over the blocks of a heap's segments, from the segment `newest` to the oldest.
pub(super) fn tiles<'a, S: Storage>(
    newest: u32,
    segments: &'a HeapSegments<S>,
    blocks: &'a Blocks<S>,
) -> impl Iterator<Item = &'a BlockEntry> {
    let segment = |at: u32| (at != NONE).then(|| &segments[at]);
    let block = |at: u32| (at != NONE).then(|| &blocks[at]);
    let all = core::iter::successors(segment(newest), move |of: &&Segment| segment(of.next));
    all.flat_map(move |of| core::iter::successors(block(of.first), move |tile: &&BlockEntry| block(tile.next)))
}
