//! `tune:auto` through the C interface, on simulated devices. The tests of the tuner have the
//! searches in turn.

use crate::common::subject::{MIB, Subject, ok};
use cachalot::c::abi::{CACHALOT_ROUTE_ALL, CACHALOT_TUNE_OFF, CACHALOT_TUNE_SEARCHING, cachalot_tune_report};
use cachalot::c::capi::{
    cachalot_begin_iteration, cachalot_capture_begin, cachalot_capture_end, cachalot_destroy, cachalot_get_tune_report,
    cachalot_maintain, cachalot_maintain_every, cachalot_pool_release, cachalot_simulate_progress,
};
use cachalot::c::status::{CACHALOT_ERROR_FORKED, CACHALOT_ERROR_INVALID_CONFIG};
use std::ffi::CStr;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// The longest wait for a search, which has the lowest priority.
const LONGEST: Duration = Duration::from_secs(600);

/// Returns an allocator over one device of 64 GiB.
fn tuning(config: &CStr) -> Subject {
    Subject::new(|options| {
        options.config = config.as_ptr();
        options.simulated_bytes = 64 << 30;
    })
}

/// Three blocks at a time, of sizes that grow and start anew.
fn growing(subject: &Subject) {
    for step in 0..90 {
        let blocks = [0; 3].map(|_| subject.malloc((20 + step % 12) * 2 * MIB, null_mut()));
        blocks.into_iter().for_each(|block| subject.free(block));
    }
    complete(subject);
}

/// The device finishes all work.
fn complete(subject: &Subject) {
    ok(cachalot_simulate_progress(subject.0, 0, null_mut()));
}

fn tuned(subject: &Subject) -> cachalot_tune_report {
    // SAFETY: a structure of numbers, whose bytes may all be 0.
    let mut report: cachalot_tune_report = unsafe { std::mem::zeroed() };
    report.struct_size = size_of::<cachalot_tune_report>();
    // SAFETY: the structure outlives the call and tells its size.
    ok(unsafe { cachalot_get_tune_report(subject.0, 0, &raw mut report) });
    report
}

/// Announces iterations until settings are activated.
fn until_switched(subject: &Subject) {
    let end = Instant::now() + LONGEST;
    while tuned(subject).switches == 0 {
        ok(cachalot_begin_iteration(subject.0, 0));
        assert!(Instant::now() < end, "{:?}", tuned(subject));
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn upkeep_is_an_idle_moment_and_a_search_ends_with_its_allocator() {
    let subject = tuning(c"tune:auto");
    growing(&subject);
    let mut more = 0;
    // SAFETY: the variable outlives the call.
    ok(unsafe { cachalot_maintain(subject.0, 0, 1000, &raw mut more) });
    assert_eq!((tuned(&subject).windows, tuned(&subject).stage), (1, CACHALOT_TUNE_SEARCHING));
    // Its search is abandoned and joined.
    drop(subject);

    let subject = tuning(c"tune:auto,tune_budget_ms:1000000");
    growing(&subject);
    ok(cachalot_maintain_every(subject.0, 1000, 1000));
    let end = Instant::now() + LONGEST;
    while tuned(&subject).switches == 0 {
        complete(&subject);
        assert!(Instant::now() < end, "{:?}", tuned(&subject));
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_capture_keeps_its_settings() {
    let subject = tuning(c"tune:auto,tune_budget_ms:1000000");
    growing(&subject);
    ok(cachalot_begin_iteration(subject.0, 0));
    let pool = subject.pool();
    ok(cachalot_capture_begin(subject.0, 0, pool, CACHALOT_ROUTE_ALL, null_mut()));
    std::thread::sleep(Duration::from_millis(500));
    for _ in 0..5 {
        ok(cachalot_begin_iteration(subject.0, 0));
    }
    assert_eq!((tuned(&subject).switches, subject.config().as_str()), (0, "tune:auto,tune_budget_ms:1000000"));
    ok(cachalot_capture_end(subject.0, 0, pool));
    until_switched(&subject);
    ok(cachalot_pool_release(subject.0, 0, pool));
    // A change by the program ends what was found.
    ok(subject.configure(c"max_split_size_mb:256"));
    assert_eq!(subject.config(), "max_split_size_mb:256,tune:auto,tune_budget_ms:1000000");
    assert_eq!(tuned(&subject).tuned, 0);
}

#[test]
fn a_forked_child_is_refused_and_the_search_goes_on_in_its_parent() {
    let subject = tuning(c"tune:auto,tune_budget_ms:1000000");
    growing(&subject);
    ok(cachalot_begin_iteration(subject.0, 0));
    assert_eq!(tuned(&subject).stage, CACHALOT_TUNE_SEARCHING);
    // SAFETY: the child calls nothing but the library, which refuses it, and ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_refused = cachalot_begin_iteration(subject.0, 0) == CACHALOT_ERROR_FORKED
            && cachalot_destroy(subject.0) == CACHALOT_ERROR_FORKED;
        // SAFETY: ends the child without the destructors of its parent.
        unsafe { libc::_exit(i32::from(!is_refused)) };
    }
    let mut status = -1;
    // SAFETY: the variable outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child was not refused");
    until_switched(&subject);
}

#[test]
fn without_the_setting_nothing_is_recorded_and_other_policies_refuse_it() {
    let subject = tuning(c"");
    growing(&subject);
    ok(cachalot_begin_iteration(subject.0, 0));
    let report = tuned(&subject);
    assert_eq!((report.stage, report.windows, report.tuned), (CACHALOT_TUNE_OFF, 0, 0));
    for config in [c"policy:stitched,tune:auto", c"policy:planned,tune:auto"] {
        let refused = Subject::try_new(|options| options.config = config.as_ptr());
        assert_eq!(refused.err(), Some(CACHALOT_ERROR_INVALID_CONFIG));
    }
}
