//! Records events in the trace, with the call sites reported by the host.
//!
//! Every heap has a buffer for its latest events, written under the heap's lock. A full buffer
//! moves to the ring of the device. A *call site* is a number chosen by the host for a place in the
//! program; 0 stands for an unknown place.
//!
//! The lock of the ring and the lock of the call sites are taken under a heap's lock. No other
//! lock is taken under either.

use crate::arena::driver::Driver;
use crate::arena::flags;
use crate::arena::heaps::Heaps;
use crate::arena::platform::Platform;
use crate::arena::request::Request;
use crate::device::Host;
use crate::device::oom::OutOfMemory;
use crate::heap::Heap;
use crate::pool::PoolId;
use crate::sync::{AtomicU32, Lock, Ordering, impl_empty};
use crate::tables::Lazy;
use crate::trace::call_sites::CallSites;
use crate::trace::ring::{Record, What};
use crate::trace::{Action, TraceEntry, TraceExtent};
use crate::units::{DevicePtr, StreamId};

/// The events of the window that `tune:auto` searches with: 5 MiB of host memory.
const WINDOW: usize = if cfg!(feature = "alloc") { 1 << 17 } else { 0 };

/// What is remembered of a device beside its trace.
pub(crate) struct History<R: Lock> {
    /// The call sites of blocks and segments.
    pub sites: CallSites<R>,
    /// Not 0 ⟺ the host is told of each event as it happens. Implies the flag [`flags::TRACE`].
    reports: AtomicU32,
}

impl_empty! { [R: Lock] History<R> { sites, reports } }

/// Writes events of one device to the trace. The heap of an event is locked by the caller.
pub(crate) struct Recorder<'a, P: Platform> {
    pub(super) driver: &'a Driver<P::Device>,
    pub(super) heaps: &'a Heaps<P>,
    pub(super) history: &'a History<P::Lock>,
}

