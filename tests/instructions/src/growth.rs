//! Programs with growing numbers of objects: pools, pins, pending blocks, released ranges.
//!
//! A program has phases. In each phase every object takes one step. A step must cost as much among
//! 100,000 objects as among 1,000. Queued work stays incomplete until a phase completes the work.

use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{
    Allocator, Config, DeviceIndex, DevicePtr, Error, MIB, PoolId, PoolOptions, RangeId, Route, RoutePurpose, StreamId,
    Tag,
};
use cachalot_policies::Tables;
use std::num::NonZeroU64;
use std::time::Duration;

/// The allocator of a program.
type Simulated = Allocator<SimulatedDevice, parking_lot::RawMutex, Tables>;

/// The device.
const DEVICE: DeviceIndex = DeviceIndex(0);
/// The memory of the device, in bytes: enough for 100,000 ranges of 4 MiB. Heaps of
/// `policy:stitched` reserve addresses in proportion.
const CAPACITY: u64 = 1 << 39;
/// The stream of the requests.
const STREAM: StreamId = StreamId(0x10_0000);
/// The streams that use the blocks and the ranges.
const OTHERS: [StreamId; 3] = [StreamId(0x10_0100), StreamId(0x10_0200), StreamId(0x10_0300)];
/// The size of most blocks, in bytes.
const BYTES: u64 = 1000;
/// Size of half a segment in bytes. Two such blocks fill a segment, and leave no free memory for a
/// request.
const HALF: u64 = MIB;

/// An allocator, and the objects of a program.
struct World {
    /// The allocator.
    allocator: Simulated,
    /// The blocks, by the number of the object.
    blocks: Vec<DevicePtr>,
    /// The pools, by the number of the object.
    pools: Vec<PoolId>,
    /// The ranges, by the number of the object.
    ranges: Vec<RangeId>,
}

/// A phase of a program.
pub struct Phase {
    /// Description of the step for each object.
    pub step: &'static str,
    /// Runs the step for object number `n`.
    act: fn(&mut World, u64) -> Result<(), Error>,
}

/// A program with any number of objects.
pub struct Program {
    /// The kind of the objects.
    pub objects: &'static str,
    /// The configuration.
    pub config: &'static str,
    /// The phases, in turn.
    pub phases: &'static [Phase],
}

/// The programs.
pub const PROGRAMS: [Program; 8] = [
    Program { objects: "live private pools", config: "", phases: &POOLS },
    Program { objects: "live private pools", config: "policy:stitched", phases: &POOLS },
    Program { objects: "live pools with tags of their own", config: "", phases: &TAGS },
    Program { objects: "pinned blocks", config: "", phases: &PINS },
    Program { objects: "freed blocks with pending uses", config: "", phases: &USES },
    Program { objects: "freed blocks with pending uses", config: "policy:stitched", phases: &USES },
    Program { objects: "released ranges with unfinished work", config: "", phases: &RANGES },
    Program { objects: "ranges in use", config: "", phases: &TOGETHER },
];

/// Live pools.
const POOLS: [Phase; 2] = [
    Phase { step: "create a pool, request a block in it", act: |world, _| world.add_pool(None) },
    Phase { step: "free the block, release the pool", act: World::remove_pool },
];

/// Live pools, each with its own tag.
const TAGS: [Phase; 2] = [
    Phase {
        step: "create a pool, tag it, request a block in it",
        act: |world, number| world.add_pool(NonZeroU64::new(number + 1)),
    },
    Phase { step: "free the block, release the pool", act: World::remove_pool },
];

/// Pinned blocks.
const PINS: [Phase; 2] = [
    Phase { step: "request a block, pin it", act: |world, _| world.add_pin() },
    Phase { step: "unpin the block, free it", act: World::remove_pin },
];

/// Blocks freed during the use by two streams.
const USES: [Phase; 4] = [
    Phase { step: "request a block, use it on two streams", act: World::use_block },
    Phase { step: "free the block, whose uses are pending", act: World::free_block },
    Phase { step: "request a block: ask in vain, order the oldest", act: World::request_again },
    Phase { step: "free the block, without a use", act: World::free_block },
];

/// Ranges released during the use by a stream.
const RANGES: [Phase; 2] = [
    Phase { step: "reserve, commit, decommit a half, release", act: World::pass_range },
    Phase { step: "the same, and earlier work is complete", act: World::finish_ranges },
];

/// Ranges of one stream beside ranges of another.
const TOGETHER: [Phase; 3] = [
    Phase { step: "reserve and commit on one stream", act: |world, _| world.keep_range(OTHERS[0]) },
    Phase { step: "release, work unfinished", act: World::release_range },
    Phase { step: "reserve and commit on another stream", act: |world, _| world.keep_range(OTHERS[1]) },
];

impl World {
    /// Makes an allocator, and no object.
    fn new(config: &Config) -> Result<Self, Error> {
        let allocator = Simulated::new([SimulatedDevice::new(CAPACITY)], config)?;
        Ok(Self { allocator, blocks: Vec::new(), pools: Vec::new(), ranges: Vec::new() })
    }

