//! The policy, configuration and memory limit of one device: how requests are rounded, and which
//! rules the heaps obey.

use crate::arena::flags;
use crate::config::rounding::{Divisions, INTERVALS, PoolKind, divide};
use crate::config::{Config, Policy};
use crate::heap::split_rules::PoolMemory;
#[cfg(feature = "alloc")]
use crate::suballoc::SubAllocators;
use crate::sync::{AtomicU32, AtomicU64, Lock, Ordering, Rank, Ranked, impl_empty};
use crate::tables::Storage;
use spin::Once;

/// The policy and the configuration of one device, and the values that rounding derives from both.
pub(crate) struct Settings<R: Lock> {
    /// The policy. It never changes after the start:
    /// [`Allocator::configure`](crate::Allocator::configure) leaves it as it is.
    policy: Once<Policy>,
    /// The unit of sizes minus one, where the unit is a power of two in bytes. These are the bits
    /// that are clear in every size. A separate word, because the fast path reads it.
    below_unit: AtomicU64,
    /// The largest size of the small pool in bytes, or 0 if there is none. A separate word, because
    /// the fast path reads it.
    small_max: AtomicU64,
    /// The rule for sizes: [`DIVIDED`], [`BY_FUNCTION`], or from [`BY_NUMBER`] on. Read while
    /// [`flags::ROUNDING`] is set.
    rounding: AtomicU32,
    /// The bytes that are added to a request before it is rounded (`canary`). Read while
    /// [`flags::ROUNDING`] is set.
    margin: AtomicU64,
    /// The setting `roundup_power2_divisions`, one word for each interval. Read while
    /// [`flags::ROUNDING`] is set.
    divisions: [AtomicU32; INTERVALS],
    /// The active configuration.
    pub config: Ranked<R, Config>,
    /// The number of segments given back for one of another size, on a device that
    /// [pins](crate::Segments::pins).
    pub exchanges: AtomicU32,
    /// 0 ⟺ a request searches the free blocks again after it has waited for events.
    pub single_search: AtomicU32,
}

impl_empty! {
    [R: Lock] Settings<R> {
        policy: Once::new(),
        below_unit,
        small_max,
        rounding,
        margin,
        divisions,
        config: Ranked::new(Rank::Config, Config::new()),
        exchanges,
        single_search,
    }
}

impl<R: Lock> Settings<R> {
    /// Sets the policy and the configuration, which
    /// [`apply_config`](crate::arena::Arena::apply_config) activates.
    pub(super) fn start<S: Storage>(&self, config: &Config) {
        self.set_policy::<S>(config.policy());
        self.config.lock().clone_from(config);
    }

    fn set_policy<S: Storage>(&self, policy: Policy) {
        self.policy.call_once(|| policy);
        self.below_unit.store(policy.unit() - 1, Ordering::Relaxed);
        self.small_max.store(policy.small_max(), Ordering::Relaxed);
        self.rounding.store(rounding::<S>(policy), Ordering::Relaxed);
    }

    /// Returns the policy.
    #[inline]
    pub(crate) fn policy(&self) -> Policy {
        self.policy.get().copied().unwrap_or_default()
    }

    /// Returns a copy of the settings for another device, with `config` active.
    pub(super) fn duplicate<S: Storage>(&self, config: Config) -> Self {
        let copy = Self {
            divisions: core::array::from_fn(|at| AtomicU32::new(self.divisions[at].load(Ordering::Relaxed))),
            config: Ranked::new(Rank::Config, config),
            single_search: AtomicU32::new(self.single_search.load(Ordering::Relaxed)),
            margin: AtomicU64::new(self.margin.load(Ordering::Relaxed)),
            ..Self::default()
        };
        copy.set_policy::<S>(self.policy());
        copy
    }

    /// Returns a copy of the active configuration.
    pub(crate) fn copy(&self) -> Config {
        self.config.lock().clone()
    }

    /// Returns whether pools with this kind of `memory` place blocks on pages, on a device with
    /// virtual memory.
    pub(crate) fn uses_pages(&self, memory: PoolMemory) -> bool {
        self.policy().uses_pages(&self.config.lock(), memory)
    }

