//! The figures of the commands about a recording: the recorded peak to the byte, sums that add up,
//! and no advice that a replay does not confirm. On the recorded traces, and on generated programs.
//!
//! `CACHALOT_PROGRAMS=N` checks N generated programs and every recorded trace in full.

use crate::common::{cachalot, folder, traces_with};
use cachalot_core::simulated::{DriverCosts, SimulatedDevice};
use cachalot_core::{Config, PoolId, StreamId};
use cachalot_replay::inspect;
use cachalot_replay::program::{DEVICE, OnDevice, Operation, Run, Settings, Subject};
use cachalot_replay::recorded::RecordedPeaks;
use cachalot_replay::replay::{self, End};
use cachalot_replay::trace::Trace;
use cachalot_replay::tune::{self, Answer, Part, Stuck};
use cachalot_snapshot::Snapshot;
use fastrand::Rng;
use serde_json::Value;
use std::fs;
use std::path::Path;

const MIB: u64 = 1 << 20;

/// Number of generated programs without `CACHALOT_PROGRAMS`.
const PROGRAMS: u64 = 50;

/// One in so many generated programs is also given to the commands, without `CACHALOT_PROGRAMS`.
const COMMANDS_EVERY: u64 = 6;

/// Most events of a recorded trace whose advice is checked without `CACHALOT_PROGRAMS`.
const MOST_EVENTS: usize = 30_000;

/// The settings of generated programs.
const SETTINGS: [&str; 8] = [
    "",
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.6",
    "expandable_segments:True,large_segment_size_mb:32",
    "max_split_size_mb:64,roundup_power2_divisions:8",
];

fn campaign() -> Option<u64> {
    std::env::var("CACHALOT_PROGRAMS").ok().map(|text| text.parse().expect("a number of programs"))
}

/// A generated recording of a device.
struct Made {
    end: End,
    /// Peak of the bytes held by the device, from the first recorded event on.
    peak: u64,
}

/// Makes the calls of a program at random: requests of all sizes on up to three streams, uses on
/// other streams, calls that empty the cache.
fn operations(random: &mut Rng, count: usize) -> Vec<Operation> {
    let streams = [StreamId::DEFAULT, StreamId(7), StreamId(9)];
    let streams = &streams[..random.usize(1..=3)];
    let (mut made, mut held, mut free, mut slots) = (Vec::new(), Vec::new(), Vec::new(), 0);
    while made.len() < count {
        match random.u32(0..100) {
            0 => made.push(Operation::EmptyCache),
            1..=2 if streams.len() > 1 && !held.is_empty() => {
                let slot: u32 = held[random.usize(0..held.len())];
                made.push(Operation::RecordStream { slot, stream: *random.choice(streams).expect("a stream") });
            }
            kind @ 3..=55 if held.len() < 60 => {
                // An allocator finds that work is complete at the start of a request.
                if kind < 6 {
                    made.push(Operation::Complete { stream: *random.choice(streams).expect("a stream") });
                }
                let bytes = match random.u32(0..4) {
                    0 => random.u64(1..4096),
                    1 => random.u64(1..MIB),
                    2 => random.u64(MIB..24 * MIB),
                    _ => random.u64(1..6) * 4 * MIB,
                };
                let slot = free.pop().unwrap_or_else(|| {
                    slots += 1;
                    slots - 1
                });
                held.push(slot);
                made.push(Operation::Malloc { bytes, stream: *random.choice(streams).expect("a stream"), slot });
            }
            _ if !held.is_empty() => {
                let slot = held.swap_remove(random.usize(0..held.len()));
                free.push(slot);
                made.push(Operation::Free { slot });
            }
            _ => {}
        }
    }
    made
}

/// Runs a program and records it. With a ring, the first third is not recorded.
fn record(random: &mut Rng, config: &Config, is_ring: bool) -> Made {
    let operations = operations(random, 600);
    let settings = Settings { config: config.clone(), limit: None };
    let mut run = Run::new(OnDevice::create(SimulatedDevice::new(1 << 40), &settings).expect("an allocator"));
    // PyTorch does not search again, and a replay follows a record on this assumption.
    run.allocator.settings(DEVICE).expect("a setting").set_second_search(false);
    let (before, after) = operations.split_at(if is_ring { operations.len() / 3 } else { 0 });
    run.perform_all(before).expect("the program runs");
    run.device().reset_peak_used();
    run.allocator.trace(DEVICE).expect("room for a trace").record(1 << 16).expect("room for a trace");
    run.perform_all(after).expect("the program runs");
    let mut events = Vec::new();
    run.allocator.trace(DEVICE).expect("a trace").for_each(|entry| events.push(*entry));
    let segments = run.allocator.snapshot();
    let pools = vec![PoolId::DEFAULT; events.len()];
    Made { end: End { config: config.clone(), segments, events, pools }, peak: run.device().peak_used() }
}

