//! Notes: keys that are set and have no effect, each with the reason.

use super::policy::{Bfc, Policy};
use super::reference::in_order;
use super::rounding::LARGE_SEGMENT;
use super::{Config, Guard};
use core::fmt;

/// A key that is set and has no effect. The text of a note is a line: the key, and the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Note {
    /// The key.
    pub key: &'static str,
    /// The reason, without a final full stop.
    pub reason: &'static str,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has no effect: {}", self.key, self.reason)
    }
}

/// A note, and the condition under which the key, although it is set, has no effect. `limited` says
/// whether a memory limit is set outside the configuration.
struct Conditional {
    note: Note,
    applies: fn(config: &Config, limited: bool) -> bool,
}

const fn note(key: &'static str, reason: &'static str, applies: fn(&Config, bool) -> bool) -> Conditional {
    Conditional { note: Note { key, reason }, applies }
}

const NO_LARGEST_SPLIT: &str = "with `parity:False`, blocks of expandable segments are split at any size";

fn is_limited(config: &Config, limited: bool) -> bool {
    limited || config.per_process_memory_fraction < 1.0
}

/// Returns whether ordinary pools have pages.
fn has_pages(config: &Config) -> bool {
    config.expandable_segments || config.policy.traits().moves_pages
}

/// Returns whether `max_non_split_rounding_mb` is not the default.
fn sets_rounding(config: &Config) -> bool {
    config.max_non_split_rounding != config.large_segment_size
}

/// Returns whether `max_split_size_mb` has no effect because the memory of every ordinary pool is
/// on pages of expandable segments.
fn splits_any(config: &Config) -> bool {
    config.expandable_segments && !config.parity
}

/// The notes, sorted by key. `tests/tests/settings_without_effect.rs` proves each note with
/// programs that run with and without the key.
static NOTES: [Conditional; 16] = [
    note("compact", "expandable segments have no budget", |config, _| {
        config.compact.is_some() && config.expandable_segments
    }),
    note("compact_slack_mb", "without `compact`, held memory has no budget", |config, _| {
        config.compact_slack != 0 && (config.compact.is_none() || config.expandable_segments)
    }),
    note(
        "exact_segments",
        "without a memory limit, expandable segments grow by pages of one size",
        // With a limit, a request needs room for a segment, and the key decides the size of this
        // segment.
        |config, limited| {
            let refuses = is_limited(config, limited) || config.throw_on_device_oom;
            config.exact_segments && config.expandable_segments && !refuses
        },
    ),
    note(
        "expandable_segments_reserve",
        "without `expandable_segments:True`, ordinary pools reserve no addresses",
        |config, _| config.expandable_segments_reserve.is_some() && !has_pages(config),
    ),
    note("first_region_mb", "with `allow_growth:False`, the first segment takes all memory", |config, _| match config
        .policy
    {
        Policy::Bfc(bfc) => bfc.first_region != Bfc::DEFAULT.first_region && !bfc.allow_growth,
        _ => false,
    }),
    note("garbage_collection_threshold", "expandable segments are not collected", |config, _| {
        config.garbage_collection_threshold.is_some() && config.expandable_segments
    }),
    note(
        "garbage_collection_threshold",
        "nothing is collected until a memory limit is set, by `per_process_memory_fraction` or by a call",
        |config, limited| {
            let collects = is_limited(config, limited) || config.expandable_segments;
            config.garbage_collection_threshold.is_some() && !collects
        },
    ),
    note(
        "large_segment_size_mb",
        "with `exact_segments:True`, each block above 1 MiB gets a segment of its own size",
        // Pages of expandable segments have this size, and it limits the waste in oversize blocks.
        |config, _| {
            let is_used = config.expandable_segments || config.max_split_size().is_some();
            config.large_segment_size != LARGE_SEGMENT && config.exact_segments && !is_used
        },
    ),
    note("max_non_split_rounding_mb", "no block is oversize without `max_split_size_mb`", |config, _| {
        sets_rounding(config) && config.max_split_size().is_none()
    }),
    note("max_non_split_rounding_mb", NO_LARGEST_SPLIT, |config, _| {
        sets_rounding(config) && config.max_split_size().is_some() && splits_any(config)
    }),
    note("max_split_size_mb", NO_LARGEST_SPLIT, |config, _| config.max_split_size().is_some() && splits_any(config)),
    note("quarantine", "without `guard`, no addresses are kept away", |config, _| {
        config.quarantine != Config::DEFAULT.quarantine && config.guard == Guard::Off
    }),
    note("reclaim_budget", "without `reclaim:auto`, upkeep gives no idle memory back", |config, _| {
        config.reclaim_budget.to_bits() != Config::DEFAULT.reclaim_budget.to_bits() && !config.reclaim
    }),
    note("spill", "without `expandable_segments:True`, ordinary pools have no pages", |config, _| {
        config.spill.is_some() && !has_pages(config)
    }),
    note("throw_on_cudamalloc_oom", "`policy:direct` refuses no segment early", |config, _| {
        config.throw_on_device_oom && !config.policy.traits().caches
    }),
    note("tune_budget_ms", "without `tune:auto`, no settings are searched", |config, _| {
        config.tune_budget_ms != Config::DEFAULT.tune_budget_ms && !config.tunes
    }),
];

