//! Requests without a cache: `policy:direct`, also on a device that allocates in the order of
//! streams, and the cache turned off.

use crate::allocator::Allocator;
use crate::arena::request::Forecast;
use crate::config::Config;
use crate::device::simulated::{Call, SimulatedDevice};
use crate::error::Error;
use crate::tables::Growable;
use crate::tests::altered::{self, AlteredDevice, Change};
use crate::units::{DeviceIndex, MIB, StreamId};

const DEVICE: DeviceIndex = DeviceIndex(0);
const STREAM: StreamId = StreamId(1);
const SIDE: StreamId = StreamId(2);

fn allocator(config: &str) -> altered::Allocator {
    let device = AlteredDevice::new(1 << 30, Change::IsOrdered);
    altered::Allocator::new([device], &Config::parse(config).unwrap()).unwrap()
}

#[test]
fn only_direct_requests_are_served_in_the_order_of_their_streams() {
    for (config, expected) in [("policy:direct", [1, 2, 1]), ("policy:caching", [0, 0, 0])] {
        let allocator = allocator(config);
        let large = [(STREAM, 30 * MIB), (SIDE, 40 * MIB), (STREAM, 50 * MIB)];
        let blocks = large.map(|(stream, bytes)| allocator.malloc(DEVICE, bytes, stream).unwrap());
        let device = allocator.device(DEVICE).unwrap();
        assert_eq!(device.take_streams(), expected, "{config}");
        blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
        allocator.empty_cache(DEVICE).unwrap();
        assert_eq!(allocator.stats(DEVICE).unwrap().totals().reserved_bytes().current, 0, "{config}");
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn a_captured_request_is_served_in_no_order() {
    let allocator = allocator("policy:direct");
    let device = allocator.device(DEVICE).unwrap();
    let pool = allocator.pools(DEVICE).unwrap().create(crate::pool::PoolOptions::default()).unwrap();
    allocator
        .pools(DEVICE)
        .unwrap()
        .begin_route(pool, crate::pool::Route::Stream(STREAM), crate::pool::RoutePurpose::Capture)
        .unwrap();
    device.inner.set_capturing(STREAM, true);
    allocator.malloc(DEVICE, MIB, STREAM).unwrap();
    device.inner.set_capturing(STREAM, false);
    allocator.pools(DEVICE).unwrap().end_route(pool, crate::pool::RoutePurpose::Capture).unwrap();
    allocator.malloc(DEVICE, MIB, STREAM).unwrap();
    assert_eq!(device.take_streams(), [0, 1]);
}

#[test]
fn a_free_orders_its_stream_behind_the_uses_of_others() {
    let allocator = allocator("policy:direct");
    let device = allocator.device(DEVICE).unwrap();
    let block = allocator.malloc(DEVICE, MIB, STREAM).unwrap();
    allocator.record_stream(block, SIDE).unwrap();
    device.inner.launch(SIDE, block, MIB).unwrap();
    allocator.free(block).unwrap();
    assert_eq!((device.inner.calls(Call::OrderBehind), device.inner.calls(Call::Wait)), (1, 0));
    assert_eq!(allocator.stats(DEVICE).unwrap().totals().reserved_bytes().current, 0);
    allocator.check_invariants().unwrap();
}

#[test]
fn the_direct_policy_never_caches() {
    let allocator = allocator("policy:direct");
    for caching in [true, false, true] {
        allocator.settings(DEVICE).unwrap().set_caching(caching);
        let block = allocator.malloc(DEVICE, MIB, STREAM).unwrap();
        allocator.free(block).unwrap();
        assert_eq!(allocator.stats(DEVICE).unwrap().totals().reserved_bytes().current, 0, "{caching}");
    }
}

/// The policies whose cache can be turned off, and the one without a cache.
const POLICIES: [&str; 4] = ["", "expandable_segments:True", "policy:stitched,slack:0", "policy:direct"];

/// Creates an allocator that may hold 64 MiB.
fn limited(config: &str) -> Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable> {
    let allocator = Allocator::new([SimulatedDevice::new(1 << 30)], &Config::parse(config).unwrap()).unwrap();
    allocator.settings(DEVICE).unwrap().set_limit(Some(64 * MIB));
    allocator
}

#[test]
fn a_request_releases_what_was_cached_before_the_cache_was_turned_off() {
    for config in &POLICIES[..3] {
        let allocator = limited(config);
        let cached = allocator.malloc(DEVICE, 40 * MIB, STREAM).unwrap();
        allocator.free(cached).unwrap();
        allocator.settings(DEVICE).unwrap().set_caching(false);
        let forecast = allocator.forecast(DEVICE).unwrap().malloc(40 * MIB, STREAM).unwrap();
        assert!(matches!(forecast, Forecast::Release(_)), "{config}: {forecast:?}");
        let block = allocator.malloc(DEVICE, 40 * MIB, STREAM).unwrap();
        assert_eq!(allocator.base_of(block).unwrap().segment_bytes, 40 * MIB, "{config}");
        allocator.check_invariants().unwrap();
        allocator.free(block).unwrap();
        assert_eq!(allocator.device(DEVICE).unwrap().used(), 0, "{config}");
    }
}

#[test]
fn a_request_without_a_cache_waits_for_pending_blocks() {
    for config in POLICIES {
        let allocator = limited(config);
        allocator.settings(DEVICE).unwrap().set_caching(false);
        let block = allocator.malloc(DEVICE, 40 * MIB, STREAM).unwrap();
        allocator.record_stream(block, SIDE).unwrap();
        let device = allocator.device(DEVICE).unwrap();
        device.launch(SIDE, block, 40 * MIB).unwrap();
        allocator.free(block).unwrap();
        assert_eq!(device.used(), 40 * MIB, "{config}: the work may use the block");
        allocator.malloc(DEVICE, 40 * MIB, STREAM).unwrap();
        assert_eq!(device.used(), 40 * MIB, "{config}");
        assert!(device.calls(Call::Wait) > 0, "{config}");
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn no_free_block_serves_a_request_without_a_cache() {
    for config in &POLICIES[..3] {
        let allocator = limited(config);
        let blocks = [0, 1].map(|_| allocator.malloc(DEVICE, 20 * MIB, STREAM).unwrap());
        // Half of a segment stays in use, so that nothing can go back.
        allocator.free(blocks[0]).unwrap();
        allocator.settings(DEVICE).unwrap().set_caching(false);
        let direct = allocator.malloc(DEVICE, 20 * MIB, STREAM).unwrap();
        assert!(!blocks.contains(&direct), "{config}");
        assert_eq!(allocator.base_of(direct).unwrap().segment_bytes, 20 * MIB, "{config}");
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn a_request_in_direct_mode_that_nothing_can_serve_fails() {
    for config in POLICIES {
        let allocator = limited(config);
        allocator.settings(DEVICE).unwrap().set_caching(false);
        let block = allocator.malloc(DEVICE, 40 * MIB, STREAM).unwrap();
        assert_eq!(allocator.forecast(DEVICE).unwrap().malloc(40 * MIB, STREAM), Ok(Forecast::OutOfMemory), "{config}");
        let Err(Error::OutOfMemory(report)) = allocator.malloc(DEVICE, 40 * MIB, STREAM) else { panic!("{config}") };
        assert_eq!((report.segment, report.allocated), (40 * MIB, 40 * MIB), "{config}");
        allocator.free(block).unwrap();
        allocator.malloc(DEVICE, 40 * MIB, STREAM).unwrap();
    }
}
