//! Loans of pages: a heap that serves nobody for a while lets the pages of its free blocks go.
//!
//! ```text
//! freed_at    7          7          9
//! block       | free     | live     | freed since the loan |      lent since 8
//!              └ leaves    └ stays    └ stays: work after the loan may use it
//! ```
//!
//! The heap is asleep, so its free blocks serve no request and only grow, by blocks that the
//! program frees. Such a block takes the stamp of the later free, and its pages stay.

use crate::heap::Heap;
use crate::heap::block::{Backing, BlockEntry};
use crate::heap::home_pages::HomePage;
use crate::sync::impl_empty;
use crate::tables::Storage;

/// The free pages that a heap lends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageLoan {
    /// The stamp of the heap's clock at the loan: the pages of blocks that became free before it
    /// may leave. 0: none.
    pub since: u64,
    /// Whether the work before the loan is known to be complete.
    pub is_quiet: bool,
}

impl_empty! { PageLoan { since, is_quiet } }

impl<S: Storage> Heap<S> {
    /// Lends the pages of the blocks that are free now. `stamp` is later than that of every block.
    pub(crate) fn lend_pages(&mut self, stamp: u64) {
        debug_assert!(self.asleep, "a heap that lends pages serves no request");
        self.clock = stamp;
        self.loan = PageLoan { since: stamp, is_quiet: false };
    }

    /// Calls `take` with pages that the heap lends and for which `wanted` returns true, until
    /// `take` returns false.
    pub(crate) fn lent_pages(&self, wanted: impl Fn(&HomePage) -> bool, mut take: impl FnMut(HomePage) -> bool) {
        if self.loan.since == 0 || self.is_empty() || self.suballocator.is_some() {
            return;
        }
        let blocks = self.blocks.entries();
        let free = core::iter::successors(self.sets.free.last(blocks), |&block| self.sets.free.previous(block, blocks));
        let lent = free.map(|block| self.blocks[block]).filter(|block| {
            let BlockEntry { freed_at, backing, .. } = *block;
            backing != Backing::Ordinary && freed_at < self.loan.since
        });
        let pages = lent.flat_map(|block| self.sets.pages.within(block.addr, block.end()));
        for page in pages.filter(|page| page.is_movable() && wanted(page)) {
            if !take(page) {
                return;
            }
        }
    }
}
