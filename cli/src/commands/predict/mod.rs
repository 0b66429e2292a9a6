//! `cachalot predict`: the memory of a program before it runs.

pub(crate) mod script;
mod sentence;

use super::progress::Progress;
use super::table::{Column, Look, Table, column, extra};
use super::{BAD_INPUT, DIFFERENT, SCHEMA, bytes, settings};
use cachalot_core::Config;
use cachalot_core::config::PLANNED;
use cachalot_replay::compare::{self, Configuration, Contender};
use cachalot_replay::predict::{self, Calls, Growth, List, Prediction, Scaled, Untold};
use cachalot_replay::program::{LeftOut, Program};
use cachalot_replay::recorded::{RecordedPeaks, differ};
use cachalot_replay::replay::{self, ReplayError};
use cachalot_replay::trace::{BadInput, Trace};
use clap::builder::TypedValueParser;
use rayon::prelude::*;
use sentence::LargestBatch;
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const LONG_ABOUT: &str = "\
Predict the peak of reserved memory before anything runs

A FILE is a record, as for `compare`, a list of requests, or a training script.

A script that ends in .py runs on a machine without a GPU, as on an H100: see
`python -m cachalot_gpu.predict --help` for its options, which come before the
script; what comes after it are the script's arguments. It needs the Python
package and PyTorch. A list of requests is CSV with the header
`request,block,size,stream`, with `a` for a request, `f` for a free, and `e` for
a call that empties the cache.

A program runs with its recorded settings and calls, and under every policy but
`planned`, for which a program announces its iterations. It goes on after a
request that runs out of memory. With the recorded batch and limit, the first
row is the recording itself. Under a limit, the first sentence tells whether the
program fits, what it needs, and the largest batch that fits.

--batch-scale 2 doubles the batch. A record of two steps or more tells which
sizes grow. Blocks that outlive a step stay: weights, optimizer state. In a
step, the requests of the optimizer and the gradients of weights stay, which the
stacks tell. Everything else grows. Without stacks, sizes decide: a block of the
size of one that outlives a step, of half or twice that size, stays. A record
that does not tell is refused. With --beside, a record of the same program at
--beside-scale times the batch, every size is on the line through its two
recorded sizes.

peak allocated  bytes of all blocks, with the rounding of the policy
peak reserved   bytes held from the device; a contender that fails has no peak
OOMs            requests that run out of memory under --limit
first           the number of the first of them, and the largest

The device's context, the libraries' code and memory that does not come from the
allocator are left out.

--json prints a line with an object for each record and contender, with schema,
file, record, is_recorded, tells_config, policy, config, batch_scale,
scaled_requests, fixed_requests, limit_bytes, peak_allocated_bytes,
peak_reserved_bytes, ooms, largest_failed_bytes, first_failed_request,
needs_bytes, growing_percent, largest_batch_scale.

Exits with 2 for input that cannot be used, and with 1 if an allocator refused a
call for another reason than lack of memory. A script that does not fit exits
with 1, and one that stopped before its end with 3. With --fail-on-oom, the
status is also 1 if a contender of --policy or --config runs out of memory;
without both options, if the first row does.";

const EXAMPLES: &str = "\
Examples:
  cachalot predict --batch-scale 2 snapshot.pickle
  cachalot predict --batch-scale 4 --limit 80GiB --policy caching snapshot.pickle
  cachalot predict --gpu A100-40 train.py --batch-size 16
  cachalot predict --batch-scale 8 --beside b2.csv.gz --beside-scale 2 b1.csv.gz";

/// The columns.
const COLUMNS: [Column; 7] = [
    column("contender"),
    column("peak allocated"),
    column("peak reserved"),
    column("to the first"),
    column("OOMs"),
    column("first"),
    extra("largest failed"),
];

