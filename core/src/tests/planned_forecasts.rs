//! Forecasts while a plan is served, on the simulated device.

use super::planned::{DEVICE, OTHER, STREAM, iterate, report, serving, stat};
use crate::allocator::Range;
use crate::arena::request::Forecast;
use crate::pool::{PoolOptions, Route, RoutePurpose};
use crate::stats::Stage;
use crate::units::MIB;

#[test]
fn a_forecast_grows_into_pages_given_up_by_ranges_before_plans_are_given_up() {
    let allocator = serving("policy:planned");
    allocator.settings(DEVICE).unwrap().set_limit(Some(40 * MIB));
    let range = Range::reserve(&allocator, DEVICE, 32 * MIB).unwrap();
    range.commit(0, 32 * MIB, OTHER).unwrap();
    range.decommit(0, 32 * MIB, OTHER).unwrap();
    // The plan holds 4 MiB. The request waits for the work of the other stream, and then has room
    // for 36.
    assert_eq!(allocator.forecast(DEVICE).unwrap().malloc(20 * MIB, STREAM), Ok(Forecast::Obtain(20 * MIB)));
    let block = allocator.malloc(DEVICE, 20 * MIB, STREAM).unwrap();
    assert_eq!((report(&allocator).stage, stat(&allocator, "reserved_bytes.all.current")), (Stage::Serving, 24 << 20));
    allocator.free(block).unwrap();
}

#[test]
fn a_forecast_knows_the_plan() {
    let allocator = serving("policy:planned");
    let Ok(Forecast::Hit(ptr)) = allocator.forecast(DEVICE).unwrap().malloc(3 * MIB, STREAM) else {
        panic!("the plan has it")
    };
    assert_eq!(allocator.malloc(DEVICE, 3 * MIB, STREAM), Ok(ptr));
    assert!(matches!(allocator.forecast(DEVICE).unwrap().malloc(3 * MIB, STREAM), Ok(Forecast::Obtain(_))));
}

/// A request out of turn, and a request on a stream outside a route: a plan serves the request, and
/// a forecast knows.
#[test]
fn a_forecast_knows_what_a_plan_serves_out_of_turn() {
    let allocator = serving("policy:planned");
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(OTHER), RoutePurpose::Requests).unwrap();
    for bytes in [1000, 3 * MIB, 2 * MIB] {
        let foretold = allocator.forecast(DEVICE).unwrap().malloc(bytes, STREAM).unwrap();
        let before = report(&allocator);
        assert_eq!(allocator.forecast(DEVICE).unwrap().malloc(bytes, STREAM).unwrap(), foretold);
        assert_eq!(report(&allocator), before, "to ask counts as nothing");
        let ptr = allocator.malloc(DEVICE, bytes, STREAM).unwrap();
        if report(&allocator).served > before.served {
            assert_eq!(foretold, Forecast::Hit(ptr), "{bytes}");
        }
    }
    assert!(report(&allocator).served >= 2);
}

#[test]
fn a_forecast_names_the_segment_of_a_plan_as_the_last_to_go() {
    let allocator = serving("policy:planned");
    let [first, ..] = iterate(&allocator, STREAM);
    allocator.settings(DEVICE).unwrap().set_limit(Some(20 * MIB));
    assert_eq!(allocator.forecast(DEVICE).unwrap().malloc(20 * MIB, STREAM), Ok(Forecast::Release(first)));
    allocator.malloc(DEVICE, 20 * MIB, STREAM).unwrap();
}
