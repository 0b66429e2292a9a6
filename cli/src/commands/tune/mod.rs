//! `cachalot tune`: searches the best settings for recorded programs.

mod render_line;
mod render_text;

use super::progress::Progress;
use super::table::Look;
use super::{BAD_INPUT, DIFFERENT, bytes};
use cachalot_core::simulated::DriverCosts;
use cachalot_replay::compare::load_costs;
use cachalot_replay::program::{LeftOut, Operation};
use cachalot_replay::recorded::RecordedPeaks;
use cachalot_replay::replay::{self, ReplayError};
use cachalot_replay::trace::Trace;
use cachalot_replay::tune::{self, Aim, Answer, Budget, HoldBack, Options, Part, Parts, Question, tune};
use rayon::prelude::*;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const LONG_ABOUT: &str = "\
Search the best settings for your own recorded programs

The search runs the programs with many candidates, as `compare` does: on all
cores and without a GPU. A candidate is a policy with settings. Gains are
measured against each recording's own settings and calls of empty_cache().

There are two searches. The first tries what PyTorch's own allocator understands
(as of PyTorch 2.11; a key that an earlier version refuses has to gain 3 % more,
and is marked). The second tries all policies of cachalot except `planned`,
which needs a program that announces its iterations. Each prints the best
settings as a line to copy: PYTORCH_CUDA_ALLOC_CONF for PyTorch, and
CACHALOT_CONF for cachalot.

A part of the programs is held back: the search does not see it. A candidate is
recommended only if no program, seen or held back, becomes worse by more than
1 % (--most-harm), fails more requests, or exceeds the budget. In a program that
was seen, growth by less than a segment (20 MiB) does not count. If requests
fail, a setting that serves them comes first, whatever memory it needs, and none
is recommended with which requests still fail if another serves them. A
recommendation has only keys that change something.

The report starts with the sentence of `inspect` about each record: what was
reserved and live at most, and what the best of a few settings of PyTorch's
allocator would have saved in the whole program.

Of several programs, half are held back; records of one program under different
settings stay together, and so do the devices of one snapshot. Of a single
program, the later part is held back: the program is cut between two iterations,
and the later part starts with requests for what is live there. --held-back
names the programs to hold back.

--for memory looks for the least peak of reserved memory, within a budget of
driver time a request for each program (--time-budget; the first 10 ms of a
program do not count). --for time looks for the least driver time, within a
budget of reserved memory (--memory-budget).

reserved     change of the peak of reserved memory in the programs seen, their
             geometric mean
driver time  the same of the time in the driver; estimated, as in `compare`
held back    change of what is to be made small, in the programs held back;
             only candidates that led the search are checked
worst        the same in the worst of the programs seen and held back
a request    driver time of a request on average
note         baseline: what others are measured against; best; over budget;
             worse: a program seen becomes worse by more than --most-harm;
             unconfirmed: a program held back does, or exceeds the budget, or
             nothing is gained there

The same files, options and seed give the same results, unless --deadline ends
the search: then the best found so far is printed.

--json prints one object with schema, for, seed, baseline (null for the recorded
settings), recorded (each record with file, record, config, tells_config,
peak_reserved_bytes, peak_live_bytes, answer), seen, held_back, halves,
stopped_at_deadline, torch, cachalot (null without a recommendation), and tried
with all candidates, those with the fewest failed requests first: config,
is_of_torch, needs_pytorch, note, seen and held_back, each with memory_change,
time_change, worst_change, reserved_bytes, us_per_request, ooms, programs.

Exits with 2 for input that cannot be used, and with 1 if an allocator refused a
call with the baseline.";

const EXAMPLES: &str = "\
Examples:
  cachalot tune snapshot.pickle
  cachalot tune --apply-to torch monday.pickle tuesday.pickle
  cachalot tune --for time --memory-budget 1.05 snapshot.pickle
  cachalot tune --deadline 30 --held-back evaluation.csv.gz training.csv.gz";

