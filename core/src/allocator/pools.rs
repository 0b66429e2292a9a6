//! Private pools and captures, as programs use them.
//!
//! A *private pool* keeps its blocks separate from all other blocks. A *route* leads requests to a
//! pool. A captured graph writes to its memory at every launch, and this memory must not be used by
//! others between launches, so a graph is captured with a route to a private pool.

use super::{Allocator, On};
use crate::arena::Arena;
use crate::arena::flags;
use crate::config::rounding::PoolKind;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::pool::{PoolId, PoolOptions, Route, RoutePurpose};
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::DeviceIndex;
use core::{fmt, mem};

view! {
    /// The private pools of a device, and the routes to them: a view of an [`Allocator`], returned
    /// by [`Allocator::pools`].
    ///
    /// ```
    /// use cachalot_core::simulated::SimulatedDevice;
    /// use cachalot_core::{Allocator, Config, DeviceIndex, Growable, PoolOptions, Route, RoutePurpose, StreamId};
    ///
    /// type Simulated = Allocator<SimulatedDevice, spin::Mutex<()>, Growable>;
    /// let allocator = Simulated::new([SimulatedDevice::new(1 << 30)], &Config::new())?;
    /// let pools = allocator.pools(DeviceIndex(0))?;
    /// let pool = pools.create(PoolOptions::default())?;
    /// let route = pools.route(pool, Route::All, RoutePurpose::Requests)?;
    /// let block = allocator.block(DeviceIndex(0), 4096, StreamId::DEFAULT)?; // of the pool
    /// drop(route); // later requests are served from the default pool
    /// # drop(block);
    /// # Ok::<(), cachalot_core::Error>(())
    /// ```
    Pools,
    /// Returns the private pools of `device`.
    pools
}

impl<'a, D: DeviceMemory, R: Lock, S: Storage> Pools<'a, D, R, S> {
    /// Creates a private pool with an unused name. The caller is its only user.
    ///
    /// # Errors
    /// [`Error::TableFull`].
    pub fn create(&self, options: PoolOptions) -> Result<PoolId, Error> {
        self.begin("create_pool").heaps.create_pool(None, options)
    }

    /// Adds a user to the private pool named `pool`, or creates the pool with one user. `options`
    /// apply to a new pool, and to a pool without users.
    ///
    /// # Errors
    /// * [`Error::TableFull`].
    /// * [`Error::PoolExists`]: `pool` is [`PoolId::DEFAULT`], which needs no users.
    pub fn retain(&self, pool: PoolId, options: PoolOptions) -> Result<(), Error> {
        self.begin("retain_pool").heaps.retain_pool(pool, options)
    }

    /// Removes a user from a private pool. If the pool has no users left, its free segments are
    /// released with the rest of the cache, and a capture to the pool that was not ended, ends. The
    /// name of the pool is forgotten with its last segment, or at once if it has none.
    ///
    /// # Errors
    /// [`Error::UnknownPool`], also for a pool without users.
    pub fn release(&self, pool: PoolId) -> Result<(), Error> {
        let device = self.begin("release_pool");
        device.heaps.end_use(&device.driver, pool)
    }

    /// Returns the number of users of a private pool.
    ///
    /// # Errors
    /// [`Error::UnknownPool`].
    pub fn users(&self, pool: PoolId) -> Result<u32, Error> {
        self.arena.heaps.pool_users(pool)
    }

    /// Changes the options of a private pool for later requests.
    ///
    /// # Errors
    /// [`Error::UnknownPool`].
    pub fn set_options(&self, pool: PoolId, options: PoolOptions) -> Result<(), Error> {
        self.begin("set_pool_options").heaps.set_pool_options(pool, options)
    }

    /// Sets whether new pages of a private pool are memory of the host from the start, as far as
    /// `spill` and the host allow; beyond that, they are the device's. Existing pages do not
    /// change, so set this before the pool's first request. New segments of such a pool are mapped,
    /// even under the caching policy without expandable segments.
    ///
    /// Device: called, to get its total memory.
    ///
    /// # Errors
    /// * [`Error::UnknownPool`], also for the default pool.
    /// * [`Error::SpillRefused`]: `spill` is not set, the policy maps no memory, or the host
    ///   supplies the pool's segments.
    /// * [`Error::Device`].
    pub fn spill(&self, pool: PoolId, on: bool) -> Result<(), Error> {
        self.begin("spill_pool").holdings().set_on_host(pool, on)
    }

    /// Calls `visit` with the reserved bytes of each heap of the private pools, and with the pool
    /// and the kind of blocks. A pool has two heaps for each stream that has used it. The time
    /// depends on the number of heaps, not on that of blocks and segments.
    ///
    /// Threads: any, but `visit` must not call the allocator, because the registry of pools is
    /// locked. Device: not called.
    pub fn reserved(&self, visit: impl FnMut(PoolId, PoolKind, u64)) {
        self.arena.heaps.reserved_of_pools(visit);
    }

