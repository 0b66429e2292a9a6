//! One heap: the blocks of one (stream, pool), their free index, and every decision about them.
//!
//! A heap is single-threaded, knows one stream and never calls the device. Its owner wraps a lock around it, and obtains
//! and releases what it asks for. A split hands out a new entry and leaves the rest in place; a merge leaves the neighbour in
//! place that was free already. So the commonest pair, splitting a block and merging it again, seldom touches the index.

use crate::config::rounding::PoolKind;
use crate::heap::block::{Block, Blocks, Segment, State, Use};
use crate::heap::free_index::FreeIndex;
use crate::heap::split_rules::Rules;
use crate::heap::suballoc::AnySubAllocator;
use crate::stats::{HeapCounters, Stat};
use crate::tables::hash_index::HashIndex;
use crate::tables::radix_tree::{Key, Link, RadixTree};
use crate::tables::slot_table::{NONE, SlotTable, Vacant};
use crate::tables::{CapacityError, Lazy, Storage};
use crate::trace::ring::Buffer;
use crate::units::{DevicePtr, NO_STREAM, StreamId};

pub(crate) mod bins;
pub(crate) mod block;
pub(crate) mod check;
pub(crate) mod expandable;
pub(crate) mod free_index;
#[cfg(feature = "alloc")]
pub(crate) mod planned_segment;
pub(crate) mod split_rules;
#[cfg_attr(not(feature = "alloc"), allow(dead_code, reason = "no heap has a sub-allocator then"))]
pub(crate) mod suballoc;
mod suballocated;

/// What an operation on a heap leads to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome<T> {
    pub value: T,
    /// A statistic rose above its threshold: the peaks must be settled once the lock is released.
    pub peaks_stale: bool,
}

/// What giving up an address comes to.
pub(crate) enum FreeOutcome {
    /// The program holds no block that begins there.
    NotHeld,
    /// It does, this one, but asked for another size. Nothing has changed.
    WrongSize(u32),
    /// The block was used by its own stream alone.
    Unused(u32),
    /// Other streams use it.
    Used(u32),
}

/// A block that has become free, one with its free neighbours.
struct Coalesced {
    /// The entry that is left.
    block: u32,
    /// Its segment holds other blocks.
    is_split: bool,
    /// Length in bytes of the block that has become free.
    size: u64,
    /// How many neighbours were absorbed.
    absorbed: u64,
    /// Their bytes.
    more: u64,
}

impl Coalesced {
    /// Counts it: a free block counts as long as its segment holds others. Its neighbours did, and do no more. True if the peaks
    /// must be settled.
    /// `ended`: what to answer if the whole segment is free now.
    #[inline(always)]
    fn count(&self, ended: bool, tally: &HeapCounters) -> bool {
        if !self.is_split {
            tally.down(Stat::InactiveSplit, self.absorbed);
            tally.down(Stat::InactiveSplitBytes, self.more);
            return ended;
        }
        let peaks_stale = tally.up(Stat::InactiveSplitBytes, self.size);
        match self.absorbed {
            0 => peaks_stale | tally.up(Stat::InactiveSplit, 1),
            1 => peaks_stale,
            _ => {
                tally.down(Stat::InactiveSplit, 1);
                peaks_stale
            }
        }
    }
}

/// The sets that the blocks of a heap are in, and its events: everything large that a heap without a segment does without.
pub(crate) struct Sets<S: Storage> {
    /// Holds exactly the blocks that are [`State::Free`].
    pub free: FreeIndex<S>,
    /// Other streams' uses of blocks.
    pub uses: SlotTable<Use, S>,
    /// Root of the set of blocks that are [`State::Unmapped`], by address.
    unmapped: Link,
    by_address: RadixTree<S>,
    /// The latest events of the heap, while events are recorded.
    pub trace: Buffer<S>,
}

impl<S: Storage> Default for Sets<S> {
    fn default() -> Self {
        Self {
            free: FreeIndex::default(),
            uses: SlotTable::default(),
            unmapped: Link::EMPTY,
            by_address: RadixTree::default(),
            trace: Buffer::default(),
        }
    }
}

