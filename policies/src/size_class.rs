//! The size-class policy: requests are rounded up to a multiple of 1 KiB, and a freed sub-block
//! serves the next request of exactly the same size.
//!
//! ```text
//! class 3 KiB    ■ ─ ■ ─ ■               free sub-blocks, last freed first
//! chunk          │3│3│ 5 │3│····tail····│ cut from the front on; no sub-block is split or merged
//! chunk          │······················│ no live sub-block ⟹ dissolved when the room is needed
//! ```
//!
//! If there is no free sub-block of the requested size, one is cut from the chunk with the smallest
//! tail that is large enough, and among such tails from the one at the lowest address. A chunk
//! without live sub-blocks is *idle*: it counts as a single free sub-block, but keeps its cuts
//! until another size needs the room, so a program that repeats its requests finds its old cuts
//! again. The cost of a request does not depend on the number of free sub-blocks. Dissolving an
//! idle chunk costs as much as making its cuts.

use super::segment_table::{SegmentEntry, SegmentTable};
use super::sub_blocks::SubBlocks;
use alloc::boxed::Box;
use cachalot_core::config::{OptionReference, Suballocation};
use cachalot_core::records::NONE;
use cachalot_core::records::{Key, Link, RadixTree};
use cachalot_core::suballoc::CapacityError;
use cachalot_core::suballoc::{FreeDelta, SubAllocator, SubBlock};
use cachalot_core::{Growable, Storage};
use cachalot_core::{MAX_REQUEST, MIB};

/// The step of sizes, in bytes: every size is a multiple of it. The allocator that this policy
/// follows uses 1 KiB.
pub(crate) const CLASS_STEP: u64 = 1024;

/// The step of chunks, in bytes: the length of every chunk is a multiple of it. It is the granule
/// of virtual memory.
pub(crate) const CHUNK_STEP: u64 = 2 * MIB;

/// The policy: requests are rounded up to multiples of 1 KiB. A freed block serves requests of
/// exactly its size, even after its whole chunk is free, until another size needs the room. If
/// there is no such block, a request gets a new block, cut from a chunk.
pub(crate) const POLICY: Suballocation = Suballocation {
    type_name: "SizeClass",
    unit: CLASS_STEP,
    halves_by: Some(CHUNK_STEP),
    // The allocator that this policy follows uses 5 GiB, which is too much on a device that other
    // programs share.
    options: [1024 * MIB, 0, 0, 0],
    settings: &[OptionReference {
        key: "chunk_mb",
        field: "chunk",
        default: "1024",
        example: "5120",
        unit: MIB,
        accepts: |mib| (2..=MAX_REQUEST / MIB).contains(&mib),
        accepted: "a whole number of MiB from 2 to 1099511627776",
        effect: "The size of a segment from which blocks are cut. A larger request gets a larger segment.",
    }],
    ..Suballocation::new("size_class", |options| Box::new(SizeClasses::<Growable>::new(options[0])))
};

/// A segment that is cut into sub-blocks from the front on.
#[derive(Clone)]
struct Chunk {
    /// The address of the first byte.
    base: u64,
    /// The length in bytes; 0 ⟺ the entry is vacant.
    bytes: u64,
    /// The number of bytes at the front that are cut into sub-blocks. The rest is the tail.
    cut: u64,
    /// The sub-block at `base`; `NONE` ⟺ nothing is cut.
    first: u32,
    /// The sub-block before the tail; `NONE` ⟺ nothing is cut.
    last: u32,
    /// The number of live sub-blocks.
    live: u32,
    /// The number of free sub-blocks, plus 1 if the tail is not empty.
    free: u32,
    /// The previous idle chunk, or `NONE`.
    prev: u32,
    /// The next idle chunk, or `NONE`.
    next: u32,
}

impl SegmentEntry for Chunk {
    const VACANT: Self =
        Self { base: 0, bytes: 0, cut: 0, first: NONE, last: NONE, live: 0, free: 0, prev: NONE, next: NONE };
}

