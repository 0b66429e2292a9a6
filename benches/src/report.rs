//! Tables of `tests/results/core.md`, each measured in a single run.

use crate::crowd::{Crowd, Layout, SIZES};
use crate::lanes::{BASELINE, OURS, PEERS, POLICIES, SUBJECTS, lanes, policy_lanes};
use crate::measure::{Clock, Effort, Lane, Timing, interleave};
use crate::program::Program;
use crate::tables::table;
use crate::threads::{self, Streams, THREADS, Team};
use cachalot_core::MIB;
use comfy_table::Table;
use std::fmt::Write as _;
use std::path::Path;

/// Cell of a subject without support for the workload.
const NONE: &str = "–";

/// Numbers of free blocks in a crowd.
const COUNTS: [u64; 3] = [10, 1_000, 100_000];

/// Request sizes in crowds, for the small pool and for the large pool.
const CROWDED: [u64; 2] = [4 << 10, 8 * MIB];

/// Names and times of the subjects with support for the workload.
type Timings = Vec<(&'static str, Timing)>;

fn timings(mut lanes: Vec<Lane>, effort: Effort) -> Timings {
    let timings = interleave(&mut lanes, effort);
    lanes.iter().map(|lane| lane.name).zip(timings).collect()
}

fn find(timings: &Timings, name: &str) -> Option<Timing> {
    timings.iter().find(|(subject, _)| *subject == name).map(|&(_, timing)| timing)
}

/// Formats the median and the quartiles.
fn full(timing: Option<Timing>) -> String {
    timing.map_or(NONE.into(), |Timing { lower, median, upper }| format!("{median:.1} ({lower:.1}–{upper:.1})"))
}

fn median(timing: Option<Timing>) -> String {
    timing.map_or(NONE.into(), |timing| format!("{:.1}", timing.median))
}

/// Formats the ratio of two medians.
fn ratio(one: Option<Timing>, other: Option<Timing>) -> String {
    one.zip(other).map_or(NONE.into(), |(one, other)| format!("{:.2}", one.median / other.median))
}

/// Formats a size with a unit.
fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes >= MIB => format!("{} MiB", bytes / MIB),
        _ if bytes >= 1024 => format!("{} KiB", bytes / 1024),
        _ => format!("{bytes} B"),
    }
}

/// Returns the columns of all subjects: ours in full, the ratio of the baseline, and the medians of
/// the rest.
fn subject_columns(of: &Timings) -> Vec<String> {
    let (ours, baseline) = (find(of, OURS), find(of, BASELINE));
    let mut columns = vec![full(ours), full(baseline), ratio(baseline, ours)];
    let rest = SUBJECTS.into_iter().filter(|&name| name != OURS && name != BASELINE);
    columns.extend(rest.map(|name| median(find(of, name))));
    columns
}

fn subject_header() -> impl Iterator<Item = &'static str> {
    let rest = SUBJECTS.into_iter().filter(|&name| name != OURS && name != BASELINE);
    [OURS, BASELINE, "ratio"].into_iter().chain(rest)
}

/// Measures `malloc` and `free` of a cached block, by size.
pub fn pairs(effort: Effort) -> String {
    let mut table = table(2, ["request", "state"].into_iter().chain(subject_header()));
    for bytes in SIZES {
        for (state, crowd) in [("split", Some(Crowd::alone(bytes))), ("exact", Crowd::new(Layout::Equal, bytes, 1))] {
            let Some(crowd) = crowd else { continue };
            let timings = timings(lanes(&crowd), effort);
            table.add_row([size(bytes), state.into()].into_iter().chain(subject_columns(&timings)));
        }
    }
    format!(
        "## Pair\n\nNanoseconds for `malloc` and `free` of a cached block: median (quartiles). *split*: nothing else is held, so that \
         the block is split off a larger one and made one with the rest again (64 MiB fill their segment, and are not \
         split; the buddies split the whole arena down to the request). *exact*: one free block of that size between held \
         ones. *ratio*: the `BTreeSet`'s time in ours.\n\n{table}\n"
    )
}

/// Measures pairs among free blocks.
pub fn crowds(effort: Effort) -> String {
    let mut table =
        table(2, ["request", "layout", "free blocks"].into_iter().chain(subject_header()).chain(["growth"]));
    let mut all = Vec::new();
    for (bytes, layout) in CROWDED.into_iter().flat_map(|bytes| Layout::ALL.map(|layout| (bytes, layout))) {
        let mut lanes = Vec::new();
        let mut lengths = Vec::new();
        for count in COUNTS {
            let more = Crowd::new(layout, bytes, count).map_or(Vec::new(), |crowd| crate::lanes::lanes(&crowd));
            lengths.push(more.len());
            lanes.extend(more);
        }
        // All three counts share the rounds, since the results are compared.
        let mut timings = timings(lanes, effort).into_iter();
        let least = all.len();
        for (count, length) in COUNTS.into_iter().zip(lengths) {
            all.push((bytes, layout, count, timings.by_ref().take(length).collect::<Timings>(), least));
        }
    }
    for (bytes, layout, count, timings, least) in &all {
        let columns = [size(*bytes), layout.name().into(), count.to_string()];
        let growth = ratio(find(timings, OURS), find(&all[*least].3, OURS));
        table.add_row(columns.into_iter().chain(subject_columns(timings)).chain([growth]));
    }
    format!(
        "## Crowded\n\nThe pair with free blocks around, each between held ones. *equal*: all of the requested size. *distinct*: each of \
         another (the small pool has only 2,048 sizes). *mixture*: at random. *drawn*: the requests are at random, too, \
         so that every pair meets other blocks, and caches fewer of them. *growth*: our time in that with 10 free blocks. \
         The buddy heap walks its lists, and is left out among 100,000; `offset-allocator` ends at 2 TiB.\n\n\
         {table}\n"
    )
}

