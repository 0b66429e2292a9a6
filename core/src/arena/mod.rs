//! One device: its heaps, its pools, its limit and its counters, and every operation on several of them.
//!
//! ```text
//! malloc · free                 one heap's lock, nothing else
//!   └─▶ ladder · reclaim        the steps without a fitting block
//!         ├─▶ waits/            pending memory: asked for, ordered behind, waited for
//!         ├─▶ compact           the budget for held memory
//!         ├─▶ obtain            more memory from the device
//!         └─▶ give/             memory back to the device
//! paging/                       memory on pages: heaps, elastic ranges, parking
//! plans/                        requests served from plans
//! idle/ · hosted/               idle memory given back by its worth · copies, snapshots, memory of earlier settings
//! heaps/ · routes · vacate      pairs of heaps for streams and pools, and their end
//! driver · ledger · flags       calls to the device, bytes held, conditions
//! ```
//!
//! A part with state of its own is a type: [`Heaps`], [`Settings`], [`Plans`], [`Paging`], [`Waits`], [`Driver`], [`Ledger`],
//! [`Flags`]. The contents of a part are private to its folder. What takes several parts is a method of [`Arena`], or of
//! [`OnDevice`] if it adds or removes segments; what needs virtual memory, a method of
//! [`Mapper`](paging::mapper::Mapper). Locks and their order are in ARCHITECTURE.md. No lock is held across a call to the
//! device.

pub(crate) mod allocation;
#[cfg_attr(not(feature = "paranoid"), path = "no_checks.rs")]
pub(crate) mod checks;
mod compact;
mod driver;
pub(crate) mod explain;
mod filling;
pub(crate) mod flags;
pub(crate) mod forecast;
mod free;
pub(crate) mod give;
mod guarding;
pub(crate) mod heaps;
#[cfg(feature = "alloc")]
pub(crate) mod hosted;
pub(crate) mod idle;
pub(crate) mod invalid_pointer;
mod invariants;
pub(crate) mod ladder;
mod ledger;
mod malloc;
mod obtain;
mod oom;
pub(crate) mod paging;
mod peaks;
#[cfg_attr(not(feature = "alloc"), path = "plans/none.rs")]
pub(crate) mod plans;
pub(crate) mod policy;
mod reclaim;
pub(crate) mod request;
mod routes;
pub(crate) mod settings;
mod tenants;
mod tracing;
pub(crate) mod tuning;
mod vacate;
pub(crate) mod waits;

use crate::arena::driver::Driver;
use crate::arena::guarding::Guarding;
use crate::arena::heaps::Heaps;
use crate::arena::idle::IdleMemory;
use crate::arena::ledger::Ledger;
use crate::arena::paging::Paging;
use crate::arena::paging::departures::GivenUp;
use crate::arena::peaks::Peaks;
use crate::arena::plans::Plans;
use crate::arena::settings::{Settings, fraction_of};
use crate::arena::tracing::History;
use crate::arena::tuning::TuningState;
use crate::arena::waits::Waits;
use crate::config::{Config, Filling};
use crate::device::{DeviceMemory, MemoryInfo};
use crate::page_map::PageMap;
use crate::sync::{Lock, Rank, Ranked, empty, empty_by};
use crate::tables::Storage;
use core::marker::PhantomData;

/// What an allocator is built on: the devices, the lock of a heap, and where the tables live. One parameter for all code of the
/// arena.
pub(crate) trait Platform: Copy + 'static {
    /// The devices.
    type Device: DeviceMemory;
    /// The lock of a heap.
    type Lock: Lock;
    /// Where the tables live.
    type Storage: Storage;
}

/// The platform of devices `D`, locks `R` and tables `S`. A type and no value.
pub(crate) type Built<D, R, S> = PhantomData<fn() -> (D, R, S)>;

impl<D: DeviceMemory, R: Lock, S: Storage> Platform for Built<D, R, S> {
    type Device = D;
    type Lock = R;
    type Storage = S;
}

