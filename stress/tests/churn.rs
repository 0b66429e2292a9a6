//! What comes and goes leaves nothing behind: a small version of the campaign that the program's help names.

mod common;

use common::churn;

/// Runs it, and expects memory to stay flat. Few blocks of streams that are gone are held, so that their number no longer grows
/// after the first tenth: a pair of heaps with one block takes 36 KiB.
fn is_flat(arguments: &str) {
    let output = churn(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {}: {said}", output.status);
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
fn streams_that_nobody_reports() {
    is_flat("--asked --streams 4000 --threads 0 --pools 0 --ops 20000 --held 8");
}

/// A stream that stays where it is would not be found by a bound that nothing can exceed.
#[test]
fn growth_is_found() {
    let output = churn("--simulated --streams 1000 --threads 0 --pools 0 --ops 0 --bound-kib 0 --held 1000000");
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
}
