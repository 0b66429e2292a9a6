//! The planned policy from outside, on the simulated device.

use crate::allocator::Allocator;
use crate::arena::request::Forecast;
use crate::config::Config;
use crate::device::simulated::SimulatedDevice;
use crate::error::{Error, PointerFault};
use crate::planned::is_planned;
use crate::planned::tests_sequence::first_fit;
use crate::pool::{PoolOptions, Route, RoutePurpose};
use crate::snapshot::BlockState;
use crate::stats::{PlannedReport, Stage};
use crate::tables::Growable;
use crate::tests::own::parse;
use crate::trace::Action;
use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
use cachalot_planner::Plan;
use core::sync::atomic::{AtomicBool, Ordering};
use std::vec::Vec;

pub(super) type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;
pub(super) const DEVICE: DeviceIndex = DeviceIndex(0);
pub(super) const STREAM: StreamId = StreamId(0);
pub(super) const OTHER: StreamId = StreamId(7);

fn allocator(capacity: u64, config: &str) -> Simulated {
    Allocator::new([SimulatedDevice::new(capacity)], &parse(config)).unwrap()
}

fn planned() -> Simulated {
    allocator(1 << 30, "policy:planned")
}

pub(super) fn report(allocator: &Simulated) -> PlannedReport {
    allocator.plans(DEVICE).unwrap().report()
}

pub(super) fn stat(allocator: &Simulated, key: &str) -> i64 {
    allocator.stats(DEVICE).unwrap().totals().get(key).unwrap()
}

/// Announces an iteration, and plans an observation at once: the plans become active at the next
/// announcement.
fn announce(allocator: &Simulated) {
    allocator.plans(DEVICE).unwrap().end_iteration().unwrap();
    allocator.check_invariants().unwrap();
    if let Some(observed) = allocator.plans(DEVICE).unwrap().observed() {
        let plans: Vec<Plan> = observed.streams.iter().map(|stream| first_fit(&stream.problem)).collect();
        allocator.plans(DEVICE).unwrap().adopt(observed, &plans).unwrap();
    }
}

/// An iteration of a small program: three blocks, with the first block freed before the request of
/// the third.
pub(super) fn iterate(allocator: &Simulated, stream: StreamId) -> [DevicePtr; 3] {
    let first = allocator.malloc(DEVICE, 3 * MIB, stream).unwrap();
    let second = allocator.malloc(DEVICE, 1000, stream).unwrap();
    allocator.free(first).unwrap();
    let third = allocator.malloc(DEVICE, 2 * MIB, stream).unwrap();
    allocator.free(second).unwrap();
    allocator.free(third).unwrap();
    [first, second, third]
}

/// An allocator with an active plan for the small program.
pub(super) fn serving(config: &str) -> Simulated {
    let allocator = allocator(1 << 30, config);
    for _ in 0..2 {
        announce(&allocator);
        iterate(&allocator, STREAM);
    }
    announce(&allocator);
    assert_eq!(report(&allocator).stage, Stage::Serving);
    allocator
}

#[test]
fn one_iteration_is_observed_and_the_next_but_one_is_served_from_one_segment() {
    let allocator = planned();
    assert_eq!(report(&allocator).stage, Stage::Waiting);
    announce(&allocator);
    assert_eq!(report(&allocator).stage, Stage::Observing);
    iterate(&allocator, STREAM);
    announce(&allocator);
    assert_eq!(report(&allocator).stage, Stage::Ready);
    iterate(&allocator, STREAM);
    announce(&allocator);
    assert_eq!(report(&allocator).stage, Stage::Serving);
    assert_eq!(stat(&allocator, "segment.all.current"), 1);
    // 3 MiB and 1 KiB at once are the most, in whole pages of 2 MiB.
    assert_eq!(stat(&allocator, "reserved_bytes.all.current"), 4 << 20);
    let peak_before = stat(&allocator, "allocated_bytes.all.peak");
    for _ in 0..3 {
        let [first, _, third] = iterate(&allocator, STREAM);
        assert_eq!(first, third);
        announce(&allocator);
    }
    let report = report(&allocator);
    assert_eq!((report.served, report.fallback(), report.deviations()), (9, 0, 0));
    assert_eq!((report.peak_bytes, report.lower_bound_bytes), (3 * MIB + 1024, 3 * MIB + 1024));
    assert_eq!(report.segment_bytes, 4 << 20);
    assert_eq!(stat(&allocator, "allocation.all.allocated"), 15);
    assert_eq!(stat(&allocator, "allocation.all.current"), 0);
    assert_eq!(stat(&allocator, "requested_bytes.all.current"), 0);
    assert_eq!(stat(&allocator, "allocated_bytes.all.peak"), peak_before);
    assert_eq!(allocator.device(DEVICE).unwrap().outstanding().segments, 1);
}

