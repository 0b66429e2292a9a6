//! Tags with limits.

use crate::common::subject::{MIB, Subject, last_error, ok, stream};
use cachalot::c::abi::{
    CACHALOT_BOUND_TAG, CACHALOT_ROUTE_ALL, cachalot_fit, cachalot_oom_report, cachalot_tag_limits, cachalot_tag_report,
};
use cachalot::c::capi::{
    cachalot_get_fit, cachalot_get_tag_report, cachalot_on_out_of_memory, cachalot_pool_begin, cachalot_pool_end,
    cachalot_pool_release, cachalot_pool_set_tag, cachalot_tag_set_limits, cachalot_tag_trim,
};
use cachalot::c::status::{
    CACHALOT_ERROR_INVALID_ARGUMENT, CACHALOT_ERROR_OUT_OF_MEMORY, CACHALOT_ERROR_STRUCT_SIZE,
    CACHALOT_ERROR_UNKNOWN_TAG, CACHALOT_OK,
};
use std::ffi::c_void;
use std::ptr::null;

const TAG: u64 = 7;
const MAX: u64 = 64 * MIB as u64;

const NONE: cachalot_tag_limits = cachalot_tag_limits {
    struct_size: size_of::<cachalot_tag_limits>(),
    max_bytes: 0,
    low_bytes: 0,
    weight: 0,
    clear: 0,
};

fn limit(subject: &Subject, tag: u64, limits: cachalot_tag_limits) -> i32 {
    // SAFETY: the structure outlives the call.
    unsafe { cachalot_tag_set_limits(subject.0, 0, tag, &raw const limits) }
}

fn try_held(subject: &Subject, tag: u64) -> Result<cachalot_tag_report, i32> {
    // SAFETY: all zeros are a value of this structure of numbers.
    let mut out: cachalot_tag_report = unsafe { std::mem::zeroed() };
    out.struct_size = size_of::<cachalot_tag_report>();
    // SAFETY: the structure outlives the call.
    let status = unsafe { cachalot_get_tag_report(subject.0, 0, tag, &raw mut out) };
    if status == CACHALOT_OK { Ok(out) } else { Err(status) }
}

/// Notes the tag of a report, what it holds, its limit, and whether the limit refused the request.
unsafe extern "C" fn note(userdata: *mut c_void, report: *const cachalot_oom_report) {
    // SAFETY: the test's own variable, without another user during the call.
    let noted = unsafe { &mut *userdata.cast::<Vec<[u64; 4]>>() };
    // SAFETY: valid until the callback returns.
    let report = unsafe { &*report };
    noted.push([report.tag, report.tag_bytes, report.tag_max_bytes, report.tag_refused.into()]);
}

#[test]
fn a_tag_keeps_to_its_limits_and_tells_what_it_holds() {
    let subject = Subject::plain();
    let pool = subject.pool();
    ok(cachalot_pool_set_tag(subject.0, 0, pool, TAG));
    let limits = cachalot_tag_limits { max_bytes: MAX, low_bytes: MAX / 2, clear: 1, ..NONE };
    ok(limit(&subject, TAG, limits));
    let mut noted: Vec<[u64; 4]> = Vec::new();
    // SAFETY: the variable outlives the allocator's last request.
    ok(unsafe { cachalot_on_out_of_memory(subject.0, Some(note), (&raw mut noted).cast()) });
    ok(cachalot_pool_begin(subject.0, 0, pool, CACHALOT_ROUTE_ALL, stream(0)));
    let block = subject.malloc(40 * MIB, stream(1));
    let mut fit = cachalot_fit { struct_size: size_of::<cachalot_fit>(), ..cachalot_fit::default() };
    let sizes = [20 * MIB, 20 * MIB];
    // SAFETY: the list and the structure outlive the call.
    ok(unsafe { cachalot_get_fit(subject.0, 0, sizes.as_ptr(), 2, stream(1), &raw mut fit) });
    assert_eq!((fit.served, fit.bound), (1, CACHALOT_BOUND_TAG));
    assert_eq!(subject.try_malloc(0, 40 * MIB, stream(2)).0, CACHALOT_ERROR_OUT_OF_MEMORY);
    assert!(
        last_error().contains("The tag 0x7 holds 40 MiB, and its `max` of 64 MiB refuses more."),
        "{}",
        last_error()
    );
    assert_eq!(noted, [[TAG, 40 << 20, MAX, 1]]);
    subject.free(block);
    let held = try_held(&subject, TAG).expect("a known tag");
    assert_eq!((held.charge_bytes, held.live_bytes, held.cached_bytes), (40 << 20, 0, 40 << 20));
    assert_eq!((held.max_bytes, held.low_bytes, held.weight, held.clear), (MAX, MAX / 2, 100, 1));
    assert_eq!((held.refusals, held.given_bytes), (1, 0));
    let block = subject.malloc(60 * MIB, stream(2));
    assert_eq!(try_held(&subject, TAG).expect("a known tag").given_bytes, 40 << 20);
    // SAFETY: NULL removes the limits.
    ok(unsafe { cachalot_tag_set_limits(subject.0, 0, TAG, null()) });
    let further = subject.malloc(60 * MIB, stream(2));
    let held = try_held(&subject, TAG).expect("a known tag");
    assert_eq!((held.charge_bytes, held.max_bytes, held.weight), (120 << 20, 0, 0));
    ok(cachalot_pool_end(subject.0, 0, pool));
    subject.free(block);
    subject.free(further);
    ok(cachalot_tag_trim(subject.0, 0, TAG, 60 * MIB));
    assert_eq!(try_held(&subject, TAG).expect("a known tag").charge_bytes, 60 << 20);
    ok(cachalot_tag_trim(subject.0, 0, TAG, 0));
    assert_eq!(try_held(&subject, TAG).expect("a known tag").charge_bytes, 0);
    (0..2).for_each(|_| ok(cachalot_pool_release(subject.0, 0, pool)));
}

#[test]
fn limits_without_a_meaning_are_refused() {
    let subject = Subject::plain();
    for (tag, limits) in [
        (0, NONE),
        (TAG, cachalot_tag_limits { clear: 2, ..NONE }),
        (TAG, cachalot_tag_limits { max_bytes: 1, low_bytes: 2, ..NONE }),
    ] {
        assert_eq!(limit(&subject, tag, limits), CACHALOT_ERROR_INVALID_ARGUMENT, "{tag} {limits:?}");
    }
    assert_eq!(limit(&subject, TAG, cachalot_tag_limits { struct_size: 8, ..NONE }), CACHALOT_ERROR_STRUCT_SIZE);
    assert_eq!(try_held(&subject, 0).map(|_| ()), Err(CACHALOT_ERROR_INVALID_ARGUMENT));
    assert_eq!(try_held(&subject, TAG).map(|_| ()), Err(CACHALOT_ERROR_UNKNOWN_TAG));
    ok(limit(&subject, TAG, NONE));
    assert_eq!(try_held(&subject, TAG).map(|held| held.weight), Ok(100));
    // 0 is no limit.
    let pool = subject.pool();
    ok(cachalot_pool_set_tag(subject.0, 0, pool, TAG));
    ok(cachalot_pool_begin(subject.0, 0, pool, CACHALOT_ROUTE_ALL, stream(0)));
    subject.free(subject.malloc(40 * MIB, stream(1)));
    ok(cachalot_pool_end(subject.0, 0, pool));
    (0..2).for_each(|_| ok(cachalot_pool_release(subject.0, 0, pool)));
}
