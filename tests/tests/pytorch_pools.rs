//! The expectations of PyTorch's own tests of private pools and captured graphs, on the simulated
//! device.

use cachalot_core::simulated::{Call, SimulatedDevice};
use cachalot_core::{
    Allocator, Config, DevicePtr, Error, Growable, PoolId, PoolOptions, Route, RoutePurpose, StreamId,
};
use cachalot_tests::hooked::{Hooked, thread_id};
use cachalot_tests::host::{DEVICE, Host, MIB, STREAM};
use std::thread;

const GIB: u64 = 1 << 30;
const SIDE: StreamId = StreamId(2);
const PLAIN: PoolOptions = PoolOptions { use_on_oom: false, no_split: false };
const USE_ON_OOM: PoolOptions = PoolOptions { use_on_oom: true, no_split: false };
const NO_SPLIT: PoolOptions = PoolOptions { use_on_oom: false, no_split: true };

fn pool(host: &Host, options: PoolOptions) -> PoolId {
    host.allocator.pools(DEVICE).unwrap().create(options).unwrap()
}

/// Runs a closure with a route for all requests into a pool.
fn within<T>(host: &Host, pool: PoolId, run: impl FnOnce() -> T) -> T {
    host.allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Requests).unwrap();
    let result = run();
    host.allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Requests).unwrap();
    host.allocator.pools(DEVICE).unwrap().release(pool).unwrap();
    result
}

/// Runs a closure during the capture of a graph into a pool. The graph uses the pool afterwards.
fn captured<T>(host: &Host, pool: PoolId, run: impl FnOnce() -> T) -> T {
    host.allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(STREAM), RoutePurpose::Capture).unwrap();
    host.device().set_capturing(STREAM, true);
    let result = run();
    host.device().set_capturing(STREAM, false);
    host.allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
    result
}

fn segments_of(host: &Host, pool: PoolId) -> usize {
    host.allocator.snapshot().iter().filter(|segment| segment.pool == pool).count()
}

fn reserved_by(host: &Host, pool: PoolId) -> u64 {
    host.allocator.snapshot().iter().filter(|segment| segment.pool == pool).map(|segment| segment.total_size).sum()
}

/// Returns the segments, reserved bytes, active blocks and active bytes of one kind.
fn figures(host: &Host, kind: &str) -> [i64; 4] {
    ["segment", "reserved_bytes", "active", "active_bytes"].map(|name| host.stat(&format!("{name}.{kind}.current")))
}

/// Runs `b = a.clone()`, then five times `b = b.clone() + 1`: at most three blocks at a time, one
/// at the end.
fn five_sums(host: &Host, bytes: u64) -> DevicePtr {
    let mut b = host.malloc(bytes);
    for _ in 0..5 {
        let clone = host.malloc(bytes);
        let sum = host.malloc(bytes);
        host.free(clone);
        host.free(b);
        b = sum;
    }
    b
}

fn graph_statistics(config: &str, cases: &[(u64, &str, [u64; 2], [u64; 2]); 5]) {
    for &(bytes, kind, captured_figures, left) in cases {
        let host = Host::new(config, GIB);
        let pool = pool(&host, PLAIN);
        let result = captured(&host, pool, || five_sums(&host, bytes));
        host.allocator.pools(DEVICE).unwrap().release(pool).unwrap();
        let expected = |[segments, reserved]: [u64; 2]| [segments, reserved * MIB, 1, bytes].map(u64::cast_signed);
        for _ in 0..2 {
            // The graph holds the pool: nothing of it goes back.
            assert_eq!(figures(&host, kind), expected(captured_figures), "{bytes} bytes, captured");
            host.empty_cache();
        }
        // The graph is gone, its result is not.
        host.allocator.pools(DEVICE).unwrap().release(pool).unwrap();
        host.empty_cache();
        assert_eq!(figures(&host, kind), expected(left), "{bytes} bytes, after the graph");
        host.free(result);
        host.empty_cache();
        assert_eq!(host.device().used(), 0);
        assert_eq!(host.allocator.pools(DEVICE).unwrap().users(pool), Err(Error::UnknownPool(pool)));
    }
}

