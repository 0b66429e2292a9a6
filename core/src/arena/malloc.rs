//! Serves requests, in one of several ways: from the cheapest one to the one that serves any
//! request.
//!
//! ```text
//! malloc_straight ─ no flag set, no rule applies, a free block fits ─▶ done
//!   └─ malloc ─┬─ a trace is recorded ─▶ traced ─ from the cache, else ───────────────────────────┐
//!              └─ serve_cached ─ no flag set, the stream has a pair, a free block fits ─▶ done    │
//!                   └─ declined ─ the next of a plan ─▶ done                                      │
//!                        └─ by_flags ─┬─ blocks wait for polled events ─▶ after_poll ─ cache, else┤
//!                                     ├─ the debug layer is on ─▶ debugged ─ cache, else by_flags │
//!                                     ├─ plans are active ──▶ beside_plans ─ cache, else ─────────┤
//!                                     └───────────────────────────────────────────────────────────┴▶ serve ─▶ ladder.rs
//! ```
//!
//! All of them run on any thread, and none holds a lock across a call to the device. `serve_cached`
//! and `traced` hold one lock, that of a heap, and do not call the device. The others may call it.
//! `malloc_straight` is `serve_cached` for [plain](crate::heap::Heap::plain) heaps, which serves a
//! request or changes nothing; callers inline it.

use crate::arena::flags::FlagWord;
use crate::arena::heaps::pairs::{HEAPS, PairUse, STREAMS};
use crate::arena::heaps::{Heaps, Slot, slot_of};
use crate::arena::plans;
use crate::arena::platform::Platform;
use crate::arena::request::{Request, RequestCalls};
use crate::arena::{Arena, OnDevice, compact, flags};
use crate::device::{Host, StreamOrder};
use crate::error::Error;
use crate::heap::{Heap, Outcome};
use crate::stats::HeapCounters;
use crate::sync::Ordering;
use crate::tables::{CapacityError, OnceTable};
use crate::trace::CallSite;
use crate::units::{DevicePtr, MAX_REQUEST, NO_STREAM, StreamId, UNIT};

/// The state of a request that no free block has served.
#[derive(Clone, Copy)]
struct Miss {
    /// The call site, if the host was asked for it.
    site: Option<u32>,
    /// Whether the events that blocks wait for were polled for the request.
    polled: Polled,
}

/// Whether the events that blocks wait for were polled for a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Polled {
    /// Not yet.
    No,
    /// They were, or the request does not poll before it searches.
    Yes,
    /// By another thread, perhaps too early for this request.
    ByAnother,
}

