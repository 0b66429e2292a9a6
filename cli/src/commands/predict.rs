//! `cachalot predict`: the memory of a program before it runs.

use super::progress::Progress;
use super::table::{Column, Look, Table, column, extra};
use super::{BAD_INPUT, DIFFERENT, SCHEMA, bytes};
use cachalot_core::Config;
use cachalot_core::config::PLANNED;
use cachalot_replay::compare::{self, Configuration, Contender, policy_named};
use cachalot_replay::predict::{self, Prediction, Scaled};
use cachalot_replay::program::{LeftOut, Program};
use cachalot_replay::recorded::RecordedPeaks;
use cachalot_replay::replay::{self, ReplayError};
use cachalot_replay::trace::{BadInput, Trace};
use rayon::prelude::*;
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const LONG_ABOUT: &str = "\
Predict the peak of reserved memory before anything runs

A FILE is a record, as for `compare`, or a list of requests: CSV with the header
`request,block,size,stream`, with `a` for a request, `f` for a free, and `e` for
a call that empties the cache. `python -m cachalot_gpu.predict script.py` writes
such a list on a machine without a GPU, and predicts it. The program runs with
its recorded settings and calls, and under every policy except `planned`, which
needs a program that announces its iterations. It continues after a request that
runs out of memory. With the recorded batch and limit, the first row is the
recording itself. Under a limit, the first line says whether the program fits.

--batch-scale 2 doubles the batch. With one record, a rule decides which sizes
grow. A block that is alive at the end of the record, or for half of the record,
keeps its size: weights, optimizer state. A block with the size of such a block,
or half or twice that size, keeps its size, too: gradients, temporaries of the
optimizer, casts of weights. Everything else grows. The record must contain
several whole steps, and end between two or with the program. With --beside, a
record of the same program at --beside-scale times the batch, every size is on
the line through its two recorded sizes.

peak allocated  bytes of all blocks, with the rounding of the policy
peak reserved   bytes held from the device; a contender that fails has no peak
OOMs            requests that run out of memory under --limit
first           the number of the first of them, and the largest

The device's context, the libraries' code and memory that does not come from the
allocator are left out.

--json prints a line with an object for each record and contender, with schema,
file, record, is_recorded, tells_config, policy, config, batch_scale,
scaled_requests, fixed_requests, limit_bytes, peak_allocated_bytes,
peak_reserved_bytes, ooms, largest_failed_bytes, first_failed_request.

Exits with 2 for input that cannot be used, and with 1 if an allocator refused a
call for another reason than lack of memory. With --fail-on-oom, the status is
also 1 if a contender of --policy or --config runs out of memory; without both
options, if the first row does.";

const EXAMPLES: &str = "\
Examples:
  cachalot predict --batch-scale 2 snapshot.pickle
  cachalot predict --batch-scale 4 --limit 80GiB --policy caching snapshot.pickle
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
    /// The policies, separated by commas; all but `planned` without this
    #[arg(long = "policy", value_name = "A,B", value_delimiter = ',', value_parser = policy)]
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
    limit: Option<u64>,
    /// The facts about the recording. `None` for a list of requests.
    record: Option<PredictRecord>,
}

/// A recording after a program.
struct PredictRecord {
    config: Config,
    tells_config: bool,
    recorded: RecordedPeaks,
}

/// A program with its predictions, in the order of the contenders.
struct Predicted {
    named: Named,
    scaled: Scaled,
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
}

/// Parses a multiple.
fn factor(text: &str) -> Result<f64, String> {
    let factor: Option<f64> = text.parse().ok().filter(|factor: &f64| *factor > 0.0 && *factor <= 1e6);
    factor.ok_or_else(|| format!("`{text}` is not a factor: expected a number above 0 and up to 1000000"))
}

/// Parses the name of a policy that can be predicted.
fn policy(name: &str) -> Result<&'static str, String> {
    match policy_named(name)? {
        PLANNED => Err(format!("`{PLANNED}` cannot be predicted: a program announces its iterations under it")),
        policy => Ok(policy),
    }
}

