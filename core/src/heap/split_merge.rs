//! Splitting and merging the blocks of the caching policy: the two operations that every malloc and
//! free of it comes down to.
//!
//! ```text
//! allocate_from  |         free          |  ─▶  | allocated |   free    |  same entry for the rest
//! join_free      | free |  freed  | free |  ─▶  |         free          |  entry of a neighbour
//! ```
//!
//! A split gives the allocated front a new entry, and a merge keeps the entry of a neighbour that
//! was free already. The most frequent pair, a split and the merge that undoes the split, then only
//! resizes one entry of the free index. While the size stays in the same bin, the resize does not
//! change the index at all.

use super::Outcome;
use super::sets::Sets;
use crate::heap::block::{Backing, BlockEntry, HeapSegments, State};
use crate::heap::split_rules::Rules;
use crate::stats::{HeapCounters, Stat};
use crate::tables::Storage;
use crate::tables::hash_index::HashIndex;
use crate::tables::slot_table::{NONE, Vacancies};
use crate::units::DevicePtr;

/// A freed block, merged with its free neighbours.
struct Coalesced {
    /// Whether the segment holds other blocks beside the merged one.
    is_split: bool,
    /// Bytes of the freed block alone.
    size: u64,
    /// Number of free neighbours absorbed: 0, 1 or 2.
    absorbed: u64,
    /// Bytes of the absorbed neighbours.
    absorbed_bytes: u64,
}

impl Coalesced {
    /// Updates the counters, if any, of inactive split blocks: free blocks whose segment holds
    /// other blocks. Returns true if the peaks must be reconciled, as always in a tight heap.
    /// Returns `tells` if the segment is wholly free now: an ended stream's segment is released.
    #[inline(always)]
    fn count(self, tells: bool, counters: Option<&HeapCounters>) -> bool {
        let Some(counters) = counters else { return tells };
        if !self.is_split {
            // The block is the whole segment and does not count. Its former neighbours counted
            // until now.
            counters.down(Stat::InactiveSplit, self.absorbed);
            counters.down(Stat::InactiveSplitBytes, self.absorbed_bytes);
            return tells;
        }
        // The neighbours' bytes counted before: only the freed block's own bytes are new.
        let peaks_stale = counters.up(Stat::InactiveSplitBytes, self.size);
        match self.absorbed {
            0 => peaks_stale | counters.up(Stat::InactiveSplit, 1),
            1 => peaks_stale,
            // Three blocks became one, and two of the three counted.
            _ => {
                counters.down(Stat::InactiveSplit, 1);
                peaks_stale
            }
        }
    }
}

/// Borrows the tables of a heap that has memory, each under its own reference. Looking the tables
/// up through the heap for each access costs 13 instructions more per malloc/free pair.
pub(super) struct Parts<'a, S: Storage> {
    /// The entries of all blocks. A slice, whose length stays in a register: an index is checked
    /// once.
    pub(super) blocks: &'a mut [BlockEntry],
    /// The vacant ones among the entries.
    pub(super) vacancies: &'a mut Vacancies,
    pub(super) live: &'a mut HashIndex<S>,
    pub(super) segments: &'a mut HeapSegments<S>,
    pub(super) sets: &'a mut Sets<S>,
    pub(super) rules: &'a Rules,
    pub(super) choose_from: &'a u64,
    /// The search count to stamp freed blocks with. A reference, because few paths read the count.
    pub(super) clock: &'a u64,
}

