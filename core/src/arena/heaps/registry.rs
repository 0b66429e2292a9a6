//! The registry of one device: private pools, the routes of requests into pools, and the pairs of
//! heaps.
//!
//! A private pool keeps its blocks separate from all other blocks. Pool 0 is the default pool and
//! always exists. A pool is *in use* as long as a user may allocate from it or replay a graph that
//! was captured into it. After the last user has released the pool, its free segments are released
//! with the rest of the cache. A pool without users and segments is removed, and its number becomes
//! vacant.

use crate::arena::heaps::limited::LimitedTags;
use crate::config::Policy;
use crate::config::rounding::PoolKind;
use crate::error::Error;
use crate::heap::Keeps;
use crate::heap::split_rules::{PoolMemory, Rules};
use crate::pool::{PoolId, PoolOptions, Route, RoutePurpose, Tag, TagLimits};
use crate::sync::{AtomicU32, AtomicU64, Ordering, impl_empty};
use crate::tables::atomic_map::AtomicMap;
use crate::tables::radix_tree::{Key, Link, RadixTree};
use crate::tables::slot_table::NONE;
use crate::tables::{CapacityError, Storage, Table};
use crate::units::{NO_STREAM, StreamId};

/// The part of a pool that calls read without the registry's lock.
pub(crate) struct SharedPool<S: Storage> {
    /// The map from a stream to the number of its pair. Written under the registry's lock.
    pub streams: AtomicMap<S::Cells>,
    /// The number of searches through the free blocks, plus the number of epochs, by kind of heap.
    /// Free blocks are stamped with this clock. Searches count only while both a limit and a
    /// collection threshold are set.
    pub searches: [AtomicU64; 2],
    /// Both halves of the pool's name, for readers that hold a heap's lock and therefore must not
    /// lock the registry. Written under the registry's lock, while the pool has no heap.
    id: [AtomicU64; 2],
    /// Not 0 ⟺ the host supplies the segments of the pool. Written under the registry's lock.
    supplied: AtomicU32,
}

impl_empty! { [S: Storage] SharedPool<S> { streams, searches, id, supplied } }

impl<S: Storage> SharedPool<S> {
    /// Sets the name of a pool that has no heap yet. The device allocates the segments of the pool
    /// until the host is asked.
    pub(crate) fn set_id(&self, PoolId(first, second): PoolId) {
        self.id[0].store(first, Ordering::Relaxed);
        self.id[1].store(second, Ordering::Relaxed);
        self.supplied.store(0, Ordering::Relaxed);
    }

