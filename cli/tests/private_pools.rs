//! Private pools, as those of CUDA graphs, in snapshots of PyTorch before and since 2.12: replayed
//! as pools, shown as pools, and never counted as memory for others.

use crate::common::{Finished, cachalot, finish, folder, trace, write};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;
const HERE: u64 = 0x7f00_0000_0000;
/// Where the segments of the graph's pool are.
const GRAPH: u64 = HERE + 1024 * MIB;

/// Whether the events of a snapshot have their pools, as since PyTorch 2.12.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    Before,
    Since212,
}

fn event(action: &str, addr: u64, size: u64, pool: u64, version: Version) -> Value {
    let mut event = json!({"action": action, "addr": addr, "size": size, "stream": 0, "time_us": 1, "frames": []});
    if version == Version::Since212 {
        event["pool_id"] = json!([0, pool]);
    }
    event
}

fn block(address: u64, size: u64, state: &str) -> Value {
    json!({"address": address, "size": size, "requested_size": size, "state": state, "frames": []})
}

/// A free block, with the latest request that it served.
fn free(address: u64, size: u64, requested: u64) -> Value {
    json!({"address": address, "size": size, "requested_size": requested, "state": "inactive", "frames": []})
}

fn segment(address: u64, total: u64, pool: u64, blocks: &[Value]) -> Value {
    json!({"device": 0, "address": address, "total_size": total, "stream": 0, "segment_type": "large",
        "segment_pool_id": [0, pool], "is_expandable": false, "blocks": blocks})
}

fn written(name: &str, segments: &[Value], events: &[Value]) -> PathBuf {
    let settings = json!({"PYTORCH_CUDA_ALLOC_CONF": ""});
    let snapshot = json!({"segments": segments, "device_traces": [events], "allocator_settings": settings});
    write(&folder(name), "made.json", snapshot.to_string())
}

/// Eight blocks of 5 MiB in the default pool and sixteen in a graph's pool, in turn, with memory
/// that is free in one pool when the other one asks. A segment of the default pool is released.
fn pools(name: &str, version: Version) -> PathBuf {
    let of = |action, addr, size, pool| event(action, addr, size, pool, version);
    let at = |pool: u64, number: u64| (if pool == 0 { HERE } else { GRAPH }) + number * 5 * MIB;
    let early = HERE + 512 * MIB;
    let mut events = vec![
        of("segment_alloc", early, 30 * MIB, 0),
        of("alloc", early, 30 * MIB, 0),
        of("free_requested", early, 30 * MIB, 0),
        of("free_completed", early, 30 * MIB, 0),
        of("segment_free", early, 30 * MIB, 0),
    ];
    for round in 0..4 {
        for pool in [0, 1] {
            let count = if pool == 0 { 2 } else { 4 };
            for number in round * count..(round + 1) * count {
                if number % 4 == 0 {
                    events.push(of("segment_alloc", at(pool, number), 20 * MIB, pool));
                }
                events.push(of("alloc", at(pool, number), 5 * MIB, pool));
            }
        }
    }
    // The graph leaves its first segment, and the default pool needs another one all the same.
    for number in 0..4 {
        events.push(of("free_requested", at(1, number), 5 * MIB, 1));
        events.push(of("free_completed", at(1, number), 5 * MIB, 1));
    }
    events.push(of("segment_alloc", at(0, 8), 20 * MIB, 0));
    events.push(of("alloc", at(0, 8), 5 * MIB, 0));
    let held = |pool, number| block(at(pool, number), 5 * MIB, "active_allocated");
    let whole = |pool: u64, first: u64| -> Vec<Value> { (first..first + 4).map(|number| held(pool, number)).collect() };
    let mut segments: Vec<Value> = [0, 4].map(|first| segment(at(0, first), 20 * MIB, 0, &whole(0, first))).to_vec();
    segments.push(segment(at(0, 8), 20 * MIB, 0, &[held(0, 8), free(at(0, 9), 15 * MIB, 0)]));
    segments.push(segment(at(1, 0), 20 * MIB, 1, &[free(at(1, 0), 20 * MIB, 5 * MIB)]));
    segments.extend([4, 8, 12].map(|first| segment(at(1, first), 20 * MIB, 1, &whole(1, first))));
    written(name, &segments, &events)
}

fn run(command: &[&str], file: &Path) -> Finished {
    cachalot(command.iter().map(Path::new).chain([file]))
}

#[test]
fn every_decision_in_a_private_pool_is_repeated() {
    for (name, version) in [("before", Version::Before), ("since_212", Version::Since212)] {
        let finished = run(&["replay", "--check", "--repeat=1", "--json"], &pools(name, version));
        assert_eq!(finished.status, 0, "{}{}", finished.output, finished.errors);
        let outcome = finished.json().remove(0);
        assert_eq!(outcome["mismatches"], 0, "{name}: {outcome}");
        // Only the released segment has an unknown pool.
        let unknown = "1 segment was released before the end, and its pool is unknown";
        assert_eq!(finished.errors.contains(unknown), version == Version::Before, "{}", finished.errors);
    }
}

