//! Tables of `tests/results/auto.md`: recorded programs with `tune:auto`, compared with the default
//! and the best static setting of each program. Nothing is timed, so the figures are the same on
//! every machine.

use cachalot_core::simulated::{DriverCosts, SimulatedDevice};
use cachalot_core::{Config, TuneReport};
use cachalot_replay::program::{DEVICE, LeftOut, OnDevice, Operation, Program, Run, Settings, Subject};
use cachalot_replay::trace::Trace;
use cachalot_replay::tune::{Options, Part, Parts, tune};
use cachalot_tests::figures::Table;
use cachalot_tuner::live::{Limits, Tuner};
use std::sync::Arc;

/// Memory of the device, which no program fills.
const DEVICE_BYTES: u64 = 1 << 40;

/// Number of searched settings run in passes, to find the best setting of a program.
const FINALISTS: usize = 6;

/// Recorded calls to leave out, as in `stitching.md`.
const LEFT_OUT: LeftOut = LeftOut { empty_cache: true, record_stream: true, captures: false };

/// Extent of the runs.
#[derive(Clone, Copy, Debug)]
pub struct AutoExtent {
    /// Number of runs of each program on one allocator.
    pub passes: usize,
    /// Most candidates of a search of the living allocator.
    pub candidates: usize,
    /// Most candidates of the search for the best static setting.
    pub static_candidates: usize,
    /// Source of all random choices.
    pub seed: u64,
}

/// The figures of a run.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Bytes reserved at the end.
    pub end_bytes: u64,
    /// Bytes reserved, on average over all calls.
    pub mean_bytes: f64,
    /// Time in the driver, in nanoseconds.
    pub driver_ns: u64,
    /// Longest time in the driver for a request, in nanoseconds.
    pub stall_ns: u64,
    /// Number of requests that ran out of memory.
    pub ooms: u64,
    /// The mean and the settings of each pass.
    pub passes: Vec<Pass>,
    /// Report of the tuner.
    pub tuning: TuneReport,
}

/// The figures of a pass.
#[derive(Clone, Debug)]
pub struct Pass {
    /// Bytes reserved, on average over the calls of the pass.
    pub mean_bytes: f64,
    /// The active settings during the pass.
    pub settings: String,
}

/// Runs programs in turn on one allocator. Between two programs all blocks are freed, and the end
/// of an iteration is announced. A due job of the tuner runs to its end, so no result depends on
/// time.
///
/// # Errors
/// A refused call of the allocator, as a text.
pub fn run(programs: &[&Program], settings: &str, extent: AutoExtent) -> Result<Figures, String> {
    let config = Config::parse(settings).map_err(|error| error.to_string())?;
    let mut tuner = config.tunes().then(|| Tuner::new(limits(extent)));
    let device = SimulatedDevice::new(DEVICE_BYTES).with_costs(DriverCosts::h200()).with_work_done_at_once();
    device.set_patience(0);
    let refused = |error: cachalot_core::Error| error.to_string();
    let made = OnDevice::create(device, &Settings { config, limit: None }).map_err(refused)?;
    let mut run: Run<OnDevice> = Run::new(made);
    let mut figures = Figures::default();
    let (mut sum, mut calls) = (0.0, 0_usize);
    for (number, program) in programs.iter().enumerate() {
        if number > 0 {
            run.clean_up(programs[number - 1]).map_err(refused)?;
            // Slots are those of the next program.
            run.blocks.clear();
            if let Some(tuner) = &mut tuner {
                announce(tuner, &run.allocator).map_err(refused)?;
            }
        }
        let mut of_pass = 0.0;
        for &operation in &program.operations {
            let before = run.device().driver_ns();
            run.perform(operation).map_err(refused)?;
            if operation.is_request() {
                figures.stall_ns = figures.stall_ns.max(run.device().driver_ns() - before);
            }
            of_pass += run.device().used() as f64;
        }
        let count = program.operations.len().max(1);
        let settings = in_force(&run.allocator).map_err(refused)?;
        figures.passes.push(Pass { mean_bytes: of_pass / count as f64, settings });
        (sum, calls) = (sum + of_pass, calls + count);
    }
    figures.end_bytes = run.device().used();
    figures.mean_bytes = sum / calls.max(1) as f64;
    figures.driver_ns = run.device().driver_ns();
    figures.ooms = run.ooms;
    figures.tuning = run.allocator.tuning(DEVICE).map(|tuning| tuning.report()).map_err(refused)?;
    Ok(figures)
}

