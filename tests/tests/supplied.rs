//! Private pools whose segments the host supplies: under every policy the pool has these segments
//! and no pages, and no other request has them.

use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{
    Allocator, Config, DevicePtr, Error, Forecast, Growable, OutOfMemory, PoolId, PoolOptions, Route, RoutePurpose,
    StreamId,
};
use cachalot_tests::host::{DEVICE, Host, MIB, STREAM};
use cachalot_tests::policies::policies;
use cachalot_tests::strategies::{bytes, proptest_config};
use cachalot_tests::working::Step;
use proptest::prelude::*;

const GIB: u64 = 1 << 30;
const SIDE: StreamId = StreamId(2);

/// Creates a pool with segments of the host.
fn supplied_pool(host: &Host, options: PoolOptions) -> PoolId {
    let pool = host.allocator.pools(DEVICE).unwrap().create(options).unwrap();
    host.device().set_supplied(pool, true);
    pool
}

/// Runs a closure with a route for all requests into a pool.
fn within<T>(host: &Host, pool: PoolId, run: impl FnOnce() -> T) -> T {
    host.allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Requests).unwrap();
    let result = run();
    host.allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Requests).unwrap();
    host.allocator.pools(DEVICE).unwrap().release(pool).unwrap();
    result
}

/// Returns the address, the size and whether it is expandable for each segment of a pool.
fn segments_of(host: &Host, pool: PoolId) -> Vec<(DevicePtr, u64, bool)> {
    let of_pool = host.allocator.snapshot().into_iter().filter(|segment| segment.pool == pool);
    of_pool.map(|segment| (segment.address, segment.total_size, segment.is_expandable)).collect()
}

#[test]
fn a_supplied_pool_has_the_segments_of_the_host_and_no_others_under_every_policy() {
    // Without growth, the first region of any heap takes all memory.
    for config in policies().filter(|config| !config.contains("allow_growth:False")) {
        let host = Host::new(config, GIB);
        let pool = supplied_pool(&host, PoolOptions::default());
        let outside = host.malloc(3 * MIB);
        let blocks = within(&host, pool, || {
            let blocks: Vec<_> = [1000, 3 * MIB, 30 * MIB].map(|bytes| host.malloc(bytes)).into();
            let other = host.malloc_on(5 * MIB, SIDE);
            host.allocator.record_stream(blocks[1], SIDE).unwrap();
            [blocks, vec![other]].concat()
        });
        let after = host.malloc(1000);
        let own: Vec<_> = segments_of(&host, pool).into_iter().map(|(base, ..)| base).collect();
        let supplied = host.device().supplied();
        assert!(!own.is_empty() && segments_of(&host, pool).iter().all(|segment| !segment.2), "`{config}`");
        assert_eq!(supplied, own.iter().map(|&base| (base, pool)).collect::<Vec<_>>(), "`{config}`");
        host.allocator.check_invariants().unwrap();
        for block in blocks {
            host.free(block);
        }
        host.allocator.pools(DEVICE).unwrap().release(pool).unwrap();
        host.device().complete(SIDE);
        host.empty_cache();
        assert!(
            segments_of(&host, pool).is_empty() || config.contains("region_garbage_collection:False"),
            "`{config}`"
        );
        host.free(outside);
        host.free(after);
    }
}

#[test]
fn the_heaps_of_a_supplied_pool_map_no_page_of_the_stitched_policy() {
    let host = Host::new("policy:stitched", GIB);
    // Free pages of the default pool.
    let freed = host.malloc(100 * MIB);
    host.free(freed);
    let pool = supplied_pool(&host, PoolOptions::default());
    let mapped = || host.allocator.pages(DEVICE).unwrap().stats().mapped;
    assert_eq!(mapped(), 100 * MIB);
    let blocks = within(&host, pool, || {
        assert_eq!(host.allocator.forecast(DEVICE).unwrap().malloc(3 * MIB, STREAM), Ok(Forecast::Obtain(20 * MIB)));
        let first = host.malloc(3 * MIB);
        assert_eq!(
            host.allocator.forecast(DEVICE).unwrap().malloc(4 * MIB, STREAM),
            Ok(Forecast::Hit(first.offset(3 * MIB)))
        );
        // A rest of a mebibyte or less is not split off, as in any segment of the caching policy.
        let [small, second, third] = [512, 4 * MIB, 12 * MIB + 512].map(|bytes| host.malloc(bytes));
        assert_eq!([second, third], [first.offset(3 * MIB), first.offset(7 * MIB)]);
        [first, small, second, third]
    });
    assert_eq!((mapped(), host.device().supplied().len()), (100 * MIB, 2));
    let sizes: Vec<_> = segments_of(&host, pool).into_iter().map(|(_, bytes, _)| bytes).collect();
    assert_eq!(sizes.iter().sum::<u64>(), 22 * MIB);
    // 100 MiB serve the default pool from its own pages. The free memory of the pool serves no one
    // else.
    blocks.into_iter().for_each(|block| host.free(block));
    let again = host.malloc(100 * MIB);
    assert_eq!((mapped(), host.device().supplied().len()), (100 * MIB, 2));
    host.free(again);
    host.allocator.pools(DEVICE).unwrap().release(pool).unwrap();
    host.allocator.pools(DEVICE).unwrap().empty(pool).ok();
    host.empty_cache();
    assert_eq!((mapped(), host.device().supplied().len(), host.device().used()), (0, 0, 0));
}