impl<P: Platform> OnDevice<'_, P> {
    /// Serves a request that [`malloc_straight`](Self::malloc_straight) has declined.
    #[inline(always)]
    pub(crate) fn malloc(self, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        // One load for all conditions. A flag that another thread sets right after the load counts
        // as set after this request.
        let word = self.driver.flags.load();
        // With a trace and nothing else, a hit in the cache is still one lookup under one lock.
        // This comes first, because a recorder is often on.
        if word & !(flags::FAST_PATH_FLAGS & !flags::AGES) == flags::TRACE && bytes != 0 {
            return self.traced(word, bytes, stream);
        }
        self.serve_cached(word, bytes, stream, || self.declined(bytes, stream))
    }

    /// Serves a request from a free block of a plain heap, if nothing is unusual. `None`: it takes
    /// more than that, and nothing has changed, so that [`malloc`](Self::malloc) begins anew.
    #[inline(always)]
    pub(crate) fn malloc_straight(self, bytes: u64, stream: StreamId) -> Option<DevicePtr> {
        let is_usual = self.driver.flags.load() & !flags::STRAIGHT_PATH_FLAGS == 0;
        // The bound is that of `serve_cached`.
        if !is_usual || !(1..=MAX_REQUEST - UNIT).contains(&bytes) || stream == NO_STREAM {
            return None;
        }
        let size = self.settings.round_to_unit(bytes);
        // A heap that was never set serves no stream.
        let slot = self.heaps.slots.peek(self.heaps.hints.slot(stream, self.settings.kind_of(size)))?;
        let mut heap = slot.heap.lock();
        if heap.straight != stream {
            return None;
        }
        let Outcome { value, peaks_stale } = heap.malloc_plainly(size, bytes, &slot.counters)?;
        drop(heap);
        self.settle_peaks(slot, peaks_stale);
        Some(value)
    }

    /// Serves a request that the cache has declined: from the plan of its stream, if it is the next
    /// of the plan.
    ///
    /// This must stay a cold tail call with these arguments only. If it is inlined, or given the
    /// flags or the pair that were found, the fast path spills registers, which costs 20
    /// instructions of a malloc/free pair. For the same reason every call in this function is
    /// inlined or a tail call, which saves 23 instructions of a planned request.
    #[cold]
    fn declined(self, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        if bytes == 0 {
            return Ok(DevicePtr::NULL);
        }
        if let Some((slot, Outcome { value, peaks_stale })) =
            self.plans.next(&self.heaps, &self.driver.flags, bytes, stream)
        {
            return if peaks_stale { self.reconcile_and_return(slot, value) } else { Ok(value) };
        }
        self.by_flags(self.driver.flags.load(), bytes, stream)
    }

    /// Serves a request in the way that the flags in `word` ask for: the conditions of the moment.
    #[inline(never)]
    fn by_flags(self, word: FlagWord, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        // With events that every request polls and nothing else, a hit in the cache is one lookup
        // under one lock. Even rounded up, these `bytes` are below the limit, so nothing is polled
        // for a request that is too large.
        let waits = word & flags::PENDING != 0 && word & !(flags::FAST_PATH_FLAGS | flags::PENDING) == 0;
        if waits && bytes <= MAX_REQUEST / 2 {
            return self.after_poll(bytes, stream);
        }
        // This comes after the case above, so that it pays nothing for it.
        if word & flags::DEBUG != 0 {
            return self.debugged(word & !flags::DEBUG, bytes, stream);
        }
        if word & flags::PLANNED != 0 && bytes <= MAX_REQUEST - UNIT {
            return self.beside_plans(word, bytes, stream);
        }
        self.serve(bytes, stream, Miss { site: None, polled: Polled::No })
    }

    /// Serves a request from the cache and records the event. Used while a trace is recorded, no
    /// block ages, and no other flag keeps requests off the fast path.
    ///
    /// This code is separate from [`serve_cached`](Arena::serve_cached), which gets slower if the
    /// two share code.
    #[inline(never)]
    fn traced(self, word: FlagWord, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        // Asked before the heap is locked, because the host may take long.
        let call_site = self.driver.device().call_site(CallSite::Alloc);
        if bytes <= MAX_REQUEST - UNIT && stream != NO_STREAM {
            let size = self.settings.round::<P::Storage>(word, bytes);
            let slot = self.heaps.slots.peek(self.heaps.hints.slot(stream, self.settings.kind_of(size)));
            // Another compilation of the straight path, because a recorder is often on.
            if let Some(slot) = slot
                && let mut heap = slot.heap.lock()
                && heap.straight == stream
                && let Some(Outcome { value, peaks_stale }) = heap.malloc_plainly(size, bytes, &slot.counters)
            {
                // Recorded under the heap's lock, so that the events of the block stay in the order
                // in which they happened.
                self.recorder().alloc(&mut heap, call_site, value, bytes);
                drop(heap);
                self.settle_peaks(slot, peaks_stale);
                return Ok(value);
            }
        }
        self.traced_by_rules(word, bytes, stream, call_site)
    }

    /// Serves a request as [`traced`](Self::traced) does, from any heap. It is separate so that the
    /// values of the other stay in registers.
    #[inline(never)]
    fn traced_by_rules(self, word: FlagWord, bytes: u64, stream: StreamId, call_site: u32) -> Result<DevicePtr, Error> {
        if bytes <= MAX_REQUEST - UNIT
            && let Some(pair) = self.heaps.default_pool.streams.get(stream.0)
        {
            let size = self.settings.round::<P::Storage>(word, bytes);
            let slot = self.heaps.slot(slot_of(pair, self.settings.kind_of(size)));
            let mut heap = slot.heap.lock();
            if heap.serves == stream
                && !heap.rules.ages
                && let Some(served) = heap.malloc(size, bytes, &slot.counters)?
            {
                self.recorder().alloc(&mut heap, call_site, served.value, bytes);
                drop(heap);
                return Ok(self.reconcile(slot, served));
            }
        }
        self.serve(bytes, stream, Miss { site: Some(call_site), polled: Polled::No })
    }

    /// Polls the events that blocks wait for, and serves a request. Used while every request polls
    /// them and nothing else is unusual.
    #[inline(never)]
    fn after_poll(self, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        let asking = self.driver.begin_asking();
        let polled = if asking.is_some() { Polled::Yes } else { Polled::No };
        if asking.is_some() {
            self.waiting().process_events()?;
        }
        drop(asking);
        let decline = || self.serve(bytes, stream, Miss { site: None, polled });
        // Blocks that still wait are no reason to leave the fast path. Neither is the debug layer,
        // which has called this.
        self.serve_cached(self.driver.flags.load() & !(flags::PENDING | flags::DEBUG), bytes, stream, decline)
    }

    /// Serves a request while the [debug layer](crate::arena::debug) has something to do with each
    /// block. `word` has the other flags.
    #[cold]
    fn debugged(self, word: FlagWord, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        let guarded =
            if self.debug.is_due(&self.driver.flags, bytes) { self.malloc_guarded(bytes, stream)? } else { None };
        let ptr = match guarded {
            Some(ptr) => ptr,
            None => self.serve_cached(word, bytes, stream, || self.by_flags(word, bytes, stream))?,
        };
        if let Some(owner) = self.heaps.owner_of(self.pages, ptr)
            && let Err(error) = self.debug.placed(&self.holdings(), owner.heap, (ptr, guarded.is_some()), bytes, stream)
        {
            self.free_unfilled(owner, ptr, stream);
            return Err(error.into());
        }
        Ok(ptr)
    }

    /// Serves a request with a guarded block. Returns `None` if an ordinary block must serve it.
    fn malloc_guarded(self, bytes: u64, stream: StreamId) -> Result<Option<DevicePtr>, Error> {
        self.driver.health()?;
        // Asked with no lock held, because the host may walk the stack of an interpreter. Asked
        // even if no trace is recorded.
        let site = self.driver.device().call_site(CallSite::Alloc);
        let obtain = |request: &Request| self.debug.obtain_guarded(&self.holdings(), self.waiting(), request);
        match self.with_request(bytes, stream, site, Heaps::use_pair, obtain) {
            // Whichever table is full, an ordinary block needs less room in it.
            Err(Error::TableFull(_)) => Ok(None),
            served => served,
        }
    }

    /// Serves a request while plans are active: from a plan if it deviates only a little, and
    /// otherwise from the heaps.
    #[inline(never)]
    fn beside_plans(self, word: FlagWord, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        if let Some(ptr) = self.serve_planned(word, bytes, stream) {
            return Ok(ptr);
        }
        let decline = || self.serve(bytes, stream, Miss { site: None, polled: Polled::No });
        // The plans have declined, so their flag alone is no reason to leave the fast path.
        self.serve_cached(word & !flags::PLANNED, bytes, stream, decline)
    }

    /// Serves a request from the plan of its stream, in order or not. Returns `None` if a heap must
    /// serve it.
    fn serve_planned(self, word: FlagWord, bytes: u64, stream: StreamId) -> Option<DevicePtr> {
        // Routes come before plans: a request that is led into a private pool does not belong to
        // the plan.
        if plans::is_unusual(word) && (plans::are_off(&self.driver.flags) || self.heaps.is_routed(&self.driver, stream))
        {
            return None;
        }
        // No lock may be held, because the host may make its own requests when it is asked for the
        // call site.
        let site = self.call_site(CallSite::Alloc);
        // Events are polled only if the result matters: if the planned bytes are occupied, perhaps
        // by a listed block. The heap is not locked during the calls to the device.
        if self.driver.flags.has(flags::PENDING | flags::GATHERED | flags::DEFERRED)
            && self.plans.is_occupied(&self.heaps, bytes, stream)
        {
            // On an error the bytes stay occupied, and a heap serves the request.
            let _polled = self.waiting().process_events();
        }
        let (slot, mut heap, served) = self.plans.deviating(&self.heaps, bytes, stream)?;
        self.trace(|recorder| recorder.alloc(&mut heap, site, served.value, bytes));
        drop(heap);
        Some(self.reconcile(slot, served))
    }

    /// Serves a request under any flags. May call the device.
    #[cold]
    fn serve(self, bytes: u64, stream: StreamId, Miss { site, polled }: Miss) -> Result<DevicePtr, Error> {
        self.driver.health()?;
        // The host is asked for the call site with no lock held, because it may walk the stack of
        // an interpreter.
        let site = site.unwrap_or_else(|| self.call_site(CallSite::Alloc));
        let serve = |request: &Request| {
            self.heaps.learn_purpose(&self.driver, request);
            let ptr = self.serve_routed(request, polled)?;
            self.plans.observe_malloc(&self.driver.flags, request, ptr);
            Ok(ptr)
        };
        match self.with_request(bytes, stream, site, Heaps::use_pair, serve) {
            // No table has room for another stream. Releasing the cache of a stream that holds
            // nothing makes room for one.
            Err(Error::TableFull(HEAPS | STREAMS)) if self.holdings().release_one_idle() => {
                self.with_request(bytes, stream, site, Heaps::use_pair, serve)
            }
            served => served,
        }
    }

    /// Serves a request from its heap, otherwise from the device, or at last from memory that is
    /// released first.
    fn serve_routed(self, request: &Request, polled: Polled) -> Result<DevicePtr, Error> {
        // Blocks with complete events become free before the search, so that they can serve this
        // request.
        let polled = if polled == Polled::Yes { polled } else { self.poll_for(request)? };
        if request.capturing {
            self.waiting().free_ordered_in_graph(request.stream);
        }
        if self.driver.flags.has(flags::DIRECT) {
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
        if polled == Polled::ByAnother {
            self.waiting().process_events()?;
            if let Some(ptr) = self.search(request)? {
                return Ok(ptr);
            }
        }
        let served = self.reclaim(request);
        if served.is_err() {
            // The search has made the heap's tables. Without a segment they would take up 36 KiB
            // for nothing.
            self.heaps.drop_tables(&mut self.heaps.lock(request.slot));
        }
        served
    }

    /// Polls the events of all streams for a request, unless another thread is doing so.
    fn poll_for(self, request: &Request) -> Result<Polled, Error> {
        let flags = &self.driver.flags;
        // Gathered frees are polled after a search has missed. Without a cache there is no search,
        // so they are polled here.
        let searches_first = flags.has(flags::GATHERS) && !flags.has(flags::DIRECT);
        let waiting = if searches_first { flags::PENDING } else { flags::PENDING | flags::GATHERED | flags::DEFERRED };
        if request.capturing || !flags.has(waiting) {
            return Ok(Polled::Yes);
        }
        let Some(_asking) = self.driver.begin_asking() else { return Ok(Polled::ByAnother) };
        self.waiting().process_events()?;
        Ok(Polled::Yes)
    }
}

