//! Stream capture: recording, forbidden calls, broken captures, and replay.

use crate::common::{Emulated, PAGE};
use cachalot_emulated_driver::api::Api;

const GLOBAL: i32 = 0;
const THREAD_LOCAL: i32 = 1;
const RELAXED: i32 = 2;
const MODES: [i32; 3] = [GLOBAL, THREAD_LOCAL, RELAXED];

/// Creates a driver with a capturing stream.
fn capturing(mode: i32) -> (Emulated, u64) {
    let driver = Emulated::new();
    let stream = driver.stream(1).expect("a stream");
    assert_eq!(driver.cuStreamBeginCapture_v2(stream, mode), 0);
    (driver, stream)
}

#[test]
fn captured_work_runs_at_each_launch_and_not_before() {
    for mode in MODES {
        let driver = Emulated::new();
        let stream = driver.stream(1).expect("a stream");
        let address = driver.alloc(PAGE).expect("memory");
        assert_eq!(driver.cuStreamBeginCapture_v2(stream, mode), 0);
        assert_eq!(driver.cuMemsetD8Async(address, 1, 16, stream), 0);
        assert_eq!(driver.cuMemcpyDtoDAsync_v2(address + 16, address, 16, stream), 0);
        assert_eq!(driver.capturing(stream), Ok(1));
        let graph = driver.end_capture(stream).expect("a graph");
        assert_eq!(driver.capturing(stream), Ok(0));
        assert_eq!(driver.read(address, 32), Ok(vec![0xa5; 32]));
        let mut executable = 0;
        assert_eq!(driver.cuGraphInstantiateWithFlags(&mut executable, graph, 0), 0);
        assert_eq!(driver.cuGraphDestroy(graph), 0);
        for _ in 0..2 {
            assert_eq!(driver.write(address, &[0; 32]), 0);
            assert_eq!(driver.cuGraphLaunch(executable, stream), 0);
            assert_eq!(driver.cuStreamSynchronize(stream), 0);
            assert_eq!(driver.read(address, 32), Ok(vec![1; 32]));
        }
        assert_eq!((driver.cuGraphExecDestroy(executable), driver.cuGraphExecDestroy(executable)), (0, 1));
        assert_eq!(driver.cuGraphLaunch(executable, stream), 1);
    }
}

#[test]
fn unsafe_calls_of_the_capturing_thread_break_its_capture_unless_relaxed() {
    for mode in MODES {
        let (driver, stream) = capturing(mode);
        let (call, end) = (driver.alloc(1), driver.end_capture(stream));
        if mode == RELAXED {
            assert!(call.is_ok() && end.is_ok());
        } else {
            assert_eq!((call, end), (Err(900), Err(901)));
        }
        // The stream is usable again.
        assert_eq!((driver.capturing(stream), driver.cuStreamSynchronize(stream)), (Ok(0), 0));
    }
}

#[test]
fn a_broken_capture_refuses_work_until_it_is_ended() {
    let (driver, stream) = capturing(GLOBAL);
    assert_eq!(driver.alloc(1), Err(900));
    assert_eq!(driver.capturing(stream), Ok(2));
    assert_eq!(driver.cuLaunchHostFunc(stream, nothing, std::ptr::null_mut()), 901);
    let mut graph = 1;
    assert_eq!((driver.cuStreamEndCapture(stream, &mut graph), graph), (901, 0));
    assert_eq!(driver.cuLaunchHostFunc(stream, nothing, std::ptr::null_mut()), 0);
    assert_eq!(driver.count("captures"), 0);
}

unsafe extern "C" fn nothing(_argument: *mut std::ffi::c_void) {}

#[test]
fn exchanging_the_mode_makes_a_call_legal_and_restores() {
    for mode in MODES {
        let (driver, stream) = capturing(mode);
        let mut own = RELAXED;
        assert_eq!((driver.cuThreadExchangeStreamCaptureMode(&mut own), own), (0, GLOBAL));
        assert!(driver.alloc(1).is_ok());
        assert_eq!((driver.cuThreadExchangeStreamCaptureMode(&mut own), own), (0, RELAXED));
        assert!(driver.end_capture(stream).is_ok());
        assert_eq!(driver.cuThreadExchangeStreamCaptureMode(&mut 3), 1);
    }
}