#[test]
fn statistics_of_a_captured_graph() {
    graph_statistics(
        "",
        &[
            (512, "small_pool", [1, 2], [1, 2]),
            (MIB, "small_pool", [2, 4], [1, 2]),
            (MIB + 512, "large_pool", [1, 20], [1, 20]),
            (10 * MIB - 512, "large_pool", [2, 40], [1, 20]),
            (10 * MIB + 512, "large_pool", [3, 36], [1, 12]),
        ],
    );
}

#[test]
fn statistics_of_a_captured_graph_with_expandable_segments() {
    graph_statistics(
        "expandable_segments:True",
        &[
            (512, "small_pool", [0, 2], [0, 2]),
            (MIB, "small_pool", [0, 4], [0, 2]),
            (MIB + 512, "large_pool", [0, 20], [0, 20]),
            // The result ends up third, across both granules; one of 1024 bytes more is in the
            // second alone.
            (10 * MIB - 512, "large_pool", [0, 40], [0, 40]),
            (10 * MIB + 512, "large_pool", [0, 40], [0, 20]),
        ],
    );
}

#[test]
fn a_pool_counts_its_users() {
    let host = Host::new("", GIB);
    let pool = pool(&host, PLAIN);
    let users = || host.allocator.pools(DEVICE).unwrap().users(pool);
    assert_eq!(users(), Ok(1));
    within(&host, pool, || assert_eq!(users(), Ok(2)));
    assert_eq!(users(), Ok(1));
    host.allocator.pools(DEVICE).unwrap().release(pool).unwrap();
    assert_eq!(users(), Err(Error::UnknownPool(pool)));
    assert_eq!(host.allocator.pools(DEVICE).unwrap().release(pool), Err(Error::UnknownPool(pool)));
}

#[test]
fn a_mebibyte_three_times() {
    let host = Host::new("", GIB);
    let pool = pool(&host, PLAIN);
    let blocks = within(&host, pool, || {
        [1, 1, 2].map(|segments| {
            let ptr = host.malloc(MIB);
            assert_eq!(segments_of(&host, pool), segments);
            ptr
        })
    });
    assert_eq!(segments_of(&host, PoolId::DEFAULT), 0);
    host.malloc(MIB);
    assert_eq!((segments_of(&host, PoolId::DEFAULT), segments_of(&host, pool)), (1, 2));
    // Blocks outlive their pool; its segments go with the last of them.
    host.allocator.pools(DEVICE).unwrap().release(pool).unwrap();
    host.empty_cache();
    assert_eq!(segments_of(&host, pool), 2);
    blocks.into_iter().for_each(|ptr| host.free(ptr));
    host.empty_cache();
    assert_eq!(segments_of(&host, pool), 0);
}

#[test]
fn a_pool_lends_its_blocks_rather_than_let_a_request_fail() {
    let host = Host::new("", GIB);
    host.allocator.settings(DEVICE).unwrap().set_limit(Some(80 * MIB));
    let [lends, keeps] = [USE_ON_OOM, PLAIN].map(|options| pool(&host, options));
    let a = within(&host, lends, || host.malloc(40 * MIB));
    let b = within(&host, keeps, || host.malloc(40 * MIB));
    assert!(matches!(host.refused(40 * MIB), Error::OutOfMemory(_)));
    host.free(a);
    host.free(b);
    let c = host.malloc(30 * MIB);
    assert_eq!(c, a);
    assert!(matches!(host.refused(30 * MIB), Error::OutOfMemory(_)), "the other pool keeps its own");
    host.free(c);
    assert_eq!(within(&host, lends, || host.malloc(20 * MIB)), c, "it is the pool's again");
    // Without users it lends nothing: its memory goes back instead.
    let deleted = pool(&host, USE_ON_OOM);
    host.allocator.pools(DEVICE).unwrap().release(deleted).unwrap();
    assert!(matches!(host.refused(30 * MIB), Error::OutOfMemory(_)));
}

