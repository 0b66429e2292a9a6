//! Histories as people record them: with the defaults, from the middle, with actions left out, at
//! an error.

use crate::common::{cachalot, folder, write};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;
const HERE: u64 = 0x7f00_0000_0000;

/// The innermost frames of every recording with the defaults, and a line of the program.
fn stack(line: u64) -> Value {
    let frame = |name: &str, file: &str, line: u64| json!({"name": name, "filename": file, "line": line});
    json!([
        frame("torch::unwind::unwind()", "??", 0),
        frame("torch::CapturedTraceback::gather(bool, bool, bool)", "??", 0),
        frame("c10::cuda::CUDACachingAllocator::malloc(unsigned long)", "CUDACachingAllocator.cpp", 0),
        frame(&format!("at::native::kernel_{line}(at::Tensor const&)"), "??", 0),
        frame("_PyEval_EvalFrameDefault", "??", 0),
        frame("step", "/app/train.py", line / 10),
    ])
}

fn event(action: &str, addr: u64, size: u64, time_us: u64) -> Value {
    json!({"action": action, "addr": addr, "size": size, "stream": 0, "time_us": time_us, "frames": stack(time_us)})
}

fn block(address: u64, size: u64, state: &str) -> Value {
    json!({"address": address, "size": size, "requested_size": size, "state": state, "frames": []})
}

fn segment(address: u64, total: u64, pool: [u64; 2], blocks: &Value) -> Value {
    json!({"device": 0, "address": address, "total_size": total, "stream": 0, "segment_type": "large",
        "segment_pool_id": pool, "is_expandable": false, "blocks": blocks})
}

