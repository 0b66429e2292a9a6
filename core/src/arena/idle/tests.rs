use super::Round;
use crate::allocator::Allocator;
use crate::arena::heaps::units::UnitKind;
use crate::config::Config;
use crate::config::rounding::PoolKind;
use crate::device::simulated::{Call, CostPoint, DriverCosts, Failure, SimulatedDevice};
use crate::device::{DeviceError, ErrorKind, Host};
use crate::heap::age::Moment;
use crate::pool::{PoolOptions, Route, RoutePurpose};
use crate::stats::ReclaimStats;
use crate::tables::Growable;
use crate::tests::altered::{AlteredDevice, Change};
use crate::trace::Action;
use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
use core::cell::Cell;
use std::vec::Vec;

const DEVICE: DeviceIndex = DeviceIndex(0);
const STREAM: StreamId = StreamId(1);
const OTHER: StreamId = StreamId(2);

/// Enough time for everything that is worthwhile.
const ALL_US: u64 = 1_000_000;

/// The two kinds of units.
const KINDS: [&str; 2] = ["reclaim:auto", "reclaim:auto,expandable_segments:True"];

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

fn over(device: SimulatedDevice, config: &str) -> Simulated {
    Simulated::new([device], &Config::parse(config).unwrap()).unwrap()
}

/// Returns an allocator on a device that finishes all work at once.
fn allocator(config: &str) -> Simulated {
    over(SimulatedDevice::new(1 << 40).with_work_done_at_once(), config)
}

fn malloc(allocator: &Simulated, mib: u64) -> DevicePtr {
    allocator.malloc(DEVICE, mib * MIB, STREAM).unwrap()
}

/// Allocates blocks of these sizes in MiB, all live at one time, and frees them.
fn cache(allocator: &Simulated, mib: &[u64]) {
    let blocks: Vec<_> = mib.iter().map(|&mib| malloc(allocator, mib)).collect();
    blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
}

/// Lets `ms` milliseconds pass, and calls `maintain` every `step` milliseconds.
fn pass(allocator: &Simulated, ms: u64, step: u64) {
    for _ in 0..ms / step {
        allocator.device(DEVICE).unwrap().pause(step * 1000);
        allocator.pages(DEVICE).unwrap().maintain(ALL_US).unwrap();
    }
    allocator.check_invariants().unwrap();
}

fn reserved(allocator: &Simulated) -> u64 {
    allocator.stats(DEVICE).unwrap().totals().reserved_bytes().current as u64 / MIB
}

fn stats(allocator: &Simulated) -> ReclaimStats {
    allocator.pages(DEVICE).unwrap().reclaim_stats()
}

fn calls(allocator: &Simulated, calls: &[Call]) -> u64 {
    calls.iter().map(|&call| allocator.device(DEVICE).unwrap().calls(call)).sum()
}

#[test]
fn memory_that_nothing_uses_goes_back_once_its_idle_time_pays_for_the_calls() {
    for config in KINDS {
        let allocator = allocator(config);
        let live = malloc(&allocator, 40);
        cache(&allocator, &[40, 200, 60]);
        pass(&allocator, 20, 10);
        assert_eq!(reserved(&allocator), 340, "{config}: a moment");
        pass(&allocator, 60_000, 50);
        assert_eq!(reserved(&allocator), 40, "{config}: a minute");
        let stats = stats(&allocator);
        assert_eq!((stats.given_back, stats.idle, stats.needed_soon), (300 * MIB, 0, 0), "{config}: {stats:?}");
        assert!(stats.driver_us > 0 && stats.given_back_units >= 3, "{config}: {stats:?}");
        assert_eq!(calls(&allocator, &[Call::Wait, Call::Synchronize, Call::SynchronizeAll]), 0, "{config}");
        allocator.free(live).unwrap();
    }
}

#[test]
fn without_the_setting_or_a_budget_nothing_goes_back_and_nothing_is_asked() {
    for config in ["", "reclaim:off,reclaim_budget:1", "reclaim:auto,reclaim_budget:0"] {
        let allocator = allocator(config);
        cache(&allocator, &[40, 200]);
        pass(&allocator, 60_000, 50);
        assert_eq!(reserved(&allocator), 240, "{config}");
        assert_eq!(calls(&allocator, &[Call::Record, Call::Release, Call::IsIdle]), 0, "{config}");
        assert_eq!(stats(&allocator).looks > 0, config.contains("auto"));
    }
}

