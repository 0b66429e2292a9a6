//! One heap: the blocks of one (stream, pool), their free index, and every decision about them.
//!
//! A heap is single-threaded, knows one stream and never calls the device. Its owner wraps a lock around it, and obtains
//! and releases what it asks for. Two rules keep the bookkeeping small: a split leaves the front part in place, and a merge
//! leaves the left part in place, so the first block of a segment is the same entry for as long as the segment lives.

use crate::block::{Block, Blocks, Segment, State, Use};
use crate::free_index::FreeIndex;
use crate::ledger::Ledger;
use crate::rules::Rules;
use crate::slab::{NONE, Slab};
use crate::stats::{Stat, Tally};
use crate::storage::Storage;
use crate::trie::{Key, Link, Trie};
use crate::units::{DevicePtr, StreamId};

pub(crate) mod expandable;
pub(crate) mod invariants;

/// A table has no entry left. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Full;

/// What an operation on a heap leads to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done<T> {
    pub value: T,
    /// A statistic rose above its ceiling: the peaks must be settled once the lock is released.
    pub unsettled: bool,
}

pub(crate) struct Heap<S: Storage> {
    pub stream: StreamId,
    /// Number of the pool among the device's pools.
    pub pool: u32,
    pub rules: Rules,
    /// The pool's search count, as far as ages are kept.
    pub clock: u64,
    pub blocks: Blocks<S>,
    /// All segments, ordinary and expandable.
    pub segments: Slab<Segment, S>,
    /// Head of the list of segments.
    pub newest: u32,
    /// Holds exactly the blocks that are [`State::Free`].
    pub free: FreeIndex<S>,
    /// Holds exactly the blocks that are [`State::Allocated`].
    pub ledger: Ledger<S>,
    /// Other streams' uses of blocks.
    pub uses: Slab<Use, S>,
    /// Root of the set of blocks that are [`State::Unmapped`], by address.
    unmapped: Link,
    by_address: Trie<S>,
}

impl<S: Storage> Heap<S> {
    pub(crate) fn new(stream: StreamId, pool: u32, rules: Rules) -> Self {
        Self {
            stream,
            pool,
            rules,
            clock: 0,
            blocks: Slab::default(),
            segments: Slab::default(),
            newest: NONE,
            free: FreeIndex::default(),
            ledger: Ledger::default(),
            uses: Slab::default(),
            unmapped: Link::EMPTY,
            by_address: Trie::default(),
        }
    }

    /// Makes sure that no operation on one block can run out of entries: it adds at most two blocks, and an index needs
    /// fewer nodes than there are blocks.
    #[inline]
    pub(crate) fn make_room(&mut self) -> Result<(), Full> {
        let blocks = self.blocks.len() + 2;
        let room =
            self.blocks.make_room(2) && self.free.make_room_for(blocks) && self.ledger.make_room(&mut self.blocks);
        if room { Ok(()) } else { Err(Full) }
    }

    /// Serves a request from the cache: `size` is what `requested` is rounded to. `None` if no free block may serve it.
    #[inline]
    pub(crate) fn malloc(&mut self, size: u64, requested: u64, tally: &Tally) -> Result<Option<Done<DevicePtr>>, Full> {
        self.make_room()?;
        let Some(block) = self.find(size) else { return Ok(None) };
        self.free.remove(block, &self.blocks);
        Ok(Some(self.hand_out(block, size, requested, tally)))
    }

    /// The free block that serves a request of `size`, if one may.
    #[inline]
    pub(crate) fn find(&self, size: u64) -> Option<u32> {
        let mut block = self.free.best_fit(size, &self.blocks)?;
        if self.blocks[block].expandable {
            block = self.find_among_expandable(block)?;
        }
        (!self.rules.refuse(self.blocks[block].size, size)).then_some(block)
    }

    /// Hands out the front of a block that is in no set, which has at least `size` bytes; the rest stays free if the rules
    /// split it off. Room was made.
    #[inline]
    pub(crate) fn hand_out(&mut self, block: u32, size: u64, requested: u64, tally: &Tally) -> Done<DevicePtr> {
        let Block { size: whole, addr, expandable, .. } = self.blocks[block];
        let was_split = self.blocks[block].is_split();
        let remaining = whole - size;
        let mut unsettled = false;
        let given = if self.rules.should_split(remaining, size) {
            let rest = self.split(block, size);
            self.insert_free(rest);
            if !expandable && was_split {
                tally.down(Stat::InactiveSplitBytes, size);
            } else if !expandable {
                unsettled |= tally.up(Stat::InactiveSplit, 1);
                unsettled |= tally.up(Stat::InactiveSplitBytes, remaining);
            }
            size
        } else {
            if was_split && !expandable {
                tally.down(Stat::InactiveSplit, 1);
                tally.down(Stat::InactiveSplitBytes, whole);
            }
            whole
        };
        let entry = &mut self.blocks[block];
        entry.state = State::Allocated;
        entry.requested = requested;
        self.ledger.insert(block, &mut self.blocks);
        unsettled |= tally.up(Stat::Allocation, 1);
        unsettled |= tally.up(Stat::AllocatedBytes, given);
        unsettled |= tally.up(Stat::Active, 1);
        unsettled |= tally.up(Stat::ActiveBytes, given);
        unsettled |= tally.up(Stat::RequestedBytes, requested);
        if self.rules.is_oversize(given) {
            unsettled |= tally.up(Stat::OversizeAllocations, 1);
        }
        Done { value: DevicePtr(addr), unsettled }
    }

