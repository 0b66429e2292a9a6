//! Private pools: blocks kept apart from all others, and the routes that lead a stream's requests into them.
//!
//! Pool 0 is the default one and always there. A pool is *used* as long as somebody may still allocate from it or replay a graph
//! that was captured into it; after the last release its free segments go back to the device with the rest of the cache, and
//! once nothing of it is left its number is vacant.

use crate::error::Error;
use crate::pool::{PoolId, PoolOptions, Route};
use crate::sync::AtomicU64;
use crate::tables::atomic_map::AtomicMap;
use crate::tables::radix_tree::{Key, Link, RadixTree};
use crate::tables::slot_table::NONE;
use crate::tables::{Storage, Table};
use crate::units::StreamId;

/// What a route is for, as far as whoever begins it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Ordinary requests.
    Requests,
    /// A graph that is captured meanwhile.
    Capture,
    /// One of the two.
    SizeUnknown,
}

/// The part of a pool that is read without a lock.
pub(crate) struct SharedPool<S: Storage> {
    /// Stream → pair of heaps.
    pub streams: AtomicMap<S::Cells>,
    /// How often the free blocks of each kind were searched, while ages are kept: the clock of their ages.
    pub searches: [AtomicU64; 2],
}

impl<S: Storage> Default for SharedPool<S> {
    fn default() -> Self {
        Self { streams: AtomicMap::default(), searches: [AtomicU64::new(0), AtomicU64::new(0)] }
    }
}

/// What is known of a pool under the registry's lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolEntry {
    pub id: PoolId,
    /// Those who may allocate from it or replay what was captured into it; 0 ⟹ its free segments may be released.
    pub users: u32,
    /// Requests that were led into it and are not answered yet: its number and its heaps stay theirs.
    pub requests: u32,
    /// False ⟹ the number is vacant.
    pub exists: bool,
    pub options: PoolOptions,
}

/// A way into a pool. Later routes come before earlier ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RouteEntry {
    pub pool: u32,
    pub route: Route,
    pub purpose: Purpose,
    /// A graph may be being captured. An unsaid purpose counts as a capture until a request shows that it is none.
    pub capture: bool,
}

impl RouteEntry {
    pub(crate) fn new(pool: u32, route: Route, purpose: Purpose) -> Self {
        Self { pool, route, purpose, capture: purpose != Purpose::Requests }
    }
}

/// Where the routes lead a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RouteDecision {
    /// Nowhere: to the default pool.
    Nowhere,
    /// Into the pool of this route.
    By(RouteEntry),
    /// That depends on whether the host's route of this number leads it.
    Ask(u64),
}

/// The heaps of one (stream, pool): slots `2 · pair` (small) and `2 · pair + 1` (large).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub stream: StreamId,
    pub pool: u32,
    /// False ⟺ the pair is vacant: its heaps are empty and may become those of another stream.
    pub exists: bool,
    /// The next vacant pair, of a vacant one; [`NONE`] at the end.
    next_vacant: u32,
    /// How many blocks the two heaps had handed out when idle pairs were last looked for.
    pub allocations_at_sweep: u64,
}

/// Empty and idle pairs are looked for when so many exist, which is more than most programs have streams at work, and then
/// when half as many again as were left exist. A pair is idle at the second look at the earliest. So up to 96 idle pairs stay,
/// or twice as many as are in use, each with some 36 KiB and its segments. Each pair that is made costs three looks.
const FIRST_SWEEP: u32 = 64;

/// Pools, routes and pairs of one device, under one lock that the fast path does not take.
pub(crate) struct Registry<S: Storage> {
    pub pools: S::Table<PoolEntry>,
    /// Root of the set of pools that exist, by name.
    named: Link,
    /// Root of the set of vacant pool numbers. Every pool is in this set or in `named`.
    vacant_pools: Link,
    pool_nodes: RadixTree<S>,
    pub routes: S::Table<RouteEntry>,
    /// How many of `routes` are in force; those behind are leftovers.
    pub routes_len: usize,
    pub pairs: S::Table<Pair>,
    /// Root of the set of pairs that exist, by pool and stream.
    by_stream: Link,
    pair_nodes: RadixTree<S>,
    /// Head of the list of vacant pairs.
    vacant_pair: u32,
    /// How many pairs exist.
    existing: u32,
    /// A further pair is made only after the empty ones were made vacant if so many exist.
    sweep_at: u32,
    /// For the names of pools that the allocator chooses itself.
    pub pools_made: u64,
}

impl<S: Storage> Default for Registry<S> {
    fn default() -> Self {
        let mut registry = Self {
            pools: S::Table::<PoolEntry>::default(),
            named: Link::EMPTY,
            vacant_pools: Link::EMPTY,
            pool_nodes: RadixTree::default(),
            routes: S::Table::<RouteEntry>::default(),
            routes_len: 0,
            pairs: S::Table::<Pair>::default(),
            by_stream: Link::EMPTY,
            pair_nodes: RadixTree::default(),
            vacant_pair: NONE,
            existing: 0,
            sweep_at: FIRST_SWEEP,
            pools_made: 0,
        };
        // The first pool gets number 0. Without room for it there is room for no other.
        let _default = registry.add_pool(PoolId::DEFAULT, PoolOptions::default());
        registry
    }
}

