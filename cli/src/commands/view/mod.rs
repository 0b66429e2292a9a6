//! `cachalot view`: a page that shows the memory of recorded programs at any moment.
//!
//! ```text
//! source    histories from snapshots, from records, and by replay
//! begin     the memory before the first event, found backwards
//! forward   the memory from event to event
//! moments   the moments that a page shows, and all blocks at them
//! answer    the sentence that the page begins with
//! encode    compressed columns
//! page/     the page: HTML, style and scripts
//! ```

mod answer;
mod begin;
mod encode;
mod forward;
mod history;
mod moments;
mod source;
mod stacks;

use super::bytes;
use super::progress::Progress;
use super::range::RangeArgs;
use super::{BAD_INPUT, SCHEMA, print};
use answer::Answer;
use cachalot_core::Config;
use cachalot_replay::replay::ReplayError;
use cachalot_replay::trace::base_name;
use history::{History, Pages};
use moments::Limits;
use serde::Serialize;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const LONG_ABOUT: &str = "\
Write a page that shows the memory of recorded programs at any moment

The page is a single file that loads nothing from the network. It shows reserved
memory and memory in use over time, by call stack, stream, pool or state; the
segments with their blocks at any moment; and each failed request with the
memory at this time. Stacks can be searched, and two files or two
configurations can be compared side by side.

idle       wholly free segments, and wholly free pages of expandable segments,
           which can be released
in holes   all other free memory. In use, in holes and idle add up to reserved

A page has at most 131,072 moments. In a longer history, each moment represents
several events, and shows the state with the most memory in use.

The page opens at the moment with the most memory in use. Its first sentence,
which the command also prints, says how much was reserved and live at most, and
which setting of PyTorch's allocator would have saved some of it. The history is
replayed for it, unless it has more than four million events.

--from and --to show a range of the history: its events, the memory before them,
and the peaks within it.

--json prints an object for each file,
device and configuration with schema, file, label, device, config, answer (with
sentence, of_record, rescue, fullest); sizes in bytes.

Exits with 2 for invalid input, else with 1 if an allocator refused a call for
another reason than lack of memory.";

const EXAMPLES: &str = "\
Examples:
  cachalot view snapshot.pickle -o memory.html
  cachalot view before.pickle after.pickle -o both.html
  cachalot view --from step:3 --to step:4 snapshot.pickle -o two_steps.html
  cachalot view --config expandable_segments:True snapshot.pickle -o both.html";

/// Most moments of a device.
const MOST_MOMENTS: u32 = 1 << 17;

/// Most blocks of a page. With its stacks a page of so many blocks takes 10 to 20 MB.
const MOST_BLOCKS: u64 = 1_200_000;

/// Most bytes of the data in a page.
const MOST_BYTES: usize = 28 << 20;

/// What tells a page of this command from other files, and the bytes at the start that have it.
const GENERATOR: &str = "name=\"generator\" content=\"cachalot view\"";
const GENERATOR_WITHIN: u64 = 512;

/// The parts of the page.
const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/style.css");
const SCRIPTS: [&str; 8] = [
    include_str!("page/format.js"),
    include_str!("page/data.js"),
    include_str!("page/model.js"),
    include_str!("page/chart.js"),
    include_str!("page/map.js"),
    include_str!("page/lists.js"),
    include_str!("page/panel.js"),
    include_str!("page/main.js"),
];

/// Write a page that shows the memory of recorded programs at any moment
#[derive(clap::Args)]
#[command(long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
pub(crate) struct ViewArgs {
    #[arg(
        short,
        long,
        value_name = "FILE.html",
        help = "The page; by default the first FILE with the ending .html, which replaces only another page"
    )]
    output: Option<PathBuf>,
    #[arg(
        long = "config",
        value_name = "STRING",
        value_parser = named_config,
        help = "A configuration in PyTorch's syntax, any number of times: every program is also replayed with it"
    )]
    configs: Vec<(String, Config)>,
    /// The memory limit of the replays: bytes, or a number with KiB, MiB, GiB, TiB, or kB, MB, GB,
    /// TB
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse, requires = "configs")]
    limit: Option<u64>,
    /// Print a JSON object for each file, device and configuration instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    range: RangeArgs,
    #[arg(
        required = true,
        value_name = "FILE",
        help = "Memory snapshots (.pickle, .json, also .gz) or records (.csv, .csv.gz)"
    )]
    files: Vec<PathBuf>,
}

