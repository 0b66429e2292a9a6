//! Tenants: tags with limits in one allocator.

use crate::allocator::{Allocator, Bound};
use crate::arena::paging::parking::{ParkMode, ParkOrder, ParkTarget};
use crate::arena::request::Forecast;
use crate::config::Config;
use crate::device::simulated::{Call, Failure, SimulatedDevice};
use crate::device::{DeviceError, ErrorKind};
use crate::error::Error;
use crate::pool::{PoolId, PoolOptions, Route, RoutePurpose, Tag, TagLimits, TagUse};
use crate::tables::Growable;
use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
use core::num::NonZeroU64;
use proptest::prelude::*;
use std::string::ToString;
use std::vec::Vec;

const DEVICE: DeviceIndex = DeviceIndex(0);
const ONE: StreamId = StreamId(1);
const TWO: StreamId = StreamId(2);
const CAPACITY: u64 = 512 * MIB;
/// The length of a page for large blocks, if a request needs one of them.
const PAGE: u64 = 20 * MIB;
const A: Tag = tag(1);
const B: Tag = tag(2);
/// The policies with tags.
const POLICIES: [&str; 3] = ["", "expandable_segments:True", "policy:stitched"];

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

const fn tag(number: u64) -> Tag {
    Tag(NonZeroU64::new(number).unwrap())
}

fn allocator(config: &str) -> Simulated {
    Simulated::new([SimulatedDevice::new(CAPACITY)], &Config::parse(config).unwrap()).unwrap()
}

fn device(allocator: &Simulated) -> &SimulatedDevice {
    allocator.device(DEVICE).unwrap()
}

/// Makes a pool with a tag.
fn pool_of(allocator: &Simulated, tag: Tag) -> PoolId {
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.parking(DEVICE).unwrap().tag_pool(pool, Some(tag)).unwrap();
    pool
}

/// Makes a pool with a tag of these limits.
fn limited(allocator: &Simulated, tag: Tag, limits: TagLimits) -> PoolId {
    allocator.tags(DEVICE).unwrap().limit(tag, Some(limits)).unwrap();
    pool_of(allocator, tag)
}

/// Calls `act` while every request is routed into a pool.
fn routed<T>(allocator: &Simulated, pool: PoolId, act: impl FnOnce() -> T) -> T {
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Requests).unwrap();
    let done = act();
    allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Requests).unwrap();
    allocator.pools(DEVICE).unwrap().release(pool).unwrap();
    done
}

fn malloc_in(allocator: &Simulated, pool: PoolId, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
    let block = routed(allocator, pool, || allocator.malloc(DEVICE, bytes, stream));
    allocator.check_invariants().unwrap();
    block
}

fn malloc(allocator: &Simulated, bytes: u64) -> Result<DevicePtr, Error> {
    let block = allocator.malloc(DEVICE, bytes, ONE);
    allocator.check_invariants().unwrap();
    block
}

/// Leaves `count` free pages in the cache of a pool.
fn cache(allocator: &Simulated, pool: PoolId, count: usize) {
    let blocks: Vec<_> = (0..count).map(|_| malloc_in(allocator, pool, PAGE, ONE).unwrap()).collect();
    blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
}

fn use_of(allocator: &Simulated, tag: Tag) -> TagUse {
    allocator.tags(DEVICE).unwrap().held(tag).unwrap()
}

fn charges(allocator: &Simulated) -> [u64; 2] {
    [A, B].map(|tag| use_of(allocator, tag).charge / MIB)
}

/// Parks 60 MiB of the tag B under a limit of the process, caches 180 MiB of the tag A above its
/// `low` of 40 MiB. Returns the parked block.
fn park_beside_a_cache(allocator: &Simulated, limit: u64) -> DevicePtr {
    allocator.settings(DEVICE).unwrap().set_limit(Some(limit));
    let a = limited(allocator, A, TagLimits { low: 40 * MIB, ..TagLimits::NONE });
    let b = pool_of(allocator, B);
    let block = malloc_in(allocator, b, 60 * MIB, ONE).unwrap();
    allocator.parking(DEVICE).unwrap().park(ParkTarget::Tag(B), ParkMode::Keep, ParkOrder::Device).unwrap();
    cache(allocator, a, 9);
    block
}

