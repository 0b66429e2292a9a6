//! Storage for trace events: a buffer in each heap, and a ring of bounded size for each device.

use super::{Action, EventTimes, TraceEntry, TraceExtent};
use crate::sync::{AtomicU32, AtomicU64, Lock, Ordering, Rank, Ranked, empty, impl_empty};
use crate::tables::{Lazy, Storage, Table};
use crate::units::{DevicePtr, StreamId};

/// A stored event, or a pair of events, because most frees complete at once. Times are in the
/// device's ticks.
#[derive(Clone, Copy)]
pub(crate) struct Record {
    /// The kind of the event or pair.
    pub what: What,
    /// Whether the heap belongs to a private pool.
    pub is_private: bool,
    /// The call site; 0 if unknown.
    pub site: u32,
    /// The address of the block or segment.
    pub addr: DevicePtr,
    /// The size in bytes.
    pub size: u64,
    /// The stream.
    pub stream: StreamId,
    /// The time of the first event.
    pub ticks: u64,
}

/// The kinds of records.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// A single event.
    One(Action),
    /// [`Action::FreeRequested`], followed one tick later by [`Action::FreeCompleted`].
    FreedAtOnce,
}

impl Record {
    /// Returns the time of the record's last event.
    fn last(&self) -> u64 {
        self.ticks + u64::from(self.what == What::FreedAtOnce)
    }

    /// Iterates over the record's events, oldest first, with times in ticks.
    pub(crate) fn events(&self) -> impl Iterator<Item = TraceEntry> + Clone {
        let &Self { what, site, addr, size, stream, ticks, .. } = self;
        let (first, second) = match what {
            What::One(action) => (action, None),
            What::FreedAtOnce => (Action::FreeRequested, Some((Action::FreeCompleted, ticks + 1))),
        };
        let events = core::iter::once((first, ticks)).chain(second);
        events.map(move |(action, time_us)| TraceEntry { action, site, addr, size, stream, time_us })
    }
}

/// The capacity of a heap's [`EventBuffer`], in records.
const BUFFERED: usize = 32;

/// Extra capacity of the ring, in records. [`Ring::lost`] may hide some records; thanks to the
/// slack, a reader still gets the requested number.
const SLACK: usize = 32 * BUFFERED;

/// The latest events of a heap, under the heap's lock.
#[derive(Clone)]
pub(crate) struct EventBuffer<S: Storage> {
    /// The records. They are allocated when the first event is recorded.
    entries: S::Lazy<heapless::Vec<Record, BUFFERED>>,
    /// The time of the latest event. Every event gets a later time than the one before, even if the
    /// clock stands still.
    latest: u64,
}

impl_empty! { [S: Storage] EventBuffer<S> { entries, latest } }

/// The trace of a device.
pub(crate) struct Trace<R: Lock, S: Storage> {
    /// The ring. It is locked while a full buffer is moved into it.
    ring: Ranked<R, Ring<S>>,
    /// The number of events, if the device has no clock. Otherwise the latest time for which the
    /// clock was read, if `is_numbered`.
    latest: AtomicU64,
    /// Not 0 ⟺ [`EventTimes::Numbered`].
    is_numbered: AtomicU32,
}

impl_empty! {
    [R: Lock, S: Storage] Trace<R, S> { ring: Ranked::new(Rank::TraceRing, empty!()), latest, is_numbered }
}

/// A ring of records.
struct Ring<S: Storage> {
    /// The records, up to `room` of them. The entry `entries[recorded % room]` is the next to be
    /// overwritten. Entries are added as they are needed, so the pages of a ring that is never
    /// filled are never touched.
    entries: S::Table<Record>,
    /// The most records.
    room: usize,
    /// The number of records ever stored.
    recorded: u64,
    /// The most events that a reader gets. 0 if events are recorded only for the window of
    /// `tune:auto`.
    capacity: usize,
    /// How many of the latest records are for the window of `tune:auto`; 0 if there is no window.
    window: usize,
    /// Readers get only events after this time. Some records up to this time were overwritten, so
    /// the remaining ones would give an incomplete history. Events that are still in the buffer of
    /// a heap may be older, too.
    lost: u64,
    /// The time of the start. No reader gets events up to this time.
    begun: u64,
    /// The number of events since the start, including those that were overwritten or not stored.
    events: u64,
}

