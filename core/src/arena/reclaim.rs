//! The reclaim ladder: the steps a request takes, in order, when no free block of its heap fits.
//!
//! 1. ask the program to free memory, and search again
//! 2. release the cached segments of ended streams; collect old segments, if a limit and a
//!    collection threshold are set
//! 3. allocate a segment from the device, within the limit; under `compact`, keep what is held
//!    within a budget (compact.rs)
//! 4. search the private pools with the option `use_on_oom`
//! 5. release oversize segments of the stream, if a largest split size is set, and allocate
//! 6. wait for pending events *and search again*; release every wholly free segment, and allocate
//! 7. release the plans' segments, and allocate
//! 8. wait for other threads to free memory, if the policy has a retry time
//! 9. report the failure
//!
//! The order and every choice are those of PyTorch's allocator (2.11), except for the searches in
//! step 6. The search after the wait prevents a failure when the only block that fits was waiting for
//! an event (pytorch issue 189504). Where frees are gathered, the request waits for one event after
//! the other and searches in between, so it waits for no more work than it needs (171771).
//!
//! Growth of a heap is in obtain.rs, release of segments in give/.

use crate::arena::compact::Compact;
use crate::arena::driver::memory_info;
use crate::arena::gathered::Gathered;
use crate::arena::give::take::give;
use crate::arena::give::{caches, rules};
use crate::arena::request::Request;
use crate::arena::settings::fraction_of;
use crate::arena::virtual_calls::MappingTime;
use crate::arena::{Arena, OnDevice, flags, ranges};
use crate::config::{Bfc, Policy};
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::stats::Event;
use crate::sync::{Lock, Ordering};
use crate::tables::Storage;
use crate::units::DevicePtr;
use core::cell::Cell;

/// First pause of a request that waits for other threads, in microseconds.
const FIRST_PAUSE_US: u64 = 100;
/// Longest pause of a request that waits for other threads, in microseconds.
const LONGEST_PAUSE_US: u64 = 10_000;

