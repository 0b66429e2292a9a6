//! Tests of the identity of streams: reused handles, default streams, streams of other devices.

use super::*;
use crate::driver::result::CuResult;
use crate::driver::types::{CuCaptureStatus, CuContext, CuEventFlags};
use crate::fake::{Plan, When};
use crate::handle::Handle;
use crate::streams::Remaining;
use cachalot_core::ErrorKind;

/// Returns whether a call waited for the whole context with the driver call that breaks no capture.
pub(super) fn waited_for_context(made: &[&str]) -> bool {
    assert!(!made.contains(&"cuCtxSynchronize"), "{made:?}");
    made.contains(&"cuMemFree_v2")
}

/// Returns the stream on which an event was recorded last.
pub(super) fn recorded_behind(event: Event) -> Option<CuStream> {
    fake::with(|fake| fake.events[&(event.0 as usize)].stream)
}

#[test]
fn a_number_needs_no_driver_call() {
    let device = device();
    let made = calls(|| assert_eq!(device.stream_id(STREAM), Ok(id(STREAM))));
    assert_eq!(made, Vec::<&str>::new());
}

#[test]
fn the_two_names_of_the_legacy_stream_are_one() {
    let device = device();
    assert_eq!(device.stream_id(CuStream::NULL), Ok(StreamId::DEFAULT));
    assert_eq!(device.stream_id(CuStream::LEGACY), Ok(StreamId::DEFAULT));
    assert_eq!(device.streams().handle(StreamId::DEFAULT), Some(CuStream::NULL));
}

#[test]
fn handles_that_no_stream_can_have_are_refused() {
    let device = device();
    for handle in [3, 65_535, 1 << 48, usize::MAX] {
        let refused = device.stream_id(CuStream(handle)).map_err(|error| (error.kind, error.code));
        assert_eq!(refused, Err((ErrorKind::InvalidArgument, 400)), "{handle:#x}");
        assert!(device.stream_destroyed(CuStream(handle)).is_err());
    }
    let highest = CuStream((1 << 48) - 1);
    assert_eq!(device.stream_id(highest), Ok(id(highest)));
}

#[test]
fn each_thread_has_a_default_stream_of_its_own() {
    let device = device();
    let own = device.stream_id(CuStream::PER_THREAD).expect("a number");
    assert_eq!(device.stream_id(CuStream::PER_THREAD), Ok(own));
    let other = std::thread::scope(|scope| {
        let ask = || device.streams().number(CuStream::PER_THREAD).expect("a number");
        scope.spawn(ask).join().expect("no panic")
    });
    assert_ne!(own, other);
    assert_eq!(device.streams().handle(own), Some(CuStream::PER_THREAD));
    assert_eq!(device.streams().handle(other), None);
    let event = device.create_event().expect("an event");
    device.record(event, own).expect("recorded");
    assert_eq!(recorded_behind(event), Some(CuStream::PER_THREAD));
    // Another thread's stream has no handle in this thread, but the legacy stream is ordered after
    // it.
    device.record(event, other).expect("recorded");
    assert_eq!(recorded_behind(event), Some(CuStream::LEGACY));
}

#[test]
fn another_threads_stream_is_not_recorded_while_the_legacy_stream_cannot_be_used() {
    let device = device();
    let event = device.create_event().expect("an event");
    let ask = || device.streams().number(CuStream::PER_THREAD).expect("a number");
    let other = std::thread::scope(|scope| scope.spawn(ask).join().expect("no panic"));
    fake::with(|fake| fake.capturing = (CuResult::STREAM_CAPTURE_IMPLICIT, CuCaptureStatus::NONE));
    assert_eq!(device.is_capturing(other), Ok(true));
    let refused = device.record(event, other).map_err(|error| error.kind);
    assert_eq!((refused, recorded_behind(event)), (Err(ErrorKind::NotPermittedInCapture), None));
}

