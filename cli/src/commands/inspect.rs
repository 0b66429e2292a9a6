//! `cachalot inspect`: reports on memory snapshots.

use super::answer::{Told, rescue, sentence_after_failure, sentence_at_end};
use super::bytes::{duration, plural, show};
use super::progress::Progress;
use super::range::{RangeArgs, words};
use super::stacks::{NoStack, StackArgs, StackPrinter};
use super::table::{Column, Look, Table, column, extra, if_any};
use super::{BAD_INPUT, SCHEMA, print};
use cachalot_replay::inspect::{
    self, Failure, Group, Lists, Peak, PeakOf, RefusedBy, Remedy, Report, SegmentReport, Totals,
};
use cachalot_replay::range::{self, HistoryRange};
use cachalot_replay::trace::{BadInput, Trace, snapshot};
use cachalot_replay::tune::{self, Stuck};
use cachalot_snapshot::Snapshot;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const LONG_ABOUT: &str = "\
Report on memory snapshots of PyTorch and cachalot: pickles and JSON, compressed
or not

The report starts with a sentence: how much was reserved and live at most, and
the setting of PyTorch's allocator that would have saved some of it. The history
is replayed with the recorded settings and with a few others, unless it has more
than four million events. Without a history, the sentence is about the end: what
is in use, stuck in holes, and idle.

After a failed request it starts with that request, its line, who refused it,
and the lines that hold the most memory. A saving is measured against the replay
with the recorded settings; memory that was idle before the history has its own
sentence. A history that cannot be used, or only in part, is named with the
reason.

The report has the totals of each device at the end, and at the peaks if events
were recorded; the lines of the program that allocated the blocks not free, by
bytes and then by age; the segments in use with the most free memory, which the
process cannot release while a segment is in use; and for each failed request
the changes with which the request would have succeeded. Stacks and ages are
shown if they were recorded. Of a stack, the frames in Python outside of PyTorch
are shown; without any, the node of autograd's graph, or the C++ functions that
say what is computed.

pending            freed by the program, and still used by other streams
in use             allocated or pending
private            reserved for private pools, as those of CUDA graphs; shown if
                   there is any
idle               wholly free segments, and wholly free pages of expandable
                   segments, which can be released
kept               the same in private pools, which keep it as long as their
                   graphs live
in holes           all other free memory; fragmented is the share outside the
                   largest hole. Allocated, pending, idle, kept and in holes add
                   up to reserved
wanted             the block for a failed request: the requested size, rounded
here, elsewhere    on the request's stream; on other streams; both outside of
                   private pools
if waited          the largest block once other streams finish their work on
                   freed memory
if released        free memory of the device, and all idle segments
in one piece       free memory of the device, and all free memory here
missing            bytes that no change of the allocator could have found: the
                   program has to use less memory

--from and --to report on a range of the history: on the memory at its end, the
peaks within it, and the requests that failed in it. Of a block from before the
range the stack is known, and the report says that it is from before.

Free memory before the end is reconstructed from the end backwards. A block that
was freed by then counts with its requested size, rounded up to 512 bytes.

--json prints an object for each file with schema, file, answers (with record,
remarks, sentence, better, rescues; without a history, with end), range (with
--from and --to), totals, peaks, largest, oldest, segments, failures; sizes in
bytes.

Exits with 2 for invalid input.";

const EXAMPLES: &str = "\
Examples:
  cachalot inspect snapshot.pickle
  cachalot inspect --most 3 --frames 12 snapshot.pickle
  cachalot inspect --from step:3 --to step:3 snapshot.pickle
  cachalot inspect --wide tests/traces/mlp_seed__stacks.pickle.gz";

/// The columns of the totals.
const TOTALS: [Column; 17] = [
    column("device"),
    column("reserved"),
    if_any("private"),
    extra("parked"),
    if_any("on the host"),
    column("allocated"),
    extra("requested"),
    column("pending"),
    column("idle"),
    extra("kept"),
    column("in holes"),
    extra("largest hole"),
    extra("fragmented"),
    extra("segments"),
    extra("blocks"),
    extra("streams"),
    extra("events"),
];

