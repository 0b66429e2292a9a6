//! The settings of an allocator, as a value ([`Config`]) and in `PyTorch`'s string form.
//!
//! # Settings
//! The policy `planned` accepts the keys of its fallback as well. [`REFERENCE`] has this table as
//! values, but not the keys of `buddy`, `size_class` and `slab`, because these policies are in the
//! crate `cachalot-policies`.
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
mod suballocation;
mod table;
#[cfg(test)]
mod tests;

pub use crate::suballoc::{OptionReference, Options, Suballocated, Suballocation};
pub use error::{Accepted, ConfigError, WORD_BYTES, Word};
pub(crate) use guard::CANARY_MARGIN;
pub use guard::{Filling, Guard, Zero};
pub use message::nearest_of;
pub use notes::Note;
pub use policy::*;
pub use reference::REFERENCE;
pub use setting::{SettingDefault, SettingReference};
pub use suballocation::Policies;
pub use table::Config;

use crate::config::rounding::{Divisions, OWN_SEGMENT_MIN};
use crate::units::{MAX_REQUEST, MIB};
use core::fmt;
use core::ops::RangeInclusive;
use setting::Exact;

/// The largest size that can be set, in MiB. It is the allocator's own limit, so the sum of two
/// sizes cannot overflow.
const MOST_MIB: u64 = MAX_REQUEST / MIB;

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

impl Config {
    /// Returns `PyTorch`'s defaults.
    #[must_use]
    pub const fn new() -> Self {
        Self::DEFAULT
    }

    /// Parses `text`. Settings that `text` does not name have their defaults, so an empty string
    /// gives the defaults.
    ///
    /// # Errors
    /// [`ConfigError`] at the first mistake.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::parse_with(Policies::NONE, text)
    }

    /// Parses `text`, which may name one of these policies as well, and so may a later
    /// [`update`](Self::update). The crate `cachalot-policies` has `buddy`, `size_class` and
    /// `slab`.
    ///
    /// # Errors
    /// [`ConfigError`] at the first mistake.
    pub fn parse_with(policies: Policies, text: &str) -> Result<Self, ConfigError> {
        let mut config = Self { policies, ..Self::new() };
        settings::apply(&mut config, text)?;
        Ok(config)
    }

    /// Applies settings at run time, with `PyTorch`'s rules. `max_split_size_mb`,
    /// `max_non_split_rounding_mb`, `garbage_collection_threshold` and `roundup_power2_divisions`
    /// return to their defaults unless `text` names them. Every other setting remains as it is
    /// unless `text` names it. The policy and its options cannot change.
    ///
    /// # Errors
    /// [`ConfigError`] at the first mistake. In this case the configuration is unchanged.
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

    /// Returns the bytes that each block has beyond its request for a canary, before it is rounded.
    /// There are none under `guard:after`, because there a block ends where its pages end.
    pub(crate) const fn canary_margin(&self) -> u64 {
        if self.canary && !matches!(self.guard, Guard::After) { CANARY_MARGIN } else { 0 }
    }

    /// Returns the part of the time that the driver may take for giving idle memory back and
    /// obtaining it again (`reclaim_budget`), if [`maintain`](crate::Pages::maintain) gives memory
    /// back by what it is worth (`reclaim:auto`). Returns `None` if it does not.
    #[must_use]
    pub fn reclaim(&self) -> Option<f64> {
        self.reclaim.then_some(self.reclaim_budget)
    }

    /// Returns the value of a key that is checked and passed on, but has no effect. The value is in
    /// the unit of the key, and 1 for `True`. Returns `None` for the default, for every other key,
    /// and for `expandable_segments_reserve_by_class`, because its value is no number. Only a
    /// string can set such a key.
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

    /// Takes over what an allocator keeps from its start for the debug layer: `guard`, `zero`,
    /// `pattern` and `canary`.
    pub(crate) const fn keep_debug_settings(&mut self, start: &Self) {
        (self.guard, self.canary) = (start.guard, start.canary);
        (self.zero, self.pattern) = (start.zero, start.pattern);
    }

    /// Sets `large_segment_size_mb`, and `max_non_split_rounding_mb` to the same size. Call this
    /// before setting the two sizes that must not be smaller.
    ///
    /// # Errors
    /// [`ConfigError::Value`] unless the size is more than 10 MiB and at most `max_split_size_mb`,
    /// or 1 EiB if that has no limit.
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

    /// Sets `expandable_segments_reserve`; `None` means 9/8 of the device, and 4 times the device
    /// under `stitched`.
    ///
    /// # Errors
    /// [`ConfigError::Value`] unless positive and finite.
    pub fn set_expandable_segments_reserve(&mut self, reserve: Option<Reserve>) -> Result<(), ConfigError> {
        let key = "expandable_segments_reserve";
        self.expandable_segments_reserve = reserve.map(|r| valid_reserve(key, r)).transpose()?;
        Ok(())
    }

    /// Sets `spill`; `None` means that no memory of the host serves requests.
    ///
    /// # Errors
    /// [`ConfigError::Value`] unless positive and finite.
    pub fn set_spill(&mut self, spill: Option<Reserve>) -> Result<(), ConfigError> {
        self.spill = spill.map(|bytes| valid_reserve("spill", bytes)).transpose()?;
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

    /// Sets `reclaim_budget`.
    ///
    /// # Errors
    /// [`ConfigError::Value`] unless from 0 to 1.
    pub fn set_reclaim_budget(&mut self, share: f64) -> Result<(), ConfigError> {
        self.reclaim_budget = fraction("reclaim_budget", share)?;
        Ok(())
    }

    /// Returns the values that `large_segment_size_mb` may take with the present
    /// `max_split_size_mb`.
    fn segment_range_mib(&self) -> RangeInclusive<u64> {
        OWN_SEGMENT_MIN / MIB + 1..=(self.max_split_size / MIB).min(MOST_MIB)
    }

    /// Returns the values that `max_split_size_mb` and `max_non_split_rounding_mb` may take.
    fn split_range_mib(&self) -> RangeInclusive<u64> {
        self.large_segment_size / MIB..=MOST_MIB
    }
}

const MILLISECONDS: Accepted = Accepted::Text("a whole number of milliseconds");
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