    /// Routes the requests selected by `route` to a private pool until the returned scope ends. If
    /// several routes match, the latest one decides. The pool gains a user. It remains after the
    /// route, until [`release`](Self::release), and so do the blocks in the pool.
    ///
    /// # Errors
    /// [`Error::UnknownPool`], [`Error::TableFull`].
    pub fn route(&self, pool: PoolId, route: Route, purpose: RoutePurpose) -> Result<RouteScope<'a, D, R, S>, Error> {
        self.begin_route(pool, route, purpose)?;
        Ok(RouteScope { allocator: self.allocator, arena: self.arena, pool, route, purpose })
    }

    /// Starts a route as [`route`](Self::route) does, but without a scope:
    /// [`end_route`](Self::end_route) ends it. This is for interfaces of other languages, where
    /// start and end are separate calls.
    ///
    /// # Errors
    /// Those of [`route`](Self::route).
    pub fn begin_route(&self, pool: PoolId, route: Route, purpose: RoutePurpose) -> Result<(), Error> {
        let device = self.begin("begin_route");
        device.heaps.begin_route(&device.driver, pool, route, purpose)
    }

    /// Ends the latest route of this purpose to the pool, and returns the route.
    ///
    /// # Errors
    /// * [`Error::UnknownPool`].
    /// * [`Error::NotRouted`]: no route of this purpose leads to the pool.
    pub fn end_route(&self, pool: PoolId, purpose: RoutePurpose) -> Result<Route, Error> {
        let device = self.begin("end_route");
        device.heaps.end_route(&device.driver, pool, purpose, None)
    }

    /// Returns whether a graph is being captured on the device, or may be, according to what the
    /// program told the allocator: a route for a capture was started and has not ended.
    pub fn are_capturing(&self) -> bool {
        self.arena.driver.flags.has(flags::CAPTURE) && self.arena.heaps.registry.lock().is_capturing()
    }

    /// Waits for the pending frees of the device, then releases the segments of one private pool
    /// that have no block in use. The pool may have users, unless a captured graph uses its memory.
    ///
    /// Device: called, and waited for.
    ///
    /// # Errors
    /// * [`Error::UnknownPool`], and the errors of [`Allocator::empty_cache`].
    /// * [`Error::GraphMemory`]: the pool has users, and a graph was captured into it. Its memory
    ///   is kept.
    pub fn empty(&self, pool: PoolId) -> Result<(), Error> {
        let device = self.begin("empty_pool");
        device.holdings().empty_pool(device.waiting(), pool)
    }

    /// Releases free memory of one private pool, with or without users, until the pool holds at
    /// most `keep` bytes of the device or has no free memory. Does not wait for pending frees.
    ///
    /// Device: called. For expandable segments, waits for their stream.
    ///
    /// # Errors
    /// * [`Error::UnknownPool`], and the errors of [`Allocator::trim`].
    /// * [`Error::GraphMemory`], as for [`empty`](Self::empty), if the pool holds more than `keep`.
    pub fn trim(&self, pool: PoolId, keep: u64) -> Result<(), Error> {
        self.begin("trim_pool").holdings().trim_pool(pool, keep)
    }
}

/// A route of requests to a private pool, which ends when it is dropped: see [`Pools::route`].
///
/// Scopes may end in any order, and on any thread. Dropping one does nothing if the route has
/// already ended because the pool lost its last user.
#[must_use = "a route that is not kept ends at once"]
pub struct RouteScope<'a, D: DeviceMemory, R: Lock, S: Storage> {
    allocator: &'a Allocator<D, R, S>,
    arena: &'a Arena<On<D, R, S>>,
    pool: PoolId,
    route: Route,
    purpose: RoutePurpose,
}

impl<D: DeviceMemory, R: Lock, S: Storage> RouteScope<'_, D, R, S> {
    /// Returns the pool.
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// Ends the route as a drop does, and returns the error if there is one.
    ///
    /// # Errors
    /// [`Error::UnknownPool`], [`Error::NotRouted`]: the route of a capture ended when the pool
    /// lost its last user.
    pub fn end(self) -> Result<(), Error> {
        let ended = self.end_route();
        mem::forget(self);
        ended
    }

    fn end_route(&self) -> Result<(), Error> {
        let _checked = self.allocator.checked("end_route", DeviceIndex(self.arena.number()));
        let heaps = &self.arena.heaps;
        heaps.end_route(&self.arena.driver, self.pool, self.purpose, Some(self.route)).map(|_| ())
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Drop for RouteScope<'_, D, R, S> {
    fn drop(&mut self) {
        // Both errors mean that the route has already ended.
        let _ended = self.end_route();
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> fmt::Debug for RouteScope<'_, D, R, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pool, route, purpose, .. } = self;
        f.debug_struct("RouteScope").field("pool", pool).field("route", route).field("purpose", purpose).finish()
    }
}