#[test]
fn what_is_in_use_counts_like_any_other_block() {
    let allocator = serving("policy:planned,fallback:bfc");
    let block = allocator.malloc(DEVICE, 3 * MIB, STREAM).unwrap();
    assert_eq!(stat(&allocator, "allocation.all.current"), 1);
    assert_eq!(stat(&allocator, "allocated_bytes.large_pool.current"), 3 << 20);
    assert_eq!(stat(&allocator, "active_bytes.all.current"), 3 << 20);
    let found = allocator.base_of(block.offset(77)).unwrap();
    assert_eq!((found.base, found.size, found.requested, found.stream), (block, 3 * MIB, 3 * MIB, STREAM));
    assert_eq!((found.segment_bytes, found.device), (4 * MIB, DEVICE));
    let snapshot = allocator.snapshot();
    let [segment] = snapshot.iter().filter(|segment| is_planned(segment.pool)).collect::<Vec<_>>()[..] else {
        panic!("{snapshot:?}");
    };
    assert_eq!(segment.allocated_size(), 3 * MIB);
    assert_eq!((segment.total_size, segment.stream), (4 * MIB, STREAM));
    let states: Vec<_> = segment.blocks.iter().map(|block| block.state).collect();
    assert_eq!(states, [BlockState::ActiveAllocated, BlockState::Inactive]);
    allocator.check_invariants().unwrap();
    assert_eq!(stat(&allocator, "allocation.all.allocated"), 7);
    // Whoever looked at it has not taken it away from anybody.
    assert_eq!(allocator.base_of(block).unwrap().base, block);
    assert_eq!(allocator.free_sized(block, 5), Err(Error::WrongSize { ptr: block, given: 5, requested: 3 * MIB }));
    let inside =
        Error::InvalidPointer { ptr: block.offset(512), fault: PointerFault::Interior { block, requested: 3 * MIB } };
    assert_eq!(allocator.free(block.offset(512)), Err(inside));
    allocator.free_sized(block, 3 * MIB).unwrap();
    for ptr in [block, block.offset(512)] {
        assert_eq!(allocator.free(ptr), Err(Error::InvalidPointer { ptr, fault: PointerFault::Free }));
    }
    assert_eq!(stat(&allocator, "allocation.all.current"), 0);
    allocator.check_invariants().unwrap();
    // Its bytes are the plan's again.
    announce(&allocator);
    assert_eq!(iterate(&allocator, STREAM)[0], block);
    assert_eq!(report(&allocator).occupied, 0);
}