/// The order of pools by name.
fn name_of(pools: &[PoolEntry]) -> impl Fn(u32) -> Key {
    |pool| key_of(pools[pool as usize].id)
}

fn key_of(id: PoolId) -> Key {
    Key { major: id.0, minor: id.1 }
}

/// The order of vacant pool numbers.
fn number_of(pool: u32) -> Key {
    Key { major: 0, minor: u64::from(pool) }
}

/// The order of pairs by pool and stream.
fn stream_of(pairs: &[Pair]) -> impl Fn(u32) -> Key {
    |pair| key_of_stream(pairs[pair as usize].pool, pairs[pair as usize].stream)
}

fn key_of_stream(pool: u32, stream: StreamId) -> Key {
    Key { major: u64::from(pool), minor: stream.0 }
}

impl<S: Storage> Registry<S> {
    /// The number of the pool named `id`.
    pub(crate) fn pool(&self, id: PoolId) -> Option<u32> {
        let found = self.pool_nodes.at_least(self.named, key_of(id), name_of(&self.pools))?;
        (self.pools[found as usize].id == id).then_some(found)
    }

    /// The number of a private pool.
    pub(crate) fn private_pool(&self, id: PoolId) -> Result<u32, Error> {
        self.pool(id).filter(|&pool| pool != 0).ok_or(Error::UnknownPool(id))
    }

    /// Whether a private pool is there that nobody may allocate from or replay a graph of.
    pub(crate) fn is_released(&self, pool: u32) -> bool {
        let entry = &self.pools[pool as usize];
        let routed = || self.routes[..self.routes_len].iter().any(|route| route.pool == pool);
        pool != 0 && entry.exists && entry.users == 0 && !routed()
    }

    /// Whether such a pool has no request left that it is to answer either: its free segments may go, and then its number.
    pub(crate) fn is_unused(&self, pool: u32) -> bool {
        self.is_released(pool) && self.pools[pool as usize].requests == 0
    }

    /// Adds a pool with one user, under the lowest vacant number. `None` if the table is full.
    pub(crate) fn add_pool(&mut self, id: PoolId, options: PoolOptions) -> Option<u32> {
        let entry = PoolEntry { id, users: 1, requests: 0, exists: true, options };
        let vacant = self.pool_nodes.first(self.vacant_pools);
        let pool = if let Some(vacant) = vacant {
            self.vacant_pools = self.pool_nodes.remove(self.vacant_pools, vacant, number_of);
            self.pools[vacant as usize] = entry;
            vacant
        } else {
            // Two sets share the nodes: `n` pools in all need fewer than `n` of them.
            if !self.pools.make_room(1) || !self.pool_nodes.make_room_for(self.pools.len() as u32 + 1) {
                return None;
            }
            self.pools.add(entry);
            self.pools.len() as u32 - 1
        };
        self.named = self.pool_nodes.insert(self.named, pool, name_of(&self.pools));
        Some(pool)
    }

    /// Forgets a private pool without users of which no pair is left.
    pub(crate) fn remove_pool_if_empty(&mut self, pool: u32) {
        if self.is_unused(pool) && self.next_pair(pool, None).is_none() {
            self.remove_pool(pool);
        }
    }

    /// Forgets a pool that has no pair: its number is vacant.
    pub(crate) fn remove_pool(&mut self, pool: u32) {
        self.named = self.pool_nodes.remove(self.named, pool, name_of(&self.pools));
        self.pools[pool as usize].exists = false;
        self.vacant_pools = self.pool_nodes.insert(self.vacant_pools, pool, number_of);
    }

    /// Where a request is led: by the latest route that leads it anywhere. `asked` is the host's route that was asked after last,
    /// and the answer: the routes before it have led the request nowhere. If it has ended meanwhile, all are looked at again.
    pub(crate) fn route(
        &self,
        stream: StreamId,
        thread: impl Fn() -> u64,
        asked: Option<(u64, bool)>,
    ) -> RouteDecision {
        let mut routes = &self.routes[..self.routes_len];
        if let Some((number, leads)) = asked
            && let Some(at) = routes.iter().rposition(|entry| entry.route == Route::Host(number))
        {
            if leads {
                return RouteDecision::By(routes[at]);
            }
            routes = &routes[..at];
        }
        for entry in routes.iter().rev() {
            match entry.route {
                Route::All => return RouteDecision::By(*entry),
                Route::Stream(only) if only == stream => return RouteDecision::By(*entry),
                Route::Thread(only) if only == thread() => return RouteDecision::By(*entry),
                Route::Host(number) => return RouteDecision::Ask(number),
                Route::Stream(_) | Route::Thread(_) => {}
            }
        }
        RouteDecision::Nowhere
    }

