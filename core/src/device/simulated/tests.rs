//! Tests of the rules that only the simulated device has.

use super::{Call, Failure, Outstanding, SimulatedDevice};
use crate::device::{Contents, DeviceError, ErrorKind, Host, Segments, StreamOrder, VirtualMemory};
use crate::trace::CallSite;
use crate::units::{DevicePtr, StreamId};

const GRANULE: u64 = 2 << 20;

/// A handle can have any number of mappings, each with separate access. The memory is released when
/// the handle is destroyed and no mapping is left.
#[test]
fn a_handle_can_be_mapped_at_several_addresses() {
    let device = SimulatedDevice::new(GRANULE);
    let base = device.reserve(8 * GRANULE).unwrap();
    let [home, alias, third] = [0, 2, 5].map(|granule| DevicePtr(base.0 + granule * GRANULE));
    let handle = device.create(GRANULE).unwrap();
    for at in [home, alias, third] {
        device.map(at, GRANULE, handle).unwrap();
    }
    let accessible = || [home, alias, third].map(|at| device.is_accessible(at, GRANULE));
    device.set_access(alias, GRANULE).unwrap();
    assert_eq!(accessible(), [false, true, false]);
    device.set_access(home, GRANULE).unwrap();
    assert_eq!(accessible(), [true, true, false]);

    device.unmap(alias, GRANULE).unwrap();
    assert_eq!(accessible(), [true, false, false], "the other mappings stay");
    device.map(alias, GRANULE, handle).unwrap();
    assert!(!device.is_accessible(alias, GRANULE), "a new mapping has no access yet");

    device.destroy(handle).unwrap();
    device.map(DevicePtr(base.0 + 7 * GRANULE), GRANULE, handle).unwrap_err();
    device.destroy(handle).unwrap_err();
    for at in [alias, home] {
        device.unmap(at, GRANULE).unwrap();
        assert_eq!(device.used(), GRANULE, "a mapping is left");
        device.obtain(GRANULE).unwrap_err();
    }
    device.unmap(third, GRANULE).unwrap();
    assert_eq!((device.used(), device.peak_used()), (0, GRANULE));
    device.unreserve(base, 8 * GRANULE).unwrap();
    assert_eq!(device.outstanding(), Outstanding::default());
    device.obtain(GRANULE).unwrap();
}

#[test]
fn the_peak_of_the_use_restarts_at_the_present_use() {
    let device = SimulatedDevice::new(8 * GRANULE);
    let segment = device.obtain(3 * GRANULE).unwrap();
    let handle = device.create(GRANULE).unwrap();
    device.destroy(handle).unwrap();
    device.obtain(64 * GRANULE).unwrap_err();
    assert_eq!((device.used(), device.peak_used()), (3 * GRANULE, 4 * GRANULE));
    device.reset_peak_used();
    assert_eq!(device.peak_used(), 3 * GRANULE);
    device.release(segment, 3 * GRANULE).unwrap();
    device.reset_peak_used();
    assert_eq!(device.peak_used(), 0);
}

/// Returns the start of `granules` granules that are mapped and accessible, each from a separate
/// handle.
fn mapped(device: &SimulatedDevice, granules: u64) -> DevicePtr {
    let base = device.reserve(granules * GRANULE).unwrap();
    for number in 0..granules {
        let handle = device.create(GRANULE).unwrap();
        device.map(base.offset(number * GRANULE), GRANULE, handle).unwrap();
    }
    device.set_access(base, granules * GRANULE).unwrap();
    base
}

