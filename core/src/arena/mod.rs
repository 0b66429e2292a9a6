//! One device: its heaps, its pools, its limit and its counters, and every operation on several of
//! them.
//!
//! ```text
//! malloc · free                 one heap's lock, nothing else
//!   └─▶ ladder                  the steps without a fitting block
//!         ├─▶ waits/            pending memory: polled, ordered after, waited for
//!         ├─▶ compact           the budget for held memory
//!         ├─▶ obtain            more memory from the device
//!         └─▶ give/             memory back to the device
//! paging/                       memory on pages: heaps, elastic ranges, parking
//! plans/                        requests served from plans
//! idle/ · hosted/               idle memory given back by its worth · copies, snapshots
//! debug/                        guarded blocks, what is written to blocks, watched frees
//! heaps/ · routes · vacate      pairs of heaps for streams and pools, and their end
//! driver · ledger · flags       calls to the device, bytes held, conditions
//! ```
//!
//! A part with its own state is a type: [`Heaps`], [`Settings`], [`Plans`], [`Paging`], [`Waits`],
//! [`Driver`], [`Ledger`], and others. The contents of a part are private to its folder. An
//! operation is a method of the part that it needs, and takes the other parts as arguments by type.
//! If it needs several, it is a method of a view that has just these: [`Recorder`], [`Counters`];
//! [`DeviceWaits`] for blocks that wait, [`Holdings`] for memory given back, and for virtual memory
//! [`Mapper`], [`HeapMapper`], [`RangeMapper`], [`Stitcher`]. An operation that needs most of them,
//! like a request or a free, is a method of [`Arena`], or of [`OnDevice`] if it needs the page map,
//! too. An operation of a view takes the device as an argument if it frees blocks, searches for
//! them, or releases the cache. Locks and their order are in ARCHITECTURE.md. No lock is held
//! across a call to the device.

pub(crate) mod allocation;
#[cfg_attr(not(feature = "paranoid"), path = "no_checks.rs")]
pub(crate) mod checks;
mod compact;
pub(crate) mod debug;
mod driver;
pub(crate) mod flags;
mod forecast;
mod free;
pub(crate) mod give;
pub(crate) mod heaps;
pub(crate) mod holdings;
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
pub(crate) mod platform;
pub(crate) mod policy;
pub(crate) mod request;
mod routes;
pub(crate) mod settings;
mod tenants;
mod tracing;
pub(crate) mod tuning;
mod vacate;
pub(crate) mod waits;

use crate::arena::debug::DebugLayer;
use crate::arena::driver::Driver;
use crate::arena::heaps::{Heaps, Slot};
use crate::arena::holdings::Holdings;
use crate::arena::idle::IdleMemory;
use crate::arena::ledger::{Ledger, fraction_of};
use crate::arena::paging::Paging;
use crate::arena::paging::heap_mapper::HeapMapper;
use crate::arena::paging::mapper::Mapper;
use crate::arena::paging::ranges::RangeMapper;
use crate::arena::paging::stitched::Stitcher;
use crate::arena::peaks::{Counters, Peaks};
use crate::arena::plans::{PlanSwitch, Plans};
pub(crate) use crate::arena::platform::{Built, OwnerMap, Platform};
use crate::arena::request::Request;
use crate::arena::settings::Settings;
use crate::arena::tracing::{History, Recorder};
use crate::arena::tuning::TuningState;
use crate::arena::waits::{DeviceWaits, Waits};
use crate::config::rounding::PoolKind;
use crate::config::{Config, Guard};
use crate::device::{DeviceError, ErrorKind, Host, MemoryInfo};
use crate::error::Error;
use crate::heap::Outcome;
use crate::heap::split_rules::{PoolMemory, Rules, Source};
use crate::sync::{Rank, Ranked, empty, empty_by};
use crate::trace::CallSite;

/// All state of one device: its heaps, private pools, memory limit and statistics. `&self` methods
/// may be called from any thread.
pub(crate) struct Arena<P: Platform> {
    /// The device, and the conditions of the moment.
    pub driver: Driver<P::Device>,
    /// The policy and the active configuration.
    pub settings: Settings<P::Lock>,
    /// The heaps, and the pairs and pools to which they belong.
    pub heaps: Heaps<P>,
    /// The planned policy, if it is configured. The policy of `settings` is then its fallback.
    pub plans: Plans<P::Lock>,
    /// The memory on pages.
    pub paging: Paging<P>,
    /// Guarded blocks, and values written to blocks and checked.
    pub debug: DebugLayer,
    /// Freed blocks that wait for the device.
    pub waits: Waits<P>,
    /// The knowledge of `reclaim:auto`, and its budget.
    pub idle: Ranked<P::Lock, IdleMemory>,
    /// Peaks and event counts.
    pub peaks: Peaks<P::Lock>,
    /// Bytes held from the device, and the limit.
    pub ledger: Ledger,
    /// The work of `tune:auto`, and the settings that it has replaced.
    pub tuning: Ranked<P::Lock, TuningState>,
    /// Records of blocks and segments that are kept in addition to the trace.
    pub history: History<P::Lock>,
    #[cfg(feature = "paranoid")]
    schedule: checks::Schedule,
}

