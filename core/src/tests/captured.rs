//! The memory of captured graphs: as long as the pool has users, a replay may write to it, so it
//! stays.

use crate::allocator::Allocator;
use crate::device::simulated::SimulatedDevice;
use crate::device::{ErrorKind, Host};
use crate::error::Error;
use crate::pool::{PoolId, PoolOptions, Route, RoutePurpose, Tag, TagLimits};
use crate::tables::Growable;
use crate::tests::altered::{self, AlteredDevice, Change};
use crate::tests::own::parse;
use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
use core::num::NonZeroU64;
use fastrand::Rng;
use std::vec::Vec;

const DEVICE: DeviceIndex = DeviceIndex(0);
const STREAM: StreamId = StreamId(1);
const OTHER: StreamId = StreamId(2);
const STREAMS: [StreamId; 3] = [STREAM, OTHER, StreamId(3)];
const CAPACITY: u64 = 400 * MIB;
const TAGS: [Tag; 2] = [Tag(NonZeroU64::new(1).unwrap()), Tag(NonZeroU64::new(2).unwrap())];

/// Settings under which memory goes back by every rule.
const CONFIGS: [&str; 15] = [
    "",
    "max_split_size_mb:20",
    "max_split_size_mb:20,decisions:improved",
    "max_split_size_mb:20,expandable_segments:True",
    "garbage_collection_threshold:0.3",
    "compact:0",
    "compact:0.2,exact_segments:True,max_split_size_mb:20",
    "reclaim:auto",
    "reclaim:auto,expandable_segments:True,decisions:improved",
    "expandable_segments:True",
    "policy:stitched,slack:0",
    "policy:bfc",
    "policy:bfc,expandable_segments:True",
    "policy:first_fit",
    "policy:small_first_fit",
];

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

fn allocator(config: &str) -> Simulated {
    let device = SimulatedDevice::new(CAPACITY).with_idle_streams_told();
    Simulated::new([device], &parse(config)).unwrap()
}

fn device(allocator: &Simulated) -> &SimulatedDevice {
    allocator.device(DEVICE).unwrap()
}

fn reserved(allocator: &Simulated) -> u64 {
    allocator.stats(DEVICE).unwrap().totals().reserved_bytes().current as u64 / MIB
}

fn pool(allocator: &Simulated, use_on_oom: bool) -> PoolId {
    allocator.pools(DEVICE).unwrap().create(PoolOptions { use_on_oom, no_split: false }).unwrap()
}

/// Captures a request of `mib` MiB into the pool, and returns the block, which is free.
fn capture(allocator: &Simulated, pool: PoolId, mib: u64) -> DevicePtr {
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(STREAM), RoutePurpose::Capture).unwrap();
    device(allocator).set_capturing(STREAM, true);
    let block = allocator.malloc(DEVICE, mib * MIB, STREAM).unwrap();
    allocator.free(block).unwrap();
    device(allocator).set_capturing(STREAM, false);
    allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
    block
}

#[test]
fn no_request_of_its_pool_gives_the_segment_of_a_graph_back() {
    for config in ["max_split_size_mb:20", "max_split_size_mb:20,decisions:improved"] {
        for captures in [true, false] {
            let allocator = allocator(config);
            let pool = pool(&allocator, false);
            capture(&allocator, pool, 30);
            allocator.settings(DEVICE).unwrap().set_limit(Some(65 * MIB));
            if captures {
                allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Capture).unwrap();
                device(&allocator).set_capturing(STREAM, true);
            } else {
                allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Requests).unwrap();
            }
            let refused = allocator.malloc(DEVICE, 50 * MIB, STREAM);
            assert!(matches!(refused, Err(Error::OutOfMemory(_))), "`{config}`, {captures}: {refused:?}");
            assert_eq!(reserved(&allocator), 30);
            allocator.check_invariants().unwrap();
        }
    }
}

#[test]
fn a_request_of_a_pool_that_no_graph_was_captured_into_replaces_oversize_segments() {
    let allocator = allocator("max_split_size_mb:20");
    let pool = pool(&allocator, false);
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Requests).unwrap();
    let block = allocator.malloc(DEVICE, 30 * MIB, STREAM).unwrap();
    allocator.free(block).unwrap();
    allocator.settings(DEVICE).unwrap().set_limit(Some(65 * MIB));
    allocator.malloc(DEVICE, 50 * MIB, STREAM).unwrap();
    assert_eq!(reserved(&allocator), 50);
}

#[test]
fn the_free_blocks_of_a_graph_serve_no_request_of_the_default_pool() {
    for has_graph in [false, true] {
        let allocator = allocator("");
        let pool = pool(&allocator, true);
        if has_graph {
            capture(&allocator, pool, 30);
        } else {
            allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Requests).unwrap();
            let block = allocator.malloc(DEVICE, 30 * MIB, STREAM).unwrap();
            allocator.free(block).unwrap();
            allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Requests).unwrap();
        }
        allocator.settings(DEVICE).unwrap().set_limit(Some(30 * MIB));
        assert_eq!(allocator.malloc(DEVICE, 30 * MIB, STREAM).is_ok(), !has_graph);
    }
}

