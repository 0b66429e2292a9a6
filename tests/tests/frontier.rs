//! Frees at a count: a block stays unavailable until the safe frontier reaches its count, and is
//! free immediately afterwards.

use cachalot_core::simulated::{Call, Failure, SimulatedDevice};
use cachalot_core::{
    Allocator, BlockState, Config, DeviceError, DeviceIndex, DevicePtr, Error, ErrorKind, Fixed, Growable,
    PointerFault, PoolOptions, Route, RoutePurpose, StreamId,
};
use cachalot_tests::consistency;
use cachalot_tests::hooked::Hooked;
use cachalot_tests::host::{DEVICE, Host, MIB, STREAM};
use cachalot_tests::policies::policies;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

const SIDE: StreamId = StreamId(7);

fn reach(host: &Host, count: u64) {
    host.allocator.set_safe_frontier(DEVICE, count).unwrap();
}

/// Lists the blocks with a pending free.
fn pending(host: &Host) -> Vec<DevicePtr> {
    let snapshot = host.allocator.snapshot();
    let blocks = snapshot.iter().flat_map(|segment| &segment.blocks);
    blocks.filter(|block| block.state == BlockState::ActivePendingFree).map(|block| block.address).collect()
}

fn check(host: &Host) {
    consistency::check(&host.allocator, DEVICE, None).unwrap();
}

#[test]
fn a_block_is_free_when_the_frontier_reaches_its_count() {
    for policy in policies() {
        let host = Host::new(policy, 64 * MIB);
        let block = host.malloc(3000);
        let size = host.allocator.base_of(block).unwrap().size as i64;
        host.allocator.free_at(block, 5).unwrap();
        let counted = |name: &str| host.stat(&format!("{name}.all.current"));
        let figures =
            || [counted("allocation"), counted("allocated_bytes"), counted("active"), counted("active_bytes")];
        for before in [0, 4] {
            reach(&host, before);
            assert_eq!((pending(&host), figures()), (vec![block], [0, 0, 1, size]), "{policy}");
            assert_eq!(counted("requested_bytes"), 3000);
            check(&host);
        }
        assert!(host.allocator.base_of(block).is_err());
        let other = host.malloc(3000);
        assert_ne!(other, block, "{policy}");
        reach(&host, 5);
        assert_eq!((pending(&host), figures()), (vec![], [1, size, 1, size]), "{policy}");
        host.free(other);
        host.empty_cache();
        assert_eq!(host.device().used(), 0, "{policy}");
    }
}

#[test]
fn the_frontier_never_goes_back() {
    let host = Host::new("", 64 * MIB);
    let blocks = [0, 10, 11].map(|count| (count, host.malloc(3000)));
    reach(&host, 10);
    reach(&host, 3);
    blocks.iter().for_each(|&(count, ptr)| host.allocator.free_at(ptr, count).unwrap());
    assert_eq!(pending(&host), [blocks[2].1]);
    reach(&host, u64::MAX);
    assert_eq!(pending(&host), []);
}

/// Frees at counts in any order, compared with a list.
#[test]
fn any_counts_in_any_order() {
    for policy in policies() {
        let host = Host::new(policy, 1 << 30);
        let mut random = fastrand::Rng::with_seed(4);
        // Where one stream takes the whole device at once there is no other.
        let whole = ["allow_growth:False", "size_class"].iter().any(|option| policy.contains(option));
        let streams = if whole { 1 } else { 2 };
        let (mut held, mut waiting, mut reached) = (Vec::new(), Vec::<(u64, DevicePtr)>::new(), 0);
        for _ in 0..400 {
            match random.u8(0..10) {
                0..5 => held.push(host.malloc_on(random.u64(1..3 * MIB), [STREAM, SIDE][random.usize(..streams)])),
                5..9 if !held.is_empty() => {
                    let ptr = held.swap_remove(random.usize(..held.len()));
                    let count = (reached + random.u64(0..12)).saturating_sub(3);
                    host.allocator.free_at(ptr, count).unwrap();
                    waiting.push((count, ptr));
                }
                _ => {
                    reached += random.u64(0..6);
                    reach(&host, reached);
                }
            }
            // A block that its stream lent to another one waits for the other's work as well.
            [STREAM, SIDE].iter().for_each(|&stream| host.device().complete(stream));
            host.allocator.process_events(DEVICE).unwrap();
            waiting.retain(|&(count, _)| count > reached);
            let mut expected: Vec<_> = waiting.iter().map(|&(_, ptr)| ptr).collect();
            expected.sort_unstable();
            assert_eq!(pending(&host), expected, "{policy}");
            check(&host);
        }
        held.into_iter().for_each(|ptr| host.free(ptr));
        reach(&host, u64::MAX);
        host.empty_cache();
        assert_eq!(host.device().used(), 0, "{policy}");
    }
}

