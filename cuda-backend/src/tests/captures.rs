//! Tests of streams that capture and of marks in graphs, over a graph of the fake driver.

use super::*;
use crate::driver::result::CuResult;
use crate::driver::types::{CuCaptureStatus, CuGraphNode};
use crate::fake::{Plan, When};
use cachalot_core::CaptureMark;

/// Another stream of device 0.
const OTHER: CuStream = CuStream(STREAM.0 + 0x100);

/// The functions that report the nodes before a node, the preferred one first.
const DEPENDENCIES: [&str; 2] = ["cuGraphNodeGetDependencies_v2", "cuGraphNodeGetDependencies"];

/// Adds a node after `before` to the graph, which becomes the end of a stream.
fn work(stream: CuStream, node: usize, before: &[usize]) {
    fake::with(|fake| {
        fake.graph.insert(node, before.iter().map(|&node| CuGraphNode(node)).collect());
        fake.ends.insert(stream.0, vec![CuGraphNode(node)]);
    });
}

/// Lets every stream capture.
fn begin_capture() {
    fake::with(|fake| fake.capturing.1 = CuCaptureStatus::ACTIVE);
}

/// Marks a stream without an earlier mark.
fn mark(device: &CudaDevice, stream: CuStream) -> CaptureMark {
    device.mark_capture(id(stream), None).expect("asked").expect("captures")
}

fn is_behind(device: &CudaDevice, stream: CuStream, mark: CaptureMark) -> bool {
    device.is_behind(id(stream), mark).expect("asked")
}

/// Returns how often `body` asks for the nodes before a node.
fn questions(body: impl FnOnce()) -> usize {
    calls(body).into_iter().filter(|name| DEPENDENCIES.contains(name)).count()
}

#[test]
fn later_work_is_behind_a_mark_once_it_is_behind_every_end_of_the_mark() {
    // The graph of `capture_marks.rs`: a = 1, b = 2, c = 3, d = 4, e = 5.
    let device = device();
    begin_capture();
    work(STREAM, 1, &[]);
    work(STREAM, 2, &[1]);
    let marked = mark(&device, STREAM);
    assert!(is_behind(&device, STREAM, marked), "the end itself");
    work(OTHER, 3, &[2]);
    assert_eq!(device.mark_capture(id(OTHER), Some(marked)), Ok(Some(marked)), "the mark grows");
    assert!(!is_behind(&device, STREAM, marked), "not behind c");
    assert!(is_behind(&device, OTHER, marked), "c is behind b");
    let later = mark(&device, OTHER);
    assert_ne!(later, marked);
    work(STREAM, 4, &[2, 3]);
    work(STREAM, 5, &[4]);
    assert!(is_behind(&device, STREAM, marked) && is_behind(&device, STREAM, later));
    let last = mark(&device, STREAM);
    assert!(!is_behind(&device, OTHER, last));
    // Without marks nothing is remembered, and nothing comes after a mark that was removed.
    for gone in [marked, later, last] {
        device.remove_mark(gone);
        assert!(!is_behind(&device, STREAM, gone));
    }
    let left = format!("{:?}", device.capture_marks);
    assert!(left.contains("marks: {}, reached: {}"), "{left}");
}

#[test]
fn each_node_is_asked_for_once_per_stream_and_capture() {
    let device = device();
    begin_capture();
    work(STREAM, 1, &[]);
    (2..=50).for_each(|node| work(STREAM, node, &[node - 1]));
    let marked = mark(&device, STREAM);
    // The number of the nodes, and the nodes if there are some.
    assert_eq!(questions(|| assert!(is_behind(&device, STREAM, marked))), 2 * 50 - 1);
    assert_eq!(questions(|| assert!(is_behind(&device, STREAM, marked))), 0);
    work(STREAM, 51, &[50]);
    assert_eq!(questions(|| assert!(is_behind(&device, STREAM, marked))), 2);
    // The next capture of the stream has other nodes, which may have the same names.
    fake::with(|fake| fake.capture += 1);
    assert_eq!(questions(|| assert!(!is_behind(&device, STREAM, marked))), 0);
    let next = mark(&device, STREAM);
    assert_eq!(questions(|| assert!(is_behind(&device, STREAM, next))), 2 * 51 - 1);
}

