//! `cachalot replay`: repeat every decision of recorded programs, and measure.

use super::progress::Progress;
use super::settings::Settings;
use super::table::{Column, Look, Table, column, extra, if_any};
use super::variation::{self, Variation};
use super::{DIFFERENT, SCHEMA, bytes};
use cachalot_core::PlannedReport;
use cachalot_replay::program::DriverTime;
use cachalot_replay::replay::{self, Checked, Failed, Options, Outcome, ReplayError, Spilled};
use cachalot_replay::trace::Trace;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

const LONG_ABOUT: &str = "\
Repeat every decision of recorded programs, and measure

Each record is replayed on a simulated device. With its own settings the replay
follows the recorded addresses, and --check compares each decision.

utilisation     peak live / peak reserved
OOMs            requests that ran out of memory
device calls    allocations and frees of device memory
cold            with --passes: estimated driver time an allocation in the first
                pass; waiting for the device is not included
steady          the same in the later passes, their mean
longest stall   the most driver time of a single request, over all passes
ns/op           median time of an operation on this machine, in warm runs
compared        recorded decisions and blocks that were compared with the
                replay, and how many of them differ
statistics      final statistics that were compared
differing stats how many of them differ
on the host     with `spill`: the most memory of the host that was held
at least        with `spill`: the time in which the link carries each block on
                the host twice, to write it and to read it once; what a program
                reads more often takes longer
making pages    with `spill`: the driver's time for the pages of the host, once
plan            bytes of the plan of the planned policy; the columns after it
                count requests that were served from the plan, that outlive an
                iteration, and that deviate from the plan in one of four ways

--json prints an object for each record with schema, file, record, all figures,
and every statistic.

Exits with 2 for input that cannot be used, otherwise with 1 if a decision
differs, if an allocator refused a call, or if a request ran out of memory that
succeeded in the recorded program: under PyTorch, the program would have failed
there.";

const EXAMPLES: &str = "\
Examples:
  cachalot replay --check tests/traces/gpt2_varlen.csv.gz
  cachalot replay --limit 14GiB snapshot.pickle
  cachalot replay --passes 6 --ignore-empty-cache snapshot.pickle
  cachalot replay --config expandable_segments:True --wide snapshot.pickle
  cachalot replay --config expandable_segments:True,spill:8G --limit 14GiB snapshot.pickle";

/// The rate at which kernels use memory of the host, in GB/s. Measured on an H200 with `PCIe` 5.
const LINK: f64 = 52.0;

/// Repeat every decision of recorded programs, and measure
#[derive(clap::Args)]
#[command(long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    variation: Variation,
    #[command(flatten)]
    look: Look,
    /// Compare every address, segment, final block and final statistic with the record
    #[arg(
        long,
        conflicts_with_all = ["passes", "ignore_empty_cache", "ignore_record_stream", "ignore_captures", "limit_factor"]
    )]
    check: bool,
    /// Print a JSON object a line instead of the table
    #[arg(long)]
    json: bool,
    /// How often to measure; the median is shown
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// The rate of the link to the host in GB/s, for the time that `spill` takes
    #[arg(long, value_name = "GB/S", default_value_t = LINK, value_parser = rate)]
    link: f64,
    #[arg(
        required = true,
        value_name = "FILE",
        help = "Records: .csv, .csv.gz, or a pickled memory snapshot of PyTorch (.pickle, .pickle.gz)"
    )]
    files: Vec<PathBuf>,
}

/// A line of `--json`.
#[derive(Serialize)]
struct ReplayLine<'a> {
    schema: u32,
    file: String,
    record: &'a str,
    policy: &'static str,
    allocations: u64,
    checked: u64,
    mismatches: u64,
    stats_checked: u64,
    stats_mismatches: u64,
    peak_live_bytes: u64,
    peak_reserved_bytes: u64,
    utilisation: f64,
    device_allocs: i64,
    device_frees: i64,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    driver: Option<Driver>,
    ns_per_op: f64,
    ooms: u64,
    largest_failed_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    spilled: Option<OnHost>,
    #[serde(skip_serializing_if = "Option::is_none")]
    planned: Option<PlannedFigures>,
    stats: &'a BTreeMap<String, i64>,
}

/// The memory of the host, for `--json`.
#[derive(Serialize)]
struct OnHost {
    peak_bytes: u64,
    made_bytes: u64,
    block_bytes: u64,
    link_ms: f64,
    make_ms: f64,
}