impl Config {
    /// Iterates over the keys that are set and have no effect. A key counts as set if its value is
    /// not the default, so a string that names the default has no note. `limited` says whether a
    /// memory limit is set by other means than `per_process_memory_fraction`.
    ///
    /// The notes apply to a device with virtual memory, and to pools without a tag and without
    /// segments of the program. Under `tune:auto` they are true until a search changes the
    /// settings.
    ///
    /// ```
    /// let config = cachalot_core::Config::parse("compact:0.05,expandable_segments:True")?;
    /// let note = config.notes(false).next().map(|note| note.to_string());
    /// assert_eq!(note.as_deref(), Some("compact has no effect: expandable segments have no budget"));
    /// # Ok::<(), cachalot_core::config::ConfigError>(())
    /// ```
    pub fn notes(&self, limited: bool) -> impl Iterator<Item = Note> {
        let notes = NOTES.iter().filter(move |conditional| (conditional.applies)(self, limited));
        let passed_on = in_order(self.policy).filter(|setting| self.passed_on.holds(setting.key));
        notes.map(|conditional| conditional.note).chain(passed_on.map(|setting| {
            let effect = setting.effect.trim_start_matches("No effect: ");
            Note { key: setting.key, reason: effect.split('.').next().unwrap_or(effect) }
        }))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_key_has_a_note_iff_it_is_set_and_has_no_effect() {
        let oversize = "max_split_size_mb:64,max_non_split_rounding_mb:32";
        let expandable = "max_split_size_mb:64,max_non_split_rounding_mb:32,expandable_segments:True";
        let apart = "max_split_size_mb:64,max_non_split_rounding_mb:32,expandable_segments:True,parity:False";
        for (config, limited, keys) in [
            ("", false, &[][..]),
            ("exact_segments:True,expandable_segments:True", false, &["exact_segments"]),
            ("exact_segments:True,expandable_segments:True", true, &[]),
            (
                "exact_segments:True,expandable_segments:True,per_process_memory_fraction:1.0",
                false,
                &["exact_segments"],
            ),
            ("exact_segments:True,expandable_segments:True,per_process_memory_fraction:0.9", false, &[]),
            ("garbage_collection_threshold:0.5", false, &["garbage_collection_threshold"]),
            ("garbage_collection_threshold:0.5", true, &[]),
            ("max_non_split_rounding_mb:32", false, &["max_non_split_rounding_mb"]),
            ("max_non_split_rounding_mb:20", false, &[]),
            (oversize, false, &[]),
            ("max_split_size_mb:64,max_non_split_rounding_mb:32,parity:False", false, &[]),
            (expandable, false, &[]),
            (apart, false, &["max_non_split_rounding_mb", "max_split_size_mb"]),
        ] {
            let notes = Config::parse(config).unwrap().notes(limited).map(|note| note.key).collect::<Vec<_>>();
            assert_eq!(notes, keys, "`{config}`, limited: {limited}");
        }
    }
}
