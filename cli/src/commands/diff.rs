//! `cachalot diff`: the growth between two memory snapshots.

use super::bytes::{difference, parse, plural, show};
use super::inspect::load;
use super::range::{RangeArgs, words_of};
use super::stacks::{INDENT, NoStack, StackArgs, StackPrinter};
use super::table::{Column, Look, Table, column, extra};
use super::{BAD_INPUT, DIFFERENT, SCHEMA, print};
use cachalot_replay::diff::{DeviceGrowth, Diff, HeldMemory, Share, StackGrowth, diff};
use cachalot_replay::inspect::{At, Since, Sums};
use cachalot_replay::range::{self, HistoryRange, Span};
use cachalot_replay::trace::BadInput;
use clap::ValueEnum;
use serde::Serialize;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const LONG_ABOUT: &str = "\
Show what grew between two memory snapshots of PyTorch or cachalot: the totals
of each device, and the blocks that are not free, by call stack

Two snapshots of one process find a leak. Two snapshots of two versions of a
program find the change that needs more memory: with --ignore-lines, stacks that
differ only in line numbers count as one. --at compares the peaks, which need
recorded events, instead of the ends.

pending            freed by the program, and still used by other streams
free               memory of the cache

With one snapshot, --from and --to compare the memory at two moments of its
history: `--from step:3 --to step:3` shows what a step leaves behind. With two
snapshots, each is taken as it was at --to, and the peaks are those of the range.

--fail-above is for continuous integration: the command exits with 1 if the
reserved memory of a device, or its allocated and pending memory together, grew
by more.

--json prints an object with schema, before, after, at, range (of one snapshot),
devices, stacks (every changed stack with all frames), failed; sizes in bytes.

Exits with 1 for growth above --fail-above, and with 2 for invalid input.";

const EXAMPLES: &str = "\
Examples:
  cachalot diff before.pickle after.pickle
  cachalot diff run.pickle --from step:3 --to step:8
  cachalot diff --at reserved --fail-above 64MiB --ignore-lines main.pickle branch.pickle";

/// The columns of the totals.
const TOTALS: [Column; 5] = [column("memory"), extra("device"), column("before"), column("after"), column("growth")];

/// Show what grew between two memory snapshots, by device and by call stack
#[derive(clap::Args)]
#[command(long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
pub(crate) struct DiffArgs {
    /// Print a JSON object instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    look: Look,
    /// The time to compare
    #[arg(long, value_enum, value_name = "TIME", default_value_t = Time::End)]
    at: Time,
    /// Take stacks that differ in line numbers only as one stack
    #[arg(long)]
    ignore_lines: bool,
    /// Exit with 1 if reserved memory, or allocated and pending memory, of a device grew by more
    #[arg(long, value_name = "BYTES", value_parser = parse)]
    fail_above: Option<u64>,
    /// Number of call stacks in each list; JSON has all
    #[arg(long, value_name = "N", default_value_t = 10)]
    most: usize,
    #[command(flatten)]
    stacks: StackArgs,
    #[command(flatten)]
    range: RangeArgs,
    #[arg(value_name = "BEFORE", help = "The first snapshot: .pickle, .json, also .gz")]
    before: PathBuf,
    #[arg(
        value_name = "AFTER",
        required_unless_present_any = ["from", "to"],
        help = "The second snapshot; without it, --from and --to compare two moments of the first"
    )]
    after: Option<PathBuf>,
}

/// The compared time.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Time {
    /// The ends of the snapshots
    End,
    /// The first peaks of reserved memory
    Reserved,
    /// The first peaks of allocated memory
    Allocated,
}

impl From<Time> for At {
    fn from(time: Time) -> Self {
        match time {
            Time::End => Self::End,
            Time::Reserved => Self::Reserved,
            Time::Allocated => Self::Allocated,
        }
    }
}

/// The output of `--json`.
#[derive(Serialize)]
struct DiffLine<'a> {
    schema: u32,
    before: &'a str,
    after: &'a str,
    at: Time,
    /// The compared moments of a single snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    range: Option<&'a HistoryRange>,
    #[serde(flatten)]
    diff: &'a Diff,
    /// The exceeded bounds of `--fail-above`.
    failed: &'a [String],
}

