//! `cachalot export`: memory snapshots for other tools.

mod csv_trace;
mod perfetto;
mod pprof;
mod profile;
#[cfg_attr(not(feature = "sqlite"), path = "no_sqlite.rs")]
mod sqlite;

use super::diff::Time;
use super::progress::Progress;
use super::range::{RangeArgs, UntilArgs};
use super::{BAD_INPUT, inspect};
use cachalot_replay::range::{self, EarlierStacks};
use cachalot_replay::trace::BadInput;
use cachalot_snapshot::{Event, Snapshot, Stack, metrics};
use clap::ValueEnum;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const LONG_ABOUT: &str = "\
Write a memory snapshot of PyTorch or cachalot in the format of another tool

perfetto     a trace for ui.perfetto.dev and trace_processor: memory over time
             by device, pool and stream; annotations; the largest blocks. Times
             are those of the snapshot, in nanoseconds since 1970;
             --profile sets them to the clock of a profiler's trace
pprof        a heap profile for `pprof`: blocks, allocated, pending and
             reserved bytes by call stack
openmetrics  text for Prometheus: memory by device, pool and stream at the end
csv          the events of a device as a record for `cachalot replay`, with
             the end of the program in NAME.expected.json.gz next to it
sqlite       a database with segments, blocks, events, stacks

--from and --until write a range of the history, as --from and --to choose one
in `inspect`: --to is the format here. Openmetrics, and pprof without --at, tell
the memory at its end.

A name that ends in .gz compresses perfetto, openmetrics and csv; pprof is
always compressed.

Exits with 2 for invalid input.";

const EXAMPLES: &str = "\
Examples:
  cachalot export snapshot.pickle --to perfetto -o memory.perfetto-trace
  cachalot export snapshot.pickle --to pprof --at reserved -o memory.pb.gz
  cachalot export snapshot.pickle --to openmetrics -o /dev/stdout
  cachalot export snapshot.pickle --to sqlite -o memory.db
  cachalot export snapshot.pickle --to csv --from step:3 --until step:3 -o step.csv";

/// Write a memory snapshot for Perfetto, pprof, Prometheus, SQLite, or as a trace
#[allow(clippy::doc_markdown, reason = "the help has the text of the comments")]
#[derive(clap::Args)]
#[command(long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
pub(crate) struct ExportArgs {
    /// The format
    #[arg(long, value_enum, value_name = "FORMAT")]
    to: Format,
    /// The written file
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// For pprof: the time of the profile [default: end]
    #[arg(long, value_enum, value_name = "TIME")]
    at: Option<Time>,
    /// For csv: the device, if several have events
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    /// For perfetto: number of blocks shown, those with the most bytes times seconds
    /// [default: 1000]
    #[arg(long, value_name = "N")]
    blocks: Option<usize>,
    /// For perfetto: a trace of torch.profiler, whose clock the times are set to
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    #[command(flatten)]
    range: UntilArgs,
    #[arg(value_name = "FILE", help = "A snapshot: .pickle, .json, also .gz")]
    file: PathBuf,
}

/// A format.
#[allow(clippy::doc_markdown, reason = "the help has the text of the comments")]
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Perfetto's native trace
    Perfetto,
    /// pprof's heap profile
    Pprof,
    /// OpenMetrics text
    Openmetrics,
    /// A record for `cachalot replay`
    Csv,
    /// An SQLite database
    Sqlite,
}

/// The reason why nothing was written.
enum ExportFailure {
    Input(BadInput),
    Output(io::Error),
    /// A complete sentence.
    Refused(String),
}

impl From<BadInput> for ExportFailure {
    fn from(error: BadInput) -> Self {
        Self::Input(error)
    }
}

impl From<io::Error> for ExportFailure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Runs the command.
pub(crate) fn run(args: &ExportArgs) -> ExitCode {
    match export(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(ExportFailure::Output(error)) => super::end(0, &Err(super::in_file(&args.output, &error))),
        Err(ExportFailure::Input(error)) => {
            complain!("{error}");
            ExitCode::from(BAD_INPUT)
        }
        Err(ExportFailure::Refused(why)) => {
            complain!("{why}");
            ExitCode::from(BAD_INPUT)
        }
    }
}

