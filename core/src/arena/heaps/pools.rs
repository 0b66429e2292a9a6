//! Private pools: creates, retains, releases and removes them.
//!
//! Each operation changes the registry under its lock, and updates the affected heaps under the
//! same lock. Heap locks are taken under the registry's lock, one at a time. No memory is allocated
//! or released under the registry's lock.

use crate::arena::heaps::pairs::PairUse;
use crate::arena::heaps::registry::Registry;
use crate::arena::heaps::{Heaps, slot_of};
use crate::arena::platform::Platform;
use crate::config::rounding::PoolKind;
use crate::error::Error;
use crate::pool::{PoolId, PoolOptions, RoutePurpose};
use crate::tables::OnceTable;
use crate::units::StreamId;

impl<P: Platform> Heaps<P> {
    /// Creates a pool with one user. Its name is `id`, or the next unused name if the allocator
    /// chooses.
    ///
    /// # Errors
    ///
    /// [`Error::PoolExists`], [`Error::TableFull`].
    pub(crate) fn create_pool(&self, id: Option<PoolId>, options: PoolOptions) -> Result<PoolId, Error> {
        let mut registry = self.registry.lock();
        let id = id.unwrap_or_else(|| {
            // The name is above every name `(0, number)` so far. The loop ends at the first step
            // unless the program has taken the highest number. Then the numbers start again, and
            // pool 0 is skipped.
            let mut name = registry.pools_made.wrapping_add(1);
            while registry.pool(PoolId(0, name)).is_some() {
                name = name.wrapping_add(1);
            }
            PoolId(0, name)
        });
        if registry.pool(id).is_some() {
            return Err(Error::PoolExists(id));
        }
        let pool = registry.add_pool(id, options).ok_or(Error::TableFull("pools"))?;
        // If the shared part of a removed pool is used again, its map of streams is empty.
        let Some(shared) = self.pools.get_or_set(pool, |_| ()) else {
            registry.remove_pool(pool);
            return Err(Error::TableFull("pools"));
        };
        shared.set_id(id);
        // Names that the allocator chooses start with 0, and must stay ahead of the program's
        // names.
        if id.0 == 0 {
            registry.pools_made = registry.pools_made.max(id.1);
        }
        Ok(id)
    }

    /// Adds a user to the pool named `id`, or creates the pool with `options`. An existing pool
    /// takes over `options` only if it had no users and no routes.
    ///
    /// # Errors
    ///
    /// [`Error::PoolExists`] for the default pool, [`Error::TableFull`].
    pub(crate) fn retain_pool(&self, id: PoolId, options: PoolOptions) -> Result<(), Error> {
        loop {
            let mut registry = self.registry.lock();
            let Ok(pool) = registry.private_pool(id) else {
                drop(registry);
                match self.create_pool(Some(id), options) {
                    // Another thread has created the pool since the lock was dropped, so retain it.
                    Err(Error::PoolExists(_)) if id != PoolId::DEFAULT => continue,
                    made => return made.map(|_| ()),
                }
            };
            let was_released = registry.is_released(pool);
            registry.pools[pool as usize].users += 1;
            if was_released {
                registry.pools[pool as usize].captured = false;
                self.apply_pool_options(&mut registry, pool, options);
                self.apply_use(&registry, pool);
            }
            return Ok(());
        }
    }

    /// Sets the options of a private pool.
    pub(crate) fn set_pool_options(&self, id: PoolId, options: PoolOptions) -> Result<(), Error> {
        let mut registry = self.registry.lock();
        let pool = registry.private_pool(id)?;
        self.apply_pool_options(&mut registry, pool, options);
        Ok(())
    }

    /// Updates every heap of `pool` after the pool came into use or fell out of use. The registry
    /// is locked, so no other thread makes a pair. Pairs of an unused pool are marked, so that they
    /// become vacant when they are empty.
    pub(crate) fn apply_use(&self, registry: &Registry<P::Storage>, pool: u32) {
        let unused = registry.is_unused(pool);
        for pair in registry.pairs_of(pool) {
            for slot in [PoolKind::Small, PoolKind::Large].map(|kind| self.slot(slot_of(pair, kind))) {
                slot.heap.lock().keeps = registry.keeps(pool);
                // Free segments of an ended stream were kept for the pool. They can be released
                // now.
                if unused {
                    self.queue_if_ended(slot);
                }
            }
            self.set_leaving(registry, pair, unused);
        }
    }

    /// Records that a captured graph has memory of `pool`, or will have some. From now on no rule
    /// and no call gives memory of the pool back until the pool has no users. If a unit was chosen
    /// before, it is refused under the heap's lock.
    pub(crate) fn set_captured(&self, registry: &mut Registry<P::Storage>, pool: u32) {
        if registry.pools[pool as usize].captured {
            return;
        }
        registry.pools[pool as usize].captured = true;
        for pair in registry.pairs_of(pool) {
            for kind in [PoolKind::Small, PoolKind::Large] {
                self.slot(slot_of(pair, kind)).heap.lock().keeps = registry.keeps(pool);
            }
        }
    }

    /// Counts the end of a request in a private pool, which [`enter_pool`](Self::enter_pool)
    /// counted at its start. Removes the pool if this was its last use.
    pub(crate) fn leave_pool(&self, pool: u32) {
        let mut registry = self.registry.lock();
        registry.pools[pool as usize].requests -= 1;
        self.finish_use(&mut registry, pool);
    }

