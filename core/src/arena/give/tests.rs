use crate::allocator::Allocator;
use crate::arena::heaps::units::{first_oversize, units_down};
use crate::arena::paging::parking::{ParkMode, ParkOrder, ParkTarget};
use crate::arena::request::Forecast;
use crate::config::Config;
use crate::config::rounding::PoolKind;
use crate::device::Host;
use crate::device::simulated::{Call, SimulatedDevice};
use crate::error::Error;
use crate::heap::moves::{PagedHeap, Wanted};
use crate::pages::counts::PageCounts;
use crate::pool::{PoolOptions, Route, RoutePurpose};
use crate::stats::ReclaimStats;
use crate::tables::{Fixed, Growable};
use crate::trace::{Action, TraceEntry};
use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
use proptest::prelude::*;
use std::vec::Vec;

const DEVICE: DeviceIndex = DeviceIndex(0);
const STREAM: StreamId = StreamId(1);
const OTHER: StreamId = StreamId(2);

/// All settings for giving memory back. The threshold is 200 MiB, see [`allocator`].
const ALL: &str = "garbage_collection_threshold:0.2,compact:0,reclaim:auto,tune:auto";

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

/// Returns an allocator with a limit of 1000 MiB. Its events are traced.
fn allocator(config: &str) -> Simulated {
    let allocator = Simulated::new([SimulatedDevice::new(1 << 40)], &Config::parse(config).unwrap()).unwrap();
    allocator.settings(DEVICE).unwrap().set_limit(Some(1000 * MIB));
    allocator.trace(DEVICE).unwrap().record(1000).unwrap();
    allocator
}

fn malloc(allocator: &Simulated, mib: u64) -> DevicePtr {
    allocator.malloc(DEVICE, mib * MIB, STREAM).unwrap()
}

fn forecast(allocator: &Simulated, mib: u64) -> Forecast {
    allocator.forecast(DEVICE).unwrap().malloc(mib * MIB, STREAM).unwrap()
}

/// Allocates blocks of these sizes in MiB, all live together, and frees them.
fn cache(allocator: &Simulated, mib: &[u64]) -> Vec<DevicePtr> {
    let blocks: Vec<_> = mib.iter().map(|&mib| malloc(allocator, mib)).collect();
    blocks.iter().for_each(|&block| allocator.free(block).unwrap());
    blocks
}

/// Caches an old segment of 60 MiB and two young segments of 100 MiB. Returns the old segment.
fn cache_old_and_young(allocator: &Simulated) -> DevicePtr {
    let [old, young, other] = [60, 100, 100].map(|mib| malloc(allocator, mib));
    allocator.free(old).unwrap();
    for _ in 0..10 {
        allocator.free(young).unwrap();
        assert_eq!(malloc(allocator, 100), young);
    }
    [young, other].iter().for_each(|&block| allocator.free(block).unwrap());
    old
}

/// Makes the cached large segments quiet.
fn quiesce(allocator: &Simulated) {
    let arena = allocator.arena(DEVICE).unwrap();
    let slot = arena.heaps.find_pair(0, STREAM).unwrap().slot(PoolKind::Large);
    assert!(allocator.on(DEVICE).unwrap().holdings().given_up().begin_epoch(slot, STREAM));
    allocator.device(DEVICE).unwrap().complete(STREAM);
    allocator.on(DEVICE).unwrap().holdings().given_up().poll_departures();
}

/// Returns the sizes of the released large segments, in MiB and in order.
fn released(allocator: &Simulated) -> Vec<u64> {
    let mut released = Vec::new();
    let visit = |entry: &TraceEntry| {
        if entry.action == Action::SegmentFree && entry.size > 2 * MIB {
            released.push(entry.size / MIB);
        }
    };
    allocator.trace(DEVICE).unwrap().for_each(visit);
    released
}