/// An allocator under a limit, whose device tells of the ends of streams or does not. A stream that
/// may have ended untold is not used: the device fills pages apart.
fn with_told_ends(is_told: bool, limit: u64) -> Simulated {
    let device_of = SimulatedDevice::new(CAPACITY);
    let device_of = if is_told { device_of } else { device_of.with_unreported_ends() };
    let allocator = Simulated::new([device_of], &Config::parse("expandable_segments:True").unwrap()).unwrap();
    allocator.settings(DEVICE).unwrap().set_limit(Some(limit));
    allocator
}

/// Returns the number of calls that change the device's memory.
fn changes(allocator: &Simulated) -> u64 {
    let is_change = |call: &Call| !matches!(call, Call::MemoryInfo | Call::IsCapturing | Call::IsIdle);
    Call::ALL.into_iter().filter(is_change).map(|call| device(allocator).calls(call)).sum()
}

#[test]
fn growth_beyond_max_is_refused_before_the_device_is_called() {
    for policy in POLICIES {
        let allocator = allocator(policy);
        let pool = limited(&allocator, A, TagLimits { max: Some(60 * MIB), ..TagLimits::NONE });
        let other = pool_of(&allocator, B);
        let before = changes(&allocator);
        assert!(matches!(malloc_in(&allocator, pool, 80 * MIB, ONE), Err(Error::OutOfMemory(_))), "`{policy}`");
        assert_eq!(changes(&allocator), before, "`{policy}`: no addresses are reserved for nothing");
        let kept = malloc_in(&allocator, pool, 40 * MIB, ONE).unwrap();
        let block = malloc_in(&allocator, other, 40 * MIB, ONE).unwrap();
        let free = malloc(&allocator, 40 * MIB).unwrap();
        allocator.free(free).unwrap();
        let before = changes(&allocator);
        let refused = malloc_in(&allocator, pool, 40 * MIB, TWO).unwrap_err();
        assert_eq!(changes(&allocator), before, "`{policy}`: the memory of others stays");
        let TagUse { charge, live, cached, refusals, .. } = use_of(&allocator, A);
        assert_eq!((charge, live, cached, refusals), (40 * MIB, 40 * MIB, 0, 2), "`{policy}`");
        let text = refused.to_string();
        for part in [
            " The tag 0x1 holds 40 MiB, and its `max` of 60 MiB refuses more.",
            " The tag 0x2 holds 40 MiB. Memory without a tag has 40 MiB.",
        ] {
            assert!(text.contains(part) && !text.contains("would not give"), "`{policy}`: {text}");
        }
        let Error::OutOfMemory(report) = refused else { panic!("{refused:?}") };
        assert!(report.held_to_max && refused.in_words_of_pytorch().to_string().contains("`max`"));
        allocator.free(kept).unwrap();
        allocator.free(block).unwrap();
        malloc_in(&allocator, pool, 60 * MIB, TWO).unwrap();
        assert_eq!(use_of(&allocator, A).charge, 60 * MIB, "`{policy}`: the free memory of the first stream went back");
    }
}

#[test]
fn a_tag_gives_back_no_more_than_its_max_asks_for() {
    let allocator = allocator("");
    let pool = limited(&allocator, A, TagLimits { max: Some(8 * PAGE), ..TagLimits::NONE });
    cache(&allocator, pool, 7);
    let free = malloc(&allocator, 40 * MIB).unwrap();
    allocator.free(free).unwrap();
    malloc_in(&allocator, pool, 3 * PAGE, TWO).unwrap();
    assert_eq!((use_of(&allocator, A).charge, use_of(&allocator, A).given), (8 * PAGE, 2 * PAGE));
    // Live blocks alone are too many: nothing is given back for a request that is refused in any
    // case.
    malloc_in(&allocator, pool, 6 * PAGE, TWO).unwrap_err();
    assert_eq!((use_of(&allocator, A).charge, use_of(&allocator, A).cached), (8 * PAGE, 5 * PAGE));
    assert_eq!(allocator.stats(DEVICE).unwrap().totals().reserved_bytes().current as u64, 8 * PAGE + 40 * MIB);
}

