//! Routes of requests into private pools, and what a route tells about graph captures.
//!
//! The registry's lock covers each change of the routes together with the flags that sum the routes
//! up. The host is asked about a route with no lock held.

use crate::arena::heaps::registry::{Purpose, Registry, RouteDecision, RouteEntry};
use crate::arena::request::Request;
use crate::arena::{Arena, Platform, flags};
use crate::device::Host;
use crate::error::Error;
use crate::pool::{PoolId, Route};
use crate::units::StreamId;

impl<P: Platform> Arena<P> {
    /// Routes the requests that match `route` into the pool named `id`, and adds a user to the
    /// pool.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPool`], [`Error::TableFull`].
    pub(crate) fn begin_route(&self, id: PoolId, route: Route, purpose: Purpose) -> Result<(), Error> {
        let mut registry = self.heaps.registry.lock();
        let pool = registry.private_pool(id)?;
        // Read before the change: the new route itself is a use of the pool.
        let was_released = registry.is_released(pool);
        if !registry.add_route(RouteEntry::new(pool, route, purpose)) {
            return Err(Error::TableFull("routes"));
        }
        registry.pools[pool as usize].users += 1;
        if was_released {
            registry.pools[pool as usize].captured = false;
            self.heaps.apply_use(&registry, pool);
        }
        // Before the first request: what was allocated in the pool until now may be used by the graph as well.
        if purpose == Purpose::Capture {
            self.heaps.set_captured(&mut registry, pool);
        }
        self.sum_routes_up(&registry);
        drop(registry);
        // Calls that looked at the flags before the change may still record events, which a capture
        // forbids: wait for the end of those calls.
        if purpose != Purpose::Requests {
            self.driver.wait_for_recordings();
        }
        Ok(())
    }

    /// Ends the latest route of `purpose` into the pool named `id`, and returns the route. The
    /// route's user remains until [`release_pool`](Self::release_pool).
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPool`], [`Error::NotRouted`].
    pub(crate) fn end_route(&self, id: PoolId, purpose: Purpose) -> Result<Route, Error> {
        let mut registry = self.heaps.registry.lock();
        let pool = registry.private_pool(id)?;
        let route = registry.remove_route(pool, purpose).ok_or(Error::NotRouted(id))?;
        self.sum_routes_up(&registry);
        self.heaps.finish_use(&mut registry, pool);
        Ok(route)
    }

    /// Removes a user of the pool named `id`, and ends the captures into a pool without users.
    ///
    /// # Errors
    /// [`Error::UnknownPool`], also if the pool has no user.
    pub(crate) fn release_pool(&self, id: PoolId) -> Result<(), Error> {
        self.heaps.release_pool(id)?;
        self.sum_routes_up(&self.heaps.registry.lock());
        Ok(())
    }

    /// Ends the captures on a stream that has ended.
    pub(crate) fn end_captures_on(&self, stream: StreamId) {
        if self.driver.flags.has(flags::ROUTES) {
            let mut registry = self.heaps.registry.lock();
            registry.end_captures_on(stream);
            self.sum_routes_up(&registry);
        }
    }

    /// Sets the flags that sum the routes up. The registry is locked, so concurrent begins and ends leave the flags in agreement
    /// with the routes.
    fn sum_routes_up(&self, registry: &Registry<P::Storage>) {
        self.driver.flags.set(flags::ROUTES, registry.routes_len > 0);
        self.driver.flags.set(flags::CAPTURE, registry.is_capturing());
    }

    /// Returns the route that takes a request on `stream`, and counts the request in the route's
    /// pool. The pool is not removed before [`leave_pool`](Self::leave_pool).
    pub(crate) fn enter_pool(&self, stream: StreamId) -> Option<RouteEntry> {
        let mut asked = None;
        loop {
            let mut registry = self.heaps.registry.lock();
            match registry.route(stream, || self.driver.device().thread_id(), asked) {
                RouteDecision::DefaultPool => return None,
                RouteDecision::Into(entry) => {
                    registry.pools[entry.pool as usize].requests += 1;
                    return Some(entry);
                }
                RouteDecision::AskHost(number) => {
                    // Unlocked: the host may wait for another thread's request while it decides.
                    drop(registry);
                    asked = Some((number, self.driver.device().leads(number, stream)));
                }
            }
        }
    }

    /// Clears the capture mark of an undeclared route whose request is on a stream without capture:
    /// the request shows that the route is not for a capture. Notes that the pool of a captured request has memory of a graph.
    pub(crate) fn learn_purpose(&self, request: &Request) {
        if request.capturing && request.pool != 0 {
            self.heaps.set_captured(&mut self.heaps.registry.lock(), request.pool);
        }
        if let Some(route) = request.route
            && !request.capturing
            && route.capture
            && route.purpose == Purpose::Undeclared
        {
            let mut registry = self.heaps.registry.lock();
            registry.clear_capture(route);
            self.driver.flags.set(flags::CAPTURE, registry.is_capturing());
        }
    }
}