impl<D: DeviceMemory, R: Lock, S: Storage> OnDevice<'_, D, R, S> {
    /// Serves a request for which the heap has no free block, by the steps of the reclaim ladder.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`] after the last step, [`Error::Rejected`], and errors of the device.
    #[cold]
    pub(crate) fn reclaim(self, request: &Request) -> Result<DevicePtr, Error> {
        // Step 1. No lock is held, so the program may free blocks from the callback.
        if self.driver.device().on_shortage(request.size)
            && let Some(ptr) = self.search(request)?
        {
            return Ok(ptr);
        }
        // Step 2. A capture permits no synchronization. A capturing request skips the release of
        // ended streams and steps 6 to 8.
        if !request.capturing {
            self.release_ended();
        }
        give(self, rules::old(self.arena))?;
        // A rejection comes before the steps that give up cached memory for the request.
        self.reject_early(request)?;
        // Step 3. Under `compact` a block of any size comes before a segment beyond the budget, and
        // after a segment that the device refuses.
        let compact = Compact::on(self.arena);
        if let Some(ptr) = compact.serve(self, request)? {
            return Ok(ptr);
        }
        if let Some(ptr) = self.grow(request)? {
            return Ok(ptr);
        }
        if let Some(ptr) = compact.search_any(request)? {
            return Ok(ptr);
        }
        // Step 4.
        if let Some(ptr) = self.search_oom_pools(request)? {
            return Ok(ptr);
        }
        // Step 5. Only segments of the request's own heap.
        let missing = Cell::new(0);
        give(self, rules::oversize(&self.heaps, request, &missing))?;
        if missing.get() == 0
            && let Some(ptr) = self.grow(request)?
        {
            return Ok(ptr);
        }
        if !request.capturing {
            // Step 6. The wait may free the one block that fits: search before the cache is given
            // up. `single_search` switches to PyTorch's order without the search.
            if let Some(ptr) = Gathered(self).search_in_turn(request)? {
                return Ok(ptr);
            }
            self.wait_for_events()?;
            ranges::wait(self)?;
            if self.single_search.load(Ordering::Relaxed) == 0
                && let Some(ptr) = self.search(request)?
            {
                return Ok(ptr);
            }
            if let Some(ptr) = compact.search_any(request)? {
                return Ok(ptr);
            }
            if self.settings.policy.releases_cache() {
                // A page with a stale mapping cannot go back to the device for a longer one.
                self.stitcher().map_or(Ok(()), |stitcher| stitcher.unmap_all_stale())?;
                caches::empty_heaps(self, None)?;
                self.device_peaks.count(Event::AllocRetry);
                // Maps spare pages first; those that are left go back to the device.
                let served = self.grow(request)?;
                let destroyed = caches::destroy_spares(self);
                if let Some(ptr) = served {
                    // A failed release is counted as leaked, and must not lose the block.
                    return Ok(ptr);
                }
                destroyed?;
            }
            // Step 7. Last among the releases: the program must be observed again for new plans.
            if self.flags.has(flags::PLANNED) {
                self.give_plans_up()?;
                if let Some(ptr) = self.grow(request)? {
                    return Ok(ptr);
                }
            }
            // Step 8.
            if let Some(ptr) = self.retry_with_pauses(request)? {
                return Ok(ptr);
            }
        }
        // Step 9, unless another thread was adding a segment to the heap all the while.
        if let Some(ptr) = self.search_after_pending_segments(request)? {
            return Ok(ptr);
        }
        Err(self.run_out_of_memory(request))
    }

    /// Pauses and retries until the request is served, the policy's retry time has passed, or the
    /// host refuses to pause. The first pause is [`FIRST_PAUSE_US`]; each further pause is twice as
    /// long, up to [`LONGEST_PAUSE_US`].
    fn retry_with_pauses(self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        let Policy::Bfc(Bfc { retry_ms, .. }) = self.settings.policy else { return Ok(None) };
        // Saturates, so that a huge retry time means a long wait and not a short one.
        let (mut left, mut pause) = (retry_ms.saturating_mul(1000), FIRST_PAUSE_US);
        while left > 0 && self.driver.device().pause(pause.min(left)) {
            left = left.saturating_sub(pause);
            pause = LONGEST_PAUSE_US.min(pause * 2);
            self.process_events()?;
            if let Some(ptr) = self.search(request)? {
                return Ok(Some(ptr));
            }
            if self.settings.policy.releases_cache() {
                caches::release_cached(self, None)?;
            }
            // Memory is short: ask for the request's own size instead of a full region.
            let served = if self.heaps.source(request).maps_pages() {
                self.grow(request)?
            } else {
                self.allocate_segment(request, request.size)?
            };
            if served.is_some() {
                return Ok(served);
            }
        }
        Ok(None)
    }

    /// Fails a request whose memory would exceed the configured fraction of the device, before any
    /// cached segment is released for the request. Applies if `throw_on_cudamalloc_oom` is set.
    fn reject_early(self, request: &Request) -> Result<(), Error> {
        let Some(bytes) = self.rejected(request)? else { return Ok(()) };
        self.device_peaks.count(Event::OomRejection);
        Err(Error::Rejected(bytes))
    }

    /// Returns how many bytes of new memory a request would need, if `reject_early` would fail the
    /// request for them.
    pub(super) fn rejected(self, request: &Request) -> Result<Option<u64>, Error> {
        let config = self.settings.copy();
        if !config.throw_on_device_oom() {
            return Ok(None);
        }
        let total = memory_info(self.arena)?.total;
        let allowed = fraction_of(config.per_process_memory_fraction(), total);
        let room = allowed.saturating_sub(self.ledger.reserved());
        let more = match self.stitcher_of(request) {
            Some(stitcher) => stitcher.bytes_to_obtain(request, room)?,
            None => self.segment_bytes(request),
        };
        Ok((more > room).then_some(more))
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Counts, traces and reports a request that fails for lack of memory, and returns the error.
    pub(crate) fn run_out_of_memory(&self, request: &Request) -> Error {
        self.device_peaks.count(Event::OutOfMemory);
        let report = self.out_of_memory(request);
        if let Some(recorder) = self.tracing() {
            recorder.out_of_memory(request, &report);
        }
        self.driver.device().on_out_of_memory(&report);
        Error::OutOfMemory(report)
    }

    /// Waits for segments that other calls are adding to the request's heap, and searches again.
    /// Returns `None` at once if no segment is pending.
    ///
    /// A pending segment is charged against the limit and offers no free block yet. Without the
    /// wait a request could fail although memory for the request is on the way.
    fn search_after_pending_segments(&self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        let pending = &self.heaps.slot(request.slot).pending_segments;
        if pending.load(Ordering::Relaxed) == 0 {
            return Ok(None);
        }
        // Acquire pairs with the Release in `allocate_segment`. The wait ends, because a call that
        // adds a segment never waits for another request.
        while pending.load(Ordering::Acquire) > 0 {
            self.driver.give_way();
        }
        self.search(request)
    }

    /// Serves a request of the default pool from a private pool with the option `use_on_oom`.
    fn search_oom_pools(&self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        self.in_oom_pools(request, |request| self.search(request).transpose()).transpose()
    }

    /// Calls `look` with the request moved to each private pool with the option `use_on_oom`, until
    /// `look` returns a value. Returns `None` for a request of a private pool. A pool is counted as
    /// serving a request while `look` runs, so no other thread removes the pool.
    pub(super) fn in_oom_pools<T>(&self, request: &Request, look: impl Fn(&Request) -> Option<T>) -> Option<T> {
        if request.pool != 0 {
            return None;
        }
        let mut pool = 0;
        loop {
            {
                let mut registry = self.heaps.registry.lock();
                let may_serve = |&pool: &u32| {
                    let entry = &registry.pools[pool as usize];
                    entry.exists && entry.options.use_on_oom
                };
                pool = (pool + 1..registry.pools.len() as u32).find(may_serve)?;
                // Undone by `leave_pool`.
                registry.pools[pool as usize].requests += 1;
            }
            // Only the stream's own heap of the pool may serve: no pair, no free block.
            let pair = self.heaps.find_pair(pool, request.stream);
            let found = pair.and_then(|pair| {
                look(&Request { pool, slot: pair.slot(request.kind), mapping: MappingTime::default(), ..*request })
            });
            self.heaps.leave_pool(pool);
            if found.is_some() {
                return found;
            }
        }
    }
}
