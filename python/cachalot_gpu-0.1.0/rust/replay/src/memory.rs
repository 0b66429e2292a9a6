//! The memory of a device at some time: parts from the device, and blocks in the parts. Undoing the events of
//! a history from the last event on leads back to any earlier time.
//!
//! The memory serves every reader of a history. `P` is the reader's value for a part (stream, pool, stack),
//! and `B` the reader's value for a block.

use cachalot_core::UNIT;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// A segment, or a mapped part of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<P> {
    /// Address behind the last byte.
    pub end: u64,
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

/// Free memory between two used blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hole {
    /// Size in bytes.
    pub bytes: u64,
    /// Whether the hole is a whole part.
    pub whole: bool,
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

/// Removes a range from all overlapping parts. `removed` gets each overlapping part with its address, and
/// `left` gets each remainder.
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

    /// Adds a part. Replaces a part at an equal address.
    pub fn insert(&mut self, address: u64, part: Part<P>) {
        self.reserved = self.reserved.saturating_add(part.end - address);
        if let Some(before) = self.parts.insert(address, part) {
            self.reserved = self.reserved.saturating_sub(before.end - address);
        }
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

    /// Undoes a free by the program: the block is no longer pending. An unknown block gets the value `of`.
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

    /// Returns the holes of a part. `blocks` comes from [`ordered`](Self::ordered). With `pending`, pending
    /// blocks count as holes.
    pub fn holes(blocks: &BTreeMap<u64, Block<B>>, address: u64, part: &Part<P>, pending: bool) -> Vec<Hole> {
        let (mut holes, mut at) = (Vec::new(), address);
        for (&start, block) in blocks.range(address..part.end.max(address)) {
            if block.pending && pending {
                continue;
            }
            if start > at {
                holes.push(Hole { bytes: start - at, whole: false });
            }
            at = at.max(start.saturating_add(block.size));
        }
        if at < part.end {
            holes.push(Hole { bytes: part.end - at, whole: at == address });
        }
        holes
    }
}

#[cfg(test)]
mod tests {
    use super::{Block, Hole, Memory, Part, rounded};

    #[test]
    fn a_request_is_rounded_up_to_512_bytes() {
        assert_eq!([0, 1, 512, 513, u64::MAX].map(rounded), [512, 512, 512, 1024, u64::MAX]);
    }

    #[test]
    fn sums_and_holes_follow_every_change() {
        let mut memory = Memory::<(), ()>::default();
        memory.insert(4096, Part { end: 16384, of: () });
        memory.cut(8192, 12288);
        let parts: Vec<_> = memory.parts().iter().map(|(&start, part)| (start, part.end)).collect();
        assert_eq!((parts, memory.reserved()), (vec![(4096, 8192), (12288, 16384)], 8192));
        memory.set_block(4608, Some(Block { size: 512, pending: false, of: () }));
        memory.undo_free_completed(6144, 700, ());
        assert_eq!((memory.allocated(), memory.pending()), (512, 1024));
        let (part, blocks) = (*memory.part_at(5000).expect("a part"), memory.ordered());
        let hole = |bytes| Hole { bytes, whole: false };
        let holes = |pending| Memory::<(), ()>::holes(&blocks, 4096, &part, pending);
        assert_eq!(holes(false), [hole(512), hole(1024), hole(1024)]);
        assert_eq!(holes(true), [hole(512), hole(3072)]);
        memory.undo_free_requested(6144, 700, ());
        assert_eq!((memory.allocated(), memory.pending()), (1536, 0));
        assert_eq!(memory.undo_alloc(6144).map(|block| block.size), Some(1024));
        assert!(memory.part_at(8192).is_none() && memory.part_at(12288).is_some());
    }
}
