//! A heap of the stitched policy: where its pages lie, and the steps of a page that moves.
//!
//! ```text
//! before   | allocated | free: page A  | allocated | free | unmapped ………………………… |
//!                          └───────── A is mapped again ─────┐
//! after    | allocated | stale         | allocated | free: A ▼ | unmapped ……… |
//! ```
//!
//! The heap grows at the end of its newest range only. A free block at that end, which the new
//! memory continues, is the *end block*. A page moves in three steps, each under the lock of the
//! heap concerned: [`take_pages`](Heap::take_pages) detaches wholly free pages,
//! [`hold_end`](Heap::hold_end) detaches the room at the end, and the device maps the pages with no
//! lock held. [`extend`](Heap::extend) then makes the room a free block, and the old places become
//! [stale](State::Stale).

use super::{Heap, Outcome};
use crate::heap::block::{Block, State};
use crate::heap::expandable::Run;
use crate::heap::home_pages::HomePage;
use crate::pages::counts::PageCounts;
use crate::stats::{HeapCounters, Stat};
use crate::tables::Storage;
use crate::tables::slot_table::NONE;
use crate::units::DevicePtr;

/// Room at the end of a heap's newest range, held for pages to be mapped there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldEnd {
    /// The end block, if there is one, and the block of the room behind.
    run: Run,
    /// Address at which the room begins.
    pub at: DevicePtr,
    /// Bytes to map: what the request needs beyond the end block.
    pub needed: u64,
}

impl<S: Storage> Heap<S> {
    /// Detaches the end block, and behind it as many unmapped bytes as a request of `size` bytes
    /// lacks, and `spare_room` more. Returns `None` if no range has the addresses. Room for two
    /// blocks was made.
    pub(crate) fn hold_end(&mut self, size: u64, spare_room: u64) -> Option<HeldEnd> {
        let tail = self.tail()?;
        let Block { addr, size: room, prev, segment, .. } = self.blocks[tail];
        let end_block = Some(prev).filter(|&prev| prev != NONE && self.blocks[prev].is_free());
        let at_hand = end_block.map_or(0, |block| self.blocks[block].size);
        let granule = self.segments[segment].granule;
        // At least a granule, also if another thread has made the end block large enough.
        let needed = size.saturating_sub(at_hand).next_multiple_of(granule).max(granule);
        if needed + spare_room > room {
            return None;
        }
        self.sets.detach(tail, &mut self.blocks);
        let mut last = tail;
        if needed + spare_room < room {
            last = self.blocks.cut(tail, needed + spare_room, &mut self.segments);
            self.sets.insert_unmapped(tail, &mut self.blocks);
        }
        self.blocks[last].state = State::Mapping;
        self.blocks[last].requested = 0;
        if let Some(block) = end_block {
            self.sets.detach(block, &mut self.blocks);
        }
        Some(HeldEnd { run: Run { first: end_block.unwrap_or(last), last }, at: DevicePtr(addr), needed })
    }

    /// Returns the held room to the heap. Returns the range of addresses to release if nothing of
    /// the range is mapped.
    pub(crate) fn release_end(&mut self, held: HeldEnd) -> Option<(DevicePtr, u64)> {
        self.attach_run(held.run)
    }

    /// Gives the held room up: the device failed to remove a mapping there.
    pub(crate) fn lose_end(&mut self, held: HeldEnd) {
        self.blocks[held.run.last].state = State::Lost;
    }

    /// Makes the first `bytes` of the held room, mapped since, a free block together with the end
    /// block, and returns the rest of the room. Room for two blocks was made. Returns the free
    /// block. The caller lists the pages.
    pub(crate) fn extend(&mut self, held: HeldEnd, bytes: u64, counters: &HeapCounters) -> Outcome<u32> {
        let HeldEnd { run: Run { first, last }, .. } = held;
        debug_assert!(0 < bytes && bytes <= self.blocks[last].size, "the room holds the pages");
        let mut run = Run { first, last };
        if bytes < self.blocks[last].size {
            let mapped = self.blocks.cut(last, bytes, &mut self.segments);
            run = Run { first: if first == last { mapped } else { first }, last: mapped };
            self.join_unmapped(last);
        }
        self.blocks[run.last].state = State::Mapped;
        let joined = self.join_run(run, counters);
        Outcome { value: joined.value.0, peaks_stale: joined.peaks_stale }
    }

