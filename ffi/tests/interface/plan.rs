//! The planner through the C interface.

use crate::common::subject::{last_error, ok};
use cachalot::c::abi::{CACHALOT_BUFFER_FIXED, CACHALOT_BUFFER_GAP, cachalot_buffer, cachalot_buffer_plan};
use cachalot::c::capi::cachalot_plan_buffers;
use cachalot::c::status::{CACHALOT_ERROR_INVALID_ARGUMENT, CACHALOT_ERROR_NULL, CACHALOT_ERROR_STRUCT_SIZE};
use std::ptr::{dangling, dangling_mut, null, null_mut};

/// A second in microseconds.
const SECOND: u64 = 1_000_000;

/// Returns a buffer that can be moved.
fn buffer(start: u64, end: u64, bytes: u64) -> cachalot_buffer {
    cachalot_buffer { start, end, bytes, alignment: 0, offset: 0, flags: 0, reserved: 0 }
}

/// `MiniMalloc`'s tricky problem: at most 4 bytes live at once, and 5 are needed.
fn tricky() -> Vec<cachalot_buffer> {
    let lives = [(0, 1, 3), (0, 3, 1), (4, 5, 3), (2, 5, 1), (1, 2, 2), (3, 4, 2), (1, 4, 1)];
    lives.map(|(start, end, bytes)| buffer(start, end, bytes)).to_vec()
}

fn nothing() -> cachalot_buffer_plan {
    cachalot_buffer_plan {
        struct_size: size_of::<cachalot_buffer_plan>(),
        peak_bytes: 7,
        lower_bound_bytes: 7,
        optimal: 7,
        reserved: 0,
    }
}

/// Plans buffers. Returns the status, the offsets and the result.
fn planned(buffers: &[cachalot_buffer], threads: u32, deadline_us: u64) -> (i32, Vec<u64>, cachalot_buffer_plan) {
    let (mut offsets, mut out) = (vec![u64::MAX; buffers.len()], nothing());
    // SAFETY: the arrays have one length, and all variables outlive the call.
    let status = unsafe {
        cachalot_plan_buffers(buffers.as_ptr(), buffers.len(), threads, deadline_us, offsets.as_mut_ptr(), &raw mut out)
    };
    (status, offsets, out)
}

/// Checks that no two buffers share a byte at a step, and that all are below the peak.
fn check(buffers: &[cachalot_buffer], offsets: &[u64], peak: u64) {
    for (at, (one, &low)) in buffers.iter().zip(offsets).enumerate() {
        assert!(low + one.bytes <= peak && low % one.alignment.max(1) == 0, "buffer {at} at {low}");
        for (other, &base) in buffers[..at].iter().zip(offsets) {
            let is_apart = one.end <= other.start || other.end <= one.start;
            assert!(is_apart || low + one.bytes <= base || base + other.bytes <= low, "buffer {at} at {low}");
        }
    }
}

#[test]
fn a_plan_is_proven_optimal_on_any_number_of_threads() {
    for threads in [0, 1, 2, u32::MAX] {
        let (status, offsets, out) = planned(&tricky(), threads, 60 * SECOND);
        ok(status);
        check(&tricky(), &offsets, out.peak_bytes);
        assert_eq!((out.peak_bytes, out.lower_bound_bytes, out.optimal), (5, 5, 1), "{threads} threads");
    }
}

#[test]
fn a_deadline_of_nothing_still_gives_a_plan() {
    let count = if cfg!(miri) { 60 } else { 2000 };
    let many: Vec<_> = (0..count).map(|at| buffer(at, at + 1 + at % 37, 256 + at * 7919 % 4096)).collect();
    let (status, offsets, out) = planned(&many, 1, 0);
    ok(status);
    check(&many, &offsets, out.peak_bytes);
    assert!(out.lower_bound_bytes <= out.peak_bytes);
    assert_eq!(out.optimal == 1, out.lower_bound_bytes == out.peak_bytes);
    // Nothing is below the bound, so the plan at the bound needs no proof.
    let few: Vec<_> = (0..count).map(|at| buffer(at, at + 10, 256)).collect();
    let (status, offsets, out) = planned(&few, 1, 0);
    ok(status);
    check(&few, &offsets, out.peak_bytes);
    assert_eq!((out.peak_bytes, out.lower_bound_bytes, out.optimal), (2560, 2560, 1));
}

