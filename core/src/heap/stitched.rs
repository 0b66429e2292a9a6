//! A heap of the stitched policy: where its pages lie, and the steps of a page that moves.
//!
//! ```text
//! before   | allocated | free: page A  | allocated | free | unmapped ………………………… |
//!                          └───────── A is mapped again ─────┐
//! after    | allocated | stale         | allocated | free: A ▼ | unmapped ……… |
//! ```
//!
//! The heap grows into unmapped addresses: at the end of its newest range, or between blocks, where
//! pages have left a gap. A page moves in three steps, each under the lock of the heap concerned:
//! [`hold_room`](PagedHeap::hold_room) detaches the addresses, [`take_pages`](PagedHeap::take_pages) detaches
//! wholly free pages, and the device maps the pages with no lock held. [`extend`](PagedHeap::extend) then
//! makes the room a free block, and the old places become [stale](State::Stale).

use super::{Heap, Outcome};
use crate::heap::block::{Block, State};
use crate::heap::expandable::Run;
use crate::heap::home_pages::HomePage;
use crate::pages::counts::PageCounts;
use crate::stats::{HeapCounters, Stat};
use crate::tables::Storage;
use crate::tables::slot_table::NONE;
use crate::units::DevicePtr;

/// Unmapped addresses of a heap, held for pages to be mapped there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldRoom {
    /// The room, and the free blocks beside it that the request uses as well.
    run: Run,
    /// The block of the room.
    gap: u32,
    /// Bytes to map: what the request needs beyond the free blocks.
    pub needed: u64,
    /// Bytes that can be mapped.
    pub room: u64,
    /// Whether the pages are mapped at the upper end of the room, below a free block.
    upper: bool,
}

/// Which free pages of a heap may move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    /// All of them.
    Free,
    /// Those that no work uses any longer.
    Quiet,
}

/// A heap of the stitched policy: the operations on its pages.
pub(crate) struct PagedHeap<'a, S: Storage>(pub &'a mut Heap<S>);

/// A place for a request: an unmapped block, and which of its free neighbours are used.
#[derive(Clone, Copy)]
struct Gap {
    block: u32,
    /// Bytes to map.
    needed: u64,
    /// Uses the free block before the gap.
    before: bool,
    /// Uses the free block behind the gap.
    behind: bool,
}

