//! All settings: the name, how a value is parsed, and how a value is written.

use super::parse::{Value, for_each_entry};
use super::passed_on::Written;
use super::policy::{Bfc, Buddy, PLANNED, Planned, Policy, Scope, SizeClass, Slab, Stitched};
use super::{Accepted, Config, ConfigError, FRACTION, MOST_MIB, THRESHOLD, TUNE_BUDGET_MS, Word, key};
use crate::config::rounding::{Divisions, INTERVALS};
use crate::units::MIB;
use core::fmt;

/// Parses a value and sets it in a configuration.
type Apply = fn(&mut Config, &'static str, &Value<'_>) -> Result<(), ConfigError>;

/// A key, and how its value is applied.
pub(super) struct Setting {
    /// The key.
    pub(super) key: &'static str,
    /// The policies with the key.
    pub(super) of: Scope,
    /// Parses and sets the value.
    apply: Apply,
}

/// Creates a setting of the caching policy.
const fn setting(key: &'static str, apply: Apply) -> Setting {
    Setting { key, of: Scope::CACHING_ONLY, apply }
}

/// Creates a setting without effect, of every policy.
const fn passed_on(key: &'static str) -> Setting {
    Setting { key, of: Scope::EVERY, apply: |config, key, value| config.passed_on.read(key, value) }
}

/// Creates a setting of best fit with coalescing.
const fn bfc(key: &'static str, apply: Apply) -> Setting {
    Setting { key, of: Scope::BFC_ONLY, apply }
}

/// Creates a setting of the stitched policy.
const fn stitched(key: &'static str, apply: Apply) -> Setting {
    Setting { key, of: Scope::STITCHED_ONLY, apply }
}

impl Setting {
    /// Changes the policies with the key.
    const fn of(mut self, policies: Scope) -> Self {
        self.of = policies;
        self
    }
}