/// Orders a stream after an event. Returns the driver calls, and the streams with a new wait.
fn order(device: &CudaDevice, stream: StreamId, event: Event) -> (Vec<&'static str>, Vec<CuStream>) {
    fake::with(|fake| fake.waits.clear());
    let made = calls(|| device.order_behind(stream, event).expect("ordered"));
    let waits = fake::with(|fake| core::mem::take(&mut fake.waits));
    assert!(waits.iter().all(|(_, awaited)| *awaited == CudaDevice::cu_event(event)), "{waits:?}");
    (made, waits.into_iter().map(|(stream, _)| stream).collect())
}

#[test]
fn a_stream_is_ordered_behind_an_event_without_a_wait_on_the_host() {
    let device = device();
    let event = device.create_order_event().expect("an event");
    device.record(event, id(STREAM)).expect("recorded");
    let own = device.stream_id(CuStream::PER_THREAD).expect("a number");
    let streams = [
        (id(STREAM), STREAM),
        (id(FOREIGN_STREAM), FOREIGN_STREAM),
        (StreamId::DEFAULT, CuStream::LEGACY),
        (own, CuStream::PER_THREAD),
    ];
    for (number, handle) in streams {
        let (made, waits) = order(&device, number, event);
        assert!(waits == [handle] && !made.contains(&"cuEventSynchronize"), "{made:?}, {waits:?}");
    }
}

#[test]
fn the_host_waits_where_a_stream_could_miss_an_event() {
    let device = device();
    let event = device.create_event().expect("an event");
    device.record(event, id(STREAM)).expect("recorded");
    let (made, waits) = order(&device, id(STREAM), event);
    assert!(waits.is_empty() && made.contains(&"cuEventSynchronize"), "{made:?}, {waits:?}");
    // An event for a stream is made for other processes, too. A driver that makes no more of them
    // makes one for the host.
    let flags = |event: Event| fake::with(|fake| fake.events[&CudaDevice::cu_event(event).0].flags);
    let for_streams = device.create_order_event().expect("an event");
    assert_eq!([flags(event), flags(for_streams)], [CuEventFlags(2), CuEventFlags(6)]);
    let (code, when) = (CuResult::OUT_OF_MEMORY, When::Before);
    fake::with(|fake| {
        fake.plan = Some(Plan { function: Some("cuEventCreate"), skip: 0, code, when, permanent: false });
    });
    let for_host = device.create_order_event().expect("an event of the other kind");
    assert_eq!(flags(for_host), CuEventFlags(2));
    device.record(for_host, id(STREAM)).expect("recorded");
    assert!(order(&device, id(FOREIGN_STREAM), for_host).1.is_empty());
    for event in [event, for_streams, for_host] {
        device.destroy_event(event).expect("destroyed");
    }
}

#[test]
fn a_stream_without_a_handle_is_ordered_by_a_wait_on_the_host() {
    let device = device();
    let event = device.create_order_event().expect("an event");
    device.record(event, id(STREAM)).expect("recorded");
    let ask = || device.streams().number(CuStream::PER_THREAD).expect("a number");
    let other = std::thread::scope(|scope| scope.spawn(ask).join().expect("no panic"));
    let retired = device.stream_destroyed(STREAM).expect("retired");
    for number in [other, retired] {
        let (made, waits) = order(&device, number, event);
        assert!(waits.is_empty() && made.contains(&"cuEventSynchronize"), "{made:?}, {waits:?}");
    }
}

#[test]
fn a_driver_that_cannot_order_streams_is_waited_for() {
    let mut table = fake::table();
    table.stream_wait_event = None;
    let driver = fake::load(&table).expect("the fake starts");
    let _ = fake::driver();
    let device = CudaDevice::open(driver, 0).expect("the fake has a device");
    let event = device.create_order_event().expect("an event");
    device.record(event, id(STREAM)).expect("recorded");
    let (made, _) = order(&device, id(STREAM), event);
    assert!(made.contains(&"cuEventSynchronize"), "{made:?}");
}

