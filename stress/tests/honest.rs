//! Runs of the unchanged allocator: no finding, and a seed repeats a run of one thread.

use crate::common::{SHORT, good, run};
use serde_json::Value;

/// Every policy, and configurations that use different parts of the allocator.
const CONFIGS: [&str; 11] = [
    "",
    "expandable_segments:True",
    "roundup_power2_divisions:4",
    "max_split_size_mb:32,garbage_collection_threshold:0.5",
    "policy:bfc",
    "policy:buddy",
    "policy:size_class,chunk_mb:64",
    "policy:slab",
    "policy:direct",
    STITCHED,
    "policy:stitched,slack:0,completed_pages_only:True",
];
/// The policy under which pages move, without any memory to spare.
const STITCHED: &str = "policy:stitched,slack:0";
/// Counts raised by every run.
const DONE: [&str; 10] = [
    "mallocs",
    "frees",
    "verified_blocks",
    "visits",
    "exchanged",
    "graphs",
    "bare_graphs",
    "replays",
    "pools",
    "guests",
];

#[test]
fn no_fault_is_found_and_every_step_was_made() {
    for (seed, config) in (1..).zip(CONFIGS) {
        let options = if config.is_empty() { String::new() } else { format!("--config {config}") };
        let Some(output) = run(&format!("{SHORT} --seed {seed} {options}"), &[]) else { return };
        let report = good(&output);
        for done in DONE {
            assert!(report[done].as_u64() > Some(0), "no {done}: {report}");
        }
        assert_eq!(report["mallocs"], report["frees"]);
        assert_eq!(report["errors"], 0);
        let moved = report["moved_bytes"].as_u64() > Some(0);
        // With `completed_pages_only`, pages move if the device happens to be done with their work.
        assert!(if config == STITCHED { moved } else { !moved || config.starts_with(STITCHED) }, "{report}");
    }
}

#[test]
fn a_seed_repeats_a_run() {
    let digest = |seed: u32| -> Option<Value> {
        let line = format!("{SHORT} --threads 1 --ops 2000 --hold-us 0 --seed {seed}");
        // The driver completes work in the order of its seed, and not by the clock.
        run(&line, &[("CACHALOT_EMU_STEP", "1"), ("CACHALOT_EMU_DELAY_US", "0")])
            .map(|output| good(&output)["digest"].clone())
    };
    let (Some(first), Some(again), Some(other)) = (digest(7), digest(7), digest(8)) else { return };
    assert_eq!(first, again);
    assert_ne!(first, other);
}

/// Graphs are captured with and without a report to the allocator. A wait for an ended stream must
/// break no capture.
#[test]
fn streams_need_no_report_if_the_driver_identifies_streams() {
    for (seed, config) in [(21, ""), (30, ""), (39, ""), (21, "--config expandable_segments:True")] {
        let Some(output) = run(&format!("{SHORT} --seed {seed} --identity asked {config}"), &[]) else { return };
        let report = good(&output);
        assert!(report["guests"].as_u64() > Some(0) && report["bare_graphs"].as_u64() > Some(0), "{report}");
    }
}

/// The driver ends the process at a call with the handle of a destroyed stream.
#[test]
fn the_handles_of_streams_that_went_without_a_report_are_never_used() {
    let configs = ["", "expandable_segments:True", "parity:False", "compact:0.05", "policy:bfc", STITCHED];
    for (seed, config) in (51..).zip(configs) {
        let options = if config.is_empty() { String::new() } else { format!("--config {config}") };
        let strict = [("CACHALOT_EMU_STRICT", "1")];
        let Some(output) = run(&format!("{SHORT} --seed {seed} --identity asked {options}"), &strict) else { return };
        let report = good(&output);
        assert!(report["guests"].as_u64() > Some(0) && report["visits"].as_u64() > Some(0), "{report}");
    }
}

/// Any thread may detect the loss; all threads continue with calls that need no device.
#[test]
fn a_device_that_is_lost_among_many_threads_is_not_called_again() {
    for (code, function, nth) in [(700, "cuEventRecord", 300), (4, "cuEventQuery", 200), (4, "cuMemAlloc_v2", 40)] {
        let plan = format!(r#"[{{"fn": "{function}", "nth": {nth}, "persistent": true, "code": {code}}}]"#);
        let line = format!("{SHORT} --seed 31 --faults before");
        let Some(output) = run(&line, &[("CACHALOT_EMU_PLAN", &plan)]) else { return };
        let report = good(&output);
        assert!(report["lost"].is_string() && report["faults"].as_u64() > Some(0), "{report}");
    }
}

#[test]
fn a_run_that_cannot_begin_prints_the_reason() {
    let no_driver = [("CACHALOT_LIBCUDA", "/nonexistent/libcuda.so.1")];
    let no_device = [("CACHALOT_EMU_DEVICES", "1")];
    for (option, variables) in [("--config nonsense:1", &[][..]), ("", &no_driver[..]), ("", &no_device[..])] {
        let Some(output) = run(&format!("{SHORT} {option}"), variables) else { return };
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        // The command line that repeats the run, and the reason of the failure.
        assert_eq!(stderr.lines().count(), 2, "{stderr}");
    }
}
