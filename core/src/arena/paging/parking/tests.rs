use super::{ParkMode, ParkOrder, ParkState, ParkTarget};
use crate::allocator::Allocator;
use crate::config::Config;
use crate::device::simulated::{Call, Failure, SimulatedDevice};
use crate::device::{DeviceError, ErrorKind};
use crate::error::Error;
use crate::pool::{PoolId, PoolOptions, Route, RoutePurpose, Tag};
use crate::tables::Growable;
use crate::tests::own::parse;
use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
use core::num::NonZeroU64;
use std::vec::Vec;

mod faults;
mod further;
mod lending;

const DEVICE: DeviceIndex = DeviceIndex(0);
const ONE: StreamId = StreamId(1);
const TWO: StreamId = StreamId(2);
const CAPACITY: u64 = 512 * MIB;
const TAG: Tag = Tag(NonZeroU64::new(7).unwrap());
const TARGET: ParkTarget = ParkTarget::Tag(TAG);
/// The policies that can park.
const POLICIES: [&str; 3] = ["", "expandable_segments:True", "policy:stitched"];

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

fn allocator(config: &str) -> Simulated {
    Simulated::new([SimulatedDevice::new(CAPACITY)], &parse(config)).unwrap()
}

fn device(allocator: &Simulated) -> &SimulatedDevice {
    allocator.device(DEVICE).unwrap()
}

/// Makes a pool with `TAG`.
fn tagged(allocator: &Simulated) -> PoolId {
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.parking(DEVICE).unwrap().tag_pool(pool, Some(TAG)).unwrap();
    pool
}

/// Requests a block of `mib` from a pool.
fn malloc_in(allocator: &Simulated, pool: PoolId, mib: u64, stream: StreamId) -> Result<DevicePtr, Error> {
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Requests).unwrap();
    let block = allocator.malloc(DEVICE, mib * MIB, stream);
    allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Requests).unwrap();
    allocator.pools(DEVICE).unwrap().release(pool).unwrap();
    block
}

fn park(allocator: &Simulated, mode: ParkMode) -> Result<(), Error> {
    let parked = allocator.parking(DEVICE).unwrap().park(TARGET, mode, ParkOrder::Device);
    check(allocator);
    parked
}

fn wake(allocator: &Simulated) -> Result<(), Error> {
    let woken = allocator.parking(DEVICE).unwrap().wake(TARGET);
    check(allocator);
    woken
}

/// Returns an allocator, and a parked block of 300 MiB that contains the number 9.
fn asleep(config: &str) -> (Simulated, DevicePtr) {
    let allocator = allocator(config);
    let pool = tagged(&allocator);
    let block = malloc_in(&allocator, pool, 300, ONE).unwrap();
    device(&allocator).write(block, 9);
    park(&allocator, ParkMode::Keep).unwrap();
    (allocator, block)
}

/// Checks the invariants, and that the program knows of all mappings except those that are never
/// used again.
fn check(allocator: &Simulated) {
    allocator.check_invariants().unwrap();
    assert!(
        device(allocator).untold() <= allocator.stats(DEVICE).unwrap().leaked_bytes(),
        "a page is in use, and not told of"
    );
}

fn report(allocator: &Simulated) -> super::ParkReport {
    allocator.parking(DEVICE).unwrap().report(TARGET).unwrap()
}

/// Fills a pool with blocks of several sizes, writes a number to each, and returns the blocks and
/// the numbers.
fn fill(allocator: &Simulated, pool: PoolId) -> Vec<(DevicePtr, u64)> {
    let sizes = [40, 1, 25, 60, 2, 10];
    let blocks = sizes.map(|mib| malloc_in(allocator, pool, mib, if mib % 2 == 0 { ONE } else { TWO }).unwrap());
    let numbered = blocks.into_iter().zip(100..);
    numbered.inspect(|&(at, number)| assert!(device(allocator).write(at, number))).collect()
}

/// Asserts that each block contains the number that was last written to its page.
fn assert_kept(allocator: &Simulated, before: &[(DevicePtr, Option<u64>)]) {
    for &(at, number) in before {
        assert_eq!(device(allocator).read(at), number, "the contents at {at}");
    }
}

