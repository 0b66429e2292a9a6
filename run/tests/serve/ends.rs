//! The memory that a context leaves on the device and on the host when it ends, by the driver's own
//! figure.

use super::setup::{PAGE, Setup};
use super::sleep::{PATIENCE, Sleeps, setup_with, used};
use cachalot_cuda::driver::types::{CuContext, CuDevice};
use cachalot_run::Options;
use cachalot_run::options::SleepOptions;

/// The limit of each process.
const LIMIT: u64 = 64 * PAGE as u64;

/// The ways in which a context ends.
const ENDS: [&str; 4] = ["destroy", "detach", "reset", "release"];

/// Starts a context of the program's, or the primary one, and makes it current.
fn begin(setup: &Setup, end: &str) -> CuContext {
    if matches!(end, "destroy" | "detach") {
        let mut context = CuContext::NULL;
        // SAFETY: `context` outlives the call.
        assert_eq!(unsafe { setup.process.ctx_create_v2(&raw mut context, 0, CuDevice(0)) }.0, 0);
        return context;
    }
    let context = setup.retain(0);
    assert_eq!(setup.cuCtxSetCurrent(context), 0);
    CuContext(context as usize)
}

/// Ends a context.
fn finish(setup: &Setup, end: &str, context: CuContext) {
    let code = match end {
        // SAFETY: no other thread uses the context.
        "destroy" => unsafe { setup.process.ctx_destroy(context) },
        // SAFETY: as above.
        "detach" => unsafe { setup.process.ctx_detach(context) },
        // SAFETY: as above.
        "reset" => unsafe { setup.process.device_primary_ctx_reset(CuDevice(0)) },
        // SAFETY: as above.
        _ => unsafe { setup.process.device_primary_ctx_release(CuDevice(0)) },
    };
    assert_eq!(code.0, 0, "{end}");
    if end == "reset" {
        // A reset keeps the retentions.
        // SAFETY: as above.
        let _ = unsafe { setup.process.device_primary_ctx_release(CuDevice(0)) };
    }
}

/// Runs contexts that hold blocks until they end, and compares what is left with what was there.
fn check_ends(setup: &Setup, parks: bool, what: &str) {
    let watch = setup.watch(0);
    // SAFETY: no other thread uses the context.
    assert_eq!(unsafe { setup.process.device_primary_ctx_release(CuDevice(0)) }.0, 0);
    assert_eq!(setup.cuCtxSetCurrent(watch), 0);
    let before = (used(setup), setup.front_figures(), setup.reserved_addresses());
    for end in ENDS {
        for round in 0..4 {
            let context = begin(setup, end);
            let kept = [setup.take(20 * PAGE), setup.take(100), setup.take_on(3 * PAGE, setup.stream())];
            assert_eq!(setup.give(setup.take(9 * PAGE)), 0);
            assert!(kept.iter().all(|&address| address != 0));
            if parks {
                setup.process.park(PATIENCE).expect("parked");
            }
            finish(setup, end, context);
            assert_eq!(setup.cuCtxSetCurrent(watch), 0);
            let after = (used(setup), setup.front_figures(), setup.reserved_addresses());
            assert_eq!(after, before, "{what}, {end}, round {round}");
        }
    }
    assert_eq!(setup.process.counts().held_bytes, 0);
}

/// Returns a process with settings and a limit.
fn with_settings(settings: &str) -> Setup {
    Setup::with(&[], Options { settings: settings.to_owned(), limit: Some(LIMIT), ..Options::default() })
}

/// Returns a process whose memory can be parked, with settings and a limit.
fn parkable(settings: &str, sleep: SleepOptions) -> Sleeps {
    setup_with(sleep, Options { settings: settings.to_owned(), limit: Some(LIMIT), ..Options::default() })
}

#[test]
fn a_context_that_ends_leaves_nothing_on_the_device_under_any_policy() {
    for settings in
        ["", "policy:stitched", "expandable_segments:True", "guard:all", "policy:bfc,expandable_segments:True"]
    {
        check_ends(&with_settings(settings), false, settings);
    }
}

#[test]
fn a_context_that_ends_leaves_nothing_where_memory_can_be_parked() {
    for (name, sleep) in [
        ("parkable", SleepOptions::default()),
        ("park-idle", SleepOptions { idle_ms: Some(3_600_000), ..SleepOptions::default() }),
        ("yield", SleepOptions { yields: true, ..SleepOptions::default() }),
    ] {
        for settings in ["", "policy:stitched"] {
            check_ends(&parkable(settings, sleep.clone()), false, &format!("{name} {settings}"));
        }
    }
}

#[test]
fn a_context_that_ends_while_parked_leaves_nothing_on_the_device_and_the_host() {
    let setup = parkable("", SleepOptions::default());
    check_ends(&setup, true, "parked");
    let before = anonymous_bytes();
    let watch = setup.watch(0);
    for _ in 0..12 {
        let context = begin(&setup, "destroy");
        setup.fill(setup.take(20 * PAGE), 1, 20 * PAGE, 0);
        setup.process.park(PATIENCE).expect("parked");
        finish(&setup, "destroy", context);
        assert_eq!(setup.cuCtxSetCurrent(watch), 0);
    }
    // Other tests of the program take some memory meanwhile.
    let grown = anonymous_bytes().saturating_sub(before);
    assert!(grown < 240 << 20, "{grown} bytes of the host stay, of 480 MiB parked");
}

/// Returns the bytes of the process's own memory that are there.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a line");
    line.split_whitespace().next().expect("a number").parse::<u64>().expect("a number") << 10
}
