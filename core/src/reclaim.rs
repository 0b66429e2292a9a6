//! The reclaim ladder: what is tried, in this order, when no free block may serve a request.
//!
//! 1. ask the program to free something, and search again
//! 2. collect old segments, if a limit and a collection threshold are set
//! 3. obtain from the device, within the limit
//! 4. search the private pools that allow it
//! 5. release oversize segments of the stream, if sizes above one are kept apart, and obtain
//! 6. wait for pending events *and search again*; release every wholly free segment, and obtain
//! 7. wait for others to free something, if the policy says so
//! 8. report
//!
//! The order and every choice are those of PyTorch's allocator (2.11), but for the second search in step 6, which spares a
//! failure when the only block that fits was waiting for an event (pytorch issue 189504).
//!
//! Heaps are locked one at a time and never across a call to the device. What is to be released is first taken out of its
//! heap and of the directory, so nobody can find it while the device gives it back.

use crate::arena::{Arena, Request, attention, slot_of};
use crate::carve::Carver;
use crate::config::{Bfc, Config, Policy};
use crate::device::{DeviceMemory, ErrorKind};
use crate::directory::Directory;
use crate::error::Error;
use crate::heap::Heap;
use crate::rounding::PoolKind;
use crate::stats::Event;
use crate::storage::Storage;
use crate::sync::Lock;
use crate::sync::Ordering;
use crate::units::{DevicePtr, GRAIN, MAX_REQUEST, StreamId};

/// What a request would do first if it were made now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forecast {
    /// The free block at this address would serve it; under the buddy, size-class and slab policies, this one or one as good.
    Hit(DevicePtr),
    /// A segment of so many bytes would be obtained.
    Obtain(u64),
    /// An expandable segment would grow.
    Expand,
    /// The segment (or, if it is expandable, the mapped range) at this address would be released.
    Release(DevicePtr),
    /// It would fail.
    OutOfMemory,
}

/// A place in the order of the free blocks of one heap: (size, address).
type Cursor = (u64, u64);

/// How long a request that waits for others sleeps at a time, in microseconds: at first, and at most.
const FIRST_PAUSE_US: u64 = 100;
const LONGEST_PAUSE_US: u64 = 10_000;