/// Predict the peak of reserved memory, at another batch size or from a list of requests
#[derive(clap::Args)]
#[command(long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
pub(crate) struct PredictArgs {
    /// The batch as a multiple of the recorded batch
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor)]
    batch_scale: f64,
    /// A record of the same program at another batch size, which decides what grows
    #[arg(long, value_name = "FILE", requires = "beside_scale")]
    beside: Option<PathBuf>,
    /// The batch of --beside as a multiple of the recorded batch
    #[arg(long, value_name = "FACTOR", requires = "beside", value_parser = factor)]
    beside_scale: Option<f64>,
    /// The recorded batch, so that the largest batch is told as a number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    batch: Option<u64>,
    /// The name of the GPU that has the limit, for the first sentence
    #[arg(long, value_name = "NAME", requires = "limit")]
    device: Option<String>,
    /// The policies, separated by commas; all but `planned` without this
    #[arg(long = "policy", value_name = "A,B", value_delimiter = ',', value_parser = settings::policy_but(PLANNED).try_map(predictable))]
    policies: Vec<&'static str>,
    #[arg(
        long = "config",
        value_name = "STRING",
        value_parser = Configuration::parse,
        help = "A configuration besides the defaults, any number of times: for the policy it starts with, else for each \
                of --policy that has its keys, else for `caching`"
    )]
    configurations: Vec<Configuration>,
    /// The memory limit instead of the recorded ones: bytes, or a number with KiB, MiB, GiB, TiB,
    /// or kB, MB, GB, TB
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse)]
    limit: Option<u64>,
    /// Leave out the recorded calls that empty the cache
    #[arg(long)]
    ignore_empty_cache: bool,
    /// Exit with 1 if a named contender, or without names the first row, runs out of memory
    #[arg(long)]
    fail_on_oom: bool,
    /// Print a JSON object a line instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    look: Look,
    #[arg(required = true, value_name = "FILE", help = "Records, or lists of requests")]
    files: Vec<PathBuf>,
}

/// A program to predict, with its name and limit.
struct Named {
    file: String,
    name: String,
    program: Program,
    /// Where the program made its calls, if the file says.
    calls: Option<Calls>,
    limit: Option<u64>,
    /// Whether the file is a list of requests.
    is_list: bool,
    /// The facts about the recording. `None` for a list of requests.
    record: Option<PredictRecord>,
}

/// A recording after a program.
struct PredictRecord {
    config: Config,
    tells_config: bool,
    /// Whether the record starts in the middle of the program.
    is_cut: bool,
    recorded: RecordedPeaks,
}

/// A program with its predictions, in the order of the contenders.
struct Predicted {
    named: Named,
    scaled: Scaled,
    /// The part of the bytes at the peak that grows with the batch in percent, if the record tells.
    growing_percent: Option<f64>,
    /// The largest batch that fits into the limit. `None` without a limit.
    largest: Option<LargestBatch>,
    contenders: Vec<Contender>,
    /// Whether each contender was named.
    is_named: Vec<bool>,
    /// Whether the first prediction has the peak of the recording.
    is_recorded: bool,
    predictions: Vec<Prediction>,
    /// If requests of the first contender fail under the limit, the peak of its reserved memory
    /// without one.
    needs: Option<u64>,
}

/// A line of `--json`.
#[derive(Serialize)]
struct PredictLine<'a> {
    schema: u32,
    file: &'a str,
    record: &'a str,
    is_recorded: bool,
    tells_config: Option<bool>,
    policy: &'static str,
    config: &'a str,
    batch_scale: f64,
    scaled_requests: u64,
    fixed_requests: u64,
    limit_bytes: Option<u64>,
    #[serde(flatten)]
    prediction: Prediction,
    needs_bytes: Option<u64>,
    growing_percent: Option<f64>,
    largest_batch_scale: Option<f64>,
}

/// Parses a multiple.
fn factor(text: &str) -> Result<f64, String> {
    let factor: Option<f64> = text.parse().ok().filter(|factor: &f64| *factor > 0.0 && *factor <= 1e6);
    factor.ok_or_else(|| format!("`{text}` is not a factor: expected a number above 0 and up to 1000000"))
}

