//! Growth of a heap on pages: addresses are held for a request while pages are mapped there.
//!
//! ```text
//! Stay   | free | unmapped | free | unmapped ………………… |   the lowest run of free and unmapped blocks
//! Move   | free | unmapped | allocated | free | unmapped …… |   one unmapped block, at the front, and the free block before it
//!
//! hold_room ─▶ trim_room ─▶ map, with no lock held ─▶ extend
//!                            └─ fails ─▶ release_room
//! ```
//!
//! The two ways to choose a place are the [rules](PageRules) of the heap's pages. If they move, the
//! addresses are a ring: pages are mapped at the *front*, where the last ones end, and
//! [taken](crate::heap::moves) from behind it. What follows is the same for both. The held blocks
//! are in no set, so nobody else uses them. The unmapped ones among them are the *parts* of the
//! room, and pages fill all of them.

use super::{Heap, Outcome};
use crate::heap::addresses::{AddressRange, Run, cut_out};
use crate::heap::block::{Backing, BlockEntry, Blocks, State};
use crate::heap::free_index::FreeIndex;
use crate::heap::home_pages::HomePage;
use crate::heap::split_rules::PageRules;
use crate::stats::{HeapCounters, Stat};
use crate::tables::Storage;
use crate::tables::slot_table::NONE;
use crate::units::DevicePtr;

/// Unmapped addresses of a heap that are held while pages are mapped there, together with the free
/// blocks that the same request will use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldRoom {
    /// The held blocks.
    run: Run,
    /// How many bytes to map: what the request needs beyond the free blocks.
    pub needed: u64,
    /// How many bytes the parts have: at least `needed`, and more only if there is a single part.
    pub room: u64,
}

/// How much memory a heap is missing for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lacking {
    /// How many bytes to map.
    pub needed: u64,
    /// Bytes of movable pages in the free blocks that the request will use. These pages do not
    /// move.
    pub beside: u64,
}

impl<S: Storage> FreeIndex<S> {
    /// Chooses among blocks on pages that [stay](PageRules::Stay) in place. `block` is the smallest
    /// free block that fits, and is on pages. Returns the chosen block and its size.
    ///
    /// If `may_grow`, a block counts with the size that it can reach in place, so a gap between
    /// other blocks is filled before the block at the end of the mapped range grows. Otherwise,
    /// blocks on pages are skipped.
    #[cold]
    pub(super) fn best_in_place(&self, mut block: u32, blocks: &Blocks<S>, may_grow: bool) -> Option<(u32, u64)> {
        let size_of = |block: u32| (block, blocks[block].size);
        loop {
            let next = self.next(block, blocks.entries());
            if !may_grow {
                block = next?;
                if blocks[block].backing != Backing::Pages {
                    return Some(size_of(block));
                }
                continue;
            }
            match next {
                // The walk stops at the first block that is no improvement, and at the first
                // ordinary block.
                Some(next)
                    if blocks[block].backing == Backing::Pages
                        && blocks.growable_bytes(next) < blocks.growable_bytes(block) =>
                {
                    block = next;
                }
                _ => return Some(size_of(block)),
            }
        }
    }
}

impl<S: Storage> Blocks<S> {
    /// Returns how large a block can become in place: the block and the unmapped block after it.
    fn growable_bytes(&self, block: u32) -> u64 {
        let BlockEntry { size, next, .. } = self[block];
        match next {
            NONE => size,
            next if self[next].state == State::Unmapped => size + self[next].size,
            _ => size,
        }
    }

    /// Returns the bytes in the run of free and unmapped blocks that starts with `block`. Stops
    /// counting once there are `enough`.
    fn run_bytes(&self, mut block: u32, enough: u64) -> u64 {
        let mut bytes = 0;
        while bytes < enough && block != NONE {
            let BlockEntry { state, size, next, .. } = self[block];
            if !matches!(state, State::Free | State::Unmapped) {
                break;
            }
            bytes += size;
            block = next;
        }
        bytes
    }
}

impl<S: Storage> Heap<S> {
    /// Detaches unmapped addresses for a request of `size` bytes, and the free blocks that it uses
    /// with them, according to the rules of the heap's pages. If pages move, up to `spare_room`
    /// bytes more than needed are held. Returns `None` if no range has enough addresses. The caller
    /// has made room for two blocks.
    pub(crate) fn hold_room(&mut self, size: u64, spare_room: u64) -> Option<HeldRoom> {
        if self.rules.pages == PageRules::Move {
            return self.hold_gap(size, spare_room);
        }
        let first = self.find_run(size)?;
        let run = self.detach_run(first, size);
        let needed = self.parts_of(run).map(|part| part.bytes).sum();
        Some(HeldRoom { run, needed, room: needed })
    }

