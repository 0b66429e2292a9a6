//! The wait of a freed block that several streams use.
//!
//! A block has its *own* stream, and it may have *user* streams, which were announced with
//! [`Allocator::record_stream`](crate::Allocator::record_stream). When the program frees a block
//! with user streams, the block is *pending*: the allocator records an event on each user stream,
//! and the block becomes free when all these events are complete.
//!
//! ```text
//! wait_for_uses ─┬─ every use has its event ──────────────▶ deferred until they are complete ─▶ free
//!                └─ wait_from_now ─┬─ frees are gathered ──▶ queued, event later ─────────────▶ free
//!                                  ├─ no graph is captured ▶ queued with its events ──────────▶ free
//!                                  └─ a graph is captured ─▶ deferred ─ capture ends ─ queued ▶ free
//! ```
//!
//! An event recorded on a stream during a capture would become part of the graph. The block is
//! therefore deferred until the capture ends, and keeps its list of user streams.
//!
//! While [`flags::GATHERS`] is set, gathered.rs replaces `record_events`: one event covers several
//! blocks, and events are polled only for a request that no free block can serve. A block whose
//! uses have their own events waits in ordered.rs.
//!
//! No lock is held across a call to the device. The lock of the event queues and the lock of a heap
//! are never held together.

use crate::arena::driver::Driver;
use crate::arena::flags::{self, Flags};
use crate::arena::heaps::HeapGuard;
use crate::arena::platform::Platform;
use crate::arena::waits::{DeviceWaits, Outside};
use crate::device::StreamOrder;
use crate::error::Error;
use crate::heap::Heap;
use crate::heap::uses::Events;
use crate::streams::deferred_frees::{Captured, Until};
use crate::streams::fences::Waiter;
use crate::streams::groups::GroupSet;
use crate::streams::pending::{PendingBlock, PendingFree};
use crate::tables::slot_table::NONE;
use crate::tables::{CapacityError, Storage};
use crate::units::StreamId;

/// The outcome of recording the events of a block.
pub(in crate::arena) enum Recorded {
    /// Every user stream has an event for the block.
    All,
    /// The block has no event in any queue, because the given user stream captures a graph.
    Capturing(StreamId),
}

