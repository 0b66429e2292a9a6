//! `cachalot inspect` and `cachalot snapshot`: the report on snapshots, and the snapshot at the end
//! of a record.

use crate::common::{self, Finished, cachalot, folder, trace, write};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const MIB: u64 = 1 << 20;

fn inspect(file: &Path) -> Value {
    let finished = cachalot([Path::new("inspect"), Path::new("--json"), file]);
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    let [report] = finished.json().try_into().expect("one line");
    report
}

fn text(file: &Path) -> String {
    let finished = cachalot([Path::new("inspect"), Path::new("--wide"), file]);
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    finished.output
}

/// Builds a block in the form of a snapshot.
fn block(address: u64, size: u64, state: &str, function: &str) -> Value {
    let frames = if function.is_empty() {
        json!([])
    } else {
        json!([{"name": function, "filename": "model.py", "line": 3}, {"name": "main", "filename": "model.py", "line": 9}])
    };
    json!({"address": address, "size": size, "requested_size": size, "state": state, "frames": frames})
}

fn event(action: &str, addr: u64, size: u64, stream: u64, time_us: u64) -> Value {
    json!({"action": action, "addr": addr, "size": size, "stream": stream, "time_us": time_us, "frames": []})
}

/// Builds two segments on two streams. A request of 24 MiB fails on the first stream. Then the
/// pending free completes, and a block is freed.
fn made_up() -> Value {
    let segment = |address: u64, total: u64, stream: u64, blocks: Value| {
        json!({"device": 0, "address": address, "total_size": total, "stream": stream, "segment_type": "large",
            "segment_pool_id": [0, 0], "is_expandable": false, "blocks": blocks})
    };
    let (here, there) = (0x1000_0000, 0x4000_0000);
    json!({
        "segments": [
            segment(here, 40 * MIB, 0, json!([
                block(here, 8 * MIB, "active_allocated", "forward"),
                block(here + 8 * MIB, 12 * MIB, "inactive", ""),
                block(here + 20 * MIB, 4 * MIB, "active_allocated", "backward"),
                block(here + 24 * MIB, 16 * MIB, "inactive", ""),
            ])),
            segment(there, 30 * MIB, 7, json!([block(there, 30 * MIB, "inactive", "")])),
        ],
        "device_traces": [[
            event("alloc", here, 8 * MIB, 0, 1000),
            event("alloc", here + 8 * MIB, 12 * MIB, 0, 2000),
            event("alloc", here + 20 * MIB, 4 * MIB, 0, 3000),
            event("alloc", there, 30 * MIB, 7, 4000),
            event("free_requested", here + 8 * MIB, 12 * MIB, 0, 5000),
            {"action": "oom", "device_free": MIB, "size": 24 * MIB, "stream": 0, "time_us": 6000, "frames": []},
            event("free_completed", here + 8 * MIB, 12 * MIB, 0, 7000),
            event("free_requested", there, 30 * MIB, 7, 8000),
            event("free_completed", there, 30 * MIB, 7, 8000),
            {"action": "oom", "device_free": MIB, "size": 24 * MIB, "stream": 0, "time_us": 9000, "frames": []},
        ]],
    })
}

#[test]
fn what_lies_on_the_host_is_shown_by_device_and_segment() {
    let mut snapshot = made_up();
    snapshot["segments"][0]["spilled_size"] = json!(18 * MIB);
    let folder = folder("on_the_host");
    let file = write(&folder, "on_the_host.json", snapshot.to_string());
    let report = inspect(&file);
    let figures = [&report["totals"][0], &report["segments"][0]].map(|part| part["spilled"].clone());
    assert_eq!(figures, [json!(18 * MIB), json!(18 * MIB)]);
    assert_eq!(report["totals"][0]["reserved"], 70 * MIB, "it is a part of what is reserved");
    let text = text(&file);
    assert_eq!((text.matches("on the host").count(), text.matches("18.00 MiB").count()), (3, 2), "{text}");
    assert_eq!((&report["peaks"][0]["spilled"], &report["failures"][1]["spilled"]), (&Value::Null, &Value::Null));
    // Events say when how much lay there.
    let trace = snapshot["device_traces"][0].as_array_mut().expect("a list");
    for (place, bytes) in [(6, 5 * MIB), (1, 20 * MIB)] {
        let mut told = event("user_defined", 0, bytes, 0, 1500);
        told["spilled_size"] = bytes.into();
        trace.insert(place, told);
    }
    let report = inspect(&write(&folder, "told.json", snapshot.to_string()));
    let told = |part: &str, number: usize| report[part][number]["spilled"].as_u64().map(|bytes| bytes / MIB);
    assert_eq!([told("peaks", 0), told("failures", 0), told("failures", 1)], [Some(20), Some(20), Some(5)]);
}