/// Runs the command.
pub(crate) fn run(args: &PredictArgs) -> ExitCode {
    let contenders = match contenders(args) {
        Ok(contenders) => contenders,
        Err(complaint) => {
            eprintln!("{complaint}");
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
                progress.suspend(|| eprintln!("{error}"));
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
    let mut contenders = compare::contenders(&args.policies, &args.configurations)
        .map_err(|complaint| format!("error: --config: {complaint}"))?;
    contenders.retain(|contender| contender.policy != PLANNED);
    Ok(contenders)
}

/// Predicts every program of a file.
fn predict_file(file: &Path, args: &PredictArgs, contenders: &[Contender]) -> Result<Vec<Predicted>, ReplayError> {
    let others = args.beside.as_ref().map(|beside| load(beside, args)).transpose()?;
    let programs = load(file, args)?.into_iter().enumerate();
    let predict = |(number, mut named): (usize, Named)| {
        let input = |file: &Path, what: String| ReplayError::Input(BadInput::whole(file, what));
        let scaled;
        (named.program, scaled) = match (&others, args.beside_scale, &args.beside) {
            (Some(others), Some(other_scale), Some(beside)) => {
                let other = others.get(number).ok_or_else(|| input(beside, "there are fewer devices".to_owned()))?;
                predict::by_records(&named.program, &other.program, other_scale, args.batch_scale)
                    .map_err(|what| input(beside, what))?
            }
            _ => predict::by_rule(&named.program, args.batch_scale),
        };
        let (contenders, is_named) = own_contenders(&named, args, contenders);
        let predictions = contenders.par_iter().map(|contender| {
            predict::predict(&named.program, &predict::settings(contender.config(), named.limit)).map_err(|error| {
                let what = format!("{} refused a call: {error}", title(contender));
                ReplayError::Refused(BadInput::whole(file, what))
            })
        });
        let mut predictions: Vec<Prediction> = predictions.collect::<Result<_, _>>()?;
        let is_same = (args.batch_scale - 1.0).abs() < f64::EPSILON && !args.ignore_empty_cache;
        let record = named.record.as_ref().filter(|record| is_same && record.recorded.limit_bytes == named.limit);
        let is_recorded = record.is_some();
        if let Some(record) = record {
            predictions[0].peak_reserved_bytes = record.recorded.peak_reserved_bytes;
            predictions[0].ooms = record.recorded.ooms;
            predictions[0].largest_failed_bytes = record.recorded.largest_failed_bytes;
        }
        let needs = match named.limit {
            Some(_) if predictions[0].ooms > 0 => {
                let unlimited = predict::settings(contenders[0].config(), None);
                predict::predict(&named.program, &unlimited).ok().map(|free| free.peak_reserved_bytes)
            }
            _ => None,
        };
        Ok(Predicted { named, scaled, contenders, is_named, is_recorded, predictions, needs })
    };
    programs.map(predict).collect()
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

    /// Returns whether the program fits into its limit, in words. `None` without a limit.
    fn fits(&self) -> Option<String> {
        let limit = bytes::show(self.named.limit?);
        let (first, whom) = (&self.predictions[0], self.title(0));
        if first.ooms == 0 {
            let peak = bytes::show(first.peak_reserved_bytes);
            return Some(format!("Fits into {limit} with {whom}: {peak} reserved at the peak."));
        }
        let failed = bytes::plural(first.ooms, "request");
        let verb = if first.ooms == 1 { "fails" } else { "fail" };
        let mut text = format!("Does not fit into {limit} with {whom}: {failed} {verb}");
        if let Some(needs) = self.needs {
            text = format!("{text}, and it needs {}", bytes::show(needs));
        }
        let fitting = (1..self.predictions.len()).find(|&at| self.predictions[at].ooms == 0);
        let instead = fitting.map(|at| format!("; {} fits", self.title(at)));
        Some(text + &instead.unwrap_or_default() + ".")
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
    if let Some(program) = predict::load(file).map_err(ReplayError::Input)? {
        let name = cachalot_replay::trace::base_name(file);
        return Ok(vec![Named { file: shown, name, program, limit: args.limit, record: None }]);
    }
    let named = |trace: &Trace| {
        super::announce_start(trace, "every contender but the recording is first asked for them, by address");
        let left_out = LeftOut { empty_cache: args.ignore_empty_cache, ..LeftOut::default() };
        let program = replay::program(trace)?.without(left_out);
        let recorded = RecordedPeaks::of(trace);
        let limit = args.limit.or(recorded.limit_bytes);
        let (config, tells_config) = (replay::recorded_config(trace)?, trace.tells_config());
        let record = Some(PredictRecord { config, tells_config, recorded });
        Ok(Named { file: shown.clone(), name: trace.name.clone(), program, limit, record })
    };
    Trace::load(file).map_err(ReplayError::Input)?.iter().map(named).collect()
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
    if let Some(fits) = predicted.fits() {
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