    /// Makes the segments of `pool` releasable, makes its empty pairs vacant, and removes the pool
    /// if no pair is left. Does nothing for a pool in use.
    pub(crate) fn finish_use(&self, registry: &mut Registry<P::Storage>, pool: u32) {
        if !registry.is_unused(pool) {
            return;
        }
        self.apply_use(registry, pool);
        // Steps by stream, because `vacate` removes pairs from the set while the loop walks it.
        let mut after = None;
        while let Some((stream, pair)) = registry.next_pair(pool, after) {
            self.vacate(registry, pair);
            after = Some(stream);
        }
        registry.remove_pool_if_empty(pool);
    }

    /// Applies `options` to every heap of `pool`. The registry is locked, so no other thread makes
    /// a pair.
    fn apply_pool_options(&self, registry: &mut Registry<P::Storage>, pool: u32, options: PoolOptions) {
        registry.pools[pool as usize].options = options;
        self.apply_rules(registry, pool);
    }

    /// Sets whether new pages of the private pool named `id` are memory of the host.
    ///
    /// # Errors
    /// [`Error::UnknownPool`]; [`Error::SpillRefused`] if the host supplies the pool's segments.
    pub(crate) fn set_pool_on_host(&self, id: PoolId, on: bool) -> Result<(), Error> {
        let mut registry = self.registry.lock();
        let pool = registry.private_pool(id)?;
        if on && self.shared_pool(pool).is_supplied() {
            return Err(Error::SpillRefused("the program supplies the segments of the pool"));
        }
        registry.pools[pool as usize].spills = on;
        self.apply_rules(&registry, pool);
        Ok(())
    }

    /// Gives every heap of `pool` the rules of the pool.
    pub(crate) fn apply_rules(&self, registry: &Registry<P::Storage>, pool: u32) {
        let supplied = self.shared_pool(pool).is_supplied();
        for pair in registry.pairs_of(pool) {
            for kind in [PoolKind::Small, PoolKind::Large] {
                let mut heap = self.slot(slot_of(pair, kind)).heap.lock();
                heap.set_rules(registry.rules_of(pool, kind, supplied));
                heap.parkable = registry.pools[pool as usize].tag.is_some();
                heap.clears = registry.clears(pool);
                heap.keeps = registry.keeps(pool);
            }
        }
    }

    /// Sets whether the heaps of a private pool in use take new memory from the host. Segments that
    /// the heaps already have stay.
    pub(crate) fn set_supplied(&self, pool: u32, supplied: bool) {
        let shared = self.shared_pool(pool);
        // Read without the lock, because the answer changes only once or twice in the life of a
        // pool.
        if shared.is_supplied() != supplied {
            let registry = self.registry.lock();
            shared.set_supplied(&registry, supplied);
            self.apply_rules(&registry, pool);
        }
    }

    /// Returns the number of users of the private pool named `id`.
    pub(crate) fn pool_users(&self, id: PoolId) -> Result<u32, Error> {
        let registry = self.registry.lock();
        Ok(registry.pools[registry.private_pool(id)? as usize].users)
    }

    /// Removes a user of the pool named `id`. When no user is left, the pool gets the default
    /// options, its free segments are released with the rest of the cache, and captures into it
    /// end.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPool`], which is also returned if the pool has no user.
    pub(crate) fn release_pool(&self, id: PoolId) -> Result<(), Error> {
        let mut registry = self.registry.lock();
        let pool = registry.private_pool(id)?;
        let entry = &mut registry.pools[pool as usize];
        entry.users = entry.users.checked_sub(1).ok_or(Error::UnknownPool(id))?;
        if entry.users == 0 {
            // The graph of a capture in progress is a user. Without one there will be no graph.
            while registry.remove_route(pool, RoutePurpose::Capture, None).is_some() {}
            self.apply_pool_options(&mut registry, pool, PoolOptions::default());
            self.finish_use(&mut registry, pool);
        }
        Ok(())
    }

    /// Returns the number of the private pool named `id`.
    pub(crate) fn private_pool(&self, id: PoolId) -> Result<u32, Error> {
        self.registry.lock().private_pool(id)
    }

    /// Iterates over the numbers of the unused private pools.
    pub(crate) fn unused_pools(&self) -> impl Iterator<Item = u32> {
        // The registry is locked during each step but not between steps, because callers release
        // segments.
        let mut pool = 0;
        core::iter::from_fn(move || {
            let registry = self.registry.lock();
            pool = (pool + 1..registry.pools.len() as u32).find(|&pool| registry.is_unused(pool))?;
            Some(pool)
        })
    }

    /// Uses the stream's pair in the first pool that has one, from number `from` on, and marks the
    /// pair as ended and leaving. Returns the pool and the guard.
    pub(crate) fn end_next_pair(&self, from: u32, stream: StreamId) -> Option<(u32, PairUse<'_, P>)> {
        let registry = self.registry.lock();
        let (pool, pair) = registry.next_pair_of(from, stream)?;
        let ended = self.enter_pair(pair)?;
        self.set_ended(&registry, pair, true);
        self.set_leaving(&registry, pair, true);
        Some((pool, ended))
    }
}
