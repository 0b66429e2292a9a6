//! Tables of `tests/results/stitching.md`: the used part of the reserved memory for recorded
//! programs under each policy, and the driver's estimated time. Nothing is timed, so the figures
//! are the same on every machine.

use cachalot_core::simulated::DriverCosts;
use cachalot_replay::compare::{CompareOptions, Contender, Figures, compare};
use cachalot_replay::program::{DriverTime, LeftOut};
use cachalot_replay::replay::ReplayError;
use cachalot_replay::trace::{BadInput, Trace};
use cachalot_tests::figures::Table;
use std::fs;
use std::path::{Path, PathBuf};

/// The configuration strings of the compared policies.
pub const POLICIES: [&str; 3] = ["policy:caching", "policy:caching,expandable_segments:True", "policy:stitched"];

/// Extent of the runs.
#[derive(Clone, Copy, Debug)]
pub struct StitchingExtent {
    /// Number of runs of each program on one allocator.
    pub passes: u32,
    /// The hard limit of one table, as a multiple of the peak live bytes.
    pub limit_factor: f64,
}

/// Number of runs of each program for the growth of waste with the passes.
const MANY_PASSES: u32 = 20;

/// Factors for the sizes of the programs in some variations. No setting was tuned for the resulting
/// programs, and their sizes are no multiples of a page.
const SIZE_FACTORS: [f64; 7] = [0.61, 0.72, 0.83, 1.37, 1.7, 2.9, 20.0];

/// Time of each of two calls of `maintain` between two passes, in a variation.
const UPKEEP_US: u64 = 2000;

/// The way in which the programs run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// Number of runs of each program.
    passes: u32,
    /// Recorded calls to leave out.
    left_out: LeftOut,
    /// Factor for every size.
    size_factor: f64,
    /// A hard limit as a multiple of the peak live bytes.
    limit_factor: Option<f64>,
    /// Time of each of two calls of `maintain` between two passes, in microseconds; 0 for no call.
    upkeep_us: u64,
}

impl Manner {
    /// Returns the manner from which the variations differ.
    pub(crate) fn of(passes: u32) -> Self {
        let left_out = LeftOut { empty_cache: true, record_stream: true, captures: false };
        Self { passes, left_out, size_factor: 1.0, limit_factor: None, upkeep_us: 0 }
    }
}

/// The figures of one program, in the order of the contenders.
type FigureRow = Vec<Figures>;

impl StitchingExtent {
    /// Returns the ways to run the programs, each with its name. The first is the one shown by
    /// program.
    fn variations(self) -> Vec<(String, Manner)> {
        let base = Manner::of(self.passes);
        let left_out = |left_out| Manner { left_out, ..base };
        let open = left_out(LeftOut { captures: true, ..base.left_out });
        let many = Manner { passes: MANY_PASSES, ..open };
        let graphs = "graphs in the default pool";
        let scaled = SIZE_FACTORS.map(|size_factor| {
            (format!("{graphs}; {MANY_PASSES} passes, sizes × {size_factor}"), Manner { size_factor, ..many })
        });
        let recorded = [
            ("as below".to_owned(), base),
            (graphs.to_owned(), open),
            (format!("{graphs}; {MANY_PASSES} passes"), many),
            (
                format!("{graphs}; {MANY_PASSES} passes, and `maintain` between them"),
                Manner { upkeep_us: UPKEEP_US, ..many },
            ),
            ("with `empty_cache`".to_owned(), left_out(LeftOut { empty_cache: false, ..base.left_out })),
            (format!("with `empty_cache` and {graphs}"), left_out(LeftOut { empty_cache: false, ..open.left_out })),
            ("reusable at `c`".to_owned(), left_out(LeftOut { record_stream: false, ..base.left_out })),
            (
                format!("hard limit of {} × peak live", self.limit_factor),
                Manner { limit_factor: Some(self.limit_factor), ..base },
            ),
        ];
        recorded.into_iter().chain(scaled).collect()
    }
}

