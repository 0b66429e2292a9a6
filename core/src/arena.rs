//! Everything of one device: its heaps, the pools they belong to, its limits and counters, and the fast path over them.
//!
//! ```text
//! malloc ─ attention = 0? ─ stream → pair (no lock) ─ heap lock ─ best fit ─▶ done
//!                │                                        └─ miss ─▶ reclaim.rs
//!                └─ events pending, routes, limits … ─▶ the attentive path
//! ```
//!
//! Locks, each held alone except where the list says otherwise, never across a call to the device:
//! `registry` (pools, routes, pairs) · `config` · `order` (events) · `frontier` · a heap's lock · `peaks` · the directory's writer lock.
//! `config` and a heap's lock may be taken under `registry`, when pairs are made or vacated and when rules change; nothing is
//! taken under a heap's lock but the trace's. A lane of the planned policy is locked before its heap (`planned/lane.rs`).

use crate::config::{Config, Policy};
use crate::device::{DeviceError, DeviceMemory, DeviceResult, ErrorKind};
use crate::directory::Directory;
use crate::error::Error;
use crate::frontier::Frontier;
use crate::heap::{Done, Full, Heap};
use crate::heaps::{HEAPS, PairUse, STREAMS, Slot, options_of, slot_of};
use crate::order::Order;
use crate::pool::{PoolOptions, Registry, RouteEntry, SharedPool};
use crate::rounding::{INTERVALS, PoolKind, divide};
use crate::rules::Rules;
use crate::sites::Sites;
use crate::stats::{Party, Tally, Totals};
use crate::storage::{Shelf, Storage};
use crate::sync::{Apart, Lock};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::trace::{CallSite, Trace};
use crate::units::{DevicePtr, MAX_REQUEST, StreamId, UNIT};
use lock_api::Mutex;

/// Circumstances to be seen to. Any bit but the [`LIGHT`] ones sends every request the attentive way.
pub(crate) mod attention {
    /// Events are waited for, or their recording is deferred.
    pub(crate) const PENDING: u32 = 1;
    /// The recording of events is deferred until no graph is being captured.
    pub(crate) const DEFERRED: u32 = 1 << 8;
    /// Some requests are routed into private pools.
    pub(crate) const ROUTES: u32 = 1 << 1;
    /// A graph is being captured.
    pub(crate) const CAPTURE: u32 = 1 << 2;
    /// Free blocks age: a limit and a collection threshold are set.
    pub(crate) const AGES: u32 = 1 << 3;
    /// Sizes are rounded otherwise than to the [unit](Policy::unit).
    pub(crate) const ROUNDING: u32 = 1 << 4;
    /// Nothing is cached: every request goes to the device.
    pub(crate) const DIRECT: u32 = 1 << 5;
    /// The context is lost: the device is not called any more.
    pub(crate) const LOST: u32 = 1 << 6;
    /// Events are recorded in the trace.
    pub(crate) const TRACE: u32 = 1 << 7;
    /// Some requests are served from plans.
    #[cfg(feature = "alloc")]
    pub(crate) const PLANNED: u32 = 1 << 10;
    /// Requests are noted, to be planned.
    pub(crate) const OBSERVED: u32 = 1 << 11;
    /// Of some blocks or segments it is known where they were allocated.
    pub(crate) const SITES: u32 = 1 << 9;
    /// What the fast path sees to itself.
    pub(crate) const LIGHT: u32 = AGES | ROUNDING;
}

/// How many heaps are asked for room before all are.
const NEAR: usize = 4;

/// What a request comes down to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// As the program asked, in bytes.
    pub bytes: u64,
    /// What that is rounded to.
    pub size: u64,
    pub kind: PoolKind,
    pub stream: StreamId,
    /// Number of the pool.
    pub pool: u32,
    /// The slot of the heap that serves it.
    pub slot: u32,
    /// What leads it into its pool, if that is a private one.
    pub route: Option<RouteEntry>,
    /// Its stream is capturing a graph.
    pub capturing: bool,
    /// Where in the program it is made, as far as that is recorded.
    pub site: u32,
}