#[test]
fn the_default_cache_is_released_for_a_pool() {
    let host = Host::new("", GIB);
    host.allocator.settings(DEVICE).unwrap().set_limit(Some(80 * MIB));
    host.free(host.malloc(60 * MIB));
    let pool = pool(&host, PLAIN);
    within(&host, pool, || host.malloc(60 * MIB));
    assert_eq!((reserved_by(&host, PoolId::DEFAULT), reserved_by(&host, pool)), (0, 60 * MIB));
}

#[test]
fn a_pool_that_does_not_split() {
    let host = Host::new("", GIB);
    let first = pool(&host, NO_SPLIT);
    let blocks = within(&host, first, || [host.malloc(4 * MIB), host.malloc(4 * MIB)]);
    let segments = host.allocator.snapshot();
    assert_eq!(segments.len(), 2);
    assert!(segments.iter().all(|segment| segment.blocks.len() == 1));
    host.allocator.pools(DEVICE).unwrap().release(first).unwrap();
    blocks.into_iter().for_each(|ptr| host.free(ptr));
    host.empty_cache();
    // A later pool of the same name splits.
    host.allocator.pools(DEVICE).unwrap().retain(first, PLAIN).unwrap();
    within(&host, first, || [host.malloc(4 * MIB), host.malloc(4 * MIB)]);
    assert_eq!(host.allocator.snapshot().len(), 1);
}

#[test]
fn a_name_used_again_while_blocks_live_does_not_inherit_options() {
    let host = Host::new("", GIB);
    let name = pool(&host, NO_SPLIT);
    within(&host, name, || host.malloc(4 * MIB));
    host.allocator.pools(DEVICE).unwrap().release(name).unwrap();
    assert_eq!(host.allocator.pools(DEVICE).unwrap().users(name), Ok(0));
    host.allocator.pools(DEVICE).unwrap().retain(name, PLAIN).unwrap();
    within(&host, name, || [host.malloc(4 * MIB), host.malloc(4 * MIB)]);
    let blocks: Vec<_> = host.allocator.snapshot().iter().map(|segment| segment.blocks.len()).collect();
    assert_eq!(blocks, [1, 3]);
}

#[test]
fn the_name_of_an_unused_pool_is_forgotten_with_its_last_segment() {
    // Emptying the cache releases the segment, and so does the free itself without a cache.
    for caching in [true, false] {
        let host = Host::new("", GIB);
        let name = pool(&host, PLAIN);
        let block = within(&host, name, || host.malloc(4 * MIB));
        host.allocator.pools(DEVICE).unwrap().release(name).unwrap();
        host.allocator.settings(DEVICE).unwrap().set_caching(caching);
        assert_eq!(host.allocator.pools(DEVICE).unwrap().users(name), Ok(0));
        host.free(block);
        if caching {
            assert_eq!(host.allocator.pools(DEVICE).unwrap().users(name), Ok(0), "the segment is cached");
            host.allocator.empty_cache(DEVICE).unwrap();
        }
        assert_eq!(host.allocator.pools(DEVICE).unwrap().users(name), Err(Error::UnknownPool(name)));
    }
}

#[test]
fn pools_within_pools() {
    let host = Host::new("", GIB);
    let [outer, inner] = [PLAIN, PLAIN].map(|options| pool(&host, options));
    within(&host, outer, || {
        host.malloc(MIB);
        within(&host, inner, || {
            host.malloc(MIB);
            within(&host, outer, || [host.malloc(MIB), host.malloc(MIB)]);
            [host.malloc(MIB), host.malloc(MIB)]
        });
    });
    host.malloc(MIB);
    let counts = [outer, inner, PoolId::DEFAULT].map(|pool| segments_of(&host, pool));
    assert_eq!(counts, [2, 2, 1]);
}

