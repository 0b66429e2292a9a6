//! Private pools and captures, as programs call for them.
//!
//! A *private pool* keeps the pool's blocks apart from all other blocks. A *route* leads requests
//! into a pool. Memory written by a captured graph must stay untouched between launches, so a graph
//! is captured with a route into a private pool.

use super::Allocator;
use crate::arena::heaps::registry::Purpose;
use crate::config::rounding::PoolKind;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::pool::{PoolId, PoolOptions, Route};
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::DeviceIndex;

impl<D: DeviceMemory, R: Lock, S: Storage> Allocator<D, R, S> {
    /// Makes a private pool under an unused name, with the caller as the only user.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`], [`Error::TableFull`].
    pub fn create_pool(&self, device: DeviceIndex, options: PoolOptions) -> Result<PoolId, Error> {
        self.begin("create_pool", device)?.heaps.create_pool(None, options)
    }

    /// Adds a user to the private pool named `pool`, or makes the pool with one user. `options`
    /// apply to a new pool, and to a pool without users.
    ///
    /// # Errors
    /// * [`Error::UnknownDevice`], [`Error::TableFull`].
    /// * [`Error::PoolExists`]: `pool` is [`PoolId::DEFAULT`], which needs no users.
    pub fn retain_pool(&self, device: DeviceIndex, pool: PoolId, options: PoolOptions) -> Result<(), Error> {
        self.begin("retain_pool", device)?.heaps.retain_pool(pool, options)
    }

    /// Changes the options of a private pool for later requests.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`], [`Error::UnknownPool`].
    pub fn set_pool_options(&self, device: DeviceIndex, pool: PoolId, options: PoolOptions) -> Result<(), Error> {
        self.begin("set_pool_options", device)?.heaps.set_pool_options(pool, options)
    }

    /// Returns the number of users of a private pool.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`], [`Error::UnknownPool`].
    pub fn pool_users(&self, device: DeviceIndex, pool: PoolId) -> Result<u32, Error> {
        self.arena(device)?.heaps.pool_users(pool)
    }