#[test]
fn the_plans_memory_is_held_until_it_is_given_up() {
    let allocator = serving("policy:planned");
    allocator.trim(DEVICE, 4 * MIB).unwrap();
    assert_eq!(stat(&allocator, "reserved_bytes.all.current"), 4 << 20);
    let first = iterate(&allocator, STREAM)[0];
    // Nothing is as it was, over and over.
    for _ in 0..2 {
        announce(&allocator);
        assert_eq!(report(&allocator).stage, Stage::Serving);
        for bytes in [5, 6, 7] {
            let block = allocator.malloc(DEVICE, bytes * MIB, STREAM).unwrap();
            allocator.free(block).unwrap();
        }
    }
    let held = allocator.malloc(DEVICE, 3 * MIB, STREAM).unwrap();
    assert_eq!(held, first);
    announce(&allocator);
    assert_eq!(report(&allocator).stage, Stage::Observing);
    assert_eq!((report(&allocator).given_up, report(&allocator).segment_bytes), (1, 0));
    // What the program still holds of it stays until it is freed, and then it is like any cached
    // segment.
    allocator.check_invariants().unwrap();
    assert_eq!(allocator.base_of(held).unwrap().segment_bytes, 4 << 20);
    allocator.empty_cache(DEVICE).unwrap();
    assert_eq!(stat(&allocator, "reserved_bytes.all.current"), 4 << 20);
    allocator.free(held).unwrap();
    allocator.check_invariants().unwrap();
    allocator.empty_cache(DEVICE).unwrap();
    assert_eq!(stat(&allocator, "reserved_bytes.all.current"), 0);
    // And the iteration that was observed meanwhile can be planned.
    announce(&allocator);
    for _ in 0..2 {
        iterate(&allocator, STREAM);
        announce(&allocator);
    }
    iterate(&allocator, STREAM);
    announce(&allocator);
    assert_eq!(report(&allocator).stage, Stage::Serving);
}

#[test]
fn bytes_that_another_stream_uses_are_occupied_until_it_is_done() {
    let allocator = planned();
    let iterate = |hold: bool| {
        let block = allocator.malloc(DEVICE, 3 * MIB, STREAM).unwrap();
        allocator.record_stream(block, STREAM).unwrap();
        allocator.record_stream(block, OTHER).unwrap();
        allocator.free(block).unwrap();
        let second = allocator.malloc(DEVICE, 3 * MIB, STREAM).unwrap();
        if !hold {
            allocator.device(DEVICE).unwrap().complete(OTHER);
        }
        allocator.free(second).unwrap();
        allocator.check_invariants().unwrap();
        [block, second]
    };
    announce(&allocator);
    iterate(false);
    announce(&allocator);
    announce(&allocator);
    let [block, second] = iterate(true);
    // Within the iteration the plan lets nobody else have it.
    assert_ne!(block, second);
    assert_eq!(report(&allocator).served, 2);
    assert_eq!(stat(&allocator, "active.all.current"), 1);
    announce(&allocator);
    // Nor in the next one, as long as the other stream is not done.
    let [fallback, again] = iterate(false);
    assert_eq!((fallback == block, again), (false, second));
    assert_eq!(report(&allocator).occupied, 1);
    announce(&allocator);
    assert_eq!(iterate(false), [block, second]);
    assert_eq!(report(&allocator).occupied, 1);
    assert_eq!(stat(&allocator, "allocation.all.current"), 0);
}

#[test]
fn streams_have_segments_and_sequences_of_their_own() {
    let allocator = planned();
    let both = || {
        // By turns, and in another order each time.
        [iterate(&allocator, STREAM), iterate(&allocator, OTHER)]
    };
    announce(&allocator);
    both();
    announce(&allocator);
    announce(&allocator);
    assert_eq!(stat(&allocator, "segment.all.current"), 2);
    let [own, others] = both();
    announce(&allocator);
    let again = iterate(&allocator, OTHER);
    assert_eq!((iterate(&allocator, STREAM), again), (own, others));
    assert!(own.iter().all(|block| !others.contains(block)));
    // A stream that was not observed is the fallback's.
    iterate(&allocator, StreamId(9));
    let report = report(&allocator);
    assert_eq!((report.served, report.extra), (12, 3));
    // One that is destroyed takes its plan along; its number may mean another stream from then on.
    let held = allocator.malloc(DEVICE, 3 * MIB, OTHER);
    allocator.stream_destroyed(DEVICE, OTHER).unwrap();
    allocator.check_invariants().unwrap();
    assert_ne!(allocator.malloc(DEVICE, 1000, OTHER).unwrap(), others[1]);
    allocator.free(held.unwrap()).unwrap();
    allocator.check_invariants().unwrap();
    assert!(
        !allocator
            .snapshot()
            .iter()
            .any(|segment| is_planned(segment.pool) && segment.stream == OTHER && segment.active_size() > 0)
    );
}

