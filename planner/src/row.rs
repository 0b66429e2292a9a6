//! A row of blocks in the order of their addresses, without the addresses: what push-down decides the order with.

use super::overwrites::NONE;
use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

/// So many bytes, between two others.
struct Block {
    size: u64,
    /// The end of the life of who held it last.
    end: u64,
    /// The member that holds it, or [`NONE`].
    member: u32,
    previous: u32,
    next: u32,
    /// When it became free, counted in blocks that did.
    turn: u32,
}

/// What the free blocks are ordered by: size, then the latest end, then who became free first; and the block.
type Key = (u64, Reverse<u64>, u32, u32);

/// The blocks. Two free ones never lie side by side.
pub(super) struct Row {
    /// Linked in a circle; the one at [`EDGE`] lies behind the last and before the first, and is no block.
    blocks: Vec<Block>,
    free: BTreeSet<Key>,
    /// Blocks that no longer exist, for use again.
    spare: Vec<u32>,
    turn: u32,
}

/// Where the row begins and ends.
const EDGE: u32 = 0;

impl Row {
    /// No blocks.
    pub(super) fn new() -> Self {
        let edge = Block { size: 0, end: 0, member: NONE, previous: EDGE, next: EDGE, turn: 0 };
        Self { blocks: vec![edge], free: BTreeSet::new(), spare: Vec::new(), turn: 0 }
    }

    /// A block for `member`, until `end`: the smallest free one that is large enough, else the largest, which grows, else a new
    /// one behind the last.
    pub(super) fn take(&mut self, member: u32, size: u64, end: u64) -> u32 {
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
        self.insert_free(block, free.saturating_sub(size), end);
        block
    }

    /// Cuts a held block down to the `size` bytes that lie `offset` bytes further on.
    pub(super) fn overwrite(&mut self, block: u32, offset: u64, size: u64) {
        let Block { size: whole, end, previous, .. } = self.blocks[block as usize];
        self.blocks[block as usize].size = size;
        self.insert_free(previous, offset, end);
        self.insert_free(block, whole - offset - size, end);
    }

    /// Says who holds a block, until when.
    pub(super) fn hold(&mut self, block: u32, member: u32, end: u64) {
        let block = &mut self.blocks[block as usize];
        (block.member, block.end) = (member, end);
    }

    /// Makes a held block free.
    pub(super) fn give_back(&mut self, block: u32) {
        let Block { size, end, previous, .. } = self.blocks[block as usize];
        self.remove(block);
        self.insert_free(previous, size, end);
    }

    /// Who holds the nearest held blocks below and above; [`NONE`] where there are none.
    pub(super) fn neighbours(&self, block: u32) -> (u32, u32) {
        let own = &self.blocks[block as usize];
        (self.holder(own.previous, |free| free.previous), self.holder(own.next, |free| free.next))
    }

    /// Who holds a block, or, if it is free, the one beyond it.
    fn holder(&self, block: u32, beyond: impl Fn(&Block) -> u32) -> u32 {
        let own = &self.blocks[block as usize];
        if block == EDGE || own.member != NONE {
            return own.member;
        }
        self.blocks[beyond(own) as usize].member
    }

    /// Adds free bytes behind the block `before`, in one block with the free ones on either side.
    fn insert_free(&mut self, mut before: u32, mut size: u64, end: u64) {
        if size == 0 {
            return;
        }
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

    fn is_free(&self, block: u32) -> bool {
        block != EDGE && self.blocks[block as usize].member == NONE
    }

    /// Takes a free block out of the row, and answers how many bytes it had.
    fn absorb(&mut self, block: u32) -> u64 {
        let Block { size, end, turn, .. } = self.blocks[block as usize];
        self.free.remove(&(size, Reverse(end), turn, block));
        self.remove(block);
        size
    }

    fn remove(&mut self, block: u32) {
        let Block { previous, next, .. } = self.blocks[block as usize];
        self.blocks[previous as usize].next = next;
        self.blocks[next as usize].previous = previous;
        self.spare.push(block);
    }

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
