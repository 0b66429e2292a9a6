//! Runs on mutants: a deliberately broken allocator must be detected, by the kind of its mistake.

use crate::common::{SHORT, good, run};
use serde_json::Value;

/// Upper bound for the number of seeds, since a mistake need not show in every run.
const SEEDS: u32 = 12;

/// Result of a run on a mutant.
enum Found {
    /// No kernels were built, so the run was skipped.
    Skipped,
    Nothing,
    /// A kernel accessed memory that was not mapped.
    Crash,
    Kinds(Vec<String>),
}

fn try_once(mutant: &str, seed: u32) -> Found {
    let Some(output) = run(&format!("{SHORT} --seed {seed} --mutant {mutant}"), &[]) else { return Found::Skipped };
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    match output.status.code() {
        None => Found::Crash,
        Some(0) => Found::Nothing,
        Some(1) => {
            let violations = report["violations"].as_array().cloned().unwrap_or_default();
            Found::Kinds(violations.iter().filter_map(|found| found["kind"].as_str()).map(str::to_owned).collect())
        }
        Some(status) => panic!("status {status}: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

/// Expects a finding of one of `kinds` on the mutant. A crash counts if `kinds` contains "crash".
fn is_found(mutant: &str, kinds: &[&str]) {
    for seed in 1..=SEEDS {
        let found = match try_once(mutant, seed) {
            Found::Skipped => return,
            Found::Nothing => continue,
            Found::Crash => vec!["crash".to_owned()],
            Found::Kinds(found) => found,
        };
        assert!(found.iter().any(|kind| kinds.contains(&kind.as_str())), "{mutant}, seed {seed}: {found:?}");
        return;
    }
    panic!("{mutant}: nothing was found with {SEEDS} seeds");
}

#[test]
fn skipping_the_wait_for_events() {
    is_found("skip-wait", &["pending", "content"]);
}

#[test]
fn skipping_to_record_events() {
    is_found("skip-record", &["pending", "content"]);
}

#[test]
fn skipping_to_wait_before_memory_is_unmapped() {
    is_found("skip-sync --config expandable_segments:True", &["crash", "content", "pending", "unexpected"]);
}

#[test]
fn handing_out_blocks_that_are_too_small() {
    is_found("short-block", &["overlap", "content"]);
}

#[test]
fn skipping_the_size_check() {
    is_found("size-check", &["accepted"]);
}

#[test]
fn erasing_in_the_wrong_order() {
    is_found("late-erase", &["refused", "overlap"]);
}

/// The wrong order shows only with a second thread, so the finding above is about the order.
#[test]
fn the_wrong_order_is_invisible_to_one_thread() {
    let Some(output) = run(&format!("{SHORT} --threads 1 --ops 2000 --mutant late-erase --seed 1"), &[]) else {
        return;
    };
    good(&output);
}