impl_empty! { [S: Storage] Ring<S> { entries, room, recorded, capacity, window, lost, begun, events } }

impl<S: Storage> Ring<S> {
    /// Creates a ring of `room` records, for which `entries` has room.
    fn with(entries: S::Table<Record>, room: usize, [capacity, window]: [usize; 2], lost: u64) -> Self {
        Self { entries, room, recorded: 0, capacity, window, lost, begun: lost, events: 0 }
    }

    /// Moves the records of a buffer into the ring.
    fn take(&mut self, buffer: &mut EventBuffer<S>) {
        if !buffer.entries.is_made() {
            return;
        }
        let taken = &mut *buffer.entries;
        self.store(taken);
        taken.clear();
    }

    /// Stores records, oldest first. They overwrite the oldest records of the ring.
    fn store(&mut self, taken: &[Record]) {
        let counted = taken.iter().filter(|entry| entry.ticks > self.begun);
        self.events += counted.map(|entry| 1 + u64::from(entry.what == What::FreedAtOnce)).sum::<u64>();
        let room = self.room;
        // Records up to `lost` would never be read, so they must not overwrite later ones. There
        // are rarely any.
        let old = taken.iter().take_while(|entry| entry.ticks <= self.lost).count();
        let mut left = if room == 0 { &[] } else { &taken[old..] };
        while !left.is_empty() {
            let at = (self.recorded % room as u64) as usize;
            // At most two rounds: up to the end of the ring, then from its start.
            let (now, later) = left.split_at(left.len().min(room - at));
            if self.recorded < room as u64 {
                now.iter().for_each(|&entry| self.entries.add(entry));
            } else {
                let places = &mut self.entries[at..at + now.len()];
                let latest = places.iter().fold(0, |latest, entry| latest.max(entry.ticks));
                // `+ 1` covers the second event of a `FreedAtOnce` record.
                self.lost = self.lost.max(latest + 1);
                places.copy_from_slice(now);
            }
            self.recorded += now.len() as u64;
            left = later;
        }
    }

    /// Sorts the ring by time, and returns an iterator over the events for a reader.
    fn sort(&mut self) -> impl Iterator<Item = TraceEntry> {
        let kept = (self.recorded as usize).min(self.entries.len());
        let entries = &mut self.entries[..];
        if self.recorded > kept as u64 {
            // Make the ring contiguous: afterwards the first `kept` entries are the stored records.
            entries.rotate_left((self.recorded % kept as u64) as usize);
            self.recorded = kept as u64;
        }
        let entries = &mut entries[..kept];
        entries.sort_unstable_by_key(|entry| entry.ticks);
        let known = entries.partition_point(|entry| entry.ticks <= self.lost);
        let events = entries[known..].iter().flat_map(Record::events);
        let more = events.clone().count().saturating_sub(self.capacity);
        events.skip(more)
    }
}

impl<S: Storage> EventBuffer<S> {
    /// Adds an event, at a later tick than the previous one. Returns true if the buffer is full.
    /// The caller then moves it to the ring at once, so the buffer always has room for one event.
    #[inline(always)]
    pub(crate) fn push(&mut self, mut record: Record) -> bool {
        record.ticks = record.ticks.max(self.latest + 1);
        self.latest = record.last();
        let entries = self.entries.get_or_make();
        // The push cannot fail, because a full buffer was emptied after the previous push.
        let stored = entries.push(record).is_ok();
        debug_assert!(stored, "a full buffer is emptied at once");
        entries.is_full()
    }

    /// Returns the time of the latest event.
    pub(crate) fn latest(&self) -> u64 {
        self.latest
    }
}

