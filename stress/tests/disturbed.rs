//! Memory parked and woken, ranges, streams that go, and captures, all at once.

use crate::common::{SHORT, good, run};

/// Counts raised by every run.
const DONE: [&str; 9] =
    ["parks", "wakes", "ranges", "commits", "decommits", "releases", "guests", "graphs", "bare_graphs"];

/// One thread, so that a seed repeats a run.
#[test]
fn parks_ranges_captures_and_streams_that_go_do_no_harm_at_once() {
    for (seed, config) in (61..).zip(["policy:stitched", "policy:caching", "expandable_segments:True"]) {
        let line = format!("{SHORT} --threads 1 --disturb 10 --seed {seed} --tenants 3 --ranges 3 --config {config}");
        let Some(output) = run(&line, &[]) else { return };
        let report = good(&output);
        for done in DONE {
            assert!(report[done].as_u64() > Some(0), "no {done}: {report}");
        }
        assert_eq!(report["mallocs"], report["frees"]);
        assert_eq!(report["errors"], 0);
    }
}

/// A part of the blocks lies on the host or moves there, and kernels check them all. With faults,
/// calls for memory of the host fail as well.
#[test]
fn blocks_on_the_host_keep_every_byte_under_all_disturbances() {
    let host = "--limit-mib 96 --config expandable_segments:True,spill:0.4";
    let stitched = "--limit-mib 96 --config policy:stitched,spill:0.4";
    let done: Vec<&str> = DONE.into_iter().chain(["spilled_bytes", "advised_bytes"]).collect();
    let mut sums = vec![0; done.len()];
    for (seed, devices, host) in [(81, 1, host), (82, 2, host), (84, 1, stitched), (85, 2, stitched)] {
        let line = format!("{SHORT} --disturb 20 --seed {seed} --devices {devices} --tenants 3 --ranges 3 {host}");
        for threads in ["", " --threads 1"] {
            let Some(output) = run(&format!("{line}{threads}"), &[]) else { return };
            let report = good(&output);
            assert_eq!((&report["mallocs"], &report["errors"]), (&report["frees"], &0.into()));
            // With one thread, a seed repeats a run. With several, what happens in so little memory
            // is different each time.
            if !threads.is_empty() {
                for (sum, done) in sums.iter_mut().zip(&done) {
                    *sum += report[*done].as_u64().unwrap_or_default();
                }
            }
        }
    }
    assert!(!sums.contains(&0), "a count of {done:?} is missing: {sums:?}");
    let plan = r#"[{"fn": "cuMemCreate", "nth": 30, "persistent": true, "code": 2}]"#;
    let Some(output) = run(&format!("{SHORT} --seed 83 --faults before {host}"), &[("CACHALOT_EMU_PLAN", plan)]) else {
        return;
    };
    let report = good(&output);
    assert!(report["faults"].as_u64() > Some(0) && report["ooms"].as_u64() > Some(0), "{report}");
}

/// Each wait records an event of the context, which takes in the work of all streams.
#[test]
fn waits_for_whole_devices_change_no_order() {
    let line = format!("{SHORT} --device-waits 2 --seed 71 --config policy:stitched");
    let Some(output) = run(&line, &[]) else { return };
    let report = good(&output);
    assert_eq!(report["errors"], 0);
    assert!(report["device_waits"].as_u64() > Some(0), "{report}");
}
