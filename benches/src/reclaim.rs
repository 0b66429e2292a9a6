//! Tables of `tests/results/reclaim.md`: memory held by recorded programs over time, with and
//! without `reclaim:auto`. The simulated device's clock gives the time, so the figures are the same
//! on every machine.

use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{Config, DeviceIndex, Error, Host, ReclaimStats};
use cachalot_replay::program::{LeftOut, OnDevice, Operation, Program, Run, Settings, Subject};
use cachalot_replay::replay::{self, ReplayError};
use cachalot_replay::trace::{BadInput, Trace};
use cachalot_tests::figures::Table;

/// The configuration to compare with.
const DEFAULT: &str = "";

/// The configurations. `PyTorch`'s threshold does nothing without a limit: the limit is the
/// default's peak.
const CONFIGS: [&str; 7] = [
    DEFAULT,
    "garbage_collection_threshold:0.6",
    "garbage_collection_threshold:0.8",
    "reclaim:auto",
    "reclaim:auto,reclaim_budget:0.001",
    "expandable_segments:True",
    "expandable_segments:True,reclaim:auto",
];

const DEVICE: DeviceIndex = DeviceIndex(0);

/// Memory of the device in bytes, as of an H200.
const DEVICE_BYTES: u64 = 139 << 30;

/// The pace of the programs. The records have no times.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How often each program runs.
    pub passes: u32,
    /// The time of a run, spread evenly over its calls.
    pub run_ms: u64,
    /// The pause after a run, in which nothing is requested.
    pub pause_ms: u64,
    /// The interval of the calls of `maintain`.
    pub upkeep_ms: u64,
    /// The driver time of each call of `maintain`.
    pub upkeep_us: u64,
}

/// Result of a program with a configuration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Bytes held at the highest.
    peak: u64,
    /// Bytes held at the end of the last pause.
    end: u64,
    /// Bytes held in the mean over the time.
    mean: f64,
    /// Bytes held in the mean over the runs of the second of two programs.
    second: f64,
    /// The driver's time over all calls, in nanoseconds.
    driver_ns: u64,
    /// The driver time of the most expensive request, in nanoseconds.
    stall_ns: u64,
    /// The time of everything, in microseconds.
    time_us: u64,
    /// Number of requests that ran out of memory.
    ooms: u64,
    stats: ReclaimStats,
}

impl Outcome {
    /// The driver's part of the time.
    fn share(&self) -> f64 {
        self.driver_ns as f64 / 1000.0 / self.time_us as f64
    }
}

/// An allocator with its programs, over time.
struct Timed {
    run: Run<OnDevice>,
    pace: Pace,
    outcome: Outcome,
    /// Byte-microseconds so far.
    area: f64,
    /// The time of the last call of `maintain`. A call is due every `upkeep_ms`.
    upkept_us: u64,
}

impl Timed {
    fn new(config: &str, limit: Option<u64>, pace: Pace) -> Result<Self, Error> {
        let device = SimulatedDevice::new(DEVICE_BYTES).with_work_done_at_once();
        let config = Config::parse(config).expect("a configuration of this file");
        let run = Run::new(OnDevice::create(device, &Settings { config, limit })?);
        Ok(Self { run, pace, outcome: Outcome::default(), area: 0.0, upkept_us: 0 })
    }

    /// Lets time pass, with upkeep at its interval.
    fn pass(&mut self, us: u64) -> Result<(), Error> {
        let end = self.run.device().now_us() + us;
        loop {
            let now = self.run.device().now_us();
            let due = self.upkept_us + self.pace.upkeep_ms * 1000;
            self.area += self.run.device().used() as f64 * (due.min(end) - now) as f64;
            self.run.device().pause(due.min(end) - now);
            if due > end {
                return Ok(());
            }
            self.upkept_us = due;
            self.run.allocator.pages(DEVICE)?.maintain(self.pace.upkeep_us)?;
        }
    }

    /// Runs a program once, and frees the remaining blocks.
    fn perform(&mut self, program: &Program) -> Result<(), Error> {
        let calls = program.operations.len() as u64;
        let us = self.pace.run_ms * 1000;
        for (at, &operation) in program.operations.iter().enumerate() {
            let before = self.run.device().driver_ns();
            self.run.perform(operation)?;
            if matches!(operation, Operation::Malloc { .. }) {
                self.outcome.stall_ns = self.outcome.stall_ns.max(self.run.device().driver_ns() - before);
            }
            self.outcome.peak = self.outcome.peak.max(self.run.device().used());
            // The rounded times of all calls add up to the run's.
            let at = at as u64;
            self.pass(us * (at + 1) / calls - us * at / calls)?;
        }
        self.run.clean_up(program)
    }

