//! Memory that a call of the program gives back by name: of one pool, of the pools with a tag, of
//! all pools that have a tag with limits, or of one stream.
//!
//! A request never gives back memory of another pool in use, unless the limits of tags say so
//! (tenants.rs). A call that names the pool or tag does, and returns an error for memory that it
//! cannot give back because a captured graph writes to it at every replay.

use crate::arena::give::rules::by_pool;
use crate::arena::heaps::pairs::PairUse;
use crate::arena::heaps::registry::Registry;
use crate::arena::heaps::{Heaps, slot_of};
use crate::arena::holdings::Holdings;
use crate::arena::plans::PlanSwitch;
use crate::arena::platform::Platform;
use crate::arena::waits::{DeviceWaits, Outside};
use crate::config::rounding::PoolKind;
use crate::error::Error;
use crate::heap::Keeps;
use crate::pool::{PoolId, Tag};
use crate::stats::Stat;
use crate::units::StreamId;
use core::iter::{from_fn, once};

/// The heaps of a pair, in the order in which they give memory back.
const KINDS: [PoolKind; 2] = [PoolKind::Large, PoolKind::Small];

impl<P: Platform> Heaps<P> {
    /// Iterates over the private pools in use that have a tag with limits, and no memory of a
    /// captured graph. These pools give free memory to calls that name no pool.
    pub(in crate::arena) fn tenant_pools(&self) -> impl Iterator<Item = u32> {
        // The registry is locked during each step but not between steps, because callers release
        // segments.
        let mut pool = 0;
        from_fn(move || {
            let registry = self.registry.lock();
            let gives = |pool: u32| {
                registry.is_in_use(pool)
                    && registry.keeps(pool) == Keeps::Nothing
                    && registry.limited_pool(pool).is_some()
            };
            pool = (pool + 1..registry.pools.len() as u32).find(|&pool| gives(pool))?;
            Some(pool)
        })
    }

    /// Returns the bytes that the heaps of a pool hold from the device.
    fn held_by(&self, registry: &Registry<P::Storage>, pool: u32) -> u64 {
        let slots = registry.pairs_of(pool).flat_map(|pair| KINDS.map(|kind| slot_of(pair, kind)));
        slots.map(|slot| self.held_in(slot)).sum()
    }

    /// Returns the bytes that the heap in `slot` holds from the device.
    fn held_in(&self, slot: u32) -> u64 {
        self.slot(slot).counters.current(Stat::ReservedBytes).max(0) as u64
    }
}

