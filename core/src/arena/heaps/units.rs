//! Units: the parts of a heap's free memory that can go back to the device.
//!
//! ```text
//! ordinary segment    | free ……………………………………… |                          a segment: filled by a free block
//! expandable segment  | allocated | free | page | page | free | allocated |
//!                                        └── pages: wholly in a free block
//! ```
//!
//! A unit is found under the lock of the heap, and is a plain value afterwards. [`Unit::take`]
//! checks it again: if another thread has used the memory since, it was freed after the stamp of
//! the unit.
//!
//! Some memory is refused: free memory of a captured graph, which writes to it at every replay
//! ([`Keeps::ForGraphs`]), for every rule and call; other free memory of a private pool in use,
//! unless the call names the pool; segments with live sub-blocks; pinned segments and pages; and
//! moving, parked and waking pages.

use crate::arena::heaps::Heaps;
use crate::arena::heaps::pairs::PairUse;
use crate::arena::platform::Platform;
use crate::config::rounding::PoolKind;
use crate::heap::age::Idle;
use crate::heap::block::{Backing, BlockEntry};
use crate::heap::home_pages::HomePage;
use crate::heap::{Heap, Keeps};
use crate::tables::Storage;
use crate::units::DevicePtr;
use core::iter::{from_fn, once, successors};

/// A position in the order of a heap's free blocks: (size in bytes, address).
///
/// A position stays valid when its block is removed, so a walk can drop the heap's lock and
/// continue.
type Position = (u64, u64);

/// The position before every block, because no block has address 0.
const FROM_START: Position = (0, 0);

/// The form of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(in crate::arena) enum UnitKind {
    /// An ordinary segment.
    Segment,
    /// Adjacent pages of a free block.
    Pages,
}

/// Free memory of a heap that can go back to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::arena) struct Unit {
    pub kind: UnitKind,
    /// The slot of the heap.
    pub slot: u32,
    /// The free block. Valid as long as the heap stays locked.
    pub block: u32,
    /// The position of the free block.
    pub position: Position,
    /// The device address of the first byte.
    pub at: u64,
    /// The length in bytes.
    pub bytes: u64,
    /// A stamp of the heap's clock that is not before the last free.
    pub freed_at: u64,
    /// The heap's stamp of quiet memory, or 0 for a private pool in use.
    pub quiet: u64,
    /// The number of searches since the free block became free.
    pub age: u64,
    /// The time since which the unit is idle. The unit counts as in use if it was touched since the
    /// last [look](crate::heap::idle).
    pub idle: Idle,
}

impl Unit {
    /// Returns the address of the first byte.
    pub(in crate::arena) fn ptr(&self) -> DevicePtr {
        DevicePtr(self.at)
    }

    /// Returns the address just past the last byte.
    pub(in crate::arena) fn end(&self) -> u64 {
        self.at + self.bytes
    }

    /// Returns whether no work uses the unit any more, and no captured graph may use it.
    pub(in crate::arena) fn is_quiet(&self) -> bool {
        self.freed_at < self.quiet
    }

    /// Returns the unit of `bytes` at `at` in the free block `block`.
    fn new<S: Storage>(kind: UnitKind, heap: &Heap<S>, slot: u32, block: u32, at: u64, bytes: u64) -> Self {
        let BlockEntry { size, addr, freed_at, .. } = heap.blocks[block];
        let quiet = if heap.keeps == Keeps::Nothing { heap.sets.quiet } else { 0 };
        // Saturates, because only a heap with ageing blocks has a clock that follows the searches.
        let age = heap.clock.saturating_sub(freed_at);
        Self { kind, slot, block, position: (size, addr), at, bytes, freed_at, quiet, age, idle: Idle::IN_USE }
    }

    /// Returns the segment that the free block `block` fills, unless it is refused.
    fn segment<S: Storage>(heap: &Heap<S>, slot: u32, block: u32) -> Option<Self> {
        let BlockEntry { addr, size, freed_at, segment, .. } = heap.blocks[block];
        let untouched = freed_at < heap.sets.mark;
        let idle = if untouched { heap.segments[segment].idle } else { Idle::IN_USE };
        let goes = heap.keeps != Keeps::ForGraphs && heap.is_releasable(block);
        goes.then(|| Self { idle, ..Self::new(UnitKind::Segment, heap, slot, block, addr, size) })
    }

    /// Returns a page in the free block `block`.
    fn page<S: Storage>(heap: &Heap<S>, slot: u32, block: u32, page: HomePage) -> Self {
        let unit = Self::new(UnitKind::Pages, heap, slot, block, page.at, page.bytes);
        // A request for the front of the block does not reach the pages after `high`.
        let untouched = unit.freed_at < heap.sets.mark || page.at >= heap.high;
        if untouched && page.idle.is_idle() {
            return Self { idle: page.idle, freed_at: page.freed_at, ..unit };
        }
        unit
    }

