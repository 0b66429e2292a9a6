//! The idle time of a heap's free memory. It is measured for the units that can be released:
//! completely free ordinary segments, and pages of expandable segments in free blocks.
//!
//! ```text
//! look k        |   free: 7 s   | allocated | free: 2 s |        clock → mark
//! look k + 1    |   free: 8 s   |   free: new           |        the third page was joined: freed_at ≥ mark
//! ```
//!
//! A heap is *looked at* from time to time. Nothing is counted in between: requests and frees do
//! not record idleness. Each look advances the heap's clock. If a free block has an earlier stamp,
//! it has not been touched since the previous look. The stamp of a free block is also renewed when
//! a neighbour joins it, and when a request takes its front; in that case, a page after all
//! allocations since the look ([`Heap::high`]) was not touched either.

use crate::heap::Heap;
use crate::heap::age::{Found, Idle, Moment};
use crate::heap::block::{Backing, BlockEntry, Segment};
use crate::tables::slot_table::NONE;
use crate::tables::{Lazy, Storage};

impl<S: Storage> Heap<S> {
    /// Looks at every unit, and calls `tell` with every finding. The caller has advanced the clock
    /// since the last free. Sub-allocated heaps have no units, and pages that move do not count as
    /// units.
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
                Backing::Pages => has_pages = self.fills_gaps(backing),
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
            let BlockEntry { addr, size, freed_at, backing, .. } = self.blocks[block];
            if backing == Backing::Pages {
                let mut from = addr;
                while let Some(page) = self.sets.pages.page_from(from).filter(|page| page.end() <= addr + size) {
                    from = page.end();
                    let untouched = freed_at < mark || page.at >= high;
                    // A page that was in use at the last look gets the stamp of the block that it
                    // is free in.
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
}

/// Reports what a look found about a unit that had the value `before`, and returns its new value.
/// `untouched` means that the unit was not used since the last look, if it was idle then.
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
