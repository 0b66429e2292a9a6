//! `cachalot predict`: the memory of a program before it runs.

use super::progress::Progress;
use super::table::{Column, Look, Table, column, extra};
use super::{BAD_INPUT, bytes};
use cachalot_core::Config;
use cachalot_core::config::PLANNED;
use cachalot_replay::compare::{self, Configuration, Contender, policy_named};
use cachalot_replay::predict::{self, Prediction, Scaled};
use cachalot_replay::program::{LeftOut, Program};
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
`request,block,size,stream`, with `a` for a request and `f` for a free. `python
-m cachalot_gpu.predict` writes such a list on a machine without a GPU. The
program runs under every policy but `planned`, for which a program announces its
iterations, and goes on after a request that runs out of memory.

--batch-scale 2 doubles the batch. With one record, a rule decides which sizes
grow. A block that is alive at the end of the record, or for half of the record,
stays: weights, optimizer state. A block of the size of such a block, of half or twice that size, stays:
gradients, temporaries of the optimizer, casts of weights. Everything else
grows. The record must hold several steps, and end between two. With --beside, a
record of the same program at --beside-scale times the batch, every size is on
the line through its two recorded sizes.

peak allocated  bytes of all blocks, with the rounding of the policy
peak reserved   bytes held from the device
OOMs            requests that run out of memory under --limit
first           the number of the first of them, and the largest

The device's context, the libraries' code and memory that does not come from the
allocator are left out.

--json prints an object for each file and contender with file, policy, config,
batch_scale, scaled_requests, fixed_requests, limit_bytes, peak_allocated_bytes,
peak_reserved_bytes, ooms, largest_failed_bytes, first_failed_request.

Exits with 2 for input that cannot be used, and with 1 if an allocator refused a
call for another reason than lack of memory.";

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
        help = "A configuration beside the defaults, any number of times: for the policy it begins with, else for each \
                of --policy, else for `caching`"
    )]
    configurations: Vec<Configuration>,
    /// The memory limit instead of the recorded ones: bytes, or a number with KiB, MiB, GiB, TiB, or kB, MB, GB, TB
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse)]
    limit: Option<u64>,
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
    name: String,
    program: Program,
    limit: Option<u64>,
}

/// A program with its predictions, in the order of the contenders.
struct Predicted {
    named: Named,
    scaled: Scaled,
    predictions: Vec<Prediction>,
}

/// A line of `--json`.
#[derive(Serialize)]
struct PredictLine<'a> {
    file: &'a str,
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
    factor.ok_or_else(|| format!("`{text}` is not a factor: accepted is a number above 0 and up to 1000000"))
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
    let mut written = Ok(());
    for (number, one) in predicted.iter().enumerate() {
        let gap = if number > 0 && !args.json { "\n" } else { "" };
        let text = if args.json { lines(one, args, &contenders) } else { Ok(text(one, args, &contenders)) };
        written = written.and(text.and_then(|text| super::print(format_args!("{gap}{text}"))));
    }
    super::end(status, &written)
}

/// The contenders: without a choice, every policy but the planned one.
fn contenders(args: &PredictArgs) -> Result<Vec<Contender>, String> {
    let mut contenders = compare::contenders(&args.policies, &args.configurations)?;
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
        let predictions = contenders.par_iter().map(|contender| {
            let comma = if contender.text.is_empty() { "" } else { "," };
            let text = format!("policy:{}{comma}{}", contender.policy, contender.text);
            let config = Config::parse(&text).map_err(|error| input(file, error.to_string()))?;
            predict::predict(&named.program, &predict::settings(&config, named.limit)).map_err(|error| {
                let what = format!("{text} refused a call: {error}");
                ReplayError::Refused(BadInput::whole(file, what))
            })
        });
        let predictions = predictions.collect::<Result<_, _>>()?;
        Ok(Predicted { named, scaled, predictions })
    };
    programs.map(predict).collect()
}

/// Reads the programs of a record, or of a list of requests.
fn load(file: &Path, args: &PredictArgs) -> Result<Vec<Named>, ReplayError> {
    let is_list = std::fs::File::open(file).ok().is_some_and(|mut opened| {
        let mut start = [0; 8];
        io::Read::read_exact(&mut opened, &mut start).is_ok() && predict::is_list(&start)
    });
    if is_list {
        let cannot = |error: io::Error| BadInput::whole(file, format!("cannot be read: {error}"));
        let bytes = std::fs::read(file).map_err(cannot).map_err(ReplayError::Input)?;
        let program = predict::read(file, &bytes).map_err(ReplayError::Input)?;
        let name = file.file_stem().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
        return Ok(vec![Named { name, program, limit: args.limit }]);
    }
    let named = |trace: &Trace| {
        let start = trace.start.as_ref().map(ToString::to_string);
        super::announce_start(file, start.as_deref(), "every allocator is first asked for them, by address");
        let program = replay::program(trace)?.without(LeftOut { empty_cache: true, ..LeftOut::default() });
        Ok(Named { name: trace.name.clone(), program, limit: args.limit.or(trace.limit_bytes()) })
    };
    Trace::load(file).map_err(ReplayError::Input)?.iter().map(named).collect()
}

fn lines(predicted: &Predicted, args: &PredictArgs, contenders: &[Contender]) -> io::Result<String> {
    let lines = contenders.iter().zip(&predicted.predictions).map(|(contender, &prediction)| {
        let line = PredictLine {
            file: &predicted.named.name,
            policy: contender.policy,
            config: &contender.text,
            batch_scale: args.batch_scale,
            scaled_requests: predicted.scaled.requests,
            fixed_requests: predicted.scaled.fixed,
            limit_bytes: predicted.named.limit,
            prediction,
        };
        serde_json::to_string(&line).map_err(io::Error::from)
    });
    Ok(lines.collect::<io::Result<Vec<_>>>()?.join("\n"))
}

fn text(predicted: &Predicted, args: &PredictArgs, contenders: &[Contender]) -> String {
    let Predicted { named, scaled, predictions } = predicted;
    let all = scaled.requests + scaled.fixed;
    let mut head = format!("{}: {} requests", named.name, bytes::grouped(all));
    if (args.batch_scale - 1.0).abs() > f64::EPSILON {
        let scaled = bytes::grouped(scaled.requests);
        head = format!("{head}, of which {scaled} grow with {} times the batch", args.batch_scale);
    }
    if let Some(limit) = named.limit {
        head = format!("{head}, limit {}", bytes::show(limit));
    }
    let mut table = Table::new(&COLUMNS);
    for (number, (contender, prediction)) in contenders.iter().zip(predictions).enumerate() {
        let space = if contender.text.is_empty() { "" } else { " " };
        let (peak, first) = (prediction.peak_reserved_bytes, predictions[0].peak_reserved_bytes);
        let largest = prediction.largest_failed_bytes;
        table.row(vec![
            format!("{}{space}{}", contender.policy, contender.text),
            bytes::show(prediction.peak_allocated_bytes),
            bytes::show(peak),
            if number == 0 { String::new() } else { bytes::difference(first, peak) },
            prediction.ooms.to_string(),
            prediction.first_failed_request.map_or(String::new(), bytes::grouped),
            if largest == 0 { String::new() } else { bytes::show(largest) },
        ]);
    }
    format!("{}\n\n{}", args.look.fold(&head, 2), table.render(&args.look))
}