#[test]
fn a_stream_destroyed_while_it_is_observed_or_planned_for_is_not_served() {
    let allocator = planned();
    announce(&allocator);
    iterate(&allocator, OTHER);
    allocator.stream_destroyed(DEVICE, OTHER).unwrap();
    announce(&allocator);
    assert_eq!(report(&allocator).stage, Stage::Observing);
    iterate(&allocator, OTHER);
    allocator.plans(DEVICE).unwrap().end_iteration().unwrap();
    let observed = allocator.plans(DEVICE).unwrap().observed().unwrap();
    allocator.stream_destroyed(DEVICE, OTHER).unwrap();
    let plans = [first_fit(&observed.streams[0].problem)];
    assert!(matches!(allocator.plans(DEVICE).unwrap().adopt(observed, &plans), Err(Error::PlanRefused(_))));
    announce(&allocator);
    assert_eq!(report(&allocator).stage, Stage::Observing);
}

#[test]
fn without_memory_for_the_plan_everything_stays_as_it_is() {
    let allocator = planned();
    announce(&allocator);
    let weight = allocator.malloc(DEVICE, 700 * MIB, STREAM).unwrap();
    for _ in 0..2 {
        let block = allocator.malloc(DEVICE, 200 * MIB, STREAM).unwrap();
        allocator.free(block).unwrap();
    }
    announce(&allocator);
    let more = allocator.malloc(DEVICE, 280 * MIB, STREAM).unwrap();
    let mut planned = report(&allocator);
    assert_eq!((planned.stage, planned.peak_bytes), (Stage::Ready, 0));
    announce(&allocator);
    planned = report(&allocator);
    assert_eq!((planned.stage, planned.no_memory, planned.plans), (Stage::Ready, 1, 0));
    allocator.check_invariants().unwrap();
    allocator.free(more).unwrap();
    // What the fallback has cached is given back for the plan.
    announce(&allocator);
    planned = report(&allocator);
    assert_eq!((planned.stage, planned.no_memory, planned.plans), (Stage::Serving, 1, 1));
    // The weight stands in the sequence as one that lasts.
    let another = allocator.malloc(DEVICE, 700 * MIB, STREAM);
    assert!(matches!(another, Err(Error::OutOfMemory(_))));
    assert_eq!(report(&allocator).lasting, 1);
    let block = allocator.malloc(DEVICE, 200 * MIB, STREAM).unwrap();
    let Err(Error::OutOfMemory(oom)) = allocator.malloc(DEVICE, 800 * MIB, STREAM) else { panic!("it fits") };
    assert_eq!((oom.allocated, oom.reserved, oom.private_free), (900 << 20, 900 << 20, 0));
    allocator.free(block).unwrap();
    allocator.free(weight).unwrap();
    allocator.check_invariants().unwrap();
}

#[test]
fn the_limit_holds_for_plans_too() {
    let allocator = planned();
    announce(&allocator);
    iterate(&allocator, STREAM);
    announce(&allocator);
    allocator.settings(DEVICE).unwrap().set_limit(Some(3 << 20));
    announce(&allocator);
    assert_eq!((report(&allocator).stage, report(&allocator).no_memory), (Stage::Ready, 1));
    allocator.settings(DEVICE).unwrap().set_limit(Some(4 << 20));
    announce(&allocator);
    assert_eq!(report(&allocator).stage, Stage::Serving);
}

