//! What a call gives back that says so: of plans, of pools in use, of tags, and after captures that
//! nobody ended.

use crate::allocator::Allocator;
use crate::config::Config;
use crate::device::Host;
use crate::device::simulated::SimulatedDevice;
use crate::error::Error;
use crate::planned::tests_sequence::first_fit;
use crate::pool::{PoolId, PoolOptions, Route, RoutePurpose, Tag, TagLimits};
use crate::stats::Stage;
use crate::tables::Growable;
use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
use core::num::NonZeroU64;
use std::vec::Vec;

const DEVICE: DeviceIndex = DeviceIndex(0);
const ONE: StreamId = StreamId(1);
const TWO: StreamId = StreamId(2);
const TAG: Tag = Tag(NonZeroU64::new(9).unwrap());

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

fn allocator(config: &str) -> Simulated {
    let device = SimulatedDevice::new(4096 * MIB).with_work_done_at_once();
    Simulated::new([device], &Config::parse(config).unwrap()).unwrap()
}

fn device(allocator: &Simulated) -> &SimulatedDevice {
    allocator.device(DEVICE).unwrap()
}

fn held(allocator: &Simulated) -> u64 {
    allocator.check_invariants().unwrap();
    allocator.stats(DEVICE).unwrap().totals().reserved_bytes().current as u64 / MIB
}

fn stage(allocator: &Simulated) -> Stage {
    allocator.plans(DEVICE).unwrap().report().stage
}

fn announce(allocator: &Simulated) {
    allocator.plans(DEVICE).unwrap().end_iteration().unwrap();
    if let Some(observed) = allocator.plans(DEVICE).unwrap().observed() {
        let plans: Vec<_> = observed.streams.iter().map(|stream| first_fit(&stream.problem)).collect();
        allocator.plans(DEVICE).unwrap().adopt(observed, &plans).unwrap();
    }
}

fn malloc(allocator: &Simulated, mib: u64, stream: StreamId) -> DevicePtr {
    allocator.malloc(DEVICE, mib * MIB, stream).unwrap()
}

/// Allocates and frees blocks of so many MiB on the two streams.
fn use_both(allocator: &Simulated) {
    for (mib, stream) in [(100, ONE), (60, TWO)] {
        allocator.free(malloc(allocator, mib, stream)).unwrap();
    }
}

/// An allocator with active plans for two streams, of 100 and 60 MiB.
fn serving() -> Simulated {
    let allocator = allocator("policy:planned");
    for _ in 0..3 {
        announce(&allocator);
        use_both(&allocator);
    }
    assert_eq!((stage(&allocator), held(&allocator)), (Stage::Serving, 160));
    allocator
}

/// Makes a pool in use by a caller and by a route for all requests, with `mib` MiB of free memory.
fn pool_in_use(allocator: &Simulated, tag: Option<Tag>, mib: u64) -> PoolId {
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.parking(DEVICE).unwrap().tag_pool(pool, tag).unwrap();
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Requests).unwrap();
    let blocks = [ONE, TWO].map(|stream| malloc(allocator, mib / 2, stream));
    blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Requests).unwrap();
    pool
}

/// Captures a request of 20 MiB into the pool.
fn capture(allocator: &Simulated, pool: PoolId) {
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(ONE), RoutePurpose::Capture).unwrap();
    device(allocator).set_capturing(ONE, true);
    allocator.free(malloc(allocator, 20, ONE)).unwrap();
    device(allocator).set_capturing(ONE, false);
    allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
}

#[test]
fn the_whole_cache_includes_the_memory_of_plans_without_live_blocks() {
    let allocator = serving();
    allocator.empty_cache(DEVICE).unwrap();
    assert_eq!(held(&allocator), 0);
    announce(&allocator);
    assert_eq!(stage(&allocator), Stage::Observing);
    for _ in 0..2 {
        use_both(&allocator);
        announce(&allocator);
    }
    assert_eq!((stage(&allocator), held(&allocator)), (Stage::Serving, 160), "plans anew");
}