impl<P: Platform> Arena<P> {
    /// Serves a request from a heap of the default pool, if `word` has no flag outside
    /// [`flags::FAST_PATH_FLAGS`] and a free block fits. Otherwise calls `decline`, with no lock
    /// held.
    #[inline(always)]
    fn serve_cached(
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
            let size = self.settings.round::<P::Storage>(word, bytes);
            let slot = self.heaps.slots.peek(slot_of(pair, self.settings.kind_of(size))).expect("a pair has slots");
            let mut heap = slot.heap.lock();
            // The map was read without a lock, so the pair may belong to another stream by now. One
            // comparison with `serves` finds this, an ended stream and a vacant pair.
            if heap.serves == stream {
                let served = if word & flags::AGES != 0 {
                    self.heaps.count_and_malloc(&mut heap, size, bytes, &slot.counters)?
                } else {
                    heap.malloc(size, bytes, &slot.counters)?
                };
                // Reconciling the peaks takes another lock, so this one is released first.
                drop(heap);
                if let Some(served) = served {
                    return Ok(self.reconcile(slot, served));
                }
            }
        }
        decline()
    }

    /// Rounds and routes a request, and calls `serve` with it. `pair` finds or makes the pair of
    /// heaps. The pool remains in use until `serve` has returned.
    ///
    /// Errors: [`Error::TooLarge`], [`Error::Parked`], those of `pair` and `serve`, and those of
    /// the device if it is asked about a capture.
    pub(crate) fn with_request<T>(
        &self,
        bytes: u64,
        stream: StreamId,
        call_site: u32,
        pair: impl for<'a> Fn(&'a Heaps<P>, u32, StreamId) -> Result<PairUse<'a, P>, Error>,
        serve: impl FnOnce(&Request) -> Result<T, Error>,
    ) -> Result<T, Error> {
        // Rounding cannot overflow below the limit, and may reach the limit.
        // A request of zero bytes is rounded as a request of one byte.
        let size = if bytes < MAX_REQUEST {
            self.settings.round::<P::Storage>(self.driver.flags.load(), bytes.max(1))
        } else {
            MAX_REQUEST
        };
        if size >= MAX_REQUEST {
            return Err(Error::TooLarge(bytes));
        }
        let kind = self.settings.kind_of(size);
        let route =
            if self.driver.flags.has(flags::ROUTES) { self.heaps.enter_pool(&self.driver, stream) } else { None };
        let pool = route.map_or(0, |route| route.pool);
        let held = self.driver.holds_frees();
        let is_capturing = || {
            let asks = !held && self.driver.flags.has(flags::CAPTURE);
            Ok(held || asks && self.driver.call(|device| device.is_capturing(stream))?)
        };
        // This is asked only once the pair is in use, because a call that parks the heap waits for
        // all earlier users.
        let is_asleep = |pair: &PairUse<'_, P>| self.heaps.lock(pair.slot(kind)).asleep;
        let serve = |capturing: bool| {
            self.learn_virtual_memory();
            self.heaps.learn_supply(&self.driver, pool);
            let (mut pool, mut route, mut found) = (pool, route, pair(&self.heaps, pool, stream)?);
            // The memory of a captured request must be in the graph's own pool.
            if is_asleep(&found) && !capturing && self.heaps.registry.lock().pools[pool as usize].falls_back {
                (pool, route, found) = (0, None, pair(&self.heaps, 0, stream)?);
            }
            if is_asleep(&found) {
                return Err(Error::Parked);
            }
            let request = Request {
                bytes,
                size,
                kind,
                stream,
                pool,
                slot: found.slot(kind),
                route,
                capturing,
                held,
                site: call_site,
                mapping: RequestCalls::default(),
            };
            let served = serve(&request);
            request.mapping.count(&self.driver, &self.settings, &self.paging);
            served
        };
        // There is one way out, whatever fails, so that a pool that was entered is left again.
        let served = is_capturing().and_then(serve);
        if pool != 0 {
            self.heaps.leave_pool(pool);
        }
        served
    }

    /// Reconciles the peaks for a heap, and returns `ptr`. It exists so that
    /// [`declined`](OnDevice::declined) can end in a tail call.
    #[cold]
    #[inline(never)]
    #[expect(clippy::unnecessary_wraps, reason = "a tail call needs the return type of the caller")]
    fn reconcile_and_return(&self, slot: &Slot<P>, ptr: DevicePtr) -> Result<DevicePtr, Error> {
        self.reconcile_peaks(slot);
        Ok(ptr)
    }

    /// Serves a request from the free blocks of its own heap. Returns `None` if none of them may
    /// serve it.
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

    /// Serves a request from the smallest free block of its heap that is large enough, although
    /// more of a segment may be lost than `compact` allows. Returns `None` if there is no such
    /// block, or if `compact` is not active for the heap.
    pub(crate) fn search_any_block(&self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        let slot = self.heaps.slot(request.slot);
        let mut heap = self.heaps.lock(request.slot);
        let Some(block) = compact::find_any(&mut heap, request.size) else { return Ok(None) };
        heap.make_room()?;
        let served = heap.allocate_from(block, request.size, request.bytes, &slot.counters);
        self.trace(|recorder| recorder.alloc(&mut heap, request.site, served.value, request.bytes));
        drop(heap);
        Ok(Some(self.reconcile(slot, served)))
    }
}

impl<P: Platform> Heaps<P> {
    /// Serves a request from a heap in which free blocks age, and counts the search if it succeeds.
    /// A search that fails is repeated on the slow path, which counts it.
    #[inline(never)]
    fn count_and_malloc(
        &self,
        heap: &mut Heap<P::Storage>,
        size: u64,
        requested: u64,
        counters: &HeapCounters,
    ) -> Result<Option<Outcome<DevicePtr>>, CapacityError> {
        // The remainder of a block that is split gets the age of this search, so the clock moves
        // before the search.
        heap.clock = self.searches(heap).load(Ordering::Relaxed) + 1;
        let served = heap.malloc(size, requested, counters)?;
        if served.is_some() {
            self.searches(heap).fetch_add(1, Ordering::Relaxed);
        }
        Ok(served)
    }
}
