//! The reserved addresses of a heap on pages. Parts of them are mapped.
//!
//! ```text
//! range  | allocated | free | unmapped … | free | allocated | unmapped ………………… |
//! ```
//!
//! Two free blocks are never neighbours, and neither are two unmapped ones. Unmapped blocks start
//! and end on granules. The device maps and unmaps outside the heap's lock. During the call, the
//! blocks involved are *detached*: they are in no set, so no other operation touches them. An
//! operation takes two steps under the lock, one before and one after the call to the device:
//!
//! ```text
//! hold_room    ─▶ map   ─▶ extend, or release_room if nothing was mapped     (growth.rs)
//! detach_range ─▶ unmap ─▶ finish_unmap, attach_range, or lose
//! ```

use super::Heap;
use crate::heap::block::{Backing, BlockEntry, State};
use crate::heap::home_pages::HomePage;
use crate::stats::{HeapCounters, Stat};
use crate::tables::slot_table::NONE;
use crate::tables::{Lazy, Storage};
use crate::units::DevicePtr;

/// A part of a range to be mapped or unmapped, in whole granules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AddressRange {
    /// The address of the first byte.
    pub at: DevicePtr,
    /// The length in bytes, a multiple of `granule`.
    pub bytes: u64,
    /// The lengths of the pages in the range are multiples of this many bytes.
    pub granule: u64,
}

/// A run of neighbouring blocks that are detached together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// The block at the lowest address.
    pub first: u32,
    /// The block at the highest address. It may be the same as `first`.
    pub last: u32,
}

/// A detached part of a free block, and the parts of the block that remain free.
pub(super) struct Cut {
    pub before: Option<u32>,
    pub part: u32,
    pub behind: Option<u32>,
}

/// Detaches the addresses from `from` to `end` of a free or unmapped block. The parts before and
/// after remain unmapped, or free since the same time, as if they had never been allocated. The
/// caller has made room for two blocks.
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

impl<S: Storage> Heap<S> {
    /// Makes room for a range of addresses or for an unmapped block. Returns false if a table is
    /// full.
    pub(crate) fn make_room_for_range(&mut self) -> bool {
        let blocks = self.blocks.len() + 2;
        self.segments.make_room(1) && self.sets.get_or_make().make_room_for_unmapped(blocks)
    }

    /// Adds a reserved range of addresses, none of which is mapped. Its start is the new front. The
    /// caller has made room.
    pub(crate) fn add_range(&mut self, base: DevicePtr, bytes: u64, granule: u64) {
        let block = self.new_segment(base, bytes, granule, Backing::Pages);
        self.sets.insert_unmapped(block, &mut self.blocks);
        self.sets.front = base.0;
    }

    /// Puts back a detached run in which nothing new was mapped. If nothing of the segment is
    /// mapped, removes the segment and returns its range of addresses, which the caller releases.
    pub(crate) fn attach_run(&mut self, run: Run) -> Option<(DevicePtr, u64)> {
        let segment = self.blocks[run.first].segment;
        let mut block = run.first;
        loop {
            let (next, last) = (self.blocks[block].next, block == run.last);
            match self.blocks[block].state {
                State::Mapping => _ = self.join_unmapped(block),
                State::Detached => _ = self.join_free(block),
                // Lost: what could not be unmapped again remains where it is.
                _ => {}
            }
            if last {
                return self.remove_if_unmapped(segment);
            }
            block = next;
        }
    }

    /// Removes a segment if nothing in it is mapped. Returns its range of addresses, which the
    /// caller releases, or `None` if something is mapped.
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

    /// Finds the first page that is completely inside a free block and for which `wanted` returns
    /// true, and returns the range of this page and the wanted pages after it. `None` if there is
    /// none.
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

    /// Detaches the part `range` of a free block, so that it can be unmapped without the lock.
    /// Returns the detached block. The caller has made room for two blocks.
    pub(crate) fn detach_range(&mut self, block: u32, range: AddressRange) -> u32 {
        cut_out(self, block, range.at.0, range.at.0 + range.bytes).part
    }

    /// Marks a detached range as unmapped. If nothing of the segment is mapped any more, removes
    /// the segment and returns its range of addresses, which the caller releases.
    pub(crate) fn finish_unmap(&mut self, block: u32, counters: &HeapCounters) -> Option<(DevicePtr, u64)> {
        counters.down(Stat::ReservedBytes, self.blocks[block].size);
        let block = self.join_unmapped(block);
        self.remove_if_unmapped(self.blocks[block].segment)
    }

    /// Makes a detached range free again if it was not unmapped after all.
    pub(crate) fn attach_range(&mut self, block: u32) {
        self.join_free(block);
    }

    /// Marks a detached range as lost, because the device failed to unmap it.
    pub(crate) fn lose(&mut self, block: u32, counters: &HeapCounters) {
        debug_assert!(self.blocks[block].state == State::Detached, "only a detached range can be lost");
        self.blocks[block].state = State::Lost;
        counters.down(Stat::ReservedBytes, self.blocks[block].size);
    }

    /// Adds a detached block to the unmapped set, merged with its unmapped neighbours. Returns the
    /// merged block, which gets the requested size of `block`.
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
