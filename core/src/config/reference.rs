//! Lists of all settings, one sorted by key and one in the order of the string form.

use super::Config;
use super::policy::{Policy, ROWS_OF_POLICIES};
use super::setting::SettingReference;

/// Returns the setting at a place of all tables, taken one after the other.
const fn row(mut at: usize) -> Option<&'static SettingReference> {
    let mut table = 0;
    while table <= ROWS_OF_POLICIES.len() {
        let rows = if table < ROWS_OF_POLICIES.len() { ROWS_OF_POLICIES[table] } else { Config::ROWS };
        if at < rows.len() {
            return Some(&rows[at]);
        }
        at -= rows.len();
        table += 1;
    }
    None
}

/// The number of settings.
const COUNT: usize = {
    let mut count = 0;
    while row(count).is_some() {
        count += 1;
    }
    count
};

/// Every setting of the core, in the order of the keys. A policy of the host may have others.
pub static REFERENCE: [&SettingReference; COUNT] = {
    let mut sorted = [&Config::ROWS[0]; COUNT];
    let mut count = 0;
    while let Some(setting) = row(count) {
        let mut at = count;
        while at > 0 && is_before(setting.key, sorted[at - 1].key) {
            sorted[at] = sorted[at - 1];
            at -= 1;
        }
        sorted[at] = setting;
        count += 1;
    }
    sorted
};

/// Returns whether a key is sorted before another one. It exists because `str` cannot be compared
/// at compile time.
const fn is_before(key: &str, other: &str) -> bool {
    let (key, other) = (key.as_bytes(), other.as_bytes());
    let mut at = 0;
    while at < key.len() && at < other.len() {
        if key[at] != other[at] {
            return key[at] < other[at];
        }
        at += 1;
    }
    key.len() < other.len()
}

/// Iterates over the settings of the core and of a policy of the host, in the order of the string
/// form. Other names are left out.
pub(super) fn in_order(policy: Policy) -> impl Iterator<Item = SettingReference> {
    let of_policies = ROWS_OF_POLICIES.iter().copied().flatten().copied().chain(policy.settings());
    let own = of_policies.chain(Config::ROWS.iter().copied()).filter(|setting| setting.written == setting.key);
    own.clone().filter(|setting| !setting.is_last).chain(own.filter(|setting| setting.is_last))
}
