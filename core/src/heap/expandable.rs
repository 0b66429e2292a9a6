//! Expandable segments of a heap: reserved ranges of addresses, parts of which are mapped.
//!
//! ```text
//! segment  | allocated | free | unmapped … | free | allocated | unmapped ………………… |
//! ```
//!
//! Two free blocks are never neighbours, and neither are two unmapped ones. Unmapped blocks begin
//! and end on granules. The device maps and unmaps outside the heap's lock. During the call
//! the blocks concerned are *detached*: in no set, so no other operation touches them. An operation has two
//! steps under the lock, before and after the call to the device:
//!
//! ```text
//! detach_run   ─▶ map   ─▶ join_run, or attach_run if nothing was mapped
//! detach_range ─▶ unmap ─▶ finish_unmap, attach_range, or lose
//! ```

use super::{Heap, Outcome};
use crate::heap::block::{Backing, BlockEntry, Blocks, State};
use crate::heap::free_index::FreeIndex;
use crate::heap::home_pages::HomePage;
use crate::stats::{HeapCounters, Stat};
use crate::tables::slot_table::NONE;
use crate::tables::{Lazy, Storage};
use crate::units::DevicePtr;

/// Part of an expandable segment to be mapped or unmapped, in whole granules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AddressRange {
    /// Address of the first byte.
    pub at: DevicePtr,
    /// Length in bytes, a multiple of `granule`.
    pub bytes: u64,
    /// Bytes mapped at a time in the segment.
    pub granule: u64,
}

/// A run of neighbouring blocks that are detached together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// The block at the lowest address.
    pub first: u32,
    /// The block at the highest address. May equal `first`.
    pub last: u32,
}

/// A detached part of a free block, and the parts of the block that stay free.
pub(super) struct Cut {
    pub before: Option<u32>,
    pub part: u32,
    pub behind: Option<u32>,
}

/// Detaches the addresses from `from` to `end` of a free or unmapped block. The parts before and behind stay unmapped, or
/// free since the same time, as if never allocated. Room for two blocks was made.
pub(super) fn cut_out<S: Storage>(heap: &mut Heap<S>, block: u32, from: u64, end: u64) -> Cut {
    let BlockEntry { addr, freed_at, state, .. } = heap.blocks[block];
    let block_end = heap.blocks[block].end();
    let keep = |heap: &mut Heap<S>, rest: u32| {
        heap.blocks[rest].requested = 0;
        if state == State::Unmapped {
            heap.sets.insert_unmapped(rest, &mut heap.blocks);
        } else {
            heap.sets.insert_free(rest, freed_at, heap.blocks.entries_mut());
        }
        Some(rest)
    };
    debug_assert!(addr <= from && end <= block_end, "the part lies in the block");
    heap.sets.detach(block, &mut heap.blocks);
    let mut before = None;
    if from > addr {
        let front = heap.blocks.cut(block, from - addr, &mut heap.segments);
        before = keep(heap, front);
    }
    if end == block_end {
        return Cut { before, part: block, behind: None };
    }
    let part = heap.blocks.cut(block, end - from, &mut heap.segments);
    heap.blocks[part].freed_at = freed_at;
    Cut { before, part, behind: keep(heap, block) }
}

