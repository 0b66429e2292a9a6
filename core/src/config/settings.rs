//! How the settings of a string are applied, and how a configuration is written as a string.

use super::parse::{Value, for_each_entry};
use super::policy::{PLANNED, Planned, Policy};
use super::reference::REFERENCE;
use super::rounding::{Divisions, INTERVALS};
use super::setting::{SettingReference, Writer};
use super::{Accepted, Config, ConfigError, Word};
use core::fmt;

/// The keys in the order of the string form, each once, without other names of a setting.
const ORDER: &[&str] = &[
    "backend",
    "policy",
    "fallback",
    "plan_deadline_ms",
    "allow_growth",
    "first_region_mb",
    "max_internal_fragmentation_mb",
    "region_garbage_collection",
    "retry_ms",
    "arena_mb",
    "chunk_mb",
    "largest_object_kb",
    "slack",
    "max_stall_us",
    "strict_stall",
    "completed_pages_only",
    "large_segment_size_mb",
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "garbage_collection_threshold",
    "compact",
    "roundup_power2_divisions",
    "exact_segments",
    "expandable_segments",
    "expandable_segments_reserve",
    "expandable_segments_reserve_by_class",
    "per_process_memory_fraction",
    "throw_on_cudamalloc_oom",
    "release_lock_on_cudamalloc",
    "graph_capture_record_stream_reuse",
    "parity",
    "tune",
    "tune_budget_ms",
    "reclaim",
    "reclaim_budget",
    "pinned_use_cuda_host_register",
    "pinned_num_register_threads",
    "pinned_use_background_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
    "pinned_free_catch_all",
    "compact_slack_mb",
    "guard",
    "quarantine",
    "zero",
    "pattern",
    "canary",
    "nvtx",
];

/// Iterates over the settings, in the order of the string form. Other names are left out.
pub(super) fn in_order() -> impl Iterator<Item = &'static SettingReference> {
    ORDER.iter().filter_map(|&key| REFERENCE.iter().find(|setting| setting.key == key))
}

/// Applies the settings of `text` in order. After an error `config` is half changed and must be
/// dropped.
pub(super) fn apply(config: &mut Config, text: &str) -> Result<(), ConfigError> {
    // First pass: the settings that others are checked against, wherever they stand in the string.
    let mut fallback = None;
    for_each_entry(&Word::EMPTY, text, |name, value| match name.whole() {
        Some("policy") => set_policy(config, &value),
        Some("fallback") => {
            let named = value.text().and_then(Policy::named).filter(|policy| policy.traits().caches);
            fallback = Some(named.ok_or_else(|| value.refused("fallback", Accepted::Policy { fallback: true }))?);
            Ok(())
        }
        Some("large_segment_size_mb") => {
            let accepted = Accepted::mebibytes(config.segment_range_mib());
            let mib = value.number("large_segment_size_mb", accepted)?;
            config.set_large_segment_size_mb(mib)
        }
        _ => Ok(()),
    })?;
    if let (Some(fallback), Some(_)) = (fallback, config.planned) {
        config.policy = fallback;
    }
    for_each_entry(&Word::EMPTY, text, |name, value| {
        let setting = REFERENCE.iter().find(|setting| name.whole() == Some(setting.key));
        let setting = setting.ok_or_else(|| ConfigError::UnknownKey { key: name.clone() })?;
        if !setting.is_accepted(config) {
            return Err(ConfigError::OtherPolicy { key: setting.key, policy: config.policy });
        }
        setting.read(config, &value)
    })
}

/// Sets the policy named by a value. The planned policy comes with the default policy as
/// fallback.
fn set_policy(config: &mut Config, value: &Value<'_>) -> Result<(), ConfigError> {
    (config.policy, config.planned) = match value.text() {
        Some(PLANNED) => (Policy::Caching, Some(Planned::DEFAULT)),
        name => {
            let named = name.and_then(Policy::named);
            (named.ok_or_else(|| value.refused("policy", Accepted::Policy { fallback: false }))?, None)
        }
    };
    Ok(())
}

/// Writes the string that parses to the same configuration. Omits settings with their default
/// value.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut config = self.clone();
        let mut out = Writer { f, comma: "", setting: &REFERENCE[0] };
        // Settings of the caching policy are kept under others, too, and written as they are.
        in_order().filter(|setting| setting.is_of("caching") || setting.is_accepted(self)).try_for_each(|setting| {
            out.setting = setting;
            setting.write(&mut config, &mut out)
        })
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