/// Calls `maintain` every 50 ms for `ms` milliseconds.
fn pass(allocator: &Simulated, ms: u64) {
    for _ in 0..ms / 50 {
        allocator.device(DEVICE).unwrap().pause(50_000);
        allocator.pages(DEVICE).unwrap().maintain(1_000_000).unwrap();
    }
}

fn stats(allocator: &Simulated) -> ReclaimStats {
    allocator.pages(DEVICE).unwrap().reclaim_stats()
}

fn change(allocator: &Simulated, config: &str) {
    let tuning = allocator.tuning(DEVICE).unwrap();
    let serial = tuning.window().serial;
    assert!(tuning.put_in_force(&Config::parse(config).unwrap(), serial, 0).unwrap());
}

/// Returns the MiB held by two free segments of 40 and 60 MiB after a trim to the bytes held, and
/// after a trim to one byte less.
fn held_after_trims(config: &str) -> [u64; 2] {
    let allocator = allocator(config);
    cache(&allocator, &[40, 60]);
    allocator.device(DEVICE).unwrap().complete(STREAM);
    [100 * MIB, 100 * MIB - 1].map(|bytes| {
        allocator.trim(DEVICE, bytes).unwrap();
        allocator.stats(DEVICE).unwrap().totals().reserved_bytes().current as u64 / MIB
    })
}

#[test]
fn a_trim_to_the_bytes_held_gives_nothing_back_and_below_the_largest_segment() {
    assert_eq!(held_after_trims(""), [100, 40]);
}

#[test]
fn a_trim_to_the_bytes_held_unmaps_no_pages() {
    assert_eq!(held_after_trims("expandable_segments:True"), [100, 0]);
}

/// Returns the MiB held in all after trims of one stream of two that have cached 40 and 60 MiB
/// each, to these MiB.
fn held_after_trims_of_a_stream(config: &str, keep: &[u64]) -> Vec<u64> {
    let allocator = allocator(config);
    for stream in [STREAM, OTHER] {
        let blocks = [40, 60].map(|mib| allocator.malloc(DEVICE, mib * MIB, stream).unwrap());
        blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
        allocator.device(DEVICE).unwrap().complete(stream);
    }
    let held = |mib: &u64| {
        allocator.trim_stream(DEVICE, STREAM, mib * MIB).unwrap();
        allocator.stats(DEVICE).unwrap().totals().reserved_bytes().current as u64 / MIB
    };
    let held = keep.iter().map(held).collect();
    allocator.trim_stream(DEVICE, StreamId(77), 0).unwrap();
    held
}

#[test]
fn a_trim_of_a_stream_leaves_the_caches_of_others() {
    assert_eq!(held_after_trims_of_a_stream("", &[100, 99, 39]), [200, 140, 100]);
    assert_eq!(held_after_trims_of_a_stream("expandable_segments:True", &[100, 60, 0]), [200, 160, 100]);
    assert_eq!(held_after_trims_of_a_stream("policy:stitched", &[0]), [100]);
}

#[test]
fn a_trim_of_a_stream_keeps_what_is_in_use_and_gives_nothing_during_a_hold() {
    let allocator = allocator("");
    let used = malloc(&allocator, 50);
    cache(&allocator, &[40]);
    let held = || allocator.stats(DEVICE).unwrap().totals().reserved_bytes().current as u64 / MIB;
    allocator.begin_hold(DEVICE).unwrap();
    allocator.trim_stream(DEVICE, STREAM, 0).unwrap();
    assert_eq!(held(), 90);
    allocator.end_hold(DEVICE).unwrap();
    allocator.trim_stream(DEVICE, STREAM, 0).unwrap();
    assert_eq!(held(), 50);
    allocator.free(used).unwrap();
}

#[test]
fn one_sufficient_oversize_segment_goes_back_for_a_request() {
    let allocator = allocator("max_split_size_mb:100");
    malloc(&allocator, 250);
    cache(&allocator, &[300, 400]);
    // Both segments are more than 20 MiB larger than the request, so neither serves it.
    malloc(&allocator, 270);
    assert_eq!(released(&allocator), [300]);
}

