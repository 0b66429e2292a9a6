//! Splitting and merging the blocks of the caching policy. Every malloc and every free of this
//! policy comes down to these two operations.
//!
//! ```text
//! allocate_from  |         free          |  ─▶  | allocated |   free    |  same entry for the rest
//! join_free      | free |  freed  | free |  ─▶  |         free          |  entry of a neighbour
//! ```
//!
//! A split gives the allocated front a new entry, and a merge keeps the entry of a neighbour that
//! was already free. So the most frequent pair, a split and the merge that undoes it, only resizes
//! one entry of the free index. As long as the size is in the same bin, the resize does not change
//! the index at all.

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
    /// Whether the segment contains other blocks besides the merged one.
    is_split: bool,
    /// The size of the freed block alone, in bytes.
    size: u64,
    /// How many free neighbours were absorbed: 0, 1 or 2.
    absorbed: u64,
    /// The bytes of these neighbours.
    absorbed_bytes: u64,
}

impl Coalesced {
    /// Updates the counters, if any are given, of inactive split blocks: free blocks in a segment
    /// that has other blocks. Returns true if the peaks must be reconciled. If the segment is
    /// completely free now, returns `tells`: the segment is released if its stream has ended, and
    /// the peaks are always reconciled if the heap is clean.
    #[inline(always)]
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "it is read only where it is needed")]
    fn count(self, tells: &bool, counters: Option<&HeapCounters>) -> bool {
        let Some(counters) = counters else { return *tells };
        if !self.is_split {
            // The block is the whole segment, so it does not count. Its former neighbours did until
            // now.
            counters.down(Stat::InactiveSplit, self.absorbed);
            counters.down(Stat::InactiveSplitBytes, self.absorbed_bytes);
            return *tells;
        }
        // The bytes of the neighbours counted before, so only those of the freed block are new.
        let peaks_stale = counters.up(Stat::InactiveSplitBytes, self.size);
        match self.absorbed {
            0 => peaks_stale | counters.up(Stat::InactiveSplit, 1),
            1 => peaks_stale,
            // Three blocks became one, and two of them counted.
            _ => {
                counters.down(Stat::InactiveSplit, 1);
                peaks_stale
            }
        }
    }
}

/// The tables of a heap that has memory, each borrowed separately. Looking up the tables through
/// the heap for each access costs 13 more instructions per malloc/free pair.
pub(super) struct Parts<'a, S: Storage> {
    /// The entries of all blocks. This is a slice, so its length remains in a register and an index
    /// is checked only once.
    pub(super) blocks: &'a mut [BlockEntry],
    /// The list of the vacant entries.
    pub(super) vacancies: &'a mut Vacancies,
    pub(super) live: &'a mut HashIndex<S>,
    pub(super) segments: &'a mut HeapSegments<S>,
    pub(super) sets: &'a mut Sets<S>,
    pub(super) rules: &'a Rules,
    pub(super) choose_from: &'a u64,
    /// The search count with which freed blocks are stamped. A reference, because few paths read
    /// it.
    pub(super) clock: &'a u64,
    /// Whether the heap tells of a segment that becomes wholly free. A reference, too.
    pub(super) tells: &'a bool,
}

