//! The planned policy through the C interface, on simulated devices. `processes` tests the policy
//! on the emulated driver.

use crate::common::subject::{MIB, Subject, ok};
use cachalot::c::abi::{CACHALOT_STAGE_SERVING, CACHALOT_STAGE_WAITING, cachalot_plan_report};
use cachalot::c::capi::{
    cachalot_begin_iteration, cachalot_check_invariants, cachalot_empty_cache, cachalot_end_plans, cachalot_free,
    cachalot_get_plan_report,
};
use cachalot::c::status::{
    CACHALOT_ERROR_INVALID_CONFIG, CACHALOT_ERROR_INVALID_POINTER, CACHALOT_ERROR_NULL, CACHALOT_ERROR_STRUCT_SIZE,
    CACHALOT_ERROR_UNKNOWN_DEVICE,
};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// Requests two blocks, frees one, and requests a third. Returns all three addresses.
fn iterate(subject: &Subject, device: c_int) -> [*mut c_void; 3] {
    let first = subject.malloc_on(device, 3 * MIB, null_mut());
    let second = subject.malloc_on(device, MIB, null_mut());
    subject.free(first);
    let third = subject.malloc_on(device, 2 * MIB, null_mut());
    subject.free(second);
    subject.free(third);
    [first, second, third]
}

fn announce(subject: &Subject, device: c_int) {
    ok(cachalot_begin_iteration(subject.0, device));
}

fn planned(subject: &Subject, device: c_int) -> cachalot_plan_report {
    // SAFETY: numbers only, so zeros are a value.
    let mut report: cachalot_plan_report = unsafe { std::mem::zeroed() };
    report.struct_size = size_of::<cachalot_plan_report>();
    // SAFETY: the variable outlives the call.
    ok(unsafe { cachalot_get_plan_report(subject.0, device, &raw mut report) });
    report
}

/// Iterates until a plan is active.
fn until_served(subject: &Subject, device: c_int) {
    let end = Instant::now() + Duration::from_secs(60);
    while planned(subject, device).stage != CACHALOT_STAGE_SERVING {
        assert!(Instant::now() < end, "{:?}", planned(subject, device));
        announce(subject, device);
        iterate(subject, device);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_iteration_is_planned_in_the_background_and_then_served() {
    let subject = Subject::new(|options| {
        options.config = c"policy:planned,fallback:bfc,plan_deadline_ms:50".as_ptr();
        options.device_count = 2;
    });
    assert_eq!(planned(&subject, 1).stage, CACHALOT_STAGE_WAITING);
    until_served(&subject, 1);
    let before = planned(&subject, 1);
    assert_eq!((before.plans, before.peak_bytes, before.lower_bound_bytes), (1, 4 << 20, 4 << 20));
    assert_eq!(before.segment_bytes, 4 << 20);
    announce(&subject, 1);
    let blocks = iterate(&subject, 1);
    announce(&subject, 1);
    assert_eq!(iterate(&subject, 1), blocks);
    let after = planned(&subject, 1);
    assert_eq!(after.served, before.served + 6);
    assert_eq!((after.extra, after.missing, after.occupied, after.given_up), (0, 0, 0, 0));
    ok(cachalot_check_invariants(subject.0));
    // The other device is unaffected.
    assert_eq!(planned(&subject, 0).announced, 0);
}

#[test]
fn a_deviation_is_counted_and_served_all_the_same() {
    let subject = Subject::with_config(c"policy:planned");
    until_served(&subject, 0);
    announce(&subject, 0);
    let first = subject.malloc(3 * MIB, null_mut());
    let odd = subject.malloc(7 * MIB, null_mut());
    assert_ne!(first, odd);
    subject.free(odd);
    subject.free(first);
    assert_eq!(cachalot_free(subject.0, first), CACHALOT_ERROR_INVALID_POINTER);
    assert_eq!(planned(&subject, 0).extra, 1);
}

#[test]
fn plans_end_when_the_program_says_so() {
    let subject = Subject::with_config(c"policy:planned,plan_deadline_ms:50");
    for end in [cachalot_end_plans, cachalot_empty_cache] {
        until_served(&subject, 0);
        announce(&subject, 0);
        assert!(subject.stats().reserved_bytes.current > 0);
        ok(end(subject.0, 0));
        ok(cachalot_empty_cache(subject.0, 0));
        assert_eq!(subject.stats().reserved_bytes.current, 0);
        announce(&subject, 0);
        assert_ne!(planned(&subject, 0).stage, CACHALOT_STAGE_SERVING);
    }
    assert_eq!(cachalot_end_plans(subject.0, 1), CACHALOT_ERROR_UNKNOWN_DEVICE);
}

#[test]
fn another_policy_ignores_announcements() {
    let subject = Subject::plain();
    announce(&subject, 0);
    iterate(&subject, 0);
    announce(&subject, 0);
    let report = planned(&subject, 0);
    assert_eq!((report.stage, report.announced, report.served), (CACHALOT_STAGE_WAITING, 0, 0));
}

#[test]
fn what_is_wrong_is_said() {
    let subject = Subject::with_config(c"policy:planned");
    assert_eq!(cachalot_begin_iteration(subject.0, 1), CACHALOT_ERROR_UNKNOWN_DEVICE);
    // SAFETY: NULL is said to be fine.
    assert_eq!(unsafe { cachalot_get_plan_report(subject.0, 0, null_mut()) }, CACHALOT_ERROR_NULL);
    // SAFETY: numbers only, so zeros are a value.
    let mut report: cachalot_plan_report = unsafe { std::mem::zeroed() };
    // SAFETY: the variable outlives the call.
    assert_eq!(unsafe { cachalot_get_plan_report(subject.0, 0, &raw mut report) }, CACHALOT_ERROR_STRUCT_SIZE);
    for config in [c"policy:planned,fallback:direct", c"fallback:bfc", c"policy:caching,plan_deadline_ms:1"] {
        let refused = Subject::try_new(|options| options.config = config.as_ptr());
        assert_eq!(refused.err(), Some(CACHALOT_ERROR_INVALID_CONFIG), "{config:?}");
    }
}

#[test]
fn an_allocator_that_plans_can_be_destroyed_at_any_time() {
    for announcements in 0..4 {
        let subject = Subject::with_config(c"policy:planned,plan_deadline_ms:60000");
        for _ in 0..announcements {
            announce(&subject, 0);
            iterate(&subject, 0);
        }
    }
}