    /// The block that the program holds at exactly `ptr`.
    #[inline]
    pub(crate) fn lookup(&self, ptr: DevicePtr) -> Option<u32> {
        self.ledger.get(ptr.0, &self.blocks)
    }

    /// The program gives `block` up. It is pending until [`complete`](Self::complete).
    #[inline]
    pub(crate) fn give_up(&mut self, block: u32, tally: &Tally) {
        self.ledger.remove(block, &mut self.blocks);
        let entry = &mut self.blocks[block];
        entry.state = State::Pending;
        tally.down(Stat::Allocation, 1);
        tally.down(Stat::AllocatedBytes, entry.size);
        if self.rules.is_oversize(entry.size) {
            tally.down(Stat::OversizeAllocations, 1);
        }
    }

    /// The program did not give a pending block up after all. True if the peaks must be settled.
    pub(crate) fn take_back(&mut self, block: u32, tally: &Tally) -> bool {
        self.ledger.insert(block, &mut self.blocks);
        let entry = &mut self.blocks[block];
        entry.state = State::Allocated;
        let mut unsettled = tally.up(Stat::Allocation, 1) | tally.up(Stat::AllocatedBytes, entry.size);
        if self.rules.is_oversize(entry.size) {
            unsettled |= tally.up(Stat::OversizeAllocations, 1);
        }
        unsettled
    }

    /// Notes that another stream uses `block`; its own stream, and one that is noted already, change nothing.
    pub(crate) fn add_use(&mut self, block: u32, stream: StreamId, captured: bool) -> Result<(), Full> {
        let mut at = self.blocks[block].uses;
        while at != NONE {
            let entry = &mut self.uses[at];
            if entry.stream == stream {
                entry.captured &= captured;
                return Ok(());
            }
            at = entry.next;
        }
        if stream == self.stream {
            return Ok(());
        }
        if !self.uses.make_room(1) {
            return Err(Full);
        }
        let next = self.blocks[block].uses;
        self.blocks[block].uses = self.uses.insert(Use { stream, captured, next });
        Ok(())
    }

    /// Forgets which other streams use `block`: their events are recorded.
    pub(crate) fn drop_uses(&mut self, block: u32) {
        let mut at = core::mem::replace(&mut self.blocks[block].uses, NONE);
        while at != NONE {
            let next = self.uses[at].next;
            self.uses.remove(at);
            at = next;
        }
    }

    /// Nothing uses a pending block any longer: it becomes free, one with its free neighbours. True if the peaks must be
    /// settled.
    #[inline]
    pub(crate) fn complete(&mut self, block: u32, tally: &Tally) -> bool {
        let Block { size, requested, expandable, .. } = self.blocks[block];
        tally.down(Stat::Active, 1);
        tally.down(Stat::ActiveBytes, size);
        tally.down(Stat::RequestedBytes, requested);
        let (block, merged) = self.merge(block, State::Free);
        self.insert_free(block);
        if expandable {
            return false;
        }
        let whole = self.blocks[block].size;
        let (count, bytes) = match (self.blocks[block].is_split(), (whole - size) as i64) {
            (true, absorbed) => (1 - merged, whole as i64 - absorbed),
            (false, absorbed) => (-merged, -absorbed),
        };
        tally.change(Stat::InactiveSplit, count) | tally.change(Stat::InactiveSplitBytes, bytes)
    }

    /// Adds an ordinary segment that was obtained from the device; its one block is in no set. Room was made.
    pub(crate) fn add_segment(&mut self, base: DevicePtr, bytes: u64, tally: &Tally) -> Done<u32> {
        let block = self.new_segment(base, bytes, 0);
        let mut unsettled = tally.up(Stat::Segment, 1) | tally.up(Stat::ReservedBytes, bytes);
        if self.rules.is_oversize(bytes) {
            unsettled |= tally.up(Stat::OversizeSegments, 1);
        }
        Done { value: block, unsettled }
    }

    /// Whether `block` is a whole ordinary segment, free.
    pub(crate) fn is_releasable(&self, block: u32) -> bool {
        let block = &self.blocks[block];
        block.is_free() && !block.expandable && !block.is_split()
    }