#[test]
fn what_is_used_in_each_period_stays() {
    for config in KINDS {
        let allocator = allocator(config);
        for _ in 0..300 {
            cache(&allocator, &[40, 200, 60]);
            pass(&allocator, 300, 10);
        }
        let stats = stats(&allocator);
        assert_eq!((reserved(&allocator), stats.given_back), (300, 0), "{config}: {stats:?}");
        assert!(stats.needed_soon >= 300 * MIB, "{config}: {stats:?}");
    }
}

#[test]
fn a_look_at_the_end_of_each_step_sees_what_the_step_used() {
    for config in KINDS {
        let allocator = allocator(config);
        for _ in 0..200 {
            cache(&allocator, &[40, 200, 60]);
            pass(&allocator, 1000, 1000);
        }
        assert_eq!(stats(&allocator).given_back, 0, "{config}: {:?}", stats(&allocator));
    }
}

#[test]
fn memory_of_an_earlier_phase_goes_back_while_requests_go_on() {
    for config in KINDS {
        let allocator = allocator(config);
        cache(&allocator, &[40, 400, 60]);
        for _ in 0..6000 {
            cache(&allocator, &[3, 30]);
            pass(&allocator, 10, 10);
        }
        assert!(reserved(&allocator) <= 80, "{config}: {} MiB, {:?}", reserved(&allocator), stats(&allocator));
    }
}

#[test]
fn memory_goes_back_after_the_work_that_used_it_and_segments_when_no_stream_works() {
    for config in KINDS {
        let allocator = over(SimulatedDevice::new(1 << 40).with_idle_streams_told(), config);
        let device = allocator.device(DEVICE).unwrap();
        let other = allocator.malloc(DEVICE, 40 * MIB, OTHER).unwrap();
        let block = malloc(&allocator, 200);
        device.launch(STREAM, block, 200 * MIB).unwrap();
        allocator.free(block).unwrap();
        pass(&allocator, 60_000, 50);
        assert_eq!((reserved(&allocator), stats(&allocator).busy), (240, 200 * MIB), "{config}: its own work");
        device.launch(OTHER, other, 40 * MIB).unwrap();
        device.complete(STREAM);
        pass(&allocator, 100, 50);
        let is_segment = config == KINDS[0];
        assert_eq!(reserved(&allocator), if is_segment { 240 } else { 40 }, "{config}: work of another stream");
        device.complete(OTHER);
        pass(&allocator, 100, 50);
        assert_eq!(reserved(&allocator), 40, "{config}");
        assert_eq!(calls(&allocator, &[Call::Wait, Call::Synchronize, Call::SynchronizeAll]), 0, "{config}");
        allocator.free(other).unwrap();
    }
}

#[test]
fn nothing_of_a_graph_goes_back_and_nothing_at_all_during_a_capture() {
    for config in KINDS {
        let allocator = allocator(config);
        let device = allocator.device(DEVICE).unwrap();
        cache(&allocator, &[200]);
        let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
        allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(OTHER), RoutePurpose::Capture).unwrap();
        device.set_capturing(OTHER, true);
        let block = allocator.malloc(DEVICE, 60 * MIB, OTHER).unwrap();
        allocator.free(block).unwrap();
        let before = calls(&allocator, &[Call::Record, Call::Release, Call::Unmap]);
        pass(&allocator, 60_000, 50);
        assert_eq!(calls(&allocator, &[Call::Record, Call::Release, Call::Unmap]), before, "{config}: a capture");
        device.set_capturing(OTHER, false);
        allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
        pass(&allocator, 60_000, 50);
        assert_eq!(reserved(&allocator), 60, "{config}: the graph uses its pool");
        // A stream captures a graph, and no `begin_capture` has announced this to the allocator.
        cache(&allocator, &[200]);
        device.set_capturing(STREAM, true);
        pass(&allocator, 60_000, 50);
        assert_eq!(reserved(&allocator), 260, "{config}: no event is recorded on the stream");
        device.set_capturing(STREAM, false);
        pass(&allocator, 60_000, 50);
        assert_eq!(reserved(&allocator), 60, "{config}");
    }
}