/// Reads the programs in `folder` that were recorded in the default configuration and without a
/// limit, sorted by name.
///
/// # Errors
/// If the folder cannot be read, or contains an invalid record.
pub fn default_programs(folder: &Path) -> Result<Vec<Trace>, BadInput> {
    let unreadable = |error| BadInput::whole(folder, format!("cannot be read: {error}"));
    let entries: Result<Vec<PathBuf>, _> =
        fs::read_dir(folder).map_err(unreadable)?.map(|entry| Ok(entry.map_err(unreadable)?.path())).collect();
    let mut files = entries?;
    files.retain(|file| file.to_string_lossy().ends_with(".csv.gz"));
    files.sort();
    let mut traces = Vec::new();
    for file in &files {
        traces.extend(Trace::load(file)?);
    }
    traces.retain(|trace| trace.config().is_empty() && trace.limit_bytes().is_none());
    Ok(traces)
}

/// Runs every program with every contender, and returns the tables.
///
/// # Errors
/// The first program that cannot be run, or that an allocator refused other than for lack of
/// memory.
pub fn report(
    traces: &[Trace],
    contenders: &[Contender],
    extent: StitchingExtent,
) -> Result<Vec<(&'static str, Table)>, ReplayError> {
    let header =
        ["variation", "policy", "utilisation", "worst", "of", "cold µs", "steady µs", "stall ms", "out of memory"];
    let mut summary = Table::new(header);
    let mut programs = None;
    for (name, manner) in extent.variations() {
        let rows = run(traces, contenders, manner)?;
        for (number, contender) in contenders.iter().enumerate() {
            let figures: Vec<&Figures> = rows.iter().map(|row| &row[number]).collect();
            let (_, cells) = summarise(traces, &figures);
            summary.add_row([name.clone(), title(contender)].into_iter().chain(cells));
        }
        programs.get_or_insert_with(|| by_program(traces, contenders, &rows));
    }
    Ok([("summary", summary)].into_iter().chain(programs.map(|programs| ("by_program", programs))).collect())
}

/// Runs every program with every contender in one way. Where freed memory is reusable at once, the
/// device has done all work when it is asked.
pub(crate) fn run(traces: &[Trace], contenders: &[Contender], manner: Manner) -> Result<Vec<FigureRow>, ReplayError> {
    let Manner { passes, left_out, size_factor, limit_factor, upkeep_us } = manner;
    let options = CompareOptions {
        contenders: contenders.to_vec(),
        limit: None,
        limit_factor,
        left_out,
        size_factor,
        passes,
        repeat: 0,
        costs: DriverCosts::h200(),
        work_done_at_once: left_out.record_stream,
        upkeep_us,
    };
    let row = |trace| {
        let figures = compare(trace, &options)?.figures;
        figures.into_iter().collect::<Result<FigureRow, BadInput>>().map_err(ReplayError::Refused)
    };
    traces.iter().map(row).collect()
}

fn title(contender: &Contender) -> String {
    format!("{} {}", contender.policy, contender.text).trim_end().to_owned()
}

/// Returns the geometric mean of the utilisation of one contender, and the cells over all programs.
pub(crate) fn summarise(traces: &[Trace], figures: &[&Figures]) -> (f64, [String; 7]) {
    let logarithms: f64 = figures.iter().map(|figures| figures.utilisation().ln()).sum();
    let mean = (logarithms / figures.len() as f64).exp();
    let by_utilisation = |(_, one): &(&Trace, &&Figures), (_, other): &(&Trace, &&Figures)| {
        one.utilisation().total_cmp(&other.utilisation())
    };
    let worst = traces.iter().zip(figures).min_by(by_utilisation);
    let (worst, of) = worst.map_or((0.0, ""), |(trace, figures)| (figures.utilisation(), &trace.name));
    let failed = figures.iter().filter(|figures| figures.ooms > 0).count();
    let [cold, steady, stall] = driver(&DriverTime::sum(figures.iter().map(|figures| &figures.driver)));
    (mean, [ratio(mean), ratio(worst), of.to_owned(), cold, steady, stall, failed.to_string()])
}

