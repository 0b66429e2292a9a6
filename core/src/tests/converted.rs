//! Models that are converted while they load: each block is replaced by a larger one, in pools
//! beside captured graphs, on several streams, and while another model sleeps.

use crate::allocator::Allocator;
use crate::arena::paging::parking::{ParkMode, ParkOrder, ParkTarget};
use crate::config::Config;
use crate::device::simulated::SimulatedDevice;
use crate::pool::{PoolId, PoolOptions, Route, RoutePurpose, Tag};
use crate::tables::Growable;
use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
use core::num::NonZeroU64;
use std::vec::Vec;

const DEVICE: DeviceIndex = DeviceIndex(0);
const STREAM: StreamId = StreamId(1);
const OTHER: StreamId = StreamId(2);
const FIRST: Tag = Tag(NonZeroU64::new(7).unwrap());
const SECOND: Tag = Tag(NonZeroU64::new(8).unwrap());
const LAYERS: usize = 24;
/// The weights of a layer, in KiB, before and after the conversion. The first stays.
const WEIGHTS: [(u64, u64); 3] = [(5_000, 0), (24_000, 25_440), (12_000, 14_040)];

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

fn allocator() -> Simulated {
    let device = SimulatedDevice::new(4 << 30).with_host_memory(4 << 30);
    Simulated::new([device], &Config::parse("policy:stitched").unwrap()).unwrap()
}

/// A pool, with a tag if `tag` is given.
fn pool(allocator: &Simulated, tag: Option<Tag>) -> PoolId {
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.parking(DEVICE).unwrap().tag_pool(pool, tag).unwrap();
    pool
}

/// Requests a block, from a pool if one is given.
fn malloc(allocator: &Simulated, pool: Option<PoolId>, bytes: u64, stream: StreamId) -> DevicePtr {
    let pools = allocator.pools(DEVICE).unwrap();
    let _route = pool.map(|pool| pools.route(pool, Route::All, RoutePurpose::Requests).unwrap());
    allocator.malloc(DEVICE, bytes, stream).unwrap()
}

/// Loads a model, and replaces its weights by larger ones, layer by layer, each layer on one of the
/// streams. Returns the blocks that live at the end.
fn convert(allocator: &Simulated, pool: Option<PoolId>, streams: &[StreamId]) -> Vec<DevicePtr> {
    let request = |kib: u64, layer: usize| malloc(allocator, pool, kib * 1024, streams[layer % streams.len()]);
    let mut weights = Vec::new();
    for layer in 0..LAYERS {
        weights.extend(WEIGHTS.iter().map(|&(before, after)| (request(before, layer), after, layer)));
    }
    for (block, after, layer) in &mut weights {
        if *after > 0 {
            let larger = request(*after, *layer);
            allocator.free(*block).unwrap();
            *block = larger;
        }
    }
    allocator.check_invariants().unwrap();
    weights.into_iter().map(|(block, ..)| block).collect()
}

/// The bytes held from the device for each 100 bytes of live blocks, without memory that sleeps.
fn held_percent(allocator: &Simulated) -> i64 {
    let stats = allocator.stats(DEVICE).unwrap().totals();
    stats.reserved_bytes().current * 100 / stats.allocated_bytes().current
}

fn moved(allocator: &Simulated) -> u64 {
    allocator.pages(DEVICE).unwrap().stats().moved
}

#[test]
fn a_pool_under_conversion_holds_little_more_than_its_blocks() {
    for tag in [None, Some(FIRST)] {
        for streams in [&[STREAM][..], &[STREAM, OTHER]] {
            let allocator = allocator();
            // A graph that stays, with free memory of its own.
            let graph = pool(&allocator, None);
            let pools = allocator.pools(DEVICE).unwrap();
            pools.begin_route(graph, Route::Stream(OTHER), RoutePurpose::Capture).unwrap();
            let [kept, free] = [20, 30].map(|mib| allocator.malloc(DEVICE, mib * MIB, OTHER).unwrap());
            allocator.free(free).unwrap();
            pools.end_route(graph, RoutePurpose::Capture).unwrap();
            let of_graph = || {
                let snapshot = allocator.snapshot();
                let parts = snapshot.iter().filter(|segment| segment.pool == graph);
                parts.map(|segment| (segment.address, segment.total_size)).collect::<Vec<_>>()
            };
            let before = of_graph();
            let at = pool(&allocator, tag);
            convert(&allocator, Some(at), streams);
            let percent = held_percent(&allocator);
            assert!(percent <= 120, "{tag:?}, {} streams: {percent} %", streams.len());
            assert!(moved(&allocator) > 0);
            assert_eq!(of_graph(), before, "the memory of a graph stays");
            allocator.free(kept).unwrap();
        }
    }
}

