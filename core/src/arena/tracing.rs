//! Records events in the trace, with the call sites that the host reports.
//!
//! Every heap has a chunk for its latest events, which is written under the heap's lock. A full
//! chunk is handed in at the ring of the device. A *call site* is a number that the host chooses
//! for a place in the program, and 0 is an unknown place.
//!
//! The lock of the ring and the lock of the call sites are taken under a heap's lock. No other lock
//! is taken under either.

use crate::arena::driver::Driver;
use crate::arena::flags;
use crate::arena::heaps::Heaps;
use crate::arena::platform::Platform;
use crate::arena::request::Request;
use crate::device::Host;
use crate::device::oom::OutOfMemory;
use crate::heap::Heap;
use crate::pool::PoolId;
use crate::sync::{AtomicU32, AtomicU64, Lock, Ordering, impl_empty};
use crate::tables::Lazy;
use crate::trace::call_sites::CallSites;
use crate::trace::chunk::EventBuffer;
use crate::trace::record::{Record, What};
use crate::trace::{Action, EventTimes, TraceEntry, TraceExtent};
use crate::units::{DevicePtr, StreamId};

/// The number of events in the window that `tune:auto` searches with: 5 MiB of host memory.
const WINDOW: usize = if cfg!(feature = "alloc") { 1 << 17 } else { 0 };

/// The records of a device that are kept in addition to its trace.
pub(crate) struct History<R: Lock> {
    /// The call sites of blocks and segments.
    pub sites: CallSites<R>,
    /// Not 0 ⟺ each event is reported to the host as it happens. Implies the flag [`flags::TRACE`].
    reports: AtomicU32,
    /// The bytes in the latest [`Action::Spilled`].
    spilled: AtomicU64,
}

impl_empty! { [R: Lock] History<R> { sites, reports, spilled } }

/// Writes events of one device to the trace. The caller has locked the heap of the event.
pub(crate) struct Recorder<'a, P: Platform> {
    pub(super) driver: &'a Driver<P::Device>,
    pub(super) heaps: &'a Heaps<P>,
    pub(super) history: &'a History<P::Lock>,
}

