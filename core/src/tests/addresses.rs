//! Addresses that run out while memory is free.

use crate::allocator::{Allocator, Range};
use crate::arena::request::Forecast;
use crate::config::Config;
use crate::device::simulated::{AddressSpace, Call, Failure, SimulatedDevice};
use crate::device::{AddressLack, DeviceError, ErrorKind};
use crate::error::Error;
use crate::pool::{PoolOptions, Route, RoutePurpose, Tag};
use crate::tables::Growable;
use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
use core::num::NonZeroU64;
use std::string::ToString;
use std::sync::Arc;
use std::vec::Vec;

const DEVICE: DeviceIndex = DeviceIndex(0);
const TIB: u64 = 1 << 40;
const GIB: u64 = 1 << 30;
/// Four reservations of the stitched policy leave 64 GiB of 1 TiB.
const CAPACITY: u64 = 60 * GIB;

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

/// Returns an allocator on a device with `addresses` bytes of addresses.
fn within(config: &str, addresses: u64) -> Simulated {
    let device = SimulatedDevice::within(Arc::new(AddressSpace::new(TIB..TIB + addresses)), CAPACITY);
    Simulated::new([device], &Config::parse(config).unwrap()).unwrap()
}

/// Lets the device refuse every reservation of addresses from now on.
fn refuse_addresses(allocator: &Simulated) {
    let error = DeviceError::new(ErrorKind::OutOfMemory, 2);
    let nth = allocator.device(DEVICE).unwrap().calls(Call::Reserve) + 1;
    allocator.device(DEVICE).unwrap().fail(Failure { call: Call::Reserve, nth, persistent: true, error });
}

fn reserved(allocator: &Simulated) -> u64 {
    allocator.pages(DEVICE).unwrap().stats().reserved_addresses
}

fn malloc(allocator: &Simulated, mib: u64, stream: u64) -> Result<DevicePtr, Error> {
    allocator.malloc(DEVICE, mib * MIB, StreamId(stream))
}

#[test]
fn many_streams_share_the_addresses_by_shorter_reservations() {
    for config in ["policy:stitched", "expandable_segments:True"] {
        let allocator = within(config, TIB);
        let blocks: Vec<_> = (1..=48).map(|stream| malloc(&allocator, 4, stream).unwrap()).collect();
        assert!(
            reserved(&allocator) > TIB / 10 * 9 && reserved(&allocator) < TIB,
            "{config}: {}",
            reserved(&allocator)
        );
        allocator.check_invariants().unwrap();
        blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
        allocator.empty_cache(DEVICE).unwrap();
        assert_eq!(reserved(&allocator), 0, "{config}");
    }
}

#[test]
fn without_any_addresses_an_ordinary_segment_serves() {
    for config in ["policy:stitched", "expandable_segments:True", "policy:bfc,expandable_segments:True"] {
        let allocator = within(config, TIB);
        refuse_addresses(&allocator);
        for size in [1, 4, 100] {
            let first = malloc(&allocator, size, 1).unwrap();
            allocator.check_invariants().unwrap();
            allocator.free(first).unwrap();
            assert_eq!(malloc(&allocator, size, 1).unwrap(), first, "{config}: the segment is cached");
            allocator.free(first).unwrap();
        }
        assert_eq!(reserved(&allocator), 0, "{config}");
        allocator.empty_cache(DEVICE).unwrap();
        allocator.check_invariants().unwrap();
        assert_eq!(allocator.device(DEVICE).unwrap().used(), 0, "{config}: everything goes back");
    }
}

#[test]
fn a_cached_reservation_is_given_back_for_a_request_of_another_stream() {
    let config = "policy:stitched,expandable_segments_reserve:60G";
    let allocator = within(config, TIB);
    let cached = malloc(&allocator, 30 * 1024, 1).unwrap();
    allocator.free(cached).unwrap();
    refuse_addresses(&allocator);
    malloc(&allocator, 40 * 1024, 2).unwrap();
    assert_eq!(reserved(&allocator), 0, "the first stream's memory and addresses went back");
    allocator.check_invariants().unwrap();
}

