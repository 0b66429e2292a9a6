//! Freed memory that waits within the slack: requests that ask the driver nothing, and limits that
//! take the memory back.

use super::setup::{PAGE, Setup};
use cachalot_run::Options;

/// The slack of `cachalot run`.
const SLACK: u64 = 64 << 20;

/// Starts a process with the slack.
fn with_slack(options: Options) -> Setup {
    Setup::with(&[], Options { slack: SLACK, ..options })
}

/// Returns the calls of the driver that a pair of a request and a free makes in the steady state,
/// beyond the two questions for the context and the two for its failures.
fn further_calls(setup: &Setup, bytes: usize) -> f64 {
    const PAIRS: u64 = 5000;
    let run = || {
        for _ in 0..PAIRS {
            let block = setup.take(bytes);
            assert_eq!(setup.give(block), 0);
        }
        setup.control.all_calls()
    };
    let before = run();
    (run() - before) as f64 / PAIRS as f64 - 4.0
}

#[test]
fn a_pair_within_the_slack_hardly_calls_the_driver() {
    for bytes in [512, 64 << 10, 3 << 20] {
        let calls = further_calls(&with_slack(Options::default()), bytes);
        assert!(calls < 1.0, "{bytes} bytes: {calls} calls a pair");
    }
}

#[test]
fn freed_memory_serves_again_once_the_slack_is_full() {
    let setup = with_slack(Options::default());
    let pages = SLACK as usize / PAGE;
    let pair = || {
        let block = setup.take(PAGE);
        assert_eq!(setup.give(block), 0);
        block
    };
    let first: Vec<u64> = (0..pages).map(|_| pair()).collect();
    let calls = |function: &str| setup.control.calls(function);
    assert_eq!((calls("cuCtxRecordEvent"), calls("cuMemAlloc_v2")), (0, pages as u64), "the frees wait");
    // Beyond the slack the driver is asked. An event of an idle context is soon complete.
    assert!((0..100).any(|_| first.contains(&pair())));
    assert_ne!(calls("cuCtxRecordEvent"), 0);
}

#[test]
fn freed_memory_that_waits_leaves_the_limit_to_requests() {
    let limit = 8 * PAGE as u64;
    let setup = with_slack(Options { limit: Some(limit), ..Options::default() });
    let stream = setup.stream();
    setup.control.set_delay_us(1000);
    for bytes in [PAGE, 3 * PAGE, 8 * PAGE, 5 * PAGE, PAGE / 2] {
        for _ in 0..20 {
            let block = setup.take(bytes);
            setup.fill(block, 7, bytes, stream);
            assert_eq!(setup.give(block), 0);
            assert!(setup.process.counts().held_bytes <= limit);
        }
    }
}
