//! Tenants: tags with limits, named as in Linux's control groups.
//!
//! ```text
//! charge of a tag = Σ bytes that the heaps of its pools hold from the device      (`charge_of`, and nowhere else)
//!
//! heap grows ─ charge + growth > max ─▶ free memory of the tag goes back ─ still too much ─▶ refused, the device not called
//! memory is short ─▶ (charge − low) / weight, the most first ─▶ free memory goes back, down to `low`
//! ```
//!
//! The charge is computed from the counters of the heaps, so nothing must be undone if the device
//! fails. Only growth in progress is counted separately ([`TagEntry::growing`]), from the
//! comparison with `max` until the memory is in the heap, so the sum is never too low. Only growth
//! and release look at tags.
//!
//! Without limits, free memory of a private pool in use stays, because a captured graph may write
//! to it. A pool with limits gives memory back as long as no graph was captured into it.

use crate::arena::driver::Driver;
use crate::arena::flags::{self, Flags};
use crate::arena::give::rules::by_pool;
use crate::arena::heaps::limited::TagEntry;
use crate::arena::heaps::pairs::PairUse;
use crate::arena::heaps::registry::Registry;
use crate::arena::heaps::units::{Unit, UnitKind};
use crate::arena::heaps::{Heaps, slot_of};
use crate::arena::holdings::Holdings;
use crate::arena::platform::Platform;
use crate::arena::request::Request;
use crate::config::rounding::PoolKind;
use crate::device::oom::{TagReport, TagShares};
use crate::device::{ErrorKind, Segments};
use crate::error::Error;
use crate::heap::split_rules::Source;
use crate::pool::{Tag, TagLimits, TagUse};
use crate::shares::{self, Giver};
use crate::stats::Stat;
use crate::tables::CapacityError;
use crate::units::DevicePtr;

/// The kinds of heaps, in the order in which a tag gives memory back.
const KINDS: [PoolKind; 2] = [PoolKind::Large, PoolKind::Small];

/// Bytes that enter or leave the charge of a tag, from the decision until the counters of the heap
/// include them.
pub(in crate::arena) struct InProgress<'a, P: Platform> {
    heaps: &'a Heaps<P>,
    /// The place of the tag's entry.
    entry: usize,
    growing: u64,
    giving: u64,
}

impl<P: Platform> Drop for InProgress<'_, P> {
    fn drop(&mut self) {
        let entry = &mut self.heaps.registry.lock().limited[self.entry];
        entry.growing -= self.growing;
        entry.giving -= self.giving;
    }
}

/// An error: the `max` of a tag does not allow growth.
pub(in crate::arena) struct BeyondMax;

/// An error: giving memory back would leave a tag below its `low`.
pub(in crate::arena) struct BelowLow;

/// A tag in the order of giving memory back. `None` means all memory without a limited tag.
type TagGiver = Giver<Option<Tag>>;

impl<P: Platform> Heaps<P> {
    /// Returns the charge of a tag: the bytes that the heaps of its pools hold from the device.
    /// Parked memory does not count.
    pub(in crate::arena) fn charge_of(&self, registry: &Registry<P::Storage>, tag: Tag) -> u64 {
        self.sum_of(registry, tag, Stat::ReservedBytes)
    }

    /// Returns the sum of a statistic over the heaps of a tag's pools.
    fn sum_of(&self, registry: &Registry<P::Storage>, tag: Tag, stat: Stat) -> u64 {
        let pairs = registry.pools_with(tag).flat_map(|pool| registry.pairs_of(pool));
        let slots = pairs.flat_map(|pair| KINDS.map(|kind| slot_of(pair, kind)));
        // The value is made of two counts, and the heap may change between reading them.
        slots.map(|slot| self.slot(slot).counters.current(stat).max(0) as u64).sum()
    }

    /// Returns the charge of a limited tag, including the growth in progress.
    fn charge_with_growth(&self, registry: &Registry<P::Storage>, entry: &TagEntry) -> u64 {
        // Growth that ended before the registry was locked is in the counters, and all other growth
        // is in `growing`.
        entry.growing + self.charge_of(registry, entry.tag)
    }

    /// Returns the bytes of a limited tag that may go back for other tags.
    fn above_low(&self, registry: &Registry<P::Storage>, entry: &TagEntry) -> u64 {
        let low = entry.limits.map_or(0, |limits| limits.low);
        self.charge_of(registry, entry.tag).saturating_sub(entry.giving).saturating_sub(low)
    }

