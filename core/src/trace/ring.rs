//! The trace of a device: a ring of chunks, of bounded size.

use super::chunk::{Chunk, EventBuffer, merge};
use super::record::Record;
use super::{EventTimes, TraceEntry, TraceExtent};
use crate::sync::{AtomicU32, AtomicU64, CachePadded, Lock, Ordering, Rank, Ranked, empty, impl_empty};
use crate::tables::{Lazy, Storage, Table};

/// Extra capacity of the ring, in chunks. [`Ring::lost`] may hide some records of each heap, and as
/// many chunks as [`NEAR`]; thanks to the slack, a reader still gets the requested number.
const SLACK: usize = NEAR + 32;

/// Among how many of the oldest chunks a heap looks for one that it has filled before. That chunk
/// is in the cache of the heap's thread. One of another thread is fetched from there line by line,
/// which made a record of 4 threads 70 ns slower on an H200's host.
const NEAR: usize = 32;

/// By how many ticks the latest reading of the clock must be later than the one that all heaps
/// know, to be told to them: a few microseconds. Every event reads what they know, so if each of 16
/// threads told each of its readings, all would wait for that cache line most of the time.
const APART: u64 = 1 << 13;

/// The trace of a device.
pub(crate) struct Trace<R: Lock, S: Storage> {
    /// The ring. It is locked while a full chunk is handed in, which is not long. It is on its own
    /// cache line, because every event reads the other fields.
    ring: CachePadded<Ranked<R, Ring<S>>>,
    /// The number of events, if the device has no clock. Otherwise a recent time for which the
    /// clock was read, if `is_numbered`.
    latest: AtomicU64,
    /// Not 0 ⟺ [`EventTimes::Numbered`].
    is_numbered: AtomicU32,
}

impl_empty! {
    [R: Lock, S: Storage] Trace<R, S> {
        ring: CachePadded(Ranked::new(Rank::TraceRing, empty!())),
        latest,
        is_numbered,
    }
}

/// A ring of chunks.
struct Ring<S: Storage> {
    /// The chunks, up to `room` of them. They are added as they are needed, so the memory of a ring
    /// that is never filled is never touched. All are full, except for `open`.
    chunks: S::Table<Chunk<S>>,
    /// The most chunks.
    room: usize,
    /// The place of the chunk that was handed in first, once there are `room`.
    oldest: usize,
    /// The number of the latest heap that has handed in its first chunk.
    owners: u32,
    /// The chunk with room for records that come without a chunk, if there is one.
    open: Option<usize>,
    /// The most events that a reader gets. 0 if events are recorded only for the window of
    /// `tune:auto`.
    capacity: usize,
    /// How many of the latest records are for the window of `tune:auto`; 0 if there is no window.
    window: usize,
    /// Readers get only events after this time. Some records up to this time were overwritten, so
    /// the remaining ones would give an incomplete history. Events that a heap still has may be
    /// older, too.
    lost: u64,
    /// The time of the start. No reader gets events up to this time.
    begun: u64,
    /// The number of events since the start, including those that were overwritten or not stored.
    events: u64,
}

impl_empty! {
    [S: Storage] Ring<S> { chunks, room, oldest, owners, open, capacity, window, lost, begun, events }
}

impl<S: Storage> Ring<S> {
    /// Hands in a full chunk of a heap, and gives the heap the oldest chunk, if the ring is full,
    /// or none. No record is copied or read.
    fn hand_in(&mut self, buffer: &mut EventBuffer<S>) {
        self.events += match buffer.records.first() {
            Some(first) if first.ticks > self.begun => u64::from(buffer.events),
            _ => events_after(&buffer.records, self.begun),
        };
        // Records up to `lost` would never be read, so they must not overwrite later ones. There
        // are rarely any.
        if buffer.latest() > self.lost
            && let Some(at) = self.claim(buffer.owner)
        {
            if buffer.owner == 0 {
                self.owners += 1;
                buffer.owner = self.owners;
            }
            let chunk = &mut self.chunks[at];
            (chunk.latest, chunk.owner) = (buffer.latest(), buffer.owner);
            core::mem::swap(&mut chunk.records, &mut buffer.records);
        }
    }

    /// Copies records that come without a chunk.
    fn gather(&mut self, records: &[Record]) {
        self.events += events_after(records, self.begun);
        for &record in records {
            let open = self.open.filter(|&open| self.chunks[open].has_room());
            self.open = open.or_else(|| if record.ticks > self.lost { self.claim_empty() } else { None });
            if let Some(open) = self.open {
                self.chunks[open].add(record);
            }
        }
    }