#[test]
fn memory_goes_back_from_who_is_the_most_above_low_by_weight() {
    let allocator = allocator("");
    let a = limited(&allocator, A, TagLimits { low: 40 * MIB, ..TagLimits::NONE });
    let b = limited(&allocator, B, TagLimits { weight: 200, ..TagLimits::NONE });
    cache(&allocator, a, 5);
    cache(&allocator, b, 10);
    malloc(&allocator, 150 * MIB).unwrap();
    let cached: Vec<_> = (0..3).map(|_| malloc(&allocator, PAGE).unwrap()).collect();
    cached.into_iter().for_each(|block| allocator.free(block).unwrap());
    let mut seen = Vec::new();
    while malloc(&allocator, 38 * MIB).is_ok() {
        seen.push(charges(&allocator));
    }
    // At first 210 MiB without a tag for a weight of 100, 60 above `low` for 100, and 200 for 200.
    // Of equal shares, the lower tag gives first.
    let expected =
        [[100, 200], [100, 180], [100, 140], [80, 120], [80, 80], [60, 60], [40, 40], [40, 0]].map(<[u64; 2]>::from);
    assert_eq!(seen, expected);
    assert_eq!(charges(&allocator), [40, 0], "a request that fails takes nothing below `low`");
    let refused = malloc(&allocator, 38 * MIB).unwrap_err().to_string();
    let held = 150 + 8 * 38;
    let part =
        std::format!(" The tag 0x1 holds 40 MiB. Memory without a tag has {held} MiB. The device would not give");
    assert!(refused.contains(&part), "{refused}");
}

#[test]
fn a_tag_below_its_low_is_left_alone_under_a_limit_of_the_process() {
    for policy in POLICIES {
        let allocator = allocator(policy);
        allocator.settings(DEVICE).unwrap().set_limit(Some(200 * MIB));
        let a = limited(&allocator, A, TagLimits { low: 60 * MIB, ..TagLimits::NONE });
        let b = limited(&allocator, B, TagLimits::NONE);
        cache(&allocator, a, 5);
        cache(&allocator, b, 5);
        let forecast = routed(&allocator, b, || allocator.forecast(DEVICE).unwrap().malloc(140 * MIB, TWO)).unwrap();
        assert!(matches!(forecast, Forecast::Release(_)), "`{policy}`: {forecast:?}");
        malloc_in(&allocator, b, 140 * MIB, TWO).unwrap();
        assert_eq!(charges(&allocator), [60, 140], "`{policy}`");
        malloc_in(&allocator, b, 20 * MIB, TWO).unwrap_err();
        let forecast = routed(&allocator, b, || allocator.forecast(DEVICE).unwrap().malloc(20 * MIB, TWO)).unwrap();
        assert_eq!((charges(&allocator), forecast), ([60, 140], Forecast::OutOfMemory), "`{policy}`");
        malloc_in(&allocator, a, 60 * MIB, ONE).unwrap();
    }
}

#[test]
fn a_wake_and_a_commit_get_free_memory_of_tags_down_to_low() {
    let allocator = allocator("");
    let block = park_beside_a_cache(&allocator, 200 * MIB);
    allocator.parking(DEVICE).unwrap().wake(ParkTarget::Tag(B)).unwrap();
    assert_eq!(charges(&allocator), [140, 60]);
    allocator.free(block).unwrap();
    let range = allocator.ranges(DEVICE).unwrap().reserve(200 * MIB).unwrap().range;
    allocator.ranges(DEVICE).unwrap().commit(range, 0, 80 * MIB, ONE).unwrap();
    assert_eq!(charges(&allocator), [60, 60], "a pool without limits keeps its free memory");
    allocator.ranges(DEVICE).unwrap().commit(range, 80 * MIB, 80 * MIB, ONE).unwrap_err();
    assert_eq!(charges(&allocator), [40, 60]);
    allocator.check_invariants().unwrap();
}

#[test]
fn a_wake_leaves_other_caches_where_a_tag_has_given_enough() {
    let allocator = allocator("");
    let block = park_beside_a_cache(&allocator, 220 * MIB);
    let untagged = malloc(&allocator, 20 * MIB).unwrap();
    allocator.free(untagged).unwrap();
    allocator.parking(DEVICE).unwrap().wake(ParkTarget::Tag(B)).unwrap();
    assert_eq!((charges(&allocator), device(&allocator).used()), ([140, 60], 220 * MIB));
    assert_eq!(malloc(&allocator, 20 * MIB), Ok(untagged));
    allocator.free(block).unwrap();
    allocator.check_invariants().unwrap();
}

