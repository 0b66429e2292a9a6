//! The event trace: heaps keep their latest events, and a reader gets the latest events of all
//! heaps, in order.

use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{Action, Allocator, Config, DeviceMemory, DevicePtr, Growable, StreamId, TraceEntry};
use cachalot_tests::hooked::Hooked;
use cachalot_tests::host::{DEVICE, Host, MIB};

fn entries(host: &Host) -> Vec<TraceEntry> {
    let mut entries = Vec::new();
    host.allocator.trace(DEVICE).unwrap().for_each(|entry| entries.push(*entry));
    entries
}

/// Removes the times, which depend on the number of clock reads.
fn told(entries: &[TraceEntry]) -> Vec<(Action, DevicePtr, u64, StreamId)> {
    entries.iter().map(|entry| (entry.action, entry.addr, entry.size, entry.stream)).collect()
}

/// Runs requests and frees on several streams, mostly on the first, with pending events and memory
/// exhaustion.
fn program(host: &Host, seed: u64, steps: u32) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut held = Vec::new();
    for _ in 0..steps {
        match rng.u32(0..100) {
            0..50 => {
                let stream = if rng.u8(0..4) > 0 { 0 } else { rng.u64(1..7) };
                let bytes = if rng.bool() { rng.u64(1..MIB) } else { rng.u64(MIB..20 * MIB) };
                held.extend(host.allocator.malloc(DEVICE, bytes, StreamId(stream)));
            }
            50..97 if !held.is_empty() => {
                let ptr = held.swap_remove(rng.usize(0..held.len()));
                if rng.u8(0..8) == 0 {
                    host.allocator.record_stream(ptr, StreamId(9)).unwrap();
                }
                host.allocator.free(ptr).unwrap();
            }
            97 => host.device().complete(StreamId(9)),
            98 => host.allocator.empty_cache(DEVICE).unwrap(),
            _ => {}
        }
    }
}

#[test]
fn a_short_trace_is_the_end_of_a_long_one() {
    for seed in 0..60 {
        let [long, short] = [0; 2].map(|_| Host::new("", 512 * MIB));
        let capacity = fastrand::Rng::with_seed(seed).usize(1..400);
        long.allocator.trace(DEVICE).unwrap().record(1 << 16).unwrap();
        short.allocator.trace(DEVICE).unwrap().record(capacity).unwrap();
        program(&long, seed, 600);
        program(&short, seed, 600);
        let (all, latest) = (told(&entries(&long)), told(&entries(&short)));
        assert!(all.len() > 600 && latest.len() == capacity, "seed {seed}: {} {}", all.len(), latest.len());
        assert!(all.ends_with(&latest), "seed {seed}");
        // Reading changes nothing.
        assert_eq!(told(&entries(&short)), latest, "seed {seed}");
    }
}

/// Old events of quiet heaps are dropped if a busy heap has lost events of that time: a trace with
/// gaps would mislead.
#[test]
fn what_is_older_than_what_was_lost_is_passed_over() {
    let [long, short] = [0; 2].map(|_| Host::new("", 1 << 40));
    long.allocator.trace(DEVICE).unwrap().record(1 << 16).unwrap();
    short.allocator.trace(DEVICE).unwrap().record(2000).unwrap();
    for host in [&long, &short] {
        let pairs = |stream, count| {
            for _ in 0..count {
                let ptr = host.malloc_on(1000, StreamId(stream));
                host.free(ptr);
            }
        };
        (1..200).for_each(|stream| pairs(stream, 10));
        pairs(0, 2000);
        // So many heaps that some of their events are overwritten before those of others that are
        // older.
        (1..200).for_each(|stream| pairs(stream, 1));
    }
    let (all, latest) = (told(&entries(&long)), told(&entries(&short)));
    assert!(all.ends_with(&latest));
    assert!(latest.len() > 1500, "{}", latest.len());
}