/// The page map of an allocator on a platform.
pub(crate) type OwnerMap<P> = PageMap<<P as Platform>::Lock, <P as Platform>::Storage>;

/// All state of one device: its heaps, private pools, memory limit and statistics. `&self` methods may be called from any thread.
pub(crate) struct Arena<P: Platform> {
    /// The device, and the conditions of the moment.
    pub driver: Driver<P::Device>,
    /// The policy and the configuration in force.
    pub settings: Settings<P::Lock>,
    /// The heaps, and the pairs and pools to which they belong.
    pub heaps: Heaps<P>,
    /// The planned policy, if it is configured. The policy of `settings` is then its fallback.
    pub plans: Plans<P::Lock>,
    /// The memory on pages.
    pub paging: Paging<P>,
    /// Which requests get a guarded block.
    pub guarding: Guarding,
    /// What waits for the device.
    pub waits: Waits<P>,
    /// What `reclaim:auto` has learned, and its budget.
    pub idle: Ranked<P::Lock, IdleMemory>,
    /// Peaks and event counts.
    pub peaks: Peaks<P::Lock>,
    /// Bytes held from the device, and the limit.
    pub ledger: Ledger,
    /// What `tune:auto` has done, and the settings that it has replaced.
    pub tuning: Ranked<P::Lock, TuningState>,
    /// What is remembered of blocks and segments beside the trace.
    pub history: History<P::Lock>,
    #[cfg(feature = "paranoid")]
    schedule: checks::Schedule,
}

/// A device in its allocator: the arena, and the page map that all devices share. Operations that add or remove segments are
/// methods of this type; all others are methods of [`Arena`], which this dereferences to.
#[derive(Clone, Copy)]
pub(crate) struct OnDevice<'a, P: Platform> {
    pub arena: &'a Arena<P>,
    pub pages: &'a OwnerMap<P>,
}

impl<P: Platform> core::ops::Deref for OnDevice<'_, P> {
    type Target = Arena<P>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        self.arena
    }
}

empty_by! {
    [P: Platform] Arena<P> = Self {
        driver: empty!(),
        settings: empty!(),
        heaps: empty!(),
        plans: empty!(),
        paging: empty!(),
        guarding: empty!(),
        waits: empty!(),
        idle: Ranked::new(Rank::Idle, empty!()),
        peaks: empty!(),
        ledger: empty!(),
        tuning: Ranked::new(Rank::Tuning, empty!()),
        history: empty!(),
        #[cfg(feature = "paranoid")]
        schedule: empty!(),
    }
}

impl<P: Platform> Arena<P> {
    /// Makes the empty arena that of a device, before any other thread finds it. `memory` is that of the device, if `config`
    /// limits the allocator to a fraction. Of the device, at most the clock is read.
    pub(crate) fn start(&self, device: P::Device, number: u32, config: &Config, memory: Option<MemoryInfo>) {
        self.driver.start(device);
        self.settings.start(config);
        self.heaps.start(number, config.policy());
        self.waits.start(config.policy().traits().moves_pages);
        self.plans.start(config);
        self.guarding.start(config);
        self.peaks.device.start(config.max_split_size());
        self.driver.flags.set(flags::DIRECT, !config.policy().traits().caches);
        self.driver.flags.set(flags::WATCHED, config.filling() != Filling::NOTHING);
        if let Some(memory) = memory {
            self.driver.note_memory(memory, 0);
            self.ledger.set_limit(fraction_of(config.per_process_memory_fraction(), memory.total));
        }
        self.apply_config();
        self.follow_tuning();
    }

    /// Returns what memory that is given up while work may use it needs of the arena.
    pub(crate) fn given_up(&self) -> GivenUp<'_, P> {
        GivenUp { driver: &self.driver, heaps: &self.heaps, paging: &self.paging, waits: &self.waits }
    }

    /// Returns the number of the device in the allocator.
    pub(crate) fn number(&self) -> u32 {
        self.heaps.device()
    }
}