/// The device `Arena::place`s its segments as.
pub(crate) struct Arena<D, R: Lock, S: Storage> {
    pub memory: D,
    /// Number of the device in the allocator.
    pub number: u32,
    pub policy: Policy,
    /// What sizes are multiples of, in bytes: a power of two.
    unit: u64,
    /// The largest size of the small pool, in bytes; 0 if there is none.
    small_max: u64,
    /// Bits of [`attention`].
    attention: AtomicU32,
    /// The code of the error that lost the context; meaningful while [`attention::LOST`] is set.
    lost: AtomicU64,
    /// The divisions in force, one word an interval.
    divisions: [AtomicU32; INTERVALS],
    /// Streams of the default pool, beside the other pools so that the fast path reaches them directly.
    pub default_pool: SharedPool<S>,
    /// Private pools; entry `p` is pool `p`, entry 0 is not used.
    pub pools: S::Shelf<SharedPool<S>>,
    /// Slots of pairs: even ones small, odd ones large.
    pub slots: S::Shelf<Slot<R, S>>,
    pub registry: Mutex<R, Registry<S>>,
    pub config: Mutex<R, Config>,
    pub order: Apart<Mutex<R, Order<S>>>,
    /// Calls that record events, because no graph was being captured when they looked.
    recording: AtomicU32,
    pub frontier: Mutex<R, Frontier<S>>,
    /// The planned policy, if it comes before the one that this arena has.
    #[cfg(feature = "alloc")]
    pub planned: Option<alloc::boxed::Box<crate::planned::Front<R>>>,
    /// Held by the one who settles the peaks: the slot that was settled last.
    peaks: Apart<Mutex<R, u32>>,
    pub totals: Apart<Totals>,
    /// Bytes held from the device: what segments take, and what was lost in failed releases.
    pub reserved: Apart<AtomicU64>,
    /// The most that may be held; `u64::MAX` for no limit.
    pub limit: AtomicU64,
    /// 0 ⟺ the free blocks are searched again after a wait for events.
    pub single_search: AtomicU32,
    /// Bytes whose release failed. They are never handed out again.
    pub leaked: AtomicU64,
    /// Slots of heaps whose streams have ended, in which a segment became wholly free since.
    pub ended: Mutex<R, S::Table<u32>>,
    /// How many `ended` holds; written under its lock.
    pub ended_count: AtomicU32,
    /// Not 0 ⟺ so many pairs exist that the caches of idle ones are to be released.
    pub idle_due: AtomicU32,
    pub trace: Apart<Trace<R, S>>,
    pub sites: Sites<R>,
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    pub(crate) fn new(memory: D, number: u32, config: &Config) -> Self {
        let arena = Self {
            memory,
            number,
            policy: config.policy(),
            unit: config.policy().unit(),
            small_max: config.policy().small_max(),
            attention: AtomicU32::new(0),
            lost: AtomicU64::new(u64::MAX),
            divisions: core::array::from_fn(|_| AtomicU32::new(0)),
            default_pool: SharedPool::default(),
            pools: S::Shelf::default(),
            slots: S::Shelf::default(),
            registry: Mutex::new(Registry::default()),
            config: Mutex::new(config.clone()),
            order: Apart(Mutex::new(Order::default())),
            recording: AtomicU32::new(0),
            frontier: Mutex::new(Frontier::default()),
            #[cfg(feature = "alloc")]
            planned: config.planned().map(|options| alloc::boxed::Box::new(crate::planned::Front::new(options))),
            peaks: Apart(Mutex::new(0)),
            totals: Apart(Totals::new(config.max_split_size())),
            reserved: Apart(AtomicU64::new(0)),
            limit: AtomicU64::new(u64::MAX),
            single_search: AtomicU32::new(0),
            leaked: AtomicU64::new(0),
            ended: Mutex::new(S::Table::default()),
            ended_count: AtomicU32::new(0),
            idle_due: AtomicU32::new(0),
            trace: Apart::default(),
            sites: Sites::default(),
        };
        arena.set(attention::DIRECT, config.policy() == Policy::Direct);
        arena.apply_config();
        arena
    }