impl<'a, P: Platform, O: Outside<'a, P>> DeviceWaits<'a, P, O> {
    /// Makes a pending block wait until its user streams have finished with it. Unlocks the heap.
    ///
    /// Records the events now, unless the uses already have them. During a capture, defers the
    /// recording.
    ///
    /// # Errors
    /// [`Error::TableFull`]; those of the device. The block then waits for nothing, and keeps all
    /// its user streams.
    pub(in crate::arena) fn wait_for_uses(self, mut heap: HeapGuard<'_, P>, free: PendingFree) -> Result<(), Error> {
        let recorded = heap.uses().events(free.block.index);
        if recorded == Events::None && !self.driver().flags.may_reuse_in_graph() {
            return self.wait_from_now(heap, free);
        }
        drop(heap);
        self.outside.follow_pending(free.block.slot);
        self.wait_by_events(free, recorded)
    }

    /// Makes a pending block wait for the events of its uses, or for the graph being captured. If
    /// it has neither, does what [`wait_from_now`](Self::wait_from_now) does.
    fn wait_by_events(self, free: PendingFree, recorded: Events) -> Result<(), Error> {
        let PendingBlock { slot, index } = free.block;
        match recorded {
            Events::All if !is_captured(&self.driver().flags, &mut self.heaps().lock(slot), index) => {
                return self.wait_for_uses_so_far(free);
            }
            Events::All | Events::Some => self.end_use_fences(free.block),
            Events::None => {
                if let Some(end) = self.mark_end_in_graph(free.block) {
                    let deferred = self.defer(free, Until::Captured(Captured { by: None, end: Some(end) }));
                    return deferred.inspect_err(|_| self.driver().device().remove_mark(end.mark));
                }
            }
        }
        self.wait_from_now(self.heaps().lock(slot), free)
    }

    /// Makes a pending block wait for the present work of its user streams. Unlocks the heap, and
    /// then updates the peaks for the pending block.
    fn wait_from_now(self, mut heap: HeapGuard<'_, P>, free: PendingFree) -> Result<(), Error> {
        if self.driver().flags.has(flags::GATHERS) && !is_captured(&self.driver().flags, &mut heap, free.block.index) {
            return self.gather(heap, free);
        }
        if let Some(_permission) = self.driver().may_record() {
            return match self.record_events(heap, free)? {
                Recorded::All => Ok(()),
                // The program captures without `begin_capture`, so no flag showed the capture.
                Recorded::Capturing(stream) => {
                    self.defer(free, Until::Captured(Captured { by: Some(stream), end: None }))
                }
            };
        }
        drop(heap);
        self.outside.follow_pending(free.block.slot);
        self.defer(free, Until::Captured(Captured::default()))
    }

    /// Records an event on every user stream of a pending block. The block then forgets its user
    /// streams, because the events alone decide when it becomes free. Unlocks the heap, and then
    /// updates the peaks for the pending block.
    ///
    /// If a recording fails, the block waits for no event and keeps its user streams.
    pub(in crate::arena) fn record_events(self, heap: HeapGuard<'_, P>, free: PendingFree) -> Result<Recorded, Error> {
        let queued = self.queue_waits(heap, free.block, |stream| self.record_wait(self.driver(), stream, free.block));
        match queued {
            Ok(heap) => {
                self.end_uses(heap, free);
                Ok(Recorded::All)
            }
            Err((Some(stream), error)) if error.is_of_capture() => Ok(Recorded::Capturing(stream)),
            Err((_, error)) => Err(error),
        }
    }

    /// Counts the waits of a pending block, and calls `queue` for one user stream after the other
    /// to queue each wait. Unlocks the heap, and then updates the peaks for the pending block.
    /// Returns the heap, locked again, once all waits are queued.
    ///
    /// # Errors
    /// The loss of the context, or the first error of `queue` with its stream. The block then waits
    /// for no event.
    pub(in crate::arena) fn queue_waits(
        self,
        mut heap: HeapGuard<'_, P>,
        block: PendingBlock,
        mut queue: impl FnMut(StreamId) -> Result<(), Error>,
    ) -> Result<HeapGuard<'a, P>, (Option<StreamId>, Error)> {
        self.driver().health().map_err(|error| (None, error.into()))?;
        // A pending block is in no set, so only this call changes its list of uses. The list can
        // therefore be walked in parts, with the heap unlocked in between for the calls to the
        // device.
        let mut next = heap.blocks[block.index].uses;
        // The waits are counted before they are queued, because another thread that polls a queue
        // may find the event complete at once, and decrement the count.
        let group_of = |stream| self.waits.queues.of(stream);
        let mut streams = heap.uses().begin_waits(block.index, &mut next, group_of);
        drop(heap);
        self.outside.follow_pending(block.slot);
        loop {
            for (queued, &stream) in streams.iter().enumerate() {
                if let Err(error) = queue(stream) {
                    self.cancel_events(block, (streams.len() - queued) as u32);
                    return Err((Some(stream), error));
                }
            }
            let mut heap = self.heaps().lock(block.slot);
            if next == NONE {
                return Ok(heap);
            }
            streams = heap.uses().begin_waits(block.index, &mut next, group_of);
        }
    }

    /// Frees every block whose events are complete. First records the events that were deferred by
    /// a capture that has ended. Does not wait.
    pub(crate) fn process_events(self) -> Result<(), Error> {
        let flags = &self.driver().flags;
        self.driver().health()?;
        // While blocks wait in PyTorch's way, every request comes here, mostly for events alone. So
        // nothing is called without its flag.
        let mut result = Ok(());
        if flags.has(flags::DEFERRED | flags::HAS_GATHERED) {
            // A full table is not an error here: the blocks stay deferred until other events are
            // complete.
            result = self.record_deferred().and_then(|_all| self.record_open()).map(|_ended| ());
        }
        // Poll even if a recording failed, so that one failure does not hold up other blocks.
        result = result.and(self.poll_queues(flags.waiting(), None, false).map(|_ended| ()));
        if flags.has(flags::ORDERED) {
            result = result.and(self.poll_ordered().map(|_ended| ()));
        }
        result
    }

    /// Waits until no event is pending, and frees all blocks that wait for them. A block stays
    /// pending if a stream that uses it still captures.
    pub(crate) fn wait_for_events(self) -> Result<(), Error> {
        self.outside.count_sync();
        let mut waited = Ok(());
        if self.driver().flags.are_waiting() {
            self.driver().health()?;
            let ordered = self.wait_for_ordered();
            waited = self.wait_for_queues().and(ordered);
        }
        // No flag shows the blocks that other threads have taken out of the queues.
        while self.waits.queues.are_ending() {
            self.driver().give_way();
        }
        waited
    }

    /// Waits until no event is queued, and frees all blocks that wait for them.
    fn wait_for_queues(self) -> Result<(), Error> {
        loop {
            let recorded = self.record_deferred();
            // Another thread may be about to queue the events of a deferred block.
            while self.waits.deferred.lock().is_at_work() {
                self.driver().give_way();
            }
            let gathered = self.record_all_open();
            let waiting = self.driver().flags.waiting();
            let waited = self.poll_queues(waiting, None, true);
            let waited = gathered.and(waited).map(|_finished| ());
            match recorded {
                // The table of events was full. The wait has completed some of them, so there is
                // room now.
                Ok(false) if waiting != GroupSet::default() && waited.is_ok() => {}
                // The table is full although no event is queued, so another round cannot help.
                Ok(false) => return waited.and(Err(Error::TableFull("events"))),
                recorded => return recorded.map(|_all| ()).and(waited),
            }
        }
    }

    /// Cancels the waits of a block, and returns when none is left. `unqueued` of them are counted
    /// but not queued.
    ///
    /// An event that another thread is polling or recording stays queued. If it is complete, this
    /// thread decrements the block's count; if not, the next round cancels the event.
    fn cancel_events(self, block: PendingBlock, unqueued: u32) {
        let mut cancelled = unqueued;
        loop {
            let groups = {
                let mut heap = self.heaps().lock(block.slot);
                if heap.uses().end_waits(block.index, cancelled) == 0 {
                    return;
                }
                heap.waiting()
            };
            cancelled = 0;
            for group in groups.iter() {
                let mut order = self.waits.queues.lock(group);
                cancelled += order.cancel(block);
                self.driver().flags.follow(group, &order);
            }
            if cancelled == 0 {
                self.driver().give_way();
            }
        }
    }

    /// Records a fence after the announced work of `stream`, and queues a block with it.
    fn record_wait(self, driver: &Driver<P::Device>, stream: StreamId, block: PendingBlock) -> Result<(), Error> {
        let fence = self.waits.record_fence(driver, stream, Waiter::Blocks)?;
        let group = self.waits.queues.of(stream);
        let mut order = self.waits.queues.lock(group);
        let queued = order.push(fence, block);
        driver.flags.follow(group, &order);
        drop(order);
        queued.map_err(|CapacityError| {
            self.waits.end_fence(driver, fence, Waiter::Blocks);
            Error::TableFull("events")
        })
    }
}

/// Returns whether a graph being captured uses a pending block on another stream. The graph orders
/// this use, so it needs no event. The graph may do other work until the capture ends.
fn is_captured<S: Storage>(flags: &Flags, heap: &mut Heap<S>, block: u32) -> bool {
    flags.has(flags::CAPTURE) && heap.uses().is_any_captured(block)
}

impl<'a, P: Platform, O: Outside<'a, P>> DeviceWaits<'a, P, O> {
    /// Forgets the user streams of a pending block, which from now on waits for its events alone.
    /// Frees the block if all of them are complete. Traces the free. Unlocks the heap.
    pub(in crate::arena) fn end_uses(self, mut heap: HeapGuard<'_, P>, PendingFree { block, site }: PendingFree) {
        if let Some(site) = site {
            self.outside.free_requested(&mut heap, block.index, site);
        }
        // Until here `uses` kept the block pending, even if all its events were already complete.
        // So the uses must be dropped and the events checked under one lock.
        heap.uses().clear(block.index);
        // In most cases an event was recorded just before.
        if heap.blocks[block.index].events == 0 {
            self.outside.free_if_unused(heap, block);
        }
    }
}
