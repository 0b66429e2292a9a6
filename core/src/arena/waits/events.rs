//! The wait of a freed block that several streams use.
//!
//! A block has its *own* stream, and *user* streams: streams announced for the block by
//! [`Allocator::record_stream`](crate::Allocator::record_stream). When the program frees a block
//! with user streams, the block is *pending*. The allocator records an event on each user stream.
//! The block becomes free when all events are complete.
//!
//! ```text
//! wait_for_uses ─┬─ every use has its event ──────────────▶ deferred until they are complete ─▶ free
//!                └─ wait_from_now ─┬─ frees are gathered ──▶ queued, event later ─────────────▶ free
//!                                  ├─ no graph is captured ▶ queued with its events ──────────▶ free
//!                                  └─ a graph is captured ─▶ deferred ─ capture ends ─ queued ▶ free
//! ```
//!
//! Recording an event on a stream during a capture would add the event to the graph. Until the
//! capture ends, the block is deferred instead and keeps its list of user streams.
//!
//! While [`flags::GATHERS`] is set, gathered.rs takes the place of `record_events`: one event
//! covers several blocks, and only a request that no free block can serve polls events. A block
//! whose uses have their own events waits in ordered.rs.
//!
//! No lock is held across a call to the device. The lock of the event queues and the lock of a
//! heap are never held together.

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

/// Outcome of recording the events of a block.
pub(in crate::arena) enum Recorded {
    /// Every user stream has an event for the block.
    All,
    /// No event of the block is queued: the given user stream captures a graph.
    Capturing(StreamId),
}

