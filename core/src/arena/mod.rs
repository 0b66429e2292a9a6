//! One device: its heaps, its pools, its limit and its counters, and every operation that takes more than one of them.
//!
//! ```text
//! malloc · free                 one heap's lock, nothing else
//!   └─▶ ladder · reclaim        the steps without a fitting block: events, cache, device, other pools
//!         ├─▶ compact · quiet   the budget for held memory · what the device has finished with
//!         ├─▶ obtain · expand   more memory from the device
//!         └─▶ give/             memory back to the device
//! idle/                         memory given back by what it is worth, at quiet moments
//! ranges/                       addresses that the program fills with pages and empties
//! deferred · finish             events after a capture, the end of waits
//! heaps/ · routes · vacate      pairs of heaps for streams and pools, and their end
//! parking/                      memory that goes back to the device for a while, at the same addresses
//! plans · planned · plan_…      requests served from plans
//! driver · ledger · flags       calls to the device, bytes held, conditions
//! ```
//!
//! A part with state of its own is a type: [`Heaps`], [`Settings`], [`Plans`], [`Driver`], [`Ledger`], [`Flags`]. What takes
//! several parts is a method of [`Arena`], or of [`OnDevice`] if it adds or removes segments. Locks and
//! their order are in ARCHITECTURE.md. No lock is held across a call to the device.

pub(crate) mod allocation;
mod behind;
mod capture_reuse;
#[cfg_attr(not(feature = "paranoid"), path = "no_checks.rs")]
pub(crate) mod checks;
mod compact;
#[cfg(feature = "alloc")]
pub(crate) mod copy;
mod deferred;
mod driver;
mod events;
mod expand;
pub(crate) mod extents;
mod fences;
mod finish;
pub(crate) mod flags;
pub(crate) mod forecast;
mod free;
mod free_at;
mod gathered;
pub(crate) mod give;
pub(crate) mod heaps;
pub(crate) mod idle;
pub(crate) mod invalid_pointer;
mod invariants;
pub(crate) mod ladder;
mod ledger;
mod malloc;
mod mapper;
mod mapping;
mod obtain;
#[cfg(feature = "alloc")]
pub(crate) mod old_form;
mod oom;
pub(crate) mod ordered;
mod paging;
pub(crate) mod parking;
mod peaks;
#[cfg(feature = "alloc")]
mod plan_cycle;
#[cfg(feature = "alloc")]
mod plan_switch;
#[cfg(feature = "alloc")]
mod planned;
#[cfg_attr(not(feature = "alloc"), path = "no_plans.rs")]
pub(crate) mod plans;
pub(crate) mod policy;
mod polls;
mod quiet;
pub(crate) mod ranges;
mod reclaim;
#[cfg(feature = "alloc")]
pub(crate) mod rehearse;
pub(crate) mod request;
#[cfg(feature = "alloc")]
pub(crate) mod restore;
#[cfg_attr(not(feature = "alloc"), path = "no_retired.rs")]
pub(crate) mod retired;
mod routes;
pub(crate) mod settings;
#[cfg(feature = "alloc")]
mod snapshot;
#[cfg(feature = "alloc")]
mod standstill;
mod stitched;
mod tracing;
pub(crate) mod tuning;
mod vacate;
mod virtual_calls;
mod waits;

use crate::arena::driver::Driver;
use crate::arena::flags::Flags;
use crate::arena::heaps::Heaps;
use crate::arena::idle::IdleMemory;
use crate::arena::ledger::Ledger;
use crate::arena::paging::Paging;
use crate::arena::peaks::Peaks;
use crate::arena::plans::Plans;
use crate::arena::settings::Settings;
use crate::arena::tracing::History;
use crate::arena::tuning::{Tuned, TuningState};
use crate::arena::waits::Waits;
use crate::config::Config;
use crate::device::DeviceMemory;
use crate::page_map::PageMap;
use crate::sync::{CachePadded, Lock, Rank, Ranked};
use crate::tables::Storage;

/// All state of one device: its heaps, private pools, memory limit and statistics. `&self` methods may be called from any thread.
pub(crate) struct Arena<D, R: Lock, S: Storage> {
    pub driver: Driver<D>,
    /// The number of the device in the allocator.
    pub number: u32,
    /// The policy and the configuration in force.
    pub settings: Settings<R>,
    /// Conditions that keep requests off the fast path.
    pub flags: CachePadded<Flags>,
    /// The heaps, and the pairs and pools to which they belong.
    pub heaps: Heaps<R, S>,
    /// The planned policy, if it is configured. The policy of `settings` is then its fallback.
    pub plans: Plans<R>,
    /// The memory that lies on pages.
    pub paging: Paging<R, S>,
    /// What waits for the device.
    pub waits: Waits<R, S>,
    /// What `reclaim:auto` has learned, and its budget.
    pub idle: Ranked<R, IdleMemory>,
    /// Peaks and event counts.
    pub peaks: Peaks<R>,
    /// Bytes held from the device, and the limit.
    pub ledger: Ledger,
    /// What `tune:auto` has done, and the settings that it has replaced.
    pub tuning: Ranked<R, TuningState>,
    /// What is remembered of blocks and segments beside the trace.
    pub history: History<R>,
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
            settings: Settings::new(config),
            flags: CachePadded(Flags::new()),
            heaps: Heaps::new(number, config.policy()),
            plans: Plans::new(config),
            paging: Paging::new(),
            waits: Waits::new(),
            idle: Ranked::new(Rank::Idle, IdleMemory::new()),
            peaks: Peaks::new(config.max_split_size()),
            ledger: Ledger::new(),
            tuning: Ranked::new(Rank::Tuning, TuningState::default()),
            history: History::new(),
            #[cfg(feature = "paranoid")]
            schedule: checks::Schedule::default(),
        };
        arena.flags.set(flags::DIRECT, !config.policy().traits().caches);
        arena.apply_config();
        Tuned(&arena).follow();
        arena
    }
}
