//! The memory of a device at some time: parts from the device, and blocks in the parts. Undoing the
//! events of a history from the last event on leads back to any earlier time.
//!
//! The memory serves every reader of a history. `P` is the reader's value for a part (stream, pool,
//! stack), and `B` the reader's value for a block.

use cachalot_core::{MIB, UNIT};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::collections::BTreeMap;

/// A segment, or a mapped part of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<P> {
    /// Address after the last byte.
    pub end: u64,
    /// Size of the pages of an expandable segment, which go back to the device one by one. 0 for a
    /// segment that is released as a whole.
    pub page: u64,
    /// The reader's value.
    pub of: P,
}

/// A live or pending block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block<B> {
    /// Size in bytes.
    pub size: u64,
    /// Whether the program freed the block while other streams still use the block.
    pub pending: bool,
    /// The reader's value.
    pub of: B,
}

/// The memory of a device. A block freed later counts with the requested size, rounded up to 512
/// bytes, because a history does not have the block's size.
#[derive(Clone, Debug)]
pub struct Memory<P, B> {
    /// Disjoint parts by address. Changed by the methods alone.
    parts: BTreeMap<u64, Part<P>>,
    /// By address.
    blocks: FxHashMap<u64, Block<B>>,
    reserved: u64,
    allocated: u64,
    pending: u64,
}

/// The free memory of a part, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FreeMemory {
    /// Free memory that can go back to the device: a wholly free part, or wholly free pages.
    pub idle: u64,
    /// Free memory next to blocks, which cannot go back.
    pub holes: u64,
    /// The largest piece of `holes`.
    pub largest_hole: u64,
    /// The largest free piece, idle or not.
    pub largest: u64,
}

/// The memory of a device at some time. Memory in use, in holes, idle and kept add up to reserved
/// memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Stuck {
    /// Bytes reserved from the device.
    pub reserved_bytes: u64,
    /// Bytes of allocated and pending blocks.
    pub in_use_bytes: u64,
    /// Free bytes that cannot go back to the device.
    pub hole_bytes: u64,
    /// Number of segments with holes.
    pub hole_segments: u64,
    /// Bytes of wholly free segments, and of wholly free pages of expandable segments, outside of
    /// private pools.
    pub idle_bytes: u64,
    /// Number of wholly free segments outside of private pools.
    pub idle_segments: u64,
    /// Bytes of the same in private pools, which keep them as long as their graphs live.
    pub kept_bytes: u64,
}

impl Stuck {
    /// Adds a segment of `bytes` bytes, of a private pool or not.
    pub(crate) fn add(&mut self, bytes: u64, free: FreeMemory, is_private: bool) {
        let FreeMemory { idle, holes, .. } = free;
        self.reserved_bytes = self.reserved_bytes.saturating_add(bytes);
        self.in_use_bytes = self.in_use_bytes.saturating_add(bytes.saturating_sub(idle).saturating_sub(holes));
        if is_private {
            self.kept_bytes = self.kept_bytes.saturating_add(idle);
        } else {
            self.idle_bytes = self.idle_bytes.saturating_add(idle);
            self.idle_segments += u64::from(idle == bytes && bytes > 0);
        }
        self.hole_bytes = self.hole_bytes.saturating_add(holes);
        self.hole_segments += u64::from(holes > 0);
    }
}

/// Size of the pages of small blocks in an expandable segment.
pub const SMALL_PAGE: u64 = 2 * MIB;

/// Returns the size of the pages that an event maps or unmaps: a number of large pages, or small
/// pages.
pub fn page_of(bytes: u64, large_page: u64) -> u64 {
    if bytes.is_multiple_of(large_page.max(1)) { large_page } else { SMALL_PAGE }
}