/// The recording of a record with captures, as a snapshot of PyTorch 2.12.
#[test]
fn a_written_snapshot_names_the_pool_of_each_event() {
    let end = folder("written").join("graphs.json");
    let record = trace("cuda_graphs__graph.csv.gz");
    let made = cachalot([Path::new("snapshot"), &record, Path::new("-o"), &end]);
    assert_eq!((made.status, made.errors.as_str()), (0, ""));
    let written: Value = serde_json::from_slice(&std::fs::read(&end).expect("a file")).expect("JSON");
    let events = written["device_traces"][0].as_array().expect("events");
    let count = |pool: Value| events.iter().filter(|event| event["pool_id"] == pool).count();
    assert!(count(json!([0, 1])) > 400, "{}", count(json!([0, 1])));
    assert_eq!(count(json!([0, 0])) + count(json!([0, 1])), events.len());

    let finished = run(&["replay", "--check", "--repeat=1", "--json"], &end);
    assert_eq!(finished.json()[0]["mismatches"], 0, "{}{}", finished.output, finished.errors);
    let told = &run(&["inspect", "--json"], &end).json()[0]["answers"][0];
    assert!(told["replayed_bytes"].is_u64() && told.get("not_replayed").is_none(), "{told}");
}

/// Nine blocks of the default pool and sixteen of the graph's are there at the end, and four freed
/// blocks of the graph are for no other.
#[test]
fn no_policy_shares_or_releases_the_memory_of_a_graph() {
    let file = pools("policies", Version::Before);
    let rows = run(&["compare", "--json", "--repeat=1"], &file).json();
    assert!(rows.len() > 5, "{rows:?}");
    for row in rows {
        let reserved = row["peak_reserved_bytes"].as_u64().expect("a peak");
        assert!(reserved >= 25 * 5 * MIB, "{row}");
    }
}

#[test]
fn the_report_names_private_memory_in_every_width() {
    let file = pools("widths", Version::Before);
    for width in [80, 100] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cachalot"));
        let finished = finish(command.arg("inspect").arg(&file).env("COLUMNS", width.to_string()));
        let headers: Vec<&str> = finished.output.lines().filter(|line| line.starts_with("device")).collect();
        assert!(headers.len() == 2 && headers.iter().all(|line| line.contains("private")), "{}", finished.output);
        let lines = finished.output.lines().filter(|line| !line.contains(".json"));
        assert!(lines.clone().all(|line| line.chars().count() <= width), "{}", finished.output);
    }
    let report = run(&["inspect", "--json"], &file).json().remove(0);
    let totals = &report["totals"][0];
    let expected = [("reserved_private", 80), ("kept", 20), ("releasable", 0), ("in_holes", 15)];
    for (key, mib) in expected {
        assert_eq!(totals[key], mib * MIB, "{key}");
    }
    // Without private pools there is no such column.
    let other = cachalot([Path::new("inspect"), &trace("mlp_seed__stacks.pickle.gz")]);
    assert!(!other.output.contains("private"), "{}", other.output);
}

/// A request of 1,000 MiB fails while 4,800 MiB are free in the pool of a graph.
#[test]
fn free_memory_of_a_graph_is_none_for_a_failed_request() {
    let of = |action, addr, mib, pool| event(action, addr, mib * MIB, pool, Version::Before);
    let mut oom = of("oom", 300 * MIB, 1000, 0);
    oom["device_free"] = json!(300 * MIB);
    let events = [
        of("segment_alloc", HERE, 100, 0),
        of("alloc", HERE, 100, 0),
        of("segment_alloc", GRAPH, 4800, 1),
        of("alloc", GRAPH, 4800, 1),
        of("free_requested", GRAPH, 4800, 1),
        of("free_completed", GRAPH, 4800, 1),
        oom,
    ];
    let segments = [
        segment(HERE, 100 * MIB, 0, &[block(HERE, 100 * MIB, "active_allocated")]),
        segment(GRAPH, 4800 * MIB, 1, &[free(GRAPH, 4800 * MIB, 4800 * MIB)]),
    ];
    let file = written("failed", &segments, &events);
    let checked = run(&["replay", "--check", "--repeat=1", "--json"], &file);
    assert_eq!(checked.json()[0]["mismatches"], 0, "{}{}", checked.output, checked.errors);
    let text = run(&["inspect", "--wide"], &file).output;
    assert!(text.contains(" 4.69 GiB of the free memory are in the private pool of a CUDA graph"), "{text}");
    assert!(!text.contains("stitched"), "{text}");
    let report = run(&["inspect", "--json"], &file).json().remove(0);
    let failure = &report["failures"][0];
    let figures =
        ["if_released", "largest_free_elsewhere", "missing"].map(|key| failure[key].as_u64().expect(key) / MIB);
    assert_eq!((figures, &failure["remedies"]), ([300, 0, 700], &json!([])));
    assert_eq!(failure["private_pools"], json!([[0, 1]]));
    // If recording begins after the capture, no event tells of the pool, and it is held all the
    // same.
    let later = [&events[..2], &events[6..]].concat();
    let text = run(&["inspect", "--wide"], &written("failed_later", &segments, &later)).output;
    assert!(text.contains(" 4.69 GiB of the free memory are in the private pool of a CUDA graph"), "{text}");
    assert!(text.contains("Enough would have been 5.76 GiB for this process, which had 5.08 GiB."), "{text}");
}