fn contents(allocator: &Simulated, blocks: &[(DevicePtr, u64)]) -> Vec<(DevicePtr, Option<u64>)> {
    blocks.iter().map(|&(at, _)| (at, device(allocator).read(at))).collect()
}

#[test]
fn contents_and_addresses_survive_and_the_memory_goes_back_to_the_device() {
    for policy in POLICIES {
        let allocator = allocator(policy);
        let other = allocator.malloc(DEVICE, 30 * MIB, ONE).unwrap();
        let pool = tagged(&allocator);
        let blocks = fill(&allocator, pool);
        let before = contents(&allocator, &blocks);
        let (used, stats) = (device(&allocator).used(), allocator.stats(DEVICE).unwrap().totals());
        for _ in 0..3 {
            park(&allocator, ParkMode::Keep).unwrap();
            let asleep = report(&allocator);
            assert_eq!((asleep.state, asleep.mapped, asleep.ordinary), (ParkState::Asleep, 0, 0), "`{policy}`");
            assert!(asleep.parked >= 138 * MIB && asleep.kept == asleep.parked, "`{policy}`: {asleep:?}");
            assert_eq!(device(&allocator).used(), used - asleep.parked, "`{policy}`");
            let parked = allocator.stats(DEVICE).unwrap().totals();
            assert_eq!(parked.allocated_bytes().current, stats.allocated_bytes().current);
            assert_eq!(parked.reserved_bytes().current, stats.reserved_bytes().current - asleep.parked as i64);
            assert!(blocks.iter().all(|&(at, _)| device(&allocator).read(at).is_none()), "nothing is mapped");
            assert!(device(&allocator).is_accessible(other, 30 * MIB));
            assert_eq!(allocator.pages(DEVICE).unwrap().stats().parked, asleep.parked, "`{policy}`");
            wake(&allocator).unwrap();
            assert_kept(&allocator, &before);
            assert_eq!((device(&allocator).used(), device(&allocator).kept()), (used, 0), "`{policy}`");
            assert_eq!(
                allocator.stats(DEVICE).unwrap().totals().reserved_bytes().current,
                stats.reserved_bytes().current
            );
            assert_eq!(report(&allocator).state, ParkState::Awake);
        }
    }
}

#[test]
fn dropped_memory_has_any_contents_and_zeroed_memory_zeroes() {
    let allocator = allocator("");
    let pool = tagged(&allocator);
    let blocks = fill(&allocator, pool);
    park(&allocator, ParkMode::Drop).unwrap();
    assert_eq!((device(&allocator).calls(Call::Save), report(&allocator).kept), (0, 0));
    wake(&allocator).unwrap();
    assert!(blocks.iter().all(|&(at, _)| device(&allocator).read(at).unwrap() > u64::MAX / 2), "new memory");
    park(&allocator, ParkMode::Zero).unwrap();
    wake(&allocator).unwrap();
    assert!(blocks.iter().all(|&(at, _)| device(&allocator).read(at) == Some(0)));
    assert_eq!(device(&allocator).calls(Call::Prepare), 0, "nothing is kept");
}

#[test]
fn parking_and_waking_are_idempotent_and_need_a_tag() {
    let allocator = allocator("");
    let parking = allocator.parking(DEVICE).unwrap();
    let unknown = Error::UnknownTag(TAG);
    assert_eq!(park(&allocator, ParkMode::Keep), Err(unknown));
    assert_eq!(wake(&allocator), Err(unknown));
    assert_eq!(parking.report(TARGET), Err(unknown));
    assert_eq!(parking.tag_pool(PoolId::DEFAULT, Some(TAG)), Err(Error::UnknownPool(PoolId::DEFAULT)));
    let pool = tagged(&allocator);
    wake(&allocator).unwrap();
    park(&allocator, ParkMode::Keep).unwrap();
    assert_eq!(report(&allocator).state, ParkState::Asleep, "a pool without a block parks, too");
    wake(&allocator).unwrap();
    let blocks = fill(&allocator, pool);
    let before = contents(&allocator, &blocks);
    park(&allocator, ParkMode::Keep).unwrap();
    let calls = device(&allocator).calls(Call::Unmap);
    park(&allocator, ParkMode::Drop).unwrap();
    assert_eq!(device(&allocator).calls(Call::Unmap), calls);
    assert_eq!(parking.tag_pool(pool, None), Err(Error::Parked));
    let other = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    assert_eq!(parking.tag_pool(other, Some(TAG)), Err(Error::Parked), "half of the tag would be awake");
    wake(&allocator).unwrap();
    assert_kept(&allocator, &before);
    let calls = device(&allocator).calls(Call::Map);
    wake(&allocator).unwrap();
    assert_eq!(device(&allocator).calls(Call::Map), calls);
}