#[test]
fn neither_a_shortage_nor_empty_cache_takes_what_waits() {
    for policy in policies() {
        let host = Host::new(policy, 64 * MIB);
        let block = host.malloc(40 * MIB);
        host.allocator.free_at(block, 1).unwrap();
        let Error::OutOfMemory(report) = host.refused(40 * MIB) else { panic!("{policy}") };
        assert!(report.pending >= 40 * MIB, "{policy}");
        host.empty_cache();
        host.allocator.trim(DEVICE, 0).unwrap();
        host.allocator.stream_destroyed(DEVICE, STREAM).unwrap();
        assert_eq!(pending(&host), [block], "{policy}");
        check(&host);
        reach(&host, 1);
        host.malloc(40 * MIB);
    }
}

#[test]
fn other_streams_are_waited_for_too() {
    for streams_first in [true, false] {
        let host = Host::new("", 64 * MIB);
        let block = host.malloc(3000);
        host.allocator.record_stream(block, SIDE).unwrap();
        host.allocator.free_at(block, 1).unwrap();
        let done = |streams: bool| {
            if streams {
                host.device().complete(SIDE);
                host.allocator.process_events(DEVICE).unwrap();
            } else {
                reach(&host, 1);
            }
        };
        done(streams_first);
        assert_eq!(pending(&host), [block]);
        check(&host);
        done(!streams_first);
        assert_eq!(pending(&host), []);
        assert_eq!(host.malloc(3000), block);
    }
}

#[test]
fn uses_that_a_capture_defers_are_waited_for_too() {
    let host = Host::new("", 64 * MIB);
    let pool = host.allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    let block = host.malloc(3000);
    host.allocator.record_stream(block, SIDE).unwrap();
    host.allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(StreamId(9)), RoutePurpose::Capture).unwrap();
    host.allocator.free_at(block, 1).unwrap();
    reach(&host, 1);
    assert_eq!(pending(&host), [block]);
    host.allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
    host.allocator.process_events(DEVICE).unwrap();
    assert_eq!(pending(&host), [block], "the side stream is busy");
    host.device().complete(SIDE);
    host.allocator.process_events(DEVICE).unwrap();
    assert_eq!(pending(&host), []);
}

#[test]
fn what_is_not_held_cannot_be_freed() {
    let host = Host::new("", 64 * MIB);
    let block = host.malloc(3000);
    host.allocator.free_at(DevicePtr::NULL, 9).unwrap();
    for count in [0, 9] {
        let wrong = block.offset(512);
        let fault = PointerFault::Interior { block, requested: 3000 };
        assert_eq!(host.allocator.free_at(wrong, count), Err(Error::InvalidPointer { ptr: wrong, fault }));
    }
    host.allocator.free_at(block, 9).unwrap();
    let freed = Error::InvalidPointer { ptr: block, fault: PointerFault::Pending };
    assert_eq!(host.allocator.free_at(block, 9), Err(freed));
    assert_eq!(host.allocator.free(block), Err(freed));
    assert_eq!(host.allocator.set_safe_frontier(DeviceIndex(1), 9), Err(Error::UnknownDevice(DeviceIndex(1))));
}

#[test]
fn a_free_that_fails_changes_nothing() {
    let host = Host::new("", 64 * MIB);
    let block = host.malloc(3000);
    for stream in [SIDE, StreamId(9)] {
        host.allocator.record_stream(block, stream).unwrap();
    }
    let error = DeviceError::new(ErrorKind::Other, 77);
    host.device().fail(Failure { call: Call::Record, nth: 2, persistent: false, error });
    assert_eq!(host.allocator.free_at(block, 1), Err(Error::Device(error)));
    assert_eq!((pending(&host), host.stat("allocation.all.current")), (vec![], 1));
    check(&host);
    reach(&host, 5);
    assert!(host.allocator.base_of(block).is_ok());
    host.allocator.free_at(block, 6).unwrap();
    assert_eq!(pending(&host), [block]);
}