/// Measures the other policies: pairs by size, and pairs among free blocks.
pub fn policies(effort: Effort) -> String {
    let columns = |of: &Timings| -> Vec<String> {
        let policies = POLICIES.into_iter().map(|name| full(find(of, name)));
        policies.chain(PEERS.into_iter().map(|name| median(find(of, name)))).collect()
    };
    let header = || POLICIES.into_iter().chain(PEERS);
    let mut pairs = table(2, ["request", "state"].into_iter().chain(header()));
    for bytes in SIZES {
        for (state, crowd) in [("split", Some(Crowd::alone(bytes))), ("exact", Crowd::new(Layout::Equal, bytes, 1))] {
            let Some(crowd) = crowd else { continue };
            let timings = timings(policy_lanes(&crowd), effort);
            pairs.add_row([size(bytes), state.into()].into_iter().chain(columns(&timings)));
        }
    }
    let mut crowds = table(2, ["request", "layout", "free blocks"].into_iter().chain(header()).chain(["growth"]));
    for (bytes, layout) in CROWDED.into_iter().flat_map(|bytes| Layout::ALL.map(|layout| (bytes, layout))) {
        let mut lanes = Vec::new();
        let mut lengths = Vec::new();
        for count in COUNTS {
            let more = Crowd::new(layout, bytes, count).map_or(Vec::new(), |crowd| policy_lanes(&crowd));
            lengths.push(more.len());
            lanes.extend(more);
        }
        // All three counts share the rounds, since the results are compared.
        let mut all = timings(lanes, effort).into_iter();
        let of_counts: Vec<Timings> = lengths.into_iter().map(|length| all.by_ref().take(length).collect()).collect();
        for (count, timings) in COUNTS.into_iter().zip(&of_counts) {
            let growth = POLICIES.map(|name| ratio(find(timings, name), find(&of_counts[0], name))).join(" · ");
            let row = [size(bytes), layout.name().into(), count.to_string()].into_iter().chain(columns(timings));
            crowds.add_row(row.chain([growth]));
        }
    }
    format!(
        "## Policies\n\nThe pair with the other policies, as above and with the same lock and statistics. \
         *growth*: each policy's time in that with 10 free blocks. What slabs do not serve (above 512 KiB) the caching \
         rules do.\n\n{pairs}\n\n{crowds}\n"
    )
}

/// Measures recorded programs.
pub fn replays(programs: &[Program], effort: Effort) -> String {
    let first = ["program", "operations", "device calls"];
    let mut table = table(1, first.into_iter().chain(subject_header()));
    for program in programs {
        let timings = timings(lanes(program), effort);
        let operations = crate::workload::Workload::operations(program).to_string();
        let columns = [program.name.clone(), operations, program.device_calls().to_string()];
        table.add_row(columns.into_iter().chain(subject_columns(&timings)));
    }
    format!(
        "## Replay\n\nNanoseconds an operation, `malloc` or `free`, of recorded programs under their own configuration and limit, once the \
         cache holds what they need. *device calls*: how often one more run calls the device for memory all the same. The \
         `BTreeSet` knows neither limits nor expandable segments; the others know no streams and no configuration.\n\n{table}\n"
    )
}

/// Measures every lock, with fewer threads than cores and with more.
pub fn threads(effort: Effort) -> String {
    let mut text = "## Threads\n\nNanoseconds an operation, of all threads together, by the lock of a heap: each thread fills 64 slots in turn with \
                    blocks of 512 bytes to 64 KiB, on a stream of its own or all on one.\n"
        .to_owned();
    for (clock, counts) in [(Clock::Wall, "all time counts"), (Clock::Process, "the processors' time")] {
        let mut table: Option<Table> = None;
        for (streams, name) in [(Streams::Own, "own"), (Streams::Shared, "shared")] {
            for threads in THREADS {
                let timings = timings(threads::lanes(Team { threads, streams, clock }), effort);
                let header = ["threads", "streams"].into_iter().chain(timings.iter().map(|&(lock, _)| lock));
                let times = timings.iter().map(|&(_, timing)| full(Some(timing)));
                let row = [threads.to_string(), name.into()].into_iter().chain(times);
                table.get_or_insert_with(|| self::table(0, header)).add_row(row);
            }
        }
        write!(text, "\n{counts}:\n\n{}\n", table.unwrap_or_default()).expect("a string takes everything");
    }
    text
}

/// Counts the instructions of a pair with the binary at `program`.
pub fn instructions(program: &Path) -> String {
    if !cachalot_instructions::available() {
        return String::new();
    }
    let mut table = table(0, ["request", "free blocks"].into_iter().chain(SUBJECTS));
    for bytes in SIZES {
        for around in [0, 1, 1000] {
            let counts = (0..SUBJECTS.len()).map(|subject| {
                let arguments = ["run".into(), subject.to_string(), bytes.to_string(), around.to_string()];
                let count = cachalot_instructions::per_pair(program, &arguments);
                count.map_or(NONE.into(), |count| format!("{count:.0}"))
            });
            table.add_row([size(bytes), around.to_string()].into_iter().chain(counts));
        }
    }
    format!(
        "## Instructions\n\nInstructions a pair takes, the loop around it included, counted by `valgrind`: with no free block beside the one \
         it splits, with one of exactly its size, and with 1,000 of those.\n\n{table}\n"
    )
}
