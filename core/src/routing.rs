//! Private pools of one device: made, allocated to, captured into, released.

use crate::arena::{Arena, Request, attention, kind_of};
use crate::device::DeviceMemory;
use crate::directory::Directory;
use crate::error::Error;
use crate::pool::{Led, PoolId, PoolOptions, Purpose, Registry, Route, RouteEntry, SharedPool};
use crate::storage::{Shelf, Storage};
use crate::sync::Lock;
use crate::units::StreamId;

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
            registry.pools[pool as usize].exists = false;
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
    /// locked, so no heap is made meanwhile.
    fn apply_use(&self, registry: &Registry<S>, pool: u32) {
        let kept = !registry.is_unused(pool);
        for slot in self.slot_numbers() {
            let mut heap = self.slot(slot).heap.lock();
            if heap.pool == pool {
                heap.kept = kept;
            }
        }
    }

    /// A request that was led into a private pool is answered.
    pub(crate) fn leave_pool(&self, pool: u32) {
        {
            let mut registry = self.registry.lock();
            registry.pools[pool as usize].requests -= 1;
            if !registry.is_unused(pool) {
                return;
            }
            self.apply_use(&registry, pool);
        }
        self.vacate_unused_pools();
    }

    /// Puts options in force in every heap of a pool. The registry is locked, so no heap is made meanwhile.
    fn apply_pool_options(&self, registry: &mut Registry<S>, pool: u32, options: PoolOptions) {
        registry.pools[pool as usize].options = options;
        let config = self.config();
        for slot in self.slot_numbers() {
            let mut heap = self.slot(slot).heap.lock();
            if heap.pool == pool {
                heap.rules = self.rules(&config, kind_of(slot), options);
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
        self.set(attention::ROUTES, true);
        self.set(attention::CAPTURE, registry.is_capturing());
        drop(registry);
        if purpose != Purpose::Requests {
            self.wait_for_recordings();
        }
        Ok(())
    }

    /// Ends the latest route into the pool that was begun for this purpose. Its user stays until
    /// [`release_pool`](Self::release_pool).
    pub(crate) fn end_route(&self, id: PoolId, purpose: Purpose) -> Result<Route, Error> {
        let mut registry = self.registry.lock();
        let pool = registry.private_pool(id)?;
        let route = registry.remove_route(pool, purpose).ok_or(Error::NotRouted(id))?;
        if registry.is_unused(pool) {
            self.apply_use(&registry, pool);
        }
        self.set(attention::ROUTES, registry.routes_len > 0);
        self.set(attention::CAPTURE, registry.is_capturing());
        Ok(route)
    }

    /// The route that leads a request, if any does. Its pool is not given up before [`leave_pool`](Self::leave_pool).
    pub(crate) fn enter_pool(&self, stream: StreamId) -> Option<RouteEntry> {
        let mut asked = None;
        loop {
            let mut registry = self.registry.lock();
            match registry.route(stream, || self.memory.thread_id(), asked) {
                Led::Nowhere => return None,
                Led::By(entry) => {
                    registry.pools[entry.pool as usize].requests += 1;
                    return Some(entry);
                }
                Led::Ask(number) => {
                    // The host may wait for somebody else's request while it decides.
                    drop(registry);
                    asked = Some((number, self.memory.leads(number, stream)));
                }
            }
        }
    }

    /// What a route is for, if nobody said so, shows at the first request that it leads and no graph captures.
    pub(crate) fn learn_purpose(&self, request: &Request) {
        if let Some(route) = request.route
            && !request.capturing
            && route.capture
            && route.purpose == Purpose::Unsaid
        {
            let mut registry = self.registry.lock();
            registry.rule_capture_out(route);
            self.set(attention::CAPTURE, registry.is_capturing());
        }
    }

    /// Takes a user away. Without users, the pool's free segments go back with the rest of the cache, and its options are
    /// those of the default pool.
    pub(crate) fn release_pool(&self, id: PoolId) -> Result<(), Error> {
        {
            let mut registry = self.registry.lock();
            let pool = registry.private_pool(id)?;
            let entry = &mut registry.pools[pool as usize];
            entry.users = entry.users.checked_sub(1).ok_or(Error::UnknownPool(id))?;
            if entry.users == 0 {
                self.apply_pool_options(&mut registry, pool, PoolOptions::default());
                self.apply_use(&registry, pool);
            }
        }
        self.vacate_unused_pools();
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

    /// Forgets the unused pools of which no segment is left.
    pub(crate) fn vacate_unused_pools(&self) {
        for pool in self.unused_pools() {
            let mut after = None;
            loop {
                let next = self.registry.lock().next_pair(pool, after);
                let Some((stream, pair)) = next else { break };
                self.vacate_if_empty(pair);
                after = Some(stream);
            }
            let mut registry = self.registry.lock();
            if registry.is_unused(pool) && registry.next_pair(pool, None).is_none() {
                registry.pools[pool as usize].exists = false;
            }
        }
    }

    /// The stream exists no longer: what it has cached is released, and its number may come to mean another stream.
    /// Blocks of it that are still held stay valid, and so does what a captured graph uses.
    pub(crate) fn stream_destroyed(&self, directory: &Directory<R, S>, stream: StreamId) -> Result<(), Error> {
        let mut result = Ok(());
        let mut number = 0;
        loop {
            let pair = {
                let registry = self.registry.lock();
                let goes = |pair: &crate::pool::Pair| {
                    pair.exists && pair.stream == stream && (pair.pool == 0 || registry.is_unused(pair.pool))
                };
                let Some(ahead) = registry.pairs[number..].iter().position(goes) else { break };
                number += ahead + 1;
                number as u32 - 1
            };
            for slot in [pair * 2, pair * 2 + 1] {
                result = result.and(self.release_heap(directory, slot));
            }
            self.vacate_if_empty(pair);
        }
        self.vacate_unused_pools();
        result
    }
}
