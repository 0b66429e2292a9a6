//! The registry compared with plain sets, and what programs see of it.

use crate::allocator::Allocator;
use crate::arena::heaps::Heaps;
use crate::config::Config;
use crate::config::rounding::PoolKind;
use crate::device::simulated::{Call, SimulatedDevice};
use crate::error::Error;
use crate::pool::{PoolId, PoolOptions, Route, RoutePurpose, Tag, TagLimits};
use crate::sync::Ordering;
use crate::tables::{Fixed, Growable, Storage};
use crate::units::{DeviceIndex, MIB, StreamId};
use core::num::NonZeroU64;
use std::collections::BTreeSet;
use std::vec::Vec;

const DEVICE: DeviceIndex = DeviceIndex(0);
const ONE: StreamId = StreamId(1);

type In<S> = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, S>;

fn allocator<S: Storage>() -> In<S> {
    Allocator::new([SimulatedDevice::new(64 << 30)], &Config::default()).unwrap()
}

fn device<S: Storage>(allocator: &In<S>) -> &SimulatedDevice {
    allocator.device(DEVICE).unwrap()
}

fn tag(number: u64) -> Tag {
    Tag(NonZeroU64::new(number).unwrap())
}

/// Allocates a block, and frees it.
fn cache<S: Storage>(allocator: &In<S>, bytes: u64, stream: StreamId) {
    let block = allocator.malloc(DEVICE, bytes, stream).unwrap();
    allocator.free(block).unwrap();
}

/// Requests too much, after which the allocator knows the memory of the device.
fn refuse<S: Storage>(allocator: &In<S>) {
    assert!(allocator.malloc(DEVICE, 1 << 40, StreamId(99)).is_err());
}

#[test]
fn the_pairs_of_a_stream_and_of_a_pool_are_found_as_in_a_set() {
    let allocator = allocator::<Growable>();
    let mut registry = allocator.arena(DEVICE).unwrap().heaps.registry.lock();
    let mut set = BTreeSet::new();
    let mut seed = 7_u64;
    for _ in 0..300 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (pool, stream) = ((seed >> 40) as u32 % 5, StreamId(seed >> 50 & 7));
        if set.insert((pool, stream.0)) {
            registry.room_for_pair().unwrap();
            registry.add_pair(stream, pool);
        } else if seed >> 60 < 8 {
            set.remove(&(pool, stream.0));
            let (found, pair) = registry.next_pair_of(pool, stream).unwrap();
            assert_eq!(found, pool);
            registry.remove_pair(pair);
        }
        for (pool, stream) in (0..6).flat_map(|pool| (0..9).map(move |stream| (pool, stream))) {
            let of_stream = set.iter().find(|of| of.0 >= pool && of.1 == stream).map(|of| of.0);
            assert_eq!(registry.next_pair_of(pool, StreamId(stream)).map(|found| found.0), of_stream);
            let of_pool = set.range((pool, stream + 1)..(pool + 1, 0)).next().map(|of| of.1);
            assert_eq!(registry.next_pair(pool, Some(StreamId(stream))).map(|found| found.0.0), of_pool);
        }
    }
}

#[test]
fn a_sweep_is_due_each_time_the_pairs_have_grown_by_half() {
    let allocator = allocator::<Growable>();
    let mut registry = allocator.arena(DEVICE).unwrap().heaps.registry.lock();
    let mut due = Vec::new();
    for stream in 0..400 {
        if registry.is_sweep_due() {
            due.push(stream);
            registry.finish_sweep();
        }
        registry.room_for_pair().unwrap();
        registry.add_pair(StreamId(stream), 0);
    }
    assert_eq!(due, [64, 96, 144, 216, 324]);
    // Few pairs are left after the sweep, so the next one is due when the first was.
    for stream in 0..390 {
        let (_, pair) = registry.next_pair_of(0, StreamId(stream)).unwrap();
        registry.remove_pair(pair);
    }
    registry.finish_sweep();
    for stream in 0..54 {
        assert!(!registry.is_sweep_due());
        registry.room_for_pair().unwrap();
        registry.add_pair(StreamId(stream), 0);
    }
    assert!(registry.is_sweep_due());
}