#[test]
fn a_capturing_stream_is_never_made_to_wait() {
    let device = device();
    let event = device.create_order_event().expect("an event");
    device.record(event, StreamId::DEFAULT).expect("recorded");
    for capturing in
        [(CuResult::SUCCESS, CuCaptureStatus::ACTIVE), (CuResult::STREAM_CAPTURE_IMPLICIT, CuCaptureStatus::NONE)]
    {
        fake::with(|fake| fake.capturing = capturing);
        let refused = device.order_behind(id(STREAM), event).map_err(|error| error.kind);
        assert_eq!(refused, Err(ErrorKind::NotPermittedInCapture));
        assert!(fake::with(|fake| fake.waits.is_empty()));
    }
}

#[test]
fn the_legacy_default_stream_cannot_be_destroyed() {
    let device = device();
    for stream in [CuStream::NULL, CuStream::LEGACY] {
        assert_eq!(device.stream_destroyed(stream), Err(CuResult::INVALID_HANDLE.error()));
    }
}

#[test]
fn a_threads_own_stream_keeps_its_number_when_it_is_reported() {
    let device = device();
    let number = device.stream_id(CuStream::PER_THREAD).expect("a number");
    assert_eq!(device.stream_destroyed(CuStream::PER_THREAD), Ok(number));
    assert_eq!(device.stream_id(CuStream::PER_THREAD), Ok(number));
}

#[test]
fn a_stream_that_the_driver_fails_to_look_at_is_not_taken_for_a_destroyed_one() {
    let device = asking();
    let event = device.create_event().expect("an event");
    let number = device.stream_id(STREAM).expect("a number");
    fake::with(|fake| fake.capturing = (CuResult::UNKNOWN, CuCaptureStatus::NONE));
    let failed = CuResult::UNKNOWN.error();
    assert_eq!((device.is_capturing(number), device.record(event, number)), (Err(failed), Err(failed)));
    assert_eq!(device.streams().handle(number), Some(STREAM));
    // Only a driver that wants a context is asked again.
    fake::with(|fake| fake.capturing = (CuResult::SUCCESS, CuCaptureStatus::NONE));
    for (code, answer) in [(CuResult::UNKNOWN, Err(failed)), (CuResult::INVALID_CONTEXT, Ok(false))] {
        let (function, when) = (Some("cuStreamIsCapturing"), When::Before);
        fake::with(|fake| fake.plan = Some(Plan { function, skip: 0, code, when, permanent: false }));
        assert_eq!(device.is_capturing(number), answer);
    }
}

#[test]
fn a_host_that_reports_ends_has_no_stream_taken_for_a_destroyed_one() {
    for code in [CuResult::INVALID_HANDLE, CuResult::INVALID_CONTEXT] {
        let device = device();
        let event = device.create_event().expect("an event");
        fake::with(|fake| fake.capturing = (code, CuCaptureStatus::NONE));
        let failed = code.error();
        assert_eq!((device.is_capturing(id(STREAM)), device.record(event, id(STREAM))), (Err(failed), Err(failed)));
        assert_eq!(device.streams().handle(id(STREAM)), Some(STREAM));
    }
}

#[test]
fn only_a_created_stream_has_a_number_with_a_handle() {
    for (number, is_created) in [
        (StreamId::DEFAULT, false),
        (StreamId(2), false),
        (StreamId(65_535), false),
        (StreamId(65_536), true),
        (StreamId((0xfffe << 48) + 65_536), true),
        (StreamId((0xffff << 48) + 70_000), false),
    ] {
        assert_eq!(crate::Streams::is_of_created(number), is_created, "{number:?}");
    }
}

#[test]
fn a_reported_streams_handle_comes_back_with_another_number() {
    let device = device();
    let old = device.stream_id(STREAM).expect("a number");
    assert_eq!(device.streams().handle(old), Some(STREAM));
    assert_eq!(device.stream_destroyed(STREAM), Ok(old));
    assert_eq!(device.streams().handle(old), None);
    let new = device.stream_id(STREAM).expect("a number");
    assert_ne!(old, new);
    // Operations on the new number use the handle.
    let event = device.create_event().expect("an event");
    device.record(event, new).expect("recorded");
    assert_eq!(recorded_behind(event), Some(STREAM));
}