    /// Returns the place of a chunk to be replaced: a new one, or one of the oldest, if possible
    /// one of `owner`. `None` if there is no room at all.
    #[inline]
    fn claim(&mut self, owner: u32) -> Option<usize> {
        let at = self.chunks.len();
        if at < self.room {
            self.chunks.add(empty!());
            return Some(at);
        }
        let after = |at: usize| if at + 1 < self.room { at + 1 } else { 0 };
        // Gathered records may be later than chunks that came afterwards: the chunk becomes the
        // newest, since readers would lose all events up to its last one.
        let is_late = |at: usize| self.chunks[at].owner == 0 && self.chunks[at].latest > self.chunks[after(at)].latest;
        if self.room > 0 && is_late(self.oldest) {
            self.oldest = after(self.oldest);
        }
        let at = self.oldest;
        let near = core::iter::successors(Some(at), |&at| Some(after(at))).take(NEAR.min(self.room));
        if owner != 0
            && self.chunks.get(at)?.owner != owner
            && let Some(own) = near.skip(1).find(|&near| self.chunks[near].owner == owner)
        {
            // Those in between are older, and hidden until they are replaced.
            self.chunks.swap(at, own);
            self.open = self.open.map(|open| if open == at { own } else { open });
        }
        self.lost = self.lost.max(self.chunks.get(at)?.latest);
        self.oldest = if at + 1 < self.room { at + 1 } else { 0 };
        self.open = self.open.filter(|&open| open != at);
        Some(at)
    }

    /// Returns the place of a chunk without records.
    fn claim_empty(&mut self) -> Option<usize> {
        let at = self.claim(0)?;
        let chunk = &mut self.chunks[at];
        (chunk.latest, chunk.owner) = (0, 0);
        chunk.records.get_or_make().clear();
        Some(at)
    }

    /// Counts the stored events for a reader, without the limit of the capacity.
    fn known(&self) -> u64 {
        self.chunks.iter().map(|chunk| events_after(chunk.records(), self.lost)).sum()
    }

    /// Calls `visit` with the events for a reader, oldest first.
    fn for_each(&mut self, mut visit: impl FnMut(TraceEntry)) {
        let mut more = self.known().saturating_sub(self.capacity as u64);
        merge(&mut self.chunks, self.lost, |record| {
            for event in record.events() {
                if more == 0 {
                    visit(event);
                } else {
                    more -= 1;
                }
            }
        });
        self.chunks.sort_unstable_by_key(|chunk| chunk.latest);
        self.oldest = 0;
        self.open = self.chunks.iter().position(Chunk::has_room);
    }
}

/// Counts the events of the records after a time.
fn events_after(records: &[Record], time: u64) -> u64 {
    records.iter().filter(|record| record.ticks > time).map(|record| u64::from(record.count())).sum()
}

impl<R: Lock, S: Storage> Trace<R, S> {
    /// Empties the ring, and makes room for `capacity` events for a reader and for a window of
    /// `window` events. Returns false if there is not enough memory. Readers get events after
    /// `now`.
    pub(crate) fn start(&self, capacity: usize, window: usize, now: u64) -> bool {
        let mut chunks: S::Table<Chunk<S>> = empty!();
        let (most, mut room) = (capacity.max(window).div_ceil(S::CHUNK), 0);
        if most > 0 {
            // Try without the slack before giving up.
            let made = [most + SLACK, most].into_iter().find(|&room| chunks.make_room(room));
            let Some(made) = made else { return false };
            room = made;
        }
        let started = Ring { chunks, room, capacity, window, lost: now, begun: now, ..empty!() };
        // The earlier chunks are dropped without the lock.
        let _earlier = core::mem::replace(&mut *self.ring.lock(), started);
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
        let ring = self.ring.lock();
        if ring.capacity == 0 {
            return TraceExtent::default();
        }
        let read = ring.known().min(ring.capacity as u64);
        TraceExtent { capacity: ring.capacity as u64, dropped: ring.events.saturating_sub(read) }
    }

    /// Stores an event that does not belong to a heap.
    pub(crate) fn add(&self, record: Record) {
        self.ring.lock().gather(&[record]);
    }

    /// Copies the stored events of the default pool, oldest first, with times in ticks. The ring is
    /// locked only while its records are copied.
    #[cfg(feature = "alloc")]
    pub(crate) fn window(&self) -> alloc::vec::Vec<TraceEntry> {
        let room = self.ring.lock().chunks.len() * S::CHUNK;
        let mut records: alloc::vec::Vec<Record> = alloc::vec::Vec::new();
        if records.try_reserve_exact(room).is_err() {
            return alloc::vec::Vec::new();
        }
        let lost = {
            let ring = self.ring.lock();
            // Another thread may have handed in more meanwhile, so copy only as many as there is
            // room for.
            let kept = ring.chunks.iter().take(room / S::CHUNK);
            kept.for_each(|chunk| records.extend_from_slice(chunk.records()));
            ring.lost
        };
        records.retain(|record| record.ticks > lost && !record.is_private);
        records.sort_unstable_by_key(|record| record.ticks);
        records.iter().flat_map(Record::events).collect()
    }