impl OnHost {
    fn of(spilled: &Spilled, link: f64) -> Self {
        let Spilled { peak_bytes, made_bytes, block_bytes, .. } = *spilled;
        let (link_ms, make_ms) = (spilled.link_ns(link * 1e9) / 1e6, spilled.make_ns() / 1e6);
        Self { peak_bytes, made_bytes, block_bytes, link_ms, make_ms }
    }
}

/// The passes, for `--json`.
#[derive(Serialize)]
struct Driver {
    passes: usize,
    cold_us_per_allocation: f64,
    steady_us_per_allocation: Option<f64>,
    longest_stall_us: f64,
}

impl From<&DriverTime> for Driver {
    fn from(time: &DriverTime) -> Self {
        Self {
            passes: time.passes_ns.len(),
            cold_us_per_allocation: time.cold_us(),
            steady_us_per_allocation: time.steady_us(),
            longest_stall_us: time.longest_stall_ns as f64 / 1000.0,
        }
    }
}

/// The planned policy, for `--json`.
#[derive(Serialize)]
pub(super) struct PlannedFigures {
    plans: u64,
    peak_bytes: u64,
    lower_bound_bytes: u64,
    segment_bytes: u64,
    served: u64,
    lasting: u64,
    extra: u64,
    missing: u64,
    reordered: u64,
    occupied: u64,
}

impl From<PlannedReport> for PlannedFigures {
    fn from(report: PlannedReport) -> Self {
        Self {
            plans: report.plans,
            peak_bytes: report.peak_bytes,
            lower_bound_bytes: report.lower_bound_bytes,
            segment_bytes: report.segment_bytes,
            served: report.served,
            lasting: report.lasting,
            extra: report.extra,
            missing: report.missing,
            reordered: report.reordered,
            occupied: report.occupied,
        }
    }
}

/// Parses the rate of a link.
fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| format!("`{text}` is not a rate: expected GB/s above 0, such as 52"))
}

/// Runs the command.
pub(crate) fn run(args: &ReplayArgs) -> ExitCode {
    let mut report = Report::new(args);
    for file in &args.files {
        match Trace::load(file) {
            Ok(traces) => traces.iter().for_each(|trace| report.replay(trace)),
            Err(error) => report.complain(&ReplayError::Input(error)),
        }
        report.progress.advance(1);
    }
    report.progress.finish();
    let written = if args.json { Ok(()) } else { report.write_table() };
    super::end(report.status, &written.and(report.written))
}

/// The result for the files so far.
struct Report<'a> {
    args: &'a ReplayArgs,
    options: Options,
    progress: Progress,
    table: Table,
    status: u8,
    written: io::Result<()>,
    /// The notes about `--config` that were printed.
    told: BTreeSet<String>,
    /// The comparisons of `--check`.
    verdict: Verdict,
}

/// The comparisons of `--check`, in all traces.
#[derive(Default)]
struct Verdict {
    /// The name of the last trace, and the number of the traces.
    name: String,
    traces: u64,
    /// Number of compared decisions, and of those that differ.
    decisions: u64,
    differing: u64,
    /// The same of statistics.
    stats: u64,
    differing_stats: u64,
}

impl Verdict {
    fn add(&mut self, name: &str, checked: &Checked) {
        name.clone_into(&mut self.name);
        self.traces += 1;
        self.decisions += checked.decisions;
        self.differing += checked.mismatches;
        self.stats += checked.stats;
        self.differing_stats += checked.stat_differences.len() as u64;
    }

    /// Returns the outcome in words.
    fn sentence(&self) -> String {
        let what = if self.traces == 1 { self.name.clone() } else { format!("{} traces", self.traces) };
        let all = |count: u64, kind: &str| format!("all {} {kind}", bytes::grouped(count));
        let of = |differing: u64, count: u64, kind: &str| {
            format!("{} in {} {kind}", bytes::plural(differing, "difference"), bytes::grouped(count))
        };
        let stats = |words: String| if self.stats == 0 { String::new() } else { format!(" and {words}") };
        match (self.decisions, self.differing + self.differing_stats) {
            (0, _) => format!("{what}: the record has no decisions to compare"),
            (_, 0) => {
                let (decisions, stats) = (all(self.decisions, "decisions"), stats(all(self.stats, "statistics")));
                format!("{what}: {decisions}{stats} are those of the recorded allocator")
            }
            _ => {
                let decisions = of(self.differing, self.decisions, "decisions");
                let stats = stats(of(self.differing_stats, self.stats, "statistics"));
                format!("{what}: {decisions}{stats}")
            }
        }
    }
}