fn export(args: &ExportArgs) -> Result<(), ExportFailure> {
    let options = [
        ("--at", Format::Pprof, args.at.is_some()),
        ("--device", Format::Csv, args.device.is_some()),
        ("--blocks", Format::Perfetto, args.blocks.is_some()),
        ("--profile", Format::Perfetto, args.profile.is_some()),
    ];
    if let Some((option, ..)) = options.iter().find(|(_, format, given)| *given && *format != args.to) {
        return Err(ExportFailure::Refused(format!(
            "{option} is not an option of this format: `cachalot export --help`"
        )));
    }
    let range = RangeArgs::from(args.range.clone());
    if args.to == Format::Csv {
        let traces = range.traces(&args.file)?;
        return csv_trace::export(&args.file, &traces, &args.output, args.device);
    }
    let mut snapshot = inspect::load(&args.file)?;
    let (found, since) = range.rewind(&args.file, &mut snapshot)?;
    if args.to == Format::Pprof {
        let at = args.at.unwrap_or(Time::End);
        if at != Time::End && snapshot.device_traces.iter().all(Vec::is_empty) {
            let what = "no events were recorded, and without events there is no peak: use --at end";
            return Err(BadInput::whole(&args.file, what).into());
        }
        written(&args.output, |to| pprof::write(to, &snapshot, &since, at))?;
        return Ok(());
    }
    let before = found.map_or_else(EarlierStacks::default, |range| range::cut(&mut snapshot, &range));
    match args.to {
        Format::Perfetto => {
            let base_ns = args.profile.as_deref().map(profile::base_time_ns).transpose()?.unwrap_or(0);
            let options = perfetto::Options { base_ns, blocks: args.blocks.unwrap_or(1000), before };
            written_as_named(&args.output, |to| perfetto::write(to, &snapshot, &name_of(&args.file), &options))?;
        }
        Format::Openmetrics => {
            let text = metrics::of_snapshot(&snapshot);
            written_as_named(&args.output, |to| to.write_all(text.as_bytes()))?;
        }
        Format::Sqlite => sqlite::write(&args.output, &snapshot, &name_of(&args.file))?,
        Format::Csv | Format::Pprof => unreachable!("written above"),
    }
    Ok(())
}

/// Writes a file whole or not at all, through a buffer.
fn written(file: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    cachalot_atomic_file::write(file, |file| {
        let mut buffered = io::BufWriter::with_capacity(1 << 18, file);
        content(&mut buffered)?;
        buffered.flush()
    })
}

/// Writes a file like [`written`], compressed if the name ends in `.gz`.
fn written_as_named(file: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    if file.extension().is_none_or(|extension| extension != "gz") {
        return written(file, content);
    }
    written(file, |to| {
        let mut encoder = GzEncoder::new(to, Compression::default());
        content(&mut encoder)?;
        encoder.finish()?.flush()
    })
}

fn name_of(file: &Path) -> String {
    file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned()
}

/// Counts the events of every device as steps of a progress bar.
fn progress_of(snapshot: &Snapshot) -> Progress {
    let progress = Progress::new(snapshot.device_traces.iter().map(|trace| trace.len() as u64).sum());
    progress.begin("writing");
    progress
}

/// The times of a device's events in nanoseconds, in order and each at most once: events of one
/// microsecond follow one another by a nanosecond. Events without times are a microsecond apart,
/// from 1970 on.
struct EventTimes {
    last: Option<i64>,
    number: i64,
}

impl EventTimes {
    /// Creates the clock of a device.
    const fn new() -> Self {
        Self { last: None, number: 0 }
    }

    /// Returns the time of the next event.
    fn next(&mut self, event: &Event) -> i64 {
        let time = event.time_us.unwrap_or(self.number).saturating_mul(1000);
        self.number += 1;
        let next = self.last.map_or(time, |last| time.max(last.saturating_add(1)));
        self.last = Some(next);
        next
    }
}

/// Returns the frame of a stack that a reader looks for, as `function file:line`.
fn own_frame(stack: Option<&Stack>) -> Option<String> {
    let frame = stack?.shown().into_iter().next()?;
    let name = frame.short_name();
    Some(match (frame.short_file(), frame.known_line()) {
        (Some(file), Some(line)) => format!("{name} {file}:{line}"),
        (Some(file), None) => format!("{name} {file}"),
        (None, _) => name.into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::EventTimes;
    use cachalot_snapshot::Event;

    #[test]
    fn times_never_stand_still() {
        let times = [Some(5), Some(5), Some(4), Some(6), Some(6)];
        let mut clock = EventTimes::new();
        let found = times.map(|time_us| clock.next(&Event { time_us, ..Event::default() }));
        assert_eq!(found, [5000, 5001, 5002, 6000, 6001]);
        let mut clock = EventTimes::new();
        assert_eq!([0; 3].map(|_| clock.next(&Event::default())), [0, 1000, 2000]);
    }
}