fn adds_up(stuck: &Stuck, what: &str) {
    let sum = stuck.in_use_bytes + stuck.hole_bytes + stuck.idle_bytes + stuck.kept_bytes;
    assert_eq!(sum, stuck.reserved_bytes, "{what}: {stuck:?}");
}

/// Checks the sums of `inspect`, at the end and at the peaks.
fn report_adds_up(snapshot: &Snapshot, what: &str) {
    let report =
        inspect::inspect(snapshot, &inspect::Since::default(), inspect::Lists { most: 3, by: inspect::By::Stack });
    for totals in &report.totals {
        let sum = totals.allocated + totals.pending + totals.releasable + totals.kept + totals.in_holes;
        assert_eq!(sum, totals.reserved, "{what} at the end: {totals:?}");
    }
    for peak in &report.peaks {
        let sum = peak.allocated + peak.pending + peak.releasable + peak.kept + peak.in_holes;
        assert_eq!(sum, peak.reserved, "{what}: {peak:?}");
        assert!(peak.largest_hole <= peak.in_holes, "{what}: {peak:?}");
    }
}

/// Checks the answer about a recording, with a replay of the advised setting.
fn answer_holds(trace: &Trace, peak: u64, what: &str) -> Answer {
    let answer = tune::answer_of(trace);
    assert_eq!((answer.is_recorded, answer.peak_reserved_bytes), (true, peak), "{what}");
    assert!(answer.fullest.reserved_bytes <= peak && answer.peak_live_bytes <= peak, "{what}: {answer:?}");
    adds_up(&answer.fullest, what);
    let Some(better) = &answer.better else { return answer };
    let recorded = Config::parse(trace.config()).expect("the recorded settings");
    let advised = Config::parse(&better.config).expect("the advised settings");
    assert_ne!(advised, recorded, "{what}: {better:?}");
    assert!(better.needs_pytorch.is_none() || trace.has_late_keys != Some(false), "{what}: {better:?}");
    let program = replay::program(trace).expect("a program");
    let part = Part { program, limit: RecordedPeaks::of(trace).limit_bytes, ..Part::default() };
    let cost = tune::cost::<OnDevice>(&part, &advised, &DriverCosts::h200(), &|| false).expect("the program runs");
    assert_eq!((cost.reserved_bytes, cost.ooms), (better.peak_reserved_bytes, better.ooms), "{what}: {better:?}");
    let least = peak.min(answer.replayed_bytes.expect("a replay")) as f64;
    assert!(cost.ooms < answer.ooms || (cost.reserved_bytes as f64) < least * 0.98, "{what}: {answer:?}");
    answer
}

/// Checks what the commands print of a file against the peaks of the devices.
fn commands_agree(file: &Path, peaks: &[u64], what: &str) {
    let run = |arguments: &[&str]| {
        let finished = cachalot(arguments.iter().map(Path::new).chain([file]));
        assert_eq!(finished.status, 0, "{what}: {arguments:?}: {}", finished.errors);
        finished.json()
    };
    let of = |line: &Value| line["peak_reserved_bytes"].as_u64().expect("bytes");
    let first = |lines: Vec<Value>| -> Vec<u64> {
        let recorded = lines.iter().filter(|line| line["is_recorded"] == true);
        recorded.map(of).collect()
    };
    assert_eq!(first(run(&["compare", "--json", "--repeat=1", "--policy=bfc"])), peaks, "{what}: compare");
    assert_eq!(first(run(&["predict", "--json", "--policy=bfc"])), peaks, "{what}: predict");
    let tuned = run(&["tune", "--json", "--trials=1", "--apply-to=torch"]).remove(0);
    let recorded = tuned["recorded"].as_array().expect("a list");
    assert_eq!(recorded.iter().map(of).collect::<Vec<_>>(), peaks, "{what}: tune");
    let page = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("truth_{}.html", file.file_name().expect("a name").display()));
    let view = run(&["view", "--json", "-o", page.to_str().expect("a name")]);
    for (line, &peak) in view.iter().zip(peaks) {
        let answer = &line["answer"];
        let number = |key: &str| answer["fullest"][key].as_u64().expect(key);
        assert_eq!(of(answer), peak, "{what}: view");
        let sum = number("in_use_bytes") + number("hole_bytes") + number("idle_bytes") + number("kept_bytes");
        assert_eq!(sum, number("reserved_bytes"), "{what}: view");
        // One fold makes the sentence, and another the page.
        assert_eq!(answer["of_record"]["fullest"], answer["fullest"], "{what}: view");
    }
    if file.extension().is_some_and(|ending| ending == "gz") {
        return;
    }
    let report = run(&["inspect", "--json"]).remove(0);
    let answers = report["answers"].as_array().expect("a list");
    assert_eq!(answers.iter().map(of).collect::<Vec<_>>(), peaks, "{what}: inspect");
    for (answer, line) in answers.iter().zip(&view) {
        let sentence = answer["sentence"].as_str().expect("a sentence");
        let begin = |text: &Value| text.as_str().is_some_and(|text| text.starts_with(sentence));
        assert!(begin(&line["answer"]["sentence"]), "{what}: {answer} and {line}");
    }
}

