//! How long the free memory of a heap has been idle, in the units that go back to the device: wholly
//! free ordinary segments, and pages of expandable segments in free blocks.
//!
//! ```text
//! look k        |   free: 7 s   | allocated | free: 2 s |        clock → mark
//! look k + 1    |   free: 8 s   |   free: new           |        the third page was joined: freed_at ≥ mark
//! ```
//!
//! A heap is *looked at* from time to time, and nothing is counted in between: requests and frees take
//! no note of idleness. Each look advances the heap's clock. A free block with an earlier stamp was
//! not touched since the look before. The stamp of a free block is also renewed by a neighbour that joins
//! it, and by a request that takes its front: a page behind everything that was allocated since the look
//! ([`Heap::high`]) was not touched either.

use crate::heap::Heap;
use crate::heap::block::{Backing, Block, Segment};
use crate::heap::expandable::Range;
use crate::heap::home_pages::HomePage;
use crate::tables::slot_table::NONE;
use crate::tables::{Lazy, Storage};
use crate::units::DevicePtr;

/// A moment in milliseconds of a device's clock, modulo 2^32: ages up to 49 days are told apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moment(pub u32);

/// Since when a unit of memory is idle, as far as the looks tell.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Idle(u32);

impl Idle {
    /// No look has met the unit.
    pub(crate) const NEW: Self = Self(0);
    /// The unit was in use at the last look.
    const IN_USE: Self = Self(1);

    fn since(now: Moment) -> Self {
        Self(now.0.max(2))
    }

    /// Returns for how many milliseconds the unit has been idle, or `None` if it was in use.
    pub(crate) fn age(self, now: Moment) -> Option<u32> {
        (self.0 > Self::IN_USE.0).then(|| now.0.wrapping_sub(self.0))
    }
}

/// What a look finds of a unit of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// The unit was obtained since the last look.
    New {
        /// Length in bytes.
        bytes: u64,
    },
    /// The unit was used since the last look, after it had been idle.
    UsedAgain {
        /// Length in bytes.
        bytes: u64,
        /// Since when the unit had been idle.
        idle: Idle,
    },
    /// The unit is idle, for the first time or still.
    Idle {
        /// Length in bytes.
        bytes: u64,
    },
}

/// An idle segment or page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IdleUnit {
    /// Device address of the first byte.
    pub at: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// For how many milliseconds it has been idle.
    pub age: u32,
    /// A stamp of the heap's clock, not before it was last freed.
    pub freed_at: u64,
}

impl<S: Storage> Heap<S> {
    /// Notes that the addresses below the end of the `size` bytes at `addr` were allocated from an
    /// expandable segment.
    #[inline(always)]
    pub(super) fn note_high(&mut self, addr: u64, size: u64) {
        self.high = self.high.max(addr + size);
    }

    /// Looks at every unit, and calls `tell` with what is found. The caller has advanced the clock since the
    /// last free. Sub-allocated heaps and heaps of the stitched policy have no units.
    pub(crate) fn look(&mut self, now: Moment, mut tell: impl FnMut(Found)) {
        if self.is_empty() || self.suballocator.is_some() || !self.sets.is_made() {
            return;
        }
        let mark = self.sets.mark;
        let mut segment = self.newest;
        let mut has_pages = false;
        while segment != NONE {
            let Segment { backing, first, idle, bytes, next, .. } = self.segments[segment];
            match backing {
                Backing::Ordinary => {
                    let untouched = self.blocks[first].freed_at < mark;
                    let is_idle = self.is_releasable(first);
                    self.segments[segment].idle = seen(idle, is_idle, untouched, bytes, now, &mut tell);
                }
                Backing::Expandable => has_pages = true,
                Backing::Stitched => {}
            }
            segment = next;
        }
        if has_pages {
            self.look_at_pages(now, mark, &mut tell);
        }
        (self.sets.mark, self.high) = (self.clock, 0);
    }

    /// Looks at the pages of expandable segments.
    fn look_at_pages(&mut self, now: Moment, mark: u64, tell: &mut impl FnMut(Found)) {
        let high = self.high;
        let mut at = self.sets.free.after((0, 0), self.blocks.entries());
        while let Some(block) = at {
            let Block { addr, size, freed_at, backing, .. } = self.blocks[block];
            if backing == Backing::Expandable {
                let mut from = addr;
                while let Some(page) = self.sets.pages.page_from(from).filter(|page| page.end() <= addr + size) {
                    from = page.end();
                    let untouched = freed_at < mark || page.at >= high;
                    // A page that was in use at the last look takes the stamp of its free.
                    if page.idle.age(now).is_none() || !untouched {
                        page.freed_at = freed_at;
                    }
                    page.idle = seen(page.idle, page.is_movable(), untouched, page.bytes, now, tell);
                    page.met = true;
                }
            }
            at = self.sets.free.next(block, self.blocks.entries());
        }
        self.sets.pages.for_each(|page| {
            if !core::mem::take(&mut page.met) {
                page.idle = seen(page.idle, false, false, page.bytes, now, tell);
            }
        });
    }