#[test]
fn a_failed_call_loses_at_most_the_unit_in_hand() {
    let error = DeviceError::new(ErrorKind::Other, 7);
    for config in KINDS {
        for call in Call::ALL {
            for persistent in [false, true] {
                let allocator = allocator(config);
                let device = allocator.device(DEVICE).unwrap();
                cache(&allocator, &[40, 200, 60]);
                device.fail(Failure { call, nth: device.calls(call) + 1, persistent, error });
                let mut failures = 0;
                for _ in 0..1200 {
                    device.pause(50_000);
                    failures += u64::from(allocator.pages(DEVICE).unwrap().maintain(ALL_US).is_err());
                    allocator.check_invariants().unwrap();
                }
                let leaked = allocator.stats(DEVICE).unwrap().leaked_bytes();
                assert!(failures > 0 || leaked == 0, "{config}, {call:?}: each loss is told");
                assert!(persistent || leaked <= 200 * MIB, "{config}, {call:?}: {leaked}");
                device.clear_failures();
                let block = malloc(&allocator, 40);
                device.launch(STREAM, block, 40 * MIB).unwrap();
                allocator.free(block).unwrap();
                pass(&allocator, 120_000, 50);
                assert_eq!(reserved(&allocator), 0, "{config}, {call:?}, {persistent}: {:?}", stats(&allocator));
            }
        }
    }
}

#[test]
fn a_lost_context_ends_it() {
    let allocator = allocator(KINDS[0]);
    let device = allocator.device(DEVICE).unwrap();
    cache(&allocator, &[40, 200]);
    let error = DeviceError::new(ErrorKind::ContextLost, 700);
    device.fail(Failure { call: Call::Release, nth: 1, persistent: false, error });
    let mut failed = 0;
    for _ in 0..1200 {
        device.pause(50_000);
        failed += u32::from(allocator.pages(DEVICE).unwrap().maintain(ALL_US).is_err());
    }
    assert!(failed > 1);
    assert_eq!(device.calls(Call::Release), 1);
}

#[test]
fn giving_back_and_obtaining_again_stay_within_the_budget_whatever_the_program_does() {
    for config in KINDS {
        let allocator = allocator(config);
        let device = allocator.device(DEVICE).unwrap();
        let sizes: Vec<u64> = (0..40).map(|at| 20 + 4 * at).collect();
        cache(&allocator, &sizes);
        let before = device.driver_ns();
        // Pauses that grow, so that each is longer than all earlier ones.
        let mut ms = 500;
        let mut passed = 0;
        while ms < 60_000 {
            pass(&allocator, ms, 50);
            cache(&allocator, &sizes);
            (passed, ms) = (passed + ms, ms + ms / 7);
        }
        let ns = device.driver_ns() - before;
        let share = ns as f64 / (passed as f64 * 1e6);
        let stats = stats(&allocator);
        assert!(stats.given_back > 0 && stats.obtained_again > 0, "{config}: {stats:?}");
        // The last units, which were obtained in the last step, had already been paid for.
        assert!(share < 0.011, "{config}: {share}, {stats:?}");
    }
}

#[test]
fn memory_obtained_again_too_early_makes_decisions_more_cautious() {
    let allocator = allocator(KINDS[0]);
    cache(&allocator, &[40, 200, 60]);
    let mut last = 0;
    let mut caution = 0;
    for _ in 0..30 {
        // The worst moment is just after memory went back.
        while stats(&allocator).given_back == last {
            pass(&allocator, 10, 10);
        }
        last = stats(&allocator).given_back;
        cache(&allocator, &[40, 200, 60]);
        pass(&allocator, 10, 10);
        caution = caution.max(stats(&allocator).caution);
    }
    let stats = stats(&allocator);
    assert!(stats.too_early_units > 30 && caution >= 1, "{caution}, {stats:?}");
}