/// The columns of the peaks.
const PEAKS: [Column; 12] = [
    column("device, peak of"),
    extra("at event"),
    extra("before the end"),
    column("reserved"),
    if_any("on the host"),
    if_any("private"),
    column("allocated"),
    column("pending"),
    column("idle"),
    extra("kept"),
    column("in holes"),
    extra("largest hole"),
];

/// The columns of the segments.
const SEGMENTS: [Column; 13] = [
    column("segment"),
    extra("device"),
    extra("stream"),
    extra("pool"),
    column("length"),
    if_any("on the host"),
    column("free"),
    extra("in blocks"),
    column("largest"),
    column("fragmented"),
    extra("allocated"),
    extra("pending"),
    column("held by"),
];

/// Report on memory snapshots: totals, holders of memory, fragmentation, failed requests
#[derive(clap::Args)]
#[command(long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
pub(crate) struct InspectArgs {
    /// Print a JSON object for each file instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    look: Look,
    /// Number of call stacks and of segments in each list
    #[arg(long, value_name = "N", default_value_t = 10)]
    most: usize,
    #[command(flatten)]
    stacks: StackArgs,
    #[command(flatten)]
    range: RangeArgs,
    #[arg(required = true, value_name = "FILE", help = "Snapshots: .pickle, .json, also .gz")]
    files: Vec<PathBuf>,
}

impl InspectArgs {
    fn lists(&self) -> Lists {
        Lists { most: self.most, by: self.stacks.by(self.json) }
    }
}

/// A line of `--json`.
#[derive(Serialize)]
struct InspectLine<'a> {
    schema: u32,
    file: &'a str,
    answers: &'a [OfRecord],
    #[serde(skip_serializing_if = "Option::is_none")]
    range: Option<&'a HistoryRange>,
    #[serde(flatten)]
    report: &'a Report,
}

/// The answer of a record, or of a snapshot without events.
#[derive(Serialize)]
struct OfRecord {
    /// Name of the record. `None` without events that can be replayed.
    record: Option<String>,
    device: Option<i64>,
    /// Whether the record has its settings.
    tells_config: bool,
    /// What of the history was left out or filled in, or why it cannot be used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    remarks: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sentence: Option<String>,
    #[serde(flatten)]
    told: Option<Told>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<Stuck>,
}

impl OfRecord {
    /// Returns the sentence, with the record's name if there are several. A failed request comes
    /// first.
    fn text(&self, failed: Option<&Failure>, several: bool) -> String {
        let of = self.record.as_ref().filter(|_| several).map_or(String::new(), |record| format!("{record}: "));
        let told = |told: &Told| match failed {
            Some(failed) => format!("{} {}", sentence_of_failure(failed), sentence_after_failure(&told.answer)),
            None => told.sentence.clone(),
        };
        let sentence = self.told.as_ref().map(told).or_else(|| {
            let failed = failed.map_or_else(String::new, |failed| format!("{} ", sentence_of_failure(failed)));
            Some(format!("{failed}{}", self.sentence.as_ref()?))
        });
        let settings = if self.tells_config || self.told.is_none() {
            ""
        } else {
            " The snapshot does not contain its settings, so the defaults are assumed."
        };
        let mut text = format!("{of}{}{settings}", sentence.unwrap_or_default());
        for remark in &self.remarks {
            let _ = write!(text, " Note: {remark}.");
        }
        text.trim_start().to_owned()
    }
}

/// Runs the command.
pub(crate) fn run(args: &InspectArgs) -> ExitCode {
    let (mut status, mut written) = (0, Ok(()));
    for file in &args.files {
        match load_all(file) {
            Ok(snapshots) => {
                for (rank, snapshot) in snapshots {
                    match of_snapshot(file, &rank, snapshot, args) {
                        Ok(text) => written = written.and(text.and_then(print)),
                        Err(error) => {
                            status = BAD_INPUT;
                            complain!("{error}");
                        }
                    }
                }
            }
            Err(error) => {
                status = BAD_INPUT;
                complain!("{error}");
            }
        }
    }
    super::end(status, &written)
}

