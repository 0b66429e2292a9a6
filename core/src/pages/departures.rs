//! Departures: the work that a stream had when memory was given up, and what happens when this work
//! is complete.
//!
//! ```text
//! given up                    work complete ⟹
//! pages of a range            their old places are unmapped · before, other streams are ordered after the fence
//! free blocks of a heap       they are quiet: an epoch of the heap ends
//! a retired segment           the segment may go back to the device
//! ```
//!
//! The fences of a stream complete in the order in which they were recorded, so only the oldest
//! departure of each stream is polled. The queues of ended streams keep this order, too.
//!
//! A departure exists as long as a page or an operation refers to it. The last reference ends the
//! fence. The departure of an epoch is referenced by the epoch.

use crate::streams::fences::Fence;
use crate::sync::impl_empty;
use crate::tables::radix_tree::{Key, Link, RadixTree};
use crate::tables::slot_table::{NONE, SlotTable, Vacant, vacant};
use crate::tables::{CapacityError, Storage};
use crate::units::{DevicePtr, NO_STREAM, StreamId};

/// The memory that was given up with a departure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Departing {
    /// Pages of ranges.
    Pages,
    /// The free blocks of the heap in `slot` that have a stamp below `stamp`. By the time the work
    /// is complete, the heap may belong to another stream, and to another pool than `pool`.
    Blocks { slot: u32, pool: u32, stamp: u64 },
    /// A segment that is in no heap, so no request can get it any more.
    Segment { base: DevicePtr, bytes: u64 },
    /// Nothing any more, because the segment was given back.
    Nothing,
}

/// The end of the last work on memory that was given up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Departure {
    /// The fence recorded after the work. `None` ⟹ `complete`, or `what` is a segment.
    pub fence: Option<Fence>,
    /// The stream of the work, or [`NO_STREAM`] once the stream has ended.
    pub stream: StreamId,
    /// The memory that was given up.
    pub what: Departing,
    /// Whether the work is known to be complete.
    pub complete: bool,
    /// How many departures were added before this one.
    pub age: u64,
    /// The number of references. 0 ⟺ the entry is vacant.
    refs: u32,
    /// The queue of the stream, while the event is not known to be complete.
    queue: u32,
    /// Whether the departure is in the set of [completed](Departures::next_completed) ones.
    listed: bool,
    /// The departure that holds the fence for this one and for others, or [`NONE`].
    keeper: u32,
    /// The next vacant entry.
    next: u32,
}

vacant!(Departure, next, |next| Self {
    fence: None,
    stream: NO_STREAM,
    what: Departing::Nothing,
    complete: false,
    age: 0,
    refs: 0,
    queue: NONE,
    listed: false,
    keeper: NONE,
    next,
});

impl Departure {
    /// Returns whether work on `stream` comes after the departure without another event.
    pub(crate) fn precedes(&self, stream: StreamId) -> bool {
        self.complete || self.stream == stream
    }

    /// Returns whether the departure is one of pages in ranges.
    pub(crate) fn is_of_pages(&self) -> bool {
        self.what == Departing::Pages
    }

    /// Returns the queue of the stream, while the event is not known to be complete.
    pub(super) fn queue(&self) -> u32 {
        self.queue
    }
}

/// The departures of a stream that are not known to be complete.
#[derive(Clone, Copy, Debug)]
struct DepartureQueue {
    /// The stream, or [`NO_STREAM`] for an ended stream and for work that belongs to no stream.
    stream: StreamId,
    /// The number of departures. 0 ⟺ the entry is vacant.
    count: u32,
    /// The next vacant entry.
    next: u32,
}

vacant!(DepartureQueue, next, |next| Self { stream: NO_STREAM, count: 0, next });

/// The departures of a device.
#[derive(Clone)]
pub(crate) struct Departures<S: Storage> {
    table: SlotTable<Departure, S>,
    queues: SlotTable<DepartureQueue, S>,
    /// The root of the set of the departures that are not known to be complete, by queue and age.
    incomplete: Link,
    /// The root of the set of the queues of live streams, by stream.
    by_stream: Link,
    /// The root of the set of the complete departures that may still have something to do, by age.
    completed: Link,
    /// The nodes of all sets. There is room for every departure, in any set.
    nodes: RadixTree<S>,
    /// The number of departures of pages.
    of_pages: u32,
    /// The bytes of all segments that were given up.
    pub segment_bytes: u64,
    /// How many departures were ever added.
    added: u64,
}