#[test]
fn a_plan_with_a_live_block_stays_until_the_next_announcement() {
    let allocator = serving();
    let block = malloc(&allocator, 60, TWO);
    allocator.empty_cache(DEVICE).unwrap();
    assert_eq!((stage(&allocator), held(&allocator)), (Stage::Serving, 60));
    allocator.free(block).unwrap();
    announce(&allocator);
    assert_eq!(stage(&allocator), Stage::Observing, "plans are made for all streams together");
}

#[test]
fn a_trim_ends_the_largest_plans_and_no_more_than_needed() {
    let allocator = serving();
    for (keep, left) in [(160, 160), (159, 60), (60, 60), (0, 0)] {
        allocator.trim(DEVICE, keep * MIB).unwrap();
        assert_eq!(held(&allocator), left, "{keep}");
    }
}

#[test]
fn plans_stay_while_a_graph_is_captured() {
    let allocator = serving();
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(ONE), RoutePurpose::Capture).unwrap();
    allocator.empty_cache(DEVICE).unwrap();
    allocator.trim(DEVICE, 0).unwrap();
    assert_eq!((stage(&allocator), held(&allocator)), (Stage::Serving, 160));
}

#[test]
fn iterations_without_requests_end_the_plans() {
    let allocator = serving();
    (0..4).for_each(|_| announce(&allocator));
    assert_eq!((stage(&allocator), held(&allocator)), (Stage::Observing, 0));
}

#[test]
fn a_pool_in_use_gives_its_free_memory_to_a_call_that_names_it() {
    for config in ["", "expandable_segments:True", "policy:stitched", "policy:bfc"] {
        let allocator = allocator(config);
        let other = pool_in_use(&allocator, None, 40);
        let pool = pool_in_use(&allocator, None, 80);
        let before = held(&allocator);
        allocator.empty_cache(DEVICE).unwrap();
        allocator.trim(DEVICE, 0).unwrap();
        assert_eq!(held(&allocator), before, "`{config}`: no call names them");
        allocator.pools(DEVICE).unwrap().trim(pool, 40 * MIB).unwrap();
        let trimmed = held(&allocator);
        assert!(0 < trimmed && trimmed < before, "`{config}`: {before} to {trimmed}");
        allocator.pools(DEVICE).unwrap().empty(pool).unwrap();
        allocator.pools(DEVICE).unwrap().empty(other).unwrap();
        assert_eq!(held(&allocator), 0, "`{config}`");
        assert_eq!(allocator.pools(DEVICE).unwrap().users(pool), Ok(2));
        assert_eq!(allocator.pools(DEVICE).unwrap().trim(PoolId(5, 5), 0), Err(Error::UnknownPool(PoolId(5, 5))));
    }
}

#[test]
fn a_pool_with_memory_of_a_graph_says_that_it_stays() {
    for config in ["", "expandable_segments:True"] {
        let allocator = allocator(config);
        let pool = pool_in_use(&allocator, Some(TAG).filter(|_| !config.is_empty()), 80);
        capture(&allocator, pool);
        let before = held(&allocator);
        let kept = Err(Error::GraphMemory(pool));
        assert_eq!(allocator.pools(DEVICE).unwrap().empty(pool), kept);
        assert_eq!(allocator.pools(DEVICE).unwrap().trim(pool, 10 * MIB), kept);
        assert_eq!(allocator.pools(DEVICE).unwrap().trim(pool, before * MIB), Ok(()), "it holds no more");
        if !config.is_empty() {
            assert_eq!(allocator.tags(DEVICE).unwrap().trim(TAG, 0), kept);
        }
        assert_eq!(held(&allocator), before);
        (0..3).for_each(|_| allocator.pools(DEVICE).unwrap().release(pool).unwrap());
        allocator.pools(DEVICE).unwrap().empty(pool).unwrap();
        assert_eq!(held(&allocator), 0);
    }
}

