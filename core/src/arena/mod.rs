//! Everything of one device: its heaps, the pools they belong to, its limits and counters, and the fast path over them.
//!
//! ```text
//! malloc ─ attention = 0? ─ stream → pair (no lock) ─ heap lock ─ best fit ─▶ done
//!                │                                        └─ miss ─▶ reclaim.rs
//!                └─ events pending, routes, limits … ─▶ the attentive path
//! ```
//!
//! Locks, each held alone except where the list says otherwise, never across a call to the device:
//! `registry` (pools, routes, pairs) · `config` · `order` (events) · `frontier` · a heap's lock · `peaks` · the directory's writer lock.
//! `config` and a heap's lock may be taken under `registry`, when pairs are made or vacated and when rules change; nothing is
//! taken under a heap's lock but the trace's. A lane of the planned policy is locked before its heap (`planned/lane.rs`).

pub(crate) mod allocation;
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

use crate::arena::driver::Driver;
use crate::arena::flags::Flags;
use crate::arena::heaps::Slot;
use crate::arena::ledger::Ledger;
use crate::arena::registry::{Registry, SharedPool};
use crate::config::rounding::INTERVALS;
use crate::config::{Config, Policy};
use crate::device::DeviceMemory;
use crate::page_map::PageMap;
use crate::stats::DevicePeaks;
use crate::streams::event_queue::EventQueues;
use crate::streams::frontier::Frontier;
use crate::sync::{AtomicU32, CachePadded, Lock};
use crate::tables::Storage;
use crate::trace::call_sites::CallSites;
use crate::trace::ring::Trace;
use lock_api::Mutex;

/// The device `Arena::place`s its segments as.
pub(crate) struct Arena<D, R: Lock, S: Storage> {
    pub driver: Driver<D>,
    /// Number of the device in the allocator.
    pub number: u32,
    pub policy: Policy,
    /// What sizes are multiples of, in bytes: a power of two.
    unit: u64,
    /// The largest size of the small pool, in bytes; 0 if there is none.
    small_max: u64,
    /// Conditions that keep requests off the fast path.
    pub flags: Flags,
    /// The divisions in force, one word an interval.
    divisions: [AtomicU32; INTERVALS],
    /// Streams of the default pool, beside the other pools so that the fast path reaches them directly.
    pub default_pool: SharedPool<S>,
    /// Private pools; entry `p` is pool `p`, entry 0 is not used.
    pub pools: S::OnceTable<SharedPool<S>>,
    /// Slots of pairs: even ones small, odd ones large.
    pub slots: S::OnceTable<Slot<R, S>>,
    pub registry: Mutex<R, Registry<S>>,
    pub config: Mutex<R, Config>,
    pub order: CachePadded<Mutex<R, EventQueues<S>>>,
    pub frontier: Mutex<R, Frontier<S>>,
    /// The planned policy, if it comes before the one that this arena has.
    #[cfg(feature = "alloc")]
    pub planned: Option<alloc::boxed::Box<crate::planned::lanes::PlanServer<R>>>,
    /// Held by the one who settles the peaks: the slot that was settled last.
    peaks: CachePadded<Mutex<R, u32>>,
    pub totals: CachePadded<DevicePeaks>,
    /// Bytes held from the device, and the limit.
    pub ledger: Ledger,
    /// 0 ⟺ the free blocks are searched again after a wait for events.
    pub single_search: AtomicU32,
    /// Slots of heaps whose streams have ended, in which a segment became wholly free since.
    pub ended: Mutex<R, S::Table<u32>>,
    /// How many `ended` holds; written under its lock.
    pub ended_count: AtomicU32,
    /// Not 0 ⟺ so many pairs exist that the caches of idle ones are to be released.
    pub idle_due: AtomicU32,
    pub trace: CachePadded<Trace<R, S>>,
    pub sites: CallSites<R>,
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
    pub(crate) fn new(device: D, number: u32, config: &Config) -> Self {
        let arena = Self {
            driver: Driver::new(device),
            number,
            policy: config.policy(),
            unit: config.policy().unit(),
            small_max: config.policy().small_max(),
            flags: Flags::new(),
            divisions: core::array::from_fn(|_| AtomicU32::new(0)),
            default_pool: SharedPool::default(),
            pools: S::OnceTable::default(),
            slots: S::OnceTable::default(),
            registry: Mutex::new(Registry::default()),
            config: Mutex::new(config.clone()),
            order: CachePadded(Mutex::new(EventQueues::default())),
            frontier: Mutex::new(Frontier::default()),
            #[cfg(feature = "alloc")]
            planned: config
                .planned()
                .map(|options| alloc::boxed::Box::new(crate::planned::lanes::PlanServer::new(options))),
            peaks: CachePadded(Mutex::new(0)),
            totals: CachePadded(DevicePeaks::new(config.max_split_size())),
            ledger: Ledger::new(),
            single_search: AtomicU32::new(0),
            ended: Mutex::new(S::Table::default()),
            ended_count: AtomicU32::new(0),
            idle_due: AtomicU32::new(0),
            trace: CachePadded::default(),
            sites: CallSites::default(),
        };
        arena.flags.set(flags::DIRECT, config.policy() == Policy::Direct);
        arena.apply_config();
        arena
    }
}