impl_empty! {
    [S: Storage] Departures<S> {
        table,
        queues,
        incomplete,
        by_stream,
        completed,
        nodes,
        of_pages,
        segment_bytes,
        added,
    }
}

impl<S: Storage> core::ops::Index<u32> for Departures<S> {
    type Output = Departure;
    fn index(&self, departure: u32) -> &Departure {
        &self.table[departure]
    }
}

/// Returns a function that sorts departures by queue and age. Complete ones are in no queue.
fn by_queue<S: Storage>(table: &SlotTable<Departure, S>) -> impl Fn(u32) -> Key {
    |departure| Key { major: u64::from(table[departure].queue), minor: table[departure].age }
}

/// Returns a function that sorts queues by stream.
fn by_stream<S: Storage>(queues: &SlotTable<DepartureQueue, S>) -> impl Fn(u32) -> Key {
    |queue| Key { major: 0, minor: queues[queue].stream.0 }
}

impl<S: Storage> Departures<S> {
    /// Returns whether there are no departures.
    pub(crate) fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// Returns whether there are departures of pages.
    pub(crate) fn has_pages(&self) -> bool {
        self.of_pages > 0
    }

    /// Adds a departure with one reference. If there is no fence, the work on pages is complete,
    /// and a segment waits until cached memory is released.
    ///
    /// # Errors
    /// [`CapacityError`] if a table is full. The fence then still belongs to the caller.
    pub(crate) fn add(&mut self, fence: Option<Fence>, what: Departing) -> Result<u32, CapacityError> {
        let count = self.table.len() + 1;
        // A departure is in one set at a time. The set of the queues, perhaps with one more, does
        // not need a node for the last item.
        let items = count + self.queues.len();
        let room = self.table.make_room(1) && self.queues.make_room(1) && self.nodes.make_room_for(items);
        if !room {
            return Err(CapacityError);
        }
        let stream = fence.map_or(NO_STREAM, |fence| fence.stream);
        let queue = self.queue_of(stream).unwrap_or_else(|| self.add_queue(stream));
        self.queues[queue].count += 1;
        let age = self.added;
        self.added += 1;
        let departure = Departure { fence, stream, what, age, refs: 1, queue, ..Departure::vacant(NONE) };
        let is_of_pages = departure.is_of_pages();
        self.of_pages += u32::from(is_of_pages);
        if let Departing::Segment { bytes, .. } = what {
            self.segment_bytes += bytes;
        }
        let departure = self.table.insert(departure);
        self.incomplete = self.nodes.insert(self.incomplete, departure, by_queue(&self.table));
        if fence.is_none() && is_of_pages {
            self.complete(departure);
        }
        Ok(departure)
    }

    /// Adds a departure of nothing, which holds a fence for [others](Self::add_behind). It has one
    /// reference.
    ///
    /// # Errors
    /// [`CapacityError`] if a table is full. The fence then still belongs to the caller.
    pub(crate) fn add_keeper(&mut self, fence: Fence) -> Result<u32, CapacityError> {
        let keeper = self.add(Some(fence), Departing::Nothing)?;
        // Nothing happens when it is complete, so nobody polls it.
        self.complete(keeper);
        Ok(keeper)
    }

    /// Adds a departure of `stream` that waits for the fence of a keeper. The fence ends with the
    /// last of these departures.
    ///
    /// # Errors
    /// [`CapacityError`] if a table is full.
    pub(crate) fn add_behind(&mut self, keeper: u32, stream: StreamId, what: Departing) -> Result<u32, CapacityError> {
        let fence = self.table[keeper].fence.map(|fence| Fence { stream, ..fence });
        let departure = self.add(fence, what)?;
        self.table[departure].keeper = keeper;
        self.table[keeper].refs += 1;
        Ok(departure)
    }

    /// Returns the first departure of a segment, with the address and the bytes of the segment.
    /// Unless `all` is set, the work must be complete.
    pub(crate) fn segment(&self, all: bool) -> Option<(u32, DevicePtr, u64)> {
        if self.segment_bytes == 0 {
            return None;
        }
        let segment = |(number, departure): (u32, &Departure)| match departure.what {
            Departing::Segment { base, bytes } if all || departure.complete => Some((number, base, bytes)),
            _ => None,
        };
        (0..).zip(self.table.entries()).find_map(segment)
    }