#[test]
fn a_request_is_served_by_oversize_segments_that_its_wait_has_made_free() {
    let allocator = allocator("max_split_size_mb:30");
    let pool = pool(&allocator, false);
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Requests).unwrap();
    let block = allocator.malloc(DEVICE, 56 * MIB, STREAM).unwrap();
    allocator.record_stream(block, OTHER).unwrap();
    allocator.free(block).unwrap();
    allocator.settings(DEVICE).unwrap().set_limit(Some(40 * MIB));
    allocator.malloc(DEVICE, 2_500_000, STREAM).unwrap();
}

#[test]
fn a_request_is_served_by_a_lending_pool_in_which_its_wait_has_made_memory_free() {
    let allocator = allocator("");
    let pool = pool(&allocator, true);
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Requests).unwrap();
    let block = allocator.malloc(DEVICE, 30 * MIB, STREAM).unwrap();
    allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Requests).unwrap();
    allocator.record_stream(block, OTHER).unwrap();
    allocator.free(block).unwrap();
    allocator.settings(DEVICE).unwrap().set_limit(Some(30 * MIB));
    assert_eq!(allocator.malloc(DEVICE, 30 * MIB, STREAM), Ok(block));
}

/// A private pool of a random program.
struct Pool {
    id: PoolId,
    /// The memory of captured requests: address and bytes.
    graphs: Vec<(u64, u64)>,
    /// The stream that captures into the pool.
    capturing: Option<StreamId>,
    routed: bool,
    users: u32,
}

struct Program {
    allocator: Simulated,
    rng: Rng,
    pools: Vec<Pool>,
    live: Vec<DevicePtr>,
}

impl Program {
    fn new(config: &str, seed: u64) -> Self {
        let (allocator, mut rng) = (allocator(config), Rng::with_seed(seed));
        let pools = (0..3).map(|number| {
            let id = pool(&allocator, rng.bool());
            if number < 2 && rng.bool() {
                let _not_parkable = allocator.parking(DEVICE).unwrap().tag_pool(id, Some(TAGS[number]));
            }
            Pool { id, graphs: Vec::new(), capturing: None, routed: false, users: 1 }
        });
        let pools = pools.collect();
        Self { allocator, rng, pools, live: Vec::new() }
    }

    /// The pool that a request on `stream` is led into. No two pools have routes at a time.
    fn pool_of(&self, stream: StreamId) -> Option<usize> {
        self.pools.iter().position(|pool| pool.routed || pool.capturing == Some(stream))
    }

    fn malloc(&mut self) {
        let stream = STREAMS[self.rng.usize(..3)];
        let most = [4 << 10, 2 * MIB, 40 * MIB, 120 * MIB][self.rng.usize(..4)];
        let bytes = self.rng.u64(1..=most);
        let Ok(block) = self.allocator.malloc(DEVICE, bytes, stream) else { return };
        let at = block.0..block.0 + bytes;
        let pool = self.pool_of(stream);
        for (number, other) in self.pools.iter().enumerate() {
            let meets = other.graphs.iter().any(|&(graph, bytes)| graph < at.end && at.start < graph + bytes);
            assert!(!meets || pool == Some(number), "a block of another pool lies on the memory of a graph");
        }
        if let Some(pool) = pool.filter(|&pool| self.pools[pool].capturing == Some(stream)) {
            self.pools[pool].graphs.push((block.0, bytes));
        }
        self.live.push(block);
    }

    /// Begins or ends a capture or a route, or changes the users of the pool.
    fn change_pool(&mut self) {
        let (number, stream, kind) = (self.rng.usize(..3), STREAMS[self.rng.usize(..3)], self.rng.u8(..4));
        let is_free = self.pools.iter().all(|pool| !pool.routed && pool.capturing.is_none());
        let allocator = &self.allocator;
        let pool = &mut self.pools[number];
        let id = pool.id;
        if let Some(stream) = pool.capturing.take() {
            device(allocator).set_capturing(stream, false);
            allocator.pools(DEVICE).unwrap().end_route(id, RoutePurpose::Capture).unwrap();
        } else if core::mem::take(&mut pool.routed) {
            allocator.pools(DEVICE).unwrap().end_route(id, RoutePurpose::Requests).unwrap();
        } else if kind == 0 && is_free {
            allocator.pools(DEVICE).unwrap().begin_route(id, Route::All, RoutePurpose::Requests).unwrap();
            (pool.routed, pool.users) = (true, pool.users + 1);
        } else if kind == 1 && is_free {
            allocator.pools(DEVICE).unwrap().begin_route(id, Route::Stream(stream), RoutePurpose::Capture).unwrap();
            device(allocator).set_capturing(stream, true);
            (pool.capturing, pool.users) = (Some(stream), pool.users + 1);
        } else if kind == 2 && pool.users > 0 {
            allocator.pools(DEVICE).unwrap().release(id).unwrap();
            pool.users -= 1;
            // Without users no graph can be launched.
            if pool.users == 0 {
                pool.graphs.clear();
            }
        }
        if pool.users == 0 {
            allocator.pools(DEVICE).unwrap().retain(id, PoolOptions::default()).unwrap();
            pool.users = 1;
        }
    }

