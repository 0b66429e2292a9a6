//! Parking: memory that is not needed for a while goes back to the device, and returns later at its
//! old addresses.
//!
//! ```text
//!         park: refuse requests ─▶ wait for work ─▶ save ─▶ unmap, destroy
//!  awake ──────────────────────────────────────────────────────────────────▶ asleep
//!    ▲                                                                          │ wake_start:
//!    │  wake_wait: copies ended, pages replaced                                 │ create, map, copy
//!    └──────────────────────────────── waking ◀─────────────────────────────────┘
//! ```
//!
//! The heaps of a *target* are parked together. A target is all pools with a tag, or one stream or
//! all streams in the default pool. A parked heap is *asleep*: it keeps its blocks, its addresses
//! and its list of pages, and serves no request. Frees still work, because they change only tables.
//! Pages asleep use no memory of the device. Pages that the program has pinned, and ordinary
//! segments, stay awake.
//!
//! Only one thread at a time parks or wakes memory of a device. No lock is held across a call to
//! the device, and nothing outside the target waits.

mod freed;
pub(super) mod left;
mod lent;
mod loans;
mod remaining;
mod sleep;
mod state;
#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests;
mod wake;

pub use remaining::Remaining;

use crate::arena::debug::DebugLayer;
use crate::arena::driver::Driver;
use crate::arena::heaps::pairs::PairUse;
use crate::arena::heaps::registry::Registry;
use crate::arena::heaps::{Heaps, slot_of};
use crate::arena::paging::Paging;
use crate::arena::paging::heap_mapper::HeapMapper;
use crate::arena::settings::Settings;
use crate::arena::{OnDevice, Platform};
use crate::config::rounding::PoolKind;
use crate::device::{Contents, DeviceMemory, Segments};
use crate::error::Error;
use crate::heap::Heap;
use crate::heap::home_pages::HomePage;
use crate::heap::split_rules::PoolMemory;
use crate::pool::{PoolId, Tag};
use crate::sync::{Taken, Turn};
use crate::tables::{CapacityError, Storage};
use crate::units::StreamId;

/// The number of times that a call checks whether another one has left, 20 µs apart: five seconds.
/// A request that takes longer waits for the program, possibly for the calling thread.
const LOOKS: u32 = 250_000;

/// The reason for not parking memory that is not on pages.
const NO_PAGES: &str = "its blocks lie in ordinary segments, not on pages";

/// A set of memory that is parked together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParkTarget {
    /// The private pools with the tag.
    Tag(Tag),
    /// One private pool.
    Pool(PoolId),
    /// The memory of one stream in the default pool.
    Stream(StreamId),
    /// The memory of all streams in the default pool. A stream that has no memory at the call stays
    /// awake.
    Streams,
    /// Like [`Streams`](Self::Streams), but without the blocks of the small heaps. By default these
    /// serve requests up to 1 MiB.
    LargeOfStreams,
}

/// The contents of parked memory after waking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParkMode {
    /// The contents from before. The host keeps a copy while the memory is parked.
    Keep,
    /// Undefined.
    Drop,
    /// Zeroes.
    Zero,
}

/// The work that must be complete before memory is parked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParkOrder {
    /// All work queued on the device's context before the call.
    Device,
    /// The work queued before the call on the streams of the parked blocks, and on streams recorded
    /// as users of blocks. If blocks wait for events, also the events of the whole device.
    Streams,
}

/// Where the memory of a target is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ParkState {
    /// On the device.
    #[default]
    Awake,
    /// Parked.
    Asleep,
    /// Parked, with the contents being copied back.
    Waking,
    /// On the device, except for the pages of free blocks that others have taken.
    Lent,
}

/// The memory of a target, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ParkReport {
    /// Where the memory is.
    pub state: ParkState,
    /// Mapped bytes on the device: pages at their places, and pages that are about to wake.
    pub mapped: u64,
    /// Parked bytes, which are addresses without memory. Of lent memory, the pages that others have
    /// taken.
    pub parked: u64,
    /// The parked bytes for which the host keeps the contents.
    pub kept: u64,
    /// Bytes of pinned pages, which are never parked. Part of `mapped`.
    pub pinned: u64,
    /// Bytes of ordinary segments, which cannot be parked. They were obtained before the pool had a
    /// tag, or while the settings mapped no memory.
    pub ordinary: u64,
}

/// Parks and wakes the memory of a target.
pub(crate) struct Parker<'a, P: Platform> {
    mapper: HeapMapper<'a, P>,
    /// Writes the fills and canaries of blocks. It must queue nothing on them while they are
    /// asleep.
    debug: &'a DebugLayer,
    target: ParkTarget,
    _turns: [Taken<'a>; 2],
}

