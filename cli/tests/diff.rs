//! `cachalot diff`: the growth between two snapshots, and the exit status for continuous
//! integration.

use crate::common::{Finished, cachalot, folder, trace, write};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;

/// Builds a snapshot of one segment of 64 MiB. A block has a size in MiB, a state, a function, and
/// a line; free memory follows.
fn snapshot(blocks: &[(u64, &str, &str, u64)]) -> Value {
    let start = 0x7f00_0000_0000_u64;
    let (mut at, mut list) = (start, Vec::new());
    for &(size, state, function, line) in blocks {
        let frames = json!([
            {"name": "empty", "filename": "torch/functional.py", "line": 7},
            {"name": function, "filename": "model.py", "line": line},
        ]);
        list.push(
            json!({"address": at, "size": size * MIB, "requested_size": size * MIB, "state": state, "frames": frames}),
        );
        at += size * MIB;
    }
    list.push(
        json!({"address": at, "size": start + 64 * MIB - at, "requested_size": 0, "state": "inactive", "frames": []}),
    );
    json!({"segments": [{"device": 0, "address": start, "total_size": 64 * MIB, "stream": 0, "segment_type": "large",
        "segment_pool_id": [0, 0], "is_expandable": false, "blocks": list}], "device_traces": [[]]})
}

/// Writes two snapshots: `forward` grows from 8 to 20 MiB and moves by a line, `loss` appears,
/// `optimizer` shrinks from 10 to 4 MiB, `same` stays.
fn two(test: &str) -> [PathBuf; 2] {
    let place = folder(test);
    let (held, pending) = ("active_allocated", "active_pending_free");
    let before = [(8, held, "forward", 3), (10, held, "optimizer", 9), (5, held, "same", 11)];
    let after = [
        (8, held, "forward", 4),
        (12, pending, "forward", 4),
        (4, held, "optimizer", 9),
        (5, held, "same", 11),
        (1, held, "loss", 6),
    ];
    [("before.json", &before[..]), ("after.json", &after[..])]
        .map(|(name, blocks)| write(&place, name, snapshot(blocks).to_string()))
}

fn diff(options: &[&str], [before, after]: &[PathBuf; 2]) -> Finished {
    let files = [before, after].map(|file| file.as_os_str());
    cachalot(["diff".as_ref()].into_iter().chain(options.iter().map(AsRef::as_ref)).chain(files))
}

fn growths(finished: &Finished) -> Vec<(String, i64)> {
    let [line] = finished.json().try_into().expect("one line");
    let growth = |stack: &Value| {
        let own = stack["stack"][1].as_str().expect("two frames").to_owned();
        (own, stack["growth"].as_i64().expect("a number"))
    };
    line["stacks"].as_array().expect("a list").iter().map(growth).collect()
}

#[test]
fn stacks_are_compared_with_their_lines_or_without() {
    let files = two("stacks");
    let mib = |bytes: i64| bytes * MIB as i64;
    let lines = diff(&["--json"], &files);
    assert_eq!((lines.status, lines.errors.as_str()), (0, ""));
    let expected = [
        ("model.py:4 forward", mib(20)),
        ("model.py:6 loss", mib(1)),
        ("model.py:9 optimizer", mib(-6)),
        ("model.py:3 forward", mib(-8)),
    ];
    assert_eq!(growths(&lines), expected.map(|(frame, growth)| (frame.to_owned(), growth)));
    let merged = diff(&["--json", "--ignore-lines"], &files);
    let expected = [("model.py forward", mib(12)), ("model.py loss", mib(1)), ("model.py optimizer", mib(-6))];
    assert_eq!(growths(&merged), expected.map(|(frame, growth)| (frame.to_owned(), growth)));
    let [line] = merged.json().try_into().expect("one line");
    assert_eq!(line["stacks"][0]["before"], json!({"blocks": 1, "bytes": 8 * MIB, "pending": 0, "largest": 8 * MIB}));
    assert_eq!(
        line["stacks"][0]["after"],
        json!({"blocks": 2, "bytes": 20 * MIB, "pending": 12 * MIB, "largest": 12 * MIB})
    );
    let sums = |reserved: u64, allocated: u64, pending: u64| json!({"reserved": reserved * MIB, "allocated": allocated * MIB, "pending": pending * MIB});
    assert_eq!(line["devices"], json!([{"device": 0, "before": sums(64, 23, 0), "after": sums(64, 18, 12)}]));
}

#[test]
fn the_text_tells_what_grew_with_the_frames_of_the_program_first() {
    let finished = diff(&["--ignore-lines"], &two("text"));
    let text = &finished.output;
    let first = "The blocks that are not free went from 23.00 MiB to 30.00 MiB: +7.00 MiB +30.4 %; 2 stacks";
    assert!(text.starts_with(first), "{text}");
    let (grew, shrank) = text.split_once("\nShrank").expect("both lists");
    let (_, grew) = grew.split_once("\nGrew").expect("both lists");
    let block = "  +12.00 MiB  from 8.00 MiB in 1 block to 20.00 MiB in 2 blocks (12.00 MiB pending)\n              model.py forward\n              … 1 frame hidden\n";
    assert!(grew.contains(block), "{grew}");
    assert!(grew.contains("   +1.00 MiB  new: 1.00 MiB in 1 block\n"), "{grew}");
    assert!(shrank.contains("   −6.00 MiB  from 10.00 MiB in 1 block to 4.00 MiB in 1 block\n"), "{shrank}");
    let short = diff(&["--most=1", "--frames=0"], &two("short")).output;
    assert!(short.contains("    1.00 MiB  in 1 other stack\n"), "{short}");
}

