//! A row of blocks in address order, but without addresses. Push-down decides the order of buffers
//! with it.

use super::overwrites::NONE;
use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

/// A block of the row: the bytes between two neighbours.
struct Block {
    size: u64,
    /// The end of the life of the last member in the block.
    end: u64,
    /// The member in the block, or [`NONE`] if the block is free.
    member: u32,
    /// The number of the block below, or of the sentinel.
    previous: u32,
    /// The number of the block above, or of the sentinel.
    next: u32,
    /// The value of [`Row::turn`] when the block became free.
    turn: u32,
}

/// The sort key of a free block: the size, then the latest end, then the earliest turn, and last
/// the number of the block.
type FreeBlockKey = (u64, Reverse<u64>, u32, u32);

/// The blocks of the row. Two free blocks are never adjacent.
pub(super) struct Row {
    /// The blocks, which are linked in a circle through the sentinel at [`EDGE`]. It is after the
    /// last block and before the first.
    blocks: Vec<Block>,
    /// The keys of all free blocks.
    free: BTreeSet<FreeBlockKey>,
    /// The numbers of removed blocks, for reuse.
    spare: Vec<u32>,
    /// The number of blocks that became free so far, which gives the age of free blocks.
    turn: u32,
}

/// The number of the sentinel.
const EDGE: u32 = 0;

impl Row {
    /// Creates a row without blocks.
    pub(super) fn new() -> Self {
        let edge = Block { size: 0, end: 0, member: NONE, previous: EDGE, next: EDGE, turn: 0 };
        Self { blocks: vec![edge], free: BTreeSet::new(), spare: Vec::new(), turn: 0 }
    }

    /// Allocates a block for `member` until `end`: the smallest free block that is large enough, or
    /// else the largest free block, which grows. If there is no free block, appends a new one.
    pub(super) fn allocate(&mut self, member: u32, size: u64, end: u64) -> u32 {
        // The smallest key with enough bytes is the best fit with the latest end. If nothing fits,
        // the last key is the largest block.
        let fit = self.free.range((size, Reverse(u64::MAX), 0, 0)..).next().or_else(|| self.free.last()).copied();
        let Some(key) = fit else {
            let block = self.insert_behind(self.blocks[EDGE as usize].previous, size);
            self.hold(block, member, end);
            return block;
        };
        self.free.remove(&key);
        let (free, .., block) = key;
        self.blocks[block as usize].size = size;
        self.hold(block, member, end);
        // A remainder keeps its place in the row, after the allocated block.
        self.insert_free(block, free.saturating_sub(size), end);
        block
    }

    /// Shrinks a held block to the `size` bytes from `offset` on. The bytes before and after
    /// become free.
    pub(super) fn overwrite(&mut self, block: u32, offset: u64, size: u64) {
        let Block { size: whole, end, previous, .. } = self.blocks[block as usize];
        self.blocks[block as usize].size = size;
        self.insert_free(previous, offset, end);
        self.insert_free(block, whole - offset - size, end);
    }

    /// Assigns a block to a member until `end`.
    pub(super) fn hold(&mut self, block: u32, member: u32, end: u64) {
        let block = &mut self.blocks[block as usize];
        (block.member, block.end) = (member, end);
    }

    /// Frees a held block.
    pub(super) fn release(&mut self, block: u32) {
        let Block { size, end, previous, .. } = self.blocks[block as usize];
        self.remove(block);
        self.insert_free(previous, size, end);
    }

    /// Returns the members in the nearest held blocks below and above, or [`NONE`] at an edge.
    pub(super) fn neighbours(&self, block: u32) -> (u32, u32) {
        let own = &self.blocks[block as usize];
        (self.holder(own.previous, |free| free.previous), self.holder(own.next, |free| free.next))
    }

    /// Returns the member in a block, or in the next block after a free one. Free blocks are never
    /// adjacent, so one step is enough.
    fn holder(&self, block: u32, beyond: impl Fn(&Block) -> u32) -> u32 {
        let own = &self.blocks[block as usize];
        if block == EDGE || own.member != NONE {
            return own.member;
        }
        self.blocks[beyond(own) as usize].member
    }

    /// Inserts free bytes after the block `before`, merged with free blocks on both sides.
    fn insert_free(&mut self, mut before: u32, mut size: u64, end: u64) {
        if size == 0 {
            return;
        }
        // By the invariant of the row, at most one block on each side must be merged.
        let next = self.blocks[before as usize].next;
        if self.is_free(next) {
            size += self.absorb(next);
        }
        if self.is_free(before) {
            let free = before;
            before = self.blocks[free as usize].previous;
            size += self.absorb(free);
        }
        let block = self.insert_behind(before, size);
        self.turn += 1;
        let own = &mut self.blocks[block as usize];
        (own.end, own.turn) = (end, self.turn);
        self.free.insert((size, Reverse(end), self.turn, block));
    }

    /// Returns whether a block is free. The sentinel is not.
    fn is_free(&self, block: u32) -> bool {
        block != EDGE && self.blocks[block as usize].member == NONE
    }

    /// Removes a free block from the row and returns its size.
    fn absorb(&mut self, block: u32) -> u64 {
        let Block { size, end, turn, .. } = self.blocks[block as usize];
        self.free.remove(&(size, Reverse(end), turn, block));
        self.remove(block);
        size
    }

    /// Unlinks a block.
    fn remove(&mut self, block: u32) {
        let Block { previous, next, .. } = self.blocks[block as usize];
        self.blocks[previous as usize].next = next;
        self.blocks[next as usize].previous = previous;
        self.spare.push(block);
    }

    /// Links a new free block after `previous`, without an entry in `free`.
    fn insert_behind(&mut self, previous: u32, size: u64) -> u32 {
        let next = self.blocks[previous as usize].next;
        let new = Block { size, end: 0, member: NONE, previous, next, turn: 0 };
        let block = if let Some(block) = self.spare.pop() {
            self.blocks[block as usize] = new;
            block
        } else {
            self.blocks.push(new);
            self.blocks.len() as u32 - 1
        };
        self.blocks[previous as usize].next = block;
        self.blocks[next as usize].previous = block;
        block
    }
}