/// The columns of a replay.
const COLUMNS: [Column; 12] = [
    column("trace"),
    column("allocations"),
    column("peak live"),
    column("peak reserved"),
    column("utili\u{ad}sation"),
    column("OOMs"),
    extra("largest failed"),
    if_any("on the host"),
    if_any("at least"),
    if_any("making pages"),
    extra("device calls"),
    extra("ns/op"),
];

/// The columns of a replay in passes.
const PASSES_COLUMNS: [Column; 15] = [
    column("trace"),
    extra("allocations"),
    extra("peak live"),
    extra("peak reserved"),
    column("utili\u{ad}sation"),
    column("OOMs"),
    extra("largest failed"),
    if_any("on the host"),
    if_any("at least"),
    if_any("making pages"),
    extra("device calls"),
    extra("ns/op"),
    column("cold"),
    column("steady"),
    column("longest stall"),
];

/// The columns of a replay that is compared with its record.
const CHECKED_COLUMNS: [Column; 16] = [
    column("trace"),
    extra("allocations"),
    extra("peak live"),
    column("peak reserved"),
    extra("utili\u{ad}sation"),
    extra("OOMs"),
    extra("largest failed"),
    if_any("on the host"),
    if_any("at least"),
    if_any("making pages"),
    extra("device calls"),
    extra("ns/op"),
    column("compared"),
    column("differing"),
    column("statis\u{ad}tics"),
    column("differing stats"),
];

/// The columns of a replay under the planned policy.
const PLANNED_COLUMNS: [Column; 20] = [
    column("trace"),
    extra("allocations"),
    extra("peak live"),
    column("peak reserved"),
    column("utili\u{ad}sation"),
    column("OOMs"),
    extra("largest failed"),
    if_any("on the host"),
    if_any("at least"),
    if_any("making pages"),
    extra("device calls"),
    extra("ns/op"),
    column("plan"),
    extra("lower bound"),
    column("served"),
    extra("lasting"),
    extra("extra"),
    extra("missing"),
    extra("reordered"),
    extra("occupied"),
];

impl<'a> Report<'a> {
    fn new(args: &'a ReplayArgs) -> Self {
        let plans = args.settings.config().is_some_and(|config| config.planned().is_some());
        let in_passes = args.variation.passes.is_some();
        let table = match (args.check, in_passes, plans) {
            (true, ..) => Table::new(&CHECKED_COLUMNS),
            (false, true, _) => Table::new(&PASSES_COLUMNS),
            (false, false, true) => Table::new(&PLANNED_COLUMNS),
            (false, false, false) => Table::new(&COLUMNS),
        };
        Self {
            args,
            options: Options {
                config: args.settings.config(),
                limit: args.settings.limit,
                variation: replay::Variation {
                    passes: args.variation.passes,
                    left_out: args.variation.left_out(),
                    limit_factor: args.variation.limit_factor,
                },
                check: args.check,
                repeat: args.repeat,
            },
            progress: Progress::new(args.files.len() as u64),
            table,
            status: 0,
            written: Ok(()),
            told: BTreeSet::new(),
            verdict: Verdict::default(),
        }
    }

    fn replay(&mut self, trace: &Trace) {
        self.progress.begin(&trace.name);
        self.announce_notes(trace);
        let then = if self.options.follows() {
            "replayed from that state, worked out from the final one"
        } else {
            "they are first requested, by address"
        };
        self.progress.suspend(|| super::announce_start(trace, then));
        match replay::replay(trace, &self.options) {
            Ok(outcome) => self.show(trace, &outcome),
            Err(error) => self.complain(&error),
        }
    }

    /// Prints a line on standard error for each key of `--config` that has no effect, once.
    fn announce_notes(&mut self, trace: &Trace) {
        let limited = self.options.limit.or(trace.limit_bytes()).is_some();
        for note in self.options.config.iter().flat_map(|config| config.notes(limited)) {
            if self.told.insert(note.to_string()) {
                self.progress.suspend(|| complain!("note: {note}"));
            }
        }
    }

    /// One line on standard error; the other files are still replayed.
    fn complain(&mut self, error: &ReplayError) {
        self.status = self.status.max(super::status_of(error));
        self.progress.suspend(|| complain!("{error}"));
    }