#[test]
fn totals_stacks_segments_and_failures_of_a_snapshot_that_can_be_done_by_hand() {
    let file = write(&folder("made_up"), "made_up.json", made_up().to_string());
    let report = inspect(&file);
    assert_eq!(
        report["totals"],
        json!([{
            "device": 0, "segments": 2, "reserved": 70 * MIB, "reserved_private": 0, "allocations": 2,
            "allocated": 12 * MIB, "requested": 12 * MIB, "pending": 0, "cached": 58 * MIB, "free_blocks": 3,
            "largest_free": 30 * MIB, "in_holes": 28 * MIB, "largest_hole": 16 * MIB, "fragmentation": 1.0 - 16.0 / 28.0,
            "releasable": 30 * MIB, "kept": 0, "parked": 0, "spilled": 0, "streams": 2, "events": 10,
        }])
    );
    // The peak is before the fifth event, 5 ms before the end: 8 + 12 + 4 + 30 MiB. All memory was
    // there from the start.
    let [allocated] = report["peaks"].as_array().expect("a list").as_slice() else { panic!("{report}") };
    let sizes =
        ["event", "before_end_us", "reserved", "allocated", "pending", "releasable", "in_holes", "largest_hole"]
            .map(|key| allocated[key].as_u64().expect(key));
    assert_eq!(allocated["of"], "both");
    assert_eq!(sizes, [4, 5000, 70 * MIB, 54 * MIB, 0, 0, 16 * MIB, 16 * MIB]);
    assert_eq!(allocated["largest"][0]["bytes"], 54 * MIB);
    let group = |line: &str, bytes: u64, events: u64, us: u64| {
        json!({"stack": [line, "model.py:9 main"], "shown": [line, "model.py:9 main"], "blocks": 1, "bytes": bytes, "pending": 0, "largest": bytes,
            "oldest_events": events, "oldest_us": us})
    };
    let (forward, backward) =
        (group("model.py:3 forward", 8 * MIB, 10, 8000), group("model.py:3 backward", 4 * MIB, 8, 6000));
    assert_eq!(report["largest"], json!([forward, backward]));
    assert_eq!(report["oldest"], json!([forward, backward]));
    let [segment] = report["segments"].as_array().expect("a list").as_slice() else { panic!("{report}") };
    assert_eq!((&segment["free"], &segment["largest_free"]), (&(28 * MIB).into(), &(16 * MIB).into()));
    assert_eq!((&segment["blocks_in_use"], &segment["free_blocks"]), (&2.into(), &2.into()));

    let [first, second] = report["failures"].as_array().expect("a list").as_slice() else { panic!("{report}") };
    // The other stream's segment was full. In the first stream's segment 16 MiB were free, and 12
    // MiB next to them pending.
    let then = |failure: &Value| {
        ["allocated", "pending", "cached", "largest_free_here", "largest_free_elsewhere", "largest_free_if_waited"]
            .map(|key| failure[key].as_u64().expect(key) / MIB)
    };
    assert_eq!(then(first), [42, 12, 16, 16, 0, 16]);
    assert_eq!((&first["remedies"], &first["missing"]), (&json!([]), &0.into()));
    assert_eq!(then(second), [12, 0, 58, 16, 30, 16]);
    assert_eq!(second["remedies"], json!(["release_cached", "share_streams", "defragment"]));
    assert_eq!((&second["if_released"], &second["if_in_one_piece"]), (&(31 * MIB).into(), &(29 * MIB).into()));

    let text = text(&file);
    for part in [
        "70.00 MiB",
        "42.9 %",
        "8.00 MiB  in 1 block, the largest 8.00 MiB; the oldest 8.0 ms old\n              model.py:3 forward\n",
        "Out of memory on device 0 (event 9): 24.00 MiB wanted on stream default",
        "2 requests failed, the largest of 24.00 MiB; enough would have been 94.00 MiB for this process, which had 71.00 MiB, or free",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn pytorchs_own_snapshots_are_told_of() {
    let report = inspect(&trace("multistream_prefetch__stacks.pickle.gz"));
    let totals = &report["totals"][0];
    assert_eq!((&totals["events"], &totals["segments"], &totals["streams"]), (&25447.into(), &52.into(), &3.into()));
    assert_eq!(totals["reserved"].as_u64().expect("bytes") % (2 * MIB), 0);
    let sum = ["allocated", "pending", "cached"].map(|key| totals[key].as_u64().expect(key)).iter().sum::<u64>();
    assert_eq!(sum, totals["reserved"].as_u64().expect("bytes"));
    // The peak of reserved memory was long before the end, for the latest request at the time.
    let peak = &report["peaks"][0];
    assert_eq!((&peak["of"], &peak["reserved"]), (&json!("reserved"), &totals["reserved"]));
    assert!(
        peak["event"].as_u64().expect("a number") < 25_000 && peak["largest"][0]["oldest_events"] != json!(null),
        "{peak}"
    );
    assert!(peak["allocated"].as_u64() > totals["allocated"].as_u64(), "{peak}");
    let stacks = report["largest"].as_array().expect("a list");
    assert!(
        stacks.iter().any(|group| group["stack"][0].as_str().is_some_and(|line| line.contains(".py:"))),
        "{stacks:?}"
    );
    let bytes: Vec<u64> = stacks.iter().map(|group| group["bytes"].as_u64().expect("bytes")).collect();
    assert!(bytes.is_sorted_by(|one, other| one >= other));
}

/// Builds a block with `stack`, the innermost frame first, in a state.
fn with_stack(state: &str, stack: &[&str]) -> Value {
    let frames: Vec<Value> = stack.iter().map(|file| json!({"name": "call", "filename": file, "line": 1})).collect();
    json!({"address": 0x1000_0000, "size": 2 * MIB, "requested_size": MIB, "state": state, "frames": frames})
}

fn of_one_block(test: &str, block: &Value) -> String {
    let segment = json!({"device": 0, "address": 0x1000_0000, "total_size": 2 * MIB, "stream": 0, "segment_pool_id": [0, 3],
        "blocks": [block]});
    let snapshot = json!({"segments": [segment], "device_traces": [[]]});
    text(&write(&folder(test), "one.json", snapshot.to_string()))
}

#[test]
fn own_frames_come_before_those_of_pytorch() {
    let module = "/usr/lib/site-packages/torch/nn/modules/module.py";
    let stack = [module, "torch/nn/functional.py", "train.py", module, "main.py"];
    let told = of_one_block("own_frames", &with_stack("active_allocated", &stack));
    let lines = "train.py:1 call\n              main.py:1 call\n              … 3 frames hidden\n";
    assert!(told.contains(lines), "{told}");
    let only = of_one_block("no_own_frames", &with_stack("active_allocated", &stack[..2]));
    assert!(only.contains("functional.py:1 call\n") && !only.contains("hidden"), "{only}");
    let none = of_one_block("no_frames", &with_stack("active_allocated", &[]));
    assert!(none.contains("no stack was recorded: call torch.cuda.memory._record_memory_history()"), "{none}");
}

#[test]
fn what_is_pending_is_neither_allocated_nor_requested() {
    let told = of_one_block("pending", &with_stack("active_pending_free", &["train.py"]));
    assert!(told.contains("2.00 MiB  in 1 block, the largest 2.00 MiB; pending: freed, and still used by"), "{told}");
    let report = inspect(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("inspect/pending/one.json"));
    let totals = ["allocated", "requested", "pending"].map(|key| report["totals"][0][key].as_u64().expect(key));
    assert_eq!(totals, [0, 0, 2 * MIB]);
}

fn snapshot(arguments: &[&str], record: &Path, to: &Path) -> Finished {
    let paths = [Path::new("snapshot"), record, Path::new("-o"), to].map(Path::as_os_str);
    cachalot(paths.into_iter().chain(arguments.iter().map(AsRef::as_ref)))
}

#[test]
fn the_snapshot_of_a_replay_under_any_policy_names_it() {
    let to = folder("policies").join("end.json");
    for policy in ["bfc", "planned"] {
        let finished = snapshot(&["--policy", policy], &trace("mlp_seed.csv.gz"), &to);
        assert_eq!(finished.status, 0, "{}", finished.errors);
        let written: Value = serde_json::from_slice(&fs::read(&to).expect("written")).expect("JSON");
        let settings = written["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"].as_str().expect("a text");
        assert!(settings.contains(&format!("policy:{policy}")), "{settings}");
    }
}

#[test]
fn the_snapshot_of_a_replay_is_the_recorded_programs_and_can_be_replayed_itself() {
    let folder = folder("snapshot");
    for record in [trace("resnet50_amp__expandable.csv.gz"), trace("gpt2_varlen__oom.csv.gz")] {
        let (pickle, text) = (folder.join("end.pickle"), folder.join("end.json"));
        for to in [&pickle, &text] {
            let finished = snapshot(&[], &record, to);
            assert_eq!((finished.status, finished.output.as_str()), (0, ""), "{}", finished.errors);
        }
        let [written, read] = [&pickle, &text].map(|file| cachalot_snapshot::read(&fs::read(file).expect("written")));
        let written = written.expect("a pickle");
        assert_eq!(written, read.expect("JSON"));
        // The snapshot has every event of the record, and leads to the recorded end.
        let events = written.device_traces[0].len();
        let csv = common::text_of(&record.file_name().expect("a name").to_string_lossy());
        assert_eq!(events, csv.lines().count() - 1, "{}", record.display());
        let finished = cachalot([Path::new("replay"), Path::new("--check"), Path::new("--json"), &pickle]);
        if !record.to_string_lossy().contains("oom") {
            assert_eq!((finished.status, &finished.json()[0]["mismatches"]), (0, &0.into()), "{}", finished.errors);
        }
    }
    let report = inspect(&folder.join("end.pickle"));
    assert_eq!(report["failures"].as_array().expect("a list").len(), 1);
}

#[test]
fn another_policy_ends_in_another_snapshot() {
    let folder = folder("other_policy");
    let to = folder.join("end.json");
    let finished = snapshot(&["--policy", "bfc"], &trace("mlp_seed.csv.gz"), &to);
    assert_eq!(finished.status, 0, "{}", finished.errors);
    let report = inspect(&to);
    // The segments of `bfc` double in size, unlike the 16 segments of the record.
    assert_eq!(report["totals"][0]["segments"], 6, "{report}");
    let written: Value = serde_json::from_slice(&fs::read(&to).expect("written")).expect("JSON");
    assert_eq!(written["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"], "policy:bfc");
}

#[test]
fn what_is_no_snapshot_and_what_cannot_be_written_is_said_in_one_line() {
    let folder = folder("no_snapshot");
    let finished = cachalot([Path::new("inspect"), &trace("mlp_seed.csv.gz")]);
    assert_eq!((finished.status, finished.errors.lines().count()), (2, 1), "{}", finished.errors);
    let what = "mlp_seed.csv.gz: this is a record for `cachalot view`, `tune`, `compare`, `predict`, `plan` and `replay`: expected";
    assert!(finished.errors.contains(what), "{}", finished.errors);
    let prose = cachalot([Path::new("inspect"), &write(&folder, "readme.md", "# A title")]);
    assert!(prose.errors.contains("readme.md: not a memory snapshot: neither a pickle, as"), "{}", prose.errors);
    let mut huge = made_up();
    huge["segments"][0]["total_size"] = (1_u64 << 63).into();
    let finished = cachalot([Path::new("inspect"), &write(&folder, "huge.json", huge.to_string())]);
    assert_eq!(finished.status, 2);
    assert!(finished.errors.contains("huge.json: the sizes of the snapshot add up to"), "{}", finished.errors);
    // Events may say anything.
    let mut odd = made_up();
    for event in odd["device_traces"][0].as_array_mut().expect("a list") {
        event["size"] = i64::MAX.into();
    }
    inspect(&write(&folder, "odd.json", odd.to_string()));
    let finished = snapshot(&[], &trace("mlp_seed.csv.gz"), &folder.join("nowhere/end.pickle"));
    assert_eq!(finished.status, 2);
    assert!(finished.errors.contains("nowhere/end.pickle: No such file"), "{}", finished.errors);
}

#[test]
fn the_answer_comes_first() {
    let file = trace("multistream_prefetch__stacks.pickle.gz");
    let finished = cachalot(["inspect".into(), file.clone()]);
    let answer = finished.output.split("\n\n").next().expect("a paragraph");
    let words = answer.split_whitespace().collect::<Vec<_>>().join(" ");
    // As in the page of `view`, whose sentence is about the recorded peak as well.
    let expected = "4.42 GiB were reserved at the peak, for at most 2.21 GiB live (utilisation 50.1 %); \
                    `expandable_segments:True` would have saved 1.95 GiB of the 4.32 GiB that a replay with the recorded \
                    settings holds (45.0 %). When the most was in use, 232.98 MiB were stuck in holes \
                    of 32 segments.";
    assert_eq!(words, expected);
    let line = &cachalot(["inspect".into(), "--json".into(), file]).json()[0];
    let told = &line["answers"][0];
    assert_eq!((&told["record"], &told["sentence"]), (&"multistream_prefetch__stacks".into(), &words.as_str().into()));
    let [reserved, in_use] = line["peaks"].as_array().expect("a list").as_slice() else { panic!("{line}") };
    assert_eq!((&reserved["of"], &in_use["of"]), (&json!("reserved"), &json!("in_use")));
    assert_eq!(told["peak_reserved_bytes"], reserved["reserved"]);
    for (stuck, peak_of) in [
        ("reserved_bytes", "reserved"),
        ("hole_bytes", "in_holes"),
        ("idle_bytes", "releasable"),
        ("hole_segments", "hole_segments"),
        ("idle_segments", "releasable_segments"),
    ] {
        assert_eq!(told["fullest"][stuck], in_use[peak_of], "{stuck}");
    }
}

#[test]
fn without_a_history_the_answer_is_about_the_end() {
    let segment = r#"{"device": 0, "address": 1048576, "total_size": 4096, "stream": 0, "blocks": [
        {"address": 1048576, "size": 1024, "requested_size": 1000, "state": "active_allocated"},
        {"address": 1049600, "size": 3072, "requested_size": 0, "state": "inactive"}]}"#;
    let content = format!(r#"{{"segments": [{segment}], "device_traces": []}}"#);
    let finished = cachalot(["inspect".into(), write(&folder("end"), "end.json", content)]);
    let first = finished.output.split("\n\n").next().expect("a paragraph").replace('\n', " ");
    let expected =
        "4.00 KiB are reserved at the end, and 1.00 KiB of it in use; 3.00 KiB (75 %) are stuck in holes of 1 segment.";
    assert_eq!(first, expected);
}

#[test]
fn each_of_several_devices_has_its_own_end() {
    let segment = |device: u32, size: u64| {
        format!(
            r#"{{"device": {device}, "address": {}, "total_size": {size}, "stream": 0, "blocks": [
            {{"address": {0}, "size": {size}, "requested_size": 9, "state": "active_allocated"}}]}}"#,
            1_048_576 * (u64::from(device) + 1)
        )
    };
    let segments = [segment(0, 4096), segment(3, 8192)].join(",");
    let content = format!(r#"{{"segments": [{segments}], "device_traces": []}}"#);
    let finished = cachalot(["inspect".into(), write(&folder("ends"), "ends.json", content)]);
    let first = finished.output.split("\n\n").next().expect("a paragraph");
    let expected = "Device 0: 4.00 KiB are reserved at the end, and 4.00 KiB of it in use.\n\
                    Device 3: 8.00 KiB are reserved at the end, and 8.00 KiB of it in use.";
    assert_eq!(first, expected);
}