impl<P: Platform> Recorder<'_, P> {
    /// Starts recording the latest `capacity` events, or stops recording for 0; with `tunes`, also
    /// a window of them for searches. Drops earlier events and call sites. Returns false, and
    /// records nothing, if there is no memory for the ring.
    pub(crate) fn start(&self, capacity: usize, tunes: bool) -> bool {
        // Off while the ring is replaced. Events still in the buffers of heaps are older than the
        // ticks passed here, and the new ring passes over events up to these ticks.
        self.driver.flags.set(flags::TRACE, false);
        self.history.sites.clear();
        let started = self.heaps.trace.start(capacity, if tunes { WINDOW } else { 0 }, self.ticks());
        self.driver.flags.set(flags::TRACE, self.heaps.trace.has_room() || self.reports());
        started
    }

    /// Calls `visit` with every recorded event, oldest first. The ring is locked during the visits.
    pub(crate) fn visit(&self, mut visit: impl FnMut(&TraceEntry)) {
        self.flush();
        // The ring holds ticks, which cost less to read than the time. Converted only now.
        let time_us = |ticks| self.driver.device().time_us(ticks);
        self.heaps.trace.for_each(|entry| visit(&TraceEntry { time_us: time_us(entry.time_us), ..entry }));
    }

    /// Returns how much of the history the trace has.
    pub(crate) fn extent(&self) -> TraceExtent {
        self.flush();
        self.heaps.trace.extent()
    }

    /// Moves the events that heaps buffer into the ring, which lacks the latest events of each
    /// heap.
    fn flush(&self) {
        for slot in self.heaps.slot_numbers() {
            self.heaps.flush_trace(&mut self.heaps.lock(slot));
        }
    }

    /// Begins or ends to tell the host of each event. The ring keeps recording, if it has room.
    pub(crate) fn set_reports(&self, on: bool) {
        self.history.reports.store(u32::from(on), Ordering::Relaxed);
        self.driver.flags.set(flags::TRACE, on || self.heaps.trace.has_room());
    }

    /// Reads the device's clock. On a device without a clock, counts an event and returns the
    /// count.
    #[inline]
    fn ticks(&self) -> u64 {
        match self.driver.device().ticks() {
            0 => self.heaps.trace.count_event(),
            ticks => ticks,
        }
    }

    /// Adds a record, stamped with the current ticks, to the buffer of a heap.
    #[inline(always)]
    fn push(&self, heap: &mut Heap<P::Storage>, what: What, site: u32, addr: DevicePtr, bytes: u64, stream: StreamId) {
        let is_private = heap.pool != 0;
        let record = Record { what, is_private, site, addr, size: bytes, stream, ticks: self.ticks() };
        // Flushed as soon as the buffer is full, so `push` always finds room for one record. The
        // ring's lock is then taken once in 32 records.
        if self.reports() {
            self.report(heap, &record);
        }
        let is_full = heap.sets.get_or_make().trace.push(record);
        if is_full {
            self.heaps.flush_trace(heap);
        }
    }

    /// Returns whether the host is told of each event.
    #[inline(always)]
    fn reports(&self) -> bool {
        self.history.reports.load(Ordering::Relaxed) != 0
    }

    /// Tells the host of the events of a record, under the heap's lock, so the events of a
    /// block arrive in their order.
    #[cold]
    fn report(&self, heap: &Heap<P::Storage>, record: &Record) {
        let pool = self.heaps.shared_pool(heap.pool).id();
        for entry in record.events() {
            self.driver.device().on_event(&TraceEntry { time_us: 0, ..entry }, pool);
        }
    }

    /// Records the allocation of the block at `ptr`. `bytes` is the size requested.
    #[inline(always)]
    pub(crate) fn alloc(&self, heap: &mut Heap<P::Storage>, site: u32, ptr: DevicePtr, bytes: u64) {
        if site != 0 {
            self.history.sites.set_block(ptr, site);
        }
        self.push(heap, What::One(Action::Alloc), site, ptr, bytes, heap.stream);
    }

    /// Records a free and its completion, which follows at once, in a single record. If `site` is 0
    /// the event gets the site of the allocation.
    #[inline]
    pub(crate) fn free(&self, heap: &mut Heap<P::Storage>, block: u32, addr: DevicePtr, site: u32) {
        // Taken in any case: the block becomes free, and the address may be handed out again.
        let allocated = self.history.sites.take_block(addr);
        let site = if site == 0 { allocated } else { site };
        self.push(heap, What::FreedAtOnce, site, addr, heap.blocks[block].requested, heap.stream);
    }

    /// Records the request to free a block. If `site` is 0 the event gets the site of the
    /// allocation.
    pub(crate) fn free_requested(&self, heap: &mut Heap<P::Storage>, block: u32, site: u32) {
        let (addr, bytes) = (DevicePtr(heap.blocks[block].addr), heap.blocks[block].requested);
        // The block's site stays known until the block is free: a pending block keeps its site.
        let site = if site == 0 { self.history.sites.block(addr) } else { site };
        self.push(heap, What::One(Action::FreeRequested), site, addr, bytes, heap.stream);
    }

    /// Records the end of a pending block, now free, and forgets the block's call site.
    pub(crate) fn free_completed(&self, heap: &mut Heap<P::Storage>, block: u32) {
        let (addr, bytes) = (DevicePtr(heap.blocks[block].addr), heap.blocks[block].requested);
        let site = self.history.sites.take_block(addr);
        self.push(heap, What::One(Action::FreeCompleted), site, addr, bytes, heap.stream);
    }

    /// Records the allocation of a segment, or the mapping of a range of a segment.
    pub(crate) fn segment(&self, heap: &mut Heap<P::Storage>, action: Action, site: u32, base: DevicePtr, bytes: u64) {
        self.history.sites.set_segment(base, bytes, site);
        self.push(heap, What::One(action), site, base, bytes, heap.stream);
    }

    /// Records the release or unmapping of a range, with the site where the segment was obtained.
    pub(crate) fn release(&self, heap: &mut Heap<P::Storage>, action: Action, base: DevicePtr, bytes: u64) {
        let site = self.history.sites.segment(base);
        self.push(heap, What::One(action), site, base, bytes, heap.stream);
    }

    /// Records a change of the settings. `bytes` as the action says.
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

    /// Records the failure of a request for lack of memory. The event's address is the number of
    /// bytes free on the device, as in `PyTorch`'s traces.
    pub(crate) fn out_of_memory(&self, request: &Request, report: &OutOfMemory) {
        let (addr, heap) = (DevicePtr(report.memory.free), &mut *self.heaps.lock(request.slot));
        self.push(heap, What::One(Action::OutOfMemory), request.site, addr, request.size, request.stream);
    }
}