impl Chunk {
    /// Returns a chunk without cuts: all of it is tail.
    fn whole(base: u64, bytes: u64) -> Self {
        Self { base, bytes, free: 1, ..Self::VACANT }
    }

    /// Returns the length of the tail in bytes.
    fn tail(&self) -> u64 {
        self.bytes - self.cut
    }

    /// Returns whether the chunk is cut and no sub-block is live.
    fn is_idle(&self) -> bool {
        self.live == 0 && self.cut > 0
    }
}

/// Returns the key by which chunks are ordered: by tail, then by address.
fn key(chunks: &[Chunk]) -> impl Fn(u32) -> Key {
    |chunk| {
        let chunk = &chunks[chunk as usize];
        Key { major: chunk.tail(), minor: chunk.base }
    }
}

/// The size-class policy of a heap.
#[derive(Clone)]
pub(crate) struct SizeClasses<S: Storage> {
    /// The least length of a new chunk in bytes; a multiple of [`CHUNK_STEP`].
    chunk_bytes: u64,
    /// All sub-blocks, live and free.
    sub_blocks: SubBlocks<S>,
    /// The chunks, by the numbers of their segments.
    chunks: SegmentTable<Chunk, S>,
    /// The root of the set of all chunks, ordered by (tail, address).
    by_tail: Link,
    /// The nodes of the set `by_tail`.
    tree: RadixTree<S>,
    /// The head of the list of idle chunks, the latest first.
    idle: u32,
}

impl<S: Storage> SizeClasses<S> {
    /// Creates the sub-allocator of a heap, without segments.
    pub(crate) fn new(chunk_bytes: u64) -> Self {
        Self {
            chunk_bytes: chunk_bytes.clamp(1, MAX_REQUEST).next_multiple_of(CHUNK_STEP),
            sub_blocks: SubBlocks::default(),
            chunks: SegmentTable::default(),
            by_tail: Link::EMPTY,
            tree: RadixTree::default(),
            idle: NONE,
        }
    }

    /// Makes room for another chunk.
    #[cold]
    fn make_room_for_chunk(&mut self) -> bool {
        self.chunks.make_room() && self.tree.make_room_for(self.chunks.len() + 1)
    }

    /// Makes room for another sub-block. Dissolves idle chunks if there is no room without their
    /// entries.
    fn make_room_for_sub_block(&mut self) -> bool {
        while !self.sub_blocks.make_room() {
            if self.idle == NONE {
                return false;
            }
            self.dissolve(self.idle);
        }
        true
    }

    /// Returns the chunk to cut `size` bytes from. If it is idle, it is dissolved first. If no tail
    /// is large enough, all idle chunks are dissolved.
    fn chunk_for(&mut self, size: u64) -> Option<u32> {
        let bound = Key { major: size, minor: 0 };
        let mut found = self.tree.at_least(self.by_tail, bound, key(self.chunks.entries()));
        if found.is_none() && self.idle != NONE {
            while self.idle != NONE {
                self.dissolve(self.idle);
            }
            found = self.tree.at_least(self.by_tail, bound, key(self.chunks.entries()));
        }
        let chunk = found?;
        if self.chunks[chunk].is_idle() {
            self.dissolve(chunk);
        }
        Some(chunk)
    }

    /// Cuts a sub-block of `size` bytes. Not inlined, because it serves only requests for which the
    /// fast path has found no free sub-block.
    #[inline(never)]
    fn cut(&mut self, size: u64) -> Result<Option<(SubBlock, FreeDelta)>, CapacityError> {
        if !self.make_room_for_sub_block() {
            return Err(CapacityError);
        }
        let Some(chunk) = self.chunk_for(size) else { return Ok(None) };
        let Chunk { base, cut, last, live, free: before, .. } = self.chunks[chunk];
        let addr = base + cut;
        let sub_block = self.sub_blocks.cut(addr, size, chunk, last);
        self.move_tail(chunk, |chunk| {
            chunk.first = if last == NONE { sub_block } else { chunk.first };
            chunk.last = sub_block;
            chunk.cut += size;
            chunk.live += 1;
            chunk.free -= u32::from(chunk.tail() == 0);
        });
        let free = FreeDelta { alone: live == 0, before, now: self.chunks[chunk].free };
        Ok(Some((SubBlock { addr, segment: chunk, number: sub_block }, free)))
    }

