//! The policies as configurations. Tests of the external invariants run under each.

/// Every policy, with each option that changes decisions.
pub const POLICIES: [&str; 22] = [
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
