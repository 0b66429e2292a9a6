//! Questions after the events that pending blocks wait for.
//!
//! The events of one stream complete in order, so only the oldest event of a queue is asked after. No lock
//! is held during the call to the device: the queue is marked busy.

use crate::arena::{OnDevice, flags};
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::streams::groups::GroupSet;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::tables::slot_table::NONE;

/// The events of a device, to be asked after.
pub(super) struct Polls<'a, D, R: Lock, S: Storage>(pub OnDevice<'a, D, R, S>);

impl<D: DeviceMemory, R: Lock, S: Storage> Polls<'_, D, R, S> {
    /// Asks after the oldest event of every stream in `groups`, then after the next event of the stream as
    /// long as events are complete; with `slot`, only of streams for which blocks of that heap may wait.
    /// With `wait`, waits for the events, also for those that another thread is polling or recording.
    /// Returns the number of waits that have ended.
    ///
    /// An event with a failed call stays queued, and its blocks stay pending. Polling goes on with
    /// the other streams unless the context is lost, and the first error is returned.
    pub(super) fn poll(&self, groups: GroupSet, slot: Option<u32>, wait: bool) -> Result<u32, Error> {
        let device = self.0;
        let mut result = Ok(0);
        for group in groups.iter() {
            let polled = self.poll_group(group, slot, wait);
            result = match (result, polled) {
                (Ok(sum), Ok(finished)) => Ok(sum + finished),
                (result, polled) => result.and(polled),
            };
            if device.flags.has(flags::LOST) {
                break;
            }
        }
        result
    }

    /// [Polls](Self::poll) the events of one group.
    fn poll_group(&self, group: u32, slot: Option<u32>, wait: bool) -> Result<u32, Error> {
        let device = self.0;
        let (mut failed, mut finished) = (None, 0);
        // Events of one stream complete in order, so the first of a queue stands for the rest. The
        // queue is marked busy during the device call, since the lock of the queues is not held
        // then.
        let mut next = device.event_queues.lock(group).next_to_poll(0, slot);
        loop {
            let Some((queue, event)) = next else {
                if !wait || failed.is_some() {
                    break;
                }
                // The only queues left are busy: another thread is inside its device call.
                let mut order = device.event_queues.lock(group);
                if !order.is_at_work() {
                    break;
                }
                next = order.next_to_poll(0, slot);
                drop(order);
                if next.is_none() {
                    device.driver.give_way();
                }
                continue;
            };
            let polled =
                device.call(|memory| if wait { memory.wait(event).map(|()| true) } else { memory.is_complete(event) });
            let complete = matches!(polled, Ok(true));
            failed = failed.or(polled.err());
            finished += self.finish(group, queue, |_heap| complete);
            let from = if complete { queue } else { queue + 1 };
            let is_lost = device.flags.has(flags::LOST);
            next = if is_lost { None } else { device.event_queues.lock(group).next_to_poll(from, slot) };
        }
        failed.map_or(Ok(finished), |error| Err(error.into()))
    }

    /// Ends a poll of a queue. The event no longer holds blocks up of whose heap `leaves` is true, as of all
    /// heaps once the event is complete: frees those that waited for nothing else. Returns the number of
    /// waits that have ended.
    pub(super) fn finish(&self, group: u32, queue: usize, leaves: impl Fn(u32) -> bool) -> u32 {
        let device = self.0;
        let mut order = device.event_queues.lock(group);
        let (mut first, mut count) = (order.finish_poll(queue, leaves), 0);
        loop {
            let finished = order.take_finished(&mut first);
            device.flags.follow(group, &order);
            drop(order);
            for (slot, block) in finished {
                // The block cannot have become free or been reused: its count includes this event.
                let mut heap = device.heaps.lock(slot);
                heap.uses().end_waits(block, 1);
                device.finish_free_if_unused(slot, heap, block);
                count += 1;
            }
            if first == NONE {
                return count;
            }
            order = device.event_queues.lock(group);
        }
    }
}
