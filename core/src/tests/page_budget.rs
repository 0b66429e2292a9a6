//! The bounds of page lengths.

use crate::allocator::Allocator;
use crate::config::Config;
use crate::device::simulated::SimulatedDevice;
use crate::tables::Growable;
use crate::units::{DeviceIndex, MIB, StreamId};
use std::vec::Vec;

const DEVICE: DeviceIndex = DeviceIndex(0);

/// Requests 1400 MiB while 800 MiB are live and 800 MiB are free in pages of 2 MiB. Returns the
/// length of the longest page in MiB, and the driver's time in microseconds.
fn longest_page(options: &str) -> (u64, u64) {
    let config = Config::parse(&std::format!("policy:stitched{options}")).unwrap();
    let device = SimulatedDevice::new(1 << 40).with_work_done_at_once();
    let allocator: Allocator<_, spin::mutex::SpinMutex<()>, Growable> = Allocator::new([device], &config).unwrap();
    let malloc = |mib| allocator.malloc(DEVICE, mib * MIB, StreamId(1)).unwrap();
    let blocks: Vec<_> = (0..200).map(|_| malloc(8)).collect();
    blocks.into_iter().step_by(2).for_each(|block| allocator.free(block).unwrap());
    let before = allocator.device(DEVICE).unwrap().driver_ns();
    let large = malloc(1400);
    let took = allocator.device(DEVICE).unwrap().driver_ns() - before;
    let mut longest = 0;
    allocator.pages(DEVICE).unwrap().extents(large, |extent| longest = longest.max(extent.memory_bytes)).unwrap();
    allocator.check_invariants().unwrap();
    (longest / MIB, took / 1000)
}

#[test]
fn no_page_has_a_large_part_of_the_memory_unless_the_bound_on_time_is_strict() {
    // 1600 MiB are held, and 8 MiB are the most that a page may have of them: 1/192.
    let (longest, took) = longest_page("");
    assert_eq!(longest, 8);
    assert!(took > 2000, "387 pages move: {took} µs");
    // 75 pages move, and six new ones have the rest.
    let (longest, took) = longest_page(",strict_stall:True");
    assert_eq!(longest, 210);
    assert!(took < 2100, "{took} µs");
}
