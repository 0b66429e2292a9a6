//! Checks all invariants of a heap. Tests do this after every step.

use super::Heap;
use crate::heap::bins;
use crate::heap::block::{Backing, FRONTIER_BIT, State};
use crate::stats::{HeapCounters, Stat};
use crate::streams::groups::GroupSet;
use crate::tables::slot_table::NONE;
use crate::tables::{Lazy, Storage};
use crate::units::NO_STREAM;

/// The sums from a walk over the segments. They are compared with the tables and the counters.
#[derive(Default)]
struct Sums {
    segments: u32,
    blocks: u32,
    free: u32,
    allocated: u32,
    unmapped: u32,
    stale: u32,
    stale_bytes: u64,
    allocated_bytes: u64,
    active: u64,
    active_bytes: u64,
    requested_bytes: u64,
    reserved_bytes: u64,
    inactive_split: u64,
    inactive_split_bytes: u64,
    /// The number of ordinary segments, which [`Stat::Segment`] counts.
    ordinary: u64,
    /// Bytes of the ordinary segments.
    ordinary_bytes: u64,
}

impl<S: Storage> Heap<S> {
    /// Checks every invariant. This is called between two operations. Returns how many bytes of
    /// device memory the heap holds.
    pub(crate) fn check_invariants(&self, counters: &HeapCounters) -> Result<u64, &'static str> {
        if self.plain && !self.is_plain() {
            return Err("a heap is marked as plain, and is not");
        }
        if self.straight_frees != (self.plain && !(self.clean || self.ended)) {
            return Err("the mark of the straight frees is wrong");
        }
        if self.straight != if self.plain { self.serves } else { NO_STREAM } {
            return Err("the straight path serves another stream than the heap");
        }
        if !self.sets.is_made() {
            check_counters(counters, &Sums::default())?;
            return if self.is_empty() { Ok(0) } else { Err("a heap has segments and no sets") };
        }
        let mut walk = Walk { heap: self, sums: Sums::default() };
        walk.check_segments()?;
        let mut sums = walk.sums;
        if sums.segments != self.segments.len() || sums.blocks != self.blocks.len() {
            return Err("an entry is occupied that no segment leads to");
        }
        if sums.allocated != self.live.count(self.blocks.entries()) {
            return Err("the hash index does not hold exactly the allocated blocks");
        }
        self.sets.free.check(sums.free, self.blocks.entries())?;
        if let Some(suballocator) = &self.suballocator {
            suballocator.check()?;
            let (blocks, bytes, requested) = suballocator.unlisted();
            sums.allocated += blocks;
            sums.allocated_bytes += bytes;
            sums.requested_bytes += requested;
            sums.active += u64::from(blocks);
            sums.active_bytes += bytes;
        }
        self.sets.check_unmapped(sums.unmapped, &self.blocks)?;
        if (sums.stale, sums.stale_bytes) != (self.sets.stale.count, self.sets.stale.bytes) {
            return Err("a stale mapping is missing from the list");
        }
        if self.sets.pages.check()? + sums.ordinary_bytes != sums.reserved_bytes {
            return Err("the mapped addresses of a heap are not those of its pages");
        }
        let asleep = self.sets.pages.asleep(0, u64::MAX);
        if asleep > 0 && !self.asleep {
            return Err("a heap that serves requests has parked pages");
        }
        sums.reserved_bytes -= asleep;
        let waits: u32 = self.blocks.entries().iter().map(|block| block.events & !FRONTIER_BIT).sum();
        if waits != self.sets.waits.count || (waits == 0 && self.waiting() != GroupSet::default()) {
            return Err("the waits of a heap are not those of its blocks");
        }
        check_counters(counters, &sums)?;
        Ok(sums.reserved_bytes)
    }

    /// Returns how many bytes the heap holds from the device, added up from its pages and ordinary
    /// segments.
    pub(crate) fn held_bytes(&self) -> u64 {
        if self.is_empty() {
            return 0;
        }
        let pages = self.sets.pages.within(0, u64::MAX).filter(|page| !page.asleep).map(|page| page.bytes);
        let ordinary = self.segments().filter(|(_, segment)| segment.granule == 0).map(|(_, segment)| segment.bytes);
        pages.sum::<u64>() + ordinary.sum::<u64>()
    }
}

/// A walk over the segments of a heap. It checks each block and adds up what the counters should
/// be.
struct Walk<'a, S: Storage> {
    heap: &'a Heap<S>,
    sums: Sums,
}

