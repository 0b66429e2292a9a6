//! `cachalot plan`: offsets for the buffers of programs whose allocations are known in advance.

mod live;
mod render_line;
mod render_plot;
mod render_table;

use super::table::Look;
use super::{BAD_INPUT, DIFFERENT, bytes};
use cachalot_planner::{Plan, verify};
use cachalot_replay::plan::solve::{self, FitAnswer, Method, Solved};
use cachalot_replay::plan::{self, Reading, Source, Task};
use live::Live;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const LONG_ABOUT: &str = "\
Plan the memory of programs whose allocations are known in advance: one block,
and an offset for every buffer

A FILE has one of four forms, recognized by the content, and may be compressed
by gzip:

table       CSV with id,lower,upper,size and optionally alignment, offset and
            gaps: a buffer lives from lower up to, not including, upper; a given
            offset is kept; a buffer of 0 bytes takes no room. `3-6 8-9@0:64` in
            gaps frees all bytes from 3 up to 6, and from 8 up to 9 those from
            64 on. MiniMalloc's other names are read too: buffer or buffer_id,
            begin or start, and end, which is the last step of the life
operators   JSON with devices, values and operators:
            {\"values\": [{\"name\": \"x\", \"size\": 4096}, ...], \"operators\":
            [{\"name\": \"add\", \"inputs\": [\"x\"],
            \"outputs\": [{\"value\": \"y\", \"over\": \"x\"}]}, ...]}.
            docs/planning.md explains every key
model       an ONNX model, or one of TensorFlow Lite: every tensor of the graph
            from the operator that makes it to its last reader, in the order of
            the file; inputs from the start, outputs to the end. Weights are not
            in the plan, and kernels' own memory is not in the file. Shapes must
            be in the file; --dim gives a named dimension of ONNX a number
record      the record of an allocator, as for replay: each allocation of one
            section is a buffer until the block can be reused. The section is a
            repeated part (a training step) if the record repeats, otherwise the
            whole record. A buffer that is kept into the next step holds its
            bytes during the whole step. Blocks that live throughout the section
            are not in the plan; a line below the table gives their bytes.
            Streams are ignored: a program that uses the plan has to order them

peak          bytes of the plan: the largest end of a buffer, not rounded up
lower bound   bytes that every plan needs
gap           peak / lower bound - 1; `optimal` if no plan can be better

--json prints an object for each problem with schema, file, part (null where a
file is one problem), algorithm (which found the plan), buffers, peak_bytes,
lower_bound_bytes, optimal, seconds; with --capacity also capacity_bytes and
answer (fits, does not fit, not decided; peak_bytes is null without a plan); for
operators also taken and refused: the forwards with operator, value, input and
why; for records also throughout_bytes, outside_bytes (most memory live in the
section and not in the plan) and held_bytes (most memory that the recorded
allocator held besides such memory).

-o writes a CSV file. For a table it has the columns of the table, and offset;
for a record id (the number of the allocation), lower, upper, size, alignment,
offset; for operators id, device, size, offset of every value in the plan.

Exits with 2 for invalid input, otherwise with 1 if a problem does not fit, is
not decided, or has no plan.";

const EXAMPLES: &str = "\
Examples:
  cachalot plan buffers.csv -o plan.csv --plot plan.svg
  cachalot plan buffers.csv --capacity 1MiB
  cachalot plan --deadline 60 program.json
  cachalot plan --dim batch=8 model.onnx
  cachalot plan --section 5000..9000 tests/traces/llama1b_ckpt.csv.gz";

/// Plan the memory of programs whose allocations are known in advance
#[derive(clap::Args)]
#[command(long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
pub(crate) struct PlanArgs {
    #[arg(long, value_name = "NAME", default_value = solve::PORTFOLIO, value_parser = method,
          help = format!("The algorithm: {}", Method::names().collect::<Vec<_>>().join(", ")))]
    algorithm: MethodArg,
    /// Seconds for each problem; the best plan found in time is printed
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    deadline: Duration,
    /// Answer whether everything fits into BYTES: bytes, or a number with KiB, MiB, GiB, TiB, or
    /// kB, MB, GB, TB
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse)]
    capacity: Option<u64>,
    /// Alignment in bytes of buffers without a stated alignment, a power of two; by default 1, in
    /// models 64, and in records 512
    #[arg(long, value_name = "N", value_parser = alignment)]
    alignment: Option<u64>,
    /// Section of a record: the allocations from FROM up to, not including, TO, counted from 0
    #[arg(long, value_name = "FROM..TO", value_parser = section)]
    section: Option<Range<u64>>,
    /// Number for a named dimension of a model; may be given several times
    #[arg(long, value_name = "NAME=N", value_parser = dimension)]
    dim: Vec<(String, u64)>,
    /// Write the plan; needs exactly one FILE
    #[arg(short, long, value_name = "PLAN.csv")]
    output: Option<PathBuf>,
    /// Draw every buffer over time and address
    #[arg(long, value_name = "PLAN.svg")]
    plot: Option<PathBuf>,
    /// Print a JSON object for each problem instead of the table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    look: Look,
    #[arg(
        required = true,
        value_name = "FILE",
        help = "Tables (.csv), operators (.json), models (.onnx, .tflite), records; also .gz"
    )]
    files: Vec<PathBuf>,
}