/// Before every block: an address of 0 is never one.
const FROM_START: Cursor = (0, 0);

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Finds memory for a request that no free block of its heap may serve.
    #[cold]
    pub(crate) fn reclaim(&self, directory: &Directory<R, S>, request: &Request) -> Result<DevicePtr, Error> {
        if self.memory.on_shortage(request.size)
            && let Some(ptr) = self.search(request)?
        {
            return Ok(ptr);
        }
        self.collect_garbage(directory)?;
        self.reject_early(request)?;
        if let Some(ptr) = self.obtain(directory, request)? {
            return Ok(ptr);
        }
        if let Some(ptr) = self.search_pools_for_anyone(request)? {
            return Ok(ptr);
        }
        if self.release_oversize(directory, request)?
            && let Some(ptr) = self.obtain(directory, request)?
        {
            return Ok(ptr);
        }
        if !request.capturing {
            self.wait_for_events(directory)?;
            if self.single_search.load(Ordering::Relaxed) == 0
                && let Some(ptr) = self.search(request)?
            {
                return Ok(ptr);
            }
            if self.releases_to_obtain() {
                self.release_cached(directory, None)?;
                self.totals.count(Event::AllocRetry);
                if let Some(ptr) = self.obtain(directory, request)? {
                    return Ok(ptr);
                }
            }
            if let Some(ptr) = self.wait_for_others(directory, request)? {
                return Ok(ptr);
            }
        }
        if let Some(ptr) = self.search_after_others(request)? {
            return Ok(ptr);
        }
        self.totals.count(Event::OutOfMemory);
        let report = self.out_of_memory(request);
        self.trace_oom(request, &report);
        self.memory.on_out_of_memory(&report);
        Err(Error::OutOfMemory(report))
    }

    /// Serves a request from a segment that another call was obtaining for the same heap, if one was: between counting it as held and
    /// adding it there is neither memory nor a block.
    fn search_after_others(&self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        let obtaining = &self.slot(request.slot).obtaining;
        if obtaining.load(Ordering::Relaxed) == 0 {
            return Ok(None);
        }
        while obtaining.load(Ordering::Acquire) > 0 {
            if !self.memory.pause(FIRST_PAUSE_US) {
                core::hint::spin_loop();
            }
        }
        self.search(request)
    }

    /// Whether wholly free segments are given back when a request cannot be served otherwise.
    fn releases_to_obtain(&self) -> bool {
        !matches!(self.policy, Policy::Bfc(Bfc { region_garbage_collection: false, .. }))
    }

    /// Lets others free memory for as long as the policy and the host allow, and serves the request as soon as they did. The first
    /// pause is [`FIRST_PAUSE_US`], and each further one twice as long, up to [`LONGEST_PAUSE_US`].
    fn wait_for_others(&self, directory: &Directory<R, S>, request: &Request) -> Result<Option<DevicePtr>, Error> {
        let Policy::Bfc(Bfc { retry_ms, .. }) = self.policy else { return Ok(None) };
        let (mut left, mut pause) = (retry_ms.saturating_mul(1000), FIRST_PAUSE_US);
        while left > 0 && self.memory.pause(pause.min(left)) {
            left = left.saturating_sub(pause);
            pause = LONGEST_PAUSE_US.min(pause * 2);
            self.process_events(directory)?;
            if let Some(ptr) = self.search(request)? {
                return Ok(Some(ptr));
            }
            if self.releases_to_obtain() {
                self.release_cached(directory, None)?;
            }
            // Nobody waits for a region of the full size: what is needed is enough.
            let obtained = if self.expands(request) {
                self.obtain(directory, request)?
            } else {
                self.obtain_segment(directory, request, request.size)?
            };
            if obtained.is_some() {
                return Ok(obtained);
            }
        }
        Ok(None)
    }

    /// With `throw_on_cudamalloc_oom` set, what would exceed the configured fraction of the device fails before anything is
    /// released for it.
    fn reject_early(&self, request: &Request) -> Result<(), Error> {
        let bytes = self.segment_bytes(request);
        if !self.is_rejected(bytes)? {
            return Ok(());
        }
        self.totals.count(Event::OomRejection);
        Err(Error::Rejected(bytes))
    }

    fn is_rejected(&self, more: u64) -> Result<bool, Error> {
        let config = self.config();
        if !config.throw_on_device_oom() {
            return Ok(false);
        }
        let total = self.call(|| self.memory.memory_info())?.total;
        let allowed = fraction_of(config.per_process_memory_fraction(), total);
        Ok(self.reserved.load(Ordering::Relaxed).saturating_add(more) > allowed)
    }

    /// What [`malloc`](Self::malloc) would do first. Changes nothing; pending events are taken as they are.
    pub(crate) fn forecast(&self, bytes: u64, stream: StreamId) -> Result<Forecast, Error> {
        self.health()?;
        self.with_request(bytes, stream, |request| self.forecast_of(request))
    }

    fn forecast_of(&self, request: &Request) -> Result<Forecast, Error> {
        let bytes = self.segment_bytes(request);
        if self.has(attention::DIRECT) {
            return Ok(if self.is_within_limit(bytes) { Forecast::Obtain(bytes) } else { Forecast::OutOfMemory });
        }
        if let Some(ptr) = self.found(request) {
            return Ok(Forecast::Hit(ptr));
        }
        if let Some(first) = self.first_garbage() {
            return Ok(Forecast::Release(first));
        }
        if self.is_rejected(bytes)? {
            return Ok(Forecast::OutOfMemory);
        }
        if self.is_within_limit(bytes) && !self.expands(request) {
            return Ok(Forecast::Obtain(bytes));
        }
        if self.is_within_limit(bytes) && self.has_addresses(request)? {
            return Ok(Forecast::Expand);
        }
        if let Some(ptr) = self.in_pools_for_anyone(request, |request| self.found(request)) {
            return Ok(Forecast::Hit(ptr));
        }
        if let Some(ptr) = self.oversize_victim(request) {
            return Ok(Forecast::Release(ptr));
        }
        let releases = !request.capturing && self.releases_to_obtain();
        let first = if releases { self.first_releasable() } else { None };
        Ok(first.map_or(Forecast::OutOfMemory, Forecast::Release))
    }

    /// The free block that would serve a request.
    fn found(&self, request: &Request) -> Option<DevicePtr> {
        self.lock(request.slot).peek(request.size)
    }

    /// The bytes that would be obtained for a request.
    pub(crate) fn segment_bytes(&self, request: &Request) -> u64 {
        if self.has(attention::DIRECT) {
            return request.size;
        }
        match self.policy {
            Policy::Bfc(bfc) => self.region_bytes(&bfc, request),
            policy => {
                let of_carver =
                    self.lock(request.slot).carver.as_ref().map(|carver| carver.segment_bytes(request.size));
                let bytes = of_carver.unwrap_or_else(|| policy.segment_bytes(request.size, &self.config.lock()));
                match policy {
                    Policy::SizeClass(_) | Policy::Buddy(_) => self.clamped(bytes, request.size),
                    _ => bytes,
                }
            }
        }
    }

    /// `bytes`, or as much less of them as the policy tries that it fits within the limit and the device.
    fn clamped(&self, mut bytes: u64, needed: u64) -> u64 {
        let limit = self.limit.load(Ordering::Relaxed).min(self.total_bytes());
        let left = limit.saturating_sub(self.reserved.load(Ordering::Relaxed));
        while bytes > left
            && let Some(less) = self.policy.less(bytes, needed)
        {
            bytes = less;
        }
        bytes
    }

    /// The size of a stream's first region; 0 if segments do not grow.
    pub(crate) fn first_region(&self) -> u64 {
        let Policy::Bfc(Bfc { first_region, .. }) = self.policy else { return 0 };
        first_region.clamp(GRAIN, MAX_REQUEST).next_multiple_of(GRAIN)
    }

    /// The bytes of the next region: twice those of the last one or more, so that the request fits, or everything; within the
    /// limit and the device. Where blocks are not split a larger region would serve nobody else.
    fn region_bytes(&self, bfc: &Bfc, request: &Request) -> u64 {
        let (region, no_split) = {
            let heap = self.lock(request.slot);
            (heap.region, heap.rules.no_split)
        };
        if no_split {
            return request.size;
        }
        let limit = self.limit.load(Ordering::Relaxed).min(self.total_bytes());
        let left = limit.saturating_sub(self.reserved.load(Ordering::Relaxed)) / GRAIN * GRAIN;
        let region = if bfc.allow_growth { grown(region, request.size) } else { left };
        region.min(left).max(request.size)
    }

    /// The bytes of the device, as far as it tells.
    fn total_bytes(&self) -> u64 {
        self.call(|| self.memory.memory_info()).map_or(u64::MAX, |info| info.total)
    }

    fn is_within_limit(&self, more: u64) -> bool {
        let held = self.reserved.load(Ordering::Relaxed);
        held.checked_add(more).is_some_and(|sum| sum <= self.limit.load(Ordering::Relaxed))
    }

    /// Counts `more` bytes as held, unless that would exceed the limit.
    pub(crate) fn hold(&self, more: u64) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let add = |held: u64| held.checked_add(more).filter(|&sum| sum <= limit);
        self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    fn expands(&self, request: &Request) -> bool {
        self.lock(request.slot).rules.expandable
    }

    /// Obtains a segment, or expands one, and serves the request from it. `None` if the device or the limit does not allow it.
    fn obtain(&self, directory: &Directory<R, S>, request: &Request) -> Result<Option<DevicePtr>, Error> {
        let bytes = self.segment_bytes(request);
        if self.expands(request) {
            // Whole granules may exceed the limit by less than one each, as they do in PyTorch.
            return if self.is_within_limit(bytes) { self.expand(directory, request) } else { Ok(None) };
        }
        let mut bytes = bytes;
        if bytes > self.policy.most_bytes() {
            return Ok(None);
        }
        loop {
            let obtained = self.obtain_segment(directory, request, bytes)?;
            if obtained.is_some() {
                return Ok(obtained);
            }
            match self.policy.less(bytes, request.size) {
                Some(less) => bytes = less,
                None => return Ok(None),
            }
        }
    }

    /// A segment of its own for every request, of its exact size.
    pub(crate) fn obtain_directly(&self, directory: &Directory<R, S>, request: &Request) -> Result<DevicePtr, Error> {
        if let Some(ptr) = self.obtain_segment(directory, request, request.size)? {
            return Ok(ptr);
        }
        self.totals.count(Event::OutOfMemory);
        let report = self.out_of_memory(request);
        self.trace_oom(request, &report);
        self.memory.on_out_of_memory(&report);
        Err(Error::OutOfMemory(report))
    }

    fn obtain_segment(
        &self,
        directory: &Directory<R, S>,
        request: &Request,
        bytes: u64,
    ) -> Result<Option<DevicePtr>, Error> {
        {
            let mut heap = self.lock(request.slot);
            heap.make_room_for_segment(bytes, request.size)?;
            if !request.is_served_by(&heap) {
                return Err(Error::InvalidStream);
            }
        }
        if !self.hold(bytes) {
            return Ok(None);
        }
        let obtaining = &self.slot(request.slot).obtaining;
        obtaining.fetch_add(1, Ordering::Relaxed);
        let obtained = self.obtain_held_segment(directory, request, bytes);
        obtaining.fetch_sub(1, Ordering::Release);
        obtained
    }

    /// The same, with its bytes counted as held.
    fn obtain_held_segment(
        &self,
        directory: &Directory<R, S>,
        request: &Request,
        bytes: u64,
    ) -> Result<Option<DevicePtr>, Error> {
        let base = match self.call(|| self.memory.obtain(bytes)) {
            Ok(base) => base,
            Err(error) => {
                self.reserved.fetch_sub(bytes, Ordering::Relaxed);
                return if error.kind == ErrorKind::OutOfMemory { Ok(None) } else { Err(error.into()) };
            }
        };
        if let Err(error) = directory.insert(base, bytes, self.place(request.slot)) {
            self.give_back(base, bytes)?;
            return Err(error);
        }
        let slot = self.slot(request.slot);
        let mut heap = self.lock(request.slot);
        // Room was made before the lock was given up; others may have used it, or destroyed the stream.
        let served = request.is_served_by(&heap);
        if !served || heap.make_room_for_segment(bytes, request.size).is_err() {
            drop(heap);
            directory.remove(base, bytes);
            self.give_back(base, bytes)?;
            return Err(if served { Error::TableFull("segments") } else { Error::InvalidStream });
        }
        self.totals.count(Event::DeviceAlloc);
        self.trace_segment(crate::trace::Action::SegmentAlloc, request.stream, base, bytes);
        let segment = heap.add_segment(base, bytes, request.size, &slot.tally);
        if matches!(self.policy, Policy::Bfc(_)) && !self.has(attention::DIRECT) {
            heap.region = next_region(heap.region, request.size);
        }
        let served = heap.hand_out_new(segment.value, request.size, request.bytes, &slot.tally);
        if let Some(served) = &served {
            self.trace_alloc(request, served.value);
        }
        drop(heap);
        let Some(mut served) = served else { return Err(Error::TableFull("pieces")) };
        served.unsettled |= segment.unsettled;
        Ok(Some(self.settle(slot, served)))
    }

    /// Gives a segment that is in no heap and not in the directory back to the device.
    fn give_back(&self, base: DevicePtr, bytes: u64) -> Result<(), Error> {
        match self.call(|| self.memory.release(base, bytes)) {
            Ok(()) => {
                self.reserved.fetch_sub(bytes, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => {
                // Whether the device still holds it is in doubt: it keeps counting as held.
                self.leaked.fetch_add(bytes, Ordering::Relaxed);
                Err(error.into())
            }
        }
    }

    /// Releases the segment that is `block` of a locked heap. The lock is given up.
    fn release_segment(
        &self,
        directory: &Directory<R, S>,
        slot: u32,
        mut heap: lock_api::MutexGuard<'_, R, Heap<S>>,
        block: u32,
    ) -> Result<u64, Error> {
        self.health()?;
        let stream = heap.stream;
        let (base, bytes) = heap.remove_segment(block, &self.slot(slot).tally);
        directory.remove(base, bytes);
        self.trace_segment(crate::trace::Action::SegmentFree, stream, base, bytes);
        drop(heap);
        self.totals.count(Event::DeviceFree);
        self.give_back(base, bytes)?;
        Ok(bytes)
    }

    /// In direct mode, a block that has become free goes straight back. It is freed whatever the device makes of that:
    /// a failure shows in the leaked bytes, or in the health of the context.
    /// What a pool in use holds stays there: a graph that was captured into it uses it whenever it runs.
    pub(crate) fn release_directly(&self, directory: &Directory<R, S>, slot: u32) {
        let pool = self.lock(slot).pool;
        if pool == 0 || self.registry.lock().is_unused(pool) {
            let _freed = self.release_ordinary(directory, slot, |_| true);
        }
    }

    /// Releases everything that is wholly free in one heap.
    pub(crate) fn release_heap(&self, directory: &Directory<R, S>, slot: u32) -> Result<(), Error> {
        let ordinary = self.release_ordinary(directory, slot, |_| true).map(|_| ());
        ordinary.and(self.unmap_cached(directory, slot))
    }

    /// Releases the wholly free ordinary segments of one heap that are `wanted`, in the order of its index. Says how many bytes.
    fn release_ordinary(
        &self,
        directory: &Directory<R, S>,
        slot: u32,
        mut wanted: impl FnMut(&crate::block::Block) -> bool,
    ) -> Result<u64, Error> {
        let (mut released, mut cursor, mut failed) = (0, FROM_START, None);
        loop {
            let heap = self.lock(slot);
            let Some((block, at)) = next_releasable(&heap, cursor, &mut wanted) else { break };
            cursor = at;
            match self.release_segment(directory, slot, heap, block) {
                Ok(bytes) => released += bytes,
                Err(error) if self.has(attention::LOST) => return Err(error),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(released), Err)
    }

    /// The slots of one kind of a pool, by ascending stream.
    fn slots_of(&self, pool: u32, kind: PoolKind) -> impl Iterator<Item = u32> {
        let mut after = None;
        core::iter::from_fn(move || {
            let (stream, pair) = self.registry.lock().next_pair(pool, after)?;
            after = Some(stream);
            Some(slot_of(pair, kind))
        })
    }

    /// Releases every wholly free segment: of the default pool (large, then small), then of the private pools without users
    /// (small, then large) or only of `only`. Ends with the first failure if the context is lost, else goes on and reports it.
    pub(crate) fn release_cached(&self, directory: &Directory<R, S>, only: Option<u32>) -> Result<(), Error> {
        let mut failed = Ok(());
        let mut release = |pool: u32, kinds: [PoolKind; 2]| {
            for kind in kinds {
                for slot in self.slots_of(pool, kind) {
                    let result = self.release_heap(directory, slot);
                    failed = core::mem::replace(&mut failed, Ok(())).and(result);
                }
            }
        };
        if only.is_none() {
            release(0, [PoolKind::Large, PoolKind::Small]);
        }
        for pool in self.unused_pools() {
            if only.is_none_or(|only| only == pool) {
                release(pool, [PoolKind::Small, PoolKind::Large]);
            }
        }
        self.vacate_unused_pools();
        failed
    }

    /// Collects old segments, if a limit and a threshold are set and more than the threshold is held: the average age of the
    /// releasable segments is fixed for one pass, which releases every one that is at least as old.
    fn collect_garbage(&self, directory: &Directory<R, S>) -> Result<(), Error> {
        let Some(target) = self.garbage_target() else { return Ok(()) };
        let (mut ages, mut count) = self.releasable_ages();
        let mut reclaimed = 0;
        while reclaimed < target && count > 0 {
            let threshold = ages as f64 / count as f64;
            let mut freed = 0;
            for slot in self.slots_of(0, PoolKind::Large) {
                let clock = self.lock(slot).clock;
                reclaimed += self.release_ordinary(directory, slot, |block| {
                    // What other threads freed since the ages were added up is younger than all that were counted.
                    let age = clock.saturating_sub(block.born);
                    let old = age as f64 >= threshold;
                    if old {
                        (ages, count, freed) = (ages.saturating_sub(age), count.saturating_sub(1), freed + 1);
                    }
                    old
                })?;
            }
            if freed == 0 {
                break;
            }
        }
        Ok(())
    }

    /// How many bytes the collection should release, if it is on and should release any.
    fn garbage_target(&self) -> Option<u64> {
        if !self.has(attention::AGES) {
            return None;
        }
        let threshold = self.config.lock().garbage_collection_threshold()?;
        let limit = self.limit.load(Ordering::Relaxed);
        self.reserved.load(Ordering::Relaxed).checked_sub((threshold * limit as f64) as u64).filter(|&bytes| bytes > 0)
    }

    /// The sum of the ages of the releasable large segments of the default pool, and how many there are.
    fn releasable_ages(&self) -> (u64, u64) {
        let (mut ages, mut count) = (0, 0);
        for slot in self.slots_of(0, PoolKind::Large) {
            let heap = self.lock(slot);
            let mut cursor = FROM_START;
            while let Some((block, at)) = next_releasable(&heap, cursor, |_| true) {
                (ages, count, cursor) = (ages + heap.clock - heap.blocks[block].born, count + 1, at);
            }
        }
        (ages, count)
    }

    /// The first segment that the collection would release now.
    fn first_garbage(&self) -> Option<DevicePtr> {
        self.garbage_target()?;
        let (ages, count) = self.releasable_ages();
        let threshold = ages as f64 / count as f64;
        self.slots_of(0, PoolKind::Large).find_map(|slot| {
            let heap = self.lock(slot);
            let old = |block: &crate::block::Block| (heap.clock - block.born) as f64 >= threshold;
            next_releasable(&heap, FROM_START, old).map(|(block, _)| DevicePtr(heap.blocks[block].addr))
        })
    }

    /// Releases oversize segments of the request's own heap: the smallest one that suffices, else from the largest down until
    /// enough is released. True if enough was.
    fn release_oversize(&self, directory: &Directory<R, S>, request: &Request) -> Result<bool, Error> {
        let mut released = 0;
        loop {
            let heap = self.lock(request.slot);
            let Some((block, wanted)) = oversize_victim(&heap, request.size) else { return Ok(false) };
            released += self.release_segment(directory, request.slot, heap, block)?;
            if released >= wanted {
                return Ok(true);
            }
        }
    }

    fn oversize_victim(&self, request: &Request) -> Option<DevicePtr> {
        let heap = self.lock(request.slot);
        oversize_victim(&heap, request.size).map(|(block, _)| DevicePtr(heap.blocks[block].addr))
    }

    /// The first segment or range that releasing the whole cache would give back.
    fn first_releasable(&self) -> Option<DevicePtr> {
        let of_slot = |slot: u32| {
            let heap = self.lock(slot);
            let ordinary = next_releasable(&heap, FROM_START, |_| true);
            ordinary.map(|(block, _)| DevicePtr(heap.blocks[block].addr)).or_else(|| {
                let (_, range) = crate::expand::next_unmappable(&heap, FROM_START)?;
                Some(range.at)
            })
        };
        let of_pool = |pool: u32, kinds: [PoolKind; 2]| {
            kinds.into_iter().find_map(|kind| self.slots_of(pool, kind).find_map(of_slot))
        };
        of_pool(0, [PoolKind::Large, PoolKind::Small])
            .or_else(|| self.unused_pools().find_map(|pool| of_pool(pool, [PoolKind::Small, PoolKind::Large])))
    }

    /// Serves a request of the default pool from a private pool that allows it rather than fail.
    fn search_pools_for_anyone(&self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        self.in_pools_for_anyone(request, |request| self.search(request).transpose()).transpose()
    }

    /// Looks for a request of the default pool in each private pool that allows it, until something is found. A pool is not given
    /// up while it is looked at.
    fn in_pools_for_anyone<T>(&self, request: &Request, look: impl Fn(&Request) -> Option<T>) -> Option<T> {
        if request.pool != 0 {
            return None;
        }
        let mut pool = 0;
        loop {
            {
                let mut registry = self.registry.lock();
                let willing = |&pool: &u32| {
                    let entry = &registry.pools[pool as usize];
                    entry.exists && entry.options.use_on_oom
                };
                pool = (pool + 1..registry.pools.len() as u32).find(willing)?;
                registry.pools[pool as usize].requests += 1;
            }
            let pair = self.shared_pool(pool).streams.get(request.stream.0);
            let found = pair.and_then(|pair| look(&Request { pool, slot: slot_of(pair, request.kind), ..*request }));
            self.leave_pool(pool);
            if found.is_some() {
                return found;
            }
        }
    }

    /// The slots whose free segments may go back: those of the default pool, then those of private pools without users.
    fn releasable_slots(&self) -> impl Iterator<Item = u32> {
        let pools = core::iter::once(0).chain(self.unused_pools());
        pools
            .flat_map(|pool| [PoolKind::Large, PoolKind::Small].map(|kind| (pool, kind)))
            .flat_map(|(pool, kind)| self.slots_of(pool, kind))
    }

    /// Releases wholly free segments, largest first and of several the one at the highest address, then what is free of
    /// expandable ones, until at most `keep` bytes are held. Pending events are not waited for.
    pub(crate) fn trim(&self, directory: &Directory<R, S>, keep: u64) -> Result<(), Error> {
        while self.reserved.load(Ordering::Relaxed) > keep {
            let largest = self.releasable_slots().filter_map(|slot| {
                let heap = self.lock(slot);
                let block = &heap.blocks[last_releasable(&heap)?];
                Some((block.size, block.addr, slot))
            });
            let Some((_, _, slot)) = largest.max() else { break };
            let heap = self.lock(slot);
            // Others may have taken it since.
            if let Some(block) = last_releasable(&heap) {
                self.release_segment(directory, slot, heap, block)?;
            }
        }
        for slot in self.releasable_slots() {
            if self.reserved.load(Ordering::Relaxed) > keep {
                self.unmap_cached(directory, slot)?;
            }
        }
        self.vacate_unused_pools();
        Ok(())
    }

    /// The configuration in force.
    pub(crate) fn config(&self) -> Config {
        self.config.lock().clone()
    }
}

/// A region at least as large as `needed`: `region` doubled as often as it takes.
fn grown(mut region: u64, needed: u64) -> u64 {
    while region < needed {
        region = region.max(GRAIN).saturating_mul(2);
    }
    region
}

/// The size of the region after one that was obtained for `needed` bytes: regions double, and those that had to grow for their
/// request have done so.
fn next_region(region: u64, needed: u64) -> u64 {
    if region < needed { grown(region, needed) } else { region.saturating_mul(2) }
}

/// A fraction of so many bytes, rounded to the nearest one (as `std::round` does for positive numbers).
pub(crate) fn fraction_of(fraction: f64, bytes: u64) -> u64 {
    (fraction * bytes as f64 + 0.5) as u64
}

/// The first releasable segment behind `cursor` that is wanted, and its place. None of a pool in use is.
fn next_releasable<S: Storage>(
    heap: &Heap<S>,
    cursor: Cursor,
    mut wanted: impl FnMut(&crate::block::Block) -> bool,
) -> Option<(u32, Cursor)> {
    if heap.kept {
        return None;
    }
    let mut at = heap.free.after(cursor, heap.blocks.entries());
    while let Some(block) = at {
        let entry = &heap.blocks[block];
        if heap.is_releasable(block) && wanted(entry) {
            return Some((block, (entry.size, entry.addr)));
        }
        at = heap.free.next(block, heap.blocks.entries());
    }
    None
}

/// The largest releasable segment. None of a pool in use is.
fn last_releasable<S: Storage>(heap: &Heap<S>) -> Option<u32> {
    if heap.kept {
        return None;
    }
    let mut at = heap.free.last();
    while let Some(block) = at.filter(|&block| !heap.is_releasable(block)) {
        at = heap.free.previous(block, heap.blocks.entries());
    }
    at
}

/// The oversize segment to release first for a request of `size`, and how many bytes must be released in all.
fn oversize_victim<S: Storage>(heap: &Heap<S>, size: u64) -> Option<(u32, u64)> {
    let oversize = heap.rules.max_split;
    if oversize == u64::MAX {
        return None;
    }
    let wanted = size.max(oversize);
    let blocks = heap.blocks.entries();
    let goes = |block: u32| heap.is_releasable(block);
    // A part of an ordinary segment cannot be released at all, so it is as if it were not there.
    let counts = |block: u32| goes(block) || blocks[block as usize].expandable;
    let mut enough = heap.free.best_fit(wanted, blocks);
    while let Some(block) = enough.filter(|&block| !counts(block)) {
        enough = heap.free.next(block, blocks);
    }
    let mut at = match enough {
        Some(block) if goes(block) => return Some((block, wanted)),
        Some(expandable) => heap.free.previous(expandable, blocks),
        None => heap.free.last(),
    };
    while let Some(block) = at.filter(|&block| blocks[block as usize].size >= oversize) {
        if goes(block) {
            return Some((block, wanted));
        }
        at = heap.free.previous(block, blocks);
    }
    None
}
