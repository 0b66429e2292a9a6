//! Blocks that a captured graph uses on several streams, and reuses before the capture ends
//! (`graph_capture_record_stream_reuse`).

use cachalot_core::simulated::{Call, SimulatedDevice};
use cachalot_core::{Action, DevicePtr, ErrorKind, PoolId, PoolOptions, Route, RoutePurpose, StreamId, TraceEntry};
use cachalot_tests::host::{DEVICE, Host, STREAM};
use cachalot_tests::policies::policies;
use cachalot_tests::sweep::{Sweep, graph_reuse};

const SIDES: [StreamId; 3] = [StreamId(2), StreamId(3), StreamId(4)];
const SIDE: StreamId = SIDES[0];
const CONFIG: &str = "graph_capture_record_stream_reuse:True";
const BYTES: u64 = 32;

/// Begins a capture on [`STREAM`] into a new pool, to which all requests go.
fn begin(config: &str) -> (Host, PoolId) {
    let host = Host::new(config, 1 << 30);
    let pool = host.allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    begin_again(&host, pool);
    (host, pool)
}

fn begin_again(host: &Host, pool: PoolId) {
    host.allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Capture).unwrap();
    host.device().set_capturing(STREAM, true);
}

/// Ends the capture on all streams.
fn end(host: &Host, pool: PoolId) {
    for stream in [STREAM].into_iter().chain(SIDES) {
        host.device().set_capturing(stream, false);
    }
    host.allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
}

/// Lets a stream wait for the main one, and do work that uses a block.
fn use_on(host: &Host, stream: StreamId, block: DevicePtr) {
    let device: &SimulatedDevice = host.device();
    device.capture_wait(stream, STREAM);
    device.capture_work(stream);
    host.allocator.record_stream(block, stream).unwrap();
}

#[test]
fn a_block_is_reused_behind_the_join_of_the_stream_that_used_it() {
    for config in ["", ",parity:False", ",expandable_segments:True"] {
        let (host, pool) = begin(&format!("{CONFIG}{config}"));
        let block = host.malloc(BYTES);
        host.device().capture_work(STREAM);
        use_on(&host, SIDE, block);
        host.free(block);
        assert_eq!(host.device().capture_marks(), 1, "`{config}`");
        assert_ne!(host.malloc(BYTES), block, "`{config}`: the other stream is not joined");
        // Work of the main stream alone proves nothing.
        host.device().capture_work(STREAM);
        assert_ne!(host.malloc(BYTES), block, "`{config}`");
        host.device().capture_wait(STREAM, SIDE);
        assert_eq!(host.malloc(BYTES), block, "`{config}`");
        assert_eq!(host.device().capture_marks(), 0, "`{config}`");
        end(&host, pool);
    }
}

#[test]
fn every_stream_that_used_the_block_must_be_joined() {
    let (host, pool) = begin(CONFIG);
    let block = host.malloc(BYTES);
    host.device().capture_work(STREAM);
    SIDES.into_iter().for_each(|stream| use_on(&host, stream, block));
    host.free(block);
    for stream in SIDES {
        assert_ne!(host.malloc(BYTES), block, "{stream:?} is not joined");
        host.device().capture_wait(STREAM, stream);
    }
    assert_eq!(host.malloc(BYTES), block);
    end(&host, pool);
}

#[test]
fn a_chain_of_streams_counts_as_a_join_and_later_work_of_the_user_does_not_matter() {
    let (host, pool) = begin(CONFIG);
    let block = host.malloc(BYTES);
    host.device().capture_work(STREAM);
    use_on(&host, SIDE, block);
    host.free(block);
    // Behind the free: not part of the uses.
    host.device().capture_wait(SIDES[1], SIDE);
    host.device().capture_work(SIDE);
    host.device().capture_work(SIDES[1]);
    host.device().capture_wait(STREAM, SIDES[1]);
    assert_eq!(host.malloc(BYTES), block);
    end(&host, pool);
}

#[test]
fn a_block_serves_its_own_stream_only() {
    let (host, pool) = begin(CONFIG);
    host.device().capture_wait(SIDE, STREAM);
    let block = host.malloc_on(BYTES, SIDE);
    host.device().capture_work(SIDE);
    host.allocator.record_stream(block, STREAM).unwrap();
    host.device().capture_wait(STREAM, SIDE);
    host.device().capture_work(STREAM);
    host.free(block);
    assert_ne!(host.malloc(BYTES), block, "the user is behind all work, and owns nothing");
    assert_ne!(host.malloc_on(BYTES, SIDE), block, "the owner is not behind the use");
    host.device().capture_wait(SIDE, STREAM);
    assert_eq!(host.malloc_on(BYTES, SIDE), block);
    end(&host, pool);
}

/// Without the setting, under every policy.
#[test]
fn a_block_that_branches_of_a_graph_use_waits_for_the_end_of_the_capture() {
    for config in policies().filter(|config| !config.contains("allow_growth:False")) {
        let (host, pool) = begin(config);
        let block = host.malloc(BYTES);
        host.device().capture_work(STREAM);
        use_on(&host, SIDE, block);
        host.free(block);
        assert_ne!(host.malloc(BYTES), block, "`{config}`: work on the branch may come later");
        end(&host, pool);
        host.allocator.process_events(DEVICE).unwrap();
        let pending = host.stat("active.all.current") - host.stat("allocation.all.current");
        assert_eq!(pending, 0, "`{config}`");
    }
}