impl<'a, P: Platform, O: Outside<'a, P>> DeviceWaits<'a, P, O> {
    /// Lets a pending block wait until the user streams have finished with it. Unlocks the heap.
    ///
    /// Records the events now, unless the uses have theirs, or defers the recording during a
    /// capture.
    ///
    /// # Errors
    /// [`Error::TableFull`]; those of the device. The block then waits for nothing, and has all
    /// user streams.
    pub(in crate::arena) fn wait_for_uses(self, mut heap: HeapGuard<'_, P>, free: PendingFree) -> Result<(), Error> {
        let recorded = heap.uses().events(free.block.index);
        if recorded == Events::None && !self.driver().flags.may_reuse_in_graph() {
            return self.wait_from_now(heap, free);
        }
        drop(heap);
        self.outside.follow_pending(free.block.slot);
        self.wait_by_events(free, recorded)
    }

    /// Lets a pending block wait by the events of the uses, or by the graph being captured; else as
    /// [`wait_from_now`](Self::wait_from_now) does.
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

    /// Lets a pending block wait for what its user streams have to do now. Unlocks the heap, and
    /// then follows the pending block in the peaks.
    fn wait_from_now(self, mut heap: HeapGuard<'_, P>, free: PendingFree) -> Result<(), Error> {
        if self.driver().flags.has(flags::GATHERS) && !is_captured(&self.driver().flags, &mut heap, free.block.index) {
            return self.gather(heap, free);
        }
        if let Some(_permission) = self.driver().may_record() {
            return match self.record_events(heap, free)? {
                Recorded::All => Ok(()),
                // The program captures without `begin_capture`, so no flag told of the capture.
                Recorded::Capturing(stream) => {
                    self.defer(free, Until::Captured(Captured { by: Some(stream), end: None }))
                }
            };
        }
        drop(heap);
        self.outside.follow_pending(free.block.slot);
        self.defer(free, Until::Captured(Captured::default()))
    }

    /// Records an event on every user stream of a pending block. Afterwards the events alone decide
    /// when the block becomes free, and the block forgets the user streams. Unlocks the heap, and
    /// then follows the pending block in the peaks.
    ///
    /// If a recording fails, the block waits for no event and keeps the user streams.
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

    /// Counts the waits of a pending block, and queues each by `queue`, one user stream after the
    /// other. Unlocks the heap, and then follows the pending block in the peaks. Returns the heap,
    /// locked again, once all are queued.
    ///
    /// # Errors
    /// The loss of the context. The first error of `queue`, and its stream: the block then waits
    /// for no event.
    pub(in crate::arena) fn queue_waits(
        self,
        mut heap: HeapGuard<'_, P>,
        block: PendingBlock,
        mut queue: impl FnMut(StreamId) -> Result<(), Error>,
    ) -> Result<HeapGuard<'a, P>, (Option<StreamId>, Error)> {
        self.driver().health().map_err(|error| (None, error.into()))?;
        // A pending block is in no set, so only this call changes its list of uses. The list can be
        // walked in parts, with the heap unlocked in between for the device calls.
        let mut next = heap.blocks[block.index].uses;
        // The waits are counted before they are queued: a thread that polls a queue may find the
        // event complete at once, and decrements the count.
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

    /// Frees every block whose events are complete, after recording the events deferred by a
    /// capture that has ended. Does not wait.
    pub(crate) fn process_events(self) -> Result<(), Error> {
        let flags = &self.driver().flags;
        self.driver().health()?;
        // Every request comes here while blocks wait in PyTorch's way, mostly for events alone:
        // what has no flag is not called.
        let mut result = Ok(());
        if flags.has(flags::DEFERRED | flags::HAS_GATHERED) {
            // A full table is no error here: the blocks stay deferred until other events are
            // complete.
            result = self.record_deferred().and_then(|_all| self.record_open()).map(|_ended| ());
        }
        // Poll even if a recording failed, so that one failure holds up no other block.
        result = result.and(self.poll_queues(flags.waiting(), None, false).map(|_ended| ()));
        if flags.has(flags::ORDERED) {
            result = result.and(self.poll_ordered().map(|_ended| ()));
        }
        result
    }

    /// Waits until no event is pending, and frees all blocks that wait for them. Blocks that a
    /// stream uses that still captures stay pending.
    pub(crate) fn wait_for_events(self) -> Result<(), Error> {
        self.outside.count_sync();
        if !self.driver().flags.has(flags::PENDING | flags::GATHERED | flags::DEFERRED | flags::ORDERED) {
            return Ok(());
        }
        self.driver().health()?;
        let ordered = self.wait_for_ordered();
        self.wait_for_queues().and(ordered)
    }

    /// Waits until no event is queued, and frees all blocks that wait for them.
    fn wait_for_queues(self) -> Result<(), Error> {
        loop {
            let recorded = self.record_deferred();
            let gathered = self.record_all_open();
            let waiting = self.driver().flags.waiting();
            let waited = self.poll_queues(waiting, None, true);
            let waited = gathered.and(waited).map(|_finished| ());
            match recorded {
                // The table of events was full. The wait has completed some, so there is room now.
                Ok(false) if waiting != GroupSet::default() && waited.is_ok() => {}
                // The table is full although no event is queued: another round cannot help.
                Ok(false) => return waited.and(Err(Error::TableFull("events"))),
                recorded => return recorded.map(|_all| ()).and(waited),
            }
        }
    }

    /// Cancels the waits of a block, of which `unqueued` are counted and not queued, and returns
    /// when none is left.
    ///
    /// An event being polled or recorded by another thread stays queued. If the event is complete,
    /// the other thread decrements the block's count; if not, the next round cancels the event.
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

    /// Records a fence after the announced work of `stream`, and queues a block with the fence.
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
/// the use, which needs no event, and may do other work until the capture ends.
fn is_captured<S: Storage>(flags: &Flags, heap: &mut Heap<S>, block: u32) -> bool {
    flags.has(flags::CAPTURE) && heap.uses().is_any_captured(block)
}

impl<'a, P: Platform, O: Outside<'a, P>> DeviceWaits<'a, P, O> {
    /// Forgets the user streams of a pending block, which waits for its events alone from now on,
    /// and frees the block if all of them are complete. Traces the free. Unlocks the heap.
    pub(in crate::arena) fn end_uses(self, mut heap: HeapGuard<'_, P>, PendingFree { block, site }: PendingFree) {
        if let Some(site) = site {
            self.outside.free_requested(&mut heap, block.index, site);
        }
        // Until here `uses` kept the block pending, even if all its events were complete already.
        // Dropping the uses and the check must therefore happen under one lock.
        heap.uses().clear(block.index);
        // Mostly an event was recorded a moment ago.
        if heap.blocks[block.index].events == 0 {
            self.outside.free_if_unused(heap, block);
        }
    }
}