    /// Hands in the full chunk of a heap.
    pub(crate) fn hand_in(&self, buffer: &mut EventBuffer<S>) {
        self.ring.lock().hand_in(buffer);
        // What the heap got instead has the records that are lost.
        buffer.clear();
    }

    /// Moves the events of a heap into the ring, which does not get its chunk.
    pub(crate) fn gather(&self, buffer: &mut EventBuffer<S>) {
        if buffer.events > 0 {
            self.ring.lock().gather(&buffer.records);
            buffer.clear();
        }
    }

    /// Calls `visit` with every stored event, oldest first, with times in ticks. The ring is locked
    /// during the visits.
    pub(crate) fn for_each(&self, visit: impl FnMut(TraceEntry)) {
        self.ring.lock().for_each(visit);
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

    /// Notes a time for which the clock was read, if the heaps do not know one that is nearly as
    /// late.
    pub(crate) fn note_latest(&self, ticks: u64) {
        if ticks > self.latest() + APART {
            self.raise_latest(ticks);
        }
    }
}

#[cfg(all(test, not(loom), feature = "alloc"))]
mod tests {
    use super::{SLACK, Trace};
    use crate::sync::empty;
    use crate::tables::{Growable, Storage};
    use crate::trace::chunk::EventBuffer;
    use crate::trace::record::{Record, What};
    use crate::trace::{Action, TraceExtent};
    use crate::units::{DevicePtr, StreamId};
    use spin::mutex::SpinMutex;
    use std::vec::Vec;

    type Traced = Trace<SpinMutex<()>, Growable>;

    /// Records of a chunk.
    const CHUNK: u64 = <Growable as Storage>::CHUNK as u64;

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

