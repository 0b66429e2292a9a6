//! Writes the messages of configuration errors. They propose a key for a mistyped one, and list the
//! keys that a policy accepts.

use super::error::{Accepted, ConfigError, WORD_BYTES};
use super::policy::Policy;
use super::reference::REFERENCE;
use super::setting::SettingReference;
use super::suballocation::Policies;
use core::fmt;

/// Writes the keys, separated by commas.
fn list<'a>(f: &mut fmt::Formatter<'_>, keys: impl Iterator<Item = &'a str>) -> fmt::Result {
    for (i, key) in keys.enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        write!(f, "{comma}{key}")?;
    }
    Ok(())
}

/// The page with every key, in the repository.
const LIST: &str = "docs/configuration.md";

/// The policies of the crate [`POLICIES_CRATE`], which a host passes to the parser.
const IN_CRATE: [&str; 3] = ["buddy", "size_class", "slab"];
const POLICIES_CRATE: &str = "cachalot-policies";

/// Iterates over the settings of the core and of the host's policies.
fn settings(policies: Policies) -> impl Iterator<Item = SettingReference> {
    REFERENCE.into_iter().copied().chain(policies.settings())
}

/// Iterates over the keys of a policy, in their order.
fn keys_of(policy: Policy) -> impl Iterator<Item = &'static str> {
    let mut last = "";
    core::iter::from_fn(move || {
        let all = REFERENCE.into_iter().copied().chain(policy.settings());
        let keys = all.filter(|setting| setting.is_of(policy)).map(|setting| setting.key);
        last = keys.filter(|&key| key > last).min()?;
        Some(last)
    })
}

/// Returns the key that `word` was most likely meant to be: a key that starts with `word`, or else
/// the key with the fewest differences. Returns `None` if a third of the key or more differs.
fn nearest(policies: Policies, word: &str) -> Option<&'static str> {
    nearest_of(settings(policies).map(|setting| setting.key), word)
}

/// Returns the name that `word` was most likely meant to be, by the rules for keys: the one that
/// starts with `word`, or else the one with the fewest differences. Returns `None` if a third of
/// the name or more differs.
pub fn nearest_of<'a>(names: impl Iterator<Item = &'a str>, word: &str) -> Option<&'a str> {
    let keys = names.map(|name| (name, differences(word, name)));
    let begins = |key: &str| word.len() >= LEAST_BEGINNING && key.starts_with(word);
    keys.filter(|&(key, count)| begins(key) || count * 3 < key.len())
        .min_by_key(|&(key, count)| (!begins(key), count))
        .map(|(key, _)| key)
}

/// The least number of bytes of the start of a key that are enough to propose this key.
const LEAST_BEGINNING: usize = 4;

/// Returns the Levenshtein distance of two texts in bytes: the least number of insertions,
/// deletions and replacements that change one into the other. Only the first [`WORD_BYTES`] bytes
/// of `to` count.
// Written here because crates like `strsim` need the host's heap.
fn differences(from: &str, to: &str) -> usize {
    // `row[i]` is the distance of the part of `from` read so far to the first `i` bytes of `to`.
    let mut row: [usize; WORD_BYTES + 1] = core::array::from_fn(|index| index);
    let to = &to.as_bytes()[..to.len().min(WORD_BYTES)];
    for (read, from) in from.bytes().enumerate() {
        let mut diagonal = core::mem::replace(&mut row[0], read + 1);
        for (at, to) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[at + 1];
            row[at + 1] = replaced.min(row[at] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownKey { key, policies } => {
                write!(f, "unknown key `{key}`")?;
                if let Some(meant) = nearest(*policies, key.as_str()) {
                    write!(f, ", did you mean `{meant}`?")?;
                } else {
                    f.write_str(":")?;
                }
                write!(f, " {LIST} lists the {} keys", settings(*policies).count())
            }
            Self::OtherPolicy { key, policy } => {
                write!(f, "{key} is not a key of policy `{policy}`; its keys are ")?;
                list(f, keys_of(*policy))
            }
            Self::Syntax { expected, after, found } => {
                write!(f, "expected {expected}")?;
                if !after.is_empty() {
                    write!(f, " after `{after}`")?;
                }
                if found.is_empty() { f.write_str(", but the string ends") } else { write!(f, ", found `{found}`") }
            }
            Self::Value { key, value, accepted: Accepted::Policy { .. } } if IN_CRATE.contains(&value.as_str()) => {
                write!(f, "{key} does not take `{value}` here: that policy is in the crate `{POLICIES_CRATE}`, ")?;
                f.write_str("which this program does not have")
            }
            Self::Value { key, value, accepted } => {
                write!(f, "{key} does not take `{value}`")?;
                // A name that is spelled correctly is refused for another reason.
                if let Accepted::Policy { policies, .. } = accepted
                    && let Some(meant) = nearest_of(policies.names(), value.as_str())
                    && meant != value.as_str()
                {
                    write!(f, ", did you mean `{meant}`? It takes")?;
                } else {
                    f.write_str(",")?;
                }
                write!(f, " only {accepted}")?;
                if value.is_cut() {
                    write!(f, ", in at most {WORD_BYTES} bytes")?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::config::{Config, POLICIES};
    use std::string::ToString;

    #[test]
    fn the_distance_of_two_texts_is_the_least_number_of_changes() {
        for (from, to, distance) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("abc", "abc", 0),
            ("abc", "xabc", 1),
            ("xabc", "abc", 1),
            ("kitten", "sitting", 3),
            ("sunday", "saturday", 3),
        ] {
            assert_eq!(differences(from, to), distance, "`{from}` to `{to}`");
        }
    }

    #[test]
    fn four_letters_stand_for_the_key_that_begins_with_them() {
        assert_eq!(nearest(Policies::NONE, "roun"), Some("roundup_power2_divisions"));
        assert_eq!(nearest(Policies::NONE, "rou"), None);
    }

    #[test]
    fn a_policy_is_proposed_for_a_mistyped_one() {
        let message = Config::parse("policy:stiched").unwrap_err().to_string();
        assert!(
            message.starts_with("policy does not take `stiched`, did you mean `stitched`? It takes only `"),
            "{message}"
        );
    }

    #[test]
    fn a_policy_of_the_crate_of_policies_is_refused_with_the_crate_s_name() {
        for text in ["policy:buddy", "policy:planned,fallback:slab"] {
            let message = Config::parse(text).unwrap_err().to_string();
            assert!(message.ends_with("the crate `cachalot-policies`, which this program does not have"), "{message}");
        }
    }

    #[test]
    fn the_policies_are_listed_with_a_word_before_the_last() {
        let message = Config::parse("policy:none").unwrap_err().to_string();
        let (last, others) = POLICIES.split_last().unwrap();
        let quoted = others.iter().map(|name| std::format!("`{name}`")).collect::<std::vec::Vec<_>>();
        let expected = std::format!("only {} or `{last}`", quoted.join(", "));
        assert!(message.ends_with(&expected), "{message}");
    }

    #[test]
    fn an_update_that_must_not_come_names_the_key() {
        for (update, key) in [("zero:on_alloc", "zero"), ("pattern:7", "pattern"), ("canary:True", "canary")] {
            let mut config = Config::new();
            let message = config.update(update).unwrap_err().to_string();
            assert!(message.starts_with(key), "{update}: {message}");
            assert_eq!(config, Config::new());
        }
    }
}