    /// Passes the reserved bytes of the heaps of a device's private pools to `visit`, with the pool
    /// and the kind of blocks. A pool has two heaps for each stream that has used the pool. Takes
    /// time for each heap, and none for blocks and segments.
    ///
    /// Thread-safe; `visit` must not call the allocator, whose registry of pools is locked. Device:
    /// not called.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    pub fn reserved_of_pools(
        &self,
        device: DeviceIndex,
        visit: impl FnMut(PoolId, PoolKind, u64),
    ) -> Result<(), Error> {
        self.arena(device)?.heaps.reserved_of_pools(visit);
        Ok(())
    }

    /// Routes the requests selected by `route` into a private pool from now on. Of several matching
    /// routes the latest decides. The pool gains a user.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`], [`Error::UnknownPool`], [`Error::TableFull`].
    pub fn begin_allocate_to_pool(&self, device: DeviceIndex, pool: PoolId, route: Route) -> Result<(), Error> {
        let device = self.begin("begin_allocate_to_pool", device)?;
        device.heaps.begin_route(&device.driver, pool, route, Purpose::Requests)
    }

    /// Ends the latest route into the pool begun by
    /// [`begin_allocate_to_pool`](Self::begin_allocate_to_pool). Blocks in the pool stay, and so
    /// does the user, until [`release_pool`](Self::release_pool).
    ///
    /// # Errors
    /// * [`Error::UnknownDevice`], [`Error::UnknownPool`].
    /// * [`Error::NotRouted`]: no route of this kind leads into the pool.
    pub fn end_allocate_to_pool(&self, device: DeviceIndex, pool: PoolId) -> Result<(), Error> {
        let device = self.begin("end_allocate_to_pool", device)?;
        device.heaps.end_route(&device.driver, pool, Purpose::Requests).map(|_| ())
    }

    /// Routes the requests selected by `route` into a private pool while a graph is captured. The
    /// user added to the pool is the graph.
    ///
    /// A program announces the capture here before the capture begins. An announcement after the
    /// start is permitted if no other thread calls the allocator between the start and the
    /// announcement: a call of another thread may ask the device for the id of the capturing
    /// stream, or whether the stream is idle, and either question breaks the capture.
    ///
    /// During the capture no event is recorded, and memory is not released for requests on
    /// capturing streams. Waits until no other thread records an event.
    ///
    /// # Errors
    /// The errors of [`begin_allocate_to_pool`](Self::begin_allocate_to_pool).
    pub fn begin_capture(&self, device: DeviceIndex, pool: PoolId, route: Route) -> Result<(), Error> {
        let device = self.begin("begin_capture", device)?;
        device.heaps.begin_route(&device.driver, pool, route, Purpose::Capture)
    }

    /// Ends the latest route begun by [`begin_capture`](Self::begin_capture). May be called before
    /// or after the capture ends. The graph stays a user of the pool until
    /// [`release_pool`](Self::release_pool), called after the graph is destroyed.
    ///
    /// # Errors
    /// The errors of [`end_allocate_to_pool`](Self::end_allocate_to_pool).
    pub fn end_capture(&self, device: DeviceIndex, pool: PoolId) -> Result<(), Error> {
        let device = self.begin("end_capture", device)?;
        device.heaps.end_route(&device.driver, pool, Purpose::Capture).map(|_| ())
    }

    /// Routes the requests selected by `route` into a private pool, for a caller that cannot tell
    /// [`begin_allocate_to_pool`](Self::begin_allocate_to_pool) from
    /// [`begin_capture`](Self::begin_capture): `PyTorch` calls one hook for both, before a capture
    /// begins. The route counts as a capture until a routed request is on a stream that captures
    /// nothing.
    ///
    /// # Errors
    /// The errors of [`begin_allocate_to_pool`](Self::begin_allocate_to_pool).
    pub fn begin_route(&self, device: DeviceIndex, pool: PoolId, route: Route) -> Result<(), Error> {
        let device = self.begin("begin_route", device)?;
        device.heaps.begin_route(&device.driver, pool, route, Purpose::Undeclared)
    }

    /// Ends the latest route into the pool begun by [`begin_route`](Self::begin_route), and returns
    /// the route. The user of the pool stays until [`release_pool`](Self::release_pool).
    ///
    /// # Errors
    /// The errors of [`end_allocate_to_pool`](Self::end_allocate_to_pool).
    pub fn end_route(&self, device: DeviceIndex, pool: PoolId) -> Result<Route, Error> {
        let device = self.begin("end_route", device)?;
        device.heaps.end_route(&device.driver, pool, Purpose::Undeclared)
    }

    /// Removes a user from a private pool. The free segments of a pool without users are released
    /// with the rest of the cache, and a capture into the pool that was not ended, ends. The name
    /// of the pool is forgotten with the last segment, and at once if the pool has none.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`]; [`Error::UnknownPool`], also for a pool without users.
    pub fn release_pool(&self, device: DeviceIndex, pool: PoolId) -> Result<(), Error> {
        let device = self.begin("release_pool", device)?;
        device.heaps.end_use(&device.driver, pool)
    }

    /// Waits for the pending frees of the device, then releases the segments of one private pool
    /// with no block in use. The pool may have users, unless a captured graph has its memory.
    ///
    /// Device: called, and waited for.
    ///
    /// # Errors
    /// * [`Error::UnknownPool`], and the errors of [`empty_cache`](Self::empty_cache).
    /// * [`Error::GraphMemory`]: the pool has users, and a graph was captured into it. Its memory
    ///   stays.
    pub fn empty_pool(&self, device: DeviceIndex, pool: PoolId) -> Result<(), Error> {
        let device = self.begin("empty_pool", device)?;
        device.holdings().empty_pool(device.waiting(), pool)
    }

    /// Releases free memory of one private pool, with or without users, until the pool holds at
    /// most `keep` bytes of the device or none of its memory is free. Does not wait for pending
    /// frees.
    ///
    /// Device: called. For expandable segments, waits for their stream.
    ///
    /// # Errors
    /// * [`Error::UnknownPool`], and the errors of [`trim`](Self::trim).
    /// * [`Error::GraphMemory`], as for [`empty_pool`](Self::empty_pool), if the pool holds more
    ///   than `keep`.
    pub fn trim_pool(&self, device: DeviceIndex, pool: PoolId, keep: u64) -> Result<(), Error> {
        self.begin("trim_pool", device)?.holdings().trim_pool(pool, keep)
    }
}
