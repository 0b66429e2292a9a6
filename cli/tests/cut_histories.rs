//! Reports on a history that starts in the middle of the program: its first events were
//! overwritten, or the recording started late.

use crate::common::{cachalot, folder, trace, write};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Writes the snapshot at the end of a program, with the part of its events that `keep` chooses.
fn history(place: &Path, keep: impl Fn(&mut Vec<Value>), overflowed: bool) -> (PathBuf, usize) {
    let whole = place.join("whole.json");
    let made = cachalot([Path::new("snapshot"), &trace("mlp_seed.csv.gz"), Path::new("-o"), &whole]);
    assert_eq!(made.status, 0, "{}", made.errors);
    let text = std::fs::read_to_string(&whole).expect("a snapshot");
    let mut snapshot: Value = serde_json::from_str(&text).expect("JSON");
    let events = snapshot["device_traces"][0].as_array_mut().expect("events");
    keep(events);
    let count = events.len();
    snapshot["allocator_settings"]["trace_alloc_overflowed"] = overflowed.into();
    (write(place, "history.json", snapshot.to_string()), count)
}

/// Runs the commands that report on peaks, and returns what each says first.
fn reports(file: &Path) -> Vec<(&'static str, String)> {
    ["inspect", "view", "compare", "tune"]
        .into_iter()
        .map(|command| {
            let page = file.with_extension("html");
            let options = match command {
                "view" => vec!["-o", page.to_str().expect("a name")],
                "tune" => vec!["--trials=1", "--wide"],
                _ => vec!["--wide"],
            };
            let all = [command].into_iter().chain(options).map(Path::new).chain([file]);
            let finished = cachalot(all);
            assert_eq!(finished.status, 0, "{command}: {}", finished.errors);
            (command, finished.output)
        })
        .collect()
}

#[test]
fn every_report_on_a_late_history_says_that_its_peaks_are_of_its_events() {
    let (file, count) = history(&folder("late"), |events| _ = events.drain(..100), false);
    let said =
        format!("Only the last {count} events are in the history: in these, 534.00 MiB were reserved at the peak");
    for (command, text) in reports(&file) {
        assert!(text.contains(&said), "{command}: {text}");
    }
}

/// After an overflow even events that free only what they allocated are not the whole program.
#[test]
fn every_report_on_an_overflowed_history_says_that_its_peaks_are_of_its_events() {
    let (file, count) = history(&folder("overflowed"), |_| {}, true);
    let said = format!("Only the last {count} events are in the history: in these, ");
    for (command, text) in reports(&file) {
        assert!(text.contains(&said), "{command}: {text}");
    }
    let told = cachalot([Path::new("inspect"), Path::new("--json"), &file]).json();
    assert_eq!(told[0]["answers"][0]["cut_to_events"], count);
}

#[test]
fn a_whole_history_is_not_called_a_part() {
    let (file, _) = history(&folder("whole"), |_| {}, false);
    for (command, text) in reports(&file) {
        assert!(!text.contains("Only the last"), "{command}: {text}");
    }
}

const MIB: u64 = 1 << 20;
const HERE: u64 = 0x7f00_0000_0000;

/// Writes a history of two blocks of 30 MiB, one after the other, in memory from before: a segment
/// with a block that stays, a free one for the blocks, and two that nothing uses.
fn with_idle_memory(name: &str) -> PathBuf {
    let segment = |number: u64, state: &str| {
        let address = HERE + number * 64 * MIB;
        let block = json!({"address": address, "size": 30 * MIB, "requested_size": 30 * MIB, "state": state});
        json!({"device": 0, "address": address, "total_size": 30 * MIB, "stream": 0, "segment_type": "large",
            "segment_pool_id": [0, 0], "is_expandable": false, "blocks": [block]})
    };
    let states = ["active_allocated", "inactive", "inactive", "inactive"];
    let segments: Vec<Value> = (0..).zip(states).map(|(number, state)| segment(number, state)).collect();
    let actions = ["alloc", "free_requested", "free_completed"].into_iter().cycle().take(6);
    let event = |action: &str| json!({"action": action, "addr": HERE + 64 * MIB, "size": 30 * MIB, "stream": 0});
    let events: Vec<Value> = actions.map(event).collect();
    let settings = json!({"PYTORCH_CUDA_ALLOC_CONF": ""});
    let snapshot = json!({"segments": segments, "device_traces": [events], "allocator_settings": settings});
    write(&folder(name), "idle.json", snapshot.to_string())
}

/// The recording holds 120 MiB, and every replay 60 MiB: what is compared is the replay.
#[test]
fn a_row_without_the_idle_memory_is_compared_with_one_without_it() {
    let file = with_idle_memory("rows");
    let options = ["compare", "--json", "--repeat=1", "--policy=caching"].map(Path::new);
    let config = Path::new("--config=policy:caching,max_split_size_mb:512");
    let lines = cachalot(options.into_iter().chain([config, &file])).json();
    let [first, other] = &lines[..] else { panic!("{lines:#?}") };
    assert_eq!((&first["peak_reserved_bytes"], &first["is_recorded"]), (&json!(60 * MIB), &json!(false)));
    assert_eq!(other["peak_reserved_bytes"], 60 * MIB);
    // The sentence has the recording's own figure.
    let answer = &first["answer"];
    assert_eq!((&answer["peak_reserved_bytes"], &answer["replayed_bytes"]), (&json!(120 * MIB), &json!(60 * MIB)));
    let options = ["compare", "--repeat=1", "--policy=caching"].map(Path::new);
    let text = cachalot(options.into_iter().chain([config, &file])).output;
    assert!(text.contains("caching (recorded settings)") && !text.contains('−'), "{text}");
    let predicted = cachalot([Path::new("predict"), Path::new("--json"), Path::new("--policy=caching"), &file]).json();
    assert_eq!((&predicted[0]["peak_reserved_bytes"], &predicted[0]["is_recorded"]), (&json!(60 * MIB), &json!(false)));
}

/// One segment is there before, and the replay obtains it before the record. The record needs one.
#[test]
fn the_memory_from_before_a_record_costs_no_driver_time_of_it() {
    let file = with_idle_memory("time");
    let line = cachalot([Path::new("compare"), Path::new("--json"), Path::new("--repeat=1"), &file]).json().remove(0);
    assert_eq!(line["device_calls"]["cuMemAlloc"], 1, "{line}");
    let [all, of_calls, cold] =
        [&line["driver_us"], &line["driver_us_by_call"]["cuMemAlloc"], &line["cold_us_per_allocation"]]
            .map(|us| us.as_f64().expect("a number"));
    assert!((all - of_calls).abs() < 1e-9 && cold * 3.0 < all * 1.001, "{line}");
}