/// All settings, sorted by key.
pub(super) static SETTINGS: [Setting; 45] = [
    bfc(key::ALLOW_GROWTH, |config, key, value| value.read_boolean(key, &mut config.bfc().allow_growth)),
    setting(key::ARENA_MB, |config, key, value| {
        let mib: u32 = value.power_of_two(key, MOST_ARENA_MIB, ARENAS)?;
        config.set_policy(Buddy { arena: u64::from(mib) * MIB });
        Ok(())
    })
    .of(Scope::BUDDY_ONLY),
    setting(key::BACKEND, |_, key, value| match value {
        Value::Word(word) if word.whole() == Some("native") => Ok(()),
        other => Err(other.refused(key, NATIVE)),
    })
    .of(Scope::EVERY),
    setting(key::CHUNK_MB, |config, key, value| {
        config.set_policy(SizeClass { chunk: value.mebibytes(key, 2..=MOST_MIB)? });
        Ok(())
    })
    .of(Scope::SIZE_CLASS_ONLY),
    setting(key::COMPACT, |config, key, value| config.set_compact(Some(value.number(key, FRACTION)?))),
    stitched(key::COMPLETED_PAGES_ONLY, |config, key, value| {
        value.read_boolean(key, &mut config.stitched().completed_pages_only)
    }),
    setting(key::DECISIONS, |config, key, value| match value {
        Value::Word(word) if matches!(word.whole(), Some("pytorch" | "improved")) => {
            config.set_parity(word.whole() == Some("pytorch"));
            Ok(())
        }
        other => Err(other.refused(key, DECISIONS)),
    }),
    setting(key::EXACT_SEGMENTS, |config, key, value| value.read_boolean(key, &mut config.exact_segments)),
    setting(key::EXPANDABLE_SEGMENTS, |config, key, value| value.read_boolean(key, &mut config.expandable_segments))
        .of(Scope::TAGS),
    setting(key::EXPANDABLE_SEGMENTS_RESERVE, |config, key, value| {
        config.set_expandable_segments_reserve(Some(value.reserve(key)?))
    })
    .of(Scope::TAGS),
    passed_on(key::EXPANDABLE_SEGMENTS_RESERVE_BY_CLASS).of(Scope::TAGS),
    // Set before all others, by `apply`.
    setting(key::FALLBACK, |_, _, _| Ok(())).of(Scope::PLANNED_ONLY),
    bfc(key::FIRST_REGION_MB, |config, key, value| {
        config.bfc().first_region = value.mebibytes(key, 1..=MOST_MIB)?;
        Ok(())
    }),
    setting(key::GARBAGE_COLLECTION_THRESHOLD, |config, key, value| {
        config.set_garbage_collection_threshold(Some(value.number(key, THRESHOLD)?))
    }),
    setting(key::GRAPH_CAPTURE_RECORD_STREAM_REUSE, |config, key, value| {
        value.read_boolean(key, &mut config.graph_capture_record_stream_reuse)
    }),
    // Set before all others, by `apply`.
    setting(key::LARGE_SEGMENT_SIZE_MB, |_, _, _| Ok(())).of(Scope::SHARED_SEGMENTS),
    setting(key::LARGEST_OBJECT_KB, |config, key, value| {
        let kib = value.number(key, OBJECTS)?;
        if !(1..=MOST_OBJECT_KIB).contains(&kib) {
            return Err(value.refused(key, OBJECTS));
        }
        config.set_policy(Slab { largest_object: kib << 10 });
        Ok(())
    })
    .of(Scope::SLAB_ONLY),
    bfc(key::MAX_INTERNAL_FRAGMENTATION_MB, |config, key, value| {
        config.bfc().max_internal_fragmentation = value.mebibytes(key, 0..=MOST_MIB)?;
        Ok(())
    }),
    setting(key::MAX_NON_SPLIT_ROUNDING_MB, |config, key, value| {
        let accepted = Accepted::mebibytes(config.split_range_mib());
        config.set_max_non_split_rounding_mb(value.number(key, accepted)?)
    }),
    setting(key::MAX_SPLIT_SIZE_MB, |config, key, value| {
        let accepted = Accepted::mebibytes(config.split_range_mib());
        config.set_max_split_size_mb(Some(value.number(key, accepted)?))
    }),
    stitched(key::MAX_STALL_US, |config, key, value| {
        config.stitched().max_stall_us = value.number(key, MICROSECONDS)?;
        Ok(())
    }),
    setting(key::PARITY, |config, key, value| value.read_boolean(key, &mut config.parity)),
    setting(key::PER_PROCESS_MEMORY_FRACTION, |config, key, value| {
        config.set_per_process_memory_fraction(value.number(key, FRACTION)?)
    })
    .of(Scope::EVERY),
    passed_on(key::PINNED_FREE_CATCH_ALL),
    passed_on(key::PINNED_MAX_CACHED_SIZE_MB),
    passed_on(key::PINNED_MAX_ROUND_THRESHOLD_MB),
    passed_on(key::PINNED_NUM_REGISTER_THREADS),
    passed_on(key::PINNED_RESERVE_SEGMENT_SIZE_MB),
    passed_on(key::PINNED_USE_BACKGROUND_THREADS),
    passed_on(key::PINNED_USE_CUDA_HOST_REGISTER),
    passed_on(key::PINNED_USE_HIP_HOST_REGISTER),
    setting(key::PLAN_DEADLINE_MS, |config, key, value| {
        config.planned = Some(Planned { plan_deadline_ms: value.number(key, MILLISECONDS)? });
        Ok(())
    })
    .of(Scope::PLANNED_ONLY),
    // Set before all others, by `apply`.
    setting(key::POLICY, |_, _, _| Ok(())).of(Scope::EVERY),
    setting(key::RECLAIM, |config, key, value| match value {
        Value::Word(word) if matches!(word.whole(), Some("off" | "auto")) => {
            config.set_reclaim(word.whole() == Some("auto"));
            Ok(())
        }
        other => Err(other.refused(key, RECLAIMS)),
    })
    .of(Scope::TAGS),
    setting(key::RECLAIM_BUDGET, |config, key, value| config.set_reclaim_budget(value.number(key, FRACTION)?))
        .of(Scope::TAGS),
    bfc(key::REGION_GARBAGE_COLLECTION, |config, key, value| {
        value.read_boolean(key, &mut config.bfc().region_garbage_collection)
    }),
    passed_on(key::RELEASE_LOCK_ON_CUDAMALLOC),
    passed_on(key::RELEASE_LOCK_ON_HIPMALLOC),
    bfc(key::RETRY_MS, |config, key, value| {
        config.bfc().retry_ms = value.number(key, MILLISECONDS)?;
        Ok(())
    }),
    setting(key::ROUNDUP_POWER2_DIVISIONS, |config, key, value| {
        config.roundup_power2_divisions = value.divisions(key)?;
        Ok(())
    }),
    stitched(key::SLACK, |config, key, value| {
        let slack: f64 = value.number(key, FRACTION)?;
        if !(0.0..=1.0).contains(&slack) {
            return Err(value.refused(key, FRACTION));
        }
        config.stitched().slack = (slack * f64::from(Stitched::SLACK_PARTS) + 0.5) as u32;
        Ok(())
    }),
    stitched(key::STRICT_STALL, |config, key, value| value.read_boolean(key, &mut config.stitched().strict_stall)),
    setting(key::THROW_ON_CUDAMALLOC_OOM, |config, key, value| {
        value.read_boolean(key, &mut config.throw_on_device_oom)
    })
    .of(Scope::EVERY),
    setting(key::TUNE, |config, key, value| {
        let is_auto = match &value {
            Value::Word(word) => match word.whole() {
                Some("auto") => Some(true),
                Some("off") => Some(false),
                _ => None,
            },
            Value::List(_) => None,
        };
        // A plan is for requests of fixed sizes, and a search changes how sizes are rounded.
        if is_auto == Some(true) && config.planned.is_some() {
            return Err(value.refused(key, NOT_PLANNED));
        }
        config.tune = is_auto.ok_or_else(|| value.refused(key, TUNES))?;
        Ok(())
    }),
    setting(key::TUNE_BUDGET_MS, |config, key, value| {
        config.tune_budget_ms = value.number(key, MILLISECONDS)?;
        Ok(())
    }),
];

