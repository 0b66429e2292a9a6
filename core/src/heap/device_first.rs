//! Memory of the device before memory of the host: which free block serves a request of a heap that
//! has pages of both kinds (`spill`).

use crate::heap::Heap;
use crate::heap::home_pages::HomePage;
use crate::tables::Storage;

impl<S: Storage> Heap<S> {
    /// Adds a page at home. The caller has made room.
    pub(crate) fn add_page(&mut self, home: HomePage) {
        self.sets.pages.insert(home);
        self.note_kinds_of_pages();
    }

    /// Has requests choose among the free blocks by where they lie, after a page has become one of
    /// the host, or its counterpart on the device.
    pub(crate) fn note_kinds_of_pages(&mut self) {
        if self.sets.pages.are_of_host() {
            self.mark_paths();
        }
    }

    /// Returns the smallest free block, from `best` on in the order of sizes, whose first `size`
    /// bytes lie on the device. Returns `None` if there is none, and if all pages are of one kind.
    ///
    /// A kernel reaches memory of the device a hundred times as fast, so a larger block is worth
    /// its split. The walk ends soon: such a heap has hundreds of free blocks, not thousands.
    pub(super) fn first_on_device(&self, best: u32, size: u64) -> Option<u32> {
        if !self.sets.pages.are_of_both_kinds() {
            return None;
        }
        let blocks = self.blocks.entries();
        let mut fitting = core::iter::successors(Some(best), |&block| self.sets.free.next(block, blocks));
        fitting.find(|&block| {
            let at = blocks[block as usize].addr;
            self.sets.pages.on_host(at, at + size).next().is_none()
        })
    }
}