/// A method as an argument.
#[derive(Clone)]
struct MethodArg(Method);

fn method(name: &str) -> Result<MethodArg, String> {
    Method::named(name).map(MethodArg)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|&seconds| seconds > 0.0);
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| "expected a number of seconds above 0, such as 0.5 or 600".to_owned())
}

fn alignment(text: &str) -> Result<u64, String> {
    let bytes = bytes::parse(text)?;
    if bytes.is_power_of_two() { Ok(bytes) } else { Err("expected a power of two, such as 512".to_owned()) }
}

fn section(text: &str) -> Result<Range<u64>, String> {
    let ends = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    let section = ends.filter(|section| section.start < section.end);
    section.ok_or_else(|| "expected FROM..TO with FROM below TO, such as 1000..2000".to_owned())
}

fn dimension(text: &str) -> Result<(String, u64), String> {
    // Names that a tool made may be terms with an equals sign.
    let parts = text.rsplit_once('=').and_then(|(name, number)| Some((name.to_owned(), number.parse().ok()?)));
    parts.ok_or_else(|| "expected NAME=N with a whole number, such as batch=8".to_owned())
}

/// A planned problem.
struct PlannedProblem {
    file: PathBuf,
    task: Task,
    solved: Solved,
    /// The answer to `--capacity`.
    answer: Option<FitAnswer>,
}

/// Runs the command.
pub(crate) fn run(args: &PlanArgs) -> ExitCode {
    if args.output.is_some() && args.files.len() > 1 {
        complain!("--output takes the plan of one FILE, not of {}", args.files.len());
        return ExitCode::from(BAD_INPUT);
    }
    let reading = Reading { alignment: args.alignment, section: args.section.clone(), dimensions: args.dim.clone() };
    let mut planned = Vec::new();
    let (mut status, mut written) = (0, Ok(()));
    for file in &args.files {
        match plan::load(file, &reading) {
            Ok(tasks) => {
                for task in tasks {
                    if let Some(start) = &task.start {
                        complain!("{}: {start}; planned as if allocated first", file.display());
                    }
                    task.remarks.iter().for_each(|remark| complain!("{}: {remark}", file.display()));
                    if let Some(held) = &task.held {
                        complain!("{}: {}", file.display(), held.what);
                    }
                    let one = solve_task(args, file, task, &mut status);
                    if args.json {
                        written = written.and_then(|()| render_line::write(&one, args.capacity));
                    }
                    planned.push(one);
                }
            }
            Err(error) => {
                complain!("{error}");
                status = BAD_INPUT;
            }
        }
    }
    if !args.json && !planned.is_empty() {
        written = render_table::write(&planned, &args.look);
    }
    for complaint in [save(args, &planned), draw(args, &planned)].into_iter().filter_map(Result::err) {
        complain!("{complaint}");
        status = BAD_INPUT;
    }
    super::end(status, &written)
}

