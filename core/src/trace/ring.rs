//! Where events are kept: a buffer in each heap, and one bounded ring for each device.

use super::{Action, TraceEntry};
use crate::sync::{AtomicU64, Lock, Ordering, Rank, Ranked};
use crate::tables::{Lazy, Storage, Table};
use crate::units::{DevicePtr, StreamId};

/// One event as it is kept, or two: a block that is given up mostly becomes free at once. `ticks` are the device's.
#[derive(Clone, Copy)]
pub(crate) struct Record {
    pub what: What,
    pub site: u32,
    pub addr: DevicePtr,
    pub size: u64,
    pub stream: StreamId,
    pub ticks: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    One(Action),
    /// [`Action::FreeRequested`], and a tick later [`Action::FreeCompleted`].
    FreedAtOnce,
}

impl Record {
    /// What is overwritten before anybody reads it.
    const NONE: Self = Self {
        what: What::One(Action::Alloc),
        site: 0,
        addr: DevicePtr::NULL,
        size: 0,
        stream: StreamId::DEFAULT,
        ticks: 0,
    };

    /// The ticks of its last event.
    fn last(&self) -> u64 {
        self.ticks + u64::from(self.what == What::FreedAtOnce)
    }

    /// Its events, oldest first, the times still in ticks.
    fn events(&self) -> impl Iterator<Item = TraceEntry> + Clone {
        let &Self { what, site, addr, size, stream, ticks } = self;
        let (first, second) = match what {
            What::One(action) => (action, None),
            What::FreedAtOnce => (Action::FreeRequested, Some((Action::FreeCompleted, ticks + 1))),
        };
        let events = core::iter::once((first, ticks)).chain(second);
        events.map(move |(action, time_us)| TraceEntry { action, site, addr, size, stream, time_us })
    }
}

/// Records that a heap keeps before they go to the ring, in [`Buffer`].
const BUFFERED: usize = 32;

/// Room in the ring beyond what is asked for, so that so many are left when some are passed over; see [`Ring::lost`].
const SLACK: usize = 32 * BUFFERED;

/// The latest events of one heap, which is locked.
pub(crate) struct Buffer<S: Storage> {
    /// Made with the first event that is recorded.
    entries: S::Lazy<heapless::Vec<Record, BUFFERED>>,
    /// The ticks of the latest event: they grow from event to event, whatever the clock does.
    latest: u64,
}

impl<S: Storage> Default for Buffer<S> {
    fn default() -> Self {
        Self { entries: S::Lazy::default(), latest: 0 }
    }
}

/// The ring of one device.
pub(crate) struct Trace<R: Lock, S: Storage> {
    ring: Ranked<R, Ring<S>>,
    /// Counts events where the device has no clock.
    events: AtomicU64,
}

struct Ring<S: Storage> {
    /// `entries[recorded % len]` is overwritten next.
    entries: S::Table<Record>,
    recorded: u64,
    /// How many of the latest events are of interest.
    capacity: usize,
    /// Events of these ticks and before are passed over: some of that time were overwritten, so that what is left of it is not what
    /// happened. What a heap keeps longer than another is older than that.
    lost: u64,
}

impl<R: Lock, S: Storage> Default for Trace<R, S> {
    fn default() -> Self {
        let ring = Ring::with(S::Table::default(), 0, 0);
        Self { ring: Ranked::new(Rank::TraceRing, ring), events: AtomicU64::new(0) }
    }
}

impl<S: Storage> Ring<S> {
    fn with(entries: S::Table<Record>, capacity: usize, lost: u64) -> Self {
        Self { entries, recorded: 0, capacity, lost }
    }

    fn take(&mut self, buffer: &mut Buffer<S>) {
        if !buffer.entries.is_made() {
            return;
        }
        let taken = &mut *buffer.entries;
        let entries = &mut self.entries[..];
        let len = entries.len();
        // What would be passed over must not take the place of later ones. Mostly there is none.
        let old = taken.iter().take_while(|entry| entry.ticks <= self.lost).count();
        let mut left = if len == 0 { &[] } else { &taken[old..] };
        while !left.is_empty() {
            let at = (self.recorded % len as u64) as usize;
            let (now, later) = left.split_at(left.len().min(len - at));
            let places = &mut entries[at..at + now.len()];
            if self.recorded >= len as u64 {
                let latest = places.iter().fold(0, |latest, entry| latest.max(entry.ticks));
                // That of a block which was freed at once has an event a tick later.
                self.lost = self.lost.max(latest + 1);
            }
            places.copy_from_slice(now);
            self.recorded += now.len() as u64;
            left = later;
        }
        taken.clear();
    }

    /// The events by time.
    fn sort(&mut self) -> impl Iterator<Item = TraceEntry> {
        let kept = (self.recorded as usize).min(self.entries.len());
        let entries = &mut self.entries[..];
        if self.recorded > kept as u64 {
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

impl<S: Storage> Buffer<S> {
    /// Adds an event, at a later tick than the one before. True if the buffer is full: its events go to the ring at once, so that
    /// there is always room for one.
    #[inline(always)]
    pub(crate) fn push(&mut self, mut record: Record) -> bool {
        record.ticks = record.ticks.max(self.latest + 1);
        self.latest = record.last();
        let entries = self.entries.get_or_make();
        let _fits = entries.push(record);
        entries.is_full()
    }
}

impl<R: Lock, S: Storage> Trace<R, S> {
    /// Empties the ring and makes it hold `capacity` entries. False if it cannot.
    pub(crate) fn start(&self, capacity: usize, now: u64) -> bool {
        let mut entries = S::Table::<Record>::default();
        if capacity > 0 {
            let room = [capacity.saturating_add(SLACK), capacity].into_iter().find(|&room| entries.make_room(room));
            let Some(room) = room else { return false };
            for _ in 0..room {
                entries.add(Record::NONE);
            }
        }
        *self.ring.lock() = Ring::with(entries, capacity, now);
        true
    }

    /// Moves the events of a heap into the ring.
    pub(crate) fn take(&self, buffer: &mut Buffer<S>) {
        self.ring.lock().take(buffer);
    }

    /// Calls `visit` with every event that is kept, oldest first. Times are in ticks. The ring is locked meanwhile.
    pub(crate) fn for_each(&self, visit: impl FnMut(TraceEntry)) {
        self.ring.lock().sort().for_each(visit);
    }

    /// Counts an event, of a device without a clock: the count takes the place of the ticks, which grow by two.
    pub(crate) fn count_event(&self) -> u64 {
        // Relaxed: the events of a heap are ordered by its lock, and no other order is kept.
        self.events.fetch_add(2, Ordering::Relaxed) + 1
    }
}