#[test]
fn idle_streams_keep_no_cache_and_streams_at_work_keep_theirs() {
    const BUSY: StreamId = StreamId(u64::MAX - 1);
    const LIVE: StreamId = StreamId(u64::MAX - 2);
    let allocator = allocator::<Growable>();
    let live = allocator.malloc(DEVICE, 20 * MIB, LIVE).unwrap();
    cache(&allocator, 60 * MIB, LIVE);
    let mut most = 0;
    for stream in 0..1000 {
        cache(&allocator, 40 * MIB, BUSY);
        cache(&allocator, MIB / 2, StreamId(stream));
        most = most.max(device(&allocator).used());
    }
    // Two streams at work and 96 idle ones, each with a segment of 2 MiB.
    assert!((120 * MIB..=(120 + 2 * 98) * MIB).contains(&most), "{} MiB", most / MIB);
    assert_eq!(device(&allocator).calls(Call::Obtain), 1003, "no stream at work has lost its cache");
    allocator.free(live).unwrap();
    allocator.check_invariants().unwrap();
}

#[test]
fn a_forecast_for_a_new_stream_leaves_no_pair() {
    let allocator = allocator::<Growable>();
    cache(&allocator, MIB, ONE);
    let pairs = || {
        let registry = allocator.arena(DEVICE).unwrap().heaps.registry.lock();
        registry.pairs.iter().filter(|pair| pair.exists).count()
    };
    for stream in 2..9 {
        allocator.forecast(DEVICE).unwrap().malloc(MIB, StreamId(stream)).unwrap();
    }
    assert_eq!(pairs(), 1);
    allocator.trim(DEVICE, 0).unwrap();
    assert_eq!(pairs(), 1, "the stream may go on");
}

#[test]
fn the_reserved_bytes_of_private_pools_are_told_by_pool_and_kind() {
    let allocator = allocator::<Growable>();
    cache(&allocator, 30 * MIB, ONE);
    let pools = [(); 3].map(|()| allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap());
    for (pool, stream, bytes) in [(0, 1, 20 * MIB), (0, 2, 512), (2, 1, 40 * MIB), (2, 3, 60 * MIB)] {
        allocator.pools(DEVICE).unwrap().begin_route(pools[pool], Route::All, RoutePurpose::Requests).unwrap();
        cache(&allocator, bytes, StreamId(stream));
        allocator.pools(DEVICE).unwrap().end_route(pools[pool], RoutePurpose::Requests).unwrap();
    }
    let mut told = Vec::new();
    allocator.pools(DEVICE).unwrap().reserved(|pool, kind, bytes| told.push((pool, kind, bytes)));
    let told_of = |pool: PoolId, kind| {
        let mut bytes: Vec<u64> = told.iter().filter(|of| (of.0, of.1) == (pool, kind)).map(|of| of.2).collect();
        bytes.sort_unstable();
        bytes
    };
    assert_eq!(told.len(), 8, "two kinds of each of four pairs");
    assert_eq!(told_of(pools[0], PoolKind::Small), [0, 2 * MIB]);
    assert_eq!(told_of(pools[0], PoolKind::Large), [0, 20 * MIB]);
    assert_eq!(told_of(pools[2], PoolKind::Small), [0, 0]);
    assert_eq!(told_of(pools[2], PoolKind::Large), [40 * MIB, 60 * MIB]);
}

#[test]
fn a_pool_is_released_as_often_as_it_was_retained() {
    let allocator = allocator::<Growable>();
    let pool = PoolId(5, 6);
    for _ in 0..3 {
        allocator.pools(DEVICE).unwrap().retain(pool, PoolOptions::default()).unwrap();
    }
    for _ in 0..3 {
        allocator.pools(DEVICE).unwrap().release(pool).unwrap();
    }
    assert!(allocator.pools(DEVICE).unwrap().release(pool).is_err());
    let default = allocator.pools(DEVICE).unwrap().retain(PoolId::DEFAULT, PoolOptions::default());
    assert_eq!(default, Err(Error::PoolExists(PoolId::DEFAULT)));
}

