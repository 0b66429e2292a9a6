//! `cachalot compare`: recorded programs with every policy and configuration, side by side.

mod render_line;
mod render_plot;
mod render_table;

use super::progress::Progress;
use super::table::Look;
use super::variation::Variation;
use super::{BAD_INPUT, DIFFERENT, bytes, settings};
use cachalot_core::simulated::DriverCosts;
use cachalot_replay::compare::{self, CompareOptions, Comparison, Configuration, Contender, load_costs};
use cachalot_replay::program::{LeftOut, Operation};
use cachalot_replay::recorded::{RecordedPeaks, differ};
use cachalot_replay::replay::{self, ReplayError};
use cachalot_replay::trace::Trace;
use cachalot_replay::tune::{self, Answer, Part, Question};
use rayon::prelude::*;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The folder of the compared traces, if no file is given.
const SHIPPED: &str = "tests/traces";

/// The ending of a trace's file name in the folder.
const RECORD: &str = ".csv.gz";

const LONG_ABOUT: &str = "\
Run recorded programs with every policy and configuration, side by side

Each contender is a policy with a configuration. It runs the recorded program on
a simulated device of 139 GiB, or of the limit's size if that is more: the
requests with the bytes that were asked for, the frees, streams and captured
graphs (in one private pool). A freed block that other streams still use is
reused only after the point where the record says that their work was complete.
The program continues after a request that runs out of memory.

The first row is the recording: its settings, its calls of empty_cache(), its
peaks. With an option that changes the program or the limit, the first row is a
replay with the recorded settings.

The first sentence about a program says how much was reserved and live at most,
and which setting of PyTorch's allocator would have saved some of it. For this
sentence a few settings are always tried, whichever contenders are named. A
simpler setting is preferred if it holds less than 3 % more.

peak reserved   bytes held from the device, which gives exactly what is asked
                for: a driver rounds small requests up to pages
to the first    the difference of peak reserved to the first row
utilisation     peak live / peak reserved
peak live       bytes that the program asked for and holds
driver calls    allocations, frees, calls for mappings, and others (events,
                queries), failed ones included
driver time     what those calls cost on a device, estimated by size; waiting
                costs nothing. --costs FILE replaces the table of an H200:
                `call,bytes,us` lines with the driver's names
                (cuMemAlloc,2097152,31), sizes ascending; between two sizes,
                time grows evenly; `cuMemAddressReserve,,4.5` for any size;
                `#` starts a comment
cold            with --passes: driver time an allocation in the first pass
steady          the same in the later passes, their mean
longest stall   the most driver time of a single request, over all passes
ns/op           median time of an operation on this machine, the simulation of
                the device included, in warm runs after all passes; all other
                figures are those of the passes. Traces run several at once:
                RAYON_NUM_THREADS=1 for steadier times
OOMs            requests that ran out of memory
fragmentation   1 - largest free block / all free blocks, just after the most
                was held from the device
*               the contender with the fewest OOMs, and among those the least
                peak reserved; `direct` is only a reference, and never marked

The planned policy observes the first half of a program and serves the second
half from a plan, made in plan_deadline_ms: its bytes, ns/op and fragmentation
are those of the second half. The figures of the other policies are those of
the whole program.

