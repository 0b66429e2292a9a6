//! Invalid input gets one clear line with the place, and exit status 2.

use crate::common::{Finished, cachalot, folder, gzip, text_of, trace, write};
use serde_json::json;
use std::fs;
use std::path::Path;

const HEADER: &str = "action,addr,size,stream,note";

fn replay(file: &Path) -> Finished {
    cachalot([Path::new("replay"), Path::new("--json"), file])
}

/// Replays an invalid file. The error must be one line with `place` in the file.
fn refuse(file: &Path, place: &str, what: &str) {
    let finished = replay(file);
    assert_eq!((finished.status, finished.output.as_str()), (2, ""), "{}", finished.errors);
    assert_eq!(finished.errors, format!("{}{place}: {what}\n", file.display()));
}

/// Expects an error at `line` for a record with the given lines after the header.
fn refuse_lines(test: &str, lines: &str, line: u64, what: &str) {
    let file = write(&folder(test), "record.csv", format!("{HEADER}\n{lines}"));
    refuse(&file, &format!(":{line}"), what);
}

#[test]
fn a_missing_file() {
    let file = folder("missing").join("none.csv.gz");
    refuse(&file, "", "cannot be read: No such file or directory (os error 2)");
}

#[test]
fn an_empty_file() {
    let folder = folder("empty");
    refuse(&write(&folder, "nothing.csv", ""), ":1", "the file is empty");
    refuse(&write(&folder, "nothing.csv.gz", gzip("")), ":1", "the file is empty");
    refuse(&write(&folder, "header.csv", format!("{HEADER}\n")), ":1", "the record holds no events");
}

#[test]
fn a_truncated_gzip_stream() {
    let folder = folder("truncated_gzip");
    let whole = fs::read(trace("mlp_seed.csv.gz")).expect("a trace");
    // Long enough for some lines, too short for all lines.
    let file = write(&folder, "cut.csv.gz", &whole[..whole.len() - 100]);
    let finished = replay(&file);
    assert_eq!((finished.status, finished.output.as_str()), (2, ""));
    let complaint = finished.errors.strip_prefix(&format!("{}:", file.display())).expect("the file");
    let (line, what) = complaint.split_once(": ").expect("a line");
    assert!((2..=221).contains(&line.parse::<u64>().expect("a number")), "{line}");
    assert_eq!(what, "the compressed data ends early: the file is truncated\n");
    refuse(
        &write(&folder, "cut.pickle.gz", &fs::read(trace("mlp_seed__stacks.pickle.gz")).expect("a snapshot")[..1500]),
        "",
        "the compressed data ends early: the file is truncated",
    );
}

#[test]
fn a_damaged_gzip_stream() {
    let mut bytes = fs::read(trace("mlp_seed.csv.gz")).expect("a trace");
    let check_sum = bytes.len() - 8;
    bytes[check_sum] ^= 1;
    let finished = replay(&write(&folder("damaged_gzip"), "damaged.csv.gz", bytes));
    assert_eq!((finished.status, finished.output.as_str()), (2, ""));
    assert!(finished.errors.contains(": the compressed data is damaged: "), "{}", finished.errors);
    assert_eq!(finished.errors.lines().count(), 1);
}

#[test]
fn a_line_that_is_cut_short() {
    let text = text_of("mlp_seed.csv.gz");
    let file = write(&folder("cut_line"), "cut.csv", &text[..3000]);
    refuse(&file, ":104", "the line has 3 fields, the header has 5: the line is cut short or damaged");
}

#[test]
fn something_that_is_no_trace() {
    let folder = folder("no_trace");
    let what =
        "not a trace: neither a pickled snapshot nor a table with the first line `action,addr,size,stream[,note]`";
    refuse(&write(&folder, "prose.csv", "It was a dark and stormy night.\n"), ":1", what);
    refuse(&write(&folder, "bytes.csv.gz", gzip([0xff, 0xfe, 0, 1, 2])), ":1", what);
    refuse(&write(&folder, "long.csv", "a".repeat(1 << 20)), ":1", what);
}

#[test]
fn text_that_is_no_text() {
    let folder = folder("no_text");
    let file = write(&folder, "bytes.csv", [HEADER.as_bytes(), b"\na,\xff\xfe,512,0,\n"].concat());
    refuse(&file, ":2", "the line is not text");
}

#[test]
fn an_unknown_action() {
    refuse_lines(
        "action",
        "A,200,2097152,0,\nx,200,512,0,\n",
        3,
        "unknown action `x`: it must be one of a f c A F M U O",
    );
}