    /// Records events of a heap.
    fn push(trace: &Traced, buffer: &mut EventBuffer<Growable>, records: impl IntoIterator<Item = Record>) {
        for record in records {
            if buffer.is_due() {
                if buffer.is_full() {
                    trace.hand_in(buffer);
                }
                buffer.prepare();
            }
            buffer.push(record);
        }
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
        let room = (SLACK as u64 + 1) * CHUNK;
        for ticks in 1..=2 * room + 7 {
            trace.add(record(2 * ticks));
            if ticks % 1000 == 7 || ticks > 2 * room {
                // A reader in the middle changes nothing.
                let first = ticks.saturating_sub(4).max(1);
                assert_eq!(times(&trace), (first..=ticks).map(|ticks| 2 * ticks).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn heaps_hand_in_chunks_and_a_reader_gets_what_they_still_have() {
        let trace: Traced = empty!();
        let capacity = 100 * CHUNK;
        assert!(trace.start(capacity as usize, 0, 0));
        let mut heaps: [EventBuffer<Growable>; 3] = empty!();
        let mut recorded = 0;
        for round in 0..400 {
            // One heap has half of the events, and one very few.
            for (heap, each) in [(0, CHUNK), (1, CHUNK - 1), (2, 1)] {
                let first = 1 + recorded * 2;
                push(&trace, &mut heaps[heap], (0..each).map(|at| record(first + at * 2)));
                recorded += each;
            }
            if round % 7 == 0 {
                heaps.iter_mut().for_each(|heap| trace.gather(heap));
                let kept = recorded.min(capacity);
                let expected: Vec<_> = (recorded - kept..recorded).map(|at| 1 + at * 2).collect();
                assert_eq!(times(&trace), expected, "round {round}");
                assert_eq!(trace.extent(), TraceExtent { capacity, dropped: recorded - kept });
            }
        }
    }

    #[test]
    fn many_readers_leave_the_history_as_long_as_it_was() {
        let trace: Traced = empty!();
        let capacity = 10 * CHUNK;
        assert!(trace.start(capacity as usize, 0, 0));
        let mut heap: EventBuffer<Growable> = empty!();
        push(&trace, &mut heap, (1..=capacity).map(record));
        for more in 1..100 {
            push(&trace, &mut heap, [record(capacity + more)]);
            trace.gather(&mut heap);
            assert_eq!(times(&trace), (more + 1..=capacity + more).collect::<Vec<_>>());
        }
    }

    #[test]
    fn few_records_of_readers_do_not_end_the_history() {
        let trace: Traced = empty!();
        let capacity = 10 * CHUNK;
        assert!(trace.start(capacity as usize, 0, 0));
        let (mut heap, mut rare): (EventBuffer<Growable>, EventBuffer<Growable>) = (empty!(), empty!());
        let mut last = 0;
        for _ in 0..2 * CHUNK {
            // Chunks of the heap pass the open chunk of the reader.
            push(&trace, &mut heap, (1..=7 * CHUNK).map(|at| record(last + at)));
            last += 7 * CHUNK + 1;
            push(&trace, &mut rare, [record(last)]);
            trace.gather(&mut rare);
            if last > 2 * capacity {
                assert_eq!(times(&trace).len() as u64, capacity, "{last}");
            }
        }
    }

    #[test]
    fn what_is_older_than_the_overwritten_is_not_read() {
        let trace: Traced = empty!();
        let room = (2 * SLACK as u64) * CHUNK;
        assert!(trace.start(SLACK * CHUNK as usize, 0, 0));
        let mut heap: EventBuffer<Growable> = empty!();
        push(&trace, &mut heap, (1..=room).map(|at| record(10 * at)));
        // A heap with few events has some from the time of the first chunk, which is overwritten.
        let mut rare: EventBuffer<Growable> = empty!();
        push(&trace, &mut rare, [record(11), record(20 * CHUNK + 5)]);
        push(&trace, &mut heap, (room + 1..=room + CHUNK + 1).map(|at| record(10 * at)));
        trace.gather(&mut rare);
        let window: Vec<u64> = trace.window().iter().map(|event| event.time_us).collect();
        assert_eq!(window[..2], [20 * CHUNK + 5, 20 * CHUNK + 10], "the rare event took the second chunk");
        // A whole chunk from before that takes the place of none.
        let mut late: EventBuffer<Growable> = empty!();
        push(&trace, &mut late, (1..=CHUNK + 1).map(record));
        assert_eq!(trace.window().len(), window.len());
        assert_eq!(trace.extent().dropped, room + 2 + 2 * CHUNK - SLACK as u64 * CHUNK);
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
        let room = (SLACK as u64 + 1) * CHUNK;
        (0..2 * room).for_each(|more| trace.add(record(100 + more)));
        assert_eq!((trace.extent(), times(&trace).len()), (TraceExtent { capacity: 3, dropped: 1 + 2 * room }, 3));
        assert!(trace.start(3, 0, 1000));
        assert_eq!(trace.extent().dropped, 0);
        // A chunk of a call that had begun before.
        let mut heap: EventBuffer<Growable> = empty!();
        push(&trace, &mut heap, (0..=CHUNK).map(|at| if at < 7 { record(900) } else { freed(1000 + 2 * at) }));
        assert_eq!(trace.extent().dropped, 2 * (CHUNK - 7) - 3);
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
        let (trace, mut buffer): (Traced, EventBuffer<Growable>) = (empty!(), empty!());
        assert!(trace.start(9, 0, 0));
        push(&trace, &mut buffer, [record(5), freed(5), record(5)]);
        trace.gather(&mut buffer);
        assert_eq!(times(&trace), [5, 6, 7, 8]);
    }

    #[test]
    fn the_clock_may_be_read_for_every_32nd_record() {
        let mut buffer: EventBuffer<Growable> = empty!();
        let due: Vec<u64> = (0..CHUNK)
            .filter(|_| {
                let is_due = buffer.is_due();
                if is_due {
                    assert!(!buffer.is_full());
                    buffer.prepare();
                }
                buffer.push(record(5));
                is_due
            })
            .collect();
        assert_eq!(due, (0..CHUNK).step_by(32).collect::<Vec<_>>());
        assert!(buffer.is_due() && buffer.is_full());
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
    fn the_latest_reading_of_the_clock_never_falls_and_is_told_from_time_to_time() {
        let trace: Traced = empty!();
        trace.raise_latest(1000);
        trace.raise_latest(700);
        assert_eq!(trace.latest(), 1000);
        trace.note_latest(1000 + super::APART);
        assert_eq!(trace.latest(), 1000);
        trace.note_latest(1001 + super::APART);
        assert_eq!(trace.latest(), 1001 + super::APART);
    }

    #[test]
    fn a_ring_takes_memory_as_events_come() {
        let trace: Traced = empty!();
        assert!(trace.start(1000, 0, 0));
        let stored = || trace.ring.lock().chunks.len();
        assert_eq!(stored(), 0);
        (1..=3).for_each(|ticks| trace.add(record(ticks)));
        assert_eq!((stored(), times(&trace)), (1, std::vec![1, 2, 3]));
        (4..=50_000).for_each(|ticks| trace.add(record(ticks)));
        assert_eq!((stored(), times(&trace).len()), (1000_usize.div_ceil(CHUNK as usize) + SLACK, 1000));
    }
}
