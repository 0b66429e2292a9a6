//! Routes of requests into private pools, and what they show about graph captures.
//!
//! The registry's lock covers each change of the routes, together with the flags that summarize
//! them. The host is asked about a route with no lock held.

use crate::arena::driver::Driver;
use crate::arena::flags::{self, Flags};
use crate::arena::heaps::Heaps;
use crate::arena::heaps::registry::{Registry, RouteDecision, RouteEntry};
use crate::arena::platform::Platform;
use crate::arena::request::Request;
use crate::device::Host;
use crate::error::Error;
use crate::pool::{PoolId, Route, RoutePurpose};
use crate::tables::Storage;
use crate::units::StreamId;

impl<P: Platform> Heaps<P> {
    /// Routes the requests that match `route` into the pool named `id`, and adds a user to the
    /// pool.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPool`], [`Error::TableFull`].
    pub(crate) fn begin_route(
        &self,
        driver: &Driver<P::Device>,
        id: PoolId,
        route: Route,
        purpose: RoutePurpose,
    ) -> Result<(), Error> {
        let mut registry = self.registry.lock();
        let pool = registry.private_pool(id)?;
        // Read before the change, because the new route itself is a use of the pool.
        let was_released = registry.is_released(pool);
        if !registry.add_route(RouteEntry::new(pool, route, purpose)) {
            return Err(Error::TableFull("routes"));
        }
        registry.pools[pool as usize].users += 1;
        if was_released {
            registry.pools[pool as usize].captured = false;
            self.apply_use(&registry, pool);
        }
        // Before the first request, because the graph may also use what was allocated in the pool
        // until now.
        if purpose == RoutePurpose::Capture {
            self.set_captured(&mut registry, pool);
        }
        sum_routes_up(&driver.flags, &registry);
        drop(registry);
        // Calls that looked at the flags before the change may still record events, which a capture
        // forbids. Wait for these calls to end.
        if purpose != RoutePurpose::Requests {
            driver.wait_for_recordings();
        }
        Ok(())
    }

    /// Ends the latest route of `purpose` into the pool named `id`, and returns it. If `only` is
    /// given, the route must also select what `only` selects. The route's user remains until
    /// [`end_use`](Self::end_use).
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPool`], [`Error::NotRouted`].
    pub(crate) fn end_route(
        &self,
        driver: &Driver<P::Device>,
        id: PoolId,
        purpose: RoutePurpose,
        only: Option<Route>,
    ) -> Result<Route, Error> {
        let mut registry = self.registry.lock();
        let pool = registry.private_pool(id)?;
        let route = registry.remove_route(pool, purpose, only).ok_or(Error::NotRouted(id))?;
        sum_routes_up(&driver.flags, &registry);
        self.finish_use(&mut registry, pool);
        Ok(route)
    }

    /// Removes a user of the pool named `id`, and ends the captures into a pool without users.
    ///
    /// # Errors
    /// [`Error::UnknownPool`], which is also returned if the pool has no user.
    pub(crate) fn end_use(&self, driver: &Driver<P::Device>, id: PoolId) -> Result<(), Error> {
        self.release_pool(id)?;
        sum_routes_up(&driver.flags, &self.registry.lock());
        Ok(())
    }

    /// Holds frees off, until as many calls of [`end_hold`](Self::end_hold).
    pub(crate) fn begin_hold(&self, driver: &Driver<P::Device>) {
        let mut registry = self.registry.lock();
        registry.holds = registry.holds.saturating_add(1);
        sum_routes_up(&driver.flags, &registry);
        drop(registry);
        driver.wait_for_recordings();
    }

    /// Ends a hold. Returns false if there is none.
    pub(crate) fn end_hold(&self, driver: &Driver<P::Device>) -> bool {
        let mut registry = self.registry.lock();
        let less = registry.holds.checked_sub(1);
        registry.holds = less.unwrap_or_default();
        sum_routes_up(&driver.flags, &registry);
        less.is_some()
    }

    /// Ends the captures on a stream that has ended.
    pub(crate) fn end_captures_on(&self, driver: &Driver<P::Device>, stream: StreamId) {
        if driver.flags.has(flags::ROUTES) {
            let mut registry = self.registry.lock();
            registry.end_captures_on(stream);
            sum_routes_up(&driver.flags, &registry);
        }
    }

    /// Returns whether a route leads a request on `stream` into a private pool.
    pub(in crate::arena) fn is_routed(&self, driver: &Driver<P::Device>, stream: StreamId) -> bool {
        let route = if driver.flags.has(flags::ROUTES) { self.enter_pool(driver, stream) } else { None };
        route.inspect(|route| self.leave_pool(route.pool)).is_some()
    }

    /// Returns the route that takes a request on `stream`, and counts the request in the route's
    /// pool. The pool is not removed before [`leave_pool`](Self::leave_pool).
    pub(crate) fn enter_pool(&self, driver: &Driver<P::Device>, stream: StreamId) -> Option<RouteEntry> {
        let mut asked = None;
        loop {
            let mut registry = self.registry.lock();
            match registry.route(stream, || driver.device().thread_id(), asked) {
                RouteDecision::DefaultPool => return None,
                RouteDecision::Into(entry) => {
                    registry.pools[entry.pool as usize].requests += 1;
                    return Some(entry);
                }
                RouteDecision::AskHost(number) => {
                    // Unlocked, because the host may wait for another thread's request while it
                    // decides.
                    drop(registry);
                    asked = Some((number, driver.device().leads(number, stream)));
                }
            }
        }
    }

    /// Clears the capture mark of an undeclared route if its request is on a stream that does not
    /// capture, because this shows that the route is not for a capture. Notes that the pool of a
    /// captured request has memory of a graph.
    pub(crate) fn learn_purpose(&self, driver: &Driver<P::Device>, request: &Request) {
        if request.held {
            return;
        }
        if request.capturing && request.pool != 0 {
            self.set_captured(&mut self.registry.lock(), request.pool);
        }
        if let Some(route) = request.route
            && !request.capturing
            && route.capture
            && route.purpose == RoutePurpose::Undeclared
        {
            let mut registry = self.registry.lock();
            registry.clear_capture(route);
            sum_routes_up(&driver.flags, &registry);
        }
    }
}

/// Sets the flags that summarize the routes. The registry is locked, so the flags agree with the
/// routes after concurrent starts and ends.
fn sum_routes_up<S: Storage>(flags: &Flags, registry: &Registry<S>) {
    flags.set(flags::ROUTES, registry.routes_len > 0);
    flags.set(flags::HELD, registry.holds > 0);
    flags.set(flags::CAPTURE, registry.holds > 0 || registry.is_capturing());
}