    /// Returns the free block around the unit, if the unit has stayed free.
    pub(in crate::arena) fn find<S: Storage>(&self, heap: &mut Heap<S>) -> Option<u32> {
        let (size, addr) = self.position;
        let block = after(heap, (size, addr - 1)).filter(|&block| heap.blocks[block].addr == addr)?;
        let stayed = |unit: &Self| unit.freed_at <= self.freed_at && self.at <= unit.at && unit.end() <= self.end();
        let bytes: u64 = units_in(heap, self.slot, block).filter(stayed).map(|unit| unit.bytes).sum();
        (bytes == self.bytes).then_some(block)
    }
}

/// Returns the first free block after a position. An empty heap may have no tables, and `sets`
/// would panic then.
fn after<S: Storage>(heap: &mut Heap<S>, position: Position) -> Option<u32> {
    if heap.is_empty() { None } else { heap.sets.free.after(position, heap.blocks.entries()) }
}

/// Iterates over the free blocks from `first` on, by ascending (size, address).
fn up<S: Storage>(heap: &Heap<S>, first: Option<u32>) -> impl Iterator<Item = u32> {
    successors(first, |&block| heap.sets.free.next(block, heap.blocks.entries()))
}

/// Iterates over the free blocks from `last` on, by descending (size, address).
fn down<S: Storage>(heap: &Heap<S>, last: Option<u32>) -> impl Iterator<Item = u32> {
    successors(last, |&block| heap.sets.free.previous(block, heap.blocks.entries()))
}

/// Returns the last free block of a heap, if the heap's free memory may go back.
fn last<S: Storage>(heap: &Heap<S>) -> Option<u32> {
    if heap.keeps != Keeps::Nothing || heap.is_empty() { None } else { heap.sets.free.last(heap.blocks.entries()) }
}

/// Iterates over the units of a free block, page by page from the highest address down.
fn units_in<S: Storage>(heap: &Heap<S>, slot: u32, block: u32) -> impl Iterator<Item = Unit> {
    let BlockEntry { addr, size, backing, .. } = heap.blocks[block];
    let has_pages = backing != Backing::Ordinary && heap.keeps != Keeps::ForGraphs;
    let pages = has_pages.then(|| heap.sets.pages.within_down(addr, addr + size));
    let pages = pages.into_iter().flatten().filter(HomePage::is_movable);
    Unit::segment(heap, slot, block).into_iter().chain(pages.map(move |page| Unit::page(heap, slot, block, page)))
}

/// Iterates over the units of a heap, page by page from the largest block down. Skips a parked
/// heap, which is left to the call that parks or wakes it.
pub(in crate::arena) fn units_down<S: Storage>(heap: &Heap<S>, slot: u32) -> impl Iterator<Item = Unit> {
    let last = if heap.asleep { None } else { last(heap) };
    down(heap, last).flat_map(move |block| units_in(heap, slot, block))
}

/// Iterates over the segments of a heap, the largest first.
pub(in crate::arena) fn segments_down<S: Storage>(heap: &Heap<S>, slot: u32) -> impl Iterator<Item = Unit> {
    down(heap, last(heap)).filter_map(move |block| Unit::segment(heap, slot, block))
}

/// Returns the first oversize segment of a heap to release for `wanted` bytes: the smallest segment
/// that is large enough, or else the largest of at least `oversize` bytes. Includes the segments of
/// a private pool in use, for requests of this pool. PyTorch (2.11) also gives those of its
/// captured graphs, and a replay then writes to them.
pub(in crate::arena) fn first_oversize<S: Storage>(
    heap: &mut Heap<S>,
    slot: u32,
    wanted: u64,
    oversize: u64,
) -> Option<Unit> {
    let first = after(heap, (wanted, 0));
    let heap = &*heap;
    // A block of an expandable segment may be large enough but cannot be released here. No segment
    // is large enough then, as in PyTorch.
    let counts = |&block: &u32| heap.is_releasable(block) || heap.fills_gaps(heap.blocks[block].backing);
    let sufficing = up(heap, first).find(counts).and_then(|block| Unit::segment(heap, slot, block));
    sufficing.or_else(|| {
        let last = if heap.is_empty() { None } else { heap.sets.free.last(heap.blocks.entries()) };
        let mut segments = down(heap, last).filter_map(|block| Unit::segment(heap, slot, block));
        segments.find(|unit| unit.bytes < wanted).filter(|unit| unit.bytes >= oversize)
    })
}

/// Returns the quiet segment of a heap that covers `excess` bytes best: the smallest one that is
/// large enough, or else the largest.
pub(in crate::arena) fn quiet_cover<S: Storage>(heap: &mut Heap<S>, slot: u32, excess: u64) -> Option<Unit> {
    let quiet = |heap: &Heap<S>, block| Unit::segment(heap, slot, block).filter(Unit::is_quiet);
    first_up(heap, (excess, 0), quiet).or_else(|| segments_down(heap, slot).find(Unit::is_quiet))
}

