//! `--from` and `--to` of `inspect`, `view`, `diff` and `export`, on a recording of a GPU with the
//! annotations of its three steps. The figures come from sums over its events.

use crate::common::{Finished, cachalot, folder, write};
use cachalot_snapshot::Snapshot;
use flate2::read::GzDecoder;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

fn recording() -> PathBuf {
    named("profile_annotated")
}

fn named(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/answers/recordings/{name}.pickle.gz"))
}

fn read() -> Snapshot {
    let file = File::open(recording()).expect("a recording");
    cachalot_snapshot::read_from(BufReader::new(GzDecoder::new(file))).expect("a snapshot")
}

/// Bytes reserved, allocated and pending after each number of events, from the first event on. A
/// block that is there at the end has its own size, and any other one the rounded request.
fn states(snapshot: &Snapshot) -> Vec<[u64; 3]> {
    let ends = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
    let ends: HashMap<u64, u64> = ends.map(|block| (block.address.expect("an address"), block.size)).collect();
    let trace = &snapshot.device_traces[0];
    let is_freed = |from: usize, address: Option<u64>| {
        trace[from..].iter().any(|event| event.action == "free_completed" && event.addr == address)
    };
    let (mut sums, mut sizes) = ([0_u64; 3], HashMap::new());
    let mut states = vec![sums];
    for (number, event) in trace.iter().enumerate() {
        let (address, size) = (event.addr.expect("an address"), event.size.unsigned_abs());
        match &*event.action {
            "segment_alloc" => sums[0] += size,
            "alloc" => {
                let size = if is_freed(number, event.addr) { size.next_multiple_of(512) } else { ends[&address] };
                sizes.insert(address, size);
                sums[1] += size;
            }
            "free_requested" => {
                sums[1] -= sizes[&address];
                sums[2] += sizes[&address];
            }
            "free_completed" => sums[2] -= sizes.remove(&address).expect("a block"),
            other => panic!("{other}"),
        }
        states.push(sums);
    }
    states
}

/// The events of a step, by the times of its annotation.
fn step(snapshot: &Snapshot, name: &str) -> (usize, usize) {
    let marks = snapshot.external_annotations.as_ref().expect("annotations");
    let time = |stage: &str| marks.iter().find(|mark| mark.name == name && mark.stage == stage).expect(name).time_us;
    let trace = &snapshot.device_traces[0];
    let count = |is: &dyn Fn(i64) -> bool| trace.iter().filter(|event| is(event.time_us.expect("a time"))).count();
    (count(&|at| at < time("START")), count(&|at| at <= time("END")))
}

fn run(arguments: &[&str], file: &Path) -> Finished {
    cachalot(arguments.iter().map(Path::new).chain([file]))
}

fn json_of(arguments: &[&str]) -> Value {
    let finished = run(arguments, &recording());
    assert_eq!(finished.status, 0, "{}", finished.errors);
    finished.json().remove(0)
}

#[test]
fn a_report_is_about_the_end_of_its_range_and_the_peaks_in_it() {
    let snapshot = read();
    let (states, (from, to)) = (states(&snapshot), step(&snapshot, "step 1"));
    assert!(from > 1000 && to - from > 500 && to < states.len() - 500, "{from} {to}");
    let report = json_of(&["inspect", "--json", "--from=step:1", "--to=step:1"]);
    let span = &report["range"]["devices"][0];
    assert_eq!((&span["from_event"], &span["to_event"]), (&json!(from), &json!(to)));
    let totals = &report["totals"][0];
    let sums = ["reserved", "allocated", "pending"].map(|key| totals[key].as_u64().expect(key));
    assert_eq!((sums, &totals["events"]), (states[to], &json!(to - from)));
    let peaks = report["peaks"].as_array().expect("a list");
    let of = |key: &str| peaks.iter().map(|peak| peak[key].as_u64().expect(key)).max();
    assert_eq!(of("reserved"), states[from..=to].iter().map(|state| state[0]).max());
    let in_use = states[from..=to].iter().map(|state| state[1] + state[2]).max().expect("a state");
    let fullest = peaks.iter().find(|peak| peak["of"] != "reserved").expect("a peak");
    assert_eq!(
        fullest["allocated"].as_u64().zip(fullest["pending"].as_u64()).map(|(one, other)| one + other),
        Some(in_use)
    );
    assert!((from..=to).contains(&(fullest["event"].as_u64().expect("a number") as usize)));
    // What is from before the step and outlives it: the weights and the state of the optimizer.
    let earlier: u64 =
        report["largest"].as_array().expect("a list").iter().filter_map(|group| group["earlier"].as_u64()).sum();
    assert!(earlier > 500 << 20, "{earlier}");
    let text = run(&["inspect", "--from=step:1", "--to=step:1"], &recording()).output;
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let number = |number: usize| format!("{},{:03}", number / 1000, number % 1000);
    let first = format!("In the range (events {} to {} of {}, ", number(from), number(to), number(states.len() - 1));
    assert!(words.starts_with(&first) && words.contains(" were reserved at the peak, for at most "), "{text}");
    for part in ["; from before the range", "At the peaks of the range", "Blocks not free at the end of the range, "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("Only the last") && !text.contains("before recording began"), "{text}");
}

