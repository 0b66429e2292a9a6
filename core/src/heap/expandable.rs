//! Expandable segments, as a heap keeps them: a long range of addresses of which parts are mapped.
//!
//! ```text
//! segment  | allocated | free | unmapped … | free | allocated | unmapped ………………… |
//! ```
//!
//! Free blocks never touch free ones, nor unmapped ones unmapped. Unmapped blocks begin and end on granules. Mapping happens
//! outside the lock: the run of blocks it concerns is *held* meanwhile, out of every set, so nothing else can touch it.

use super::{Heap, Outcome};
use crate::heap::block::{Block, State};
use crate::stats::{HeapCounters, Stat};
use crate::tables::radix_tree::Key;
use crate::tables::slot_table::NONE;
use crate::tables::{Lazy, Storage};
use crate::units::DevicePtr;

/// A part of an expandable segment that is to be mapped or unmapped, in whole granules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    pub at: DevicePtr,
    pub bytes: u64,
    pub granule: u64,
}

/// A run of neighbouring blocks that are held together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub first: u32,
    pub last: u32,
}

impl<S: Storage> Heap<S> {
    /// Makes sure that a range of addresses or an unmapped block can be added.
    pub(crate) fn make_room_for_range(&mut self) -> bool {
        let blocks = self.blocks.len() + 2;
        self.segments.make_room(1) && self.sets.get_or_make().by_address.make_room_for(blocks)
    }

    /// With `block` the smallest free one that fits, and expandable: the one to take. While segments expand, a block that
    /// can grow counts as large as it can become, so that inner gaps are filled first; while they do not, expandable blocks
    /// are passed over. Says how large it is, too.
    #[cold]
    pub(super) fn find_among_expandable(&self, mut block: u32) -> Option<(u32, u64)> {
        let size_of = |block: u32| (block, self.blocks[block].size);
        loop {
            let next = self.sets.free.next(block, self.blocks.entries());
            if !self.rules.expandable {
                block = next?;
                if !self.blocks[block].expandable {
                    return Some(size_of(block));
                }
                continue;
            }
            match next {
                // The walk may end on an ordinary block, and goes no further from there.
                Some(next) if self.blocks[block].expandable && self.growable(next) < self.growable(block) => {
                    block = next;
                }
                _ => return Some(size_of(block)),
            }
        }
    }

    /// How large an expandable block can become without moving: its own size and what is unmapped behind it.
    fn growable(&self, block: u32) -> u64 {
        let Block { size, next, .. } = self.blocks[block];
        match next {
            NONE => size,
            next if self.blocks[next].state == State::Unmapped => size + self.blocks[next].size,
            _ => size,
        }
    }

    /// Adds a reserved range of addresses, all unmapped. Room was made.
    pub(crate) fn add_range(&mut self, base: DevicePtr, bytes: u64, granule: u64) {
        let block = self.new_segment(base, bytes, granule);
        self.insert_unmapped(block);
    }