#[test]
fn a_mark_belongs_to_one_capture() {
    let device = device();
    begin_capture();
    work(STREAM, 1, &[]);
    let marked = mark(&device, STREAM);
    fake::with(|fake| fake.capture += 1);
    assert!(!is_behind(&device, STREAM, marked));
    assert_eq!(device.mark_capture(id(STREAM), Some(marked)), Ok(None), "the mark is given up");
    fake::with(|fake| fake.capture -= 1);
    assert!(!is_behind(&device, STREAM, marked), "for good");
    for capturing in [CuCaptureStatus::NONE, CuCaptureStatus::INVALIDATED] {
        begin_capture();
        let marked = mark(&device, STREAM);
        assert!(is_behind(&device, STREAM, marked));
        fake::with(|fake| fake.capturing.1 = capturing);
        assert!(!is_behind(&device, STREAM, marked), "no capture");
        assert_eq!(device.mark_capture(id(STREAM), None), Ok(None));
        assert_eq!(device.mark_capture(id(STREAM), Some(marked)), Ok(None));
        begin_capture();
        assert!(!is_behind(&device, STREAM, marked), "for good");
    }
}

#[test]
fn a_mark_without_work_has_nothing_behind_it() {
    let device = device();
    begin_capture();
    let marked = mark(&device, STREAM);
    assert!(!is_behind(&device, STREAM, marked));
    work(STREAM, 1, &[]);
    assert!(!is_behind(&device, STREAM, marked), "nothing tells which work came before");
}

#[test]
fn streams_that_never_capture_are_not_marked() {
    let device = device();
    begin_capture();
    assert_eq!(calls(|| assert_eq!(device.mark_capture(StreamId::DEFAULT, None), Ok(None))), Vec::<&str>::new());
    let own = device.stream_id(CuStream::PER_THREAD).expect("a number");
    work(CuStream::PER_THREAD, 1, &[]);
    let marked = device.mark_capture(own, None).expect("asked").expect("a thread's own stream captures");
    assert_eq!(device.is_behind(own, marked), Ok(true));
    assert_eq!(device.is_behind(StreamId::DEFAULT, marked), Ok(false));
}

#[test]
fn ends_that_the_program_replaces_are_looked_at_anew() {
    let device = device();
    begin_capture();
    work(STREAM, 1, &[]);
    work(STREAM, 2, &[1]);
    let marked = mark(&device, STREAM);
    assert!(is_behind(&device, STREAM, marked));
    // As cuStreamUpdateCaptureDependencies does: the stream goes on from node 1, parallel to node 2.
    work(STREAM, 3, &[1]);
    assert!(!is_behind(&device, STREAM, marked));
    assert_eq!(questions(|| assert!(!is_behind(&device, STREAM, marked))), 0, "once");
    work(STREAM, 4, &[3]);
    assert!(!is_behind(&device, STREAM, marked));
    work(STREAM, 5, &[4, 2]);
    assert!(is_behind(&device, STREAM, marked));
}