    /// Takes over the name, clocks and supply of another pool, but no stream.
    pub(super) fn take_over(&self, other: &Self) {
        for at in 0..2 {
            self.id[at].store(other.id[at].load(Ordering::Relaxed), Ordering::Relaxed);
            self.searches[at].store(other.searches[at].load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.supplied.store(other.supplied.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Returns whether the host supplies the segments of the pool, according to its latest answer.
    pub(crate) fn is_supplied(&self) -> bool {
        self.supplied.load(Ordering::Relaxed) != 0
    }

    /// Sets whether the host supplies the segments of the pool. The parameter `_registry` shows
    /// that the registry is locked.
    pub(crate) fn set_supplied(&self, _registry: &Registry<S>, supplied: bool) {
        self.supplied.store(u32::from(supplied), Ordering::Relaxed);
    }

    /// Returns the name of the pool. The caller holds the lock of a heap in the pool, which keeps
    /// the name from changing.
    pub(crate) fn id(&self) -> PoolId {
        PoolId(self.id[0].load(Ordering::Relaxed), self.id[1].load(Ordering::Relaxed))
    }
}

/// The part of a pool that is protected by the registry's lock.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "five conditions that do not depend on each other")]
pub(crate) struct PoolEntry {
    /// The name of the pool.
    pub id: PoolId,
    /// The number of users, each of which may allocate or replay a captured graph. 0, no route and
    /// no request ⟹ the pool's free segments may be released.
    pub users: u32,
    /// The number of requests in progress. Not 0 ⟹ the pool keeps its number and its heaps.
    pub requests: u32,
    /// False ⟺ the number of the entry is vacant.
    pub exists: bool,
    /// The active options of every heap in the pool.
    pub options: PoolOptions,
    /// The tag under which the pool's memory is parked, or `None` once the pool is removed. Set by
    /// [`Registry::set_tag`].
    pub tag: Option<Tag>,
    /// Whether the pool is parked, or lends its pages. New pairs of such a pool are asleep, too.
    pub asleep: bool,
    /// Whether the pool lends its pages. Set ⟹ `asleep`.
    pub lent: bool,
    /// The work of graphs in the free memory of the pool.
    pub replays: Replays,
    /// Whether the default pool serves requests for this pool while it is parked.
    pub falls_back: bool,
    /// Whether new pages of the pool are memory of the host, as far as `spill` allows.
    pub spills: bool,
    /// Whether a captured graph has memory of the pool. It writes to this memory at every replay,
    /// so free memory stays. Set when a capture is announced, or when it serves its first request.
    pub captured: bool,
}

/// The streams on which captured graphs use the free memory of a pool, since the pool last lent it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Replays {
    /// The stream that the program announced last, or [`NO_STREAM`].
    pub last: StreamId,
    /// Whether the work of no other stream can still use the memory once that of `last` is
    /// complete.
    pub is_all: bool,
}

impl Replays {
    /// None since the pool lent its memory.
    pub(crate) const NONE: Self = Self { last: NO_STREAM, is_all: true };

    /// None that the program has announced.
    const UNKNOWN: Self = Self { last: NO_STREAM, is_all: false };
}

/// A route of requests into a pool. Later routes take precedence over earlier ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RouteEntry {
    /// The number of the pool.
    pub pool: u32,
    /// The condition under which the route takes a request.
    pub route: Route,
    /// The purpose that was declared at the start of the route.
    pub purpose: RoutePurpose,
    /// True ⟺ a graph capture may be in progress. A route of undeclared purpose counts as a capture
    /// until a routed request on a stream that does not capture proves otherwise.
    pub capture: bool,
}

impl RouteEntry {
    /// Returns a route of `purpose` into `pool`.
    pub(crate) fn new(pool: u32, route: Route, purpose: RoutePurpose) -> Self {
        Self { pool, route, purpose, capture: purpose != RoutePurpose::Requests }
    }
}

/// The decision of the routes about one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RouteDecision {
    /// No route takes the request, so the default pool serves it.
    DefaultPool,
    /// The route takes the request into its pool.
    Into(RouteEntry),
    /// The host must say whether its route with this number takes the request.
    AskHost(u64),
}

/// The assignment of a pair of heaps to a stream and a pool. The heaps of pair `p` are in the slots
/// `2 · p` (small) and `2 · p + 1` (large).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    /// The stream that the pair serves.
    pub stream: StreamId,
    /// The number of the pool that the pair belongs to.
    pub pool: u32,
    /// False ⟺ the pair is vacant. Vacant ⟹ both heaps are empty and may be assigned to a stream.
    pub exists: bool,
    /// The next vacant pair, or [`NONE`] at the end of the list. Valid only if the pair is vacant.
    next_vacant: u32,
    /// The number of allocations from both heaps at the last sweep for idle pairs.
    pub allocations_at_sweep: u64,
}

/// The number of pairs at which the first sweep for empty and idle pairs runs. Most programs have
/// fewer active streams.
///
/// The next sweep runs when the number of remaining pairs has grown by one half. A sweep finds a
/// pair idle at the second visit at the earliest. So at most 96 idle pairs remain, or twice the
/// number of pairs in use, each with about 36 KiB of tables and its segments. Sweeps visit three
/// pairs for each pair that is made.
const FIRST_SWEEP: u32 = 64;