    /// Adds a route. False if the table is full.
    pub(crate) fn add_route(&mut self, entry: RouteEntry) -> bool {
        if self.routes_len == self.routes.len() {
            if !self.routes.make_room(1) {
                return false;
            }
            self.routes.add(entry);
        }
        self.routes[self.routes_len] = entry;
        self.routes_len += 1;
        true
    }

    /// Takes the latest route into `pool` of this purpose out. `None` if there is none.
    pub(crate) fn remove_route(&mut self, pool: u32, purpose: Purpose) -> Option<Route> {
        let routes = &mut self.routes[..self.routes_len];
        let at = routes.iter().rposition(|entry| entry.pool == pool && entry.purpose == purpose)?;
        let route = routes[at].route;
        routes[at..].rotate_left(1);
        self.routes_len -= 1;
        Some(route)
    }

    /// Notes that no graph is captured by way of this route.
    pub(crate) fn rule_capture_out(&mut self, entry: RouteEntry) {
        if let Some(found) = self.routes[..self.routes_len].iter_mut().rfind(|found| **found == entry) {
            found.capture = false;
        }
    }

    /// Whether a capture is, or may be, under way on this device.
    pub(crate) fn is_capturing(&self) -> bool {
        self.routes[..self.routes_len].iter().any(|entry| entry.capture)
    }

    /// The pair of `pool` with the lowest stream above `after`.
    pub(crate) fn next_pair(&self, pool: u32, after: Option<StreamId>) -> Option<(StreamId, u32)> {
        let least = after.map_or(0, |after| after.0 + 1);
        let bound = key_of_stream(pool, StreamId(least));
        let found = self.pair_nodes.at_least(self.by_stream, bound, stream_of(&self.pairs))?;
        let pair = &self.pairs[found as usize];
        (pair.pool == pool).then_some((pair.stream, found))
    }

    /// The pair of `stream` in the first pool from number `pool` on that has one, and that pool.
    pub(crate) fn next_pair_of(&self, mut pool: u32, stream: StreamId) -> Option<(u32, u32)> {
        loop {
            let bound = key_of_stream(pool, stream);
            let found = self.pair_nodes.at_least(self.by_stream, bound, stream_of(&self.pairs))?;
            let pair = &self.pairs[found as usize];
            if pair.stream == stream {
                return Some((pair.pool, found));
            }
            // Either a pool further on, or a higher stream of this one.
            pool = pair.pool.max(pool + u32::from(pair.stream > stream));
        }
    }

    /// The pairs of `pool`, by ascending stream.
    pub(crate) fn pairs_of(&self, pool: u32) -> impl Iterator<Item = u32> {
        let next = move |&(stream, _): &(StreamId, u32)| self.next_pair(pool, Some(stream));
        core::iter::successors(self.next_pair(pool, None), next).map(|(_, pair)| pair)
    }

    /// Whether the empty pairs are to be made vacant before a further pair is made.
    pub(crate) fn is_sweep_due(&self) -> bool {
        self.existing >= self.sweep_at
    }

    /// The empty pairs were made vacant. Many pairs are looked at once for every so many that are made.
    pub(crate) fn finish_sweep(&mut self) {
        self.sweep_at = (self.existing + self.existing / 2).max(FIRST_SWEEP);
    }

    /// The number of a further pair, and room for it: a vacant one, if there is any. `None` if the table is full.
    pub(crate) fn room_for_pair(&mut self) -> Option<u32> {
        if self.vacant_pair != NONE {
            return Some(self.vacant_pair);
        }
        let room = self.pairs.make_room(1) && self.pair_nodes.make_room_for(self.pairs.len() as u32 + 1);
        room.then_some(self.pairs.len() as u32)
    }

    /// Adds the pair for which there [is room](Self::room_for_pair).
    pub(crate) fn add_pair(&mut self, stream: StreamId, pool: u32) {
        let entry = Pair { stream, pool, exists: true, next_vacant: NONE, allocations_at_sweep: 0 };
        let pair = if self.vacant_pair == NONE {
            self.pairs.add(entry);
            self.pairs.len() as u32 - 1
        } else {
            let pair = self.vacant_pair;
            self.vacant_pair = self.pairs[pair as usize].next_vacant;
            self.pairs[pair as usize] = entry;
            pair
        };
        self.by_stream = self.pair_nodes.insert(self.by_stream, pair, stream_of(&self.pairs));
        self.existing += 1;
    }

    /// Makes a pair vacant.
    pub(crate) fn remove_pair(&mut self, pair: u32) {
        self.by_stream = self.pair_nodes.remove(self.by_stream, pair, stream_of(&self.pairs));
        let entry = &mut self.pairs[pair as usize];
        entry.exists = false;
        entry.next_vacant = self.vacant_pair;
        self.vacant_pair = pair;
        self.existing -= 1;
    }
}