    /// Requests a block.
    fn malloc(&self, bytes: u64) -> Result<DevicePtr, Error> {
        self.allocator.malloc(DEVICE, bytes, STREAM)
    }

    /// Creates a pool, with a tag if given, and requests a block in the pool.
    fn add_pool(&mut self, tag: Option<NonZeroU64>) -> Result<(), Error> {
        let pool = self.allocator.pools(DEVICE)?.create(PoolOptions::default())?;
        if let Some(tag) = tag {
            self.allocator.parking(DEVICE)?.tag_pool(pool, Some(Tag(tag)))?;
        }
        self.allocator.pools(DEVICE)?.begin_route(pool, Route::Stream(STREAM), RoutePurpose::Requests)?;
        self.blocks.push(self.malloc(BYTES)?);
        self.allocator.pools(DEVICE)?.end_route(pool, RoutePurpose::Requests)?;
        self.pools.push(pool);
        Ok(())
    }

    /// Frees the block of a pool, and releases the pool.
    fn remove_pool(&mut self, number: u64) -> Result<(), Error> {
        self.free_block(number)?;
        self.allocator.pools(DEVICE).unwrap().release(self.pools[number as usize])
    }

    /// Requests a block, and pins the block.
    fn add_pin(&mut self) -> Result<(), Error> {
        let block = self.malloc(BYTES)?;
        self.allocator.pages(DEVICE)?.pin(block)?;
        self.blocks.push(block);
        Ok(())
    }

    /// Unpins a block, and frees the block.
    fn remove_pin(&mut self, number: u64) -> Result<(), Error> {
        self.allocator.pages(DEVICE)?.unpin(self.blocks[number as usize])?;
        self.free_block(number)
    }

    /// Requests a block, and uses the block on two streams.
    fn use_block(&mut self, number: u64) -> Result<(), Error> {
        let block = self.malloc(HALF)?;
        // The second and the third stream in turn.
        for stream in [OTHERS[0], OTHERS[1 + number as usize % 2]] {
            self.allocator.record_use(block, stream)?;
        }
        self.blocks.push(block);
        Ok(())
    }

    /// Frees a block.
    fn free_block(&mut self, number: u64) -> Result<(), Error> {
        self.allocator.free(self.blocks[number as usize])
    }

    /// Requests a block in the place of a freed block.
    fn request_again(&mut self, number: u64) -> Result<(), Error> {
        self.blocks[number as usize] = self.malloc(HALF)?;
        Ok(())
    }

    /// Reserves a range, commits a part, decommits a half of the part, and releases the range.
    fn pass_range(&mut self, number: u64) -> Result<(), Error> {
        let stream = OTHERS[number as usize % OTHERS.len()];
        let range = self.allocator.ranges(DEVICE)?.reserve(8 * MIB)?.range;
        self.allocator.ranges(DEVICE)?.commit(range, 0, 4 * MIB, stream)?;
        self.allocator.ranges(DEVICE)?.decommit(range, 0, 2 * MIB, stream)?;
        self.allocator.ranges(DEVICE).unwrap().release(range)
    }

    /// Completes earlier work, and calls [`pass_range`](Self::pass_range).
    fn finish_ranges(&mut self, number: u64) -> Result<(), Error> {
        let device = self.allocator.device(DEVICE).expect("there is one device");
        device.complete(OTHERS[number as usize % OTHERS.len()]);
        self.pass_range(number)
    }

    /// Reserves a range, and commits a part on a stream.
    fn keep_range(&mut self, stream: StreamId) -> Result<(), Error> {
        let range = self.allocator.ranges(DEVICE)?.reserve(8 * MIB)?.range;
        self.ranges.push(range);
        self.allocator.ranges(DEVICE).unwrap().commit(range, 0, 4 * MIB, stream)
    }

    /// Releases a range.
    fn release_range(&mut self, number: u64) -> Result<(), Error> {
        self.allocator.ranges(DEVICE).unwrap().release(self.ranges[number as usize])
    }
}

impl Program {
    /// Returns the configuration, or the default policy for an empty configuration.
    pub fn config_or_default(&self) -> &'static str {
        if self.config.is_empty() { "policy:caching" } else { self.config }
    }

    /// Runs the program with `count` objects. Returns the time of each phase, by the clock `now`.
    ///
    /// # Errors
    /// The errors of the allocator.
    ///
    /// # Panics
    /// If [`config`](Self::config) is no valid configuration.
    pub fn run(&self, count: u64, now: impl Fn() -> Duration) -> Result<Vec<Duration>, Error> {
        let mut world = World::new(&Config::parse(self.config).expect("the program has a configuration"))?;
        let mut run = |phase: &Phase| {
            let begin = now();
            (0..count).try_for_each(|number| (phase.act)(&mut world, number))?;
            Ok(now().saturating_sub(begin))
        };
        self.phases.iter().map(&mut run).collect()
    }
}