impl<R: Lock, S: Storage> Trace<R, S> {
    /// Empties the ring, and makes room for `capacity` events for a reader and for a window of
    /// `window` events. Returns false if there is not enough memory.
    pub(crate) fn start(&self, capacity: usize, window: usize, now: u64) -> bool {
        let mut entries: S::Table<Record> = empty!();
        let (most, mut room) = (capacity.max(window), 0);
        if most > 0 {
            // Try without the slack before giving up.
            let made = [most.saturating_add(SLACK), most].into_iter().find(|&room| entries.make_room(room));
            let Some(made) = made else { return false };
            room = made;
        }
        *self.ring.lock() = Ring::with(entries, room, [capacity, window], now);
        true
    }

    /// Returns whether the ring has room for events.
    pub(crate) fn has_room(&self) -> bool {
        let ring = self.ring.lock();
        ring.capacity.max(ring.window) > 0
    }

    /// Returns the room for a reader's events, and for the window of `tune:auto`.
    pub(crate) fn room(&self) -> [usize; 2] {
        let ring = self.ring.lock();
        [ring.capacity, ring.window]
    }

    /// Returns the room for a reader's events, and how many events since the start are no longer
    /// available to a reader.
    pub(crate) fn extent(&self) -> TraceExtent {
        let mut ring = self.ring.lock();
        if ring.capacity == 0 {
            return TraceExtent::default();
        }
        let read = ring.sort().count() as u64;
        TraceExtent { capacity: ring.capacity as u64, dropped: ring.events.saturating_sub(read) }
    }

    /// Stores an event that does not belong to a heap.
    pub(crate) fn add(&self, record: Record) {
        self.ring.lock().store(&[record]);
    }

    /// Copies the stored events of the default pool, oldest first, with times in ticks. The ring is
    /// locked only while its records are copied.
    #[cfg(feature = "alloc")]
    pub(crate) fn window(&self) -> alloc::vec::Vec<TraceEntry> {
        let room = self.ring.lock().entries.len();
        let mut records: alloc::vec::Vec<Record> = alloc::vec::Vec::new();
        if records.try_reserve_exact(room).is_err() {
            return records.iter().flat_map(Record::events).collect();
        }
        let lost = {
            let ring = self.ring.lock();
            // Another thread may have started a longer trace meanwhile, so copy only as many as
            // there is room for.
            let kept = (ring.recorded as usize).min(ring.entries.len()).min(room);
            records.extend_from_slice(&ring.entries[..kept]);
            ring.lost
        };
        records.retain(|record| record.ticks > lost && !record.is_private);
        records.sort_unstable_by_key(|record| record.ticks);
        records.iter().flat_map(Record::events).collect()
    }

    /// Moves the events of a heap into the ring.
    pub(crate) fn take(&self, buffer: &mut EventBuffer<S>) {
        self.ring.lock().take(buffer);
    }

    /// Calls `visit` with every stored event, oldest first, with times in ticks. The ring is locked
    /// during the visits.
    pub(crate) fn for_each(&self, visit: impl FnMut(TraceEntry)) {
        self.ring.lock().sort().for_each(visit);
    }

    /// Returns how events get their times.
    pub(crate) fn times(&self) -> EventTimes {
        if self.is_numbered() { EventTimes::Numbered } else { EventTimes::Exact }
    }

    /// Sets how later events get their times.
    pub(crate) fn set_times(&self, times: EventTimes) {
        self.is_numbered.store(u32::from(times == EventTimes::Numbered), Ordering::Relaxed);
    }

    /// Returns whether events are numbered between two readings of the clock.
    #[inline(always)]
    pub(crate) fn is_numbered(&self) -> bool {
        self.is_numbered.load(Ordering::Relaxed) != 0
    }

    /// Counts an event of a device without a clock. The count is used in place of ticks, and grows
    /// by two each time.
    pub(crate) fn count_event(&self) -> u64 {
        // Relaxed is enough: the events of one heap are ordered by its lock, and events of
        // different heaps are not ordered.
        self.latest.fetch_add(2, Ordering::Relaxed) + 1
    }

    /// Returns a time for an event for which the clock is not read. A heap's buffer makes it later
    /// than the event before. It is only loaded, so that threads do not wait for each other.
    #[inline(always)]
    pub(crate) fn latest(&self) -> u64 {
        self.latest.load(Ordering::Relaxed)
    }