impl<P: Platform> Holdings<'_, P> {
    /// Gives back the whole cache, including that of pools in use if their tags have limits, and
    /// the memory of plans without a block in use.
    ///
    /// # Errors
    /// The first failure. The release continues after it, unless the context is lost.
    pub(crate) fn empty(&self, plans: Option<PlanSwitch<'_, P>>) -> Result<(), Error> {
        let mut result = plans.map_or(Ok(()), |plans| plans.give_idle_up(0));
        for (slot, _used) in self.heaps.heaps_of(self.heaps.tenant_pools(), by_pool) {
            result = result.and(self.empty_heap(slot));
        }
        result.and(self.release_cached(None))
    }

    /// Gives back the free memory of a private pool.
    ///
    /// # Errors
    /// [`Error::GraphMemory`]; the first failure of the device.
    pub(crate) fn empty_pool<'w>(
        &self,
        waits: DeviceWaits<'w, P, impl Outside<'w, P>>,
        pool: PoolId,
    ) -> Result<(), Error> {
        let (number, is_in_use) = {
            let registry = self.heaps.registry.lock();
            let number = registry.private_pool(pool)?;
            (number, registry.is_in_use(number))
        };
        let waited = waits.wait_for_events();
        waited.and(if is_in_use { self.trim_pool(pool, 0) } else { self.release_cached(Some(number)) })
    }

    /// Gives back free memory of a private pool until it holds at most `keep` bytes.
    ///
    /// # Errors
    /// [`Error::GraphMemory`]; the first failure of the device.
    pub(crate) fn trim_pool(&self, pool: PoolId, keep: u64) -> Result<(), Error> {
        let number = self.heaps.private_pool(pool)?;
        let held = || self.heaps.held_by(&self.heaps.registry.lock(), number);
        self.trim_pools(once(number), held, keep)?;
        self.refuse_graphs(held() > keep, once(number))
    }

    /// Gives back free memory of the pools with a tag until they hold at most `keep` bytes
    /// together.
    ///
    /// # Errors
    /// [`Error::UnknownTag`], [`Error::GraphMemory`]; the first failure of the device.
    pub(crate) fn trim_tag(&self, tag: Tag, keep: u64) -> Result<(), Error> {
        let heaps = self.heaps;
        let pools = || {
            let mut from = 0;
            from_fn(move || {
                let pool = heaps.registry.lock().next_tagged(from, tag)?;
                from = pool + 1;
                Some(pool)
            })
        };
        if pools().next().is_none() && heaps.registry.lock().limited_tag(tag).is_none() {
            return Err(Error::UnknownTag(tag));
        }
        let held = || heaps.charge_of(&heaps.registry.lock(), tag);
        self.trim_pools(pools(), held, keep)?;
        self.refuse_graphs(held() > keep, pools())
    }

    /// Gives back free memory of a stream until it holds at most `keep` bytes: in the default pool,
    /// and in private pools without users.
    ///
    /// # Errors
    /// The first failure of the device.
    pub(crate) fn trim_stream(&self, stream: StreamId, keep: u64) -> Result<(), Error> {
        let heaps = self.heaps;
        let pairs = move || heaps.giving_pools().filter_map(move |pool| heaps.find_pair(pool, stream));
        let held = || pairs().flat_map(|pair| KINDS.map(|kind| heaps.held_in(pair.slot(kind)))).sum();
        let of_kind = |kind| pairs().map(move |pair| (pair.slot(kind), pair));
        self.trim_heaps(KINDS.into_iter().flat_map(of_kind), held, keep)
    }

    /// Gives back free memory of pools, in use or not, until `held` returns at most `keep` bytes.
    ///
    /// # Errors
    /// The first failure.
    pub(in crate::arena) fn trim_pools(
        &self,
        pools: impl Iterator<Item = u32>,
        held: impl Fn() -> u64,
        keep: u64,
    ) -> Result<(), Error> {
        self.trim_heaps(self.heaps.heaps_of(pools, |_| KINDS), held, keep)
    }

    /// Gives back free memory of heaps until `held` returns at most `keep` bytes.
    ///
    /// # Errors
    /// The first failure.
    fn trim_heaps<'h>(
        &self,
        heaps: impl Iterator<Item = (u32, PairUse<'h, P>)>,
        held: impl Fn() -> u64,
        keep: u64,
    ) -> Result<(), Error>
    where
        P: 'h,
    {
        if self.driver.holds_frees() {
            return Ok(());
        }
        for (slot, _used) in heaps {
            while let excess = held().saturating_sub(keep)
                && excess > 0
                && let Some(unit) = self.heaps.unit_within(slot, excess, u64::MAX)
            {
                if self.give_up(unit)? == 0 {
                    break;
                }
                // The pages given up are now spare and belong to no heap. They go to the device,
                // not to another pool.
                self.destroy_spares()?;
            }
        }
        Ok(())
    }

    /// Returns an error if `more` is held than should be kept, and one of the pools has memory of a
    /// captured graph.
    fn refuse_graphs(&self, more: bool, mut pools: impl Iterator<Item = u32>) -> Result<(), Error> {
        let graphs = |pool: u32| {
            let registry = self.heaps.registry.lock();
            (registry.keeps(pool) == Keeps::ForGraphs).then(|| registry.pools[pool as usize].id)
        };
        if more && let Some(pool) = pools.find_map(graphs) { Err(Error::GraphMemory(pool)) } else { Ok(()) }
    }
}