#[test]
fn other_threads_are_bound_by_global_captures_only() {
    // The capture's mode, the other thread's mode, whether the other thread may allocate.
    let cases = [
        (GLOBAL, GLOBAL, false),
        (GLOBAL, THREAD_LOCAL, true),
        (GLOBAL, RELAXED, true),
        (THREAD_LOCAL, GLOBAL, true),
        (RELAXED, GLOBAL, true),
    ];
    for (capture, own, allowed) in cases {
        let (driver, stream) = capturing(capture);
        let call = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                driver.enter(0).expect("a context");
                let mut mode = own;
                assert_eq!(driver.cuThreadExchangeStreamCaptureMode(&mut mode), 0);
                driver.alloc(1).map(drop)
            });
            other.join().expect("joined")
        });
        let expected = if allowed { (Ok(()), true) } else { (Err(900), false) };
        assert_eq!((call, driver.end_capture(stream).is_ok()), expected, "{capture} {own}");
    }
}

#[test]
fn waiting_for_a_capturing_stream_breaks_the_capture() {
    for mode in MODES {
        for wait in [Api::cuStreamSynchronize, Api::cuStreamQuery] {
            let (driver, stream) = capturing(mode);
            assert_eq!((wait(&driver, stream), driver.end_capture(stream)), (900, Err(901)));
        }
    }
}

#[test]
fn captured_events_join_streams() {
    let (driver, stream) = capturing(RELAXED);
    let side = driver.stream(1).expect("a stream");
    let (fork, join) = (driver.event().expect("an event"), driver.event().expect("an event"));
    assert_eq!(driver.cuEventRecord(fork, stream), 0);
    assert_eq!((driver.cuStreamWaitEvent(side, fork, 0), driver.capturing(side)), (0, Ok(1)));
    assert_eq!(driver.cuLaunchHostFunc(side, nothing, std::ptr::null_mut()), 0);
    assert_eq!((driver.cuEventRecord(join, side), driver.cuStreamWaitEvent(stream, join, 0)), (0, 0));
    assert!(driver.end_capture(stream).is_ok());
    assert_eq!(driver.capturing(side), Ok(0));
    // The event counts as unrecorded until the next record outside of a capture.
    assert_eq!((driver.cuEventQuery(join), driver.cuEventSynchronize(join)), (1, 1));
    assert_eq!(driver.cuStreamWaitEvent(side, join, 0), 1);
    assert_eq!((driver.cuEventRecord(join, side), driver.cuEventSynchronize(join)), (0, 0));
}

/// Returns the handles of the nodes after which a stream's next work will come.
fn ends(driver: &Emulated, stream: u64) -> Vec<u64> {
    let (mut status, mut id, mut count) = (0, 0, 0);
    let mut nodes = std::ptr::null();
    let null = std::ptr::null_mut();
    let code = driver.cuStreamGetCaptureInfo_v2(stream, &mut status, &mut id, null, &raw mut nodes, &raw mut count);
    assert_eq!((code, status), (0, 1));
    if count == 0 {
        return Vec::new();
    }
    // SAFETY: the driver has shown so many nodes, and none is captured since.
    unsafe { std::slice::from_raw_parts(nodes, count) }.to_vec()
}

#[test]
fn a_capture_shows_as_many_edges_as_nodes() {
    let (driver, stream) = capturing(RELAXED);
    let address = driver.alloc(8).expect("memory");
    for expected in [0, 1] {
        let (mut status, mut id, mut count) = (0, 0, 7);
        let (mut nodes, mut edges, null) = (std::ptr::null(), std::ptr::null(), std::ptr::null_mut());
        let (at, each) = (&raw mut nodes, &raw mut edges);
        let code = driver.cuStreamGetCaptureInfo_v3(stream, &mut status, &mut id, null, at, each, &raw mut count);
        assert_eq!((code, status, count), (0, 1, expected));
        // SAFETY: the driver has shown so many nodes with their edges, and none is captured since.
        let shown = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(edges, count) } };
        assert_eq!(shown, vec![[0; 8]; expected]);
        if expected == 1 {
            // SAFETY: as above.
            assert_eq!(unsafe { nodes.read() }, ends(&driver, stream)[0]);
        }
        assert_eq!(driver.cuMemsetD8Async(address, 1, 8, stream), 0);
    }
}

