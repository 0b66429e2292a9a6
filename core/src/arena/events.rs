//! Events: blocks that other streams used become free when every event behind those uses is complete.

use crate::arena::{Arena, OnDevice, flags};
use crate::device::{DeviceError, DeviceMemory, ErrorKind, Event};
use crate::error::Error;
use crate::heap::Heap;
use crate::heap::block::Use;
use crate::stats;
use crate::streams::event_queue::{Deferred, EventQueues};
use crate::streams::frontier::AHEAD;
use crate::sync::{Lock, MutexGuard};
use crate::tables::slot_table::NONE;
use crate::tables::{CapacityError, Storage};
use crate::units::StreamId;

/// What became of the events of a block that other streams use.
enum Recorded {
    /// One is recorded on each of the streams.
    All,
    /// None is: this stream captures a graph, of which the event would become a part.
    NoneBehind(StreamId),
}

/// Whether a call failed because a graph is being captured.
fn is_of_capture(error: &Error) -> bool {
    matches!(error, Error::Device(DeviceError { kind: ErrorKind::NotPermittedInCapture, .. }))
}

impl<D: DeviceMemory, R: Lock, S: Storage> OnDevice<'_, D, R, S> {
    /// A block that was given up, and is pending, becomes free when the streams that use it are done. If that cannot be arranged it is
    /// the program's again.
    pub(crate) fn wait_for_uses(self, slot: u32, block: u32, site: u32) -> Result<(), Error> {
        let tally = &self.slot(slot).tally;
        self.with_totals(|_| tally.follow_pending());
        let waiting = if let Some(_permission) = self.driver.may_record(&self.flags) {
            match self.record_events(slot, block, Some(site)) {
                Ok(Recorded::All) => Ok(()),
                Ok(Recorded::NoneBehind(stream)) => self.defer(slot, block, Some(stream), site),
                Err(error) => Err(error),
            }
        } else {
            self.defer(slot, block, None, site)
        };
        self.set_pending(&self.order.lock());
        if waiting.is_err() {
            let mut heap = self.lock(slot);
            heap.blocks[block].events = 0;
            heap.undo_free(block, tally);
        }
        waiting
    }

    /// Records an event on every stream that uses a pending block; from then on the events decide when it becomes free. If one
    /// cannot be recorded the block waits for none, and still knows the streams. `requested`: where the block
    /// was freed, which is certain only now.
    fn record_events(self, slot: u32, block: u32, requested: Option<u32>) -> Result<Recorded, Error> {
        self.health()?;
        let mut at = self.lock(slot).blocks[block].uses;
        while at != NONE {
            let (stream, captured, next) = {
                let heap = self.lock(slot);
                let Use { stream, captured, next } = heap.sets.uses[at];
                (stream, captured, next)
            };
            if !captured {
                match self.record_event(stream) {
                    Ok(event) => {
                        // Counted before it is queued: whoever finds it complete takes it away again.
                        self.lock(slot).blocks[block].events += 1;
                        self.order.lock().push(stream, event, slot, block);
                    }
                    Err(error) => {
                        self.cancel_events(slot, block);
                        return if is_of_capture(&error) { Ok(Recorded::NoneBehind(stream)) } else { Err(error) };
                    }
                }
            }
            at = next;
        }
        let mut heap = self.lock(slot);
        if let Some(site) = requested {
            self.trace_free(&mut heap, block, site);
        }
        heap.drop_uses(block);
        self.finish_free_if_unused(slot, heap, block);
        Ok(Recorded::All)
    }

    /// Frees every block whose events are complete, and records those that a capture had deferred.
    pub(crate) fn process_events(self) -> Result<(), Error> {
        self.health()?;
        // What there is no room for stays deferred until other events are complete.
        let recorded = self.record_deferred().map(|_all| ());
        recorded.and(self.poll_events(false, |event| self.driver.device().is_complete(event)))
    }

    /// Waits until nothing is pending, and frees all of it. Counts as a synchronisation of all streams.
    pub(crate) fn wait_for_events(self) -> Result<(), Error> {
        self.totals.count(stats::Event::SyncAllStreams);
        if !self.flags.has(flags::PENDING) {
            return Ok(());
        }
        self.health()?;
        loop {
            let recorded = self.record_deferred();
            let waiting = self.order.lock().is_waiting();
            let waited = self.poll_events(true, |event| self.driver.device().wait(event).map(|()| true));
            match recorded {
                // There is room for more events now.
                Ok(false) if waiting && waited.is_ok() => {}
                Ok(false) => return waited.and(Err(Error::TableFull("events"))),
                recorded => return recorded.map(|_all| ()).and(waited),
            }
        }
    }

    /// Records the events of the blocks for which a capture had deferred that, but for those that a capturing stream uses. False if
    /// there is no room for all.
    fn record_deferred(self) -> Result<bool, Error> {
        let (mut from, mut capturing) = (0, None);
        while self.flags.has(flags::DEFERRED)
            && let Some(_permission) = self.driver.may_record(&self.flags)
        {
            // One answer counts for every block behind the same stream.
            let tried = self.order.lock().try_deferred(from, capturing);
            let Some((number, deferred)) = tried else { break };
            let recorded = self.record_late(deferred);
            let mut order = self.order.lock();
            match recorded {
                Ok(Recorded::All) => {
                    order.end_deferral(deferred);
                    from = number;
                }
                Ok(Recorded::NoneBehind(stream)) => {
                    order.defer_longer(deferred, stream);
                    (from, capturing) = (number + 1, Some(stream));
                }
                Err(error) => {
                    order.defer_again(deferred);
                    return if matches!(error, Error::TableFull(_)) { Ok(false) } else { Err(error) };
                }
            }
            self.set_pending(&order);
        }
        Ok(true)
    }

    /// Records the events of a deferred block, unless the stream that it was behind still captures.
    fn record_late(self, deferred: Deferred) -> Result<Recorded, Error> {
        let Deferred { heap, block, behind, .. } = deferred;
        match behind {
            Some(stream) if self.call(|device| device.is_capturing(stream))? => Ok(Recorded::NoneBehind(stream)),
            _ => self.record_events(heap, block, None),
        }
    }

    /// Asks after the oldest event of every stream, and goes on with the next of the same stream as long as they are complete.
    /// An event that cannot be asked after stays where it is, and its block with it: the rest goes on unless the context is
    /// lost, the first such error is returned. `all`: also those that another thread is asking after at the moment.
    fn poll_events(self, all: bool, ask: impl Fn(Event) -> crate::device::DeviceResult<bool>) -> Result<(), Error> {
        let mut failed = None;
        let mut next = self.order.lock().ask(0);
        loop {
            let Some((queue, wait)) = next else {
                if !all || failed.is_some() {
                    break;
                }
                // What others are asking after is not complete before they have the answer.
                let mut order = self.order.lock();
                if !order.is_asked() {
                    break;
                }
                next = order.ask(0);
                core::hint::spin_loop();
                continue;
            };
            let answer = self.call(|_| ask(wait.event));
            let complete = matches!(answer, Ok(true));
            failed = failed.or(answer.err());
            next = {
                let mut order = self.order.lock();
                order.answer(queue, complete);
                self.set_pending(&order);
                let more = if complete { queue } else { queue + 1 };
                if self.flags.has(flags::LOST) { None } else { order.ask(more) }
            };
            if complete {
                let mut heap = self.lock(wait.heap);
                heap.blocks[wait.block].events -= 1;
                self.finish_free_if_unused(wait.heap, heap, wait.block);
            }
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// A pending block becomes free if nothing uses it any longer. The lock is held from the change that may have made it so, so
    /// that of several such changes exactly one finds it unused; it is given up.
    pub(crate) fn finish_free_if_unused(self, slot: u32, mut heap: MutexGuard<'_, R, Heap<S>>, block: u32) {
        if heap.blocks[block].uses != NONE || heap.blocks[block].events > 0 {
            return;
        }
        self.trace_completion(&mut heap, block);
        let peaks_stale = heap.unpend(block, &self.slot(slot).tally);
        drop(heap);
        if peaks_stale {
            self.reconcile_peaks(self.slot(slot));
        }
        if self.flags.has(flags::DIRECT) {
            self.release_directly(slot);
        }
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Defers the recording of a pending block's events: a graph is being captured, perhaps on the stream `behind`, which uses it.
    fn defer(&self, slot: u32, block: u32, behind: Option<StreamId>, site: u32) -> Result<(), Error> {
        if !self.order.lock().promise_deferral() {
            return Err(Error::TableFull("deferred frees"));
        }
        self.trace_free(&mut self.lock(slot), block, site);
        self.order.lock().defer(Deferred::new(slot, block, behind));
        Ok(())
    }

    /// Takes a block's events back. One that somebody is asking after is theirs: it comes back when they have the answer, or
    /// they take it off the block's count.
    fn cancel_events(&self, slot: u32, block: u32) {
        loop {
            let withdrawn = self.order.lock().withdraw(slot, block);
            let mut heap = self.lock(slot);
            heap.blocks[block].events -= withdrawn;
            if heap.blocks[block].events & !AHEAD == 0 {
                return;
            }
            drop(heap);
            core::hint::spin_loop();
        }
    }

    /// An event that marks the present end of `stream`, to be queued.
    fn record_event(&self, stream: StreamId) -> Result<Event, Error> {
        let promised = self.order.lock().promise();
        let resting = promised.map_err(|CapacityError| Error::TableFull("events"))?;
        let made = resting.map_or_else(|| self.call(D::create_event), Ok);
        let recorded = made.and_then(|event| self.call(|device| device.record(event, stream)).map(|()| event));
        if recorded.is_err() {
            self.order.lock().give_promise_back(made.ok());
        }
        Ok(recorded?)
    }

    /// Sets the flag that sends requests the attentive way while anything is pending.
    fn set_pending(&self, order: &EventQueues<S>) {
        self.flags.set(flags::PENDING, !order.is_idle());
        self.flags.set(flags::DEFERRED, order.has_deferred());
    }
}