    /// Calls something that gives memory back, or that makes requests give memory back. A capture
    /// may forbid it.
    fn give_back(&mut self) {
        let allocator = &self.allocator;
        let number = self.rng.usize(..3);
        let bytes = self.rng.u64(..CAPACITY);
        match self.rng.u8(..11) {
            0 => _ = allocator.empty_cache(DEVICE),
            1 => _ = allocator.trim(DEVICE, bytes),
            2 => _ = allocator.pools(DEVICE).unwrap().empty(self.pools[number].id),
            3 => _ = allocator.settings(DEVICE).map(|settings| settings.set_caching(self.rng.bool())),
            4 => allocator.settings(DEVICE).unwrap().set_limit(self.rng.bool().then_some(bytes)),
            5 => {
                device(allocator).pause(10_000_000);
                let _in_capture = allocator.pages(DEVICE).unwrap().maintain(1_000_000);
            }
            6 => {
                let limits = TagLimits { max: self.rng.bool().then_some(bytes), ..TagLimits::NONE };
                allocator.tags(DEVICE).unwrap().limit(TAGS[number % 2], self.rng.bool().then_some(limits)).unwrap();
            }
            7 => {
                // The end of a stream is the end of its capture, and its number may name another.
                let stream = STREAMS[number];
                if let Some(pool) = self.pools.iter_mut().find(|pool| pool.capturing == Some(stream)) {
                    device(allocator).set_capturing(stream, false);
                    (pool.capturing, pool.routed) = (None, false);
                }
                let _in_capture = allocator.stream_destroyed(DEVICE, stream);
            }
            8 => _ = allocator.pools(DEVICE).unwrap().trim(self.pools[number].id, bytes),
            9 => _ = allocator.tags(DEVICE).unwrap().trim(TAGS[number % 2], bytes),
            _ => _ = allocator.process_events(DEVICE),
        }
    }

    fn step(&mut self) {
        match self.rng.u8(..20) {
            0..8 => self.malloc(),
            8..14 if !self.live.is_empty() => {
                let block = self.live.swap_remove(self.rng.usize(..self.live.len()));
                if self.rng.u8(..4) == 0 {
                    let _in_capture = self.allocator.record_stream(block, STREAMS[self.rng.usize(..3)]);
                }
                self.allocator.free(block).unwrap();
            }
            14..17 => self.change_pool(),
            17 => STREAMS.iter().for_each(|&stream| device(&self.allocator).complete(stream)),
            _ => self.give_back(),
        }
    }

    /// Checks that every byte of a graph lies in a segment of its pool, on memory.
    fn check(&self) {
        let segments = self.allocator.snapshot();
        for pool in &self.pools {
            for &(at, bytes) in &pool.graphs {
                let holds = |address: u64, length: u64| address <= at && at + bytes <= address + length;
                let is_held = segments.iter().any(|segment| {
                    segment.pool == pool.id && segment.address.0 <= at && holds(segment.address.0, segment.total_size)
                });
                assert!(is_held, "the segment at {at:#x} of a graph has gone back");
                assert!(device(&self.allocator).is_accessible(DevicePtr(at), bytes), "{at:#x} has no memory");
            }
        }
        self.allocator.check_invariants().unwrap();
    }
}

#[test]
fn whatever_gives_memory_back_the_memory_of_a_graph_stays() {
    // A program of 300 steps, checked as a whole after each, takes as long as many cases of other
    // properties.
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(32_u64).div_ceil(4);
    for config in CONFIGS {
        for seed in 0..cases {
            let mut program = Program::new(config, seed);
            for step in 0..300 {
                let done = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
                    program.step();
                    program.check();
                }));
                assert!(done.is_ok(), "`{config}`, seed {seed}, step {step}");
            }
        }
    }
}

#[test]
fn a_wait_that_may_break_a_capture_comes_after_it() {
    let device = AlteredDevice::new(CAPACITY, Change::IsFull);
    let allocator = altered::Allocator::new([device], &parse("expandable_segments:True")).unwrap();
    let pools = allocator.pools(DEVICE).unwrap();
    let pool = pools.create(PoolOptions::default()).unwrap();
    let block = allocator.malloc(DEVICE, 30 * MIB, OTHER).unwrap();
    allocator.free(block).unwrap();
    let noted = || allocator.device(DEVICE).unwrap().take_made();
    pools.begin_route(pool, Route::Stream(STREAM), RoutePurpose::Capture).unwrap();
    let refused = allocator.empty_cache(DEVICE);
    assert!(matches!(refused, Err(Error::Device(error)) if error.kind == ErrorKind::OutOfMemory), "{refused:?}");
    assert!(noted().is_empty());
    pools.end_route(pool, RoutePurpose::Capture).unwrap();
    allocator.empty_cache(DEVICE).unwrap();
    assert_eq!(noted(), ["synchronize_without_memory"]);
    assert_eq!(allocator.stats(DEVICE).unwrap().totals().reserved_bytes().current, 0);
}
