//! Requests: the fast path, and the way to everything else.

use crate::arena::heaps::{HEAPS, STREAMS, slot_of};
use crate::arena::request::Request;
use crate::arena::{Arena, OnDevice, flags};
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::heap::{Heap, Outcome};
use crate::stats::HeapCounters;
use crate::sync::{Lock, Ordering};
use crate::tables::{CapacityError, OnceTable, Storage};
use crate::trace::CallSite;
use crate::units::{DevicePtr, MAX_REQUEST, StreamId, UNIT};

impl<D: DeviceMemory, R: Lock, S: Storage> OnDevice<'_, D, R, S> {
    /// Serves a request. See [`Allocator::malloc`](crate::allocator::Allocator::malloc).
    #[inline]
    pub(crate) fn malloc(self, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        if bytes == 0 {
            return Ok(DevicePtr::NULL);
        }
        let noted = self.flags.load();
        self.malloc_fast(noted, bytes, stream, || self.malloc_cold(bytes, stream))
    }

    /// The same where there is more to be seen to: plans come first. Cold, and told no more than it must be, or the fast path
    /// spills registers: 20 instructions of a pair.
    #[cold]
    fn malloc_cold(self, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        self.malloc_next(bytes, stream)
    }

    /// The same for what is not the next request of a plan.
    #[inline(never)]
    pub(crate) fn malloc_unplanned(self, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        let noted = self.flags.load();
        if noted & !(flags::ROUNDING | flags::SITES) == flags::TRACE {
            return self.malloc_traced(noted, bytes, stream);
        }
        if noted & flags::PLANNED != 0 && bytes <= MAX_REQUEST - UNIT {
            return self.malloc_beside_plans(noted, bytes, stream);
        }
        self.malloc_slow(bytes, stream)
    }

    /// The same while plans are in force: what none serves either is left to the heaps.
    #[inline(never)]
    fn malloc_beside_plans(self, noted: u32, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        if let Some(ptr) = self.malloc_planned(noted, bytes, stream) {
            return Ok(ptr);
        }
        let attentively = || self.malloc_slow(bytes, stream);
        self.malloc_fast(noted & !flags::PLANNED, bytes, stream, attentively)
    }

    /// The same, whatever the circumstances.
    #[cold]
    fn malloc_slow(self, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        self.health()?;
        let from = self.call_site(CallSite::Alloc);
        self.malloc_at_site(bytes, stream, from)
    }

    /// The same at a place that is known.
    #[cold]
    fn malloc_at_site(self, bytes: u64, stream: StreamId, from: u32) -> Result<DevicePtr, Error> {
        let serve = |request: &Request| {
            self.learn_purpose(request);
            let ptr = self.serve(request)?;
            self.note_malloc(request, ptr);
            Ok(ptr)
        };
        match self.with_request(bytes, stream, from, Arena::use_pair, serve) {
            // The tables have no room for a further stream: the cache of one that holds nothing makes some.
            Err(Error::TableFull(HEAPS | STREAMS)) if self.release_one_idle() => {
                self.with_request(bytes, stream, from, Arena::use_pair, serve)
            }
            served => served,
        }
    }

    /// Serves a request from its heap, the device or whatever can be given back.
    fn serve(self, request: &Request) -> Result<DevicePtr, Error> {
        if self.flags.has(flags::PENDING) && !request.capturing {
            self.process_events()?;
        }
        if self.flags.has(flags::DIRECT) {
            return self.obtain_directly(request);
        }
        self.count_search(request);
        if let Some(ptr) = self.search(request)? {
            return Ok(ptr);
        }
        let served = self.reclaim(request);
        if served.is_err() {
            // The search has made tables, for which there is no segment.
            self.drop_tables(&mut self.lock(request.slot));
        }
        served
    }

    /// Serves a request as on the fast path, but that it is recorded; nothing else is to be seen to than what `noted` says. Apart
    /// from the fast path, which gets slower if it shares this.
    #[inline(never)]
    fn malloc_traced(self, noted: u32, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        let from = self.driver.device().call_site(CallSite::Alloc);
        if bytes <= MAX_REQUEST - UNIT
            && let Some(pair) = self.default_pool.streams.get(stream.0)
        {
            let size = self.round_with(noted, bytes);
            let slot = self.slot(slot_of(pair, self.kind_of(size)));
            let mut heap = slot.heap.lock();
            if heap.serves == stream
                && !heap.rules.ages
                && let Some(done) = heap.malloc(size, bytes, &slot.tally)?
            {
                self.record_alloc(&mut heap, from, done.value, bytes);
                drop(heap);
                return Ok(self.settle(slot, done));
            }
        }
        self.malloc_at_site(bytes, stream, from)
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Serves a request from a heap of the default pool, if nothing but what `noted` says of the lightest kind is to be seen to,
    /// and else otherwise.
    #[inline(always)]
    fn malloc_fast(
        &self,
        noted: u32,
        bytes: u64,
        stream: StreamId,
        otherwise: impl FnOnce() -> Result<DevicePtr, Error>,
    ) -> Result<DevicePtr, Error> {
        if bytes <= MAX_REQUEST - UNIT
            && noted & !flags::FAST_PATH_FLAGS == 0
            && let Some(pair) = self.default_pool.streams.get(stream.0)
        {
            let size = self.round_with(noted, bytes);
            let slot = self.slots.get(slot_of(pair, self.kind_of(size))).expect("a pair has slots");
            let mut heap = slot.heap.lock();
            // The pair may have been given to another stream since it was looked up.
            if heap.serves == stream {
                let served = if heap.rules.ages {
                    self.count_and_malloc(&mut heap, size, bytes, &slot.tally)?
                } else {
                    heap.malloc(size, bytes, &slot.tally)?
                };
                drop(heap);
                if let Some(done) = served {
                    return Ok(self.settle(slot, done));
                }
            }
        }
        otherwise()
    }

    /// Serves a request from a heap whose free blocks age. The search counts if it succeeds; else it is repeated, and counts then.
    #[inline(never)]
    fn count_and_malloc(
        &self,
        heap: &mut Heap<S>,
        size: u64,
        requested: u64,
        tally: &HeapCounters,
    ) -> Result<Option<Outcome<DevicePtr>>, CapacityError> {
        heap.clock = self.searches(heap).load(Ordering::Relaxed) + 1;
        let served = heap.malloc(size, requested, tally)?;
        if served.is_some() {
            self.searches(heap).fetch_add(1, Ordering::Relaxed);
        }
        Ok(served)
    }

    /// Serves a request from its own heap.
    pub(crate) fn search(&self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        let slot = self.slot(request.slot);
        let mut heap = self.lock(request.slot);
        let served = heap.malloc(request.size, request.bytes, &slot.tally)?;
        if let Some(done) = &served {
            self.trace_alloc(&mut heap, request, done.value);
        }
        drop(heap);
        Ok(served.map(|done| self.settle(slot, done)))
    }
}