--json prints an object for each record and contender with schema, file, record,
is_recorded (whether the peaks and ooms are those of the recording),
tells_config (whether the record has its settings), policy, config, utilisation,
peak_live_bytes, peak_reserved_bytes, device_calls and driver_us_by_call (by the
driver's names), driver_us, allocations, passes, cold_us_per_allocation,
steady_us_per_allocation (null for one pass), longest_stall_us, ns_per_op, ooms,
largest_failed_bytes, fragmentation, operations, limit_bytes (null for none),
and for the planned policy planned. The object of the first row also has answer
(with sentence, better, rescues), unless the program is too long.

Exits with 2 for input that cannot be used, otherwise with 1 if an allocator
refused a call for another reason than lack of memory. A contender that runs out
of memory is a result, and the status stays 0. With --fail-on-oom the status is
1 if a contender of --policy or --config runs out of memory; without both
options, if the first row does.";

const EXAMPLES: &str = "\
Examples:
  cachalot compare --config expandable_segments:True snapshot.pickle
  cachalot compare --limit 14GiB snapshot.pickle
  cachalot compare --passes 6 --limit-factor 1.05 snapshot.pickle
  cachalot compare --policy caching,bfc --plot out.svg snapshot.pickle";

/// Run recorded programs with every policy and configuration, side by side
#[derive(clap::Args)]
#[command(long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
pub(crate) struct CompareArgs {
    /// The policies, separated by commas; all without this
    #[arg(long = "policy", value_name = "A,B", value_delimiter = ',', value_parser = settings::policy())]
    policies: Vec<&'static str>,
    #[arg(
        long = "config",
        value_name = "STRING",
        value_parser = Configuration::parse,
        help = "A configuration besides the defaults, any number of times: for the policy it starts with \
                (`policy:caching,max_split_size_mb:64`), else for each of --policy, else for `caching`"
    )]
    configurations: Vec<Configuration>,
    /// The memory limit instead of the recorded ones: bytes, or a number with KiB, MiB, GiB, TiB,
    /// or kB, MB, GB, TB
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse)]
    limit: Option<u64>,
    /// Exit with 1 if a named contender, or without names the first row, runs out of memory
    #[arg(long)]
    fail_on_oom: bool,
    #[command(flatten)]
    variation: Variation,
    /// What the driver's calls cost, instead of the table of an H200
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// How often to measure the time of an operation; the median is shown
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Print a JSON object a line instead of the tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    look: Look,
    /// Draw what is reserved over each program, a line for each contender, and what is live
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    #[arg(
        value_name = "FILE",
        help = "Records: .csv, .csv.gz, or a pickled memory snapshot of PyTorch (.pickle, .pickle.gz); \
                without any, every .csv.gz in tests/traces of the current directory"
    )]
    files: Vec<PathBuf>,
}

/// Selects the figures in the tables.
#[derive(Clone, Copy, PartialEq, Eq)]
enum View {
    /// Figures of a program that runs once.
    Once,
    /// Figures of several passes. The driver's time per allocation stands in place of the whole
    /// time.
    Passes,
}

/// A compared trace.
struct Compared {
    file: String,
    name: String,
    comparison: Comparison,
    /// The contenders of the figures: first the recorded settings.
    contenders: Vec<Contender>,
    /// The number of the figures for each named contender. A contender with the recorded settings
    /// has number 0.
    places: Vec<usize>,
    /// Whether the first figures are those of the recording.
    is_recorded: bool,
    tells_config: bool,
    /// Number of recorded calls that empty the cache, and whether they are made.
    emptied: (usize, bool),
    /// Number of events of a history that starts in the middle of the program.
    cut_to: Option<u64>,
    /// The answer for the first row. `None` if the program is too long for an answer.
    answer: Option<Answer>,
}

/// Runs the command.
pub(crate) fn run(args: &CompareArgs) -> ExitCode {
    let prepared = options(args).and_then(|options| Ok((options, files(args)?)));
    let (options, files) = match prepared {
        Ok(prepared) => prepared,
        Err(complaint) => {
            complain!("{complaint}");
            return ExitCode::from(BAD_INPUT);
        }
    };
    let progress = Progress::new(files.len() as u64);
    let outcomes: Vec<_> = files.par_iter().map(|file| compare_file(file, &options, &progress)).collect();
    progress.finish();

    announce_notes(&options, &outcomes);
    let mut status = 0;
    let mut compared = Vec::new();
    for outcome in outcomes.into_iter().flatten() {
        match outcome {
            Ok(trace) => compared.push(trace),
            Err(error) => {
                status = status.max(super::status_of(&error));
                complain!("{error}");
            }
        }
    }
    for error in
        compared.iter().flat_map(|trace| &trace.comparison.figures).filter_map(|figures| figures.as_ref().err())
    {
        status = status.max(DIFFERENT);
        complain!("{error}");
    }
    if args.fail_on_oom && compared.iter().any(|trace| trace.runs_out(args)) {
        status = status.max(DIFFERENT);
    }
    let written = if args.json { render_line::write(&compared) } else { write_tables(&compared, &options, args) };
    if let Some(file) = args.plot.as_ref().filter(|_| !compared.is_empty())
        && let Err(complaint) = draw(file, &compared)
    {
        complain!("{complaint}");
        status = BAD_INPUT;
    }
    super::end(status, &written)
}