/// A device in its allocator: the arena, which this dereferences to, and the page map that all
/// devices share. Requests and frees are methods of this type. Other operations are methods of
/// [`Holdings`], of [`DeviceWaits`], and of the parts.
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

impl<'a, P: Platform> OnDevice<'a, P> {
    /// Returns the memory that the device holds.
    pub(crate) fn holdings(self) -> Holdings<'a, P> {
        let Arena { driver, settings, heaps, paging, waits, peaks, ledger, history, .. } = self.arena;
        let pages = self.pages;
        Holdings { driver, settings, heaps, paging, ledger, peaks, pages, waits, history }
    }

    /// Returns the waits of the device.
    #[inline(always)]
    pub(crate) fn waiting(self) -> DeviceWaits<'a, P, Self> {
        DeviceWaits { waits: &self.arena.waits, outside: self }
    }

    /// Returns the switch between plans and heaps, if the configuration has the planned policy.
    pub(crate) fn plan_switch(self) -> Option<PlanSwitch<'a, P>> {
        PlanSwitch::of(self.holdings(), &self.arena.plans)
    }

    /// Returns the operations on virtual memory, if the device has any.
    pub(crate) fn mapper(self) -> Option<Mapper<'a, P>> {
        self.holdings().mapper()
    }

    /// Returns the operations on the pages of heaps, if the device has virtual memory.
    pub(crate) fn heap_mapper(self) -> Option<HeapMapper<'a, P>> {
        self.holdings().heap_mapper()
    }

    /// Returns the operations on elastic ranges.
    ///
    /// # Errors
    /// [`Error::Device`] of the kind [`ErrorKind::Unsupported`] if the device has no virtual
    /// memory.
    pub(crate) fn require_ranges(self) -> Result<RangeMapper<'a, P>, Error> {
        RangeMapper::of(self).ok_or(DeviceError::new(ErrorKind::Unsupported, 0).into())
    }

    /// Returns the operations of the stitched policy, if the policy is active and the device has
    /// virtual memory.
    pub(crate) fn stitcher(self) -> Option<Stitcher<'a, P>> {
        self.holdings().stitcher()
    }
}

