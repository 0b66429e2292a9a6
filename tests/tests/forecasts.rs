//! Forecasts: each request behaves as forecast, and uses the forecast block, under every policy, in
//! private pools, with limits, changing settings, and active plans. A forecast changes nothing.

use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{Allocator, Config, DevicePtr, Error, Fixed, Forecast, PoolOptions, Route, RoutePurpose, StreamId};
use cachalot_planner::{Algorithm, Plan, greedy::Greedy};
use cachalot_tests::host::{DEVICE, Host, MIB, STREAM};
use cachalot_tests::policies::policies;
use cachalot_tests::program::Op;
use cachalot_tests::strategies::{plain, proptest_config, with_pools};
use cachalot_tests::twins::Twins;
use proptest::prelude::*;
use std::thread;

/// Capacity of the device: small, so that programs run out of memory.
const CAPACITY: u64 = 256 << 20;

/// Configurations beside [`policies`]: options that only forecasts depend on, and plans over every
/// other policy.
const MORE: [&str; 9] = [
    "policy:size_class,chunk_mb:2",
    "policy:slab,largest_object_kb:64",
    "policy:bfc,first_region_mb:1,expandable_segments:True",
    "policy:planned",
    "policy:planned,expandable_segments:True,max_split_size_mb:24",
    "policy:planned,compact:0",
    "policy:planned,fallback:buddy,arena_mb:4",
    "policy:planned,fallback:size_class,chunk_mb:4",
    "policy:planned,fallback:slab",
];

/// Number of iterations of a program under the planned policy: observed once, then served from a
/// plan.
const ITERATIONS: usize = 4;

fn twins(policy: &str) -> Result<Twins, String> {
    let config = cachalot_policies::parse(policy).map_err(|error| error.to_string())?;
    Ok(Twins::alone_with(CAPACITY, &config).with_forecasts())
}

/// Checks that every request of a program behaves as forecast.
fn come_true(policy: &str, program: &[Op]) -> Result<(), String> {
    let mut twins = twins(policy)?;
    act(&mut twins, program)?;
    twins.finish()
}

fn act(twins: &mut Twins, program: &[Op]) -> Result<(), String> {
    for (number, op) in program.iter().enumerate() {
        twins.act(op).map_err(|why| format!("operation {number}, {op:?}: {why}"))?;
    }
    Ok(())
}

/// Checks the forecasts of a program in iterations, where the last two contain `odd` operations as
/// a deviation.
fn come_true_in_iterations(policy: &str, program: &[Op], odd: &[Op], at: usize) -> Result<(), String> {
    let mut twins = twins(policy)?;
    for iteration in 0..ITERATIONS {
        announce(&twins)?;
        let (before, behind) = program.split_at(at % program.len());
        let in_between = if iteration + 2 < ITERATIONS { &[] } else { odd };
        act(&mut twins, &[before, in_between, behind].concat())
            .map_err(|why| format!("iteration {iteration}: {why}"))?;
        while twins.live().next().is_some() {
            twins.act(&Op::Free { block: 0 })?;
        }
        // Events that are waited for leave forecasts open.
        (0..cachalot_tests::program::STREAMS).try_for_each(|stream| twins.act(&Op::Complete { stream }).map(|_| ()))?;
        twins.act(&Op::ProcessEvents)?;
    }
    // An active plan keeps its segment.
    twins.real().plans(twins.device()).unwrap().give_up().map_err(|error| error.to_string())?;
    twins.finish()
}

/// Announces an iteration, and plans the observed iteration.
fn announce(twins: &Twins) -> Result<(), String> {
    let (real, device) = (twins.real(), twins.device());
    let told = |error: cachalot_core::Error| error.to_string();
    let planning = real.plans(device).map_err(told)?;
    planning.end_iteration().map_err(told)?;
    if let Some(observed) = planning.observed() {
        let plan = |problem| Algorithm::plan(&Greedy::Size, problem, &mut ()).expect("nobody stops it");
        let plans: Vec<Plan> = observed.streams.iter().map(|stream| plan(&stream.problem)).collect();
        planning.adopt(observed, &plans).map_err(told)?;
    }
    Ok(())
}

