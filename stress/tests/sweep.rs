//! Sample of the fault sweep: calls of every kind fail, and no fault is found.

use crate::common::{good, run};

/// A move unmaps and maps pages under a live block. A call that acts and fails all the same leaves
/// the block where it was.
#[test]
fn a_block_that_moves_outlives_calls_that_act_and_fail() {
    let line = "--json --ops 1500 --threads 1 --streams 3 --devices 2 --disturb 2 --round 100 --batch 4 --blocks 30 --max-mib 2 \
                --hold-us 0 --seed 1 --faults after --limit-mib 70 --config policy:stitched,slack:0,spill:1.0";
    for (function, nth) in
        ["cuMemMap", "cuMemUnmap"].into_iter().flat_map(|function| [13, 34, 55].map(|nth| (function, nth)))
    {
        let plan = format!(r#"[{{"fn": "{function}", "nth": {nth}, "when": "after", "code": 999}}]"#);
        let variables =
            [("CACHALOT_EMU_PLAN", &*plan), ("CACHALOT_EMU_STEP", "1"), ("CACHALOT_EMU_MEMORY", "100663296")];
        let Some(output) = run(line, &variables) else { return };
        assert_eq!(good(&output)["faults"], 1, "{function} {nth}");
    }
}

#[test]
fn failed_driver_calls_do_no_harm() {
    let Some(output) = run("sweep --every 37 --jobs 2", &[("CACHALOT_EMU_DELAY_US", "0")]) else { return };
    let (table, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}: {stderr}", output.status);
    let all = table.lines().find(|line| line.starts_with("all,")).unwrap_or_else(|| panic!("no sum: {table}"));
    let numbers: Vec<u64> = all.split(',').filter_map(|cell| cell.parse().ok()).collect();
    let [_, cases, recovered, lost, _, wrong] = numbers[..] else { panic!("not the sum of a table: {all}") };
    assert!(cases >= 50 && recovered > 0 && lost > 0 && wrong == 0, "{all}");
}