#[test]
fn pages_of_the_default_pool_move_into_a_pool_and_not_back() {
    let allocator = allocator();
    let blocks: Vec<_> = (0..40).map(|_| malloc(&allocator, None, 8 * MIB, STREAM)).collect();
    blocks.iter().step_by(2).for_each(|&block| allocator.free(block).unwrap());
    let at = pool(&allocator, None);
    let held = |allocator: &Simulated| allocator.stats(DEVICE).unwrap().totals().reserved_bytes().current;
    let before = held(&allocator);
    let inside = malloc(&allocator, Some(at), 100 * MIB, STREAM);
    assert!(moved(&allocator) >= 90 * MIB);
    assert!(held(&allocator) <= before + 10 * MIB as i64);
    // What the pool has free waits for the pool.
    allocator.free(inside).unwrap();
    let before = moved(&allocator);
    for _ in 0..2 {
        malloc(&allocator, None, 60 * MIB, STREAM);
    }
    let from_default = moved(&allocator) - before;
    assert!(from_default <= 70 * MIB, "{from_default}");
    let again = malloc(&allocator, Some(at), 100 * MIB, STREAM);
    assert_eq!(again, inside);
    allocator.check_invariants().unwrap();
}

#[test]
fn no_page_moves_within_a_pool_with_memory_of_a_graph() {
    let allocator = allocator();
    let at = pool(&allocator, None);
    let pools = allocator.pools(DEVICE).unwrap();
    pools.begin_route(at, Route::Stream(STREAM), RoutePurpose::Capture).unwrap();
    let blocks: Vec<_> = (0..20).map(|_| allocator.malloc(DEVICE, 8 * MIB, STREAM).unwrap()).collect();
    blocks.iter().step_by(2).for_each(|&block| allocator.free(block).unwrap());
    pools.end_route(at, RoutePurpose::Capture).unwrap();
    malloc(&allocator, Some(at), 60 * MIB, STREAM);
    assert_eq!(moved(&allocator), 0);
    malloc(&allocator, None, 60 * MIB, STREAM);
    assert_eq!(moved(&allocator), 0);
    allocator.check_invariants().unwrap();
}

#[test]
fn a_model_is_converted_while_another_sleeps_and_both_park_whole() {
    let allocator = allocator();
    let parking = allocator.parking(DEVICE).unwrap();
    let [first, second] = [FIRST, SECOND].map(|tag| (ParkTarget::Tag(tag), pool(&allocator, Some(tag))));
    let device = allocator.device(DEVICE).unwrap();
    let mut written = Vec::new();
    for (number, (target, at)) in (0..).zip([first, second]) {
        let blocks = convert(&allocator, Some(at), &[STREAM, OTHER]);
        for (&block, byte) in blocks.iter().zip(10 * number..) {
            assert!(device.write(block, byte));
        }
        // Blocks share pages, which have one content each here.
        written.extend(blocks.iter().map(|&block| (block, device.read(block))));
        let percent = held_percent(&allocator);
        if number == 0 {
            assert!(percent <= 120, "{percent} %");
            parking.park(target, ParkMode::Keep, ParkOrder::Device).unwrap();
            let report = parking.report(target).unwrap();
            assert_eq!((report.mapped, device.used()), (0, 0), "nothing is left behind");
        }
    }
    // The blocks that sleep count as allocated, and not as reserved.
    parking.park(second.0, ParkMode::Keep, ParkOrder::Device).unwrap();
    assert_eq!(device.used(), 0);
    for (target, _) in [second, first] {
        parking.wake_start(target).unwrap();
        parking.wake_wait(target).unwrap();
    }
    for (block, byte) in written {
        assert_eq!(device.read(block), byte);
    }
    allocator.check_invariants().unwrap();
}
