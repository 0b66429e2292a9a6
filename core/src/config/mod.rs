//! Settings of the allocator, as a value ([`Config`]) and in `PyTorch`'s string form.
//!
//! # Settings
//! The policy `planned` accepts the keys of its fallback as well. [`REFERENCE`] has this table as values.
//!
#![doc = include_str!("settings.md")]

mod error;
mod guard;
mod message;
mod notes;
mod parse;
mod passed_on;
mod policy;
mod reference;
pub mod rounding;
mod setting;
mod settings;
#[cfg(test)]
mod tests;

pub use error::{Accepted, ConfigError, WORD_BYTES, Word};
pub(crate) use guard::CANARY_MARGIN;
pub use guard::{Filling, Guard, Zero};
pub use message::nearest_of;
pub use notes::Note;
pub use policy::*;
pub use reference::REFERENCE;
pub use setting::{SettingDefault, SettingReference};

use crate::config::rounding::{Divisions, LARGE_SEGMENT, OWN_SEGMENT_MIN};
use crate::units::{MAX_REQUEST, MIB};
use core::fmt;
use core::ops::RangeInclusive;
use passed_on::PassedOn;
use setting::Exact;

/// The default of `tune_budget_ms`.
const TUNE_BUDGET_MS: u64 = 2000;

/// The largest size that can be set, in MiB: the allocator's own limit, so the sum of two
/// sizes cannot overflow.
const MOST_MIB: u64 = MAX_REQUEST / MIB;

/// The policy of an allocator and its settings. A plain value: an allocator uses a copy, and later
/// changes have no effect until they are passed to the allocator.
///
/// The string form is `PyTorch`'s, so an existing `PYTORCH_CUDA_ALLOC_CONF` works unchanged:
/// `key:value,key:value`. White space is ignored. If a key occurs twice, the last value counts.
///
/// The [module](self#settings) lists all keys. A key of another policy is an error, and the
/// error names the keys of the configured policy. [`Config::notes`] names the keys that are set
/// and have no effect.
///
/// In the list form of `roundup_power2_divisions`, `MIB` is the start of an interval in MiB, a
/// power of two (values above 32768 count as 32768). The divisions of the first interval also hold
/// for all sizes below. `>` sets the divisions of all intervals above the entry before (from 2 MiB
/// on without such an entry). Intervals left out have none.
///
/// The parser differs from `PyTorch` (2.15) where a mistake would pass unnoticed: a missing,
/// doubled or trailing separator, text after a number and an invalid reserve are errors.
///
/// ```
/// use cachalot_core::config::Config;
///
/// let mut config = Config::parse("max_split_size_mb:64,expandable_segments:True")?;
/// assert_eq!(config.max_split_size(), Some(64 << 20));
/// config.update("garbage_collection_threshold:0.8")?;
/// assert_eq!(config.to_string(), "garbage_collection_threshold:0.8,expandable_segments:True");
/// # Ok::<(), cachalot_core::config::ConfigError>(())
/// ```
///
/// Invariant: `max_split_size` and `max_non_split_rounding` ≥ `large_segment_size` > 10 MiB.
#[derive(Clone, PartialEq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a key of its own, and they combine freely")]
pub struct Config {
    policy: Policy,
    planned: Option<Planned>,
    large_segment_size: u64,
    /// `u64::MAX` means "no limit": no size reaches it, so [`Config::is_oversize`] is one
    /// comparison.
    max_split_size: u64,
    max_non_split_rounding: u64,
    garbage_collection_threshold: Option<f64>,
    compact: Option<f64>,
    compact_slack: u64,
    roundup_power2_divisions: Divisions,
    exact_segments: bool,
    expandable_segments: bool,
    expandable_segments_reserve: Option<Reserve>,
    per_process_memory_fraction: f64,
    throw_on_device_oom: bool,
    graph_capture_record_stream_reuse: bool,
    guard: Guard,
    quarantine: u64,
    zero: Zero,
    pattern: Option<u8>,
    canary: bool,
    nvtx: bool,
    parity: bool,
    tunes: bool,
    tune_budget_ms: u64,
    reclaim: bool,
    reclaim_budget: f64,
    passed_on: PassedOn,
}

/// The default of `quarantine`.
const QUARANTINE: u64 = 1024;

/// The default of `reclaim_budget`.
const RECLAIM_BUDGET: f64 = 0.01;

/// The amount of addresses that an expandable segment reserves. The allocator never reserves more
/// than 9/8 of the device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Reserve {
    /// A fraction of the device's memory; positive.
    Fraction(f64),
    /// A size in GiB; positive.
    Gibibytes(f64),
}