    /// Iterates over the pairs of a tag's pools that have no memory of a captured graph.
    fn giving_pairs(&self, tag: Tag) -> impl Iterator<Item = PairUse<'_, P>> {
        let mut from = 0;
        let pools = core::iter::from_fn(move || {
            let registry = self.registry.lock();
            loop {
                let pool = registry.next_tagged(from, tag)?;
                from = pool + 1;
                if !registry.pools[pool as usize].captured {
                    return Some(pool);
                }
            }
        });
        pools.flat_map(|pool| self.pairs_of(pool))
    }

    /// Returns what a tag holds, with its limits and counts.
    pub(crate) fn tag_use(&self, registry: &Registry<P::Storage>, tag: Tag) -> TagUse {
        let [charge, live, active] =
            [Stat::ReservedBytes, Stat::AllocatedBytes, Stat::ActiveBytes].map(|stat| self.sum_of(registry, tag, stat));
        let entry = registry.limited.find(tag).map(|at| &registry.limited[at]);
        let (refusals, given) = entry.map_or((0, 0), |entry| (entry.refusals, entry.given));
        let limits = entry.and_then(|entry| entry.limits);
        TagUse { charge, live, cached: charge.saturating_sub(active), limits, refusals, given }
    }
}

impl<P: Platform> Heaps<P> {
    /// If `growth` for the request would exceed the `max` of its pool's tag, returns this tag and
    /// the excess in bytes.
    fn excess(&self, request: &Request, growth: u64) -> Option<(Tag, u64)> {
        let registry = self.registry.lock();
        let entry = &registry.limited[registry.limited_pool(request.pool)?];
        let max = entry.limits?.max?;
        let sum = self.charge_with_growth(&registry, entry).saturating_add(growth);
        (sum > max).then(|| (entry.tag, sum - max))
    }

