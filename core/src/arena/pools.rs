//! Private pools of one device: made, allocated to, captured into, released.

use crate::arena::heaps::{PairUse, slot_of};
use crate::arena::registry::{Purpose, Registry, RouteDecision, RouteEntry, SharedPool};
use crate::arena::request::Request;
use crate::arena::{Arena, OnDevice, flags};
use crate::config::rounding::PoolKind;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::pool::{PoolId, PoolOptions, Route};
use crate::sync::Lock;
use crate::tables::{OnceTable, Storage};
use crate::units::StreamId;

impl<D: DeviceMemory, R: Lock, S: Storage> OnDevice<'_, D, R, S> {
    /// The stream exists no longer: what it has cached is released, and its number may come to mean another stream.
    /// Blocks of it that are still held stay valid, and so does what a captured graph uses. Its pairs become vacant with the last
    /// segment in them.
    pub(crate) fn stream_destroyed(self, stream: StreamId) -> Result<(), Error> {
        let mut result = Ok(());
        let mut next = 0;
        while let Some((pool, ended)) = self.next_ended(next, stream) {
            next = pool + 1;
            for kind in [PoolKind::Small, PoolKind::Large] {
                result = result.and(self.release_heap(ended.slot(kind)));
            }
        }
        result
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Makes a pool with one user, named `id` or by the next free name.
    pub(crate) fn create_pool(&self, id: Option<PoolId>, options: PoolOptions) -> Result<PoolId, Error> {
        let mut registry = self.registry.lock();
        let id = id.unwrap_or_else(|| {
            let mut name = registry.pools_made + 1;
            while registry.pool(PoolId(0, name)).is_some() {
                name += 1;
            }
            PoolId(0, name)
        });
        if registry.pool(id).is_some() {
            return Err(Error::PoolExists(id));
        }
        let pool = registry.add_pool(id, options).ok_or(Error::TableFull("pools"))?;
        if self.pools.get_or_set(pool, SharedPool::default).is_none() {
            registry.remove_pool(pool);
            return Err(Error::TableFull("pools"));
        }
        if id.0 == 0 {
            registry.pools_made = registry.pools_made.max(id.1);
        }
        Ok(id)
    }

    /// Adds a user to a pool, which is made if there is none of that name. One that nobody used any longer gets the options
    /// of a new one.
    pub(crate) fn retain_pool(&self, id: PoolId, options: PoolOptions) -> Result<(), Error> {
        loop {
            let mut registry = self.registry.lock();
            let Ok(pool) = registry.private_pool(id) else {
                drop(registry);
                match self.create_pool(Some(id), options) {
                    // Another thread has made it since.
                    Err(Error::PoolExists(_)) if id != PoolId::DEFAULT => continue,
                    made => return made.map(|_| ()),
                }
            };
            let was_released = registry.is_released(pool);
            registry.pools[pool as usize].users += 1;
            if was_released {
                self.apply_pool_options(&mut registry, pool, options);
                self.apply_use(&registry, pool);
            }
            return Ok(());
        }
    }

    /// Changes how a pool differs from the default one.
    pub(crate) fn set_pool_options(&self, id: PoolId, options: PoolOptions) -> Result<(), Error> {
        let mut registry = self.registry.lock();
        let pool = registry.private_pool(id)?;
        self.apply_pool_options(&mut registry, pool, options);
        Ok(())
    }

    /// Tells every heap of a pool whether the pool is in use, after a change that may have ended or begun that. The registry is
    /// locked, so no pair is made at the same time. The pairs of a pool without users become vacant once they are empty.
    fn apply_use(&self, registry: &Registry<S>, pool: u32) {
        let unused = registry.is_unused(pool);
        for pair in registry.pairs_of(pool) {
            for slot in [PoolKind::Small, PoolKind::Large].map(|kind| self.slot(slot_of(pair, kind))) {
                slot.heap.lock().kept = !unused;
                if unused {
                    self.queue_if_ended(slot);
                }
            }
            self.set_leaving(registry, pair, unused);
        }
    }

    /// A request that was led into a private pool is answered.
    pub(crate) fn leave_pool(&self, pool: u32) {
        let mut registry = self.registry.lock();
        registry.pools[pool as usize].requests -= 1;
        self.finish_use(&mut registry, pool);
    }

    /// After the last use of a pool: its heaps are no longer kept, and what is empty of it becomes vacant. Does nothing for a pool
    /// that is still used.
    fn finish_use(&self, registry: &mut Registry<S>, pool: u32) {
        if !registry.is_unused(pool) {
            return;
        }
        self.apply_use(registry, pool);
        let mut after = None;
        while let Some((stream, pair)) = registry.next_pair(pool, after) {
            self.vacate(registry, pair);
            after = Some(stream);
        }
        registry.remove_pool_if_empty(pool);
    }

    /// Puts options in force in every heap of a pool. The registry is locked, so no pair is made at the same time.
    fn apply_pool_options(&self, registry: &mut Registry<S>, pool: u32, options: PoolOptions) {
        registry.pools[pool as usize].options = options;
        let config = self.config();
        for pair in registry.pairs_of(pool) {
            for kind in [PoolKind::Small, PoolKind::Large] {
                self.slot(slot_of(pair, kind)).heap.lock().rules = self.rules(&config, kind, options);
            }
        }
    }

    /// How many users a pool has.
    pub(crate) fn pool_users(&self, id: PoolId) -> Result<u32, Error> {
        let registry = self.registry.lock();
        Ok(registry.pools[registry.private_pool(id)? as usize].users)
    }

    /// Leads the requests of `route` into the pool, which gains a user.
    pub(crate) fn begin_route(&self, id: PoolId, route: Route, purpose: Purpose) -> Result<(), Error> {
        let mut registry = self.registry.lock();
        let pool = registry.private_pool(id)?;
        let was_released = registry.is_released(pool);
        if !registry.add_route(RouteEntry::new(pool, route, purpose)) {
            return Err(Error::TableFull("routes"));
        }
        registry.pools[pool as usize].users += 1;
        if was_released {
            self.apply_use(&registry, pool);
        }
        self.flags.set(flags::ROUTES, true);
        self.flags.set(flags::CAPTURE, registry.is_capturing());
        drop(registry);
        if purpose != Purpose::Requests {
            self.driver.wait_for_recordings();
        }
        Ok(())
    }

    /// Ends the latest route into the pool that was begun for this purpose. Its user stays until
    /// [`release_pool`](Self::release_pool).
    pub(crate) fn end_route(&self, id: PoolId, purpose: Purpose) -> Result<Route, Error> {
        let mut registry = self.registry.lock();
        let pool = registry.private_pool(id)?;
        let route = registry.remove_route(pool, purpose).ok_or(Error::NotRouted(id))?;
        self.flags.set(flags::ROUTES, registry.routes_len > 0);
        self.flags.set(flags::CAPTURE, registry.is_capturing());
        self.finish_use(&mut registry, pool);
        Ok(route)
    }

    /// The route that leads a request, if any does. Its pool is not given up before [`leave_pool`](Self::leave_pool).
    pub(crate) fn enter_pool(&self, stream: StreamId) -> Option<RouteEntry> {
        let mut asked = None;
        loop {
            let mut registry = self.registry.lock();
            match registry.route(stream, || self.driver.device().thread_id(), asked) {
                RouteDecision::Nowhere => return None,
                RouteDecision::By(entry) => {
                    registry.pools[entry.pool as usize].requests += 1;
                    return Some(entry);
                }
                RouteDecision::Ask(number) => {
                    // The host may wait for somebody else's request while it decides.
                    drop(registry);
                    asked = Some((number, self.driver.device().leads(number, stream)));
                }
            }
        }
    }

    /// What a route is for, if nobody said so, shows at the first request that it leads and no graph captures.
    pub(crate) fn learn_purpose(&self, request: &Request) {
        if let Some(route) = request.route
            && !request.capturing
            && route.capture
            && route.purpose == Purpose::SizeUnknown
        {
            let mut registry = self.registry.lock();
            registry.rule_capture_out(route);
            self.flags.set(flags::CAPTURE, registry.is_capturing());
        }
    }

    /// Takes a user away. Without users, the pool's free segments go back with the rest of the cache, and its options are
    /// those of the default pool.
    pub(crate) fn release_pool(&self, id: PoolId) -> Result<(), Error> {
        let mut registry = self.registry.lock();
        let pool = registry.private_pool(id)?;
        let entry = &mut registry.pools[pool as usize];
        entry.users = entry.users.checked_sub(1).ok_or(Error::UnknownPool(id))?;
        if entry.users == 0 {
            self.apply_pool_options(&mut registry, pool, PoolOptions::default());
            self.finish_use(&mut registry, pool);
        }
        Ok(())
    }

    /// The number of a private pool.
    pub(crate) fn private_pool(&self, id: PoolId) -> Result<u32, Error> {
        self.registry.lock().private_pool(id)
    }

    /// The private pools that nobody uses.
    pub(crate) fn unused_pools(&self) -> impl Iterator<Item = u32> {
        let mut pool = 0;
        core::iter::from_fn(move || {
            let registry = self.registry.lock();
            pool = (pool + 1..registry.pools.len() as u32).find(|&pool| registry.is_unused(pool))?;
            Some(pool)
        })
    }

    /// Uses the pair of a stream in the first pool from number `from` on that has one, and says that the stream has ended.
    fn next_ended(&self, from: u32, stream: StreamId) -> Option<(u32, PairUse<'_, D, R, S>)> {
        let registry = self.registry.lock();
        let (pool, pair) = registry.next_pair_of(from, stream)?;
        let ended = self.enter_pair(pair)?;
        self.set_ended(&registry, pair, true);
        self.set_leaving(&registry, pair, true);
        Some((pool, ended))
    }
}
