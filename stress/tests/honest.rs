//! The allocator as it is passes, and a run on one thread is repeated by its seed.

mod common;

use common::{SHORT, good, run};
use serde_json::Value;

/// Every policy, and configurations that lead through different parts of the allocator.
const CONFIGS: [&str; 9] = [
    "",
    "expandable_segments:True",
    "roundup_power2_divisions:4",
    "max_split_size_mb:32,garbage_collection_threshold:0.5",
    "policy:bfc",
    "policy:buddy",
    "policy:size_class,chunk_mb:64",
    "policy:slab",
    "policy:direct",
];

#[test]
fn nothing_is_found_and_everything_was_done() {
    for (seed, config) in (1..).zip(CONFIGS) {
        let config = if config.is_empty() { String::new() } else { format!("--config {config}") };
        let Some(output) = run(&format!("{SHORT} --seed {seed} {config}"), &[]) else { return };
        let report = good(&output);
        for done in ["mallocs", "frees", "verified_blocks", "visits", "exchanged", "graphs", "replays", "pools"] {
            assert!(report[done].as_u64() > Some(0), "no {done}: {report}");
        }
        assert_eq!(report["mallocs"], report["frees"]);
        assert_eq!(report["errors"], 0);
    }
}

#[test]
fn a_seed_repeats_a_run() {
    let digest = |seed: u32| -> Option<Value> {
        let line = format!("{SHORT} --threads 1 --ops 2000 --hold-us 0 --seed {seed}");
        // Work is done in an order that the driver chooses by its seed, and not by the clock.
        run(&line, &[("CACHALOT_EMU_STEP", "1"), ("CACHALOT_EMU_DELAY_US", "0")])
            .map(|output| good(&output)["digest"].clone())
    };
    let (Some(first), Some(again), Some(other)) = (digest(7), digest(7), digest(8)) else { return };
    assert_eq!(first, again);
    assert_ne!(first, other);
}

#[test]
fn a_run_that_cannot_begin_says_so() {
    let Some(output) = run(&format!("{SHORT} --config nonsense:1"), &[]) else { return };
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
}