    /// Charges `bytes` of growth for the request to the tag of its pool until the returned value is
    /// dropped, which takes the registry's lock. The value is `None` if there are no limits.
    ///
    /// # Errors
    /// [`BeyondMax`].
    #[inline(always)]
    pub(in crate::arena) fn charge_tag(
        &self,
        flags: &Flags,
        request: &Request,
        bytes: u64,
    ) -> Result<Option<InProgress<'_, P>>, BeyondMax> {
        // The default pool has no tag, and only pays for this test.
        if request.pool == 0 { Ok(None) } else { self.charge_pool(flags, request.pool, bytes) }
    }

    /// Charges `bytes` of growth to the tag of a private pool, as [`charge_tag`](Self::charge_tag)
    /// does.
    #[cold]
    fn charge_pool(&self, flags: &Flags, pool: u32, bytes: u64) -> Result<Option<InProgress<'_, P>>, BeyondMax> {
        if !flags.has(flags::TENANTS) {
            return Ok(None);
        }
        let mut registry = self.registry.lock();
        let Some(entry_at) = registry.limited_pool(pool) else { return Ok(None) };
        let entry = &registry.limited[entry_at];
        let max = entry.limits.and_then(|limits| limits.max).unwrap_or(u64::MAX);
        // The comparison and the addition are one step under the lock, so two threads cannot exceed
        // `max` together.
        if self.charge_with_growth(&registry, entry).saturating_add(bytes) > max {
            return Err(BeyondMax);
        }
        registry.limited[entry_at].growing += bytes;
        Ok(Some(InProgress { heaps: self, entry: entry_at, growing: bytes, giving: 0 }))
    }

    /// Returns whether the request would exceed `max` even if only the blocks in use counted.
    fn is_full_of_blocks(&self, request: &Request, tag: Tag) -> bool {
        let registry = self.registry.lock();
        let limits = registry.limited_tag(tag).and_then(|at| registry.limited[at].limits);
        let max = limits.and_then(|limits| limits.max).unwrap_or(u64::MAX);
        self.sum_of(&registry, tag, Stat::ActiveBytes).saturating_add(request.size) > max
    }

    /// Returns the tag that gives memory back next after `spent`, and the bytes by which it is
    /// above the one after it. `reserved` bytes are held from the device. Returns `None` if no tag
    /// has limits.
    fn next_giver(&self, reserved: u64, spent: Option<TagGiver>) -> Option<(TagGiver, u64)> {
        let registry = self.registry.lock();
        let limited = || registry.limited.iter().filter_map(|entry| Some((entry, entry.limits?)));
        limited().next()?;
        let charges = limited().map(|(entry, _)| self.charge_of(&registry, entry.tag));
        let untagged = charges.fold(reserved, u64::saturating_sub);
        let tags = limited().map(|(entry, limits)| {
            let over = self.above_low(&registry, entry);
            Giver { name: Some(entry.tag), over, weight: limits.weight.into() }
        });
        let rest = Giver { name: None, over: untagged, weight: TagLimits::WEIGHT.into() };
        shares::next_giver(tags.chain([rest]), spent)
    }

    /// Gives back `wanted` bytes of a tag's free memory with `give_up`, or a little more, because
    /// pages are whole. If `for_others`, gives no more than `low` allows. Returns the number of
    /// bytes.
    fn give_of_tag(
        &self,
        tag: Tag,
        wanted: u64,
        for_others: bool,
        mut give_up: impl FnMut(Unit) -> Result<u64, Error>,
    ) -> Result<u64, Error> {
        let mut given = 0;
        for used in self.giving_pairs(tag) {
            for kind in KINDS {
                while given < wanted {
                    let most = if for_others { self.tag_above_low(tag) } else { u64::MAX };
                    let Some(unit) = self.unit_within(used.slot(kind), wanted - given, most) else { break };
                    let Some(_giving) = self.begin_giving(tag, unit.bytes, for_others) else { break };
                    match give_up(unit)? {
                        0 => break,
                        bytes => given += bytes,
                    }
                }
            }
        }
        if given > 0 {
            let mut registry = self.registry.lock();
            if let Some(at) = registry.limited_tag(tag) {
                registry.limited[at].given += given;
            }
        }
        Ok(given)
    }

    /// Returns the bytes of a tag that may go back for other tags.
    fn tag_above_low(&self, tag: Tag) -> u64 {
        let registry = self.registry.lock();
        registry.limited_tag(tag).map_or(0, |at| self.above_low(&registry, &registry.limited[at]))
    }

    /// Notes that `bytes` of a tag are about to go back, until the returned value is dropped.
    /// Returns `None` if the bytes would go back for other tags (`for_others`) and leave this tag
    /// below its `low`, or if another thread has removed the limits.
    pub(in crate::arena) fn begin_giving(&self, tag: Tag, bytes: u64, for_others: bool) -> Option<InProgress<'_, P>> {
        let mut registry = self.registry.lock();
        let at = registry.limited_tag(tag)?;
        // Compared and noted in one step, so that two threads that both found the bytes do not give
        // back twice as many.
        if for_others && self.above_low(&registry, &registry.limited[at]) < bytes {
            return None;
        }
        registry.limited[at].giving += bytes;
        Some(InProgress { heaps: self, entry: at, growing: 0, giving: bytes })
    }

    /// Notes that `bytes` of the heap in `slot`, which serve nobody at present, are about to go
    /// back, until the returned value is dropped. The value is `None` for the default pool.
    ///
    /// # Errors
    /// [`BelowLow`].
    pub(in crate::arena) fn begin_giving_of_heap(
        &self,
        slot: u32,
        bytes: u64,
    ) -> Result<Option<InProgress<'_, P>>, BelowLow> {
        let pool = self.lock(slot).pool;
        if pool == 0 {
            return Ok(None);
        }
        let tag = self.registry.lock().pools[pool as usize].tag;
        tag.and_then(|tag| self.begin_giving(tag, bytes, true)).map(Some).ok_or(BelowLow)
    }

    /// Returns the address of the first unit of a tag that has at most `most` bytes.
    fn first_of_tag(&self, tag: Tag, most: u64) -> Option<DevicePtr> {
        let slots = self.giving_pairs(tag).flat_map(|used| KINDS.map(|kind| used.slot(kind)));
        slots.filter_map(|slot| self.unit_within(slot, 1, most)).map(|unit| unit.ptr()).next()
    }

    /// Iterates over the heaps outside the limited tags from which free memory may go back, in
    /// PyTorch's order. There are none unless the policy `releases` cached memory.
    fn untagged_heaps(&self, releases: bool) -> impl Iterator<Item = (u32, PairUse<'_, P>)> {
        let heaps = self;
        let pools =
            heaps.giving_pools().filter(move |&pool| releases && heaps.registry.lock().limited_pool(pool).is_none());
        heaps.heaps_of(pools, by_pool).filter(|&(slot, _)| !heaps.lock(slot).asleep)
    }

    /// Gives back at least `wanted` bytes of free memory outside the limited tags with `give_up`,
    /// or all of it. Returns the number of bytes.
    fn give_untagged(
        &self,
        releases: bool,
        wanted: u64,
        mut give_up: impl FnMut(Unit) -> Result<u64, Error>,
    ) -> Result<u64, Error> {
        let mut given = 0;
        for (slot, _used) in self.untagged_heaps(releases) {
            for unit in self.units_of(slot) {
                if given >= wanted {
                    return Ok(given);
                }
                given += give_up(unit)?;
            }
        }
        Ok(given)
    }

    /// Returns the address of the first unit outside the limited tags.
    fn first_untagged(&self, driver: &Driver<P::Device>, releases: bool) -> Option<DevicePtr> {
        self.untagged_heaps(releases).find_map(|(slot, _used)| self.first_of_heap(driver, slot))
    }

    /// Sets or removes the limits of a tag.
    ///
    /// # Errors
    /// [`Error::LimitsRefused`], [`Error::TableFull`].
    pub(crate) fn limit_tag(
        &self,
        driver: &Driver<P::Device>,
        tag: Tag,
        limits: Option<TagLimits>,
    ) -> Result<(), Error> {
        if let Some(TagLimits { max, low, weight, clear }) = limits {
            if weight == 0 {
                return Err(Error::LimitsRefused("the weight is 0, and must be from 1 to 4294967295"));
            }
            if max.is_some_and(|max| low > max) {
                return Err(Error::LimitsRefused("`low` is above `max`"));
            }
            if clear && driver.device().contents().is_none() {
                return Err(Error::LimitsRefused("the device cannot fill memory, as `clear` needs"));
            }
        }
        let mut registry = self.registry.lock();
        registry.set_limits(tag, limits).map_err(|CapacityError| Error::TableFull("limited tags"))?;
        let any = registry.limited.iter().any(|entry| entry.limits.is_some());
        // Under the registry's lock, so that the flag agrees with the limits.
        driver.flags.set(flags::TENANTS, any);
        registry.pools_with(tag).for_each(|pool| self.apply_rules(&registry, pool));
        Ok(())
    }

    /// Counts the refusal of a request if its tag's `max` held it back (`is_held`). Returns what
    /// the tags hold, if any has limits.
    pub(in crate::arena) fn tag_shares(&self, flags: &Flags, request: &Request, is_held: bool) -> TagShares {
        let mut shares = TagShares::default();
        if !flags.has(flags::TENANTS) {
            return shares;
        }
        let mut registry = self.registry.lock();
        let own = registry.pools[request.pool as usize].tag;
        if let Some(at) = registry.limited_pool(request.pool).filter(|_| is_held) {
            registry.limited[at].refusals += 1;
        }
        let tags = core::iter::successors(registry.next_tag(None), |&tag| registry.next_tag(Some(tag)));
        for tag in tags {
            let TagUse { charge, limits, .. } = self.tag_use(&registry, tag);
            if Some(tag) == own {
                let max = limits.and_then(|limits| limits.max).unwrap_or(u64::MAX);
                shares.own = Some(TagReport { tag, charge, max });
            } else {
                shares.add(tag, charge);
            }
        }
        shares
    }

    /// Checks the charges of the tags against the pages and segments of the heaps, while no
    /// operation is in progress.
    ///
    /// # Errors
    /// A description of the invariant, if it does not hold.
    pub(in crate::arena) fn check_tags(&self) -> Result<(), &'static str> {
        let registry = self.registry.lock();
        for entry in registry.limited.iter() {
            if (entry.growing, entry.giving) != (0, 0) {
                return Err("a tag has growth in progress, and no operation is");
            }
            let is_of_tag = |pool: u32| registry.pools[pool as usize].tag == Some(entry.tag);
            let of_heap = |number: u32| {
                let heap = self.slot(number).heap.lock();
                if is_of_tag(heap.pool) { heap.held_bytes() } else { 0 }
            };
            let sum: u64 = self.slot_numbers().map(of_heap).sum();
            if sum != self.charge_of(&registry, entry.tag) {
                return Err("the charge of a tag is not the sum over the heaps of its pools");
            }
        }
        Ok(())
    }
}