#[test]
fn a_retired_streams_work_is_waited_for_once() {
    let device = device();
    let event = device.create_event().expect("an event");
    let old = device.stream_destroyed(STREAM).expect("retired");
    let made = calls(|| {
        device.record(event, old).expect("nothing is left to record");
    });
    assert!(made.contains(&"cuEventSynchronize") && !made.contains(&"cuEventRecord"), "{made:?}");
    assert_eq!(device.is_complete(event), Ok(true));
    assert_eq!(device.is_capturing(old), Ok(false));
    // The next report finds the stream complete, and reuses its event.
    let made = calls(|| assert!(device.stream_destroyed(CuStream(STREAM.0 + 0x100)).is_ok()));
    assert!(!made.contains(&"cuEventCreate"), "{made:?}");
    let made = calls(|| device.record(event, old).expect("done"));
    assert!(!made.contains(&"cuEventSynchronize"), "{made:?}");
}

#[test]
fn a_stream_whose_end_could_not_be_recorded_is_waited_for_with_the_context() {
    let device = device();
    let event = device.create_event().expect("an event");
    let (code, when) = (CuResult::STREAM_CAPTURE_UNSUPPORTED, When::Before);
    fake::with(|fake| {
        fake.plan = Some(Plan { function: Some("cuEventRecord"), skip: 0, code, when, permanent: false });
    });
    let old = device.stream_destroyed(STREAM).expect("retired all the same");
    let made = calls(|| device.record(event, old).expect("waited"));
    assert!(waited_for_context(&made), "{made:?}");
    let made = calls(|| device.record(event, old).expect("done"));
    assert!(!waited_for_context(&made), "{made:?}");
}

#[test]
fn an_unreported_stream_is_detected_by_the_next_driver_call() {
    let device = device();
    let event = device.create_event().expect("an event");
    let old = device.stream_id(STREAM).expect("a number");
    device.record(event, old).expect("the driver's own number is learnt");
    fake::with(|fake| fake.ids.insert(STREAM.0, 4711));
    let made = calls(|| device.record(event, old).expect("waited"));
    assert!(waited_for_context(&made) && !made.contains(&"cuEventRecord"), "{made:?}");
    let new = device.stream_id(STREAM).expect("a number");
    assert_ne!(old, new);
    device.record(event, new).expect("recorded");
    assert_eq!(recorded_behind(event), Some(STREAM));
}

#[test]
fn a_device_that_asks_the_driver_detects_reuse_at_once() {
    let device = asking();
    let old = device.stream_id(STREAM).expect("a number");
    assert_eq!(device.stream_id(STREAM), Ok(old));
    fake::with(|fake| fake.ids.insert(STREAM.0, 4711));
    let new = device.stream_id(STREAM).expect("a number");
    assert_ne!(old, new);
    assert_eq!(device.stream_id(STREAM), Ok(new));
    let made = calls(|| device.synchronize(old).expect("waited"));
    assert!(waited_for_context(&made), "{made:?}");
}

#[test]
fn a_stream_that_may_be_gone_is_waited_for_without_its_handle() {
    let device = asking();
    for stream in [STREAM, FOREIGN_STREAM] {
        let number = device.stream_id(stream).expect("a number");
        let made = calls(|| device.synchronize(number).expect("waited"));
        assert!(waited_for_context(&made), "{made:?}");
        assert!(!made.iter().any(|name| name.starts_with("cuStream")), "{made:?}");
        let pushed = made.iter().filter(|name| **name == "cuCtxPushCurrent_v2").count();
        assert_eq!(pushed, if stream == STREAM { 1 } else { 2 }, "its own context: {made:?}");
    }
}

#[test]
fn only_a_host_that_is_asked_reports_no_end_and_only_of_created_streams() {
    let (asking, reported) = (asking(), device());
    let number = asking.stream_id(STREAM).expect("a number");
    let own = asking.stream_id(CuStream::PER_THREAD).expect("a number");
    assert!(!asking.reports_end(number));
    assert!([StreamId::DEFAULT, own].into_iter().all(|stream| asking.reports_end(stream)));
    assert!(reported.reports_end(reported.stream_id(STREAM).expect("a number")));
    // If a stream is known to be gone, there is nothing left to order.
    fake::with(|fake| fake.ids.insert(STREAM.0, 4711));
    assert_ne!(asking.stream_id(STREAM), Ok(number));
    assert!(!asking.reports_end(number));
}