impl<'a, P: Platform> Parker<'a, P> {
    /// Returns the operations that park, wake, lend and reclaim the memory of `target`. If another
    /// call does so at the moment, it is waited for with `waits`, and an error otherwise.
    ///
    /// # Errors
    /// * [`Error::ParkingRefused`]: the other call took five seconds or is not waited for, or the
    ///   device has no virtual memory.
    /// * [`Error::UnknownTag`], [`Error::UnknownPool`].
    pub(crate) fn of(device: OnDevice<'a, P>, target: ParkTarget, waits: bool) -> Result<Self, Error> {
        target.check(&device.heaps)?;
        let mapper = device.heap_mapper().ok_or(Error::ParkingRefused("the device has no virtual memory"))?;
        let Paging { parking, taking, .. } = mapper.paging;
        let wait = |turn| wait_for_turn(mapper.driver, turn);
        let parking = if waits { wait(parking) } else { parking.try_take() };
        // A request has the other turn while it takes pages.
        let turns = parking.and_then(|parking| Some([parking, wait(taking)?]));
        let busy = Error::ParkingRefused("another call parks or wakes memory at the moment");
        Ok(Self { debug: &device.arena.debug, target, _turns: turns.ok_or(busy)?, mapper })
    }

    fn report(&self) -> ParkReport {
        ParkReport::of(self.mapper.heaps, self.mapper.paging, self.target)
    }

    /// Returns whether memory of the target is on pages, or new memory would be.
    fn uses_pages(&self, settings: &Settings<P::Lock>) -> bool {
        let is_tagged = {
            let registry = self.mapper.heaps.registry.lock();
            self.target.next_pool(&registry, 0).is_some_and(|pool| registry.pools[pool as usize].tag.is_some())
        };
        let memory = if is_tagged { PoolMemory::Paged } else { PoolMemory::Plain };
        let by_policy = settings.uses_pages(memory);
        let (mut any, mut found) = (false, false);
        for slot in self.slots() {
            let heap = self.mapper.heaps.lock(slot);
            any = true;
            // The settings may have changed since the heap got its pages.
            found |= by_policy && heap.rules.source.maps_pages();
            found |= !heap.is_empty() && heap.sets.pages.from(0).is_some();
        }
        if any { found } else { by_policy }
    }

    /// Returns the host's memory for contents.
    fn contents(&self) -> Result<&'a dyn Contents, Error> {
        let contents = self.mapper.driver.device().contents();
        contents.ok_or(Error::ParkingRefused("the host keeps no contents of memory"))
    }

    /// Iterates over the pairs of the target.
    fn pairs(&self) -> impl Iterator<Item = PairUse<'a, P>> {
        self.target.pairs(self.mapper.heaps)
    }

    /// Iterates over the heaps of the target, by slot.
    fn slots(&self) -> impl Iterator<Item = u32> {
        self.target.slots(self.mapper.heaps)
    }

    /// Calls `act` with every heap of the target, locked.
    fn in_each_heap(&self, act: impl Fn(&mut Heap<P::Storage>)) {
        self.slots().for_each(|slot| act(&mut self.mapper.heaps.lock(slot)));
    }

    /// Iterates over the pages of the target, together with the slots of their heaps. No lock is
    /// held between two steps.
    fn pages(&self) -> impl Iterator<Item = (u32, HomePage)> {
        self.slots().flat_map(|slot| pages_from(self.mapper.heaps, slot, 0).map(move |page| (slot, page)))
    }
}

impl ParkTarget {
    /// Returns an error for a tag without pools, and for a pool that does not exist.
    ///
    /// # Errors
    /// [`Error::UnknownTag`], [`Error::UnknownPool`].
    pub(crate) fn check<P: Platform>(self, heaps: &Heaps<P>) -> Result<(), Error> {
        let registry = heaps.registry.lock();
        match self {
            Self::Tag(tag) => registry.next_tagged(0, tag).map(|_| ()).ok_or(Error::UnknownTag(tag)),
            Self::Pool(pool) => registry.private_pool(pool).map(|_| ()),
            Self::Stream(_) | Self::Streams | Self::LargeOfStreams => Ok(()),
        }
    }

    /// Returns the first pool, from number `from` on, that belongs to the target as a whole.
    fn next_pool<S: Storage>(self, registry: &Registry<S>, from: u32) -> Option<u32> {
        match self {
            Self::Tag(tag) => registry.next_tagged(from, tag),
            Self::Pool(pool) => registry.private_pool(pool).ok().filter(|&pool| pool >= from),
            Self::Streams | Self::LargeOfStreams => Some(0).filter(|&pool| pool >= from),
            Self::Stream(_) => None,
        }
    }

    /// Calls `act` with the number of each private pool of the target.
    fn each_pool<S: Storage>(self, registry: &mut Registry<S>, mut act: impl FnMut(&mut Registry<S>, u32)) {
        let mut from = 1;
        while let Some(pool) = self.next_pool(registry, from) {
            act(registry, pool);
            from = pool + 1;
        }
    }