/// Adds up the free memory of a part from the places of the blocks, by address.
pub fn free_between(start: u64, end: u64, page: u64, blocks: impl Iterator<Item = (u64, u64)>) -> FreeMemory {
    let mut free = FreeMemory::default();
    let mut at = start;
    let mut gap = |from: u64, to: u64| {
        if from >= to {
            return;
        }
        free.largest = free.largest.max(to - from);
        // The gap without its wholly free pages is a piece on the left and a piece on the right.
        let (first, last) = match page {
            _ if from == start && to == end => (from, to),
            0 => (to, to),
            _ => {
                let first = start.saturating_add((from - start).div_ceil(page).saturating_mul(page));
                (first, start + (to - start) / page * page)
            }
        };
        let pieces = if first < last { [first - from, to - last] } else { [to - from, 0] };
        free.idle = free.idle.saturating_add(last.saturating_sub(first));
        for piece in pieces {
            free.holes = free.holes.saturating_add(piece);
            free.largest_hole = free.largest_hole.max(piece);
        }
    };
    for (address, bytes) in blocks {
        gap(at, address.min(end));
        at = at.max(address.saturating_add(bytes));
    }
    gap(at, end);
    free
}

impl<P, B> Default for Memory<P, B> {
    fn default() -> Self {
        Self { parts: BTreeMap::new(), blocks: FxHashMap::default(), reserved: 0, allocated: 0, pending: 0 }
    }
}

/// Returns the size of a block for a request: a multiple of 512 bytes.
pub fn rounded(bytes: u64) -> u64 {
    bytes.max(1).checked_next_multiple_of(UNIT).unwrap_or(bytes)
}

/// Removes a range from all overlapping parts. `removed` gets each overlapping part with its
/// address, and `left` gets each remainder.
pub fn cut<P: Copy>(
    parts: &mut BTreeMap<u64, Part<P>>,
    address: u64,
    end: u64,
    mut removed: impl FnMut(u64, Part<P>),
    mut left: impl FnMut(&mut BTreeMap<u64, Part<P>>, u64, Part<P>),
) {
    let below = parts.range(..end).rev().take_while(|(_, part)| part.end > address);
    let touched: Vec<(u64, Part<P>)> = below.map(|(&start, part)| (start, *part)).collect();
    for (start, part) in touched {
        parts.remove(&start);
        removed(start, part);
        if start < address {
            left(parts, start, Part { end: address, ..part });
        }
        if part.end > end {
            left(parts, end, part);
        }
    }
}

impl<P: Copy, B: Copy> Memory<P, B> {
    /// Returns all parts by address.
    pub fn parts(&self) -> &BTreeMap<u64, Part<P>> {
        &self.parts
    }

    /// Returns the live and pending blocks by address, in no order.
    pub fn blocks(&self) -> &FxHashMap<u64, Block<B>> {
        &self.blocks
    }

    /// Returns the live and pending blocks in the order of addresses.
    pub fn ordered(&self) -> BTreeMap<u64, Block<B>> {
        self.blocks.iter().map(|(&address, &block)| (address, block)).collect()
    }

    /// Returns the reader's value of each block, for changes.
    pub fn kept_mut(&mut self) -> impl Iterator<Item = &mut B> {
        self.blocks.values_mut().map(|block| &mut block.of)
    }

    /// Returns the bytes of all parts.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Returns the bytes of all live blocks.
    pub fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Returns the bytes of all pending blocks.
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// Returns the part around an address.
    pub fn part_at(&self, address: u64) -> Option<&Part<P>> {
        let (_, part) = self.parts.range(..=address).next_back()?;
        (address < part.end).then_some(part)
    }

    /// Adds a part. Replaces a part at the same address.
    pub fn insert(&mut self, address: u64, part: Part<P>) {
        self.reserved = self.reserved.saturating_add(part.end - address);
        if let Some(before) = self.parts.insert(address, part) {
            self.reserved = self.reserved.saturating_sub(before.end - address);
        }
    }

