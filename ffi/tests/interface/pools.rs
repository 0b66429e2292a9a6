//! Private pools, and memory still held at the end.

use crate::common::subject::{MIB, Subject, last_error, ok, stream};
use cachalot::c::abi::{
    CACHALOT_POOL_NO_SPLIT, CACHALOT_POOL_USE_ON_OOM, CACHALOT_ROUTE_ALL, CACHALOT_ROUTE_STREAM, CACHALOT_ROUTE_THREAD,
    cachalot_pool, cachalot_range,
};
use cachalot::c::capi::{
    cachalot_capture_begin, cachalot_capture_end, cachalot_destroy, cachalot_empty_cache, cachalot_get_pool_users,
    cachalot_pool_begin, cachalot_pool_empty, cachalot_pool_end, cachalot_pool_release, cachalot_pool_retain,
    cachalot_pool_trim, cachalot_range_reserve, cachalot_record_stream, cachalot_simulate_capture,
    cachalot_stream_destroyed, cachalot_stream_trim,
};
use cachalot::c::status::{
    CACHALOT_ERROR_CAPTURING, CACHALOT_ERROR_INVALID_HANDLE, CACHALOT_ERROR_OUT_OF_MEMORY, CACHALOT_ERROR_STILL_HELD,
    CACHALOT_ERROR_UNKNOWN_DEVICE, CACHALOT_ERROR_UNKNOWN_POOL, CACHALOT_OK,
};
use std::ffi::c_void;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::{null_mut, without_provenance_mut};
use std::thread;

fn users(subject: &Subject, pool: cachalot_pool) -> u32 {
    let mut users = 0;
    // SAFETY: the variable outlives the call.
    ok(unsafe { cachalot_get_pool_users(subject.0, 0, pool, &raw mut users) });
    users
}

#[test]
fn pools_keep_their_blocks_apart() {
    let subject = Subject::plain();
    let pool = subject.pool();
    assert_eq!(users(&subject, pool), 1);
    let outside = subject.malloc(100, stream(1));
    subject.free(outside);
    ok(cachalot_pool_begin(subject.0, 0, pool, CACHALOT_ROUTE_STREAM, stream(1)));
    let inside = subject.malloc(100, stream(1));
    assert_ne!(inside, outside);
    let elsewhere = subject.malloc(100, stream(2));
    ok(cachalot_pool_end(subject.0, 0, pool));
    assert_eq!(subject.malloc(100, stream(1)), outside);
    subject.free(outside);
    subject.free(elsewhere);
    assert_eq!((users(&subject, pool), cachalot_pool_empty(subject.0, 0, pool)), (2, CACHALOT_OK));
    assert_eq!(subject.base_of(inside).base, inside);

    // By thread: this one's requests, not another one's.
    ok(cachalot_pool_begin(subject.0, 0, pool, CACHALOT_ROUTE_THREAD, null_mut()));
    let own = subject.malloc(100, stream(3));
    let other = thread::scope(|scope| scope.spawn(|| subject.malloc(100, stream(3)).addr()).join());
    let other: *mut c_void = without_provenance_mut(other.expect("it returns"));
    assert_ne!(subject.base_of(own).segment_base, subject.base_of(other).segment_base);
    ok(cachalot_pool_end(subject.0, 0, pool));
    for block in [inside, own, other] {
        subject.free(block);
    }

    // A name of the program's own.
    let named = cachalot_pool { first: 7, second: 9 };
    ok(cachalot_pool_retain(subject.0, 0, named, CACHALOT_POOL_NO_SPLIT));
    ok(cachalot_pool_retain(subject.0, 0, named, 0));
    assert_eq!(users(&subject, named), 2);
    for (pool, users) in [(named, 2), (pool, 3)] {
        (0..users).for_each(|_| ok(cachalot_pool_release(subject.0, 0, pool)));
    }
    ok(cachalot_empty_cache(subject.0, 0));
    assert_eq!(cachalot_pool_release(subject.0, 0, pool), CACHALOT_ERROR_UNKNOWN_POOL);
    assert_eq!(subject.stats().reserved_bytes.current, 0);
}

