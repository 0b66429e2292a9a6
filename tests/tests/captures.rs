//! Captures beside frees of other threads, and captures without a route.

use cachalot_core::simulated::{Call, SimulatedDevice};
use cachalot_core::{
    Allocator, Config, DevicePtr, Error, Forecast, Growable, PointerFault, PoolOptions, Route, RoutePurpose, StreamId,
};
use cachalot_tests::hooked::Hooked;
use cachalot_tests::host::{DEVICE, Host, MIB, STREAM};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Time limit for the beginning of a capture without a wait.
const A_WHILE: Duration = Duration::from_millis(50);

/// A capture waits for a free in progress that found no capture and is recording an event.
#[test]
fn a_capture_begins_when_no_event_is_being_recorded_any_more() {
    let device = Hooked::new(SimulatedDevice::new(1 << 30));
    let allocator = Allocator::<_, parking_lot::RawMutex, Growable>::new([device], &Config::new()).unwrap();
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    let block = allocator.malloc(DEVICE, 1000, StreamId(1)).unwrap();
    allocator.record_stream(block, StreamId(2)).unwrap();
    let recorded = Arc::new(AtomicBool::new(false));
    let (about_to_record, told) = channel();
    allocator.device(DEVICE).unwrap().on_record({
        let recorded = Arc::clone(&recorded);
        move || {
            about_to_record.send(()).unwrap();
            std::thread::sleep(A_WHILE);
            recorded.store(true, Ordering::SeqCst);
        }
    });
    std::thread::scope(|scope| {
        let freeing = scope.spawn(|| allocator.free(block));
        told.recv().unwrap();
        allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Capture).unwrap();
        assert!(recorded.load(Ordering::SeqCst), "the capture began while an event was being recorded");
        freeing.join().unwrap().unwrap();
    });
    // What is freed from here on waits for the end of the capture.
    let block = allocator.malloc(DEVICE, 1000, StreamId(1)).unwrap();
    allocator.record_stream(block, StreamId(2)).unwrap();
    allocator.free(block).unwrap();
    allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
    allocator.check_invariants().unwrap();
}

/// A capturing stream.
const CAPTURED: StreamId = StreamId(2);
const OTHER: StreamId = StreamId(3);

/// Allocates a block on the host's stream and records the block's use on other streams.
fn used_by(host: &Host, streams: &[StreamId]) -> DevicePtr {
    let block = host.malloc(1000);
    for &stream in streams {
        host.allocator.record_stream(block, stream).unwrap();
    }
    block
}

/// Counts the blocks with a pending free.
fn pending(host: &Host) -> i64 {
    host.stat("active.all.current") - host.stat("allocation.all.current")
}

/// The allocator detects a capture without a route when an event cannot be recorded: the free is
/// accepted, and pending.
#[test]
fn what_a_capturing_stream_uses_is_freed_when_the_capture_has_ended() {
    for uses in [&[CAPTURED][..], &[CAPTURED, OTHER], &[OTHER, CAPTURED]] {
        let host = Host::new("", 1 << 30);
        let block = used_by(&host, uses);
        host.device().set_capturing(CAPTURED, true);
        host.free(block);
        assert_eq!(host.allocator.free(block), Err(Error::InvalidPointer { ptr: block, fault: PointerFault::Pending }));
        assert_ne!(host.malloc(1000), block, "it is not the program's any more, and not free");
        host.device().complete(OTHER);
        host.device().complete(CAPTURED);
        host.allocator.process_events(DEVICE).unwrap();
        assert_eq!(pending(&host), 1);
        host.device().set_capturing(CAPTURED, false);
        host.allocator.process_events(DEVICE).unwrap();
        assert_eq!(pending(&host), 1, "what is queued on the streams now is waited for");
        uses.iter().for_each(|&stream| host.device().complete(stream));
        assert_eq!(host.malloc(1000), block);
    }
}

/// Operations that wait for all work neither fail nor wait on a capture. Blocks behind the capture
/// stay pending, and all other blocks are released.
#[test]
fn a_capture_holds_up_only_what_its_stream_uses() {
    for config in ["", "expandable_segments:True", "policy:slab", "policy:planned"] {
        let host = Host::new(config, 1 << 30);
        let kept = used_by(&host, &[CAPTURED]);
        let others = [1, 2].map(|_| used_by(&host, &[OTHER]));
        let large = host.malloc(100 * MIB);
        host.device().set_capturing(CAPTURED, true);
        host.free(kept);
        others.into_iter().for_each(|block| host.free(block));
        host.free(large);
        host.empty_cache();
        host.allocator.trim(DEVICE, 0).unwrap();
        host.allocator.plans(DEVICE).unwrap().end_iteration().unwrap();
        assert_eq!(pending(&host), 1, "`{config}`");
        assert!(host.stat("reserved_bytes.all.current") <= 20 << 20, "`{config}`");
        // Nor does a request that finds no memory.
        assert!(matches!(host.allocator.malloc(DEVICE, 2 << 30, STREAM), Err(Error::OutOfMemory(_))));
        host.device().set_capturing(CAPTURED, false);
        host.empty_cache();
        assert_eq!((pending(&host), host.device().used()), (0, 0), "`{config}`");
    }
}