    fn finish(mut self) -> Result<Outcome, Error> {
        let time_us = self.run.device().now_us();
        self.outcome.end = self.run.device().used();
        self.outcome.mean = self.area / time_us as f64;
        self.outcome.driver_ns = self.run.device().driver_ns();
        self.outcome.time_us = time_us + self.outcome.driver_ns / 1000;
        self.outcome.ooms = self.run.ooms;
        self.outcome.stats = self.run.allocator.pages(DEVICE)?.reclaim_stats();
        Ok(self.outcome)
    }
}

/// Runs a program several times, with a pause after each run.
fn alone(program: &Program, config: &str, limit: Option<u64>, pace: Pace) -> Result<Outcome, Error> {
    let mut timed = Timed::new(config, limit, pace)?;
    for _ in 0..pace.passes {
        timed.perform(program)?;
        timed.pass(pace.pause_ms * 1000)?;
    }
    timed.finish()
}

/// Runs two programs in turn, twice, without pauses: `passes` runs of the first program, and then
/// of the second.
fn in_turn(programs: [&Program; 2], config: &str, limit: Option<u64>, pace: Pace) -> Result<Outcome, Error> {
    let mut timed = Timed::new(config, limit, pace)?;
    let (mut area, mut us) = (0.0, 0);
    for _ in 0..2 {
        for (number, program) in programs.into_iter().enumerate() {
            let before = (timed.area, timed.run.device().now_us());
            for _ in 0..pace.passes {
                timed.perform(program)?;
            }
            if number == 1 {
                area += timed.area - before.0;
                us += timed.run.device().now_us() - before.1;
            }
        }
    }
    let mut outcome = timed.finish()?;
    outcome.second = area / us as f64;
    Ok(outcome)
}

/// Runs something with every configuration, the default first.
fn each(run: impl Fn(&str, Option<u64>) -> Result<Outcome, Error>) -> Result<Vec<Outcome>, Error> {
    let mut outcomes: Vec<Outcome> = Vec::new();
    for config in CONFIGS {
        let peak = outcomes.first().map(|default| default.peak);
        outcomes.push(run(config, peak.filter(|_| config.starts_with("garbage")))?);
    }
    Ok(outcomes)
}

fn title(config: &str) -> &str {
    if config.is_empty() { "default" } else { config }
}

fn mebibytes(bytes: f64) -> String {
    format!("{:.0}", bytes / f64::from(1 << 20))
}

/// Returns the calls of a recorded program, without `empty_cache` and `record_stream`.
fn program_of(trace: &Trace) -> Result<Program, ReplayError> {
    let left_out = LeftOut { empty_cache: true, record_stream: true, captures: false };
    Ok(replay::program(trace)?.without(left_out))
}

