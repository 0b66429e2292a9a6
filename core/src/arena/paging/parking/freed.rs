//! Free memory of a parked heap: the places of parked pages, and pages that stayed awake.

use super::pages_from;
use crate::arena::Platform;
use crate::arena::paging::Paging;
use crate::arena::paging::heap_mapper::HeapMapper;
use crate::arena::paging::mapper::Mapper;
use crate::device::Segments;
use crate::error::Error;
use crate::heap::addresses::AddressRange;
use crate::heap::home_pages::HomePage;
use crate::heap::{Heap, Keeps};
use crate::pages::{Kept, PagePool};
use crate::stats::Stat;
use crate::tables::Storage;
use crate::tables::slot_table::NONE;

impl<P: Platform> Mapper<'_, P> {
    /// Tells the host to drop kept contents.
    pub(super) fn forget(&self, kept: Kept) {
        if let Kept::Saved(saved) = kept
            && let Some(contents) = self.driver.device().contents()
        {
            contents.forget(saved);
        }
    }
}

impl<P: Platform> HeapMapper<'_, P> {
    /// Gives up the places of freed parked pages in the heap in `slot`, as
    /// [`give_up_freed`](Self::give_up_freed) does, and unmaps free pages that stayed awake, for
    /// example because they were pinned at the park. Does nothing while another call parks or wakes
    /// memory. The caller uses the pair.
    ///
    /// # Errors
    /// [`Error::TableFull`]; the first error of the device, after all pages have been tried.
    pub(in crate::arena) fn try_to_give_up_freed(&self, slot: u32) -> Result<(), Error> {
        let Paging { parking, taking, .. } = self.paging;
        // With the second turn, no request takes lent pages of the heap meanwhile.
        let turns = parking.try_take().and_then(|turn| Some([turn, taking.try_take()?]));
        let Some(turns) = turns else { return Ok(()) };
        // The heap may have been woken since the caller looked.
        if !self.heaps.lock(slot).asleep {
            return Ok(());
        }
        let given_up = self.take_left(slot).and(self.give_up_freed(slot));
        // No park has looked at these pages, and none will before the caller leaves the pair. So
        // the turns can end before the wait for the device.
        let detached = self.detach_unmappable(slot);
        drop(turns);
        given_up.and(self.unmap_all_detached(slot, detached))
    }

    /// Gives up the places of pages wholly in blocks that were freed while parked. The free memory
    /// of a pool in use stays, because a captured graph may write to it.
    pub(super) fn give_up_freed(&self, slot: u32) -> Result<(), Error> {
        loop {
            let block = {
                let mut heap = self.heaps.lock(slot);
                if heap.keeps != Keeps::Nothing || heap.is_empty() {
                    return Ok(());
                }
                let Some((block, range)) = first_freed(&heap, &self.paging.pool.lock()) else { return Ok(()) };
                if heap.make_room().is_err() || !heap.make_room_for_range() {
                    return Err(Error::TableFull("blocks"));
                }
                self.heaps.slot(slot).counters.undo_down(Stat::ReservedBytes, range.bytes);
                heap.detach_range(block, range)
            };
            // No lock is held, because the host may take its time. The block is detached, so it
            // does not change.
            self.end_detached(slot, block, |range| {
                let end = range.at.0 + range.bytes;
                for home in pages_from(self.heaps, slot, range.at.0).take_while(|page| page.at < end) {
                    self.heaps.lock(slot).sets.pages.remove(home.at);
                    let kept = self.paging.pool.lock().remove_asleep(home.page);
                    self.forget(kept);
                }
                Ok::<(), Error>(())
            })?;
        }
    }
}

/// Returns the first free block that contains whole pages asleep, and the range of these pages.
/// Pages that are about to wake do not count.
fn first_freed<S: Storage>(heap: &Heap<S>, pages: &PagePool<S>) -> Option<(u32, AddressRange)> {
    let is_parked = |home: &HomePage| home.asleep && home.pins == 0 && pages[home.page].replacement == NONE;
    let blocks = heap.blocks.entries();
    let mut free = core::iter::successors(heap.sets.free.last(blocks), |&block| heap.sets.free.previous(block, blocks));
    free.find_map(|block| Some((block, heap.whole_pages(block, is_parked)?)))
}