    /// Applies `change` to a chunk. This may change the length of its tail, so the chunk is not in
    /// the ordered set during the change.
    fn move_tail(&mut self, chunk: u32, change: impl FnOnce(&mut Chunk)) {
        self.by_tail = self.tree.remove(self.by_tail, chunk, key(self.chunks.entries()));
        change(&mut self.chunks[chunk]);
        self.by_tail = self.tree.insert(self.by_tail, chunk, key(self.chunks.entries()));
    }

    /// Removes the sub-blocks of an idle chunk, so that all of it is tail again.
    fn dissolve(&mut self, chunk: u32) {
        debug_assert!(self.chunks[chunk].is_idle(), "only an idle chunk is dissolved");
        self.leave_idle(chunk);
        let mut at = self.chunks[chunk].first;
        while at != NONE {
            at = self.sub_blocks.forget(at);
        }
        self.move_tail(chunk, |chunk| *chunk = Chunk::whole(chunk.base, chunk.bytes));
    }

    /// Adds a chunk at the head of the list of idle chunks.
    #[inline(always)]
    fn enter_idle(&mut self, chunk: u32) {
        let next = core::mem::replace(&mut self.idle, chunk);
        let entry = &mut self.chunks[chunk];
        (entry.prev, entry.next) = (NONE, next);
        if next != NONE {
            self.chunks[next].prev = chunk;
        }
    }

    /// Removes a chunk from the list of idle chunks.
    #[inline(always)]
    fn leave_idle(&mut self, chunk: u32) {
        let Chunk { prev, next, .. } = self.chunks[chunk];
        if next != NONE {
            self.chunks[next].prev = prev;
        }
        if prev == NONE {
            self.idle = next;
        } else {
            self.chunks[prev].next = next;
        }
    }
}

impl<S: Storage> SubAllocator for SizeClasses<S> {
    fn segment_bytes(&self, size: u64) -> u64 {
        size.next_multiple_of(CHUNK_STEP).max(self.chunk_bytes)
    }

    fn make_room(&mut self, _bytes: u64, _size: u64) -> bool {
        (self.chunks.is_ready() || self.make_room_for_chunk()) && self.make_room_for_sub_block()
    }

    fn add_segment(&mut self, segment: u32, base: u64, bytes: u64, _size: u64) {
        self.chunks.insert(segment, Chunk::whole(base, bytes));
        self.by_tail = self.tree.insert(self.by_tail, segment, key(self.chunks.entries()));
    }

    fn remove_segment(&mut self, segment: u32) {
        if self.chunks[segment].is_idle() {
            self.dissolve(segment);
        }
        self.by_tail = self.tree.remove(self.by_tail, segment, key(self.chunks.entries()));
        self.chunks.remove(segment);
    }

    #[inline(always)]
    fn allocate(&mut self, size: u64) -> Result<Option<(SubBlock, FreeDelta)>, CapacityError> {
        let Some((number, addr, chunk)) = self.sub_blocks.take_first(size) else { return self.cut(size) };
        let entry = &mut self.chunks[chunk];
        entry.live += 1;
        entry.free -= 1;
        let (live, now) = (entry.live, entry.free);
        if live == 1 {
            self.leave_idle(chunk);
        }
        Ok(Some((SubBlock { addr, segment: chunk, number }, FreeDelta { alone: live == 1, before: now + 1, now })))
    }