pub(crate) struct Heap<S: Storage> {
    pub stream: StreamId,
    /// The stream whose requests the fast path serves from here: `stream` in the default pool unless it has ended, else one that
    /// no request has.
    pub serves: StreamId,
    /// Number of the pool among the device's pools.
    pub pool: u32,
    pub rules: Rules,
    /// The pool is a private one in use: what is free in it stays, since a captured graph may write to it.
    pub kept: bool,
    /// The stream was reported as ended: a segment that becomes wholly free is to be released.
    pub ended: bool,
    /// What cuts the segments, where free space is not kept as blocks. Some ⟹ the entries that are allocated or pending, be they vacant
    /// or not, are exactly the pieces that are taken.
    pub suballocator: Option<AnySubAllocator<S>>,
    /// The pool's search count, as far as ages are kept.
    pub clock: u64,
    /// The size of the next segment in bytes, where segments grow.
    pub region: u64,
    pub blocks: Blocks<S>,
    /// Holds exactly the blocks that are [`State::Allocated`].
    pub held: HashIndex<S>,
    /// All segments, ordinary and expandable. Beside the sets and not among them: sub-allocated heaps need no set on their fast
    /// path, and looking the sets up costs them 5 instructions of a pair.
    pub segments: SlotTable<Segment, S>,
    /// Head of the list of segments.
    pub newest: u32,
    /// Made ⟸ there is room for a block. A heap without memory does not have the 33 KiB they take.
    pub sets: S::Lazy<Sets<S>>,
}

/// The tables of a heap that has memory. One look finds them all: looked up again for each use they cost 13 instructions more
/// a pair of malloc and free.
struct Parts<'a, S: Storage> {
    blocks: &'a mut Blocks<S>,
    held: &'a mut HashIndex<S>,
    segments: &'a mut SlotTable<Segment, S>,
    sets: &'a mut Sets<S>,
    rules: &'a Rules,
    clock: &'a u64,
}

impl<S: Storage> Parts<'_, S> {
    /// Hands out the front of a free block of at least `size` bytes; the rest stays free if the rules split it off. Room was
    /// made.
    #[inline(always)]
    fn allocate_from(&mut self, block: u32, size: u64, requested: u64, tally: &HeapCounters) -> Outcome<DevicePtr> {
        let (blocks, vacancies) = self.blocks.parts();
        let Block { size: whole, addr, prev, next, segment, expandable, .. } = blocks[block as usize];
        let was_split = prev != NONE || next != NONE;
        let remaining = whole - size;
        let mut peaks_stale = false;
        let (given, given_bytes) = if self.rules.should_split(remaining, size) {
            if was_split && !expandable {
                tally.down(Stat::InactiveSplitBytes, size);
            } else if !expandable {
                peaks_stale |= tally.up(Stat::InactiveSplit, 1);
                peaks_stale |= tally.up(Stat::InactiveSplitBytes, remaining);
            }
            let front = vacancies.occupy(blocks);
            blocks[front as usize] = blocks[block as usize].front(block, size, requested, State::Allocated);
            if prev == NONE {
                self.segments[segment].first = front;
            } else {
                blocks[prev as usize].next = front;
            }
            let clock = *self.clock;
            self.sets.free.resize(block, remaining, blocks, |rest| {
                rest.addr += size;
                rest.prev = front;
                rest.freed_at = clock;
            });
            (front, size)
        } else {
            if was_split && !expandable {
                tally.down(Stat::InactiveSplit, 1);
                tally.down(Stat::InactiveSplitBytes, whole);
            }
            self.sets.free.remove(block, blocks);
            let entry = &mut blocks[block as usize];
            entry.state = State::Allocated;
            entry.requested = requested;
            (block, whole)
        };
        self.held.insert(given, blocks);
        peaks_stale |= tally.up(Stat::Allocation, 1);
        peaks_stale |= tally.up(Stat::AllocatedBytes, given_bytes);
        peaks_stale |= tally.up(Stat::RequestedBytes, requested);
        if self.rules.is_oversize(given_bytes) {
            peaks_stale |= tally.up(Stat::OversizeAllocations, 1);
        }
        Outcome { value: DevicePtr(addr), peaks_stale }
    }

    /// Puts a block that is in no set into the free index, one with its free neighbours. What remains of them is `block`'s
    /// requested size; the age begins anew.
    #[inline(always)]
    fn join_free(&mut self, block: u32) -> Coalesced {
        let clock = *self.clock;
        let (blocks, vacancies) = self.blocks.parts();
        let Block { addr, size, requested, prev, next, segment, .. } = blocks[block as usize];
        let prev_free = prev != NONE && blocks[prev as usize].is_free();
        let next_free = next != NONE && blocks[next as usize].is_free();
        let (mut left, mut before, mut more, mut after) = (block, prev, 0, next);
        if next_free {
            let Block { size, next, .. } = blocks[next as usize];
            (more, after) = (size, next);
        }
        if prev_free {
            if next_free {
                self.sets.free.remove(next, blocks);
            }
            if after != NONE {
                blocks[after as usize].prev = prev;
            }
            (left, before) = (prev, blocks[prev as usize].prev);
            more += blocks[prev as usize].size;
            self.sets.free.resize(prev, more + size, blocks, |entry| {
                entry.requested = requested;
                entry.next = after;
                entry.freed_at = clock;
            });
            vacancies.vacate(block, blocks);
            if next_free {
                vacancies.vacate(next, blocks);
            }
        } else if next_free {
            if prev == NONE {
                self.segments[segment].first = next;
            } else {
                blocks[prev as usize].next = next;
            }
            left = next;
            self.sets.free.resize(next, size + more, blocks, |entry| {
                entry.addr = addr;
                entry.requested = requested;
                entry.prev = prev;
                entry.freed_at = clock;
            });
            vacancies.vacate(block, blocks);
        } else {
            let entry = &mut blocks[block as usize];
            entry.state = State::Free;
            entry.freed_at = clock;
            self.sets.free.insert(block, blocks);
        }
        let absorbed = u64::from(prev_free) + u64::from(next_free);
        Coalesced { block: left, is_split: before != NONE || after != NONE, size, absorbed, more }
    }
}