const NATIVE: Accepted = Accepted::Text("`native`: the driver's own pool is not an allocator of this library");
const RECLAIMS: Accepted = Accepted::Text("`off` or `auto`");
const MOST_ARENA_MIB: u32 = 1 << 20;
const ARENAS: Accepted = Accepted::Text("a power of two in MiB up to 1048576");
const MOST_OBJECT_KIB: u64 = 512;
const OBJECTS: Accepted = Accepted::Text("a whole number of KiB from 1 to 512");
const DECISIONS: Accepted = Accepted::Text("`pytorch` or `improved`");
const MILLISECONDS: Accepted = Accepted::Text("a whole number of milliseconds");
const MICROSECONDS: Accepted = Accepted::Text("a whole number of microseconds");
const TUNES: Accepted = Accepted::Text("`auto` or `off`");
const NOT_PLANNED: Accepted = Accepted::Text("`off` under `policy:planned`, whose plans are for fixed settings");
const POLICY_NAMES: Accepted =
    Accepted::Text("`caching`, `bfc`, `buddy`, `size_class`, `slab`, `stitched`, `direct` or `planned`");
const FALLBACKS: Accepted = Accepted::Text("`caching`, `bfc`, `buddy`, `size_class`, `slab` or `stitched`");

/// Applies the settings of `text` in order. After an error `config` is half changed and must be
/// dropped.
pub(super) fn apply(config: &mut Config, text: &str) -> Result<(), ConfigError> {
    // First pass: the settings that others are checked against, wherever they stand in the string.
    let mut fallback = None;
    for_each_entry(&Word::EMPTY, text, |name, value| match name.whole() {
        Some(key::POLICY) => set_policy(config, &value),
        Some(key::FALLBACK) => {
            let named = named(&value).filter(|policy| policy.traits().caches);
            fallback = Some(named.ok_or_else(|| value.refused(key::FALLBACK, FALLBACKS))?);
            Ok(())
        }
        Some(key::LARGE_SEGMENT_SIZE_MB) => {
            let accepted = Accepted::mebibytes(config.segment_range_mib());
            let mib = value.number(key::LARGE_SEGMENT_SIZE_MB, accepted)?;
            config.set_large_segment_size_mb(mib)
        }
        _ => Ok(()),
    })?;
    if let (Some(fallback), Some(_)) = (fallback, config.planned) {
        config.policy = fallback;
    }
    for_each_entry(&Word::EMPTY, text, |name, value| {
        let setting = SETTINGS.iter().find(|s| name.whole() == Some(s.key));
        let setting = setting.ok_or_else(|| ConfigError::UnknownKey { key: name.clone() })?;
        let planned = config.planned.is_some() && setting.of.holds_planned();
        if !planned && !setting.of.holds(config.policy) {
            return Err(ConfigError::OtherPolicy { key: setting.key, policy: config.policy });
        }
        (setting.apply)(config, setting.key, &value)
    })
}