impl<P: Platform> Recorder<'_, P> {
    /// Starts recording the latest `capacity` events, or stops recording if it is 0. With `tunes`,
    /// also records a window of events for searches. Drops earlier events and call sites. Returns
    /// false, and records nothing, if there is no memory for the ring.
    pub(crate) fn start(&self, capacity: usize, times: EventTimes, tunes: bool) -> bool {
        // Off while the ring is replaced. The clock is not read, because the first reading may take
        // 200 ms: the first event does it. The events of a call that has found the flag set may
        // still come; the new ring skips those up to these ticks.
        self.driver.flags.set(flags::TRACE, false);
        self.history.sites.clear();
        self.history.spilled.store(0, Ordering::Relaxed);
        self.heaps.trace.set_times(times);
        let now = self.restart_heaps().max(self.heaps.trace.latest());
        // Later events are after the start.
        self.heaps.trace.raise_latest(now + 1);
        let started = self.heaps.trace.start(capacity, if tunes { WINDOW } else { 0 }, now);
        self.driver.flags.set(flags::TRACE, self.heaps.trace.has_room() || self.reports());
        started
    }

    /// Calls `visit` with every recorded event, oldest first. The ring is locked during these
    /// calls.
    pub(crate) fn visit(&self, mut visit: impl FnMut(&TraceEntry)) {
        self.flush();
        // The ring contains ticks, which are cheaper to read than the time. They are converted only
        // now.
        let time_us = |ticks| self.driver.device().time_us(ticks);
        self.heaps.trace.for_each(|entry| visit(&TraceEntry { time_us: time_us(entry.time_us), ..entry }));
    }

    /// Returns how much of the history is in the trace.
    pub(crate) fn extent(&self) -> TraceExtent {
        self.flush();
        self.heaps.trace.extent()
    }

    /// Moves the events that heaps have into the ring, which does not have the latest events of
    /// each heap before.
    fn flush(&self) {
        for slot in self.heaps.slot_numbers() {
            self.heaps.flush_trace(&mut self.heaps.lock(slot));
        }
    }

    /// Starts or stops reporting each event to the host. The ring keeps recording, if it has room.
    pub(crate) fn set_reports(&self, on: bool) {
        self.history.reports.store(u32::from(on), Ordering::Relaxed);
        self.driver.flags.set(flags::TRACE, on || self.heaps.trace.has_room());
    }

    /// Removes the events that heaps have. Returns the time of the latest event of any heap, which
    /// may be a few ticks after that of the clock if times are numbered.
    fn restart_heaps(&self) -> u64 {
        let restart = |slot| {
            let heap = &mut *self.heaps.lock(slot);
            if heap.sets.is_made() { heap.sets.trace.restart() } else { 0 }
        };
        self.heaps.slot_numbers().map(restart).max().unwrap_or(0)
    }

    /// Returns the time of an event for which the clock is always read. On a device without a
    /// clock, counts an event and returns the count.
    #[inline]
    fn ticks(&self) -> u64 {
        match self.driver.device().ticks() {
            0 => self.heaps.trace.count_event(),
            // After the events of another heap that may have had the segment before.
            ticks if self.heaps.trace.is_numbered() => ticks.max(self.heaps.trace.latest() + 1),
            ticks => ticks,
        }
    }

    /// Returns the time of an event of a block. The heap's buffer makes it later than that of the
    /// event before.
    #[inline(always)]
    fn block_ticks(&self) -> u64 {
        if self.heaps.trace.is_numbered() { self.heaps.trace.latest() } else { self.ticks() }
    }

    /// Adds a record of a block to the chunk of a heap.
    #[inline(always)]
    fn push(&self, heap: &mut Heap<P::Storage>, what: What, site: u32, addr: DevicePtr, bytes: u64) {
        self.add(heap, || self.block_ticks(), (what, site, addr, bytes));
    }

    /// Adds a record to the chunk of a heap. `ticks` returns its time, after the chunk is prepared.
    #[inline(always)]
    fn add(
        &self,
        heap: &mut Heap<P::Storage>,
        ticks: impl FnOnce() -> u64,
        (what, site, addr, bytes): (What, u32, DevicePtr, u64),
    ) {
        let of = (heap.pool, heap.stream);
        self.add_to(&mut heap.sets.get_or_make().trace, of, ticks, (what, site, addr, bytes));
    }

    /// Adds a record to the chunk of a heap of a pool and a stream, as [`add`](Self::add) does.
    #[inline(always)]
    fn add_to(
        &self,
        buffer: &mut EventBuffer<P::Storage>,
        (pool, stream): (u32, StreamId),
        ticks: impl FnOnce() -> u64,
        (what, site, addr, bytes): (What, u32, DevicePtr, u64),
    ) {
        if buffer.is_due() {
            self.prepare(buffer);
        }
        let record = Record { what, is_private: pool != 0, site, addr, size: bytes, stream, ticks: ticks() };
        if self.reports() {
            // By value, so that the record is not on the stack: its parts would be stored there one
            // after another and loaded together, which takes the processor ten cycles.
            self.report(pool, record);
        }
        buffer.push(record);
    }

    /// Hands in the chunk of a heap if it is full, makes room for records, and reads the clock for
    /// them and for the later events of every heap, if their times are numbered.
    #[cold]
    #[inline(never)]
    fn prepare(&self, buffer: &mut EventBuffer<P::Storage>) {
        if buffer.is_full() {
            self.heaps.trace.hand_in(buffer);
        }
        buffer.prepare();
        if self.heaps.trace.is_numbered() {
            buffer.raise(self.driver.device().ticks());
            self.heaps.trace.note_latest(buffer.latest());
        }
    }

    /// Adds a record of an event for which the clock is always read to the chunk of a heap.
    fn push_timed(&self, heap: &mut Heap<P::Storage>, action: Action, site: u32, addr: DevicePtr, bytes: u64) {
        self.add(heap, || self.ticks(), (What::One(action), site, addr, bytes));
        // The next heap that has the segment has later events.
        if self.heaps.trace.is_numbered() {
            self.heaps.trace.raise_latest(heap.sets.trace.latest());
        }
    }

    /// Returns whether each event is reported to the host.
    #[inline(always)]
    fn reports(&self) -> bool {
        self.history.reports.load(Ordering::Relaxed) != 0
    }

    /// Reports the events of a record to the host, under the heap's lock, so that the events of a
    /// block arrive in their order.
    #[cold]
    #[inline(never)]
    fn report(&self, pool: u32, record: Record) {
        let pool = self.heaps.shared_pool(pool).id();
        for entry in record.events() {
            self.driver.device().on_event(&TraceEntry { time_us: 0, ..entry }, pool);
        }
    }

    /// Records the allocation of the block at `ptr`. `bytes` is the requested size.
    #[inline(always)]
    pub(crate) fn alloc(&self, heap: &mut Heap<P::Storage>, site: u32, ptr: DevicePtr, bytes: u64) {
        if site != 0 {
            self.history.sites.set_block(ptr, site);
        }
        self.push(heap, What::One(Action::Alloc), site, ptr, bytes);
    }

    /// Records a free and its completion, which follows at once, in a single record. If `site` is 0
    /// the event gets the site of the allocation. `of` is the pool and the stream of the heap, and
    /// `bytes` the requested size.
    #[inline(always)]
    pub(crate) fn free(
        &self,
        buffer: &mut EventBuffer<P::Storage>,
        of: (u32, StreamId),
        bytes: u64,
        addr: DevicePtr,
        site: u32,
    ) {
        // Taken in any case: the block becomes free, and the address may be handed out again.
        let allocated = self.history.sites.take_block(addr);
        let site = if site == 0 { allocated } else { site };
        self.add_to(buffer, of, || self.block_ticks(), (What::FreedAtOnce, site, addr, bytes));
    }

    /// Records the request to free a block. If `site` is 0, the event gets the site of the
    /// allocation.
    pub(crate) fn free_requested(&self, heap: &mut Heap<P::Storage>, block: u32, site: u32) {
        let (addr, bytes) = (DevicePtr(heap.blocks[block].addr), heap.blocks[block].requested);
        // The block's site stays known until the block is free, because a pending block keeps its
        // site.
        let site = if site == 0 { self.history.sites.block(addr) } else { site };
        self.push(heap, What::One(Action::FreeRequested), site, addr, bytes);
    }

    /// Records that a pending block is now free, and forgets its call site.
    pub(crate) fn free_completed(&self, heap: &mut Heap<P::Storage>, block: u32) {
        let (addr, bytes) = (DevicePtr(heap.blocks[block].addr), heap.blocks[block].requested);
        let site = self.history.sites.take_block(addr);
        self.push(heap, What::One(Action::FreeCompleted), site, addr, bytes);
    }

    /// Records the allocation of a segment, or the mapping of a range of a segment.
    pub(crate) fn segment(&self, heap: &mut Heap<P::Storage>, action: Action, site: u32, base: DevicePtr, bytes: u64) {
        self.history.sites.set_segment(base, bytes, site);
        self.push_timed(heap, action, site, base, bytes);
    }

    /// Records the release or unmapping of a range, with the site where the segment was obtained.
    pub(crate) fn release(&self, heap: &mut Heap<P::Storage>, action: Action, base: DevicePtr, bytes: u64) {
        let site = self.history.sites.segment(base);
        self.push_timed(heap, action, site, base, bytes);
    }

    /// Records that `bytes` of the host are mapped, if that is new. A change is recorded by the
    /// next event that maps or unmaps memory of a heap.
    pub(crate) fn spilled(&self, heap: &mut Heap<P::Storage>, bytes: u64) {
        if self.history.spilled.swap(bytes, Ordering::Relaxed) != bytes {
            self.push_timed(heap, Action::Spilled, 0, DevicePtr::NULL, bytes);
        }
    }

    /// Records a change of the settings. The meaning of `bytes` depends on the action.
    pub(crate) fn settings(&self, action: Action, bytes: u64) {
        let (addr, stream) = (DevicePtr::NULL, StreamId::DEFAULT);
        let what = What::One(action);
        let record = Record { what, is_private: false, site: 0, addr, size: bytes, stream, ticks: self.ticks() };
        if self.reports() {
            for entry in record.events() {
                self.driver.device().on_event(&TraceEntry { time_us: 0, ..entry }, PoolId::DEFAULT);
            }
        }
        self.heaps.trace.add(record);
    }

    /// Records that a request failed because there was no memory. The event's address is the number
    /// of bytes free on the device, as in `PyTorch`'s traces.
    pub(crate) fn out_of_memory(&self, request: &Request, report: &OutOfMemory) {
        let (addr, heap) = (DevicePtr(report.memory.free), &mut *self.heaps.lock(request.slot));
        self.add(heap, || self.ticks(), (What::One(Action::OutOfMemory), request.site, addr, request.size));
    }
}
