//! Private pools of the model, and routes into private pools.

use super::{Answer, Model, Refusal};
use cachalot_core::{Host, PoolId, PoolOptions, Route, StreamId};

pub(super) struct Pool {
    pub id: PoolId,
    pub users: u32,
    pub options: PoolOptions,
    /// Whether a captured graph has memory of the pool.
    pub captured: bool,
    /// Number of searches of the small and of the large free blocks, while ages are recorded.
    pub searches: [u64; 2],
}

impl Pool {
    pub(super) fn the_default() -> Self {
        Self::new(PoolId::DEFAULT, PoolOptions::default())
    }

    fn new(id: PoolId, options: PoolOptions) -> Self {
        Self { id, users: 1, options, captured: false, searches: [0; 2] }
    }
}

/// The purpose of a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Redirection of ordinary requests.
    Requests,
    /// The capture of a graph.
    Capture,
    /// No declared purpose.
    Unsaid,
}

pub(super) struct RouteEntry {
    pub pool: usize,
    pub route: Route,
    pub purpose: Purpose,
    /// Whether requests on the route may be part of a capture.
    pub capture: bool,
}

impl Model {
    pub(super) fn pool(&self, number: usize) -> &Pool {
        self.pools[number].as_ref().expect("a pool with blocks exists")
    }

    pub(super) fn pool_mut(&mut self, number: usize) -> &mut Pool {
        self.pools[number].as_mut().expect("a pool with blocks exists")
    }

    fn number(&self, id: PoolId) -> Option<usize> {
        self.pools.iter().position(|pool| pool.as_ref().is_some_and(|pool| pool.id == id))
    }

    fn private(&self, id: PoolId) -> Answer<usize> {
        self.number(id).filter(|&number| number != 0).ok_or(Refusal::UnknownPool)
    }

    /// Returns the latest route that accepts a request on `stream`.
    pub(super) fn route(&self, stream: StreamId) -> Option<usize> {
        self.routes.iter().rposition(|entry| match entry.route {
            Route::All => true,
            Route::Stream(only) => only == stream,
            Route::Thread(only) => only == self.device.thread_id(),
            Route::Host(number) => self.device.leads(number, stream),
        })
    }

    /// Creates a pool under the name chosen by the allocator.
    ///
    /// # Errors
    /// [`Refusal::PoolExists`].
    pub fn create_pool(&mut self, id: PoolId, options: PoolOptions) -> Answer<()> {
        if self.number(id).is_some() {
            return Err(Refusal::PoolExists);
        }
        let pool = Some(Pool::new(id, options));
        match self.pools.iter().position(Option::is_none) {
            Some(vacant) => self.pools[vacant] = pool,
            None => self.pools.push(pool),
        }
        Ok(())
    }

    /// Adds a user to a pool. Creates a missing pool; changes the options of an unused pool.
    ///
    /// # Errors
    /// [`Refusal::PoolExists`] for the default pool.
    pub fn retain_pool(&mut self, id: PoolId, options: PoolOptions) -> Answer<()> {
        let Ok(number) = self.private(id) else { return self.create_pool(id, options) };
        if self.is_unused(number) {
            self.pool_mut(number).options = options;
            self.pool_mut(number).captured = false;
        }
        self.pool_mut(number).users += 1;
        Ok(())
    }

    /// Changes the options of a pool.
    ///
    /// # Errors
    /// [`Refusal::UnknownPool`].
    pub fn set_pool_options(&mut self, id: PoolId, options: PoolOptions) -> Answer<()> {
        let number = self.private(id)?;
        self.pool_mut(number).options = options;
        Ok(())
    }

    /// Returns the number of users of a pool.
    ///
    /// # Errors
    /// [`Refusal::UnknownPool`].
    pub fn pool_users(&self, id: PoolId) -> Answer<u32> {
        Ok(self.pool(self.private(id)?).users)
    }

    /// Begins a route into a pool.
    ///
    /// # Errors
    /// [`Refusal::UnknownPool`].
    pub fn begin_route(&mut self, id: PoolId, route: Route, purpose: Purpose) -> Answer<()> {
        let pool = self.private(id)?;
        if self.is_unused(pool) {
            self.pool_mut(pool).captured = false;
        }
        self.pool_mut(pool).captured |= purpose == Purpose::Capture;
        self.pool_mut(pool).users += 1;
        self.routes.push(RouteEntry { pool, route, purpose, capture: purpose != Purpose::Requests });
        Ok(())
    }

    /// Ends the latest equal route.
    ///
    /// # Errors
    /// [`Refusal::UnknownPool`], [`Refusal::NotRouted`].
    pub fn end_route(&mut self, id: PoolId, purpose: Purpose) -> Answer<Route> {
        let pool = self.private(id)?;
        let latest = self.routes.iter().rposition(|entry| entry.pool == pool && entry.purpose == purpose);
        let ended = self.routes.remove(latest.ok_or(Refusal::NotRouted)?).route;
        self.forget_unused_pools();
        Ok(ended)
    }

    /// Removes a user from a pool.
    ///
    /// # Errors
    /// [`Refusal::UnknownPool`] for an unknown or unused pool.
    pub fn release_pool(&mut self, id: PoolId) -> Answer<()> {
        let number = self.private(id)?;
        let pool = self.pool_mut(number);
        pool.users = pool.users.checked_sub(1).ok_or(Refusal::UnknownPool)?;
        if pool.users == 0 {
            pool.options = PoolOptions::default();
            self.routes.retain(|entry| entry.pool != number || entry.purpose != Purpose::Capture);
        }
        self.forget_unused_pools();
        Ok(())
    }

    /// Returns whether a private pool is unused: no route leads into the pool, and no graph uses
    /// the pool.
    pub(super) fn is_unused(&self, number: usize) -> bool {
        number != 0
            && self.pools[number].as_ref().is_some_and(|pool| pool.users == 0)
            && self.routes.iter().all(|entry| entry.pool != number)
    }

    pub(super) fn unused_pools(&self) -> Vec<usize> {
        (0..self.pools.len()).filter(|&number| self.is_unused(number)).collect()
    }

    /// Removes the unused pools without segments.
    pub(super) fn forget_unused_pools(&mut self) {
        for number in self.unused_pools() {
            if self.memory.segments.iter().all(|segment| segment.owner.pool != number) {
                self.pools[number] = None;
                self.ended.retain(|&(pool, _)| pool != number);
            }
        }
    }

    /// Lists the pools whose segments may be released: the default pool and the unused private
    /// pools.
    pub(super) fn releasable_pools(&self) -> Vec<usize> {
        let mut pools = self.unused_pools();
        pools.insert(0, 0);
        pools
    }

    /// Lists the private pools with the option `use_on_oom`.
    pub(super) fn pools_for_anyone(&self) -> Vec<usize> {
        let lends = |pool: &Pool| pool.options.use_on_oom && !pool.captured;
        let willing = |&number: &usize| self.pools[number].as_ref().is_some_and(lends);
        (1..self.pools.len()).filter(willing).collect()
    }
}
