//! Steps of the ladder (ladder.rs) that depend on other threads and pools, and the failure of a request.

use crate::arena::paging::mapper::RequestCalls;
use crate::arena::request::Request;
use crate::arena::settings::fraction_of;
use crate::arena::{Arena, OnDevice, Platform, flags};
use crate::config::{Bfc, Policy};
use crate::device::Host;
use crate::device::oom::OutOfMemory;
use crate::error::Error;
use crate::stats::Occurrence;
use crate::sync::Ordering;
use crate::units::DevicePtr;

/// First pause of a request that waits for other threads, in microseconds.
const FIRST_PAUSE_US: u64 = 100;
/// Longest pause of a request that waits for other threads, in microseconds.
const LONGEST_PAUSE_US: u64 = 10_000;

impl<P: Platform> OnDevice<'_, P> {
    /// Pauses and retries until the request is served, the policy's retry time has passed, or the
    /// host refuses to pause. The first pause is [`FIRST_PAUSE_US`]; each further pause is twice as
    /// long, up to [`LONGEST_PAUSE_US`].
    pub(super) fn retry_with_pauses(self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        let Policy::Bfc(Bfc { retry_ms, .. }) = self.settings.policy() else { return Ok(None) };
        if retry_ms == 0 || !self.may_become_free(request.size)? {
            return Ok(None);
        }
        // Saturates, so that a huge retry time means a long wait and not a short one.
        let (mut left, mut pause) = (retry_ms.saturating_mul(1000), FIRST_PAUSE_US);
        while left > 0 && self.driver.device().pause(pause.min(left)) {
            left = left.saturating_sub(pause);
            pause = LONGEST_PAUSE_US.min(pause * 2);
            self.waits.process_events(self)?;
            if !self.driver.flags.has(flags::DIRECT)
                && let Some(ptr) = self.search(request)?
            {
                return Ok(Some(ptr));
            }
            if self.settings.policy().releases_cache() && !self.is_held_to_max(request) {
                self.release_cached(None)?;
            }
            // Memory is short: ask for the request's own size instead of a full region.
            let served = if self.source(request).maps_pages() {
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

    /// Returns whether other threads could free the memory for a block of `size` bytes: the block is within the limit and
    /// the device, and there is something to free.
    fn may_become_free(self, size: u64) -> Result<bool, Error> {
        let memory = self.driver.memory_info(&self.ledger)?;
        let report = self.report_of(memory, None);
        Ok(size <= self.ledger.limit().min(memory.total) && report.allocated + report.pending > 0)
    }

    /// Returns how many bytes of new memory a request would need, if they would exceed the configured fraction of the
    /// device and `throw_on_cudamalloc_oom` is set.
    pub(super) fn rejected(self, request: &Request) -> Result<Option<u64>, Error> {
        let config = self.settings.copy();
        if !config.throw_on_device_oom() {
            return Ok(None);
        }
        let total = self.driver.memory_info(&self.ledger)?.total;
        let allowed = fraction_of(config.per_process_memory_fraction(), total);
        let room = allowed.saturating_sub(self.ledger.reserved());
        let more = match self.stitcher_of(request) {
            Some(stitcher) => stitcher.bytes_to_obtain(request, room)?,
            None => self.segment_bytes(request),
        };
        Ok((more > room).then_some(more))
    }
}

impl<P: Platform> Arena<P> {
    /// Counts, traces and reports a request that fails for lack of memory, and returns the error.
    /// `is_held` tells whether the `max` of the request's tag has held the request back.
    pub(crate) fn run_out_of_memory(&self, request: &Request, is_held: bool) -> Error {
        self.peaks.device.count(Occurrence::OutOfMemory);
        let tags = self.tag_shares(request, is_held);
        let report = OutOfMemory { held_to_max: is_held, tags, ..self.out_of_memory(request) };
        self.trace(|recorder| recorder.out_of_memory(request, &report));
        self.driver.device().on_out_of_memory(&report);
        Error::OutOfMemory(report)
    }

    /// Waits for segments that other calls are adding to the request's heap, and searches again.
    /// Returns `None` at once if no segment is pending.
    ///
    /// A pending segment is charged against the limit and offers no free block yet. Without the
    /// wait a request could fail although memory for the request is on the way.
    pub(super) fn search_after_pending_segments(&self, request: &Request) -> Result<Option<DevicePtr>, Error> {
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
                    // A captured graph writes to its pool at every replay, and a tag with limits keeps its memory apart.
                    let lends = entry.exists && entry.options.use_on_oom && !entry.captured;
                    lends && registry.limited_pool(pool).is_none()
                };
                pool = (pool + 1..registry.pools.len() as u32).find(may_serve)?;
                // Undone by `leave_pool`.
                registry.pools[pool as usize].requests += 1;
            }
            // Only the stream's own heap of the pool may serve: no pair, no free block.
            let pair = self.heaps.find_pair(pool, request.stream);
            let found = pair.and_then(|pair| {
                look(&Request { pool, slot: pair.slot(request.kind), mapping: RequestCalls::default(), ..*request })
            });
            self.heaps.leave_pool(pool);
            if found.is_some() {
                return found;
            }
        }
    }
}