/// Returns what is printed about a snapshot.
fn of_snapshot(
    file: &Path,
    rank: &str,
    mut snapshot: Snapshot,
    args: &InspectArgs,
) -> Result<io::Result<String>, BadInput> {
    let (range, since) = args.range.rewind(file, &mut snapshot)?;
    let mut report = inspect::inspect(&snapshot, &since, args.lists());
    if let Some(range) = &range {
        range::cut(&mut snapshot, range);
    }
    let (told, unused) = told(file, rank, &snapshot, range.as_ref());
    // The peaks of a history that contradicts itself are none.
    report.peaks.retain(|peak| !unused.contains(&peak.device));
    let name = snapshot::ranked(&file.to_string_lossy(), rank);
    Ok(if args.json {
        json(&name, &told, &report, range.as_ref())
    } else {
        Ok(text(&name, &told, &report, (range.as_ref(), args)))
    })
}

/// Reads a snapshot. On a terminal a slow read shows a progress bar.
pub(crate) fn load(file: &Path) -> Result<Snapshot, BadInput> {
    watched(file, |progress| snapshot::load_watched(file, |bytes| progress.advance(bytes)))
}

/// Reads every snapshot of a file, with its rank if there are several.
fn load_all(file: &Path) -> Result<Vec<(String, Snapshot)>, BadInput> {
    watched(file, |progress| snapshot::load_all_watched(file, |bytes| progress.advance(bytes)))
}

fn watched<T>(file: &Path, load: impl FnOnce(&Progress) -> T) -> T {
    let progress = Progress::new(std::fs::metadata(file).map_or(0, |data| data.len()));
    progress.begin("reading");
    let loaded = load(&progress);
    progress.finish();
    loaded
}

/// Returns the records of a snapshot by device, or why one cannot be used.
fn traces(
    file: &Path,
    rank: &str,
    snapshot: &Snapshot,
    range: Option<&HistoryRange>,
) -> Vec<(i64, Result<Trace, String>)> {
    let usable = |trace: Result<Trace, BadInput>| match trace {
        Ok(trace) if trace.events.len() == 1 && range.is_none() => {
            Err("it has one event, the last, as with enabled='state'".to_owned())
        }
        Ok(trace) => Ok(trace),
        Err(error) => Err(error.without_file()),
    };
    Trace::each_of_snapshot(file, rank, snapshot).into_iter().map(|(device, trace)| (device, usable(trace))).collect()
}

/// Returns what to say about the memory of a device in private pools at the end, if it is 2 % or
/// more.
fn private_pools(snapshot: &Snapshot, device: i64) -> Option<String> {
    let segments = snapshot.segments.iter().filter(|segment| segment.device == device);
    let all: u64 = segments.clone().map(|segment| segment.total_size).sum();
    let private: u64 = segments.filter(|segment| segment.is_private()).map(|segment| segment.total_size).sum();
    (private as f64 > 0.02 * all as f64).then(|| {
        let (private, all) = (show(private), show(all));
        format!(
            "{private} of the {all} at the end are in private pools, as those of CUDA graphs: no setting and no \
             `torch.cuda.empty_cache()` releases them while the graphs are there"
        )
    })
}

