//! Blocks of the model: a list of segments, each a list of blocks. Every search scans all lists.

use cachalot_core::{PoolKind, StreamId};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Free,
    Allocated,
    /// Freed, with pending events.
    Pending,
    Unmapped,
}

/// Another stream that uses a block.
#[derive(Clone, Copy)]
pub(super) struct Use {
    pub stream: StreamId,
    /// Whether a graph was being captured on the stream when the use was recorded.
    pub captured: bool,
}

#[derive(Clone)]
pub(super) struct Block {
    pub addr: u64,
    pub size: u64,
    pub requested: u64,
    pub state: State,
    pub uses: Vec<Use>,
    pub events: u32,
    /// Search count of the pool when the block became free.
    pub born: u64,
}

impl Block {
    pub(super) fn new(addr: u64, size: u64, state: State) -> Self {
        Self { addr, size, requested: 0, state, uses: Vec::new(), events: 0, born: 0 }
    }

    pub(super) fn end(&self) -> u64 {
        self.addr + self.size
    }
}

/// Owner of a segment: blocks serve only requests of the same owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Owner {
    /// Number of the pool.
    pub pool: usize,
    pub kind: PoolKind,
    pub stream: StreamId,
}

#[derive(Clone)]
pub(super) struct Segment {
    pub base: u64,
    pub bytes: u64,
    pub owner: Owner,
    /// Bytes per mapping of an expandable segment, or `None` for an ordinary segment.
    pub granule: Option<u64>,
    pub blocks: Vec<Block>,
}

impl Segment {
    pub(super) fn is_expandable(&self) -> bool {
        self.granule.is_some()
    }

    pub(super) fn is_split(&self) -> bool {
        self.blocks.len() > 1
    }

    /// Returns the size that block `i` can grow to in place.
    pub(super) fn growable(&self, i: usize) -> u64 {
        let behind = self.blocks.get(i + 1).filter(|next| next.state == State::Unmapped);
        self.blocks[i].size + behind.map_or(0, |next| next.size)
    }

    /// Merges block `i` with its neighbours in `state`. Returns the new index, and the number and
    /// bytes of the blocks merged in. The result has the requested size of block `i`.
    pub(super) fn merge(&mut self, mut i: usize, state: State) -> (usize, i64, u64) {
        let (mut count, mut bytes) = (0, 0);
        if i > 0 && self.blocks[i - 1].state == state {
            let prev = self.blocks.remove(i - 1);
            i -= 1;
            self.blocks[i].addr = prev.addr;
            self.blocks[i].size += prev.size;
            (count, bytes) = (count + 1, bytes + prev.size);
        }
        if self.blocks.get(i + 1).is_some_and(|next| next.state == state) {
            let next = self.blocks.remove(i + 1);
            self.blocks[i].size += next.size;
            (count, bytes) = (count + 1, bytes + next.size);
        }
        (i, count, bytes)
    }

    /// Cuts block `i` behind its first `size` bytes. The rest becomes a new block with equal
    /// contents.
    pub(super) fn split(&mut self, i: usize, size: u64) {
        let mut rest = self.blocks[i].clone();
        rest.addr += size;
        rest.size -= size;
        self.blocks[i].size = size;
        self.blocks.insert(i + 1, rest);
    }
}

/// Sort key of a free block. The order of the fields is the order of the free list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct FreeBlock {
    pub stream: StreamId,
    pub size: u64,
    pub addr: u64,
}

#[derive(Default)]
pub(super) struct Memory {
    pub segments: Vec<Segment>,
}

impl Memory {
    /// Returns the segment and the index of the block that contains `addr`.
    pub(super) fn find(&self, addr: u64) -> Option<(usize, usize)> {
        self.segments.iter().enumerate().find_map(|(s, segment)| {
            let block = segment.blocks.iter().position(|block| (block.addr..block.end()).contains(&addr))?;
            Some((s, block))
        })
    }

    /// Returns the segment and the index of an existing block that contains `addr`.
    pub(super) fn at(&self, addr: u64) -> (usize, usize) {
        self.find(addr).expect("the block is there")
    }

    pub(super) fn block(&self, addr: u64) -> &Block {
        let (s, b) = self.at(addr);
        &self.segments[s].blocks[b]
    }

    pub(super) fn block_mut(&mut self, addr: u64) -> &mut Block {
        let (s, b) = self.at(addr);
        &mut self.segments[s].blocks[b]
    }

    /// Lists the free blocks of a pool and a kind in free-list order: stream, size, address.
    pub(super) fn free_list(&self, pool: usize, kind: PoolKind) -> Vec<FreeBlock> {
        let mut list = Vec::new();
        for segment in &self.segments {
            let Owner { pool: of_pool, kind: of_kind, stream } = segment.owner;
            if (of_pool, of_kind) == (pool, kind) {
                let free = segment.blocks.iter().filter(|block| block.state == State::Free);
                list.extend(free.map(|block| FreeBlock { stream, size: block.size, addr: block.addr }));
            }
        }
        list.sort_unstable();
        list
    }

    /// Lists the free blocks of one owner.
    pub(super) fn free_list_of(&self, owner: Owner) -> Vec<FreeBlock> {
        let mut list = self.free_list(owner.pool, owner.kind);
        list.retain(|block| block.stream == owner.stream);
        list
    }

    pub(super) fn is_expandable(&self, addr: u64) -> bool {
        self.segments[self.at(addr).0].is_expandable()
    }

    /// Returns whether a block is free and fills an ordinary segment.
    pub(super) fn is_releasable(&self, addr: u64) -> bool {
        let (s, b) = self.at(addr);
        let segment = &self.segments[s];
        segment.blocks[b].state == State::Free && !segment.is_expandable() && !segment.is_split()
    }
}
