//! Requests: the fast path, and the paths off the fast path.
//!
//! ```text
//! malloc ─ no flag set, the stream has a pair, a free block fits ─▶ malloc_fast ─▶ done
//!   └─ otherwise ─▶ malloc_cold ─ next of a plan ─▶ done
//!                     └─▶ malloc_unplanned ─┬─ only a trace is recorded ─▶ malloc_traced ───────┐
//!                                           ├─ blocks wait for events ─▶ malloc_after_events ─┤
//!                                           ├─ some blocks are guarded, or each is watched ─▶ malloc_apart
//!                                           ├─ plans are in force ─▶ malloc_beside_plans ─┐    │
//!                                           └─────────────────────▶ malloc_slow ◀─────────┘    │
//!                                                                     └─▶ malloc_at_site ◀──────┘
//!                                                                           └─▶ serve ─▶ ladder.rs
//! ```
//!
//! `malloc_inlined`, for other languages, serves requests from plain heaps by a straight path, and calls `malloc` where a heap is not
//! plain. Each function is the one for a request when those above it have declined. All of them may run on any thread. The fast path
//! holds one lock, that of a heap, and never calls the device.

use crate::arena::flags::FlagWord;
use crate::arena::heaps::pairs::{HEAPS, STREAMS};
use crate::arena::heaps::{Heaps, slot_of};
use crate::arena::request::Request;
use crate::arena::{Arena, OnDevice, Platform, flags};
use crate::device::Host;
use crate::error::Error;
use crate::heap::{Heap, Outcome};
use crate::stats::HeapCounters;
use crate::sync::Ordering;
use crate::tables::{CapacityError, OnceTable};
use crate::trace::CallSite;
use crate::units::{DevicePtr, MAX_REQUEST, StreamId, UNIT};