#[test]
fn pages_of_a_tag_with_clear_are_zeroes_before_others_have_them() {
    const NINES: u64 = 0x0909_0909_0909_0909;
    for (clear, is_told, left) in [(true, true, 0), (true, false, 0), (false, true, NINES)] {
        let allocator = with_told_ends(is_told, 100 * MIB);
        let pool = limited(&allocator, A, TagLimits { clear, ..TagLimits::NONE });
        let blocks: Vec<_> = (0..5).map(|_| malloc_in(&allocator, pool, PAGE, ONE).unwrap()).collect();
        for block in blocks {
            assert!(device(&allocator).write(block, NINES));
            allocator.free(block).unwrap();
        }
        let created = device(&allocator).calls(Call::Create);
        let block = malloc(&allocator, PAGE).unwrap();
        assert_eq!(device(&allocator).calls(Call::Create), created, "the page of the tag has moved");
        assert_eq!(device(&allocator).read(block), Some(left), "clear: {clear}");
        assert_eq!(device(&allocator).calls(Call::Zero) > 0, clear && !is_told);
    }
}

#[test]
fn a_page_behind_one_that_is_cleared_keeps_its_contents() {
    const NINES: u64 = 0x0909_0909_0909_0909;
    for is_told in [true, false] {
        let allocator = with_told_ends(is_told, 3 * PAGE);
        let pool = limited(&allocator, A, TagLimits { clear: true, ..TagLimits::NONE });
        let blocks = [(); 3].map(|()| malloc_in(&allocator, pool, PAGE, ONE).unwrap());
        assert_eq!([blocks[1], blocks[2]], [1, 2].map(|pages| blocks[0].offset(pages * PAGE)), "side by side");
        blocks.into_iter().for_each(|block| assert!(device(&allocator).write(block, NINES)));
        allocator.free(blocks[1]).unwrap();
        let moved = malloc(&allocator, PAGE).unwrap();
        let contents = [blocks[0], moved, blocks[2]].map(|block| device(&allocator).read(block));
        assert_eq!(contents, [Some(NINES), Some(0), Some(NINES)], "ends of streams are told: {is_told}");
    }
}

#[test]
fn a_tag_gives_what_lies_above_its_low_to_the_byte() {
    for policy in POLICIES {
        let allocator = allocator(policy);
        allocator.settings(DEVICE).unwrap().set_limit(Some(5 * PAGE));
        let low = 2 * PAGE;
        let pool = limited(&allocator, A, TagLimits { low, max: Some(3 * PAGE), ..TagLimits::NONE });
        cache(&allocator, pool, 3);
        assert_eq!(use_of(&allocator, A).charge, 3 * PAGE, "{policy}");
        malloc(&allocator, 3 * PAGE).unwrap();
        assert_eq!(use_of(&allocator, A).charge, low, "{policy}");
        malloc(&allocator, PAGE).unwrap_err();
        assert_eq!(use_of(&allocator, A).charge, low, "{policy}");
        // All of the tag's memory may be its own.
        allocator.tags(DEVICE).unwrap().limit(A, Some(TagLimits { low, max: Some(low), ..TagLimits::NONE })).unwrap();
    }
}

#[test]
fn pages_of_two_blocks_go_back_as_far_as_needed() {
    let allocator = allocator("expandable_segments:True");
    allocator.settings(DEVICE).unwrap().set_limit(Some(7 * PAGE));
    let pool = limited(&allocator, A, TagLimits::NONE);
    let mut blocks = [(); 7].map(|()| malloc_in(&allocator, pool, PAGE, ONE).unwrap()).to_vec();
    blocks.remove(3);
    blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    malloc(&allocator, 4 * PAGE).unwrap();
    assert_eq!(use_of(&allocator, A).charge, 3 * PAGE, "three pages of one block, and one of the other");
}

#[test]
fn the_pages_on_both_sides_of_a_pinned_one_go_back() {
    let allocator = allocator("expandable_segments:True");
    allocator.settings(DEVICE).unwrap().set_limit(Some(3 * PAGE));
    let pool = limited(&allocator, A, TagLimits::NONE);
    let blocks = [(); 3].map(|()| malloc_in(&allocator, pool, PAGE, ONE).unwrap());
    allocator.pages(DEVICE).unwrap().pin(blocks[1]).unwrap();
    blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    malloc(&allocator, 2 * PAGE).unwrap();
    assert_eq!(use_of(&allocator, A).charge, PAGE);
    allocator.pages(DEVICE).unwrap().unpin(blocks[1]).unwrap();
}

