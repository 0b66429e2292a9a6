//! Tests of announced work: events recorded when a use is announced, in place of those of the free.

use super::streams::{recorded_behind, waited_for_context};
use super::*;
use crate::announced_work::Noted;
use crate::device_event::DeviceEvent;
use crate::driver::result::CuResult;
use crate::driver::types::{CuContext, CuEvent};
use crate::fake::{Plan, When};
use crate::shared_event::SharedEvent;

#[test]
fn announced_work_of_a_stream_that_may_be_gone_is_found_without_its_handle() {
    let device = asking();
    let event = device.create_event().expect("an event");
    for stream in [STREAM, FOREIGN_STREAM] {
        let number = device.stream_in_use(stream).expect("a number");
        assert_eq!(device.stream_id(stream), Ok(number));
        let events = fake::with(|fake| fake.events.len());
        assert_eq!(device.stream_in_use(stream), Ok(number));
        assert_eq!(fake::with(|fake| fake.events.len()), events, "the event is recorded anew");
        let made = calls(|| device.record_announced(event, number).expect("recorded"));
        let own = ["cuStreamIsCapturing", "cuStreamGetId", "cuStreamGetCtx", "cuStreamSynchronize"];
        assert!(!made.iter().any(|name| own.contains(name)), "{made:?}");
        assert!(!made.contains(&"cuEventRecord") && !waited_for_context(&made), "{made:?}");
        assert_eq!(device.is_complete(event), Ok(false));
        device.wait(event).expect("waited");
        assert_eq!(device.is_complete(event), Ok(true));
        device.record(event, number).expect("recorded");
        if stream == STREAM {
            assert_eq!(recorded_behind(event), Some(stream), "a call that names the stream covers its later work");
        }
    }
    device.destroy_event(event).expect("destroyed");
    assert_eq!(device.close(), Ok(()));
    assert_eq!(fake::with(|fake| fake.events.len()), 0);
}

#[test]
fn unannounced_work_of_a_stream_that_may_be_gone_is_waited_for_without_its_handle() {
    let device = asking();
    let event = device.create_event().expect("an event");
    let number = device.stream_id(STREAM).expect("a number");
    let made = calls(|| device.record_announced(event, number).expect("waited"));
    assert!(waited_for_context(&made), "{made:?}");
    assert!(!made.iter().any(|name| name.starts_with("cuStream")), "{made:?}");
}

#[test]
fn work_announced_to_two_devices_is_waited_for_as_a_whole() {
    let device = asking();
    let number = device.stream_id(STREAM).expect("a number");
    let events = [CuContext(0x10), device.cu_context()].map(|context| {
        let event = DeviceEvent::of(device.create_order_event().expect("an event"));
        let noted = device.streams().work.note(number, SharedEvent::new(event, context), None);
        assert_eq!(noted, Noted::Kept(Vec::new()));
        event.handle
    });
    let event = device.create_event().expect("an event");
    device.record_announced(event, number).expect("recorded");
    // It is complete only when both are.
    let set = |event: CuEvent, done| fake::with(|fake| fake.events.get_mut(&event.0).expect("an event").done = done);
    for open in events {
        events.iter().for_each(|&event| set(event, event != open));
        assert_eq!(device.is_complete(event), Ok(false), "{open:?}");
    }
    events.iter().for_each(|&event| set(event, true));
    assert_eq!(device.is_complete(event), Ok(true));
}

/// A stream that is used all the time does not delay a block forever.
#[test]
fn a_block_waits_for_the_work_announced_before_its_free_and_no_later_work() {
    let device = asking();
    let number = device.stream_in_use(STREAM).expect("a number");
    let event = device.create_event().expect("an event");
    device.record_announced(event, number).expect("recorded");
    let recordings =
        || fake::with(|fake| fake.events.values_mut().filter(|event| event.stream == Some(STREAM)).count());
    assert_eq!((recordings(), device.is_complete(event)), (1, Ok(false)));
    assert_eq!(device.stream_in_use(STREAM), Ok(number));
    assert_eq!(recordings(), 2);
    let earlier = |fake: &mut fake::Fake| {
        fake.events.values_mut().find(|event| event.stream == Some(STREAM)).map(|it| it.done = true)
    };
    fake::with(earlier).expect("the first event");
    assert_eq!(device.is_complete(event), Ok(true));
    // Nothing waits for the later event, so it is recorded again.
    assert_eq!(device.stream_in_use(STREAM), Ok(number));
    assert_eq!(recordings(), 2);
}

#[test]
fn the_event_that_was_kept_first_stays_and_is_recorded_again() {
    let device = asking();
    let number = device.stream_id(STREAM).expect("a number");
    let [first, second] =
        [0x51, 0x52].map(|event| SharedEvent::new(DeviceEvent::of(Event(event)), device.cu_context()));
    let elsewhere = SharedEvent::new(DeviceEvent::of(Event(0x53)), CuContext(0x10));
    let streams = device.streams();
    assert_eq!(streams.work.note(number, first.clone(), None), Noted::Kept(Vec::new()));
    // Recorded at the same time, and possibly before work that the first event is after.
    let Noted::Known { known, unused } = streams.work.note(number, second.clone(), None) else {
        panic!("a first event")
    };
    assert_eq!((&known.event, &unused), (&first, &second));
    assert_eq!(streams.work.known(number, device.cu_context()), Some(known));
    assert_eq!(streams.work.note(number, elsewhere.clone(), None), Noted::Kept(Vec::new()));
    assert_eq!(streams.work.events(number).map(|events| events.len()), Some(2));
    // A later stream with the handle gets its own event, and the earlier stream keeps none of its
    // two.
    let later = StreamId(number.0 + (1 << 48));
    assert_eq!(streams.work.known(later, device.cu_context()), None);
    let Noted::Kept(mut earlier) = streams.work.note(later, second.clone(), None) else { panic!("another stream") };
    earlier.sort_by_key(|event| event.event().handle);
    assert_eq!(earlier, [first, elsewhere]);
    assert_eq!((streams.work.events(number), streams.work.events(later)), (None, Some(vec![second])));
}