impl<S: Storage> Parts<'_, S> {
    /// Allocates the first `size` bytes of the free block `block`, which must have at least `size`
    /// bytes. The rest remains free if the rules split the block; otherwise the whole block is
    /// allocated. The caller has made room for one block.
    #[inline(always)]
    pub(super) fn allocate_from(
        &mut self,
        block: u32,
        size: u64,
        requested: u64,
        counters: &HeapCounters,
    ) -> Outcome<DevicePtr> {
        let BlockEntry { size: whole, backing, .. } = self.blocks[block as usize];
        let splits = self.rules.should_split(whole - size, size);
        let Outcome { value, mut peaks_stale } = self.take_front(block, size, requested, splits, backing, counters);
        if self.rules.is_oversize(if splits { size } else { whole }) {
            peaks_stale |= counters.up(Stat::OversizeAllocations, 1);
        }
        Outcome { value, peaks_stale }
    }

    /// Allocates the first `size` bytes of the free block `block` if it `splits`, and otherwise the
    /// whole block. `backing` is that of the block, which many callers know.
    #[inline(always)]
    pub(super) fn take_front(
        &mut self,
        block: u32,
        size: u64,
        requested: u64,
        splits: bool,
        backing: Backing,
        counters: &HeapCounters,
    ) -> Outcome<DevicePtr> {
        let blocks = &mut *self.blocks;
        // A copy: through a reference, the fields would be loaded again after the next store.
        let found = BlockEntry { backing, ..blocks[block as usize] };
        let BlockEntry { size: whole, addr, prev, segment, .. } = found;
        debug_assert!(found.is_free() && backing == blocks[block as usize].backing, "only a free block is allocated");
        debug_assert!(0 < size && size <= whole, "the block is large enough");
        // Only blocks of ordinary segments count as inactive.
        let counts_inactive = backing == Backing::Ordinary;
        // This is below 0 once a row has risen above its threshold.
        let mut left = 0;
        // The counters come as late as they can: the compiler loads everything again after it has
        // stored a word that other threads read.
        let given_bytes = if splits {
            let front = self.vacancies.occupy(blocks);
            let chain = self.live.add(addr, front);
            blocks[front as usize] = BlockEntry { chain, ..found.front(block, size, requested, State::Allocated) };
            // The bounds check replaces a comparison with `NONE`, here and below.
            match blocks.get_mut(prev as usize) {
                None => self.segments[segment].first = front,
                Some(prev) => prev.next = front,
            }
            let rest = &mut blocks[block as usize];
            let was_split = rest.is_split();
            rest.prev = front;
            rest.freed_at = *self.clock;
            // A free block counts as inactive only if its segment has other blocks, so a whole
            // segment starts to count with its first split.
            if counts_inactive && was_split {
                counters.down(Stat::InactiveSplitBytes, size);
            } else if counts_inactive {
                left |= counters.up_to(Stat::InactiveSplit, 1);
                left |= counters.up_to(Stat::InactiveSplitBytes, whole - size);
            }
            // The rest keeps its entry: `resize` does not change the index while the size is in the
            // same bin.
            self.sets.free.resize(block, whole - size, blocks, |rest| rest.addr += size);
            size
        } else {
            self.sets.free.remove(block, blocks);
            let entry = &mut blocks[block as usize];
            entry.state = State::Allocated;
            entry.requested = requested;
            entry.chain = self.live.add(addr, block);
            if counts_inactive && entry.is_split() {
                counters.down(Stat::InactiveSplit, 1);
                counters.down(Stat::InactiveSplitBytes, whole);
            }
            whole
        };
        left |= counters.up_to(Stat::Allocation, 1);
        left |= counters.up_to(Stat::AllocatedBytes, given_bytes);
        left |= counters.up_to(Stat::RequestedBytes, requested);
        Outcome { value: DevicePtr(addr), peaks_stale: left < 0 }
    }

    /// Adds the detached block `block` to the free index, merged with its free neighbours. The
    /// merged block gets the requested size of `block`, and counts as free since now. If `counters`
    /// are given, counts what is inactive. Returns the merged block, and true if the peaks must be
    /// reconciled, or if the heap tells of a whole segment and the block is one.
    #[inline(always)]
    pub(super) fn join_free(&mut self, block: u32, counters: Option<&HeapCounters>) -> (u32, bool) {
        let (blocks, vacancies, clock) = (&mut *self.blocks, &mut *self.vacancies, self.clock);
        // What only a merge needs is read there: no register is kept for it until then.
        let BlockEntry { size, prev, next, .. } = blocks[block as usize];
        debug_assert!(!blocks[block as usize].is_free(), "a block becomes free once");
        let prev_free = blocks.get(prev as usize).is_some_and(BlockEntry::is_free);
        let next_free = blocks.get(next as usize).is_some_and(BlockEntry::is_free);
        // Each case does its own counting, because it knows the number of neighbours. `before` and
        // `after` are those of the merged block. The free index comes last, because it may call:
        // no value but its own must be kept meanwhile.
        let coalesced = |before, after, absorbed, absorbed_bytes| Coalesced {
            is_split: before != NONE || after != NONE,
            size,
            absorbed,
            absorbed_bytes,
        };
        match (prev_free, next_free) {
            // No neighbour is free, so `block` enters the index as it is.
            (false, false) => {
                let peaks_stale = coalesced(prev, next, 0, 0).count(self.tells, counters);
                self.sets.insert_free(block, *clock, blocks);
                (block, peaks_stale)
            }
            // `next` keeps its entry and grows downward.
            (false, true) => {
                let BlockEntry { addr, requested, segment, .. } = blocks[block as usize];
                let BlockEntry { size: next_bytes, next: after, .. } = blocks[next as usize];
                match blocks.get_mut(prev as usize) {
                    None => self.segments[segment].first = next,
                    Some(prev) => prev.next = next,
                }
                let entry = &mut blocks[next as usize];
                entry.requested = requested;
                entry.prev = prev;
                entry.freed_at = *clock;
                vacancies.vacate(block, blocks);
                let peaks_stale = coalesced(prev, after, 1, next_bytes).count(self.tells, counters);
                self.sets.free.resize(next, size + next_bytes, blocks, |entry| entry.addr = addr);
                (next, peaks_stale)
            }
            // `prev` keeps its entry and grows upward, over `block`, and over `next` if that is
            // free, too. One arm handles both cases, so that `resize` is inlined only once.
            (true, _) => {
                let requested = blocks[block as usize].requested;
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
                let entry = &mut blocks[prev as usize];
                entry.requested = requested;
                entry.next = after;
                entry.freed_at = *clock;
                vacancies.vacate(block, blocks);
                if next_free {
                    vacancies.vacate(next, blocks);
                }
                let coalesced = coalesced(before, after, 1 + u64::from(next_free), absorbed_bytes);
                let peaks_stale = coalesced.count(self.tells, counters);
                self.sets.free.resize(prev, absorbed_bytes + size, blocks, |_| ());
                (prev, peaks_stale)
            }
        }
    }
}