    fn peek(&self, size: u64) -> Option<u64> {
        if let Some(addr) = self.sub_blocks.peek(size) {
            return Some(addr);
        }
        let bound = Key { major: size, minor: 0 };
        if let Some(chunk) = self.tree.at_least(self.by_tail, bound, key(self.chunks.entries())) {
            let chunk = &self.chunks[chunk];
            // An idle chunk would be dissolved first, and then cut at its front.
            return Some(if chunk.is_idle() { chunk.base } else { chunk.base + chunk.cut });
        }
        // No tail is large enough, so every idle chunk would be dissolved and then be all tail.
        let following = |chunk: &&Chunk| self.chunks.entries().get(chunk.next as usize);
        let idle = core::iter::successors(self.chunks.entries().get(self.idle as usize), following);
        let sufficing = idle.filter(|chunk| chunk.bytes >= size);
        sufficing.min_by_key(|chunk| (chunk.bytes, chunk.base)).map(|chunk| chunk.base)
    }

    #[inline(always)]
    fn free(&mut self, sub_block: SubBlock, size: u64) -> FreeDelta {
        self.sub_blocks.free(sub_block.number, sub_block.addr, size);
        let chunk = &mut self.chunks[sub_block.segment];
        chunk.live -= 1;
        chunk.free += 1;
        let (live, before) = (chunk.live, chunk.free - 1);
        if live == 0 {
            self.enter_idle(sub_block.segment);
        }
        FreeDelta { alone: live == 0, before, now: before + 1 }
    }

    /// Visits a chunk without live sub-blocks as a single free sub-block. In any other chunk,
    /// visits each free sub-block and the tail.
    fn visit_free(&self, segment: u32, visit: &mut dyn FnMut(u64, u64)) {
        let chunk = &self.chunks[segment];
        if chunk.live == 0 {
            return visit(chunk.base, chunk.bytes);
        }
        let mut at = chunk.first;
        while at != NONE {
            let (sub_block, size) = self.sub_blocks.get(at);
            if sub_block.free {
                visit(sub_block.addr, size);
            }
            at = sub_block.after;
        }
        if chunk.tail() > 0 {
            visit(chunk.base + chunk.cut, chunk.tail());
        }
    }

    fn copy(&self) -> Box<dyn SubAllocator> {
        Box::new(self.clone())
    }

    fn check(&self) -> Result<(), &'static str> {
        let (mut sub_blocks, mut free, mut idle) = (0, 0, 0);
        for (number, chunk) in self.chunks.entries().iter().enumerate().filter(|(_, chunk)| chunk.bytes > 0) {
            let (mut at, mut end, mut last, mut count, mut live) = (chunk.first, chunk.base, NONE, 0, 0);
            while at != NONE {
                let (sub_block, size) = self.sub_blocks.get(at);
                if sub_block.addr != end || sub_block.chunk as usize != number {
                    return Err("sub-blocks do not tile the front of their chunk");
                }
                end += size;
                (last, count, live) = (at, count + 1, live + u32::from(!sub_block.free));
                at = sub_block.after;
            }
            let free_here = count - live + u32::from(chunk.tail() > 0);
            if (end - chunk.base, last, live, free_here) != (chunk.cut, chunk.last, chunk.live, chunk.free) {
                return Err("a chunk disagrees with its sub-blocks");
            }
            let key = key(self.chunks.entries());
            if self.tree.at_least(self.by_tail, key(number as u32), &key) != Some(number as u32) {
                return Err("a chunk is not found by its tail");
            }
            (sub_blocks, free, idle) = (sub_blocks + count, free + count - live, idle + u32::from(chunk.is_idle()));
        }
        let (mut at, mut prev) = (self.idle, NONE);
        while at != NONE {
            if !self.chunks[at].is_idle() || self.chunks[at].prev != prev {
                return Err("the list of idle chunks holds another, or is broken");
            }
            idle -= 1;
            (prev, at) = (at, self.chunks[at].next);
        }
        self.sub_blocks.check(sub_blocks, free)?;
        if idle == 0 { Ok(()) } else { Err("an idle chunk is missing from the list") }
    }
}
