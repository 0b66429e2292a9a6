//! Traces with numbered times: the order of events, decisions and restarts.

use crate::device::Host;
use crate::simulated::SimulatedDevice;
use crate::tables::Growable;
use crate::units::{DeviceIndex, DevicePtr, StreamId};
use crate::{Action, Allocator, Config, EventTimes, TraceEntry};
use spin::mutex::SpinMutex;
use std::collections::BTreeMap;
use std::vec::Vec;

const MIB: u64 = 1 << 20;
const DEVICE: DeviceIndex = DeviceIndex(0);

type Subject = Allocator<SimulatedDevice, SpinMutex<()>, Growable>;

fn subject(config: &str) -> Subject {
    Allocator::new([SimulatedDevice::new(1024 * MIB)], &Config::parse(config).expect("settings")).expect("an allocator")
}

fn record(subject: &Subject, events: usize, times: EventTimes) {
    subject.trace(DEVICE).expect("a device").record_with(events, times).expect("room");
}

fn events(subject: &Subject) -> Vec<TraceEntry> {
    let mut events = Vec::new();
    subject.trace(DEVICE).expect("a device").for_each(|entry| events.push(*entry));
    events
}

/// Returns the kinds of events of each address, in their order.
fn by_address(events: &[TraceEntry]) -> BTreeMap<DevicePtr, Vec<Action>> {
    let mut by_address = BTreeMap::<_, Vec<_>>::new();
    events.iter().for_each(|event| by_address.entry(event.addr).or_default().push(event.action));
    by_address
}

/// Requests and frees blocks of two sizes on two streams, and returns the addresses in the order of
/// the requests. Blocks of another stream wait for events after their frees.
fn run(subject: &Subject, rounds: u64) -> Vec<DevicePtr> {
    let mut order = Vec::new();
    for round in 0..rounds {
        let mut held = Vec::new();
        for (stream, bytes) in [(0, 1000), (1, 3 * MIB), (0, 3 * MIB), (1, 512), (0, 700)] {
            let block = subject.malloc(DEVICE, bytes, StreamId(stream)).expect("there is memory");
            order.push(block);
            held.push(block);
        }
        if round % 3 == 0 {
            subject.record_stream(held[2], StreamId(1)).expect("a block");
        }
        held.into_iter().for_each(|block| subject.free(block).expect("a block"));
    }
    order
}

#[test]
fn numbered_events_of_a_heap_have_the_order_in_which_they_happened() {
    let subject = subject("");
    record(&subject, 100_000, EventTimes::Numbered);
    let mut order = run(&subject, 200);
    let events = events(&subject);
    assert!(events.is_sorted_by_key(|event| event.time_us));
    let is_small = |event: &&TraceEntry| event.action == Action::Alloc && event.size < MIB && event.stream.0 == 0;
    let requested: Vec<_> = events.iter().filter(is_small).map(|event| event.addr).collect();
    let mut at = 0;
    order.retain(|_| {
        at += 1;
        at % 5 == 1 || at % 5 == 0
    });
    assert_eq!(requested, order);
    assert_eq!(subject.trace(DEVICE).expect("a device").extent().dropped, 0);
}

#[test]
fn a_trace_of_either_kind_changes_no_decision_and_has_the_same_events() {
    let kinds = [None, Some(EventTimes::Exact), Some(EventTimes::Numbered)];
    for config in
        ["", "parity:False", "expandable_segments:True", "policy:stitched", "garbage_collection_threshold:0.8"]
    {
        let runs = kinds.map(|times| {
            let subject = subject(config);
            if let Some(times) = times {
                record(&subject, 100_000, times);
            }
            let order = run(&subject, 100);
            let stats = subject.stats(DEVICE).expect("a device").totals();
            subject.check_invariants().expect("invariants");
            (order, stats, by_address(&events(&subject)))
        });
        let [off, exact, numbered] = runs;
        assert_eq!((&off.0, &off.1), (&exact.0, &exact.1), "{config}");
        assert_eq!((&off.0, &off.1), (&numbered.0, &numbered.1), "{config}");
        assert!(exact.2 == numbered.2 && !exact.2.is_empty(), "{config}");
    }
}