    /// Forgets a releasable segment, and says what to release.
    pub(crate) fn remove_segment(&mut self, block: u32, tally: &Tally) -> (DevicePtr, u64) {
        self.free.remove(block, &self.blocks);
        let Block { addr, size, segment, .. } = self.blocks[block];
        self.blocks.remove(block);
        self.unlink(segment);
        tally.down(Stat::Segment, 1);
        tally.down(Stat::ReservedBytes, size);
        if self.rules.is_oversize(size) {
            tally.down(Stat::OversizeSegments, 1);
        }
        (DevicePtr(addr), size)
    }

    /// The block that contains `ptr`, whatever its state. Walks the segments.
    pub(crate) fn containing(&self, ptr: DevicePtr) -> Option<u32> {
        let mut segment = self.newest;
        while segment != NONE {
            let Segment { base, bytes, first, next, .. } = self.segments[segment];
            if (base..base + bytes).contains(&ptr.0) {
                let mut block = first;
                while self.blocks[block].end() <= ptr.0 {
                    block = self.blocks[block].next;
                }
                return Some(block);
            }
            segment = next;
        }
        None
    }

    /// Whether nothing is left of the heap but its tables.
    pub(crate) fn is_empty(&self) -> bool {
        self.newest == NONE
    }

    /// Puts a block into the free index.
    #[inline]
    pub(crate) fn insert_free(&mut self, block: u32) {
        let entry = &mut self.blocks[block];
        entry.state = State::Free;
        if self.rules.ages {
            entry.born = self.clock;
        }
        self.free.insert(block, &self.blocks);
    }

    /// Cuts `block`, which is in no set, behind its first `size` bytes. The rest is in no set either.
    #[inline]
    fn split(&mut self, block: u32, size: u64) -> u32 {
        let front = &self.blocks[block];
        let rest = Block {
            addr: front.addr + size,
            size: front.size - size,
            requested: front.requested,
            born: front.born,
            prev: block,
            next: front.next,
            chain: NONE,
            segment: front.segment,
            uses: NONE,
            events: 0,
            state: State::Held,
            expandable: front.expandable,
        };
        let next = rest.next;
        let rest = self.blocks.insert(rest);
        if next != NONE {
            self.blocks[next].prev = rest;
        }
        let front = &mut self.blocks[block];
        front.size = size;
        front.next = rest;
        rest
    }

    /// Makes `block`, which is in no set, one with those of its two neighbours that are in `state`, and says which entry is
    /// left and how many neighbours it absorbed. What remains of them is `block`'s requested size.
    #[inline]
    fn merge(&mut self, mut block: u32, state: State) -> (u32, i64) {
        let mut merged = 0;
        let Block { prev, next, .. } = self.blocks[block];
        if next != NONE && self.blocks[next].state == state {
            self.take(next);
            self.absorb_next(block);
            merged += 1;
        }
        if prev != NONE && self.blocks[prev].state == state {
            self.take(prev);
            self.blocks[prev].requested = self.blocks[block].requested;
            self.absorb_next(prev);
            block = prev;
            merged += 1;
        }
        (block, merged)
    }

    /// Makes `block` one with the block after it; both are in no set.
    #[inline]
    fn absorb_next(&mut self, block: u32) {
        let next = self.blocks[block].next;
        let Block { size, next: after, .. } = self.blocks[next];
        let entry = &mut self.blocks[block];
        entry.size += size;
        entry.next = after;
        if after != NONE {
            self.blocks[after].prev = block;
        }
        self.blocks.remove(next);
    }

    /// Takes a free or unmapped block out of its set.
    #[inline]
    fn take(&mut self, block: u32) {
        if self.blocks[block].state == State::Unmapped {
            self.take_unmapped(block);
        } else {
            self.free.remove(block, &self.blocks);
            self.blocks[block].state = State::Held;
        }
    }

    fn new_segment(&mut self, base: DevicePtr, bytes: u64, granule: u64) -> u32 {
        let segment =
            self.segments.insert(Segment { base: base.0, bytes, first: NONE, granule, prev: NONE, next: self.newest });
        let block = self.blocks.insert(Block {
            addr: base.0,
            size: bytes,
            requested: 0,
            born: 0,
            prev: NONE,
            next: NONE,
            chain: NONE,
            segment,
            uses: NONE,
            events: 0,
            state: State::Held,
            expandable: granule != 0,
        });
        self.segments[segment].first = block;
        if self.newest != NONE {
            self.segments[self.newest].prev = segment;
        }
        self.newest = segment;
        block
    }

    fn unlink(&mut self, segment: u32) {
        let Segment { prev, next, .. } = self.segments[segment];
        if prev == NONE {
            self.newest = next;
        } else {
            self.segments[prev].next = next;
        }
        if next != NONE {
            self.segments[next].prev = prev;
        }
        self.segments.remove(segment);
    }

    fn address(blocks: &Blocks<S>) -> impl Fn(u32) -> Key {
        |block| Key::from(blocks[block].addr)
    }
}