/// Parses a configuration, and keeps the text.
fn named_config(text: &str) -> Result<(String, Config), String> {
    cachalot_policies::parse(text).map(|config| (text.to_owned(), config)).map_err(|error| error.to_string())
}

/// A device of a file, as data of the page.
struct Source {
    file: String,
    label: String,
    device: i64,
    config: String,
    answer: Answer,
    data: String,
}

/// A line of `--json`.
#[derive(Serialize)]
struct ViewLine<'a> {
    schema: u32,
    file: &'a str,
    label: &'a str,
    device: i64,
    config: &'a str,
    answer: &'a Answer,
}

/// Runs the command.
pub(crate) fn run(args: &ViewArgs) -> ExitCode {
    let sources = match check_output(args).and_then(|()| sources(args)) {
        Ok(sources) => sources,
        Err((status, complaint)) => {
            complain!("{complaint}");
            return ExitCode::from(status);
        }
    };
    let output = output(args);
    let written = cachalot_atomic_file::write(&output, |file| write_page(io::BufWriter::new(file), &sources));
    if let Err(error) = written {
        complain!("{}: cannot be written: {error}", output.display());
        return ExitCode::from(BAD_INPUT);
    }
    let mut printed = sources.iter().try_for_each(|source| print_answer(args, source));
    if args.output.is_none() && !args.json {
        printed = printed.and_then(|()| print(format_args!("written to {}", output.display())));
    }
    super::end(0, &printed)
}

fn print_answer(args: &ViewArgs, source: &Source) -> io::Result<()> {
    let Source { file, label, device, config, answer, .. } = source;
    if args.json {
        print(serde_json::to_string(&ViewLine { schema: SCHEMA, file, label, device: *device, config, answer })?)
    } else {
        print(format_args!("{label}, device {device}: {}", answer.sentence))
    }
}

/// Returns the page's file: by default next to the first file.
fn output(args: &ViewArgs) -> PathBuf {
    let first = &args.files[0];
    // The snapshot may be in a page of PyTorch.
    let is_page = first.extension().is_some_and(|ending| ending == "html");
    let beside =
        || first.with_file_name(format!("{}{}", base_name(first), if is_page { ".view.html" } else { ".html" }));
    args.output.clone().unwrap_or_else(beside)
}

/// A failure: the exit status, and a line for the user.
type ViewFailure = (u8, String);

/// Returns whether a file is a page of this command.
fn is_own_page(file: &Path) -> bool {
    let mut start = Vec::new();
    let read = fs::File::open(file).and_then(|file| file.take(GENERATOR_WITHIN).read_to_end(&mut start));
    read.is_ok() && String::from_utf8_lossy(&start).contains(GENERATOR)
}

/// Refuses an output that is one of the inputs, and one that was not named and is not a page of
/// this command.
fn check_output(args: &ViewArgs) -> Result<(), ViewFailure> {
    let output = output(args);
    let shown = output.display().to_string();
    let Ok(output) = fs::canonicalize(output) else { return Ok(()) };
    if args.output.is_none() && !is_own_page(&output) {
        let what = "exists, and is no page of `cachalot view`: name the page by -o";
        return Err((BAD_INPUT, format!("{shown}: {what}")));
    }
    if args.files.iter().any(|file| fs::canonicalize(file).is_ok_and(|file| file == output)) {
        return Err((BAD_INPUT, format!("{shown}: the output would replace an input")));
    }
    Ok(())
}