#[test]
fn a_tag_gives_its_free_memory_to_calls_for_it_and_with_limits_to_calls_for_all() {
    for (config, calls_all) in
        [("expandable_segments:True", false), ("expandable_segments:True", true), ("policy:stitched", true)]
    {
        for has_limits in [false, true] {
            let allocator = allocator(config);
            let limits = TagLimits { low: 30 * MIB, ..TagLimits::NONE };
            allocator.tags(DEVICE).unwrap().limit(TAG, has_limits.then_some(limits)).unwrap();
            pool_in_use(&allocator, Some(TAG), 80);
            let before = held(&allocator);
            assert!(before >= 80);
            let expected = if !calls_all || has_limits { 0 } else { before };
            if calls_all {
                allocator.trim(DEVICE, before * MIB).unwrap();
                assert_eq!(held(&allocator), before);
                allocator.trim(DEVICE, 40 * MIB).unwrap();
                assert!(has_limits == (held(&allocator) <= 40));
                allocator.empty_cache(DEVICE).unwrap();
            } else {
                allocator.tags(DEVICE).unwrap().trim(TAG, 40 * MIB).unwrap();
                assert!((20..=40).contains(&held(&allocator)));
                allocator.tags(DEVICE).unwrap().trim(TAG, 0).unwrap();
            }
            assert_eq!(held(&allocator), expected, "`{config}`, {calls_all}, {has_limits}");
        }
    }
    let unknown = allocator("expandable_segments:True").tags(DEVICE).unwrap().trim(TAG, 0);
    assert_eq!(unknown, Err(Error::UnknownTag(TAG)));
}

#[test]
fn idle_memory_of_a_tag_with_limits_goes_back_down_to_its_low() {
    for (limits, left) in
        [(None, 80), (Some(TagLimits::NONE), 0), (Some(TagLimits { low: 30 * MIB, ..TagLimits::NONE }), 40)]
    {
        let allocator = allocator("expandable_segments:True,reclaim:auto");
        allocator.tags(DEVICE).unwrap().limit(TAG, limits).unwrap();
        pool_in_use(&allocator, Some(TAG), 80);
        for _ in 0..1200 {
            device(&allocator).pause(50_000);
            allocator.pages(DEVICE).unwrap().maintain(1_000_000).unwrap();
        }
        assert_eq!(held(&allocator), left, "{limits:?}");
    }
}

#[test]
fn the_end_of_a_stream_ends_the_captures_on_it() {
    let allocator = allocator("");
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(ONE), RoutePurpose::Capture).unwrap();
    assert_eq!(allocator.pools(DEVICE).map(|pools| pools.are_capturing()), Ok(true));
    allocator.stream_destroyed(DEVICE, TWO).unwrap();
    assert_eq!(allocator.pools(DEVICE).map(|pools| pools.are_capturing()), Ok(true));
    allocator.stream_destroyed(DEVICE, ONE).unwrap();
    assert_eq!(allocator.pools(DEVICE).map(|pools| pools.are_capturing()), Ok(false));
    // Another stream may have its number.
    allocator.free(malloc(&allocator, 30, ONE)).unwrap();
    allocator.empty_cache(DEVICE).unwrap();
    assert_eq!(held(&allocator), 0);
    allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
    assert_eq!(allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture), Err(Error::NotRouted(pool)));
}

#[test]
fn the_last_user_of_a_pool_takes_the_captures_into_it_along() {
    let allocator = allocator("");
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(ONE), RoutePurpose::Capture).unwrap();
    allocator.free(malloc(&allocator, 30, ONE)).unwrap();
    allocator.pools(DEVICE).unwrap().release(pool).unwrap();
    assert_eq!(allocator.pools(DEVICE).map(|pools| pools.are_capturing()), Ok(true), "the graph is a user");
    allocator.pools(DEVICE).unwrap().release(pool).unwrap();
    assert_eq!(allocator.pools(DEVICE).map(|pools| pools.are_capturing()), Ok(false));
    allocator.empty_cache(DEVICE).unwrap();
    assert_eq!(held(&allocator), 0);
    assert_eq!(allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture), Err(Error::UnknownPool(pool)));
}