/// Runs the programs, and returns the tables.
///
/// # Errors
/// The first program that cannot be run, or whose call an allocator refused for another reason than
/// lack of memory.
pub fn report(traces: &[Trace], pairs: &[[usize; 2]], pace: Pace) -> Result<[(&'static str, Table); 3], ReplayError> {
    let refused = |trace: &Trace, error: Error| ReplayError::Refused(BadInput::whole(&trace.file, error.to_string()));
    let programs = traces.iter().map(program_of).collect::<Result<Vec<_>, _>>()?;
    let mut rows = Vec::new();
    for (trace, program) in traces.iter().zip(&programs) {
        let run = |config: &str, limit| alone(program, config, limit, pace);
        rows.push(each(run).map_err(|error| refused(trace, error))?);
    }
    let mut by_program = Table::new(HEADER);
    for (trace, row) in traces.iter().zip(&rows) {
        add_rows(&mut by_program, &trace.name, row, |outcome| outcome.end as f64);
    }
    let mut turns = Table::new(HEADER.map(|name| if name == "end MiB" { "second MiB" } else { name }));
    for &[first, second] in pairs {
        let run = |config: &str, limit| in_turn([&programs[first], &programs[second]], config, limit, pace);
        let row = each(run).map_err(|error| refused(&traces[first], error))?;
        add_rows(&mut turns, &format!("{}, {}", traces[first].name, traces[second].name), &row, |outcome| {
            outcome.second
        });
    }
    Ok([("summary", summary(&rows)), ("by_program", by_program), ("in_turn", turns)])
}

const HEADER: [&str; 10] = [
    "program",
    "configuration",
    "peak MiB",
    "mean MiB",
    "end MiB",
    "driver ms",
    "of the time, %",
    "stall ms",
    "given back MiB",
    "too early",
];

fn add_rows(table: &mut Table, name: &str, row: &[Outcome], end: impl Fn(&Outcome) -> f64) {
    for (config, outcome) in CONFIGS.iter().zip(row) {
        let ooms = if outcome.ooms > 0 { format!(" ({} out of memory)", outcome.ooms) } else { String::new() };
        let stats = &outcome.stats;
        table.add_row([
            name.to_owned(),
            format!("{}{ooms}", title(config)),
            mebibytes(outcome.peak as f64),
            mebibytes(outcome.mean),
            mebibytes(end(outcome)),
            format!("{:.1}", outcome.driver_ns as f64 / 1e6),
            format!("{:.4}", outcome.share() * 100.0),
            format!("{:.2}", outcome.stall_ns as f64 / 1e6),
            mebibytes(stats.given_back as f64),
            format!("{} of {}", stats.too_early_units, stats.given_back_units),
        ]);
    }
}

/// The relations to the default: of the bytes over time, at the peak and at the end, and of the
/// time.
fn summary(rows: &[Vec<Outcome>]) -> Table {
    let header =
        ["configuration", "mean", "worst mean", "end", "worst end", "peak", "worst peak", "time", "worst time"];
    let mut summary = Table::new(header.into_iter().chain(["most driver time, %"]));
    for (number, config) in CONFIGS.iter().enumerate() {
        let of = |figure: fn(&Outcome) -> f64| {
            let relations: Vec<f64> = rows.iter().map(|row| figure(&row[number]) / figure(&row[0])).collect();
            let logarithms: f64 = relations.iter().map(|relation| relation.max(1e-6).ln()).sum();
            let worst = relations.iter().copied().fold(0.0, f64::max);
            [(logarithms / relations.len() as f64).exp(), worst].map(|relation| format!("{relation:.4}"))
        };
        let figures: [fn(&Outcome) -> f64; 4] = [
            |outcome| outcome.mean,
            |outcome| outcome.end as f64,
            |outcome| outcome.peak as f64,
            |outcome| outcome.time_us as f64,
        ];
        let most = rows.iter().map(|row| row[number].share()).fold(0.0, f64::max);
        let cells = figures.into_iter().flat_map(of).chain([format!("{:.4}", most * 100.0)]);
        summary.add_row([title(config).to_owned()].into_iter().chain(cells));
    }
    summary
}

#[cfg(test)]
mod tests {
    use super::{Pace, report};
    use cachalot_replay::trace::Trace;
    use std::path::Path;

    /// A record of a block of 200 MiB, and then a lasting block of 2 MiB.
    const RECORD: &str = "action,addr,size,stream\nA,7f0000000000,209715200,0\na,7f0000000000,209715200,0\n\
        f,7f0000000000,209715200,0\nc,7f0000000000,209715200,0\nA,7f1000000000,20971520,0\na,7f1000000000,2097152,0\n";

    #[test]
    fn pauses_and_phases_are_told_apart() {
        let traces = Trace::load_bytes(Path::new("small.csv"), RECORD.as_bytes()).unwrap();
        let pace = Pace { passes: 2, run_ms: 1000, pause_ms: 20_000, upkeep_ms: 50, upkeep_us: 2000 };
        let [_, (_, by_program), _] = report(&traces, &[[0, 0]], pace).unwrap();
        let cells =
            |config: &str| by_program.rows.iter().find(|row| row[0] == "small" && row[1] == config).expect(config);
        let (default, auto) = (cells("default"), cells("reclaim:auto"));
        // The block of 2 MiB takes the place of the large one, which is free.
        assert_eq!(default[2..5], ["200", "200", "200"], "{by_program}");
        assert_eq!((auto[2].as_str(), auto[4].as_str()), ("200", "0"), "{by_program}");
        assert!(auto[3].parse::<u64>().unwrap() < 100, "{by_program}");
    }
}
