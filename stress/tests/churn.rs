//! Small version of the churn campaign in the program's help: no memory and no block is left.

use crate::common::churn;

/// Runs the churn, and expects flat memory. `--held` is small, so that the number of live blocks of
/// ended streams is constant after the first tenth: a pair of heaps with one block takes 36 KiB.
fn is_flat(arguments: &str) {
    let output = churn(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {}: {stderr}", output.status);
    assert!(output.stdout.split(|&byte| byte == b'\n').count() > 10, "nothing was looked at");
}

#[test]
fn on_simulated_devices() {
    is_flat("--simulated --streams 20000 --threads 2000 --pools 2000 --ops 200000 --held 8");
}

#[test]
fn on_the_emulated_driver() {
    is_flat("--streams 2000 --threads 500 --pools 300 --ops 20000 --held 8");
}

#[test]
fn streams_without_a_report() {
    is_flat("--asked --streams 4000 --threads 0 --pools 0 --ops 20000 --held 8");
}

/// With all blocks kept live, memory must grow beyond a bound of 0: the check of the bound can
/// fail.
#[test]
fn growth_is_found() {
    let output = churn("--simulated --streams 1000 --threads 0 --pools 0 --ops 0 --bound-kib 0 --held 1000000");
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
}
