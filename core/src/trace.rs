//! The event trace: the latest events of one device in a bounded ring. Off by default; recording allocates nothing but for stacks.
//!
//! ```text
//! heap ─ its latest events, under its own lock ─┐
//! heap ─ …                                      ├─ when they are [`BUFFERED`], or read ─▶ ring, under the trace's lock
//! heap ─ …                                     ─┘
//! ```
//!
//! So an event costs a look at the clock and a few stores, and no lock of its own. The ring is sorted by time when it is read.

use crate::arena::{Arena, Request, attention};
use crate::device::DeviceMemory;
use crate::heap::Heap;
use crate::report::OutOfMemory;
use crate::sync::{AtomicU64, Lock, Ordering};
use crate::tables::{Lazy, Storage, Table};
use crate::units::{DevicePtr, StreamId};
use lock_api::Mutex;

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Action {
    /// A block was handed out; the size is what was asked for.
    Alloc,
    /// The program gave a block up.
    FreeRequested,
    /// A block became free.
    FreeCompleted,
    /// A segment was obtained from the device.
    SegmentAlloc,
    /// A segment is given back to the device.
    SegmentFree,
    /// A part of an expandable segment was mapped.
    SegmentMap,
    /// A part of an expandable segment is unmapped.
    SegmentUnmap,
    /// A request failed; the address is how many bytes the device has free, the size that of the block.
    OutOfMemory,
}

impl Action {
    /// The name in PyTorch's snapshots.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::OutOfMemory => "oom",
        }
    }
}

/// What the host is asked about when it is asked [where](DeviceMemory::call_site) the program is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallSite {
    /// A request.
    Alloc,
    /// A free.
    Free,
}

/// One event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceEntry {
    /// What happened.
    pub action: Action,
    /// Where in the program, as the host [numbers](DeviceMemory::call_site) its places: of a free that has none, and of what
    /// happens to a segment, where it was allocated. 0 if it is not known.
    pub site: u32,
    /// Where in memory.
    pub addr: DevicePtr,
    /// How many bytes.
    pub size: u64,
    /// On which stream.
    pub stream: StreamId,
    /// When, in microseconds since the Unix epoch, if the device has a clock.
    pub time_us: u64,
}