/// Runs the command.
pub(crate) fn run(args: &DiffArgs) -> ExitCode {
    let (range, difference) = match difference_of(args) {
        Ok(found) => found,
        Err(error) => {
            complain!("{error}");
            return ExitCode::from(BAD_INPUT);
        }
    };
    let failed = failed(&difference, args.fail_above);
    let written = if args.json {
        let before = args.before.to_string_lossy();
        let after = args.after.as_ref().unwrap_or(&args.before).to_string_lossy();
        let line = DiffLine {
            schema: SCHEMA,
            before: &before,
            after: &after,
            at: args.at,
            range: range.as_ref(),
            diff: &difference,
            failed: &failed,
        };
        serde_json::to_string(&line).map_err(io::Error::from).and_then(print)
    } else {
        print(text(&difference, range.as_ref(), args).trim_end())
    };
    failed.iter().for_each(|line| complain!("{line}"));
    super::end(if failed.is_empty() { 0 } else { DIFFERENT }, &written)
}

/// Returns the difference of two snapshots, or of two moments of one, which are the range.
fn difference_of(args: &DiffArgs) -> Result<(Option<HistoryRange>, Diff), BadInput> {
    let Some(after) = &args.after else {
        let (range, before, after) = moments(args)?;
        return Ok((Some(range), diff(&before, after)));
    };
    // The second snapshot is read after the first one is dropped: a snapshot may have gigabytes.
    let before = held(args, &args.before)?;
    Ok((None, diff(&before, held(args, after)?)))
}

/// Reads what a snapshot holds where a range begins, and where it ends.
fn moments(args: &DiffArgs) -> Result<(HistoryRange, HeldMemory, HeldMemory), BadInput> {
    let file = &args.before;
    if args.at != Time::End {
        return Err(BadInput::whole(file, "two moments of one snapshot have no peaks: --at compares two snapshots"));
    }
    let mut snapshot = load(file)?;
    let (range, _) = args.range.rewind(file, &mut snapshot)?;
    let Some(range) = range else { return Err(BadInput::whole(file, "a second snapshot is missing")) };
    let by = args.stacks.by(args.json);
    let held = |snapshot: &_| HeldMemory::of(snapshot, &Since::default(), At::End, !args.ignore_lines, by);
    let after = held(&snapshot);
    let begins = |span: &Span| Span { to_event: span.from_event, events: span.to_event, ..*span };
    let start = HistoryRange { devices: range.devices.iter().map(begins).collect() };
    range::rewind(&mut snapshot, &start).map_err(|what| BadInput::whole(file, what))?;
    Ok((range, held(&snapshot), after))
}

/// Reads what a snapshot holds at the compared time.
fn held(args: &DiffArgs, file: &Path) -> Result<HeldMemory, BadInput> {
    let mut snapshot = load(file)?;
    let (_, since) = args.range.rewind(file, &mut snapshot)?;
    let by = args.stacks.by(args.json);
    let held = HeldMemory::of(&snapshot, &since, args.at.into(), !args.ignore_lines, by);
    if args.at != Time::End && held.is_empty() {
        return Err(BadInput::whole(
            file,
            "no events were recorded, and without events there is no peak: use --at end",
        ));
    }
    Ok(held)
}

