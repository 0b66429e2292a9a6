//! Any bytes as an input file of a command.

use cachalot_core::Config;
use cachalot_core::simulated::Call;
use cachalot_planner::verify;
use cachalot_replay::compare::parse_costs;
use cachalot_replay::inspect;
use cachalot_replay::plan::solve::{Method, PORTFOLIO, solve};
use cachalot_replay::plan::{self, Reading, Source, Task};
use cachalot_replay::replay::{self, Options};
use cachalot_replay::trace::{self, BadInput, Expected, Trace};
use cachalot_snapshot::{Format, Snapshot};
use std::path::Path;
use std::time::Duration;

/// The file name in error messages.
const FILE: &str = "file";

/// Limits of programs and problems. A larger input is only read, because the fuzzer has little
/// time.
const MOST_EVENTS: usize = 2000;
const MOST_BUFFERS: usize = 40;

/// Most groups and segments in the report of a snapshot.
const MOST_GROUPS: usize = 10;

/// Time of an algorithm for a plan.
const DEADLINE: Duration = Duration::from_millis(5);

fn file() -> &'static Path {
    Path::new(FILE)
}

/// Returns the value of accepted bytes. A refusal must be one line and begin with the file name.
fn accepted<T>(read: Result<T, BadInput>) -> Option<T> {
    let complaint = match read {
        Ok(value) => return Some(value),
        Err(error) => error.to_string(),
    };
    assert!(complaint.starts_with(FILE) && !complaint.contains('\n'), "{complaint}");
    None
}

/// Reads a snapshot as a pickle.
///
/// # Panics
/// If the written snapshot does not read back as the same snapshot.
pub fn pickle(bytes: &[u8]) {
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        any_snapshot(bytes, Format::Pickle);
    }
}

/// Reads a snapshot in JSON.
///
/// # Panics
/// If the written snapshot does not read back as the same snapshot.
pub fn snapshot(bytes: &[u8]) {
    if bytes.trim_ascii_start().first() == Some(&b'{') {
        any_snapshot(bytes, Format::Json);
    }
}

fn any_snapshot(bytes: &[u8], format: Format) {
    let Some(snapshot) = accepted(trace::snapshot::load_bytes(file(), bytes)) else { return };
    let lists = inspect::Lists { most: MOST_GROUPS, by: inspect::By::Stack };
    let report = inspect::inspect(&snapshot, &inspect::Since::default(), lists);
    serde_json::to_vec(&report.totals).expect("plain values");
    for other in [Format::Pickle, Format::Json] {
        let written = write(&snapshot, other);
        // Only JSON allows deeper values than a pickle.
        let again = match cachalot_snapshot::read(&written) {
            Ok(again) => again,
            Err(error) => {
                assert_ne!(other, format, "{error}");
                continue;
            }
        };
        // JSON has no infinite numbers, so a conversion to JSON loses them.
        assert!(other == Format::Json || write(&again, other) == written);
    }
    if let Some(traces) = accepted(Trace::load_bytes(file(), bytes)) {
        traces.iter().for_each(run);
    }
}

fn write(snapshot: &Snapshot, format: Format) -> Vec<u8> {
    let mut written = Vec::new();
    cachalot_snapshot::write(&mut written, format, snapshot).expect("a vector takes everything");
    written
}

/// Reads a record, runs the program, and plans the memory.
///
/// # Panics
/// If a plan is invalid.
pub fn record(bytes: &[u8]) {
    let Some(traces) = accepted(Trace::load_bytes(file(), bytes)) else { return };
    traces.iter().for_each(run);
    let reading = Reading { section: Some(0..MOST_BUFFERS as u64), ..Reading::default() };
    for reading in [Reading::default(), reading] {
        for task in accepted(plan::load_bytes(file(), bytes, &reading)).unwrap_or_default() {
            solve_task(&task);
        }
    }
}

