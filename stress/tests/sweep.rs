//! Sample of the fault sweep: calls of every kind fail, and no fault is found.

use crate::common::run;

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
