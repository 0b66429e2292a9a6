//! A case: the settings of an allocator and a driver, the threads, the faults, and a seed. A case
//! is a line of JSON, which repeats the case.

use crate::faults;
use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// Configurations, each with whether two runs of a thread are equal: the clock and background
/// threads have no part.
pub(crate) const CONFIGURATIONS: &[(&str, bool)] = &[
    ("", true),
    ("parity:False", true),
    ("expandable_segments:True", true),
    ("expandable_segments:True,parity:False", true),
    ("max_split_size_mb:20", true),
    ("max_split_size_mb:32,parity:False", true),
    ("garbage_collection_threshold:0.5", true),
    ("garbage_collection_threshold:0.4,max_split_size_mb:20", true),
    ("roundup_power2_divisions:8", true),
    ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8],parity:False", true),
    ("compact:0.05", true),
    ("compact:0.01,exact_segments:True", true),
    ("exact_segments:True", true),
    ("large_segment_size_mb:11,max_non_split_rounding_mb:20", true),
    ("graph_capture_record_stream_reuse:True", true),
    ("graph_capture_record_stream_reuse:True,expandable_segments:True", true),
    ("throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.6", true),
    ("per_process_memory_fraction:0.5,expandable_segments:True", true),
    ("expandable_segments:True,expandable_segments_reserve:0.7", true),
    ("reclaim:auto", false),
    ("reclaim:auto,expandable_segments:True,parity:False", false),
    ("tune:auto,tune_budget_ms:20", false),
    ("policy:stitched", false),
    ("policy:stitched,slack:0", false),
    ("policy:stitched,slack:0.2,max_stall_us:1000000", true),
    ("policy:stitched,max_stall_us:50", false),
    ("policy:stitched,strict_stall:True,max_stall_us:100", false),
    ("policy:stitched,completed_pages_only:True,max_stall_us:1000000", true),
    ("policy:stitched,slack:0,max_stall_us:1000000", true),
    ("policy:bfc", true),
    ("policy:bfc,expandable_segments:True", true),
    ("policy:bfc,allow_growth:False", true),
    ("policy:bfc,region_garbage_collection:False,first_region_mb:8,max_internal_fragmentation_mb:1", true),
    ("policy:bfc,reclaim:auto,expandable_segments:True", false),
    ("policy:buddy,arena_mb:16", true),
    ("policy:buddy,arena_mb:4", true),
    ("policy:size_class,chunk_mb:16", true),
    ("policy:slab", true),
    ("policy:slab,largest_object_kb:64", true),
    ("policy:direct", true),
    ("policy:planned,plan_deadline_ms:10", false),
    ("policy:planned,plan_deadline_ms:10,fallback:bfc", false),
    ("policy:planned,plan_deadline_ms:10,fallback:buddy,arena_mb:16", false),
    ("policy:planned,plan_deadline_ms:10,fallback:size_class,chunk_mb:16", false),
    ("policy:planned,plan_deadline_ms:10,fallback:slab", false),
    ("policy:planned,plan_deadline_ms:10,fallback:stitched", false),
    ("policy:planned,plan_deadline_ms:10,expandable_segments:True", false),
    ("expandable_segments:True,large_segment_size_mb:11,spill:0.5", true),
    ("spill:1.0,per_process_memory_fraction:0.5", true),
    ("expandable_segments:True,spill:2.0,per_process_memory_fraction:0.3,reclaim:auto", false),
    ("policy:bfc,expandable_segments:True,spill:1.0,per_process_memory_fraction:0.4", true),
    ("policy:stitched,max_stall_us:1000000,spill:1.0,per_process_memory_fraction:0.4", true),
    ("policy:stitched,slack:0,max_stall_us:1000000,spill:0.5", true),
    ("policy:stitched,slack:0.2,spill:2.0,per_process_memory_fraction:0.3", false),
];

/// Settings of a case. Two runs of a case with one thread are equal, if `step` is set and the
/// configuration has no part that depends on time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub(crate) struct Case {
    pub(crate) seed: u64,
    pub(crate) config: String,
    /// `CACHALOT_ASK_STREAM_ID`.
    pub(crate) ask: bool,
    /// `CACHALOT_NO_CACHING`.
    #[serde(default)]
    pub(crate) no_caching: bool,
    /// `CACHALOT_HOST`.
    #[serde(default)]
    pub(crate) host: bool,
    /// Bytes of each device.
    pub(crate) memory: u64,
    /// Whether requests can exceed the memory.
    pub(crate) tight: bool,
    pub(crate) devices: u32,
    pub(crate) threads: u32,
    /// Operations of all threads together.
    pub(crate) ops: u64,
    /// Parts of the case, with all checks at the end of each.
    pub(crate) phases: u64,
    /// Whether work runs inside driver calls only, in the order of the seed.
    pub(crate) step: bool,
    /// Whether a call with the handle of a destroyed stream ends the process.
    pub(crate) strict: bool,
    /// Longest delay of each piece of work, in microseconds.
    pub(crate) delay_us: u64,
    /// Whether driver calls fail.
    pub(crate) faults: bool,
    /// Whether driver calls are slow.
    pub(crate) slow: bool,
    /// Operations that are left out: pairs of the first and the last number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) skip: Vec<(u64, u64)>,
    /// Kinds of operations that are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) without: Vec<String>,
    /// A fault plan in the place of the generated plans.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) plan: Option<String>,
}

