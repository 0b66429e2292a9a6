//! Pages left mapped by a park: pages pinned by the program, and pages under blocks not parked by
//! the program or still in use by work.
//!
//! A heap asleep lends nothing. So the park leaves exactly the blocks lent at its beginning, and
//! marks the pages under these blocks. The borrower may free a lent block in the middle of the
//! park, behind work of the borrower's own: the page keeps the mark until the park has ended,
//! whether the block lives or not.

use crate::heap::Heap;
use crate::heap::block::{BlockEntry, Blocks, FRONTIER_BIT, HeapSegments, Segment, State};
use crate::heap::home_pages::{HomePage, Stays};
use crate::heap::uses::{self, StreamUse};
use crate::tables::Storage;
use crate::tables::slot_table::{NONE, SlotTable};

impl<S: Storage> Heap<S> {
    /// Marks the pages under blocks lent to other streams. The heap lends nothing more.
    pub(crate) fn keep_lent_pages(&mut self) {
        self.keep_pages_under(|block, uses| block.state == State::Allocated && uses::is_lent(block, uses));
    }

    /// Marks the pinned pages. Another thread may unpin them before the park has ended, which has
    /// not prepared to save their contents then.
    pub(crate) fn keep_pinned_pages(&mut self) {
        if !self.is_empty() && self.asleep {
            let stays = |page: &HomePage| if page.pins > 0 { Stays::Parking } else { page.stays };
            self.sets.pages.for_each(|page| page.stays = stays(page));
        }
    }

    /// Marks the pages under pending blocks waiting for the safe frontier: the program numbers the
    /// work on the blocks, and no wait of the park ends this work. The work of all remaining
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

    /// Takes the marks away: the park has ended.
    pub(crate) fn end_stay(&mut self) {
        if !self.is_empty() {
            let marked = |page: &HomePage| page.stays == Stays::Parking;
            self.sets.pages.for_each(|page| page.stays = if marked(page) { Stays::No } else { page.stays });
        }
    }

    /// Panics if `page` must not be unmapped: the page lies under a used block not parked by the
    /// program. `lent_stays`: blocks lent to other streams are not parked.
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

/// Iterates over the blocks of the segments of a heap, from the segment `newest` to the oldest.
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