/// Returns the answer of each record of a snapshot. Without a history, a sentence about the end; of
/// a device whose history cannot be used, why. Also returns these devices.
fn told(file: &Path, rank: &str, snapshot: &Snapshot, range: Option<&HistoryRange>) -> (Vec<OfRecord>, Vec<i64>) {
    let traces = traces(file, rank, snapshot, range);
    let unused = traces.iter().filter(|(_, trace)| trace.is_err()).map(|(device, _)| *device).collect();
    let progress = Progress::new(traces.len() as u64);
    progress.begin("replaying");
    let answers = traces.iter().map(|(device, trace)| {
        let of = range.and_then(|range| words(range, *device));
        let told = trace.as_ref().map(|trace| Told::from(&tune::answer_of(trace).in_range(of)));
        progress.advance(1);
        OfRecord {
            record: trace.as_ref().ok().map(|trace| trace.name.clone()),
            device: Some(*device),
            tells_config: trace.as_ref().is_ok_and(Trace::tells_config),
            remarks: match trace {
                Ok(trace) => trace.remarks.iter().cloned().chain(private_pools(snapshot, *device)).collect(),
                Err(why) => vec![format!("the history of device {device} cannot be used: {why}")],
            },
            sentence: None,
            told: told.ok(),
            end: None,
        }
    });
    let mut told: Vec<OfRecord> = answers.collect();
    progress.finish();
    if told.iter().all(|answer| answer.told.is_none()) {
        let remarks = told.into_iter().flat_map(|answer| answer.remarks).collect();
        told = ends(tune::at_end(snapshot), remarks);
    }
    (told, unused)
}

/// Returns the sentences about the end of a snapshot: one of each device, because no device has the
/// sum. The first has the remarks.
fn ends(devices: BTreeMap<i64, Stuck>, mut remarks: Vec<String>) -> Vec<OfRecord> {
    let several = devices.len() > 1;
    let ends: Vec<_> = if devices.is_empty() {
        vec![(None, Stuck::default())]
    } else {
        devices.into_iter().map(|(device, end)| (several.then_some(device), end)).collect()
    };
    let of = |(device, end): (Option<i64>, Stuck)| OfRecord {
        record: None,
        device,
        tells_config: true,
        remarks: std::mem::take(&mut remarks),
        sentence: Some(device.map_or_else(String::new, |device| format!("Device {device}: ")) + &sentence_at_end(&end)),
        told: None,
        end: Some(end),
    };
    ends.into_iter().map(of).collect()
}

fn json(file: &str, answers: &[OfRecord], report: &Report, range: Option<&HistoryRange>) -> io::Result<String> {
    serde_json::to_string(&InspectLine { schema: SCHEMA, file, answers, range, report }).map_err(io::Error::from)
}

fn text(
    file: &str,
    answers: &[OfRecord],
    report: &Report,
    (range, args): (Option<&HistoryRange>, &InspectArgs),
) -> String {
    let look = &args.look;
    let shown = StackPrinter { shown: &args.stacks, look };
    let mut text = String::new();
    for answer in answers {
        let failed = report.failures.iter().find(|failure| answer.device.is_none_or(|of| of == failure.device));
        let _ = writeln!(text, "{}", look.fold(&answer.text(failed, answers.len() > 1), 0));
    }
    let end = if range.is_some() { " at the end of the range" } else { "" };
    let _ = write!(text, "\n{file}{end}\n\n{}\n", totals(&report.totals).render(look));
    if !report.peaks.is_empty() {
        let of = match range {
            Some(_) => " of the range",
            None if is_cut(answers) => " of what is in the history",
            None => "",
        };
        let _ = write!(text, "\nAt the peaks{of}\n\n{}\n", peaks(&report.peaks).render(look));
        for peak in &report.peaks {
            let of = match peak.of {
                PeakOf::Reserved => "the peak of reserved memory",
                PeakOf::InUse => "the peak of memory in use",
                PeakOf::Both => "both peaks",
            };
            let title = format!("Blocks not free at {of} on device {}", peak.device);
            shown.groups(&mut text, &title, &peak.largest);
        }
    }
    let of = if range.is_some() { " of the range" } else { "" };
    let title = format!("Blocks not free at the end{of}, by where they were allocated, the most bytes first");
    shown.groups(&mut text, &title, &report.largest);
    let older: Vec<Group> = report.oldest.iter().filter(|group| !report.largest.contains(group)).cloned().collect();
    shown.groups(&mut text, "Others that are not free, the oldest first", &older);
    if !report.segments.is_empty() {
        let _ = write!(
            text,
            "\nSegments in use with the most free memory\n\n{}\n",
            segments(&report.segments).render(look)
        );
    }
    for failure in &report.failures {
        let answer = answers.iter().find(|answer| answer.device == Some(failure.device));
        describe(&mut text, failure, answer.and_then(|answer| answer.told.as_ref()), &shown);
    }
    text
}