#[test]
fn each_unit_is_traced_as_its_kind_is() {
    for (config, action) in KINDS.into_iter().zip([Action::SegmentFree, Action::SegmentUnmap]) {
        let allocator = allocator(config);
        allocator.trace(DEVICE).unwrap().record(100).unwrap();
        cache(&allocator, &[40, 200]);
        pass(&allocator, 60_000, 50);
        let mut bytes = 0;
        let visit = |entry: &crate::trace::TraceEntry| bytes += if entry.action == action { entry.size } else { 0 };
        allocator.trace(DEVICE).unwrap().for_each(visit);
        assert_eq!(bytes, 240 * MIB, "{config}");
    }
}

#[test]
fn a_pinned_segment_or_page_stays() {
    for config in KINDS {
        let allocator = allocator(config);
        let block = malloc(&allocator, 40);
        allocator.pages(DEVICE).unwrap().pin(block).unwrap();
        allocator.free(block).unwrap();
        pass(&allocator, 60_000, 50);
        assert_eq!(reserved(&allocator), 40, "{config}");
        allocator.pages(DEVICE).unwrap().unpin(block).unwrap();
        pass(&allocator, 60_000, 50);
        assert_eq!(reserved(&allocator), 0, "{config}");
    }
}

#[test]
fn a_call_takes_about_its_time_and_tells_that_something_is_left() {
    for config in KINDS {
        let allocator = allocator(config);
        let device = allocator.device(DEVICE).unwrap();
        cache(&allocator, &[40; 20]);
        let pages = allocator.pages(DEVICE).unwrap();
        let mut more = false;
        for _ in 0..1200 {
            device.pause(50_000);
            let before = device.driver_ns();
            more |= pages.maintain(200).unwrap();
            assert!(device.driver_ns() - before < 300_000, "{config}");
        }
        assert!(more, "{config}");
        assert_eq!(reserved(&allocator), 0, "{config}");
    }
}

/// A round that starts now, with this many bytes above the most ever held, and this many
/// nanoseconds.
fn round(allocator: &Simulated, excess: u64, ns: u64) -> Round {
    Round {
        now: now(allocator),
        driver_share: 0.01,
        held: allocator.arena(DEVICE).unwrap().ledger.reserved(),
        left: Cell::new(ns),
        excess: Cell::new(excess),
        blocked: Cell::new(false),
        more: Cell::new(false),
    }
}

fn now(allocator: &Simulated) -> Moment {
    Moment((allocator.device(DEVICE).unwrap().now_us() / 1000) as u32)
}

fn give(allocator: &Simulated, round: &Round) -> Result<bool, crate::error::Error> {
    let device = allocator.on(DEVICE).unwrap();
    let given = device.holdings().give_worthwhile(&device.arena.idle, round);
    allocator.check_invariants().unwrap();
    given
}

/// Makes the free memory of the large heap idle and quiet.
fn quiesce(allocator: &Simulated) {
    pass(allocator, 150, 50);
    let arena = allocator.arena(DEVICE).unwrap();
    let slot = arena.heaps.find_pair(0, STREAM).unwrap().slot(PoolKind::Large);
    assert!(allocator.on(DEVICE).unwrap().holdings().given_up().begin_epoch(slot, STREAM));
    allocator.on(DEVICE).unwrap().holdings().given_up().poll_departures();
}

/// Caches blocks, which are then idle and quiet.
fn cache_quiet(allocator: &Simulated, mib: &[u64]) {
    cache(allocator, mib);
    quiesce(allocator);
}

/// Sets the budget.
fn allow(allocator: &Simulated, us: u64) {
    let mut idle = allocator.arena(DEVICE).unwrap().idle.lock();
    idle.budget.spend(u64::MAX);
    idle.budget.earn(us, 1.0);
}

#[test]
fn with_caution_memory_goes_back_after_twice_the_time() {
    for (caution, expected) in [(0, 5000), (1, 10_000)] {
        let allocator = allocator(KINDS[0]);
        {
            let mut idle = allocator.arena(DEVICE).unwrap().idle.lock();
            // In a class without any other unit.
            idle.predictor.give_back(MIB, 32 * caution, 0, now(&allocator), 1000);
            for _ in 0..32 * caution {
                idle.predictor.obtain(MIB, now(&allocator));
            }
            idle.predictor.settle(now(&allocator));
            assert_eq!(idle.predictor.caution(), caution);
        }
        cache(&allocator, &[40]);
        let mut ms = 0;
        while reserved(&allocator) > 0 {
            pass(&allocator, 50, 50);
            ms += 50;
        }
        assert!((expected..expected + 200).contains(&ms), "caution {caution}: {ms} ms");
    }
}

