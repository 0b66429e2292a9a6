//! A heap: the blocks of one stream in one pool, their free index, and every decision about where a
//! block is placed.
//!
//! ```text
//! malloc   make_room ─▶ best fit in `sets.free` ─▶ split or whole block ─▶ `live` ─▶ counters
//! free     detach from `live` ─▶ finish_free: merge with free neighbours ─▶ `sets.free`
//!                            └▶ pend: other streams use the block ─▶ unpend ─▶ finish_free
//! ```
//!
//! A heap is single-threaded and never calls the device. The caller wraps a lock around it, and
//! allocates and releases segments. Heaps of the caching policy tile each segment with blocks. In a
//! heap with a sub-allocator, only allocated and pending sub-blocks have entries (see
//! `suballocated`).

use crate::config::rounding::PoolKind;
use crate::heap::block::{Backing, BlockEntry, Blocks, HeapSegments, Segment, State};
use crate::heap::epochs::Epochs;
use crate::heap::page_loan::PageLoan;
use crate::heap::resting::Rest;
use crate::heap::sets::Sets;
use crate::heap::split_merge::Parts;
use crate::heap::split_rules::{Compacting, PageRules, Rules};
use crate::heap::suballocator::AnySubAllocator;
use crate::stats::{HeapCounters, Stat};
use crate::sync::impl_empty;
use crate::tables::hash_index::HashIndex;
use crate::tables::slot_table::{NONE, Vacant};
use crate::tables::{CapacityError, Lazy, Storage};
use crate::units::{DevicePtr, NO_STREAM, StreamId};

pub(crate) mod addresses;
pub(crate) mod age;
pub(crate) mod bins;
pub(crate) mod block;
pub(crate) mod check;
mod device_first;
pub(crate) mod epochs;
pub(crate) mod free_index;
pub(crate) mod growth;
pub(crate) mod home_pages;
pub(crate) mod idle;
mod lend;
pub(crate) mod moves;
pub(crate) mod page_loan;
#[cfg(feature = "alloc")]
pub(crate) mod planned_segment;
mod resting;
#[cfg(feature = "alloc")]
pub(crate) mod restore;
pub(crate) mod sets;
mod split_merge;
pub(crate) mod split_rules;
mod staying;
mod suballocated;
#[cfg_attr(not(feature = "alloc"), path = "no_suballocator.rs")]
pub(crate) mod suballocator;
#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests;
pub(crate) mod uses;

/// The result of an operation that changes counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome<T> {
    pub value: T,
    /// Whether a counter rose above its threshold. The caller then reconciles the peaks, after it
    /// releases the heap's lock.
    pub peaks_stale: bool,
}

/// The result of [`Heap::detach`]: whether a block is allocated at the address, and what the caller
/// has to do next.
pub(crate) enum FreeOutcome {
    /// No allocated block starts at the address.
    NotLive,
    /// The block at the address was requested with another size. Nothing has changed.
    WrongSize(u32),
    /// Only the heap's own stream used the block, so the caller may finish the free at once.
    Unused(u32),
    /// Other streams use the block, so the caller must wait for their work.
    Used(u32),
}

/// For whom a heap keeps its free memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keeps {
    /// For nobody: it may be given back to the device.
    Nothing,
    /// For the users of a private pool. It is given back only by calls that name the pool, and for
    /// requests of the pool.
    ForUsers,
    /// For captured graphs, which write to it at every replay, as long as the pool has users.
    /// Nothing is given back, whoever asks.
    ForGraphs,
}