#[test]
fn an_oversize_segment_as_large_as_an_expandable_one_before_it_stays() {
    let allocator = allocator("expandable_segments:True");
    let expandable = malloc(&allocator, 300);
    allocator.configure(&Config::parse("max_split_size_mb:100").unwrap());
    let ordinary = malloc(&allocator, 300);
    assert!(expandable < ordinary);
    [expandable, ordinary].into_iter().for_each(|block| allocator.free(block).unwrap());
    let arena = allocator.arena(DEVICE).unwrap();
    let slot = arena.heaps.find_pair(0, STREAM).unwrap().slot(PoolKind::Large);
    let first = |wanted: u64| first_oversize(&mut arena.heaps.lock(slot), slot, wanted * MIB, 100 * MIB);
    assert_eq!(first(300), None, "as in PyTorch");
    assert_eq!(first(301).map(|unit| unit.at), Some(ordinary.0));
}

#[test]
fn pages_used_since_the_last_look_are_not_idle_and_a_unit_of_them_is_not_taken() {
    let allocator = allocator("reclaim:auto,expandable_segments:True");
    let [low, _, used, _, high] = [40, 20, 60, 20, 80].map(|mib| malloc(&allocator, mib));
    [low, used, high].into_iter().for_each(|block| allocator.free(block).unwrap());
    pass(&allocator, 100);
    let arena = allocator.arena(DEVICE).unwrap();
    let slot = arena.heaps.find_pair(0, STREAM).unwrap().slot(PoolKind::Large);
    let idle = || -> Vec<_> {
        let mut idle: Vec<_> = units_down(&arena.heaps.lock(slot), slot)
            .filter(|unit| unit.idle.is_idle())
            .map(|unit| (unit.at, unit))
            .collect();
        idle.sort_unstable_by_key(|&(at, _)| at);
        idle
    };
    let pages = |block: DevicePtr, count: u64| (0..count).map(move |page| block.0 + page * 20 * MIB);
    let before = idle();
    let expected = pages(low, 2).chain(pages(used, 3)).chain(pages(high, 4));
    assert!(before.iter().map(|&(at, _)| at).eq(expected), "{before:?}");
    assert_eq!(malloc(&allocator, 60), used);
    allocator.free(used).unwrap();
    let after = idle();
    assert!(after.iter().map(|&(at, _)| at).eq(pages(low, 2).chain(pages(high, 4))), "{after:?}");
    for (at, unit) in before {
        let is_used = (used.0..used.0 + 60 * MIB).contains(&at);
        assert_eq!(unit.find(&mut arena.heaps.lock(slot)).is_none(), is_used, "{unit:?}");
    }
}