#[test]
fn an_event_that_a_thread_waits_for_is_recorded_for_no_other_stream() {
    let device = device();
    let gone = device.stream_destroyed(STREAM).expect("retired");
    // Held as by a thread that waits.
    let Some(Remaining::Event(held)) = device.streams().remaining(gone) else { panic!("recorded") };
    fake::with(|fake| fake.events.values_mut().for_each(|event| event.done = true));
    let made = calls(|| assert!(device.stream_destroyed(CuStream(STREAM.0 + 0x100)).is_ok()));
    assert!(made.contains(&"cuEventCreate"), "{made:?}");
    assert_eq!(device.streams().remaining(gone), None, "complete");
    assert_eq!(fake::with(|fake| fake.events[&held.event().handle.0].stream), Some(STREAM));
}

#[test]
fn an_id_that_is_told_late_is_not_taken_for_that_of_the_next_stream() {
    let streams = crate::Streams::new();
    let number = streams.number(STREAM).expect("a number");
    let uses = crate::in_use::InUse::new();
    // As in a call that asked the driver before the end of the stream was reported. The report
    // waits for this call.
    let late = Handle::held(STREAM, number, uses.begin(number.0, 0));
    assert_eq!(streams.retire(STREAM, None), Some(number));
    let next = streams.number(STREAM).expect("a number");
    assert_eq!(streams.learn(&late, 77, CuContext(0xc0)), Some(next));
    assert_eq!(streams.number_of_id(&late, 77), None);
    let named = Handle::vouched(STREAM);
    assert_eq!(streams.learn(&named, 78, CuContext(0xc0)), Some(next), "the next stream keeps its number");
    assert_eq!(streams.number_of_id(&named, 78), Some(next));
}

#[test]
fn an_end_that_comes_during_a_wait_is_not_forgotten_with_those_before() {
    let streams = crate::Streams::new();
    let first = streams.retire(STREAM, None).expect("room");
    let Some(Remaining::Contexts(before)) = streams.remaining(first) else { panic!("not recorded") };
    let second = streams.retire(STREAM, None).expect("room");
    streams.forget_unrecorded(first, &before);
    let Some(Remaining::Contexts(ends)) = streams.remaining(second) else { panic!("not waited for") };
    streams.forget_unrecorded(second, &ends);
    assert_eq!(streams.remaining(second), None);
}

#[test]
fn a_driver_without_ids_leaves_the_number_unchanged() {
    let device = asking();
    let old = device.stream_id(STREAM).expect("a number");
    let (code, when) = (CuResult::STREAM_CAPTURE_UNSUPPORTED, When::Before);
    fake::with(|fake| {
        fake.plan = Some(Plan { function: Some("cuStreamGetId"), skip: 0, code, when, permanent: false });
    });
    assert_eq!(device.stream_id(STREAM), Ok(old));
}

#[test]
fn a_stream_that_the_driver_fails_to_identify_is_not_taken_for_the_earlier_one() {
    let fail = |code| {
        let (function, when) = (Some("cuStreamGetId"), When::Before);
        fake::with(|fake| fake.plan = Some(Plan { function, skip: 0, code, when, permanent: false }));
    };
    let device = asking();
    let event = device.create_event().expect("an event");
    let old = device.stream_id(STREAM).expect("a number");
    fake::with(|fake| fake.ids.insert(STREAM.0, 4711));
    for code in [CuResult::UNKNOWN, CuResult::OUT_OF_MEMORY, CuResult::INVALID_HANDLE] {
        fail(code);
        assert_eq!(device.stream_id(STREAM), Err(code.error()));
        fail(code);
        assert_eq!(device.record(event, old), Err(code.error()));
    }
    assert_ne!(device.stream_id(STREAM), Ok(old));
    // The host reports the ends, so the number is known.
    let device = self::device();
    fail(CuResult::UNKNOWN);
    let event = device.create_event().expect("an event");
    assert_eq!(device.record(event, id(STREAM)), Ok(()));
}

