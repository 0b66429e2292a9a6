//! Frees that the program holds off: nothing waits for the device, and nothing goes back to it.

use crate::allocator::Allocator;
use crate::config::Config;
use crate::device::simulated::{Call, SimulatedDevice};
use crate::error::Error;
use crate::pool::{PoolOptions, Route, RoutePurpose};
use crate::tables::Growable;
use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
use std::vec::Vec;

const DEVICE: DeviceIndex = DeviceIndex(0);
const STREAMS: [StreamId; 3] = [StreamId(1), StreamId(2), StreamId(3)];

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

/// The calls that wait for the device or give memory back to it.
const HELD_OFF: [Call; 7] =
    [Call::Release, Call::Unmap, Call::Destroy, Call::Wait, Call::Synchronize, Call::SynchronizeAll, Call::Finish];

const CONFIGS: [&str; 9] = [
    "",
    "policy:stitched",
    "expandable_segments:True",
    "policy:direct",
    "max_split_size_mb:20",
    "garbage_collection_threshold:0.3",
    "compact:1,max_split_size_mb:20",
    "reclaim:auto",
    "policy:planned",
];

fn allocator(config: &str, capacity: u64) -> Simulated {
    Simulated::new([SimulatedDevice::new(capacity)], &Config::parse(config).unwrap()).unwrap()
}

fn held_off(allocator: &Simulated) -> Vec<(Call, u64)> {
    let device = allocator.device(DEVICE).unwrap();
    HELD_OFF.map(|call| (call, device.calls(call))).into()
}

/// Makes a random call.
fn step(allocator: &Simulated, random: &mut fastrand::Rng, blocks: &mut Vec<DevicePtr>) {
    let stream = STREAMS[random.usize(..STREAMS.len())];
    match random.u8(..40) {
        0..19 => match allocator.malloc(DEVICE, random.u64(1..=48 * MIB), stream) {
            Ok(ptr) => {
                let _fits = allocator.device(DEVICE).unwrap().launch(stream, ptr, 1);
                blocks.push(ptr);
            }
            Err(Error::OutOfMemory(_)) => {}
            Err(other) => panic!("{other:?}"),
        },
        19..34 if !blocks.is_empty() => {
            let ptr = blocks.swap_remove(random.usize(..blocks.len()));
            if random.bool() {
                allocator.record_stream(ptr, stream).unwrap();
            }
            allocator.free(ptr).unwrap();
        }
        34 => allocator.device(DEVICE).unwrap().complete(stream),
        35 => drop(allocator.empty_cache(DEVICE)),
        36 => allocator.trim(DEVICE, 0).unwrap(),
        37 => drop(allocator.pages(DEVICE).unwrap().maintain(1_000_000).unwrap()),
        38 => drop(allocator.stream_destroyed(DEVICE, stream)),
        _ => drop(allocator.process_events(DEVICE)),
    }
}

#[test]
fn nothing_waits_and_nothing_goes_back_while_frees_are_held_off() {
    for config in CONFIGS {
        let mut in_holds = 0;
        for seed in 0..20 {
            let (allocator, mut random) = (allocator(config, 512 * MIB), fastrand::Rng::with_seed(seed));
            let mut blocks = Vec::new();
            for _ in 0..6 {
                (0..40).for_each(|_| step(&allocator, &mut random, &mut blocks));
                allocator.begin_hold(DEVICE).unwrap();
                let before = held_off(&allocator);
                (0..60).for_each(|_| step(&allocator, &mut random, &mut blocks));
                assert_eq!(held_off(&allocator), before, "{config:?}, seed {seed}");
                assert_eq!(allocator.end_hold(DEVICE), Ok(true));
                allocator.check_invariants().unwrap();
                in_holds += blocks.len();
            }
            blocks.into_iter().for_each(|ptr| allocator.free(ptr).unwrap());
            STREAMS.into_iter().for_each(|stream| allocator.device(DEVICE).unwrap().complete(stream));
            allocator.empty_cache(DEVICE).unwrap();
            allocator.empty_cache(DEVICE).unwrap();
            allocator.check_invariants().unwrap();
            assert_eq!(allocator.device(DEVICE).unwrap().used(), 0, "{config:?}, seed {seed}");
        }
        assert!(in_holds > 100, "{config:?}: {in_holds} blocks at the ends of holds");
    }
}

#[test]
fn a_request_in_a_hold_grows_and_then_fails_where_it_would_have_released_memory() {
    let allocator = allocator("", 100 * MIB);
    let cached = allocator.malloc(DEVICE, 60 * MIB, STREAMS[0]).unwrap();
    allocator.free(cached).unwrap();
    allocator.begin_hold(DEVICE).unwrap();
    let grown = allocator.malloc(DEVICE, 30 * MIB, STREAMS[1]).unwrap();
    assert!(matches!(allocator.malloc(DEVICE, 30 * MIB, STREAMS[1]), Err(Error::OutOfMemory(_))));
    assert_eq!(allocator.malloc(DEVICE, 60 * MIB, STREAMS[0]), Ok(cached), "the cache serves its own stream");
    allocator.free(cached).unwrap();
    // Holds are counted.
    allocator.begin_hold(DEVICE).unwrap();
    assert_eq!(allocator.end_hold(DEVICE), Ok(true));
    assert!(matches!(allocator.malloc(DEVICE, 30 * MIB, STREAMS[1]), Err(Error::OutOfMemory(_))));
    assert_eq!((allocator.end_hold(DEVICE), allocator.end_hold(DEVICE)), (Ok(true), Ok(false)));
    let served = allocator.malloc(DEVICE, 30 * MIB, STREAMS[1]).unwrap();
    [grown, served].into_iter().for_each(|ptr| allocator.free(ptr).unwrap());
}

#[test]
fn a_hold_is_no_capture_of_the_pools_used_meanwhile() {
    let allocator = allocator("", 100 * MIB);
    let pools = allocator.pools(DEVICE).unwrap();
    let pool = pools.create(PoolOptions::default()).unwrap();
    allocator.begin_hold(DEVICE).unwrap();
    assert!(!pools.are_capturing());
    pools.begin_route(pool, Route::Stream(STREAMS[0]), RoutePurpose::Requests).unwrap();
    let block = allocator.malloc(DEVICE, MIB, STREAMS[0]).unwrap();
    pools.end_route(pool, RoutePurpose::Requests).unwrap();
    allocator.free(block).unwrap();
    allocator.end_hold(DEVICE).unwrap();
    pools.empty(pool).unwrap();
    assert_eq!(allocator.device(DEVICE).unwrap().used(), 0);
}