#[test]
fn plans_are_given_up_before_a_request_fails() {
    let allocator = serving("policy:planned");
    allocator.settings(DEVICE).unwrap().set_limit(Some(20 * MIB));
    let kept = allocator.malloc(DEVICE, 16 * MIB, STREAM).unwrap();
    allocator.free(kept).unwrap();
    assert_eq!(report(&allocator).stage, Stage::Serving);
    // The plan's 4 MiB are in the way, behind the 16 that are cached.
    let cached = Forecast::Release(kept);
    assert_eq!(allocator.forecast(DEVICE).unwrap().malloc(20 * MIB, STREAM), Ok(cached));
    let whole = allocator.malloc(DEVICE, 20 * MIB, STREAM).unwrap();
    assert_eq!(report(&allocator).stage, Stage::Waiting);
    assert_eq!(stat(&allocator, "num_ooms"), 0);
    allocator.check_invariants().unwrap();
    allocator.free(whole).unwrap();
    // What is in use of a plan stays where it is, and its segment with it.
    let allocator = serving("policy:planned");
    allocator.settings(DEVICE).unwrap().set_limit(Some(20 * MIB));
    let block = allocator.malloc(DEVICE, 3 * MIB, STREAM).unwrap();
    assert_eq!(allocator.forecast(DEVICE).unwrap().malloc(20 * MIB, STREAM), Ok(Forecast::OutOfMemory));
    assert!(matches!(allocator.malloc(DEVICE, 20 * MIB, STREAM), Err(Error::OutOfMemory(_))));
    assert_eq!(stat(&allocator, "allocated_bytes.all.current"), 3 << 20);
    allocator.check_invariants().unwrap();
    allocator.free(block).unwrap();
    allocator.malloc(DEVICE, 20 * MIB, STREAM).unwrap();
    allocator.check_invariants().unwrap();
}

#[test]
fn what_goes_into_a_private_pool_or_a_graph_is_not_planned() {
    let allocator = planned();
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    let routed = || {
        allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(STREAM), RoutePurpose::Requests).unwrap();
        let block = allocator.malloc(DEVICE, 5 * MIB, STREAM).unwrap();
        allocator.free(block).unwrap();
        allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Requests).unwrap();
        let others = allocator.malloc(DEVICE, 2 * MIB, OTHER).unwrap();
        allocator.free(others).unwrap();
        (block, others)
    };
    announce(&allocator);
    iterate(&allocator, STREAM);
    routed();
    announce(&allocator);
    announce(&allocator);
    iterate(&allocator, STREAM);
    let (block, _) = routed();
    assert_eq!(allocator.base_of(block), Err(Error::InvalidPointer { ptr: block, fault: PointerFault::Free }));
    let mut planned = report(&allocator);
    assert_eq!((planned.served, planned.extra), (4, 0));
    announce(&allocator);
    // A route that leads others somewhere keeps nobody else from the plan.
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(StreamId(3)), RoutePurpose::Requests).unwrap();
    iterate(&allocator, STREAM);
    allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Requests).unwrap();
    planned = report(&allocator);
    assert_eq!((planned.served, planned.extra), (7, 0));
    announce(&allocator);
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(OTHER), RoutePurpose::Capture).unwrap();
    iterate(&allocator, STREAM);
    allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
    assert_eq!(report(&allocator).served, 7);
}

#[test]
fn plans_that_are_none_are_refused() {
    let allocator = planned();
    announce(&allocator);
    iterate(&allocator, STREAM);
    allocator.plans(DEVICE).unwrap().end_iteration().unwrap();
    assert_eq!(report(&allocator).stage, Stage::Planning);
    let observed = allocator.plans(DEVICE).unwrap().observed().unwrap();
    assert_eq!(allocator.plans(DEVICE).unwrap().observed(), None);
    let problem = &observed.streams[0].problem;
    assert_eq!(problem.buffers.len(), 3);
    let overlapping = Plan { offsets: [0, 0, 0].into(), peak: 3 << 20 };
    let beyond = Plan { offsets: [0, 1 << 61, 1 << 22].into(), peak: (1 << 61) + 1024 };
    let right = first_fit(problem);
    let adopt = |plans: &[Plan]| allocator.plans(DEVICE).unwrap().adopt(observed.clone(), plans);
    assert!(matches!(adopt(&[overlapping]), Err(Error::PlanRefused(_))));
    assert!(matches!(adopt(&[]), Err(Error::PlanRefused(_))));
    assert!(matches!(adopt(&[beyond]), Err(Error::TooLarge(_))));
    adopt(core::slice::from_ref(&right)).unwrap();
    // Once is enough.
    assert!(matches!(adopt(&[right]), Err(Error::PlanRefused(_))));
    assert!(matches!(allocator.plans(DeviceIndex(1)), Err(Error::UnknownDevice(_))));
}