#[test]
fn a_supply_that_begins_or_ends_late_concerns_new_segments() {
    for (config, expandable) in [("policy:stitched", true), ("expandable_segments:True", true), ("", false)] {
        let host = Host::new(config, GIB);
        let pool = host.allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
        let blocks = within(&host, pool, || {
            let pages = host.malloc(30 * MIB);
            host.device().set_supplied(pool, true);
            let supplied = host.malloc(50 * MIB);
            host.device().set_supplied(pool, false);
            [pages, supplied, host.malloc(70 * MIB)]
        });
        let kinds: Vec<_> = blocks.iter().map(|&block| kind_of(&host, pool, block)).collect();
        assert_eq!(kinds, [(expandable, false), (false, true), (expandable, false)], "`{config}`");
        // What is free serves the pool, whatever it is made of.
        blocks.into_iter().for_each(|block| host.free(block));
        let used = host.device().used();
        let again = within(&host, pool, || [50, 30, 70].map(|mib| host.malloc(mib * MIB)));
        assert_eq!(host.device().used(), used, "`{config}`");
        again.into_iter().for_each(|block| host.free(block));
        host.allocator.pools(DEVICE).unwrap().release(pool).unwrap();
        host.empty_cache();
        assert_eq!(host.device().used(), 0, "`{config}`");
    }
}

/// Returns whether the segment of a block is expandable, and whether the host has supplied it.
fn kind_of(host: &Host, pool: PoolId, block: DevicePtr) -> (bool, bool) {
    let segments = segments_of(host, pool);
    let found = segments.into_iter().find(|&(base, bytes, _)| (base.0..base.0 + bytes).contains(&block.0));
    let (base, _, is_expandable) = found.expect("the block is in a segment of the pool");
    (is_expandable, host.device().supplied().contains(&(base, pool)))
}

#[test]
fn out_of_memory_blames_the_allocator_of_the_pool() {
    for config in ["policy:stitched", "expandable_segments:True"] {
        let host = Host::new(config, 64 * MIB);
        let pool = supplied_pool(&host, PoolOptions::default());
        let (block, error) = within(&host, pool, || (host.malloc(20 * MIB), host.refused(60 * MIB)));
        let Error::OutOfMemory(report) = error else { panic!("{error}") };
        assert!(report.supplied && !report.expandable && report.segment == 60 * MIB, "`{config}`: {report:?}");
        let text = report.in_words_of_pytorch().to_string();
        assert!(text.contains("The pool's own allocator would not give 60.00 MiB."), "{text}");
        assert!(!text.contains("try setting"), "{text}");
        host.free(block);
        // A limit counts supplied memory as well.
        host.allocator.settings(DEVICE).unwrap().set_limit(Some(40 * MIB));
        within(&host, pool, || _ = host.refused(30 * MIB + MIB));
    }
}

#[test]
fn a_supplied_pool_with_use_on_oom_serves_requests_that_would_fail() {
    let host = Host::new("policy:stitched", 64 * MIB);
    let pool = supplied_pool(&host, PoolOptions { use_on_oom: true, ..PoolOptions::default() });
    let block = within(&host, pool, || host.malloc(40 * MIB));
    host.free(block);
    let rest = host.malloc(24 * MIB);
    assert_eq!(host.malloc(30 * MIB), block);
    host.free(rest);
    host.free(block);
}

fn step() -> impl Strategy<Value = Step> {
    let stream = || 0..3_u64;
    prop_oneof![
        5 => (bytes(), stream()).prop_map(|(bytes, stream)| Step::Malloc { bytes, stream }),
        1 => (any::<usize>(), stream()).prop_map(|(block, stream)| Step::Share { block, stream }),
        4 => any::<usize>().prop_map(|block| Step::Free { block }),
        1 => stream().prop_map(|stream| Step::Complete { stream }),
    ]
}

/// Runs a program in a supplied pool. Returns the address of each block, or the report of the
/// failure.
fn places(config: &str, no_split: bool, steps: &[Step]) -> Vec<Result<DevicePtr, OutOfMemory>> {
    let mut config = Config::parse(config).unwrap();
    // Frees are gathered under the stitched policy, and under the caching policy without parity.
    config.set_parity(config.policy().traits().moves_pages);
    let device = SimulatedDevice::new(GIB);
    let allocator: Allocator<_, spin::mutex::SpinMutex<()>, Growable> = Allocator::new([device], &config).unwrap();
    let host = Host { allocator };
    let pool = supplied_pool(&host, PoolOptions { no_split, ..PoolOptions::default() });
    host.allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Requests).unwrap();
    let (mut live, mut places) = (Vec::new(), Vec::new());
    for step in steps {
        match *step {
            Step::Malloc { bytes, stream } => match host.allocator.malloc(DEVICE, bytes, StreamId(stream)) {
                Ok(block) => {
                    places.push(Ok(block));
                    live.push(block);
                }
                // The setting exists under one of the policies only.
                Err(Error::OutOfMemory(mut report)) => {
                    report.expandable_available = false;
                    places.push(Err(report));
                }
                Err(error) => panic!("{error}"),
            },
            Step::Share { block, stream } if !live.is_empty() => {
                host.allocator.record_stream(live[block % live.len()], StreamId(stream)).unwrap();
            }
            Step::Free { block } if !live.is_empty() => host.free(live.swap_remove(block % live.len())),
            Step::Complete { stream } => host.device().complete(StreamId(stream)),
            Step::Share { .. } | Step::Free { .. } => {}
            _ => unreachable!("{step:?} is not drawn"),
        }
        host.allocator.check_invariants().unwrap();
    }
    places
}

proptest! {
    #![proptest_config(proptest_config("regressions/supplied.txt", 60))]

    #[test]
    fn blocks_lie_where_the_caching_policy_places_them(
        no_split: bool,
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        prop_assert_eq!(places("policy:stitched", no_split, &steps), places("policy:caching", no_split, &steps));
    }
}
