//! Pages that move: which free pages leave a heap, and the steps of a move.
//!
//! ```text
//! before   | allocated | free: page A  | allocated | free | unmapped ………………………… |
//!                          └───────── A is mapped again ─────┐
//! after    | allocated | old mapping   | allocated | free: A ▼ | unmapped ……… |
//! ```
//!
//! A page moves in three steps. Each step is under the lock of the heap in question:
//! [`hold_room`](Heap::hold_room) detaches the new addresses, [`take_pages`](PagedHeap::take_pages)
//! detaches completely free pages, and after the device has mapped the pages with no lock held,
//! [`extend`](Heap::extend) turns the room into a free block, and the old places become
//! [stale](State::Stale).

use super::Heap;
use crate::heap::addresses::{Cut, cut_out};
use crate::heap::block::{BlockEntry, Blocks, State};
use crate::heap::home_pages::HomePage;
use crate::pages::counts::PageCounts;
use crate::stats::{HeapCounters, Stat};
use crate::tables::Storage;
use crate::tables::slot_table::NONE;
use crate::units::DevicePtr;

/// The rank of a free block among those that give pages: how many of its ends are not the end of a
/// run, and how far it is after the front, around the ring.
type BlockOrder = (u32, u64);

/// The number of free blocks that are sorted at once. All of them are visited for each such group,
/// so that the order needs no index.
const AT_ONCE: usize = 32;

/// Which free pages of a heap may move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    /// All free pages.
    Free,
    /// The pages of quiet blocks, which no work uses any more.
    Quiet,
}

/// A heap with pages that move. Its methods are the operations on free pages.
pub(crate) struct PagedHeap<'a, S: Storage>(pub &'a mut Heap<S>);

impl<S: Storage> Blocks<S> {
    /// Returns at how many of its ends a free block is the end of a run. If it is 2, the block is
    /// the whole run.
    fn gaps_beside(&self, block: u32) -> u32 {
        let BlockEntry { prev, next, .. } = self[block];
        u32::from(self.is_gap(prev)) + u32::from(self.is_gap(next))
    }

    /// Returns whether a neighbour is missing, or is a range without memory for blocks.
    fn is_gap(&self, neighbour: u32) -> bool {
        neighbour == NONE || matches!(self[neighbour].state, State::Unmapped | State::Stale | State::Lost)
    }
}

impl<S: Storage> Heap<S> {
    /// Returns the rank of the page at `at` in the free block `block` for
    /// [`take_pages`](PagedHeap::take_pages): of pages with the same size, the one with the lowest
    /// rank is taken first.
    pub(crate) fn order_of_page(&self, block: u32, at: u64) -> (BlockOrder, u64) {
        let down = self.blocks.is_gap(self.blocks[block].next);
        (self.order_of_block(block), if down { u64::MAX - at } else { at })
    }

    /// Returns the rank of a free block for [`take_pages`](PagedHeap::take_pages).
    fn order_of_block(&self, block: u32) -> BlockOrder {
        (2 - self.blocks.gaps_beside(block), self.blocks[block].addr.wrapping_sub(self.sets.front))
    }
}