/// Leaves 40 MiB of free memory in a pool in use, of a capture or of no capture.
fn fill(subject: &Subject, pool: cachalot_pool, captures: bool) {
    let begin = if captures { cachalot_capture_begin } else { cachalot_pool_begin };
    ok(begin(subject.0, 0, pool, CACHALOT_ROUTE_STREAM, stream(1)));
    ok(cachalot_simulate_capture(subject.0, 0, stream(1), captures.into()));
    let blocks = [1, 1].map(|number| subject.malloc(20 * MIB, stream(number)));
    blocks.into_iter().for_each(|block| subject.free(block));
    ok(cachalot_simulate_capture(subject.0, 0, stream(1), 0));
    ok(if captures { cachalot_capture_end(subject.0, 0, pool) } else { cachalot_pool_end(subject.0, 0, pool) });
}

#[test]
fn a_stream_is_trimmed_and_another_keeps_its_cache() {
    let subject = Subject::plain();
    let held = || subject.stats().reserved_bytes.current >> 20;
    for number in [1, 1, 2] {
        let blocks = [(); 2].map(|()| subject.malloc(20 * MIB, stream(number)));
        blocks.into_iter().for_each(|block| subject.free(block));
    }
    assert_eq!(held(), 80);
    let trim = |number, keep| {
        ok(cachalot_stream_trim(subject.0, 0, stream(number), keep));
        held()
    };
    assert_eq!([trim(1, 20 * MIB), trim(1, 0), trim(7, 0), trim(2, 0)], [60, 40, 40, 0]);
    assert_eq!(cachalot_stream_trim(subject.0, 9, stream(1), 0), CACHALOT_ERROR_UNKNOWN_DEVICE);
}

#[test]
fn a_pool_in_use_is_trimmed_and_emptied_unless_a_graph_has_its_memory() {
    let subject = Subject::plain();
    let pool = subject.pool();
    let held = || subject.stats().reserved_bytes.current >> 20;
    fill(&subject, pool, false);
    ok(cachalot_pool_trim(subject.0, 0, pool, 20 * MIB));
    assert_eq!(held(), 20);
    ok(cachalot_pool_empty(subject.0, 0, pool));
    assert_eq!(held(), 0);
    fill(&subject, pool, true);
    assert_eq!(cachalot_pool_empty(subject.0, 0, pool), CACHALOT_ERROR_STILL_HELD);
    assert!(last_error().contains("a captured graph has memory of pool"), "{}", last_error());
    assert_eq!(cachalot_pool_trim(subject.0, 0, pool, 0), CACHALOT_ERROR_STILL_HELD);
    assert_eq!(held(), 40);
    (0..3).for_each(|_| ok(cachalot_pool_release(subject.0, 0, pool)));
    ok(cachalot_pool_empty(subject.0, 0, pool));
    assert_eq!(held(), 0);
}

#[test]
fn a_capture_that_nobody_ended_is_named_by_what_it_keeps_memory_from() {
    for ends_stream in [false, true] {
        let subject = ManuallyDrop::new(Subject::plain());
        let pool = subject.pool();
        ok(cachalot_capture_begin(subject.0, 0, pool, CACHALOT_ROUTE_STREAM, stream(1)));
        ok(cachalot_empty_cache(subject.0, 0));
        let block = subject.malloc(30 * MIB, stream(2));
        ok(cachalot_record_stream(subject.0, block, stream(3)));
        subject.free(block);
        if ends_stream {
            ok(cachalot_stream_destroyed(subject.0, 0, stream(1)));
            ok(cachalot_empty_cache(subject.0, 0));
            (0..2).for_each(|_| ok(cachalot_pool_release(subject.0, 0, pool)));
            ok(cachalot_destroy(subject.0));
            continue;
        }
        assert_eq!(cachalot_empty_cache(subject.0, 0), CACHALOT_ERROR_CAPTURING);
        assert!(last_error().contains("a capture was started and not ended"), "{}", last_error());
        assert_eq!(cachalot_destroy(subject.0), CACHALOT_ERROR_STILL_HELD);
        assert!(last_error().ends_with("a capture was started and not ended"), "{}", last_error());
    }
}