/// Returns the policy that a value names.
fn named(value: &Value<'_>) -> Option<Policy> {
    if let Value::Word(word) = value { word.whole().and_then(Policy::named) } else { None }
}

/// Sets the policy that a value names. The planned policy comes with the default policy as
/// fallback.
fn set_policy(config: &mut Config, value: &Value<'_>) -> Result<(), ConfigError> {
    if matches!(value, Value::Word(word) if word.whole() == Some(PLANNED)) {
        (config.policy, config.planned) = (Policy::Caching, Some(Planned::DEFAULT));
        return Ok(());
    }
    let named = named(value).ok_or_else(|| value.refused(key::POLICY, POLICY_NAMES))?;
    (config.policy, config.planned) = (named, None);
    Ok(())
}

impl Config {
    /// Returns the options of best fit with coalescing. Called only for keys of this policy.
    fn bfc(&mut self) -> &mut Bfc {
        if !matches!(self.policy, Policy::Bfc(_)) {
            self.policy = Policy::Bfc(Bfc::DEFAULT);
        }
        let Policy::Bfc(options) = &mut self.policy else { unreachable!("it was just set") };
        options
    }

    /// Returns the options of the stitched policy. Called only for keys of this policy.
    fn stitched(&mut self) -> &mut Stitched {
        if !matches!(self.policy, Policy::Stitched(_)) {
            self.policy = Policy::Stitched(Stitched::DEFAULT);
        }
        let Policy::Stitched(options) = &mut self.policy else { unreachable!("it was just set") };
        options
    }
}

/// Writes the string that parses to an equal configuration. Omits settings with their default
/// value.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes / MIB;
        let default = Self::new();
        let segment = self.large_segment_size;
        let fraction = self.per_process_memory_fraction;
        let is_lock = |entry: &(&str, Written)| entry.0 == key::RELEASE_LOCK_ON_CUDAMALLOC;
        let mut out = Writer { f, comma: false };
        let is_named = self.policy != Policy::Caching;
        match self.planned {
            None => out.some(key::POLICY, is_named.then_some(self.policy))?,
            Some(Planned { plan_deadline_ms }) => {
                out.some(key::POLICY, Some(PLANNED))?;
                out.some(key::FALLBACK, is_named.then_some(self.policy))?;
                out.some(key::PLAN_DEADLINE_MS, other(plan_deadline_ms, Planned::DEFAULT.plan_deadline_ms))?;
            }
        }
        match self.policy {
            Policy::Bfc(bfc) => out.bfc(&bfc)?,
            Policy::Buddy(Buddy { arena }) => out.some(key::ARENA_MB, other(arena, Buddy::DEFAULT.arena).map(mib))?,
            Policy::SizeClass(SizeClass { chunk }) => {
                out.some(key::CHUNK_MB, other(chunk, SizeClass::DEFAULT.chunk).map(mib))?;
            }
            Policy::Slab(Slab { largest_object }) => {
                let largest = other(largest_object, Slab::DEFAULT.largest_object);
                out.some(key::LARGEST_OBJECT_KB, largest.map(|bytes| bytes >> 10))?;
            }
            Policy::Stitched(stitched) => out.stitched(&stitched)?,
            Policy::Caching | Policy::Direct => {}
        }
        out.some(key::LARGE_SEGMENT_SIZE_MB, (segment != default.large_segment_size).then(|| mib(segment)))?;
        out.some(key::MAX_SPLIT_SIZE_MB, self.max_split_size().map(mib))?;
        out.some(
            key::MAX_NON_SPLIT_ROUNDING_MB,
            (self.max_non_split_rounding != segment).then(|| mib(self.max_non_split_rounding)),
        )?;
        out.some(key::GARBAGE_COLLECTION_THRESHOLD, self.garbage_collection_threshold.map(Exact))?;
        out.some(key::COMPACT, self.compact.map(Exact))?;
        out.some(
            key::ROUNDUP_POWER2_DIVISIONS,
            (self.roundup_power2_divisions != Divisions::NONE).then_some(self.roundup_power2_divisions),
        )?;
        out.flag(key::EXACT_SEGMENTS, self.exact_segments)?;
        out.flag(key::EXPANDABLE_SEGMENTS, self.expandable_segments)?;
        out.some(key::EXPANDABLE_SEGMENTS_RESERVE, self.expandable_segments_reserve)?;
        out.some(key::EXPANDABLE_SEGMENTS_RESERVE_BY_CLASS, self.passed_on.classes())?;
        out.some(key::PER_PROCESS_MEMORY_FRACTION, (fraction < 1.0).then_some(Exact(fraction)))?;
        out.flag(key::THROW_ON_CUDAMALLOC_OOM, self.throw_on_device_oom)?;
        self.passed_on.numbers().filter(is_lock).try_for_each(|(key, value)| out.some(key, Some(value)))?;
        out.flag(key::GRAPH_CAPTURE_RECORD_STREAM_REUSE, self.graph_capture_record_stream_reuse)?;
        out.some(key::PARITY, (!self.parity).then_some("False"))?;
        out.some(key::TUNE, self.tune.then_some("auto"))?;
        out.some(key::TUNE_BUDGET_MS, other(self.tune_budget_ms, TUNE_BUDGET_MS))?;
        out.some(key::RECLAIM, self.reclaim.then_some("auto"))?;
        out.some(
            key::RECLAIM_BUDGET,
            (self.reclaim_budget.to_bits() != default.reclaim_budget.to_bits()).then_some(Exact(self.reclaim_budget)),
        )?;
        self.passed_on.numbers().filter(|entry| !is_lock(entry)).try_for_each(|(key, value)| out.some(key, Some(value)))
    }
}

