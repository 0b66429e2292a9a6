//! Blocks and segments as a heap keeps them: boundary tags outside the memory they describe.
//!
//! ```text
//! segment  |------------------------------------------|
//! blocks   | allocated | free | allocated | unmapped   |     prev / next link neighbours in address order
//! ```

use crate::heap::bins;
use crate::tables::hash_index::Indexed;
use crate::tables::slot_table::{NONE, SlotTable, Vacant};

/// What a block is at present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Cached: in the free index, and nowhere else.
    Free,
    /// Held by the program, and found by its address.
    Allocated,
    /// FreeArgs by the program, but other streams may still use it: in neither.
    Pending,
    /// Addresses of an expandable segment with no memory behind them: in the unmapped set.
    Unmapped,
    /// SubBlock out for a release or a mapping that is under way: in none of them.
    Held,
    /// Held, and to be mapped.
    Mapping,
    /// Held, and mapped since it was.
    Mapped,
    /// Could not be unmapped: in none of them, for good. Its bytes are counted as leaked, no longer here.
    Lost,
}

/// A contiguous part of a segment: all that is known of it is in one line of the processor's cache.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Block {
    /// Device address of the first byte.
    pub addr: u64,
    /// Length in bytes; blocks of a segment tile it.
    pub size: u64,
    /// What the program asked for when the block was last handed out; 0 if it never was.
    pub requested: u64,
    /// The pool's search count when the block became free.
    pub freed_at: u64,
    /// The neighbour at lower addresses; `NONE` iff this is the first block of its segment. Of a suballocator's piece, its number there.
    pub prev: u32,
    /// The neighbour at higher addresses.
    pub next: u32,
    /// Next held block whose address has the same hash, next free block of its bin, next block of a list of held ones, or next vacant
    /// entry.
    pub chain: u32,
    /// The free block before this one in its bin; not `NONE` ⟹ free.
    pub before: u32,
    /// The segment this is a part of.
    pub segment: u32,
    /// Head of the list of other streams that use it; not `NONE` ⟹ allocated or pending.
    pub uses: u32,
    /// Events still awaited, and a bit for the [frontier](crate::streams::frontier::AHEAD); not 0 ⟹ pending.
    pub events: u32,
    /// The bin of the free index for blocks of this size; of a piece that a suballocator cut, nothing. It is found out when the size changes,
    /// because a free may have to wait for it, and the next request for that free.
    pub bin: u16,
    pub state: State,
    /// Whether the segment is expandable.
    pub expandable: bool,
}

const _: () = assert!(size_of::<Block>() == 64);

impl Indexed for Block {
    #[inline(always)]
    fn key(&self) -> u64 {
        self.addr
    }

    #[inline(always)]
    fn chain(&self) -> u32 {
        self.chain
    }

    #[inline(always)]
    fn set_chain(&mut self, next: u32) {
        self.chain = next;
    }
}

impl Block {
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.state == State::Free
    }

    /// Whether the segment holds other blocks beside it.
    #[inline]
    pub(crate) fn is_split(&self) -> bool {
        self.prev != NONE || self.next != NONE
    }

    /// The first `size` bytes of this block, `this`, as a block of their own before it.
    #[inline(always)]
    pub(crate) fn front(&self, this: u32, size: u64, requested: u64, state: State) -> Self {
        Self {
            addr: self.addr,
            size,
            requested,
            freed_at: 0,
            prev: self.prev,
            next: this,
            chain: NONE,
            before: NONE,
            segment: self.segment,
            uses: NONE,
            events: 0,
            bin: bins::bin(size),
            state,
            expandable: self.expandable,
        }
    }

    /// A piece that a suballocator cut from a segment and knows by `number`, handed out.
    #[cfg_attr(not(feature = "alloc"), allow(dead_code, reason = "there is no suballocator"))]
    #[inline(always)]
    pub(crate) fn piece(addr: u64, size: u64, requested: u64, segment: u32, number: u32) -> Self {
        Self { addr, size, requested, prev: number, segment, state: State::Allocated, ..Self::vacant(NONE) }
    }

    /// Changes the size.
    #[inline(always)]
    pub(crate) fn resize(&mut self, size: u64) {
        (self.size, self.bin) = (size, bins::bin(size));
    }

    /// The address just past the last byte.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.addr + self.size
    }
}

impl Vacant for Block {
    fn vacant(next: u32) -> Self {
        Self {
            addr: 0,
            size: 0,
            requested: 0,
            freed_at: 0,
            prev: NONE,
            next: NONE,
            chain: next,
            before: NONE,
            segment: NONE,
            uses: NONE,
            events: 0,
            bin: 0,
            state: State::Held,
            expandable: false,
        }
    }

    fn vacate(&mut self, next: u32) {
        self.chain = next;
    }

    fn next_vacant(&self) -> u32 {
        self.chain
    }
}

/// The blocks of one heap.
pub(crate) type Blocks<S> = SlotTable<Block, S>;

/// A range obtained from the device in one piece, or reserved as addresses.
#[derive(Debug)]
pub(crate) struct Segment {
    pub base: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// The block at `base`.
    pub first: u32,
    /// Bytes mapped at a time, if the segment is expandable; else 0.
    pub granule: u64,
    /// The segments before and after in the heap's list, newest first; of a vacant entry, `next` is the next vacant one.
    pub prev: u32,
    pub next: u32,
    /// Pieces that a suballocator cut from it are taken; never where blocks tile the segment.
    pub live: bool,
}

impl Vacant for Segment {
    fn vacant(next: u32) -> Self {
        Self { base: 0, bytes: 0, first: NONE, granule: 0, prev: NONE, next, live: false }
    }

    fn next_vacant(&self) -> u32 {
        self.next
    }

    fn vacate(&mut self, next: u32) {
        self.next = next;
    }
}

/// Another stream that uses a block (`record_stream`).
#[derive(Debug)]
pub(crate) struct Use {
    pub stream: crate::units::StreamId,
    /// Recorded while a graph was being captured: the capture itself orders it, no event is needed.
    pub captured: bool,
    /// Next of the same block, or next vacant entry.
    pub next: u32,
}

impl Vacant for Use {
    fn vacant(next: u32) -> Self {
        Self { stream: crate::units::StreamId::DEFAULT, captured: false, next }
    }

    fn next_vacant(&self) -> u32 {
        self.next
    }

    fn vacate(&mut self, next: u32) {
        self.next = next;
    }
}