/// The memory of one stream in one pool.
#[derive(Clone)]
#[allow(clippy::struct_excessive_bools, reason = "four conditions that do not depend on each other")]
pub(crate) struct Heap<S: Storage> {
    /// The stream of the heap; `NO_STREAM` while the heap is vacant.
    pub stream: StreamId,
    /// The stream for which the fast path uses this heap. In the default pool it is `stream`,
    /// unless the stream has ended or the heap is asleep. Otherwise it is `NO_STREAM`, which no
    /// request names.
    pub serves: StreamId,
    /// The stream for which the straight path uses this heap: `serves` while the heap is
    /// [plain](Self::plain), and otherwise `NO_STREAM`.
    pub straight: StreamId,
    /// Whether the heap is *plain*. Set ⟹ the heap has no sub-allocator, has
    /// [plain rules](Rules::are_plain), and has only ordinary segments.
    ///
    /// The *straight* path, for callers in other languages, serves from plain heaps only, and
    /// leaves out the checks that this bit makes unnecessary. The bit, read under the heap's lock,
    /// is what decides; the flag `RULES` only saves looking at the heap.
    pub plain: bool,
    /// Whether the straight path frees to this heap: while it is plain, and [tells](Self::tells)
    /// nothing.
    pub straight_frees: bool,
    /// The number of the pool among the device's pools.
    pub pool: u32,
    /// The placement rules. They are copied from the configuration when the heap is assigned to a
    /// stream, and set by [`set_rules`](Self::set_rules).
    pub rules: Rules,
    /// If the smallest free block that fits has at least this many bytes, it is not simply taken:
    /// the rules may refuse it, or another block is chosen because it is on pages that
    /// [fill gaps](PageRules::Stay).
    choose_from: u64,
    /// For whom the heap keeps its free memory.
    pub keeps: Keeps,
    /// Whether the pool has a tag. If it does, a request for several granules is mapped in fewer
    /// and longer pages, because memory is parked and woken page by page. Otherwise, granules are
    /// given back to the device one by one.
    pub parkable: bool,
    /// Whether a page is filled with zeroes before it leaves the heap (`clear` of the pool's tag).
    pub clears: bool,
    /// Whether the heap is parked, or about to be parked, or lends its pages. Then no request is
    /// served from its memory, and its pages remain as they are.
    pub asleep: bool,
    /// The pages that the heap lends. Not none ⟹ `asleep`.
    pub loan: PageLoan,
    /// Whether the end of a free may read and write the block. Not `No` ⟹ `asleep`.
    pub rest: Rest,
    /// Whether the stream was reported as ended. Then a segment is released once it is completely
    /// free.
    pub ended: bool,
    /// Whether every lease of the heap equals its current value, so that a sum over all heaps need
    /// not read the counters. It changes under the lock of the heap, in
    /// [`Heaps::mark_dirty`](crate::arena::heaps::Heaps::mark_dirty).
    pub clean: bool,
    /// Whether the peaks must be reconciled after the last live block of a segment is freed. Set ⟺
    /// `ended` or `clean` is set.
    tells: bool,
    /// The sub-allocator of the heap's segments; `None` for the caching policy. If there is one, an
    /// entry of `blocks` is in the state `Allocated` or `Pending` iff it is a live sub-block. For
    /// this reason, vacant entries are kept in another state.
    pub suballocator: Option<AnySubAllocator<S>>,
    /// The pool's search count when the heap was last searched, or when its last epoch started. The
    /// age of a free block is a difference of this count.
    pub clock: u64,
    /// The size of the next segment in bytes, under policies with growing segments.
    pub region: u64,
    /// All blocks. They are linked to their neighbours in the order of addresses.
    pub blocks: Blocks<S>,
    /// Finds allocated blocks by address. Contains exactly the blocks that are
    /// [`State::Allocated`].
    pub live: HashIndex<S>,
    /// All segments, ordinary and expandable. This is a field of the heap, not of `sets`, so that
    /// the fast path of sub-allocated heaps does not need the sets. Looking them up would cost 5
    /// instructions per malloc/free pair of a sub-allocated heap.
    pub segments: HeapSegments<S>,
    /// The head of the list of segments; `NONE` iff the heap has no segment.
    pub newest: u32,
    /// The tables that only a heap with memory needs. The first [`Heap::make_room`] allocates them,
    /// because they take 33 KiB. They are always present while the heap has a block.
    pub sets: S::Lazy<Sets<S>>,
    /// The highest end of the blocks of expandable segments that were allocated since the last
    /// [look](crate::heap::idle). It is only a bound, because the blocks may have been freed since
    /// then.
    pub high: u64,
    /// The epochs that are not known to have ended.
    pub epochs: Epochs,
}

