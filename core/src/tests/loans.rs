//! Blocks lent to other streams, pages that move, and failures on the way, under `policy:stitched`
//! and expandable segments.

use crate::allocator::Allocator;
use crate::arena::request::Forecast;
use crate::config::Config;
use crate::device::simulated::{Call, Failure, SimulatedDevice};
use crate::device::{DeviceError, ErrorKind};
use crate::error::Error;
use crate::pool::{PoolOptions, Route, RoutePurpose};
use crate::tables::Growable;
use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
use core::ops::Range;

const DEVICE: DeviceIndex = DeviceIndex(0);
const BORROWER: StreamId = StreamId(9);

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

fn allocator(config: &str, device: SimulatedDevice) -> Simulated {
    Simulated::new([device], &Config::parse(config).unwrap()).unwrap()
}

/// Makes holes of at least so many MiB between live blocks, each of a stream of its own, and
/// returns their addresses.
fn holes<const N: usize>(allocator: &Simulated, sizes: [u64; N]) -> [Range<DevicePtr>; N] {
    let mut stream = 0;
    let blocks = sizes.map(|mib| {
        stream += 1;
        [41, mib + 1, 41].map(|mib| allocator.malloc(DEVICE, mib * MIB + 512, StreamId(stream)).unwrap())
    });
    // Freed at last: free pages would move to the next stream.
    blocks.map(|[_, hole, behind]| {
        allocator.free(hole).unwrap();
        hole..behind
    })
}

