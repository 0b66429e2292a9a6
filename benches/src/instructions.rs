//! Instructions a pair takes: a figure that no other program on the machine can disturb.
//!
//! The program is run twice under `valgrind`, with so many pairs and with twice as many; the difference is the pairs'.

use std::path::Path;
use std::process::Command;

/// Pairs of the shorter run.
const PAIRS: u64 = 2_000;

/// Whether `valgrind` can be run here.
pub fn available() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Instructions of one pair: `program` is the binary `instructions`, and `arguments` says what it does, but for how
/// many pairs, which comes last. `None` if it could not be counted.
pub fn per_pair(program: &Path, arguments: &[String]) -> Option<f64> {
    per_pair_of(program, arguments, PAIRS)
}

/// The same with so many pairs: for programs that do something else for as long as the clock says, which counts less among more.
pub fn per_pair_of(program: &Path, arguments: &[String], pairs: u64) -> Option<f64> {
    let once = count(program, arguments, pairs)?;
    let twice = count(program, arguments, pairs * 2)?;
    Some((twice as f64 - once as f64) / pairs as f64)
}

/// Instructions of a whole run.
fn count(program: &Path, arguments: &[String], pairs: u64) -> Option<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(arguments)
        .arg(pairs.to_string())
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    collected(&String::from_utf8_lossy(&output.stderr))
}

/// The sum in what `callgrind` prints: `==1234== Collected : 567890`.
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
