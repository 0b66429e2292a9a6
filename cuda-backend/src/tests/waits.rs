//! Tests of waits for all work of a context, even while the device has no memory left.

use super::*;
use crate::driver::result::CuResult;
use crate::driver::types::CuCaptureStatus;
use crate::fake::{CONTEXT, Plan, When};
use cachalot_core::ErrorKind;

/// Leaves the device memory for `room` more allocations.
fn leave_room(room: usize) {
    fake::with(|fake| fake.room = Some(room));
}

/// Returns the number of allocations.
fn allocations() -> usize {
    fake::with(|fake| fake.memory.len())
}

/// Waits for a created stream, which may be gone. Returns the result and the driver calls.
fn wait(device: &CudaDevice) -> (DeviceResult<()>, Vec<&'static str>) {
    let mut result = Ok(());
    let made = calls(|| result = device.synchronize(id(STREAM)));
    assert!(!made.contains(&"cuCtxSynchronize"), "would break a capture: {made:?}");
    (result, made)
}

#[test]
fn a_full_device_is_waited_for_without_new_memory() {
    let device = asking();
    let kept = allocations();
    leave_room(0);
    for _ in 0..100 {
        let (result, made) = wait(&device);
        assert_eq!(result, Ok(()));
        assert!(made.contains(&"cuMemFree_v2"), "{made:?}");
        assert_eq!(allocations(), kept);
    }
    assert_eq!(device.close(), Ok(()));
    assert_eq!(allocations(), 0);
}

#[test]
fn a_device_without_a_byte_is_an_error_and_recovers() {
    let device = asking();
    let kept = allocations();
    // Another part of the program obtains whatever a wait frees.
    let plan = |plan| fake::with(|fake| fake.plan = plan);
    let (code, when) = (CuResult::OUT_OF_MEMORY, When::Before);
    plan(Some(Plan { function: Some("cuMemAlloc_v2"), skip: 0, code, when, permanent: true }));
    for left in (0..kept).rev() {
        assert_eq!(wait(&device).0, Ok(()));
        assert_eq!(allocations(), left);
    }
    let (refused, made) = wait(&device);
    assert_eq!(refused.map_err(|error| error.kind), Err(ErrorKind::OutOfMemory));
    assert!(!made.contains(&"cuMemFree_v2"), "{made:?}");
    assert_eq!(device.health(), Ok(()));
    plan(None);
    assert_eq!(wait(&device).0, Ok(()));
    assert_eq!(allocations(), kept, "kept anew");
    leave_room(0);
    assert_eq!(wait(&device).0, Ok(()));
}

#[test]
fn a_wait_that_fails_for_another_reason_takes_no_kept_byte() {
    let device = asking();
    let kept = allocations();
    let (code, when) = (CuResult::UNKNOWN, When::Before);
    fake::with(|fake| {
        fake.plan = Some(Plan { function: Some("cuMemAlloc_v2"), skip: 0, code, when, permanent: false });
    });
    let (result, made) = wait(&device);
    assert_eq!(result, Err(code.error()));
    assert!(!made.contains(&"cuMemFree_v2"), "{made:?}");
    assert_eq!(allocations(), kept);
}

#[test]
fn a_device_whose_streams_are_reported_keeps_bytes_once_an_end_is_not_recorded() {
    let device = device();
    let event = device.create_event().expect("an event");
    device.stream_destroyed(CuStream(STREAM.0 + 0x100)).expect("retired");
    assert_eq!(allocations(), 0);
    let (code, when) = (CuResult::OUT_OF_MEMORY, When::Before);
    fake::with(|fake| {
        fake.plan = Some(Plan { function: Some("cuEventRecord"), skip: 0, code, when, permanent: false });
    });
    let gone = device.stream_destroyed(STREAM).expect("retired all the same");
    let kept = allocations();
    leave_room(0);
    let made = calls(|| device.record(event, gone).expect("waited"));
    assert!(made.contains(&"cuMemFree_v2") && !made.contains(&"cuCtxSynchronize"), "{made:?}");
    assert_eq!(allocations(), kept);
    assert_eq!(device.close(), Ok(()));
    assert_eq!(allocations(), 0);
}

#[test]
fn a_free_that_fails_for_want_of_memory_breaks_no_capture() {
    let device = with_events_of_contexts();
    let unknown = CuResult::UNKNOWN;
    let plan = |function, code, permanent| {
        let plan = Plan { function: Some(function), skip: 0, code, when: When::Before, permanent };
        fake::with(|fake| fake.plan = Some(plan));
    };
    plan("cuEventRecord", unknown, false);
    let gone = device.stream_destroyed(STREAM).expect("retired without an event");
    // The device has a byte first, and then only the kept ones.
    for room in [None, Some(0)] {
        fake::with(|fake| fake.room = room);
        plan("cuMemFree_v2", CuResult::OUT_OF_MEMORY, true);
        let mut waited = Ok(());
        let made = calls(|| waited = device.synchronize(gone));
        assert_eq!(waited, Err(CuResult::OUT_OF_MEMORY.error()), "{room:?}: nothing was waited for");
        assert!(made.contains(&"cuMemFree_v2"), "{room:?}: {made:?}");
        for breaks in ["cuCtxRecordEvent", "cuCtxSynchronize"] {
            assert!(!made.contains(&breaks), "{room:?}: {made:?}");
        }
    }
    fake::with(|fake| fake.plan = None);
    assert_eq!(device.synchronize(gone), Ok(()));
}

