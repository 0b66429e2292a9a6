//! Exact sizes: requests are rounded to 1 KiB, and what was given back serves the next request of just that size.
//!
//! ```text
//! class 3 KiB    ■ ─ ■ ─ ■               free pieces, the one given back last first
//! chunk          │3│3│ 5 │3│····tail····│ pieces are cut from the front on, and are neither split nor merged
//! chunk          │······················│ nothing taken ⟹ whole again: its pieces are gone once others need the room
//! ```
//!
//! A request that no free piece serves is cut from the chunk whose tail is the smallest that suffices, the lowest address among
//! equals. A chunk of which nothing is taken counts as one free piece, but keeps its cuts while no tail and no request of
//! another size needs its room: what a program asks for again it finds as it was. Nothing here depends on how many pieces
//! are free; to dissolve a chunk costs as much as it did to cut it.

use super::pieces::Pieces;
use super::segment_table::{SegmentEntry, SegmentTable};
use super::{Free, SubAllocator, SubBlock};
use crate::config;
use crate::tables::radix_tree::{Key, Link, RadixTree};
use crate::tables::slot_table::NONE;
use crate::tables::{CapacityError, Storage};
use crate::units::{MAX_REQUEST, MIB};

/// Every size is a multiple of it, in bytes (1 KiB in the allocator that this policy is known from).
pub(crate) const CLASS_STEP: u64 = 1024;

/// Every chunk is a multiple of it, in bytes: the granule of virtual memory.
pub(crate) const CHUNK_STEP: u64 = 2 * MIB;

/// A segment.
struct Chunk {
    base: u64,
    /// 0 ⟺ no segment has this number.
    bytes: u64,
    /// Bytes at the front that are cut into pieces.
    cut: u64,
    /// The piece at `base`, and the one before the tail. None ⟺ nothing is cut.
    first: u32,
    last: u32,
    /// How many pieces are taken.
    taken: u32,
    /// How many are free, and one more for the tail, if there is one.
    free: u32,
    /// Neighbours among the idle chunks.
    prev: u32,
    next: u32,
}

impl SegmentEntry for Chunk {
    const VACANT: Self =
        Self { base: 0, bytes: 0, cut: 0, first: NONE, last: NONE, taken: 0, free: 0, prev: NONE, next: NONE };
}

impl Chunk {
    /// A chunk that is all tail.
    fn whole(base: u64, bytes: u64) -> Self {
        Self { base, bytes, free: 1, ..Self::VACANT }
    }

    fn tail(&self) -> u64 {
        self.bytes - self.cut
    }

    /// Cut into pieces none of which is taken.
    fn is_idle(&self) -> bool {
        self.taken == 0 && self.cut > 0
    }
}

/// The order of the chunks.
fn key(chunks: &[Chunk]) -> impl Fn(u32) -> Key {
    |chunk| {
        let chunk = &chunks[chunk as usize];
        Key { major: chunk.tail(), minor: chunk.base }
    }
}

/// The policy.
pub(crate) struct SizeClasses<S: Storage> {
    chunk_bytes: u64,
    pieces: Pieces<S>,
    chunks: SegmentTable<Chunk, S>,
    /// Root of the set of all chunks, by (tail, address).
    by_tail: Link,
    forks: RadixTree<S>,
    /// Head of the list of idle chunks.
    idle: u32,
}

impl<S: Storage> SizeClasses<S> {
    /// A policy without segments.
    pub(crate) fn new(options: config::SizeClass) -> Self {
        Self {
            chunk_bytes: options.chunk.clamp(1, MAX_REQUEST).next_multiple_of(CHUNK_STEP),
            pieces: Pieces::default(),
            chunks: SegmentTable::default(),
            by_tail: Link::EMPTY,
            forks: RadixTree::default(),
            idle: NONE,
        }
    }

    /// Makes room for a further chunk.
    #[cold]
    fn make_room_for_chunk(&mut self) -> bool {
        self.chunks.make_room() && self.forks.make_room_for(self.chunks.len() + 1)
    }

