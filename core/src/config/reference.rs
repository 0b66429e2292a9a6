//! All settings: who has each, how its value is read and written, the default, an example and the effect.

use super::error::Accepted;
use super::guard::{Guard, Zero};
use super::parse;
use super::passed_on::Form;
use super::policy::{Planned, Stitched};
use super::rounding::Divisions;
use super::setting::{
    EVERY, Exact, SettingDefault, SettingReference, choice, flag, mebibytes, passed_on, setting, whole,
};
use super::{Config, ConfigError, FRACTION, THRESHOLD};
use crate::units::MIB;
use SettingDefault::{Unset, Value};

const DECISIONS: Accepted = Accepted::Text("`pytorch` or `improved`");
const RECLAIMS: Accepted = Accepted::Text("`off` or `auto`");
const NATIVE: Accepted = Accepted::Text("`native`: the driver's own pool is not an allocator of this library");
const MOST_ARENA_MIB: u32 = 1 << 20;
const ARENAS: Accepted = Accepted::Text("a power of two in MiB up to 1048576");
const MOST_OBJECT_KIB: u64 = 512;
const OBJECTS: Accepted = Accepted::Text("a whole number of KiB from 1 to 512");
const MILLISECONDS: Accepted = Accepted::Text("a whole number of milliseconds");
const MICROSECONDS: Accepted = Accepted::Text("a whole number of microseconds");
const TUNES: Accepted = Accepted::Text("`auto` or `off`");
const NOT_PLANNED: Accepted = Accepted::Text("`off` under `policy:planned`, whose plans are for fixed settings");

const GUARDS: Accepted = Accepted::Text("`off`, `all`, `after`, `before` or `sampled:N` with a number above 0");
const NOT_GUARDED: Accepted =
    Accepted::Text("`off` under `policy:planned`, whose plans have one address for several blocks");
const FREES: Accepted = Accepted::Text("a whole number of frees");
const BYTES: Accepted = Accepted::Text("a byte from 0 to 255");
const ZEROES: Accepted = Accepted::Text("`off`, `on_alloc` or `on_free`");

/// Refuses a setting that is on under the planned policy, whose plans have one address for several blocks.
fn refuse_plans(config: &Config, key: &'static str, value: &parse::Value<'_>, on: bool) -> Result<(), ConfigError> {
    if on && config.planned.is_some() { Err(value.refused(key, NOT_GUARDED)) } else { Ok(()) }
}

const NOT_PINNED: &str = "No effect: pinned memory has the settings of other memory.";
const NO_LOCK: &str = "No effect: cached requests never wait for a lock during a call of the driver.";