#[test]
fn one_segment_goes_back_for_one() {
    for low in [0, 2 * PAGE] {
        // Without virtual memory, the memory of a tag is in segments.
        let device = SimulatedDevice::new(CAPACITY).without_virtual_memory();
        let allocator = Simulated::new([device], &Config::default()).unwrap();
        allocator.settings(DEVICE).unwrap().set_limit(Some(3 * PAGE));
        let pool = limited(&allocator, A, TagLimits { low, ..TagLimits::NONE });
        cache(&allocator, pool, 3);
        malloc(&allocator, PAGE).unwrap();
        assert_eq!(use_of(&allocator, A).charge, 2 * PAGE);
    }
}

#[test]
fn the_default_pool_gives_what_is_missing_after_a_tag_has_given() {
    let allocator = allocator("");
    allocator.settings(DEVICE).unwrap().set_limit(Some(4 * PAGE));
    // By its weight, the tag is the first to give all that it has.
    let pool = limited(&allocator, A, TagLimits { weight: 1, ..TagLimits::NONE });
    cache(&allocator, pool, 1);
    let blocks = [(); 3].map(|()| malloc(&allocator, PAGE).unwrap());
    blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    allocator.malloc(DEVICE, 2 * PAGE, TWO).unwrap();
    assert_eq!((use_of(&allocator, A).charge, device(&allocator).used()), (0, 4 * PAGE));
}

#[test]
fn a_forecast_names_the_first_memory_that_goes_back() {
    let allocator = allocator("");
    allocator.settings(DEVICE).unwrap().set_limit(Some(5 * PAGE));
    let pool = limited(&allocator, A, TagLimits { max: Some(2 * PAGE), ..TagLimits::NONE });
    let tagged = malloc_in(&allocator, pool, PAGE, ONE).unwrap();
    let untagged = malloc(&allocator, 3 * PAGE).unwrap();
    [tagged, untagged].into_iter().for_each(|block| allocator.free(block).unwrap());
    let forecast = || allocator.forecast(DEVICE).unwrap().malloc(2 * PAGE, TWO);
    assert_eq!(routed(&allocator, pool, forecast), Ok(Forecast::Release(tagged)), "for `max`");
    assert_eq!(forecast(), Ok(Forecast::Release(untagged)), "the highest share");
}

#[test]
fn a_page_that_cannot_be_cleared_stays() {
    let allocator = allocator("expandable_segments:True");
    allocator.settings(DEVICE).unwrap().set_limit(Some(100 * MIB));
    let pool = limited(&allocator, A, TagLimits { clear: true, ..TagLimits::NONE });
    cache(&allocator, pool, 5);
    // The first call waits for the work with the page, the second one for the fill.
    for further in 1..=2 {
        let nth = device(&allocator).calls(Call::Synchronize) + further;
        let error = DeviceError::new(ErrorKind::Other, 999);
        device(&allocator).fail(Failure { call: Call::Synchronize, nth, persistent: false, error });
        assert_eq!(malloc(&allocator, PAGE), Err(Error::Device(error)));
        assert_eq!(use_of(&allocator, A).charge, 5 * PAGE);
    }
    malloc(&allocator, PAGE).unwrap();
    assert_eq!(use_of(&allocator, A).charge, 4 * PAGE);
}

#[test]
fn a_driver_call_that_fails_changes_no_charge() {
    for policy in POLICIES {
        for call in [Call::Reserve, Call::Create, Call::Map, Call::SetAccess] {
            for kind in [ErrorKind::OutOfMemory, ErrorKind::Other] {
                let allocator = allocator(policy);
                let pool = limited(&allocator, A, TagLimits { max: Some(100 * MIB), ..TagLimits::NONE });
                malloc_in(&allocator, pool, 40 * MIB, ONE).unwrap();
                let nth = device(&allocator).calls(call) + 1;
                let error = DeviceError::new(kind, 2);
                device(&allocator).fail(Failure { call, nth, persistent: true, error });
                malloc_in(&allocator, pool, 40 * MIB, TWO).unwrap_err();
                assert_eq!(use_of(&allocator, A).charge, 40 * MIB, "`{policy}`, {call:?}, {kind:?}");
                device(&allocator).clear_failures();
                malloc_in(&allocator, pool, 60 * MIB, TWO).unwrap();
                assert_eq!(use_of(&allocator, A).charge, 100 * MIB, "`{policy}`, {call:?}, {kind:?}");
            }
        }
    }
}