impl Reserve {
    /// Returns the bytes to reserve on a device of `total` bytes, rounded down. Saturates at
    /// `u64::MAX`.
    #[must_use]
    pub fn bytes(self, total: u64) -> u64 {
        let bytes = match self {
            Self::Fraction(fraction) => fraction * total as f64,
            Self::Gibibytes(gibibytes) => gibibytes * (1024 * MIB) as f64,
        };
        // The conversion rounds towards zero and saturates.
        bytes as u64
    }

    /// Returns whether the amount is positive and finite.
    fn is_valid(self) -> bool {
        let (Self::Fraction(value) | Self::Gibibytes(value)) = self;
        value.is_finite() && value > 0.0
    }
}

impl fmt::Display for Reserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fraction(fraction) => write!(f, "{}", Exact(*fraction)),
            Self::Gibibytes(gibibytes) => write!(f, "{}G", Exact(*gibibytes)),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::new()
    }
}

impl Config {
    /// Returns `PyTorch`'s defaults.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            policy: Policy::Caching,
            planned: None,
            large_segment_size: LARGE_SEGMENT,
            max_split_size: u64::MAX,
            max_non_split_rounding: LARGE_SEGMENT,
            garbage_collection_threshold: None,
            compact: None,
            compact_slack: 0,
            roundup_power2_divisions: Divisions::NONE,
            exact_segments: false,
            expandable_segments: false,
            expandable_segments_reserve: None,
            per_process_memory_fraction: 1.0,
            throw_on_device_oom: false,
            graph_capture_record_stream_reuse: false,
            guard: Guard::Off,
            quarantine: QUARANTINE,
            zero: Zero::Off,
            pattern: None,
            canary: false,
            nvtx: true,
            parity: true,
            tunes: false,
            tune_budget_ms: TUNE_BUDGET_MS,
            reclaim: false,
            reclaim_budget: RECLAIM_BUDGET,
            passed_on: PassedOn::new(),
        }
    }

    /// Parses `text`. Settings that `text` does not name have their defaults, so an empty string
    /// gives the defaults.
    ///
    /// # Errors
    /// [`ConfigError`] at the first mistake.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let mut config = Self::new();
        settings::apply(&mut config, text)?;
        Ok(config)
    }

    /// Applies settings at run time, with `PyTorch`'s rules. `max_split_size_mb`,
    /// `max_non_split_rounding_mb`, `garbage_collection_threshold` and `roundup_power2_divisions`
    /// fall back to their defaults unless `text` names them. Every other setting stays unless
    /// named. The policy and its options cannot change.
    ///
    /// # Errors
    /// [`ConfigError`] at the first mistake. The configuration is unchanged then.
    pub fn update(&mut self, text: &str) -> Result<(), ConfigError> {
        let mut next = self.clone();
        next.max_split_size = u64::MAX;
        next.max_non_split_rounding = next.large_segment_size;
        next.garbage_collection_threshold = None;
        next.roundup_power2_divisions = Divisions::NONE;
        settings::apply(&mut next, text)?;
        if (next.policy, next.planned) != (self.policy, self.planned) {
            return Err(refused("policy", next.policy_name(), POLICY_STAYS));
        }
        if next.guard != self.guard {
            return Err(refused("guard", next.guard, GUARD_STAYS));
        }
        if (next.zero, next.pattern) != (self.zero, self.pattern) {
            let key = if next.zero == self.zero { "pattern" } else { "zero" };
            return Err(refused(key, "another value", FILLING_STAYS));
        }
        if next.canary != self.canary {
            return Err(refused("canary", "another value", FILLING_STAYS));
        }
        *self = next;
        Ok(())
    }
}