/// Returns whether the history of a device starts in the middle of the program.
fn is_cut(answers: &[OfRecord]) -> bool {
    answers.iter().any(|answer| answer.told.as_ref().is_some_and(|told| told.answer.cut_to_events.is_some()))
}

/// Returns the name of a peak.
fn named(of: PeakOf) -> &'static str {
    match of {
        PeakOf::Reserved => "reserved",
        PeakOf::InUse => "in use",
        PeakOf::Both => "both",
    }
}

fn peaks(peaks: &[Peak]) -> Table {
    let mut table = Table::new(&PEAKS);
    for peak in peaks {
        table.row(vec![
            format!("{}, {}", peak.device, named(peak.of)),
            peak.event.to_string(),
            peak.before_end_us.map_or_else(String::new, duration),
            show(peak.reserved),
            some(peak.spilled.unwrap_or(0)),
            some(peak.reserved_private),
            show(peak.allocated),
            show(peak.pending),
            show(peak.releasable),
            show(peak.kept),
            show(peak.in_holes),
            show(peak.largest_hole),
        ]);
    }
    table
}

/// Formats a stream for people: 0 is the default stream.
fn stream(number: i64) -> String {
    if number == 0 { "default".to_owned() } else { format!("{number:#x}") }
}

/// Formats a pool for people.
fn pool(id: (u64, u64)) -> String {
    match id {
        (0, 0) => "default".to_owned(),
        (0, number) => format!("private {number}"),
        (one, other) => format!("private {one}, {other}"),
    }
}

/// Formats bytes for a column that is only shown if a row has some.
fn some(bytes: u64) -> String {
    if bytes == 0 { String::new() } else { show(bytes) }
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
            some(totals.reserved_private),
            show(totals.parked),
            some(totals.spilled),
            show(totals.allocated),
            show(totals.requested),
            show(totals.pending),
            show(totals.releasable),
            show(totals.kept),
            show(totals.in_holes),
            show(totals.largest_hole),
            percent(totals.fragmentation),
            totals.segments.to_string(),
            totals.allocations.to_string(),
            totals.streams.to_string(),
            totals.events.to_string(),
        ]);
    }
    table
}

/// Returns the name of a segment. A private pool is part of it, for its memory serves no other.
fn segment(report: &SegmentReport) -> String {
    let private = (report.pool != (0, 0)).then(|| pool(report.pool));
    let kinds: Vec<String> = report.is_expandable.then(|| "expandable".to_owned()).into_iter().chain(private).collect();
    let kinds = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join("; ")) };
    format!("{:#x}{kinds}", report.address)
}