impl<S: Storage> FreeIndex<S> {
    /// Chooses among expandable blocks, where `block` is the smallest free block that fits, and is
    /// expandable. Returns the chosen block and its bytes.
    ///
    /// If `may_grow`, each block counts as large as the block can become in place: a gap between
    /// other blocks is filled before the block at the end of the mapped range. Otherwise expandable
    /// blocks are skipped.
    #[cold]
    pub(super) fn best_expandable(&self, mut block: u32, blocks: &Blocks<S>, may_grow: bool) -> Option<(u32, u64)> {
        let size_of = |block: u32| (block, blocks[block].size);
        loop {
            let next = self.next(block, blocks.entries());
            if !may_grow {
                block = next?;
                if blocks[block].backing != Backing::Expandable {
                    return Some(size_of(block));
                }
                continue;
            }
            match next {
                // The walk stops at the first block that does not improve, and at the first
                // ordinary block.
                Some(next)
                    if blocks[block].backing == Backing::Expandable
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
    /// Returns the bytes that a block can grow to in place: the block and the unmapped block
    /// behind.
    fn growable_bytes(&self, block: u32) -> u64 {
        let BlockEntry { size, next, .. } = self[block];
        match next {
            NONE => size,
            next if self[next].state == State::Unmapped => size + self[next].size,
            _ => size,
        }
    }

    /// Returns the bytes of the run of free and unmapped blocks from `block` on. Stops once
    /// `enough` bytes are found.
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
    /// Makes room for a range of addresses or for an unmapped block. Returns false if a table is
    /// full.
    pub(crate) fn make_room_for_range(&mut self) -> bool {
        let blocks = self.blocks.len() + 2;
        self.segments.make_room(1) && self.sets.get_or_make().make_room_for_unmapped(blocks)
    }

    /// Adds a reserved range of addresses, all unmapped. Room was made.
    pub(crate) fn add_range(&mut self, base: DevicePtr, bytes: u64, granule: u64, backing: Backing) {
        let block = self.new_segment(base, bytes, granule, backing);
        self.sets.insert_unmapped(block, &mut self.blocks);
    }

    /// Finds the lowest run of free and unmapped blocks of at least `size` bytes with an unmapped
    /// part. Returns the run's first block.
    pub(crate) fn find_run(&self, size: u64) -> Option<u32> {
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
            // The run broke off behind this unmapped block, or is too short: the next run begins
            // after the block.
            from = self.blocks[unmapped].end();
        }
        None
    }

    /// Returns the bytes that [`detach_run`](Self::detach_run) would leave to be mapped for `size` bytes, in the run that
    /// [`find_run`](Self::find_run) returns. Returns `None` without such a run.
    pub(crate) fn bytes_to_map(&self, size: u64) -> Option<u64> {
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

    /// Returns the bytes of a detached run that are to be mapped.
    pub(crate) fn lacking_in(&self, run: Run) -> u64 {
        self.of_run(run).filter(|(_, part)| part.state == State::Mapping).map(|(_, part)| part.size).sum()
    }

    /// Detaches as many blocks of the run from `first` on as `size` bytes take, so the
    /// unmapped ones can be mapped without the lock. The last unmapped block is cut at the granule
    /// that completes the run.
    pub(crate) fn detach_run(&mut self, mut first: u32, size: u64) -> Run {
        let mut held = 0;
        let mut block = first;
        loop {
            let BlockEntry { addr, size: whole, state, segment, .. } = self.blocks[block];
            if state == State::Unmapped {
                // `size - held` is more than 0: the loop ends as soon as the run is complete.
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

    /// Returns the first block of a detached run in `state` (still to be mapped, or mapped since),
    /// and its range.
    pub(crate) fn part_of_run(&self, run: Run, state: State) -> Option<(u32, AddressRange)> {
        let (block, part) = self.of_run(run).find(|(_, part)| part.state == state)?;
        let granule = self.segments[part.segment].granule;
        Some((block, AddressRange { at: DevicePtr(part.addr), bytes: part.size, granule }))
    }

    /// Iterates over the blocks of a detached run.
    fn of_run(&self, run: Run) -> impl Iterator<Item = (u32, &BlockEntry)> {
        let end = self.blocks[run.last].end();
        self.blocks.chain(run.first, move |block| if block.end() == end { NONE } else { block.next })
    }

    /// Merges a detached run, now wholly mapped, into one free block, together with free
    /// neighbours. The block takes over the requested size of the part mapped last. Returns the
    /// block and the number of parts that were mapped.
    pub(crate) fn join_run(&mut self, run: Run, counters: &HeapCounters) -> Outcome<(u32, u64)> {
        let (mut parts, mut peaks_stale) = (0, false);
        let mut requested = self.blocks[run.first].requested;
        for (_, mapped) in self.of_run(run).filter(|(_, part)| part.state == State::Mapped) {
            parts += 1;
            peaks_stale |= counters.up(Stat::ReservedBytes, mapped.size);
            requested = mapped.requested;
        }
        self.blocks[run.first].requested = requested;
        let end = self.blocks[run.last].end();
        // Blocks absorbed keep no entry, so the loop compares addresses, not entries.
        while self.blocks[run.first].end() < end {
            self.blocks.absorb_next(run.first);
        }
        let block = self.join_free(run.first);
        Outcome { value: (block, parts), peaks_stale }
    }

    /// Restores a detached run of which nothing new was mapped. If nothing of the segment is
    /// mapped, removes the segment and returns the range of addresses to release.
    pub(crate) fn attach_run(&mut self, run: Run) -> Option<(DevicePtr, u64)> {
        let segment = self.blocks[run.first].segment;
        let mut block = run.first;
        loop {
            let (next, last) = (self.blocks[block].next, block == run.last);
            match self.blocks[block].state {
                State::Mapping => _ = self.join_unmapped(block),
                State::Detached => _ = self.join_free(block),
                // Lost: what could not be unmapped again stays where it is.
                _ => {}
            }
            if last {
                return self.remove_if_unmapped(segment);
            }
            block = next;
        }
    }

    /// Removes a segment of which nothing is mapped. Returns the range of addresses to release, or
    /// `None` if something is mapped.
    pub(super) fn remove_if_unmapped(&mut self, segment: u32) -> Option<(DevicePtr, u64)> {
        let block = self.segments[segment].first;
        if self.blocks[block].state != State::Unmapped || self.blocks[block].is_split() {
            return None;
        }
        self.sets.detach(block, &mut self.blocks);
        let BlockEntry { addr, size, .. } = self.blocks[block];
        self.blocks.remove(block);
        self.segments.unlink(segment, &mut self.newest);
        Some((DevicePtr(addr), size))
    }

    /// Returns the range of the first pages that lie wholly inside a free block and for which `wanted`
    /// returns true, up to a page for which it does not. `None` if there is none.
    pub(crate) fn whole_pages(&self, block: u32, wanted: impl Fn(&HomePage) -> bool) -> Option<AddressRange> {
        let BlockEntry { addr, segment, backing, .. } = self.blocks[block];
        if backing == Backing::Ordinary {
            return None;
        }
        let mut pages = self.sets.pages.within(addr, self.blocks[block].end()).skip_while(|page| !wanted(page));
        let first = pages.next()?;
        let end = pages.take_while(&wanted).last().map_or(first.end(), |last| last.end());
        let granule = self.segments[segment].granule;
        Some(AddressRange { at: DevicePtr(first.at), bytes: end - first.at, granule })
    }

    /// Detaches the part `range` of a free block, so the part can be unmapped without the
    /// lock. Returns the detached block. Room for two blocks was made.
    pub(crate) fn detach_range(&mut self, block: u32, range: AddressRange) -> u32 {
        cut_out(self, block, range.at.0, range.at.0 + range.bytes).part
    }

    /// Marks a detached range as unmapped. If nothing of the segment is mapped any longer, removes
    /// the segment and returns the range of addresses to release.
    pub(crate) fn finish_unmap(&mut self, block: u32, counters: &HeapCounters) -> Option<(DevicePtr, u64)> {
        counters.down(Stat::ReservedBytes, self.blocks[block].size);
        let block = self.join_unmapped(block);
        self.remove_if_unmapped(self.blocks[block].segment)
    }

    /// Makes a detached range free again that was not unmapped.
    pub(crate) fn attach_range(&mut self, block: u32) {
        self.join_free(block);
    }

    /// Marks a detached range as lost: the device failed to unmap the memory.
    pub(crate) fn lose(&mut self, block: u32, counters: &HeapCounters) {
        debug_assert!(self.blocks[block].state == State::Detached, "only a detached range can be lost");
        self.blocks[block].state = State::Lost;
        counters.down(Stat::ReservedBytes, self.blocks[block].size);
    }

    /// Adds a detached block to the unmapped set, merged with its unmapped neighbours. Returns the
    /// merged block, which takes over the requested size of `block`.
    pub(super) fn join_unmapped(&mut self, block: u32) -> u32 {
        let BlockEntry { prev, next, requested, .. } = self.blocks[block];
        if next != NONE && self.blocks[next].state == State::Unmapped {
            self.sets.detach(next, &mut self.blocks);
            self.blocks.absorb_next(block);
        }
        let left = if prev != NONE && self.blocks[prev].state == State::Unmapped {
            self.sets.detach(prev, &mut self.blocks);
            self.blocks.absorb_next(prev);
            self.blocks[prev].requested = requested;
            prev
        } else {
            block
        };
        self.sets.insert_unmapped(left, &mut self.blocks);
        left
    }
}
