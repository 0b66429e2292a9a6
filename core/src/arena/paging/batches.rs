//! Batches of pages: moving pages in the order in which they are mapped. This code needs only the
//! pool, and never calls the device.

use crate::arena::Platform;
use crate::arena::paging::Paging;
use crate::heap::Heap;
use crate::heap::home_pages::HomePage;
use crate::pages::{Batch, Page, Place};
use crate::units::DevicePtr;

impl<P: Platform> Paging<P> {
    /// Appends spare pages of at most `longest` bytes each to `batch`, the longest first, until no
    /// other page fits into `wanted` bytes.
    pub(in crate::arena) fn take_spares(&self, wanted: u64, longest: u64, batch: &mut Batch) {
        let mut pages = self.pool.lock();
        while let Some(bytes) = pages.largest_spare(longest.min(wanted - batch.bytes)) {
            // Takes all pages of one length, without searching for the length again between two of
            // them.
            while bytes <= wanted - batch.bytes
                && let Some(page) = pages.take_spare(Place::Spare, bytes)
            {
                pages.append(batch, page);
            }
        }
    }

    /// Iterates over the pages of a batch, as number, copy of the entry, and address. `next`
    /// returns the address of the page that follows a page with the given end, and the first page
    /// follows `begin`. The pool is unlocked between two pages.
    pub(in crate::arena) fn pages_at(
        &self,
        batch: &Batch,
        begin: u64,
        next: impl Fn(u64) -> u64,
    ) -> impl Iterator<Item = (u32, Page, DevicePtr)> {
        let mut end = begin;
        self.numbers_of(batch).map(move |page| {
            let entry = self.pool.lock()[page];
            let at = next(end);
            end = at + entry.bytes;
            (page, entry, DevicePtr(at))
        })
    }

    /// Iterates over the numbers of the pages of a batch. The next number is read before a page is
    /// handed out, so the caller may put the page into another list.
    pub(in crate::arena) fn numbers_of(&self, batch: &Batch) -> impl Iterator<Item = u32> {
        let next = |&page: &u32| self.pool.lock().next(page);
        core::iter::successors((batch.count > 0).then_some(batch.first), next)
    }

    /// Adds the pages of a batch, which are mapped from `at` on, to the pages of `heap`. The caller
    /// has made room.
    pub(in crate::arena) fn list_batch(&self, heap: &mut Heap<P::Storage>, batch: &Batch, at: DevicePtr) {
        for (page, Page { bytes, is_host, .. }, at) in self.pages_at(batch, at.0, |end| end) {
            heap.add_page(HomePage { of_host: is_host, ..HomePage::new(at.0, bytes, page) });
        }
    }

    /// Marks the pages of a batch as home. Their old places in ranges are left.
    pub(in crate::arena) fn settle_batch(&self, batch: &Batch) {
        for page in self.numbers_of(batch) {
            let left = {
                let mut pages = self.pool.lock();
                let left = pages.left_place(page);
                pages.settle(page);
                left
            };
            if let Some(at) = left {
                self.ranges.lock().leave(at, page);
            }
        }
    }
}