fn limits(extent: AutoExtent) -> Limits {
    Limits { candidates: extent.candidates, time: None, seed: extent.seed }
}

/// Announces the end of an iteration, and runs every due job of the tuner to its end.
fn announce(tuner: &mut Tuner, allocator: &OnDevice) -> Result<(), cachalot_core::Error> {
    let never = Arc::default();
    while let Some(job) = tuner.prepare(allocator, DEVICE)? {
        tuner.conclude(allocator, DEVICE, job.run(cachalot_replay::tune::cost::<OnDevice>, &never))?;
    }
    Ok(())
}

fn in_force(allocator: &OnDevice) -> Result<String, cachalot_core::Error> {
    let mut config = allocator.settings(DEVICE)?.config();
    config.set_tunes(false);
    Ok(config.to_string())
}

/// Returns the settings with the least memory reserved on average, among the best settings of a
/// search over the whole program, and the default. The settings hold no less at the end than on
/// average.
///
/// # Errors
/// A refused call of the allocator, as a text.
pub fn best_static(name: &str, programs: &[&Program], extent: AutoExtent) -> Result<(String, Figures), String> {
    let part = |program: &&Program| Part { name: name.to_owned(), program: Program::clone(program), ..Part::default() };
    let mut distinct: Vec<&Program> = Vec::new();
    for program in programs {
        if !distinct.iter().any(|known| std::ptr::eq(*known, *program)) {
            distinct.push(program);
        }
    }
    let parts = Parts { seen: distinct.iter().map(part).collect(), ..Parts::default() };
    let options = Options { living: true, trials: extent.static_candidates, seed: extent.seed, ..Options::default() };
    let outcome = tune(&parts, &options, &mut |_| ())?;
    let mut best = (String::new(), run(programs, "", extent)?);
    let mut ranking: Vec<_> = outcome.tried.iter().collect();
    ranking.sort_by_key(|tried| (tried.seen.ooms, tried.seen.reserved_bytes));
    for tried in ranking.into_iter().take(FINALISTS) {
        let figures = run(programs, &tried.config, extent)?;
        if figures.mean_bytes < best.1.mean_bytes {
            best = (tried.config.clone(), figures);
        }
    }
    Ok(best)
}

/// Three runs of a program.
#[derive(Debug)]
struct ThreeRuns {
    name: String,
    default: Figures,
    best: (String, Figures),
    auto: Figures,
}

impl ThreeRuns {
    /// Returns the covered part of the distance between the default and the best, on average.
    /// `None` for a distance below half a percent of the default.
    fn covered(&self) -> Option<f64> {
        let distance = self.default.mean_bytes - self.best.1.mean_bytes;
        (distance > 0.005 * self.default.mean_bytes)
            .then(|| (self.default.mean_bytes - self.auto.mean_bytes) / distance)
    }
}

/// Returns the calls of a record, without the left-out calls.
///
/// # Errors
/// A record that cannot be used.
pub fn program(trace: &Trace) -> Result<Program, String> {
    let program = cachalot_replay::replay::program(trace).map_err(|error| error.to_string())?;
    let mut program = program.without(LEFT_OUT);
    program.operations.retain(|operation| !matches!(operation, Operation::Announce));
    Ok(program)
}