#[test]
fn pages_are_mapped_within_a_reservation_and_beside_each_other() {
    let device = SimulatedDevice::new(16 * GRANULE);
    let base = device.reserve(4 * GRANULE).unwrap();
    let [short, long] = [GRANULE, 2 * GRANULE].map(|bytes| device.create(bytes).unwrap());
    let at = |granule: u64| base.offset(granule * GRANULE);
    device.map(at(3), 2 * GRANULE, long).unwrap_err();
    device.map(at(1), 2 * GRANULE, long).unwrap();
    for granule in [1, 2] {
        device.map(at(granule), GRANULE, short).unwrap_err();
    }
    device.map(at(0), 2 * GRANULE, long).unwrap_err();
    device.map(at(0), GRANULE, short).unwrap();
    device.map(at(3), GRANULE, short).unwrap();
    assert_eq!(device.untold(), 0, "nothing is accessible yet");
    device.set_access(at(1), 2 * GRANULE).unwrap();
    assert_eq!(device.untold(), 2 * GRANULE);
    device.on_map(at(1), 2 * GRANULE);
    assert_eq!(device.untold(), 0);
}

#[test]
fn memory_in_use_by_work_or_by_a_copy_stays_mapped() {
    let (device, stream) = (SimulatedDevice::new(16 * GRANULE), StreamId(1));
    let base = mapped(&device, 4);
    let at = |granule: u64| base.offset(granule * GRANULE);
    device.launch(stream, at(1), GRANULE).unwrap();
    device.unmap(at(1), GRANULE).unwrap_err();
    device.prepare(2 * GRANULE, GRANULE).unwrap();
    device.save(at(1), GRANULE).unwrap_err();
    device.unmap(at(0), GRANULE).unwrap();
    device.complete(stream);
    let saved = device.save(at(1), GRANULE).unwrap();
    let first = device.mark().unwrap();
    let copied = || [1, 2, 3].map(|granule| device.launch(stream, at(granule), GRANULE).is_err());
    assert_eq!(copied(), [true, false, false]);
    device.complete(stream);
    device.restore(saved, at(2), GRANULE).unwrap();
    assert_eq!(copied(), [true, true, false]);
    device.complete(stream);
    device.finish(first).unwrap();
    assert_eq!(copied(), [false, true, false], "the second copy is behind the mark");
    device.complete(stream);
    device.unmap(at(2), GRANULE).unwrap_err();
    device.unmap(at(1), GRANULE).unwrap();
    device.unmap(at(3), GRANULE).unwrap();
    device.finish(device.mark().unwrap()).unwrap();
    device.zero(at(2), GRANULE).unwrap();
    device.unmap(at(2), GRANULE).unwrap_err();
    device.finish(device.mark().unwrap()).unwrap();
    device.unmap(at(2), GRANULE).unwrap();
}

#[test]
fn contents_are_kept_of_whole_mappings_and_within_the_room_of_the_host() {
    let device = SimulatedDevice::new(16 * GRANULE).with_host_memory(2 * GRANULE);
    let base = mapped(&device, 2);
    device.prepare(2 * GRANULE + 1, GRANULE).unwrap_err();
    device.prepare(GRANULE, 2 * GRANULE).unwrap_err();
    assert_eq!(device.prepared(), None);
    device.save(base, GRANULE).unwrap_err();
    device.prepare(2 * GRANULE, GRANULE).unwrap();
    assert_eq!(device.prepared(), Some(2 * GRANULE), "all that the host has");
    device.save(base, GRANULE / 2).unwrap_err();
    device.save(base, 2 * GRANULE).unwrap_err();
    device.save(base, GRANULE).unwrap();
    assert_eq!((device.prepared(), device.kept()), (Some(GRANULE), GRANULE));
    device.end_saves();
    assert_eq!(device.prepared(), None);
    device.save(base.offset(GRANULE), GRANULE).unwrap_err();
    device.prepare(2 * GRANULE, GRANULE).unwrap_err();
    device.prepare(GRANULE, GRANULE).unwrap();
    let plain = device.reserve(GRANULE).unwrap();
    device.map(plain, GRANULE, device.create(GRANULE).unwrap()).unwrap();
    device.save(plain, GRANULE).unwrap_err();
    let mut bytes = [1];
    Contents::read(&device, plain, &mut bytes).unwrap_err();
    Contents::read(&device, base, &mut bytes).unwrap();
    assert_eq!(bytes, [0]);
}

