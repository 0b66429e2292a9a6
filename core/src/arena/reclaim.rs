//! The reclaim ladder: what is tried, in this order, when no free block may serve a request.
//!
//! 1. ask the program to free something, and search again
//! 2. release what streams that have ended have cached; collect old segments, if a limit and a collection threshold are set
//! 3. obtain from the device, within the limit
//! 4. search the private pools that allow it
//! 5. release oversize segments of the stream, if sizes above one are kept apart, and obtain
//! 6. wait for pending events *and search again*; release every wholly free segment, and obtain
//! 7. give up the plans, whose segments serve nobody else, and obtain
//! 8. wait for others to free something, if the policy says so
//! 9. report
//!
//! The order and every choice are those of PyTorch's allocator (2.11), but for the second search in step 6, which spares a
//! failure when the only block that fits was waiting for an event (pytorch issue 189504).
//!
//! How much is obtained, and how: obtain.rs. What is released, and in which order: release.rs.

use crate::arena::request::Request;
use crate::arena::settings::fraction_of;
use crate::arena::{Arena, OnDevice, flags};
use crate::config::{Bfc, Policy};
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::stats::Event;
use crate::sync::{Lock, Ordering};
use crate::tables::Storage;
use crate::units::DevicePtr;

/// How long a request that waits for others sleeps at a time, in microseconds: at first, and at most.
const FIRST_PAUSE_US: u64 = 100;
const LONGEST_PAUSE_US: u64 = 10_000;

impl<D: DeviceMemory, R: Lock, S: Storage> OnDevice<'_, D, R, S> {
    /// Finds memory for a request that no free block of its heap may serve.
    #[cold]
    pub(crate) fn reclaim(self, request: &Request) -> Result<DevicePtr, Error> {
        if self.driver.device().on_shortage(request.size)
            && let Some(ptr) = self.search(request)?
        {
            return Ok(ptr);
        }
        if !request.capturing {
            self.release_ended();
        }
        self.collect_garbage()?;
        self.reject_early(request)?;
        if let Some(ptr) = self.obtain(request)? {
            return Ok(ptr);
        }
        if let Some(ptr) = self.search_pools_for_anyone(request)? {
            return Ok(ptr);
        }
        if self.release_oversize(request)?
            && let Some(ptr) = self.obtain(request)?
        {
            return Ok(ptr);
        }
        if !request.capturing {
            self.wait_for_events()?;
            if self.single_search.load(Ordering::Relaxed) == 0
                && let Some(ptr) = self.search(request)?
            {
                return Ok(ptr);
            }
            if self.releases_to_obtain() {
                self.release_cached(None)?;
                self.totals.count(Event::AllocRetry);
                if let Some(ptr) = self.obtain(request)? {
                    return Ok(ptr);
                }
            }
            if self.flags.has(flags::PLANNED) {
                self.give_plans_up()?;
                if let Some(ptr) = self.obtain(request)? {
                    return Ok(ptr);
                }
            }
            if let Some(ptr) = self.wait_for_others(request)? {
                return Ok(ptr);
            }
        }
        if let Some(ptr) = self.search_after_others(request)? {
            return Ok(ptr);
        }
        Err(self.run_out_of_memory(request))
    }

    /// Lets others free memory for as long as the policy and the host allow, and serves the request as soon as they did. The first
    /// pause is [`FIRST_PAUSE_US`], and each further one twice as long, up to [`LONGEST_PAUSE_US`].
    fn wait_for_others(self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        let Policy::Bfc(Bfc { retry_ms, .. }) = self.policy else { return Ok(None) };
        let (mut left, mut pause) = (retry_ms.saturating_mul(1000), FIRST_PAUSE_US);
        while left > 0 && self.driver.device().pause(pause.min(left)) {
            left = left.saturating_sub(pause);
            pause = LONGEST_PAUSE_US.min(pause * 2);
            self.process_events()?;
            if let Some(ptr) = self.search(request)? {
                return Ok(Some(ptr));
            }
            if self.releases_to_obtain() {
                self.release_cached(None)?;
            }
            // Nobody waits for a region of the full size: what is needed is enough.
            let obtained =
                if self.expands(request) { self.obtain(request)? } else { self.obtain_segment(request, request.size)? };
            if obtained.is_some() {
                return Ok(obtained);
            }
        }
        Ok(None)
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Counts and reports that a request fails for want of memory.
    pub(crate) fn run_out_of_memory(&self, request: &Request) -> Error {
        self.totals.count(Event::OutOfMemory);
        let report = self.out_of_memory(request);
        self.trace_oom(request, &report);
        self.driver.device().on_out_of_memory(&report);
        Error::OutOfMemory(report)
    }

    /// Serves a request from a segment that another call was obtaining for the same heap, if one was: between counting it as held and
    /// adding it there is neither memory nor a block.
    fn search_after_others(&self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        let obtaining = &self.slot(request.slot).obtaining;
        if obtaining.load(Ordering::Relaxed) == 0 {
            return Ok(None);
        }
        while obtaining.load(Ordering::Acquire) > 0 {
            if !self.driver.device().pause(FIRST_PAUSE_US) {
                core::hint::spin_loop();
            }
        }
        self.search(request)
    }

    /// Whether wholly free segments are given back when a request cannot be served otherwise.
    pub(super) fn releases_to_obtain(&self) -> bool {
        !matches!(self.policy, Policy::Bfc(Bfc { region_garbage_collection: false, .. }))
    }

    /// With `throw_on_cudamalloc_oom` set, what would exceed the configured fraction of the device fails before anything is
    /// released for it.
    fn reject_early(&self, request: &Request) -> Result<(), Error> {
        let Some(bytes) = self.rejected(request)? else { return Ok(()) };
        self.totals.count(Event::OomRejection);
        Err(Error::Rejected(bytes))
    }

    /// The bytes that would be obtained for a request, if they are refused for that.
    pub(super) fn rejected(&self, request: &Request) -> Result<Option<u64>, Error> {
        let config = self.config();
        if !config.throw_on_device_oom() {
            return Ok(None);
        }
        let more = self.segment_bytes(request);
        let total = self.call(D::memory_info)?.total;
        let allowed = fraction_of(config.per_process_memory_fraction(), total);
        Ok((self.ledger.reserved().saturating_add(more) > allowed).then_some(more))
    }

    /// Serves a request of the default pool from a private pool that allows it rather than fail.
    fn search_pools_for_anyone(&self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        self.in_pools_for_anyone(request, |request| self.search(request).transpose()).transpose()
    }

    /// Looks for a request of the default pool in each private pool that allows it, until something is found. A pool is not given
    /// up while it is looked at.
    pub(super) fn in_pools_for_anyone<T>(&self, request: &Request, look: impl Fn(&Request) -> Option<T>) -> Option<T> {
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
            let pair = self.find_pair(pool, request.stream);
            let found = pair.and_then(|pair| look(&Request { pool, slot: pair.slot(request.kind), ..*request }));
            self.leave_pool(pool);
            if found.is_some() {
                return found;
            }
        }
    }
}