    /// Returns how much memory is missing for a request of `size` bytes, or `None` if no range has
    /// enough addresses.
    pub(crate) fn lacking(&self, size: u64) -> Option<Lacking> {
        if self.rules.pages == PageRules::Stay {
            return self.bytes_to_map(size).map(|needed| Lacking { needed, beside: 0 });
        }
        let (gap, needed) = self.next_gap(size)?;
        let beside = self.free_before(gap).map_or(0, |free| {
            let BlockEntry { addr, size, .. } = self.blocks[free];
            let pages = self.sets.pages.within(addr, addr + size);
            pages.filter(HomePage::is_movable).map(|page| page.bytes).sum()
        });
        Some(Lacking { needed, beside })
    }

    /// Gives the room beyond `bytes`, which is the length of the pages that will be mapped, back to
    /// the heap. If the room is longer than that, the caller has made room for two blocks.
    pub(crate) fn trim_room(&mut self, held: HeldRoom, bytes: u64) -> HeldRoom {
        let HeldRoom { mut run, room, .. } = held;
        debug_assert!(0 < bytes && bytes <= room, "the room holds the pages");
        if bytes < room {
            let gap = run.last;
            let front = self.blocks.cut(gap, bytes, &mut self.segments);
            self.join_unmapped(gap);
            run = Run { first: if run.first == gap { front } else { run.first }, last: front };
        }
        HeldRoom { run, room: bytes, ..held }
    }

    /// Gives held room in which nothing is mapped back to the unmapped blocks. If nothing of the
    /// segment is mapped or held any more, returns the addresses of the segment. Parts that are
    /// [lost](Self::lose_part) are never used again.
    pub(crate) fn release_room(&mut self, held: HeldRoom) -> Option<(DevicePtr, u64)> {
        self.attach_run(held.run)
    }

    /// Returns the first part of held room that starts at `from` or later.
    pub(crate) fn part_from(&self, held: HeldRoom, from: u64) -> Option<AddressRange> {
        self.parts_of(held.run).find(|part| part.at.0 >= from)
    }

    /// Returns the address for the next page in held room, after one that ends at `end`; 0 asks for
    /// the first page. If there is no part, there is no page either, because the free blocks of the
    /// room are enough.
    pub(crate) fn place_in(&self, held: HeldRoom, end: u64) -> DevicePtr {
        let part = self.parts_of(held.run).find(|part| end < part.at.0 + part.bytes);
        DevicePtr(part.map_or(end, |part| part.at.0.max(end)))
    }

    /// Marks the part of held room that contains `at` as lost, because the device failed to unmap a
    /// page there.
    pub(crate) fn lose_part(&mut self, held: HeldRoom, at: u64) {
        let part = self.of_run(held.run).find(|(_, part)| at < part.end()).map(|(block, _)| block);
        self.blocks[part.expect("the part is held")].state = State::Lost;
    }

    /// Turns held room in which all parts are now mapped into one free block, merged with free
    /// neighbours. The end of the room is the new front. The block gets the requested size of the
    /// last part. Returns the block and the number of parts. The caller lists the pages.
    pub(crate) fn extend(&mut self, held: HeldRoom, counters: &HeapCounters) -> Outcome<(u32, u64)> {
        let run = held.run;
        let (mut parts, mut peaks_stale) = (0, false);
        let mut requested = self.blocks[run.first].requested;
        for (_, mapped) in self.of_run(run).filter(|(_, part)| part.state == State::Mapping) {
            parts += 1;
            peaks_stale |= counters.up(Stat::ReservedBytes, mapped.size);
            requested = mapped.requested;
        }
        self.blocks[run.first].requested = requested;
        let end = self.blocks[run.last].end();
        self.sets.front = end;
        // Absorbed blocks lose their entries, so the loop compares addresses instead of entries.
        while self.blocks[run.first].end() < end {
            self.blocks.absorb_next(run.first);
        }
        let block = self.join_free(run.first);
        Outcome { value: (block, parts), peaks_stale }
    }

    /// Iterates over the blocks of a detached run.
    fn of_run(&self, run: Run) -> impl Iterator<Item = (u32, &BlockEntry)> {
        let end = self.blocks[run.last].end();
        self.blocks.chain(run.first, move |block| if block.end() == end { NONE } else { block.next })
    }

    /// Iterates over the parts of a held run, mapped or not.
    fn parts_of(&self, run: Run) -> impl Iterator<Item = AddressRange> {
        // The other blocks were free.
        self.of_run(run).filter(|(_, part)| part.state != State::Detached).map(|(_, part)| {
            let granule = self.segments[part.segment].granule;
            AddressRange { at: DevicePtr(part.addr), bytes: part.size, granule }
        })
    }