#[test]
fn the_cache_of_a_pool_in_use_goes_with_a_call_that_names_the_pool() {
    let host = Host::new("", GIB);
    let pool = pool(&host, PLAIN);
    within(&host, pool, || {
        host.free(host.malloc(MIB));
        host.empty_cache();
        assert_eq!(segments_of(&host, pool), 1);
        host.allocator.pools(DEVICE).unwrap().empty(pool).unwrap();
        assert_eq!(segments_of(&host, pool), 0);
        host.free(host.malloc(MIB));
    });
    host.allocator.pools(DEVICE).unwrap().release(pool).unwrap();
    assert_eq!(segments_of(&host, pool), 1);
    host.allocator.empty_cache(DEVICE).unwrap();
    assert_eq!(segments_of(&host, pool), 0);
    assert_eq!(host.allocator.pools(DEVICE).unwrap().empty(pool), Err(Error::UnknownPool(pool)));
}

#[test]
fn what_a_graph_uses_survives_trimming_and_its_stream() {
    let host = Host::new("", GIB);
    let pool = pool(&host, PLAIN);
    captured(&host, pool, || host.free(host.malloc(30 * MIB)));
    host.free(host.malloc(50 * MIB));
    host.allocator.trim(DEVICE, 0).unwrap();
    assert_eq!((reserved_by(&host, PoolId::DEFAULT), reserved_by(&host, pool)), (0, 30 * MIB));
    host.allocator.stream_destroyed(DEVICE, STREAM).unwrap();
    assert_eq!(reserved_by(&host, pool), 30 * MIB);
    host.allocator.pools(DEVICE).unwrap().release(pool).unwrap();
    host.allocator.pools(DEVICE).unwrap().release(pool).unwrap();
    host.allocator.trim(DEVICE, 0).unwrap();
    assert_eq!(host.device().used(), 0);
}

#[test]
fn a_route_keeps_its_pool() {
    let host = Host::new("", GIB);
    let pool = pool(&host, PLAIN);
    host.allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Requests).unwrap();
    host.allocator.pools(DEVICE).unwrap().release(pool).unwrap();
    host.allocator.pools(DEVICE).unwrap().release(pool).unwrap();
    let ptr = host.malloc(MIB);
    assert_eq!(segments_of(&host, pool), 1);
    host.free(ptr);
    host.allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Requests).unwrap();
    host.empty_cache();
    assert_eq!(host.device().used(), 0);
}

#[test]
fn only_the_thread_that_asked_is_led_away() {
    let device = Hooked::new(SimulatedDevice::new(GIB));
    let allocator = Allocator::<_, parking_lot::RawMutex, Growable>::new([device], &Config::new()).unwrap();
    let pools: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let pool = allocator.pools(DEVICE).unwrap().create(PLAIN).unwrap();
                    allocator
                        .pools(DEVICE)
                        .unwrap()
                        .begin_route(pool, Route::Thread(thread_id()), RoutePurpose::Requests)
                        .unwrap();
                    let own = allocator.malloc(DEVICE, MIB, STREAM).unwrap();
                    let other = thread::scope(|scope| {
                        scope.spawn(|| allocator.malloc(DEVICE, MIB, STREAM).unwrap()).join().unwrap()
                    });
                    allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Requests).unwrap();
                    (pool, own, other)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let segments = allocator.snapshot();
    let pool_of = |ptr: DevicePtr| {
        let holds = |segment: &&cachalot_core::SnapshotSegment| {
            (segment.address..segment.address.offset(segment.total_size)).contains(&ptr)
        };
        segments.iter().find(holds).unwrap().pool
    };
    for &(pool, own, other) in &pools {
        assert_eq!((pool_of(own), pool_of(other)), (pool, PoolId::DEFAULT));
    }
    let mut names: Vec<_> = pools.iter().map(|&(pool, ..)| pool).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 4, "every pool has a name of its own");
}