fn every_policy() -> impl Iterator<Item = &'static str> {
    policies().chain(MORE)
}

fn named(policy: &str, outcome: Result<(), String>) -> Result<(), TestCaseError> {
    outcome.map_err(|why| TestCaseError::fail(format!("`{policy}`: {why}")))
}

proptest! {
    #![proptest_config(proptest_config("regressions/forecasts.txt", 10))]

    #[test]
    fn requests_do_what_was_foretold(program in prop::collection::vec(with_pools(), 1..200)) {
        for policy in every_policy() {
            named(policy, come_true(policy, &program))?;
        }
    }

    #[test]
    fn plans_serve_what_was_foretold(
        program in prop::collection::vec(plain(), 1..60),
        odd in prop::collection::vec(with_pools(), 0..20),
        at in any::<usize>(),
    ) {
        for policy in every_policy().filter(|policy| policy.starts_with("policy:planned")) {
            named(policy, come_true_in_iterations(policy, &program, &odd, at))?;
        }
    }
}

/// Returns the block that a forecast names.
fn hit(host: &Host, bytes: u64) -> DevicePtr {
    match host.allocator.forecast(DEVICE).unwrap().malloc(bytes, STREAM) {
        Ok(Forecast::Hit(ptr)) => ptr,
        other => panic!("{bytes} bytes: {other:?}"),
    }
}

/// Two wholly free chunks of one length. The chunk with the smaller tail is dissolved first; after
/// that both are equally good, so the lower chunk serves the request.
#[test]
fn of_two_chunks_that_nothing_is_taken_of_the_one_is_named_that_is_cut() {
    for sizes in [[10_485_758, 60 * MIB], [60 * MIB, 10_485_758], [50 * MIB, 60 * MIB]] {
        for wanted in [938_458, 8 * MIB, 30 * MIB, 68 * MIB] {
            let host = Host::new("policy:size_class,chunk_mb:68", 1 << 30);
            sizes.map(|bytes| host.malloc(bytes)).into_iter().for_each(|ptr| host.free(ptr));
            let foretold = hit(&host, wanted);
            assert_eq!(hit(&host, wanted), foretold);
            assert_eq!(host.malloc(wanted), foretold, "{sizes:?}, {wanted}");
        }
    }
}

/// A request may cut a slab for another size; a forecast must not.
#[test]
fn a_forecast_leaves_the_cache_as_it_is() {
    for policy in every_policy().filter(|policy| !policy.contains("direct")) {
        let blocks = [false, true].map(|asks| {
            let host = Host::new(policy, 1 << 30);
            let kept = [1000, 3 * MIB].map(|bytes| host.malloc(bytes));
            let freed = [400, 5000, 300 << 10, 40 * MIB, 2 * MIB, 700 << 10].map(|bytes| host.malloc(bytes));
            freed.into_iter().for_each(|ptr| host.free(ptr));
            kept.into_iter().for_each(|ptr| host.free(ptr));
            for bytes in [200 << 10, 6000, 33 * MIB, 5 * MIB, 900].into_iter().filter(|_| asks) {
                host.allocator.forecast(DEVICE).unwrap().malloc(bytes, STREAM).unwrap();
            }
            [600, 5000, 100 << 10, 3 * MIB, 30 * MIB, 400].map(|bytes| host.malloc(bytes))
        });
        assert_eq!(blocks[0], blocks[1], "`{policy}`");
    }
}