#[test]
fn the_smallest_block_that_fits_is_lent_whichever_stream_has_it() {
    for sizes in [[20, 30], [30, 20], [31, 26]] {
        let allocator = allocator("policy:stitched,slack:0", SimulatedDevice::new(1 << 30));
        let holes = holes(&allocator, sizes);
        let lent = allocator.malloc(DEVICE, 20 * MIB, BORROWER).unwrap();
        let smallest = &holes[usize::from(sizes[1] < sizes[0])];
        assert!(smallest.contains(&lent), "{lent} of {holes:?}");
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn nothing_is_lent_to_a_stream_that_cannot_be_ordered() {
    for (device, is_lent) in [
        (SimulatedDevice::new(1 << 30), true),
        (SimulatedDevice::new(1 << 30).with_idle_stream(BORROWER), false),
        (SimulatedDevice::new(1 << 30).with_unreported_ends(), false),
    ] {
        let allocator = allocator("policy:stitched,slack:0", device);
        let [hole] = holes(&allocator, [20]);
        let block = allocator.malloc(DEVICE, 20 * MIB, BORROWER).unwrap();
        assert_eq!(hole.contains(&block), is_lent);
    }
}

#[test]
fn a_lack_of_the_device_is_a_lack_of_memory_and_other_failures_are_told() {
    for config in ["expandable_segments:True", "policy:stitched"] {
        // Without addresses, the device itself finds a place for a segment (addresses.rs).
        for call in [Call::Reserve, Call::Create, Call::Map] {
            for kind in [ErrorKind::OutOfMemory, ErrorKind::Other] {
                let allocator = allocator(config, SimulatedDevice::new(1 << 30));
                let error = DeviceError::new(kind, 7);
                allocator.device(DEVICE).unwrap().fail(Failure { call, nth: 1, persistent: true, error });
                let refused = allocator.malloc(DEVICE, 20 * MIB, BORROWER);
                let is_told = match kind {
                    ErrorKind::OutOfMemory if call == Call::Reserve => refused.is_ok(),
                    ErrorKind::OutOfMemory => matches!(refused, Err(Error::OutOfMemory(_))),
                    _ => refused == Err(Error::Device(error)),
                };
                assert!(is_told, "`{config}`, {call:?}: {refused:?}");
                allocator.check_invariants().unwrap();
            }
        }
    }
}

#[test]
fn a_peak_counts_what_a_heap_grew_by_for_a_moment() {
    let allocator = allocator("expandable_segments:True", SimulatedDevice::new(1 << 30));
    let cache = |stream, mib: u64| {
        let block = allocator.malloc(DEVICE, mib * MIB, StreamId(stream)).unwrap();
        allocator.free(block).unwrap();
    };
    cache(1, 40);
    allocator.empty_cache(DEVICE).unwrap();
    cache(2, 100);
    // The second heap grows, and no more is allocated than was.
    cache(1, 40);
    allocator.empty_cache(DEVICE).unwrap();
    let stats = allocator.stats(DEVICE).unwrap().totals();
    assert_eq!(stats.reserved_bytes().peak, 140 * MIB as i64);
    assert_eq!(stats.allocated_bytes().peak, 100 * MIB as i64);
}

#[test]
fn small_and_large_requests_share_free_memory_outside_of_private_pools() {
    for [first, second] in [[512, 3 * MIB / 2], [3 * MIB / 2, 512]] {
        for private in [false, true] {
            let allocator = allocator("policy:stitched", SimulatedDevice::new(1 << 30));
            let device = allocator.device(DEVICE).unwrap();
            let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
            if private {
                allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Requests).unwrap();
            }
            let block = allocator.malloc(DEVICE, first, BORROWER).unwrap();
            allocator.free(block).unwrap();
            let before = (device.used(), device.calls(Call::Map));
            let told = allocator.forecast(DEVICE).unwrap().malloc(second, BORROWER).unwrap();
            let next = allocator.malloc(DEVICE, second, BORROWER).unwrap();
            assert_eq!((next == block, told == Forecast::Hit(next)), (!private, !private), "{first}, {private}");
            assert_eq!((device.used(), device.calls(Call::Map)) == before, !private, "{first}, {private}");
            allocator.check_invariants().unwrap();
        }
    }
}

#[test]
fn a_failed_wait_for_moved_pages_is_told_unless_a_capture_forbids_it() {
    for (kind, is_told) in [(ErrorKind::Other, true), (ErrorKind::NotPermittedInCapture, false)] {
        let allocator = allocator("policy:stitched", SimulatedDevice::new(1 << 30));
        allocator.settings(DEVICE).unwrap().set_limit(Some(64 * MIB));
        let block = allocator.malloc(DEVICE, 40 * MIB, StreamId(1)).unwrap();
        allocator.free(block).unwrap();
        allocator.malloc(DEVICE, 60 * MIB, StreamId(2)).unwrap();
        let device = allocator.device(DEVICE).unwrap();
        let (error, nth) = (DeviceError::new(kind, 7), device.calls(Call::Synchronize) + 1);
        device.fail(Failure { call: Call::Synchronize, nth, persistent: true, error });
        let emptied = allocator.empty_cache(DEVICE);
        assert_eq!(emptied, if is_told { Err(Error::Device(error)) } else { Ok(()) });
        device.clear_failures();
        allocator.empty_cache(DEVICE).unwrap();
        assert_eq!(device.outstanding().mappings, device.outstanding().handles, "the old places are unmapped");
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn a_stream_lends_beside_one_that_has_gone() {
    let allocator = allocator("policy:stitched,slack:0", SimulatedDevice::new(1 << 30));
    let borrowed = allocator.malloc(DEVICE, 512, BORROWER).unwrap();
    // The second pair becomes vacant, and the third one lends.
    let gone = allocator.malloc(DEVICE, 512, StreamId(8)).unwrap();
    let [hole] = holes(&allocator, [20]);
    allocator.free(gone).unwrap();
    allocator.stream_destroyed(DEVICE, StreamId(8)).unwrap();
    let block = allocator.malloc(DEVICE, 20 * MIB, BORROWER).unwrap();
    assert!(hole.contains(&block), "{block} in {hole:?}");
    [borrowed, block].into_iter().for_each(|block| allocator.free(block).unwrap());
    allocator.check_invariants().unwrap();
}

#[test]
fn a_failed_wait_for_stale_mappings_is_told() {
    let allocator = allocator("policy:stitched,slack:0", SimulatedDevice::new(1 << 30));
    let blocks = [20, 20, 20, 20].map(|mib| allocator.malloc(DEVICE, mib * MIB, BORROWER).unwrap());
    [blocks[0], blocks[2]].into_iter().for_each(|block| allocator.free(block).unwrap());
    // The pages of both free blocks move, and leave stale mappings.
    allocator.malloc(DEVICE, 40 * MIB, BORROWER).unwrap();
    let device = allocator.device(DEVICE).unwrap();
    assert_eq!(device.used(), 80 * MIB);
    let error = DeviceError::new(ErrorKind::Other, 7);
    let nth = device.calls(Call::Synchronize) + 1;
    device.fail(Failure { call: Call::Synchronize, nth, persistent: false, error });
    assert_eq!(allocator.trim(DEVICE, 0), Err(Error::Device(error)));
    assert_eq!(device.calls(Call::Synchronize), nth);
    allocator.trim(DEVICE, 0).unwrap();
    allocator.check_invariants().unwrap();
}