/// Reads every file, and replays it with every configuration.
fn sources(args: &ViewArgs) -> Result<Vec<Source>, ViewFailure> {
    let each = (args.files.len() * (1 + args.configs.len())) as u64;
    let mut sources = Vec::new();
    for file in &args.files {
        let recorded = load(file, &args.range).map_err(|complaint| (BAD_INPUT, complaint))?;
        if recorded.is_empty() {
            return Err((BAD_INPUT, format!("{}: the snapshot has neither segments nor events", file.display())));
        }
        let share = each * recorded.len() as u64;
        let in_file = |error: io::Error| (BAD_INPUT, format!("{}: {error}", file.display()));
        let own: Vec<Source> = recorded
            .iter()
            .map(|history| source_of(file, history, recorded.len() > 1, share, None).map_err(in_file))
            .collect::<Result<_, _>>()?;
        let mut replays = Vec::new();
        for (name, config) in &args.configs {
            let of_replay = |error: ReplayError| (super::status_of(&error), error.to_string());
            for history in
                source::replay((file, &args.range), &recorded, config, name, args.limit).map_err(of_replay)?
            {
                let other = own.iter().find(|other| other.device == history.device);
                replays.push(
                    source_of(file, &history, recorded.len() > 1, share, other.map(|other| &other.answer))
                        .map_err(in_file)?,
                );
            }
        }
        sources.extend(own);
        sources.extend(replays);
    }
    Ok(sources)
}

/// Reads a file. On a terminal a slow read shows a progress bar.
fn load(file: &Path, range: &RangeArgs) -> Result<Vec<History>, String> {
    let progress = Progress::new(fs::metadata(file).map_or(0, |data| data.len()));
    progress.begin("reading");
    let loaded = source::load(file, range, |bytes| progress.advance(bytes), || progress.begin("replaying"))
        .map_err(|error| error.to_string());
    progress.finish();
    loaded
}

/// Builds the data of a device, one of `share` that fill a page. The answer of a replay has the
/// difference from `recorded`.
fn source_of(
    file: &Path,
    history: &History,
    is_one_of_several: bool,
    share: u64,
    recorded: Option<&Answer>,
) -> io::Result<Source> {
    let begin = begin::begin(history);
    let mut limits = Limits { moments: MOST_MOMENTS, blocks: MOST_BLOCKS / share };
    loop {
        let shown = moments::shown(&history.events, &begin, Pages::of(&history.config), limits);
        let answer = answer::answer(history, &shown, recorded);
        let data = encode::encode(history, &shown, &answer, is_one_of_several)?;
        // Fewer blocks need fewer moments. Without blocks, only the names are left.
        if data.len() as u64 <= MOST_BYTES as u64 / share || limits.blocks == 0 {
            let History { label, device, config, .. } = history;
            let (file, label, config) = (file.display().to_string(), label.clone(), config.clone());
            return Ok(Source { file, label, device: *device, config, answer, data });
        }
        limits.blocks /= 2;
    }
}

/// Writes the page.
fn write_page(mut to: impl Write, sources: &[Source]) -> io::Result<()> {
    let title: Vec<&str> = sources.iter().take(2).map(|source| source.label.as_str()).collect();
    for part in PAGE.split_inclusive("}}") {
        let (text, place) = part.split_once("{{").unwrap_or((part, ""));
        to.write_all(text.as_bytes())?;
        match place {
            "title}}" => to.write_all(escaped(&title.join(" · ")).as_bytes())?,
            "style}}" => to.write_all(STYLE.as_bytes())?,
            "script}}" => SCRIPTS.iter().try_for_each(|script| to.write_all(script.as_bytes()))?,
            "data}}" => {
                for source in sources {
                    writeln!(
                        to,
                        "<script type=\"application/octet-stream\" class=\"source\">{}</script>",
                        source.data
                    )?;
                }
            }
            _ => {}
        }
    }
    to.flush()
}

/// Replaces the characters that end a text in HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
