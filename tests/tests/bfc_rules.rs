//! Best fit with coalescing, rule by rule: growth and release of regions, choice and split of
//! blocks, and the wait of a request for other threads.

use cachalot_core::config::Bfc;
use cachalot_core::simulated::{Call, SimulatedDevice};
use cachalot_core::{
    Allocator, Config, DevicePtr, Error, Growable, PoolOptions, Route, RoutePurpose, Segments, StreamId,
};
use cachalot_tests::hooked::Hooked;
use cachalot_tests::host::{DEVICE, Host, MIB, STREAM, SimulatedAllocator};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const GIB: u64 = 1 << 30;
const OTHER: StreamId = StreamId(7);

/// Returns the regions in the order of their allocation. The simulated device assigns ascending
/// addresses.
fn regions(host: &Host) -> Vec<u64> {
    host.allocator.snapshot().iter().map(|region| region.total_size).collect()
}

fn block(host: &Host, ptr: DevicePtr) -> u64 {
    host.allocator.base_of(ptr).unwrap().size
}

#[test]
fn regions_double() {
    let host = Host::new("policy:bfc", GIB);
    for region in [2, 4, 8, 16, 32] {
        // What the region has, in four equal blocks.
        (0..4).for_each(|_| _ = host.malloc(region * MIB / 4));
    }
    assert_eq!(regions(&host), [2, 4, 8, 16, 32].map(|mib| mib * MIB));
    // A larger request doubles them until it fits; that counts as the doubling.
    host.malloc(100 * MIB);
    host.malloc(100 * MIB);
    host.malloc(100 * MIB);
    assert_eq!(regions(&host)[5..], [128 * MIB, 128 * MIB, 256 * MIB]);
}

#[test]
fn each_stream_begins_with_the_first_region() {
    let host = Host::new("policy:bfc,first_region_mb:1", GIB);
    for stream in [STREAM, OTHER] {
        [MIB, MIB].into_iter().for_each(|bytes| _ = host.malloc_on(bytes, stream));
    }
    assert_eq!(regions(&host), [MIB, 2 * MIB, MIB, 2 * MIB]);
    // A program may set any number of bytes: it is rounded up.
    let mut config = Config::default();
    config.set_policy(Bfc { first_region: 1000, ..Bfc::DEFAULT });
    let devices = [SimulatedDevice::new(GIB)];
    let allocator = SimulatedAllocator::new(devices, &config).unwrap();
    allocator.malloc(DEVICE, 1, STREAM).unwrap();
    assert_eq!(allocator.snapshot()[0].total_size, 1024);
}

#[test]
fn the_limit_and_the_device_cut_regions() {
    let host = Host::new("policy:bfc", GIB);
    host.allocator.settings(DEVICE).unwrap().set_limit(Some(5 * MIB + 300));
    host.malloc(2 * MIB);
    host.malloc(MIB);
    assert_eq!(regions(&host), [2 * MIB, 3 * MIB + 256], "a multiple of 256");
    assert!(matches!(host.refused(3 * MIB), Error::OutOfMemory(_)));
    assert_eq!(host.device().calls(Call::Obtain), 2, "what the limit does not allow is not asked for");
    let host = Host::new("policy:bfc", 5 * MIB);
    host.malloc(2 * MIB);
    host.malloc(2 * MIB + 1);
    assert_eq!(regions(&host), [2 * MIB, 3 * MIB]);
    assert_eq!(host.device().calls(Call::Obtain), 2);
}

/// Creates an allocator over a device of which another process uses a part.
fn beside_others(taken: u64, capacity: u64) -> SimulatedAllocator {
    let device = SimulatedDevice::new(capacity);
    device.obtain(taken).unwrap();
    Allocator::new([device], &Config::parse("policy:bfc,first_region_mb:64").unwrap()).unwrap()
}

#[test]
fn regions_shrink_by_tenths_until_the_device_has_them() {
    let allocator = beside_others(40 * MIB, 64 * MIB);
    let ptr = allocator.malloc(DEVICE, MIB, STREAM).unwrap();
    // 57.6, 51.84, …
    let tenths = |bytes: &u64| Some(((*bytes as f64 * 0.9) as u64).next_multiple_of(256));
    let attempts: Vec<_> =
        std::iter::successors(Some(64 * MIB), tenths).take_while(|&bytes| bytes > 24 * MIB).collect();
    let obtained = tenths(attempts.last().unwrap());
    assert_eq!(Some(allocator.base_of(ptr).unwrap().segment_bytes), obtained);
    assert_eq!((attempts.len(), allocator.device(DEVICE).unwrap().calls(Call::Obtain)), (10, 1 + 11));
}

#[test]
fn regions_shrink_to_what_is_needed_at_last() {
    let allocator = beside_others(40 * MIB, 64 * MIB);
    let ptr = allocator.malloc(DEVICE, 24 * MIB, STREAM).unwrap();
    assert_eq!(allocator.base_of(ptr).unwrap().segment_bytes, 24 * MIB);
}

