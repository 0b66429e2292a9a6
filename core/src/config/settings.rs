//! Applies the settings of a string, and writes a configuration as a string.

use super::parse::{Value, for_each_entry};
use super::policy::Policy;
use super::reference::{REFERENCE, in_order};
use super::rounding::{Divisions, INTERVALS};
use super::setting::{ReadOrder, SettingReference, Writer};
use super::{Config, ConfigError, Word};
use core::fmt;

/// Applies the settings of `text`. Settings that others are checked against are applied first,
/// wherever they are in the string. After an error `config` may be half changed and must be
/// dropped.
pub(super) fn apply(config: &mut Config, text: &str) -> Result<(), ConfigError> {
    // If a policy of the host is configured, its keys are known even without a table.
    let (policies, policy) = (config.policies, config.policy);
    let named = |name: &Word| {
        let mut all = REFERENCE.into_iter().copied().chain(policies.settings()).chain(policy.settings());
        all.find(|setting| name.whole() == Some(setting.key))
    };
    // Settings of the second step are read here and again below, so that the error is the first
    // mistake in the string.
    for_each_setting(text, named, |setting, _, value| match setting {
        Some(setting) if setting.order != ReadOrder::Last => setting.read(config, value),
        _ => Ok(()),
    })?;
    for_each_setting(text, named, |setting, _, value| match setting {
        Some(setting) if setting.order == ReadOrder::Second => setting.read(config, value),
        _ => Ok(()),
    })?;
    for_each_setting(text, named, |setting, name, value| {
        let setting = setting.ok_or_else(|| ConfigError::UnknownKey { key: name.clone(), policies })?;
        if !setting.is_accepted(config) {
            return Err(ConfigError::OtherPolicy { key: setting.key, policy: config.policy });
        }
        if setting.order == ReadOrder::Last { setting.read(config, value) } else { Ok(()) }
    })
}

/// Calls `visit` with the setting of each key of `text`, if there is one, the key and its value, in
/// order, until the first error.
fn for_each_setting(
    text: &str,
    named: impl Fn(&Word) -> Option<SettingReference>,
    mut visit: impl FnMut(Option<SettingReference>, &Word, &Value<'_>) -> Result<(), ConfigError>,
) -> Result<(), ConfigError> {
    let takes_number = |name: &Word| named(name).is_some_and(|setting| setting.takes_number);
    for_each_entry(&Word::EMPTY, text, takes_number, |name, value| visit(named(name), name, &value))
}

/// Writes the string that parses to the same configuration. Omits settings with their default
/// value.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut config = self.clone();
        let mut out = Writer { out: f, comma: "", setting: *REFERENCE[0] };
        // Settings of the caching policy are kept under other policies, too, and written as they
        // are.
        let written = |setting: &SettingReference| setting.is_of(Policy::Caching) || setting.is_accepted(self);
        in_order(self.policy).filter(written).try_for_each(|setting| {
            out.setting = setting;
            setting.write(&mut config, &mut out)
        })
    }
}

/// Writes the value of `roundup_power2_divisions`: a number if all intervals are equal, and
/// otherwise the list.
impl fmt::Display for Divisions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_interval = self.intervals();
        let (first, last) = (of_interval[0], of_interval[INTERVALS - 1]);
        // The first entry also covers all equal ones below it, and `>` the equal ones at the end.
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