#[test]
fn a_second_round_gets_the_addresses_of_the_first() {
    let sizes = [3 * MIB, 700, 12 * MIB, MIB, 9 * MIB, 2 * MIB, 512, 30 * MIB, 5 * MIB, 3 * MIB, 40_000];
    let round = |host: &Host| {
        let blocks = sizes.map(|bytes| host.malloc(bytes));
        blocks.into_iter().rev().for_each(|ptr| host.free(ptr));
        blocks
    };
    let host = Host::new("", GIB);
    assert_eq!(round(&host), round(&host));
    // From a device that gives addresses in no order the rounds agree once everything is cached.
    let host = Host::new("", GIB);
    host.device().script_addresses([9, 3, 7, 1, 8, 2, 6, 4, 5].map(|number: u64| number << 32));
    round(&host);
    assert_eq!(round(&host), round(&host));
}

#[test]
fn what_is_freed_in_a_capture_waits_for_its_end() {
    let host = Host::new("", GIB);
    let pool = pool(&host, PLAIN);
    let joined = captured(&host, pool, || {
        let ptr = host.malloc(5 * MIB);
        host.device().set_capturing(SIDE, true);
        host.allocator.record_stream(ptr, SIDE).unwrap();
        host.free(ptr);
        assert_ne!(host.malloc(5 * MIB), ptr, "the side stream has not been joined");
        host.device().set_capturing(SIDE, false);
        ptr
    });
    let asked = [Call::Record, Call::IsComplete, Call::Wait].map(|call| host.device().calls(call));
    assert_eq!(asked, [0; 3], "events are neither recorded nor polled in a capture");
    // The capture joins the side stream, so no event is needed; the next capture into the pool gets
    // the block.
    host.allocator.process_events(DEVICE).unwrap();
    assert_eq!(captured(&host, pool, || host.malloc(5 * MIB)), joined);
}

#[test]
fn a_use_from_before_the_capture_is_waited_for() {
    let host = Host::new("", GIB);
    let pool = pool(&host, PLAIN);
    let ptr = host.malloc(5 * MIB);
    host.allocator.record_stream(ptr, SIDE).unwrap();
    captured(&host, pool, || host.free(ptr));
    assert_eq!(host.stat("active.all.current"), 1);
    assert_ne!(host.malloc(5 * MIB), ptr);
    host.device().complete(SIDE);
    assert_eq!(host.malloc(5 * MIB), ptr);
}

#[test]
fn captures_that_share_a_pool_share_its_free_blocks() {
    let host = Host::new("", GIB);
    let pool = pool(&host, PLAIN);
    let first = captured(&host, pool, || five_sums(&host, 10 * MIB));
    host.free(first);
    let reserved = host.device().used();
    captured(&host, pool, || five_sums(&host, 10 * MIB));
    assert_eq!(host.device().used(), reserved);
}

#[test]
fn nothing_is_released_for_a_stream_that_is_captured() {
    let host = Host::new("", GIB);
    let pool = pool(&host, PLAIN);
    host.free(host.malloc(600 * MIB));
    let error = captured(&host, pool, || host.refused(600 * MIB));
    assert!(error.to_string().contains("capturing"), "{error}");
    assert_eq!([host.stat("num_alloc_retries"), host.stat("num_device_free"), host.stat("num_ooms")], [0, 0, 1]);
    captured(&host, pool, || assert_eq!(host.stat("num_sync_all_streams"), 0));
    host.malloc(600 * MIB);
}

#[test]
fn what_a_pool_has_reserved() {
    for config in ["", "expandable_segments:True"] {
        let host = Host::new(config, GIB);
        let pool = pool(&host, PLAIN);
        let blocks = within(&host, pool, || [(); 4].map(|()| host.malloc(20 * MIB)));
        assert_eq!(reserved_by(&host, pool), 80 * MIB);
        host.empty_cache();
        host.allocator.stats(DEVICE).unwrap().reset_peaks();
        assert_eq!(reserved_by(&host, pool), 80 * MIB);
        blocks.into_iter().for_each(|ptr| host.free(ptr));
        host.allocator.pools(DEVICE).unwrap().release(pool).unwrap();
        host.empty_cache();
        assert_eq!(reserved_by(&host, pool), 0);
        let freed = host.stat("reserved_bytes.all.freed");
        assert_eq!([freed, host.stat("reserved_bytes.all.peak")], [80 << 20; 2]);
    }
}
