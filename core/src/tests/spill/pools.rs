//! Pools whose memory lies on the host, and pages of the host made ahead of need.

use super::*;
use crate::pool::{PoolId, PoolOptions, Route, RoutePurpose};

/// A pool whose new pages are the host's.
pub(super) fn spilled_pool(allocator: &Spilling) -> PoolId {
    let pools = allocator.pools(DEVICE).unwrap();
    let pool = pools.create(PoolOptions::default()).unwrap();
    pools.spill(pool, true).unwrap();
    pool
}

/// Requests `bytes` from a pool.
pub(super) fn malloc_in(allocator: &Spilling, pool: PoolId, bytes: u64) -> Result<DevicePtr, Error> {
    let _route = allocator.pools(DEVICE).unwrap().route(pool, Route::All, RoutePurpose::Requests).unwrap();
    let forecast = allocator.forecast(DEVICE).unwrap().malloc(bytes, STREAM);
    let served = allocator.malloc(DEVICE, bytes, STREAM);
    allocator.check_invariants().unwrap();
    if served.is_err() {
        assert_ne!(forecast, Ok(Forecast::Expand));
    }
    served
}

#[test]
fn the_memory_of_a_spilled_pool_lies_on_the_host_from_the_start() {
    for config in ["spill:0.5", "expandable_segments:True,spill:0.5", "spill:0.5,throw_on_cudamalloc_oom:True"] {
        let allocator = allocator(config);
        let pool = spilled_pool(&allocator);
        let blocks: Vec<_> = (0..3).map(|_| malloc_in(&allocator, pool, PAGE).unwrap()).collect();
        let on_host: Vec<bool> = blocks.iter().map(|&block| device(&allocator).is_on_host(block)).collect();
        // Half of the device is two pages and a half.
        assert_eq!(on_host, [true, true, false], "{config}");
        let other = allocator.malloc(DEVICE, PAGE, STREAM).unwrap();
        assert!(!device(&allocator).is_on_host(other), "{config}");
        blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
        // A free block serves, wherever it lies.
        let again = malloc_in(&allocator, pool, PAGE).unwrap();
        assert!(device(&allocator).is_on_host(again), "{config}");
    }
}

#[test]
fn a_pool_is_spilled_where_the_settings_say_how_much() {
    let refused = |config: &str| {
        let allocator = allocator(config);
        let pools = allocator.pools(DEVICE).unwrap();
        let pool = pools.create(PoolOptions::default()).unwrap();
        assert_eq!(pools.spill(pool, false), Ok(()));
        assert_eq!(pools.spill(PoolId(9, 9), false), Err(Error::UnknownPool(PoolId(9, 9))));
        matches!(pools.spill(pool, true), Err(Error::SpillRefused(_)))
    };
    let configs = ["expandable_segments:True", "policy:stitched", "spill:1.0", "policy:stitched,spill:1.0"];
    assert_eq!(configs.map(refused), [true, true, false, false]);
    let allocator = allocator("expandable_segments:True,spill:1.0");
    let unknown = allocator.pools(DEVICE).unwrap().spill(PoolId(9, 9), true);
    assert_eq!(unknown, Err(Error::UnknownPool(PoolId(9, 9))));
    let pool = spilled_pool(&allocator);
    assert!(device(&allocator).is_on_host(malloc_in(&allocator, pool, PAGE).unwrap()));
    allocator.pools(DEVICE).unwrap().spill(pool, false).unwrap();
    assert!(!device(&allocator).is_on_host(malloc_in(&allocator, pool, PAGE).unwrap()));
}

/// A device of 64 × 21 pages: upkeep keeps 21 of them ready on the host.
fn large(config: &str) -> Spilling {
    let device = SimulatedDevice::new(64 * 21 * PAGE);
    device.set_mappable_host_memory(40 * PAGE);
    Spilling::new([device], &Config::parse(config).unwrap()).unwrap()
}

#[test]
fn upkeep_makes_pages_of_the_host_ahead_while_the_device_is_nearly_full() {
    let allocator = large("expandable_segments:True,spill:30G,per_process_memory_fraction:0.5");
    let upkeep = || allocator.pages(DEVICE).unwrap().maintain(1);
    let _most = allocator.malloc(DEVICE, (32 * 21 - 21) * PAGE, STREAM).unwrap();
    assert_eq!((upkeep(), of_host(&allocator)), (Ok(false), (0, 0)));
    let _rest = allocator.malloc(DEVICE, PAGE, STREAM).unwrap();
    // The simulated device has no clock here, so a call makes one page.
    let calls = (0..30).take_while(|_| upkeep().unwrap()).count();
    assert_eq!((calls, of_host(&allocator)), (20, (0, 21 * PAGE)));
    let made = device(&allocator).calls(Call::CreateAtHost);
    let _spilled = allocator.malloc(DEVICE, 40 * PAGE, STREAM).unwrap();
    assert_eq!(of_host(&allocator), (20 * PAGE, PAGE));
    assert_eq!(device(&allocator).calls(Call::CreateAtHost), made);
    // The host has 40 pages in all, and a refusal is no error.
    assert!((0..30).take_while(|_| upkeep().unwrap()).count() < 30);
    assert_eq!(of_host(&allocator), (20 * PAGE, 20 * PAGE));
}

#[test]
fn pages_are_made_ahead_within_the_limit_and_not_without_the_key() {
    for (config, ready) in [("expandable_segments:True,spill:0.0024", 3), ("expandable_segments:True", 0)] {
        let allocator = large(&std::format!("{config},per_process_memory_fraction:0.01"));
        let _most = allocator.malloc(DEVICE, 12 * PAGE, STREAM).unwrap();
        while allocator.pages(DEVICE).unwrap().maintain(1).unwrap() {}
        assert_eq!(of_host(&allocator), (0, ready * PAGE), "{config}");
    }
}

#[test]
fn a_page_that_cannot_be_made_ahead_is_told() {
    let allocator = large("expandable_segments:True,spill:30G,per_process_memory_fraction:0.01");
    let failure = DeviceError::new(ErrorKind::Other, 77);
    device(&allocator).fail(Failure { call: Call::CreateAtHost, nth: 1, persistent: false, error: failure });
    assert_eq!(allocator.pages(DEVICE).unwrap().maintain(1), Err(Error::Device(failure)));
    assert_eq!(of_host(&allocator), (0, 0));
    assert_eq!(allocator.pages(DEVICE).unwrap().maintain(1), Ok(true));
    assert_eq!(of_host(&allocator), (0, PAGE));
}
