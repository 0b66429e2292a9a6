//! A request, rounded and routed to the heap that serves it.

use crate::arena::driver::Driver;
use crate::arena::heaps::Heaps;
use crate::arena::heaps::registry::RouteEntry;
use crate::arena::platform::Platform;
use crate::config::rounding::PoolKind;
use crate::device::{AddressLack, HostLack, Segments};
use crate::heap::split_rules::{PageRules, Source};
use crate::sync::Ordering;
use crate::units::{DevicePtr, StreamId};
use core::cell::Cell;

/// A request on the slow path. Its pair of heaps is in use for as long as this exists, so no other
/// call can give the pair to another stream.
#[derive(Debug)]
pub(crate) struct Request {
    /// The requested size in bytes.
    pub bytes: u64,
    /// The size in bytes of the block that serves the request: `bytes`, rounded by the policy.
    pub size: u64,
    /// The kind of heap for blocks of `size`.
    pub kind: PoolKind,
    pub stream: StreamId,
    /// The number of the pool, or 0 for the default pool.
    pub pool: u32,
    /// The slot of the request's heap.
    pub slot: u32,
    /// The route into the pool, if the pool is private.
    pub route: Option<RouteEntry>,
    /// Whether the stream is capturing a graph or frees are held off, so that nothing may be waited
    /// for or released.
    pub capturing: bool,
    /// Whether frees are held off.
    pub held: bool,
    /// The call site of the request, or 0 if none is recorded.
    pub site: u32,
    /// The calls to virtual memory made for the request so far.
    pub mapping: RequestCalls,
}

/// The time that a request has spent in calls to virtual memory, and what it lacked.
#[derive(Default, Debug)]
pub(crate) struct RequestCalls {
    /// The time of the calls, in ticks of the device's clock.
    pub(in crate::arena) ticks: Cell<u64>,
    /// Why the request had no addresses when it last looked for them.
    pub(in crate::arena) lack: Cell<AddressLack>,
    /// Why the request got no more pages of the host when it last asked for them.
    pub(in crate::arena) host_lack: Cell<HostLack>,
}

impl RequestCalls {
    /// Returns why the request had no addresses when it last looked for them.
    pub(in crate::arena) fn lack(&self) -> AddressLack {
        self.lack.get()
    }
}

/// The first effect that a request would have if it were made now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forecast {
    /// The block at this address would be handed out, from the cache or a plan. The address is null
    /// for a request of zero bytes.
    Hit(DevicePtr),
    /// A segment of this number of bytes would be allocated from the device.
    Obtain(u64),
    /// An expandable segment would be extended by mapping more memory.
    Expand,
    /// The segment at this address would be released. If it is expandable, the mapped range at the
    /// address would be.
    Release(DevicePtr),
    /// The request would fail because there is no memory.
    OutOfMemory,
}

impl<P: Platform> Heaps<P> {
    /// Asks the host whether it supplies the segments of `pool`, which is in use. No lock is held.
    pub(super) fn learn_supply(&self, driver: &Driver<P::Device>, pool: u32) {
        if pool != 0 {
            let name = self.shared_pool(pool).id();
            self.set_supplied(pool, driver.device().supplies(name));
        }
    }

    /// Returns where the new memory of the request's heap comes from.
    pub(super) fn source(&self, request: &Request) -> Source {
        self.lock(request.slot).rules.source
    }

    /// Returns whether new memory for a request comes from pages that move.
    pub(in crate::arena) fn moves_pages(&self, request: &Request) -> bool {
        let rules = self.lock(request.slot).rules;
        rules.source.maps_pages() && rules.pages == PageRules::Move
    }

    /// Counts a search through the free blocks of the request's pool. This count is the clock for
    /// the ages of blocks.
    pub(super) fn count_search(&self, request: &Request) {
        let pool = self.shared_pool(request.pool);
        pool.searches[request.kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Calls `look` with the request moved to each private pool with the option `use_on_oom`, until
    /// `look` returns a value. Returns `None` for a request of a private pool. A pool counts as
    /// serving a request while `look` runs, so no other thread removes it.
    pub(in crate::arena) fn in_oom_pools<T>(
        &self,
        request: &Request,
        look: impl Fn(&Request) -> Option<T>,
    ) -> Option<T> {
        if request.pool != 0 {
            return None;
        }
        let mut pool = 0;
        loop {
            {
                let mut registry = self.registry.lock();
                let may_serve = |&pool: &u32| {
                    let entry = &registry.pools[pool as usize];
                    // A captured graph writes to its pool at every replay, and a tag with limits
                    // keeps its memory separate.
                    let lends = entry.exists && entry.options.use_on_oom && !entry.captured;
                    lends && registry.limited_pool(pool).is_none()
                };
                pool = (pool + 1..registry.pools.len() as u32).find(may_serve)?;
                // Undone by `leave_pool`.
                registry.pools[pool as usize].requests += 1;
            }
            // Only the stream's own heap of the pool may serve. Without a pair there is no free
            // block.
            let pair = self.find_pair(pool, request.stream);
            let found = pair.and_then(|pair| {
                // Asked only once the pair is in use, as for a request of the pool. Free blocks of
                // parked or lent memory may have no pages.
                if self.lock(pair.slot(request.kind)).asleep {
                    return None;
                }
                look(&Request { pool, slot: pair.slot(request.kind), mapping: RequestCalls::default(), ..*request })
            });
            self.leave_pool(pool);
            if found.is_some() {
                return found;
            }
        }
    }
}