impl_empty! {
    [S: Storage] Heap<S> {
        stream: NO_STREAM,
        serves: NO_STREAM,
        straight: NO_STREAM,
        plain,
        straight_frees,
        pool,
        rules: Rules::unset(PoolKind::Small),
        choose_from: u64::MAX,
        keeps: Keeps::Nothing,
        parkable,
        clears,
        asleep,
        loan,
        rest: Rest::No,
        ended,
        clean: true,
        tells: true,
        suballocator,
        clock,
        region,
        blocks,
        live,
        segments,
        newest: NONE,
        sets,
        high,
        epochs,
    }
}

impl<S: Storage> Heap<S> {
    /// Assigns an empty heap to a stream and a pool.
    pub(crate) fn begin(
        &mut self,
        stream: StreamId,
        pool: u32,
        rules: Rules,
        suballocator: Option<AnySubAllocator<S>>,
    ) {
        debug_assert!(self.is_empty(), "a heap changes hands without memory");
        (self.stream, self.pool, self.rules, self.suballocator) = (stream, pool, rules, suballocator);
        if self.sets.is_made() {
            // The stamps of another stream or pool mean nothing here.
            (self.sets.quiet, self.sets.mark) = (0, 0);
        }
        self.parkable = false;
        self.mark_paths();
        self.mark(false, false);
    }

    /// Marks the stream as ended or running, and the heap as parked or awake. The fast path skips a
    /// heap if its stream has ended or if it is parked. The slow path then marks an ended stream as
    /// in use again, and refuses a request for parked memory.
    pub(crate) fn mark(&mut self, ended: bool, asleep: bool) {
        (self.ended, self.asleep) = (ended, asleep);
        self.rest = if asleep { self.rest } else { Rest::No };
        self.loan = if asleep { self.loan } else { PageLoan::default() };
        self.serves = if self.pool == 0 && !ended && !asleep { self.stream } else { NO_STREAM };
        self.mark_straight();
    }

