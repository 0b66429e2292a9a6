//! Counts the instructions of a pair. No second program on the machine disturbs the count.
//!
//! The program runs twice under `valgrind`, the second time with twice as many pairs. The
//! difference belongs to the pairs.

pub mod growth;
// Not in the program: another user of the core there would change what the compiler inlines for the
// other counts.
pub mod interfaces;

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// Pairs of the shorter run.
const PAIRS: u64 = 2_000;

/// Returns whether `valgrind` runs on the machine.
pub fn available() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Returns the instructions of a pair. `program` is the binary `instructions`; `arguments`
/// describes the work, without the final number of pairs. Returns `None` if the run failed.
pub fn per_pair(program: &Path, arguments: &[String]) -> Option<f64> {
    per_pair_of(program, arguments, PAIRS)
}

/// Returns the instructions of a pair, from runs with `pairs` pairs. A larger number reduces the
/// share of work whose duration depends on the clock.
pub fn per_pair_of(program: &Path, arguments: &[String], pairs: u64) -> Option<f64> {
    per_pair_under(&[], program, arguments, pairs)
}

/// Returns the instructions of a pair as [`per_pair_of`] does, from runs with environment
/// variables.
pub fn per_pair_under(variables: &[(&str, &OsStr)], program: &Path, arguments: &[String], pairs: u64) -> Option<f64> {
    // Both at once: a count is the same beside the other.
    let (once, twice) = std::thread::scope(|scope| {
        let once = scope.spawn(|| count(variables, program, arguments, pairs));
        let twice = count(variables, program, arguments, pairs * 2);
        (once.join().ok().flatten(), twice)
    });
    let (once, twice) = (once?, twice?);
    Some((twice as f64 - once as f64) / pairs as f64)
}

/// Counts the instructions of a whole run.
fn count(variables: &[(&str, &OsStr)], program: &Path, arguments: &[String], pairs: u64) -> Option<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(arguments)
        .arg(pairs.to_string())
        .envs(variables.iter().copied())
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    collected(&String::from_utf8_lossy(&output.stderr))
}

/// Finds the sum in the output of `callgrind`: `==1234== Collected : 567890`.
fn collected(printed: &str) -> Option<u64> {
    let line = printed.lines().find(|line| line.contains("Collected"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_found_in_what_callgrind_prints() {
        let printed = "==7== Callgrind\n==7== Events    : Ir\n==7== Collected : 1702921\n==7==\n";
        assert_eq!(collected(printed), Some(1_702_921));
        assert_eq!(collected("==7== killed"), None);
    }
}