/// Declares methods for reading a field by name, and for setting a field.
macro_rules! fields {
    (
        get { $($(#[$read:meta])* $name:ident: $Type:ty;)* }
        set { $($(#[$set:meta])* $setter:ident = $field:ident: $Value:ty;)* }
    ) => {
        /// Reads the settings. Sizes are in bytes.
        impl Config {$(
            $(#[$read])*
            #[must_use]
            pub const fn $name(&self) -> $Type {
                self.$name
            }
        )*}

        /// Changes the settings.
        impl Config {$(
            $(#[$set])*
            pub fn $setter(&mut self, value: $Value) {
                self.$field = value;
            }
        )*}
    };
}

fields! {
    get {
        /// Returns the rules of placement (`policy`); under the planned policy, those of the
        /// `fallback`.
        policy: Policy;
        /// Returns the options of the planned policy, or `None` under other policies.
        planned: Option<Planned>;
        /// Returns the size of a segment for several large blocks (`large_segment_size_mb`).
        large_segment_size: u64;
        /// Returns the bound on the waste in an oversize block: the block serves a request only if the
        /// difference in size is less (`max_non_split_rounding_mb`). At most [`MAX_REQUEST`], so adding
        /// the bound to a size cannot overflow.
        max_non_split_rounding: u64;
        /// Returns the fraction of the memory limit above which old free blocks are released
        /// (`garbage_collection_threshold`), above 0 and below 1. `None`: never.
        garbage_collection_threshold: Option<f64>;
        /// Returns the budget for memory that is held and not in use (`compact`), as a fraction of the
        /// most that was ever in use. `None`: held memory is not limited by what is in use.
        compact: Option<f64>;
        /// Returns the bytes beyond the budget of `compact` (`compact_slack_mb`).
        compact_slack: u64;
        /// Returns whether a large block gets an ordinary segment of its own size (`exact_segments`).
        exact_segments: bool;
        /// Returns whether new segments grow and shrink in virtual memory (`expandable_segments`).
        expandable_segments: bool;
        /// Returns the addresses that an expandable segment reserves (`expandable_segments_reserve`). `None`: 9/8 of
        /// the device.
        expandable_segments_reserve: Option<Reserve>;
        /// Returns the fraction of each device that this process may reserve, 0 to 1
        /// (`per_process_memory_fraction`). 1: no limit.
        per_process_memory_fraction: f64;
        /// Returns whether a segment beyond
        /// [`per_process_memory_fraction`](Self::per_process_memory_fraction) is refused at once,
        /// without a release or a retry (`throw_on_cudamalloc_oom`).
        throw_on_device_oom: bool;
        /// Returns whether a block freed during a capture may be reused in the same capture once the
        /// graph shows the end of its uses (`graph_capture_record_stream_reuse`).
        graph_capture_record_stream_reuse: bool;
        /// Returns which blocks are guarded (`guard`).
        guard: Guard;
        /// Returns for how many frees of guarded blocks the addresses of a freed one serve no other block (`quarantine`).
        quarantine: u64;
        /// Returns whether a memory checker that listens through NVTX is told of segments and blocks (`nvtx`).
        nvtx: bool;
        /// Returns whether the caching policy repeats each decision of `PyTorch`'s allocator, its known
        /// defects included (`decisions:pytorch`, `parity:True`).
        parity: bool;
        /// Returns whether the settings of placement adjust themselves (`tune:auto`).
        tunes: bool;
        /// Returns the most processor time of a search for settings, in milliseconds (`tune_budget_ms`).
        tune_budget_ms: u64;
    }

    set {
        /// Sets `roundup_power2_divisions`.
        set_roundup_power2_divisions = roundup_power2_divisions: Divisions;
        /// Sets `exact_segments`.
        set_exact_segments = exact_segments: bool;
        /// Sets `expandable_segments`.
        set_expandable_segments = expandable_segments: bool;
        /// Sets `throw_on_cudamalloc_oom`.
        set_throw_on_device_oom = throw_on_device_oom: bool;
        /// Sets `graph_capture_record_stream_reuse`.
        set_graph_capture_record_stream_reuse = graph_capture_record_stream_reuse: bool;
        /// Sets `guard`. Existing allocators keep their guards.
        set_guard = guard: Guard;
        /// Sets `quarantine`, in frees of guarded blocks.
        set_quarantine = quarantine: u64;
        /// Sets `zero`. Existing allocators keep what they write to blocks.
        set_zero = zero: Zero;
        /// Sets `pattern`; `None` writes none. Existing allocators keep what they write to blocks.
        set_pattern = pattern: Option<u8>;
        /// Sets `canary`. Existing allocators keep what they write to blocks.
        set_canary = canary: bool;
        /// Sets `nvtx`: true for `auto`.
        set_nvtx = nvtx: bool;
        /// Sets `decisions` and `parity`, which are two names of one setting: true for `decisions:pytorch`.
        set_parity = parity: bool;
        /// Sets `tune`. The setting has an effect under the caching policy alone.
        set_tunes = tunes: bool;
        /// Sets `reclaim`: true for `auto`.
        set_reclaim = reclaim: bool;
    }
}

/// Reads the settings. Sizes are in bytes.
impl Config {
    /// Returns the name of the policy, as `policy:NAME` spells it.
    #[must_use]
    pub const fn policy_name(&self) -> &'static str {
        if self.planned.is_some() { PLANNED } else { self.policy.name() }
    }

    /// Returns the size from which on blocks are never split and serve only requests of at least
    /// this size (`max_split_size_mb`). `None`: no limit.
    #[inline]
    #[must_use]
    pub const fn max_split_size(&self) -> Option<u64> {
        match self.max_split_size {
            u64::MAX => None,
            bytes => Some(bytes),
        }
    }

    /// Returns whether `size` is at least [`max_split_size`](Self::max_split_size).
    #[inline]
    #[must_use]
    pub const fn is_oversize(&self, size: u64) -> bool {
        size >= self.max_split_size
    }

    /// Returns the steps to which sizes are rounded up (`roundup_power2_divisions`).
    #[inline]
    #[must_use]
    pub const fn roundup_power2_divisions(&self) -> &Divisions {
        &self.roundup_power2_divisions
    }

    /// Returns what is written to blocks (`zero`, `pattern`, `canary`).
    #[must_use]
    pub const fn filling(&self) -> Filling {
        Filling {
            on_alloc: if matches!(self.zero, Zero::OnAlloc) { Some(0) } else { self.pattern },
            on_free: if matches!(self.zero, Zero::OnFree) { Some(0) } else { self.pattern },
            canary: self.canary,
        }
    }

    /// Returns the bytes that each block has beyond its request for a canary, before it is rounded. None under `guard:after`,
    /// whose blocks end with their pages.
    pub(crate) const fn canary_margin(&self) -> u64 {
        if self.canary && !matches!(self.guard, Guard::After) { CANARY_MARGIN } else { 0 }
    }

    /// Returns the part of the time that the driver may take for giving idle memory back and obtaining it
    /// again (`reclaim_budget`), if [`maintain`](crate::Pages::maintain) gives memory back by what it is
    /// worth (`reclaim:auto`). `None`: it does not.
    #[must_use]
    pub fn reclaim(&self) -> Option<f64> {
        self.reclaim.then_some(self.reclaim_budget)
    }

    /// Returns the value of a key that is checked and passed on, and has no effect: in the unit of the key, and 1 for
    /// `True`. `None` for the default, for every other key, and for `expandable_segments_reserve_by_class`, whose
    /// value is no number. Only a string can set such a key.
    #[must_use]
    pub fn passed_on(&self, key: &str) -> Option<u64> {
        self.passed_on.number(key)
    }
}

/// Changes the settings. A method that returns an error has changed nothing.
impl Config {
    /// Sets `policy`, with its options. Existing allocators keep their policy.
    pub fn set_policy(&mut self, policy: impl Into<Policy>) {
        self.policy = policy.into();
    }

    /// Puts the planned policy before the policy, or removes it with `None`. Existing allocators
    /// keep their policy.
    pub fn set_planned(&mut self, planned: Option<Planned>) {
        self.planned = planned;
    }

    /// Sets `large_segment_size_mb`, and `max_non_split_rounding_mb` to the same size. Call this
    /// before setting the two sizes that must not be smaller.
    ///
    /// # Errors
    /// [`ConfigError::Value`] unless more than 10 MiB and at most `max_split_size_mb`.
    pub fn set_large_segment_size_mb(&mut self, mib: u64) -> Result<(), ConfigError> {
        let bytes = in_range("large_segment_size_mb", mib, self.segment_range_mib())?;
        self.large_segment_size = bytes;
        self.max_non_split_rounding = bytes;
        Ok(())
    }

    /// Sets `max_split_size_mb`; `None` means no limit.
    ///
    /// # Errors
    /// [`ConfigError::Value`] if below `large_segment_size_mb` or above 1 EiB.
    pub fn set_max_split_size_mb(&mut self, mib: Option<u64>) -> Result<(), ConfigError> {
        self.max_split_size = match mib {
            Some(mib) => in_range("max_split_size_mb", mib, self.split_range_mib())?,
            None => u64::MAX,
        };
        Ok(())
    }

    /// Sets `max_non_split_rounding_mb`.
    ///
    /// # Errors
    /// [`ConfigError::Value`] if below `large_segment_size_mb` or above 1 EiB.
    pub fn set_max_non_split_rounding_mb(&mut self, mib: u64) -> Result<(), ConfigError> {
        self.max_non_split_rounding = in_range("max_non_split_rounding_mb", mib, self.split_range_mib())?;
        Ok(())
    }

    /// Sets `garbage_collection_threshold`; `None` turns it off.
    ///
    /// # Errors
    /// [`ConfigError::Value`] unless above 0 and below 1.
    pub fn set_garbage_collection_threshold(&mut self, threshold: Option<f64>) -> Result<(), ConfigError> {
        if let Some(value) = threshold.filter(|t| !(*t > 0.0 && *t < 1.0)) {
            return Err(refused("garbage_collection_threshold", Exact(value), THRESHOLD));
        }
        self.garbage_collection_threshold = threshold;
        Ok(())
    }

    /// Sets `compact`; `None` turns it off.
    ///
    /// # Errors
    /// [`ConfigError::Value`] unless from 0 to 1.
    pub fn set_compact(&mut self, budget: Option<f64>) -> Result<(), ConfigError> {
        self.compact = budget.map(|budget| fraction("compact", budget)).transpose()?;
        Ok(())
    }

    /// Sets `expandable_segments_reserve`; `None` means 9/8 of the device, and 4 times the device under `stitched`.
    ///
    /// # Errors
    /// [`ConfigError::Value`] unless positive and finite.
    pub fn set_expandable_segments_reserve(&mut self, reserve: Option<Reserve>) -> Result<(), ConfigError> {
        let key = "expandable_segments_reserve";
        self.expandable_segments_reserve = reserve.map(|r| valid_reserve(key, r)).transpose()?;
        Ok(())
    }

    /// Sets `per_process_memory_fraction`.
    ///
    /// # Errors
    /// [`ConfigError::Value`] unless from 0 to 1.
    pub fn set_per_process_memory_fraction(&mut self, part: f64) -> Result<(), ConfigError> {
        self.per_process_memory_fraction = fraction("per_process_memory_fraction", part)?;
        Ok(())
    }

    /// Takes the settings of placement over from `other`: all that may change while an allocator of
    /// the caching policy lives, and that a search for settings varies. Every other setting stays.
    pub fn take_placement(&mut self, other: &Self) {
        self.large_segment_size = other.large_segment_size;
        self.max_split_size = other.max_split_size;
        self.max_non_split_rounding = other.max_non_split_rounding;
        self.garbage_collection_threshold = other.garbage_collection_threshold;
        self.compact = other.compact;
        self.roundup_power2_divisions = other.roundup_power2_divisions;
        self.exact_segments = other.exact_segments;
        self.expandable_segments = other.expandable_segments;
        self.parity = other.parity;
    }

    /// Sets `reclaim_budget`.
    ///
    /// # Errors
    /// [`ConfigError::Value`] unless from 0 to 1.
    pub fn set_reclaim_budget(&mut self, share: f64) -> Result<(), ConfigError> {
        self.reclaim_budget = fraction("reclaim_budget", share)?;
        Ok(())
    }

    /// Returns the values that `large_segment_size_mb` may take while `max_split_size_mb` stays.
    fn segment_range_mib(&self) -> RangeInclusive<u64> {
        OWN_SEGMENT_MIN / MIB + 1..=(self.max_split_size / MIB).min(MOST_MIB)
    }

    /// Returns the values that `max_split_size_mb` and `max_non_split_rounding_mb` may take.
    fn split_range_mib(&self) -> RangeInclusive<u64> {
        self.large_segment_size / MIB..=MOST_MIB
    }
}

const POLICY_STAYS: Accepted = Accepted::Text("what it was made with: a policy and its options stay");
const GUARD_STAYS: Accepted = Accepted::Text("what it was made with: the guarded blocks stay");
const FILLING_STAYS: Accepted = Accepted::Text("what it was made with: what is written to blocks stays");
const THRESHOLD: Accepted = Accepted::Text("a number above 0 and below 1");
const FRACTION: Accepted = Accepted::Text("a number from 0 to 1");
const RESERVE: Accepted = Accepted::Text("a positive part of the device like `0.5` or a size in GiB like `40G`");

/// Returns the error of a value that `key` does not accept.
fn refused(key: &'static str, value: impl fmt::Display, accepted: Accepted) -> ConfigError {
    ConfigError::Value { key, value: Word::of(value), accepted }
}

/// Returns `value` if it is a fraction.
fn fraction(key: &'static str, value: f64) -> Result<f64, ConfigError> {
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(refused(key, Exact(value), FRACTION)) }
}

/// Converts `mib` to bytes if it is in `range`, which ends at 1 EiB or below.
fn in_range(key: &'static str, mib: u64, range: RangeInclusive<u64>) -> Result<u64, ConfigError> {
    if range.contains(&mib) { Ok(mib * MIB) } else { Err(refused(key, mib, Accepted::mebibytes(range))) }
}

/// Returns `reserve` if it is valid.
fn valid_reserve(key: &'static str, reserve: Reserve) -> Result<Reserve, ConfigError> {
    if reserve.is_valid() { Ok(reserve) } else { Err(refused(key, reserve, RESERVE)) }
}
