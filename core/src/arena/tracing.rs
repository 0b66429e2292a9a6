//! Records events in the trace, with the call sites reported by the host.
//!
//! Every heap has a buffer for its latest events, written under the heap's lock. A full buffer
//! moves to the ring of the device. A *call site* is a number chosen by the host for a place in the
//! program; 0 stands for an unknown place.
//!
//! The `trace_` functions test whether a trace is recorded. The `record_` functions are for callers
//! which have tested already. The lock of the ring and the lock of the call sites are taken under a
//! heap's lock. No further lock is taken under either.

use crate::arena::request::Request;
use crate::arena::{Arena, flags};
use crate::device::DeviceMemory;
use crate::device::oom::OutOfMemory;
use crate::heap::Heap;
use crate::sync::Lock;
use crate::tables::{Lazy, Storage};
use crate::trace::ring::{Record, What};
use crate::trace::{Action, CallSite, TraceEntry};
use crate::units::{DevicePtr, StreamId};

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Starts recording the latest `capacity` events, or stops recording for 0. Drops earlier
    /// events and call sites. Returns false, and records nothing, if there is no memory for the
    /// ring.
    pub(crate) fn start_trace(&self, capacity: usize) -> bool {
        // Off while the ring is replaced. Events still in the buffers of heaps are older than the
        // ticks passed here, and the new ring passes over events up to these ticks.
        self.flags.set(flags::TRACE | flags::SITES, false);
        self.sites.clear();
        let started = self.trace.start(capacity, self.ticks());
        self.flags.set(flags::TRACE, started && capacity > 0);
        started
    }

    /// Calls `visit` with every recorded event, oldest first. The ring is locked during the visits.
    pub(crate) fn visit_trace(&self, mut visit: impl FnMut(&TraceEntry)) {
        // Buffers first: the ring alone lacks the latest events of each heap.
        for slot in self.slot_numbers() {
            self.flush_trace(&mut self.lock(slot));
        }
        // The ring holds ticks, which cost less to read than the time. Converted only now.
        self.trace
            .for_each(|entry| visit(&TraceEntry { time_us: self.driver.device().time_us(entry.time_us), ..entry }));
    }

    /// Reads the device's clock. On a device without a clock, counts an event and returns the
    /// count.
    #[inline]
    fn ticks(&self) -> u64 {
        match self.driver.device().ticks() {
            0 => self.trace.count_event(),
            ticks => ticks,
        }
    }

    /// Asks the host for the current call site if a trace is recorded, and returns 0 otherwise. No
    /// lock may be held: the host may call the allocator.
    #[inline]
    pub(crate) fn call_site(&self, site: CallSite) -> u32 {
        if self.flags.has(flags::TRACE) { self.driver.device().call_site(site) } else { 0 }
    }

    /// Records an event off the fast path.
    #[inline]
    fn record(&self, heap: &mut Heap<S>, action: Action, site: u32, addr: DevicePtr, bytes: u64, stream: StreamId) {
        self.push_record(heap, What::One(action), site, addr, bytes, stream);
    }

    /// Adds a record, stamped with the current ticks, to the buffer of a heap.
    #[inline(always)]
    fn push_record(&self, heap: &mut Heap<S>, what: What, site: u32, addr: DevicePtr, bytes: u64, stream: StreamId) {
        let record = Record { what, site, addr, size: bytes, stream, ticks: self.ticks() };
        // Flushed as soon as the buffer is full, so `push` always finds room for one record. The
        // ring's lock is then taken once in 32 records.
        let is_full = heap.sets.get_or_make().trace.push(record);
        if is_full {
            self.flush_trace(heap);
        }
    }

    /// Moves the events in the buffer of a heap to the ring.
    #[cold]
    pub(crate) fn flush_trace(&self, heap: &mut Heap<S>) {
        // A heap whose sets were never made has no buffer, and must not get one here.
        if heap.sets.is_made() {
            self.trace.take(&mut heap.sets.trace);
        }
    }

    /// Traces the allocation of the block at `ptr` for a request.
    #[inline]
    pub(crate) fn trace_alloc(&self, heap: &mut Heap<S>, request: &Request, ptr: DevicePtr) {
        if self.flags.has(flags::TRACE) {
            self.record_alloc(heap, request.site, ptr, request.bytes);
        }
    }

    /// Records the allocation of the block at `ptr`. `bytes` is the size requested.
    #[inline(always)]
    pub(crate) fn record_alloc(&self, heap: &mut Heap<S>, site: u32, ptr: DevicePtr, bytes: u64) {
        if site != 0 {
            self.set_site(ptr, site);
        }
        self.push_record(heap, What::One(Action::Alloc), site, ptr, bytes, heap.stream);
    }

    /// Traces the request to free a block. If `site` is 0 the event gets the site of the
    /// allocation.
    pub(crate) fn trace_free(&self, heap: &mut Heap<S>, block: u32, site: u32) {
        if self.flags.has(flags::TRACE) {
            let (addr, bytes) = (DevicePtr(heap.blocks[block].addr), heap.blocks[block].requested);
            // The block's site stays known until the block is free: a pending block keeps its site.
            let site = if site == 0 { self.site_of(addr) } else { site };
            self.record(heap, Action::FreeRequested, site, addr, bytes, heap.stream);
        }
    }

    /// Traces the end of a pending block, now free, and forgets the block's call site.
    pub(crate) fn trace_completion(&self, heap: &mut Heap<S>, block: u32) {
        if self.flags.has(flags::TRACE) {
            let (addr, bytes) = (DevicePtr(heap.blocks[block].addr), heap.blocks[block].requested);
            let site = self.take_site(addr);
            self.record(heap, Action::FreeCompleted, site, addr, bytes, heap.stream);
        }
    }

    /// Records a free and its completion, which follows at once, in a single record.
    #[inline]
    pub(crate) fn record_free(&self, heap: &mut Heap<S>, block: u32, addr: DevicePtr, site: u32) {
        // Taken in any case: the block becomes free, and the address may be handed out again.
        let allocated = self.take_site(addr);
        let site = if site == 0 { allocated } else { site };
        self.push_record(heap, What::FreedAtOnce, site, addr, heap.blocks[block].requested, heap.stream);
    }

    /// Traces the allocation of a segment, or the mapping of a range of a segment.
    pub(crate) fn trace_segment(&self, heap: &mut Heap<S>, action: Action, site: u32, base: DevicePtr, bytes: u64) {
        if self.flags.has(flags::TRACE) {
            // An unknown site must still replace the site of an earlier segment at the address.
            if site != 0 || self.flags.has(flags::SITES) {
                self.set_segment_site(base, bytes, site);
            }
            self.record(heap, action, site, base, bytes, heap.stream);
        }
    }

    /// Traces the release or unmapping of a range, with the site where the segment was obtained.
    pub(crate) fn trace_release(&self, heap: &mut Heap<S>, action: Action, base: DevicePtr, bytes: u64) {
        if self.flags.has(flags::TRACE) {
            let site = self.segment_site(base);
            self.record(heap, action, site, base, bytes, heap.stream);
        }
    }

    /// Traces the failure of a request for want of memory. The event's address is the number of
    /// bytes free on the device, as in `PyTorch`'s traces.
    pub(crate) fn trace_oom(&self, request: &Request, report: &OutOfMemory) {
        if self.flags.has(flags::TRACE) {
            let (addr, heap) = (DevicePtr(report.memory.free), &mut *self.lock(request.slot));
            self.record(heap, Action::OutOfMemory, request.site, addr, request.size, request.stream);
        }
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Sets the call site at which the block at `addr` was allocated.
    #[cold]
    pub(crate) fn set_site(&self, addr: DevicePtr, site: u32) {
        // The flag is set once there is a site to find: until then frees skip the table and its
        // lock.
        if self.sites.set_block(addr, site) {
            self.flags.set(flags::SITES, true);
        }
    }

    /// Returns the call site at which the block at `addr` was allocated, 0 if unknown.
    pub(crate) fn site_of(&self, addr: DevicePtr) -> u32 {
        if self.flags.has(flags::SITES) { self.sites.block(addr) } else { 0 }
    }

    /// Forgets and returns the call site at which the block at `addr` was allocated, 0 if unknown.
    #[inline(always)]
    pub(crate) fn take_site(&self, addr: DevicePtr) -> u32 {
        if self.flags.has(flags::SITES) { self.sites.take_block(addr) } else { 0 }
    }

    /// Sets the call site at which a segment, or a mapped range, was obtained.
    pub(crate) fn set_segment_site(&self, base: DevicePtr, bytes: u64, site: u32) {
        if self.sites.set_segment(base, bytes, site) {
            self.flags.set(flags::SITES, true);
        }
    }

    /// Returns the call site at which the segment that contains `addr` was obtained, 0 if unknown.
    pub(crate) fn segment_site(&self, addr: DevicePtr) -> u32 {
        if self.flags.has(flags::SITES) { self.sites.segment(addr) } else { 0 }
    }
}