impl<S: Storage> PagedHeap<'_, S> {
    /// Detaches unmapped addresses for a request of `size` bytes, and the free blocks beside them:
    /// where the fewest bytes are to be mapped, and else at the end of the newest range. Up to
    /// `spare_room` bytes more than needed are held. Returns `None` if no range has the addresses.
    /// Room for two blocks was made.
    pub(crate) fn hold_room(&mut self, size: u64, spare_room: u64) -> Option<HeldRoom> {
        let Gap { block, needed, before, behind } = self.least_gap(size)?;
        let Block { size: gap_bytes, prev, next, .. } = self.0.blocks[block];
        let upper = behind && !before;
        let room = gap_bytes.min(if before && behind { gap_bytes } else { needed + spare_room });
        self.0.sets.detach(block, &mut self.0.blocks);
        let mut gap = block;
        if room < gap_bytes {
            let front_bytes = if upper { gap_bytes - room } else { room };
            let front = self.0.blocks.cut(block, front_bytes, &mut self.0.segments);
            let rest = if upper { front } else { block };
            gap = if upper { block } else { front };
            self.0.blocks[rest].requested = 0;
            self.0.sets.insert_unmapped(rest, &mut self.0.blocks);
        }
        self.0.blocks[gap].state = State::Mapping;
        self.0.blocks[gap].requested = 0;
        let mut run = Run { first: gap, last: gap };
        if before {
            self.0.sets.detach(prev, &mut self.0.blocks);
            run.first = prev;
        }
        if behind {
            self.0.sets.detach(next, &mut self.0.blocks);
            run.last = next;
        }
        Some(HeldRoom { run, gap, needed, room, upper })
    }

    /// Finds the unmapped block at which a request of `size` bytes needs the fewest bytes mapped.
    /// Of equal ones, the end of the newest range comes first, then the lowest address.
    fn least_gap(&self, size: u64) -> Option<Gap> {
        let mut best = self.tail().and_then(|block| self.gap_at(block, size));
        let mut from = 0;
        while !self.0.is_empty()
            && let Some(block) = self.0.sets.unmapped_from(from, &self.0.blocks)
        {
            from = self.0.blocks[block].end();
            best = match (best, self.gap_at(block, size)) {
                (Some(best), Some(gap)) if gap.needed < best.needed => Some(gap),
                (None, gap) => gap,
                (best, _) => best,
            };
        }
        best
    }

    /// Returns how the unmapped `block` and the free blocks beside it can hold `size` bytes with the
    /// fewest bytes mapped, if they can.
    fn gap_at(&self, block: u32, size: u64) -> Option<Gap> {
        let Block { size: room, prev, next, segment, .. } = self.0.blocks[block];
        let granule = self.0.segments[segment].granule;
        let free =
            |block: u32| if block != NONE && self.0.blocks[block].is_free() { self.0.blocks[block].size } else { 0 };
        let (left, right) = (free(prev), free(next));
        // At least a granule, also if another thread has made a free block large enough.
        let missing = |held: u64| size.saturating_sub(held).next_multiple_of(granule).max(granule);
        let lower = Gap { block, needed: missing(left), before: left > 0, behind: false };
        let upper = Gap { block, needed: missing(right), before: false, behind: right > 0 };
        let whole = Gap { block, needed: room, before: left > 0, behind: right > 0 };
        let holds = left + room + right >= size;
        [lower, upper, whole]
            .into_iter()
            .filter(|gap| gap.needed < room || gap.needed == room && holds)
            .min_by_key(|gap| gap.needed)
    }

    /// Returns how many bytes to map for a request of `size` bytes, or `None` if no range has the
    /// addresses.
    pub(crate) fn lacking(&self, size: u64) -> Option<u64> {
        self.least_gap(size).map(|gap| gap.needed)
    }

    /// Returns the held room to the heap. Returns the range of addresses to release if nothing of
    /// the range is mapped.
    pub(crate) fn release_room(&mut self, held: HeldRoom) -> Option<(DevicePtr, u64)> {
        self.0.attach_run(held.run)
    }

    /// Gives the held room up: the device failed to remove a mapping there.
    pub(crate) fn lose_room(&mut self, held: HeldRoom) {
        self.0.blocks[held.gap].state = State::Lost;
    }

    /// Returns the address at which `bytes` of pages are to be mapped in the held room.
    pub(crate) fn place_in(&self, held: HeldRoom, bytes: u64) -> DevicePtr {
        let gap = &self.0.blocks[held.gap];
        DevicePtr(if held.upper { gap.end() - bytes } else { gap.addr })
    }

    /// Makes `bytes` of the held room, mapped since, a free block together with the free blocks
    /// beside them, and returns the rest of the room. Room for two blocks was made. Returns the
    /// free block. The caller lists the pages.
    pub(crate) fn extend(&mut self, held: HeldRoom, bytes: u64, counters: &HeapCounters) -> Outcome<u32> {
        let HeldRoom { mut run, gap, room, upper, .. } = held;
        debug_assert!(0 < bytes && bytes <= room, "the room holds the pages");
        let mut mapped = gap;
        if bytes < room && upper {
            let rest = self.0.blocks.cut(gap, room - bytes, &mut self.0.segments);
            self.0.join_unmapped(rest);
        } else if bytes < room {
            mapped = self.0.blocks.cut(gap, bytes, &mut self.0.segments);
            self.0.join_unmapped(gap);
            run = Run { first: if run.first == gap { mapped } else { run.first }, last: mapped };
        }
        self.0.blocks[mapped].state = State::Mapped;
        let joined = self.0.join_run(run, counters);
        Outcome { value: joined.value.0, peaks_stale: joined.peaks_stale }
    }

    /// Returns whether the pages of a free block may move.
    fn admits(&self, wanted: Wanted, block: u32) -> bool {
        wanted == Wanted::Free || self.0.blocks[block].freed_at < self.0.sets.quiet
    }

    /// Counts the wanted pages that lie wholly in free blocks and are not pinned.
    pub(crate) fn count_free_pages(&mut self, wanted: Wanted, counts: &mut PageCounts, step: u64) {
        if self.0.is_empty() {
            return;
        }
        let mut cursor = self.0.sets.free.after((step, 0), self.0.blocks.entries());
        while let Some(block) = cursor {
            if self.admits(wanted, block) {
                let Block { addr, size, .. } = self.0.blocks[block];
                let pages = self.0.sets.pages.within(addr, addr + size);
                pages.filter(HomePage::is_movable).for_each(|page| counts.add(page.bytes));
            }
            cursor = self.0.sets.free.next(block, self.0.blocks.entries());
        }
    }

    /// Detaches wanted pages of the sizes in `chosen`, and calls `take` with each and the detached
    /// block at its place. Takes what it took off `chosen`. Stops early if a table is full.
    pub(crate) fn take_pages(
        &mut self,
        wanted: Wanted,
        chosen: &mut PageCounts,
        step: u64,
        mut take: impl FnMut(HomePage, u32),
    ) {
        // The blocks that are left of a block are smaller than the block, and have no page of the
        // sizes: the walk up the sizes does not meet them again.
        let mut position = (step, 0);
        while !self.0.is_empty()
            && chosen.count() > 0
            && let Some(block) = self.0.sets.free.after(position, self.0.blocks.entries())
        {
            let Block { size, addr, .. } = self.0.blocks[block];
            position = (size, addr);
            if self.admits(wanted, block) && !self.take_pages_of(block, chosen, &mut take) {
                return;
            }
        }
    }

    /// Detaches the pages of one free block that have a size in `chosen`. Returns false if a table is full.
    fn take_pages_of(&mut self, block: u32, chosen: &mut PageCounts, take: &mut impl FnMut(HomePage, u32)) -> bool {
        let (end, freed_at) = (self.0.blocks[block].end(), self.0.blocks[block].freed_at);
        let mut rest = Some(block);
        while let Some(block) = rest {
            let from = self.0.blocks[block].addr;
            let mut pages = self.0.sets.pages.within(from, end).filter(HomePage::is_movable);
            let Some(page) = pages.find(|page| chosen.has(page.bytes)) else { break };
            drop(pages);
            // What is cut off here becomes unmapped later, one block at a time.
            if self.0.make_room().is_err() || !self.0.sets.make_room_for_unmapped(self.0.blocks.len() + 2) {
                return false;
            }
            chosen.take(page.bytes);
            self.0.sets.detach(block, &mut self.0.blocks);
            if page.at > from {
                let front = self.0.blocks.cut(block, page.at - from, &mut self.0.segments);
                self.0.blocks[front].requested = 0;
                self.0.sets.insert_free(front, freed_at, self.0.blocks.entries_mut());
            }
            let taken = if page.end() < end {
                let taken = self.0.blocks.cut(block, page.bytes, &mut self.0.segments);
                self.0.blocks[block].requested = 0;
                self.0.sets.insert_free(block, freed_at, self.0.blocks.entries_mut());
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
        _ = self.0.join_free(block);
    }

    /// Makes the old place of a page that has moved stale, as of now. Returns its address and bytes.
    pub(crate) fn leave_stale(&mut self, block: u32, counters: &HeapCounters) -> (DevicePtr, u64) {
        let Block { addr, size, .. } = self.0.blocks[block];
        counters.down(Stat::ReservedBytes, size);
        let page = self.0.sets.pages.remove(addr);
        self.0.sets.stale.push(block, page.page, self.0.clock, &mut self.0.blocks);
        (DevicePtr(addr), size)
    }

    /// Takes the oldest mapping that has been stale since before `stamp`, to be unmapped. Returns
    /// the block, its addresses, and the number of the page.
    pub(crate) fn take_stale(&mut self, stamp: u64) -> Option<(u32, DevicePtr, u64, u32)> {
        if self.0.is_empty() {
            return None;
        }
        let (block, page) = self.0.sets.stale.pop(stamp, &mut self.0.blocks)?;
        let Block { addr, size, .. } = self.0.blocks[block];
        Some((block, DevicePtr(addr), size, page))
    }

    /// Marks the addresses of a stale mapping as unmapped. Returns the range of addresses to
    /// release if nothing of the range is mapped any more.
    pub(crate) fn finish_stale(&mut self, block: u32) -> Option<(DevicePtr, u64)> {
        let block = self.0.join_unmapped(block);
        self.0.remove_if_unmapped(self.0.blocks[block].segment)
    }

    /// Returns the unmapped block at the end of the newest range.
    fn tail(&self) -> Option<u32> {
        if self.0.is_empty() {
            return None;
        }
        let segment = &self.0.segments[self.0.newest];
        let end = segment.base + segment.bytes;
        self.0.sets.unmapped_below(end, &self.0.blocks).filter(|&block| self.0.blocks[block].end() == end)
    }
}
