//! Report of a run, as text and as JSON.

use crate::emulated;
use crate::instrumented::Instrumented;
use crate::shared::Shared;
use crate::times::{Counts, Latency, Summary};
use crate::verdict::Violation;
use cachalot_cuda::Driver;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;

/// The result of a run.
#[derive(Serialize, Debug)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    /// The command that repeats the run.
    pub(crate) replay: String,
    pub(crate) driver: String,
    pub(crate) seconds: f64,
    pub(crate) ops_per_second: f64,
    #[serde(flatten)]
    pub(crate) counts: Counts,
    /// Summaries of call times, by kind of call.
    pub(crate) latency: BTreeMap<&'static str, Summary>,
    /// Number of device calls made by the allocator, by name.
    pub(crate) device_calls: BTreeMap<&'static str, u64>,
    /// Number of calls of the emulated driver's functions, by all callers.
    pub(crate) driver_calls: BTreeMap<&'static str, u64>,
    /// Bytes of all pages that moved, under the stitched policy.
    pub(crate) moved_bytes: u64,
    /// The most bytes of the host that served at an audit, under `spill`.
    pub(crate) spilled_bytes: u64,
    /// Number of waits for a whole device beside the workers.
    pub(crate) device_waits: u64,
    /// Number of calls hit by the fault plan.
    pub(crate) faults: u64,
    /// The error that lost a context.
    pub(crate) lost: Option<String>,
    pub(crate) corruptions: usize,
    pub(crate) violations: Vec<Violation>,
}

impl Report {
    /// Summarises a run.
    pub(crate) fn new(shared: &Shared, driver: &Driver, seconds: f64, latency: &Latency, counts: Counts) -> Self {
        let (mut device_calls, mut moved_bytes) = (BTreeMap::new(), 0);
        for stage in shared.devices {
            moved_bytes += shared.subject.pages(stage.index).map(|pages| pages.stats()).map_or(0, |stats| stats.moved);
            for (name, count) in shared.subject.device(stage.index).map(Instrumented::calls).unwrap_or_default() {
                *device_calls.entry(name).or_default() += count;
            }
        }
        let kinds = [
            ("malloc hit", &latency.malloc_hit),
            ("malloc miss", &latency.malloc_miss),
            ("free", &latency.free),
            ("free, used by other streams", &latency.free_visited),
        ];
        let violations = shared.verdict.violations();
        Self {
            seed: shared.options.seed(),
            replay: shared.options.replay(),
            driver: format!("{} {}", driver.origin(), driver.version()),
            seconds,
            ops_per_second: counts.ops as f64 / seconds,
            counts,
            latency: kinds.into_iter().map(|(name, times)| (name, times.summary())).collect(),
            device_calls,
            driver_calls: emulated::calls(),
            moved_bytes,
            spilled_bytes: shared.spilled_bytes.load(Ordering::Acquire),
            device_waits: shared.device_waits_made.load(Ordering::Acquire),
            faults: emulated::faults(),
            lost: shared.lost.lock().map(|error| error.to_string()),
            corruptions: violations.len(),
            violations,
        }
    }

    /// Returns whether no fault was found.
    pub(crate) fn is_good(&self) -> bool {
        self.violations.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { ops, mallocs, frees, ooms, captured, errors, verified_blocks, verified_bytes, .. } = self.counts;
        let Counts { visits, exchanged, graphs, replays, pools, guests, bare_graphs, disturbances, .. } = self.counts;
        writeln!(f, "driver        {}", self.driver)?;
        writeln!(f, "operations    {ops} in {:.1} s: {:.0} a second", self.seconds, self.ops_per_second)?;
        writeln!(
            f,
            "requests      {mallocs}, {ooms} out of memory, {captured} refused in captures; frees {frees}; device errors {errors}"
        )?;
        writeln!(f, "checked       {verified_blocks} blocks, {:.1} GiB", verified_bytes as f64 / (1_u64 << 30) as f64)?;
        writeln!(f, "used          {visits} stays on other streams, {exchanged} handed to other threads")?;
        writeln!(
            f,
            "              {graphs} graphs, {replays} runs of them, {bare_graphs} without memory, {pools} pools, {guests} streams that \
             came and went, {disturbances} disturbances"
        )?;
        let Counts { parks, wakes, ranges, commits, decommits, releases, refused, .. } = self.counts;
        if parks + ranges > 0 {
            writeln!(
                f,
                "              {parks} parks, {wakes} wakes, {ranges} ranges: {commits} commits, {decommits} decommits, {releases} \
                 releases; {refused} refused as documented"
            )?;
        }
        for (name, Summary { calls, p50_ns, p99_ns, p999_ns, max_ns }) in &self.latency {
            writeln!(
                f,
                "{name:<28}{calls:>12} calls  p50 {p50_ns} ns  p99 {p99_ns} ns  p99.9 {p999_ns} ns  max {max_ns} ns"
            )?;
        }
        let calls: Vec<_> = self.device_calls.iter().map(|(name, count)| format!("{name} {count}")).collect();
        writeln!(f, "device calls  {}", calls.join(", "))?;
        if self.moved_bytes > 0 {
            writeln!(f, "pages moved   {:.1} GiB", self.moved_bytes as f64 / (1_u64 << 30) as f64)?;
        }
        if self.spilled_bytes > 0 {
            let [most, moved] =
                [self.spilled_bytes, self.counts.advised_bytes].map(|bytes| bytes as f64 / (1_u64 << 30) as f64);
            writeln!(f, "on the host   {most:.1} GiB at most, {moved:.1} GiB moved there or back under blocks")?;
        }
        if self.device_waits > 0 {
            writeln!(f, "device waits  {}", self.device_waits)?;
        }
        if let Some(lost) = &self.lost {
            writeln!(f, "context lost  {lost}")?;
        }
        for violation in &self.violations {
            writeln!(f, "{:?}: {}", violation.kind, violation.text)?;
        }
        write!(f, "corruptions   {} (seed {}; {})", self.corruptions, self.seed, self.replay)
    }
}