#[test]
fn the_exit_status_tells_growth_above_a_bound() {
    let files = two("status");
    // Allocated and pending memory grew by 7 MiB, and reserved memory did not grow.
    let inside = diff(&["--fail-above=7MiB"], &files);
    assert_eq!((inside.status, inside.errors.as_str()), (0, ""));
    let beyond = diff(&["--fail-above=7339008"], &files);
    assert_eq!(beyond.status, 1);
    assert_eq!(beyond.errors, "allocated and pending memory of device 0 grew by 7.00 MiB: the limit is 7.00 MiB\n");
    let [line] = diff(&["--json", "--fail-above=1MiB"], &files).json().try_into().expect("one line");
    assert_eq!(line["failed"].as_array().map(Vec::len), Some(1));
    // Shrinking is no failure.
    let [before, after] = files;
    assert_eq!(diff(&["--fail-above=0"], &[after, before]).status, 0);
}

#[test]
fn the_first_sentence_is_about_the_memory_that_is_compared() {
    let files = ["mlp_seed__stacks.pickle.gz", "multistream_prefetch__stacks.pickle.gz"].map(trace);
    let finished = diff(&["--at=reserved", "--fail-above=1MiB"], &files);
    let said = "Reserved memory went from 534.00 MiB to 4.42 GiB: +3.89 GiB +746.8 %. The blocks that are not free";
    assert!(finished.output.starts_with(said), "{}", finished.output);
    assert!(diff(&[], &files).output.starts_with("The blocks that are not free "));
}

#[test]
fn the_growths_of_stacks_add_up_to_the_growth_of_the_devices_at_every_time() {
    let files = ["mlp_seed__stacks.pickle.gz", "multistream_prefetch__stacks.pickle.gz"].map(trace);
    for at in ["end", "reserved", "allocated"] {
        let finished = diff(&["--json", &format!("--at={at}")], &files);
        let [line] = finished.json().try_into().expect("one line");
        let stacks = line["stacks"].as_array().expect("a list");
        let of_stacks: i64 = stacks.iter().map(|stack| stack["growth"].as_i64().expect("a number")).sum();
        let held =
            |sums: &Value| ["allocated", "pending"].map(|key| sums[key].as_i64().expect(key)).iter().sum::<i64>();
        let devices = line["devices"].as_array().expect("a list");
        let of_devices: i64 = devices.iter().map(|device| held(&device["after"]) - held(&device["before"])).sum();
        assert_eq!(of_stacks, of_devices, "{at}");
        assert!(of_stacks != 0 && stacks.len() >= 5, "{at}: {line}");
        // The totals are those of `inspect`.
        let report = cachalot(["inspect".as_ref(), "--json".as_ref(), files[1].as_os_str()]).json();
        let place = if at == "end" {
            &report[0]["totals"][0]
        } else {
            let peaks = report[0]["peaks"].as_array().expect("a list");
            let of = if at == "allocated" { "in_use" } else { at };
            peaks.iter().find(|peak| peak["of"] == of).expect(at)
        };
        for key in ["reserved", "allocated", "pending"] {
            assert_eq!(devices[0]["after"][key], place[key], "{at} {key}");
        }
    }
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let [before, _] = two("refused");
    let missing = diff(&[], &[before.clone(), Path::new("missing.pickle").to_owned()]);
    assert_eq!(missing.status, 2);
    assert!(missing.errors.starts_with("missing.pickle: cannot be read"), "{}", missing.errors);
    let without_events = diff(&["--at=reserved"], &[before.clone(), before]);
    assert_eq!(without_events.status, 2);
    assert!(without_events.errors.contains("no events were recorded"), "{}", without_events.errors);
}

#[test]
fn stacks_that_look_the_same_are_one_for_a_reader() {
    let place = folder("looks");
    let stack = |kernel: &str| {
        json!([
            {"name": format!("at::native::gemm_{kernel}(at::Tensor const&)"), "filename": "??", "line": 0},
            {"name": "forward", "filename": "/app/m.py", "line": 7},
        ])
    };
    let files = [("a", 8), ("b", 12)].map(|(kernel, size)| {
        let mut one = snapshot(&[(size, "active_allocated", "", 0)]);
        one["segments"][0]["blocks"][0]["frames"] = stack(kernel);
        write(&place, &format!("{kernel}.json"), one.to_string())
    });
    let text = diff(&[], &files).output;
    assert!(text.contains("+4.00 MiB  from 8.00 MiB in 1 block to 12.00 MiB in 1 block"), "{text}");
    assert!(!text.contains("new: ") && !text.contains("gone: "), "{text}");
    for option in ["--all-frames", "--json"] {
        let whole = diff(&[option], &files).output;
        assert!(whole.contains("gemm_a") && whole.contains("gemm_b"), "{whole}");
    }
}

#[test]
fn blocks_from_before_the_recording_are_said_to_be() {
    let place = folder("before");
    let files = [8, 12].map(|size| {
        let mut one = snapshot(&[(size, "active_allocated", "", 0)]);
        one["segments"][0]["blocks"][0]["frames"] = json!([]);
        let start = &one["segments"][0]["address"];
        let event = json!({"action": "segment_alloc", "addr": start, "size": 64 * MIB, "stream": 0, "time_us": 5});
        one["device_traces"] = json!([[event]]);
        write(&place, &format!("{size}.json"), one.to_string())
    });
    let text = diff(&[], &files).output;
    assert!(text.contains("allocated before recording began"), "{text}");
}
