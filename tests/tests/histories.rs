//! Memory histories from the middle of a program: for any cut, a record is replayed from the state
//! found backward from the record's end.
//!
//! `CACHALOT_HISTORY_CUTS` sets the number of cuts per record, `CACHALOT_HISTORY_SEED` the choice
//! of the cuts, and `CACHALOT_HISTORY_RECORD` a part of the names of the records.

use cachalot_replay::replay::{Options, replay};
use cachalot_replay::trace::Trace;
use std::path::PathBuf;
use std::{env, fs};

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

fn records(ending: &str) -> Vec<PathBuf> {
    let folder = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/traces")).expect("the recorded traces");
    let mut files: Vec<PathBuf> = folder.map(|entry| entry.expect("an entry").path()).collect();
    let wanted = env::var("CACHALOT_HISTORY_RECORD").unwrap_or_default();
    files.retain(|file| file.to_string_lossy().ends_with(ending) && file.to_string_lossy().contains(&wanted));
    files.sort();
    files
}

/// Result of a record's cuts.
#[derive(Default)]
struct Tally {
    /// Cuts with something before them.
    in_the_middle: usize,
    /// Number of compared events, final segments and final blocks.
    decisions: u64,
    /// Blocks whose sizes were assumed.
    assumed: u64,
    /// The first difference of each cut with a difference.
    differences: Vec<String>,
}

impl Tally {
    fn cut(&mut self, trace: &Trace, first: usize) {
        let options = Options { check: true, repeat: 1, ..Options::default() };
        let rest = trace.from_event(first).unwrap_or_else(|error| panic!("cut at {first}: {error}"));
        if let Some(start) = &rest.start {
            self.in_the_middle += 1;
            self.assumed += start.assumed;
        }
        let outcome = replay(&rest, &options).unwrap_or_else(|error| panic!("cut at {first}: {error}"));
        let checked = outcome.checked.expect("it was checked");
        self.decisions += checked.decisions;
        self.differences.extend(checked.first.map(|what| format!("cut at {first}: {what}")));
    }
}

/// Cuts every record of the files. Fails if a replay differs from its record after the cut or in
/// the final state.
fn cut_all(files: &[PathBuf], cuts: u64, seed: Option<u64>) {
    let cuts = number("CACHALOT_HISTORY_CUTS").unwrap_or(cuts);
    let seed = number("CACHALOT_HISTORY_SEED").or(seed).unwrap_or_else(|| fastrand::u64(..));
    println!("CACHALOT_HISTORY_SEED={seed}");
    let mut differences = Vec::new();
    for trace in files.iter().flat_map(|file| Trace::load(file).expect("a record")) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut tally = Tally::default();
        (0..cuts).for_each(|_| tally.cut(&trace, random.usize(1..trace.events.len())));
        println!(
            "{}: {cuts} cuts, {} in the middle, {} decisions, {} cuts differ, {} sizes assumed",
            trace.name,
            tally.in_the_middle,
            tally.decisions,
            tally.differences.len(),
            tally.assumed
        );
        differences.append(&mut tally.differences);
    }
    assert!(differences.is_empty(), "{} cuts differ, the first: {}", differences.len(), differences[0]);
}

#[test]
fn a_snapshot_cut_anywhere_is_replayed_without_a_difference() {
    cut_all(&records(".pickle.gz"), 4, None);
}

#[test]
fn a_record_with_a_final_state_cut_anywhere_is_replayed_without_a_difference() {
    let mut files = records(".csv.gz");
    // Events do not name the pools of graphs, and segments of those that were released are not in
    // the final state: to which pool they belonged is lost, and with it the order in which one call
    // releases them.
    files.retain(|file| !file.ends_with("cuda_graphs__graph.csv.gz"));
    // A size that had to be assumed shows in 1 of 127 cuts, so these are the same each time.
    cut_all(&files, 1, Some(1));
}