#[test]
fn requests_under_a_parked_tag_are_refused_and_others_served() {
    for policy in POLICIES {
        let allocator = allocator(policy);
        let pool = tagged(&allocator);
        let blocks = fill(&allocator, pool);
        park(&allocator, ParkMode::Keep).unwrap();
        for stream in [ONE, TWO, StreamId(3)] {
            assert_eq!(malloc_in(&allocator, pool, 1, stream), Err(Error::Parked), "`{policy}`, {stream:?}");
        }
        assert_eq!(allocator.pages(DEVICE).unwrap().pin(blocks[0].0), Err(Error::Parked));
        let other = allocator.malloc(DEVICE, 100 * MIB, ONE).unwrap();
        allocator.free(other).unwrap();
        allocator.trim(DEVICE, 0).unwrap();
        allocator.check_invariants().unwrap();
        wake(&allocator).unwrap();
        allocator.free(malloc_in(&allocator, pool, 1, StreamId(3)).unwrap()).unwrap();
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn blocks_freed_while_parked_do_not_wake() {
    for policy in POLICIES {
        let allocator = allocator(policy);
        let pool = tagged(&allocator);
        let blocks = fill(&allocator, pool);
        let kept = contents(&allocator, &blocks[1..]);
        allocator.record_stream(blocks[0].0, TWO).unwrap();
        park(&allocator, ParkMode::Keep).unwrap();
        let parked = report(&allocator).parked;
        // The block was used by another stream, so its free waits for an event, as it would if it
        // was awake.
        allocator.free(blocks[0].0).unwrap();
        allocator.check_invariants().unwrap();
        device(&allocator).complete(TWO);
        wake(&allocator).unwrap();
        assert_kept(&allocator, &kept);
        assert_eq!(device(&allocator).used(), parked, "`{policy}`: a pool in use keeps its free memory");
        park(&allocator, ParkMode::Keep).unwrap();
        allocator.pools(DEVICE).unwrap().release(pool).unwrap();
        for (block, _) in &blocks[1..5] {
            allocator.free(*block).unwrap();
        }
        wake(&allocator).unwrap();
        assert!(device(&allocator).used() <= 30 * MIB, "`{policy}`: {} MiB", device(&allocator).used() / MIB);
        park(&allocator, ParkMode::Keep).unwrap();
        allocator.free(blocks[5].0).unwrap();
        wake(&allocator).unwrap();
        assert_eq!((device(&allocator).used(), device(&allocator).kept()), (0, 0), "`{policy}`");
        assert_eq!(allocator.parking(DEVICE).unwrap().report(TARGET), Err(Error::UnknownTag(TAG)), "the pool is gone");
    }
}

#[test]
fn requests_under_a_parked_tag_are_served_elsewhere_by_option() {
    for policy in POLICIES {
        let allocator = allocator(policy);
        let parking = allocator.parking(DEVICE).unwrap();
        assert_eq!(parking.serve_elsewhere(TAG, true), Err(Error::UnknownTag(TAG)));
        let pool = tagged(&allocator);
        let blocks = fill(&allocator, pool);
        let before = contents(&allocator, &blocks);
        parking.serve_elsewhere(TAG, true).unwrap();
        let later = tagged(&allocator);
        park(&allocator, ParkMode::Keep).unwrap();
        for pool in [pool, later] {
            let served = malloc_in(&allocator, pool, 30, ONE).unwrap();
            let holds = |segment: &crate::SnapshotSegment| segment.blocks.iter().any(|block| block.address == served);
            let segment = allocator.snapshot().into_iter().find(holds).unwrap();
            assert_eq!(segment.pool, PoolId::DEFAULT, "`{policy}`");
            allocator.check_invariants().unwrap();
            allocator.free(served).unwrap();
        }
        allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(TWO), RoutePurpose::Capture).unwrap();
        device(&allocator).set_capturing(TWO, true);
        assert_eq!(allocator.malloc(DEVICE, MIB, TWO), Err(Error::Parked), "a graph's memory lies in its pool");
        device(&allocator).set_capturing(TWO, false);
        allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
        allocator.pools(DEVICE).unwrap().release(pool).unwrap();
        parking.serve_elsewhere(TAG, false).unwrap();
        assert_eq!(malloc_in(&allocator, later, 30, ONE), Err(Error::Parked), "`{policy}`");
        wake(&allocator).unwrap();
        assert_kept(&allocator, &before);
    }
}

#[test]
fn parking_waits_for_the_work_before() {
    for order in [ParkOrder::Device, ParkOrder::Streams] {
        let allocator = allocator("");
        let parking = allocator.parking(DEVICE).unwrap();
        let pool = tagged(&allocator);
        let block = malloc_in(&allocator, pool, 40, ONE).unwrap();
        let freed = malloc_in(&allocator, pool, 40, ONE).unwrap();
        allocator.record_stream(block, TWO).unwrap();
        allocator.record_stream(freed, TWO).unwrap();
        for stream in [ONE, TWO] {
            device(&allocator).launch(stream, block.offset(u64::from(stream == TWO) * 20 * MIB), 20 * MIB).unwrap();
        }
        device(&allocator).launch(TWO, freed, MIB).unwrap();
        allocator.free(freed).unwrap();
        parking.park(TARGET, ParkMode::Keep, order).unwrap();
        assert_eq!(device(&allocator).calls(Call::SynchronizeAll), u64::from(order == ParkOrder::Device));
        assert_eq!(device(&allocator).used(), 0, "{order:?}");
        parking.wake(TARGET).unwrap();
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn parking_is_refused_while_a_graph_is_captured() {
    let allocator = allocator("");
    let pool = tagged(&allocator);
    let blocks = fill(&allocator, pool);
    let before = contents(&allocator, &blocks);
    let refused = |result: Result<(), Error>| {
        let refused = matches!(result, Err(Error::Device(error)) if error.kind == ErrorKind::NotPermittedInCapture);
        assert!(refused, "{result:?}");
        assert_eq!(report(&allocator).state, ParkState::Awake);
        assert_kept(&allocator, &before);
    };
    let graphs = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.pools(DEVICE).unwrap().begin_route(graphs, Route::Stream(TWO), RoutePurpose::Capture).unwrap();
    refused(park(&allocator, ParkMode::Keep));
    allocator.pools(DEVICE).unwrap().end_route(graphs, RoutePurpose::Capture).unwrap();
    device(&allocator).set_capturing(TWO, true);
    refused(park(&allocator, ParkMode::Drop));
    device(&allocator).set_capturing(TWO, false);
    park(&allocator, ParkMode::Keep).unwrap();
    wake(&allocator).unwrap();
    assert_kept(&allocator, &before);
}

#[test]
fn pinned_pages_and_ordinary_segments_stay_and_are_reported() {
    let allocator = allocator("");
    let parking = allocator.parking(DEVICE).unwrap();
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    let ordinary = malloc_in(&allocator, pool, 30, ONE).unwrap();
    parking.tag_pool(pool, Some(TAG)).unwrap();
    let [pinned, block] = [20, 60].map(|mib| malloc_in(&allocator, pool, mib, ONE).unwrap());
    allocator.pages(DEVICE).unwrap().pin(pinned).unwrap();
    park(&allocator, ParkMode::Keep).unwrap();
    let asleep = report(&allocator);
    assert_eq!((asleep.pinned, asleep.ordinary, asleep.parked), (20 * MIB, 30 * MIB, 60 * MIB));
    assert!(device(&allocator).is_accessible(ordinary, MIB) && device(&allocator).is_accessible(pinned, MIB));
    assert!(!device(&allocator).is_accessible(block, MIB));
    // Memory on the device can be pinned, and parked memory cannot.
    let pages = allocator.pages(DEVICE).unwrap();
    for awake in [ordinary, pinned] {
        pages.pin(awake).unwrap();
        pages.unpin(awake).unwrap();
    }
    assert_eq!(pages.pin(block), Err(Error::Parked));
    pages.unpin(pinned).unwrap();
    pages.pin(pinned).unwrap();
    pages.unpin(pinned).unwrap();
    park(&allocator, ParkMode::Keep).unwrap();
    let asleep = report(&allocator);
    assert_eq!((asleep.mapped, asleep.parked), (0, 80 * MIB), "a second park parks what is no longer pinned");
    assert_eq!(pages.pin(pinned), Err(Error::Parked));
    wake(&allocator).unwrap();
    assert!(device(&allocator).is_accessible(block, 60 * MIB));
}

#[test]
fn memory_pinned_at_a_park_goes_back_once_it_is_free_and_no_longer_pinned() {
    type Ask = fn(&Simulated);
    let ways: [Ask; 3] = [
        |allocator| allocator.empty_cache(DEVICE).unwrap(),
        |allocator| allocator.trim(DEVICE, 0).unwrap(),
        // A request for which there is no other memory.
        |allocator| {
            let block = allocator.malloc(DEVICE, 500 * MIB, ONE).unwrap();
            allocator.free(block).unwrap();
            allocator.trim(DEVICE, 0).unwrap();
        },
    ];
    for policy in POLICIES {
        for ask in ways {
            let allocator = allocator(policy);
            let pages = allocator.pages(DEVICE).unwrap();
            let pool = tagged(&allocator);
            let pinned = malloc_in(&allocator, pool, 3, TWO).unwrap();
            let kept = malloc_in(&allocator, pool, 40, ONE).unwrap();
            device(&allocator).write(kept, 5);
            pages.pin(pinned).unwrap();
            park(&allocator, ParkMode::Keep).unwrap();
            allocator.free(pinned).unwrap();
            allocator.pools(DEVICE).unwrap().release(pool).unwrap();
            allocator.empty_cache(DEVICE).unwrap();
            assert!(device(&allocator).is_accessible(pinned, 3 * MIB), "`{policy}`: it is pinned");
            pages.unpin(pinned).unwrap();
            ask(&allocator);
            check(&allocator);
            assert_eq!(device(&allocator).used(), 0, "`{policy}`");
            wake(&allocator).unwrap();
            assert_eq!(device(&allocator).read(kept), Some(5), "`{policy}`");
            allocator.free(kept).unwrap();
            allocator.trim(DEVICE, 0).unwrap();
            check(&allocator);
            assert_eq!(device(&allocator).outstanding(), crate::device::simulated::Outstanding::default());
        }
    }
}

#[test]
fn a_lent_block_that_stays_awake_can_be_pinned_and_goes_back_once_it_is_free() {
    let allocator = allocator("policy:stitched,slack:0");
    let (parking, pages) = (allocator.parking(DEVICE).unwrap(), allocator.pages(DEVICE).unwrap());
    // A hole of 20 MiB between live blocks, which is lent as it is.
    let blocks = [41, 21, 41].map(|mib| allocator.malloc(DEVICE, mib * MIB + 512, ONE).unwrap());
    allocator.free(blocks[1]).unwrap();
    let lent = allocator.malloc(DEVICE, 20 * MIB, TWO).unwrap();
    assert!((blocks[0]..blocks[2]).contains(&lent), "it is lent");
    parking.park(ParkTarget::Stream(ONE), ParkMode::Keep, ParkOrder::Device).unwrap();
    check(&allocator);
    pages.pin(lent).unwrap();
    assert_eq!(pages.pin(blocks[0]), Err(Error::Parked));
    allocator.free(lent).unwrap();
    device(&allocator).complete(TWO);
    let used = device(&allocator).used();
    allocator.empty_cache(DEVICE).unwrap();
    assert_eq!(device(&allocator).used(), used, "it is pinned");
    pages.unpin(lent).unwrap();
    allocator.empty_cache(DEVICE).unwrap();
    check(&allocator);
    // The ends of the hole share pages with the blocks next to it.
    assert!(device(&allocator).used() <= used - 16 * MIB, "{} of {} MiB", device(&allocator).used() / MIB, used / MIB);
    parking.wake(ParkTarget::Stream(ONE)).unwrap();
    check(&allocator);
    assert!(device(&allocator).is_accessible(blocks[0], 41 * MIB));
}

#[test]
fn a_stream_of_the_default_pool_parks_where_blocks_lie_on_pages() {
    for policy in ["expandable_segments:True", "policy:stitched"] {
        let allocator = allocator(policy);
        let parking = allocator.parking(DEVICE).unwrap();
        let target = ParkTarget::Stream(ONE);
        let [idle, cached] = [50, 70].map(|mib| allocator.malloc(DEVICE, mib * MIB, ONE).unwrap());
        let busy = allocator.malloc(DEVICE, 30 * MIB, TWO).unwrap();
        allocator.free(cached).unwrap();
        device(&allocator).write(idle, 5);
        parking.park(target, ParkMode::Keep, ParkOrder::Streams).unwrap();
        allocator.check_invariants().unwrap();
        assert!(device(&allocator).used() <= 40 * MIB, "`{policy}`: {}", device(&allocator).used());
        assert_eq!(allocator.malloc(DEVICE, MIB, ONE), Err(Error::Parked));
        let more = allocator.malloc(DEVICE, 60 * MIB, TWO).unwrap();
        allocator.free(more).unwrap();
        allocator.check_invariants().unwrap();
        parking.wake(target).unwrap();
        allocator.check_invariants().unwrap();
        assert_eq!(device(&allocator).read(idle), Some(5), "`{policy}`");
        for block in [idle, busy, allocator.malloc(DEVICE, MIB, ONE).unwrap()] {
            allocator.free(block).unwrap();
        }
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn memory_that_no_page_is_under_is_neither_tagged_nor_parked() {
    let refused = Err(Error::ParkingRefused(super::NO_PAGES));
    let ordinary = ["policy:bfc", "policy:first_fit", "policy:small_first_fit", "policy:direct"];
    for config in ordinary.into_iter().chain(["policy:planned,fallback:bfc"]) {
        let allocator = allocator(config);
        let parking = allocator.parking(DEVICE).unwrap();
        let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
        assert_eq!(parking.tag_pool(pool, Some(TAG)), refused, "`{config}`");
        assert_eq!(parking.tag_pool(pool, None), Ok(()), "`{config}`");
        assert_eq!(parking.report(TARGET), Err(Error::UnknownTag(TAG)), "`{config}`");
        allocator.malloc(DEVICE, 30 * MIB, ONE).unwrap();
        for stream in [ONE, TWO] {
            let parked = parking.park(ParkTarget::Stream(stream), ParkMode::Zero, ParkOrder::Streams);
            assert_eq!(parked, refused, "`{config}`");
        }
        allocator.malloc(DEVICE, MIB, ONE).unwrap();
        allocator.check_invariants().unwrap();
    }
    // A pool with a tag is on pages even where the default pool is not.
    let allocator = allocator("");
    let parking = allocator.parking(DEVICE).unwrap();
    tagged(&allocator);
    allocator.malloc(DEVICE, 30 * MIB, ONE).unwrap();
    for stream in [ONE, TWO] {
        assert_eq!(parking.park(ParkTarget::Stream(stream), ParkMode::Keep, ParkOrder::Device), refused);
    }
    park(&allocator, ParkMode::Keep).unwrap();
}

#[test]
fn memory_on_pages_is_parked_under_every_policy() {
    for config in ["policy:bfc,expandable_segments:True", "policy:planned", "policy:planned,fallback:stitched"] {
        let allocator = allocator(config);
        let pool = tagged(&allocator);
        let block = malloc_in(&allocator, pool, 40, ONE).unwrap();
        device(&allocator).write(block, 5);
        park(&allocator, ParkMode::Keep).unwrap();
        assert!(report(&allocator).parked >= 40 * MIB && report(&allocator).ordinary == 0, "`{config}`");
        wake(&allocator).unwrap();
        assert_eq!(device(&allocator).read(block), Some(5), "`{config}`");
    }
}

#[test]
fn a_pool_with_segments_of_the_host_is_not_parked() {
    let allocator = allocator("");
    let parking = allocator.parking(DEVICE).unwrap();
    let pools = [(); 2].map(|()| allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap());
    pools.iter().for_each(|&pool| device(&allocator).set_supplied(pool, true));
    malloc_in(&allocator, pools[0], 30, ONE).unwrap();
    let refused = Err(Error::ParkingRefused(super::NO_PAGES));
    assert_eq!(parking.tag_pool(pools[0], Some(TAG)), refused, "its segments are known");
    parking.tag_pool(pools[1], Some(TAG)).unwrap();
    malloc_in(&allocator, pools[1], 30, ONE).unwrap();
    assert_eq!(park(&allocator, ParkMode::Zero), refused);
    allocator.free(malloc_in(&allocator, pools[1], 20, ONE).unwrap()).unwrap();
}

#[test]
fn tags_wake_in_the_order_of_the_calls_and_in_parts() {
    let allocator = allocator("");
    let parking = allocator.parking(DEVICE).unwrap();
    let later = Tag(NonZeroU64::new(8).unwrap());
    let weights = tagged(&allocator);
    let cache = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    parking.tag_pool(cache, Some(later)).unwrap();
    let [first, second] = [weights, cache].map(|pool| malloc_in(&allocator, pool, 100, ONE).unwrap());
    for (block, number) in [(first, 1), (second, 2)] {
        device(&allocator).write(block, number);
    }
    park(&allocator, ParkMode::Keep).unwrap();
    parking.park(ParkTarget::Tag(later), ParkMode::Keep, ParkOrder::Device).unwrap();
    parking.wake_start(TARGET).unwrap();
    allocator.check_invariants().unwrap();
    assert_eq!((report(&allocator).state, report(&allocator).mapped), (ParkState::Waking, 100 * MIB));
    assert_eq!(malloc_in(&allocator, weights, 1, ONE), Err(Error::Parked), "the contents may still be on the way");
    parking.wake_start(ParkTarget::Tag(later)).unwrap();
    parking.wake_wait(TARGET).unwrap();
    allocator.check_invariants().unwrap();
    assert_eq!((report(&allocator).state, device(&allocator).read(first)), (ParkState::Awake, Some(1)));
    assert_eq!(parking.report(ParkTarget::Tag(later)).unwrap().state, ParkState::Waking);
    parking.wake_wait(ParkTarget::Tag(later)).unwrap();
    assert_eq!((device(&allocator).read(second), device(&allocator).kept()), (Some(2), 0));
    allocator.check_invariants().unwrap();
}

/// A case found by generated programs: the wait for all streams found pages without memory, and
/// panicked.
#[test]
fn a_stream_begun_to_wake_is_a_part_of_all_streams() {
    for policy in &POLICIES[1..] {
        for early in [ParkTarget::Stream(ONE), ParkTarget::LargeOfStreams] {
            let allocator = allocator(policy);
            let parking = allocator.parking(DEVICE).unwrap();
            let blocks = [(ONE, 20), (TWO, 40), (ONE, 1), (TWO, 1)]
                .map(|(stream, mib)| allocator.malloc(DEVICE, mib * MIB, stream).unwrap());
            for (block, number) in blocks.into_iter().zip(1..) {
                assert!(device(&allocator).write(block, number));
            }
            // A small block may share its page with another one.
            let written = blocks.map(|block| device(&allocator).read(block));
            parking.park(ParkTarget::Streams, ParkMode::Keep, ParkOrder::Device).unwrap();
            parking.wake_start(early).unwrap();
            parking.wake_wait(ParkTarget::Streams).unwrap();
            check(&allocator);
            assert_eq!(blocks.map(|block| device(&allocator).read(block)), written, "{policy}");
            blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
            let report = parking.report(ParkTarget::Streams).unwrap();
            assert_eq!((report.state, report.parked, device(&allocator).kept()), (ParkState::Awake, 0, 0));
        }
    }
}

#[test]
fn waking_takes_cached_memory_and_fails_whole_where_that_is_not_enough() {
    for policy in POLICIES {
        let (allocator, block) = asleep(policy);
        let [cached, live] = [100, 200].map(|mib| allocator.malloc(DEVICE, mib * MIB, ONE).unwrap());
        allocator.free(cached).unwrap();
        wake(&allocator).unwrap();
        assert_eq!(device(&allocator).read(block), Some(9), "`{policy}`: the cache went back");
        park(&allocator, ParkMode::Keep).unwrap();
        let more = allocator.malloc(DEVICE, 100 * MIB, ONE).unwrap();
        allocator.empty_cache(DEVICE).unwrap();
        let used = device(&allocator).used();
        assert!(matches!(wake(&allocator), Err(Error::OutOfMemory(_))), "`{policy}`");
        assert_eq!(report(&allocator).state, ParkState::Asleep);
        assert_eq!(
            (device(&allocator).used(), report(&allocator).kept),
            (used, report(&allocator).parked),
            "`{policy}`"
        );
        allocator.free(more).unwrap();
        wake(&allocator).unwrap();
        assert_eq!(device(&allocator).read(block), Some(9), "`{policy}`");
        allocator.free(live).unwrap();
    }
}

#[test]
fn waking_waits_for_frees_behind_work_of_other_streams() {
    for policy in POLICIES {
        let (allocator, block) = asleep(policy);
        let pending = allocator.malloc(DEVICE, 300 * MIB, ONE).unwrap();
        allocator.record_stream(pending, TWO).unwrap();
        device(&allocator).launch(TWO, pending, MIB).unwrap();
        allocator.free(pending).unwrap();
        wake(&allocator).unwrap();
        assert_eq!(device(&allocator).read(block), Some(9), "`{policy}`");
        assert_eq!(report(&allocator).state, ParkState::Awake);
    }
}

#[test]
fn a_device_without_pages_or_without_host_memory_is_told() {
    let parked = |device: SimulatedDevice, mode| {
        let allocator = Simulated::new([device], &Config::default()).unwrap();
        let block = malloc_in(&allocator, tagged(&allocator), 30, ONE).unwrap();
        let parked = park(&allocator, mode);
        assert!(allocator.device(DEVICE).unwrap().is_accessible(block, 30 * MIB), "it stays awake");
        parked
    };
    let without = SimulatedDevice::new(CAPACITY).without_virtual_memory();
    assert_eq!(parked(without, ParkMode::Drop), Err(Error::ParkingRefused("the device has no virtual memory")));
    let short = SimulatedDevice::new(CAPACITY).with_host_memory(20 * MIB);
    assert_eq!(parked(short, ParkMode::Keep), Err(Error::NoHostMemory));
    let text = "the memory is not parked or woken: the host lacks the memory for the contents";
    assert_eq!(std::format!("{}", Error::NoHostMemory), text);
}

#[test]
fn what_is_parked_does_not_count_as_live_in_the_budget_of_the_stitched_policy() {
    // The device is so large that memory is given back only because of the budget.
    let config = Config::parse("policy:stitched").unwrap();
    let allocator = Simulated::new([SimulatedDevice::new(16 * CAPACITY)], &config).unwrap();
    let pool = tagged(&allocator);
    let _weights = malloc_in(&allocator, pool, 200, ONE).unwrap();
    let churn = |rounds: u64| {
        for round in 0..rounds {
            let sizes = [20, 34, 46].map(|mib| (mib + round % 7) * MIB);
            let blocks = sizes.map(|bytes| allocator.malloc(DEVICE, bytes, ONE).unwrap());
            blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
            device(&allocator).complete(ONE);
        }
    };
    churn(20);
    park(&allocator, ParkMode::Keep).unwrap();
    device(&allocator).reset_peak_used();
    let live: Vec<_> = (0..4).map(|_| allocator.malloc(DEVICE, 60 * MIB, ONE).unwrap()).collect();
    churn(20);
    // At most 240 MiB and 118 MiB are live, and 318 MiB were before.
    let most = device(&allocator).peak_used();
    assert!(most <= 366 * MIB, "{} MiB", most / MIB);
    live.into_iter().for_each(|block| allocator.free(block).unwrap());
    allocator.check_invariants().unwrap();
    // All of it is free, and is released for the memory that wakes. This is repeated, because the
    // peaks count parked blocks.
    for _ in 0..3 {
        wake(&allocator).unwrap();
        let most = device(&allocator).peak_used();
        assert!(most <= 366 * MIB, "{} MiB", most / MIB);
        churn(1);
        park(&allocator, ParkMode::Keep).unwrap();
        let live: Vec<_> = (0..4).map(|_| allocator.malloc(DEVICE, 60 * MIB, ONE).unwrap()).collect();
        churn(20);
        live.into_iter().for_each(|block| allocator.free(block).unwrap());
    }
}