#[test]
fn more_buffers_than_have_numbers_are_refused_before_they_are_read() {
    let (count, mut out) = (u32::MAX as usize, nothing());
    // SAFETY: no pointer is followed.
    let status = unsafe { cachalot_plan_buffers(dangling(), count, 1, SECOND, dangling_mut(), &raw mut out) };
    assert_eq!((status, out), (CACHALOT_ERROR_INVALID_ARGUMENT, nothing()));
    assert_eq!(last_error(), "4294967295 buffers are more than 4294967294");
}

#[test]
fn alignments_and_fixed_offsets_are_kept() {
    let fixed = cachalot_buffer { offset: 4096, flags: CACHALOT_BUFFER_FIXED, ..buffer(0, 9, 100) };
    let aligned = cachalot_buffer { alignment: 512, ..buffer(0, u64::MAX, 1000) };
    let buffers = [buffer(0, 4, 3000), fixed, aligned, aligned];
    let (status, offsets, out) = planned(&buffers, 1, SECOND);
    ok(status);
    check(&buffers, &offsets, out.peak_bytes);
    assert_eq!(offsets[1], 4096);
    // Not read without the flag.
    let (status, offsets, _) = planned(&[cachalot_buffer { offset: 4096, ..buffer(0, 9, 100) }], 1, SECOND);
    ok(status);
    assert_eq!(offsets, [0]);
}

/// Returns a gap of the buffer before it, which needs `bytes` from `offset` on.
fn gap(start: u64, end: u64, offset: u64, bytes: u64) -> cachalot_buffer {
    cachalot_buffer { offset, flags: CACHALOT_BUFFER_GAP, ..buffer(start, end, bytes) }
}

#[test]
fn a_buffer_has_no_bytes_or_some_in_its_gaps_and_others_are_planned_there() {
    // Two buffers take turns: each has a gap while the other one lives.
    let turns = [buffer(0, 9, 100), gap(3, 6, 0, 0), buffer(3, 6, 100)];
    let (status, offsets, out) = planned(&turns, 1, 60 * SECOND);
    ok(status);
    assert_eq!((offsets.as_slice(), out.peak_bytes, out.lower_bound_bytes, out.optimal), (&[0, 0, 0][..], 100, 100, 1));
    // In the first gap the last 40 bytes stay, and in the second one none.
    let some = [buffer(9, 10, 1), buffer(0, 9, 100), gap(2, 4, 60, 40), gap(6, 7, 0, 0), buffer(2, 4, 60)];
    let (status, offsets, out) = planned(&some, 1, 60 * SECOND);
    ok(status);
    assert_eq!((&offsets[1..], out.peak_bytes, out.optimal), (&[0, 0, 0, 0][..], 100, 1));
    // The window begins right after a time without bytes: what is below is held, and nothing is
    // proven.
    let held = [buffer(0, 9, 100), gap(2, 4, 0, 0), gap(4, 6, 60, 40), buffer(4, 6, 60)];
    let (status, _, out) = planned(&held, 1, 60 * SECOND);
    ok(status);
    assert_eq!((out.peak_bytes, out.lower_bound_bytes, out.optimal), (160, 100, 0));
}