/// The pools, routes and pairs of one device, under one lock. The fast path does not take this
/// lock.
#[derive(Clone)]
pub(crate) struct Registry<S: Storage> {
    /// The pools by number, including the entries of vacant numbers.
    pub pools: S::Table<PoolEntry>,
    /// The root of the set of existing pools, ordered by name.
    named: Link,
    /// The root of the set of vacant pool numbers. Every number is in `vacant_pools` or in `named`.
    vacant_pools: Link,
    /// The root of the set of existing pools with a tag, ordered by tag and then by number.
    tagged: Link,
    /// The number of pools in `tagged`.
    tagged_count: u32,
    /// The tags with limits.
    pub limited: LimitedTags<S>,
    /// The nodes of the sets `named`, `vacant_pools` and `tagged`.
    pool_nodes: RadixTree<S>,
    /// The routes by age, oldest first. Entries from `routes_len` on are not active.
    pub routes: S::Table<RouteEntry>,
    /// The number of active routes.
    pub routes_len: usize,
    /// How often the program holds frees off now.
    pub holds: u32,
    /// The pairs by number, including vacant pairs.
    pub pairs: S::Table<Pair>,
    /// The root of the set of existing pairs, ordered by pool and stream.
    by_stream: Link,
    /// The nodes of the set `by_stream`.
    pair_nodes: RadixTree<S>,
    /// The head of the list of vacant pairs, or [`NONE`].
    vacant_pair: u32,
    /// The number of existing pairs.
    pair_count: u32,
    /// The number of existing pairs at which a sweep is due before another pair is made.
    sweep_at: u32,
    /// The highest number in a pool name `(0, number)` so far. The allocator chooses higher
    /// numbers.
    pub pools_made: u64,
    /// The rules of heaps for pools with the default options, by the use of the pool's memory and
    /// by kind.
    pub rules: [[Rules; 2]; PoolMemory::COUNT],
    /// The policy, which decides on the sub-allocator of a new heap. It never changes after the
    /// start.
    pub policy: Policy,
}

impl_empty! {
    [S: Storage] Registry<S> {
        pools,
        named,
        vacant_pools,
        tagged,
        tagged_count,
        limited,
        pool_nodes,
        routes,
        routes_len,
        holds,
        pairs,
        by_stream,
        pair_nodes,
        vacant_pair: NONE,
        pair_count,
        sweep_at: FIRST_SWEEP,
        pools_made,
        rules: [[Rules::unset(PoolKind::Small), Rules::unset(PoolKind::Large)]; PoolMemory::COUNT],
        policy: Policy::Caching,
    }
}

/// Returns the key function that orders pools by name.
fn name_of(pools: &[PoolEntry]) -> impl Fn(u32) -> Key {
    |pool| key_of(pools[pool as usize].id)
}

/// Returns the key of a pool name.
fn key_of(id: PoolId) -> Key {
    Key { major: id.0, minor: id.1 }
}

/// Returns the key function that orders pools by tag, and then by number.
fn tag_of(pools: &[PoolEntry]) -> impl Fn(u32) -> Key {
    |pool| key_of_tag(pools[pool as usize].tag, pool)
}

/// Returns the key of a pool with a tag.
fn key_of_tag(tag: Option<Tag>, pool: u32) -> Key {
    Key { major: tag.map_or(0, |tag| tag.0.get()), minor: u64::from(pool) }
}

/// Returns the key of a vacant pool number.
fn number_of(pool: u32) -> Key {
    Key { major: 0, minor: u64::from(pool) }
}

/// Returns the key function that orders pairs by pool, and then by stream.
fn stream_of(pairs: &[Pair]) -> impl Fn(u32) -> Key {
    |pair| key_of_stream(pairs[pair as usize].pool, pairs[pair as usize].stream)
}

/// Returns the key of a (pool, stream) pair.
fn key_of_stream(pool: u32, stream: StreamId) -> Key {
    Key { major: u64::from(pool), minor: stream.0 }
}

impl<S: Storage> Registry<S> {
    /// Returns the number of the pool named `id`.
    pub(crate) fn pool(&self, id: PoolId) -> Option<u32> {
        // The tree finds the first name that is not below `id`, which may be another name.
        let found = self.pool_nodes.at_least(self.named, key_of(id), name_of(&self.pools))?;
        (self.pools[found as usize].id == id).then_some(found)
    }