#[test]
fn a_question_that_fails_is_asked_again() {
    let device = device();
    begin_capture();
    work(STREAM, 1, &[]);
    work(STREAM, 2, &[1]);
    work(STREAM, 3, &[2]);
    let marked = mark(&device, STREAM);
    for skip in 0..5 {
        let (function, when, code) = (Some(DEPENDENCIES[0]), When::Before, CuResult::UNKNOWN);
        fake::with(|fake| fake.plan = Some(Plan { function, skip, code, when, permanent: false }));
        assert_eq!(device.is_behind(id(STREAM), marked), Err(code.error()), "{skip}");
    }
    assert!(is_behind(&device, STREAM, marked));
    // An error ends a mark that was to grow, because its other ends would be forgotten.
    for earlier in [None, Some(marked)] {
        let (function, when, code) = (Some("cuStreamGetCaptureInfo_v2"), When::Before, CuResult::UNKNOWN);
        fake::with(|fake| fake.plan = Some(Plan { function, skip: 0, code, when, permanent: false }));
        assert_eq!(device.mark_capture(id(STREAM), earlier), Err(code.error()));
    }
    assert!(!is_behind(&device, STREAM, marked));
}

#[test]
fn an_older_driver_is_asked_by_the_older_function_and_one_with_neither_not_at_all() {
    for known in 0..=2 {
        let _ = fake::driver();
        let mut table = fake::table();
        table.graph_node_get_dependencies_v2 = table.graph_node_get_dependencies_v2.filter(|_| known == 2);
        table.graph_node_get_dependencies = table.graph_node_get_dependencies.filter(|_| known >= 1);
        let device = CudaDevice::open(fake::load(&table).expect("loads"), 0).expect("opens");
        begin_capture();
        work(STREAM, 1, &[]);
        work(STREAM, 2, &[1]);
        let marked = mark(&device, STREAM);
        let mut answer = Ok(false);
        let made = calls(|| answer = device.is_behind(id(STREAM), marked));
        let expected = if known == 0 { Err(CuResult::NOT_SUPPORTED.error()) } else { Ok(true) };
        assert_eq!(answer, expected);
        let asked: Vec<_> = DEPENDENCIES.into_iter().filter(|name| made.contains(name)).collect();
        assert_eq!(asked, [&[][..], &DEPENDENCIES[1..], &DEPENDENCIES[..1]][known]);
    }
}

#[test]
fn no_event_is_recorded_on_a_capturing_stream() {
    let device = asking();
    let event = device.create_event().expect("an event");
    for stream in [STREAM, CuStream::NULL, CuStream::PER_THREAD] {
        let number = device.stream_id(stream).expect("a number");
        for answer in [CuResult::SUCCESS, CuResult::STREAM_CAPTURE_IMPLICIT] {
            fake::with(|fake| fake.capturing = (answer, CuCaptureStatus::ACTIVE));
            let made = calls(|| {
                assert_eq!(device.stream_id(stream), Ok(number));
                assert_eq!(device.is_capturing(number), Ok(true));
                let refused = Err(CuResult::STREAM_CAPTURE_UNSUPPORTED.error());
                assert_eq!(device.record(event, number), refused);
                // A created stream may be gone, so its context is waited for, which breaks no
                // capture.
                let waited = if stream == STREAM { Ok(()) } else { refused };
                assert_eq!(device.synchronize(number), waited);
                // The report of a thread's own stream does not call the driver.
                assert_eq!(device.stream_destroyed(stream).is_err(), stream != CuStream::PER_THREAD);
            });
            let spoils = ["cuStreamGetId", "cuEventRecord", "cuStreamSynchronize"];
            assert!(!made.iter().any(|name| spoils.contains(name)), "{made:?}");
            fake::with(|fake| fake.capturing = (CuResult::SUCCESS, CuCaptureStatus::NONE));
        }
    }
}

#[test]
fn a_capture_has_a_number() {
    let device = device();
    assert_eq!(device.capture_id(STREAM), Ok(None));
    fake::with(|fake| fake.capturing = (CuResult::SUCCESS, CuCaptureStatus::ACTIVE));
    assert_eq!(device.capture_id(STREAM), Ok(Some(77)));
    assert_eq!(device.is_capturing(id(STREAM)), Ok(true));
    fake::with(|fake| fake.capturing = (CuResult::SUCCESS, CuCaptureStatus::INVALIDATED));
    assert_eq!(device.is_capturing(id(STREAM)), Ok(true));
}