#[test]
fn a_recording_that_fails_leaves_no_event_to_rely_on() {
    let device = asking();
    let event = device.create_event().expect("an event");
    let number = device.stream_in_use(STREAM).expect("a number");
    for when in [When::Before, When::After] {
        let code = CuResult::UNKNOWN;
        fake::with(|fake| {
            fake.plan = Some(Plan { function: Some("cuEventRecord"), skip: 0, code, when, permanent: false });
        });
        assert_eq!(device.stream_in_use(STREAM), Err(code.error()));
        let made = calls(|| device.record_announced(event, number).expect("waited"));
        assert!(waited_for_context(&made), "{made:?}");
    }
    device.stream_in_use(STREAM).expect("announced anew");
    let made = calls(|| device.record_announced(event, number).expect("recorded"));
    assert!(!waited_for_context(&made), "{made:?}");
    device.destroy_event(event).expect("destroyed");
    assert_eq!(device.close(), Ok(()));
    assert_eq!(fake::with(|fake| fake.events.len()), 0);
}

#[test]
fn a_reported_streams_use_needs_no_event() {
    let device = device();
    let made = calls(|| assert_eq!(device.stream_in_use(STREAM), Ok(id(STREAM))));
    assert!(made.is_empty(), "{made:?}");
}

/// Returns the handle of one of many streams.
fn one_of_many(number: usize) -> CuStream {
    CuStream(STREAM.0 + 0x100 * number)
}

#[test]
fn an_announcement_polls_no_other_stream_unless_its_own_is_new() {
    let device = asking();
    let announce = |number| device.stream_in_use(one_of_many(number)).map(|_| ()).expect("announced");
    (0..200).for_each(announce);
    let made = calls(|| (0..10).for_each(|_| announce(199)));
    assert!(made.contains(&"cuEventRecord") && !made.contains(&"cuEventQuery"), "{made:?}");
}

#[test]
fn the_events_of_streams_that_come_and_go_are_used_again() {
    let device = asking();
    for number in 0..2_000 {
        device.stream_in_use(one_of_many(number)).expect("a number");
        fake::with(|fake| fake.events.values_mut().for_each(|event| event.done = true));
    }
    let events = fake::with(|fake| fake.events.len());
    assert!(events < 200, "{events}");
}

#[test]
fn a_block_that_was_found_free_keeps_no_event_of_the_stream() {
    let device = asking();
    let number = device.stream_in_use(STREAM).expect("a number");
    let event = device.create_event().expect("an event");
    let events = fake::with(|fake| fake.events.len());
    for _ in 0..3 {
        device.record_announced(event, number).expect("recorded");
        fake::with(|fake| fake.events.values_mut().for_each(|event| event.done = true));
        assert_eq!(device.is_complete(event), Ok(true));
        assert_eq!(device.stream_in_use(STREAM), Ok(number));
        assert_eq!(device.is_complete(event), Ok(true), "the later work is none of the block's");
    }
    assert_eq!(fake::with(|fake| fake.events.len()), events, "the event is recorded again");
}

#[test]
fn events_that_are_polled_for_another_stream_are_given_up_only_once_complete() {
    let device = asking();
    let announce = |number| device.stream_in_use(one_of_many(number)).expect("a number");
    let numbers: Vec<_> = (0..200).map(announce).collect();
    let event = device.create_event().expect("an event");
    let is_complete = |number| {
        device.record_announced(event, number).expect("recorded");
        device.is_complete(event) == Ok(true)
    };
    assert!(!numbers.iter().any(|&number| is_complete(number)));
    fake::with(|fake| fake.events.values_mut().for_each(|event| event.done = true));
    (200..300).for_each(|number| _ = announce(number));
    assert!(numbers.iter().all(|&number| is_complete(number)));
}

#[test]
fn an_event_that_comes_back_replaces_no_later_one() {
    let device = asking();
    let number = device.stream_id(STREAM).expect("a number");
    let [polled, later] =
        [0x51, 0x52].map(|event| SharedEvent::new(DeviceEvent::of(Event(event)), device.cu_context()));
    let work = &device.streams().work;
    assert_eq!(work.note(number, later.clone(), None), Noted::Kept(Vec::new()));
    for is_complete in [true, false] {
        assert_eq!(work.put_back(number, polled.clone(), is_complete), Some(polled.clone()));
        assert_eq!(work.events(number), Some(vec![later.clone()]));
    }
    // The same holds for the events in the place of a block's.
    let event = CuEvent(0x60);
    assert_eq!(device.stand_ins.set(event, vec![later.clone()]), Vec::new());
    assert_eq!(device.stand_ins.complete(event, &[polled]), Vec::new());
    assert_eq!(device.stand_ins.of(event), Some(vec![later]));
}