    /// Notes a time for which the clock was read. Later events of every heap get this time or a
    /// later one.
    pub(crate) fn raise_latest(&self, ticks: u64) {
        self.latest.fetch_max(ticks, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom), feature = "alloc"))]
mod tests {
    use super::{BUFFERED, EventBuffer, Record, SLACK, Trace, What};
    use crate::sync::empty;
    use crate::tables::Growable;
    use crate::trace::{Action, TraceExtent};
    use crate::units::{DevicePtr, StreamId};
    use spin::mutex::SpinMutex;
    use std::vec::Vec;

    type Traced = Trace<SpinMutex<()>, Growable>;

    fn record(ticks: u64) -> Record {
        let (what, addr, stream) = (What::One(Action::Alloc), DevicePtr::NULL, StreamId::DEFAULT);
        Record { what, is_private: false, site: 0, addr, size: 0, stream, ticks }
    }

    fn freed(ticks: u64) -> Record {
        Record { what: What::FreedAtOnce, ..record(ticks) }
    }

    fn times(trace: &Traced) -> Vec<u64> {
        let mut times = Vec::new();
        trace.for_each(|event| times.push(event.time_us));
        times
    }

    #[test]
    fn a_reader_gets_the_latest_events_in_the_order_of_time() {
        let trace: Traced = empty!();
        assert!(!trace.has_room());
        assert!(trace.start(3, 0, 10));
        assert!(trace.has_room());
        assert_eq!(trace.room(), [3, 0]);
        // Readers get no events up to the start.
        [9, 10, 30, 20, 11].into_iter().for_each(|ticks| trace.add(record(ticks)));
        assert_eq!(times(&trace), [11, 20, 30]);
        trace.add(record(40));
        assert_eq!(times(&trace), [20, 30, 40]);
    }