/// Search the best settings for recorded programs, and check them with programs held back
#[derive(clap::Args)]
#[command(long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
pub(crate) struct TuneArgs {
    /// What to make small
    #[arg(long = "for", value_name = "WHAT", value_enum, default_value_t = For::Memory)]
    aim: For,
    /// The allocators to search for: `torch` tries only what PyTorch itself understands
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = ApplyTo::All)]
    apply_to: ApplyTo,
    /// Most driver time of a request on average, in microseconds, for --for memory
    #[arg(long, value_name = "US", default_value_t = 10.0, value_parser = time_budget)]
    time_budget: f64,
    /// Most reserved memory as a multiple of the baseline's, for --for time
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = memory_budget)]
    memory_budget: f64,
    /// Most percent by which a recommendation may make a program worse
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = percent)]
    most_harm: f64,
    /// The configuration that gains are measured against, instead of the recorded settings
    #[arg(long, value_name = "STRING")]
    baseline: Option<String>,
    /// A program to hold back, any number of times; all other programs are searched
    #[arg(long, value_name = "FILE", conflicts_with = "hold_back")]
    held_back: Vec<PathBuf>,
    /// What to hold back: half of the programs, or the later part of each program
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Hold::Half)]
    hold_back: Hold,
    /// The source of all random choices
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Most candidates of each of the two searches
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    trials: u32,
    /// Seconds after which the best found so far is printed
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    deadline: Option<f64>,
    /// The memory limit instead of the recorded ones: bytes, or a number with KiB, MiB, GiB, TiB,
    /// or kB, MB, GB, TB
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse)]
    limit: Option<u64>,
    /// Leave out the recorded calls that empty the cache
    #[arg(long)]
    ignore_empty_cache: bool,
    /// What the driver's calls cost, instead of the table of an H200
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// Number of candidates in the table, besides the recommendations
    #[arg(long, value_name = "N", default_value_t = 6)]
    most: usize,
    /// Print a JSON object instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    look: Look,
    #[arg(
        required = true,
        value_name = "FILE",
        help = "Records: .csv, .csv.gz, or a pickled memory snapshot of PyTorch"
    )]
    files: Vec<PathBuf>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum For {
    Memory,
    Time,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ApplyTo {
    All,
    Torch,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Hold {
    Half,
    Later,
}

/// Parses a number above zero.
fn positive(text: &str, what: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok().filter(|number: &f64| *number > 0.0 && *number <= 1e9);
    number.ok_or_else(|| format!("`{text}` is not {what}: expected a number above 0 and up to 1000000000"))
}

fn time_budget(text: &str) -> Result<f64, String> {
    positive(text, "a time in microseconds")
}

fn memory_budget(text: &str) -> Result<f64, String> {
    positive(text, "a factor")
}

fn percent(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok().filter(|number| (0.0..=100.0).contains(number));
    number.ok_or_else(|| format!("`{text}` is not a percentage: expected a number from 0 to 100"))
}

fn seconds(text: &str) -> Result<f64, String> {
    positive(text, "a number of seconds")
}

/// Runs the command.
pub(crate) fn run(args: &TuneArgs) -> ExitCode {
    // Reading the files counts.
    let deadline = args.deadline.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let (records, parts, options) = match prepare(args, deadline) {
        Ok(prepared) => prepared,
        Err((status, complaints)) => {
            complaints.iter().for_each(|complaint| complain!("{complaint}"));
            return ExitCode::from(status);
        }
    };
    let searches = if options.torch_only { 1 } else { 2 };
    let progress = Progress::new((options.trials * searches) as u64);
    progress.begin("measuring the baseline");
    let mut counted = 0;
    let outcome = tune(&parts, &options, &mut |now| {
        let before = if now.is_torch { 0 } else { now.most };
        let done = before + now.tried;
        progress.advance(done.saturating_sub(counted) as u64);
        counted = done;
        let name = if now.is_torch { "PyTorch" } else { "cachalot" };
        let best = now.best.map_or("0 %".to_owned(), |(_, change)| render_text::percent(change));
        progress.begin(&format!("{name}: best {best}"));
    });
    progress.finish();
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(complaint) => {
            complain!("{complaint}");
            return ExitCode::from(DIFFERENT);
        }
    };
    let written = if args.json {
        render_line::write(&records, &parts, &options, &outcome, args)
    } else {
        super::print(render_text::text(&records, &parts, &options, &outcome, args))
    };
    super::end(0, &written)
}

/// A recording, with the program to search with.
struct TuneRecord {
    file: String,
    /// The recorded configuration string.
    config: String,
    recorded: RecordedPeaks,
    /// What the report opens with: about the recording, or with an option that changes it, about
    /// its replay.
    answer: Answer,
    tells_config: bool,
    has_late_keys: Option<bool>,
    /// Number of recorded calls that empty the cache.
    emptied: usize,
    part: Part,
}

/// The recordings, their programs divided, and the options.
type PreparedSearch = (Vec<TuneRecord>, Parts, Options);

/// A failure: the exit status, and lines for the user.
type TuneFailure = (u8, Vec<String>);

/// Reads the programs and the options. An error has the exit status.
fn prepare(args: &TuneArgs, deadline: Option<Instant>) -> Result<PreparedSearch, TuneFailure> {
    let bad = |complaint: String| (BAD_INPUT, vec![complaint]);
    let baseline = cachalot_policies::parse(args.baseline.as_deref().unwrap_or_default());
    let baseline = baseline.map_err(|error| bad(format!("--baseline: {error}")))?;
    let costs = match &args.costs {
        Some(file) => load_costs(file).map_err(|error| bad(error.to_string()))?,
        None => DriverCosts::h200(),
    };
    let files: Vec<&PathBuf> = args.files.iter().chain(&args.held_back).collect();
    let records = load(&files, args, &costs)?;
    let first_held = records.iter().position(|record| record.part.process >= Some(args.files.len()));
    let programs: Vec<Part> = records.iter().map(|record| record.part.clone()).collect();
    let division = match args.hold_back {
        _ if first_held.is_some() => HoldBack::From(first_held.unwrap_or_default()),
        Hold::Half => HoldBack::Half,
        Hold::Later => HoldBack::Later,
    };
    let limited = programs.iter().any(|part| part.limit.is_some());
    baseline.notes(limited).for_each(|note| complain!("note: --baseline: {note}"));
    let parts = Parts::divide(programs, division, args.seed);
    let aim = match args.aim {
        For::Memory => Aim::Memory,
        For::Time => Aim::Time,
    };
    let options = Options {
        aim,
        policies: cachalot_policies::POLICIES,
        budget: Budget { us_per_request: args.time_budget, memory_factor: args.memory_budget },
        most_harm: args.most_harm / 100.0,
        baseline: args.baseline.clone().or_else(|| common_config(&records)).unwrap_or_default(),
        has_late_keys: records.iter().all(|record| record.has_late_keys != Some(false)),
        seed: args.seed,
        trials: args.trials as usize,
        deadline,
        torch_only: args.apply_to == ApplyTo::Torch,
        costs,
        ..Options::default()
    };
    Ok((records, parts, options))
}

/// Returns the recorded configuration of all records, if there is one.
fn common_config(records: &[TuneRecord]) -> Option<String> {
    let first = &records.first()?.config;
    records.iter().all(|record| record.config == *first).then(|| first.clone())
}

/// Reads the programs of files. The programs of a file are of one process.
fn load(files: &[&PathBuf], args: &TuneArgs, costs: &DriverCosts) -> Result<Vec<TuneRecord>, TuneFailure> {
    let load = |(number, file): (usize, &&PathBuf)| load_file(number, file, args, costs);
    let loaded: Vec<_> = files.par_iter().enumerate().map(load).collect();
    let errors: Vec<&ReplayError> = loaded.iter().filter_map(|loaded| loaded.as_ref().err()).collect();
    if !errors.is_empty() {
        let status = errors.iter().map(|error| super::status_of(error)).max().unwrap_or(BAD_INPUT);
        return Err((status, errors.iter().map(ToString::to_string).collect()));
    }
    Ok(loaded.into_iter().flatten().flatten().collect())
}

/// Returns the answer about a program, by the rule of `inspect`, `compare` and `view`.
fn answer(trace: &Trace, recorded: &RecordedPeaks, part: &Part, args: &TuneArgs, costs: &DriverCosts) -> Answer {
    if args.baseline.is_none() && args.limit.is_none() && !args.ignore_empty_cache {
        return tune::answer_of(trace);
    }
    let own = args.baseline.as_deref().unwrap_or(trace.config());
    let answered = || {
        let question = Question {
            part,
            baseline: &cachalot_policies::parse(own).map_err(|error| error.to_string())?,
            recorded: None,
            has_late_keys: trace.has_late_keys,
            limit_is_setting: args.limit.or(trace.limit_bytes()).is_some() || recorded.was_refused_by_limit,
        };
        tune::answer(&question, costs)
    };
    let answer = answered().unwrap_or_else(|why| {
        let config = trace.config().to_owned();
        Answer { not_replayed: Some(why), ..tune::of_recording(recorded, config) }
    });
    Answer { cut_to_events: trace.cut_to(), ..answer }
}

fn load_file(number: usize, file: &Path, args: &TuneArgs, costs: &DriverCosts) -> Result<Vec<TuneRecord>, ReplayError> {
    let left_out = LeftOut { empty_cache: args.ignore_empty_cache, ..LeftOut::default() };
    let record = |trace: &Trace| {
        super::announce_remarks(trace);
        let program = replay::program(trace)?;
        let calls = program.operations.iter().filter(|operation| matches!(operation, Operation::EmptyCache)).count();
        let recorded = RecordedPeaks::of(trace);
        let baseline = if args.baseline.is_none() { Some(replay::recorded_config(trace)?) } else { None };
        let part = Part {
            name: trace.name.clone(),
            program: program.without(left_out),
            limit: args.limit.or(recorded.limit_bytes),
            baseline,
            process: Some(number),
        };
        Ok(TuneRecord {
            file: file.display().to_string(),
            config: trace.config().to_owned(),
            answer: answer(trace, &recorded, &part, args, costs),
            recorded,
            tells_config: trace.tells_config(),
            has_late_keys: trace.has_late_keys,
            emptied: calls,
            part,
        })
    };
    Trace::load(file).map_err(ReplayError::Input)?.iter().map(record).collect()
}