empty_by! {
    [P: Platform] Arena<P> = Self {
        driver: empty!(),
        settings: empty!(),
        heaps: empty!(),
        plans: empty!(),
        paging: empty!(),
        debug: empty!(),
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
    /// Starts the empty arena for a device, before another thread can find it. `memory` is the
    /// memory of the device, and is given if `config` limits the allocator to a fraction of it. Of
    /// the device, at most the clock is read.
    pub(crate) fn start(&self, device: P::Device, number: u32, config: &Config, memory: Option<MemoryInfo>) {
        self.driver.start(device);
        self.settings.start::<P::Storage>(config);
        self.heaps.start(number, config.policy());
        self.waits.start(config.policy().traits().moves_pages);
        self.plans.start(config);
        self.debug.start(&self.driver.flags, config);
        self.peaks.device.start(config.max_split_size());
        self.driver.flags.set(flags::DIRECT, !config.policy().traits().caches);
        if let Some(memory) = memory {
            self.driver.note_memory(memory, 0);
            self.ledger.set_limit(fraction_of(config.per_process_memory_fraction(), memory.total));
        }
        self.apply_config();
        self.recorder().follow_tuning(&self.settings, &self.tuning);
    }

    /// Returns the bytes for which a release failed, of the device and of the host.
    pub(crate) fn leaked_bytes(&self) -> u64 {
        self.ledger.leaked() + self.paging.spilled.leaked()
    }

    /// Returns the length in bytes of the segment that the device would be asked for to serve a
    /// request.
    pub(crate) fn segment_bytes(&self, request: &Request) -> u64 {
        self.settings.segment_bytes(&self.driver, &self.heaps, &self.ledger, request)
    }

    /// Applies the configuration and the limit to the flags, the rounding and the rules of every
    /// heap. The registry is locked, so no other thread makes a heap.
    pub(crate) fn apply_config(&self) {
        // Lock order: registry, config, then one heap at a time.
        let mut registry = self.heaps.registry.lock();
        let mut config = self.settings.config.lock();
        // The policy and the plans are fixed when the arena is made.
        config.set_policy(self.settings.policy());
        self.plans.pin(&mut config);
        let mut config = config.clone();
        self.driver.flags.set(flags::ROUNDING, self.settings.set_rounding(&config));
        // The fence for a guarded block is recorded right at the free, so frees are not gathered: a
        // later fence would cover work that the free does not know about.
        let is_guarded = config.guard() != Guard::Off;
        self.driver.flags.set(flags::GUARDED, is_guarded);
        let gathers = (!self.settings.policy().traits().follows_pytorch || !config.parity()) && !is_guarded;
        self.driver.flags.set(flags::GATHERS, gathers);
        self.driver.flags.set(flags::HAS_GATHERED, gathers || self.driver.flags.has(flags::HAS_GATHERED));
        self.driver.flags.set(flags::REUSES, config.graph_capture_record_stream_reuse());
        // From now on, blocks that wait already are polled in the way that the configuration says.
        self.waits.set_flags(&self.driver.flags);
        let limited = self.ledger.limit_if_set().is_some();
        self.driver.flags.set(flags::AGES, limited && config.garbage_collection_threshold().is_some());
        let ages = self.driver.flags.has(flags::AGES);
        // Segments are ordinary until the device is known to have virtual memory.
        let virtual_memory = self.driver.has_virtual_memory();
        config.set_expandable_segments(virtual_memory && config.expandable_segments());
        registry.rules = PoolMemory::ALL.map(|memory| {
            [PoolKind::Small, PoolKind::Large].map(|kind| {
                let source = self.settings.policy().source(kind, &config, virtual_memory, memory);
                Rules::new(&config, kind, ages, source)
            })
        });
        let is_suballocated = self.settings.policy().traits().suballocated.is_some();
        let are_plain = registry.rules[PoolMemory::Plain as usize].iter().all(Rules::are_plain);
        self.driver.flags.set(flags::RULES, is_suballocated || !are_plain);
        for slot in self.heaps.slot_numbers() {
            // `lock` sets the clock by the old rules: a heap that starts to age now has a stale
            // clock until it is locked again.
            let mut heap = self.heaps.lock(slot);
            let is_supplied = heap.rules.source == Source::Host;
            let rules = registry.rules_of(heap.pool, heap.rules.kind, is_supplied);
            heap.set_rules(rules);
        }
    }

    /// Replaces the program's own configuration, and applies it.
    pub(crate) fn configure(&self, config: &Config) {
        self.settings.replace(config, &self.tuning);
        self.apply_config();
        self.recorder().follow_tuning(&self.settings, &self.tuning);
    }

    /// Asks the device for virtual memory until the device is known to have it. No lock is held,
    /// because the question may open the device.
    #[inline]
    fn learn_virtual_memory(&self) {
        if !self.driver.has_virtual_memory() {
            self.ask_for_virtual_memory();
        }
    }

    /// Makes heaps expandable if the configuration says so and the device has virtual memory. Tells
    /// the host once if the configuration needs it and the device has none.
    #[cold]
    fn ask_for_virtual_memory(&self) {
        if self.driver.finds_virtual_memory() {
            self.apply_config();
        } else if self.settings.uses_pages(PoolMemory::Plain) && self.driver.misses_virtual_memory() {
            self.driver.device().on_missing_virtual_memory();
        }
    }

    /// Asks the host for the current call site if a trace is recorded, and returns 0 otherwise. No
    /// lock may be held, because the host may call the allocator.
    #[inline]
    fn call_site(&self, site: CallSite) -> u32 {
        if self.driver.flags.has(flags::TRACE) { self.driver.device().call_site(site) } else { 0 }
    }

    /// Records an event, if a trace is recorded.
    #[inline]
    fn trace(&self, record: impl FnOnce(Recorder<'_, P>)) {
        if self.driver.flags.has(flags::TRACE) {
            record(self.recorder());
        }
    }

    /// Returns the recorder of events, for callers that know that a trace is recorded.
    #[inline(always)]
    pub(crate) fn recorder(&self) -> Recorder<'_, P> {
        Recorder { driver: &self.driver, heaps: &self.heaps, history: &self.history }
    }

    /// Returns the counters of the device.
    #[inline(always)]
    pub(crate) fn counters(&self) -> Counters<'_, P> {
        Counters { heaps: &self.heaps, ranges: self.paging.range_counters() }
    }

    /// Returns the value of a heap operation, after reconciling the peaks if the operation made
    /// them stale. The caller has unlocked the heap.
    #[inline]
    fn reconcile<T>(&self, slot: &Slot<P>, done: Outcome<T>) -> T {
        self.settle_peaks(slot, done.peaks_stale);
        done.value
    }

    /// Reconciles the peaks if they are stale.
    #[inline(always)]
    fn settle_peaks(&self, slot: &Slot<P>, peaks_stale: bool) {
        if peaks_stale {
            self.reconcile_peaks(slot);
        }
    }

    /// Reconciles the peaks for a heap that rose above a threshold, or after its stream has ended.
    /// The fast path tests one flag for both.
    ///
    /// Not inlined, because the callers have both arguments in registers, and would keep the
    /// address of the counters for this alone.
    #[cold]
    #[inline(never)]
    fn reconcile_peaks(&self, slot: &Slot<P>) {
        self.peaks.reconcile_slot(&self.counters(), slot);
    }

    /// Returns the number of the device in the allocator.
    pub(crate) fn number(&self) -> u32 {
        self.heaps.device()
    }
}