/// Returns the handles of the nodes right before a node, by both versions of the function.
fn before(driver: &Emulated, node: u64) -> Vec<u64> {
    let mut count = 0;
    assert_eq!(driver.cuGraphNodeGetDependencies(node, std::ptr::null_mut(), &mut count), 0);
    let (mut nodes, mut again, mut properties) = (vec![0; count], vec![0; count], vec![[1; 8]; count]);
    assert_eq!(driver.cuGraphNodeGetDependencies(node, nodes.as_mut_ptr(), &mut count), 0);
    let code = driver.cuGraphNodeGetDependencies_v2(node, again.as_mut_ptr(), properties.as_mut_ptr(), &mut count);
    assert_eq!((code, &again, count), (0, &nodes, nodes.len()));
    assert!(properties.iter().all(|properties| *properties == [0; 8]));
    nodes
}

#[test]
fn the_order_of_captured_work_is_shown() {
    let (driver, stream) = capturing(RELAXED);
    let side = driver.stream(1).expect("a stream");
    let (fork, join) = (driver.event().expect("an event"), driver.event().expect("an event"));
    let work = |stream| assert_eq!(driver.cuLaunchHostFunc(stream, nothing, std::ptr::null_mut()), 0);
    assert!(ends(&driver, stream).is_empty());
    work(stream);
    let first = ends(&driver, stream);
    assert_eq!((driver.cuEventRecord(fork, stream), driver.cuStreamWaitEvent(side, fork, 0)), (0, 0));
    assert_eq!(ends(&driver, side), first);
    work(side);
    work(stream);
    let (left, right) = (ends(&driver, stream), ends(&driver, side));
    assert_eq!((driver.cuEventRecord(join, side), driver.cuStreamWaitEvent(stream, join, 0)), (0, 0));
    let both: std::collections::BTreeSet<u64> = left.iter().chain(&right).copied().collect();
    assert_eq!(ends(&driver, stream).into_iter().collect::<std::collections::BTreeSet<_>>(), both);
    work(stream);
    let last = ends(&driver, stream);
    assert_eq!(before(&driver, last[0]).into_iter().collect::<std::collections::BTreeSet<_>>(), both);
    assert_eq!((before(&driver, left[0]), before(&driver, right[0])), (first.clone(), first.clone()));
    assert!(before(&driver, first[0]).is_empty());
    let mut count = 0;
    assert_eq!(driver.cuGraphNodeGetDependencies(0, std::ptr::null_mut(), &mut count), 1);
    assert!(driver.end_capture(stream).is_ok());
    assert_eq!(driver.cuGraphNodeGetDependencies(last[0], std::ptr::null_mut(), &mut count), 1);
}

#[test]
fn asking_for_a_captured_event_breaks_its_capture_in_every_mode() {
    for mode in MODES {
        for ask in [Api::cuEventQuery, Api::cuEventSynchronize] {
            let (driver, stream) = capturing(mode);
            let event = driver.event().expect("an event");
            assert_eq!((driver.cuEventRecord(event, stream), ask(&driver, event)), (0, 907));
            assert_eq!((ask(&driver, event), driver.end_capture(stream)), (1, Err(901)));
        }
    }
}

#[test]
fn a_capturing_streams_identity_is_not_to_be_asked() {
    for mode in MODES {
        let (driver, stream) = capturing(mode);
        let other = driver.stream(1).expect("a stream");
        assert!(driver.stream_id(other).is_ok() && driver.stream_id(0).is_ok());
        assert_eq!((driver.stream_id(stream), driver.end_capture(stream)), (Err(900), Err(901)));
    }
}

#[test]
fn waiting_for_the_context_breaks_captures_in_every_mode() {
    for mode in MODES {
        let (driver, stream) = capturing(mode);
        assert_eq!((driver.cuCtxSynchronize(), driver.end_capture(stream)), (900, Err(901)));
        assert_eq!(driver.cuCtxSynchronize(), 0);
    }
}