/// A number, unless it is the default.
fn other(number: u64, default: u64) -> Option<u64> {
    (number != default).then_some(number)
}

/// Writes entries with commas between them.
struct Writer<'a, 'b> {
    f: &'a mut fmt::Formatter<'b>,
    comma: bool,
}

impl Writer<'_, '_> {
    fn some(&mut self, key: &str, value: Option<impl fmt::Display>) -> fmt::Result {
        let Some(value) = value else { return Ok(()) };
        let comma = if self.comma { "," } else { "" };
        self.comma = true;
        write!(self.f, "{comma}{key}:{value}")
    }

    fn flag(&mut self, key: &str, on: bool) -> fmt::Result {
        self.some(key, on.then_some("True"))
    }

    fn bfc(&mut self, bfc: &Bfc) -> fmt::Result {
        let default = Bfc::DEFAULT;
        let mib = |bytes: u64, default: u64| other(bytes, default).map(|bytes| bytes / MIB);
        self.some(key::ALLOW_GROWTH, (!bfc.allow_growth).then_some("False"))?;
        self.some(key::FIRST_REGION_MB, mib(bfc.first_region, default.first_region))?;
        self.some(
            key::MAX_INTERNAL_FRAGMENTATION_MB,
            mib(bfc.max_internal_fragmentation, default.max_internal_fragmentation),
        )?;
        self.some(key::REGION_GARBAGE_COLLECTION, (!bfc.region_garbage_collection).then_some("False"))?;
        self.some(key::RETRY_MS, (bfc.retry_ms != default.retry_ms).then_some(bfc.retry_ms))
    }

    fn stitched(&mut self, stitched: &Stitched) -> fmt::Result {
        let default = Stitched::DEFAULT;
        let slack = f64::from(stitched.slack) / f64::from(Stitched::SLACK_PARTS);
        self.some(key::SLACK, (stitched.slack != default.slack).then_some(Exact(slack)))?;
        self.some(key::MAX_STALL_US, (stitched.max_stall_us != default.max_stall_us).then_some(stitched.max_stall_us))?;
        self.flag(key::STRICT_STALL, stitched.strict_stall)?;
        self.flag(key::COMPLETED_PAGES_ONLY, stitched.completed_pages_only)
    }
}

/// Writes every digit needed to read the number back, with an exponent where there are many zeros.
pub(super) struct Exact(pub(super) f64);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// Writes the value of `roundup_power2_divisions`: a number if all intervals are equal, else the
/// list.
impl fmt::Display for Divisions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_interval = self.intervals();
        let (first, last) = (of_interval[0], of_interval[INTERVALS - 1]);
        // The first entry stands for all equal ones below it, `>` for the equal ones at the end.
        let Some(differs) = of_interval.iter().position(|&d| d != first) else {
            return write!(f, "{first}");
        };
        let tail = of_interval.iter().rposition(|&d| d != last).unwrap_or(0) + 1;
        f.write_str("[")?;
        for (i, divisions) in of_interval.iter().enumerate().take(tail).skip(differs - 1) {
            write!(f, "{}:{divisions},", 1u32 << i)?;
        }
        write!(f, ">:{last}]")
    }
}