    /// Adds a part in the place of all memory there. A part with pages is joined with a neighbour
    /// whose value `takes` the new value, and gets that value.
    pub fn map(&mut self, mut address: u64, mut part: Part<P>, takes: impl Fn(P, P) -> bool)
    where
        P: PartialEq,
    {
        if part.end <= address {
            return;
        }
        self.cut(address, part.end);
        if part.page > 0 {
            let below = self.parts.range(..address).next_back().map(|(&start, &other)| (start, other));
            let below = below.filter(|(_, other)| other.end == address);
            let above = self.parts.get(&part.end).map(|&other| (part.end, other));
            let mut is_alone = true;
            for (start, other) in below.into_iter().chain(above).filter(|(_, other)| other.page > 0) {
                // The value of memory that was there before stays.
                if part.of != other.of && !(is_alone && takes(other.of, part.of)) {
                    continue;
                }
                self.parts.remove(&start);
                self.reserved = self.reserved.saturating_sub(other.end - start);
                address = address.min(start);
                part = Part { end: part.end.max(other.end), page: other.page, of: other.of };
                is_alone = false;
            }
        }
        self.insert(address, part);
    }

    /// Removes a range from all overlapping parts.
    pub fn cut(&mut self, address: u64, end: u64) {
        let mut reserved = self.reserved;
        let mut change = 0_u64;
        cut(
            &mut self.parts,
            address,
            end,
            |start, part| reserved = reserved.saturating_sub(part.end - start),
            |parts, start, part| {
                change = change.saturating_add(part.end - start);
                parts.insert(start, part);
            },
        );
        self.reserved = reserved.saturating_add(change);
    }

    /// Replaces or removes the block at an address. Returns the former block.
    pub fn set_block(&mut self, address: u64, block: Option<Block<B>>) -> Option<Block<B>> {
        let before = match block {
            Some(block) => self.blocks.insert(address, block),
            None => self.blocks.remove(&address),
        };
        if let Some(Block { size, pending, .. }) = before {
            let sum = if pending { &mut self.pending } else { &mut self.allocated };
            *sum = sum.saturating_sub(size);
        }
        if let Some(Block { size, pending, .. }) = block {
            let sum = if pending { &mut self.pending } else { &mut self.allocated };
            *sum = sum.saturating_add(size);
        }
        before
    }

    /// Undoes the allocation of a block, and returns the block.
    pub fn undo_alloc(&mut self, address: u64) -> Option<Block<B>> {
        self.set_block(address, None)
    }

    /// Undoes a free by the program: the block is no longer pending. An unknown block gets the
    /// value `of`.
    pub fn undo_free_requested(&mut self, address: u64, bytes: u64, of: B) {
        match self.blocks.get_mut(&address) {
            Some(block) if block.pending => {
                block.pending = false;
                self.pending = self.pending.saturating_sub(block.size);
                self.allocated = self.allocated.saturating_add(block.size);
            }
            Some(_) => {}
            None => _ = self.set_block(address, Some(Block { size: rounded(bytes), pending: false, of })),
        }
    }

    /// Undoes the completion of a free: the block is pending.
    pub fn undo_free_completed(&mut self, address: u64, bytes: u64, of: B) {
        self.set_block(address, Some(Block { size: rounded(bytes), pending: true, of }));
    }

    /// Returns the memory in words of [`Stuck`]. `is_private` tells whether the pool of a part is
    /// private.
    pub fn stuck(&self, is_private: impl Fn(P) -> bool) -> Stuck {
        let (blocks, mut stuck) = (self.ordered(), Stuck::default());
        for (&address, part) in &self.parts {
            stuck.add(part.end - address, Self::free(&blocks, address, part, false), is_private(part.of));
        }
        stuck
    }

    /// Returns the free memory of a part. `blocks` comes from [`ordered`](Self::ordered). With
    /// `pending`, pending blocks count as free.
    pub fn free(blocks: &BTreeMap<u64, Block<B>>, address: u64, part: &Part<P>, pending: bool) -> FreeMemory {
        // The block before the part may reach into the part.
        let before =
            blocks.range(..address).next_back().filter(|(start, block)| start.saturating_add(block.size) > address);
        let within = before.into_iter().chain(blocks.range(address..part.end.max(address)));
        let used = within.filter(|(_, block)| !(pending && block.pending)).map(|(&start, block)| (start, block.size));
        free_between(address, part.end, part.page, used)
    }
}