    /// Takes a segment out of a departure. The departure remains as long as it has references.
    pub(crate) fn take_segment(&mut self, departure: u32) {
        if let Departing::Segment { bytes, .. } =
            core::mem::replace(&mut self.table[departure].what, Departing::Nothing)
        {
            self.segment_bytes -= bytes;
        }
    }

    /// Returns the queue of a stream.
    pub(super) fn queue_of(&self, stream: StreamId) -> Option<u32> {
        let bound = Key { major: 0, minor: stream.0 };
        let found = self.nodes.at_least(self.by_stream, bound, by_stream(&self.queues))?;
        (self.queues[found].stream == stream).then_some(found)
    }

    /// Adds a queue for a stream that has none. The caller has made room.
    fn add_queue(&mut self, stream: StreamId) -> u32 {
        let queue = self.queues.insert(DepartureQueue { stream, count: 0, next: NONE });
        if stream != NO_STREAM {
            self.by_stream = self.nodes.insert(self.by_stream, queue, by_stream(&self.queues));
        }
        queue
    }

    /// Removes a departure from the queue of its stream.
    fn leave_queue(&mut self, departure: u32) {
        self.incomplete = self.nodes.remove(self.incomplete, departure, by_queue(&self.table));
        let queue = core::mem::replace(&mut self.table[departure].queue, NONE);
        self.queues[queue].count -= 1;
        if self.queues[queue].count == 0 {
            if self.queues[queue].stream != NO_STREAM {
                self.by_stream = self.nodes.remove(self.by_stream, queue, by_stream(&self.queues));
            }
            self.queues.remove(queue);
        }
    }

    /// Adds a reference.
    pub(crate) fn hold(&mut self, departure: u32) -> Departure {
        self.table[departure].refs += 1;
        // The reference may be for a mapping that has just become stale.
        self.list_if_complete(departure);
        self.table[departure]
    }

    /// Removes a reference. The last one removes the departure and returns its fence, which the
    /// caller ends.
    #[must_use]
    pub(crate) fn release(&mut self, departure: u32) -> Option<Fence> {
        let entry = &mut self.table[departure];
        debug_assert!(entry.refs > 0, "a departure in use has references");
        entry.refs -= 1;
        let Departure { refs, fence, what, complete, listed, keeper, .. } = *entry;
        if refs > 0 {
            return None;
        }
        if !complete {
            self.leave_queue(departure);
        }
        if listed {
            self.completed = self.nodes.remove(self.completed, departure, by_queue(&self.table));
        }
        self.of_pages -= u32::from(what == Departing::Pages);
        self.table.remove(departure);
        if keeper == NONE { fence } else { self.release(keeper) }
    }

    /// Marks the work of a departure as complete.
    pub(crate) fn complete(&mut self, departure: u32) {
        if !self.table[departure].complete {
            self.leave_queue(departure);
            self.table[departure].complete = true;
            self.list_if_complete(departure);
        }
    }

    /// Ends a departure with a fence that cannot be polled. No block becomes quiet.
    pub(crate) fn give_up(&mut self, departure: u32) {
        let entry = &mut self.table[departure];
        if let Departing::Blocks { stamp, .. } = &mut entry.what
            && !entry.complete
        {
            *stamp = 0;
            self.complete(departure);
        }
    }

    /// Lists a complete departure for [`next_completed`](Self::next_completed).
    fn list_if_complete(&mut self, departure: u32) {
        let entry = &mut self.table[departure];
        if entry.complete && !core::mem::replace(&mut entry.listed, entry.complete) {
            self.completed = self.nodes.insert(self.completed, departure, by_queue(&self.table));
        }
    }

    /// Takes a complete departure off the list, and returns its number and a copy of it. It may
    /// still have something to do. When it gets another reference, it is listed again.
    pub(crate) fn next_completed(&mut self) -> Option<(u32, Departure)> {
        let departure = self.nodes.first(self.completed)?;
        self.completed = self.nodes.remove(self.completed, departure, by_queue(&self.table));
        self.table[departure].listed = false;
        Some((departure, self.table[departure]))
    }

    /// Finds the oldest `wanted` departure in the first queue, from number `queue` on, that has
    /// incomplete ones, and adds a reference to it. Returns the queue, the number of the departure
    /// and a copy of it.
    pub(crate) fn hold_oldest(
        &mut self,
        queue: u32,
        wanted: impl Fn(&Departure) -> bool,
    ) -> Option<(u32, u32, Departure)> {
        let mut bound = Key { major: u64::from(queue), minor: 0 };
        loop {
            let departure = self.nodes.at_least(self.incomplete, bound, by_queue(&self.table))?;
            if wanted(&self.table[departure]) {
                let held = self.hold(departure);
                return Some((held.queue, departure, held));
            }
            bound = by_queue(&self.table)(departure);
            bound.minor += 1;
        }
    }

