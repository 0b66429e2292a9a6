//! Declares all settings of [`Config`]: for each, its field, its default, and how the key is read,
//! written and documented. The options of a policy are in `policy.rs`, in the same form.

use super::error::Accepted;
use super::guard::{Guard, Zero};
use super::passed_on::{Form, PassedOn};
use super::policy::{Planned, Policy};
use super::rounding::{Divisions, LARGE_SEGMENT};
use super::setting::SettingDefault::{Unset, Value};
use super::setting::{
    EVERY, Exact, ReadOrder, SettingReference, choice, flag, mebibytes, passed_on, setting, settings, whole,
};
use super::suballocation::Policies;
use super::{FRACTION, MILLISECONDS, Reserve, THRESHOLD};
use crate::units::MIB;
use core::fmt;

const DECISIONS: Accepted = Accepted::Text("`pytorch` or `improved`");
const RECLAIMS: Accepted = Accepted::Text("`off` or `auto`");
const TUNES: Accepted = Accepted::Text("`auto` or `off`");
const NOT_PLANNED: Accepted = Accepted::Text("`off` under `policy:planned`, whose plans are for fixed settings");

const GUARDS: Accepted = Accepted::Text("`off`, `all`, `after`, `before` or `sampled:N` with a number above 0");
const NOT_GUARDED: Accepted =
    Accepted::Text("`off` under `policy:planned`, whose plans have one address for several blocks");
const FREES: Accepted = Accepted::Text("a whole number of frees");
const BYTES: Accepted = Accepted::Text("a byte from 0 to 255");
const ZEROES: Accepted = Accepted::Text("`off`, `on_alloc` or `on_free`");

const NOT_PINNED: &str = "No effect: pinned memory has the settings of other memory.";
const NO_LOCK: &str = "No effect: cached requests never wait for a lock during a call of the driver.";