#[test]
fn one_snapshot_is_compared_with_itself_at_another_moment() {
    let snapshot = read();
    let (states, (from, to)) = (states(&snapshot), step(&snapshot, "step 0"));
    let line = json_of(&["diff", "--json", "--from=step:0", "--to=annotation:step 0"]);
    let device = &line["devices"][0];
    for (when, at) in [("before", from), ("after", to)] {
        let sums = ["reserved", "allocated", "pending"].map(|key| device[when][key].as_u64().expect(key));
        assert_eq!(sums, states[at], "{when}");
    }
    let growth: i64 =
        line["stacks"].as_array().expect("a list").iter().filter_map(|stack| stack["growth"].as_i64()).sum();
    let held = |at: usize| (states[at][1] + states[at][2]).cast_signed();
    assert_eq!(growth, held(to) - held(from));
    let text = run(&["diff", &format!("--from={from}"), &format!("--to={to}")], &recording()).output;
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.starts_with("In events ") && words.contains(": The blocks that are not free went from "), "{text}");
    let missing = run(&["diff"], &recording());
    assert!(missing.status == 2 && missing.errors.contains("<AFTER>"), "{}", missing.errors);
    let peaks = run(&["diff", "--at=reserved", "--from=step:1"], &recording());
    assert!(peaks.status == 2 && peaks.errors.contains("--at compares two snapshots"), "{}", peaks.errors);
}

#[test]
fn a_page_shows_the_range_with_the_numbers_of_the_whole_history() {
    let snapshot = read();
    let (states, (from, to)) = (states(&snapshot), step(&snapshot, "step 1"));
    let page = folder("page").join("page.html");
    let page = page.to_str().expect("a name");
    let line = json_of(&["view", "--json", "-o", page, "--from=step:1", "--until=step:1"]);
    let answer = &line["answer"];
    assert_eq!(answer["events"], states.len() - 1);
    let event = answer["event"].as_u64().expect("a number") as usize;
    assert!((from..=to).contains(&event), "{event}");
    assert_eq!(answer["peak_reserved_bytes"], json!(states[from..=to].iter().map(|state| state[0]).max()));
    let in_use = states[from..=to].iter().map(|state| state[1] + state[2]).max();
    assert_eq!(answer["fullest"]["in_use_bytes"], json!(in_use));
    let sentence = answer["sentence"].as_str().expect("a sentence");
    assert!(sentence.starts_with("In the range (events ") && sentence.contains(" of the range."), "{sentence}");
    let replayed =
        run(&["view", "--json", "-o", page, "--from=step:1", "--config=expandable_segments:True"], &recording());
    assert_eq!((replayed.status, replayed.json().len()), (0, 2), "{}", replayed.errors);
    let record = run(&["view", "-o", page, "--from=3"], &crate::common::trace("mlp_seed.csv.gz"));
    assert!(
        record.status == 2 && record.errors.contains("--from and --to need a memory snapshot"),
        "{}",
        record.errors
    );
}