#[test]
fn a_fork_that_is_not_joined_is_an_error() {
    let (driver, stream) = capturing(RELAXED);
    let side = driver.stream(1).expect("a stream");
    let fork = driver.event().expect("an event");
    assert_eq!((driver.cuEventRecord(fork, stream), driver.cuStreamWaitEvent(side, fork, 0)), (0, 0));
    assert_eq!(driver.cuLaunchHostFunc(side, nothing, std::ptr::null_mut()), 0);
    assert_eq!((driver.end_capture(side), driver.capturing(stream)), (Err(903), Ok(2)));
    assert_eq!(driver.end_capture(stream), Err(901));
    assert_eq!(driver.cuStreamBeginCapture_v2(stream, RELAXED), 0);
    assert_eq!((driver.cuEventRecord(fork, stream), driver.cuStreamWaitEvent(side, fork, 0)), (0, 0));
    assert_eq!(driver.cuLaunchHostFunc(side, nothing, std::ptr::null_mut()), 0);
    assert_eq!((driver.end_capture(stream), driver.capturing(side)), (Err(904), Ok(0)));
}

#[test]
fn dependencies_do_not_cross_a_captures_border() {
    let (driver, stream) = capturing(RELAXED);
    let (side, event) = (driver.stream(1).expect("a stream"), driver.event().expect("an event"));
    assert_eq!(driver.cuStreamWaitEvent(stream, event, 0), 0);
    assert_eq!(driver.cuEventRecord(event, side), 0);
    assert_eq!((driver.cuStreamWaitEvent(stream, event, 0), driver.end_capture(stream)), (905, Err(901)));
    assert_eq!(driver.cuStreamBeginCapture_v2(stream, RELAXED), 0);
    assert_eq!(driver.cuStreamBeginCapture_v2(side, RELAXED), 0);
    assert_eq!((driver.cuEventRecord(event, side), driver.cuStreamWaitEvent(stream, event, 0)), (0, 902));
    assert_eq!((driver.end_capture(stream), driver.end_capture(side)), (Err(901), Err(901)));
}

#[test]
fn the_legacy_stream_disturbs_captures_of_blocking_streams() {
    let driver = Emulated::new();
    let (blocking, free) = (driver.stream(0).expect("a stream"), driver.stream(1).expect("a stream"));
    assert_eq!(driver.cuStreamBeginCapture_v2(0, GLOBAL), 900);
    assert_eq!(driver.cuStreamBeginCapture_v2(free, RELAXED), 0);
    assert_eq!((driver.capturing(0), driver.cuLaunchHostFunc(0, nothing, std::ptr::null_mut())), (Ok(0), 0));
    assert!(driver.end_capture(free).is_ok());
    assert_eq!(driver.cuStreamBeginCapture_v2(blocking, RELAXED), 0);
    assert_eq!((driver.capturing(0), driver.capturing(blocking)), (Err(906), Ok(1)));
    assert_eq!(driver.cuLaunchHostFunc(0, nothing, std::ptr::null_mut()), 906);
    assert_eq!((driver.capturing(blocking), driver.end_capture(blocking)), (Ok(2), Err(901)));
}

#[test]
fn beginning_and_ending_are_checked() {
    let (driver, stream) = capturing(THREAD_LOCAL);
    assert_eq!(driver.cuStreamBeginCapture_v2(stream, THREAD_LOCAL), 401);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            driver.enter(0).expect("a context");
            driver.end_capture(stream)
        });
        assert_eq!(other.join().expect("joined"), Err(908));
    });
    assert!(driver.end_capture(stream).is_ok());
    assert_eq!(driver.end_capture(stream), Err(401));
    assert_eq!(driver.cuStreamBeginCapture_v2(stream, 3), 1);
}

#[test]
fn a_capture_has_an_id_of_its_own() {
    let (driver, stream) = capturing(RELAXED);
    let info = || {
        let (mut status, mut id) = (0, 0);
        let (graph, nodes, count) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        assert_eq!(driver.cuStreamGetCaptureInfo_v2(stream, &mut status, &mut id, graph, nodes, count), 0);
        (status, id)
    };
    let first = info();
    assert!(driver.end_capture(stream).is_ok());
    assert_eq!((first.0, info()), (1, (0, 0)));
    assert_eq!(driver.cuStreamBeginCapture_v2(stream, RELAXED), 0);
    assert_ne!(info().1, first.1);
}