    /// Makes room for a further piece, even if a chunk must be dissolved for it.
    fn make_room_for_sub_block(&mut self) -> bool {
        while !self.pieces.make_room() {
            if self.idle == NONE {
                return false;
            }
            self.dissolve(self.idle);
        }
        true
    }

    /// The chunk to cut `size` from.
    fn chunk_for(&mut self, size: u64) -> Option<u32> {
        let bound = Key { major: size, minor: 0 };
        let mut found = self.forks.at_least(self.by_tail, bound, key(self.chunks.entries()));
        if found.is_none() && self.idle != NONE {
            while self.idle != NONE {
                self.dissolve(self.idle);
            }
            found = self.forks.at_least(self.by_tail, bound, key(self.chunks.entries()));
        }
        let chunk = found?;
        if self.chunks[chunk].is_idle() {
            self.dissolve(chunk);
        }
        Some(chunk)
    }

    /// Cuts a piece.
    #[inline(never)]
    fn cut(&mut self, size: u64) -> Result<Option<(SubBlock, Free)>, CapacityError> {
        if !self.make_room_for_sub_block() {
            return Err(CapacityError);
        }
        let Some(chunk) = self.chunk_for(size) else { return Ok(None) };
        let Chunk { base, cut, last, taken, free: before, .. } = self.chunks[chunk];
        let addr = base + cut;
        let piece = self.pieces.cut(addr, size, chunk, last);
        self.move_tail(chunk, |chunk| {
            chunk.first = if last == NONE { piece } else { chunk.first };
            chunk.last = piece;
            chunk.cut += size;
            chunk.taken += 1;
            chunk.free -= u32::from(chunk.tail() == 0);
        });
        let free = Free { alone: taken == 0, before, now: self.chunks[chunk].free };
        Ok(Some((SubBlock { addr, segment: chunk, number: piece }, free)))
    }

    /// Changes where the tail of a chunk begins.
    fn move_tail(&mut self, chunk: u32, change: impl FnOnce(&mut Chunk)) {
        self.by_tail = self.forks.remove(self.by_tail, chunk, key(self.chunks.entries()));
        change(&mut self.chunks[chunk]);
        self.by_tail = self.forks.insert(self.by_tail, chunk, key(self.chunks.entries()));
    }

    /// Forgets the pieces of an idle chunk: all of it is tail.
    fn dissolve(&mut self, chunk: u32) {
        self.leave_idle(chunk);
        let mut at = self.chunks[chunk].first;
        while at != NONE {
            at = self.pieces.forget(at);
        }
        self.move_tail(chunk, |chunk| *chunk = Chunk::whole(chunk.base, chunk.bytes));
    }

    #[inline(always)]
    fn enter_idle(&mut self, chunk: u32) {
        let next = core::mem::replace(&mut self.idle, chunk);
        let entry = &mut self.chunks[chunk];
        (entry.prev, entry.next) = (NONE, next);
        if next != NONE {
            self.chunks[next].prev = chunk;
        }
    }

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

impl<S: Storage> SubAllocator<S> for SizeClasses<S> {
    fn segment_bytes(&self, size: u64) -> u64 {
        size.next_multiple_of(CHUNK_STEP).max(self.chunk_bytes)
    }

    fn make_room(&mut self, _bytes: u64, _size: u64) -> bool {
        (self.chunks.is_ready() || self.make_room_for_chunk()) && self.make_room_for_sub_block()
    }

    fn add_segment(&mut self, segment: u32, base: u64, bytes: u64, _size: u64) {
        self.chunks.insert(segment, Chunk::whole(base, bytes));
        self.by_tail = self.forks.insert(self.by_tail, segment, key(self.chunks.entries()));
    }

    fn remove_segment(&mut self, segment: u32) {
        if self.chunks[segment].is_idle() {
            self.dissolve(segment);
        }
        self.by_tail = self.forks.remove(self.by_tail, segment, key(self.chunks.entries()));
        self.chunks.remove(segment);
    }

