//! The blocks that the program holds, found by their address: a hash table chained through the blocks.

use crate::atomic_map::start;
use crate::block::Block;
use crate::slab::NONE;
use crate::storage::{Storage, Table};
use crate::units::GRAIN;

/// The table. Chains run through [`Block::chain`](crate::block::Block::chain).
pub(crate) struct Ledger<S: Storage> {
    /// Heads of the chains.
    buckets: S::Table<u32>,
    /// Blocks in the table.
    len: u32,
}

impl<S: Storage> Default for Ledger<S> {
    fn default() -> Self {
        Self { buckets: S::Table::<u32>::default(), len: 0 }
    }
}

impl<S: Storage> Ledger<S> {
    /// Makes sure that blocks can be added, and that there are about as many buckets as `blocks` if they can be had.
    pub(crate) fn make_room(&mut self, blocks: &mut [Block]) -> bool {
        while self.buckets.len() < blocks.len() && self.grow(blocks) {}
        !self.buckets.is_empty()
    }

    #[inline(always)]
    fn bucket(&self, addr: u64) -> usize {
        start(addr / GRAIN, self.buckets.len())
    }

    /// Adds a block; room was made.
    #[inline(always)]
    pub(crate) fn insert(&mut self, block: u32, blocks: &mut [Block]) {
        let entry = &mut blocks[block as usize];
        let bucket = self.bucket(entry.addr);
        entry.chain = core::mem::replace(&mut self.buckets[bucket], block);
        self.len += 1;
    }

    /// The block at exactly `addr`.
    #[inline(always)]
    pub(crate) fn get(&self, addr: u64, blocks: &[Block]) -> Option<u32> {
        let mut at = *self.buckets.get(self.bucket(addr))?;
        while at != NONE && blocks[at as usize].addr != addr {
            at = blocks[at as usize].chain;
        }
        (at != NONE).then_some(at)
    }

    /// Takes the block at exactly `addr` out.
    #[inline(always)]
    pub(crate) fn take(&mut self, addr: u64, blocks: &mut [Block]) -> Option<u32> {
        let bucket = self.bucket(addr);
        let head = self.buckets.get_mut(bucket)?;
        let first = *head;
        // No entry is at `NONE`.
        let entry = blocks.get(first as usize)?;
        if entry.addr == addr {
            *head = entry.chain;
            self.len -= 1;
            return Some(first);
        }
        self.take_further(first, addr, blocks)
    }

    /// The same, behind the first block of a chain.
    #[cold]
    fn take_further(&mut self, mut before: u32, addr: u64, blocks: &mut [Block]) -> Option<u32> {
        loop {
            let at = blocks[before as usize].chain;
            if at == NONE {
                return None;
            }
            if blocks[at as usize].addr == addr {
                blocks[before as usize].chain = blocks[at as usize].chain;
                self.len -= 1;
                return Some(at);
            }
            before = at;
        }
    }

    /// How many blocks the program holds.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Doubles the buckets, whose number is a power of two. False if that many cannot be had: chains only become longer.
    #[cold]
    fn grow(&mut self, blocks: &mut [Block]) -> bool {
        let old = self.buckets.len();
        let extra = if old == 0 { 1 } else { old };
        if !self.buckets.make_room(extra) {
            return false;
        }
        let mut all = NONE;
        for bucket in 0..old {
            let mut at = core::mem::replace(&mut self.buckets[bucket], NONE);
            while at != NONE {
                at = core::mem::replace(&mut blocks[at as usize].chain, core::mem::replace(&mut all, at));
            }
        }
        for _ in 0..extra {
            self.buckets.add(NONE);
        }
        self.len = 0;
        while all != NONE {
            let next = blocks[all as usize].chain;
            self.insert(all, blocks);
            all = next;
        }
        true
    }
}