#[test]
fn threads_that_retain_a_name_at_once_share_the_pool() {
    let allocator = allocator::<Growable>();
    // The threads meet before each name, and none leaves before the last.
    let barrier = std::sync::Barrier::new(3);
    let retain = |number| {
        barrier.wait();
        allocator.pools(DEVICE).unwrap().retain(PoolId(1, number), PoolOptions::default())
    };
    std::thread::scope(|scope| {
        let threads = [(); 3].map(|()| scope.spawn(|| (1..2000).map(retain).collect::<Vec<_>>()));
        for retained in threads {
            assert!(retained.join().unwrap().iter().all(Result::is_ok));
        }
    });
    for number in 1..2000 {
        (0..3).for_each(|_| allocator.pools(DEVICE).unwrap().release(PoolId(1, number)).unwrap());
    }
}

#[test]
fn the_entry_of_limits_that_were_removed_serves_another_tag() {
    let allocator = allocator::<Growable>();
    let mut registry = allocator.arena(DEVICE).unwrap().heaps.registry.lock();
    let limits = |low| Some(TagLimits { low, ..TagLimits::NONE });
    registry.set_limits(tag(1), limits(MIB)).unwrap();
    registry.set_limits(tag(1), None).unwrap();
    registry.set_limits(tag(2), limits(2 * MIB)).unwrap();
    let entries = |entries: &[crate::arena::heaps::limited::TagEntry]| -> Vec<_> {
        entries.iter().map(|entry| (entry.tag, entry.limits.map(|limits| limits.low))).collect()
    };
    assert_eq!(entries(&registry.limited), [(tag(2), Some(2 * MIB))]);
    registry.set_limits(tag(2), None).unwrap();
    registry.limited[0].growing = 512;
    registry.set_limits(tag(3), limits(3 * MIB)).unwrap();
    assert_eq!(entries(&registry.limited), [(tag(2), None), (tag(3), Some(3 * MIB))], "a growth is in progress");
}

#[test]
fn a_tag_may_be_set_and_removed_any_number_of_times() {
    let allocator = allocator::<Fixed<2, 4, 8, 64>>();
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    let mut registry = allocator.arena(DEVICE).unwrap().heaps.registry.lock();
    let number = registry.private_pool(pool).unwrap();
    for round in 1..500 {
        registry.set_tag(number, Some(tag(round))).unwrap();
        registry.set_tag(number, Some(tag(round + 1))).unwrap();
        registry.set_tag(number, None).unwrap();
        registry.check().unwrap();
    }
}

#[test]
fn growth_in_progress_counts_against_max() {
    let allocator = allocator::<Growable>();
    let limits = TagLimits { max: Some(60 * MIB), ..TagLimits::NONE };
    allocator.tags(DEVICE).unwrap().limit(tag(1), Some(limits)).unwrap();
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.parking(DEVICE).unwrap().tag_pool(pool, Some(tag(1))).unwrap();
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Requests).unwrap();
    let on_device = allocator.on(DEVICE).unwrap();
    // Like two threads that grow at the same time.
    let twice = on_device.with_request(40 * MIB, ONE, 0, Heaps::use_pair_for_forecast, |request| {
        let first = on_device.heaps.charge_tag(&on_device.driver.flags, request, 40 * MIB);
        let second = on_device.heaps.charge_tag(&on_device.driver.flags, request, 40 * MIB);
        assert!(matches!((&first, &second), (Ok(Some(_)), Err(_))));
        drop(first);
        assert!(matches!(on_device.heaps.charge_tag(&on_device.driver.flags, request, 60 * MIB), Ok(Some(_))));
        Ok(())
    });
    twice.unwrap();
}

#[test]
fn a_request_waits_for_the_segment_that_another_thread_adds() {
    let allocator = allocator::<Growable>();
    let block = allocator.malloc(DEVICE, 40 * MIB, ONE).unwrap();
    let on_device = allocator.on(DEVICE).unwrap();
    let slot = on_device.heaps.find_pair(0, ONE).unwrap().slot(PoolKind::Large);
    let pending = &on_device.heaps.slot(slot).pending_segments;
    let search = || {
        on_device.with_request(40 * MIB, ONE, 0, Heaps::use_pair_for_forecast, |request| {
            on_device.search_after_pending_segments(request)
        })
    };
    assert_eq!(search(), Ok(None), "no segment is on the way");
    pending.store(1, Ordering::Release);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            allocator.free(block).unwrap();
            pending.store(0, Ordering::Release);
        });
        assert_eq!(search(), Ok(Some(block)));
    });
}

