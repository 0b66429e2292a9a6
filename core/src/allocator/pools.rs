//! Private pools and captures, as programs call for them.
//!
//! A *private pool* keeps the pool's blocks apart from all other blocks. A *route* leads requests
//! into a pool. Memory written by a captured graph must stay untouched between launches, so a graph
//! is captured with a route into a private pool.

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
    /// The private pools of a device, and the routes into them: a view of an [`Allocator`],
    /// returned by [`Allocator::pools`].
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
    /// Makes a private pool under an unused name, with the caller as the only user.
    ///
    /// # Errors
    /// [`Error::TableFull`].
    pub fn create(&self, options: PoolOptions) -> Result<PoolId, Error> {
        self.begin("create_pool").heaps.create_pool(None, options)
    }

    /// Adds a user to the private pool named `pool`, or makes the pool with one user. `options`
    /// apply to a new pool, and to a pool without users.
    ///
    /// # Errors
    /// * [`Error::TableFull`].
    /// * [`Error::PoolExists`]: `pool` is [`PoolId::DEFAULT`], which needs no users.
    pub fn retain(&self, pool: PoolId, options: PoolOptions) -> Result<(), Error> {
        self.begin("retain_pool").heaps.retain_pool(pool, options)
    }

    /// Removes a user from a private pool. The free segments of a pool without users are released
    /// with the rest of the cache, and a capture into the pool that was not ended, ends. The name
    /// of the pool is forgotten with the last segment, and at once if the pool has none.
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

    /// Passes the reserved bytes of the heaps of the private pools to `visit`, with the pool and
    /// the kind of blocks. A pool has two heaps for each stream that has used the pool. Takes time
    /// for each heap, and none for blocks and segments.
    ///
    /// Thread-safe; `visit` must not call the allocator, whose registry of pools is locked. Device:
    /// not called.
    pub fn reserved(&self, visit: impl FnMut(PoolId, PoolKind, u64)) {
        self.arena.heaps.reserved_of_pools(visit);
    }

    /// Routes the requests selected by `route` into a private pool, until the returned scope ends.
    /// Of several matching routes the latest decides. The pool gains a user, which stays after the
    /// route until [`release`](Self::release), and so do the blocks in the pool.
    ///
    /// # Errors
    /// [`Error::UnknownPool`], [`Error::TableFull`].
    pub fn route(&self, pool: PoolId, route: Route, purpose: RoutePurpose) -> Result<RouteScope<'a, D, R, S>, Error> {
        self.begin_route(pool, route, purpose)?;
        Ok(RouteScope { allocator: self.allocator, arena: self.arena, pool, route, purpose })
    }

    /// Begins a route as [`route`](Self::route) does, without a scope: [`end_route`](Self::end_route)
    /// ends it. For interfaces of other languages, where the start and the end are separate calls.
    ///
    /// # Errors
    /// Those of [`route`](Self::route).
    pub fn begin_route(&self, pool: PoolId, route: Route, purpose: RoutePurpose) -> Result<(), Error> {
        let device = self.begin("begin_route");
        device.heaps.begin_route(&device.driver, pool, route, purpose)
    }

    /// Ends the latest route of this purpose into the pool, and returns the route.
    ///
    /// # Errors
    /// * [`Error::UnknownPool`].
    /// * [`Error::NotRouted`]: no route of this purpose leads into the pool.
    pub fn end_route(&self, pool: PoolId, purpose: RoutePurpose) -> Result<Route, Error> {
        let device = self.begin("end_route");
        device.heaps.end_route(&device.driver, pool, purpose, None)
    }

    /// Returns whether a graph is being captured on the device, or may be, as far as the allocator
    /// was told: a route for a capture has begun and not ended.
    pub fn are_capturing(&self) -> bool {
        self.arena.driver.flags.has(flags::CAPTURE)
    }

    /// Waits for the pending frees of the device, then releases the segments of one private pool
    /// with no block in use. The pool may have users, unless a captured graph has its memory.
    ///
    /// Device: called, and waited for.
    ///
    /// # Errors
    /// * [`Error::UnknownPool`], and the errors of [`Allocator::empty_cache`].
    /// * [`Error::GraphMemory`]: the pool has users, and a graph was captured into it. Its memory
    ///   stays.
    pub fn empty(&self, pool: PoolId) -> Result<(), Error> {
        let device = self.begin("empty_pool");
        device.holdings().empty_pool(device.waiting(), pool)
    }

    /// Releases free memory of one private pool, with or without users, until the pool holds at
    /// most `keep` bytes of the device or none of its memory is free. Does not wait for pending
    /// frees.
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

/// A route of requests into a private pool, which ends on drop: see [`Pools::route`].
///
/// Scopes may end in any order, and on any thread. A drop that finds the route ended, because the
/// pool lost its last user, does nothing.
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

    /// Ends the route as a drop does, and returns the error of a drop.
    ///
    /// # Errors
    /// [`Error::UnknownPool`], [`Error::NotRouted`]: the route of a capture has ended with the last
    /// user of the pool.
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
        // Both errors say that the route has ended.
        let _ended = self.end_route();
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> fmt::Debug for RouteScope<'_, D, R, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pool, route, purpose, .. } = self;
        f.debug_struct("RouteScope").field("pool", pool).field("route", route).field("purpose", purpose).finish()
    }
}
