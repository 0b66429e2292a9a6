//! Polling of the events that pending blocks wait for.
//!
//! The events of one stream complete in order, so only the oldest event of a queue is polled. No
//! lock is held during the call to the device; the queue is marked busy instead.

use crate::arena::flags;
use crate::arena::platform::Platform;
use crate::arena::waits::{DeviceWaits, Outside};
use crate::device::{Event, StreamOrder};
use crate::error::Error;
use crate::streams::event_queue::EventQueues;
use crate::streams::groups::GroupSet;
use crate::sync::MutexGuard;
use crate::tables::slot_table::NONE;
use core::iter::from_fn;

impl<'a, P: Platform, O: Outside<'a, P>> DeviceWaits<'a, P, O> {
    /// Polls the oldest event of every stream in `groups`, and then the next one for as long as
    /// they are complete. With `slot`, polls only streams that blocks of this heap may wait for.
    /// With `wait`, waits for the events, including those that another thread is polling or
    /// recording. Returns the number of waits that have ended.
    ///
    /// If a call fails, its event stays queued, and the blocks stay pending. Polling continues with
    /// the other streams unless the context is lost, and the first error is returned.
    pub(in crate::arena) fn poll_queues(self, groups: GroupSet, slot: Option<u32>, wait: bool) -> Result<u32, Error> {
        let mut result = Ok(0);
        for group in groups.iter() {
            let polled = self.poll_group(group, slot, wait);
            result = match (result, polled) {
                (Ok(sum), Ok(finished)) => Ok(sum + finished),
                (result, polled) => result.and(polled),
            };
            if self.driver().flags.has(flags::LOST) {
                break;
            }
        }
        result
    }

    /// Iterates over the queues of `groups` that `next` finds, as pairs of group and queue. `next`
    /// is passed the number of the queue to start from. Other threads may work on the queues
    /// between two steps.
    pub(in crate::arena) fn each_queue(
        self,
        groups: GroupSet,
        next: impl Fn(&EventQueues<P::Storage>, usize) -> Option<usize> + Copy,
    ) -> impl Iterator<Item = (u32, usize)> {
        groups.iter().flat_map(move |group| {
            let mut from = 0;
            from_fn(move || {
                let queue = next(&self.waits.queues.lock(group), from)?;
                from = queue + 1;
                Some((group, queue))
            })
        })
    }

    /// [Polls](Self::poll_queues) the events of one group.
    fn poll_group(self, group: u32, slot: Option<u32>, wait: bool) -> Result<u32, Error> {
        let (mut failed, mut finished) = (None, 0);
        // Events of one stream complete in order, so the first of a queue answers for the rest. The
        // queue is marked busy because its lock is not held during the call to the device.
        let mut next = self.waits.queues.lock(group).next_to_poll(0, slot);
        loop {
            let Some((queue, event)) = next else {
                if !wait || failed.is_some() {
                    break;
                }
                // The only queues left are busy: another thread is inside its call to the device.
                // Look again first, because this thread may have recorded an event and left since
                // the last look.
                let mut order = self.waits.queues.lock(group);
                next = order.next_to_poll(0, slot);
                if next.is_none() && !order.is_at_work() {
                    break;
                }
                drop(order);
                if next.is_none() {
                    self.driver().give_way();
                }
                continue;
            };
            let polled = if wait {
                self.driver().wait(|memory| memory.wait(event)).map(|()| true)
            } else {
                self.driver().call(|memory| memory.is_complete(event))
            };
            let complete = matches!(polled, Ok(true));
            failed = failed.or(polled.err());
            let from = if complete { queue } else { queue + 1 };
            // After the context is lost, no other event is polled.
            let then = (!self.driver().flags.has(flags::LOST)).then_some((from, slot));
            let ended;
            (ended, next) = self.finish_and_go_on(group, queue, |_heap| complete, then);
            finished += ended;
        }
        failed.map_or(Ok(finished), |error| Err(error.into()))
    }

    /// Ends a poll of a queue. Blocks stop waiting for the event if `leaves` returns true for their
    /// heap; it does so for all heaps once the event is complete. Frees the blocks that waited for
    /// nothing else, and returns the number of waits that have ended.
    pub(in crate::arena) fn finish_poll(self, group: u32, queue: usize, leaves: impl Fn(u32) -> bool) -> u32 {
        self.finish_and_go_on(group, queue, leaves, None).0
    }

    /// Ends the question whether the stream of a queue is idle, with the device's answer. If the
    /// stream was idle, frees the blocks that waited for nothing else. Returns the number of waits
    /// that have ended.
    pub(in crate::arena) fn finish_question(self, group: u32, queue: usize, idle: Option<bool>) -> u32 {
        let mut order = self.waits.queues.lock(group);
        let first = order.finish_question(queue, idle);
        self.free_from(group, order, first, None).0
    }

    /// Ends a poll of a queue as [`finish_poll`](Self::finish_poll) does. With `then`, also starts
    /// the next poll, as
    /// [`EventQueues::next_to_poll`](crate::streams::event_queue::EventQueues::next_to_poll) does,
    /// and returns it.
    fn finish_and_go_on(
        self,
        group: u32,
        queue: usize,
        leaves: impl Fn(u32) -> bool,
        then: Option<(usize, Option<u32>)>,
    ) -> (u32, Option<(usize, Event)>) {
        let mut order = self.waits.queues.lock(group);
        let first = order.finish_poll(queue, leaves);
        self.free_from(group, order, first, then)
    }

    /// Frees the blocks that left a queue, from `first` on, if they wait for nothing else. Unlocks
    /// the queues. For `then` and the results see [`finish_and_go_on`](Self::finish_and_go_on).
    pub(in crate::arena) fn free_from(
        self,
        group: u32,
        mut order: MutexGuard<'a, P::Lock, EventQueues<P::Storage>>,
        mut first: u32,
        then: Option<(usize, Option<u32>)>,
    ) -> (u32, Option<(usize, Event)>) {
        let mut count = 0;
        // From here on a wait for all blocks does not find these in the queues.
        let _ending = (first != NONE).then(|| self.waits.queues.begin_ending(group));
        loop {
            let finished = order.take_finished(&mut first);
            let is_last = first == NONE;
            let next = then.filter(|_| is_last).and_then(|(from, slot)| order.next_to_poll(from, slot));
            self.driver().flags.follow(group, &order);
            drop(order);
            count += finished.len() as u32;
            for of_heap in finished.chunk_by(|one, next| one.slot == next.slot) {
                self.outside.end_waits(of_heap[0].slot, of_heap.iter().map(|block| block.index));
            }
            if is_last {
                return (count, next);
            }
            order = self.waits.queues.lock(group);
        }
    }
}
