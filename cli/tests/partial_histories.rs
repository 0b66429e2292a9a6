//! Histories that miss something: memory from before, one of the events of a free, all requests, or
//! the sense of one device.

use crate::common::{cachalot, folder, write};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;
const HERE: u64 = 0x7f00_0000_0000;

fn event(action: &str, addr: u64, mib: u64) -> Value {
    json!({"action": action, "addr": addr, "size": mib * MIB, "stream": 0, "time_us": 1, "frames": []})
}

/// A segment, with the sizes of its blocks from the start on, in MiB. Free blocks are negative.
fn segment(address: u64, blocks: &[i64]) -> Value {
    let mut at = address;
    let block = |&mib: &i64| {
        let (size, state) = (mib.unsigned_abs() * MIB, if mib < 0 { "inactive" } else { "active_allocated" });
        let block = json!({"address": at, "size": size, "requested_size": size, "state": state, "frames": []});
        at += size;
        block
    };
    let blocks: Vec<Value> = blocks.iter().map(block).collect();
    json!({"device": 0, "address": address, "total_size": at - address, "stream": 0, "segment_type": "large",
        "segment_pool_id": [0, 0], "is_expandable": false, "blocks": blocks})
}

fn written(name: &str, segments: &[Value], traces: &[Vec<Value>]) -> PathBuf {
    let settings = json!({"PYTORCH_CUDA_ALLOC_CONF": ""});
    let snapshot = json!({"segments": segments, "device_traces": traces, "allocator_settings": settings});
    write(&folder(name), "made.json", snapshot.to_string())
}

