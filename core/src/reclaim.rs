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

use crate::arena::{Arena, Request, attention};
use crate::config::{Bfc, Config, Policy};
use crate::device::DeviceMemory;
use crate::directory::Directory;
use crate::error::Error;
use crate::heaps::{HEAPS, STREAMS};
use crate::stats::Event;
use crate::storage::Storage;
use crate::sync::{Lock, Ordering};
use crate::units::{DevicePtr, StreamId};

/// What a request would do first if it were made now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forecast {
    /// The block at this address would be handed out, from the cache or a plan; for zero bytes, the null address.
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

/// How long a request that waits for others sleeps at a time, in microseconds: at first, and at most.
const FIRST_PAUSE_US: u64 = 100;
const LONGEST_PAUSE_US: u64 = 10_000;

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Finds memory for a request that no free block of its heap may serve.
    #[cold]
    pub(crate) fn reclaim(&self, directory: &Directory<R, S>, request: &Request) -> Result<DevicePtr, Error> {
        if self.memory.on_shortage(request.size)
            && let Some(ptr) = self.search(request)?
        {
            return Ok(ptr);
        }
        if !request.capturing {
            self.release_ended(directory);
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
            #[cfg(feature = "alloc")]
            if self.has(attention::PLANNED) {
                self.give_plans_up(directory)?;
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
        Err(self.run_out_of_memory(request))
    }

    /// Counts and reports that a request fails for want of memory.
    pub(crate) fn run_out_of_memory(&self, request: &Request) -> Error {
        self.totals.count(Event::OutOfMemory);
        let report = self.out_of_memory(request);
        self.trace_oom(request, &report);
        self.memory.on_out_of_memory(&report);
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
        let Some(bytes) = self.rejected(request)? else { return Ok(()) };
        self.totals.count(Event::OomRejection);
        Err(Error::Rejected(bytes))
    }

    /// The bytes that would be obtained for a request, if they are refused for that.
    fn rejected(&self, request: &Request) -> Result<Option<u64>, Error> {
        let config = self.config();
        if !config.throw_on_device_oom() {
            return Ok(None);
        }
        let more = self.segment_bytes(request);
        let total = self.call(|| self.memory.memory_info())?.total;
        let allowed = fraction_of(config.per_process_memory_fraction(), total);
        Ok((self.reserved.load(Ordering::Relaxed).saturating_add(more) > allowed).then_some(more))
    }

    /// What [`malloc`](Self::malloc) would do first. Changes nothing; pending events are taken as they are.
    pub(crate) fn forecast(&self, bytes: u64, stream: StreamId) -> Result<Forecast, Error> {
        if bytes == 0 {
            return Ok(Forecast::Hit(DevicePtr::NULL));
        }
        self.health()?;
        #[cfg(feature = "alloc")]
        if let Some(ptr) = self.planned_forecast(bytes, stream) {
            return Ok(Forecast::Hit(ptr));
        }
        let foretold = self.with_request(bytes, stream, 0, Self::ask_pair, |request| self.forecast_of(request));
        if let Err(Error::TableFull(HEAPS | STREAMS)) = foretold
            && let Some(first) = self.first_idle()
        {
            return Ok(Forecast::Release(first));
        }
        foretold
    }

    fn forecast_of(&self, request: &Request) -> Result<Forecast, Error> {
        let bytes = self.segment_bytes(request);
        if self.has(attention::DIRECT) {
            return Ok(if self.is_within_limit(bytes) { Forecast::Obtain(bytes) } else { Forecast::OutOfMemory });
        }
        if let Some(ptr) = self.found(request) {
            return Ok(Forecast::Hit(ptr));
        }
        if !request.capturing
            && let Some(first) = self.first_ended(request.slot / 2)
        {
            return Ok(Forecast::Release(first));
        }
        if let Some(first) = self.first_garbage() {
            return Ok(Forecast::Release(first));
        }
        if self.rejected(request)?.is_some() {
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
        #[cfg(feature = "alloc")]
        let first = first.or_else(|| self.first_idle_lane().filter(|_| !request.capturing));
        Ok(first.map_or(Forecast::OutOfMemory, Forecast::Release))
    }

    /// The free block that would serve a request.
    fn found(&self, request: &Request) -> Option<DevicePtr> {
        self.lock(request.slot).peek(request.size)
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
            let pair = self.find_pair(pool, request.stream);
            let found = pair.and_then(|pair| look(&Request { pool, slot: pair.slot(request.kind), ..*request }));
            self.leave_pool(pool);
            if found.is_some() {
                return found;
            }
        }
    }

    /// The configuration in force.
    pub(crate) fn config(&self) -> Config {
        self.config.lock().clone()
    }
}

/// A fraction of so many bytes, rounded to the nearest one (as `std::round` does for positive numbers).
pub(crate) fn fraction_of(fraction: f64, bytes: u64) -> u64 {
    (fraction * bytes as f64 + 0.5) as u64
}