#[test]
#[cfg_attr(miri, ignore = "65,535 generations take many minutes there")]
fn numbers_come_back_only_after_all_generations() {
    let device = device();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..65_535 {
        assert!(seen.insert(device.stream_id(STREAM).expect("a number")));
        device.stream_destroyed(STREAM).expect("retired");
        fake::with(|fake| fake.events.values_mut().for_each(|event| event.done = true));
    }
    // All streams of the fake are complete, so the numbers may be reused from the first on.
    assert_eq!(device.stream_id(STREAM), Ok(id(STREAM)));
    assert!(seen.iter().all(|number| number.0 >> 48 != 0xffff), "that is a thread's own stream");
}

#[test]
fn many_handles_are_told_apart() {
    let device = device();
    let count = if cfg!(miri) { 200 } else { 5000 };
    let handles: Vec<CuStream> = (0..count).map(|index| CuStream(STREAM.0 + 16 * index)).collect();
    for handle in &handles {
        assert_eq!(device.stream_destroyed(*handle), Ok(id(*handle)));
        fake::with(|fake| fake.events.values_mut().for_each(|event| event.done = true));
    }
    let numbers: std::collections::BTreeSet<StreamId> =
        handles.iter().map(|handle| device.stream_id(*handle).expect("a number")).collect();
    assert_eq!(numbers.len(), handles.len());
    assert!(numbers.iter().all(|number| number.0 >> 48 == 1));
}

#[test]
fn threads_retire_and_look_up_streams_concurrently() {
    let streams = crate::Streams::new();
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let streams = &streams;
            scope.spawn(move || {
                for round in 0..500_u64 {
                    let handle = CuStream(STREAM.0 + 16 * (thread + 4 * (round as usize % 100)));
                    let expected = StreamId(handle.0 as u64 | (round / 100) << 48);
                    assert_eq!(streams.number(handle), Some(expected));
                    assert_eq!(streams.retire(handle, None), Some(expected));
                }
            });
        }
    });
}

#[test]
fn another_devices_stream_is_recorded_over_a_stream_of_this_one() {
    let device = device();
    let event = device.create_event().expect("an event");
    let events = fake::with(|fake| fake.events.len());
    let first = calls(|| device.record(event, id(FOREIGN_STREAM)).expect("recorded"));
    assert!(first.contains(&"cuStreamCreate") && first.contains(&"cuStreamWaitEvent"), "{first:?}");
    assert!(recorded_behind(event).is_some_and(|stream| stream > STREAM && stream < FOREIGN_STREAM));
    let again = calls(|| device.record(event, id(FOREIGN_STREAM)).expect("recorded"));
    assert!(!again.contains(&"cuStreamCreate"), "{again:?}");
    assert_eq!(fake::with(|fake| fake.events.len()), events, "the other device's events are destroyed");
}

#[test]
fn another_devices_unreported_stream_is_waited_for_there() {
    let device = device();
    let event = device.create_event().expect("an event");
    let old = device.stream_id(FOREIGN_STREAM).expect("a number");
    device.record(event, old).expect("the driver's own number is learnt");
    fake::with(|fake| fake.ids.insert(FOREIGN_STREAM.0, 4711));
    let made = calls(|| device.record(event, old).expect("waited"));
    let at = made.iter().position(|name| *name == "cuMemFree_v2").expect("waited for a context");
    let pushed = made[..at].iter().filter(|name| **name == "cuCtxPushCurrent_v2").count();
    assert_eq!(pushed, 2, "this device's context and then the other's: {made:?}");
}

#[test]
fn streams_that_are_never_reported_leave_no_more_than_their_handles_behind() {
    let device = asking();
    for life in 0..1000_u64 {
        fake::with(|fake| fake.ids.insert(STREAM.0, 5000 + life));
        device.stream_id(STREAM).expect("a number");
    }
    let first = id(STREAM);
    let made = calls(|| device.synchronize(first).expect("waited"));
    assert_eq!(made.iter().filter(|name| **name == "cuMemFree_v2").count(), 1, "{made:?}");
    let made = calls(|| device.synchronize(first).expect("done"));
    assert!(!waited_for_context(&made), "{made:?}");
}