/// The events are complete: they agree with the statistics, and each block's events are in order.
#[test]
fn nothing_is_missing_from_a_long_trace() {
    let host = Host::new("", 512 * MIB);
    host.allocator.trace(DEVICE).unwrap().record(1 << 16).unwrap();
    program(&host, 7, 3000);
    let entries = entries(&host);
    let count = |action| entries.iter().filter(|entry| entry.action == action).count() as i64;
    let statistics = host.allocator.stats(DEVICE).unwrap().totals();
    assert_eq!(count(Action::Alloc), statistics.allocations().allocated);
    assert_eq!(count(Action::FreeRequested), statistics.allocations().freed);
    assert_eq!(count(Action::SegmentAlloc) as u64, statistics.device_allocs());
    assert_eq!(count(Action::SegmentFree) as u64, statistics.device_frees());
    assert_eq!(count(Action::OutOfMemory) as u64, statistics.ooms());
    assert!(count(Action::OutOfMemory) > 0 && count(Action::FreeCompleted) > 0);
    let mut states = std::collections::HashMap::new();
    for entry in &entries {
        let before = match entry.action {
            Action::Alloc => states.insert(entry.addr, Action::Alloc).filter(|&state| state != Action::FreeCompleted),
            Action::FreeRequested | Action::FreeCompleted => {
                let needs = if entry.action == Action::FreeRequested { Action::Alloc } else { Action::FreeRequested };
                states.insert(entry.addr, entry.action).filter(|&state| state != needs)
            }
            _ => None,
        };
        assert_eq!(before, None, "{entry:?}");
    }
}

#[test]
fn a_trace_begins_and_ends_when_it_is_told_to() {
    let host = Host::new("", 512 * MIB);
    program(&host, 1, 100);
    assert!(entries(&host).is_empty());
    host.allocator.trace(DEVICE).unwrap().record(100).unwrap();
    let ptr = host.malloc(100);
    host.allocator.trace(DEVICE).unwrap().record(100).unwrap();
    // What a heap had not handed on yet is gone too.
    host.free(ptr);
    assert_eq!(
        entries(&host).iter().map(|entry| entry.action).collect::<Vec<_>>(),
        [Action::FreeRequested, Action::FreeCompleted]
    );
    host.allocator.trace(DEVICE).unwrap().record(0).unwrap();
    host.malloc(100);
    assert!(entries(&host).is_empty());
}

#[test]
fn threads_record_at_the_same_time() {
    const PAIRS: usize = 5000;
    let host = Host::new("", 1 << 40);
    host.allocator.trace(DEVICE).unwrap().record(1 << 16).unwrap();
    std::thread::scope(|scope| {
        for stream in 1..5 {
            let host = &host;
            scope.spawn(move || {
                for _ in 0..PAIRS {
                    let ptr = host.malloc_on(1000, StreamId(stream));
                    host.free(ptr);
                }
            });
        }
        for _ in 0..20 {
            assert!(entries(&host).is_sorted_by_key(|entry| entry.time_us));
        }
    });
    let entries = entries(&host);
    assert_eq!(entries.len(), 4 * (3 * PAIRS + 1));
    for stream in 1..5 {
        let own = entries.iter().filter(|entry| entry.stream == StreamId(stream)).skip(1);
        let cycle = [Action::Alloc, Action::FreeRequested, Action::FreeCompleted].into_iter().cycle();
        assert!(own.map(|entry| entry.action).zip(cycle).all(|(one, other)| one == other), "{stream}");
    }
}

/// Traces of many heaps in sequence: of a device with a clock, and of a device without.
#[test]
fn events_of_several_heaps_are_in_order() {
    in_order(SimulatedDevice::new(512 * MIB));
    in_order(Hooked::new(SimulatedDevice::new(512 * MIB)));
}

fn in_order(device: impl DeviceMemory) {
    let allocator = Allocator::<_, parking_lot::RawMutex, Growable>::new([device], &Config::default()).unwrap();
    allocator.trace(DEVICE).unwrap().record(1 << 10).unwrap();
    let mut expected = Vec::new();
    for at in 0..100 {
        let ptr = allocator.malloc(DEVICE, 1000, StreamId(at % 7)).unwrap();
        allocator.free(ptr).unwrap();
        let pair = [Action::Alloc, Action::FreeRequested, Action::FreeCompleted];
        expected.extend(pair.map(|action| (action, StreamId(at % 7))));
    }
    let mut told = Vec::new();
    allocator.trace(DEVICE).unwrap().for_each(|entry| told.push((entry.action, entry.stream)));
    told.retain(|(action, _)| *action != Action::SegmentAlloc);
    assert_eq!(told, expected);
}