#[test]
fn a_pool_with_memory_of_a_captured_graph_gives_nothing_back() {
    let allocator = allocator("");
    let pool = limited(&allocator, A, TagLimits { max: Some(60 * MIB), ..TagLimits::NONE });
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Capture).unwrap();
    device(&allocator).set_capturing(ONE, true);
    let block = allocator.malloc(DEVICE, 40 * MIB, ONE).unwrap();
    allocator.free(block).unwrap();
    device(&allocator).set_capturing(ONE, false);
    allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
    malloc_in(&allocator, pool, 60 * MIB, TWO).unwrap_err();
    malloc(&allocator, CAPACITY).unwrap_err();
    assert_eq!((use_of(&allocator, A).charge, use_of(&allocator, A).cached), (40 * MIB, 40 * MIB));
}

#[test]
fn a_pool_of_a_limited_tag_lends_no_block() {
    for (limits, lends) in [(None, true), (Some(TagLimits { low: 300 * MIB, ..TagLimits::NONE }), false)] {
        let allocator = allocator("");
        let pool = pool_of(&allocator, A);
        allocator.pools(DEVICE).unwrap().set_options(pool, PoolOptions { use_on_oom: true, no_split: false }).unwrap();
        allocator.tags(DEVICE).unwrap().limit(A, limits).unwrap();
        let block = malloc_in(&allocator, pool, 300 * MIB, ONE).unwrap();
        allocator.free(block).unwrap();
        assert_eq!(malloc(&allocator, 300 * MIB).ok(), lends.then_some(block));
    }
}

#[test]
fn would_fit_obeys_max_and_names_it() {
    let allocator = allocator("");
    let pool = limited(&allocator, A, TagLimits { max: Some(60 * MIB), clear: true, ..TagLimits::NONE });
    cache(&allocator, pool, 2);
    let sizes = [20 * MIB, 40 * MIB, 20 * MIB];
    let ask = |stream| allocator.forecast(DEVICE).unwrap().would_fit(&sizes, stream).unwrap();
    let fit = routed(&allocator, pool, || ask(TWO));
    assert_eq!((fit.served, fit.bound), (2, Some(Bound::TagMax)), "the free memory of the other stream goes back");
    assert_eq!(ask(TWO).bound, None, "the default pool has no `max`");
    assert_eq!(charges_of(&allocator, A), [40, 0], "only asked");
}

/// Returns the charge and the live bytes of a tag, in MiB.
fn charges_of(allocator: &Simulated, tag: Tag) -> [u64; 2] {
    let TagUse { charge, live, .. } = use_of(allocator, tag);
    [charge / MIB, live / MIB]
}

#[test]
fn limits_that_contradict_themselves_are_refused() {
    let allocator = allocator("");
    for limits in
        [TagLimits { weight: 0, ..TagLimits::NONE }, TagLimits { max: Some(MIB), low: 2 * MIB, ..TagLimits::NONE }]
    {
        assert!(
            matches!(allocator.tags(DEVICE).unwrap().limit(A, Some(limits)), Err(Error::LimitsRefused(_))),
            "{limits:?}"
        );
    }
    assert_eq!(allocator.tags(DEVICE).unwrap().held(A), Err(Error::UnknownTag(A)));
    allocator.tags(DEVICE).unwrap().limit(B, Some(TagLimits::NONE)).unwrap();
    pool_of(&allocator, A);
    let next = |after| allocator.tags(DEVICE).unwrap().next(after);
    assert_eq!([next(None), next(Some(A)), next(Some(B))], [Some(A), Some(B), None]);
    allocator.tags(DEVICE).unwrap().limit(B, None).unwrap();
    assert_eq!((next(Some(A)), allocator.tags(DEVICE).unwrap().held(B)), (None, Err(Error::UnknownTag(B))));
}