    /// Sets the placement rules.
    pub(crate) fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
        self.mark_paths();
    }

    /// Sets [`plain`](Self::plain) and [`choose_from`](Self::choose_from), after anything that they
    /// depend on has changed.
    fn mark_paths(&mut self) {
        self.plain = self.is_plain();
        self.mark_straight();
        let fills_gaps = self.segments().any(|(_, segment)| self.fills_gaps(segment.backing));
        let has_both = !self.is_empty() && self.sets.pages.are_of_both_kinds();
        self.choose_from = if fills_gaps || has_both { 0 } else { self.rules.refuse_from };
    }

    /// Sets [`tells`](Self::tells) and what the straight path looks at, after anything that they
    /// depend on has changed.
    fn mark_straight(&mut self) {
        self.tells = self.clean || self.ended;
        self.straight = if self.plain { self.serves } else { NO_STREAM };
        self.straight_frees = self.plain && !self.tells;
    }

    /// Returns whether blocks with this `backing` are chosen by how they can
    /// [grow in place](PageRules::Stay).
    pub(crate) fn fills_gaps(&self, backing: Backing) -> bool {
        backing == Backing::Pages && self.rules.pages == PageRules::Stay
    }

    /// Returns whether the straight path may serve from the heap in its current state.
    fn is_plain(&self) -> bool {
        let is_ordinary = |(_, segment): (u32, &Segment)| segment.backing == Backing::Ordinary;
        self.suballocator.is_none() && self.rules.are_plain() && self.segments().all(is_ordinary)
    }

    /// Sets whether every lease of the heap equals its current value.
    pub(crate) fn set_clean(&mut self, clean: bool) {
        self.clean = clean;
        self.mark_straight();
    }

    /// Gives the memory of an empty heap's tables back to the host, if the tables can grow.
    pub(crate) fn drop_tables(&mut self) {
        debug_assert!(self.is_empty(), "tables are dropped without entries");
        self.blocks.drop_entries();
        self.live.drop_buckets();
        self.segments.drop_entries();
        self.sets.drop_value();
    }

    /// Makes room for the blocks that an operation adds, which are at most two. After this, the
    /// operation cannot run out of entries halfway.
    #[inline(always)]
    pub(crate) fn make_room(&mut self) -> Result<(), CapacityError> {
        if self.blocks.has_room(2) { Ok(()) } else { self.grow() }
    }

    /// Grows every table that depends on the number of blocks. The tree of the free index never
    /// needs more nodes than there are blocks.
    #[cold]
    fn grow(&mut self) -> Result<(), CapacityError> {
        let sets = self.sets.get_or_make();
        let room = self.blocks.make_room(2)
            && sets.free.make_room_for(self.blocks.capacity())
            && self.live.make_room(self.blocks.entries_mut());
        if room { Ok(()) } else { Err(CapacityError) }
    }

    /// Allocates a cached block for a request. `size` is the rounded size and `requested` the
    /// original one, in bytes. Returns `None` if no free block may serve the request.
    #[inline(always)]
    pub(crate) fn malloc(
        &mut self,
        size: u64,
        requested: u64,
        counters: &HeapCounters,
    ) -> Result<Option<Outcome<DevicePtr>>, CapacityError> {
        self.make_room()?;
        if self.suballocator.is_some() {
            return self.malloc_suballocated(size, requested, counters);
        }
        let mut parts = self.parts();
        let Some(block) = parts.sets.free.best_fit(size, parts.blocks) else { return Ok(None) };
        // Blocks that the rules may refuse are rare, and so are heaps that choose among their
        // blocks. That search is a single call, so that its registers do not burden the fast path.
        if parts.blocks[block as usize].size >= *parts.choose_from {
            return Ok(self.malloc_found(size, requested, counters));
        }
        Ok(Some(parts.allocate_from(block, size, requested, counters)))
    }

    /// Allocates a cached block of a plain heap, as [`malloc`](Self::malloc) does. Returns `None`,
    /// and has changed nothing, if there is no free block for the request, or if a table has to
    /// grow first.
    #[inline(always)]
    pub(crate) fn malloc_plainly(
        &mut self,
        size: u64,
        requested: u64,
        counters: &HeapCounters,
    ) -> Option<Outcome<DevicePtr>> {
        debug_assert!(self.is_plain(), "the straight path serves from plain heaps");
        if !self.blocks.has_room(2) {
            return None;
        }
        let mut parts = self.parts();
        let block = parts.sets.free.best_fit(size, parts.blocks)?;
        let splits = parts.rules.should_split_plainly(parts.blocks[block as usize].size - size);
        Some(parts.take_front(block, size, requested, splits, Backing::Ordinary, counters))
    }

    /// Allocates the cached block that [`find`](Self::find) chooses for a request, like
    /// [`malloc`](Self::malloc). This handles expandable segments, and blocks that the rules may
    /// refuse.
    #[inline(never)]
    fn malloc_found(&mut self, size: u64, requested: u64, counters: &HeapCounters) -> Option<Outcome<DevicePtr>> {
        self.find(size).map(|block| self.allocate_from(block, size, requested, counters))
    }

    /// Borrows the tables of a heap that has room for a block. Each table is looked up once.
    #[inline(always)]
    fn parts(&mut self) -> Parts<'_, S> {
        let (blocks, vacancies) = self.blocks.parts();
        Parts {
            blocks,
            vacancies,
            live: &mut self.live,
            segments: &mut self.segments,
            sets: &mut self.sets,
            rules: &self.rules,
            choose_from: &self.choose_from,
            clock: &self.clock,
            tells: &self.tells,
        }
    }

    /// Returns the address at which a request of `size` bytes would be served from the cache now.
    /// Changes nothing.
    pub(crate) fn peek(&mut self, size: u64) -> Option<DevicePtr> {
        if let Some(suballocator) = &self.suballocator {
            return suballocator.peek(size).map(DevicePtr);
        }
        if self.is_empty() {
            return None;
        }
        self.find(size).map(|block| DevicePtr(self.blocks[block].addr))
    }

    /// Allocates `size` bytes from the segment that was just added as `block`. The caller has made
    /// room.
    pub(crate) fn allocate_from_new(
        &mut self,
        block: u32,
        size: u64,
        requested: u64,
        counters: &HeapCounters,
    ) -> Option<Outcome<DevicePtr>> {
        if self.suballocator.is_some() {
            return self.malloc_suballocated(size, requested, counters).ok()?;
        }
        Some(self.allocate_from(block, size, requested, counters))
    }

    /// Makes room for a segment of `bytes`, and for a block of `size` bytes in it.
    pub(crate) fn make_room_for_segment(&mut self, bytes: u64, size: u64) -> Result<(), CapacityError> {
        self.make_room()?;
        let suballocator = self.suballocator.as_mut().is_none_or(|suballocator| suballocator.make_room(bytes, size));
        if suballocator && self.segments.make_room(1) { Ok(()) } else { Err(CapacityError) }
    }

    /// Finds the free block for a request of `size` bytes.
    #[inline(never)]
    fn find(&mut self, size: u64) -> Option<u32> {
        let blocks = self.blocks.entries();
        let block = self.sets.free.best_fit(size, blocks)?;
        let on_device = self.first_on_device(block, size);
        if let Some(block) = on_device.filter(|&block| !self.rules.refuse(&self.blocks[block], size)) {
            return Some(block);
        }
        let backing = self.blocks[block].backing;
        if self.fills_gaps(backing) {
            let may_grow = self.rules.source.maps_pages();
            let (block, whole) = self.sets.free.best_in_place(block, &self.blocks, may_grow)?;
            return (!self.rules.refuse_oversize(whole, size)).then_some(block);
        }
        let mut block = block;
        while self.rules.refuse(&self.blocks[block], size) {
            // PyTorch only looks at the best fit. Under `compact`, a larger block may serve if its
            // segment is already cut.
            if self.rules.compact == Compacting::No {
                return None;
            }
            block = self.sets.free.next(block, self.blocks.entries())?;
        }
        Some(block)
    }

    /// Finds the smallest free block for a request of `size` bytes, even if a larger part of a
    /// whole segment is lost than `compact` allows.
    pub(crate) fn find_any(&mut self, size: u64) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let block = self.sets.free.best_fit(size, self.blocks.entries())?;
        (!self.rules.refuse_oversize(self.blocks[block].size, size)).then_some(block)
    }

    /// Allocates the first `size` bytes of the free block `block`. The rest remains free if the
    /// rules split the block. The caller has made room. Not inlined: slow paths share a single
    /// copy, and the fast path inlines [`Parts::allocate_from`] instead.
    #[inline(never)]
    pub(crate) fn allocate_from(
        &mut self,
        block: u32,
        size: u64,
        requested: u64,
        counters: &HeapCounters,
    ) -> Outcome<DevicePtr> {
        let BlockEntry { addr, size: whole, backing, .. } = self.blocks[block];
        let served = self.parts().allocate_from(block, size, requested, counters);
        if backing == Backing::Pages {
            // If the block is split, its entry is that of the rest, which remains free.
            let split = self.blocks[block].is_free();
            self.high = self.high.max(addr + if split { size } else { whole });
        }
        served
    }

    /// Finds the allocated block that starts at exactly `ptr`.
    pub(crate) fn lookup(&self, ptr: DevicePtr) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        self.live.find(ptr.0, self.blocks.entries())
    }

    /// Removes the allocated block that starts at exactly `ptr` from the set of allocated blocks.
    /// If `requested` is given and is not the block's requested size, nothing changes. The caller
    /// must pass a detached block to [`finish_free`](Self::finish_free) or [`pend`](Self::pend)
    /// before it releases the lock.
    #[inline(always)]
    pub(crate) fn detach(&mut self, ptr: DevicePtr, requested: Option<u64>, counters: &HeapCounters) -> FreeOutcome {
        let Some(block) = self.live.take(ptr.0, self.blocks.entries_mut()) else { return FreeOutcome::NotLive };
        let BlockEntry { size, requested: actual, uses, .. } = self.blocks[block];
        debug_assert!(self.blocks[block].state == State::Allocated, "`live` has allocated blocks only");
        if requested.is_some_and(|requested| requested != actual) {
            // Undo the removal. Checking before the removal would look up the address twice in the
            // common case.
            self.live.insert(block, self.blocks.entries_mut());
            return FreeOutcome::WrongSize(block);
        }
        counters.down(Stat::Allocation, 1);
        counters.down(Stat::AllocatedBytes, size);
        if self.rules.is_oversize(size) {
            counters.down(Stat::OversizeAllocations, 1);
        }
        if uses == NONE { FreeOutcome::Unused(block) } else { FreeOutcome::Used(block) }
    }

    /// Frees the allocated block of a plain heap that starts at exactly `ptr`. Returns whether the
    /// peaks must be reconciled, or `None`, and has changed nothing, if [`detach`](Self::detach)
    /// has more to do: another stream uses the block, its size is another one, it is not the first
    /// of its chain, or there is none. Calls `record` with the heap's sets and the requested size.
    #[inline(always)]
    pub(crate) fn free_plainly(
        &mut self,
        ptr: DevicePtr,
        requested: Option<u64>,
        counters: &HeapCounters,
        record: impl FnOnce(&mut Sets<S>, u64),
    ) -> Option<bool> {
        debug_assert!(self.is_plain() && !self.tells, "the straight path frees to plain heaps that tell nothing");
        let may_take =
            |block: &BlockEntry| block.uses == NONE && requested.is_none_or(|requested| requested == block.requested);
        // The heap may have lost its last segment since the page map was read.
        if !self.sets.is_made() {
            return None;
        }
        let mut parts = Parts { tells: &false, ..self.parts() };
        let block = parts.live.take_if(ptr.0, parts.blocks, may_take)?;
        let BlockEntry { size, requested, .. } = parts.blocks[block as usize];
        record(parts.sets, requested);
        counters.down(Stat::Allocation, 1);
        counters.down(Stat::AllocatedBytes, size);
        counters.down(Stat::RequestedBytes, requested);
        Some(parts.join_free(block, Some(counters)).1)
    }

    /// Marks a detached block as pending, because other streams may still use it, until
    /// [`unpend`](Self::unpend).
    pub(crate) fn pend(&mut self, block: u32, counters: &HeapCounters) {
        let entry = &mut self.blocks[block];
        debug_assert!(entry.state == State::Allocated, "a block is detached before it becomes pending");
        entry.state = State::Pending;
        counters.pend(entry.size);
    }

    /// Frees a pending block that no stream uses any more. Returns true if the peaks must be
    /// reconciled.
    pub(crate) fn unpend(&mut self, block: u32, counters: &HeapCounters) -> bool {
        debug_assert!(self.blocks[block].state == State::Pending, "only a pending block is finished late");
        counters.unpend(self.blocks[block].size);
        self.finish_free(block, counters)
    }

    /// Undoes the free of a pending block, so the program has the block again.
    pub(crate) fn undo_free(&mut self, block: u32, counters: &HeapCounters) {
        debug_assert!(self.blocks[block].state == State::Pending, "only a pending free is undone");
        self.live.insert(block, self.blocks.entries_mut());
        let entry = &mut self.blocks[block];
        entry.state = State::Allocated;
        counters.unpend(entry.size);
        counters.undo_down(Stat::Allocation, 1);
        counters.undo_down(Stat::AllocatedBytes, entry.size);
        if self.rules.is_oversize(entry.size) {
            counters.undo_down(Stat::OversizeAllocations, 1);
        }
    }

    /// Frees a detached block that no stream uses any more, and merges it with its free neighbours.
    /// Returns true if the peaks must be reconciled, which they always must if the heap was clean,
    /// and if a segment of an ended stream became completely free.
    #[inline(always)]
    pub(crate) fn finish_free(&mut self, block: u32, counters: &HeapCounters) -> bool {
        if self.suballocator.is_some() {
            return self.finish_free_suballocated(block, counters);
        }
        let BlockEntry { requested, backing, .. } = self.blocks[block];
        counters.down(Stat::RequestedBytes, requested);
        // Only blocks of ordinary segments count as inactive split blocks.
        let counted = (backing == Backing::Ordinary).then_some(counters);
        self.parts().join_free(block, counted).1
    }

    /// Adds a detached block to the free index, merged with its free neighbours, and returns the
    /// merged block. Not inlined, because its callers are off the fast path.
    fn join_free(&mut self, block: u32) -> u32 {
        self.parts().join_free(block, None).0
    }

    /// Adds an ordinary segment, which was allocated from the device for a request of `size` bytes,
    /// and returns its single free block. The caller has made room.
    pub(crate) fn add_segment(
        &mut self,
        base: DevicePtr,
        bytes: u64,
        size: u64,
        counters: &HeapCounters,
    ) -> Outcome<u32> {
        let block = self.new_segment(base, bytes, 0, Backing::Ordinary);
        if let Some(suballocator) = &mut self.suballocator {
            suballocator.add_segment(self.blocks[block].segment, base.0, bytes, size);
        }
        self.sets.insert_free(block, self.clock, self.blocks.entries_mut());
        let mut peaks_stale = counters.up(Stat::Segment, 1) | counters.up(Stat::ReservedBytes, bytes);
        if self.rules.is_oversize(bytes) {
            peaks_stale |= counters.up(Stat::OversizeSegments, 1);
        }
        Outcome { value: block, peaks_stale }
    }

    /// Returns whether `block` is a whole ordinary segment that is free, has no live sub-blocks,
    /// and is not pinned.
    pub(crate) fn is_releasable(&self, block: u32) -> bool {
        let block = &self.blocks[block];
        let whole = block.is_free() && block.backing == Backing::Ordinary && !block.is_split();
        let segment = &self.segments[block.segment];
        whole && !segment.live && segment.pins == 0
    }

    /// Returns the size of the largest free block in bytes. With a sub-allocator, this is the size
    /// of the largest segment without live sub-blocks.
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

    /// Removes a releasable segment from the heap. Returns its address and size, which the caller
    /// releases to the device.
    pub(crate) fn remove_segment(&mut self, block: u32, counters: &HeapCounters) -> (DevicePtr, u64) {
        debug_assert!(self.is_releasable(block), "only a wholly free segment is removed");
        self.sets.free.remove(block, self.blocks.entries_mut());
        let BlockEntry { addr, size, segment, .. } = self.blocks[block];
        self.blocks.remove(block);
        if let Some(suballocator) = &mut self.suballocator {
            suballocator.remove_segment(segment);
        }
        self.segments.unlink(segment, &mut self.newest);
        counters.down(Stat::Segment, 1);
        counters.down(Stat::ReservedBytes, size);
        if self.rules.is_oversize(size) {
            counters.down(Stat::OversizeSegments, 1);
        }
        (DevicePtr(addr), size)
    }

    /// Iterates over the segments, newest first.
    pub(crate) fn segments(&self) -> impl Iterator<Item = (u32, &Segment)> {
        self.segments.chain(self.newest, |segment| segment.next)
    }

    /// Iterates over the blocks that tile a segment, in the order of addresses.
    pub(crate) fn tiles(&self, segment: &Segment) -> impl Iterator<Item = (u32, &BlockEntry)> {
        self.blocks.chain(segment.first, |block| block.next)
    }

    /// Finds the block that contains the byte at `ptr`, in any state. Walks the list of segments.
    pub(crate) fn containing(&self, ptr: DevicePtr) -> Option<u32> {
        let has_ptr = |segment: &Segment| (segment.base..segment.base + segment.bytes).contains(&ptr.0);
        let (_, segment) = self.segments().find(|(_, segment)| has_ptr(segment))?;
        let has_ptr = |(_, block): &(u32, &BlockEntry)| (block.addr..block.end()).contains(&ptr.0);
        let found = if self.suballocator.is_some() {
            self.sub_blocks().find(has_ptr)
        } else {
            self.tiles(segment).find(has_ptr)
        };
        found.map(|(block, _)| block)
    }

    /// Returns whether the heap has no segment.
    pub(crate) fn is_empty(&self) -> bool {
        self.newest == NONE
    }

    /// Adds a segment as a single detached block, and returns the block. For an ordinary segment,
    /// `granule` is 0.
    fn new_segment(&mut self, base: DevicePtr, bytes: u64, granule: u64, backing: Backing) -> u32 {
        let segment = Segment { base: base.0, bytes, granule, backing, ..Segment::vacant(NONE) };
        let segment = self.segments.link(segment, &mut self.newest);
        let block = self.blocks.insert(BlockEntry::whole(base.0, bytes, segment, backing));
        self.segments[segment].first = block;
        if backing != Backing::Ordinary {
            self.mark_paths();
        }
        block
    }
}