/// Returns the first unit of a free block after `from` that `unit_of` finds, starting with the
/// smallest block.
fn first_up<S: Storage>(
    heap: &mut Heap<S>,
    from: Position,
    unit_of: impl Fn(&Heap<S>, u32) -> Option<Unit>,
) -> Option<Unit> {
    let first = if heap.keeps == Keeps::Nothing { after(heap, from) } else { None };
    up(heap, first).find_map(|block| unit_of(heap, block))
}

impl<P: Platform> Heaps<P> {
    /// Iterates over the pools from which free memory may go back: the default pool, and the
    /// private pools without users.
    pub(in crate::arena) fn giving_pools(&self) -> impl Iterator<Item = u32> {
        once(0).chain(self.unused_pools())
    }

    /// Iterates over the heaps of `pools`, as slot and guard of the pair. Each pool is walked in
    /// the order of `kinds`, and then by ascending stream.
    pub(in crate::arena) fn heaps_of<const KINDS: usize>(
        &self,
        pools: impl Iterator<Item = u32>,
        kinds: impl Fn(u32) -> [PoolKind; KINDS],
    ) -> impl Iterator<Item = (u32, PairUse<'_, P>)> {
        let heaps = pools.flat_map(move |pool| kinds(pool).map(|kind| (pool, kind)));
        heaps.flat_map(|(pool, kind)| self.pairs_of(pool).map(move |pair| (pair.slot(kind), pair)))
    }

    /// Iterates over the segments of the heap in `slot`, the smallest first. The heap is locked
    /// during each step but not in between, so the units can be given back.
    pub(in crate::arena) fn segments_of(&self, slot: u32) -> impl Iterator<Item = Unit> {
        let mut from = FROM_START;
        from_fn(move || {
            let unit = first_up(&mut self.lock(slot), from, |heap, block| Unit::segment(heap, slot, block))?;
            from = unit.position;
            Some(unit)
        })
    }

    /// Iterates over the pages of the heap in `slot`, the smallest block first. Adjacent pages are
    /// one unit. Steps as [`segments_of`](Self::segments_of) does.
    pub(in crate::arena) fn pages_of(&self, slot: u32) -> impl Iterator<Item = Unit> {
        let unit_of = move |heap: &Heap<P::Storage>, block| {
            let range = heap.whole_pages(block, HomePage::is_movable)?;
            Some(Unit::new(UnitKind::Pages, heap, slot, block, range.at.0, range.bytes))
        };
        let (mut from, mut rest) = (FROM_START, FROM_START);
        from_fn(move || {
            let mut heap = self.lock(slot);
            // Once pages were taken out of a block, the rest after them is smaller than the block
            // was, so the walk up the sizes does not reach it.
            let (rest_bytes, rest_at) = rest;
            let behind = if rest_bytes == 0 { None } else { first_up(&mut heap, (rest_bytes, rest_at - 1), unit_of) };
            let unit = match behind.filter(|unit| unit.position == rest) {
                Some(unit) => unit,
                None => first_up(&mut heap, from, unit_of).inspect(|unit| from = unit.position)?,
            };
            let (bytes, at) = unit.position;
            rest = (at + bytes - unit.end(), unit.end());
            Some(unit)
        })
    }

    /// Returns free memory of the heap in `slot` for `wanted` bytes: a segment, or just enough
    /// adjacent pages, of at most `most` bytes in all, from the largest block that has any. Private
    /// pools in use give memory, too, because the caller names the pool or its tag.
    pub(in crate::arena) fn unit_within(&self, slot: u32, wanted: u64, most: u64) -> Option<Unit> {
        let heap = self.lock(slot);
        if heap.asleep || heap.is_empty() || heap.keeps == Keeps::ForGraphs {
            return None;
        }
        let heap = &*heap;
        down(heap, heap.sets.free.last(heap.blocks.entries())).find_map(|block| {
            if let Some(segment) = Unit::segment(heap, slot, block) {
                return Some(segment).filter(|segment| segment.bytes <= most);
            }
            let BlockEntry { addr, size, backing, .. } = heap.blocks[block];
            let pages = (backing != Backing::Ordinary).then(|| heap.sets.pages.within_down(addr, addr + size))?;
            // From the highest page down, because the low addresses serve the next requests.
            let (mut at, mut bytes) = (0, 0);
            for page in pages.filter(|page| page.is_movable() && page.bytes <= most) {
                let is_adjacent = bytes == 0 || page.end() == at;
                if bytes >= wanted || !is_adjacent || bytes + page.bytes > most {
                    break;
                }
                (at, bytes) = (page.at, bytes + page.bytes);
            }
            (bytes > 0).then(|| Unit::new(UnitKind::Pages, heap, slot, block, at, bytes))
        })
    }

    /// Iterates over the units of the heap in `slot` in the order in which the whole cache goes
    /// back: first the segments, and then the pages, which go together.
    pub(in crate::arena) fn units_of(&self, slot: u32) -> impl Iterator<Item = Unit> {
        self.segments_of(slot).chain(self.pages_of(slot))
    }
}