#[cfg(test)]
mod tests {
    use super::{Block, FreeMemory, Memory, Part, SMALL_PAGE, free_between, page_of, rounded};
    use cachalot_core::MIB;

    #[test]
    fn a_request_is_rounded_up_to_512_bytes() {
        assert_eq!([0, 1, 512, 513, u64::MAX].map(rounded), [512, 512, 512, 1024, u64::MAX]);
    }

    #[test]
    fn sums_and_free_memory_follow_every_change() {
        let mut memory = Memory::<(), ()>::default();
        memory.insert(4096, Part { end: 16384, page: 0, of: () });
        memory.cut(8192, 12288);
        let parts: Vec<_> = memory.parts().iter().map(|(&start, part)| (start, part.end)).collect();
        assert_eq!((parts, memory.reserved()), (vec![(4096, 8192), (12288, 16384)], 8192));
        memory.set_block(4608, Some(Block { size: 512, pending: false, of: () }));
        memory.undo_free_completed(6144, 700, ());
        assert_eq!((memory.allocated(), memory.pending()), (512, 1024));
        let (part, blocks) = (*memory.part_at(5000).expect("a part"), memory.ordered());
        let free = |pending| Memory::<(), ()>::free(&blocks, 4096, &part, pending);
        assert_eq!(free(false), FreeMemory { idle: 0, holes: 2560, largest_hole: 1024, largest: 1024 });
        assert_eq!(free(true), FreeMemory { idle: 0, holes: 3584, largest_hole: 3072, largest: 3072 });
        let whole = Memory::<(), ()>::free(&blocks, 12288, &memory.parts()[&12288], false);
        assert_eq!(whole, FreeMemory { idle: 4096, largest: 4096, ..FreeMemory::default() });
        memory.undo_free_requested(6144, 700, ());
        assert_eq!((memory.allocated(), memory.pending()), (1536, 0));
        assert_eq!(memory.undo_alloc(6144).map(|block| block.size), Some(1024));
        assert!(memory.part_at(8192).is_none() && memory.part_at(12288).is_some());
    }

    #[test]
    fn free_pages_are_idle_and_the_rest_of_a_gap_is_in_holes() {
        // Pages of 100 from 1000 to 1600; blocks at 1050..1120 and 1450..1500.
        let free = free_between(1000, 1600, 100, [(1050, 70), (1450, 50)].into_iter());
        assert_eq!(free, FreeMemory { idle: 200 + 100, holes: 50 + 80 + 50, largest_hole: 80, largest: 330 });
        // A gap within a page is a hole, and a gap over a page's edge too.
        assert_eq!(free_between(0, 200, 100, [(0, 60), (140, 60)].into_iter()).holes, 80);
        assert_eq!(free_between(0, 200, 100, std::iter::empty()).idle, 200);
        assert_eq!(
            [20 * MIB, 40 * MIB, 2 * MIB, 22 * MIB].map(|bytes| page_of(bytes, 20 * MIB)),
            [20 * MIB, 20 * MIB, SMALL_PAGE, SMALL_PAGE]
        );
    }

    #[test]
    fn mapped_pages_join_their_neighbours_and_no_strangers() {
        let mut memory = Memory::<u8, ()>::default();
        let same = |one: u8, other: u8| one == other;
        for (address, of) in [(0, 1), (200, 1), (100, 1), (300, 2)] {
            memory.map(address, Part { end: address + 100, page: 100, of }, same);
        }
        let parts: Vec<_> = memory.parts().iter().map(|(&start, part)| (start, part.end, part.of)).collect();
        assert_eq!((parts, memory.reserved()), (vec![(0, 300, 1), (300, 400, 2)], 400));
        // A block over two parts leaves neither idle.
        memory.cut(100, 200);
        memory.map(100, Part { end: 200, page: 100, of: 3 }, same);
        memory.set_block(50, Some(Block { size: 100, pending: false, of: () }));
        let blocks = memory.ordered();
        let part = memory.parts()[&100];
        assert_eq!(Memory::<u8, ()>::free(&blocks, 100, &part, false).holes, 50);
    }
}