/// Returns whether a configuration takes all memory at the first request, so that other requests
/// may find none.
fn takes_all(config: &str) -> bool {
    config.contains("allow_growth:False")
}

/// Returns whether a configuration has memory of the host.
fn spills(config: &str) -> bool {
    config.contains("spill:")
}

impl Case {
    /// Returns the case of a seed with some operations. The configuration follows from the seed, in
    /// turn, and so do the number of threads (four in half of the cases) and the faults (in a
    /// quarter).
    pub(crate) fn of(seed: u64, ops: u64) -> Self {
        let mut rng = Rng::with_seed(crate::mix(seed, 1, 0));
        let turn = seed as usize % CONFIGURATIONS.len();
        let (config, _) = CONFIGURATIONS[turn];
        let round = seed / CONFIGURATIONS.len() as u64 + turn as u64;
        let threads = if round.is_multiple_of(2) { 1 } else { 4 };
        let faults = round / 2 % 4 == 3;
        // Nothing spills where the memory suffices.
        let tight = rng.u8(..3) > 0 || spills(config);
        Self {
            seed,
            config: config.to_owned(),
            ask: rng.bool(),
            no_caching: rng.u8(..24) == 0,
            host: false,
            memory: if tight { 128 << 20 << rng.u8(..3) } else { 8 << 30 },
            tight: tight || takes_all(config),
            devices: if rng.u8(..4) == 0 { 2 } else { 1 },
            threads,
            ops,
            phases: 4 + rng.u64(..5),
            step: threads == 1 && rng.u8(..4) > 0,
            strict: rng.bool(),
            delay_us: if rng.u8(..3) == 0 { 1 << rng.u8(3..9) } else { 0 },
            faults,
            slow: threads > 1 && rng.bool(),
            skip: Vec::new(),
            without: Vec::new(),
            plan: None,
        }
    }

    /// Returns the variables of the emulated driver.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        let flag = |on: bool| u8::from(on).to_string();
        vec![
            ("CACHALOT_EMU_MEMORY", self.memory.to_string()),
            ("CACHALOT_EMU_DEVICES", self.devices.to_string()),
            ("CACHALOT_EMU_SEED", self.seed.to_string()),
            ("CACHALOT_EMU_STEP", flag(self.step)),
            ("CACHALOT_EMU_STRICT", flag(self.strict)),
            ("CACHALOT_EMU_DELAY_US", self.delay_us.to_string()),
            ("CACHALOT_EMU_PLAN", String::new()),
            ("CACHALOT_EMU_ADDRESS_SPACE", (16_u64 << 40).to_string()),
        ]
    }

    /// Returns the fault plan of a phase; empty for none.
    pub(crate) fn plan(&self, phase: u64) -> String {
        if let Some(plan) = &self.plan {
            return plan.clone();
        }
        let mut rng = Rng::with_seed(crate::mix(self.seed, 2, phase));
        faults::plan(&mut rng, self.faults, self.slow)
    }

    /// Returns whether an operation is left out.
    pub(crate) fn skips(&self, op: u64) -> bool {
        self.skip.iter().any(|&(first, last)| first <= op && op <= last)
    }

    /// Returns whether a kind of operations is left out.
    pub(crate) fn leaves_out(&self, kind: &str) -> bool {
        self.without.iter().any(|left_out| left_out == kind)
    }

    /// Returns whether the setting is part of the configuration.
    pub(crate) fn has(&self, setting: &str) -> bool {
        self.config.split(',').any(|part| part == setting)
    }

    /// Returns whether memory of the host may serve requests.
    pub(crate) fn spills(&self) -> bool {
        spills(&self.config)
    }

    /// Returns the most bytes of the host that each device may hold.
    pub(crate) fn most_on_host(&self) -> u64 {
        let share = self.config.split(',').find_map(|part| part.strip_prefix("spill:")?.parse::<f64>().ok());
        (share.unwrap_or(0.0) * self.memory as f64) as u64
    }

    /// Returns whether memory of the default pool lies on pages.
    pub(crate) fn is_mapped(&self) -> bool {
        !self.no_caching
            && (self.has("expandable_segments:True") || self.has("policy:stitched") || self.has("fallback:stitched"))
    }

    /// Returns whether private pools with a tag have mapped memory.
    pub(crate) fn maps_pools(&self) -> bool {
        let policy = |name: &str| self.has(&format!("policy:{name}")) || self.has(&format!("fallback:{name}"));
        let bfc = policy("bfc") && self.has("expandable_segments:True");
        let other = ["bfc", "buddy", "size_class", "slab", "direct"].into_iter().any(policy);
        !self.no_caching && !self.host && (bfc || !other)
    }

    /// Returns whether the allocator has no virtual memory at all.
    pub(crate) fn has_no_pages(&self) -> bool {
        self.host
    }

    /// Returns whether two runs of the case are equal.
    pub(crate) fn repeats(&self) -> bool {
        let known = CONFIGURATIONS.iter().find(|(config, _)| *config == self.config);
        self.threads == 1 && self.step && known.is_none_or(|&(_, repeats)| repeats)
    }
}