#[test]
fn a_tag_without_limits_keeps_its_cache_as_before() {
    let allocator = allocator("");
    let pool = pool_of(&allocator, A);
    cache(&allocator, pool, 5);
    malloc(&allocator, CAPACITY - 50 * MIB).unwrap_err();
    assert_eq!(use_of(&allocator, A).charge, 5 * PAGE);
    allocator.tags(DEVICE).unwrap().limit(A, Some(TagLimits::NONE)).unwrap();
    malloc(&allocator, CAPACITY - 50 * MIB).unwrap();
    assert_eq!(use_of(&allocator, A).charge, 2 * PAGE, "as much as was needed");
    allocator.tags(DEVICE).unwrap().limit(A, None).unwrap();
    malloc(&allocator, 40 * MIB).unwrap_err();
    assert_eq!(use_of(&allocator, A).charge, 2 * PAGE);
}

#[derive(Clone, Debug)]
enum Op {
    /// Bytes, pool (0 is the default pool) and stream.
    Malloc(u64, usize, u64),
    Free(usize),
    EmptyCache,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => ((1_u64..90).prop_map(|mib| mib * MIB), 0..3_usize, 1..3_u64).prop_map(|(b, p, s)| Op::Malloc(b, p, s)),
        5 => (0..64_usize).prop_map(Op::Free),
        1 => Just(Op::EmptyCache),
    ]
}

/// Adds up the bytes of a pool, from the blocks of a snapshot.
fn bytes_of(allocator: &Simulated, pool: PoolId) -> u64 {
    let segments = allocator.snapshot();
    segments.iter().filter(|segment| segment.pool == pool).map(|segment| segment.total_size).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]
    #[test]
    fn charges_agree_with_a_model_and_keep_to_both_bounds(
        policy in 0..3_usize,
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let allocator = allocator(POLICIES[policy]);
        let limits = [
            TagLimits { max: Some(200 * MIB), low: 60 * MIB, weight: 100, clear: true },
            TagLimits { max: Some(260 * MIB), low: 40 * MIB, weight: 300, clear: false },
        ];
        let pools = [limited(&allocator, A, limits[0]), limited(&allocator, B, limits[1])];
        let mut blocks = Vec::new();
        for op in ops {
            let before = pools.map(|pool| bytes_of(&allocator, pool));
            let mut actor = None;
            match op {
                Op::Malloc(bytes, 0, stream) => blocks.extend(allocator.malloc(DEVICE, bytes, StreamId(stream))),
                Op::Malloc(bytes, pool, stream) => {
                    actor = Some(pool - 1);
                    let served = malloc_in(&allocator, pools[pool - 1], bytes, StreamId(stream));
                    if let Err(Error::OutOfMemory(report)) = served && report.held_to_max {
                        let after = bytes_of(&allocator, pools[pool - 1]);
                        let growth = bytes.next_multiple_of(if bytes > MIB { PAGE } else { 2 * MIB });
                        prop_assert!(after + growth > limits[pool - 1].max.unwrap(), "refused without need");
                    }
                    blocks.extend(served);
                }
                Op::Free(at) if !blocks.is_empty() => allocator.free(blocks.swap_remove(at % blocks.len())).unwrap(),
                Op::Free(_) => {}
                // A call of the program, and no request of others: `low` does not hold it up.
                Op::EmptyCache => {
                    allocator.empty_cache(DEVICE).unwrap();
                    continue;
                }
            }
            allocator.check_invariants().unwrap();
            for (at, tag) in [A, B].into_iter().enumerate() {
                let (charge, held) = (use_of(&allocator, tag).charge, bytes_of(&allocator, pools[at]));
                prop_assert_eq!(charge, held);
                prop_assert!(charge <= limits[at].max.unwrap());
                prop_assert!(actor == Some(at) || charge >= before[at].min(limits[at].low), "taken below `low`");
            }
        }
    }
}

/// A growth counts for the tag whether or not the growth is cached later.
#[test]
fn max_holds_without_a_cache() {
    let allocator = allocator("");
    let pool = limited(&allocator, A, TagLimits { max: Some(50 * MIB), ..TagLimits::default() });
    allocator.settings(DEVICE).unwrap().set_caching(false);
    let block = malloc_in(&allocator, pool, 30 * MIB, ONE).unwrap();
    let Err(Error::OutOfMemory(report)) = malloc_in(&allocator, pool, 30 * MIB, ONE) else { panic!("beyond `max`") };
    assert!(report.held_to_max);
    allocator.free(block).unwrap();
    malloc_in(&allocator, pool, 30 * MIB, ONE).unwrap();
}
