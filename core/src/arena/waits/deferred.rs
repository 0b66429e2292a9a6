//! Freed blocks that get their events once no graph is being captured.
//!
//! An event recorded on a stream during a capture would become part of the graph. The block keeps
//! its list of user streams until the capture ends.

use crate::arena::driver::Driver;
use crate::arena::flags;
use crate::arena::platform::Platform;
use crate::arena::waits::events::Recorded;
use crate::arena::waits::{DeviceWaits, Outside};
use crate::device::StreamOrder;
use crate::error::Error;
use crate::heap::block::FRONTIER_BIT;
use crate::streams::deferred_frees::{DeferredFree, Until};
use crate::streams::pending::PendingFree;
use crate::tables::CapacityError;

impl<'a, P: Platform, O: Outside<'a, P>> DeviceWaits<'a, P, O> {
    /// Defers the free of a pending block, which keeps its uses. Traces the free.
    ///
    /// # Errors
    /// [`Error::TableFull`]. The block is not deferred then.
    pub(in crate::arena) fn defer(self, PendingFree { block, site }: PendingFree, until: Until) -> Result<(), Error> {
        // The entry is busy until the free is traced, because the free can no longer fail after
        // that.
        let added = self.waits.deferred.lock().add(block, until);
        let full = if matches!(until, Until::Fence(_)) { "events" } else { "deferred frees" };
        let entry = added.map_err(|CapacityError| Error::TableFull(full))?;
        if let Some(site) = site.filter(|_| self.driver().flags.has(flags::TRACE)) {
            self.outside.free_requested(&mut self.heaps().lock(block.slot), block.index, site);
        }
        let mut blocks = self.waits.deferred.lock();
        blocks.put_back(entry);
        self.driver().flags.follow_deferred(&blocks);
        Ok(())
    }

    /// Records the events of deferred blocks, except for blocks used by a stream that still
    /// captures. Returns false if the table of events is too full for all of them.
    pub(in crate::arena) fn record_deferred(self) -> Result<bool, Error> {
        let (mut from, mut capturing) = (0, None);
        while self.driver().flags.has(flags::DEFERRED) {
            let Some(_permission) = self.driver().may_record() else { break };
            // Skips the other blocks of a stream found to capture: one call answers for all of
            // them.
            let taken = self.waits.deferred.lock().take_captured(from, capturing);
            let Some(entry) = taken else { break };
            let deferred = self.waits.deferred.lock().get(entry);
            from = deferred.age + 1;
            match self.record_one_deferred(&deferred) {
                Ok(Recorded::All) => self.remove_deferred(self.driver(), entry),
                Ok(Recorded::Capturing(stream)) => {
                    capturing = Some(stream);
                    self.waits.deferred.lock().put_back_by(entry, stream);
                }
                Err(error) => {
                    // Moved to the end of the list, so that a block that always fails does not
                    // block the others.
                    self.waits.deferred.lock().move_to_end(entry);
                    return if matches!(error, Error::TableFull(_)) { Ok(false) } else { Err(error) };
                }
            }
        }
        Ok(true)
    }

    /// Records the events of a deferred block, unless the user stream that was capturing still is.
    fn record_one_deferred(self, deferred: &DeferredFree) -> Result<Recorded, Error> {
        let DeferredFree { block, .. } = *deferred;
        match deferred.captured().and_then(|captured| captured.by) {
            Some(stream) if self.driver().call(|device| device.is_capturing(stream))? => {
                Ok(Recorded::Capturing(stream))
            }
            // The free was traced when the block was deferred.
            _ => self.record_events(self.heaps().lock(block.slot), PendingFree { block, site: None }),
        }
    }

    /// Ends the wait of a taken block, for which nothing is left to do. Frees the block unless it
    /// waits for something else.
    pub(in crate::arena) fn end_deferred(self, entry: u32) {
        let DeferredFree { block, until, .. } = self.waits.deferred.lock().get(entry);
        if let Until::Fence(_) = until {
            self.end_use_fences(block);
        }
        // The entry goes first: a copy of the device that is made once the block is free must not
        // contain it. From here on, a wait for all blocks finds this thread by its count, for which
        // any group will do.
        let _ending = self.waits.queues.begin_ending(0);
        self.remove_deferred(self.driver(), entry);
        let mut heap = self.heaps().lock(block.slot);
        if let Until::Count(_) = until {
            let events = &mut heap.blocks[block.index].events;
            debug_assert!(*events & FRONTIER_BIT != 0, "the block waits for the frontier");
            *events &= !FRONTIER_BIT;
            self.outside.free_if_unused(heap, block);
        } else {
            self.end_uses(heap, PendingFree { block, site: None });
        }
    }

    /// Removes a taken block, and its mark in a graph.
    fn remove_deferred(self, driver: &Driver<P::Device>, entry: u32) {
        let captured = {
            let mut blocks = self.waits.deferred.lock();
            let captured = blocks.get(entry).captured();
            blocks.remove(entry);
            driver.flags.follow_deferred(&blocks);
            captured
        };
        if let Some(end) = captured.and_then(|captured| captured.end) {
            driver.device().remove_mark(end.mark);
        }
    }
}