/// The tables, by name, and the sentence of the page about all programs.
pub type Report = ([(&'static str, Table); 3], String);

/// Runs every program alone, and two in turn.
///
/// # Errors
/// The first program that cannot be run, as a text.
pub fn report(traces: &[Trace], in_turn: [&str; 2], extent: AutoExtent) -> Result<Report, String> {
    let programs: Vec<Program> = traces.iter().map(program).collect::<Result<_, _>>()?;
    let mut rows = Vec::new();
    for (trace, program) in traces.iter().zip(&programs) {
        let passes = vec![program; extent.passes];
        rows.push(row(&trace.name, &passes, extent)?);
    }
    let find = |name: &str| {
        let at = traces.iter().position(|trace| trace.name == name);
        at.map(|at| &programs[at]).ok_or_else(|| format!("there is no program {name}"))
    };
    let phases = [find(in_turn[0])?, find(in_turn[1])?];
    // Two passes of each before the next, so that a phase is longer than the trial of its settings.
    let turns: Vec<&Program> = (0..extent.passes * 2).map(|pass| phases[pass / 2 % 2]).collect();
    let turn = row(&format!("{} and {}", in_turn[0], in_turn[1]), &turns, extent)?;
    let tables = [
        ("by_program", by_program(rows.iter().chain([&turn]))),
        ("tuning", what_was_done(rows.iter().chain([&turn]))),
        ("in_turn", by_pass(&turn, in_turn)),
    ];
    Ok((tables, sentence(&rows)))
}

fn row(name: &str, passes: &[&Program], extent: AutoExtent) -> Result<ThreeRuns, String> {
    let named = |error: String| format!("{name}: {error}");
    Ok(ThreeRuns {
        name: name.to_owned(),
        default: run(passes, "", extent).map_err(named)?,
        best: best_static(name, passes, extent).map_err(named)?,
        auto: run(passes, "tune:auto", extent).map_err(named)?,
    })
}

/// Returns the summary over the programs run alone.
fn sentence(rows: &[ThreeRuns]) -> String {
    let covered: Vec<f64> = rows.iter().filter_map(ThreeRuns::covered).collect();
    let mean = covered.iter().sum::<f64>() / covered.len().max(1) as f64;
    let sum = |of: fn(&ThreeRuns) -> f64| rows.iter().map(of).sum::<f64>();
    let gap = sum(|row| row.default.mean_bytes - row.best.1.mean_bytes);
    let gained = sum(|row| row.default.mean_bytes - row.auto.mean_bytes);
    let worst = |of: fn(&Figures) -> f64| {
        rows.iter().map(|row| of(&row.auto) / of(&row.default) - 1.0).fold(f64::NEG_INFINITY, f64::max)
    };
    format!(
        "Of the distance between the default and the best static setting, `tune:auto` covers {:.0} % on average over {} \
         programs with a distance of 0.5 % or more, and {:.0} % of the sum of all bytes. The worst program is {} % on average, \
         and {} % at the end, beside the default.\n",
        mean * 100.0,
        covered.len(),
        gained / gap.max(1.0) * 100.0,
        change(worst(|figures| figures.mean_bytes)),
        change(worst(|figures| figures.end_bytes as f64)),
    )
}

fn mib(bytes: f64) -> String {
    format!("{:.0}", bytes / f64::from(1 << 20))
}

fn change(part: f64) -> String {
    format!("{:+.1}", part * 100.0)
}

fn by_program<'a>(rows: impl Iterator<Item = &'a ThreeRuns>) -> Table {
    let header = [
        "program",
        "settings",
        "mean MiB",
        "mean beside default, %",
        "end MiB",
        "end beside default, %",
        "driver ms",
        "stall ms",
        "covered, %",
    ];
    let mut table = Table::new(header);
    for row in rows {
        let best = if row.best.0.is_empty() { "the default" } else { row.best.0.as_str() };
        let runs = [("default", &row.default), (best, &row.best.1), ("tune:auto", &row.auto)];
        for (settings, figures) in runs {
            let beside = |of: fn(&Figures) -> f64| change(of(figures) / of(&row.default).max(1.0) - 1.0);
            let covered = row.covered().filter(|_| settings == "tune:auto");
            table.add_row([
                row.name.clone(),
                format!("`{settings}`"),
                mib(figures.mean_bytes),
                beside(|figures| figures.mean_bytes),
                mib(figures.end_bytes as f64),
                beside(|figures| figures.end_bytes as f64),
                format!("{:.2}", figures.driver_ns as f64 / 1e6),
                format!("{:.2}", figures.stall_ns as f64 / 1e6),
                covered.map_or(String::new(), |part| format!("{:.0}", part * 100.0)),
            ]);
        }
    }
    table
}

fn what_was_done<'a>(rows: impl Iterator<Item = &'a ThreeRuns>) -> Table {
    let header = [
        "program",
        "settings at the end",
        "searches",
        "candidates",
        "switches",
        "held",
        "taken back",
        "given back MiB",
    ];
    let mut table = Table::new(header);
    for row in rows {
        let TuneReport { searches, candidates, switches, held, taken_back, given_back_bytes, .. } = row.auto.tuning;
        let last = row.auto.passes.last().map_or("", |pass| pass.settings.as_str());
        let counts = [searches, candidates, switches, held, taken_back].map(|count| count.to_string());
        let settings = if last.is_empty() { "the default".to_owned() } else { format!("`{last}`") };
        let cells = [row.name.clone(), settings].into_iter().chain(counts).chain([mib(given_back_bytes as f64)]);
        table.add_row(cells);
    }
    table
}

fn by_pass(row: &ThreeRuns, names: [&str; 2]) -> Table {
    let mut table = Table::new(["pass", "program", "settings of `tune:auto`", "default", "best static", "`tune:auto`"]);
    for (number, pass) in row.auto.passes.iter().enumerate() {
        let settings = if pass.settings.is_empty() { "the default".to_owned() } else { format!("`{}`", pass.settings) };
        let of = |figures: &Figures| mib(figures.passes[number].mean_bytes);
        table.add_row([
            (number + 1).to_string(),
            names[number / 2 % 2].to_owned(),
            settings,
            of(&row.default),
            of(&row.best.1),
            of(&row.auto),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use cachalot_core::{MIB, StreamId};

    const EXTENT: AutoExtent = AutoExtent { passes: 4, candidates: 24, static_candidates: 24, seed: 0 };

    /// Returns steps with three growing blocks. Each block needs its own segment by default.
    fn growing() -> Program {
        let step = |step: u64| {
            let malloc =
                move |slot| Operation::Malloc { bytes: (20 + step % 10) * 2 * MIB, stream: StreamId::DEFAULT, slot };
            (0..3).map(malloc).chain((0..3).map(|slot| Operation::Free { slot }))
        };
        Program { operations: (0..100).flat_map(step).collect(), slots: 3, start: 0 }
    }

    #[test]
    fn a_program_that_wastes_memory_is_tuned_after_a_pass() {
        let program = growing();
        let passes = vec![&program; 4];
        let row = row("growing", &passes, EXTENT).unwrap();
        let report = row.auto.tuning;
        assert_eq!((report.switches, report.held, report.taken_back), (1, 1, 0), "{report:?}");
        assert!(
            row.auto.passes[0].settings.is_empty() && row.auto.passes[1].settings.contains("expandable"),
            "{row:?}"
        );
        let covered = row.covered().unwrap();
        assert!((0.5..1.0).contains(&covered), "{covered}");
        let again = run(&passes, "tune:auto", EXTENT).unwrap();
        assert!((again.mean_bytes - row.auto.mean_bytes).abs() < 1e-9, "equal seeds have equal results");
    }
}
