//! `cachalot inspect`: what memory snapshots tell.

use super::bytes::show;
use super::table::{Column, Look, Table, column, extra};
use super::{BAD_INPUT, print};
use cachalot_replay::inspect::{self, Failure, Group, Remedy, Report, SegmentReport, Totals};
use cachalot_replay::trace::snapshot;
use serde::Serialize;
use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

const LONG_ABOUT: &str = "\
Tell what memory snapshots show, PyTorch's and cachalot's: pickles and JSON,
compressed or not

Totals of each device; the blocks that are not free by the call stack that
allocated them, the most bytes first, then the oldest first; segments in use by
how much of them is free, which stays with the process as long as they are; and
for each request that failed what would have been enough. Stacks and ages are
known as far as the program recorded them.

wanted             the block that a failed request needed: what was asked for,
                   rounded
here, elsewhere    of the request's stream outside of private pools; of other
                   streams and of private pools
if waited          the largest block if other streams were done with what was
                   freed
if released        what the device had left, and segments that were wholly free
in one piece       what the device had left, and all that was free here
missing            what no change of the allocator could have found: the program
                   has to hold less

Free memory of a time before the end is worked out backwards; blocks freed since
count as what was asked for, rounded up to 512.

--json prints an object for each file with file, totals, largest, oldest,
segments, failures; sizes in bytes.

Exits with 2 for input that cannot be used.";

const EXAMPLES: &str = "\
Examples:
  cachalot inspect snapshot.pickle
  cachalot inspect --most 3 --frames 12 snapshot.pickle
  cachalot inspect --wide tests/traces/mlp_seed__stacks.pickle.gz";

/// The columns of the totals.
const TOTALS: [Column; 14] = [
    column("device"),
    column("reserved"),
    extra("private"),
    column("allocated"),
    extra("requested"),
    column("pending"),
    column("free"),
    extra("largest free"),
    extra("fragmented"),
    column("releasable"),
    extra("segments"),
    extra("blocks"),
    extra("streams"),
    extra("events"),
];

/// The columns of the segments.
const SEGMENTS: [Column; 12] = [
    column("segment"),
    extra("device"),
    extra("stream"),
    extra("pool"),
    column("length"),
    column("free"),
    extra("in blocks"),
    column("largest"),
    column("fragmented"),
    extra("allocated"),
    extra("pending"),
    column("held by"),
];

/// Tell what memory snapshots show: totals, who holds the memory, fragmentation, failed requests
#[derive(clap::Args)]
#[command(long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print a JSON object a file instead of the text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    look: Look,
    /// How many call stacks and segments of each kind
    #[arg(long, value_name = "N", default_value_t = 10)]
    most: usize,
    /// How many frames of each stack, the innermost; JSON has all
    #[arg(long, value_name = "N", default_value_t = 6)]
    frames: usize,
    #[arg(required = true, value_name = "FILE", help = "Snapshots: .pickle, .json, also .gz")]
    files: Vec<PathBuf>,
}

/// A line of `--json`.
#[derive(Serialize)]
struct Line<'a> {
    file: &'a str,
    #[serde(flatten)]
    report: &'a Report,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    let (mut status, mut written) = (0, Ok(()));
    for file in &args.files {
        match snapshot::load(file) {
            Ok(snapshot) => {
                let report = inspect::inspect(&snapshot, args.most);
                let name = file.to_string_lossy();
                let text = if args.json { json(&name, &report) } else { Ok(text(&name, &report, args)) };
                written = written.and(text.and_then(print));
            }
            Err(error) => {
                status = BAD_INPUT;
                eprintln!("{error}");
            }
        }
    }
    super::end(status, &written)
}

fn json(file: &str, report: &Report) -> io::Result<String> {
    serde_json::to_string(&Line { file, report }).map_err(io::Error::from)
}