#[test]
fn a_range_is_exported_as_a_record_that_can_be_replayed() {
    let snapshot = read();
    let (states, (from, to)) = (states(&snapshot), step(&snapshot, "step 1"));
    let place = folder("export");
    let range = ["--from=step:1", "--until=step:1"];
    let export = |format: &str, name: &str| {
        let output = place.join(name);
        let arguments = ["export", "--to", format, "-o", output.to_str().expect("a name"), range[0], range[1]];
        let finished = run(&arguments, &recording());
        assert_eq!(finished.status, 0, "{format}: {}", finished.errors);
        output
    };
    let record = export("csv", "step.csv");
    let lines = std::fs::read_to_string(&record).expect("a record").lines().count();
    assert_eq!(lines, 1 + to - from);
    let replayed = run(&["replay", "--json"], &record);
    assert_eq!(replayed.status, 0, "{}", replayed.errors);
    let metrics = std::fs::read_to_string(export("openmetrics", "step.txt")).expect("metrics");
    let value = |family: &str| -> u64 {
        let lines = metrics.lines().filter(|line| line.starts_with(&format!("{family}{{")));
        lines.map(|line| line.rsplit_once(' ').expect("a value").1.parse::<u64>().expect("a number")).sum()
    };
    assert_eq!(value("cachalot_recorded_events"), (to - from) as u64);
    assert!(metrics.contains(&states[to][0].to_string()), "{metrics}");
    for (format, name) in [("perfetto", "step.pftrace"), ("pprof", "step.pb.gz")] {
        assert!(std::fs::metadata(export(format, name)).expect(format).len() > 1000, "{format}");
    }
    if cfg!(feature = "sqlite") {
        export("sqlite", "step.db");
    }
}

#[test]
fn every_run_writes_the_same_bytes() {
    let folder = folder("range_bytes");
    let written = |words: &[&str], of: &str, run: u32| {
        let output = folder.join(format!("{}.{of}.{run}", words.join("_").replace(':', "_")));
        let finished = cachalot(words.iter().map(Path::new).chain([&*named(of), Path::new("-o"), &output]));
        assert_eq!(finished.status, 0, "{words:?}: {}", finished.errors);
        std::fs::read(output).expect("a file")
    };
    // A history that begins in the middle, and one with steps.
    let commands: [(&[&str], &str); 5] = [
        (&["view"], "overflow"),
        (&["view", "--from=step:1", "--to=step:1"], "profile_annotated"),
        (&["export", "--to=perfetto"], "overflow"),
        (&["export", "--to=perfetto", "--from=step:1", "--until=step:1"], "profile_annotated"),
        (&["export", "--to=pprof"], "overflow"),
    ];
    for (words, of) in commands {
        let first = written(words, of, 0);
        assert!((1..4).all(|run| written(words, of, run) == first), "{words:?}");
    }
}

#[test]
fn a_bad_range_is_an_error_that_says_what_there_is() {
    for (arguments, what) in [
        (&["inspect", "--from=9,000"][..], "--from: there is no event 9000: the history has 3341 events"),
        (&["view", "--to=1h"], "--to: 3600s is after the end: the history is 5.470652s long"),
        (&["diff", "--from=step:3"], "there is no step 3: the file has steps 0 to 2, by annotations such as `step 0`"),
        (&["inspect", "--from=annotation:x"], "the file has `step 0`, `Optimizer.step#AdamW.step` (3 times), "),
        (&["inspect", "--from=step:1", "--to=step:0"], "no event is in the range: it begins after "),
        (&["inspect", "--from=soon"], "`soon` is no moment of a history: expected a number of events (1200), "),
    ] {
        let finished = run(arguments, &recording());
        assert_eq!((finished.status, finished.output.as_str()), (2, ""), "{arguments:?}");
        assert!(finished.errors.contains(what), "{arguments:?}: {}", finished.errors);
    }
    let end = write(&folder("bad"), "end.json", json!({"segments": [], "device_traces": [[]]}).to_string());
    let finished = run(&["inspect", "--from=1"], &end);
    assert!(finished.errors.contains("no events were recorded, and without a history there is no range"));
}