/// Replays a history. Every event must be possible after the ones before.
fn check(events: &[TraceEntry]) {
    let mut segments = BTreeMap::<DevicePtr, (u64, StreamId)>::new();
    let mut blocks = BTreeMap::new();
    for event in events {
        let TraceEntry { action, addr, size, stream, .. } = *event;
        let before = segments.range(..=addr).next_back().map(|(&base, &of)| (base, of));
        match action {
            Action::SegmentAlloc => {
                assert!(before.is_none_or(|(base, (bytes, _))| base.0 + bytes <= addr.0), "{event:?} in {before:?}");
                segments.insert(addr, (size, stream));
            }
            Action::SegmentFree => assert_eq!(segments.remove(&addr), Some((size, stream)), "{event:?}"),
            Action::Alloc => {
                let inside = before.is_some_and(|(base, (bytes, of))| addr.0 + size <= base.0 + bytes && of == stream);
                assert!(inside, "{event:?} in {before:?}");
                assert_eq!(blocks.insert(addr, Action::Alloc), None, "{event:?}");
            }
            Action::FreeRequested => {
                assert_eq!(blocks.insert(addr, Action::FreeRequested), Some(Action::Alloc), "{event:?}");
            }
            Action::FreeCompleted => assert_eq!(blocks.remove(&addr), Some(Action::FreeRequested), "{event:?}"),
            _ => {}
        }
    }
    assert!(blocks.is_empty());
}

#[test]
fn a_history_of_threads_whose_segments_pass_from_heap_to_heap_can_be_replayed() {
    let seed = fastrand::u64(..);
    std::println!("seed {seed}");
    let subject = Allocator::<_, SpinMutex<()>, Growable>::new([SimulatedDevice::new(100 * MIB)], &Config::new())
        .expect("an allocator");
    record(&subject, 1_000_000, EventTimes::Numbered);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let subject = &subject;
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed ^ thread);
                let mut held = Vec::new();
                for _ in 0..3000 {
                    match rng.u8(..) {
                        0..4 => subject.empty_cache(DEVICE).expect("a device"),
                        4..140 if held.len() < 6 => {
                            let bytes = if rng.bool() { rng.u64(1..MIB) } else { rng.u64(MIB..12 * MIB) };
                            // Memory may run out.
                            held.extend(subject.malloc(DEVICE, bytes, StreamId(thread)));
                        }
                        _ if held.is_empty() => {}
                        _ => subject.free(held.swap_remove(rng.usize(..held.len()))).expect("a block"),
                    }
                }
                held.into_iter().for_each(|block| subject.free(block).expect("a block"));
            });
        }
    });
    let events = events(&subject);
    assert_eq!(subject.trace(DEVICE).expect("a device").extent().dropped, 0);
    assert!(events.iter().filter(|event| event.action == Action::SegmentFree).count() > 100);
    check(&events);
}

#[test]
fn a_trace_that_replaces_one_of_the_other_kind_has_its_own_events_alone() {
    let subject = subject("");
    let kinds = [EventTimes::Numbered, EventTimes::Exact, EventTimes::Numbered, EventTimes::Numbered];
    for (turn, times) in kinds.into_iter().enumerate() {
        record(&subject, 1000, times);
        // Fewer events than a heap buffers, so that those of the turn before are still there.
        let mut order = run(&subject, 2);
        let requested = events(&subject).into_iter().filter(|event| event.action == Action::Alloc);
        let mut requested: Vec<_> = requested.map(|event| event.addr).collect();
        requested.sort();
        order.sort();
        assert_eq!(requested, order, "turn {turn}");
    }
    record(&subject, 0, EventTimes::Numbered);
    run(&subject, 2);
    assert!(events(&subject).is_empty());
}

#[test]
fn a_request_that_fails_is_the_last_numbered_event() {
    let subject = subject("");
    record(&subject, 3, EventTimes::Numbered);
    run(&subject, 10);
    subject.malloc(DEVICE, 4096 * MIB, StreamId(0)).expect_err("there is less memory");
    let events = events(&subject);
    assert_eq!((events.len(), events.last().map(|event| event.action)), (3, Some(Action::OutOfMemory)));
}

#[test]
fn the_clock_is_first_read_for_an_event() {
    for times in [EventTimes::Numbered, EventTimes::Exact] {
        let subject = subject("");
        let [small, _] = [1000, 3 * MIB].map(|bytes| subject.malloc(DEVICE, bytes, StreamId(0)).expect("memory"));
        let device = subject.device(DEVICE).expect("a device");
        let before = device.ticks();
        record(&subject, 1000, times);
        assert_eq!(subject.trace(DEVICE).expect("a device").extent().capacity, 1000);
        // Each reading adds 2.
        assert_eq!(device.ticks() - before, 2, "{times:?}");
        // An event of a block: nothing comes from the device.
        let begun = device.ticks();
        subject.free(small).expect("a block");
        let events = events(&subject);
        assert!(events.len() == 2 && events.iter().all(|event| event.time_us >= begun / 1000), "{times:?}");
    }
}