#[test]
fn what_the_graph_does_not_order_waits_for_the_end_of_the_capture() {
    // The setting is off; a user stream does not capture; nothing is captured; the uses are not
    // joined.
    for case in ["off", "outside", "empty", "open"] {
        let (host, pool) = begin(if case == "off" { "" } else { CONFIG });
        let block = host.malloc(BYTES);
        if case == "empty" {
            host.device().capture_wait(SIDE, STREAM);
            host.allocator.record_stream(block, SIDE).unwrap();
        } else {
            host.device().capture_work(STREAM);
            use_on(&host, SIDE, block);
        }
        if case == "outside" {
            host.allocator.record_stream(block, SIDES[1]).unwrap();
        }
        host.free(block);
        let marks = usize::from(case == "open" || case == "empty");
        assert_eq!(host.device().capture_marks(), marks, "{case}");
        if case != "open" {
            host.device().capture_work(SIDE);
            host.device().capture_wait(STREAM, SIDE);
        }
        assert_ne!(host.malloc(BYTES), block, "{case}");
        end(&host, pool);
        host.allocator.process_events(DEVICE).unwrap();
        host.device().complete(SIDES[1]);
        host.allocator.process_events(DEVICE).unwrap();
        assert_eq!(host.device().capture_marks(), 0, "{case}");
        begin_again(&host, pool);
        let again = [host.malloc(BYTES), host.malloc(BYTES)];
        assert!(again.contains(&block), "{case}");
        end(&host, pool);
    }
}

#[test]
fn a_mark_of_an_ended_capture_frees_nothing_in_the_next() {
    let (host, pool) = begin(CONFIG);
    let block = host.malloc(BYTES);
    host.device().capture_work(STREAM);
    use_on(&host, SIDE, block);
    host.free(block);
    host.allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(SIDES[2]), RoutePurpose::Capture).unwrap();
    // The first capture ends while another goes on, so that the block stays deferred.
    for stream in [STREAM, SIDE] {
        host.device().set_capturing(stream, false);
        host.device().set_capturing(stream, true);
    }
    host.device().capture_work(STREAM);
    host.device().capture_wait(STREAM, SIDE);
    assert_ne!(host.malloc(BYTES), block);
    end(&host, pool);
    host.allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
}

#[test]
fn the_setting_can_change_during_the_capture() {
    let (host, pool) = begin("");
    let early = host.malloc(BYTES);
    host.device().capture_work(STREAM);
    use_on(&host, SIDE, early);
    host.free(early);
    host.configure(CONFIG);
    let block = host.malloc(BYTES);
    use_on(&host, SIDE, block);
    host.free(block);
    host.device().capture_wait(STREAM, SIDE);
    host.configure("graph_capture_record_stream_reuse:False");
    let third = host.malloc(BYTES);
    assert!(third != early && third != block);
    host.configure(CONFIG);
    assert_eq!(host.malloc(BYTES), block, "the earlier one was freed without a mark");
    assert_ne!(host.malloc(BYTES), early);
    end(&host, pool);
}

#[test]
fn the_free_is_complete_in_statistics_and_trace_when_the_block_is_reused() {
    let (host, pool) = begin(CONFIG);
    host.allocator.trace(DEVICE).unwrap().record(100).unwrap();
    let block = host.malloc(BYTES);
    host.device().capture_work(STREAM);
    use_on(&host, SIDE, block);
    host.free(block);
    let pending = || host.stat("active.all.current") - host.stat("allocation.all.current");
    assert_eq!(pending(), 1);
    host.device().capture_wait(STREAM, SIDE);
    assert_eq!((host.malloc(BYTES), pending()), (block, 0));
    let mut actions = Vec::new();
    let note = |entry: &TraceEntry| {
        if entry.addr == block && entry.action != Action::SegmentAlloc {
            actions.push(entry.action);
        }
    };
    host.allocator.trace(DEVICE).unwrap().for_each(note);
    assert_eq!(actions, [Action::Alloc, Action::FreeRequested, Action::FreeCompleted, Action::Alloc]);
    end(&host, pool);
}

/// A graph whose order is not known keeps the block until the capture ends, and no mark stays
/// behind.
#[test]
fn any_call_of_a_capture_that_reuses_may_fail() {
    for config in [CONFIG.to_owned(), format!("{CONFIG},parity:False")] {
        let sweep = Sweep::new(&config, graph_reuse());
        let made = sweep.occurrences();
        assert!(made[&Call::MarkCapture].len() >= 5 && made[&Call::IsBehind].len() >= 2, "`{config}`: {made:?}");
        for kind in [ErrorKind::OutOfMemory, ErrorKind::Other] {
            sweep.fail_everywhere(kind, false);
            sweep.fail_everywhere(kind, true);
        }
        sweep.lose_the_context_everywhere();
    }
}
