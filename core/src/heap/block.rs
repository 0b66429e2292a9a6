//! Blocks and segments of a heap: boundary tags kept outside the described memory.
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

/// The bit of [`BlockEntry::events`] for the safe frontier: set while the block waits for a count.
pub(crate) const FRONTIER_BIT: u32 = 1 << 31;

/// The backing of a segment's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Backing {
    /// Memory allocated from the device in a single call.
    Ordinary,
    /// Reserved addresses, with pages mapped in some.
    Pages,
}

/// The state of a block. A block in any of the last six states is *detached*: in no set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Cached: in the free index.
    Free,
    /// Held by the program: in the hash index of addresses.
    Allocated,
    /// Freed by the program, but other streams may still use the block: in no set.
    Pending,
    /// A range of reserved addresses without memory: in the unmapped set.
    Unmapped,
    /// Detached for an operation in progress, for example a release or a mapping.
    Detached,
    /// Detached, and about to be mapped.
    Mapping,
    /// The old mapping of a moved page: detached until unmapped. `requested` is the page's number
    /// and `freed_at` the time of the move.
    Stale,
    /// Could not be unmapped: detached for good. The bytes are counted as leaked instead of
    /// reserved.
    Lost,
}

/// A contiguous part of a segment, or a live sub-block. One entry fills one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct BlockEntry {
    /// Device address of the first byte.
    pub addr: u64,
    /// Length in bytes, more than 0. The blocks of a segment tile the segment.
    pub size: u64,
    /// Bytes requested by the program at the last allocation of the block; 0 for a block never
    /// allocated.
    pub requested: u64,
    /// The heap's `clock` when the block became free.
    pub freed_at: u64,
    /// The neighbour at lower addresses; `NONE` iff the block is the first of the segment. For a
    /// sub-block: the sub-allocator's number for the sub-block.
    pub prev: u32,
    /// The neighbour at higher addresses; `NONE` iff the block is the last of the segment.
    pub next: u32,
    /// The link of the block's list. Allocated: next block with the same hash. Free: next block of
    /// the bin. Vacant entry: next vacant entry. Detached blocks may form a list, too.
    pub chain: u32,
    /// The previous free block of the bin; not `NONE` ⟹ free.
    pub before: u32,
    /// The segment with the block.
    pub segment: u32,
    /// Head of the list of other streams that use the block; not `NONE` ⟹ allocated or pending.
    pub uses: u32,
    /// Number of events awaited by the block, and a [bit for the frontier](FRONTIER_BIT);
    /// not 0 ⟹ pending.
    pub events: u32,
    /// The bin of the free index for `size`; meaningless for a sub-block. Computed when the size
    /// changes: computed at the free, the result would delay the free and the next request.
    pub bin: u16,
    /// Which set holds the block, if any.
    pub state: State,
    /// The backing of the segment.
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
    /// Whether the block is in the free index.
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.state == State::Free
    }

    /// Whether the segment holds other blocks.
    #[inline]
    pub(crate) fn is_split(&self) -> bool {
        // `NONE` has every bit. One test, since a second one is a second branch to predict.
        self.prev & self.next != NONE
    }

    /// Returns an entry for the first `size` bytes of the block, as a block before `this`, the
    /// number of the block.
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

    /// Returns a detached block for a whole segment, which starts at `addr`.
    pub(super) fn whole(addr: u64, size: u64, segment: u32, backing: Backing) -> Self {
        Self { addr, size, segment, bin: bins::bin(size), backing, ..Self::vacant(NONE) }
    }

    /// Returns an entry for an allocated sub-block, which the sub-allocator knows by `number`.
    #[inline(always)]
    pub(crate) fn sub_block(addr: u64, size: u64, requested: u64, segment: u32, number: u32) -> Self {
        Self { addr, size, requested, prev: number, segment, state: State::Allocated, ..Self::vacant(NONE) }
    }

    /// Changes the size and the bin that depends on the size.
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
    /// Cuts the first `size` bytes off the detached block `block`, as a detached block of their
    /// own. Returns the front block.
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
    /// Adds `segment` at the head `newest` of the list of segments. Returns the segment's number.
    pub(super) fn link(&mut self, mut segment: Segment, newest: &mut u32) -> u32 {
        (segment.prev, segment.next) = (NONE, *newest);
        let number = self.insert(segment);
        if *newest != NONE {
            self[*newest].prev = number;
        }
        *newest = number;
        number
    }

    /// Removes `segment` from the list of segments with the head `newest`, and vacates the
    /// segment's entry.
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

/// A range of memory allocated from the device in a single call, or a reserved range of addresses.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    /// Device address of the first byte.
    pub base: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// The block at `base`.
    pub first: u32,
    /// Bytes of which the sizes of pages are multiples; 0 for an ordinary segment.
    pub granule: u64,
    /// The backing of the segment.
    pub backing: Backing,
    /// The next newer segment in the heap's list, or `NONE`.
    pub prev: u32,
    /// The next older segment in the heap's list, or `NONE`. For a vacant entry: the next vacant
    /// entry.
    pub next: u32,
    /// How often the program has pinned blocks of an ordinary segment. A pinned segment is not
    /// released.
    pub pins: u32,
    /// Since when an ordinary segment is idle.
    pub idle: Idle,
    /// Whether the segment has live sub-blocks. Always false without a sub-allocator: blocks tile
    /// the segment instead.
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