    /// Returns the number of the private pool named `id`.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPool`], which is also returned for the default pool.
    pub(crate) fn private_pool(&self, id: PoolId) -> Result<u32, Error> {
        self.pool(id).filter(|&pool| pool != 0).ok_or(Error::UnknownPool(id))
    }

    /// Returns the rules of the heap of `kind` in `pool`. `supplied` is true if the host supplies
    /// its segments.
    pub(crate) fn rules_of(&self, pool: u32, kind: PoolKind, supplied: bool) -> Rules {
        let entry = &self.pools[pool as usize];
        let memory = match (supplied, entry.tag.is_some() || entry.spills) {
            (true, _) => PoolMemory::Supplied,
            (false, true) => PoolMemory::Paged,
            (false, false) => PoolMemory::Plain,
        };
        self.rules[memory as usize][kind as usize].in_pool(entry.options)
    }

    /// Sets whether the default pool serves requests for parked pools with `tag`. Returns false if
    /// no pool has the tag.
    pub(crate) fn set_elsewhere(&mut self, tag: Tag, on: bool) -> bool {
        let mut from = 0;
        while let Some(pool) = self.next_tagged(from, tag) {
            self.pools[pool as usize].falls_back = on;
            from = pool + 1;
        }
        from > 0
    }

    /// Returns the number of the first pool with `tag`, from number `from` on.
    pub(crate) fn next_tagged(&self, from: u32, tag: Tag) -> Option<u32> {
        let found = self.pool_nodes.at_least(self.tagged, key_of_tag(Some(tag), from), tag_of(&self.pools))?;
        (self.pools[found as usize].tag == Some(tag)).then_some(found)
    }

    /// Iterates over the numbers of the pools with `tag`.
    pub(crate) fn pools_with(&self, tag: Tag) -> impl Iterator<Item = u32> {
        core::iter::successors(self.next_tagged(0, tag), move |&pool| self.next_tagged(pool + 1, tag))
    }

    /// Returns the lowest tag above `after` that any pool has, or the lowest of all if `after` is
    /// `None`.
    pub(crate) fn next_tag(&self, after: Option<Tag>) -> Option<Tag> {
        let least =
            Key { major: after.map_or(0, |tag| tag.0.get()), minor: if after.is_some() { u64::MAX } else { 0 } };
        let found = self.pool_nodes.at_least(self.tagged, least, tag_of(&self.pools))?;
        self.pools[found as usize].tag
    }

    /// Returns the place of a tag's entry in `limited`, if the tag has limits.
    pub(crate) fn limited_tag(&self, tag: Tag) -> Option<usize> {
        self.limited.with_limits(tag)
    }

    /// Returns the place of the entry for the tag of `pool`, if the tag has limits.
    pub(crate) fn limited_pool(&self, pool: u32) -> Option<usize> {
        self.limited_tag(self.pools[pool as usize].tag?)
    }

    /// Returns whether pages that leave `pool` are filled with zeroes.
    pub(crate) fn clears(&self, pool: u32) -> bool {
        self.limited_pool(pool).is_some_and(|at| self.limited[at].limits.is_some_and(|limits| limits.clear))
    }

    /// Sets or removes the limits of a tag.
    ///
    /// # Errors
    /// [`CapacityError`] if the table of limited tags is full.
    pub(crate) fn set_limits(&mut self, tag: Tag, limits: Option<TagLimits>) -> Result<(), CapacityError> {
        self.limited.set(tag, limits)
    }