    /// Returns whether no work uses an idle unit of the heap any longer.
    pub(crate) fn is_quiet(&self, unit: IdleUnit) -> bool {
        unit.freed_at < self.sets.quiet
    }

    /// Returns whether units of the heap may go back to the device.
    fn gives_units(&self) -> bool {
        !self.is_empty() && !self.retained && !self.asleep && self.suballocator.is_none() && self.sets.is_made()
    }

    /// Returns the largest idle segment for which `wanted` returns true, with its block. Segments that were touched
    /// since the last look do not count.
    pub(crate) fn idle_segment(&self, now: Moment, wanted: impl Fn(IdleUnit) -> bool) -> Option<(u32, IdleUnit)> {
        if !self.gives_units() {
            return None;
        }
        self.free_downwards().find_map(|block| {
            let Block { size, addr, freed_at, segment, .. } = self.blocks[block];
            let untouched = self.is_releasable(block) && freed_at < self.sets.mark;
            let age = self.segments[segment].idle.age(now).filter(|_| untouched)?;
            let unit = IdleUnit { at: addr, bytes: size, age, freed_at };
            wanted(unit).then_some((block, unit))
        })
    }

    /// Returns the idle page at the highest address of the largest free block with one for which `wanted` returns
    /// true, with the block. Pages that may have been touched since the last look do not count.
    pub(crate) fn idle_page(&self, now: Moment, wanted: impl Fn(IdleUnit) -> bool) -> Option<(u32, IdleUnit)> {
        if !self.gives_units() {
            return None;
        }
        let expandable = self.free_downwards().filter(|&block| self.blocks[block].backing == Backing::Expandable);
        expandable
            .flat_map(|block| self.idle_pages_in(block, self.blocks[block].end(), now).map(move |unit| (block, unit)))
            .find(|&(_, unit)| wanted(unit))
    }

    /// Iterates over the idle pages of the free block `block` that lie side by side below `page`, downwards.
    pub(crate) fn idle_pages_below(&self, block: u32, page: IdleUnit, now: Moment) -> impl Iterator<Item = IdleUnit> {
        let mut above = page.at;
        self.idle_pages_in(block, page.at, now).take_while(move |unit| {
            let beside = unit.at + unit.bytes == above;
            above = unit.at;
            beside
        })
    }

    /// Returns the range from `from` to `end` in the free block `block`.
    pub(crate) fn range_of(&self, block: u32, from: u64, end: u64) -> Range {
        let granule = self.segments[self.blocks[block].segment].granule;
        Range { at: DevicePtr(from), bytes: end - from, granule }
    }

    /// Iterates over the idle pages of the free block `block` that end at `end` or below, downwards.
    fn idle_pages_in(&self, block: u32, end: u64, now: Moment) -> impl Iterator<Item = IdleUnit> {
        let Block { addr, freed_at, .. } = self.blocks[block];
        self.sets.pages.within_down(addr, end).filter_map(move |page: HomePage| {
            let untouched = freed_at < self.sets.mark || page.at >= self.high;
            let age = page.idle.age(now).filter(|_| untouched && page.is_movable())?;
            Some(IdleUnit { at: page.at, bytes: page.bytes, age, freed_at: page.freed_at })
        })
    }

    /// Iterates over the free blocks, from the largest to the smallest.
    fn free_downwards(&self) -> impl Iterator<Item = u32> {
        let blocks = self.blocks.entries();
        core::iter::successors(self.sets.free.last(blocks), |&block| self.sets.free.previous(block, blocks))
    }
}

/// Tells what a look finds of a unit that had `before`, and returns what the unit has now. `untouched`: not used
/// since the last look, if it was idle then.
fn seen(before: Idle, is_idle: bool, untouched: bool, bytes: u64, now: Moment, tell: &mut impl FnMut(Found)) -> Idle {
    let was_idle = before.age(now).is_some();
    if before == Idle::NEW {
        tell(Found::New { bytes });
    } else if was_idle && !(is_idle && untouched) {
        tell(Found::UsedAgain { bytes, idle: before });
    }
    if !is_idle {
        return Idle::IN_USE;
    }
    tell(Found::Idle { bytes });
    if was_idle && untouched { before } else { Idle::since(now) }
}
