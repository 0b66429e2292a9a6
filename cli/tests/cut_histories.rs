//! Reports on a history that starts in the middle of the program: its first events were
//! overwritten, or the recording started late.

use crate::common::{cachalot, folder, trace, write};
use serde_json::Value;
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
