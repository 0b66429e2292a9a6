//! The blocks that the program holds, found by their address: a hash table chained through the blocks.

use crate::atomic_map::start;
use crate::block::Blocks;
use crate::slab::NONE;
use crate::storage::{Storage, Table};
use crate::units::UNIT;

const FIRST_BUCKETS: usize = 64;

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
    /// Makes sure that a block can be added: that there is a bucket at all.
    #[inline]
    pub(crate) fn make_room(&mut self, blocks: &mut Blocks<S>) -> bool {
        if self.len as usize >= self.buckets.len() {
            self.grow(blocks);
        }
        !self.buckets.is_empty()
    }

    #[inline]
    fn bucket(&self, addr: u64) -> usize {
        start(addr / UNIT, self.buckets.len())
    }

    /// Adds a block; room was made.
    #[inline]
    pub(crate) fn insert(&mut self, block: u32, blocks: &mut Blocks<S>) {
        let bucket = self.bucket(blocks[block].addr);
        blocks[block].chain = self.buckets[bucket];
        self.buckets[bucket] = block;
        self.len += 1;
    }

    /// The block at exactly `addr`.
    #[inline]
    pub(crate) fn get(&self, addr: u64, blocks: &Blocks<S>) -> Option<u32> {
        let mut at = *self.buckets.get(self.bucket(addr))?;
        while at != NONE && blocks[at].addr != addr {
            at = blocks[at].chain;
        }
        (at != NONE).then_some(at)
    }

    /// Removes a block that is in the table.
    #[inline]
    pub(crate) fn remove(&mut self, block: u32, blocks: &mut Blocks<S>) {
        let bucket = self.bucket(blocks[block].addr);
        let next = blocks[block].chain;
        let mut at = self.buckets[bucket];
        if at == block {
            self.buckets[bucket] = next;
        } else {
            while blocks[at].chain != block {
                at = blocks[at].chain;
            }
            blocks[at].chain = next;
        }
        self.len -= 1;
    }

    /// How many blocks the program holds.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Doubles the buckets if more can be had; chains only become longer if not.
    #[cold]
    fn grow(&mut self, blocks: &mut Blocks<S>) {
        let (old, mut extra) = (self.buckets.len(), self.buckets.len().max(FIRST_BUCKETS));
        while extra > 0 && !self.buckets.make_room(extra) {
            extra /= 2;
        }
        let mut all = NONE;
        for bucket in 0..old {
            let mut at = core::mem::replace(&mut self.buckets[bucket], NONE);
            while at != NONE {
                at = core::mem::replace(&mut blocks[at].chain, core::mem::replace(&mut all, at));
            }
        }
        for _ in 0..extra {
            self.buckets.add(NONE);
        }
        self.len = 0;
        while all != NONE {
            let next = blocks[all].chain;
            self.insert(all, blocks);
            all = next;
        }
    }
}