fn snapshot(segments: &[Value], events: &[Value]) -> Value {
    json!({"segments": segments, "device_traces": [events], "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""}})
}

/// Writes a snapshot, and returns what `inspect` prints and its object.
fn inspect(name: &str, snapshot: &Value) -> (String, Value) {
    let file = write(&folder(name), "made.json", snapshot.to_string());
    let run = |option: &str| cachalot([Path::new("inspect"), Path::new(option), &file]);
    let (text, json) = (run("--wide"), run("--json"));
    assert_eq!((text.status, text.errors.as_str(), json.status), (0, "", 0), "{name}");
    (text.output, json.json().remove(0))
}

/// A program of four blocks of 5 MiB in one segment. Two of them are freed, and one is made again.
fn whole() -> Vec<Value> {
    let at = |number: u64| HERE + number * 5 * MIB;
    let mut events = vec![event("segment_alloc", HERE, 20 * MIB, 1)];
    events.extend((0..4).map(|number| event("alloc", at(number), 5 * MIB, 10 + number)));
    for (number, time) in [(1, 20), (3, 30)] {
        events.push(event("free_requested", at(number), 5 * MIB, time));
        events.push(event("free_completed", at(number), 5 * MIB, time + 1));
    }
    events.push(event("alloc", at(1), 5 * MIB, 40));
    events
}

fn end_of_whole() -> Vec<Value> {
    let of = |number: u64, state| block(HERE + number * 5 * MIB, 5 * MIB, state);
    let [held, free] = ["active_allocated", "inactive"];
    vec![segment(HERE, 20 * MIB, [0, 0], &json!([of(0, held), of(1, held), of(2, held), of(3, free)]))]
}

fn without(action: &str) -> Vec<Value> {
    whole().into_iter().filter(|event| event["action"] != action).collect()
}

#[test]
fn blocks_are_grouped_by_the_line_of_the_program() {
    let (text, report) = inspect("by_line", &snapshot(&end_of_whole(), &whole()));
    let (_, end) = text.split_once("Blocks not free at the end").expect("a list");
    assert!(!end.contains("torch::unwind") && !end.contains("kernel"), "{end}");
    // Two blocks of one line, though the frames of C++ under it differ.
    let first =
        "10.00 MiB  in 2 blocks, the largest 5.00 MiB; the oldest 30 µs old\n              /app/train.py:1 step\n";
    assert!(end.contains(first), "{end}");
    assert_eq!(report["largest"].as_array().map(Vec::len), Some(3), "the object has every stack");
    assert_eq!(report["largest"][0]["shown"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_free_needs_one_of_its_two_events() {
    let snapshot_of = |events: &[Value]| snapshot(&end_of_whole(), events);
    let (_, full) = inspect("both_frees", &snapshot_of(&whole()));
    assert_eq!(full["answers"][0].get("remarks"), None);
    for (left_out, remark) in [
        ("free_requested", "the history has no `free_requested` (skip_actions)"),
        ("free_completed", "the history has no `free_completed` (skip_actions)"),
    ] {
        let (text, report) = inspect(left_out, &snapshot_of(&without(left_out)));
        let answer = &report["answers"][0];
        for key in ["peak_reserved_bytes", "peak_live_bytes", "replayed_bytes", "saved_bytes"] {
            assert_eq!(answer[key], full["answers"][0][key], "{left_out}: {key}");
        }
        assert!(answer["remarks"][0].as_str().expect("a remark").starts_with(remark), "{answer}");
        assert!(text.replace('\n', " ").contains(remark), "{text}");
    }
}

#[test]
fn an_unknown_event_is_left_out_and_named() {
    let mut events = whole();
    events.insert(3, event("dance", HERE, 7, 15));
    events.insert(4, event("workspace_snapshot", HERE, 7, 15));
    events.insert(4, event("workspace_snapshot", HERE, 7, 15));
    let (text, report) = inspect("dance", &snapshot(&end_of_whole(), &events));
    assert_eq!(report["answers"][0]["peak_live_bytes"], 20 * MIB);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let place = folder("dance_everywhere");
    let file = write(&place, "made.json", snapshot(&end_of_whole(), &events).to_string());
    let [page, csv, trace] = ["made.html", "made.csv", "made.pftrace"].map(|name| place.join(name));
    let run = |arguments: &[&str]| {
        let finished = cachalot(arguments.iter().map(Path::new).chain([file.as_path()]));
        assert_eq!(finished.status, 0, "{arguments:?}: {}", finished.errors);
        finished.errors
    };
    let [page, csv, trace] = [&page, &csv, &trace].map(|path| path.to_str().expect("a name"));
    for (count, action, were) in [("1 event", "dance", "was"), ("2 events", "workspace_snapshot", "were")] {
        let said = format!("{count} of an action that is not known here, `{action}`, {were} left out");
        assert!(text.contains(&format!("Note: {said}.")), "{text}");
        for arguments in [
            &["view", "-o", page][..],
            &["replay"],
            &["tune", "--trials", "4"],
            &["compare"],
            &["export", "--to", "csv", "-o", csv],
        ] {
            let errors = run(arguments);
            assert!(errors.contains(&said), "{arguments:?}: {errors}");
        }
    }
    // A trace for people has every event.
    assert_eq!(run(&["export", "--to", "perfetto", "-o", trace]), "");
    let bytes = std::fs::read(trace).expect("a trace");
    for action in ["dance", "workspace_snapshot"] {
        assert!(bytes.windows(action.len()).any(|part| part == action.as_bytes()), "{action}");
    }
}

#[test]
fn a_history_that_cannot_be_used_says_why_and_the_others_are_used() {
    let mut two = snapshot(&end_of_whole(), &whole());
    // Without the requests, blocks at the end were never allocated.
    let bad: Vec<Value> = without("alloc").into_iter().filter(|event| event["action"] != "free_completed").collect();
    two["device_traces"].as_array_mut().expect("devices").push(json!(bad));
    let (text, report) = inspect("two_devices", &two);
    assert_eq!(report["answers"][0]["peak_live_bytes"], 20 * MIB);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("Note: the history of device 1 cannot be used: "), "{text}");
    let (text, report) = inspect("only_bad", &json!({"segments": end_of_whole(), "device_traces": [bad]}));
    assert_eq!(report["answers"][0]["end"]["reserved_bytes"], 20 * MIB);
    assert!(text.starts_with("20.00 MiB are reserved at the end, and 15.00 MiB of it in use"), "{text}");
    assert!(text.contains("Note: the history of device 0 cannot be used: "), "{text}");
}

/// Idle segments from before, and twenty tensors of 11 MiB.
fn idle_before(test: &str) -> PathBuf {
    let at = |number: u64| HERE + number * 32 * MIB;
    let old = (20..100)
        .map(|number| segment(at(number), 20 * MIB, [0, 0], &json!([block(at(number), 20 * MIB, "inactive")])));
    let mut old: Vec<Value> = old.collect();
    for idle in &mut old {
        idle["stream"] = json!(7);
    }
    let new = (0..20).map(|number| {
        let blocks = [block(at(number), 11 * MIB, "active_allocated"), block(at(number) + 11 * MIB, MIB, "inactive")];
        segment(at(number), 12 * MIB, [0, 0], &json!(blocks))
    });
    let events: Vec<Value> = (0..20)
        .flat_map(|number| {
            [event("segment_alloc", at(number), 12 * MIB, number), event("alloc", at(number), 11 * MIB, number)]
        })
        .collect();
    let segments: Vec<Value> = old.into_iter().chain(new).collect();
    write(&folder(test), "made.json", snapshot(&segments, &events).to_string())
}

#[test]
fn a_saving_is_that_of_the_setting_and_not_of_memory_from_before() {
    let file = idle_before("idle_before");
    let report = cachalot([Path::new("inspect"), Path::new("--json"), &file]).json().remove(0);
    let answer = &report["answers"][0];
    assert_eq!(answer["peak_reserved_bytes"], 1840 * MIB);
    assert_eq!((&answer["idle_before_bytes"], &answer["replayed_bytes"]), (&json!(1600 * MIB), &json!(240 * MIB)));
    let better = answer["better"]["peak_reserved_bytes"].as_u64().expect("a better setting");
    assert_eq!(answer["saved_bytes"].as_u64(), Some(240 * MIB - better));
    let sentence = answer["sentence"].as_str().expect("a sentence");
    for part in [
        "of the 240.00 MiB that a replay with the recorded settings holds",
        "1.56 GiB of it (87 %) were idle already when the history began, and nothing in it used them: `torch.cuda.empty",
    ] {
        assert!(sentence.contains(part), "{sentence}");
    }
}

#[test]
fn a_plan_is_compared_without_memory_that_was_idle_before() {
    let options = ["plan", "--json", "--section=0..20"].map(Path::new);
    let file = idle_before("idle_plan");
    let report = cachalot(options.into_iter().chain([file.as_path()])).json().remove(0);
    // 1600 MiB were idle, and twenty segments of 12 MiB hold the tensors.
    assert_eq!(report["held_bytes"], 240 * MIB, "{report}");
}

/// A request of a 1,000 MiB that fails at the end of the program, with free memory of the device.
fn failed(name: &str, device_free: Option<u64>, pool: [u64; 2]) -> (String, Value) {
    let mut events = whole();
    let mut oom = event("oom", 0, 1000 * MIB, 99);
    oom.as_object_mut().expect("an object").remove("addr");
    if let Some(free) = device_free {
        oom["device_free"] = json!(free);
    }
    events.push(oom);
    let mut segments = end_of_whole();
    let idle = HERE + 1024 * MIB;
    segments.push(segment(idle, 2000 * MIB, pool, &json!([block(idle, 2000 * MIB, "inactive")])));
    let (text, report) = inspect(name, &snapshot(&segments, &events));
    let first = text.split("\n\n").next().unwrap_or_default();
    (first.split_whitespace().collect::<Vec<_>>().join(" "), report["failures"][0].clone())
}

#[test]
fn a_failure_begins_with_the_request_and_who_refused_it() {
    let held = "/app/train.py:1 step held the most, 10.00 MiB; then /app/train.py:4 step, 5.00 MiB.";
    for (test, free, refused, who) in [
        (
            "limit",
            Some(70 << 30),
            "limit",
            ": a limit of the process refused it, with 70.00 GiB free on the device and 1.97 GiB held by this process.",
        ),
        (
            "device",
            Some(12 * MIB),
            "device",
            ": 12.00 MiB were free on the device, while PyTorch held 1.97 GiB and other processes and libraries the rest.",
        ),
        ("unknown", None, "unknown", ", while this process held 1.97 GiB."),
    ] {
        let (text, failure) = failed(test, free, [0, 0]);
        let expected = format!("A request of 1000.00 MiB at /app/train.py:9 step failed{who} {held}");
        assert!(text.starts_with(&expected), "{text}");
        assert_eq!(text.matches(" failed").count(), 1, "{text}");
        assert_eq!(failure["refused_by"], refused);
        assert_eq!(failure["device_free"], json!(free));
        assert!(!text.contains("memory of"), "{text}");
    }
}

#[test]
fn free_memory_of_a_graph_s_pool_serves_no_other_request() {
    let (text, failure) = failed("graph_pool", Some(12 * MIB), [0, 1]);
    assert!(text.contains("1.95 GiB of the free memory are in the private pool of a CUDA graph"), "{text}");
    assert_eq!(failure["cached_private"], 2000 * MIB);
    assert_eq!(failure["if_released"], 12 * MIB);
    assert_eq!(failure["missing"], 1000 * MIB - 12 * MIB - 5 * MIB);
}

#[test]
fn why_there_is_no_stack_is_said() {
    let cut: Vec<Value> = whole().into_iter().skip(4).collect();
    let (text, _) = inspect("before", &snapshot(&end_of_whole(), &cut));
    let before = "allocated before recording began: call _record_memory_history() before the model is made";
    assert!(text.contains(before), "{text}");
    let mut events = whole();
    for event in &mut events {
        event["frames"] = json!([]);
    }
    let (text, _) = inspect("no_stacks", &snapshot(&end_of_whole(), &events));
    assert!(text.contains("recorded without a stack") && !text.contains(before), "{text}");
}

/// PyTorch 2.0 has the stacks in the blocks, and a history of one event.
#[test]
fn the_stacks_of_pytorch_2_0_are_found() {
    let mut segments = end_of_whole();
    let held = segments[0]["blocks"][0].as_object_mut().expect("a block");
    held.remove("frames");
    held.insert("history".into(), json!([{"addr": HERE, "real_size": 5 * MIB, "frames": stack(77)}]));
    let (text, report) = inspect("torch_2_0", &json!({"segments": segments}));
    assert!(text.contains("in 1 block, the largest 5.00 MiB\n              /app/train.py:7 step\n"), "{text}");
    assert_eq!(report["largest"][1]["shown"][0], "/app/train.py:7 step");
}
