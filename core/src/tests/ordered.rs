//! Uses with an event of their own.

use crate::allocator::Allocator;
use crate::config::Config;
use crate::device::simulated::{Call, Failure, SimulatedDevice};
use crate::device::{DeviceError, ErrorKind};
use crate::error::Error;
use crate::pool::{PoolOptions, Route, RoutePurpose};
use crate::tables::Growable;
use crate::tests::altered::{self, AlteredDevice, Change};
use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
use std::vec::Vec;

const DEVICE: DeviceIndex = DeviceIndex(0);
const STREAM: StreamId = StreamId(1);
const SIDES: [StreamId; 2] = [StreamId(2), StreamId(3)];
/// Every way in which events are polled.
const CONFIGS: [&str; 3] = ["", "parity:False", "policy:stitched"];

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

fn allocator(config: &str, capacity: u64) -> Simulated {
    Simulated::new([SimulatedDevice::new(capacity)], &Config::parse(config).unwrap()).unwrap()
}

fn malloc(allocator: &Simulated) -> DevicePtr {
    allocator.malloc(DEVICE, 40 * MIB, STREAM).unwrap()
}

fn calls(allocator: &Simulated, call: Call) -> u64 {
    allocator.device(DEVICE).unwrap().calls(call)
}

fn device(allocator: &Simulated) -> &SimulatedDevice {
    allocator.device(DEVICE).unwrap()
}

fn active(allocator: &Simulated) -> u64 {
    allocator.stats(DEVICE).unwrap().totals().active_bytes().current as u64 / MIB
}