    /// Checks that the set of tags contains exactly the existing pools with a tag.
    ///
    /// # Errors
    /// A description of the invariant, if it does not hold.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let is_listed =
            |pool: u32, entry: &PoolEntry| entry.tag.is_some_and(|tag| self.next_tagged(pool, tag) == Some(pool));
        let agrees = |(pool, entry): (u32, &PoolEntry)| is_listed(pool, entry) == (entry.exists && entry.tag.is_some());
        if (0..).zip(self.pools.iter()).all(agrees) { Ok(()) } else { Err("the set of tags is not that of the pools") }
    }

    /// Sets or removes the tag of `pool`.
    ///
    /// # Errors
    /// [`CapacityError`] if the table of tags is full. Nothing has changed then.
    pub(crate) fn set_tag(&mut self, pool: u32, tag: Option<Tag>) -> Result<(), CapacityError> {
        if tag.is_some() && !self.make_room_for(self.pools.len() as u32, self.tagged_count + 1) {
            return Err(CapacityError);
        }
        if self.pools[pool as usize].tag.is_some() {
            self.tagged = self.pool_nodes.remove(self.tagged, pool, tag_of(&self.pools));
            self.tagged_count -= 1;
        }
        self.pools[pool as usize].tag = tag;
        if tag.is_some() {
            self.tagged = self.pool_nodes.insert(self.tagged, pool, tag_of(&self.pools));
            self.tagged_count += 1;
        }
        Ok(())
    }

    /// Returns whether `pool` is a private pool without users and routes.
    pub(crate) fn is_released(&self, pool: u32) -> bool {
        let entry = &self.pools[pool as usize];
        // Walked last, which is rare, because few routes are active and most pools have users.
        let routed = || self.routes[..self.routes_len].iter().any(|route| route.pool == pool);
        pool != 0 && entry.exists && entry.users == 0 && !routed()
    }

    /// Returns whether `pool` is a private pool without users, routes and requests in progress. The
    /// free segments of an unused pool may be released, and an empty unused pool may be removed.
    pub(crate) fn is_unused(&self, pool: u32) -> bool {
        self.is_released(pool) && self.pools[pool as usize].requests == 0
    }

    /// Returns for whom the heaps of `pool` keep free memory.
    pub(crate) fn keeps(&self, pool: u32) -> Keeps {
        if pool == 0 || self.is_unused(pool) {
            Keeps::Nothing
        } else if self.pools[pool as usize].captured {
            Keeps::ForGraphs
        } else if self.limited_pool(pool).is_some() {
            Keeps::Nothing
        } else {
            Keeps::ForUsers
        }
    }

    /// Returns whether `pool` is a private pool with users, routes or requests in progress.
    pub(crate) fn is_in_use(&self, pool: u32) -> bool {
        pool != 0 && self.pools[pool as usize].exists && !self.is_unused(pool)
    }

    /// Makes room for the nodes of `pools` pools, of which `tagged` have a tag. Returns false if
    /// there is none.
    ///
    /// Each pool is in exactly one of the sets `named` and `vacant_pools`, and a set of `n` keys
    /// needs fewer than `n` nodes, so `n` nodes are enough for both sets.
    fn make_room_for(&mut self, pools: u32, tagged: u32) -> bool {
        self.pool_nodes.make_room_for(pools.saturating_add(tagged))
    }

    /// Adds the default pool, under number 0. A table without room for it has no room for any other
    /// pool either.
    pub(super) fn start(&mut self, policy: Policy) {
        self.policy = policy;
        let _default = self.add_pool(PoolId::DEFAULT, PoolOptions::default());
    }

    /// Adds a pool with one user, and returns its number: the lowest vacant number, or a new one.
    /// Returns `None` if the table is full.
    pub(crate) fn add_pool(&mut self, id: PoolId, options: PoolOptions) -> Option<u32> {
        let entry = PoolEntry {
            id,
            users: 1,
            requests: 0,
            exists: true,
            options,
            tag: None,
            asleep: false,
            lent: false,
            replays: Replays::UNKNOWN,
            falls_back: false,
            spills: false,
            captured: false,
        };
        // Takes the lowest vacant number, so that walks over all numbers stay short.
        let vacant = self.pool_nodes.first(self.vacant_pools);
        let pool = if let Some(vacant) = vacant {
            self.vacant_pools = self.pool_nodes.remove(self.vacant_pools, vacant, number_of);
            self.pools[vacant as usize] = entry;
            vacant
        } else {
            if !self.pools.make_room(1) || !self.make_room_for(self.pools.len() as u32 + 1, self.tagged_count) {
                return None;
            }
            self.pools.add(entry);
            self.pools.len() as u32 - 1
        };
        self.named = self.pool_nodes.insert(self.named, pool, name_of(&self.pools));
        Some(pool)
    }

    /// Removes `pool` if it is unused and has no pair.
    pub(crate) fn remove_pool_if_empty(&mut self, pool: u32) {
        if self.is_unused(pool) && self.next_pair(pool, None).is_none() {
            self.remove_pool(pool);
        }
    }

    /// Removes a pool without pairs, and makes its number vacant.
    pub(crate) fn remove_pool(&mut self, pool: u32) {
        let _never_full = self.set_tag(pool, None);
        self.named = self.pool_nodes.remove(self.named, pool, name_of(&self.pools));
        self.pools[pool as usize].exists = false;
        self.vacant_pools = self.pool_nodes.insert(self.vacant_pools, pool, number_of);
    }

    /// Finds the latest route that takes a request on `stream`.
    ///
    /// `asked` is the number of the host's route that the host was last asked about, and its
    /// answer. Routes later than this one have already been ruled out. If it has ended in the
    /// meantime, the search starts again with the latest route.
    pub(crate) fn route(
        &self,
        stream: StreamId,
        thread: impl Fn() -> u64,
        asked: Option<(u64, bool)>,
    ) -> RouteDecision {
        let mut routes = &self.routes[..self.routes_len];
        // The registry was unlocked while the host answered, so find the asked route by its number,
        // which no other active route has.
        if let Some((number, accepted)) = asked
            && let Some(at) = routes.iter().rposition(|entry| entry.route == Route::Host(number))
        {
            if accepted {
                return RouteDecision::Into(routes[at]);
            }
            routes = &routes[..at];
        }
        for entry in routes.iter().rev() {
            match entry.route {
                Route::All => return RouteDecision::Into(*entry),
                Route::Stream(only) if only == stream => return RouteDecision::Into(*entry),
                // The thread's number costs a call to the host, so it is requested only if a route
                // needs it.
                Route::Thread(only) if only == thread() => return RouteDecision::Into(*entry),
                Route::Host(number) => return RouteDecision::AskHost(number),
                Route::Stream(_) | Route::Thread(_) => {}
            }
        }
        RouteDecision::DefaultPool
    }

    /// Adds a route as the latest. Returns false if the table is full.
    pub(crate) fn add_route(&mut self, entry: RouteEntry) -> bool {
        // Tables never shrink, so the entry of an ended route is used again before the table grows.
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

    /// Removes the latest route of `purpose` into `pool`. If `only` is given, the route must also
    /// select what `only` selects. Returns `None` if no route matches.
    pub(crate) fn remove_route(&mut self, pool: u32, purpose: RoutePurpose, only: Option<Route>) -> Option<Route> {
        let routes = &mut self.routes[..self.routes_len];
        let latest = |only: Option<Route>| {
            let is_meant = |route| only.is_none_or(|only| route == only);
            routes.iter().rposition(|entry| entry.pool == pool && entry.purpose == purpose && is_meant(entry.route))
        };
        // The end of a stream has changed the routes of its captures, so that they select nothing.
        let at = latest(only).or_else(|| latest(Some(Route::Stream(NO_STREAM))))?;
        let route = routes[at].route;
        // Moves the entry after the last active route, and keeps the order of the others.
        routes[at..].rotate_left(1);
        self.routes_len -= 1;
        Some(route)
    }

    /// Ends the captures on a stream that has ended. Their routes no longer lead any request, but
    /// stay for the calls that end them.
    pub(crate) fn end_captures_on(&mut self, stream: StreamId) {
        for entry in &mut self.routes[..self.routes_len] {
            if entry.purpose != RoutePurpose::Requests && entry.route == Route::Stream(stream) {
                // The number of the stream may later name another stream.
                (entry.route, entry.capture) = (Route::Stream(NO_STREAM), false);
            }
        }
    }

    /// Records that no graph is captured through the route `entry`.
    pub(crate) fn clear_capture(&mut self, entry: RouteEntry) {
        if let Some(found) = self.routes[..self.routes_len].iter_mut().rfind(|found| **found == entry) {
            found.capture = false;
        }
    }

    /// Returns whether a graph capture is in progress on the device, or may be.
    pub(crate) fn is_capturing(&self) -> bool {
        self.routes[..self.routes_len].iter().any(|entry| entry.capture)
    }

    /// Returns the pair of `pool` with the lowest stream above `after`, as stream and pair number.
    /// Starts with the lowest stream if `after` is `None`.
    pub(crate) fn next_pair(&self, pool: u32, after: Option<StreamId>) -> Option<(StreamId, u32)> {
        // No overflow, because `NO_STREAM`, the highest number, has no pair.
        let least = after.map_or(0, |after| after.0 + 1);
        let bound = key_of_stream(pool, StreamId(least));
        let found = self.pair_nodes.at_least(self.by_stream, bound, stream_of(&self.pairs))?;
        let pair = &self.pairs[found as usize];
        (pair.pool == pool).then_some((pair.stream, found))
    }

    /// Returns the first pool that has a pair of `stream`, from number `pool` on, and the pair's
    /// number.
    pub(crate) fn next_pair_of(&self, mut pool: u32, stream: StreamId) -> Option<(u32, u32)> {
        loop {
            let bound = key_of_stream(pool, stream);
            let found = self.pair_nodes.at_least(self.by_stream, bound, stream_of(&self.pairs))?;
            let pair = &self.pairs[found as usize];
            if pair.stream == stream {
                return Some((pair.pool, found));
            }
            // The pair found belongs to a later pool, or to a higher stream of the same pool. Go on
            // with this later pool in the first case, and with the next pool number in the second.
            pool = pair.pool.max(pool + u32::from(pair.stream > stream));
        }
    }

    /// Returns the streams with heaps, each at least once.
    #[cfg(feature = "alloc")]
    pub(crate) fn streams(&self) -> alloc::vec::Vec<StreamId> {
        self.pairs.iter().filter(|pair| pair.exists).map(|pair| pair.stream).collect()
    }

    /// Returns the number of the first pair that exists, from number `from` on.
    pub(crate) fn existing_pair(&self, from: u32) -> Option<u32> {
        let pairs = self.pairs.get(from as usize..)?;
        Some(from + pairs.iter().position(|pair| pair.exists)? as u32)
    }

    /// Iterates over the numbers of the pairs of `pool`, by ascending stream.
    pub(crate) fn pairs_of(&self, pool: u32) -> impl Iterator<Item = u32> {
        let next = move |&(stream, _): &(StreamId, u32)| self.next_pair(pool, Some(stream));
        core::iter::successors(self.next_pair(pool, None), next).map(|(_, pair)| pair)
    }

    /// Returns whether a sweep for empty pairs is due before another pair is made.
    pub(crate) fn is_sweep_due(&self) -> bool {
        self.pair_count >= self.sweep_at
    }

    /// Sets the threshold of the next sweep, after a sweep has made the empty pairs vacant. The
    /// threshold grows with the number of pairs, so the cost of sweeps is constant for each pair
    /// made.
    pub(crate) fn finish_sweep(&mut self) {
        self.sweep_at = (self.pair_count + self.pair_count / 2).max(FIRST_SWEEP);
    }

    /// Returns the number of the next pair to add, after making room for it: a vacant pair, or else
    /// a new number. Returns `None` if the table is full.
    pub(crate) fn room_for_pair(&mut self) -> Option<u32> {
        if self.vacant_pair != NONE {
            return Some(self.vacant_pair);
        }
        // This only makes room, because the caller may still fail for another table, and then there
        // is nothing to undo.
        let room = self.pairs.make_room(1) && self.pair_nodes.make_room_for(self.pairs.len() as u32 + 1);
        room.then_some(self.pairs.len() as u32)
    }

    /// Adds the pair with the number that [`room_for_pair`](Self::room_for_pair) has returned.
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
        self.pair_count += 1;
    }

    /// Makes `pair` vacant. Both heaps are empty, and no call uses the pair.
    pub(crate) fn remove_pair(&mut self, pair: u32) {
        self.by_stream = self.pair_nodes.remove(self.by_stream, pair, stream_of(&self.pairs));
        let entry = &mut self.pairs[pair as usize];
        entry.exists = false;
        entry.next_vacant = self.vacant_pair;
        self.vacant_pair = pair;
        self.pair_count -= 1;
    }
}