settings! {
    /// The policy of an allocator and its settings. This is a plain value: an allocator uses a
    /// copy, so later changes have no effect until they are passed to the allocator.
    ///
    /// The string form is `PyTorch`'s, so an existing `PYTORCH_CUDA_ALLOC_CONF` works unchanged:
    /// `key:value,key:value`. White space is ignored. If a key occurs twice, the last value counts.
    ///
    /// The [module](crate::config#settings) lists all keys. A key of another policy is an error,
    /// and the error names the keys of the configured policy. [`Config::notes`] names the keys that
    /// are set and have no effect.
    ///
    /// In the list form of `roundup_power2_divisions`, `MIB` is the start of an interval in MiB, a
    /// power of two (values above 32768 count as 32768). The first entry also applies to all sizes
    /// below its interval. `>` sets the divisions of all intervals above the entry before it, or
    /// from 2 MiB on if it is the first entry. Intervals that are left out have no divisions.
    ///
    /// The parser differs from that of `PyTorch` (2.15) where a mistake would pass unnoticed: a
    /// missing, doubled or trailing separator, text after a number and an invalid reserve are
    /// errors.
    ///
    /// ```
    /// use cachalot_core::config::Config;
    ///
    /// let mut config = Config::parse("max_split_size_mb:64,expandable_segments:True")?;
    /// assert_eq!(config.max_split_size(), Some(64 << 20));
    /// config.update("garbage_collection_threshold:0.8")?;
    /// assert_eq!(config.to_string(), "garbage_collection_threshold:0.8,expandable_segments:True");
    /// # Ok::<(), cachalot_core::config::ConfigError>(())
    /// ```
    ///
    /// Invariant: `max_split_size` and `max_non_split_rounding` ≥ `large_segment_size` > 10 MiB.
    #[derive(Clone, PartialEq)]
    pub struct Config with pub(super) fields, take_placement(placement);

    /// The policies that a text may name besides the core's own. Not a setting.
    policies: Policies = Policies::NONE;

    /// Returns the rules of placement (`policy`); under the planned policy, those of the
    /// `fallback`.
    policy: Policy = Policy::Caching, read by policy;

    /// Returns the options of the planned policy, or `None` under other policies.
    planned: Option<Planned> = None, read by planned;

    /// Returns the size of a segment for several large blocks (`large_segment_size_mb`).
    large_segment_size: u64 = LARGE_SEGMENT, read by large_segment_size, in placement;
    row setting("large_segment_size_mb", Value("20"), "64")
        .at(ReadOrder::First)
        .reads(|config, key, value| {
            let accepted = Accepted::mebibytes(config.segment_range_mib());
            config.set_large_segment_size_mb(value.number(key, accepted)?)
        })
        .writes(|config, out| out.some(Some(config.large_segment_size / MIB)))
        .effect(
            "The size of a segment for several large blocks. Without expandable segments, a request of 10 MiB or \
             more gets a separate segment.",
        );

    /// The size from which on blocks are never split, in bytes (`max_split_size_mb`). `u64::MAX`
    /// means "no limit": no size reaches it, so [`Config::is_oversize`] is one comparison.
    max_split_size: u64 = u64::MAX, in placement;
    row setting("max_split_size_mb", Unset("no limit"), "128")
        .reads(|config, key, value| {
            let accepted = Accepted::mebibytes(config.split_range_mib());
            config.set_max_split_size_mb(Some(value.number(key, accepted)?))
        })
        .writes(|config, out| out.some(config.max_split_size().map(|bytes| bytes / MIB)))
        .effect("Blocks of this size and above are never split, and serve only requests of this size and above.");

    /// Returns the limit of the waste in an oversize block (`max_non_split_rounding_mb`): the block
    /// serves a request only if the difference in size is less. It is at most
    /// [`MAX_REQUEST`](crate::MAX_REQUEST), so the sum of it and a size cannot overflow.
    max_non_split_rounding: u64 = LARGE_SEGMENT, read by max_non_split_rounding, in placement;
    row setting("max_non_split_rounding_mb", Unset("`large_segment_size_mb`"), "64")
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
        );

    /// Returns the fraction of the memory limit above which old free blocks are released
    /// (`garbage_collection_threshold`), above 0 and below 1. `None`: never.
    garbage_collection_threshold: Option<f64> = None, read by garbage_collection_threshold, in placement;
    row setting("garbage_collection_threshold", Unset("off"), "0.8")
        .reads(|config, key, value| config.set_garbage_collection_threshold(Some(value.number(key, THRESHOLD)?)))
        .writes(|config, out| out.some(config.garbage_collection_threshold.map(Exact)))
        .effect(
            "A part of the memory limit. While more is held, old and wholly free segments are released before the \
             driver is asked for memory. Without a limit nothing is released.",
        );

    /// Returns the budget for memory that is held and not in use (`compact`), as a fraction of the
    /// most that was ever in use. `None`: held memory is not limited by what is in use.
    compact: Option<f64> = None, read by compact, in placement;
    row setting("compact", Unset("off"), "0.05")
        .reads(|config, key, value| config.set_compact(Some(value.number(key, FRACTION)?)))
        .writes(|config, out| out.some(config.compact.map(Exact)))
        .effect(
            "The largest part of memory held beyond the most that was ever in use: 0.05 is 5 %. A segment above \
             `large_segment_size_mb` serves only requests of at least 4/5 of it. Where another segment would exceed \
             the budget, any free block serves the request, or else wholly free large segments are released first, \
             if the device has finished with them. A request never waits for that. No effect with expandable \
             segments.",
        );

    /// Returns the bytes beyond the budget of `compact` (`compact_slack_mb`).
    compact_slack: u64 = 0, read by compact_slack;
    row mebibytes("compact_slack_mb", Value("0"), "64", 0, |config| &mut config.compact_slack)
        .last()
        .effect(
            "Memory beyond the budget of `compact`. For a program whose freed memory waits for the device before it \
             serves again: otherwise what waits has segments released and obtained again.",
        );

    /// The steps to which sizes are rounded up (`roundup_power2_divisions`).
    roundup_power2_divisions: Divisions = Divisions::NONE, set by set_roundup_power2_divisions, in placement;
    row setting("roundup_power2_divisions", Unset("off"), "[256:1,512:2,>:8]")
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
        );

    /// Returns whether a large block gets an ordinary segment of its own size (`exact_segments`).
    exact_segments: bool = false, read by exact_segments, set by set_exact_segments, in placement;
    row flag("exact_segments", Value("False"), "True", |config| &mut config.exact_segments).effect(
        "A request above 1 MiB gets a segment of its own size, rounded up to 4 KiB. For memory that the system \
         gives in small pages, such as pinned host memory. With `compact`, a whole segment serves only requests \
         that leave less than 1 % of it, or up to a quarter of the request if `compact` is 0.25 or more and the rest \
         is not cut off. Where another segment would exceed the budget, segments are released.",
    );

    /// Returns whether new segments grow and shrink in virtual memory (`expandable_segments`).
    expandable_segments: bool = false, read by expandable_segments, set by set_expandable_segments, in placement;
    row flag("expandable_segments", Value("False"), "True", |config| &mut config.expandable_segments)
        .of(&["caching", "bfc"])
        .effect("Segments grow and shrink in virtual memory, and neighbouring free memory forms a single block.");

    /// Returns the addresses that an expandable segment reserves (`expandable_segments_reserve`).
    /// `None`: 9/8 of the device.
    expandable_segments_reserve: Option<Reserve> = None, read by expandable_segments_reserve;
    row setting("expandable_segments_reserve", Unset("9/8 of the device; under `stitched`, 4 times the device"), "0.5")
        .of(&["caching", "bfc", "stitched"])
        .reads(|config, key, value| config.set_expandable_segments_reserve(Some(value.reserve(key)?)))
        .writes(|config, out| out.some(config.expandable_segments_reserve))
        .effect(
            "The addresses that an expandable segment reserves, 9/8 of the device at most; under `stitched`, those of each \
             heap, 4 times the device at most. A process has 128 TiB of addresses for all its devices, and each stream of \
             each pool takes such reservations. Where they run out, later ones are shorter.",
        );
    /// Returns how much memory of the host may serve requests for which the device has none
    /// (`spill`). `None`: none.
    spill: Option<Reserve> = None, read by spill;
    row setting("spill", Unset("none"), "16G")
        .of(&["caching", "bfc", "stitched"])
        .reads(|config, key, value| config.set_spill(Some(value.reserve(key)?)))
        .writes(|config, out| out.some(config.spill))
        .effect(
            "Under `expandable_segments:True` or `policy:stitched`, a request for which the device has no memory is served \
             from pages of the host, which kernels use at the rate of the link. Pools and blocks that the program names lie \
             there, too. At most this much memory of the host is held.",
        );
    row setting("expandable_segments_reserve_by_class", Unset("none"), "[serving:0.25,batch:8G]")
        .of(&["caching", "bfc"])
        .reads(|config, key, value| config.passed_on.read_classes(key, value))
        .writes(|config, out| out.some(config.passed_on.classes()))
        .effect("No effect: the library knows no classes of streams. Up to 8 classes are checked and reported.");

    /// Returns the fraction of each device that this process may reserve, 0 to 1
    /// (`per_process_memory_fraction`). 1: no limit.
    per_process_memory_fraction: f64 = 1.0, read by per_process_memory_fraction;
    row setting("per_process_memory_fraction", Value("1"), "0.5")
        .of(EVERY)
        .reads(|config, key, value| config.set_per_process_memory_fraction(value.number(key, FRACTION)?))
        .writes(|config, out| {
            let fraction = config.per_process_memory_fraction;
            out.some((fraction < 1.0).then_some(Exact(fraction)))
        })
        .effect("The largest part of the device's memory for this allocator. 1 means no limit.");

    /// Returns whether a segment beyond
    /// [`per_process_memory_fraction`](Self::per_process_memory_fraction) is refused at once,
    /// without a release or a retry (`throw_on_cudamalloc_oom`).
    throw_on_device_oom: bool = false, read by throw_on_device_oom, set by set_throw_on_device_oom;
    row flag("throw_on_cudamalloc_oom", Value("False"), "True", |config| &mut config.throw_on_device_oom)
        .of(EVERY)
        .effect(
            "A segment beyond `per_process_memory_fraction` is refused at once. Nothing is released and nothing is \
             retried.",
        );
    row passed_on("release_lock_on_cudamalloc", Value("False"), "True", Form::Flag).effect(NO_LOCK);
    row passed_on("release_lock_on_hipmalloc", Value("False"), "True", Form::Flag)
        .another_name_of("release_lock_on_cudamalloc")
        .effect(NO_LOCK);

    /// Returns whether a block freed during a capture may be reused in the same capture once the
    /// graph shows the end of its uses (`graph_capture_record_stream_reuse`).
    graph_capture_record_stream_reuse: bool = false,
        read by graph_capture_record_stream_reuse, set by set_graph_capture_record_stream_reuse;
    row flag("graph_capture_record_stream_reuse", Value("False"), "True", |config| {
        &mut config.graph_capture_record_stream_reuse
    })
    .effect(
        "A block that several streams of a graph use, freed during the capture, may be reused in the graph \
         after all these uses. Off: the block stays pending until the capture ends.",
    );

    /// Returns which blocks are guarded (`guard`). Existing allocators keep their guards.
    guard: Guard = Guard::Off, read by guard, set by set_guard;
    row setting("guard", Value("off"), "sampled:1000")
        .of(&["caching", "bfc"])
        .with_number()
        .unplanned(NOT_GUARDED)
        .last()
        .reads(|config, key, value| {
            config.guard = value.text().and_then(Guard::named).ok_or_else(|| value.refused(key, GUARDS))?;
            Ok(())
        })
        .writes(|config, out| out.some(Some(config.guard)))
        .effect(
            "Which blocks get their own addresses, which are unmapped once the work known at the free is \
             complete: a kernel that still uses the block faults. `all`: every block, and small ones share physical \
             pages. `after`: every block, at the end of its own pages, so that an overrun faults, too. `before`: at \
             the start, so that an underrun faults. `sampled:N`: one block in N, as with `after`. Needs virtual \
             memory. A request of a private pool, or without enough memory, gets an ordinary block.",
        );

    /// Returns the number of frees of guarded blocks for which the addresses of a freed one serve
    /// no other block (`quarantine`).
    quarantine: u64 = 1024, read by quarantine, set by set_quarantine;
    row whole("quarantine", Value("1024"), "100000", FREES, |config| &mut config.quarantine)
        .of(&["caching", "bfc"])
        .last()
        .effect(
            "For how many frees of guarded blocks the addresses of a freed one stay unmapped. Costs addresses, not \
             memory.",
        );

    /// The moment at which blocks are cleared (`zero`). Existing allocators keep their values of
    /// this setting and of the two below.
    zero: Zero = Zero::Off, set by set_zero;
    row setting("zero", Value("off"), "on_free")
        .of(&["caching", "bfc"])
        .unplanned(NOT_GUARDED)
        .last()
        .reads(|config, key, value| {
            config.zero = value.text().and_then(Zero::named).ok_or_else(|| value.refused(key, ZEROES))?;
            Ok(())
        })
        .writes(|config, out| out.some(Some(config.zero.name())))
        .effect(
            "With `on_alloc`, a new block is cleared in the order of its stream. With `on_free`, a freed block is \
             cleared once the work known at the free is complete, so that no other block gets its contents.",
        );

    /// The byte that is written to blocks (`pattern`).
    pattern: Option<u8> = None, set by set_pattern;
    row setting("pattern", Unset("none"), "165")
        .of(&["caching", "bfc"])
        .unplanned(NOT_GUARDED)
        .last()
        .reads(|config, key, value| {
            config.pattern = Some(value.number(key, BYTES)?);
            Ok(())
        })
        .writes(|config, out| out.some(config.pattern))
        .effect(
            "Each byte of a new block, and of a freed one, gets this value, so that a read of memory that nothing \
             has written shows. `zero` counts more, at its moment.",
        );

    /// Whether each block has bytes after its request, and they are checked (`canary`).
    canary: bool = false, set by set_canary;
    row flag("canary", Value("False"), "True", |config| &mut config.canary)
        .of(&["caching", "bfc"])
        .unplanned(NOT_GUARDED)
        .last()
        .effect(
            "Each block is at least 512 bytes larger than its request. The bytes after the request, 1,024 at most, \
             get a value that is checked once the work known at the free is complete. A line in the log names a \
             block whose value has changed. Under `guard:after`, only the bytes to the end of the last 512 are \
             checked. A free takes a call of the driver more.",
        );

    /// Returns whether a memory checker that listens through NVTX is told of segments and blocks
    /// (`nvtx`).
    nvtx: bool = true, read by nvtx, set by set_nvtx;
    row choice("nvtx", Value("auto"), "off", ["off", "auto"], RECLAIMS, |config| &mut config.nvtx)
        .of(EVERY)
        .last()
        .effect(
            "With `auto`, a memory checker that has announced itself by the variable `NVTX_INJECTION64_PATH`, such as \
             compute-sanitizer, is told of each segment and of each block, and finds accesses beyond a block and after \
             its free. No block is on pages then, since such checkers refuse them: `expandable_segments`, `guard` and \
             `policy:stitched` have no effect. Without such a checker nothing happens.",
        );

    /// Returns whether the caching policy repeats each decision of `PyTorch`'s allocator, its known
    /// defects included (`decisions:pytorch`, `parity:True`).
    parity: bool = true, read by parity, set by set_parity, in placement;
    row flag("parity", Value("True"), "False", |config| &mut config.parity).effect(
        "An older name of `decisions`: `True` is `decisions:pytorch`, and `False` is `decisions:improved`, with \
         its four repairs.",
    );
    row choice("decisions", Value("pytorch"), "improved", ["improved", "pytorch"], DECISIONS, |config| &mut config.parity)
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
        );

    /// Returns whether the settings of placement adjust themselves (`tune:auto`). Only the caching
    /// policy has this setting.
    tunes: bool = false, read by tunes, set by set_tunes;
    // A plan is for requests of fixed sizes, and a search changes how sizes are rounded.
    row choice("tune", Value("off"), "auto", ["off", "auto"], TUNES, |config| &mut config.tunes)
        .unplanned(NOT_PLANNED)
        .effect(
            "With `auto`, the allocator records its latest requests, searches the settings of the caching policy for \
             less reserved memory, and activates the best at an announced iteration or during upkeep. It takes \
             back settings that do not meet the prediction.",
        );

    /// Returns the most processor time of a search for settings, in milliseconds
    /// (`tune_budget_ms`).
    tune_budget_ms: u64 = 2000, read by tune_budget_ms;
    row whole("tune_budget_ms", Value("2000"), "500", MILLISECONDS, |config| &mut config.tune_budget_ms).effect(
        "The longest search of `tune:auto`, on one thread of low priority. The thread rests for nine times as \
         long afterwards.",
    );

    /// Whether upkeep gives idle memory back by what it is worth (`reclaim:auto`).
    reclaim: bool = false, set by set_reclaim;
    row choice("reclaim", Value("off"), "auto", ["off", "auto"], RECLAIMS, |config| &mut config.reclaim)
        .of(&["caching", "bfc"])
        .effect(
            "With `auto`, upkeep (`cachalot_maintain`) gives cached memory back to the driver by what it is worth: \
             if it is not expected to be needed for as long as the driver's calls take to pay for within \
             `reclaim_budget`. No request and no free does more for that, and nothing waits for the device. Off: \
             cached memory goes back when the memory is short, or on demand.",
        );

    /// The part of the time that the driver may take for `reclaim:auto` (`reclaim_budget`).
    reclaim_budget: f64 = 0.01;
    row setting("reclaim_budget", Value("0.01"), "0.002")
        .of(&["caching", "bfc"])
        .reads(|config, key, value| config.set_reclaim_budget(value.number(key, FRACTION)?))
        .writes(|config, out| out.some(Some(Exact(config.reclaim_budget))))
        .effect(
            "The largest part of the time for the driver's calls that give idle memory back under `reclaim:auto`, \
             and obtain it again. Less gives less memory back, and later.",
        );

    /// The values of keys without effect.
    passed_on: PassedOn = PassedOn::new();
    row passed_on("pinned_use_cuda_host_register", Value("False"), "True", Form::Flag).effect(NOT_PINNED);
    row passed_on("pinned_use_hip_host_register", Value("False"), "True", Form::Flag)
        .another_name_of("pinned_use_cuda_host_register")
        .effect(NOT_PINNED);
    row passed_on("pinned_num_register_threads", Value("1"), "8", Form::Threads).effect(NOT_PINNED);
    row passed_on("pinned_use_background_threads", Value("False"), "True", Form::Flag).effect(NOT_PINNED);
    row passed_on("pinned_reserve_segment_size_mb", Unset("none"), "512", Form::Mebibytes(1)).effect(NOT_PINNED);
    row passed_on("pinned_max_round_threshold_mb", Unset("no limit"), "128", Form::Mebibytes(0)).effect(NOT_PINNED);
    row passed_on("pinned_max_cached_size_mb", Unset("no limit"), "256", Form::Mebibytes(0)).effect(NOT_PINNED);
    row passed_on("pinned_free_catch_all", Value("False"), "True", Form::Flag).effect(NOT_PINNED);
}

/// Writes the settings, without the table of the host's policies.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        macro_rules! fields {
            ($($field:ident)*) => {{
                let Self { policies: _, $($field),* } = self;
                f.debug_struct("Config")$(.field(stringify!($field), $field))*.finish()
            }};
        }
        fields! {
            policy planned large_segment_size max_split_size max_non_split_rounding
            garbage_collection_threshold compact compact_slack roundup_power2_divisions
            exact_segments expandable_segments expandable_segments_reserve spill
            per_process_memory_fraction throw_on_device_oom graph_capture_record_stream_reuse
            guard quarantine zero pattern canary nvtx parity tunes tune_budget_ms reclaim
            reclaim_budget passed_on
        }
    }
}