#[test]
fn a_number_that_is_none() {
    let segment = "A,200,2097152,0,";
    for (number, (row, what)) in (0..).zip([
        ("a,2g0,512,0,", "the address `2g0` is not a hexadecimal number"),
        ("a,200,512,0x0,", "the stream `0x0` is not a hexadecimal number"),
        ("a,200,0x200,0,", "the size `0x200` is not a number of bytes"),
        ("a,200,-5,0,", "the size `-5` is not a number of bytes"),
    ]) {
        refuse_lines(&format!("number_{number}"), &format!("{segment}\n{row}\n"), 3, what);
    }
}

#[test]
fn sizes_that_overflow() {
    for (number, size) in (0..).zip(["1152921504606846976", "18446744073709551616", "99999999999999999999999999"]) {
        let what = format!("the size `{size}` is too large: it must be below 1152921504606846976 bytes (1 EiB)");
        refuse_lines(&format!("size_{number}"), &format!("A,200,{size},0,\n"), 2, &what);
    }
    refuse_lines("end", "A,fffffffffffffe00,1024,0,\n", 2, "the range goes beyond the last address");
    let half = 1_u64 << 59;
    let segments: Vec<String> = (1..=4).map(|at| format!("A,{:x},{half},0,\n", at * half)).collect();
    refuse_lines(
        "sum",
        &segments.concat(),
        5,
        "the sizes of the record add up to 2305843009213693952 bytes (2 EiB) or more",
    );
}

#[test]
fn a_free_of_nothing() {
    let held = "A,200,2097152,0,\na,200,512,0,\n";
    refuse_lines("free", &format!("{held}f,400,512,0,\n"), 4, "free of 400, which is not allocated");
    let twice = format!("{held}f,200,512,0,\nf,200,512,0,\n");
    refuse_lines("free_twice", &twice, 5, "free of 200, which was freed before");
    let again = format!("{held}f,200,512,0,\nc,200,512,0,\nf,200,512,0,\n");
    refuse_lines("free_again", &again, 6, "free of 200, which is not allocated");
    let completed = format!("{held}c,200,512,0,\n");
    refuse_lines("complete", &completed, 4, "a free of 512 bytes at 200 is completed that was not requested");
}

#[test]
fn an_address_that_is_in_use() {
    let held = "A,200,2097152,0,\na,200,1024,0,\n";
    let what = "allocation at 400, where the 1024 bytes at 200 of line 3 are still in use";
    refuse_lines("in_use", &format!("{held}a,400,512,0,\n"), 4, what);
    let pending = format!("{held}f,200,1024,0,\na,200,512,0,\n");
    let what = "allocation at 200, where the 1024 bytes at 200 of line 3 are still in use";
    refuse_lines("pending", &pending, 5, what);
}

#[test]
fn a_record_that_begins_too_late() {
    for (name, line, what) in [
        ("late", "a,200,512,0,", "allocation at 200 outside every segment of the record"),
        ("late_free", "f,200,512,0,", "free of 200, which is not allocated"),
        ("late_completion", "c,200,512,0,", "a free of 512 bytes at 200 is completed that was not requested"),
        ("release", "F,200,2097152,0,", "release of a segment of 2097152 bytes at 200, which is not held"),
        ("unmap", "U,200,2097152,0,", "unmapping of 2097152 bytes at 200, which are not mapped"),
    ] {
        let advice = "if the record starts in the middle of its program, pass a memory snapshot, which holds the final state as well";
        refuse_lines(name, &format!("{line}\n"), 2, &format!("{what}; {advice}"));
    }
}

#[test]
fn an_end_that_is_none() {
    let folder = folder("no_end");
    let record = write(&folder, "run.csv", text_of("mlp_seed.csv.gz"));
    write(&folder, "run.expected.json.gz", gzip("{\n \"config\": 7\n}"));
    let finished = replay(&record);
    assert_eq!((finished.status, finished.output.as_str()), (2, ""));
    let place = format!("{}:2: not the end of a run: ", folder.join("run.expected.json.gz").display());
    assert!(finished.errors.starts_with(&place), "{}", finished.errors);
}

/// Builds a snapshot of one device with the given events.
fn snapshot(events: &serde_json::Value) -> Vec<u8> {
    let snapshot = json!({ "segments": [], "device_traces": [events], "allocator_settings": {} });
    serde_pickle::to_vec(&snapshot, serde_pickle::SerOptions::new()).expect("a pickle")
}