/// Returns what a command prints, in one line.
fn said(command: &[&str], file: &Path) -> String {
    let finished = cachalot(command.iter().map(Path::new).chain([file]));
    assert_eq!(finished.status, 0, "{}", finished.errors);
    format!("{}{}", finished.output, finished.errors).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns what `view` says of a file.
fn viewed(file: &Path) -> String {
    let page = file.with_extension("html");
    said(&["view", "-o", page.to_str().expect("a name")], file)
}

fn inspected(file: &Path) -> Value {
    cachalot([Path::new("inspect"), Path::new("--json"), file]).json().remove(0)
}

#[test]
fn memory_that_the_history_released_before_its_peak_was_not_idle_at_it() {
    let [old, new] = [HERE, HERE + 4096 * MIB];
    let made = [event("segment_alloc", new, 400), event("alloc", new, 400)];
    let released = event("segment_free", old, 300);
    let idle = |name: &str, events: Vec<Value>, segments: &[Value]| {
        let report = inspected(&written(name, segments, &[events]));
        report["answers"][0]["idle_before_bytes"].as_u64().expect("bytes") / MIB
    };
    let [first, second] = made.clone();
    let at_end = segment(new, &[400]);
    assert_eq!(idle("before", vec![released.clone(), first.clone(), second.clone()], std::slice::from_ref(&at_end)), 0);
    assert_eq!(idle("after", vec![first.clone(), second.clone(), released], std::slice::from_ref(&at_end)), 300);
    assert_eq!(idle("kept", vec![first, second], &[segment(old, &[-300]), at_end]), 300);
}

#[test]
fn a_profile_says_nothing_of_idle_memory_and_is_whole_from_its_first_block_on() {
    let of = |number: u64, mib: i64, allocated: u64| {
        json!({"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": number, "args": {
            "Total Reserved": 200 * MIB, "Total Allocated": allocated * MIB, "Bytes": mib * 1_048_576,
            "Addr": HERE + 32 * MIB, "Device Id": 0, "Device Type": 1}})
    };
    let profile = json!({"schemaVersion": 1, "traceEvents": [of(1, 5, 5), of(2, -5, 0), of(3, 7, 7)]});
    let file = write(&folder("profile"), "profile.json", profile.to_string());
    let text = said(&["compare", "--repeat=1", "--policy=caching"], &file);
    assert!(!text.contains("idle") && !text.contains("Only the last") && !text.contains("in the middle"), "{text}");
    // With a block from before, the events that are told are those of the file.
    let cut = json!({"schemaVersion": 1, "traceEvents": [of(1, 5, 15), of(2, -5, 10), of(3, 7, 17)]});
    let file = write(&folder("cut_profile"), "profile.json", cut.to_string());
    let text = said(&["compare", "--repeat=1", "--policy=caching"], &file);
    assert!(text.contains("Only the last 3 events are in the history") && !text.contains("idle"), "{text}");
}

/// Two blocks of 30 MiB are freed, of which the history has only the completions.
#[test]
fn a_completion_without_a_request_leaves_nothing_pending() {
    let at = |number: u64| HERE + number * 30 * MIB;
    let mut events = vec![event("segment_alloc", HERE, 90)];
    events.extend((0..3).map(|number| event("alloc", at(number), 30)));
    events.extend([0, 1].map(|number| event("free_completed", at(number), 30)));
    let segments = [segment(HERE, &[-60, 30])];
    let cut = written("orphan", &segments, &[events[4..].to_vec()]);
    for file in [written("alone", &segments, &[events]), cut] {
        let report = inspected(&file);
        for peak in report["peaks"].as_array().expect("a list") {
            assert_eq!(peak["pending"], 0, "{peak}");
        }
        assert!(viewed(&file).contains("no `free_requested` (skip_actions)"), "{}", viewed(&file));
    }
}

#[test]
fn one_event_has_no_peak() {
    let file = written("one", &[segment(HERE, &[-60, 30])], &[vec![event("free_completed", HERE, 30)]]);
    let report = inspected(&file);
    assert_eq!(report["peaks"], json!([]));
    assert!(!said(&["inspect"], &file).contains("At the peaks"));
    assert!(
        viewed(&file).contains("90.00 MiB are reserved at the end, and 30.00 MiB of it in use"),
        "{}",
        viewed(&file)
    );
}

#[test]
fn segments_alone_are_no_history_of_blocks() {
    let events = vec![event("segment_alloc", HERE, 90), event("segment_alloc", HERE + 4096 * MIB, 20)];
    let segments = [segment(HERE, &[-60, 30]), segment(HERE + 4096 * MIB, &[-20])];
    let file = written("segments", &segments, &[events]);
    let reason = "the history has no `alloc` (skip_actions)";
    for text in [said(&["inspect"], &file), viewed(&file)] {
        assert!(text.starts_with("110.00 MiB are reserved at the end") || text.contains(": 110.00 MiB are"), "{text}");
        assert!(text.contains(reason) && !text.contains("At the peaks"), "{text}");
    }
    // Without a block in them, nothing is missing.
    let events = vec![event("segment_free", HERE + 8192 * MIB, 20), event("segment_alloc", HERE + 4096 * MIB, 20)];
    let file = written("idle", &segments, &[events]);
    assert!(!said(&["inspect"], &file).contains(reason));
}

#[test]
fn a_history_that_does_not_lead_to_the_end_says_so() {
    // Cut after its first events, while the segments are those of the end.
    let events = vec![event("segment_alloc", HERE, 40), event("alloc", HERE, 40)];
    let file = written("cut_short", &[segment(HERE, &[-40])], std::slice::from_ref(&events));
    let text = said(&["inspect"], &file);
    assert!(text.contains("40.00 MiB were reserved at the peak, for at most 40.00 MiB live"), "{text}");
    assert!(text.contains("Note: the history does not lead to the end ("), "{text}");
    let whole = written("whole", &[segment(HERE, &[40])], &[events]);
    assert!(!said(&["inspect"], &whole).contains("does not lead"));
}

#[test]
fn a_device_with_a_contradiction_is_named_and_the_others_are_used() {
    let good = vec![event("segment_alloc", HERE, 20), event("alloc", HERE, 20)];
    let bad = vec![event("segment_alloc", HERE, 20), event("alloc", HERE, 20), event("alloc", HERE, 20)];
    let segments = [0, 1].map(|device| {
        let mut segment = segment(HERE, &[20]);
        segment["device"] = json!(device);
        segment
    });
    let file = written("devices", &segments, &[good, bad.clone()]);
    let note = "the history of device 1 cannot be used: event ";
    for command in
        [&["replay", "--repeat=1"][..], &["compare", "--repeat=1", "--policy=caching"], &["tune", "--trials=1"]]
    {
        let text = said(command, &file);
        assert!(text.contains(note) && text.contains("made#0"), "{text}");
    }
    let text = viewed(&file);
    assert!(text.contains("device 1: 20.00 MiB are reserved at the end") && text.contains("cannot be used"), "{text}");
    // Nothing is left of a file without a good one.
    let file = written("only", &segments, &[Vec::new(), bad]);
    assert_eq!(cachalot([Path::new("replay"), &file]).status, 2);
}