#[test]
fn free_memory_of_a_pool_serves_others_if_its_flag_says_so() {
    for (flags, serves) in [
        (0, false),
        (CACHALOT_POOL_NO_SPLIT, false),
        (CACHALOT_POOL_USE_ON_OOM, true),
        (CACHALOT_POOL_USE_ON_OOM | CACHALOT_POOL_NO_SPLIT, true),
    ] {
        let subject = Subject::new(|options| options.limit_bytes = 64 * MIB as u64);
        let pool = cachalot_pool { first: 7, second: 9 };
        ok(cachalot_pool_retain(subject.0, 0, pool, flags));
        ok(cachalot_pool_begin(subject.0, 0, pool, CACHALOT_ROUTE_ALL, null_mut()));
        let block = subject.malloc(40 * MIB, stream(1));
        ok(cachalot_pool_end(subject.0, 0, pool));
        subject.free(block);
        let (status, other) = subject.try_malloc(0, 40 * MIB, stream(1));
        let expected = if serves { (CACHALOT_OK, block) } else { (CACHALOT_ERROR_OUT_OF_MEMORY, null_mut()) };
        assert_eq!((status, other), expected, "{flags}");
        subject.free(other);
        (0..2).for_each(|_| ok(cachalot_pool_release(subject.0, 0, pool)));
    }
}

#[test]
fn a_captured_pool_is_kept_until_its_graph_is_gone() {
    let subject = Subject::plain();
    let pool = subject.pool();
    ok(cachalot_capture_begin(subject.0, 0, pool, CACHALOT_ROUTE_STREAM, stream(1)));
    ok(cachalot_simulate_capture(subject.0, 0, stream(1), 1));
    let block = subject.malloc(3 * MIB, stream(1));
    subject.free(block);
    ok(cachalot_simulate_capture(subject.0, 0, stream(1), 0));
    ok(cachalot_capture_end(subject.0, 0, pool));
    ok(cachalot_pool_release(subject.0, 0, pool));
    // The graph may be launched still: nothing else gets its memory, and it is not given back.
    ok(cachalot_empty_cache(subject.0, 0));
    let other = subject.malloc(3 * MIB, stream(1));
    assert_ne!(other, block);
    subject.free(other);
    ok(cachalot_empty_cache(subject.0, 0));
    assert_eq!(subject.stats().reserved_bytes.current, 20 * MIB as i64);
    ok(cachalot_pool_release(subject.0, 0, pool));
    ok(cachalot_empty_cache(subject.0, 0));
    assert_eq!(subject.stats().reserved_bytes.current, 0);
}

#[test]
fn what_is_still_held_at_the_end_is_told() {
    // A range without memory holds addresses.
    let subject = ManuallyDrop::new(Subject::plain());
    let mut range = MaybeUninit::<cachalot_range>::uninit();
    // SAFETY: the variable outlives the call.
    ok(unsafe { cachalot_range_reserve(subject.0, 0, 2 * MIB, range.as_mut_ptr()) });
    assert_eq!(cachalot_destroy(subject.0), CACHALOT_ERROR_STILL_HELD);
    assert!(last_error().contains(": 1 block of 0 bytes is still held"), "{}", last_error());
    for keep_block in [true, false] {
        let subject = ManuallyDrop::new(Subject::plain());
        let pool = subject.pool();
        ok(cachalot_pool_begin(subject.0, 0, pool, CACHALOT_ROUTE_ALL, null_mut()));
        let block = subject.malloc(1000, null_mut());
        ok(cachalot_pool_end(subject.0, 0, pool));
        if !keep_block {
            // The pool still has users: a graph may use what it holds.
            subject.free(block);
        }
        assert_eq!(cachalot_destroy(subject.0), CACHALOT_ERROR_STILL_HELD);
        let blocks =
            if keep_block { ": 1 block of 1024 bytes is still held" } else { ": 0 blocks of 0 bytes are still held" };
        assert!(last_error().contains(blocks) && last_error().contains("2097152 bytes"), "{}", last_error());
        assert_eq!(last_error().contains("a private pool has users"), !keep_block);
        assert_eq!(cachalot_destroy(subject.0), CACHALOT_ERROR_INVALID_HANDLE);
    }
}