#[test]
fn a_unit_of_exactly_the_excess_goes_back_and_is_not_too_early() {
    let allocator = allocator(KINDS[0]);
    cache_quiet(&allocator, &[40]);
    give(&allocator, &round(&allocator, 40 * MIB - 1, u64::MAX)).unwrap();
    assert_eq!(reserved(&allocator), 40);
    give(&allocator, &round(&allocator, 40 * MIB, u64::MAX)).unwrap();
    assert_eq!(reserved(&allocator), 0);
    cache_quiet(&allocator, &[40]);
    let stats = stats(&allocator);
    assert_eq!((stats.obtained_again_units, stats.too_early_units), (1, 0), "{stats:?}");
}

#[test]
fn a_budget_for_two_pages_gives_two_of_ten_neighbours() {
    let allocator = allocator(KINDS[1]);
    cache_quiet(&allocator, &[200]);
    let cost = allocator.arena(DEVICE).unwrap().idle.lock().budget.cost(UnitKind::Pages, 20 * MIB).both();
    allow(&allocator, (2 * cost).div_ceil(1000));
    give(&allocator, &round(&allocator, u64::MAX, u64::MAX)).unwrap();
    assert_eq!(reserved(&allocator), 160, "{:?}", stats(&allocator));
}

#[test]
fn quiet_pages_stay_during_a_capture_and_after_an_error() {
    let allocator = allocator(KINDS[1]);
    let device = allocator.device(DEVICE).unwrap();
    let [one, _, two, _] = [40, 20, 60, 20].map(|mib| malloc(&allocator, mib));
    [one, two].into_iter().for_each(|block| allocator.free(block).unwrap());
    quiesce(&allocator);
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(OTHER), RoutePurpose::Capture).unwrap();
    let unmapped = device.calls(Call::Unmap);
    allow(&allocator, 1_000_000);
    give(&allocator, &round(&allocator, u64::MAX, u64::MAX)).unwrap();
    assert_eq!(device.calls(Call::Unmap), unmapped);
    allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
    let error = DeviceError::new(ErrorKind::Other, 7);
    device.fail(Failure { call: Call::Unmap, nth: unmapped + 1, persistent: false, error });
    assert!(give(&allocator, &round(&allocator, u64::MAX, u64::MAX)).is_err());
    assert_eq!(reserved(&allocator), 80, "the smaller block of 40 MiB stays, beside those in use");
}

#[test]
fn a_call_without_budget_leaves_nothing_for_a_further_call() {
    for config in KINDS {
        let allocator = allocator(config);
        cache_quiet(&allocator, &[40]);
        for (ns, budget, more) in [(u64::MAX, 0, false), (0, 1_000_000, true), (0, 0, true)] {
            allow(&allocator, budget);
            let round = round(&allocator, u64::MAX, ns);
            give(&allocator, &round).unwrap();
            assert_eq!((round.more.get(), reserved(&allocator)), (more, 40), "{config}: {ns}, {budget}");
        }
    }
}

#[test]
fn neighbouring_pages_freed_at_different_times_go_back_in_one_call() {
    let allocator = allocator(KINDS[1]);
    let [low, high] = [(); 2].map(|()| malloc(&allocator, 20));
    assert_eq!(high, low.offset(20 * MIB));
    for block in [high, low] {
        allocator.free(block).unwrap();
        quiesce(&allocator);
    }
    give(&allocator, &round(&allocator, u64::MAX, u64::MAX)).unwrap();
    assert_eq!((reserved(&allocator), stats(&allocator).given_back_units), (0, 2));
}