    /// Returns how many departures were ever added.
    pub(crate) fn added(&self) -> u64 {
        self.added
    }

    /// Forgets the number of a stream that has ended, because another stream may get the same
    /// number. The departures remain in their queue.
    pub(crate) fn forget_stream(&mut self, stream: StreamId) {
        let Some(queue) = self.queue_of(stream) else { return };
        self.by_stream = self.nodes.remove(self.by_stream, queue, by_stream(&self.queues));
        self.queues[queue].stream = NO_STREAM;
        let mut bound = Key { major: u64::from(queue), minor: 0 };
        while let Some(departure) = self.nodes.at_least(self.incomplete, bound, by_queue(&self.table))
            && self.table[departure].queue == queue
        {
            self.table[departure].stream = NO_STREAM;
            bound.minor = self.table[departure].age + 1;
        }
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::*;
    use crate::device::Event;
    use crate::tables::{Fixed, Growable};
    use std::vec::Vec;

    const STREAMS: [StreamId; 2] = [StreamId(7), StreamId(3)];

    fn fence(number: u64, stream: StreamId) -> Fence {
        Fence { stream, number, event: Event(number) }
    }

    /// Returns the numbers of the fences to poll. None of the fences is complete.
    fn oldest<S: Storage>(departures: &mut Departures<S>) -> Vec<u64> {
        let (mut from, mut events) = (0, Vec::new());
        while let Some((queue, departure, held)) = departures.hold_oldest(from, |_| true) {
            assert_eq!(departures.release(departure), None, "there is another reference");
            events.push(held.fence.unwrap().number);
            from = queue + 1;
        }
        events.sort_unstable();
        events
    }

    #[test]
    fn one_departure_a_stream_is_asked_after() {
        let mut departures = Departures::<Growable>::default();
        let added: Vec<u32> = (0..6)
            .map(|number| departures.add(Some(fence(number, STREAMS[number as usize % 2])), Departing::Pages).unwrap())
            .collect();
        assert_eq!(oldest(&mut departures), [0, 1]);
        departures.complete(added[0]);
        assert_eq!(oldest(&mut departures), [1, 2]);
        // The stream's departures keep their order, and a later stream with the same number gets a
        // separate one.
        departures.forget_stream(STREAMS[0]);
        let later = departures.add(Some(fence(9, STREAMS[0])), Departing::Pages).unwrap();
        assert_eq!(oldest(&mut departures), [1, 2, 9]);
        assert!(!departures[added[2]].precedes(STREAMS[0]) && departures[later].precedes(STREAMS[0]));
        assert_eq!(departures.release(added[2]), Some(fence(2, STREAMS[0])), "the last reference ends the fence");
        assert_eq!(oldest(&mut departures), [1, 4, 9], "a departure without a reference is gone");
        for departure in [added[1], added[3], added[4], added[5], later] {
            departures.complete(departure);
        }
        assert_eq!(oldest(&mut departures), []);
        let rest = [added[0], added[1], added[3], added[4], added[5], later];
        assert_eq!(core::array::from_fn(|_| departures.next_completed().unwrap().0), rest);
        assert!(departures.next_completed().is_none());
        departures.hold(later);
        assert_eq!(
            departures.next_completed().map(|(departure, _)| departure),
            Some(later),
            "a mapping may have become stale since"
        );
        assert_eq!(departures.release(later), None);
        assert!(rest.into_iter().all(|departure| departures.release(departure).is_some()));
        assert!(departures.is_empty());
        let complete = departures.add(None, Departing::Pages).unwrap();
        assert_eq!(departures.next_completed().map(|(departure, _)| departure), Some(complete));
        assert_eq!(oldest(&mut departures), []);
    }

    #[test]
    fn a_full_table_adds_no_departure() {
        let mut departures = Departures::<Fixed<1, 8, 2, 64>>::default();
        let first = departures.add(Some(fence(1, NO_STREAM)), Departing::Pages).unwrap();
        let second = departures.add(Some(fence(2, NO_STREAM)), Departing::Pages).unwrap();
        assert_eq!(departures.add(Some(fence(3, STREAMS[0])), Departing::Pages), Err(CapacityError));
        assert_eq!(oldest(&mut departures), [1, 2], "what belongs to no stream has no order");
        departures.complete(first);
        assert_eq!(departures.release(first), Some(fence(1, NO_STREAM)));
        departures.complete(second);
        assert_eq!(departures.release(second), Some(fence(2, NO_STREAM)));
        assert!(departures.next_completed().is_none() && departures.is_empty());
        assert!(departures.add(Some(fence(3, STREAMS[0])), Departing::Pages).is_ok());
    }

    #[test]
    fn a_fence_kept_for_several_departures_ends_after_the_last_of_them() {
        let mut departures = Departures::<Growable>::default();
        let epoch = |slot| Departing::Blocks { slot, pool: 0, stamp: 5 };
        let keeper = departures.add_keeper(fence(1, STREAMS[0])).unwrap();
        let both = STREAMS.map(|stream| departures.add_behind(keeper, stream, epoch(7)).unwrap());
        assert_eq!(departures.release(keeper), None, "others need the fence");
        assert_eq!(oldest(&mut departures), [1, 1], "each is polled in the queue of its stream");
        both.into_iter().for_each(|departure| departures.complete(departure));
        let ended: Vec<_> = core::iter::from_fn(|| departures.next_completed().map(|(number, _)| number)).collect();
        assert_eq!(ended, [&[keeper], &both[..]].concat());
        assert_eq!(departures.release(both[0]), None);
        assert_eq!(departures.release(both[1]), Some(fence(1, STREAMS[0])));
        assert!(departures.is_empty());
    }

    #[test]
    fn an_epoch_is_asked_after_in_turn_and_given_up_makes_no_block_quiet() {
        let mut departures = Departures::<Growable>::default();
        let epoch = |stamp| Departing::Blocks { slot: 3, pool: 0, stamp };
        let begin = |departures: &mut Departures<Growable>, number| {
            departures.add(Some(fence(number, STREAMS[0])), epoch(number)).unwrap()
        };
        let (first, second) = (begin(&mut departures, 1), begin(&mut departures, 2));
        assert!(!departures.has_pages() && !departures.is_empty());
        let pages = departures.add(Some(fence(3, STREAMS[0])), Departing::Pages).unwrap();
        assert_eq!(oldest(&mut departures), [1], "the others are not complete before");
        let (_, behind, _) = departures.hold_oldest(0, Departure::is_of_pages).unwrap();
        assert_eq!((behind, departures.release(behind), departures.has_pages()), (pages, None, true));
        departures.complete(first);
        departures.give_up(first);
        departures.give_up(second);
        departures.give_up(pages);
        assert!(!departures[pages].complete, "pages wait for their event");
        let ended: Vec<Departing> =
            core::iter::from_fn(|| departures.next_completed().map(|(_, of)| of.what)).collect();
        assert_eq!(ended, [epoch(1), epoch(0)], "what was complete stays complete");
        assert!([first, second, pages].into_iter().all(|departure| departures.release(departure).is_some()));
        assert!(departures.is_empty());
    }
    #[test]
    fn a_segment_is_found_when_its_work_is_complete_and_taken_once() {
        let mut departures = Departures::<Growable>::default();
        let segment = |base, bytes| Departing::Segment { base: DevicePtr(base), bytes };
        let first = departures.add(Some(fence(1, STREAMS[0])), segment(1000, 10)).unwrap();
        let for_good = departures.add(None, segment(2000, 20)).unwrap();
        assert_eq!((departures.segment(false), departures.segment_bytes), (None, 30));
        assert_eq!(departures.segment(true), Some((first, DevicePtr(1000), 10)));
        assert!(!departures[for_good].complete && !departures.has_pages(), "no fence tells of the work");
        // A thread polls the departure, and meanwhile another thread takes its segment.
        let (_, asked, _) = departures.hold_oldest(0, |_| true).unwrap();
        departures.complete(first);
        assert_eq!(departures.segment(false), Some((first, DevicePtr(1000), 10)));
        departures.take_segment(first);
        assert_eq!((asked, departures.release(first), departures.segment(false)), (first, None, None));
        assert_eq!((departures.release(asked), departures.segment_bytes), (Some(fence(1, STREAMS[0])), 20));
        departures.take_segment(for_good);
        assert_eq!((departures.release(for_good), departures.segment_bytes, departures.is_empty()), (None, 0, true));
    }
}
