//! The policies as configurations. Tests of the external invariants run under each.

use cachalot_policies::NAMES as POLICIES;
use std::sync::LazyLock;

/// Policies with options, and options that change decisions.
const CHOSEN: [&str; 22] = [
    "",
    "max_split_size_mb:24,max_non_split_rounding_mb:40",
    "garbage_collection_threshold:0.5,roundup_power2_divisions:4",
    "compact:0.05",
    "compact:0,max_split_size_mb:24",
    "parity:False,compact:0.01,exact_segments:True",
    "expandable_segments:True",
    "parity:False",
    "parity:False,expandable_segments:True,max_split_size_mb:24",
    "policy:bfc",
    "policy:bfc,first_region_mb:1,region_garbage_collection:False",
    "policy:bfc,allow_growth:False,max_internal_fragmentation_mb:1",
    "policy:bfc,expandable_segments:True",
    "policy:bfc,retry_ms:20",
    "policy:buddy",
    "policy:buddy,arena_mb:4",
    "policy:size_class,chunk_mb:32",
    "policy:slab",
    "policy:direct",
    "policy:stitched",
    "policy:stitched,slack:0,max_stall_us:200,completed_pages_only:True",
    "policy:planned,fallback:bfc",
];

/// Returns the configurations: policies with each option that changes decisions, and any further
/// policy of the library with its defaults.
pub fn policies() -> impl Iterator<Item = &'static str> + Clone {
    static FURTHER: LazyLock<Vec<String>> = LazyLock::new(|| {
        let is_chosen = |policy: &str| {
            let setting = format!("policy:{policy}");
            policy == POLICIES[0] || CHOSEN.iter().any(|chosen| chosen.split(',').any(|part| part == setting))
        };
        POLICIES.iter().filter(|policy| !is_chosen(policy)).map(|policy| format!("policy:{policy}")).collect()
    });
    CHOSEN.into_iter().chain(FURTHER.iter().map(String::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_is_tested() {
        let names: Vec<_> = policies().map(|text| cachalot_policies::parse(text).unwrap().policy_name()).collect();
        for policy in POLICIES {
            assert!(names.contains(&policy), "{policy}");
        }
    }
}