fn solve_task(args: &PlanArgs, file: &Path, task: Task, status: &mut u8) -> PlannedProblem {
    let live = Live::new(&title(file, &task), args.deadline);
    let deadline = Some(args.deadline);
    let mut improved = |plan: &Plan, bound: u64, name: &str| live.improved(plan.peak, bound, name);
    let (mut solved, mut answer) = match args.capacity {
        Some(capacity) => {
            let (solved, answer) = solve::fits(&task.problem, capacity, args.algorithm.0, deadline, &mut improved);
            (solved, Some(answer))
        }
        None => (solve::solve(&task.problem, args.algorithm.0, deadline, &mut improved), None),
    };
    live.finish();
    if let Some(held) = &task.held {
        answer = solved.relax(&held.relaxed, answer, args.capacity);
    }
    let mut complain = |what: &str| {
        *status = (*status).max(DIFFERENT);
        complain!("{}: {what}", title(file, &task));
    };
    match (&solved.plan, answer) {
        (None, None) if solved.refused => {
            complain(
                "no plan was found: the problem is too large for the exact search; the portfolio plans it without",
            );
        }
        (None, None) => complain("no plan was found: --deadline gives more time, and --algorithm names another method"),
        (Some(plan), _) => {
            if let Err(fault) = verify(&task.problem, plan) {
                complain(&format!("the plan of {} is wrong: {fault}", solved.algorithm));
            }
        }
        (None, Some(_)) => {}
    }
    if answer.is_some_and(|answer| answer != FitAnswer::Fits) {
        *status = (*status).max(DIFFERENT);
    }
    PlannedProblem { file: file.to_owned(), task, solved, answer }
}

/// Returns the title of a problem.
fn title(file: &Path, task: &Task) -> String {
    match task.part.as_str() {
        "" => file.display().to_string(),
        part => format!("{} ({part})", file.display()),
    }
}

/// Writes the plan of `--output`.
fn save(args: &PlanArgs, planned: &[PlannedProblem]) -> Result<(), String> {
    let Some(file) = &args.output else { return Ok(()) };
    // The devices of a program share a table, with a column for the device. Records have no column
    // for their problem.
    let one_program = planned.iter().all(|one| matches!(one.task.source, Source::Operators { .. }));
    if planned.len() > 1 && !one_program {
        return Err(format!("{}: not written: the file holds {} records", file.display(), planned.len()));
    }
    let mut rows: Vec<Vec<String>> = Vec::new();
    for one in planned {
        let Some(plan) = &one.solved.plan else { return Ok(()) };
        let skip = usize::from(!rows.is_empty());
        rows.extend(one.task.rows(plan).into_iter().skip(skip));
    }
    if rows.is_empty() {
        return Ok(());
    }
    let written = cachalot_atomic_file::write(file, |to| {
        let mut table = csv::Writer::from_writer(to);
        rows.iter().try_for_each(|row| table.write_record(row))?;
        table.flush()
    });
    written.map_err(|error| format!("{}: cannot be written: {error}", file.display()))
}

/// Draws the picture of `--plot`.
fn draw(args: &PlanArgs, planned: &[PlannedProblem]) -> Result<(), String> {
    let Some(file) = &args.plot else { return Ok(()) };
    let drawn: Vec<_> = planned.iter().filter(|one| one.solved.plan.is_some()).collect();
    if drawn.is_empty() {
        return Ok(());
    }
    let image = render_plot::draw(&drawn).map_err(|error| format!("{}: cannot be drawn: {error}", file.display()))?;
    let written = cachalot_atomic_file::write(file, |to| to.write_all(image.as_bytes()));
    written.map_err(|error| format!("{}: cannot be written: {error}", file.display()))
}

/// Returns the text of an answer.
fn words(answer: FitAnswer) -> &'static str {
    match answer {
        FitAnswer::Fits => "fits",
        FitAnswer::DoesNotFit => "does not fit",
        FitAnswer::NotDecided => "not decided",
    }
}
