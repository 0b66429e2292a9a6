//! One device: its heaps, its pools, its limit and its counters, and every operation that takes more than one of them.
//!
//! ```text
//! malloc · free                 one heap's lock, nothing else
//!   └─▶ reclaim                 the ladder: events, cache, device, other pools
//!         ├─▶ obtain · expand   more memory from the device
//!         └─▶ release           memory back to the device
//! heaps · registry · pools      pairs of heaps for streams and pools
//! planned · plan_cycle · …      requests served from plans
//! driver · ledger · flags       calls to the device, bytes held, conditions
//! ```
//!
//! Each file is one of these parts and adds methods to [`Arena`], or to [`OnDevice`] if it adds or removes segments. Locks and
//! their order are in ARCHITECTURE.md. No lock is held across a call to the device.

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
mod invalid_pointer;
mod invariants;
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
use crate::sync::{AtomicU32, CachePadded, Lock, Rank, Ranked};
use crate::tables::Storage;
use crate::trace::call_sites::CallSites;
use crate::trace::ring::Trace;

/// All state of one device: its heaps, private pools, memory limit and statistics. `&self` methods may be called from any thread.
pub(crate) struct Arena<D, R: Lock, S: Storage> {
    pub driver: Driver<D>,
    /// The number of the device in the allocator.
    pub number: u32,
    /// The policy, which never changes: [`Allocator::configure`](crate::Allocator::configure) leaves it as it is.
    pub policy: Policy,
    /// Sizes are multiples of this many bytes, a power of two.
    unit: u64,
    /// The largest size of the small pool, in bytes; 0 if there is none.
    small_max: u64,
    /// Conditions that keep requests off the fast path.
    pub flags: Flags,
    /// `roundup_power2_divisions`, one word for each interval. Read while [`flags::ROUNDING`] is set.
    divisions: [AtomicU32; INTERVALS],
    /// The default pool. In place, so that the fast path reaches its streams with no lookup of the pool.
    pub default_pool: SharedPool<S>,
    /// Private pools. Entry `p` is pool `p`; entry 0 is not used.
    pub pools: S::OnceTable<SharedPool<S>>,
    /// The heaps: pair `p` has its small heap in slot `2 · p` and its large one in slot `2 · p + 1`. Slots are never removed.
    pub slots: S::OnceTable<Slot<R, S>>,
    /// Which pools, routes and pairs exist.
    pub registry: Ranked<R, Registry<S>>,
    /// The configuration in force.
    pub config: Ranked<R, Config>,
    /// Blocks that wait for events.
    pub order: CachePadded<Ranked<R, EventQueues<S>>>,
    /// Blocks that wait for the safe frontier.
    pub frontier: Ranked<R, Frontier<S>>,
    /// The planned policy, if it is configured. `policy` is then its fallback.
    #[cfg(feature = "alloc")]
    pub planned: Option<alloc::boxed::Box<crate::planned::lanes::PlanServer<R>>>,
    /// Locked while peaks are reconciled. Holds the slot for which that was done last.
    peaks: CachePadded<Ranked<R, u32>>,
    /// Peaks and event counts of the device.
    pub totals: CachePadded<DevicePeaks>,
    /// Bytes held from the device, and the limit.
    pub ledger: Ledger,
    /// 0 ⟺ a request searches the free blocks again after it has waited for events.
    pub single_search: AtomicU32,
    /// Heaps of ended streams in which a segment became wholly free since: a queue of slot numbers.
    pub ended: Ranked<R, S::Table<u32>>,
    /// The length of `ended`, which is read without its lock. Written under the lock.
    pub ended_count: AtomicU32,
    /// Not 0 ⟺ the caches of idle pairs are to be released before more memory is obtained.
    pub idle_due: AtomicU32,
    /// The recorded events.
    pub trace: CachePadded<Trace<R, S>>,
    /// The call sites of blocks and segments.
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
            registry: Ranked::new(Rank::Registry, Registry::default()),
            config: Ranked::new(Rank::Config, config.clone()),
            order: CachePadded(Ranked::new(Rank::EventQueue, EventQueues::default())),
            frontier: Ranked::new(Rank::Frontier, Frontier::default()),
            #[cfg(feature = "alloc")]
            planned: config
                .planned()
                .map(|options| alloc::boxed::Box::new(crate::planned::lanes::PlanServer::new(options))),
            peaks: CachePadded(Ranked::new(Rank::Peaks, 0)),
            totals: CachePadded(DevicePeaks::new(config.max_split_size())),
            ledger: Ledger::new(),
            single_search: AtomicU32::new(0),
            ended: Ranked::new(Rank::Ended, S::Table::default()),
            ended_count: AtomicU32::new(0),
            idle_due: AtomicU32::new(0),
            trace: CachePadded::default(),
            sites: CallSites::default(),
            #[cfg(feature = "paranoid")]
            schedule: checks::Schedule::default(),
        };
        arena.flags.set(flags::DIRECT, config.policy() == Policy::Direct);
        arena.apply_config();
        arena
    }
}