#[test]
fn a_driver_ten_times_as_slow_uses_the_time_up() {
    let mut costs = DriverCosts::h200();
    assert!(costs.set(Call::Release, [CostPoint { bytes: 0, ns: 380_000 }]));
    let allocator = over(SimulatedDevice::new(1 << 40).with_work_done_at_once().with_costs(costs), KINDS[0]);
    cache_quiet(&allocator, &[40; 20]);
    allow(&allocator, 1_000_000);
    give(&allocator, &round(&allocator, u64::MAX, 200_000)).unwrap();
    assert_eq!(stats(&allocator).given_back_units, 1);
}

#[test]
fn idle_memory_is_needed_soon_or_busy_or_unpaid() {
    for config in KINDS {
        let is_segment = config == KINDS[0];
        let allocator = allocator(config);
        cache_quiet(&allocator, &[40]);
        allow(&allocator, 0);
        for (excess, blocked, expected) in [
            (0, false, [40, 0, 0]),
            (u64::MAX, false, [0, 0, 40]),
            (u64::MAX, true, if is_segment { [0, 40, 0] } else { [0, 0, 40] }),
        ] {
            let round = round(&allocator, excess, u64::MAX);
            round.blocked.set(blocked);
            give(&allocator, &round).unwrap();
            let ReclaimStats { needed_soon, busy, unpaid, .. } = stats(&allocator);
            assert_eq!([needed_soon, busy, unpaid].map(|bytes| bytes / MIB), expected, "{config}: {blocked}");
        }
    }
}

#[test]
fn the_handle_of_an_ended_stream_is_not_asked() {
    let device = SimulatedDevice::new(1 << 40).with_work_done_at_once().with_idle_streams_told();
    let allocator = over(device, KINDS[0]);
    let live = allocator.malloc(DEVICE, 40 * MIB, OTHER).unwrap();
    allocator.stream_destroyed(DEVICE, OTHER).unwrap();
    cache_quiet(&allocator, &[40]);
    let asked = calls(&allocator, &[Call::IsIdle]);
    give(&allocator, &round(&allocator, u64::MAX, u64::MAX)).unwrap();
    assert_eq!((reserved(&allocator), calls(&allocator, &[Call::IsIdle])), (40, asked + 1), "the other stream");
    allocator.free(live).unwrap();
}

#[test]
fn a_stream_that_may_have_ended_unreported_is_not_asked_about_a_capture() {
    let device = SimulatedDevice::new(1 << 40).with_unreported_ends();
    let allocator = over(device, KINDS[0]);
    cache(&allocator, &[40]);
    pass(&allocator, 150, 50);
    let arena = allocator.arena(DEVICE).unwrap();
    let slot = arena.heaps.find_pair(0, STREAM).unwrap().slot(PoolKind::Large);
    arena.heaps.lock(slot).sets.quiet = u64::MAX;
    let asked = calls(&allocator, &[Call::IsCapturing]);
    give(&allocator, &round(&allocator, u64::MAX, u64::MAX)).unwrap();
    assert_eq!((reserved(&allocator), calls(&allocator, &[Call::IsCapturing])), (0, asked));
}

#[test]
fn what_the_system_wants_back_goes_back_although_it_is_needed_soon() {
    for (owed, left) in [(0, 40), (40 * MIB - 1, 40), (40 * MIB, 0), (u64::MAX, 0)] {
        let mut device = AlteredDevice::new(1 << 40, Change::Owes(owed));
        device.inner = SimulatedDevice::new(1 << 40).with_work_done_at_once();
        let config = Config::parse(KINDS[0]).unwrap();
        let allocator = Allocator::<_, spin::mutex::SpinMutex<()>, Growable>::new([device], &config).unwrap();
        let maintain = || allocator.pages(DEVICE).unwrap().maintain(ALL_US).unwrap();
        let block = allocator.malloc(DEVICE, 40 * MIB, STREAM).unwrap();
        maintain();
        allocator.free(block).unwrap();
        // No time for the driver's calls is left of the budget at first, and the block is not idle
        // for long.
        for _ in 0..4 {
            allocator.device(DEVICE).unwrap().inner.pause(100_000);
            maintain();
        }
        let reserved = allocator.stats(DEVICE).unwrap().totals().reserved_bytes().current as u64 / MIB;
        assert_eq!(reserved, left, "{owed}");
    }
}