fn text(file: &str, report: &Report, args: &Args) -> String {
    let (frames, look) = (args.frames, &args.look);
    let mut text = format!("{file}\n\n{}\n", totals(&report.totals).render(look));
    groups(&mut text, "Blocks in use by where they were allocated, the most bytes first", &report.largest, frames);
    groups(&mut text, "The same, the oldest first", &report.oldest, frames);
    if !report.segments.is_empty() {
        let _ = write!(
            text,
            "\nSegments in use with the most free memory\n\n{}\n",
            segments(&report.segments).render(look)
        );
    }
    for failure in &report.failures {
        describe(&mut text, failure, frames);
    }
    text
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

fn totals(devices: &[Totals]) -> Table {
    let mut table = Table::new(&TOTALS);
    for totals in devices {
        table.row(vec![
            if totals.device < 0 { "host".to_owned() } else { totals.device.to_string() },
            show(totals.reserved),
            show(totals.reserved_private),
            show(totals.allocated),
            show(totals.requested),
            show(totals.pending),
            show(totals.cached),
            show(totals.largest_free),
            percent(totals.fragmentation),
            show(totals.releasable),
            totals.segments.to_string(),
            totals.allocations.to_string(),
            totals.streams.to_string(),
            totals.events.to_string(),
        ]);
    }
    table
}

fn segments(reports: &[SegmentReport]) -> Table {
    let mut table = Table::new(&SEGMENTS);
    for report in reports {
        table.row(vec![
            format!("{:#x}{}", report.address, if report.is_expandable { " (expandable)" } else { "" }),
            report.device.to_string(),
            format!("{:#x}", report.stream),
            format!("{}, {}", report.pool.0, report.pool.1),
            show(report.total),
            show(report.free),
            report.free_blocks.to_string(),
            show(report.largest_free),
            percent(report.fragmentation),
            show(report.allocated),
            show(report.pending),
            plural(report.blocks_in_use, "block"),
        ]);
    }
    table
}

fn plural(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// How long something took, as people say it.
fn duration(us: i64) -> String {
    match us {
        _ if us >= 120_000_000 => format!("{:.1} min", us as f64 / 6e7),
        _ if us >= 1_000_000 => format!("{:.1} s", us as f64 / 1e6),
        _ if us >= 1000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{us} us"),
    }
}

fn groups(text: &mut String, title: &str, groups: &[Group], frames: usize) {
    if groups.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{title}");
    for group in groups {
        let blocks = plural(group.blocks, "block");
        let _ = write!(text, "\n{:>12}  in {blocks}, the largest {}", show(group.bytes), show(group.largest));
        match (group.oldest_us, group.oldest_events) {
            (Some(us), Some(_)) => _ = write!(text, "; the oldest {} old", duration(us)),
            (Some(us), None) => _ = write!(text, "; the oldest more than {} old", duration(us)),
            (None, Some(events)) => _ = write!(text, "; the oldest {} old", plural(events, "event")),
            (None, None) => {}
        }
        text.push('\n');
        stack(text, &group.stack, frames);
    }
}

fn stack(text: &mut String, stack: &[String], frames: usize) {
    if stack.is_empty() {
        text.push_str("              no stack was recorded\n");
    }
    for line in stack.iter().take(frames) {
        let _ = writeln!(text, "              {line}");
    }
    if stack.len() > frames {
        let _ = writeln!(text, "              … {} further out", plural((stack.len() - frames) as u64, "frame"));
    }
}

fn describe(text: &mut String, failure: &Failure, frames: usize) {
    let Failure { device, event, wanted, stream, .. } = *failure;
    let _ = writeln!(
        text,
        "\nOut of memory on device {device} (event {event}): {} wanted on stream {stream:#x}",
        show(wanted)
    );
    stack(text, &failure.stack, frames);
    for (what, bytes) in [
        ("free on the device", failure.device_free),
        ("reserved", failure.reserved),
        ("allocated", failure.allocated),
        ("pending", failure.pending),
        ("free in the cache", failure.cached),
        ("largest free block here", failure.largest_free_here),
        ("largest free block elsewhere", failure.largest_free_elsewhere),
        ("largest here, if waited", failure.largest_free_if_waited),
        ("for a segment, if released", failure.if_released),
        ("here, in one piece", failure.if_in_one_piece),
        ("missing", failure.missing),
    ] {
        let _ = writeln!(text, "            {what:<30} {:>12}", show(bytes));
    }
    let remedies: Vec<_> = failure.remedies.iter().map(|&remedy| advice(remedy)).collect();
    match remedies.as_slice() {
        [] if failure.missing > 0 => text.push_str("Nothing short of holding less would have been enough.\n"),
        [] => text.push_str("No single one of these would have been enough.\n"),
        _ => _ = writeln!(text, "Enough would have been: {}.", remedies.join("; ")),
    }
}

fn advice(remedy: Remedy) -> &'static str {
    match remedy {
        Remedy::RaiseLimit => "a higher limit, for the device had enough",
        Remedy::WaitForStreams => "to wait for other streams",
        Remedy::ReleaseCached => "to give back what was wholly free",
        Remedy::ShareStreams => "a free block of another stream or pool",
        Remedy::Defragment => "free memory in one piece, as expandable segments can have it",
    }
}