impl<P: Platform> Holdings<'_, P> {
    /// Returns the bytes by which the request's heap would grow.
    pub(in crate::arena) fn growth_bytes(&self, request: &Request) -> u64 {
        match self.heaps.source_now(&self.driver.flags, request) {
            // A smaller segment may be enough.
            Source::Device | Source::Host if self.settings.policy().traits().shrinks_segments => request.size,
            Source::Device | Source::Host => self.segment_bytes(request),
            Source::Pages => self.page_growth().map_or(request.size, |growth| growth.bytes_to_map(request)),
        }
    }

    /// If the growth for the request would exceed the `max` of its pool's tag, returns this tag and
    /// the excess in bytes.
    #[cold]
    fn excess(&self, request: &Request) -> Option<(Tag, u64)> {
        let limits = self.driver.flags.has(flags::TENANTS);
        if limits { self.heaps.excess(request, self.growth_bytes(request)) } else { None }
    }

    /// Returns whether the growth for the request would exceed the `max` of its pool's tag.
    pub(in crate::arena) fn is_held_to_max(&self, request: &Request) -> bool {
        // The default pool has no tag.
        request.pool != 0 && self.excess(request).is_some()
    }

    /// Gives back free memory of the tag of the request's private pool, until the growth for the
    /// request is within the tag's `max`. Returns whether the growth would exceed `max`
    /// nevertheless. Gives nothing back if this would not be enough, because there are too many
    /// blocks in use, or because a capture permits no wait.
    ///
    /// # Errors
    /// Those of the device.
    #[cold]
    pub(in crate::arena) fn is_refused_by_max(&self, request: &Request) -> Result<bool, Error> {
        while let Some((tag, excess)) = self.excess(request) {
            let may_give = !request.capturing && !self.heaps.is_full_of_blocks(request, tag);
            if !may_give || self.heaps.give_of_tag(tag, excess, false, |unit| self.give_up(unit))? == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the address of the first memory that [`is_refused_by_max`](Self::is_refused_by_max)
    /// would give back.
    pub(in crate::arena) fn first_for_max(&self, request: &Request) -> Option<DevicePtr> {
        let (tag, _) = self.excess(request)?;
        if self.heaps.is_full_of_blocks(request, tag) { None } else { self.heaps.first_of_tag(tag, u64::MAX) }
    }

    /// If tags have limits, gives back free memory for `growth` bytes that the device or the limit
    /// refuses. The tag that is furthest above its `low` by weight gives first, and none goes below
    /// its `low`. Returns the number of bytes.
    ///
    /// # Errors
    /// Those of the device.
    pub(in crate::arena) fn give_by_shares(&self, growth: u64) -> Result<u64, Error> {
        if !self.driver.flags.has(flags::TENANTS) {
            return Ok(0);
        }
        let wanted = self.ledger.wanted(self.driver, growth, self.paging.bytes().spare);
        // The last of those that have nothing to give. Only lower shares come after it.
        let (mut given, mut spent) = (0, None);
        let releases = self.settings.policy().releases_cache();
        let give_up = |unit| self.give_up(unit);
        while given < wanted
            && let Some((giver, most)) = self.heaps.next_giver(self.ledger.reserved(), spent)
        {
            let bytes = match giver.name {
                Some(tag) => self.heaps.give_of_tag(tag, most.min(wanted - given), true, give_up)?,
                None => self.heaps.give_untagged(releases, most.min(wanted - given), give_up)?,
            };
            if bytes == 0 {
                spent = Some(giver);
            }
            given += bytes;
        }
        Ok(given)
    }

    /// Returns the address of the first memory that [`give_by_shares`](Self::give_by_shares) would
    /// give back.
    pub(in crate::arena) fn first_by_shares(&self) -> Option<DevicePtr> {
        let mut spent = None;
        while let Some((giver, _)) = self.heaps.next_giver(self.ledger.reserved(), spent) {
            let first = match giver.name {
                Some(tag) => self.heaps.first_of_tag(tag, giver.over),
                None => self.heaps.first_untagged(self.driver, self.settings.policy().releases_cache()),
            };
            if first.is_some() {
                return first;
            }
            spent = Some(giver);
        }
        None
    }

    /// Gives a unit back, once the work of its stream is complete. Returns the number of bytes,
    /// which is 0 if another thread has taken memory of the unit since it was found, or if the
    /// stream is capturing. The caller keeps the pair of heaps in use, so that it stays.
    pub(in crate::arena) fn give_up(&self, unit: Unit) -> Result<u64, Error> {
        if unit.kind == UnitKind::Segment {
            return self.give([unit]);
        }
        let Some(mapper) = self.heap_mapper() else { return Ok(0) };
        let (detached, stream) = {
            let mut heap = self.heaps.lock(unit.slot);
            (unit.detach(&mut heap)?, heap.stream)
        };
        let Some(block) = detached else { return Ok(0) };
        if let Err(error) = self.driver.synchronize(stream) {
            self.heaps.lock(unit.slot).attach_range(block);
            return if error.kind == ErrorKind::NotPermittedInCapture { Ok(0) } else { Err(error.into()) };
        }
        mapper.unmap_detached(unit.slot, block)?;
        Ok(unit.bytes)
    }
}