impl<P: Platform> OnDevice<'_, P> {
    /// Serves a request for `bytes` on `stream`. See [`Allocator::malloc`](crate::allocator::Allocator::malloc).
    #[inline(always)]
    pub(crate) fn malloc(self, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        // One load for all conditions. A flag that another thread sets right after the load counts as set after this request.
        let word = self.driver.flags.load();
        self.malloc_fast(word, bytes, stream, || self.malloc_cold(bytes, stream))
    }

    /// Serves a request as [`malloc`](Self::malloc) does. The straight path is inlined, and all else is a call.
    ///
    /// Each way off the path is a cold tail call, and the path calls nothing but the walks of sorted lists: its values stay in
    /// registers. In one function with the general path it loses them, and the general path is slower, too.
    #[inline(always)]
    pub(crate) fn malloc_inlined<E: From<Error>>(self, bytes: u64, stream: StreamId) -> Result<DevicePtr, E> {
        // As in `malloc` and `malloc_fast`.
        if self.driver.flags.load() & !flags::STRAIGHT_PATH_FLAGS != 0 {
            return Ok(self.malloc_outlined(bytes, stream)?);
        }
        if (1..=MAX_REQUEST - UNIT).contains(&bytes)
            && let Some(pair) = self.heaps.default_pool.streams.get(stream.0)
        {
            let size = self.settings.round_to_unit(bytes);
            let slot = self.heaps.slots.get(slot_of(pair, self.settings.kind_of(size))).expect("a pair has slots");
            let mut heap = slot.heap.lock();
            if heap.serves != stream || !heap.plain {
                drop(heap);
                return Ok(self.malloc_outlined(bytes, stream)?);
            }
            if let Some(Outcome { value, peaks_stale }) = heap.malloc_plainly(size, bytes, &slot.counters) {
                drop(heap);
                self.settle_peaks(slot, peaks_stale);
                return Ok(value);
            }
        }
        Ok(self.malloc_cold(bytes, stream)?)
    }

    /// Serves a request as [`malloc`](Self::malloc) does.
    #[inline(never)]
    fn malloc_outlined(self, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        self.malloc(bytes, stream)
    }

    /// Serves a request declined by the fast path. Tries the plan of the stream first.
    ///
    /// Must stay a cold tail call with these arguments only. Inlined, or given the flags or the pair that were found, it makes
    /// the fast path spill registers: 20 instructions of a malloc/free pair.
    #[cold]
    fn malloc_cold(self, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        if bytes == 0 {
            return Ok(DevicePtr::NULL);
        }
        self.malloc_next(bytes, stream)
    }

    /// Serves a request out of the order of its stream's plan, or of a stream without a plan.
    #[inline(never)]
    pub(crate) fn malloc_unplanned(self, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        let word = self.driver.flags.load();
        self.malloc_by(word, bytes, stream)
    }

    /// Serves a request from the cache if `word` allows that, else as [`malloc_by`](Self::malloc_by) does.
    pub(super) fn malloc_again(self, word: FlagWord, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        self.malloc_fast(word, bytes, stream, || self.malloc_by(word, bytes, stream))
    }

    /// Serves a request that the fast path has declined, by the flags in `word`.
    #[inline(always)]
    fn malloc_by(self, word: FlagWord, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        // With a trace and nothing else, a hit in the cache stays one lookup under one lock.
        if word & !(flags::FAST_PATH_FLAGS & !flags::AGES) == flags::TRACE {
            return self.malloc_traced(word, bytes, stream);
        }
        // As with events that every request polls. Rounded up, `bytes` stay below the limit.
        let waits = word & flags::PENDING != 0 && word & !(flags::FAST_PATH_FLAGS | flags::PENDING) == 0;
        if waits && bytes <= MAX_REQUEST / 2 {
            return self.malloc_after_events(bytes, stream);
        }
        // Behind the two cases above, which then pay nothing for guards.
        if word & flags::APART != 0 {
            return self.malloc_apart(word, bytes, stream);
        }
        if word & flags::PLANNED != 0 && bytes <= MAX_REQUEST - UNIT {
            return self.malloc_beside_plans(word, bytes, stream);
        }
        self.malloc_slow(bytes, stream, false)
    }

    /// Serves a request while blocks wait for events, every request polls them, and nothing else is unusual.
    #[inline(never)]
    fn malloc_after_events(self, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        let asking = self.driver.begin_asking();
        let has_asked = asking.is_some();
        if has_asked {
            self.process_events()?;
        }
        drop(asking);
        let slow = || self.malloc_slow(bytes, stream, has_asked);
        // Blocks that still wait are no reason to leave the fast path.
        self.malloc_fast(self.driver.flags.load() & !(flags::PENDING | flags::APART), bytes, stream, slow)
    }

    /// Serves a request while plans are in force: from a plan if it deviates only a little, else from the heaps.
    #[inline(never)]
    fn malloc_beside_plans(self, word: FlagWord, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        if let Some(ptr) = self.malloc_planned(word, bytes, stream) {
            return Ok(ptr);
        }
        let slow = || self.malloc_slow(bytes, stream, false);
        // The plans have declined, so their flag alone is no reason to leave the fast path.
        self.malloc_fast(word & !flags::PLANNED, bytes, stream, slow)
    }

    /// Serves a request under any flags. May call the device. `has_asked` tells whether the events that blocks wait for
    /// were polled for the request.
    #[cold]
    fn malloc_slow(self, bytes: u64, stream: StreamId, has_asked: bool) -> Result<DevicePtr, Error> {
        self.driver.health()?;
        // The host is asked for the call site with no lock held: it may walk the stack of an interpreter.
        let site = self.call_site(CallSite::Alloc);
        self.malloc_at_site(bytes, stream, site, has_asked)
    }

    /// Serves a request under any flags, once its call site is known. `has_asked` as for
    /// [`malloc_slow`](Self::malloc_slow).
    #[cold]
    fn malloc_at_site(self, bytes: u64, stream: StreamId, site: u32, has_asked: bool) -> Result<DevicePtr, Error> {
        let serve = |request: &Request| {
            self.learn_purpose(request);
            let ptr = self.serve(request, has_asked)?;
            self.plans.observe_malloc(&self.driver.flags, request, ptr);
            Ok(ptr)
        };
        match self.with_request(bytes, stream, site, Heaps::use_pair, serve) {
            // No table has room for another stream. Releasing the cache of a stream that holds nothing makes room for one.
            Err(Error::TableFull(HEAPS | STREAMS)) if self.release_one_idle() => {
                self.with_request(bytes, stream, site, Heaps::use_pair, serve)
            }
            served => served,
        }
    }

    /// Serves a request from its heap, else from the device, else from memory that is released first. `has_asked` as for
    /// [`malloc_slow`](Self::malloc_slow).
    fn serve(self, request: &Request, has_asked: bool) -> Result<DevicePtr, Error> {
        // Blocks whose events are complete become free before the search, so that they can serve this request.
        // Without a cache no search misses, so gathered frees are polled here.
        let is_direct = self.driver.flags.has(flags::DIRECT);
        let always = is_direct || !self.driver.flags.has(flags::GATHERS);
        let asked = flags::PENDING | if always { flags::GATHERED | flags::DEFERRED } else { 0 };
        let mut asks = !has_asked && self.driver.flags.has(asked) && !request.capturing;
        if asks && let Some(_asking) = self.driver.begin_asking() {
            self.process_events()?;
            asks = false;
        }
        if request.capturing {
            self.free_ordered_in_graph(request.stream);
        }
        if is_direct {
            return match self.grow(request)? {
                Some(ptr) => Ok(ptr),
                None => self.reclaim(request),
            };
        }
        if self.driver.flags.has(flags::AGES) {
            self.heaps.count_search(request);
        }
        if let Some(ptr) = self.search(request)? {
            return Ok(ptr);
        }
        // Another thread was asking, and may have asked too early for this request.
        if asks {
            self.process_events()?;
            if let Some(ptr) = self.search(request)? {
                return Ok(ptr);
            }
        }
        let served = self.reclaim(request);
        if served.is_err() {
            // The search made the heap's tables. Without a segment they would hold 36 KiB for nothing.
            self.heaps.drop_tables(&mut self.heaps.lock(request.slot));
        }
        served
    }

    /// Serves a request from the cache and records the event, while a trace is recorded and no other flag but rounding is set.
    ///
    /// Apart from [`malloc_fast`](Arena::malloc_fast), which gets slower if the two share code.
    #[inline(never)]
    fn malloc_traced(self, word: FlagWord, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        // Before the heap is locked: the host may take long.
        let call_site = self.driver.device().call_site(CallSite::Alloc);
        if bytes <= MAX_REQUEST - UNIT
            && let Some(pair) = self.heaps.default_pool.streams.get(stream.0)
        {
            let size = self.settings.round(word, bytes);
            let slot = self.heaps.slot(slot_of(pair, self.settings.kind_of(size)));
            let mut heap = slot.heap.lock();
            if heap.serves == stream
                && !heap.rules.ages
                && let Some(served) = heap.malloc(size, bytes, &slot.counters)?
            {
                // Under the heap's lock, so that the events of the block stay in the order in which they happened.
                self.recorder().alloc(&mut heap, call_site, served.value, bytes);
                drop(heap);
                return Ok(self.reconcile(slot, served));
            }
        }
        self.malloc_at_site(bytes, stream, call_site, false)
    }
}