/// Prints a line on standard error for each key of a contender that has no effect. A limit of any
/// record counts.
fn announce_notes(options: &CompareOptions, outcomes: &[Vec<Result<Compared, ReplayError>>]) {
    let limited = outcomes.iter().flatten().flatten().any(|trace| trace.comparison.limit.is_some());
    for contender in &options.contenders {
        let notes = contender.config().notes(limited);
        notes.for_each(|note| complain!("note: {}: {note}", title(contender)));
    }
}

/// Draws the picture of `--plot`.
fn draw(file: &Path, compared: &[Compared]) -> Result<(), String> {
    let image = render_plot::draw(compared).map_err(|error| format!("{}: cannot be drawn: {error}", file.display()))?;
    let written = cachalot_atomic_file::write(file, |to| to.write_all(image.as_bytes()));
    written.map_err(|error| format!("{}: cannot be written: {error}", file.display()))
}

fn options(args: &CompareArgs) -> Result<CompareOptions, String> {
    let costs = match &args.costs {
        Some(file) => load_costs(file).map_err(|error| error.to_string())?,
        None => DriverCosts::h200(),
    };
    Ok(CompareOptions {
        contenders: compare::contenders(&args.policies, &args.configurations)
            .map_err(|wrong| settings::refusal(&wrong))?,
        limit: args.limit,
        limit_factor: args.variation.limit_factor,
        left_out: args.variation.left_out(),
        size_factor: 1.0,
        passes: args.variation.passes.unwrap_or(1),
        repeat: args.repeat,
        costs,
        work_done_at_once: false,
        upkeep_us: 0,
    })
}

/// Returns the given files, or the shipped files by name.
fn files(args: &CompareArgs) -> Result<Vec<PathBuf>, String> {
    if !args.files.is_empty() {
        return Ok(args.files.clone());
    }
    let list = || -> io::Result<Vec<PathBuf>> { fs::read_dir(SHIPPED)?.map(|entry| Ok(entry?.path())).collect() };
    let mut files = list().map_err(|error| {
        format!("{SHIPPED}: cannot be read: {error}; name the traces, or run this in the project's folder")
    })?;
    files.retain(|file| file.to_string_lossy().ends_with(RECORD));
    files.sort();
    if files.is_empty() {
        return Err(format!("{SHIPPED}: holds no trace (*{RECORD})"));
    }
    Ok(files)
}

/// Compares every trace of a file.
fn compare_file(file: &Path, options: &CompareOptions, progress: &Progress) -> Vec<Result<Compared, ReplayError>> {
    let compare = |trace: &Trace| {
        progress.begin(&trace.name);
        let then = "every contender but the recording is first asked for them, by address";
        progress.suspend(|| super::announce_start(trace, then));
        compare_trace(trace, options)
    };
    let outcomes = match Trace::load(file) {
        Ok(traces) => traces.iter().map(compare).collect(),
        Err(error) => vec![Err(ReplayError::Input(error))],
    };
    progress.advance(1);
    outcomes
}

