//! Blocks that several streams use, and the handles and ends of streams.

use crate::common::subject::{Subject, ok, stream};
use cachalot::c::capi::{
    cachalot_empty_cache, cachalot_free, cachalot_free_at, cachalot_process_events, cachalot_record_stream,
    cachalot_set_safe_frontier, cachalot_simulate_capture, cachalot_simulate_progress, cachalot_stream_destroyed,
};
use cachalot::c::status::{
    CACHALOT_ERROR_INVALID_POINTER, CACHALOT_ERROR_INVALID_STREAM, CACHALOT_ERROR_UNKNOWN_DEVICE,
};
use std::ptr::{null_mut, without_provenance_mut};

/// The program has announced no capture to the allocator, so no route is active.
#[test]
fn a_block_used_by_a_capturing_stream_is_accepted_and_freed_after_the_capture() {
    let subject = Subject::plain();
    let block = subject.malloc(5000, stream(1));
    ok(cachalot_record_stream(subject.0, block, stream(2)));
    ok(cachalot_simulate_capture(subject.0, 0, stream(2), 1));
    subject.free(block);
    assert_eq!(cachalot_free(subject.0, block), CACHALOT_ERROR_INVALID_POINTER);
    ok(cachalot_process_events(subject.0, 0));
    ok(cachalot_empty_cache(subject.0, 0));
    let stats = subject.stats();
    assert_eq!((stats.allocations.current, stats.active_blocks.current), (0, 1));
    ok(cachalot_simulate_capture(subject.0, 0, stream(2), 0));
    ok(cachalot_empty_cache(subject.0, 0));
    assert_eq!(subject.stats().reserved_bytes.current, 0);
}

#[test]
fn a_block_that_another_stream_uses_comes_back_when_that_stream_is_done() {
    let subject = Subject::plain();
    let block = subject.malloc(5000, stream(1));
    ok(cachalot_record_stream(subject.0, block, stream(2)));
    subject.free(block);
    let stats = subject.stats();
    assert_eq!((stats.allocations.current, stats.active_blocks.current), (0, 1));
    let other = subject.malloc(5000, stream(1));
    assert_ne!(other, block);
    ok(cachalot_simulate_progress(subject.0, 0, stream(2)));
    ok(cachalot_process_events(subject.0, 0));
    assert_eq!(subject.stats().active_blocks.current, 1);
    let again = subject.malloc(5000, stream(1));
    assert_eq!(again, block);
    subject.free(again);
    subject.free(other);
    ok(cachalot_stream_destroyed(subject.0, 0, stream(1)));
    assert_eq!(subject.stats().reserved_bytes.current, 0);
    for handle in [0, 1] {
        let destroyed = cachalot_stream_destroyed(subject.0, 0, without_provenance_mut(handle));
        assert_eq!(destroyed, CACHALOT_ERROR_INVALID_STREAM, "{handle}");
    }
}

#[test]
fn a_block_freed_at_a_number_is_pending_until_the_number_is_done() {
    let subject = Subject::plain();
    let block = subject.malloc(5000, stream(1));
    ok(cachalot_free_at(subject.0, block, 7));
    assert_eq!(cachalot_free_at(subject.0, block, 7), CACHALOT_ERROR_INVALID_POINTER, "it is freed");
    ok(cachalot_set_safe_frontier(subject.0, 0, 6));
    ok(cachalot_process_events(subject.0, 0));
    ok(cachalot_empty_cache(subject.0, 0));
    let stats = subject.stats();
    assert_eq!((stats.allocations.current, stats.active_blocks.current), (0, 1));
    let other = subject.malloc(5000, stream(1));
    assert_ne!(other, block);
    ok(cachalot_set_safe_frontier(subject.0, 0, 7));
    assert_eq!(subject.malloc(5000, stream(1)), block);
    // A number that is done is a plain free, and the frontier never goes back.
    ok(cachalot_set_safe_frontier(subject.0, 0, 3));
    ok(cachalot_free_at(subject.0, block, 7));
    assert_eq!(subject.malloc(5000, stream(1)), block);
    [block, other].into_iter().for_each(|block| subject.free(block));
    ok(cachalot_free_at(subject.0, null_mut(), 9));
    assert_eq!(cachalot_set_safe_frontier(subject.0, 1, 9), CACHALOT_ERROR_UNKNOWN_DEVICE);
}

#[test]
fn a_thread_reports_its_own_stream_before_it_ends() {
    let subject = Subject::plain();
    let per_thread = || without_provenance_mut(2);
    // The thread may go on, and report the stream again.
    for _report in 0..2 {
        let block = subject.malloc(100, per_thread());
        subject.free(block);
        assert_ne!(subject.stats().reserved_bytes.current, 0);
        ok(cachalot_stream_destroyed(subject.0, 0, per_thread()));
        assert_eq!(subject.stats().reserved_bytes.current, 0);
    }
}

#[test]
fn default_streams_are_known_by_all_their_handles() {
    let subject = Subject::plain();
    let blocks = [0, 1].map(|handle| subject.malloc(100, without_provenance_mut(handle)));
    let ids = blocks.map(|block| subject.base_of(block).stream_id);
    assert_eq!(ids, [0, 0]);
    let own = || {
        let block = subject.malloc(100, without_provenance_mut(2));
        let id = subject.base_of(block).stream_id;
        subject.free(block);
        id
    };
    let here = own();
    assert_eq!((here, here >> 48), (own(), 0xffff));
    for block in blocks {
        subject.free(block);
    }
}