impl<P: Platform> Arena<P> {
    /// Serves a request from a heap of the default pool, if `word` holds none but [`flags::FAST_PATH_FLAGS`] and a free block
    /// fits. Otherwise calls `decline`, with no lock held.
    #[inline(always)]
    fn malloc_fast(
        &self,
        word: FlagWord,
        bytes: u64,
        stream: StreamId,
        decline: impl FnOnce() -> Result<DevicePtr, Error>,
    ) -> Result<DevicePtr, Error> {
        // The bound keeps every rounding below from overflowing: sizes stay at most `MAX_REQUEST`.
        if (1..=MAX_REQUEST - UNIT).contains(&bytes)
            && word & !flags::FAST_PATH_FLAGS == 0
            && let Some(pair) = self.heaps.default_pool.streams.get(stream.0)
        {
            let size = self.settings.round(word, bytes);
            let slot = self.heaps.slots.get(slot_of(pair, self.settings.kind_of(size))).expect("a pair has slots");
            let mut heap = slot.heap.lock();
            // The map was read without a lock: the pair may be another stream's by now. `serves` is one comparison for this, for
            // an ended stream and for a vacant pair.
            if heap.serves == stream {
                let served = if word & flags::AGES != 0 {
                    self.heaps.count_and_malloc(&mut heap, size, bytes, &slot.counters)?
                } else {
                    heap.malloc(size, bytes, &slot.counters)?
                };
                // Reconciling the peaks takes another lock, so this one goes first.
                drop(heap);
                if let Some(served) = served {
                    return Ok(self.reconcile(slot, served));
                }
            }
        }
        decline()
    }

    /// Serves a request from the free blocks of its own heap. `None` if none of them may serve it.
    pub(crate) fn search(&self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        let slot = self.heaps.slot(request.slot);
        let mut heap = self.heaps.lock(request.slot);
        let served = heap.malloc(request.size, request.bytes, &slot.counters)?;
        if let Some(served) = &served {
            self.trace(|recorder| recorder.alloc(&mut heap, request.site, served.value, request.bytes));
        }
        drop(heap);
        Ok(served.map(|served| self.reconcile(slot, served)))
    }
}

impl<P: Platform> Heaps<P> {
    /// Serves a request from a heap whose free blocks age, and counts the search if it succeeds. A search that fails is
    /// repeated on the slow path, which counts it.
    #[inline(never)]
    fn count_and_malloc(
        &self,
        heap: &mut Heap<P::Storage>,
        size: u64,
        requested: u64,
        counters: &HeapCounters,
    ) -> Result<Option<Outcome<DevicePtr>>, CapacityError> {
        // The rest of a block that is split is as old as this search, so the clock moves before it.
        heap.clock = self.searches(heap).load(Ordering::Relaxed) + 1;
        let served = heap.malloc(size, requested, counters)?;
        if served.is_some() {
            self.searches(heap).fetch_add(1, Ordering::Relaxed);
        }
        Ok(served)
    }
}