#[test]
fn work_after_the_use_delays_no_reuse() {
    for config in CONFIGS {
        let allocator = allocator(config, 100 * MIB);
        let ptr = malloc(&allocator);
        allocator.record_use(ptr, SIDES[0]).unwrap();
        assert_eq!(calls(&allocator, Call::Record), 1, "the event is recorded at the use");
        // A second block's use stands for the work that follows on the stream.
        let later = malloc(&allocator);
        allocator.record_use(later, SIDES[0]).unwrap();
        allocator.free(ptr).unwrap();
        assert_eq!(calls(&allocator, Call::Record), 2, "a free calls nothing");
        device(&allocator).complete_one(SIDES[0]);
        assert_eq!(malloc(&allocator), ptr, "{config}");
        assert_eq!(calls(&allocator, Call::OrderBehind), 0);
        allocator.free(later).unwrap();
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn a_request_is_ordered_behind_the_use_and_does_not_wait() {
    for config in CONFIGS {
        let allocator = allocator(config, 1 << 30);
        let blocks = [malloc(&allocator), malloc(&allocator)];
        for ptr in blocks {
            allocator.record_use(ptr, SIDES[0]).unwrap();
            allocator.record_use(ptr, SIDES[1]).unwrap();
            allocator.free(ptr).unwrap();
        }
        assert_eq!(malloc(&allocator), blocks[0], "{config}: the oldest");
        assert_eq!(calls(&allocator, Call::OrderBehind), 2, "one block is enough");
        assert_eq!((calls(&allocator, Call::Wait), active(&allocator)), (0, 80));
        // The order holds: the own stream has not passed the uses.
        let device = device(&allocator);
        let event = crate::device::StreamOrder::create_event(device).unwrap();
        crate::device::StreamOrder::record(device, event, STREAM).unwrap();
        assert_eq!(crate::device::StreamOrder::is_complete(device, event), Ok(false));
        SIDES.into_iter().for_each(|side| device.complete(side));
        device.complete(STREAM);
        assert_eq!(crate::device::StreamOrder::is_complete(device, event), Ok(true));
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn the_calls_of_a_request_do_not_grow_with_the_blocks_that_wait() {
    for config in CONFIGS {
        for count in [10, 1000] {
            let allocator = allocator(config, 1 << 40);
            let blocks: Vec<DevicePtr> = (0..count).map(|_| malloc(&allocator)).collect();
            for (number, &ptr) in blocks.iter().enumerate() {
                // Every third block is used by both.
                let used = [number % 3 != 1, number % 3 != 0];
                let streams = SIDES.into_iter().zip(used).filter(|(_, used)| *used);
                streams.for_each(|(side, _)| allocator.record_use(ptr, side).unwrap());
            }
            blocks.iter().rev().for_each(|&ptr| allocator.free(ptr).unwrap());
            allocator.process_events(DEVICE).unwrap();
            assert_eq!(calls(&allocator, Call::IsComplete), 2, "{config}: one question a stream");
            assert_eq!(malloc(&allocator), blocks[count - 1], "{config}: the block freed first");
            assert_eq!((calls(&allocator, Call::IsComplete), calls(&allocator, Call::OrderBehind)), (4, 1));
            // The first and the third block are used no more on the first stream.
            (0..2).for_each(|_| device(&allocator).complete_one(SIDES[0]));
            allocator.process_events(DEVICE).unwrap();
            assert_eq!(calls(&allocator, Call::IsComplete), 4 + 3, "{config}: a question a free block and stream");
            assert_eq!(malloc(&allocator), blocks[0]);
            // The second and the third block are used no more on the second stream.
            (0..2).for_each(|_| device(&allocator).complete_one(SIDES[1]));
            allocator.process_events(DEVICE).unwrap();
            assert_eq!(calls(&allocator, Call::IsComplete), 7 + 5, "{config}: a question a use, and one a stream");
            assert_eq!([malloc(&allocator), malloc(&allocator)], [blocks[1], blocks[2]]);
            assert_eq!(calls(&allocator, Call::OrderBehind), 1);
            allocator.check_invariants().unwrap();
        }
    }
}

#[test]
fn the_events_are_recorded_again_and_not_lost() {
    let allocator = allocator("", 1 << 30);
    for round in 0..100 {
        let ptr = malloc(&allocator);
        allocator.record_use(ptr, SIDES[0]).unwrap();
        allocator.record_use(ptr, SIDES[0]).unwrap();
        match round % 4 {
            // The event of the use is not needed: the block's uses last until the free.
            0 => allocator.record_stream(ptr, SIDES[0]).unwrap(),
            1 => allocator.record_stream(ptr, SIDES[1]).unwrap(),
            _ => {}
        }
        allocator.free(ptr).unwrap();
        SIDES.into_iter().for_each(|side| device(&allocator).complete(side));
    }
    assert!(calls(&allocator, Call::CreateEvent) <= 4, "{}", calls(&allocator, Call::CreateEvent));
    allocator.empty_cache(DEVICE).unwrap();
    assert_eq!(device(&allocator).outstanding().segments, 0);
}

#[test]
fn a_use_announced_for_the_free_as_well_lasts_until_the_free() {
    let allocator = allocator("", 100 * MIB);
    let ptr = malloc(&allocator);
    allocator.record_use(ptr, SIDES[0]).unwrap();
    allocator.record_stream(ptr, SIDES[1]).unwrap();
    device(&allocator).complete(SIDES[0]);
    allocator.free(ptr).unwrap();
    assert_eq!(calls(&allocator, Call::Record), 3, "one at the use, two at the free");
    device(&allocator).complete(SIDES[1]);
    allocator.process_events(DEVICE).unwrap();
    assert_eq!(active(&allocator), 40, "work queued after the use on the first stream counts");
    device(&allocator).complete(SIDES[0]);
    allocator.process_events(DEVICE).unwrap();
    assert_eq!(active(&allocator), 0);
}

#[test]
fn what_complete_events_free_is_asked_for_by_name_or_waited_for() {
    let allocator = allocator("", 1 << 30);
    let ptr = malloc(&allocator);
    allocator.record_use(ptr, SIDES[0]).unwrap();
    allocator.free(ptr).unwrap();
    assert!(allocator.free(ptr).is_err(), "freed already");
    allocator.process_events(DEVICE).unwrap();
    assert_eq!(active(&allocator), 40);
    allocator.empty_cache(DEVICE).unwrap();
    assert_eq!((active(&allocator), calls(&allocator, Call::Wait)), (0, 1));
    assert_eq!(device(&allocator).outstanding().segments, 0);
}

#[test]
fn during_a_capture_uses_last_until_the_free_and_nothing_is_ordered() {
    let allocator = allocator("", 1 << 30);
    let (before, inside) = (malloc(&allocator), malloc(&allocator));
    allocator.record_use(before, SIDES[0]).unwrap();
    allocator.free(before).unwrap();
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(SIDES[1]), RoutePurpose::Capture).unwrap();
    allocator.record_use(inside, SIDES[0]).unwrap();
    allocator.free(inside).unwrap();
    assert_eq!(calls(&allocator, Call::Record), 1);
    let other = malloc(&allocator);
    assert!(other != before && other != inside, "nothing can be ordered now");
    assert_eq!(calls(&allocator, Call::OrderBehind), 0);
    allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
    assert_eq!(malloc(&allocator), before);
    assert_eq!(calls(&allocator, Call::OrderBehind), 1);
    // A capture that nothing announced.
    device(&allocator).set_capturing(SIDES[1], true);
    let ptr = malloc(&allocator);
    allocator.record_use(ptr, SIDES[1]).unwrap();
    device(&allocator).set_capturing(SIDES[1], false);
    allocator.free(ptr).unwrap();
    assert_eq!(active(&allocator), 160);
    SIDES.into_iter().for_each(|side| device(&allocator).complete(side));
    allocator.process_events(DEVICE).unwrap();
    assert_eq!(active(&allocator), 80);
    allocator.check_invariants().unwrap();
}

#[test]
fn a_failure_changes_nothing() {
    let allocator = allocator("", 1 << 30);
    let error = DeviceError::new(ErrorKind::Other, 77);
    let fail = |call| device(&allocator).fail(Failure { call, nth: 1, persistent: false, error });
    let ptr = malloc(&allocator);
    for call in [Call::CreateEvent, Call::Record] {
        fail(call);
        assert_eq!(allocator.record_use(ptr, SIDES[0]), Err(Error::Device(error)));
    }
    allocator.record_use(ptr, SIDES[0]).unwrap();
    allocator.free(ptr).unwrap();
    for call in [Call::IsComplete, Call::IsCapturing, Call::OrderBehind] {
        fail(call);
        assert_eq!(allocator.malloc(DEVICE, 40 * MIB, STREAM), Err(Error::Device(error)), "{call:?}");
        allocator.check_invariants().unwrap();
    }
    assert_eq!(malloc(&allocator), ptr);
    assert!(allocator.record_use(DevicePtr(ptr.0 + 512), SIDES[0]).is_err());
    allocator.record_use(ptr, STREAM).unwrap();
    allocator.record_use(DevicePtr::NULL, STREAM).unwrap();
    allocator.free(ptr).unwrap();
    assert_eq!(active(&allocator), 0, "the own stream needs no event");
}

#[test]
fn a_block_is_free_once_its_uses_on_all_streams_are_complete() {
    for config in CONFIGS {
        for order in [[0, 1], [1, 0]] {
            let allocator = allocator(config, 1 << 30);
            let ptr = malloc(&allocator);
            SIDES.into_iter().for_each(|side| allocator.record_use(ptr, side).unwrap());
            allocator.free(ptr).unwrap();
            for (side, active_then) in order.into_iter().zip([40, 0]) {
                device(&allocator).complete(SIDES[side]);
                allocator.process_events(DEVICE).unwrap();
                assert_eq!(active(&allocator), active_then, "{config}, {order:?}");
            }
            allocator.check_invariants().unwrap();
        }
    }
}

#[test]
fn an_order_that_an_unannounced_capture_forbids_fails_no_request() {
    let of_capture = DeviceError::new(ErrorKind::NotPermittedInCapture, 9);
    for config in ["", "policy:stitched"] {
        for is_announced in [true, false] {
            let allocator = allocator(config, 100 * MIB);
            let ptr = allocator.malloc(DEVICE, 60 * MIB, STREAM).unwrap();
            if is_announced {
                allocator.record_use(ptr, SIDES[0]).unwrap();
            } else {
                allocator.record_stream(ptr, SIDES[0]).unwrap();
            }
            allocator.free(ptr).unwrap();
            device(&allocator).fail(Failure { call: Call::OrderBehind, nth: 1, persistent: true, error: of_capture });
            // Waits for the use instead.
            allocator.malloc(DEVICE, 60 * MIB, STREAM).unwrap();
            assert!(config.is_empty() && !is_announced || calls(&allocator, Call::OrderBehind) > 0, "`{config}`");
            allocator.check_invariants().unwrap();
        }
    }
}

#[test]
fn a_copy_of_the_allocator_waits_as_the_allocator_would() {
    for config in CONFIGS {
        for announce in [Simulated::record_use, Simulated::record_stream] {
            let allocator = allocator(config, 100 * MIB);
            // The allocator knows the memory of the device then.
            assert!(allocator.malloc(DEVICE, 1 << 40, SIDES[1]).is_err());
            let ptr = allocator.malloc(DEVICE, 60 * MIB, STREAM).unwrap();
            announce(&allocator, ptr, SIDES[0]).unwrap();
            allocator.free(ptr).unwrap();
            let fit = |bytes| allocator.forecast(DEVICE).unwrap().would_fit(&[bytes], STREAM).unwrap().served;
            assert_eq!((fit(90 * MIB), fit(110 * MIB)), (1, 0), "`{config}`");
            assert_eq!((active(&allocator), calls(&allocator, Call::Wait)), (60, 0), "`{config}`: only tried");
            allocator.malloc(DEVICE, 90 * MIB, STREAM).unwrap();
        }
    }
}

#[test]
fn a_block_that_a_graph_uses_waits_for_the_end_of_the_capture() {
    let allocator = allocator("", 1 << 30);
    let ptr = malloc(&allocator);
    allocator.record_use(ptr, SIDES[0]).unwrap();
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(SIDES[1]), RoutePurpose::Capture).unwrap();
    device(&allocator).set_capturing(SIDES[1], true);
    allocator.record_use(ptr, SIDES[1]).unwrap();
    allocator.free(ptr).unwrap();
    device(&allocator).complete(SIDES[0]);
    allocator.process_events(DEVICE).unwrap();
    assert_eq!(active(&allocator), 40, "the graph may use it to its end");
    device(&allocator).set_capturing(SIDES[1], false);
    allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
    allocator.process_events(DEVICE).unwrap();
    SIDES.into_iter().for_each(|side| device(&allocator).complete(side));
    device(&allocator).complete(STREAM);
    allocator.process_events(DEVICE).unwrap();
    assert_eq!(active(&allocator), 0);
    allocator.check_invariants().unwrap();
}

/// An event for streams costs more to record.
#[test]
fn an_event_is_made_for_streams_only_where_streams_may_wait() {
    let of_blocks = [("", "create_event"), ("parity:False", "create_event"), ("policy:stitched", "create_order_event")];
    for (config, made_for_blocks) in of_blocks {
        let device = AlteredDevice::new(1 << 30, Change::NotesEvents);
        let config = Config::parse(config).unwrap();
        let allocator = altered::Allocator::new([device], &config).unwrap();
        let device = allocator.device(DEVICE).unwrap();
        let made = || device.take_made();
        let block = allocator.malloc(DEVICE, MIB, STREAM).unwrap();
        allocator.record_stream(block, SIDES[0]).unwrap();
        device.inner.launch(SIDES[0], block, MIB).unwrap();
        allocator.free(block).unwrap();
        allocator.process_events(DEVICE).unwrap();
        assert_eq!(made(), [made_for_blocks]);
        let block = allocator.malloc(DEVICE, MIB, STREAM).unwrap();
        allocator.record_use(block, SIDES[1]).unwrap();
        assert_eq!(made(), ["create_order_event"]);
    }
}

/// Blocks of the stream, each used once by a side stream, all freed. The device makes `events`
/// events for streams at most.
fn used_blocks(config: &str, events: usize, sides: &[StreamId]) -> (Simulated, Vec<DevicePtr>) {
    let device = SimulatedDevice::new(400 * MIB).with_order_events(events);
    let allocator = Simulated::new([device], &Config::parse(config).unwrap()).unwrap();
    let blocks: Vec<_> = (0..10).map(|_| malloc(&allocator)).collect();
    for (&block, &side) in blocks.iter().zip(sides.iter().cycle()) {
        allocator.record_use(block, side).unwrap();
    }
    for &block in &blocks {
        allocator.free(block).unwrap();
    }
    (allocator, blocks)
}

#[test]
fn uses_share_an_event_where_the_device_has_no_more_and_the_host_does_not_wait() {
    for config in CONFIGS {
        let (allocator, blocks) = used_blocks(config, 3, &SIDES);
        for _ in &blocks {
            malloc(&allocator);
        }
        assert_eq!([Call::Wait, Call::Synchronize].map(|call| calls(&allocator, call)), [0, 0], "{config}");
        assert!(calls(&allocator, Call::OrderBehind) > 0, "{config}");
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn a_shared_event_stands_behind_the_latest_of_its_uses() {
    for config in CONFIGS {
        let (allocator, blocks) = used_blocks(config, 1, &SIDES[..1]);
        // The work of the first uses is complete, and that of the last is not.
        (1..blocks.len()).for_each(|_| device(&allocator).complete_one(SIDES[0]));
        allocator.process_events(DEVICE).unwrap();
        assert_eq!(active(&allocator), 400, "{config}: no block is free too early");
        device(&allocator).complete(SIDES[0]);
        allocator.process_events(DEVICE).unwrap();
        assert_eq!(active(&allocator), 0, "{config}");
    }
}

#[test]
fn complete_uses_give_their_events_back_before_events_are_shared() {
    for config in CONFIGS {
        let (allocator, _) = used_blocks(config, 2, &SIDES[..1]);
        device(&allocator).complete(SIDES[0]);
        let [first, second] = [malloc(&allocator), malloc(&allocator)];
        allocator.record_use(first, SIDES[0]).unwrap();
        allocator.record_use(second, SIDES[0]).unwrap();
        allocator.free(first).unwrap();
        allocator.free(second).unwrap();
        device(&allocator).complete_one(SIDES[0]);
        allocator.process_events(DEVICE).unwrap();
        assert_eq!(active(&allocator), 40, "{config}: each of the two uses has an event");
    }
}

#[test]
fn without_events_for_streams_a_request_obtains_memory_and_waits_only_when_short() {
    for config in CONFIGS {
        let device = SimulatedDevice::new(80 * MIB).with_order_events(0);
        let allocator = Simulated::new([device], &Config::parse(config).unwrap()).unwrap();
        let first = malloc(&allocator);
        allocator.record_use(first, SIDES[0]).unwrap();
        allocator.free(first).unwrap();
        let second = malloc(&allocator);
        assert_eq!((calls(&allocator, Call::Wait), calls(&allocator, Call::OrderBehind)), (0, 0), "{config}");
        assert_ne!(first, second);
        malloc(&allocator);
        assert!(calls(&allocator, Call::Wait) > 0, "{config}: the memory is short");
        assert_eq!(calls(&allocator, Call::OrderBehind), 0, "{config}");
    }
}

#[test]
fn idle_events_for_streams_are_given_back_with_the_cache() {
    for config in CONFIGS {
        let (allocator, _) = used_blocks(config, usize::MAX, &SIDES);
        SIDES.iter().for_each(|&side| device(&allocator).complete(side));
        let destroyed = || calls(&allocator, Call::DestroyEvent);
        allocator.trim(DEVICE, 1 << 40).unwrap();
        assert_eq!(destroyed(), 0, "{config}: the events are in use");
        allocator.process_events(DEVICE).unwrap();
        allocator.pages(DEVICE).unwrap().maintain(1000).unwrap();
        assert!((2..10).contains(&destroyed()), "{config}: a few are kept");
        allocator.empty_cache(DEVICE).unwrap();
        assert_eq!(destroyed(), 10, "{config}");
    }
}