    /// Counts the pages that lie wholly in free blocks and are not pinned. With `quiet_only`, only
    /// those in blocks that no work uses any longer.
    pub(crate) fn count_free_pages(&mut self, counts: &mut PageCounts, step: u64, quiet_only: bool) {
        if self.is_empty() {
            return;
        }
        let mut cursor = self.sets.free.after((step, 0), self.blocks.entries());
        while let Some(block) = cursor {
            let Block { addr, freed_at, .. } = self.blocks[block];
            if !quiet_only || freed_at < self.sets.quiet {
                let pages = self.sets.pages.within(addr, self.blocks[block].end());
                pages.filter(|page| page.pins == 0).for_each(|page| counts.add(page.bytes));
            }
            cursor = self.sets.free.next(block, self.blocks.entries());
        }
    }

    /// Detaches free pages of the sizes in `wanted`, and calls `take` with each and the detached
    /// block at its place. Takes what it took off `wanted`. Stops early if a table is full.
    pub(crate) fn take_pages(
        &mut self,
        wanted: &mut PageCounts,
        step: u64,
        quiet_only: bool,
        mut take: impl FnMut(HomePage, u32),
    ) {
        // The blocks that are left of a block are smaller than the block, and have no page that
        // is wanted: the walk up the sizes does not meet them again.
        let mut position = (step, 0);
        while !self.is_empty()
            && wanted.count() > 0
            && let Some(block) = self.sets.free.after(position, self.blocks.entries())
        {
            let Block { size, addr, freed_at, .. } = self.blocks[block];
            position = (size, addr);
            if (!quiet_only || freed_at < self.sets.quiet) && !self.take_pages_of(block, wanted, &mut take) {
                return;
            }
        }
    }

    /// Detaches the wanted pages of one free block. Returns false if a table is full.
    fn take_pages_of(&mut self, block: u32, wanted: &mut PageCounts, take: &mut impl FnMut(HomePage, u32)) -> bool {
        let (end, freed_at) = (self.blocks[block].end(), self.blocks[block].freed_at);
        let mut rest = Some(block);
        while let Some(block) = rest {
            let from = self.blocks[block].addr;
            let mut pages = self.sets.pages.within(from, end).filter(|page| page.pins == 0);
            let Some(page) = pages.find(|page| wanted.has(page.bytes)) else { break };
            drop(pages);
            if self.make_room().is_err() {
                return false;
            }
            wanted.take(page.bytes);
            self.sets.detach(block, &mut self.blocks);
            if page.at > from {
                let front = self.blocks.cut(block, page.at - from, &mut self.segments);
                self.blocks[front].requested = 0;
                self.sets.insert_free(front, freed_at, self.blocks.entries_mut());
            }
            let taken = if page.end() < end {
                let taken = self.blocks.cut(block, page.bytes, &mut self.segments);
                self.blocks[block].requested = 0;
                self.sets.insert_free(block, freed_at, self.blocks.entries_mut());
                rest = Some(block);
                taken
            } else {
                rest = None;
                block
            };
            take(page, taken);
        }
        true
    }

    /// Returns a page that was taken to its heap: its detached block is free again.
    pub(crate) fn return_page(&mut self, block: u32) {
        _ = self.join_free(block);
    }

    /// Makes the old place of a page that has moved stale, as of now. Returns its address and bytes.
    pub(crate) fn leave_stale(&mut self, block: u32, counters: &HeapCounters) -> (DevicePtr, u64) {
        let Block { addr, size, .. } = self.blocks[block];
        counters.down(Stat::ReservedBytes, size);
        let page = self.sets.pages.remove(addr);
        self.sets.stale.push(block, page.page, self.clock, &mut self.blocks);
        (DevicePtr(addr), size)
    }

    /// Takes the oldest mapping that has been stale since before `stamp`, to be unmapped. Returns
    /// the block, its addresses, and the number of the page.
    pub(crate) fn take_stale(&mut self, stamp: u64) -> Option<(u32, DevicePtr, u64, u32)> {
        if self.is_empty() {
            return None;
        }
        let (block, page) = self.sets.stale.pop(stamp, &mut self.blocks)?;
        let Block { addr, size, .. } = self.blocks[block];
        Some((block, DevicePtr(addr), size, page))
    }

    /// Marks the addresses of a stale mapping as unmapped. Returns the range of addresses to
    /// release if nothing of the range is mapped any more.
    pub(crate) fn finish_stale(&mut self, block: u32) -> Option<(DevicePtr, u64)> {
        let block = self.join_unmapped(block);
        self.remove_if_unmapped(self.blocks[block].segment)
    }

    /// Returns the unmapped block at the end of the newest range.
    fn tail(&self) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let segment = &self.segments[self.newest];
        let end = segment.base + segment.bytes;
        self.sets.unmapped_below(end, &self.blocks).filter(|&block| self.blocks[block].end() == end)
    }
}
