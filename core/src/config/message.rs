//! Messages of configuration errors. They list the keys that a policy accepts.

use super::error::{ConfigError, WORD_BYTES};
use super::settings::SETTINGS;
use core::fmt;

/// Writes the keys, separated by commas.
fn list<'a>(f: &mut fmt::Formatter<'_>, keys: impl Iterator<Item = &'a str>) -> fmt::Result {
    for (i, key) in keys.enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        write!(f, "{comma}{key}")?;
    }
    Ok(())
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownKey { key } => {
                write!(f, "unknown key `{key}`; the keys are ")?;
                list(f, SETTINGS.iter().map(|setting| setting.key))
            }
            Self::OtherPolicy { key, policy } => {
                write!(f, "{key} is not a key of policy `{policy}`; its keys are ")?;
                list(f, SETTINGS.iter().filter(|setting| setting.of.holds(*policy)).map(|setting| setting.key))
            }
            Self::Syntax { expected, after, found } => {
                write!(f, "expected {expected}")?;
                if !after.is_empty() {
                    write!(f, " after `{after}`")?;
                }
                if found.is_empty() { f.write_str(", but the string ends") } else { write!(f, ", found `{found}`") }
            }
            Self::Value { key, value, accepted } => {
                write!(f, "{key} does not take `{value}`, only {accepted}")?;
                if value.is_cut() {
                    write!(f, ", in at most {WORD_BYTES} bytes")?;
                }
                Ok(())
            }
        }
    }
}
