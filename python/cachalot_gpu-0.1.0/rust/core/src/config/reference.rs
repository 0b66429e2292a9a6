//! The reference of settings: the default, an example and the effect of each.

use super::key;

/// The reference of a setting. The parser knows which policies have the key, and which values it
/// takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SettingReference {
    /// The key, as [`Config::parse`](super::Config::parse) reads it.
    pub key: &'static str,
    /// The value without the key.
    pub default: SettingDefault,
    /// A value accepted by the key.
    pub example: &'static str,
    /// The effect of the setting, in Markdown.
    pub effect: &'static str,
}

/// The value of a setting that is not set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SettingDefault {
    /// A value accepted by the key as well.
    Value(&'static str),
    /// A value without a spelling in the key, described in a few words.
    Unset(&'static str),
}

use SettingDefault::{Unset, Value};

/// Creates the reference of a setting.
const fn setting(
    key: &'static str,
    default: SettingDefault,
    example: &'static str,
    effect: &'static str,
) -> SettingReference {
    SettingReference { key, default, example, effect }
}

const NOT_PINNED: &str = "No effect: pinned memory has the settings of other memory.";
const NO_LOCK: &str = "No effect: cached requests never wait for a lock during a call of the driver.";

/// Every setting, in the order of the keys.
pub static REFERENCE: [SettingReference; 45] = [
    setting(
        key::ALLOW_GROWTH,
        Value("True"),
        "False",
        "Segments begin at `first_region_mb` and double. With `False`, the first segment takes everything up to the \
         memory limit.",
    ),
    setting(
        key::ARENA_MB,
        Value("64"),
        "128",
        "The size of a segment. A larger request gets a separate segment with the next power of two.",
    ),
    setting(key::BACKEND, Value("native"), "native", "No effect. The key is accepted for existing strings."),
    setting(
        key::CHUNK_MB,
        Value("1024"),
        "5120",
        "The size of a segment from which blocks are cut. A larger request gets a larger segment.",
    ),
    setting(
        key::COMPACT,
        Unset("off"),
        "0.05",
        "The largest part of memory held beyond the most that was ever in use: 0.05 is 5 %. A segment above \
         `large_segment_size_mb` serves only requests of at least 4/5 of it. Where another segment would exceed the \
         budget, any free block serves the request, or else wholly free large segments are released first, if the \
         device has finished with them. A request never waits for that. No effect with expandable segments.",
    ),
    setting(
        key::COMPLETED_PAGES_ONLY,
        Value("False"),
        "True",
        "A page moves only after the work that used the page is complete, and no stream is ordered behind another for \
         memory. For programs with programmatic dependent launch or persistent kernels.",
    ),
    setting(
        key::DECISIONS,
        Value("pytorch"),
        "improved",
        "With `pytorch`, each decision is PyTorch's. `improved` repairs four defects of these decisions. Shared events: \
         freed blocks that other streams use share an event, because an event for each free is a call of the driver. \
         Late questions: only a request that no free block can serve asks whether events are complete, because a \
         question at each request is a call of the driver, too. Short waits: a request short of memory waits for one \
         event after the other until a block is free, because PyTorch waits for all events. Splits at any size: \
         `max_split_size_mb` has no effect on expandable segments, because their free neighbours join to a block above \
         this size, which would serve no smaller request while the segment grows.",
    ),
    setting(
        key::EXACT_SEGMENTS,
        Value("False"),
        "True",
        "A request above 1 MiB gets a segment of its own size, rounded up to 4 KiB. For memory that the system gives in \
         small pages, such as pinned host memory. With `compact`, a whole segment serves only requests that leave less \
         than 1 % of it, and where another segment would exceed the budget, segments are released.",
    ),
    setting(
        key::EXPANDABLE_SEGMENTS,
        Value("False"),
        "True",
        "Segments grow and shrink in virtual memory, and neighbouring free memory forms a single block.",
    ),
    setting(
        key::EXPANDABLE_SEGMENTS_RESERVE,
        Unset("9/8 of the device"),
        "0.5",
        "The address space of an expandable segment, 9/8 of the device at most.",
    ),
    setting(
        key::EXPANDABLE_SEGMENTS_RESERVE_BY_CLASS,
        Unset("none"),
        "[serving:0.25,batch:8G]",
        "No effect: the library knows no classes of streams. Up to 8 classes are checked and reported.",
    ),
    setting(
        key::FALLBACK,
        Value("caching"),
        "bfc",
        "The policy for all requests outside of the plan. The keys of the fallback are accepted as well.",
    ),
    setting(key::FIRST_REGION_MB, Value("2"), "16", "The size of the first segment of a stream."),
    setting(
        key::GARBAGE_COLLECTION_THRESHOLD,
        Unset("off"),
        "0.8",
        "A part of the memory limit. While more is held, old and wholly free segments are released before the driver \
         is asked for memory. Without a limit nothing is released.",
    ),
    setting(
        key::GRAPH_CAPTURE_RECORD_STREAM_REUSE,
        Value("False"),
        "True",
        "A block that several streams of a graph use, freed during the capture, may be reused in the graph behind all \
         these uses. Off: the block stays pending until the capture ends.",
    ),
    setting(
        key::LARGE_SEGMENT_SIZE_MB,
        Value("20"),
        "64",
        "The size of a segment for several large blocks. Without expandable segments, a request of 10 MiB or more \
         gets a separate segment.",
    ),
    setting(
        key::LARGEST_OBJECT_KB,
        Value("512"),
        "64",
        "The largest request for a slab, rounded down to a size of slabs. Larger requests are placed as under \
         `caching`.",
    ),
    setting(
        key::MAX_INTERNAL_FRAGMENTATION_MB,
        Value("128"),
        "64",
        "A free block is split if at least this much is left, or if the block is at least twice as large as the \
         request.",
    ),
    setting(
        key::MAX_NON_SPLIT_ROUNDING_MB,
        Unset("`large_segment_size_mb`"),
        "64",
        "A block of `max_split_size_mb` or more serves a request only if the difference in size is less than this.",
    ),
    setting(
        key::MAX_SPLIT_SIZE_MB,
        Unset("no limit"),
        "128",
        "Blocks of this size and above are never split, and serve only requests of this size and above.",
    ),
    setting(
        key::MAX_STALL_US,
        Value("2000"),
        "500",
        "How long a request spends in mapping pages. A request that would take longer allocates up to 1 % of the peak \
         of live memory beyond `slack`; beyond that, it takes longer.",
    ),
    setting(
        key::PARITY,
        Value("True"),
        "False",
        "An older name of `decisions`: `True` is `decisions:pytorch`, and `False` is `decisions:improved`, with its four \
         repairs.",
    ),
    setting(
        key::PER_PROCESS_MEMORY_FRACTION,
        Value("1"),
        "0.5",
        "The largest part of the device's memory for this allocator. 1 means no limit.",
    ),
    setting(key::PINNED_FREE_CATCH_ALL, Value("False"), "True", NOT_PINNED),
    setting(key::PINNED_MAX_CACHED_SIZE_MB, Unset("no limit"), "256", NOT_PINNED),
    setting(key::PINNED_MAX_ROUND_THRESHOLD_MB, Unset("no limit"), "128", NOT_PINNED),
    setting(key::PINNED_NUM_REGISTER_THREADS, Value("1"), "8", NOT_PINNED),
    setting(key::PINNED_RESERVE_SEGMENT_SIZE_MB, Unset("none"), "512", NOT_PINNED),
    setting(key::PINNED_USE_BACKGROUND_THREADS, Value("False"), "True", NOT_PINNED),
    setting(key::PINNED_USE_CUDA_HOST_REGISTER, Value("False"), "True", NOT_PINNED),
    setting(key::PINNED_USE_HIP_HOST_REGISTER, Value("False"), "True", NOT_PINNED),
    setting(key::PLAN_DEADLINE_MS, Value("2000"), "500", "The longest search for a better plan, in the background."),
    setting(
        key::POLICY,
        Value("caching"),
        "bfc",
        "The rules for the placement of blocks. The policy of an allocator cannot change.",
    ),
    setting(
        key::RECLAIM,
        Value("off"),
        "auto",
        "With `auto`, upkeep (`cachalot_maintain`) gives cached memory back to the driver by what it is worth: if it is not \
         expected to be needed for as long as the driver's calls take to pay for within `reclaim_budget`. No request \
         and no free does more for that, and nothing waits for the device. Off: cached memory goes back when the \
         memory is short, or on demand.",
    ),
    setting(
        key::RECLAIM_BUDGET,
        Value("0.01"),
        "0.002",
        "The largest part of the time for the driver's calls that give idle memory back under `reclaim:auto`, and obtain it \
         again. Less gives less memory back, and later.",
    ),
    setting(
        key::REGION_GARBAGE_COLLECTION,
        Value("True"),
        "False",
        "Wholly free segments are released for a request without any other memory.",
    ),
    setting(key::RELEASE_LOCK_ON_CUDAMALLOC, Value("False"), "True", NO_LOCK),
    setting(key::RELEASE_LOCK_ON_HIPMALLOC, Value("False"), "True", NO_LOCK),
    setting(
        key::RETRY_MS,
        Value("0"),
        "10000",
        "How long a failing request waits for other threads to free memory. TensorFlow waits 10,000 ms.",
    ),
    setting(
        key::ROUNDUP_POWER2_DIVISIONS,
        Unset("off"),
        "[256:1,512:2,>:8]",
        "Sizes are rounded up to N equal steps in each doubling of the size, and at least to multiples of 512 bytes.",
    ),
    setting(
        key::SLACK,
        Value("0.012"),
        "0.05",
        "The memory held may exceed the peak of live memory by this part of the peak. Beyond, free pages move to where \
         a request needs them.",
    ),
    setting(
        key::STRICT_STALL,
        Value("False"),
        "True",
        "No request takes longer than `max_stall_us`, whatever it allocates beyond `slack`.",
    ),
    setting(
        key::THROW_ON_CUDAMALLOC_OOM,
        Value("False"),
        "True",
        "A segment beyond `per_process_memory_fraction` is refused at once. Nothing is released and nothing is retried.",
    ),
    setting(
        key::TUNE,
        Value("off"),
        "auto",
        "With `auto`, the allocator records its latest requests, searches the settings of the caching policy for less \
         reserved memory, and puts the best in force at an announced iteration or during upkeep. It takes back what does \
         not hold what the search has predicted.",
    ),
    setting(
        key::TUNE_BUDGET_MS,
        Value("2000"),
        "500",
        "The longest search of `tune:auto`, on one thread of low priority. The thread rests for nine times as long \
         afterwards.",
    ),
];

#[cfg(test)]
mod tests {
    use super::super::settings::SETTINGS;
    use super::REFERENCE;

    extern crate std;
    use std::vec::Vec;

    #[test]
    fn the_reference_has_every_key_of_the_parser() {
        let documented: Vec<_> = REFERENCE.iter().map(|setting| setting.key).collect();
        let parsed: Vec<_> = SETTINGS.iter().map(|setting| setting.key).collect();
        assert_eq!(documented, parsed);
    }
}