/// Replays a program: at the recorded addresses, and with another policy.
fn run(trace: &Trace) {
    if trace.events.len() > MOST_EVENTS {
        return;
    }
    let config = Config::parse("policy:bfc").expect("a policy");
    for config in [None, Some(config)] {
        let options = Options { config, repeat: 1, ..Options::default() };
        if let Err(error) = replay::end(trace, &options) {
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
}

/// A program. The fuzzer's bytes describe the end.
const PROGRAM: &str = "\
action,addr,size,stream
A,200000,2097152,0
a,200000,1000,0
a,200400,3000,0
f,200000,1000,0
c,200000,1000,0
a,200000,500,0
";

/// Reads the expected end of a run, and checks a program against the end.
///
/// # Panics
/// If a complaint is more than one line.
pub fn end(bytes: &[u8]) {
    let Some(expected) = accepted(Expected::load_bytes(file(), bytes)) else { return };
    let mut traces = Trace::load_bytes(file(), PROGRAM.as_bytes()).expect("a record");
    traces[0].expected = Some(expected);
    let options = Options { check: true, repeat: 1, ..Options::default() };
    if let Err(error) = replay::replay(&traces[0], &options) {
        assert!(!error.to_string().contains('\n'), "{error}");
    }
}

/// Reads a table of buffers, and plans the memory.
///
/// # Panics
/// If a plan is invalid, or the table of the plan describes a different problem.
pub fn table(bytes: &[u8]) {
    for alignment in [None, Some(512)] {
        let reading = Reading { alignment, ..Reading::default() };
        for task in accepted(plan::load_bytes(file(), bytes, &reading)).unwrap_or_default() {
            solve_task(&task);
        }
    }
}

/// Reads a program of operators, and plans the memory.
///
/// # Panics
/// If a plan is invalid.
pub fn operators(bytes: &[u8]) {
    let tasks = accepted(plan::load_bytes(file(), bytes, &Reading::default())).unwrap_or_default();
    for task in &tasks {
        solve_task(task);
        if let Source::Operators { names, lowered, .. } = &task.source {
            for (_, refusal) in &lowered.refused {
                assert!(!names.why(refusal).is_empty());
            }
        }
    }
}

/// Plans a problem with every algorithm.
fn solve_task(task: &Task) {
    if task.problem.buffers.len() > MOST_BUFFERS {
        return;
    }
    // The portfolio runs all algorithms on threads.
    for name in Method::names().filter(|&name| name != PORTFOLIO) {
        let method = Method::named(name).expect("one of the names");
        let solved = solve(&task.problem, method, Some(DEADLINE), &mut |_, _, _| ());
        let Some(plan) = solved.plan else { continue };
        verify(&task.problem, &plan).unwrap_or_else(|fault| panic!("{name}: {fault}"));
        assert!(plan.peak >= solved.lower_bound, "{name}: {} below {}", plan.peak, solved.lower_bound);
        let rows = task.rows(&plan);
        if matches!(task.source, Source::Operators { .. }) {
            continue;
        }
        let mut table = csv::Writer::from_writer(Vec::new());
        rows.iter().for_each(|row| table.write_record(row).expect("a vector takes everything"));
        let table = table.into_inner().expect("a vector takes everything");
        let again = plan::load_bytes(file(), &table, &Reading::default()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(again[0].problem.buffers.len(), task.problem.buffers.len(), "{name}");
    }
}

/// Reads a table of costs, and looks up costs.
///
/// # Panics
/// If an estimate panics, or differs from the table for a size in the table.
pub fn costs(bytes: &[u8]) {
    let Some(costs) = accepted(parse_costs(file(), bytes)) else { return };
    for call in Call::ALL {
        for size in [0, 1, 4096, 2 << 20, u64::MAX] {
            costs.ns(call, size);
        }
        for point in costs.points(call) {
            assert_eq!(costs.ns(call, point.bytes), point.ns, "{call:?} on {} bytes", point.bytes);
        }
    }
}