    /// Serves a request. See [`Allocator::malloc`](crate::allocator::Allocator::malloc).
    #[inline]
    pub(crate) fn malloc(&self, directory: &Directory<R, S>, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        if bytes == 0 {
            return Ok(DevicePtr::NULL);
        }
        let noted = self.attention.load(Ordering::Relaxed);
        self.malloc_at_once(noted, bytes, stream, || self.malloc_otherwise(directory, bytes, stream))
    }

    /// Serves a request from a heap of the default pool, if nothing but what `noted` says of the lightest kind is to be seen to,
    /// and else otherwise.
    #[inline(always)]
    fn malloc_at_once(
        &self,
        noted: u32,
        bytes: u64,
        stream: StreamId,
        otherwise: impl FnOnce() -> Result<DevicePtr, Error>,
    ) -> Result<DevicePtr, Error> {
        if bytes <= MAX_REQUEST - UNIT
            && noted & !attention::LIGHT == 0
            && let Some(pair) = self.default_pool.streams.get(stream.0)
        {
            let size = self.round_noted(noted, bytes);
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

    /// The same where there is more to be seen to: plans come first. Cold, and told no more than it must be, or the fast path
    /// spills registers: 20 instructions of a pair.
    #[cold]
    fn malloc_otherwise(&self, directory: &Directory<R, S>, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        #[cfg(feature = "alloc")]
        return self.malloc_next(directory, bytes, stream);
        #[cfg(not(feature = "alloc"))]
        return self.malloc_unlike(directory, bytes, stream);
    }

    /// The same for what is not the next request of a plan.
    #[inline(never)]
    pub(crate) fn malloc_unlike(
        &self,
        directory: &Directory<R, S>,
        bytes: u64,
        stream: StreamId,
    ) -> Result<DevicePtr, Error> {
        let noted = self.attention.load(Ordering::Relaxed);
        if noted & !(attention::ROUNDING | attention::SITES) == attention::TRACE {
            return self.malloc_traced(directory, noted, bytes, stream);
        }
        #[cfg(feature = "alloc")]
        if noted & attention::PLANNED != 0 && bytes <= MAX_REQUEST - UNIT {
            return self.malloc_unplanned(directory, noted, bytes, stream);
        }
        self.malloc_attentively(directory, bytes, stream)
    }

    /// The same while plans are in force: what none serves either is left to the heaps.
    #[cfg(feature = "alloc")]
    #[inline(never)]
    fn malloc_unplanned(
        &self,
        directory: &Directory<R, S>,
        noted: u32,
        bytes: u64,
        stream: StreamId,
    ) -> Result<DevicePtr, Error> {
        if let Some(ptr) = self.malloc_planned(directory, noted, bytes, stream) {
            return Ok(ptr);
        }
        let attentively = || self.malloc_attentively(directory, bytes, stream);
        self.malloc_at_once(noted & !attention::PLANNED, bytes, stream, attentively)
    }

    /// Serves a request from a heap whose free blocks age. The search counts if it succeeds; else it is repeated, and counts then.
    #[inline(never)]
    fn count_and_malloc(
        &self,
        heap: &mut Heap<S>,
        size: u64,
        requested: u64,
        tally: &Tally,
    ) -> Result<Option<Done<DevicePtr>>, Full> {
        heap.clock = self.searches(heap).load(Ordering::Relaxed) + 1;
        let served = heap.malloc(size, requested, tally)?;
        if served.is_some() {
            self.searches(heap).fetch_add(1, Ordering::Relaxed);
        }
        Ok(served)
    }

    /// The same, whatever the circumstances.
    #[cold]
    fn malloc_attentively(
        &self,
        directory: &Directory<R, S>,
        bytes: u64,
        stream: StreamId,
    ) -> Result<DevicePtr, Error> {
        self.health()?;
        let from = self.call_site(CallSite::Alloc);
        self.malloc_from(directory, bytes, stream, from)
    }

    /// The same at a place that is known.
    #[cold]
    fn malloc_from(
        &self,
        directory: &Directory<R, S>,
        bytes: u64,
        stream: StreamId,
        from: u32,
    ) -> Result<DevicePtr, Error> {
        let serve = |request: &Request| {
            self.learn_purpose(request);
            let ptr = self.serve(directory, request)?;
            #[cfg(feature = "alloc")]
            self.note_malloc(request, ptr);
            Ok(ptr)
        };
        match self.with_request(bytes, stream, from, Self::use_pair, serve) {
            // The tables have no room for a further stream: the cache of one that holds nothing makes some.
            Err(Error::TableFull(HEAPS | STREAMS)) if self.release_one_idle(directory) => {
                self.with_request(bytes, stream, from, Self::use_pair, serve)
            }
            served => served,
        }
    }

    /// Serves a request from its heap, the device or whatever can be given back.
    fn serve(&self, directory: &Directory<R, S>, request: &Request) -> Result<DevicePtr, Error> {
        if self.has(attention::PENDING) && !request.capturing {
            self.process_events(directory)?;
        }
        if self.has(attention::DIRECT) {
            return self.obtain_directly(directory, request);
        }
        self.count_search(request);
        if let Some(ptr) = self.search(request)? {
            return Ok(ptr);
        }
        let served = self.reclaim(directory, request);
        if served.is_err() {
            // The search has made tables, for which there is no segment.
            self.drop_tables(&mut self.lock(request.slot));
        }
        served
    }

    /// Serves a request as on the fast path, but that it is recorded; nothing else is to be seen to than what `noted` says. Apart
    /// from the fast path, which gets slower if it shares this.
    #[inline(never)]
    fn malloc_traced(
        &self,
        directory: &Directory<R, S>,
        noted: u32,
        bytes: u64,
        stream: StreamId,
    ) -> Result<DevicePtr, Error> {
        let from = self.memory.call_site(CallSite::Alloc);
        if bytes <= MAX_REQUEST - UNIT
            && let Some(pair) = self.default_pool.streams.get(stream.0)
        {
            let size = self.round_noted(noted, bytes);
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
        self.malloc_from(directory, bytes, stream, from)
    }

    /// Rounds and routes a request, and finds or makes the heap that serves it, in the pair that `pair` uses. The pool is not given
    /// up before `serve` is done.
    pub(crate) fn with_request<T>(
        &self,
        bytes: u64,
        stream: StreamId,
        from: u32,
        pair: impl for<'a> FnOnce(&'a Self, u32, StreamId) -> Result<PairUse<'a, D, R, S>, Error>,
        serve: impl FnOnce(&Request) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let size = if bytes < MAX_REQUEST { self.round(bytes) } else { MAX_REQUEST };
        if size >= MAX_REQUEST {
            return Err(Error::TooLarge(bytes));
        }
        let kind = self.kind_of(size);
        let route = if self.has(attention::ROUTES) { self.enter_pool(stream) } else { None };
        let pool = route.map_or(0, |route| route.pool);
        let is_capturing = || Ok(self.has(attention::CAPTURE) && self.call(|| self.memory.is_capturing(stream))?);
        let serve = |capturing| {
            let pair = pair(self, pool, stream)?;
            serve(&Request { bytes, size, kind, stream, pool, slot: pair.slot(kind), route, capturing, site: from })
        };
        let served = is_capturing().and_then(serve);
        if pool != 0 {
            self.leave_pool(pool);
        }
        served
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

    /// A search of the free blocks counts in the ages of those that are passed over.
    pub(crate) fn count_search(&self, request: &Request) {
        if self.has(attention::AGES) {
            let pool = self.shared_pool(request.pool);
            pool.searches[request.kind as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Brings the peaks up to date if `done` says so, and passes its value on.
    #[inline]
    pub(crate) fn settle<T>(&self, slot: &Slot<R, S>, done: Done<T>) -> T {
        if done.unsettled {
            self.settle_peaks(slot);
        }
        done.value
    }

    #[cold]
    pub(crate) fn settle_peaks(&self, slot: &Slot<R, S>) {
        self.queue_if_ended(slot);
        self.settle_peaks_of((slot.kind, &slot.tally), Some(slot.number));
    }

    /// The same for what is counted by `asking`, which is a heap's if it has a number.
    pub(crate) fn settle_peaks_of(&self, asking: Party<'_>, number: Option<u32>) {
        // Whoever is settling does so for a call that overlaps this one: to wait for them would let threads queue up here.
        // Looking first keeps the line of whoever settles from being taken away.
        if self.peaks.is_locked() {
            return;
        }
        let Some(mut settled) = self.peaks.try_lock() else { return };
        // The heap that was settled last, and those behind it: they have the room, or are in turn to give some.
        let last = *settled;
        let near = (last..).take(NEAR).map_while(|number| self.slots.get(number)).map(|near| (near.kind, &near.tally));
        self.totals.settle(&self.tallies(), asking, &near);
        *settled = number.unwrap_or(last);
    }

    /// With the peaks held still.
    pub(crate) fn with_totals<T>(&self, use_them: impl FnOnce(&Totals) -> T) -> T {
        let _peaks = self.peaks.lock();
        use_them(&self.totals)
    }

    /// Every heap's counters, those of vacant pairs too: what they counted still counts.
    pub(crate) fn tallies(&self) -> impl Iterator<Item = (PoolKind, &Tally)> + Clone {
        #[cfg(feature = "alloc")]
        let lanes = self.planned.iter().flat_map(|front| front.tallies()).map(|tally| (PoolKind::Large, tally));
        #[cfg(not(feature = "alloc"))]
        let lanes = core::iter::empty();
        self.heap_tallies().chain(lanes)
    }

    pub(crate) fn rules(&self, config: &Config, kind: PoolKind, options: PoolOptions) -> Rules {
        let carved = self.policy.carves(kind);
        let expandable = config.expandable_segments() && !carved && self.memory.virtual_memory().is_some();
        Rules::new(config, kind, options.no_split, self.has(attention::AGES), expandable)
    }

    /// Puts the configuration and the limit in force everywhere. The registry is locked, so no heap is made meanwhile.
    pub(crate) fn apply_config(&self) {
        let _registry = self.registry.lock();
        let mut config = self.config.lock();
        config.set_policy(self.policy);
        #[cfg(feature = "alloc")]
        config.set_planned(self.planned.as_ref().map(|front| front.options));
        let config = config.clone();
        for (word, &divisions) in self.divisions.iter().zip(config.roundup_power2_divisions().intervals()) {
            word.store(divisions, Ordering::Relaxed);
        }
        let divided = config.roundup_power2_divisions().intervals().iter().any(|&divisions| divisions > 1);
        self.set(attention::ROUNDING, divided || self.policy.rounds_otherwise());
        let limited = self.limit.load(Ordering::Relaxed) != u64::MAX;
        self.set(attention::AGES, limited && config.garbage_collection_threshold().is_some());
        for slot in self.slot_numbers() {
            // Their clocks stand still while no ages are kept.
            let mut heap = self.lock(slot);
            heap.rules = self.rules(&config, heap.rules.kind, options_of(&heap));
        }
    }

    /// What a request of `bytes`, below [`MAX_REQUEST`], is rounded to: perhaps beyond that. Nothing is rounded like one byte.
    fn round(&self, bytes: u64) -> u64 {
        self.round_noted(self.attention.load(Ordering::Relaxed), bytes.max(1))
    }

    /// The same of something, given what there is to be seen to.
    #[inline(always)]
    fn round_noted(&self, noted: u32, bytes: u64) -> u64 {
        if noted & attention::ROUNDING == 0 {
            self.round_to_unit(bytes)
        } else if self.policy.rounds_otherwise() {
            self.policy.round(bytes, self.small_max)
        } else {
            self.divide(bytes)
        }
    }

    /// The next multiple of what the divisions in force say.
    #[inline(never)]
    fn divide(&self, bytes: u64) -> u64 {
        divide(bytes, |interval| self.divisions[interval].load(Ordering::Relaxed))
    }

    /// The next multiple of the unit.
    #[inline(always)]
    fn round_to_unit(&self, bytes: u64) -> u64 {
        (bytes + (self.unit - 1)) & !(self.unit - 1)
    }

    /// The kind of heap that serves blocks of `size` bytes.
    #[inline(always)]
    fn kind_of(&self, size: u64) -> PoolKind {
        if size <= self.small_max { PoolKind::Small } else { PoolKind::Large }
    }

    #[inline]
    pub(crate) fn has(&self, bits: u32) -> bool {
        self.attention.load(Ordering::Relaxed) & bits != 0
    }

    pub(crate) fn set(&self, bits: u32, on: bool) {
        if self.has(bits) == on {
            return;
        }
        if on {
            self.attention.fetch_or(bits, Ordering::SeqCst);
        } else {
            self.attention.fetch_and(!bits, Ordering::Relaxed);
        }
    }

    /// Leave to record events, unless a graph is being captured; none begins to be while it is kept.
    pub(crate) fn may_record(&self) -> Option<Recording<'_>> {
        self.recording.fetch_add(1, Ordering::SeqCst);
        let leave = Recording(&self.recording);
        (self.attention.load(Ordering::SeqCst) & attention::CAPTURE == 0).then_some(leave)
    }

    /// A graph is about to be captured, and [`attention::CAPTURE`] says so: waits for those who looked before. An event that is
    /// recorded on a stream which begins to capture meanwhile would become part of the graph.
    pub(crate) fn wait_for_recordings(&self) {
        while self.recording.load(Ordering::SeqCst) > 0 {
            core::hint::spin_loop();
        }
    }

    /// An error if the context is lost: the one that lost it.
    pub(crate) fn health(&self) -> DeviceResult<()> {
        if self.attention.load(Ordering::Acquire) & attention::LOST != 0 {
            return Err(DeviceError::new(ErrorKind::ContextLost, self.lost.load(Ordering::Relaxed) as u32));
        }
        Ok(())
    }

    /// Calls the device, unless the context is lost, and remembers if this loses it.
    pub(crate) fn call<T>(&self, call: impl FnOnce() -> DeviceResult<T>) -> DeviceResult<T> {
        self.health()?;
        self.noted(call())
    }

    /// The result of a call to the device, if it lost the context also remembered.
    pub(crate) fn noted<T>(&self, result: DeviceResult<T>) -> DeviceResult<T> {
        if let Err(error) = &result
            && error.kind == ErrorKind::ContextLost
        {
            let code = u64::from(error.code);
            // Of several threads' errors the first counts; it is there before the flag is.
            let _first = self.lost.compare_exchange(u64::MAX, code, Ordering::Relaxed, Ordering::Relaxed);
            self.attention.fetch_or(attention::LOST, Ordering::Release);
        }
        result
    }
}

/// Leave to record events; see [`Arena::may_record`].
pub(crate) struct Recording<'a>(&'a AtomicU32);

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