/// Returns the two compared quantities of a device: reserved memory, and allocated and pending
/// memory.
fn quantities(growth: &DeviceGrowth) -> [(&'static str, u64, u64); 2] {
    let held = |sums: &Sums| sums.allocated.saturating_add(sums.pending);
    [
        ("reserved memory", growth.before.reserved, growth.after.reserved),
        ("allocated and pending memory", held(&growth.before), held(&growth.after)),
    ]
}

/// Returns a line for each quantity that grew by more than the bound.
fn failed(diff: &Diff, bound: Option<u64>) -> Vec<String> {
    let Some(bound) = bound else { return Vec::new() };
    let mut lines = Vec::new();
    for growth in &diff.devices {
        for (what, before, after) in quantities(growth) {
            let grown = after.saturating_sub(before);
            if grown > bound {
                let device = device(growth.device);
                lines.push(format!("{what} of {device} grew by {}: the limit is {}", show(grown), show(bound)));
            }
        }
    }
    lines
}

fn device(number: i64) -> String {
    if number < 0 { "the host".to_owned() } else { format!("device {number}") }
}

fn text(diff: &Diff, range: Option<&HistoryRange>, args: &DiffArgs) -> String {
    let mut answer = answer(diff, args.at);
    if let Some([span]) = range.map(|range| &range.devices[..]) {
        answer = format!("In {}: {answer}", words_of(span));
    } else if range.is_some() {
        answer = format!("In the range: {answer}");
    }
    let mut text = format!("{}\n\n{}\n", args.look.fold(&answer, 0), totals(&diff.devices).render(&args.look));
    let shown = StackPrinter { shown: &args.stacks, look: &args.look };
    let grew: Vec<_> = diff.stacks.iter().filter(|stack| stack.growth > 0).collect();
    let shrank: Vec<_> = diff.stacks.iter().rev().filter(|stack| stack.growth < 0).collect();
    stacks(&mut text, "Grew, by where blocks were allocated, the most bytes first", &grew, &shown, args.most);
    stacks(&mut text, "Shrank, the most bytes first", &shrank, &shown, args.most);
    text
}

/// Returns the first sentence of the output.
fn answer(diff: &Diff, at: Time) -> String {
    let sum = |of: fn(&DeviceGrowth) -> u64| diff.devices.iter().map(of).fold(0, u64::saturating_add);
    let before = sum(|growth| quantities(growth)[1].1);
    let after = sum(|growth| quantities(growth)[1].2);
    let grew: Vec<_> = diff.stacks.iter().filter(|stack| stack.growth > 0).collect();
    let bytes = |stack: &&StackGrowth| stack.growth.unsigned_abs();
    let grown = grew.iter().map(bytes).fold(0, u64::saturating_add);
    let shrunk = diff.stacks.iter().filter(|stack| stack.growth < 0);
    let (count, lost) = shrunk.fold((0, 0_u64), |(count, sum), stack| (count + 1, sum.saturating_add(bytes(&stack))));
    let mut answer = if before == after {
        format!("The blocks that are not free have {} before and after", show(after))
    } else {
        let apart = difference(before, after);
        format!("The blocks that are not free went from {} to {}: {apart}", show(before), show(after))
    };
    if !grew.is_empty() {
        let _ = write!(answer, "; {} grew by {}", plural(grew.len() as u64, "stack"), show(grown));
    }
    if count > 0 {
        let _ = write!(answer, "; {} shrank by {}", plural(count, "stack"), show(lost));
    }
    if at == Time::Reserved {
        // What was asked for comes first.
        let (before, after) = (sum(|growth| growth.before.reserved), sum(|growth| growth.after.reserved));
        let apart = difference(before, after);
        let reserved = format!("Reserved memory went from {} to {}: {apart}", show(before), show(after));
        return format!("{reserved}. {answer}.");
    }
    answer + "."
}

fn totals(devices: &[DeviceGrowth]) -> Table {
    let mut table = Table::new(&TOTALS);
    for growth in devices {
        let free = |sums: &Sums| sums.reserved.saturating_sub(sums.allocated).saturating_sub(sums.pending);
        let quantities = |sums: &Sums| [sums.reserved, sums.allocated, sums.pending, free(sums)];
        let figures = quantities(&growth.before).into_iter().zip(quantities(&growth.after));
        for (what, (before, after)) in ["reserved", "allocated", "pending", "free"].into_iter().zip(figures) {
            let name = if devices.len() > 1 { format!("{what}, {}", device(growth.device)) } else { what.to_owned() };
            let number = growth.device.to_string();
            table.row(vec![name, number, show(before), show(after), difference(before, after)]);
        }
    }
    table
}

/// Formats the blocks of a stack.
fn share(share: &Share) -> String {
    let mut text = format!("{} in {}", show(share.bytes), plural(share.blocks, "block"));
    if share.pending > 0 {
        let _ = write!(text, " ({} pending)", show(share.pending));
    }
    text
}

fn stacks(text: &mut String, title: &str, stacks: &[&StackGrowth], shown: &StackPrinter<'_>, most: usize) {
    if stacks.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{title}");
    for stack in stacks.iter().take(most) {
        let sign = if stack.growth < 0 { '−' } else { '+' };
        let growth = format!("{sign}{}", show(stack.growth.unsigned_abs()));
        let change = match (stack.before.blocks, stack.after.blocks) {
            (0, _) => format!("new: {}", share(&stack.after)),
            (_, 0) => format!("gone: {}", share(&stack.before)),
            _ => format!("from {} to {}", share(&stack.before), share(&stack.after)),
        };
        let line = format!("{growth:>12}  {change}");
        let _ = writeln!(text, "\n{}", shown.look.fold(&line, INDENT));
        shown.stack(text, &stack.lines, NoStack::of(stack.oldest));
    }
    if stacks.len() > most {
        let rest = &stacks[most..];
        let bytes = rest.iter().map(|stack| stack.growth.unsigned_abs()).fold(0, u64::saturating_add);
        let _ = writeln!(text, "\n{:>12}  in {}", show(bytes), plural(rest.len() as u64, "other stack"));
    }
}