/// Returns a policy, if it can be predicted.
fn predictable(policy: &'static str) -> Result<&'static str, String> {
    match policy {
        PLANNED => Err(format!("`{PLANNED}` cannot be predicted: a program announces its iterations under it")),
        policy => Ok(policy),
    }
}

/// Runs the command.
pub(crate) fn run(args: &PredictArgs) -> ExitCode {
    let contenders = match contenders(args) {
        Ok(contenders) => contenders,
        Err(complaint) => {
            complain!("{complaint}");
            return ExitCode::from(BAD_INPUT);
        }
    };
    let progress = Progress::new(args.files.len() as u64);
    let (mut status, mut predicted) = (0, Vec::new());
    for file in &args.files {
        progress.begin(&file.to_string_lossy());
        match predict_file(file, args, &contenders) {
            Ok(programs) => predicted.extend(programs),
            Err(error) => {
                status = status.max(super::status_of(&error));
                progress.suspend(|| complain!("{error}"));
            }
        }
        progress.advance(1);
    }
    progress.finish();
    if args.fail_on_oom && predicted.iter().any(Predicted::runs_out) {
        status = status.max(DIFFERENT);
    }
    let mut written = Ok(());
    for (number, one) in predicted.iter().enumerate() {
        let gap = if number > 0 && !args.json { "\n" } else { "" };
        let text = if args.json { lines(one, args) } else { Ok(text(one, args)) };
        written = written.and(text.and_then(|text| super::print(format_args!("{gap}{text}"))));
    }
    super::end(status, &written)
}

/// The contenders: without a choice, every policy but the planned one.
fn contenders(args: &PredictArgs) -> Result<Vec<Contender>, String> {
    let mut contenders =
        compare::contenders(&args.policies, &args.configurations).map_err(|wrong| settings::refusal(&wrong))?;
    contenders.retain(|contender| contender.policy != PLANNED);
    Ok(contenders)
}

/// Predicts every program of a file.
fn predict_file(file: &Path, args: &PredictArgs, contenders: &[Contender]) -> Result<Vec<Predicted>, ReplayError> {
    let others = args.beside.as_ref().map(|beside| load(beside, args)).transpose()?;
    let programs = load(file, args)?.into_iter().enumerate();
    let predict = |(number, named): (usize, Named)| {
        let growth = match (&others, args.beside_scale, &args.beside) {
            (Some(others), Some(other_scale), Some(beside)) => {
                let input = |what: String| ReplayError::Input(BadInput::whole(beside, what));
                let other = others.get(number).ok_or_else(|| input("there are fewer devices".to_owned()))?;
                Ok(Growth::of_records(&named.program, &other.program, other_scale).map_err(input)?)
            }
            _ => Growth::of_record(&named.program, named.calls.as_ref()),
        };
        predict_program(file, args, contenders, named, &growth)
    };
    programs.map(predict).collect()
}

/// Predicts a program.
fn predict_program(
    file: &Path,
    args: &PredictArgs,
    contenders: &[Contender],
    mut named: Named,
    growth: &Result<Growth, Untold>,
) -> Result<Predicted, ReplayError> {
    let is_same = (args.batch_scale - 1.0).abs() < f64::EPSILON;
    let recorded = named.program.clone();
    let scaled;
    (named.program, scaled) = match growth {
        _ if is_same => (recorded.clone(), Scaled::none(&recorded)),
        Ok(growth) => growth.scaled(&recorded, args.batch_scale),
        Err(why) => {
            let what = format!(
                "the record does not tell what grows with the batch: {why}. Record two equal steps or more, with stacks \
                 and from the start of the program, or give another record by --beside"
            );
            return Err(ReplayError::Input(BadInput::whole(file, what)));
        }
    };
    let (contenders, is_named) = own_contenders(&named, args, contenders);
    let refused = |contender: &Contender, error: cachalot_core::Error| {
        ReplayError::Refused(BadInput::whole(file, format!("{} refused a call: {error}", title(contender))))
    };
    let predictions = contenders.par_iter().map(|contender| {
        predict::predict(&named.program, &predict::settings(contender.config(), named.limit))
            .map_err(|error| refused(contender, error))
    });
    let mut predictions: Vec<Prediction> = predictions.collect::<Result<_, _>>()?;
    let is_unchanged = is_same && !args.ignore_empty_cache;
    let record = named.record.as_ref().filter(|record| is_unchanged && record.recorded.limit_bytes == named.limit);
    // As the others, a replay starts without the idle memory from before the history.
    let is_other = |record: &PredictRecord| {
        record.is_cut && differ(record.recorded.peak_reserved_bytes, predictions[0].peak_reserved_bytes)
    };
    let is_recorded = record.is_some_and(|record| !is_other(record));
    if let Some(record) = record {
        if is_recorded {
            predictions[0].peak_reserved_bytes = record.recorded.peak_reserved_bytes;
        }
        predictions[0].ooms = record.recorded.ooms;
        predictions[0].largest_failed_bytes = record.recorded.largest_failed_bytes;
    }
    let first = |limit| predict::settings(contenders[0].config(), limit);
    let needs = match named.limit {
        Some(_) if predictions[0].ooms > 0 => {
            predict::predict(&named.program, &first(None)).ok().map(|free| free.peak_reserved_bytes)
        }
        _ => None,
    };
    let largest = named.limit.map(|limit| match growth {
        Ok(growth) => match predict::largest_scale(&recorded, growth, &first(Some(limit))) {
            Ok(Some(scale)) => Ok(LargestBatch::Scale(scale)),
            Ok(None) => Ok(LargestBatch::None),
            Err(error) => Err(refused(&contenders[0], error)),
        },
        Err(why) => Ok(LargestBatch::Untold(why.to_string())),
    });
    let largest = largest.transpose()?;
    let percent = |growth: &Growth| growth.growing_bytes as f64 * 100.0 / growth.peak_bytes.max(1) as f64;
    let growing_percent = growth.as_ref().ok().map(percent);
    Ok(Predicted { named, scaled, growing_percent, largest, contenders, is_named, is_recorded, predictions, needs })
}

/// Returns the contenders for a program, and whether each was named: the recorded settings first,
/// then all contenders with others.
fn own_contenders(named: &Named, args: &PredictArgs, contenders: &[Contender]) -> (Vec<Contender>, Vec<bool>) {
    let has_names = !args.policies.is_empty() || !args.configurations.is_empty();
    let Some(record) = &named.record else {
        let is_named = (0..contenders.len()).map(|at| has_names || at == 0).collect();
        return (contenders.to_vec(), is_named);
    };
    let is_own = |contender: &&Contender| *contender.config() == record.config;
    let others = contenders.iter().filter(|contender| !is_own(contender));
    let all: Vec<Contender> = std::iter::once(Contender::of(&record.config)).chain(others.cloned()).collect();
    let first = !has_names || contenders.iter().any(|contender| is_own(&contender));
    let is_named = (0..all.len()).map(|at| if at == 0 { first } else { has_names }).collect();
    (all, is_named)
}

impl Predicted {
    /// Returns whether a named contender runs out of memory.
    fn runs_out(&self) -> bool {
        self.predictions.iter().zip(&self.is_named).any(|(prediction, is_named)| *is_named && prediction.ooms > 0)
    }

    /// Returns the name of a contender.
    fn title(&self, number: usize) -> String {
        let whose = match (number, &self.named.record, self.is_recorded) {
            (0, Some(_), true) => " (recorded)",
            (0, Some(_), false) => " (recorded settings)",
            _ => "",
        };
        format!("{}{whose}", title(&self.contenders[number]))
    }
}

/// Returns the name of a contender: the policy, and the configuration if not empty.
fn title(contender: &Contender) -> String {
    let space = if contender.text.is_empty() { "" } else { " " };
    format!("{}{space}{}", contender.policy, contender.text)
}

/// Reads the programs of a record, or of a list of requests.
fn load(file: &Path, args: &PredictArgs) -> Result<Vec<Named>, ReplayError> {
    let shown = file.display().to_string();
    if let Some(List { program, calls }) = predict::load(file).map_err(ReplayError::Input)? {
        let name = cachalot_replay::trace::base_name(file);
        return Ok(vec![Named { file: shown, name, program, calls, limit: args.limit, is_list: true, record: None }]);
    }
    let (traces, snapshot) = Trace::load_with_snapshot(file).map_err(ReplayError::Input)?;
    let named = |trace: &Trace| {
        super::announce_start(trace, "every contender but the recording is first asked for them, by address");
        let left_out = LeftOut { empty_cache: args.ignore_empty_cache, ..LeftOut::default() };
        let program = replay::program(trace)?.without(left_out);
        let calls = snapshot.as_ref().and_then(|snapshot| Calls::of(trace, snapshot));
        let recorded = RecordedPeaks::of(trace);
        let limit = args.limit.or(recorded.limit_bytes);
        let (config, tells_config) = (replay::recorded_config(trace)?, trace.tells_config());
        let record = Some(PredictRecord { config, tells_config, is_cut: trace.is_cut, recorded });
        Ok(Named { file: shown.clone(), name: trace.name.clone(), program, calls, limit, is_list: false, record })
    };
    traces.iter().map(named).collect()
}

fn lines(predicted: &Predicted, args: &PredictArgs) -> io::Result<String> {
    let named = &predicted.named;
    let all = predicted.contenders.iter().zip(&predicted.predictions).enumerate();
    let lines = all.map(|(number, (contender, &prediction))| {
        let line = PredictLine {
            schema: SCHEMA,
            file: &named.file,
            record: &named.name,
            is_recorded: number == 0 && predicted.is_recorded,
            tells_config: named.record.as_ref().map(|record| record.tells_config),
            policy: contender.policy,
            config: &contender.text,
            batch_scale: args.batch_scale,
            scaled_requests: predicted.scaled.requests,
            fixed_requests: predicted.scaled.fixed,
            limit_bytes: named.limit,
            prediction,
            needs_bytes: if number == 0 { predicted.needs } else { None },
            growing_percent: predicted.growing_percent,
            largest_batch_scale: match predicted.largest {
                Some(LargestBatch::Scale(scale)) => Some(scale),
                _ => None,
            },
        };
        serde_json::to_string(&line).map_err(io::Error::from)
    });
    Ok(lines.collect::<io::Result<Vec<_>>>()?.join("\n"))
}

fn text(predicted: &Predicted, args: &PredictArgs) -> String {
    let Predicted { named, scaled, predictions, .. } = predicted;
    let all = scaled.requests + scaled.fixed;
    let plural = if all == 1 { "" } else { "s" };
    let mut head = format!("{}: {} request{plural}", named.name, bytes::grouped(all));
    if (args.batch_scale - 1.0).abs() > f64::EPSILON {
        let scaled = bytes::grouped(scaled.requests);
        head = format!("{head}, of which {scaled} grow with {} times the batch", args.batch_scale);
        if let Some(percent) = predicted.growing_percent {
            head = format!("{head}: {percent:.0} % of the bytes at the peak");
        }
    }
    if let Some(limit) = named.limit {
        head = format!("{head}, limit {}", bytes::show(limit));
    }
    if args.ignore_empty_cache {
        head.push_str(", without calls of empty_cache()");
    }
    if named.record.as_ref().is_some_and(|record| !record.tells_config) {
        head.push_str("; the record does not contain its settings, so the defaults are assumed");
    }
    let mut head = args.look.fold(&head, 2);
    if let Some(why) = predicted.untold() {
        head = format!("{head}\n{}", args.look.fold(&why, 2));
    }
    if let Some(fits) = predicted.fits(args) {
        head = format!("{}\n{head}", args.look.fold(&fits, 2));
    }
    let mut table = Table::new(&COLUMNS);
    for (number, prediction) in predictions.iter().enumerate() {
        let (peak, first) = (prediction.peak_reserved_bytes, predictions[0].peak_reserved_bytes);
        let largest = prediction.largest_failed_bytes;
        // What fails has no peak but the limit. A recording's is what it held.
        let is_peak = |at: usize| predictions[at].ooms == 0 || (at == 0 && predicted.is_recorded);
        let told = |text: String| if is_peak(number) { text } else { "–".to_owned() };
        let compared = number > 0 && is_peak(0) && is_peak(number);
        table.row(vec![
            predicted.title(number),
            told(bytes::show(prediction.peak_allocated_bytes)),
            told(bytes::show(peak)),
            if compared { bytes::difference(first, peak) } else { String::new() },
            prediction.ooms.to_string(),
            prediction.first_failed_request.map_or(String::new(), bytes::grouped),
            if largest == 0 { String::new() } else { bytes::show(largest) },
        ]);
    }
    format!("{head}\n\n{}", table.render(&args.look))
}