/// Runs a program with the recorded settings, and with every contender that has others.
fn compare_trace(trace: &Trace, options: &CompareOptions) -> Result<Compared, ReplayError> {
    let (recorded, baseline) = (RecordedPeaks::of(trace), replay::recorded_config(trace)?);
    let mut contenders = vec![Contender::of(&baseline)];
    let mut places = Vec::new();
    for contender in &options.contenders {
        places.push(if *contender.config() == baseline { 0 } else { contenders.len() });
        if places.last() != Some(&0) {
            contenders.push(contender.clone());
        }
    }
    let own = CompareOptions {
        contenders,
        limit: options.limit.or(recorded.limit_bytes),
        costs: options.costs.clone(),
        ..*options
    };
    let mut comparison = compare::compare(trace, &own)?;
    let is_unchanged = options.left_out == LeftOut::default()
        && options.passes == 1
        && comparison.limit == recorded.limit_bytes
        && baseline.planned().is_none();
    let mut is_recorded = is_unchanged;
    if let Some(Ok(first)) = comparison.figures.first_mut().filter(|_| is_unchanged) {
        // As the others, a replay starts without the idle memory from before the history.
        let is_other = trace.is_cut && differ(recorded.peak_reserved_bytes, first.peak_reserved_bytes);
        is_recorded = !is_other;
        if is_recorded {
            first.peak_reserved_bytes = recorded.peak_reserved_bytes;
            first.peak_live_bytes = recorded.peak_live_bytes;
        }
        first.ooms = recorded.ooms;
        first.largest_failed_bytes = recorded.largest_failed_bytes;
    }
    let program = replay::program(trace)?;
    let calls = program.operations.iter().filter(|operation| matches!(operation, Operation::EmptyCache)).count();
    let part = Part { program: program.without(own.left_out), limit: comparison.limit, ..Part::default() };
    let question = Question {
        part: &part,
        baseline: &baseline,
        recorded: is_unchanged.then_some(&recorded),
        has_late_keys: trace.has_late_keys,
        limit_is_setting: options.limit.or(trace.limit_bytes()).is_some() || recorded.was_refused_by_limit,
    };
    // A plan starts in the middle of a program, so its peak is not that of the program.
    let answer = if baseline.planned().is_some() { None } else { tune::answer(&question, &own.costs).ok() };
    let answer = answer.map(|answer| Answer { cut_to_events: trace.cut_to(), ..answer });
    Ok(Compared {
        file: trace.file.display().to_string(),
        name: trace.name.clone(),
        comparison,
        contenders: own.contenders,
        places,
        is_recorded,
        tells_config: trace.tells_config(),
        emptied: (calls, !own.left_out.empty_cache),
        cut_to: trace.cut_to(),
        answer,
    })
}

impl Compared {
    /// Returns whether a named contender runs out of memory, or without names the first row.
    fn runs_out(&self, args: &CompareArgs) -> bool {
        let is_named = !args.policies.is_empty() || !args.configurations.is_empty();
        let places = if is_named { self.places.as_slice() } else { &[0] };
        let figures = places.iter().filter_map(|&place| self.comparison.figures[place].as_ref().ok());
        figures.map(|figures| figures.ooms).sum::<u64>() > 0
    }

    /// Returns the name of a contender.
    fn title(&self, number: usize) -> String {
        let whose = match (number, self.is_recorded) {
            (0, true) => " (recorded)",
            (0, false) => " (recorded settings)",
            _ => "",
        };
        format!("{}{whose}", title(&self.contenders[number]))
    }
}

fn write_tables(compared: &[Compared], options: &CompareOptions, args: &CompareArgs) -> io::Result<()> {
    if compared.is_empty() {
        return Ok(());
    }
    let (contenders, look) = (&options.contenders, &args.look);
    let view = if args.variation.passes.is_some() { View::Passes } else { View::Once };
    super::print(render_table::each(compared, view, look))?;
    if compared.len() > 1 {
        super::print(format_args!("\n{}", render_table::all(compared, contenders, view, look)))?;
    }
    if args.variation.limit_factor.is_some() {
        super::print(format_args!("\n{}", render_table::failures(compared, contenders)))?;
    }
    Ok(())
}

/// Returns the name of a contender: the policy, and the configuration if not empty.
fn title(contender: &Contender) -> String {
    match contender.text.as_str() {
        "" => contender.policy.to_owned(),
        text => format!("{} {text}", contender.policy),
    }
}