    /// Returns the size of the block for a request of `bytes`, which is positive and below
    /// [`MAX_REQUEST`](crate::units::MAX_REQUEST). The result may exceed that limit. `word` is the
    /// word of flags.
    #[cfg_attr(
        not(feature = "alloc"),
        expect(clippy::extra_unused_type_parameters, reason = "sub-allocators need a heap")
    )]
    #[inline(always)]
    pub(super) fn round<S: Storage>(&self, word: flags::FlagWord, bytes: u64) -> u64 {
        // Nearly every configuration rounds only to the unit, so the fast path tests for this with
        // one bit.
        if word & flags::ROUNDING == 0 {
            return self.round_to_unit(bytes);
        }
        let rounding = self.rounding.load(Ordering::Relaxed);
        #[cfg(feature = "alloc")]
        if rounding >= BY_NUMBER {
            let largest = || self.small_max.load(Ordering::Relaxed);
            let size = S::SubAllocators::round(rounding - BY_NUMBER, bytes, largest);
            return size.unwrap_or_else(|| self.round_to_unit(bytes));
        }
        if rounding == DIVIDED { self.divide(bytes) } else { self.round_by_function(bytes) }
    }

    /// Rounds by the function of the policy's row. Sizes above the largest that the policy's
    /// sub-allocator serves are rounded to the unit.
    #[inline(never)]
    fn round_by_function(&self, bytes: u64) -> u64 {
        let largest = self.small_max.load(Ordering::Relaxed);
        let is_served = largest == 0 || bytes <= largest;
        let round = self.policy().rules().and_then(|rules| rules.round).filter(|_| is_served);
        round.map_or_else(|| self.round_to_unit(bytes), |round| round(bytes))
    }

    /// Adds the margin, which only policies use that round in this way, and rounds up according to
    /// `roundup_power2_divisions`. Out of line, because few programs set either.
    #[inline(never)]
    fn divide(&self, bytes: u64) -> u64 {
        let bytes = bytes + self.margin.load(Ordering::Relaxed);
        divide(bytes, |interval| self.divisions[interval].load(Ordering::Relaxed))
    }

    /// Raises the budget of `compact` from `tight` to `wide`. Any other budget was chosen by the
    /// program, and stays. Returns whether the configuration has changed, which the caller must
    /// apply.
    pub(in crate::arena) fn raise_budget(&self, tight: f64, wide: f64) -> bool {
        let mut config = self.config.lock();
        let is_tight = config.compact().is_some_and(|budget| (budget - tight).abs() < f64::EPSILON);
        is_tight && config.set_compact(Some(wide)).is_ok()
    }

    /// Rounds sizes up to `divisions` steps in each doubling from now on, once the settings are
    /// applied, unless they say how. Returns whether the settings have changed.
    pub(in crate::arena) fn round_up(&self, divisions: Divisions) -> bool {
        let mut config = self.config.lock();
        let is_unset = *config.roundup_power2_divisions() == Divisions::NONE;
        if is_unset {
            config.set_roundup_power2_divisions(divisions);
        }
        is_unset
    }

    /// Writes the values that rounding derives from a configuration. Returns whether anything but
    /// rounding to the unit is needed.
    pub(super) fn set_rounding(&self, config: &Config) -> bool {
        let divisions = config.roundup_power2_divisions().intervals();
        for (word, &divisions) in self.divisions.iter().zip(divisions) {
            word.store(divisions, Ordering::Relaxed);
        }
        let divided = divisions.iter().any(|&divisions| divisions > 1);
        let otherwise = self.rounding.load(Ordering::Relaxed) != DIVIDED;
        let margin = config.canary_margin();
        self.margin.store(margin, Ordering::Relaxed);
        divided || otherwise || margin != 0
    }

    /// Rounds up to a multiple of the policy's unit, a power of two.
    #[inline(always)]
    pub(super) fn round_to_unit(&self, bytes: u64) -> u64 {
        let below = self.below_unit.load(Ordering::Relaxed);
        (bytes + below) & !below
    }

    /// Returns the kind of heap for blocks of `size` bytes.
    #[inline(always)]
    pub(super) fn kind_of(&self, size: u64) -> PoolKind {
        if size <= self.small_max.load(Ordering::Relaxed) { PoolKind::Small } else { PoolKind::Large }
    }
}

/// The rule is `roundup_power2_divisions`, if there are any.
const DIVIDED: u32 = 0;
/// The rule is a function of the policy's row.
const BY_FUNCTION: u32 = 1;
/// The rule is one that the tables' sub-allocators know by its number.
const BY_NUMBER: u32 = 2;

/// Returns the rule of a policy for sizes.
#[cfg_attr(not(feature = "alloc"), expect(clippy::extra_unused_type_parameters, reason = "sub-allocators need a heap"))]
fn rounding<S: Storage>(policy: Policy) -> u32 {
    let Some(rules) = policy.rules().filter(|rules| rules.round.is_some()) else { return DIVIDED };
    #[cfg(feature = "alloc")]
    if let Some(number) = S::SubAllocators::rounding(rules) {
        return BY_NUMBER + number;
    }
    let _ = rules;
    BY_FUNCTION
}