impl<S: Storage> Walk<'_, S> {
    /// Checks every segment, and the links between them.
    fn check_segments(&mut self) -> Result<(), &'static str> {
        let heap = self.heap;
        let (mut segment, mut prev) = (heap.newest, NONE);
        while segment != NONE {
            if heap.segments[segment].prev != prev {
                return Err("a segment's link to the one before is wrong");
            }
            if heap.suballocator.is_some() {
                self.check_suballocated(segment)?;
            } else {
                self.check_segment(segment)?;
            }
            (prev, segment) = (segment, heap.segments[segment].next);
        }
        Ok(())
    }

    /// Checks a segment that blocks tile.
    fn check_segment(&mut self, segment: u32) -> Result<(), &'static str> {
        let heap = self.heap;
        let entry = &heap.segments[segment];
        self.sums.segments += 1;
        if entry.backing == Backing::Ordinary {
            self.sums.ordinary += 1;
            self.sums.ordinary_bytes += entry.bytes;
        }
        let (mut block, mut prev, mut at) = (entry.first, NONE, entry.base);
        while block != NONE {
            let b = &heap.blocks[block];
            if b.addr != at || b.size == 0 || b.segment != segment || b.prev != prev {
                return Err("blocks do not tile their segment");
            }
            if b.backing != entry.backing || (entry.granule == 0) != (entry.backing == Backing::Ordinary) {
                return Err("a block disagrees with its segment about what it is made of");
            }
            if b.before != NONE && b.state != State::Free {
                return Err("a block that is not free has a place in a bin");
            }
            if b.bin != bins::bin(b.size) {
                return Err("a block remembers the bin of another size");
            }
            let alone = [State::Free, State::Unmapped];
            if prev != NONE && alone.contains(&b.state) && heap.blocks[prev].state == b.state {
                return Err("two neighbours that are both free, or both unmapped, were not made one");
            }
            self.check_block(block)?;
            at += b.size;
            (prev, block) = (block, b.next);
        }
        if at == entry.base + entry.bytes { Ok(()) } else { Err("blocks do not fill their segment") }
    }

    /// Checks a segment that a sub-allocator cuts: live and free sub-blocks tile it, and the block
    /// for the whole segment is free.
    fn check_suballocated(&mut self, segment: u32) -> Result<(), &'static str> {
        let heap = self.heap;
        let entry = &heap.segments[segment];
        let whole = &heap.blocks[entry.first];
        self.sums.segments += 1;
        self.sums.ordinary += 1;
        self.sums.ordinary_bytes += entry.bytes;
        // An active plan counts as one live sub-block, and free memory next to its blocks does not
        // count.
        let is_planned = heap.is_planned();
        self.sums.free += 1;
        if (whole.addr, whole.size, whole.segment) != (entry.base, entry.bytes, segment)
            || whole.is_split()
            || !whole.is_free()
        {
            return Err("a block that stands for a segment is not the whole of it");
        }
        let (mut live, mut live_bytes) = (0, 0);
        for (block, b) in heap.sub_blocks().filter(|(_, b)| b.segment == segment) {
            if b.addr < entry.base || b.end() > entry.base + entry.bytes {
                return Err("a sub-block is not inside its segment");
            }
            self.check_block(block)?;
            (live, live_bytes) = (live + 1, live_bytes + b.size);
        }
        let (mut free, mut free_bytes) = (0, 0);
        let suballocator = heap.suballocator.as_ref().ok_or("there is no suballocator")?;
        suballocator.visit_free(segment, &mut |_, bytes| (free, free_bytes) = (free + 1, free_bytes + bytes));
        let (_, unlisted, _) = suballocator.unlisted();
        if (live > 0) != entry.live && !is_planned || live_bytes + unlisted + free_bytes != entry.bytes {
            return Err("sub-blocks do not tile their segment");
        }
        // `check_block` has added the sub-blocks. The rest of the segment belongs to the block for
        // the whole segment.
        self.sums.blocks += 1;
        self.sums.reserved_bytes += entry.bytes - live_bytes;
        if live > 0 && !is_planned {
            self.sums.inactive_split += free;
            self.sums.inactive_split_bytes += free_bytes;
        }
        Ok(())
    }

    /// Checks a block against the set that its state names, and adds it to the sums.
    fn check_block(&mut self, block: u32) -> Result<(), &'static str> {
        let heap = self.heap;
        let b = &heap.blocks[block];
        self.sums.blocks += 1;
        if !matches!(b.state, State::Unmapped | State::Stale | State::Lost) {
            self.sums.reserved_bytes += b.size;
        }
        match b.state {
            State::Free => {
                self.sums.free += 1;
                if b.backing == Backing::Ordinary && b.is_split() {
                    self.sums.inactive_split += 1;
                    self.sums.inactive_split_bytes += b.size;
                }
            }
            State::Allocated | State::Pending => {
                self.sums.active += 1;
                self.sums.active_bytes += b.size;
                self.sums.requested_bytes += b.requested;
                if b.state == State::Allocated {
                    self.sums.allocated += 1;
                    self.sums.allocated_bytes += b.size;
                    if heap.live.find(b.addr, heap.blocks.entries()) != Some(block) {
                        return Err("an allocated block is not in the hash index");
                    }
                }
            }
            State::Unmapped => {
                self.sums.unmapped += 1;
                let granule = heap.segments[b.segment].granule;
                if !(b.addr - heap.segments[b.segment].base).is_multiple_of(granule) || !b.size.is_multiple_of(granule)
                {
                    return Err("an unmapped block does not begin and end on granules");
                }
            }
            State::Stale => {
                self.sums.stale += 1;
                self.sums.stale_bytes += b.size;
            }
            State::Lost => {}
            State::Detached | State::Mapping => return Err("a block is held between operations"),
        }
        if (b.events > 0 || b.uses != NONE) && matches!(b.state, State::Free | State::Unmapped) {
            return Err("a free or unmapped block waits for events or has uses");
        }
        Ok(())
    }
}

/// Checks the counters against the sums.
fn check_counters(counters: &HeapCounters, sums: &Sums) -> Result<(), &'static str> {
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
    if counted.iter().all(|&(stat, value)| counters.current(stat) == value as i64) {
        Ok(())
    } else {
        Err("a statistic is not what the blocks add up to")
    }
}