#[test]
#[should_panic(expected = "after an event that was not made for it")]
fn a_stream_is_ordered_behind_events_made_for_streams() {
    let device = SimulatedDevice::new(GRANULE);
    let [for_streams, for_host] = [device.create_order_event().unwrap(), device.create_event().unwrap()];
    device.order_behind(StreamId(1), for_streams).unwrap();
    let _ = device.order_behind(StreamId(1), for_host);
}

#[test]
fn a_segment_goes_after_the_work_that_uses_it_and_its_bytes_are_its_addresses() {
    let device = SimulatedDevice::new(16 * GRANULE);
    let [first, second] = [(); 2].map(|()| device.obtain(GRANULE).unwrap());
    assert_eq!(
        device.physical(first.offset(512), 1024).unwrap(),
        [(crate::device::PhysicalHandle(0), first.0 + 512..first.0 + 1536)]
    );
    let events = [StreamId(1), StreamId(2)].map(|stream| {
        device.launch(stream, if stream.0 == 1 { first } else { second }, GRANULE).unwrap();
        let event = device.create_order_event().unwrap();
        device.record(event, stream).unwrap();
        event
    });
    assert!(device.launch(StreamId(3), second, GRANULE).is_err(), "no order between the two");
    device.complete(StreamId(3));
    device.release(first, GRANULE).unwrap();
    device.obtain(GRANULE).unwrap();
    device.launch(StreamId(3), first, GRANULE).unwrap();
    assert!(!device.is_complete(events[1]).unwrap(), "the other segment is still in use");
}

#[test]
fn calls_to_a_lost_device_fail_and_are_counted() {
    let device = SimulatedDevice::new(16 * GRANULE);
    let error = DeviceError::new(ErrorKind::ContextLost, 3);
    device.fail(Failure { call: Call::Obtain, nth: 2, persistent: false, error });
    device.obtain(GRANULE).unwrap();
    assert_eq!(device.obtain(GRANULE), Err(error));
    assert_eq!(device.calls_after_loss(), 0);
    for calls in 1..4 {
        assert_eq!(device.memory_info(), Err(error));
        assert_eq!(device.calls_after_loss(), calls);
    }
}

#[test]
fn a_host_is_simulated_only_as_far_as_a_test_says() {
    let device = SimulatedDevice::new(16 * GRANULE).with_idle_stream(StreamId(7));
    assert_eq!((device.process_use(), device.uuid(), device.thread_id()), (None, None, 0));
    assert_eq!((device.on_shortage(1), device.call_site(CallSite::Alloc)), (false, 0));
    assert_eq!([6, 7].map(|stream| device.can_order(StreamId(stream))), [true, false]);
    let base = device.obtain_on(StreamId(1), GRANULE).unwrap();
    assert_eq!((device.used(), device.release(base, GRANULE)), (GRANULE, Ok(())));
    device.set_patience(100);
    assert!(device.pause(60) && device.pause(40), "up to the end of the patience");
    assert!(!device.pause(1));
    assert_eq!(device.now_us(), 100);
}

#[test]
fn marks_of_a_capture_are_told_apart() {
    let device = SimulatedDevice::new(16 * GRANULE);
    let streams = [StreamId(1), StreamId(2)];
    streams.iter().for_each(|&stream| device.set_capturing(stream, true));
    let marks = streams.map(|stream| {
        device.capture_work(stream);
        device.mark_capture(stream, None).unwrap().unwrap()
    });
    assert_eq!(device.capture_marks(), 2);
    for (stream, of) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        assert_eq!(device.is_behind(streams[stream], marks[of]), Ok(stream == of));
    }
    device.remove_mark(marks[0]);
    assert_eq!(device.capture_marks(), 1);
}

#[test]
#[should_panic(expected = "has gone")]
fn a_stream_that_has_gone_may_not_be_named() {
    let device = SimulatedDevice::new(16 * GRANULE).with_unreported_ends();
    device.let_go(StreamId(1));
    let _panics = device.is_capturing(StreamId(1));
}
