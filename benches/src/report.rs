//! Tables of `tests/results/core.md`, each measured in a single run.

use crate::crowd::{Crowd, Layout, SIZES};
use crate::lanes::{BASELINE, OURS, PEERS, POLICIES, SUBJECTS, lanes, policy_lanes};
use crate::measure::{Clock, Effort, Lane, Timing, interleave};
use crate::program::Program;
use crate::threads::{self, Streams, THREADS, Team};
use cachalot_core::MIB;
use cachalot_tests::figures::Table;
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

/// Returns the columns of a median and the quartiles.
fn full_header(name: &str) -> [String; 3] {
    [name.to_owned(), format!("{name} from"), format!("{name} to")]
}

/// Formats the median and the quartiles.
fn full(timing: Option<Timing>) -> [String; 3] {
    let figures = |Timing { lower, median, upper }| [median, lower, upper].map(|figure| format!("{figure:.1}"));
    timing.map_or([NONE.to_owned(), String::new(), String::new()], figures)
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
    let mut columns: Vec<String> = full(ours).into_iter().chain(full(baseline)).collect();
    columns.push(ratio(baseline, ours));
    let rest = SUBJECTS.into_iter().filter(|&name| name != OURS && name != BASELINE);
    columns.extend(rest.map(|name| median(find(of, name))));
    columns
}

/// Returns a header: the first columns, and those of all subjects.
fn subject_header<const N: usize>(first: [&str; N]) -> impl Iterator<Item = String> {
    let rest = SUBJECTS.into_iter().filter(|&name| name != OURS && name != BASELINE);
    let of_subjects = full_header(OURS).into_iter().chain(full_header(BASELINE));
    let rest = ["ratio"].into_iter().chain(rest).map(str::to_owned);
    first.map(str::to_owned).into_iter().chain(of_subjects).chain(rest)
}

/// Measures `malloc` and `free` of a cached block, by size.
pub fn pairs(effort: Effort) -> Table {
    let mut table = Table::new(subject_header(["request", "state"]));
    for bytes in SIZES {
        for (state, crowd) in [("split", Some(Crowd::alone(bytes))), ("exact", Crowd::new(Layout::Equal, bytes, 1))] {
            let Some(crowd) = crowd else { continue };
            let timings = timings(lanes(&crowd), effort);
            table.add_row([size(bytes), state.into()].into_iter().chain(subject_columns(&timings)));
        }
    }
    table
}

/// Measures pairs among free blocks.
pub fn crowds(effort: Effort) -> Table {
    let header = subject_header(["request", "layout", "free blocks"]).chain(["growth".to_owned()]);
    let mut table = Table::new(header);
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
    table
}

/// Measures the other policies: pairs by size, and pairs among free blocks.
pub fn policies(effort: Effort) -> [Table; 2] {
    let columns = |of: &Timings| -> Vec<String> {
        let policies = POLICIES.into_iter().flat_map(|name| full(find(of, name)));
        policies.chain(PEERS.into_iter().map(|name| median(find(of, name)))).collect()
    };
    let header = |first: &[&str]| {
        let first: Vec<String> = first.iter().map(|&name| name.to_owned()).collect();
        let policies = POLICIES.into_iter().flat_map(full_header);
        first.into_iter().chain(policies).chain(PEERS.into_iter().map(str::to_owned))
    };
    let mut pairs = Table::new(header(&["request", "state"]));
    for bytes in SIZES {
        for (state, crowd) in [("split", Some(Crowd::alone(bytes))), ("exact", Crowd::new(Layout::Equal, bytes, 1))] {
            let Some(crowd) = crowd else { continue };
            let timings = timings(policy_lanes(&crowd), effort);
            pairs.add_row([size(bytes), state.into()].into_iter().chain(columns(&timings)));
        }
    }
    let mut crowds = Table::new(header(&["request", "layout", "free blocks"]).chain(["growth".to_owned()]));
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
    [pairs, crowds]
}

/// Measures recorded programs.
pub fn replays(programs: &[Program], effort: Effort) -> Table {
    let mut table = Table::new(subject_header(["program", "operations", "device calls"]));
    for program in programs {
        let timings = timings(lanes(program), effort);
        let operations = crate::workload::Workload::operations(program).to_string();
        let columns = [program.name.clone(), operations, program.device_calls().to_string()];
        table.add_row(columns.into_iter().chain(subject_columns(&timings)));
    }
    table
}

/// Measures every lock, with fewer threads than cores and with more.
pub fn threads(effort: Effort) -> [Table; 2] {
    [Clock::Wall, Clock::Process].map(|clock| {
        let mut table: Option<Table> = None;
        for (streams, name) in [(Streams::Own, "own"), (Streams::Shared, "shared")] {
            for threads in THREADS {
                let timings = timings(threads::lanes(Team { threads, streams, clock }), effort);
                let locks = timings.iter().flat_map(|&(lock, _)| full_header(lock));
                let header = ["threads", "streams"].map(str::to_owned).into_iter().chain(locks);
                let times = timings.iter().flat_map(|&(_, timing)| full(Some(timing)));
                let row = [threads.to_string(), name.into()].into_iter().chain(times);
                table.get_or_insert_with(|| Table::new(header)).add_row(row);
            }
        }
        table.unwrap_or_default()
    })
}

/// Counts the instructions a pair takes with the binary at `program`, the loop around it included:
/// with no free block beside the one it splits, with one of exactly its size, and with 1,000 of
/// those. Returns no rows without `valgrind`.
pub fn instructions(program: &Path) -> Table {
    let mut table = Table::new(["request", "free blocks"].into_iter().chain(SUBJECTS));
    if !cachalot_instructions::available() {
        return table;
    }
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
    table
}
