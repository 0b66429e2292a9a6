//! The blocks and segments of a heap: boundary tags that are stored outside the memory they
//! describe.
//!
//! ```text
//! segment  |------------------------------------------|
//! blocks   | allocated | free | allocated | unmapped   |   linked by `prev` and `next`
//! ```

use crate::heap::age::Idle;
use crate::heap::bins;
use crate::tables::Storage;
use crate::tables::hash_index::Indexed;
use crate::tables::slot_table::{NONE, SlotTable, Vacant, vacant};

/// The bit of [`BlockEntry::events`] that is set while the block waits for the safe frontier to
/// reach its count.
pub(crate) const FRONTIER_BIT: u32 = 1 << 31;

/// The kind of memory that a segment consists of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Backing {
    /// Memory that was allocated from the device in a single call.
    Ordinary,
    /// Reserved addresses, some of which have pages mapped.
    Pages,
}

/// The state of a block. A block in one of the last four states is *detached*: it is in no set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Cached. The block is in the free index.
    Free,
    /// The program uses the block. It is in the hash index of addresses.
    Allocated,
    /// Freed by the program, but other streams may still use the block. It is in no set.
    Pending,
    /// A range of reserved addresses without memory. It is in the unmapped set.
    Unmapped,
    /// Detached for an operation in progress, for example a release or a mapping.
    Detached,
    /// Detached, and about to be mapped.
    Mapping,
    /// The old mapping of a page that moved. It is detached until it is unmapped. `requested` is
    /// the number of the page, and `freed_at` the time of the move.
    Stale,
    /// Could not be unmapped, and is detached forever. The bytes count as leaked, not as reserved.
    Lost,
}

/// A contiguous part of a segment, or a live sub-block. An entry fills exactly one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct BlockEntry {
    /// The device address of the first byte.
    pub addr: u64,
    /// The length in bytes, which is more than 0. The blocks of a segment tile it.
    pub size: u64,
    /// How many bytes the program requested when the block was last allocated; 0 if it never was.
    pub requested: u64,
    /// The heap's `clock` when the block became free.
    pub freed_at: u64,
    /// The neighbour at lower addresses; `NONE` iff the block is the first of its segment. In a
    /// sub-block, the sub-allocator's number for it.
    pub prev: u32,
    /// The neighbour at higher addresses; `NONE` iff the block is the last of its segment.
    pub next: u32,
    /// The link of the list that the block is in. For an allocated block, the next block with the
    /// same hash. For a free block, the next block of the bin. In a vacant entry, the next vacant
    /// entry. Detached blocks may form a list, too.
    pub chain: u32,
    /// The previous free block of the bin; not `NONE` ⟹ the block is free.
    pub before: u32,
    /// The segment that the block is in.
    pub segment: u32,
    /// The head of the list of other streams that use the block; not `NONE` ⟹ the block is
    /// allocated or pending.
    pub uses: u32,
    /// How many events the block waits for, and a [bit for the frontier](FRONTIER_BIT); not 0 ⟹ the
    /// block is pending.
    pub events: u32,
    /// The bin of the free index for `size`. Meaningless in a sub-block. It is computed when the
    /// size changes: computing it at the free would delay the free and the next request.
    pub bin: u16,
    /// The state, which also says which set the block is in, if any.
    pub state: State,
    /// The kind of memory that the segment consists of.
    pub backing: Backing,
}

const _: () = assert!(size_of::<BlockEntry>() == 64);

impl Indexed for BlockEntry {
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

impl BlockEntry {
    /// Returns whether the block is in the free index.
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.state == State::Free
    }

    /// Returns whether the segment contains other blocks.
    #[inline]
    pub(crate) fn is_split(&self) -> bool {
        // All bits of `NONE` are set. This is one test because a second one would be another branch
        // to predict.
        self.prev & self.next != NONE
    }

    /// Returns an entry for the first `size` bytes of the block as a separate block, in front of
    /// this block, which has the number `this`.
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
            backing: self.backing,
        }
    }

    /// Returns a detached block for a whole segment that starts at `addr`.
    pub(super) fn whole(addr: u64, size: u64, segment: u32, backing: Backing) -> Self {
        Self { addr, size, segment, bin: bins::bin(size), backing, ..Self::vacant(NONE) }
    }

    /// Returns an entry for an allocated sub-block. `number` is the sub-allocator's number for it.
    #[inline(always)]
    pub(crate) fn sub_block(addr: u64, size: u64, requested: u64, segment: u32, number: u32) -> Self {
        Self { addr, size, requested, prev: number, segment, state: State::Allocated, ..Self::vacant(NONE) }
    }

    /// Changes the size, and the bin, which depends on it.
    #[inline(always)]
    pub(crate) fn resize(&mut self, size: u64) {
        (self.size, self.bin) = (size, bins::bin(size));
    }

    /// Returns the address just past the last byte.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.addr + self.size
    }
}