#[test]
fn a_full_device_without_a_byte_is_waited_for_only_where_captures_may_break() {
    let device = with_events_of_contexts();
    leave_room(0);
    let (code, when) = (CuResult::UNKNOWN, When::Before);
    fake::with(|fake| {
        fake.plan = Some(Plan { function: Some("cuEventRecord"), skip: 0, code, when, permanent: false });
    });
    let gone = device.stream_destroyed(STREAM).expect("retired without an event");
    let mut waited = Ok(());
    let made = calls(|| waited = device.synchronize(gone));
    assert_eq!(waited, Err(CuResult::OUT_OF_MEMORY.error()));
    assert!(!made.contains(&"cuCtxRecordEvent") && !made.contains(&"cuCtxSynchronize"), "{made:?}");
    let made = calls(|| waited = device.synchronize_without_memory(gone));
    assert_eq!(waited, Ok(()));
    assert!(made.contains(&"cuCtxRecordEvent") && made.contains(&"cuEventSynchronize"), "{made:?}");
    assert_eq!(device.synchronize(gone), Ok(()), "the stream has no more work");
}

#[test]
fn the_last_device_of_a_context_frees_the_bytes() {
    let first = asking();
    let kept = allocations();
    let options = || DeviceOptions {
        identity: StreamIdentity::Asked,
        streams: first.streams().clone(),
        ..DeviceOptions::default()
    };
    let again = CudaDevice::open_with(first.driver(), 0, options()).expect("opens twice");
    assert_eq!(allocations(), kept);
    let other = CudaDevice::open_with(first.driver(), 1, options()).expect("another context");
    assert_eq!(allocations(), 2 * kept);
    assert_eq!((first.close(), first.close()), (Ok(()), Ok(())));
    assert_eq!(allocations(), 2 * kept);
    leave_room(0);
    assert_eq!(wait(&again).0, Ok(()));
    assert_eq!(again.close(), Ok(()));
    assert_eq!(allocations(), kept);
    assert_eq!(other.close(), Ok(()));
    assert_eq!(allocations(), 0);
}

#[test]
fn a_full_device_opens_and_one_that_fails_leaves_nothing_behind() {
    let driver = fake::driver();
    let open = || {
        let options = DeviceOptions { identity: StreamIdentity::Asked, ..DeviceOptions::default() };
        CudaDevice::open_with(driver, 0, options)
    };
    leave_room(3);
    let device = open().expect("opens without the rest");
    assert_eq!((allocations(), wait(&device).0), (3, Ok(())));
    assert_eq!(device.close(), Ok(()));
    fake::with(|fake| {
        let (code, when) = (CuResult::UNKNOWN, When::Before);
        (fake.room, fake.plan) =
            (None, Some(Plan { function: Some("cuMemAlloc_v2"), skip: 3, code, when, permanent: false }));
    });
    assert_eq!(open().map(drop), Err(CuResult::UNKNOWN.error()));
    assert_eq!(allocations(), 0);
    assert_eq!(fake::with(|fake| fake.retained), [0, 0]);
}

#[test]
fn another_contexts_bytes_serve_waits_there() {
    let first = asking();
    let options =
        DeviceOptions { identity: StreamIdentity::Asked, streams: first.streams().clone(), ..DeviceOptions::default() };
    let _second = CudaDevice::open_with(first.driver(), 1, options).expect("another context");
    let number = first.stream_id(FOREIGN_STREAM).expect("a number");
    leave_room(0);
    assert_eq!(first.synchronize(number), Ok(()));
    // A context without an open device has no bytes.
    let nowhere = crate::context::Context::new(first.driver(), crate::driver::types::CuContext(CONTEXT.0 + 9));
    let refused = crate::context_wait::wait_for_context(&nowhere, first.streams().kept_bytes());
    assert_eq!(refused, Ok(false));
}

#[test]
fn a_wait_for_everything_without_context_events_needs_no_memory() {
    let device = asking();
    leave_room(0);
    fake::with(|fake| {
        let (code, when) = (CuResult::OUT_OF_MEMORY, When::Before);
        fake.plan = Some(Plan { function: Some("cuMemAlloc_v2"), skip: 0, code, when, permanent: true });
    });
    for _ in 0..100 {
        assert_eq!(device.synchronize_all(), Ok(()));
    }
}

#[test]
fn a_capture_that_begins_before_the_recording_is_not_waited_for() {
    let device = device();
    let stream = device.stream_id(STREAM).expect("a number");
    fake::with(|fake| fake.capture_before_record = true);
    let mut answer = Ok(());
    let made = calls(|| answer = device.synchronize(stream));
    assert_eq!(answer.map_err(|error| error.kind), Err(ErrorKind::NotPermittedInCapture), "{made:?}");
    assert!(made.contains(&"cuEventRecord") && !made.contains(&"cuEventSynchronize"), "{made:?}");
    assert!(!made.contains(&"cuStreamGetId"), "breaks a capture: {made:?}");
    fake::with(|fake| fake.capturing.1 = CuCaptureStatus::NONE);
    assert_eq!(device.synchronize(stream), Ok(()), "the event is recorded again");
    // The event belongs to a capture that has started and ended meanwhile, so the driver refuses to
    // wait for it.
    for (code, kind) in
        [(CuResult::INVALID_VALUE, ErrorKind::NotPermittedInCapture), (CuResult::UNKNOWN, ErrorKind::Other)]
    {
        let (function, when) = (Some("cuEventSynchronize"), When::Before);
        fake::with(|fake| fake.plan = Some(Plan { function, skip: 0, code, when, permanent: false }));
        assert_eq!(device.synchronize(stream).map_err(|error| error.kind), Err(kind));
    }
}