fn segments(reports: &[SegmentReport]) -> Table {
    let mut table = Table::new(&SEGMENTS);
    for report in reports {
        table.row(vec![
            segment(report),
            report.device.to_string(),
            stream(report.stream),
            pool(report.pool),
            show(report.total),
            some(report.spilled),
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

fn describe(text: &mut String, failure: &Failure, told: Option<&Told>, shown: &StackPrinter<'_>) {
    let Failure { device, event, wanted, .. } = *failure;
    let _ = writeln!(
        text,
        "\nOut of memory on device {device} (event {event}): {} wanted on stream {}",
        show(wanted),
        stream(failure.stream)
    );
    shown.stack(text, &failure.lines, NoStack::Unknown);
    let figures = [
        ("free on the device", failure.device_free),
        ("reserved", Some(failure.reserved)),
        ("allocated", Some(failure.allocated)),
        ("pending", Some(failure.pending)),
        ("on the host", failure.spilled.filter(|&bytes| bytes > 0)),
        ("free in the cache", Some(failure.cached)),
        ("of it in private pools", Some(failure.cached_private).filter(|&bytes| bytes > 0)),
        ("largest free block here", Some(failure.largest_free_here)),
        ("largest free block elsewhere", Some(failure.largest_free_elsewhere)),
        ("largest here, if waited", Some(failure.largest_free_if_waited)),
        ("for a segment, if released", Some(failure.if_released)),
        ("here, in one piece", Some(failure.if_in_one_piece)),
        ("missing", Some(failure.missing)),
    ];
    for (what, bytes) in figures {
        if let Some(bytes) = bytes {
            let _ = writeln!(text, "            {what:<30} {:>12}", show(bytes));
        }
    }
    // What was tried by replay comes before what the memory at the failure suggests.
    if let Some(tried) = told.filter(|told| told.answer.replayed_bytes.is_some()).and_then(|told| rescue(&told.answer))
    {
        let _ = writeln!(text, "{}", shown.look.fold(&format!("{tried}."), 2));
        return;
    }
    let remedies: Vec<_> = failure.remedies.iter().map(|&remedy| advice(remedy)).collect();
    if remedies.is_empty() {
        text.push_str("No single change would have been enough.\n");
    } else {
        let enough = format!("Enough by these figures: {}.", remedies.join("; "));
        let _ = writeln!(text, "{}", shown.look.fold(&enough, 2));
    }
}

fn advice(remedy: Remedy) -> &'static str {
    match remedy {
        Remedy::RaiseLimit => "a higher limit, for the device had enough",
        Remedy::WaitForStreams => "to wait for other streams",
        Remedy::ReleaseCached => "to release wholly free segments",
        Remedy::ShareStreams => "a free block of another stream",
        Remedy::Defragment => "free memory in one piece, as expandable segments can have it",
    }
}

/// Names private pools by what they are for. `PyTorch` calls the own pool of a graph `(number, 0)`;
/// all others are shared by graphs, or are a `MemPool`.
fn owners(pools: &BTreeSet<(u64, u64)>) -> &'static str {
    let are_own = pools.iter().all(|&(_, other)| other == 0);
    match (pools.len(), are_own) {
        (1, true) => "the private pool of a CUDA graph",
        (1, false) => "the private pool of a CUDA graph (or of a MemPool)",
        (_, true) => "the private pools of CUDA graphs",
        (_, false) => "the private pools of CUDA graphs (or of MemPools)",
    }
}

/// Returns the sentences that a report on a failed request opens with: what failed, where, who
/// refused it, and who held the memory.
fn sentence_of_failure(failure: &Failure) -> String {
    let Failure { wanted, reserved, device_free, refused_by, cached_private, .. } = *failure;
    let place = failure.lines.shown.first().map_or_else(String::new, |line| format!(" at {line}"));
    let free = show(device_free.unwrap_or(0));
    let refused = match refused_by {
        RefusedBy::Limit => format!(
            ": a limit of the process refused it, with {free} free on the device and {} held by this process",
            show(reserved)
        ),
        RefusedBy::Device => format!(
            ": {free} were free on the device, while PyTorch held {} and other processes and libraries the rest",
            show(reserved)
        ),
        RefusedBy::Unknown => format!(", while this process held {}", show(reserved)),
    };
    let mut text = format!("A request of {}{place} failed{refused}.", show(wanted));
    let holders = failure.holders.iter().map(|group| {
        let line = group.lines.shown.first().map_or("memory without a recorded stack", String::as_str);
        (line, show(group.bytes))
    });
    for (at, (line, bytes)) in holders.enumerate() {
        _ = match at {
            0 => write!(text, " {line} held the most, {bytes}"),
            1 => write!(text, "; then {line}, {bytes}"),
            _ => write!(text, "; {line}, {bytes}"),
        };
    }
    if !failure.holders.is_empty() {
        text.push('.');
    }
    if cached_private > 0 {
        let (free, owners) = (show(cached_private), owners(&failure.private_pools));
        let _ = write!(text, " {free} of the free memory are in {owners}, and serve no other request.");
    }
    text
}