#[test]
fn a_full_table_changes_nothing() {
    // On the stack of a thread, where the tables are made.
    let filled = thread::Builder::new().stack_size(64 << 20).spawn(|| {
        type Small = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Fixed<1, 8, 16, 64>>;
        let allocator = Box::new(Small::new([SimulatedDevice::new(64 * MIB)], &Config::new()).unwrap());
        let blocks: Vec<_> =
            (0..20).map(|number| allocator.malloc(DEVICE, 600, StreamId(number % 2)).unwrap()).collect();
        let results: Vec<_> = blocks.iter().map(|&ptr| allocator.free_at(ptr, 1)).collect();
        assert_eq!(results[..16], [Ok(()); 16]);
        assert_eq!(results[16..], [Err(Error::TableFull("frees at a count")); 4]);
        consistency::check(&allocator, DEVICE, None).unwrap();
        allocator.set_safe_frontier(DEVICE, 1).unwrap();
        blocks[16..].iter().for_each(|&ptr| allocator.free_at(ptr, 2).unwrap());
        allocator.set_safe_frontier(DEVICE, 2).unwrap();
        allocator.empty_cache(DEVICE).unwrap();
        assert_eq!(allocator.device(DEVICE).unwrap().used(), 0);
    });
    filled.unwrap().join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

#[test]
fn a_request_that_waits_gets_what_the_frontier_reaches() {
    let config = Config::parse("policy:bfc,retry_ms:1000").unwrap();
    let device = Hooked::new(SimulatedDevice::new(2 * MIB));
    let allocator = Arc::new(Allocator::<_, parking_lot::RawMutex, Growable>::new([device], &config).unwrap());
    let block = allocator.malloc(DEVICE, 2 * MIB, STREAM).unwrap();
    allocator.free_at(block, 3).unwrap();
    let (again, count) = (Arc::downgrade(&allocator), AtomicU64::new(1));
    allocator.device(DEVICE).unwrap().on_pause(move |_| {
        again.upgrade().unwrap().set_safe_frontier(DEVICE, count.fetch_add(1, Ordering::Relaxed)).unwrap();
    });
    assert_eq!(allocator.malloc(DEVICE, 2 * MIB, STREAM), Ok(block));
}

/// Three threads free at counts, and a fourth advances the frontier. Every block allocated again
/// has a count that was reached.
#[test]
fn threads() {
    for policy in policies() {
        let host = Host::new(policy, 1 << 30);
        // Where one segment is the whole device, it is there before they compete for it.
        host.free(host.malloc(1));
        let (next, passed, done) = (AtomicU64::new(1), AtomicU64::new(0), AtomicBool::new(false));
        let freed = Mutex::new(BTreeMap::<DevicePtr, u64>::new());
        thread::scope(|scope| {
            let (host, next, passed, done, freed) = (&host, &next, &passed, &done, &freed);
            let workers: Vec<_> = (0..3)
                .map(|seed| {
                    scope.spawn(move || {
                        let mut random = fastrand::Rng::with_seed(seed);
                        for _ in 0..500 {
                            let ptr = host.malloc(random.u64(1..8000));
                            let count = freed.lock().unwrap().remove(&ptr);
                            assert!(count.is_none_or(|count| count <= passed.load(Ordering::SeqCst)), "{policy}");
                            let count = next.fetch_add(1, Ordering::Relaxed) + random.u64(0..20);
                            freed.lock().unwrap().insert(ptr, count);
                            host.allocator.free_at(ptr, count).unwrap();
                        }
                    })
                })
                .collect();
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let count = next.load(Ordering::Relaxed);
                    passed.store(count, Ordering::SeqCst);
                    reach(host, count);
                    thread::yield_now();
                }
            });
            let results: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
            done.store(true, Ordering::Relaxed);
            results.into_iter().for_each(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        });
        reach(&host, u64::MAX);
        assert_eq!((pending(&host), host.stat("active.all.current")), (vec![], 0), "{policy}");
        host.empty_cache();
        assert_eq!(host.device().used(), 0, "{policy}");
    }
}