    #[inline(always)]
    fn take(&mut self, size: u64) -> Result<Option<(SubBlock, Free)>, CapacityError> {
        let Some((number, addr, chunk)) = self.pieces.take_first(size) else { return self.cut(size) };
        let entry = &mut self.chunks[chunk];
        entry.taken += 1;
        entry.free -= 1;
        let (taken, now) = (entry.taken, entry.free);
        if taken == 1 {
            self.leave_idle(chunk);
        }
        Ok(Some((SubBlock { addr, segment: chunk, number }, Free { alone: taken == 1, before: now + 1, now })))
    }

    fn peek(&self, size: u64) -> Option<u64> {
        if let Some(addr) = self.pieces.peek(size) {
            return Some(addr);
        }
        let bound = Key { major: size, minor: 0 };
        if let Some(chunk) = self.forks.at_least(self.by_tail, bound, key(self.chunks.entries())) {
            let chunk = &self.chunks[chunk];
            // An idle one is dissolved first, and cut from its front.
            return Some(if chunk.is_idle() { chunk.base } else { chunk.base + chunk.cut });
        }
        // No tail suffices, so every idle chunk is dissolved, and is all tail then.
        let following = |chunk: &&Chunk| self.chunks.entries().get(chunk.next as usize);
        let idle = core::iter::successors(self.chunks.entries().get(self.idle as usize), following);
        let sufficing = idle.filter(|chunk| chunk.bytes >= size);
        sufficing.min_by_key(|chunk| (chunk.bytes, chunk.base)).map(|chunk| chunk.base)
    }

    #[inline(always)]
    fn give(&mut self, piece: SubBlock, size: u64) -> Free {
        self.pieces.give(piece.number, piece.addr, size);
        let chunk = &mut self.chunks[piece.segment];
        chunk.taken -= 1;
        chunk.free += 1;
        let (taken, before) = (chunk.taken, chunk.free - 1);
        if taken == 0 {
            self.enter_idle(piece.segment);
        }
        Free { alone: taken == 0, before, now: before + 1 }
    }

    /// A chunk of which nothing is taken is one piece; else every free piece is one, and so is the tail.
    fn visit_free(&self, segment: u32, visit: &mut dyn FnMut(u64, u64)) {
        let chunk = &self.chunks[segment];
        if chunk.taken == 0 {
            return visit(chunk.base, chunk.bytes);
        }
        let mut at = chunk.first;
        while at != NONE {
            let (piece, size) = self.pieces.get(at);
            if piece.free {
                visit(piece.addr, size);
            }
            at = piece.after;
        }
        if chunk.tail() > 0 {
            visit(chunk.base + chunk.cut, chunk.tail());
        }
    }

    fn check(&self) -> Result<(), &'static str> {
        let (mut pieces, mut free, mut idle) = (0, 0, 0);
        for (number, chunk) in self.chunks.entries().iter().enumerate().filter(|(_, chunk)| chunk.bytes > 0) {
            let (mut at, mut end, mut last, mut count, mut taken) = (chunk.first, chunk.base, NONE, 0, 0);
            while at != NONE {
                let (piece, size) = self.pieces.get(at);
                if piece.addr != end || piece.chunk as usize != number {
                    return Err("pieces do not tile the front of their chunk");
                }
                end += size;
                (last, count, taken) = (at, count + 1, taken + u32::from(!piece.free));
                at = piece.after;
            }
            let free_here = count - taken + u32::from(chunk.tail() > 0);
            if (end - chunk.base, last, taken, free_here) != (chunk.cut, chunk.last, chunk.taken, chunk.free) {
                return Err("a chunk disagrees with its pieces");
            }
            let key = key(self.chunks.entries());
            if self.forks.at_least(self.by_tail, key(number as u32), &key) != Some(number as u32) {
                return Err("a chunk is not found by its tail");
            }
            (pieces, free, idle) = (pieces + count, free + count - taken, idle + u32::from(chunk.is_idle()));
        }
        let (mut at, mut prev) = (self.idle, NONE);
        while at != NONE {
            if !self.chunks[at].is_idle() || self.chunks[at].prev != prev {
                return Err("the list of idle chunks holds another, or is broken");
            }
            idle -= 1;
            (prev, at) = (at, self.chunks[at].next);
        }
        self.pieces.check(pieces, free)?;
        if idle == 0 { Ok(()) } else { Err("an idle chunk is missing from the list") }
    }
}