#[test]
fn another_policy_takes_announcements_and_does_nothing() {
    let allocator = allocator(1 << 30, "");
    for _ in 0..4 {
        announce(&allocator);
        iterate(&allocator, STREAM);
    }
    assert_eq!(report(&allocator), PlannedReport::default());
    assert_eq!(allocator.plans(DEVICE).unwrap().observed(), None);
}

#[test]
fn an_iteration_that_cannot_be_planned_is_followed_by_an_observed_one() {
    let allocator = planned();
    announce(&allocator);
    let weight = allocator.malloc(DEVICE, 3 * MIB, STREAM).unwrap();
    announce(&allocator);
    assert_eq!(report(&allocator).stage, Stage::Observing);
    // It is no part of what is observed now.
    allocator.free(weight).unwrap();
    iterate(&allocator, STREAM);
    allocator.plans(DEVICE).unwrap().end_iteration().unwrap();
    assert_eq!(allocator.plans(DEVICE).unwrap().observed().unwrap().streams[0].problem.buffers.len(), 3);
}

#[test]
fn what_is_served_and_freed_is_in_the_trace() {
    let allocator = serving("policy:planned");
    allocator.trace(DEVICE).unwrap().record(100).unwrap();
    let [first, second, third] = iterate(&allocator, STREAM);
    let mut seen = Vec::new();
    allocator.trace(DEVICE).unwrap().for_each(|entry| seen.push((entry.action, entry.addr, entry.size)));
    let freed = |addr, size| [(Action::FreeRequested, addr, size), (Action::FreeCompleted, addr, size)];
    let mut expected = [(Action::Alloc, first, 3 * MIB), (Action::Alloc, second, 1000)].to_vec();
    expected.extend(freed(first, 3 * MIB));
    expected.push((Action::Alloc, third, 2 * MIB));
    expected.extend(freed(second, 1000).into_iter().chain(freed(third, 2 * MIB)));
    assert_eq!(seen, expected);
    assert_eq!(report(&allocator).served, 3);
    allocator.check_invariants().unwrap();
}

#[test]
fn a_block_freed_at_a_count_is_occupied_until_the_frontier_reaches_it() {
    let allocator = planned();
    let iterate = |count: u64| {
        let block = allocator.malloc(DEVICE, 3 * MIB, STREAM).unwrap();
        allocator.free_at(block, count).unwrap();
        let second = allocator.malloc(DEVICE, 3 * MIB, STREAM).unwrap();
        allocator.free(second).unwrap();
        allocator.check_invariants().unwrap();
        [block, second]
    };
    announce(&allocator);
    iterate(1);
    allocator.set_safe_frontier(DEVICE, 1).unwrap();
    announce(&allocator);
    announce(&allocator);
    let blocks = iterate(2);
    assert_ne!(blocks[0], blocks[1]);
    announce(&allocator);
    assert_ne!(iterate(2)[0], blocks[0]);
    assert_eq!(report(&allocator).occupied, 1);
    allocator.set_safe_frontier(DEVICE, 2).unwrap();
    announce(&allocator);
    assert_eq!(iterate(3), blocks);
}

#[test]
fn without_the_cache_nothing_is_served_from_a_plan() {
    let allocator = serving("policy:planned");
    let held = allocator.malloc(DEVICE, 3 * MIB, STREAM).unwrap();
    allocator.settings(DEVICE).unwrap().set_caching(false);
    allocator.free(held).unwrap();
    iterate(&allocator, STREAM);
    assert_eq!(report(&allocator).served, 1);
    allocator.check_invariants().unwrap();
}