/// One event as it is kept, or two: a block that is given up mostly becomes free at once. `ticks` are the device's.
#[derive(Clone, Copy)]
struct Record {
    what: What,
    site: u32,
    addr: DevicePtr,
    size: u64,
    stream: StreamId,
    ticks: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
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
    ring: Mutex<R, Ring<S>>,
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
        Self { ring: Mutex::new(Ring::with(S::Table::default(), 0, 0)), events: AtomicU64::new(0) }
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

impl<R: Lock, S: Storage> Trace<R, S> {
    /// Empties the ring and makes it hold `capacity` entries. False if it cannot.
    fn start(&self, capacity: usize, now: u64) -> bool {
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
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Records the latest `capacity` events from here on. False if there is no room for so many.
    pub(crate) fn start_trace(&self, capacity: usize) -> bool {
        self.set(attention::TRACE | attention::SITES, false);
        self.forget_sites();
        let started = self.trace.start(capacity, self.ticks());
        self.set(attention::TRACE, started && capacity > 0);
        started
    }

    /// Calls `visit` with every event, oldest first.
    pub(crate) fn visit_trace(&self, mut visit: impl FnMut(&TraceEntry)) {
        for slot in self.slot_numbers() {
            self.flush_trace(&mut self.lock(slot));
        }
        for entry in self.trace.ring.lock().sort() {
            visit(&TraceEntry { time_us: self.memory.time_us(entry.time_us), ..entry });
        }
    }

    /// The device's clock, or how many events there were.
    #[inline]
    fn ticks(&self) -> u64 {
        match self.memory.ticks() {
            // Relaxed: those of a heap are ordered by its lock, and there is no other order to keep.
            0 => self.trace.events.fetch_add(2, Ordering::Relaxed) + 1,
            ticks => ticks,
        }
    }

    /// Where the program is, if that is to be recorded. Called without a lock.
    #[inline]
    pub(crate) fn call_site(&self, site: CallSite) -> u32 {
        if self.has(attention::TRACE) { self.memory.call_site(site) } else { 0 }
    }

    #[inline]
    fn record(&self, heap: &mut Heap<S>, action: Action, from: u32, addr: DevicePtr, size: u64, stream: StreamId) {
        self.keep(heap, What::One(action), from, addr, size, stream);
    }

    #[inline(always)]
    fn keep(&self, heap: &mut Heap<S>, what: What, from: u32, addr: DevicePtr, size: u64, stream: StreamId) {
        let buffer = &mut heap.sets.get_or_make().trace;
        let record = Record { what, site: from, addr, size, stream, ticks: self.ticks().max(buffer.latest + 1) };
        buffer.latest = record.last();
        let entries = buffer.entries.get_or_make();
        // There is room: a full buffer is emptied at once.
        let _fits = entries.push(record);
        if entries.is_full() {
            self.flush_trace(heap);
        }
    }

    /// Moves the events of a heap to the ring.
    #[cold]
    pub(crate) fn flush_trace(&self, heap: &mut Heap<S>) {
        if heap.sets.is_made() {
            self.trace.ring.lock().take(&mut heap.sets.trace);
        }
    }

    #[inline]
    pub(crate) fn trace_alloc(&self, heap: &mut Heap<S>, request: &Request, ptr: DevicePtr) {
        if self.has(attention::TRACE) {
            self.record_alloc(heap, request.site, ptr, request.bytes);
        }
    }

    /// The same, while a trace is recorded.
    #[inline(always)]
    pub(crate) fn record_alloc(&self, heap: &mut Heap<S>, from: u32, ptr: DevicePtr, bytes: u64) {
        if from != 0 {
            self.set_site(ptr, from);
        }
        self.keep(heap, What::One(Action::Alloc), from, ptr, bytes, heap.stream);
    }

    /// A block was given up at the place `from`.
    pub(crate) fn trace_free(&self, heap: &mut Heap<S>, block: u32, from: u32) {
        if self.has(attention::TRACE) {
            let (addr, size) = (DevicePtr(heap.blocks[block].addr), heap.blocks[block].requested);
            let from = if from == 0 { self.site_of(addr) } else { from };
            self.record(heap, Action::FreeRequested, from, addr, size, heap.stream);
        }
    }

    /// A block that was given up becomes free.
    pub(crate) fn trace_completion(&self, heap: &mut Heap<S>, block: u32) {
        if self.has(attention::TRACE) {
            let (addr, size) = (DevicePtr(heap.blocks[block].addr), heap.blocks[block].requested);
            let from = self.take_site(addr);
            self.record(heap, Action::FreeCompleted, from, addr, size, heap.stream);
        }
    }

    /// The block at `addr` is given up at the place `from` and becomes free at once, while a trace is recorded.
    #[inline]
    pub(crate) fn record_free(&self, heap: &mut Heap<S>, block: u32, addr: DevicePtr, from: u32) {
        let allocated = self.take_site(addr);
        let from = if from == 0 { allocated } else { from };
        self.keep(heap, What::FreedAtOnce, from, addr, heap.blocks[block].requested, heap.stream);
    }

    /// A segment, or a part of one, was obtained at the place `from`.
    pub(crate) fn trace_segment(&self, heap: &mut Heap<S>, action: Action, from: u32, base: DevicePtr, bytes: u64) {
        if self.has(attention::TRACE) {
            // One that is not known takes the place of one that is gone.
            if from != 0 || self.has(attention::SITES) {
                self.set_segment_site(base, bytes, from);
            }
            self.record(heap, action, from, base, bytes, heap.stream);
        }
    }

    /// A segment, or a part of one, is given back.
    pub(crate) fn trace_release(&self, heap: &mut Heap<S>, action: Action, base: DevicePtr, bytes: u64) {
        if self.has(attention::TRACE) {
            let from = self.segment_site(base);
            self.record(heap, action, from, base, bytes, heap.stream);
        }
    }

    pub(crate) fn trace_oom(&self, request: &Request, report: &OutOfMemory) {
        if self.has(attention::TRACE) {
            let (addr, heap) = (DevicePtr(report.memory.free), &mut *self.lock(request.slot));
            self.record(heap, Action::OutOfMemory, request.site, addr, request.size, request.stream);
        }
    }
}