impl<S: Storage> Heap<S> {
    /// A heap that belongs to no stream yet.
    pub(crate) fn vacant(kind: PoolKind) -> Self {
        Self {
            stream: NO_STREAM,
            serves: NO_STREAM,
            pool: 0,
            rules: Rules::unset(kind),
            kept: false,
            ended: false,
            suballocator: None,
            clock: 0,
            region: 0,
            blocks: SlotTable::default(),
            held: HashIndex::default(),
            segments: SlotTable::default(),
            newest: NONE,
            sets: S::Lazy::default(),
        }
    }

    /// Gives the heap, which is empty, to a stream and a pool.
    pub(crate) fn begin(
        &mut self,
        stream: StreamId,
        pool: u32,
        rules: Rules,
        suballocator: Option<AnySubAllocator<S>>,
    ) {
        (self.stream, self.pool, self.rules, self.suballocator) = (stream, pool, rules, suballocator);
        self.set_ended(false);
    }

    /// Says whether the stream has ended. The fast path then passes the heap by, so that a request on the stream shows that it
    /// has not.
    pub(crate) fn set_ended(&mut self, ended: bool) {
        self.ended = ended;
        self.serves = if self.pool == 0 && !ended { self.stream } else { NO_STREAM };
    }

    /// Gives the memory of an empty heap's tables back to the host, where tables grow.
    pub(crate) fn drop_tables(&mut self) {
        self.blocks.drop_entries();
        self.held.drop_buckets();
        self.segments.drop_entries();
        self.sets.drop_value();
    }

    /// Makes sure that no operation on one block can run out of entries: it adds at most two blocks.
    #[inline(always)]
    pub(crate) fn make_room(&mut self) -> Result<(), CapacityError> {
        if self.blocks.has_room(2) { Ok(()) } else { self.grow() }
    }