#[test]
fn the_policy_and_its_settings_stay() {
    let allocator = serving("policy:planned,fallback:small_first_fit,plan_deadline_ms:5");
    allocator.configure(&Config::new());
    let config = allocator.settings(DEVICE).unwrap().config();
    assert_eq!(config.policy_name(), "planned");
    assert_eq!(config.planned().unwrap().plan_deadline_ms, 5);
    assert_eq!(config.policy().name(), "small_first_fit");
}

/// The counting of a block is settled when the block is handed out, by the settings active when
/// the plan came.
#[test]
fn a_block_of_a_plan_counts_as_oversize_by_the_settings_that_the_plan_began_with() {
    for oversize in [false, true] {
        let [before, after] = ["", "max_split_size_mb:20"].map(|text| Config::parse(text).unwrap());
        let (before, after) = if oversize { (after, before) } else { (before, after) };
        let allocator = planned();
        allocator.configure(&before);
        for _ in 0..2 {
            announce(&allocator);
            allocator.free(allocator.malloc(DEVICE, 24 * MIB, STREAM).unwrap()).unwrap();
        }
        announce(&allocator);
        let block = allocator.malloc(DEVICE, 24 * MIB, STREAM).unwrap();
        assert_eq!(report(&allocator).served, 1);
        let counted = stat(&allocator, "oversize_allocations.current");
        assert_eq!(counted, i64::from(oversize));
        allocator.configure(&after);
        // Listed from here on.
        allocator.snapshot();
        assert_eq!(stat(&allocator, "oversize_allocations.current"), counted);
        allocator.free(block).unwrap();
    }
}

#[test]
fn who_finds_a_plan_locked_waits_for_it() {
    let allocator = serving("policy:planned");
    let before = report(&allocator).served;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                report(&allocator);
            }
        });
        for _ in 0..1000 {
            iterate(&allocator, STREAM);
            allocator.plans(DEVICE).unwrap().end_iteration().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    let report = report(&allocator);
    assert_eq!((report.served - before, report.deviations()), (3000, 0));
    allocator.check_invariants().unwrap();
}

#[test]
fn an_observation_survives_the_end_of_a_stream_without_requests_in_it() {
    let allocator = planned();
    iterate(&allocator, OTHER);
    announce(&allocator);
    iterate(&allocator, STREAM);
    allocator.stream_destroyed(DEVICE, OTHER).unwrap();
    announce(&allocator);
    assert_eq!(report(&allocator).stage, Stage::Ready);
}

#[test]
fn an_address_inside_a_block_of_a_plan_is_recorded_on_no_stream() {
    let allocator = serving("policy:planned");
    let block = allocator.malloc(DEVICE, 3 * MIB, STREAM).unwrap();
    allocator.record_stream(block.offset(512), STREAM).unwrap_err();
    allocator.record_stream(block, STREAM).unwrap();
    allocator.free(block).unwrap();
}

#[test]
fn what_remains_includes_the_blocks_of_plans() {
    let allocator = serving("policy:planned");
    let remaining = || allocator.parking(DEVICE).unwrap().remaining().unwrap();
    let (before, block) = (remaining(), allocator.malloc(DEVICE, 3 * MIB, STREAM).unwrap());
    let held = remaining();
    assert_eq!((held.blocks - before.blocks, before.cached - held.cached), (3 * MIB, 3 * MIB));
    allocator.free(block).unwrap();
    assert_eq!(remaining(), before);
}

#[test]
fn a_wrong_size_of_a_block_of_a_plan_frees_nothing() {
    let allocator = serving("policy:planned");
    let block = allocator.malloc(DEVICE, 3 * MIB, STREAM).unwrap();
    assert_eq!(allocator.free_sized(block, 5), Err(Error::WrongSize { ptr: block, given: 5, requested: 3 * MIB }));
    allocator.free(block).unwrap();
    assert_eq!(stat(&allocator, "allocation.all.current"), 0);
}