#[test]
fn a_stream_that_hangs_does_not_keep_others_from_being_forgotten() {
    let device = device();
    let hanging: Vec<CuStream> = (0..20).map(|index| CuStream(STREAM.0 + 0x1000 + 16 * index)).collect();
    for stream in &hanging {
        device.stream_destroyed(*stream).expect("retired");
    }
    for index in 0..200 {
        let stream = CuStream(STREAM.0 + 0x4000 + 16 * index);
        device.stream_destroyed(stream).expect("retired");
        let ended = |event: &&mut fake::FakeEvent| event.stream == Some(stream);
        fake::with(|fake| fake.events.values_mut().filter(ended).for_each(|event| event.done = true));
    }
    let events = fake::with(|fake| fake.events.len());
    assert!(events < 60, "{events} events for 20 streams that hang and 200 that are done");
}

#[test]
fn another_devices_failure_is_not_this_ones() {
    let device = device();
    let event = device.create_event().expect("an event");
    let (code, when) = (CuResult::ILLEGAL_ADDRESS, When::Before);
    // The first event that is created during the recording belongs to the context of the other
    // device.
    fake::with(|fake| {
        fake.plan = Some(Plan { function: Some("cuEventCreate"), skip: 0, code, when, permanent: false });
    });
    assert_eq!(device.record(event, id(FOREIGN_STREAM)), Err(code.error()));
    assert_eq!(device.health(), Ok(()));
}

/// A host that reports the ends of its own streams may serve streams of others, and nobody reports
/// the ends of those.
#[test]
fn a_stream_that_the_device_was_told_of_may_end_without_a_report() {
    let device = device();
    let number = device.stream_id(STREAM).expect("a number");
    assert!(device.reports_end(number));
    assert!(device.streams().set_unreported(STREAM) && device.streams().set_unreported(CuStream::NULL));
    assert_eq!(device.stream_id(STREAM), Ok(number));
    assert!(!device.reports_end(number) && device.reports_end(StreamId::DEFAULT));
    assert!(device.reports_end(device.stream_id(FOREIGN_STREAM).expect("a number")));
    let number = device.stream_in_use(STREAM).expect("a number");
    let event = device.create_event().expect("an event");
    let made = calls(|| {
        device.record_announced(event, number).expect("recorded");
        let _complete = device.is_complete(event).expect("asked");
        device.synchronize(number).expect("waited");
    });
    assert!(!made.iter().any(|name| name.starts_with("cuStream") || *name == "cuEventRecord"), "{made:?}");
    assert!(waited_for_context(&made), "{made:?}");
}

/// The next stream with a handle can be on another device, and only the driver knows that.
#[test]
fn a_handle_that_comes_back_has_no_known_context() {
    let device = device();
    assert!(device.streams().set_unreported(FOREIGN_STREAM));
    let number = device.stream_in_use(FOREIGN_STREAM).expect("the driver is asked");
    assert!(!device.streams().present_context(number).is_null());
    let pushed = |made: &[&str]| made.iter().filter(|name| **name == "cuCtxPushCurrent_v2").count();
    let made = calls(|| device.synchronize(number).expect("waited"));
    let waits = made.iter().filter(|name| **name == "cuMemFree_v2").count();
    assert_eq!((waits, pushed(&made)), (2, 2), "the context of then, and that of the device: {made:?}");
    let ended = device.stream_destroyed(FOREIGN_STREAM).expect("reported");
    let next = device.stream_id(FOREIGN_STREAM).expect("a number");
    assert_ne!(next, ended);
    assert!(device.streams().present_context(next).is_null());
    let made = calls(|| device.synchronize(next).expect("waited"));
    assert!(waited_for_context(&made) && pushed(&made) == 1, "the device's: {made:?}");
}