impl<S: Storage> Parts<'_, S> {
    /// Allocates the first `size` bytes of the free block `block`, which has at least `size` bytes.
    /// The rest stays free if the rules split the block; otherwise the whole block is allocated.
    /// Room for one block was made. `PLAIN`: the heap is [plain](crate::heap::Heap::plain).
    #[inline(always)]
    pub(super) fn allocate_from<const PLAIN: bool>(
        &mut self,
        block: u32,
        size: u64,
        requested: u64,
        counters: &HeapCounters,
    ) -> Outcome<DevicePtr> {
        let blocks = &mut *self.blocks;
        let BlockEntry { size: whole, addr, backing, .. } = blocks[block as usize];
        debug_assert!(blocks[block as usize].is_free(), "only a free block is allocated");
        debug_assert!(0 < size && size <= whole, "the block is large enough");
        let was_split = blocks[block as usize].is_split();
        // Only blocks of ordinary segments count as inactive.
        let counts = PLAIN || backing == Backing::Ordinary;
        let remaining = whole - size;
        let splits =
            if PLAIN { self.rules.should_split_plainly(remaining) } else { self.rules.should_split(remaining, size) };
        // Below 0 once a row has risen above its threshold.
        let mut left = 0;
        let given_bytes = if splits {
            // A free block counts as inactive only beside other blocks, so a whole segment starts
            // to count with its first split.
            if was_split && counts {
                counters.down(Stat::InactiveSplitBytes, size);
            } else if counts {
                left |= counters.up_to(Stat::InactiveSplit, 1);
                left |= counters.up_to(Stat::InactiveSplitBytes, remaining);
            }
            // A copy: through a reference, the fields are loaded once more behind the next store.
            let found = blocks[block as usize];
            let BlockEntry { prev, segment, .. } = found;
            let front = self.vacancies.occupy(blocks);
            let chain = self.live.add(addr, front);
            blocks[front as usize] = BlockEntry { chain, ..found.front(block, size, requested, State::Allocated) };
            // The bounds check stands for a comparison with `NONE`, here and below.
            match blocks.get_mut(prev as usize) {
                None => self.segments[segment].first = front,
                Some(prev) => prev.next = front,
            }
            let clock = *self.clock;
            // The rest keeps its entry: `resize` leaves the index alone while the size stays in the
            // same bin.
            self.sets.free.resize(block, remaining, blocks, |rest| {
                rest.addr += size;
                rest.prev = front;
                rest.freed_at = clock;
            });
            size
        } else {
            if was_split && counts {
                counters.down(Stat::InactiveSplit, 1);
                counters.down(Stat::InactiveSplitBytes, whole);
            }
            self.sets.free.remove(block, blocks);
            let entry = &mut blocks[block as usize];
            entry.state = State::Allocated;
            entry.requested = requested;
            entry.chain = self.live.add(addr, block);
            whole
        };
        left |= counters.up_to(Stat::Allocation, 1);
        left |= counters.up_to(Stat::AllocatedBytes, given_bytes);
        left |= counters.up_to(Stat::RequestedBytes, requested);
        if !PLAIN && self.rules.is_oversize(given_bytes) {
            left |= counters.up_to(Stat::OversizeAllocations, 1);
        }
        Outcome { value: DevicePtr(addr), peaks_stale: left < 0 }
    }

    /// Adds the detached block `block` to the free index, merged with its free neighbours. The
    /// merged block takes over the requested size of `block`, and becomes free at the present time.
    /// Returns the merged block, and true if the peaks must be reconciled, or if `tells` is set and
    /// the block is the whole segment. Counts in `counters`, if any, what is inactive.
    #[inline(always)]
    pub(super) fn join_free(&mut self, block: u32, tells: bool, counters: Option<&HeapCounters>) -> (u32, bool) {
        let clock = *self.clock;
        let (blocks, vacancies) = (&mut *self.blocks, &mut *self.vacancies);
        let BlockEntry { addr, size, requested, prev, next, segment, .. } = blocks[block as usize];
        debug_assert!(!blocks[block as usize].is_free(), "a block becomes free once");
        let prev_free = blocks.get(prev as usize).is_some_and(BlockEntry::is_free);
        let next_free = blocks.get(next as usize).is_some_and(BlockEntry::is_free);
        // Each case counts for itself: the number of neighbours is known there. `before` and
        // `after` are those of the merged block.
        let coalesced = |before, after, absorbed, absorbed_bytes| Coalesced {
            is_split: before != NONE || after != NONE,
            size,
            absorbed,
            absorbed_bytes,
        };
        match (prev_free, next_free) {
            // No neighbour is free: `block` enters the index as it is.
            (false, false) => {
                self.sets.insert_free(block, clock, blocks);
                (block, coalesced(prev, next, 0, 0).count(tells, counters))
            }
            // `next` keeps its entry and grows downward.
            (false, true) => {
                let BlockEntry { size: next_bytes, next: after, .. } = blocks[next as usize];
                match blocks.get_mut(prev as usize) {
                    None => self.segments[segment].first = next,
                    Some(prev) => prev.next = next,
                }
                self.sets.free.resize(next, size + next_bytes, blocks, |entry| {
                    entry.addr = addr;
                    entry.requested = requested;
                    entry.prev = prev;
                    entry.freed_at = clock;
                });
                vacancies.vacate(block, blocks);
                (next, coalesced(prev, after, 1, next_bytes).count(tells, counters))
            }
            // `prev` keeps its entry and grows upward, over `block` and over `next` if `next` is
            // free, too. One arm for both cases: `resize` is inlined once.
            (true, _) => {
                let (mut absorbed_bytes, mut after) = (0, next);
                if next_free {
                    let BlockEntry { size: next_bytes, next: behind, .. } = blocks[next as usize];
                    (absorbed_bytes, after) = (next_bytes, behind);
                    self.sets.free.remove(next, blocks);
                }
                if let Some(after) = blocks.get_mut(after as usize) {
                    after.prev = prev;
                }
                let BlockEntry { size: prev_bytes, prev: before, .. } = blocks[prev as usize];
                absorbed_bytes += prev_bytes;
                self.sets.free.resize(prev, absorbed_bytes + size, blocks, |entry| {
                    entry.requested = requested;
                    entry.next = after;
                    entry.freed_at = clock;
                });
                vacancies.vacate(block, blocks);
                if next_free {
                    vacancies.vacate(next, blocks);
                }
                (prev, coalesced(before, after, 1 + u64::from(next_free), absorbed_bytes).count(tells, counters))
            }
        }
    }
}