    /// Returns the kinds of heaps in each pair that belong to the target.
    fn kinds(self) -> &'static [PoolKind] {
        if self == Self::LargeOfStreams { &[PoolKind::Large] } else { &[PoolKind::Small, PoolKind::Large] }
    }

    /// Iterates over the pairs of the target.
    fn pairs<P: Platform>(self, heaps: &Heaps<P>) -> impl Iterator<Item = PairUse<'_, P>> {
        let stream = if let Self::Stream(stream) = self { heaps.find_pair(0, stream) } else { None };
        let mut from = 0;
        let pools = core::iter::from_fn(move || {
            let pool = self.next_pool(&heaps.registry.lock(), from)?;
            from = pool + 1;
            Some(pool)
        });
        pools.flat_map(|pool| heaps.pairs_of(pool)).chain(stream)
    }

    /// Iterates over the heaps of the target, by slot. The pair of a heap is in use until the next
    /// step.
    fn slots<P: Platform>(self, heaps: &Heaps<P>) -> impl Iterator<Item = u32> {
        self.pairs(heaps).flat_map(move |used| self.kinds().iter().map(move |&kind| used.slot(kind)))
    }

    /// Makes the heaps of the target, including future ones, refuse requests or serve them again.
    fn set_asleep<P: Platform>(self, heaps: &Heaps<P>, asleep: bool) {
        let mut registry = heaps.registry.lock();
        let set = |pair: u32| heaps.set_pair_asleep(pair, self.kinds(), asleep);
        match self {
            Self::Tag(_) | Self::Pool(_) => {
                self.each_pool(&mut registry, |registry, pool| heaps.set_pool_asleep(registry, pool, asleep));
            }
            // A pair that is in use keeps its stream. If there is no pair, there is nothing to
            // park.
            Self::Stream(stream) => heaps.default_pool.streams.get(stream.0).into_iter().for_each(set),
            Self::Streams | Self::LargeOfStreams => registry.pairs_of(0).for_each(set),
        }
    }
}

/// Takes a turn once no other thread has it. Returns `None` after five seconds.
pub(super) fn wait_for_turn<'a, D: DeviceMemory>(driver: &Driver<D>, turn: &'a Turn) -> Option<Taken<'a>> {
    (0..LOOKS).find_map(|_| {
        let taken = turn.try_take();
        if taken.is_none() {
            driver.give_way();
        }
        taken
    })
}

/// Iterates over the pages of the heap in `slot` that start at `from` or after it. The heap is
/// locked during each step, but not between two steps.
fn pages_from<P: Platform>(heaps: &Heaps<P>, slot: u32, mut from: u64) -> impl Iterator<Item = HomePage> {
    core::iter::from_fn(move || {
        let heap = heaps.lock(slot);
        let page = if heap.is_empty() { None } else { heap.sets.pages.from(from) }?;
        from = page.end();
        Some(page)
    })
}

impl<P: Platform> Heaps<P> {
    /// Makes the heaps of a private pool, including future ones, refuse requests or serve them
    /// again.
    fn set_pool_asleep(&self, registry: &mut Registry<P::Storage>, pool: u32, asleep: bool) {
        registry.pools[pool as usize].asleep = asleep;
        registry
            .pairs_of(pool)
            .for_each(|pair| self.set_pair_asleep(pair, &[PoolKind::Small, PoolKind::Large], asleep));
    }

    /// Makes the heaps of some `kinds` in a pair refuse requests or serve them again.
    fn set_pair_asleep(&self, pair: u32, kinds: &[PoolKind], asleep: bool) {
        for &kind in kinds {
            let mut heap = self.slot(slot_of(pair, kind)).heap.lock();
            let ended = heap.ended;
            heap.mark(ended, asleep);
        }
    }

    /// Sets or removes the tag of the private pool named `id`. `uses_pages` is true if pools with
    /// tags place blocks on pages.
    ///
    /// # Errors
    /// [`Error::UnknownPool`]; [`Error::Parked`] if this pool or a pool with `tag` is parked, or
    /// this pool is lent;
    /// [`Error::ParkingRefused`] for a tag of a pool that places no blocks on pages;
    /// [`Error::TableFull`].
    pub(crate) fn tag_pool(&self, id: PoolId, tag: Option<Tag>, uses_pages: bool) -> Result<(), Error> {
        let mut registry = self.registry.lock();
        let pool = registry.private_pool(id)?;
        if tag.is_some() && (!uses_pages || self.shared_pool(pool).is_supplied()) {
            return Err(Error::ParkingRefused(NO_PAGES));
        }
        let other = tag.and_then(|tag| registry.next_tagged(0, tag));
        let is_parked = |pool: u32| registry.pools[pool as usize].asleep && !registry.pools[pool as usize].lent;
        if registry.pools[pool as usize].asleep || other.is_some_and(is_parked) {
            return Err(Error::Parked);
        }
        let falls_back = other.is_some_and(|other| registry.pools[other as usize].falls_back);
        registry.set_tag(pool, tag).map_err(|CapacityError| Error::TableFull("tags"))?;
        registry.pools[pool as usize].falls_back = falls_back;
        self.apply_rules(&registry, pool);
        Ok(())
    }
}
