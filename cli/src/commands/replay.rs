//! `cachalot replay`: repeat every decision of recorded programs, and measure.

use super::progress::Progress;
use super::settings::Settings;
use super::{DIFFERENT, bytes};
use cachalot_core::PlannedReport;
use cachalot_replay::replay::{self, Checked, Options, Outcome, ReplayError};
use cachalot_replay::trace::Trace;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// What the command line says.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    settings: Settings,
    /// Hold every address, segment, final block and final statistic against the record
    #[arg(long)]
    check: bool,
    /// One JSON object a line, in the place of the table
    #[arg(long)]
    json: bool,
    /// How often to measure; the median is shown
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    #[arg(
        required = true,
        value_name = "FILE",
        help = "Records: .csv, .csv.gz, or a pickled memory snapshot of PyTorch (.pickle, .pickle.gz)"
    )]
    files: Vec<PathBuf>,
}

/// A line of `--json`.
#[derive(Serialize)]
struct Line<'a> {
    trace: &'a str,
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
    ns_per_op: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    planned: Option<Planned>,
    stats: &'a BTreeMap<String, i64>,
}

/// What `--json` says of the planned policy.
#[derive(Serialize)]
pub(super) struct Planned {
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

impl From<PlannedReport> for Planned {
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

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
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

/// What has come of the files so far.
struct Report<'a> {
    args: &'a Args,
    options: Options,
    progress: Progress,
    table: Table,
    status: u8,
    written: io::Result<()>,
}

impl<'a> Report<'a> {
    fn new(args: &'a Args) -> Self {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
        let mut header =
            vec!["trace", "allocations", "peak live", "peak reserved", "utilisation", "device calls", "ns/op"];
        if !args.check && args.settings.config().is_some_and(|config| config.planned().is_some()) {
            header.extend(["plan", "lower bound", "served", "lasting", "extra", "missing", "reordered", "occupied"]);
        }
        if args.check {
            header.extend(["checked", "mismatches", "statistics", "mismatches"]);
        }
        table.set_header(header);
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        Self {
            args,
            options: Options {
                config: args.settings.config(),
                limit: args.settings.limit,
                check: args.check,
                repeat: args.repeat,
            },
            progress: Progress::new(args.files.len() as u64),
            table,
            status: 0,
            written: Ok(()),
        }
    }

    fn replay(&mut self, trace: &Trace) {
        self.progress.begin(&trace.name);
        let start = trace.start.as_ref().map(ToString::to_string);
        let then = if self.options.check || self.options.config.is_none() && self.options.limit.is_none() {
            "replayed from that state, worked out from the final one"
        } else {
            "they are first requested, by address"
        };
        self.progress.suspend(|| super::announce_start(&trace.file, start.as_deref(), then));
        match replay::replay(trace, &self.options) {
            Ok(outcome) => self.show(&trace.name, &outcome),
            Err(error) => self.complain(&error),
        }
    }

    /// One line on standard error; the other files are still replayed.
    fn complain(&mut self, error: &ReplayError) {
        self.status = self.status.max(super::status_of(error));
        self.progress.suspend(|| eprintln!("{error}"));
    }

    fn show(&mut self, name: &str, outcome: &Outcome) {
        if let Some(Checked { first: Some(first), .. }) = &outcome.checked {
            self.status = self.status.max(DIFFERENT);
            self.progress.suspend(|| eprintln!("{first}"));
        }
        if self.args.json {
            let line = line(name, outcome);
            let json = serde_json::to_string(&line).map_err(io::Error::from);
            let written = json.and_then(|json| writeln!(io::stdout().lock(), "{json}"));
            let before = std::mem::replace(&mut self.written, Ok(()));
            self.written = before.and(written);
        } else {
            self.table.add_row(row(name, outcome));
        }
    }

    fn write_table(&self) -> io::Result<()> {
        if self.table.is_empty() {
            return Ok(());
        }
        writeln!(io::stdout().lock(), "{}", self.table)
    }
}

fn line<'a>(trace: &'a str, outcome: &'a Outcome) -> Line<'a> {
    let checked = outcome.checked.as_ref();
    Line {
        trace,
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
        ns_per_op: outcome.ns_per_op,
        planned: outcome.planned.map(Planned::from),
        stats: &outcome.stats,
    }
}

fn row(name: &str, outcome: &Outcome) -> Vec<String> {
    let mut row = vec![
        name.to_owned(),
        outcome.allocations.to_string(),
        bytes::show(outcome.peak_live_bytes),
        bytes::show(outcome.peak_reserved_bytes),
        format!("{:.1} %", outcome.utilisation() * 100.0),
        (outcome.stat("num_device_alloc") + outcome.stat("num_device_free")).to_string(),
        format!("{:.1}", outcome.ns_per_op),
    ];
    if let Some(planned) = &outcome.planned {
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