#[test]
fn a_snapshot_that_is_none() {
    let folder = folder("no_snapshot");
    let list = serde_pickle::to_vec(&json!([1, 2]), serde_pickle::SerOptions::new()).expect("a pickle");
    let finished = replay(&write(&folder, "list.pickle", list));
    assert_eq!((finished.status, finished.output.as_str()), (2, ""));
    assert!(finished.errors.contains("list.pickle: not a memory snapshot: "), "{}", finished.errors);

    let what = "the snapshot holds no events: its memory history was not recorded";
    refuse(&write(&folder, "empty.pickle", snapshot(&json!([]))), "", what);

    let cut = &snapshot(&json!([]))[..40];
    refuse(&write(&folder, "cut.pickle", cut), "", "the snapshot ends early, after byte 40: the file is truncated");
}

#[test]
fn a_snapshot_event_is_named_by_its_number() {
    let folder = folder("snapshot_events");
    let event =
        |action: &str, addr: u64, size: i64| json!({ "action": action, "addr": addr, "size": size, "stream": 0 });
    let first = event("segment_alloc", 512, 2_097_152);
    for (name, second, what) in [
        ("free", event("free_requested", 512, 512), "free of 200, which is not allocated"),
        ("size", event("alloc", 512, -1), "the size -1 is out of range: 0 to 1152921504606846976 bytes (1 EiB)"),
    ] {
        let file = write(&folder, name, snapshot(&json!([first, event("snapshot", 0, 7), second])));
        refuse(&file, ": event 2", what);
    }
}

#[test]
fn the_other_files_are_replayed_all_the_same() {
    let bad = write(&folder("others"), "bad.csv", "nothing\n");
    let good = trace("mlp_seed.csv.gz");
    let finished = cachalot([Path::new("replay"), Path::new("--json"), Path::new("--check"), &bad, &good]);
    assert_eq!(finished.status, 2);
    assert_eq!(finished.json().len(), 1);
}

#[test]
fn a_wrong_command_line() {
    let good = trace("mlp_seed.csv.gz");
    for (option, value, what) in [
        ("--config", "no_such_key:1", "no_such_key"),
        ("--config", "max_split_size_mb:2", "max_split_size_mb"),
        ("--config", "garbage_collection_threshold:1.5", "1.5"),
        (
            "--limit",
            "9Gb",
            "`9Gb` is not a number of bytes below 1 EiB, such as 9663676416, 512MiB, 9GiB or 5GB: expected",
        ),
        ("--repeat", "0", "0 is not in 1.."),
    ] {
        let finished = cachalot([Path::new("replay"), Path::new(option), Path::new(value), &good]);
        assert_eq!((finished.status, finished.output.as_str()), (2, ""), "{option} {value}");
        assert!(finished.errors.contains(what), "{}", finished.errors);
    }
    assert_eq!(cachalot(["replay"]).status, 2);
    assert_eq!(cachalot(["no-such-command"]).status, 2);
}

#[test]
fn devices_of_a_snapshot_are_replayed_apart() {
    let event = |action: &str, size: u64| json!({ "action": action, "addr": 2_097_152, "size": size, "stream": 0 });
    let program = |size: u64| {
        json!([
            event("segment_alloc", 2_097_152),
            event("alloc", size),
            event("free_requested", size),
            event("free_completed", size),
            event("segment_free", 2_097_152)
        ])
    };
    let pickle = json!({ "segments": [], "device_traces": [program(8), [], program(16)], "allocator_settings": {} });
    let pickle = serde_pickle::to_vec(&pickle, serde_pickle::SerOptions::new()).expect("a pickle");
    let finished = replay(&write(&folder("devices"), "two.pickle", pickle));
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    let lines = finished.json();
    let figures: Vec<_> =
        lines.iter().map(|line| (line["record"].as_str(), line["peak_live_bytes"].as_u64())).collect();
    assert_eq!(figures, [(Some("two#0"), Some(8)), (Some("two#2"), Some(16))]);
}

#[test]
fn an_unknown_option_is_not_proposed_as_the_name_of_a_file() {
    let finished = cachalot(["export", "--json", "end.pickle"]);
    assert_eq!(finished.status, 2);
    assert!(finished.errors.starts_with("error: unexpected argument '--json' found\n"), "{}", finished.errors);
    assert!(!finished.errors.contains("tip"), "{}", finished.errors);
    let finished = cachalot(["compare", "--wid"]);
    assert!(finished.errors.contains("a similar argument exists: '--wide'"), "{}", finished.errors);
}

#[test]
fn a_mistake_in_a_configuration_names_the_option() {
    for command in ["compare", "predict"] {
        let finished = cachalot([command, "--config=foo:1", "end.pickle"]);
        let why =
            "error: invalid value 'foo:1' for '--config <STRING>': unknown key `foo`: docs/configuration.md lists the ";
        assert_eq!((finished.status, finished.errors.starts_with(why)), (2, true), "{}", finished.errors);
    }
}