    /// Makes room in every table that grows with the blocks: an index needs fewer nodes than there are blocks.
    #[cold]
    fn grow(&mut self) -> Result<(), CapacityError> {
        let sets = self.sets.get_or_make();
        let room = self.blocks.make_room(2)
            && sets.free.make_room_for(self.blocks.capacity())
            && self.held.make_room(self.blocks.entries_mut());
        if room { Ok(()) } else { Err(CapacityError) }
    }

    /// Serves a request from the cache: `size` is what `requested` is rounded to. `None` if no free block may serve it.
    #[inline(always)]
    pub(crate) fn malloc(
        &mut self,
        size: u64,
        requested: u64,
        tally: &HeapCounters,
    ) -> Result<Option<Outcome<DevicePtr>>, CapacityError> {
        self.make_room()?;
        if self.suballocator.is_some() {
            return self.malloc_suballocated(size, requested, tally);
        }
        let mut parts = self.parts();
        let Some(block) = parts.sets.free.best_fit(size, parts.blocks.entries()) else { return Ok(None) };
        let Block { expandable, size: whole, .. } = parts.blocks[block];
        if expandable {
            return Ok(self.find(size).map(|block| self.allocate_from(block, size, requested, tally)));
        }
        if parts.rules.refuse(whole, size) {
            return Ok(None);
        }
        Ok(Some(parts.allocate_from(block, size, requested, tally)))
    }

