//! Memory histories that start in the middle of a program, in every command for records.

use crate::common::{self, cachalot, folder, text_of, trace};
use cachalot_snapshot::Format;
use flate2::read::GzDecoder;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Writes a recorded snapshot without the first events, as after `max_entries`.
fn cut(test: &str, events: usize) -> PathBuf {
    let mut pickle = Vec::new();
    let file = File::open(trace("mlp_seed__stacks.pickle.gz")).expect("a recorded snapshot");
    GzDecoder::new(file).read_to_end(&mut pickle).expect("a recorded snapshot");
    let mut snapshot = cachalot_snapshot::read(&pickle).expect("a recorded snapshot");
    snapshot.device_traces[0].drain(..events);
    let path = folder(test).join("late.pickle");
    cachalot_snapshot::write_file(&path, Format::Pickle, &snapshot).expect("a file");
    path
}

#[test]
fn every_command_takes_a_history_that_begins_in_the_middle_and_says_so() {
    let late = cut("late_history", 40);
    let written = late.with_file_name("end.json");
    let before = "the history starts in the middle: 13 blocks (238.01 MiB) and 1 pending block in 13 segments (294.00 MiB) \
                  were there before; the sizes of 2 blocks are assumed";
    for (arguments, then) in [
        (&["replay", "--check"][..], "replayed from that state, worked out from the final one"),
        (&["replay", "--config", "expandable_segments:True"], "they are first requested, by address"),
        (&["compare", "--policy", "caching"], "every contender but the recording is first asked for them, by address"),
        (&["plan"], "planned as if allocated first"),
        (&["snapshot", "-o", written.to_str().expect("text")], "the events are those from there on"),
    ] {
        let finished = cachalot(arguments.iter().map(Path::new).chain([&*late]));
        assert_eq!((finished.status, &*finished.errors), (0, &*format!("{}: {before}; {then}\n", late.display())));
    }
    let inspected = cachalot([Path::new("inspect"), Path::new("--json"), &written]);
    let original = cachalot([Path::new("inspect"), Path::new("--json"), &late]);
    for key in ["reserved", "allocated", "free", "segments", "blocks"] {
        assert_eq!(inspected.json()[0]["totals"][0][key], original.json()[0]["totals"][0][key], "{key}");
    }
}

#[test]
fn a_whole_history_says_nothing() {
    let finished = cachalot([Path::new("replay"), Path::new("--check"), &trace("mlp_seed__stacks.pickle.gz")]);
    assert_eq!((finished.status, &*finished.errors), (0, ""));
}

#[test]
fn a_record_without_a_final_state_asks_for_a_snapshot() {
    let text = text_of("mlp_seed.csv.gz");
    let late: Vec<&str> = text.lines().take(1).chain(text.lines().skip(60)).collect();
    let file = common::write(&folder("late_record"), "late.csv", late.join("\n"));
    let finished = cachalot([Path::new("compare"), &file]);
    assert_eq!(finished.status, 2);
    let advice = "if the record starts in the middle of its program, pass a memory snapshot, which holds the final state as well\n";
    assert!(finished.errors.starts_with(&format!("{}:", file.display())), "{}", finished.errors);
    assert!(finished.errors.ends_with(advice), "{}", finished.errors);
}