vacant!(BlockEntry, chain, keeps, |next| Self {
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
    state: State::Detached,
    backing: Backing::Ordinary,
});

/// The blocks of a heap.
pub(crate) type Blocks<S> = SlotTable<BlockEntry, S>;

/// The segments of a heap.
pub(crate) type HeapSegments<S> = SlotTable<Segment, S>;

impl<S: Storage> Blocks<S> {
    /// Cuts the first `size` bytes off the detached block `block`. They become a separate detached
    /// block, which is returned.
    pub(super) fn cut(&mut self, block: u32, size: u64, segments: &mut HeapSegments<S>) -> u32 {
        let BlockEntry { prev, segment, requested, state, .. } = self[block];
        debug_assert!(!matches!(state, State::Free | State::Unmapped), "a block in a set keeps its size");
        debug_assert!(0 < size && size < self[block].size, "both parts have bytes");
        let front = self[block].front(block, size, requested, state);
        let front = self.insert(front);
        if prev == NONE {
            segments[segment].first = front;
        } else {
            self[prev].next = front;
        }
        let rest = &mut self[block];
        rest.addr += size;
        rest.resize(rest.size - size);
        rest.prev = front;
        front
    }

    /// Merges the detached block `block` with the detached block after it. The merged block keeps
    /// the entry of `block`.
    pub(super) fn absorb_next(&mut self, block: u32) {
        let next = self[block].next;
        let BlockEntry { size, next: after, .. } = self[next];
        for part in [block, next] {
            debug_assert!(
                !matches!(self[part].state, State::Free | State::Unmapped),
                "a block in a set keeps its size"
            );
        }
        let entry = &mut self[block];
        entry.resize(entry.size + size);
        entry.next = after;
        if after != NONE {
            self[after].prev = block;
        }
        self.remove(next);
    }
}

impl<S: Storage> HeapSegments<S> {
    /// Adds `segment` at the head `newest` of the list of segments. Returns the number of the
    /// segment.
    pub(super) fn link(&mut self, mut segment: Segment, newest: &mut u32) -> u32 {
        (segment.prev, segment.next) = (NONE, *newest);
        let number = self.insert(segment);
        if *newest != NONE {
            self[*newest].prev = number;
        }
        *newest = number;
        number
    }

    /// Removes `segment` from the list of segments with the head `newest`, and makes its entry
    /// vacant.
    pub(super) fn unlink(&mut self, segment: u32, newest: &mut u32) {
        let Segment { prev, next, .. } = self[segment];
        if prev == NONE {
            debug_assert_eq!(*newest, segment, "only the newest segment has no segment before it");
            *newest = next;
        } else {
            self[prev].next = next;
        }
        if next != NONE {
            self[next].prev = prev;
        }
        self.remove(segment);
    }
}

/// A range of memory that was allocated from the device in a single call, or a reserved range of
/// addresses.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    /// The device address of the first byte.
    pub base: u64,
    /// The length in bytes.
    pub bytes: u64,
    /// The block at `base`.
    pub first: u32,
    /// The sizes of the segment's pages are multiples of this many bytes; 0 for an ordinary
    /// segment.
    pub granule: u64,
    /// The kind of memory that the segment consists of.
    pub backing: Backing,
    /// The next newer segment in the heap's list, or `NONE`.
    pub prev: u32,
    /// The next older segment in the heap's list, or `NONE`. In a vacant entry, the next vacant
    /// entry.
    pub next: u32,
    /// How often the program has pinned blocks of an ordinary segment. A segment that is pinned is
    /// not released.
    pub pins: u32,
    /// Since when an ordinary segment has been idle.
    pub idle: Idle,
    /// Whether the segment has live sub-blocks. Always false if there is no sub-allocator, because
    /// then blocks tile the segment.
    pub live: bool,
}

vacant!(Segment, next, keeps, |next| Self {
    base: 0,
    bytes: 0,
    first: NONE,
    granule: 0,
    backing: Backing::Ordinary,
    prev: NONE,
    next,
    pins: 0,
    idle: Idle::NEW,
    live: false,
});