    fn show(&mut self, trace: &Trace, outcome: &Outcome) {
        let name = &trace.name;
        if let Some(checked) = &outcome.checked {
            self.verdict.add(name, checked);
        }
        if let Some(Checked { first: Some(first), .. }) = &outcome.checked {
            self.status = self.status.max(DIFFERENT);
            self.progress.suspend(|| complain!("{first}"));
        }
        if outcome.failed.new > 0 {
            self.status = self.status.max(DIFFERENT);
            self.progress.suspend(|| complain!("{name}: {}", complaint(&outcome.failed)));
        }
        if self.args.json {
            let line = line(trace, outcome, self.args.link);
            let json = serde_json::to_string(&line).map_err(io::Error::from);
            let written = json.and_then(|json| writeln!(io::stdout().lock(), "{json}"));
            let before = std::mem::replace(&mut self.written, Ok(()));
            self.written = before.and(written);
        } else {
            self.table.row(row(name, outcome, self.args.link));
        }
    }

    fn write_table(&self) -> io::Result<()> {
        if self.table.is_empty() {
            return Ok(());
        }
        super::print(self.table.render(&self.args.look))?;
        if self.verdict.traces > 0 {
            super::print(format_args!("\n{}", self.args.look.fold(&self.verdict.sentence(), 2)))?;
        }
        Ok(())
    }
}

/// Returns a text about requests that succeeded in the recorded program and failed in this replay.
fn complaint(failed: &Failed) -> String {
    let Failed { count, new, largest_bytes } = *failed;
    let requests = if new == 1 { "request" } else { "requests" };
    let recorded =
        if count > new { format!(", and {} that failed in the recording too", count - new) } else { String::new() };
    format!(
        "out of memory: {new} {requests} that the recorded program was served{recorded}; the largest has {}",
        bytes::show(largest_bytes)
    )
}

fn line<'a>(trace: &'a Trace, outcome: &'a Outcome, link: f64) -> ReplayLine<'a> {
    let checked = outcome.checked.as_ref();
    ReplayLine {
        schema: SCHEMA,
        file: trace.file.display().to_string(),
        record: &trace.name,
        policy: outcome.policy,
        allocations: outcome.allocations,
        checked: checked.map_or(0, |checked| checked.decisions),
        mismatches: checked.map_or(0, |checked| checked.mismatches),
        stats_checked: checked.map_or(0, |checked| checked.stats),
        stats_mismatches: checked.map_or(0, |checked| checked.stat_differences.len() as u64),
        peak_live_bytes: outcome.peak_live_bytes,
        peak_reserved_bytes: outcome.peak_reserved_bytes,
        utilisation: outcome.utilisation(),
        device_allocs: outcome.stat("num_device_alloc"),
        device_frees: outcome.stat("num_device_free"),
        driver: outcome.driver.as_ref().map(Driver::from),
        ns_per_op: outcome.ns_per_op,
        ooms: outcome.failed.count,
        largest_failed_bytes: outcome.failed.largest_bytes,
        spilled: outcome.spilled.as_ref().map(|spilled| OnHost::of(spilled, link)),
        planned: outcome.planned.map(PlannedFigures::from),
        stats: &outcome.stats,
    }
}

fn row(name: &str, outcome: &Outcome, link: f64) -> Vec<String> {
    let spilled = |text: fn(&Spilled, f64) -> String| {
        outcome.spilled.as_ref().map_or_else(String::new, |spilled| text(spilled, link * 1e9))
    };
    let mut row = vec![
        name.to_owned(),
        outcome.allocations.to_string(),
        bytes::show(outcome.peak_live_bytes),
        bytes::show(outcome.peak_reserved_bytes),
        format!("{:.1} %", outcome.utilisation() * 100.0),
        outcome.failed.count.to_string(),
        if outcome.failed.count == 0 { String::new() } else { bytes::show(outcome.failed.largest_bytes) },
        spilled(|spilled, _| bytes::show(spilled.peak_bytes)),
        spilled(|spilled, rate| variation::milliseconds(spilled.link_ns(rate) / 1e3)),
        spilled(|spilled, _| variation::milliseconds(spilled.make_ns() / 1e3)),
        (outcome.stat("num_device_alloc") + outcome.stat("num_device_free")).to_string(),
        format!("{:.1}", outcome.ns_per_op),
    ];
    if let Some(driver) = &outcome.driver {
        row.extend(variation::cells(driver));
    } else if let Some(planned) = &outcome.planned {
        row.extend([bytes::show(planned.peak_bytes), bytes::show(planned.lower_bound_bytes)]);
        let PlannedReport { served, lasting, extra, missing, reordered, occupied, .. } = *planned;
        row.extend([served, lasting, extra, missing, reordered, occupied].map(|count| count.to_string()));
    }
    if let Some(checked) = &outcome.checked {
        row.extend([
            checked.decisions.to_string(),
            checked.mismatches.to_string(),
            checked.stats.to_string(),
            checked.stat_differences.len().to_string(),
        ]);
    }
    row
}