    /// The lowest run of free and unmapped blocks that has `size` bytes and something to map: its first block.
    pub(crate) fn find_run(&self, size: u64) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let address = Self::address(&self.blocks);
        let mut bound = Key::default();
        while let Some(unmapped) = self.sets.by_address.at_least(self.sets.unmapped, bound, &address) {
            let prev = self.blocks[unmapped].prev;
            let first = if prev != NONE && self.blocks[prev].is_free() { prev } else { unmapped };
            if self.run_bytes(first, size) >= size {
                return Some(first);
            }
            bound.minor = self.blocks[unmapped].end();
        }
        None
    }

    /// Bytes of the run of free and unmapped blocks from `block` on, as far as it takes to reach `enough`.
    fn run_bytes(&self, mut block: u32, enough: u64) -> u64 {
        let mut bytes = 0;
        while bytes < enough && block != NONE {
            let Block { state, size, next, .. } = self.blocks[block];
            if !matches!(state, State::Free | State::Unmapped) {
                break;
            }
            bytes += size;
            block = next;
        }
        bytes
    }

    /// Holds as much of the run from `first` on as it takes for `size` bytes, so that its unmapped parts can be mapped
    /// without the lock. An unmapped block at the end is cut behind the granule that completes the run.
    pub(crate) fn hold_run(&mut self, mut first: u32, size: u64) -> Run {
        let mut held = 0;
        let mut block = first;
        loop {
            let unmapped = self.blocks[block].state == State::Unmapped;
            self.take(block);
            if unmapped {
                let granule = self.segments[self.blocks[block].segment].granule;
                let wanted = (size - held).next_multiple_of(granule);
                if wanted < self.blocks[block].size {
                    let front = self.cut(block, wanted);
                    self.blocks[block].requested = 0;
                    self.insert_unmapped(block);
                    (first, block) = (if first == block { front } else { first }, front);
                }
                self.blocks[block].state = State::Mapping;
            }
            held += self.blocks[block].size;
            if held >= size {
                break;
            }
            block = self.blocks[block].next;
        }
        Run { first, last: block }
    }

    /// The first part of a held run in `state`: still to be mapped, or mapped since the run was held.
    pub(crate) fn part_of_run(&self, run: Run, state: State) -> Option<(u32, Range)> {
        let mut block = run.first;
        loop {
            let Block { addr, size, state: is, segment, next, .. } = self.blocks[block];
            if is == state {
                let granule = self.segments[segment].granule;
                return Some((block, Range { at: DevicePtr(addr), bytes: size, granule }));
            }
            if block == run.last {
                return None;
            }
            block = next;
        }
    }

    /// Makes a held run that is wholly mapped now one free block, with its free neighbours. Its requested size is that
    /// of the part mapped last. Says how many parts were mapped, too.
    pub(crate) fn join_run(&mut self, run: Run, tally: &HeapCounters) -> Outcome<(u32, u64)> {
        let (mut parts, mut peaks_stale) = (0, false);
        let mut block = run.first;
        loop {
            let Block { state, size, requested, next, .. } = self.blocks[block];
            if state == State::Mapped {
                parts += 1;
                peaks_stale |= tally.up(Stat::ReservedBytes, size);
                self.blocks[run.first].requested = requested;
            }
            if block == run.last {
                break;
            }
            block = next;
        }
        let end = self.blocks[run.last].end();
        while self.blocks[run.first].end() < end {
            self.absorb_next(run.first);
        }
        let block = self.join_free(run.first).block;
        Outcome { value: (block, parts), peaks_stale }
    }

    /// Puts a held run of which nothing new is mapped back as it was. Says which segment is to be given back, if nothing is
    /// mapped in it.
    pub(crate) fn put_back_run(&mut self, run: Run) -> Option<(DevicePtr, u64)> {
        let segment = self.blocks[run.first].segment;
        let mut block = run.first;
        loop {
            let (next, last) = (self.blocks[block].next, block == run.last);
            match self.blocks[block].state {
                State::Mapping => _ = self.join_unmapped(block),
                State::Held => _ = self.join_free(block),
                // Lost: what could not be unmapped again stays where it is.
                _ => {}
            }
            if last {
                return self.remove_if_unmapped(segment);
            }
            block = next;
        }
    }

    /// Forgets a segment if nothing of it is mapped, and says what to give back.
    fn remove_if_unmapped(&mut self, segment: u32) -> Option<(DevicePtr, u64)> {
        let block = self.segments[segment].first;
        if self.blocks[block].state != State::Unmapped || self.blocks[block].is_split() {
            return None;
        }
        self.take(block);
        let Block { addr, size, .. } = self.blocks[block];
        self.blocks.remove(block);
        self.unlink(segment);
        Some((DevicePtr(addr), size))
    }

    /// The whole granules inside a free expandable block, if there are any.
    pub(crate) fn whole_granules(&self, block: u32) -> Option<Range> {
        let Block { addr, size, segment, .. } = self.blocks[block];
        let (base, granule) = (self.segments[segment].base, self.segments[segment].granule);
        let begin = base + (addr - base).next_multiple_of(granule);
        let end = base + (addr + size - base) / granule * granule;
        (begin < end).then(|| Range { at: DevicePtr(begin), bytes: end - begin, granule })
    }

    /// Takes a free block out of the index so that `range` inside it can be unmapped without the lock; what is before and
    /// behind stays free, as if never handed out. The held block that is left is exactly the range. Room was made.
    pub(crate) fn hold_range(&mut self, block: u32, range: Range) -> u32 {
        self.take(block);
        let before = range.at.0 - self.blocks[block].addr;
        if before > 0 {
            let front = self.cut(block, before);
            self.blocks[front].requested = 0;
            self.insert_free(front);
        }
        if range.bytes == self.blocks[block].size {
            return block;
        }
        let middle = self.cut(block, range.bytes);
        self.blocks[block].requested = 0;
        self.insert_free(block);
        middle
    }

    /// A held range is unmapped now. Says which segment is to be given back, if nothing is mapped in it any longer.
    pub(crate) fn finish_unmap(&mut self, block: u32, tally: &HeapCounters) -> Option<(DevicePtr, u64)> {
        tally.down(Stat::ReservedBytes, self.blocks[block].size);
        let block = self.join_unmapped(block);
        self.remove_if_unmapped(self.blocks[block].segment)
    }

    /// A held range was not unmapped after all: it is free again.
    pub(crate) fn put_back_range(&mut self, block: u32) {
        self.join_free(block);
    }

    /// A held range could not be unmapped: it is lost.
    pub(crate) fn lose(&mut self, block: u32, tally: &HeapCounters) {
        self.blocks[block].state = State::Lost;
        tally.down(Stat::ReservedBytes, self.blocks[block].size);
    }

    /// Puts a block that is in no set into the unmapped set, one with its unmapped neighbours. Says which entry is left; its
    /// requested size is `block`'s.
    fn join_unmapped(&mut self, block: u32) -> u32 {
        let Block { prev, next, requested, .. } = self.blocks[block];
        if next != NONE && self.blocks[next].state == State::Unmapped {
            self.take(next);
            self.absorb_next(block);
        }
        let left = if prev != NONE && self.blocks[prev].state == State::Unmapped {
            self.take(prev);
            self.absorb_next(prev);
            self.blocks[prev].requested = requested;
            prev
        } else {
            block
        };
        self.insert_unmapped(left);
        left
    }

    /// Takes a free or unmapped block out of its set.
    fn take(&mut self, block: u32) {
        if self.blocks[block].state == State::Unmapped {
            let sets = &mut *self.sets;
            sets.unmapped = sets.by_address.remove(sets.unmapped, block, Self::address(&self.blocks));
        } else {
            self.sets.free.remove(block, self.blocks.entries_mut());
        }
        self.blocks[block].state = State::Held;
    }

    fn insert_unmapped(&mut self, block: u32) {
        self.blocks[block].state = State::Unmapped;
        let sets = &mut *self.sets;
        sets.unmapped = sets.by_address.insert(sets.unmapped, block, Self::address(&self.blocks));
    }
}