#[test]
fn generated_programs_are_told_to_the_byte() {
    let place = folder("generated");
    for seed in 0..campaign().unwrap_or(PROGRAMS) {
        let mut random = Rng::with_seed(seed);
        let config = random.choice(SETTINGS).expect("settings");
        let (devices, is_ring) = (if seed % 5 == 4 { 2 } else { 1 }, seed % 3 == 2);
        let what = format!("seed {seed}: {devices} devices, ring: {is_ring}, `{config}`");
        let parsed = Config::parse(config).expect(config);
        let made: Vec<Made> = (0..devices).map(|_| record(&mut random, &parsed, is_ring)).collect();
        let peaks: Vec<u64> = made.iter().map(|made| made.peak).collect();
        let file = place.join(format!("{seed}.pickle"));
        cachalot_replay::snapshot::write(made.into_iter().map(|made| made.end).collect(), &file).expect("a file");
        let snapshot = cachalot_snapshot::read(&fs::read(&file).expect("the file")).expect("a snapshot");
        report_adds_up(&snapshot, &what);
        tune::at_end(&snapshot).values().for_each(|end| adds_up(end, &what));
        let traces = Trace::load(&file).expect("records");
        for (trace, &peak) in traces.iter().zip(&peaks) {
            answer_holds(trace, peak, &what);
            let fold = RecordedPeaks::of(trace).fullest;
            let report = inspect::inspect(
                &snapshot,
                &inspect::Since::default(),
                inspect::Lists { most: 1, by: inspect::By::Stack },
            );
            let full = report.peaks.iter().rfind(|peak| peak.device == trace.device).expect("a peak");
            assert_eq!((fold.hole_bytes, fold.idle_bytes), (full.in_holes, full.releasable), "{what}");
        }
        if campaign().is_some() || seed % COMMANDS_EVERY == 0 {
            commands_agree(&file, &peaks, &what);
        }
    }
}

#[test]
fn recorded_programs_are_told_to_the_byte() {
    let files = traces_with(".csv.gz");
    assert_eq!(files.len(), 20);
    for file in &files {
        let what = file.display().to_string();
        let trace = Trace::load(file).expect("a record").remove(0);
        let expected = trace.expected.as_ref().expect("the recorded end");
        let peak = expected.stats["reserved_bytes.all.peak"].cast_unsigned();
        let recorded = RecordedPeaks::of(&trace);
        assert_eq!(recorded.peak_reserved_bytes, peak, "{what}");
        adds_up(&recorded.fullest, &what);
        if campaign().is_some() || trace.events.len() <= MOST_EVENTS {
            answer_holds(&trace, peak, &what);
        }
        if campaign().is_some() || ["cuda_graphs__graph", "gpt2_varlen__oom"].contains(&trace.name.as_str()) {
            commands_agree(file, &[peak], &what);
        }
    }
    for file in traces_with(".pickle.gz") {
        let snapshot = cachalot_replay::trace::snapshot::load(&file).expect("a snapshot");
        report_adds_up(&snapshot, &file.display().to_string());
        tune::at_end(&snapshot).values().for_each(|end| adds_up(end, &file.display().to_string()));
    }
}

#[test]
fn a_snapshot_of_a_recording_has_the_answer_of_the_recording() {
    let place = folder("snapshots");
    for name in ["resnet50_amp__expandable", "multistream_prefetch__expandable"] {
        let record = crate::common::trace(&format!("{name}.csv.gz"));
        let file = place.join(format!("{name}.json"));
        let arguments = [Path::new("snapshot"), &record, Path::new("-o"), &file];
        assert_eq!(cachalot(arguments).status, 0);
        let snapshot = cachalot_snapshot::read(&fs::read(&file).expect("the file")).expect("a snapshot");
        report_adds_up(&snapshot, name);
        let [of_record, of_snapshot] =
            [&record, &file].map(|file| RecordedPeaks::of(&Trace::load(file).expect("one")[0]));
        assert_eq!(of_record, of_snapshot, "{name}");
    }
}