impl<S: Storage> PagedHeap<'_, S> {
    /// Returns whether the pages of a free block may move.
    pub(super) fn admits(&self, wanted: Wanted, block: u32) -> bool {
        wanted == Wanted::Free || self.0.blocks[block].freed_at < self.0.sets.quiet
    }

    /// Counts the wanted pages that are completely in free blocks and are not pinned.
    pub(crate) fn count_free_pages(&mut self, wanted: Wanted, counts: &mut PageCounts, step: u64) {
        if !self.gives_pages() {
            return;
        }
        let mut cursor = self.0.sets.free.after((step, 0), self.0.blocks.entries());
        while let Some(block) = cursor {
            if self.admits(wanted, block) {
                let BlockEntry { addr, size, .. } = self.0.blocks[block];
                let pages = self.0.sets.pages.within(addr, addr + size);
                pages.filter(HomePage::is_movable).for_each(|page| counts.add(page.bytes));
            }
            cursor = self.0.sets.free.next(block, self.0.blocks.entries());
        }
    }

    /// Returns whether free pages of the heap may move, or be given back to the device. A heap that
    /// is asleep keeps its pages for the call that parks or wakes it.
    pub(super) fn gives_pages(&self) -> bool {
        !self.0.is_empty() && !self.0.asleep
    }

    /// Detaches wanted pages with the sizes in `chosen`. Calls `take` with each page, and with the
    /// detached block at its place, and takes the page out of the counts in `chosen`. Stops early
    /// if a table is full.
    ///
    /// Pages in completely free runs come first, because a run that loses all its pages is gone.
    /// Then come pages at the ends of runs. Pages between live blocks come last: a page from the
    /// middle of a run splits it, and what remains at both ends is too short for most requests.
    /// Among equals, the first after the [front](crate::heap::growth) comes first, around the ring.
    /// So the addresses behind the front become free of pages, and those in front of it stay in
    /// long runs.
    pub(crate) fn take_pages(
        &mut self,
        wanted: Wanted,
        chosen: &mut PageCounts,
        step: u64,
        mut take: impl FnMut(HomePage, u32),
    ) {
        if !self.gives_pages() {
            return;
        }
        let mut last = None;
        while chosen.count() > 0 {
            // What is left of these blocks has no pages of these sizes.
            let next = self.next_blocks(wanted, step, last);
            let Some(&(order, _)) = next.last() else { return };
            last = Some(order);
            for (_, block) in next {
                if chosen.count() > 0 && !self.take_pages_of(block, chosen, &mut take) {
                    return;
                }
            }
        }
    }

    /// Returns the first free blocks after `last` in the order in which they give pages, each with
    /// its rank.
    fn next_blocks(
        &mut self,
        wanted: Wanted,
        step: u64,
        last: Option<BlockOrder>,
    ) -> heapless::Vec<(BlockOrder, u32), AT_ONCE> {
        let mut next = heapless::Vec::<_, AT_ONCE>::new();
        let mut cursor = self.0.sets.free.after((step, 0), self.0.blocks.entries());
        while let Some(block) = cursor {
            cursor = self.0.sets.free.next(block, self.0.blocks.entries());
            let order = self.0.order_of_block(block);
            if !self.admits(wanted, block) || last.is_some_and(|last| order <= last) {
                continue;
            }
            if next.is_full() {
                let Some(&(latest, _)) = next.last() else { continue };
                if order > latest {
                    continue;
                }
                next.pop();
            }
            let place = next.partition_point(|&(before, _)| before < order);
            let _full = next.insert(place, (order, block));
        }
        next
    }

    /// Detaches the pages of a free block that have a size in `chosen`: downwards if the block is
    /// at the end of a run, so that the rest continues the run, otherwise upwards. Returns false if
    /// a table is full.
    fn take_pages_of(&mut self, block: u32, chosen: &mut PageCounts, take: &mut impl FnMut(HomePage, u32)) -> bool {
        let down = self.0.blocks.is_gap(self.0.blocks[block].next);
        let mut rest = Some(block);
        while let Some(block) = rest {
            let (from, end) = (self.0.blocks[block].addr, self.0.blocks[block].end());
            let is_wanted = |page: &HomePage| page.is_movable() && chosen.has(page.bytes);
            let pages = &self.0.sets.pages;
            let found = if down {
                pages.within_down(from, end).find(is_wanted)
            } else {
                pages.within(from, end).find(is_wanted)
            };
            let Some(page) = found else { break };
            // What is cut off here is unmapped later, one block at a time.
            if self.0.make_room().is_err() || !self.0.sets.make_room_for_unmapped(self.0.blocks.len() + 2) {
                return false;
            }
            chosen.take(page.bytes);
            let Cut { before, part, behind } = cut_out(self.0, block, page.at, page.end());
            rest = if down { before } else { behind };
            take(page, part);
        }
        true
    }

    /// Detaches the first run of movable pages in a quiet free block: at least two contiguous pages
    /// with at most `longest` bytes together, where `joins` is true for each page and the next.
    /// Returns the detached block and the number of pages. Also returns `None` if a table is full.
    pub(crate) fn take_run(
        &mut self,
        longest: u64,
        joins: impl Fn(&HomePage, &HomePage) -> bool,
    ) -> Option<(u32, u32)> {
        if !self.gives_pages() {
            return None;
        }
        let mut next = self.0.sets.free.last(self.0.blocks.entries());
        while let Some(block) = next {
            if self.admits(Wanted::Quiet, block)
                && let Some((from, end, count)) = self.run_of_pages(block, longest, &joins)
            {
                // If a run cannot be mapped again, it becomes unmapped.
                let room = self.0.make_room().is_ok() && self.0.sets.make_room_for_unmapped(self.0.blocks.len() + 2);
                if !room {
                    return None;
                }
                return Some((cut_out(self.0, block, from, end).part, count));
            }
            next = self.0.sets.free.previous(block, self.0.blocks.entries());
        }
        None
    }

    /// Finds a run for [`take_run`](Self::take_run) in a block. Returns its addresses and the
    /// number of pages.
    fn run_of_pages(
        &self,
        block: u32,
        longest: u64,
        joins: &impl Fn(&HomePage, &HomePage) -> bool,
    ) -> Option<(u64, u64, u32)> {
        let BlockEntry { addr, size, .. } = self.0.blocks[block];
        let mut run: Option<(HomePage, HomePage, u32)> = None;
        for page in self.0.sets.pages.within(addr, addr + size) {
            let fits = |first: &HomePage, last: &HomePage| {
                last.end() == page.at && page.end() - first.at <= longest && page.is_movable() && joins(last, &page)
            };
            run = match run {
                Some((first, last, count)) if fits(&first, &last) => Some((first, page, count + 1)),
                Some((_, _, 2..)) => break,
                _ => page.is_movable().then_some((page, page, 1)),
            };
        }
        run.filter(|&(_, _, count)| count > 1).map(|(first, last, count)| (first.at, last.end(), count))
    }

    /// Makes a detached block free again. No work may have used it since it was detached. Merged
    /// with its free neighbours, it counts as free since the last of these parts became free.
    pub(crate) fn return_block(&mut self, block: u32) {
        let BlockEntry { prev, next, freed_at, .. } = self.0.blocks[block];
        let free = [prev, next].into_iter().filter(|&beside| beside != NONE && self.0.blocks[beside].is_free());
        let since = free.map(|beside| self.0.blocks[beside].freed_at).fold(freed_at, u64::max);
        let joined = self.0.join_free(block);
        self.0.blocks[joined].freed_at = since;
    }

    /// Marks the old place of a page that moved as stale, as of now. Returns the address and the
    /// length of the old place.
    pub(crate) fn leave_stale(&mut self, block: u32, counters: &HeapCounters) -> (DevicePtr, u64) {
        let BlockEntry { addr, size, .. } = self.0.blocks[block];
        counters.down(Stat::ReservedBytes, size);
        let page = self.0.sets.pages.remove(addr);
        self.0.sets.stale.push(block, page.page, self.0.clock, &mut self.0.blocks);
        (DevicePtr(addr), size)
    }

    /// Takes the oldest stale mapping if it became stale before `stamp`. The caller unmaps it.
    /// Returns the block, its addresses, and the number of the page.
    pub(crate) fn take_stale(&mut self, stamp: u64) -> Option<(u32, DevicePtr, u64, u32)> {
        if self.0.is_empty() {
            return None;
        }
        let (block, page) = self.0.sets.stale.pop(stamp, &mut self.0.blocks)?;
        let BlockEntry { addr, size, .. } = self.0.blocks[block];
        Some((block, DevicePtr(addr), size, page))
    }

    /// Marks the addresses of a stale mapping as unmapped. If nothing of the range is mapped any
    /// more, returns its addresses, which the caller releases.
    pub(crate) fn finish_stale(&mut self, block: u32) -> Option<(DevicePtr, u64)> {
        let block = self.0.join_unmapped(block);
        self.0.remove_if_unmapped(self.0.blocks[block].segment)
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::config::rounding::PoolKind;
    use crate::heap::FreeOutcome;
    use crate::heap::growth::Lacking;
    use crate::heap::split_rules::{PageRules, Rules, Source};
    use crate::tables::Growable;
    use crate::units::MIB;
    use std::vec::Vec;

    /// The length of every page.
    const STEP: u64 = 2 * MIB;
    /// The address of the first range.
    const FIRST: u64 = 1 << 40;
    /// The address of the second range.
    const SECOND: u64 = 2 << 40;

    struct Fixture {
        heap: Heap<Growable>,
        counters: HeapCounters,
    }

    impl Fixture {
        fn new() -> Self {
            let mut rules = Rules::new(&Config::default(), PoolKind::Large, false, Source::Pages);
            rules.pages = PageRules::Move;
            let heap = Heap { rules, ..Heap::default() };
            Self { heap, counters: HeapCounters::default() }
        }

        /// Adds a range at `base`. The first `pages` pages in it are mapped, each with a live
        /// block.
        fn map(&mut self, base: u64, pages: u32) {
            let Self { heap, counters } = self;
            heap.make_room().unwrap();
            assert!(heap.make_room_for_range());
            heap.add_range(DevicePtr(base), 64 * STEP, STEP);
            let held = heap.hold_room(u64::from(pages) * STEP, 0).unwrap();
            heap.sets.pages.make_room(pages).unwrap();
            for page in 0..pages {
                let at = base + u64::from(page) * STEP;
                heap.sets.pages.insert(HomePage::new(at, STEP, page));
            }
            let held = heap.trim_room(held, u64::from(pages) * STEP);
            let _free = heap.extend(held, counters);
            for page in 0..pages {
                let served = heap.malloc(STEP, STEP, counters).unwrap().unwrap();
                assert_eq!(served.value.0, base + u64::from(page) * STEP);
            }
        }

        /// Frees the block at each of the addresses.
        fn free(&mut self, addresses: &[u64]) {
            let Self { heap, counters } = self;
            for &address in addresses {
                let FreeOutcome::Unused(block) = heap.detach(DevicePtr(address), None, counters) else {
                    panic!("{address:#x} is not live");
                };
                heap.finish_free(block, counters);
            }
        }

        /// Takes `count` pages, and returns their addresses.
        fn take(&mut self, count: u32) -> Vec<u64> {
            let mut chosen = PageCounts::new(STEP);
            (0..count).for_each(|_| chosen.add(STEP));
            let (mut taken, mut places) = (Vec::new(), Vec::new());
            PagedHeap(&mut self.heap).take_pages(Wanted::Free, &mut chosen, STEP, |page, block| {
                taken.push(page.at);
                places.push(block);
            });
            for block in places {
                PagedHeap(&mut self.heap).leave_stale(block, &self.counters);
            }
            self.heap.check_invariants(&self.counters).unwrap();
            taken
        }
    }

    #[test]
    fn pages_of_whole_runs_move_first_and_those_between_blocks_last() {
        let mut fixture = Fixture::new();
        let first = |pages: &[u64]| pages.iter().map(|page| FIRST + page * STEP).collect::<Vec<_>>();
        fixture.map(FIRST, 10);
        fixture.map(SECOND, 3);
        fixture.free(&first(&[1, 2, 4, 5, 6, 8, 9]));
        fixture.free(&[SECOND, SECOND + STEP, SECOND + 2 * STEP]);
        // The whole run is taken first, from its end, so that what is left is still one run.
        assert_eq!(fixture.take(2), [SECOND + 2 * STEP, SECOND + STEP]);
        // Its last page is taken, and then the end of the other run.
        assert_eq!(fixture.take(1), [SECOND]);
        assert_eq!(fixture.take(2), first(&[9, 8]));
        // Between blocks, the free block farthest behind the front comes first.
        assert_eq!(fixture.take(4), first(&[1, 2, 4, 5]));
        // This page is now next to a gap.
        assert_eq!(fixture.take(2), first(&[6]), "no other page is free");
    }

    impl Fixture {
        /// Takes one page, and leaves unmapped addresses in its place.
        fn unmap(&mut self) -> u64 {
            let taken = self.take(1);
            let mut heap = PagedHeap(&mut self.heap);
            let (block, ..) = heap.take_stale(u64::MAX).unwrap();
            heap.finish_stale(block);
            taken[0]
        }

        /// Holds room for `pages` pages. Returns the first address to map, how many bytes to map,
        /// and how many are held.
        fn hold(&mut self, pages: u64) -> (u64, u64, u64) {
            self.heap.make_room().unwrap();
            let held = self.heap.hold_room(pages * STEP, 0).unwrap();
            let trimmed = self.heap.trim_room(held, held.needed);
            let at = self.heap.place_in(trimmed, 0).0;
            self.heap.release_room(trimmed);
            (at, held.needed, held.room)
        }

        fn lacking(&mut self, pages: u64) -> Option<Lacking> {
            self.heap.lacking(pages * STEP)
        }
    }

    #[test]
    fn a_request_uses_the_free_page_before_the_front_and_holds_no_more_than_it_lacks() {
        let mut fixture = Fixture::new();
        fixture.map(FIRST, 8);
        let page = |number: u64| FIRST + number * STEP;
        assert_eq!(fixture.hold(2), (page(8), 2 * STEP, 2 * STEP));
        fixture.free(&[page(7)]);
        assert_eq!(fixture.hold(3), (page(8), 2 * STEP, 2 * STEP));
        assert_eq!(fixture.lacking(3), Some(Lacking { needed: 2 * STEP, beside: STEP }));
        assert_eq!(fixture.lacking(63), None, "no range has the addresses");
        assert_eq!(fixture.heap.malloc(STEP, STEP, &fixture.counters).unwrap().unwrap().value.0, page(7));
        // A gap behind the front is left alone, even between free pages.
        fixture.free(&[page(3)]);
        assert_eq!(fixture.unmap(), page(3));
        fixture.free(&[page(2), page(4)]);
        assert_eq!(fixture.hold(3), (page(8), 3 * STEP, 3 * STEP));
    }

    #[test]
    fn the_addresses_are_used_as_a_ring_from_the_front_on() {
        let mut fixture = Fixture::new();
        fixture.map(FIRST, 62);
        let page = |number: u64| FIRST + number * STEP;
        // A page right behind the front moves, so the front is in the middle of an unmapped block.
        fixture.free(&[page(61)]);
        assert_eq!(fixture.unmap(), page(61));
        assert_eq!(fixture.hold(2), (page(61), 2 * STEP, 2 * STEP));
        fixture.free(&[page(0), page(1), page(2), page(3)]);
        assert_eq!([fixture.unmap(), fixture.unmap(), fixture.unmap()], [page(0), page(1), page(2)]);
        assert_eq!(fixture.hold(3), (page(61), 3 * STEP, 3 * STEP));
        fixture.heap.make_room().unwrap();
        let held = fixture.heap.hold_room(3 * STEP, 0).unwrap();
        let held = fixture.heap.trim_room(held, 3 * STEP);
        fixture.heap.sets.pages.make_room(3).unwrap();
        for number in 61..64 {
            fixture.heap.sets.pages.insert(HomePage::new(page(number), STEP, 99));
        }
        fixture.heap.extend(held, &fixture.counters);
        fixture.heap.check_invariants(&fixture.counters).unwrap();
        // The front is at the end of the range now.
        assert_eq!(fixture.hold(2), (page(0), 2 * STEP, 2 * STEP));
        assert_eq!(fixture.lacking(4), None, "no gap has the addresses");
    }

    #[test]
    fn the_newest_range_serves_first() {
        let mut fixture = Fixture::new();
        fixture.map(SECOND, 2);
        fixture.map(FIRST, 2);
        assert_eq!(fixture.hold(1), (FIRST + 2 * STEP, STEP, STEP));
        // The free page before the end of the other range makes no difference.
        fixture.free(&[SECOND + STEP]);
        assert_eq!(fixture.hold(2), (FIRST + 2 * STEP, 2 * STEP, 2 * STEP));
    }

    #[test]
    fn whole_runs_move_one_after_another_around_the_ring() {
        let mut fixture = Fixture::new();
        fixture.map(FIRST, 3);
        fixture.map(SECOND, 2);
        fixture.free(&[FIRST, FIRST + STEP, FIRST + 2 * STEP, SECOND, SECOND + STEP]);
        let taken = fixture.take(4);
        assert_eq!(taken, [FIRST + 2 * STEP, FIRST + STEP, FIRST, SECOND + STEP]);
    }

    #[test]
    fn pages_of_many_blocks_move_in_order() {
        let mut fixture = Fixture::new();
        fixture.map(FIRST, 64);
        fixture.map(SECOND, 64);
        let behind_live = |base: u64| (1..64).step_by(2).map(move |page| base + page * STEP);
        let expected = behind_live(FIRST).chain(behind_live(SECOND)).collect::<Vec<_>>();
        fixture.free(&expected);
        // The last page of each range is at the end of a run.
        let ends = [FIRST + 63 * STEP, SECOND + 63 * STEP];
        let between = expected.iter().copied().filter(|at| !ends.contains(at));
        assert_eq!(fixture.take(64), ends.into_iter().chain(between).collect::<Vec<_>>());
    }

    #[test]
    fn pages_are_ranked_in_the_order_in_which_they_move() {
        // Addresses that differ in only a few bits.
        const HIGH: u64 = 1 << 47;
        let mut fixture = Fixture::new();
        fixture.map(HIGH, 14);
        fixture.free(&[1, 3, 5, 6, 8, 10, 12, 13].map(|page| HIGH + page * STEP));
        let mut ranked = Vec::new();
        let mut block = fixture.heap.sets.free.first();
        while let Some(free) = block {
            let BlockEntry { addr, size, .. } = fixture.heap.blocks[free];
            let pages = fixture.heap.sets.pages.within(addr, addr + size);
            ranked.extend(pages.map(|page| (fixture.heap.order_of_page(free, page.at), page.at)));
            block = fixture.heap.sets.free.next(free, fixture.heap.blocks.entries());
        }
        ranked.sort_unstable();
        let ranks = ranked.iter().map(|&(rank, _)| rank).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(ranks.len(), ranked.len(), "no two pages have a rank");
        assert_eq!(fixture.take(8), ranked.into_iter().map(|(_, at)| at).collect::<Vec<_>>());
    }

    #[test]
    fn pages_are_lent_and_whole_segments_and_blocks_that_rules_refuse_are_not() {
        let mut fixture = Fixture::new();
        fixture.map(FIRST, 2);
        fixture.free(&[FIRST, FIRST + STEP]);
        let lendable = |fixture: &mut Fixture, bytes| PagedHeap(&mut fixture.heap).lendable(bytes);
        assert_eq!(lendable(&mut fixture, STEP), Some(2 * STEP));
        assert_eq!(lendable(&mut fixture, 3 * STEP), None);
        fixture.heap.rules.refuse_from = 2 * STEP;
        assert_eq!(lendable(&mut fixture, STEP), None);
        fixture.heap.rules.refuse_from = 2 * STEP + 1;
        assert_eq!(lendable(&mut fixture, STEP), Some(2 * STEP));
        fixture.heap.rules.refuse_from = u64::MAX;
        fixture.heap.make_room_for_segment(10 * STEP, STEP).unwrap();
        fixture.heap.add_segment(DevicePtr(SECOND), 10 * STEP, STEP, &fixture.counters);
        assert_eq!(lendable(&mut fixture, 3 * STEP), None, "the only block so long is of a segment");
    }
}