/// Every setting, in the order of the keys.
pub static REFERENCE: [SettingReference; 52] = [
    flag("allow_growth", Value("True"), "False", |config| &mut config.bfc().allow_growth).of(&["bfc"]).effect(
        "Segments start at `first_region_mb` and double. With `False`, the first segment takes everything up to \
         the memory limit.",
    ),
    setting("arena_mb", Value("64"), "128")
        .of(&["buddy"])
        .reads(|config, key, value| {
            config.buddy().arena = u64::from(value.power_of_two(key, MOST_ARENA_MIB, ARENAS)?) * MIB;
            Ok(())
        })
        .writes(|config, out| out.some(Some(config.buddy().arena / MIB)))
        .effect("The size of a segment. A larger request gets a separate segment with the next power of two."),
    setting("backend", Value("native"), "native")
        .of(EVERY)
        .reads(|_, key, value| value.one_of(key, ["native"], NATIVE).map(|_| ()))
        .effect("No effect. The key is accepted for existing strings."),
    setting("canary", Value("False"), "True")
        .of(&["caching", "bfc"])
        .reads(|config, key, value| {
            let on = value.one_of(key, ["False", "True"], Accepted::Boolean)? == 1;
            refuse_plans(config, key, value, on)?;
            config.canary = on;
            Ok(())
        })
        .writes(|config, out| out.some(config.canary.then_some("True")))
        .effect(
            "Each block is at least 512 bytes larger than its request. The bytes after the request, 1,024 at most, \
             get a value that is checked once the work known at the free is complete. A line in the log names a \
             block whose value has changed. Under `guard:after`, only the bytes to the end of the last 512 are \
             checked. A free takes a call of the driver more.",
        ),
    mebibytes("chunk_mb", Value("1024"), "5120", 2, |config| &mut config.size_class().chunk)
        .of(&["size_class"])
        .effect("The size of a segment from which blocks are cut. A larger request gets a larger segment."),
    setting("compact", Unset("off"), "0.05")
        .reads(|config, key, value| config.set_compact(Some(value.number(key, FRACTION)?)))
        .writes(|config, out| out.some(config.compact.map(Exact)))
        .effect(
            "The largest part of memory held beyond the most that was ever in use: 0.05 is 5 %. A segment above \
             `large_segment_size_mb` serves only requests of at least 4/5 of it. Where another segment would exceed \
             the budget, any free block serves the request, or else wholly free large segments are released first, \
             if the device has finished with them. A request never waits for that. No effect with expandable \
             segments.",
        ),
    mebibytes("compact_slack_mb", Value("0"), "64", 0, |config| &mut config.compact_slack).effect(
        "Memory beyond the budget of `compact`. For a program whose freed memory waits for the device before it serves \
         again: otherwise what waits has segments released and obtained again.",
    ),
    flag("completed_pages_only", Value("False"), "True", |config| &mut config.stitched().completed_pages_only)
        .of(&["stitched"])
        .effect(
            "A page moves only after the work that used the page is complete, and no stream is ordered after \
             another for memory. For programs with programmatic dependent launch or persistent kernels.",
        ),
    choice("decisions", Value("pytorch"), "improved", ["improved", "pytorch"], DECISIONS, |config| &mut config.parity)
        .another_name_of("parity")
        .effect(
            "With `pytorch`, each decision is PyTorch's. `improved` repairs four defects of these decisions. Shared \
         events: freed blocks that other streams use share an event, because an event for each free is a call of \
         the driver. Late questions: only a request that no free block can serve asks whether events are \
         complete, because a question at each request is a call of the driver, too. Short waits: a request short \
         of memory waits for one event after the other until a block is free, because PyTorch waits for all \
         events. Splits at any size: `max_split_size_mb` has no effect on expandable segments, because their \
         free neighbours join to a block above this size, which would serve no smaller request while the segment \
         grows.",
        ),
    flag("exact_segments", Value("False"), "True", |config| &mut config.exact_segments).effect(
        "A request above 1 MiB gets a segment of its own size, rounded up to 4 KiB. For memory that the system \
         gives in small pages, such as pinned host memory. With `compact`, a whole segment serves only requests \
         that leave less than 1 % of it, or up to a quarter of the request if `compact` is 0.25 or more and the rest \
         is not cut off. Where another segment would exceed the budget, segments are released.",
    ),
    flag("expandable_segments", Value("False"), "True", |config| &mut config.expandable_segments)
        .of(&["caching", "bfc"])
        .effect("Segments grow and shrink in virtual memory, and neighbouring free memory forms a single block."),
    setting("expandable_segments_reserve", Unset("9/8 of the device; under `stitched`, 4 times the device"), "0.5")
        .of(&["caching", "bfc", "stitched"])
        .reads(|config, key, value| config.set_expandable_segments_reserve(Some(value.reserve(key)?)))
        .writes(|config, out| out.some(config.expandable_segments_reserve))
        .effect(
            "The addresses that an expandable segment reserves, 9/8 of the device at most; under `stitched`, those of each \
             heap, 4 times the device at most. A process has 128 TiB of addresses for all its devices, and each stream of \
             each pool takes such reservations. Where they run out, later ones are shorter.",
        ),
    setting("expandable_segments_reserve_by_class", Unset("none"), "[serving:0.25,batch:8G]")
        .of(&["caching", "bfc"])
        .reads(|config, key, value| config.passed_on.read_classes(key, value))
        .writes(|config, out| out.some(config.passed_on.classes()))
        .effect("No effect: the library knows no classes of streams. Up to 8 classes are checked and reported."),
    // Read before all others, by `apply`.
    setting("fallback", Value("caching"), "bfc")
        .of(&["planned"])
        .writes(|config, out| out.some(Some(config.policy)))
        .effect("The policy for all requests outside of the plan. The keys of the fallback are accepted as well."),
    mebibytes("first_region_mb", Value("2"), "16", 1, |config| &mut config.bfc().first_region)
        .of(&["bfc"])
        .effect("The size of the first segment of a stream."),
    setting("garbage_collection_threshold", Unset("off"), "0.8")
        .reads(|config, key, value| config.set_garbage_collection_threshold(Some(value.number(key, THRESHOLD)?)))
        .writes(|config, out| out.some(config.garbage_collection_threshold.map(Exact)))
        .effect(
            "A part of the memory limit. While more is held, old and wholly free segments are released before the \
             driver is asked for memory. Without a limit nothing is released.",
        ),
    flag("graph_capture_record_stream_reuse", Value("False"), "True", |config| {
        &mut config.graph_capture_record_stream_reuse
    })
    .effect(
        "A block that several streams of a graph use, freed during the capture, may be reused in the graph \
         after all these uses. Off: the block stays pending until the capture ends.",
    ),
    setting("guard", Value("off"), "sampled:1000")
        .of(&["caching", "bfc"])
        .reads(|config, key, value| {
            let guard = value.text().and_then(Guard::named).ok_or_else(|| value.refused(key, GUARDS))?;
            refuse_plans(config, key, value, guard != Guard::Off)?;
            config.guard = guard;
            Ok(())
        })
        .writes(|config, out| out.some(Some(config.guard)))
        .effect(
            "Which blocks get their own addresses, which are unmapped once the work known at the free is \
             complete: a kernel that still uses the block faults. `all`: every block, and small ones share physical \
             pages. `after`: every block, at the end of its own pages, so that an overrun faults, too. `before`: at \
             the start, so that an underrun faults. `sampled:N`: one block in N, as with `after`. Needs virtual \
             memory. A request of a private pool, or without enough memory, gets an ordinary block.",
        ),
    // Read before all others, by `apply`.
    setting("large_segment_size_mb", Value("20"), "64")
        .of(&["caching", "slab"])
        .writes(|config, out| out.some(Some(config.large_segment_size / MIB)))
        .effect(
            "The size of a segment for several large blocks. Without expandable segments, a request of 10 MiB or \
             more gets a separate segment.",
        ),
    setting("largest_object_kb", Value("512"), "64")
        .of(&["slab"])
        .reads(|config, key, value| {
            let kib = value.number(key, OBJECTS)?;
            if !(1..=MOST_OBJECT_KIB).contains(&kib) {
                return Err(value.refused(key, OBJECTS));
            }
            config.slab().largest_object = kib << 10;
            Ok(())
        })
        .writes(|config, out| out.some(Some(config.slab().largest_object >> 10)))
        .effect(
            "The largest request for a slab, rounded down to a size of slabs. Larger requests are placed as under \
             `caching`.",
        ),
    mebibytes("max_internal_fragmentation_mb", Value("128"), "64", 0, |config| {
        &mut config.bfc().max_internal_fragmentation
    })
    .of(&["bfc"])
    .effect(
        "A free block is split if at least this much is left, or if the block is at least twice as large as the \
         request.",
    ),
    setting("max_non_split_rounding_mb", Unset("`large_segment_size_mb`"), "64")
        .reads(|config, key, value| {
            let accepted = Accepted::mebibytes(config.split_range_mib());
            config.set_max_non_split_rounding_mb(value.number(key, accepted)?)
        })
        .writes(|config, out| {
            let rounding = config.max_non_split_rounding;
            out.some((rounding != config.large_segment_size).then_some(rounding / MIB))
        })
        .effect(
            "A block of `max_split_size_mb` or more serves a request only if the difference in size is less than \
             this.",
        ),
    setting("max_split_size_mb", Unset("no limit"), "128")
        .reads(|config, key, value| {
            let accepted = Accepted::mebibytes(config.split_range_mib());
            config.set_max_split_size_mb(Some(value.number(key, accepted)?))
        })
        .writes(|config, out| out.some(config.max_split_size().map(|bytes| bytes / MIB)))
        .effect("Blocks of this size and above are never split, and serve only requests of this size and above."),
    setting("max_stall_us", Value("2000"), "500")
        .of(&["stitched"])
        .reads(|config, key, value| {
            config.stitched().max_stall_us = value.number(key, MICROSECONDS)?;
            Ok(())
        })
        .writes(|config, out| out.some(Some(config.stitched().max_stall_us)))
        .effect(
            "How long a request spends in mapping pages. A request that would take longer allocates up to 1 % of the \
             peak of live memory beyond `slack`; beyond that, it takes longer.",
        ),
    choice("nvtx", Value("auto"), "off", ["off", "auto"], RECLAIMS, |config| &mut config.nvtx).of(EVERY).effect(
        "With `auto`, a memory checker that has announced itself by the variable `NVTX_INJECTION64_PATH`, such as \
         compute-sanitizer, is told of each segment and of each block, and finds accesses beyond a block and after \
         its free. No block is on pages then, since such checkers refuse them: `expandable_segments`, `guard` and \
         `policy:stitched` have no effect. Without such a checker nothing happens.",
    ),
    flag("parity", Value("True"), "False", |config| &mut config.parity).effect(
        "An older name of `decisions`: `True` is `decisions:pytorch`, and `False` is `decisions:improved`, with \
         its four repairs.",
    ),
    setting("pattern", Unset("none"), "165")
        .of(&["caching", "bfc"])
        .reads(|config, key, value| {
            let byte = value.number(key, BYTES)?;
            refuse_plans(config, key, value, true)?;
            config.pattern = Some(byte);
            Ok(())
        })
        .writes(|config, out| out.some(config.pattern))
        .effect(
            "Each byte of a new block, and of a freed one, gets this value, so that a read of memory that nothing \
             has written shows. `zero` counts more, at its moment.",
        ),
    setting("per_process_memory_fraction", Value("1"), "0.5")
        .of(EVERY)
        .reads(|config, key, value| config.set_per_process_memory_fraction(value.number(key, FRACTION)?))
        .writes(|config, out| {
            let fraction = config.per_process_memory_fraction;
            out.some((fraction < 1.0).then_some(Exact(fraction)))
        })
        .effect("The largest part of the device's memory for this allocator. 1 means no limit."),
    passed_on("pinned_free_catch_all", Value("False"), "True", Form::Flag).effect(NOT_PINNED),
    passed_on("pinned_max_cached_size_mb", Unset("no limit"), "256", Form::Mebibytes(0)).effect(NOT_PINNED),
    passed_on("pinned_max_round_threshold_mb", Unset("no limit"), "128", Form::Mebibytes(0)).effect(NOT_PINNED),
    passed_on("pinned_num_register_threads", Value("1"), "8", Form::Threads).effect(NOT_PINNED),
    passed_on("pinned_reserve_segment_size_mb", Unset("none"), "512", Form::Mebibytes(1)).effect(NOT_PINNED),
    passed_on("pinned_use_background_threads", Value("False"), "True", Form::Flag).effect(NOT_PINNED),
    passed_on("pinned_use_cuda_host_register", Value("False"), "True", Form::Flag).effect(NOT_PINNED),
    passed_on("pinned_use_hip_host_register", Value("False"), "True", Form::Flag)
        .another_name_of("pinned_use_cuda_host_register")
        .effect(NOT_PINNED),
    whole("plan_deadline_ms", Value("2000"), "500", MILLISECONDS, |config| {
        &mut config.planned.get_or_insert(Planned::DEFAULT).plan_deadline_ms
    })
    .of(&["planned"])
    .effect("The longest search for a better plan, in the background."),
    // Read before all others, by `apply`.
    setting("policy", Value("caching"), "bfc")
        .of(EVERY)
        .writes(|config, out| out.some(Some(config.policy_name())))
        .effect("The rules for the placement of blocks. The policy of an allocator cannot change."),
    whole("quarantine", Value("1024"), "100000", FREES, |config| &mut config.quarantine)
        .of(&["caching", "bfc"])
        .effect(
            "For how many frees of guarded blocks the addresses of a freed one stay unmapped. Costs addresses, not \
             memory.",
        ),
    choice("reclaim", Value("off"), "auto", ["off", "auto"], RECLAIMS, |config| &mut config.reclaim)
        .of(&["caching", "bfc"])
        .effect(
            "With `auto`, upkeep (`cachalot_maintain`) gives cached memory back to the driver by what it is worth: \
             if it is not expected to be needed for as long as the driver's calls take to pay for within \
             `reclaim_budget`. No request and no free does more for that, and nothing waits for the device. Off: \
             cached memory goes back when the memory is short, or on demand.",
        ),
    setting("reclaim_budget", Value("0.01"), "0.002")
        .of(&["caching", "bfc"])
        .reads(|config, key, value| config.set_reclaim_budget(value.number(key, FRACTION)?))
        .writes(|config, out| out.some(Some(Exact(config.reclaim_budget))))
        .effect(
            "The largest part of the time for the driver's calls that give idle memory back under `reclaim:auto`, \
             and obtain it again. Less gives less memory back, and later.",
        ),
    flag("region_garbage_collection", Value("True"), "False", |config| &mut config.bfc().region_garbage_collection)
        .of(&["bfc"])
        .effect("Wholly free segments are released for a request without any other memory."),
    passed_on("release_lock_on_cudamalloc", Value("False"), "True", Form::Flag).effect(NO_LOCK),
    passed_on("release_lock_on_hipmalloc", Value("False"), "True", Form::Flag)
        .another_name_of("release_lock_on_cudamalloc")
        .effect(NO_LOCK),
    whole("retry_ms", Value("0"), "10000", MILLISECONDS, |config| &mut config.bfc().retry_ms)
        .of(&["bfc"])
        .effect("How long a failing request waits for other threads to free memory. TensorFlow waits 10,000 ms."),
    setting("roundup_power2_divisions", Unset("off"), "[256:1,512:2,>:8]")
        .reads(|config, key, value| {
            config.roundup_power2_divisions = value.divisions(key)?;
            Ok(())
        })
        .writes(|config, out| {
            let divisions = config.roundup_power2_divisions;
            out.some((divisions != Divisions::NONE).then_some(divisions))
        })
        .effect(
            "Sizes are rounded up to N equal steps in each doubling of the size, and at least to multiples of 512 \
             bytes.",
        ),
    setting("slack", Value("0.012"), "0.05")
        .of(&["stitched"])
        .reads(|config, key, value| {
            let slack: f64 = value.number(key, FRACTION)?;
            if !(0.0..=1.0).contains(&slack) {
                return Err(value.refused(key, FRACTION));
            }
            config.stitched().slack = (slack * f64::from(Stitched::SLACK_PARTS) + 0.5) as u32;
            Ok(())
        })
        .writes(|config, out| {
            let slack = f64::from(config.stitched().slack) / f64::from(Stitched::SLACK_PARTS);
            out.some(Some(Exact(slack)))
        })
        .effect(
            "The memory held may exceed the peak of live memory by this part of the peak. Beyond, free pages move to \
             where a request needs them.",
        ),
    flag("strict_stall", Value("False"), "True", |config| &mut config.stitched().strict_stall)
        .of(&["stitched"])
        .effect("No request takes longer than `max_stall_us`, whatever it allocates beyond `slack`."),
    flag("throw_on_cudamalloc_oom", Value("False"), "True", |config| &mut config.throw_on_device_oom).of(EVERY).effect(
        "A segment beyond `per_process_memory_fraction` is refused at once. Nothing is released and nothing is \
             retried.",
    ),
    setting("tune", Value("off"), "auto")
        .reads(|config, key, value| {
            let is_auto = value.one_of(key, ["off", "auto"], TUNES)? == 1;
            // A plan is for requests of fixed sizes, and a search changes how sizes are rounded.
            if is_auto && config.planned.is_some() {
                return Err(value.refused(key, NOT_PLANNED));
            }
            config.tunes = is_auto;
            Ok(())
        })
        .writes(|config, out| out.some(config.tunes.then_some("auto")))
        .effect(
            "With `auto`, the allocator records its latest requests, searches the settings of the caching policy for \
             less reserved memory, and activates the best at an announced iteration or during upkeep. It takes \
             back settings that do not meet the prediction.",
        ),
    whole("tune_budget_ms", Value("2000"), "500", MILLISECONDS, |config| &mut config.tune_budget_ms).effect(
        "The longest search of `tune:auto`, on one thread of low priority. The thread rests for nine times as \
         long afterwards.",
    ),
    setting("zero", Value("off"), "on_free")
        .of(&["caching", "bfc"])
        .reads(|config, key, value| {
            let zero = value.text().and_then(Zero::named).ok_or_else(|| value.refused(key, ZEROES))?;
            refuse_plans(config, key, value, zero != Zero::Off)?;
            config.zero = zero;
            Ok(())
        })
        .writes(|config, out| out.some(Some(config.zero.name())))
        .effect(
            "With `on_alloc`, a new block is cleared in the order of its stream. With `on_free`, a freed block is \
             cleared once the work known at the free is complete, so that no other block gets its contents.",
        ),
];
