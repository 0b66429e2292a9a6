//! Recording events, and the places in the program where they happened.

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
    /// Records the latest `capacity` events from here on. False if there is no room for so many.
    pub(crate) fn start_trace(&self, capacity: usize) -> bool {
        self.flags.set(flags::TRACE | flags::SITES, false);
        self.sites.clear();
        let started = self.trace.start(capacity, self.ticks());
        self.flags.set(flags::TRACE, started && capacity > 0);
        started
    }

    /// Calls `visit` with every event, oldest first.
    pub(crate) fn visit_trace(&self, mut visit: impl FnMut(&TraceEntry)) {
        for slot in self.slot_numbers() {
            self.flush_trace(&mut self.lock(slot));
        }
        self.trace
            .for_each(|entry| visit(&TraceEntry { time_us: self.driver.device().time_us(entry.time_us), ..entry }));
    }

    /// The device's clock, or how many events there were.
    #[inline]
    fn ticks(&self) -> u64 {
        match self.driver.device().ticks() {
            0 => self.trace.count_event(),
            ticks => ticks,
        }
    }

    /// Where the program is, if that is to be recorded. Called without a lock.
    #[inline]
    pub(crate) fn call_site(&self, site: CallSite) -> u32 {
        if self.flags.has(flags::TRACE) { self.driver.device().call_site(site) } else { 0 }
    }

    #[inline]
    fn record(&self, heap: &mut Heap<S>, action: Action, from: u32, addr: DevicePtr, size: u64, stream: StreamId) {
        self.keep(heap, What::One(action), from, addr, size, stream);
    }

    #[inline(always)]
    fn keep(&self, heap: &mut Heap<S>, what: What, from: u32, addr: DevicePtr, size: u64, stream: StreamId) {
        let record = Record { what, site: from, addr, size, stream, ticks: self.ticks() };
        let is_full = heap.sets.get_or_make().trace.push(record);
        if is_full {
            self.flush_trace(heap);
        }
    }

    /// Moves the events of a heap to the ring.
    #[cold]
    pub(crate) fn flush_trace(&self, heap: &mut Heap<S>) {
        if heap.sets.is_made() {
            self.trace.take(&mut heap.sets.trace);
        }
    }

    #[inline]
    pub(crate) fn trace_alloc(&self, heap: &mut Heap<S>, request: &Request, ptr: DevicePtr) {
        if self.flags.has(flags::TRACE) {
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
        if self.flags.has(flags::TRACE) {
            let (addr, size) = (DevicePtr(heap.blocks[block].addr), heap.blocks[block].requested);
            let from = if from == 0 { self.site_of(addr) } else { from };
            self.record(heap, Action::FreeRequested, from, addr, size, heap.stream);
        }
    }

    /// A block that was given up becomes free.
    pub(crate) fn trace_completion(&self, heap: &mut Heap<S>, block: u32) {
        if self.flags.has(flags::TRACE) {
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
        if self.flags.has(flags::TRACE) {
            // One that is not known takes the place of one that is gone.
            if from != 0 || self.flags.has(flags::SITES) {
                self.set_segment_site(base, bytes, from);
            }
            self.record(heap, action, from, base, bytes, heap.stream);
        }
    }

    /// A segment, or a part of one, is given back.
    pub(crate) fn trace_release(&self, heap: &mut Heap<S>, action: Action, base: DevicePtr, bytes: u64) {
        if self.flags.has(flags::TRACE) {
            let from = self.segment_site(base);
            self.record(heap, action, from, base, bytes, heap.stream);
        }
    }

    pub(crate) fn trace_oom(&self, request: &Request, report: &OutOfMemory) {
        if self.flags.has(flags::TRACE) {
            let (addr, heap) = (DevicePtr(report.memory.free), &mut *self.lock(request.slot));
            self.record(heap, Action::OutOfMemory, request.site, addr, request.size, request.stream);
        }
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Notes that the block at `addr` was handed out at `site`.
    #[cold]
    pub(crate) fn set_site(&self, addr: DevicePtr, site: u32) {
        if self.sites.set_block(addr, site) {
            self.flags.set(flags::SITES, true);
        }
    }

    /// Where the block at `addr` was handed out; 0 if it is not known.
    pub(crate) fn site_of(&self, addr: DevicePtr) -> u32 {
        if self.flags.has(flags::SITES) { self.sites.block(addr) } else { 0 }
    }

    /// Where the block at `addr`, which becomes free, was handed out; 0 if it is not known. The place is forgotten.
    #[inline(always)]
    pub(crate) fn take_site(&self, addr: DevicePtr) -> u32 {
        if self.flags.has(flags::SITES) { self.sites.take_block(addr) } else { 0 }
    }

    /// Notes that a segment, or a part of one, was obtained at `site`.
    pub(crate) fn set_segment_site(&self, base: DevicePtr, bytes: u64, site: u32) {
        if self.sites.set_segment(base, bytes, site) {
            self.flags.set(flags::SITES, true);
        }
    }

    /// Where the segment that contains `addr` was obtained; 0 if it is not known.
    pub(crate) fn segment_site(&self, addr: DevicePtr) -> u32 {
        if self.flags.has(flags::SITES) { self.sites.segment(addr) } else { 0 }
    }
}