/// Blocks behind a capture do not wait for the end of another capture, in any order. A block
/// overtaken by a second capture stays pending.
#[test]
fn each_block_waits_for_its_own_captures() {
    let host = Host::new("", 1 << 30);
    let blocks = [0, 1, 2, 3].map(|number| used_by(&host, &[[CAPTURED, OTHER][number % 2]]));
    let both = used_by(&host, &[CAPTURED, OTHER]);
    host.device().set_capturing(CAPTURED, true);
    host.device().set_capturing(OTHER, true);
    blocks.into_iter().for_each(|block| host.free(block));
    host.free(both);
    host.empty_cache();
    assert_eq!(pending(&host), 5);
    host.device().set_capturing(OTHER, false);
    host.empty_cache();
    assert_eq!(pending(&host), 3);
    host.device().set_capturing(CAPTURED, false);
    host.device().set_capturing(OTHER, true);
    host.empty_cache();
    assert_eq!(pending(&host), 1);
    host.device().set_capturing(OTHER, false);
    host.empty_cache();
    assert_eq!(pending(&host), 0);
}

/// A free at a count waits for two conditions: the count, and the end of the capture.
#[test]
fn a_free_at_a_count_is_kept_during_a_capture_too() {
    for ends_first in [false, true] {
        let host = Host::new("", 1 << 30);
        let block = used_by(&host, &[CAPTURED]);
        host.device().set_capturing(CAPTURED, true);
        host.allocator.free_at(block, 7).unwrap();
        if ends_first {
            host.device().set_capturing(CAPTURED, false);
        } else {
            host.allocator.set_safe_frontier(DEVICE, 7).unwrap();
        }
        host.empty_cache();
        assert_eq!(pending(&host), 1);
        host.device().set_capturing(CAPTURED, false);
        host.allocator.set_safe_frontier(DEVICE, 7).unwrap();
        host.empty_cache();
        assert_eq!((pending(&host), host.device().used()), (0, 0));
    }
}

/// A route may end before the capture of its stream: blocks then stay behind a capture without a
/// route.
#[test]
fn a_capture_may_go_on_behind_its_route() {
    let host = Host::new("", 1 << 30);
    let pool = host.allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    let block = used_by(&host, &[CAPTURED]);
    host.allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(CAPTURED), RoutePurpose::Capture).unwrap();
    host.device().set_capturing(CAPTURED, true);
    host.free(block);
    host.allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
    host.empty_cache();
    assert_eq!(pending(&host), 1);
    host.device().set_capturing(CAPTURED, false);
    host.empty_cache();
    assert_eq!(pending(&host), 0);
}

/// During a capture a request polls the stream once, however many blocks are behind the capture.
#[test]
fn one_answer_counts_for_all_blocks_behind_a_stream() {
    let host = Host::new("", 1 << 30);
    let blocks: Vec<_> = (0..100).map(|_| used_by(&host, &[CAPTURED])).collect();
    host.device().set_capturing(CAPTURED, true);
    blocks.into_iter().for_each(|block| host.free(block));
    let before = host.device().calls(Call::IsCapturing);
    host.malloc(1000);
    assert_eq!(host.device().calls(Call::IsCapturing) - before, 1);
}

/// Free memory of a capturing stream stays mapped. Releases do not fail because of the memory, and
/// forecasts do not count the memory.
#[test]
fn what_is_free_of_a_capturing_stream_stays_mapped() {
    let host = Host::new("expandable_segments:True", 1 << 30);
    host.allocator.settings(DEVICE).unwrap().set_limit(Some(64 << 20));
    host.free(host.malloc(40 * MIB));
    host.device().set_capturing(STREAM, true);
    host.empty_cache();
    host.allocator.trim(DEVICE, 0).unwrap();
    assert_eq!(host.device().used(), 40 << 20);
    assert_eq!(host.allocator.forecast(DEVICE).unwrap().malloc(50 * MIB, OTHER), Ok(Forecast::OutOfMemory));
    assert!(matches!(host.allocator.malloc(DEVICE, 50 * MIB, OTHER), Err(Error::OutOfMemory(_))));
    host.device().set_capturing(STREAM, false);
    host.malloc_on(50 * MIB, OTHER);
}

/// A branch of the graph may do work with the block until the capture ends, under every policy.
#[test]
fn a_block_that_a_branch_of_a_graph_uses_stays_until_the_capture_ends() {
    const SIDE: StreamId = StreamId(2);
    for config in ["", "parity:False", "expandable_segments:True,parity:False", "policy:stitched", "policy:bfc"] {
        let host = Host::new(config, 1 << 30);
        let pool = host.allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
        host.allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Capture).unwrap();
        let set_capturing = |on| [STREAM, SIDE].into_iter().for_each(|stream| host.device().set_capturing(stream, on));
        set_capturing(true);
        let block = host.malloc(32);
        host.allocator.record_stream(block, SIDE).unwrap();
        host.free(block);
        assert_ne!(host.malloc(32), block, "`{config}`");
        set_capturing(false);
        host.allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
        host.allocator.process_events(DEVICE).unwrap();
        let pending = host.stat("active.all.current") - host.stat("allocation.all.current");
        assert_eq!(pending, 0, "`{config}`");
    }
}