#[test]
fn a_mistake_in_a_gap_names_the_entry() {
    let good = buffer(0, 9, 100);
    let cases: [(&[cachalot_buffer], &str); 7] = [
        (&[gap(0, 1, 0, 0)], "buffer 0 is a gap, and no buffer is before it"),
        (&[good, good, gap(3, 3, 0, 0)], "buffer 1 has other gaps than are accepted: gaps in turn, between 0 and 9"),
        (&[good, gap(3, 10, 0, 0)], "buffer 0 has other gaps than are accepted: gaps in turn, between 0 and 9"),
        (&[good, gap(3, 4, 1, 100)], "buffer 0 has other gaps than are accepted: windows of at most the size, 100"),
        (
            &[good, gap(3, 4, u64::MAX, 2)],
            "buffer 0 has other gaps than are accepted: windows of at most the size, 100",
        ),
        (&[good, gap(0, 9, 0, 0)], "buffer 0 has other gaps than are accepted: a time of its life with all bytes"),
        (&[good, cachalot_buffer { alignment: 1, ..gap(3, 4, 0, 0) }], "buffer 1 is a gap, and has an alignment"),
    ];
    for (buffers, message) in cases {
        assert_eq!(planned(buffers, 1, SECOND).0, CACHALOT_ERROR_INVALID_ARGUMENT, "{message}");
        assert_eq!(last_error(), message);
    }
    // Numbers count entries, and not what the planner makes of them.
    let late = [good, gap(1, 2, 0, 0), gap(3, 4, 0, 0), cachalot_buffer { alignment: 3, ..good }];
    assert_eq!(planned(&late, 1, SECOND).0, CACHALOT_ERROR_INVALID_ARGUMENT);
    assert!(last_error().starts_with("buffer 3 has the alignment 3"), "{}", last_error());
    let pinned = cachalot_buffer { flags: CACHALOT_BUFFER_FIXED, ..good };
    assert_eq!(planned(&[pinned, gap(3, 4, 0, 0), pinned], 1, SECOND).0, CACHALOT_ERROR_INVALID_ARGUMENT);
    assert!(last_error().starts_with("buffers 0 and 2 are fixed where they share bytes"), "{}", last_error());
}

#[test]
fn no_buffers_need_no_bytes() {
    let mut out = nothing();
    // SAFETY: no buffers are read, and no offsets are written.
    ok(unsafe { cachalot_plan_buffers(null(), 0, 0, SECOND, null_mut(), &raw mut out) });
    assert_eq!((out.peak_bytes, out.lower_bound_bytes, out.optimal), (0, 0, 1));
}

#[test]
fn a_mistake_names_the_buffer_and_writes_nothing() {
    let good = buffer(0, 2, 100);
    let wrong = [
        (buffer(3, 3, 100), "buffer 1 lives from 3 to 3: it must end after it starts"),
        (buffer(0, 1, 0), "buffer 1 has a size of 0 bytes: it must be above 0"),
        (buffer(0, 1, 1 << 60), "buffer 1 has 1152921504606846976 bytes: it must be below"),
        (cachalot_buffer { alignment: 3, ..good }, "buffer 1 has the alignment 3: it must be a power of two"),
        (cachalot_buffer { flags: 4, ..good }, "buffer 1 has unknown flags, or `reserved` is not 0"),
        (cachalot_buffer { reserved: 1, ..good }, "buffer 1 has unknown flags, or `reserved` is not 0"),
    ];
    for (buffer, message) in wrong {
        let (status, offsets, out) = planned(&[good, buffer], 1, SECOND);
        assert_eq!((status, offsets), (CACHALOT_ERROR_INVALID_ARGUMENT, vec![u64::MAX; 2]), "{message}");
        assert!(last_error().starts_with(message), "{}", last_error());
        assert_eq!(out, nothing());
    }
    let pinned = cachalot_buffer { flags: CACHALOT_BUFFER_FIXED, ..good };
    assert_eq!(planned(&[pinned, pinned], 1, SECOND).0, CACHALOT_ERROR_INVALID_ARGUMENT);
}

#[test]
fn missing_pointers_and_sizes_are_told_apart() {
    let (good, mut offsets, mut out) = ([buffer(0, 2, 100)], [0], nothing());
    let call = |buffers, offsets, out| {
        // SAFETY: each pointer is null or to a variable that outlives the call.
        unsafe { cachalot_plan_buffers(buffers, 1, 1, SECOND, offsets, out) }
    };
    assert_eq!(call(null(), offsets.as_mut_ptr(), &raw mut out), CACHALOT_ERROR_NULL);
    assert_eq!(call(good.as_ptr(), null_mut(), &raw mut out), CACHALOT_ERROR_NULL);
    assert_eq!(call(good.as_ptr(), offsets.as_mut_ptr(), null_mut()), CACHALOT_ERROR_NULL);
    out.struct_size = 8;
    assert_eq!(call(good.as_ptr(), offsets.as_mut_ptr(), &raw mut out), CACHALOT_ERROR_STRUCT_SIZE);
}