#[test]
fn all_at_once() {
    let host = Host::new("policy:bfc,allow_growth:False", GIB);
    host.malloc(1);
    assert_eq!(regions(&host), [GIB]);
    assert!(matches!(host.allocator.malloc(DEVICE, 1, OTHER), Err(Error::OutOfMemory(_))), "no stream shares it");
    let host = Host::new("policy:bfc,allow_growth:False", GIB);
    host.allocator.settings(DEVICE).unwrap().set_limit(Some(100 * MIB));
    host.free(host.malloc(1));
    assert_eq!(regions(&host), [100 * MIB]);
    assert_eq!(block(&host, host.malloc_on(MIB, OTHER)), MIB, "what is wholly free serves other streams");
    assert_eq!(regions(&host), [100 * MIB]);
}

#[test]
fn blocks_are_split_if_twice_as_large() {
    for (request, given) in [(MIB, MIB), (MIB + 256, 2 * MIB), (MIB - 255, MIB), (2 * MIB - 256, 2 * MIB), (1, 256)] {
        let host = Host::new("policy:bfc", GIB);
        assert_eq!(block(&host, host.malloc(request)), given, "{request}");
    }
}

#[test]
fn blocks_are_split_if_too_much_would_be_wasted() {
    for (request, given) in [(170, 170), (171, 171), (172, 172), (173, 200), (200, 200), (101, 101), (99, 99)] {
        let host = Host::new("policy:bfc,allow_growth:False,max_internal_fragmentation_mb:28", 200 * MIB);
        assert_eq!(block(&host, host.malloc(request * MIB)), given * MIB, "{request}");
    }
    let host = Host::new("policy:bfc,allow_growth:False", 500 * MIB);
    assert_eq!(block(&host, host.malloc(372 * MIB)), 372 * MIB, "128 MiB by default");
    let host = Host::new("policy:bfc,allow_growth:False", 500 * MIB);
    assert_eq!(block(&host, host.malloc(372 * MIB + 1)), 500 * MIB);
    let host = Host::new("policy:bfc,max_internal_fragmentation_mb:0", 500 * MIB);
    assert_eq!(block(&host, host.malloc(2 * MIB - 256)), 2 * MIB - 256, "a unit is worth splitting off");
}

#[test]
fn the_smallest_block_that_fits_serves_the_lowest_of_several() {
    let host = Host::new("policy:bfc,allow_growth:False", 64 * MIB);
    // Holes of 3, 2, 2 and 5 units, apart from one another.
    let holes = [3, 2, 2, 5].map(|units| {
        let hole = host.malloc(units * 256);
        host.malloc(256);
        hole
    });
    holes.into_iter().for_each(|hole| host.free(hole));
    assert_eq!(host.malloc(500), holes[1]);
    assert_eq!(host.malloc(500), holes[2]);
    assert_eq!(host.malloc(500), holes[0], "3 units serve 2 whole");
    assert_eq!(block(&host, holes[0]), 768);
    assert_eq!(host.malloc(1), holes[3]);
    assert_eq!(host.malloc(257), holes[3].offset(256), "of 5 units 1 was split off, now 2 of 4");
    assert_eq!(host.malloc(257), holes[3].offset(768));
}

#[test]
fn free_neighbours_become_one() {
    let host = Host::new("policy:bfc,allow_growth:False", MIB);
    let blocks: Vec<_> = (0..4).map(|_| host.malloc(MIB / 4)).collect();
    for number in [0, 2, 1] {
        host.free(blocks[number]);
    }
    assert_eq!(host.malloc(MIB / 4 * 3), blocks[0]);
    host.free(blocks[0]);
    host.free(blocks[3]);
    assert_eq!(host.malloc(MIB), blocks[0]);
}

#[test]
fn free_regions_are_kept_if_they_are_not_to_be_collected() {
    let fill = |config: &str| {
        let host = Host::new(config, 8 * MIB);
        host.free(host.malloc(2 * MIB));
        host.free(host.malloc(3 * MIB));
        host
    };
    let host = fill("policy:bfc");
    host.malloc(8 * MIB);
    assert_eq!(regions(&host), [8 * MIB]);
    let host = fill("policy:bfc,region_garbage_collection:False");
    assert!(matches!(host.refused(8 * MIB), Error::OutOfMemory(_)));
    assert_eq!(regions(&host), [2 * MIB, 4 * MIB]);
    host.empty_cache();
    host.malloc(8 * MIB);
}

#[test]
fn without_a_cache_regions_do_not_grow() {
    let host = Host::new("policy:bfc", GIB);
    host.allocator.settings(DEVICE).unwrap().set_caching(false);
    for _ in 0..20 {
        assert_eq!(block(&host, host.malloc(300)), 512);
    }
    host.allocator.settings(DEVICE).unwrap().set_caching(true);
    host.malloc(300);
    assert_eq!(regions(&host)[20..], [2 * MIB]);
}