    /// Finds the lowest run of free and unmapped blocks that has at least `size` bytes and an
    /// unmapped part. Returns the first block of the run.
    fn find_run(&self, size: u64) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let mut from = 0;
        while let Some(unmapped) = self.sets.unmapped_from(from, &self.blocks) {
            let prev = self.blocks[unmapped].prev;
            let first = if prev != NONE && self.blocks[prev].is_free() { prev } else { unmapped };
            if self.blocks.run_bytes(first, size) >= size {
                return Some(first);
            }
            // The run ends after this unmapped block, or is too short: the next run starts after
            // it.
            from = self.blocks[unmapped].end();
        }
        None
    }

    /// Returns how many bytes [`detach_run`](Self::detach_run) would leave to be mapped for `size`
    /// bytes, in the run that [`find_run`](Self::find_run) finds. Returns `None` if there is no
    /// such run.
    fn bytes_to_map(&self, size: u64) -> Option<u64> {
        let mut block = self.find_run(size)?;
        let (mut held, mut lacking) = (0, 0);
        loop {
            let BlockEntry { size: whole, state, segment, next, .. } = self.blocks[block];
            let part = if state == State::Unmapped {
                let wanted: u64 = size - held;
                wanted.next_multiple_of(self.segments[segment].granule).min(whole)
            } else {
                whole
            };
            lacking += if state == State::Unmapped { part } else { 0 };
            held += part;
            if held >= size {
                return Some(lacking);
            }
            block = next;
        }
    }

    /// Detaches as many blocks of the run from `first` on as it takes to get `size` bytes, so that
    /// the unmapped ones can be mapped without the lock. The last unmapped block is cut at the
    /// granule that completes the run.
    fn detach_run(&mut self, mut first: u32, size: u64) -> Run {
        let mut held = 0;
        let mut block = first;
        loop {
            let BlockEntry { addr, size: whole, state, segment, .. } = self.blocks[block];
            if state == State::Unmapped {
                // `size - held` is more than 0, because the loop ends as soon as the run is
                // complete.
                let wanted = (size - held).next_multiple_of(self.segments[segment].granule);
                let part = cut_out(self, block, addr, addr + wanted.min(whole)).part;
                self.blocks[part].state = State::Mapping;
                (first, block) = (if first == block { part } else { first }, part);
            } else {
                self.sets.detach(block, &mut self.blocks);
            }
            held += self.blocks[block].size;
            if held >= size {
                break;
            }
            block = self.blocks[block].next;
        }
        Run { first, last: block }
    }

    /// Holds room in a single unmapped block, as [`hold_room`](Self::hold_room) describes: the
    /// [next](Self::next_gap) one, with the free block before it.
    fn hold_gap(&mut self, size: u64, spare_room: u64) -> Option<HeldRoom> {
        let (block, needed) = self.next_gap(size)?;
        let before = self.free_before(block);
        let BlockEntry { addr, size: gap_bytes, .. } = self.blocks[block];
        let room = gap_bytes.min(needed + spare_room);
        let gap = cut_out(self, block, addr, addr + room).part;
        self.blocks[gap].state = State::Mapping;
        self.blocks[gap].requested = 0;
        if let Some(before) = before {
            self.sets.detach(before, &mut self.blocks);
        }
        Some(HeldRoom { run: Run { first: before.unwrap_or(gap), last: gap }, needed, room })
    }

    /// Finds the unmapped block in which room is held for a request of `size` bytes: the first one
    /// from the front on, around the ring, that with the free block before it has as many bytes.
    /// Returns the block, and how many bytes to map.
    ///
    /// A gap between other blocks might need fewer pages. But pages that fill gaps leave gaps
    /// elsewhere, and the mapped addresses fall into pieces that fit fewer and fewer requests. In a
    /// diffusion U-Net with images of seven shapes, 9.4 pages moved in a step into the gaps with
    /// the fewest missing bytes, and 2.7 to the front, with the same memory.
    fn next_gap(&self, size: u64) -> Option<(u32, u64)> {
        if self.is_empty() {
            return None;
        }
        let (sets, blocks) = (&self.sets, &self.blocks);
        let front = sets.front;
        // The front is inside the block if the pages before it have moved.
        let around = sets.unmapped_below(front, blocks).filter(|&block| blocks[block].end() > front);
        let from = |addr: u64| {
            let next = |&block: &u32| sets.unmapped_from(blocks[block].end(), blocks);
            core::iter::successors(sets.unmapped_from(addr, blocks), next)
        };
        let lacking = |block: u32| {
            let BlockEntry { size: room, segment, .. } = blocks[block];
            let granule = self.segments[segment].granule;
            let held = self.free_before(block).map_or(0, |free| blocks[free].size);
            // At least one granule, even if another thread has made a free block large enough
            // meanwhile.
            let needed = size.saturating_sub(held).next_multiple_of(granule).max(granule);
            (needed <= room).then_some((block, needed))
        };
        from(around.map_or(front, |block| blocks[block].addr)).chain(from(0)).find_map(lacking)
    }

    /// Returns the block before `gap`, if it is free.
    fn free_before(&self, gap: u32) -> Option<u32> {
        let prev = self.blocks[gap].prev;
        (prev != NONE && self.blocks[prev].is_free()).then_some(prev)
    }
}