#[test]
fn a_forecast_leaves_a_stream_that_ended_as_it_is() {
    let host = Host::new("", 1 << 30);
    let ended = StreamId(7);
    let held = host.malloc_on(5000, ended);
    host.allocator.stream_destroyed(DEVICE, ended).unwrap();
    assert_eq!(host.allocator.forecast(DEVICE).unwrap().malloc(5 * MIB, ended), Ok(Forecast::Obtain(20 * MIB)));
    host.free(held);
    // What the stream has cached goes before anything else is obtained.
    assert!(matches!(host.allocator.forecast(DEVICE).unwrap().malloc(5 * MIB, STREAM), Ok(Forecast::Release(_))));
    host.malloc(5 * MIB);
    assert_eq!(host.stat("segment.small_pool.current"), 0);
}

/// The first captured request makes its pool one of a graph, which keeps what it has.
#[test]
fn a_captured_request_releases_nothing_of_its_pool() {
    let host = Host::new("max_split_size_mb:20", 1 << 30);
    let pools = host.allocator.pools(DEVICE).unwrap();
    let pool = pools.create(PoolOptions::default()).unwrap();
    pools.begin_route(pool, Route::All, RoutePurpose::Requests).unwrap();
    host.free(host.malloc(40 * MIB));
    pools.end_route(pool, RoutePurpose::Requests).unwrap();
    pools.begin_route(pool, Route::All, RoutePurpose::Undeclared).unwrap();
    host.allocator.settings(DEVICE).unwrap().set_limit(Some(0));
    host.device().set_capturing(STREAM, true);
    assert_eq!(host.allocator.forecast(DEVICE).unwrap().malloc(2 * MIB, STREAM), Ok(Forecast::OutOfMemory));
    assert!(matches!(host.refused(2 * MIB), Error::OutOfMemory(_)));
}

/// Nothing new fits a limit that was set below what is held, so a request beyond it needs all of
/// the spare pages after it has waited.
#[test]
fn spare_pages_beyond_the_limit_outlast_a_growth_that_fails() {
    let host = Host::new("policy:stitched,slack:0,completed_pages_only:True", 1 << 30);
    let (other, ended) = (host.malloc(20 * MIB), StreamId(7));
    let kept = host.malloc(4 * MIB);
    let spare = host.malloc_on(10 * MIB, ended);
    host.free(spare);
    host.allocator.stream_destroyed(DEVICE, ended).unwrap();
    host.free(other);
    host.allocator.settings(DEVICE).unwrap().set_limit(Some(0));
    assert_eq!(host.allocator.forecast(DEVICE).unwrap().malloc(28 * MIB, STREAM), Ok(Forecast::Expand));
    host.malloc(28 * MIB);
    host.free(kept);
}

#[test]
fn forecasts_for_streams_without_memory_leave_no_heaps() {
    let run = thread::Builder::new().stack_size(64 << 20).spawn(|| {
        type Few = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Fixed<1, 4, 64, 64>>;
        let allocator = Few::new([SimulatedDevice::new(1 << 30)], &Config::default()).unwrap();
        for number in 0..10 {
            assert_eq!(
                allocator.forecast(DEVICE).unwrap().malloc(5000, StreamId(number)),
                Ok(Forecast::Obtain(2 * MIB))
            );
        }
        // There is room for two pairs of heaps, and both are held.
        let held = [20, 21].map(|number| allocator.malloc(DEVICE, 5000, StreamId(number)).unwrap());
        assert_eq!(allocator.forecast(DEVICE).unwrap().malloc(5000, StreamId(22)), Err(Error::TableFull("heaps")));
        allocator.free(held[0]).unwrap();
        // A stream with nothing but a cache makes room.
        let released =
            matches!(allocator.forecast(DEVICE).unwrap().malloc(5000, StreamId(22)), Ok(Forecast::Release(_)));
        assert!(released && allocator.malloc(DEVICE, 5000, StreamId(22)).is_ok());
    });
    run.unwrap().join().unwrap();
}

#[test]
fn nothing_is_the_null_address() {
    let host = Host::new("", 1 << 30);
    assert_eq!(host.allocator.forecast(DEVICE).unwrap().malloc(0, STREAM), Ok(Forecast::Hit(DevicePtr::NULL)));
    assert_eq!(host.malloc(0), DevicePtr::NULL);
}