#[test]
fn a_copy_asks_for_the_supply_of_a_pool_by_its_name() {
    // GiB of the device. The host's own memory has no bound.
    for (supplied, served) in [(true, 1), (false, 0)] {
        let allocator: In<Growable> = Allocator::new([SimulatedDevice::new(1 << 30)], &Config::default()).unwrap();
        refuse(&allocator);
        let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
        device(&allocator).set_supplied(pool, supplied);
        allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Requests).unwrap();
        cache(&allocator, MIB, ONE);
        allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Requests).unwrap();
        let asked = device(&allocator).calls(Call::IsCapturing);
        // The second stream has no heap of the pool yet.
        let would_fit = |stream| allocator.forecast(DEVICE).unwrap().would_fit(&[2 << 30], stream).unwrap().served;
        let would_fit = || [ONE, StreamId(2)].map(would_fit);
        assert_eq!(would_fit(), [0; 2], "in the default pool");
        assert_eq!(device(&allocator).calls(Call::IsCapturing), asked, "no graph is captured");
        allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Requests).unwrap();
        assert_eq!(would_fit(), [served; 2], "supplied: {supplied}");
    }
}

#[test]
fn a_copy_asks_the_host_for_its_routes() {
    let allocator: In<Growable> = Allocator::new([SimulatedDevice::new(100 * MIB)], &Config::default()).unwrap();
    refuse(&allocator);
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    device(&allocator).set_led(9, [ONE]);
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Host(9), RoutePurpose::Requests).unwrap();
    cache(&allocator, 60 * MIB, ONE);
    let fits = |stream| allocator.forecast(DEVICE).unwrap().would_fit(&[60 * MIB], stream).unwrap().served;
    // The pool is in use and keeps its memory, which serves only the streams of the route.
    assert_eq!([ONE, StreamId(2)].map(fits), [1, 0]);
}

#[test]
fn a_copy_has_the_memory_of_the_pages_that_it_gives_back() {
    let config = Config::parse("expandable_segments:True").unwrap();
    let allocator: In<Growable> = Allocator::new([SimulatedDevice::new(100 * MIB)], &config).unwrap();
    refuse(&allocator);
    // Pages of the small heap, which are too short for a large block.
    let blocks: Vec<_> = (0..60).map(|_| allocator.malloc(DEVICE, MIB, ONE).unwrap()).collect();
    blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    let fits = |bytes| allocator.forecast(DEVICE).unwrap().would_fit(&[bytes], StreamId(2)).unwrap().served;
    assert_eq!([80 * MIB, 110 * MIB].map(fits), [1, 0]);
}

#[test]
fn a_request_in_progress_keeps_the_memory_awake() {
    use crate::arena::paging::parking::{ParkMode, ParkOrder, ParkTarget};
    let config = Config::parse("expandable_segments:True").unwrap();
    let allocator: In<Growable> = Allocator::new([SimulatedDevice::new(1 << 30)], &config).unwrap();
    allocator.malloc(DEVICE, 20 * MIB, ONE).unwrap();
    let park = || allocator.parking(DEVICE).unwrap().park(ParkTarget::Streams, ParkMode::Keep, ParkOrder::Device);
    let heaps = &allocator.arena(DEVICE).unwrap().heaps;
    let used = heaps.find_pair(0, ONE).unwrap();
    assert!(heaps.is_only_user(&used));
    let before = device(&allocator).now_us();
    let refused = park();
    assert!(device(&allocator).now_us() - before >= 1_000_000, "the call waits for the request");
    assert!(matches!(refused, Err(Error::ParkingRefused(why)) if why.contains("in progress")), "{refused:?}");
    drop(used);
    park().unwrap();
}
