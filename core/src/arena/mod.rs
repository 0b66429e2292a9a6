//! Everything of one device: its heaps, the pools they belong to, its limits and counters, and the fast path over them.
//!
//! ```text
//! malloc ─ attention = 0? ─ stream → pair (no lock) ─ heap lock ─ best fit ─▶ done
//!                │                                        └─ miss ─▶ reclaim.rs
//!                └─ events pending, routes, limits … ─▶ the attentive path
//! ```
//!
//! The order of the locks is that of [`Rank`]. No lock is held across a call to the device.

pub(crate) mod allocation;
#[cfg_attr(not(feature = "paranoid"), path = "no_checks.rs")]
pub(crate) mod checks;
mod driver;
mod events;
mod expand;
pub(crate) mod flags;
pub(crate) mod forecast;
mod free;
mod free_at;
pub(crate) mod heaps;
mod ledger;
mod malloc;
#[cfg(not(feature = "alloc"))]
mod no_plans;
mod obtain;
mod oom;
pub(crate) mod pair_state;
mod peaks;
#[cfg(feature = "alloc")]
mod plan_cycle;
#[cfg(feature = "alloc")]
mod plan_switch;
#[cfg(feature = "alloc")]
mod planned;
pub(crate) mod policy;
mod pools;
mod reclaim;
pub(crate) mod registry;
mod release;
pub(crate) mod request;
pub(crate) mod settings;
#[cfg(feature = "alloc")]
mod snapshot;
mod tracing;

use crate::arena::heaps::Slot;
use crate::arena::registry::{Registry, SharedPool};
use crate::config::rounding::INTERVALS;
use crate::config::{Config, Policy};
use crate::device::DeviceMemory;
use crate::page_map::PageMap;
use crate::stats::DevicePeaks;
use crate::streams::event_queue::EventQueues;
use crate::streams::frontier::Frontier;
use crate::sync::{AtomicU32, AtomicU64, CachePadded, Lock, Rank, Ranked};
use crate::tables::Storage;
use crate::trace::call_sites::CallSites;
use crate::trace::ring::Trace;

/// The device `Arena::place`s its segments as.
pub(crate) struct Arena<D, R: Lock, S: Storage> {
    pub memory: D,
    /// Number of the device in the allocator.
    pub number: u32,
    pub policy: Policy,
    /// What sizes are multiples of, in bytes: a power of two.
    unit: u64,
    /// The largest size of the small pool, in bytes; 0 if there is none.
    small_max: u64,
    /// Bits of [`flags`].
    attention: AtomicU32,
    /// The code of the error that lost the context; meaningful while [`flags::LOST`] is set.
    lost: AtomicU64,
    /// The divisions in force, one word an interval.
    divisions: [AtomicU32; INTERVALS],
    /// Streams of the default pool, beside the other pools so that the fast path reaches them directly.
    pub default_pool: SharedPool<S>,
    /// Private pools; entry `p` is pool `p`, entry 0 is not used.
    pub pools: S::OnceTable<SharedPool<S>>,
    /// Slots of pairs: even ones small, odd ones large.
    pub slots: S::OnceTable<Slot<R, S>>,
    pub registry: Ranked<R, Registry<S>>,
    pub config: Ranked<R, Config>,
    pub order: CachePadded<Ranked<R, EventQueues<S>>>,
    /// Calls that record events, because no graph was being captured when they looked.
    recording: AtomicU32,
    pub frontier: Ranked<R, Frontier<S>>,
    /// The planned policy, if it comes before the one that this arena has.
    #[cfg(feature = "alloc")]
    pub planned: Option<alloc::boxed::Box<crate::planned::lanes::PlanServer<R>>>,
    /// Held by the one who settles the peaks: the slot that was settled last.
    peaks: CachePadded<Ranked<R, u32>>,
    pub totals: CachePadded<DevicePeaks>,
    /// Bytes held from the device: what segments take, and what was lost in failed releases.
    pub reserved: CachePadded<AtomicU64>,
    /// The most that may be held; `u64::MAX` for no limit.
    pub limit: AtomicU64,
    /// 0 ⟺ the free blocks are searched again after a wait for events.
    pub single_search: AtomicU32,
    /// Bytes whose release failed. They are never handed out again.
    pub leaked: AtomicU64,
    /// Slots of heaps whose streams have ended, in which a segment became wholly free since.
    pub ended: Ranked<R, S::Table<u32>>,
    /// How many `ended` holds; written under its lock.
    pub ended_count: AtomicU32,
    /// Not 0 ⟺ so many pairs exist that the caches of idle ones are to be released.
    pub idle_due: AtomicU32,
    pub trace: CachePadded<Trace<R, S>>,
    pub sites: CallSites<R>,
    #[cfg(feature = "paranoid")]
    schedule: checks::Schedule,
}

/// A device in its allocator: the arena, and the page map that all devices share. Operations that add or remove segments are
/// methods of this type; all others are methods of [`Arena`], which this dereferences to.
pub(crate) struct OnDevice<'a, D, R: Lock, S: Storage> {
    pub arena: &'a Arena<D, R, S>,
    pub pages: &'a PageMap<R, S>,
}

impl<D, R: Lock, S: Storage> Clone for OnDevice<'_, D, R, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D, R: Lock, S: Storage> Copy for OnDevice<'_, D, R, S> {}

impl<D, R: Lock, S: Storage> core::ops::Deref for OnDevice<'_, D, R, S> {
    type Target = Arena<D, R, S>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        self.arena
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    pub(crate) fn new(memory: D, number: u32, config: &Config) -> Self {
        let arena = Self {
            memory,
            number,
            policy: config.policy(),
            unit: config.policy().unit(),
            small_max: config.policy().small_max(),
            attention: AtomicU32::new(0),
            lost: AtomicU64::new(u64::MAX),
            divisions: core::array::from_fn(|_| AtomicU32::new(0)),
            default_pool: SharedPool::default(),
            pools: S::OnceTable::default(),
            slots: S::OnceTable::default(),
            registry: Ranked::new(Rank::Registry, Registry::default()),
            config: Ranked::new(Rank::Config, config.clone()),
            order: CachePadded(Ranked::new(Rank::EventQueue, EventQueues::default())),
            recording: AtomicU32::new(0),
            frontier: Ranked::new(Rank::Frontier, Frontier::default()),
            #[cfg(feature = "alloc")]
            planned: config
                .planned()
                .map(|options| alloc::boxed::Box::new(crate::planned::lanes::PlanServer::new(options))),
            peaks: CachePadded(Ranked::new(Rank::Peaks, 0)),
            totals: CachePadded(DevicePeaks::new(config.max_split_size())),
            reserved: CachePadded(AtomicU64::new(0)),
            limit: AtomicU64::new(u64::MAX),
            single_search: AtomicU32::new(0),
            leaked: AtomicU64::new(0),
            ended: Ranked::new(Rank::Ended, S::Table::default()),
            ended_count: AtomicU32::new(0),
            idle_due: AtomicU32::new(0),
            trace: CachePadded::default(),
            sites: CallSites::default(),
            #[cfg(feature = "paranoid")]
            schedule: checks::Schedule::default(),
        };
        arena.set(flags::DIRECT, config.policy() == Policy::Direct);
        arena.apply_config();
        arena
    }
}