#[test]
fn a_report_tells_addresses_from_memory() {
    let allocator = within("policy:stitched", TIB);
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.parking(DEVICE).unwrap().tag_pool(pool, Some(Tag(NonZeroU64::MIN))).unwrap();
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Requests).unwrap();
    refuse_addresses(&allocator);
    let Err(Error::OutOfMemory(report)) = malloc(&allocator, 4, 1) else { panic!("a pool that parks needs pages") };
    assert_eq!((report.address_lack, report.address_bytes), (AddressLack::Refused, 0));
    let text = report.to_string();
    assert!(text.contains("Addresses ran out, and not memory") && !text.contains("would not give"), "{text}");
}

#[test]
fn a_request_longer_than_the_setting_for_reservations_names_the_setting() {
    let allocator = within("policy:stitched,expandable_segments_reserve:0.1", TIB);
    malloc(&allocator, 1024, 1).unwrap();
    assert_eq!(reserved(&allocator), 6 * GIB);
    let Err(Error::OutOfMemory(report)) = malloc(&allocator, 8 * 1024, 1) else {
        panic!("6 GiB are reserved at a time")
    };
    assert_eq!(report.address_lack, AddressLack::Setting);
    assert!(report.to_string().contains("`expandable_segments_reserve` reserves fewer addresses"), "{report}");
}

#[test]
fn a_range_gets_the_addresses_of_released_ranges_and_of_the_cache() {
    let allocator = within("expandable_segments:True,expandable_segments_reserve:60G", TIB);
    // Each of them leaves once the work with it is complete, and nothing asks but a reservation.
    for _ in 0..40 {
        let range = Range::reserve(&allocator, DEVICE, 100 * GIB).unwrap();
        range.commit(0, 2 * MIB, StreamId(1)).unwrap();
        drop(range);
        allocator.device(DEVICE).unwrap().complete(StreamId(1));
    }
    allocator.check_invariants().unwrap();
    let cached = malloc(&allocator, 4, 1).unwrap();
    allocator.free(cached).unwrap();
    allocator.process_events(DEVICE).unwrap();
    let addresses = reserved(&allocator);
    refuse_addresses(&allocator);
    let refused = Range::reserve(&allocator, DEVICE, 100 * GIB).map(|_| ()).unwrap_err();
    assert!(addresses > 0 && reserved(&allocator) == 0, "the cache gave its addresses back");
    assert_eq!(refused, Error::OutOfAddresses { requested: 100 * GIB, reserved: 0 });
    assert!(refused.to_string().starts_with("out of addresses: the device would not reserve 100 GiB"), "{refused}");
}

#[test]
fn a_forecast_counts_guarded_blocks() {
    let allocator = within("guard:all,per_process_memory_fraction:0.001", TIB);
    let forecast = |mib: u64| allocator.forecast(DEVICE).unwrap().malloc(mib * MIB, StreamId(1)).unwrap();
    let first = malloc(&allocator, 4, 1).unwrap();
    allocator.free(first).unwrap();
    allocator.device(DEVICE).unwrap().complete(StreamId(1));
    assert_eq!(forecast(4), Forecast::Expand, "a guarded block is never a cached one");
    assert_eq!(forecast(1000), Forecast::OutOfMemory, "the limit holds");
}

#[test]
fn a_request_that_no_free_could_serve_does_not_wait_for_one() {
    for (limit, live, request) in [(64, 0, 100), (64, 10, 100)] {
        let allocator = within("policy:bfc,retry_ms:10000", TIB);
        allocator.settings(DEVICE).unwrap().set_limit(Some(limit * MIB));
        if live > 0 {
            malloc(&allocator, live, 1).unwrap();
        }
        assert!(malloc(&allocator, request, 1).is_err());
        assert_eq!(allocator.device(DEVICE).unwrap().now_us(), 0, "{request} MiB beyond {limit}, {live} live");
    }
}