#[test]
fn a_pool_that_does_not_split_obtains_what_is_asked_for() {
    let host = Host::new("policy:bfc", GIB);
    let pool =
        host.allocator.pools(DEVICE).unwrap().create(PoolOptions { no_split: true, ..PoolOptions::default() }).unwrap();
    host.allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Requests).unwrap();
    for _ in 0..20 {
        host.malloc(3 * MIB + 1);
    }
    assert_eq!(regions(&host), [3 * MIB + 256; 20]);
}

type Waiting = Allocator<Hooked, parking_lot::RawMutex, Growable>;

/// Creates an allocator over two regions of 2 MiB, with a retry time in milliseconds.
fn two_units(retry_ms: u64) -> Arc<Waiting> {
    let config = Config::parse(&format!("policy:bfc,retry_ms:{retry_ms}")).unwrap();
    Arc::new(Allocator::new([Hooked::new(SimulatedDevice::new(4 * MIB))], &config).unwrap())
}

/// `RetrySuccess`: three threads take turns with two units, on one stream or on separate streams.
#[test]
fn a_request_waits_for_others() {
    for streams in [1, 3] {
        let allocator = two_units(10_000);
        allocator.device(DEVICE).unwrap().on_pause(|us| thread::sleep(Duration::from_micros(us)));
        thread::scope(|scope| {
            for consumer in 0..3 {
                let allocator = &allocator;
                scope.spawn(move || {
                    for _ in 0..20 {
                        let unit = allocator.malloc(DEVICE, 2 * MIB, StreamId(consumer % streams)).unwrap();
                        thread::sleep(Duration::from_millis(1));
                        allocator.free(unit).unwrap();
                    }
                });
            }
        });
        allocator.check_invariants().unwrap();
        assert_eq!(allocator.stats(DEVICE).unwrap().totals().ooms(), 0);
    }
}

/// `NoRetryFail`.
#[test]
fn without_patience_it_does_not_wait() {
    let allocator = two_units(0);
    (0..2).for_each(|_| _ = allocator.malloc(DEVICE, 2 * MIB, STREAM).unwrap());
    assert!(matches!(allocator.malloc(DEVICE, 2 * MIB, STREAM), Err(Error::OutOfMemory(_))));
    assert_eq!(allocator.device(DEVICE).unwrap().inner.now_us(), 0);
}

/// `RetryInsufficientFail`: every thread holds one unit and waits for another unit.
#[test]
fn it_waits_no_longer_than_it_is_to() {
    for (retry_ms, patience_us, waited_us) in [(1000, u64::MAX, 1_000_000), (1, u64::MAX, 1000), (1000, 250, 100)] {
        let allocator = two_units(retry_ms);
        let device = &allocator.device(DEVICE).unwrap().inner;
        device.set_patience(patience_us);
        (0..2).for_each(|_| _ = allocator.malloc(DEVICE, 2 * MIB, STREAM).unwrap());
        assert!(matches!(allocator.malloc(DEVICE, 2 * MIB, STREAM), Err(Error::OutOfMemory(_))));
        assert_eq!(device.now_us(), waited_us, "{retry_ms} ms");
        allocator.check_invariants().unwrap();
    }
}

/// A block freed during the pause serves the request after the pause, directly or after a release.
#[test]
fn what_is_freed_meanwhile_serves() {
    for (stream, obtained) in [(STREAM, 2), (OTHER, 3)] {
        let allocator = two_units(10_000);
        let unit = allocator.malloc(DEVICE, 2 * MIB, stream).unwrap();
        allocator.malloc(DEVICE, 2 * MIB, STREAM).unwrap();
        let (again, pauses) = (Arc::downgrade(&allocator), Arc::new(AtomicU32::new(0)));
        let counted = Arc::clone(&pauses);
        allocator.device(DEVICE).unwrap().on_pause(move |_| {
            if counted.fetch_add(1, Ordering::Relaxed) == 4 {
                again.upgrade().unwrap().free(unit).unwrap();
            }
        });
        let served = allocator.malloc(DEVICE, 2 * MIB, STREAM).unwrap();
        assert_eq!(allocator.base_of(served).unwrap().stream, STREAM);
        let device_allocs = allocator.stats(DEVICE).unwrap().totals().device_allocs();
        assert_eq!((served, pauses.load(Ordering::Relaxed), device_allocs), (unit, 5, obtained));
    }
}

/// A block with a pending event serves the request as soon as the event is complete.
#[test]
fn what_other_streams_are_done_with_serves() {
    let allocator = two_units(10_000);
    let units = [0, 1].map(|_| allocator.malloc(DEVICE, 2 * MIB, STREAM).unwrap());
    let again = Arc::downgrade(&allocator);
    let left = Mutex::new(Some(units[1]));
    allocator.device(DEVICE).unwrap().on_pause(move |_| {
        let allocator = again.upgrade().unwrap();
        match left.lock().unwrap().take() {
            Some(unit) => {
                allocator.record_stream(unit, OTHER).unwrap();
                allocator.free(unit).unwrap();
            }
            None => allocator.device(DEVICE).unwrap().inner.complete(OTHER),
        }
    });
    assert_eq!(allocator.malloc(DEVICE, 2 * MIB, STREAM), Ok(units[1]));
}