/// Returns whether plans for the iteration `observed` stay active for several iterations of
/// another kind.
fn stays_in_force(observed: impl Fn(&Simulated), repeated: impl Fn(&Simulated)) -> bool {
    let allocator = planned();
    for _ in 0..2 {
        announce(&allocator);
        observed(&allocator);
    }
    announce(&allocator);
    assert_eq!(report(&allocator).stage, Stage::Serving);
    for _ in 0..6 {
        repeated(&allocator);
        announce(&allocator);
    }
    report(&allocator).given_up == 0
}

#[test]
fn one_deviation_in_four_requests_gives_no_plan_up() {
    let malloc = |allocator: &Simulated, mib: u64| allocator.malloc(DEVICE, mib * MIB, STREAM).unwrap();
    let free = |allocator: &Simulated, block| allocator.free(block).unwrap();
    // Two blocks that outlive the iteration, beside an extra one.
    let lasting = |allocator: &Simulated| {
        let [one, two] = [1, 2].map(|mib| malloc(allocator, mib));
        let _kept = [3, 4].map(|mib| malloc(allocator, mib));
        [one, two].into_iter().for_each(|block| free(allocator, block));
    };
    assert!(stays_in_force(lasting, |allocator| {
        free(allocator, malloc(allocator, 9));
        lasting(allocator);
    }));
    // The third block lies where the first one was, which is freed too late.
    assert!(stays_in_force(
        |allocator| {
            let [one, two] = [3, 1].map(|mib| malloc(allocator, mib));
            free(allocator, one);
            let [three, four] = [2, 4].map(|mib| malloc(allocator, mib));
            [two, three, four].into_iter().for_each(|block| free(allocator, block));
        },
        |allocator| {
            let before = report(allocator).occupied;
            let blocks = [3, 1, 2].map(|mib| malloc(allocator, mib));
            blocks.into_iter().for_each(|block| free(allocator, block));
            free(allocator, malloc(allocator, 4));
            assert_eq!(report(allocator).occupied, before + 1);
        },
    ));
}

#[test]
fn a_peak_counts_blocks_that_a_snapshot_has_moved_to_the_heap() {
    let allocator = planned();
    let malloc = |mib: &[u64]| mib.iter().map(|mib| allocator.malloc(DEVICE, mib * MIB, STREAM).unwrap()).collect();
    let free = |blocks: Vec<DevicePtr>| blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    for _ in 0..2 {
        announce(&allocator);
        free(malloc(&[1, 2, 3, 4]));
    }
    announce(&allocator);
    allocator.stats(DEVICE).unwrap().reset_peaks();
    let first: Vec<_> = malloc(&[1, 2]);
    allocator.snapshot();
    let second: Vec<_> = malloc(&[3, 4]);
    assert_eq!(report(&allocator).served, 4);
    free(second);
    free(first);
    assert_eq!((stat(&allocator, "allocation.all.peak"), stat(&allocator, "allocated_bytes.all.peak")), (4, 10 << 20));
}

#[test]
fn the_peak_of_oversize_blocks_of_a_plan_is_exact() {
    let allocator = planned();
    allocator.configure(&Config::parse("max_split_size_mb:20").unwrap());
    let use_of = |mib: &[u64]| {
        let blocks: Vec<_> = mib.iter().map(|mib| allocator.malloc(DEVICE, mib * MIB, STREAM).unwrap()).collect();
        blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    };
    let oversize = || (stat(&allocator, "oversize_allocations.peak"), stat(&allocator, "oversize_allocations.current"));
    for _ in 0..2 {
        announce(&allocator);
        use_of(&[20]);
        use_of(&[15, 15, 15]);
        use_of(&[20]);
    }
    announce(&allocator);
    allocator.stats(DEVICE).unwrap().reset_peaks();
    use_of(&[20]);
    assert_eq!(oversize(), (1, 0), "all peaks rise");
    allocator.stats(DEVICE).unwrap().reset_peaks();
    use_of(&[15, 15, 15]);
    assert_eq!(oversize(), (0, 0));
    use_of(&[20]);
    assert_eq!(oversize(), (1, 0), "only this peak rises");
    assert_eq!(report(&allocator).served, 5);
}