fn by_program(traces: &[Trace], contenders: &[Contender], rows: &[FigureRow]) -> Table {
    let header = [
        "program",
        "policy",
        "allocations",
        "live MiB",
        "reserved MiB",
        "utilisation",
        "cold µs",
        "steady µs",
        "stall ms",
    ];
    let mut table = Table::new(header);
    for (trace, row) in traces.iter().zip(rows) {
        for (contender, figures) in contenders.iter().zip(row) {
            let mebibytes = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
            let cells = [
                trace.name.clone(),
                title(contender),
                figures.driver.allocations.to_string(),
                mebibytes(figures.peak_live_bytes),
                mebibytes(figures.peak_reserved_bytes),
                ratio(figures.utilisation()),
            ];
            table.add_row(cells.into_iter().chain(driver(&figures.driver)));
        }
    }
    table
}

fn ratio(of: f64) -> String {
    format!("{of:.4}")
}

/// Returns the microseconds an allocation in the first pass and in the later ones, and the longest
/// stall in milliseconds.
fn driver(time: &DriverTime) -> [String; 3] {
    let steady = time.steady_us().map_or("–".to_owned(), |us| format!("{us:.3}"));
    [format!("{:.3}", time.cold_us()), steady, format!("{:.2}", time.longest_stall_ns as f64 / 1e6)]
}

#[cfg(test)]
mod tests {
    use super::{POLICIES, StitchingExtent, default_programs, report};
    use cachalot_replay::compare::Contender;
    use cachalot_replay::trace::Trace;
    use std::path::Path;

    /// A block that stays, and a cached one that a call gives back.
    const RECORD: &str = "action,addr,size,stream\nA,7f0000000000,2097152,0\na,7f0000000000,1048576,0\n\
        A,7f1000000000,20971520,0\na,7f1000000000,5242880,0\nf,7f1000000000,5242880,0\nc,7f1000000000,5242880,0\n\
        F,7f1000000000,20971520,0\n";

    #[test]
    fn each_variation_and_each_program_has_a_row_for_each_policy() {
        let traces = Trace::load_bytes(Path::new("small.csv"), RECORD.as_bytes()).unwrap();
        let contenders = POLICIES[..2].iter().map(|text| Contender::parse(text).unwrap()).collect::<Vec<_>>();
        let tables = report(&traces, &contenders, StitchingExtent { passes: 3, limit_factor: 1.05 }).unwrap();
        let rows: Vec<_> = tables.iter().flat_map(|(_, table)| &table.rows).collect();
        let row = |cells: &str| assert!(rows.iter().any(|row| row.join(", ") == cells), "{cells} in\n{rows:#?}");
        // 6 MiB live; segments of 2 and 20 MiB, for 31 and 32 µs.
        row("as below, caching, 0.2727, 0.2727, small, 31.500, 0.000, 0.03, 0");
        row("graphs in the default pool, caching, 0.2727, 0.2727, small, 31.500, 0.000, 0.03, 0");
        row("graphs in the default pool; 20 passes, caching, 0.2727, 0.2727, small, 31.500, 0.000, 0.03, 0");
        // Each later pass obtains the released 20 MiB again, and releases them: 2 · 32 µs.
        row("with `empty_cache`, caching, 0.2727, 0.2727, small, 47.500, 32.000, 0.03, 0");
        let both = "with `empty_cache` and graphs in the default pool";
        row(&format!("{both}, caching, 0.2727, 0.2727, small, 47.500, 32.000, 0.03, 0"));
        row("reusable at `c`, caching, 0.2727, 0.2727, small, 31.500, 0.000, 0.03, 0");
        row("small, caching, 2, 6.0, 22.0, 0.2727, 31.500, 0.000, 0.03");
        let is_limited = |row: &&Vec<String>| row[0] == "hard limit of 1.05 × peak live" && row[1].ends_with(":True");
        assert!(rows.iter().any(is_limited), "{rows:#?}");
    }

    #[test]
    fn the_recorded_programs_of_the_default_configuration_are_found() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/traces");
        let names: Vec<String> = default_programs(&folder).unwrap().into_iter().map(|trace| trace.name).collect();
        assert!(names.len() >= 11 && names.is_sorted(), "{names:?}");
        assert!(names.iter().all(|name| !name.contains("__") || name == "cuda_graphs__graph"), "{names:?}");
        let error = default_programs(&folder.join("none")).unwrap_err().to_string();
        assert!(error.contains("none: cannot be read"), "{error}");
    }
}