    #[test]
    fn a_full_ring_keeps_what_a_reader_may_ask_for() {
        let trace: Traced = empty!();
        assert!(trace.start(5, 0, 0));
        let room = (SLACK + 5) as u64;
        for ticks in 1..=2 * room + 7 {
            trace.add(record(2 * ticks));
            if ticks % 100 == 7 || ticks > 2 * room {
                // A reader in the middle changes nothing.
                let first = ticks.saturating_sub(4).max(1);
                assert_eq!(times(&trace), (first..=ticks).map(|ticks| 2 * ticks).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn what_is_older_than_the_overwritten_is_not_read() {
        let trace: Traced = empty!();
        let capacity = 2 * SLACK;
        assert!(trace.start(capacity, 0, 0));
        let room = (capacity + SLACK) as u64;
        (1..=room).for_each(|ticks| trace.add(record(10 * ticks)));
        // This overwrites the first event. The events that a heap has buffered since that time
        // would give an incomplete history: the first of them is left out, and the second
        // overwrites an event and ends with it.
        trace.add(record(10 * room + 10));
        trace.add(record(11));
        trace.add(record(12));
        let read = times(&trace);
        assert_eq!((read.len(), read.last()), (capacity, Some(&(10 * room + 10))));
        assert_eq!(trace.window().first().map(|event| event.time_us), Some(30));
    }

    #[test]
    fn a_record_as_old_as_the_overwritten_is_not_stored_and_not_read() {
        let trace: Traced = empty!();
        assert!(trace.start(SLACK, 0, 0));
        let room = 2 * SLACK as u64;
        (1..=room).for_each(|ticks| trace.add(record(10 * ticks)));
        trace.add(record(10 * room + 10));
        trace.add(record(11));
        assert_eq!(trace.window().first().map(|event| event.time_us), Some(20), "11 goes over no event");
        trace.add(record(12));
        assert_eq!(trace.window().first().map(|event| event.time_us), Some(30));
        // The first event to be overwritten is later than all others but one, and that one alone
        // would be an incomplete history.
        assert!(trace.start(5, 0, 0));
        let others = SLACK as u64 + 3;
        [1000, 1001]
            .into_iter()
            .chain(core::iter::repeat_n(1, others as usize))
            .for_each(|ticks| trace.add(record(ticks)));
        trace.add(record(2000));
        assert_eq!(times(&trace), [2000]);
    }

    #[test]
    fn events_that_a_reader_no_longer_gets_are_counted() {
        let trace: Traced = empty!();
        assert_eq!(trace.extent(), TraceExtent::default());
        assert!(trace.start(3, 0, 10));
        // Events up to the start do not belong to the recording.
        [9, 10, 11, 20].into_iter().for_each(|ticks| trace.add(record(ticks)));
        assert_eq!(trace.extent(), TraceExtent { capacity: 3, dropped: 0 });
        trace.add(freed(30));
        assert_eq!(trace.extent(), TraceExtent { capacity: 3, dropped: 1 });
        let room = (SLACK + 3) as u64;
        (0..2 * room).for_each(|more| trace.add(record(100 + more)));
        assert_eq!((trace.extent(), times(&trace).len()), (TraceExtent { capacity: 3, dropped: 1 + 2 * room }, 3));
        assert!(trace.start(3, 0, 1000));
        assert_eq!(trace.extent().dropped, 0);
    }

    #[test]
    fn a_free_at_once_is_two_events() {
        assert_eq!((record(5).last(), freed(5).last()), (5, 6));
        let trace: Traced = empty!();
        assert!(trace.start(3, 0, 0));
        trace.add(record(2));
        trace.add(freed(5));
        let mut events = Vec::new();
        trace.for_each(|event| events.push((event.action, event.time_us)));
        assert_eq!(events, [(Action::Alloc, 2), (Action::FreeRequested, 5), (Action::FreeCompleted, 6)]);
        assert!(trace.start(1, 0, 0));
        trace.add(freed(5));
        assert_eq!(times(&trace), [6], "a reader of one event");
    }

    #[test]
    fn times_of_a_heap_grow_although_the_clock_stands_still() {
        let mut buffer: EventBuffer<Growable> = empty!();
        assert!(!buffer.push(record(5)));
        assert!(!buffer.push(freed(5)));
        assert!(!buffer.push(record(5)));
        let trace: Traced = empty!();
        assert!(trace.start(9, 0, 0));
        trace.take(&mut buffer);
        assert_eq!(times(&trace), [5, 6, 7, 8]);
        let full: Vec<bool> = (0..BUFFERED).map(|_| buffer.push(record(5))).collect();
        assert_eq!(full.iter().position(|&full| full), Some(BUFFERED - 1));
    }

    #[test]
    fn the_window_has_the_events_of_the_default_pool() {
        let trace: Traced = empty!();
        assert!(trace.start(0, 4, 0));
        trace.add(record(20));
        trace.add(Record { is_private: true, ..record(15) });
        trace.add(record(10));
        let window: Vec<u64> = trace.window().iter().map(|event| event.time_us).collect();
        assert_eq!(window, [10, 20]);
        assert_eq!(times(&trace), [], "the window alone is no trace of the program");
    }

    #[test]
    fn a_count_in_place_of_a_clock_leaves_room_for_the_second_event() {
        let trace: Traced = empty!();
        assert_eq!([(); 3].map(|()| trace.count_event()), [1, 3, 5]);
    }

    #[test]
    fn the_latest_reading_of_the_clock_never_falls() {
        let trace: Traced = empty!();
        trace.raise_latest(1000);
        trace.raise_latest(700);
        assert_eq!(trace.latest(), 1000);
    }

    #[test]
    fn a_ring_takes_memory_as_events_come() {
        let trace: Traced = empty!();
        assert!(trace.start(1000, 0, 0));
        let stored = || trace.ring.lock().entries.len();
        assert_eq!(stored(), 0);
        (1..=3).for_each(|ticks| trace.add(record(ticks)));
        assert_eq!((stored(), times(&trace)), (3, std::vec![1, 2, 3]));
        (4..=5000).for_each(|ticks| trace.add(record(ticks)));
        assert_eq!((stored(), times(&trace).len()), (1000 + SLACK, 1000));
    }
}
