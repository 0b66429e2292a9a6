//! Every invariant of a heap, checked: for tests, after every step.

use super::Heap;
use crate::heap::bins;
use crate::heap::block::State;
use crate::stats::{HeapCounters, Stat};
use crate::tables::radix_tree::Key;
use crate::tables::slot_table::NONE;
use crate::tables::{Lazy, Storage};

/// What one walk over the segments adds up.
#[derive(Default)]
struct Sums {
    segments: u32,
    blocks: u32,
    free: u32,
    allocated: u32,
    unmapped: u32,
    allocated_bytes: u64,
    active: u64,
    active_bytes: u64,
    requested_bytes: u64,
    reserved_bytes: u64,
    inactive_split: u64,
    inactive_split_bytes: u64,
    ordinary: u64,
}

impl<S: Storage> Heap<S> {
    /// Checks everything that must hold between operations, and returns the bytes held from the device.
    pub(crate) fn check_invariants(&self, tally: &HeapCounters) -> Result<u64, &'static str> {
        let mut sums = Sums::default();
        if !self.sets.is_made() {
            check_tally(tally, &sums)?;
            return if self.is_empty() { Ok(0) } else { Err("a heap has segments and no sets") };
        }
        let (mut segment, mut prev) = (self.newest, NONE);
        while segment != NONE {
            if self.segments[segment].prev != prev {
                return Err("a segment's link to the one before is wrong");
            }
            if self.suballocator.is_some() {
                self.check_suballocated(segment, &mut sums)?;
            } else {
                self.check_segment(segment, &mut sums)?;
            }
            (prev, segment) = (segment, self.segments[segment].next);
        }
        if sums.segments != self.segments.len() || sums.blocks != self.blocks.len() {
            return Err("an entry is occupied that no segment leads to");
        }
        if sums.allocated != self.held.count(self.blocks.entries()) {
            return Err("the chains do not hold exactly the allocated blocks");
        }
        self.sets.free.check(sums.free, self.blocks.entries())?;
        if let Some(suballocator) = &self.suballocator {
            suballocator.check()?;
        }
        self.check_unmapped(sums.unmapped)?;
        check_tally(tally, &sums)?;
        Ok(sums.reserved_bytes)
    }

    fn check_segment(&self, segment: u32, sums: &mut Sums) -> Result<(), &'static str> {
        let entry = &self.segments[segment];
        sums.segments += 1;
        sums.ordinary += u64::from(entry.granule == 0);
        let (mut block, mut prev, mut at) = (entry.first, NONE, entry.base);
        while block != NONE {
            let b = &self.blocks[block];
            if b.addr != at || b.size == 0 || b.segment != segment || b.prev != prev {
                return Err("blocks do not tile their segment");
            }
            if b.expandable != (entry.granule != 0) {
                return Err("a block disagrees with its segment about being expandable");
            }
            if b.before != NONE && b.state != State::Free {
                return Err("a block that is not free has a place in a bin");
            }
            if b.bin != bins::bin(b.size) {
                return Err("a block remembers the bin of another size");
            }
            let alone = [State::Free, State::Unmapped];
            if prev != NONE && alone.contains(&b.state) && self.blocks[prev].state == b.state {
                return Err("two neighbours that are both free, or both unmapped, were not made one");
            }
            self.check_block(block, sums)?;
            at += b.size;
            (prev, block) = (block, b.next);
        }
        if at == entry.base + entry.bytes { Ok(()) } else { Err("blocks do not fill their segment") }
    }

    /// A segment that a suballocator cuts: what is taken and what is free tile it, and the block that stands for it whole is always free.
    fn check_suballocated(&self, segment: u32, sums: &mut Sums) -> Result<(), &'static str> {
        let entry = &self.segments[segment];
        let whole = &self.blocks[entry.first];
        sums.segments += 1;
        sums.ordinary += 1;
        // A lane of the planned policy counts as one piece, and what is free beside pieces does not count.
        let is_planned = self.is_planned();
        sums.reserved_bytes += entry.bytes;
        sums.free += 1;
        if (whole.addr, whole.size, whole.segment) != (entry.base, entry.bytes, segment)
            || whole.is_split()
            || !whole.is_free()
        {
            return Err("a block that stands for a segment is not the whole of it");
        }
        let (mut taken, mut taken_bytes) = (0, 0);
        for (piece, b) in self.pieces().filter(|(_, piece)| piece.segment == segment) {
            if b.addr < entry.base || b.end() > entry.base + entry.bytes {
                return Err("a piece is not inside its segment");
            }
            let mut of_piece = Sums::default();
            self.check_block(piece, &mut of_piece)?;
            sums.active += 1;
            sums.active_bytes += b.size;
            sums.requested_bytes += b.requested;
            sums.allocated += of_piece.allocated;
            sums.allocated_bytes += of_piece.allocated_bytes;
            (taken, taken_bytes) = (taken + 1, taken_bytes + b.size);
        }
        let (mut free, mut free_bytes) = (0, 0);
        let suballocator = self.suballocator.as_ref().ok_or("there is no suballocator")?;
        suballocator.visit_free(segment, &mut |_, bytes| (free, free_bytes) = (free + 1, free_bytes + bytes));
        sums.blocks += 1 + taken;
        if (taken > 0) != entry.live && !is_planned || taken_bytes + free_bytes != entry.bytes {
            return Err("pieces do not tile their segment");
        }
        if taken > 0 && !is_planned {
            sums.inactive_split += free;
            sums.inactive_split_bytes += free_bytes;
        }
        Ok(())
    }

    fn check_block(&self, block: u32, sums: &mut Sums) -> Result<(), &'static str> {
        let b = &self.blocks[block];
        sums.blocks += 1;
        if !matches!(b.state, State::Unmapped | State::Lost) {
            sums.reserved_bytes += b.size;
        }
        match b.state {
            State::Free => {
                sums.free += 1;
                if !b.expandable && b.is_split() {
                    sums.inactive_split += 1;
                    sums.inactive_split_bytes += b.size;
                }
            }
            State::Allocated | State::Pending => {
                sums.active += 1;
                sums.active_bytes += b.size;
                sums.requested_bytes += b.requested;
                if b.state == State::Allocated {
                    sums.allocated += 1;
                    sums.allocated_bytes += b.size;
                    if self.held.find(b.addr, self.blocks.entries()) != Some(block) {
                        return Err("an allocated block is not in the chains");
                    }
                }
            }
            State::Unmapped => {
                sums.unmapped += 1;
                let granule = self.segments[b.segment].granule;
                if !(b.addr - self.segments[b.segment].base).is_multiple_of(granule) || !b.size.is_multiple_of(granule)
                {
                    return Err("an unmapped block does not begin and end on granules");
                }
            }
            State::Lost => {}
            State::Held | State::Mapping | State::Mapped => return Err("a block is held between operations"),
        }
        if (b.events > 0 || b.uses != NONE) && matches!(b.state, State::Free | State::Unmapped) {
            return Err("a free block is waited for");
        }
        Ok(())
    }

    fn check_unmapped(&self, count: u32) -> Result<(), &'static str> {
        let (mut seen, mut bound) = (0, Key::default());
        while let Some(block) = self.sets.by_address.at_least(self.sets.unmapped, bound, Self::address(&self.blocks)) {
            if self.blocks[block].state != State::Unmapped {
                return Err("the unmapped set holds a block that is mapped");
            }
            (seen, bound.minor) = (seen + 1, self.blocks[block].addr + 1);
        }
        if seen == count { Ok(()) } else { Err("an unmapped block is missing from the set") }
    }
}

fn check_tally(tally: &HeapCounters, sums: &Sums) -> Result<(), &'static str> {
    let counted = [
        (Stat::Allocation, u64::from(sums.allocated)),
        (Stat::AllocatedBytes, sums.allocated_bytes),
        (Stat::Active, sums.active),
        (Stat::ActiveBytes, sums.active_bytes),
        (Stat::RequestedBytes, sums.requested_bytes),
        (Stat::InactiveSplit, sums.inactive_split),
        (Stat::InactiveSplitBytes, sums.inactive_split_bytes),
        (Stat::Segment, sums.ordinary),
        (Stat::ReservedBytes, sums.reserved_bytes),
    ];
    if counted.iter().all(|&(stat, value)| tally.current(stat) == value as i64) {
        Ok(())
    } else {
        Err("a statistic is not what the blocks add up to")
    }
}