    /// The tables of a heap that has room for a block.
    #[inline(always)]
    fn parts(&mut self) -> Parts<'_, S> {
        Parts {
            blocks: &mut self.blocks,
            held: &mut self.held,
            segments: &mut self.segments,
            sets: &mut self.sets,
            rules: &self.rules,
            clock: &self.clock,
        }
    }

    /// Where a request of `size` would be served from, if it could be. Nothing is taken.
    pub(crate) fn peek(&mut self, size: u64) -> Option<DevicePtr> {
        if let Some(suballocator) = &self.suballocator {
            return suballocator.peek(size).map(DevicePtr);
        }
        if self.is_empty() {
            return None;
        }
        self.find(size).map(|block| DevicePtr(self.blocks[block].addr))
    }

    /// Hands out the front of a segment that was just added as `block` for a request of `size`. Room was made.
    pub(crate) fn allocate_from_new(
        &mut self,
        block: u32,
        size: u64,
        requested: u64,
        tally: &HeapCounters,
    ) -> Option<Outcome<DevicePtr>> {
        if self.suballocator.is_some() {
            return self.malloc_suballocated(size, requested, tally).ok()?;
        }
        Some(self.allocate_from(block, size, requested, tally))
    }

    /// Makes sure that a segment of `bytes` for a request of `size` can be added, and a block of it handed out.
    pub(crate) fn make_room_for_segment(&mut self, bytes: u64, size: u64) -> Result<(), CapacityError> {
        self.make_room()?;
        let suballocator = self.suballocator.as_mut().is_none_or(|suballocator| suballocator.make_room(bytes, size));
        if suballocator && self.segments.make_room(1) { Ok(()) } else { Err(CapacityError) }
    }

    /// The free block that serves a request of `size`, if one may.
    fn find(&mut self, size: u64) -> Option<u32> {
        let blocks = self.blocks.entries();
        let block = self.sets.free.best_fit(size, blocks)?;
        let Block { expandable, size: whole, .. } = blocks[block as usize];
        let (block, whole) = if expandable { self.find_among_expandable(block)? } else { (block, whole) };
        (!self.rules.refuse(whole, size)).then_some(block)
    }

    /// Hands out the front of a free block of at least `size` bytes; the rest stays free if the rules split it off. Room was
    /// made.
    #[inline(never)]
    pub(crate) fn allocate_from(
        &mut self,
        block: u32,
        size: u64,
        requested: u64,
        tally: &HeapCounters,
    ) -> Outcome<DevicePtr> {
        self.parts().allocate_from(block, size, requested, tally)
    }

    /// The block that the program holds at exactly `ptr`.
    pub(crate) fn lookup(&self, ptr: DevicePtr) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        self.held.find(ptr.0, self.blocks.entries())
    }

    /// The program gives up the block at exactly `ptr`, if it holds one there that (if `requested` is given) it asked for with so
    /// many bytes. What becomes of it is the caller's to say at once: [`finish_free`](Self::finish_free) or [`pend`](Self::pend).
    #[inline(always)]
    pub(crate) fn detach(&mut self, ptr: DevicePtr, requested: Option<u64>, tally: &HeapCounters) -> FreeOutcome {
        let Some(block) = self.held.take(ptr.0, self.blocks.entries_mut()) else { return FreeOutcome::NotHeld };
        let Block { size, requested: actual, uses, .. } = self.blocks[block];
        if requested.is_some_and(|requested| requested != actual) {
            self.held.insert(block, self.blocks.entries_mut());
            return FreeOutcome::WrongSize(block);
        }
        tally.down(Stat::Allocation, 1);
        tally.down(Stat::AllocatedBytes, size);
        if self.rules.is_oversize(size) {
            tally.down(Stat::OversizeAllocations, 1);
        }
        if uses == NONE { FreeOutcome::Unused(block) } else { FreeOutcome::Used(block) }
    }

    /// A block that was given up may still be used by others: it is pending until [`unpend`](Self::unpend).
    pub(crate) fn pend(&mut self, block: u32, tally: &HeapCounters) {
        let entry = &mut self.blocks[block];
        entry.state = State::Pending;
        tally.pend(entry.size);
    }

    /// Nothing uses a pending block any longer: it becomes free. True if the peaks must be settled.
    pub(crate) fn unpend(&mut self, block: u32, tally: &HeapCounters) -> bool {
        tally.unpend(self.blocks[block].size);
        self.finish_free(block, tally)
    }

    /// The program did not give a pending block up after all.
    pub(crate) fn undo_free(&mut self, block: u32, tally: &HeapCounters) {
        self.held.insert(block, self.blocks.entries_mut());
        let entry = &mut self.blocks[block];
        entry.state = State::Allocated;
        tally.unpend(entry.size);
        tally.undo_down(Stat::Allocation, 1);
        tally.undo_down(Stat::AllocatedBytes, entry.size);
        if self.rules.is_oversize(entry.size) {
            tally.undo_down(Stat::OversizeAllocations, 1);
        }
    }

    /// Notes that another stream uses `block`; its own stream, and one that is noted already, change nothing.
    pub(crate) fn add_use(&mut self, block: u32, stream: StreamId, captured: bool) -> Result<(), CapacityError> {
        let mut at = self.blocks[block].uses;
        while at != NONE {
            let entry = &mut self.sets.uses[at];
            if entry.stream == stream {
                entry.captured &= captured;
                return Ok(());
            }
            at = entry.next;
        }
        if stream == self.stream {
            return Ok(());
        }
        if !self.sets.uses.make_room(1) {
            return Err(CapacityError);
        }
        let next = self.blocks[block].uses;
        self.blocks[block].uses = self.sets.uses.insert(Use { stream, captured, next });
        Ok(())
    }

    /// Forgets which other streams use `block`: their events are recorded.
    pub(crate) fn drop_uses(&mut self, block: u32) {
        let mut at = core::mem::replace(&mut self.blocks[block].uses, NONE);
        while at != NONE {
            let next = self.sets.uses[at].next;
            self.sets.uses.remove(at);
            at = next;
        }
    }

    /// A block that is in no set, and that nothing uses any longer, becomes free, one with its free neighbours. True if the peaks must
    /// be settled.
    #[inline(always)]
    pub(crate) fn finish_free(&mut self, block: u32, tally: &HeapCounters) -> bool {
        if self.suballocator.is_some() {
            return self.finish_free_suballocated(block, tally);
        }
        let Block { requested, expandable, .. } = self.blocks[block];
        tally.down(Stat::RequestedBytes, requested);
        let joined = self.parts().join_free(block);
        if expandable { self.ended } else { joined.count(self.ended, tally) }
    }

    /// Puts a block that is in no set into the free index, one with its free neighbours. What remains of them is `block`'s
    /// requested size; the age begins anew.
    fn join_free(&mut self, block: u32) -> Coalesced {
        self.parts().join_free(block)
    }

    /// Adds an ordinary segment that was obtained from the device for a request of `size`: one free block. Room was made.
    pub(crate) fn add_segment(&mut self, base: DevicePtr, bytes: u64, size: u64, tally: &HeapCounters) -> Outcome<u32> {
        let block = self.new_segment(base, bytes, 0);
        if let Some(suballocator) = &mut self.suballocator {
            suballocator.add_segment(self.blocks[block].segment, base.0, bytes, size);
        }
        self.insert_free(block);
        let mut peaks_stale = tally.up(Stat::Segment, 1) | tally.up(Stat::ReservedBytes, bytes);
        if self.rules.is_oversize(bytes) {
            peaks_stale |= tally.up(Stat::OversizeSegments, 1);
        }
        Outcome { value: block, peaks_stale }
    }

    /// Whether `block` is a whole ordinary segment, free, of which no piece is taken.
    pub(crate) fn is_releasable(&self, block: u32) -> bool {
        let block = &self.blocks[block];
        block.is_free() && !block.expandable && !block.is_split() && !self.segments[block.segment].live
    }

    /// Bytes of the largest block that is free, or segment if a suballocator cuts them and nothing is taken.
    pub(crate) fn largest_free(&self) -> u64 {
        if self.is_empty() {
            return 0;
        }
        let blocks = self.blocks.entries();
        let mut descending =
            core::iter::successors(self.sets.free.last(blocks), |&block| self.sets.free.previous(block, blocks));
        let largest = descending.find(|&block| !self.segments[self.blocks[block].segment].live);
        largest.map_or(0, |block| self.blocks[block].size)
    }

    /// Forgets a releasable segment, and says what to release.
    pub(crate) fn remove_segment(&mut self, block: u32, tally: &HeapCounters) -> (DevicePtr, u64) {
        self.sets.free.remove(block, self.blocks.entries_mut());
        let Block { addr, size, segment, .. } = self.blocks[block];
        self.blocks.remove(block);
        if let Some(suballocator) = &mut self.suballocator {
            suballocator.remove_segment(segment);
        }
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
                if self.suballocator.is_some() {
                    return self.sub_block_containing(ptr);
                }
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

    /// Puts a block that is in no set, and has no free neighbour, into the free index.
    pub(crate) fn insert_free(&mut self, block: u32) {
        let entry = &mut self.blocks[block];
        entry.state = State::Free;
        entry.freed_at = self.clock;
        self.sets.free.insert(block, self.blocks.entries_mut());
    }

    /// Cuts the first `size` bytes off `block`, which is in no set. They become a block of their own, in no set either.
    fn cut(&mut self, block: u32, size: u64) -> u32 {
        let Block { prev, segment, requested, state, .. } = self.blocks[block];
        let front = self.blocks[block].front(block, size, requested, state);
        let front = self.blocks.insert(front);
        if prev == NONE {
            self.segments[segment].first = front;
        } else {
            self.blocks[prev].next = front;
        }
        let rest = &mut self.blocks[block];
        rest.addr += size;
        rest.resize(rest.size - size);
        rest.prev = front;
        front
    }

    /// Makes `block` one with the block after it; both are in no set.
    fn absorb_next(&mut self, block: u32) {
        let next = self.blocks[block].next;
        let Block { size, next: after, .. } = self.blocks[next];
        let entry = &mut self.blocks[block];
        entry.resize(entry.size + size);
        entry.next = after;
        if after != NONE {
            self.blocks[after].prev = block;
        }
        self.blocks.remove(next);
    }

    fn new_segment(&mut self, base: DevicePtr, bytes: u64, granule: u64) -> u32 {
        let segment = self.segments.insert(Segment { base: base.0, bytes, granule, ..Segment::vacant(self.newest) });
        let block = self.blocks.insert(Block {
            addr: base.0,
            size: bytes,
            requested: 0,
            freed_at: 0,
            prev: NONE,
            next: NONE,
            chain: NONE,
            before: NONE,
            segment,
            uses: NONE,
            events: 0,
            bin: bins::bin(bytes),
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
        |block| Key { major: 0, minor: blocks[block].addr }
    }
}