#[test]
fn a_request_collects_old_segments_before_it_keeps_to_the_budget_of_compact() {
    // The excess is 110 MiB with the old segment, and 50 without it.
    for (config, order) in [("compact:0", [100, 60]), (ALL, [60, 100])] {
        let allocator = allocator(config);
        let old = cache_old_and_young(&allocator);
        quiesce(&allocator);
        assert_eq!(forecast(&allocator, 110) == Forecast::Release(old), config == ALL);
        malloc(&allocator, 110);
        assert_eq!(released(&allocator), order, "{config}");
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn a_collection_takes_busy_segments_and_compact_leaves_them() {
    let allocator = allocator(ALL);
    cache_old_and_young(&allocator);
    malloc(&allocator, 110);
    assert_eq!(released(&allocator), [60], "the events of the stream are pending");
}

#[test]
fn upkeep_neither_collects_nor_keeps_to_the_budget_of_compact() {
    let allocator = allocator(ALL);
    cache_old_and_young(&allocator);
    malloc(&allocator, 400);
    quiesce(&allocator);
    let before = released(&allocator);
    pass(&allocator, 100);
    assert_eq!(released(&allocator), before, "560 MiB are held, and the threshold is 200");
}

#[test]
fn a_request_gives_nothing_back_for_reclaim_and_teaches_it_nothing() {
    let allocator = allocator(ALL);
    cache_old_and_young(&allocator);
    pass(&allocator, 100);
    quiesce(&allocator);
    malloc(&allocator, 110);
    assert_eq!(released(&allocator), [60, 100]);
    pass(&allocator, 100);
    let stats = stats(&allocator);
    let taught = [stats.given_back_units, stats.observed_units, stats.obtained_again_units];
    assert_eq!((taught, stats.looks > 2, stats.idle), ([0; 3], true, 100 * MIB), "{stats:?}");
}

#[test]
fn what_reclaim_has_given_back_no_request_gives_back() {
    for (config, effect) in [("reclaim:auto", None), (ALL, None), (&ALL.replace(":auto", ":off"), Some(()))] {
        let allocator = allocator(config);
        let old = cache_old_and_young(&allocator);
        quiesce(&allocator);
        pass(&allocator, 60_000);
        let expected = effect.map_or(Forecast::Obtain(110 * MIB), |()| Forecast::Release(old));
        assert_eq!(forecast(&allocator, 110), expected, "{config}");
    }
}

#[test]
fn during_a_capture_requests_collect_and_nothing_else_gives_back() {
    let allocator = allocator(ALL);
    let old = cache_old_and_young(&allocator);
    quiesce(&allocator);
    let device = allocator.device(DEVICE).unwrap();
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(OTHER), RoutePurpose::Capture).unwrap();
    device.set_capturing(OTHER, true);
    pass(&allocator, 60_000);
    assert_eq!(released(&allocator), []);
    assert_eq!(allocator.forecast(DEVICE).unwrap().malloc(110 * MIB, OTHER), Ok(Forecast::Release(old)));
    allocator.malloc(DEVICE, 110 * MIB, OTHER).unwrap();
    assert_eq!(released(&allocator), [60]);
    malloc(&allocator, 110);
    assert_eq!(released(&allocator), [60, 100, 100], "310 MiB were held: the rest is as old as the average");
}

#[test]
fn a_change_of_settings_replaces_compact_and_the_threshold_and_keeps_reclaim() {
    let allocator = allocator(ALL);
    cache(&allocator, &[60, 100]);
    change(&allocator, "compact:0.5");
    let expected = "compact:0.5,reclaim:auto,tune:auto";
    assert_eq!(allocator.settings(DEVICE).unwrap().config(), Config::parse(expected).unwrap());
    assert_eq!(released(&allocator), [60, 100], "whatever the budget is");
    let report = allocator.tuning(DEVICE).unwrap().report();
    assert_eq!((report.retired_bytes, allocator.device(DEVICE).unwrap().calls(Call::Release)), (160 * MIB, 0));
}

#[test]
fn retired_segments_count_as_held_and_go_back_with_the_whole_cache_alone() {
    let allocator = allocator(ALL);
    cache(&allocator, &[180]);
    change(&allocator, ALL);
    let young = cache(&allocator, &[50]);
    // 50 MiB are cached. Together with the segments that wait for the device, more than the
    // threshold is held.
    assert_eq!(forecast(&allocator, 70), Forecast::Release(young[0]));
    malloc(&allocator, 70);
    pass(&allocator, 100);
    let retired = || allocator.tuning(DEVICE).unwrap().report().retired_bytes / MIB;
    assert_eq!((released(&allocator), retired()), ([180, 50].to_vec(), 180));
    allocator.empty_cache(DEVICE).unwrap();
    assert_eq!(retired(), 0);
}

#[test]
fn pages_of_a_heap_asleep_stay_for_the_call_that_parks_or_wakes_it() {
    let allocator = allocator("policy:stitched,slack:0");
    allocator.settings(DEVICE).unwrap().set_limit(None);
    let (parking, pages) = (allocator.parking(DEVICE).unwrap(), allocator.pages(DEVICE).unwrap());
    let [pinned, kept] = [40, 60].map(|mib| malloc(&allocator, mib));
    pages.pin(pinned).unwrap();
    parking.park(ParkTarget::Stream(STREAM), ParkMode::Drop, ParkOrder::Device).unwrap();
    allocator.free(pinned).unwrap();
    pages.unpin(pinned).unwrap();
    // Whatever was free when the heap fell asleep is quiet by now.
    let arena = allocator.arena(DEVICE).unwrap();
    let slot = arena.heaps.find_pair(0, STREAM).unwrap().slot(PoolKind::Large);
    arena.heaps.lock(slot).sets.quiet = u64::MAX;
    let block = allocator.malloc(DEVICE, 100 * MIB, OTHER).unwrap();
    let device = allocator.device(DEVICE).unwrap();
    let calls = device.calls(Call::Unmap);
    pass(&allocator, 100);
    assert_eq!(device.calls(Call::Unmap), calls);
    parking.wake(ParkTarget::Stream(STREAM)).unwrap();
    [block, kept].iter().for_each(|&block| allocator.free(block).unwrap());
    allocator.check_invariants().unwrap();
}

#[test]
fn a_unit_is_not_cut_out_of_a_block_where_the_table_has_one_entry_left() {
    type Small = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Fixed<1, 4, 16, 1024>>;
    // In a static, because the tables are too large for the stack.
    static ALLOCATOR: Small = Small::empty();
    let config = Config::parse("expandable_segments:True").unwrap();
    ALLOCATOR.start([SimulatedDevice::new(1 << 40)], &config).unwrap();
    let malloc = |mib: u64| ALLOCATOR.malloc(DEVICE, mib * MIB, STREAM);
    let block = malloc(60).unwrap();
    while malloc(2).is_ok() {}
    ALLOCATOR.free(block).unwrap();
    let heaps = &ALLOCATOR.arena(DEVICE).unwrap().heaps;
    let slot = heaps.find_pair(0, STREAM).unwrap().slot(PoolKind::Large);
    let mut heap = heaps.lock(slot);
    assert_eq!(heap.blocks.len(), 15);
    let middle = block.0 + 20 * MIB;
    let unit = units_down(&heap, slot).find(|unit| unit.at == middle).unwrap();
    assert_eq!(unit.detach(&mut heap), Err(Error::TableFull("blocks")));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The first page to go back is the first page to move.
    #[test]
    fn pages_go_back_in_the_order_in_which_they_move(steps in prop::collection::vec((1_u64..40, any::<prop::sample::Index>()), 1..60)) {
        let allocator = allocator("policy:stitched,slack:0.5");
        let mut live = Vec::new();
        for (mib, at) in steps {
            live.push(malloc(&allocator, mib));
            if mib % 3 > 0 {
                allocator.free(live.swap_remove(at.index(live.len()))).unwrap();
            }
        }
        let arena = allocator.arena(DEVICE).unwrap();
        for slot in arena.heaps.slot_numbers() {
            let heap = arena.heaps.lock(slot);
            let mut counts = PageCounts::new(2 * MIB);
            PagedHeap(&mut heap.clone()).count_free_pages(Wanted::Free, &mut counts, 2 * MIB);
            let mut moved = Vec::new();
            PagedHeap(&mut heap.clone()).take_pages(
                Wanted::Free,
                &mut counts.choose(1, u64::MAX, 1),
                2 * MIB,
                |page, _block| moved.push((page.at, page.bytes)),
            );
            let first = units_down(&heap, slot)
                .min_by_key(|unit| (unit.bytes, heap.order_of_page(unit.block, unit.at)));
            prop_assert_eq!(first.map(|unit| (unit.at, unit.bytes)), moved.first().copied());
        }
    }
}
