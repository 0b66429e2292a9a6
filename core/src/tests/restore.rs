//! States taken over from snapshots.

use crate::allocator::Allocator;
use crate::arena::request::Forecast;
use crate::device::simulated::{AddressSpace, Call, Failure, Outstanding, SimulatedDevice};
use crate::device::{DeviceError, ErrorKind, Segments};
use crate::error::Error;
use crate::pool::{PoolId, PoolOptions, Route, RoutePurpose};
use crate::snapshot::{BlockState, SnapshotSegment};
use crate::tables::Growable;
use crate::tests::own::parse;
use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
use alloc::sync::Arc;
use alloc::vec::Vec;

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

const DEVICE: DeviceIndex = DeviceIndex(0);
const POOL: PoolId = PoolId(0, 1);
const CONFIGS: [&str; 4] = ["", "expandable_segments:True", "max_split_size_mb:20", "policy:bfc"];

fn allocator(config: &str) -> Simulated {
    on_device(SimulatedDevice::new(8 << 30), config)
}

/// An allocator on a device with addresses different from the first device's, unless scripted.
fn elsewhere(config: &str) -> Simulated {
    elsewhere_of(8 << 30, config)
}

/// As [`elsewhere`], on a device with `capacity` bytes.
fn elsewhere_of(capacity: u64, config: &str) -> Simulated {
    let space = Arc::new(AddressSpace::new(1 << 50..1 << 51));
    on_device(SimulatedDevice::within(space, capacity), config)
}

fn on_device(device: SimulatedDevice, config: &str) -> Simulated {
    let allocator = Allocator::new([device], &parse(config)).unwrap();
    allocator.pools(DEVICE).unwrap().retain(POOL, PoolOptions::default()).unwrap();
    allocator
}

/// Requests and frees from a generator of numbers, the same on any two allocators in the same
/// state.
struct Program(u64);

impl Program {
    fn number(&mut self) -> u64 {
        // Knuth's MMIX generator: the high bits are good enough to choose sizes.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn run(&mut self, allocator: &Simulated, held: &mut Vec<DevicePtr>, calls: u32) {
        for _ in 0..calls {
            if self.number() % 5 < 3 {
                let bytes =
                    if self.number().is_multiple_of(2) { 1 + self.number() % MIB } else { self.number() % (30 * MIB) };
                let stream = StreamId(self.number() % 2);
                held.push(allocator.malloc(DEVICE, bytes.max(1), stream).unwrap());
            } else if !held.is_empty() {
                let block = held.swap_remove(self.number() as usize % held.len());
                allocator.free(block).unwrap();
            }
        }
    }
}

/// The addresses to be handed out by the device, in the order of the restored segments.
fn script(allocator: &Simulated, segments: &[SnapshotSegment]) {
    let mut heaps = Vec::new();
    for segment in segments {
        let heap = (segment.stream, segment.kind, segment.pool);
        if !segment.is_expandable || !heaps.contains(&heap) {
            allocator.device(DEVICE).unwrap().script_addresses([segment.address.0]);
        }
        if segment.is_expandable {
            heaps.push(heap);
        }
    }
}

fn sorted(allocator: &Simulated) -> Vec<SnapshotSegment> {
    let mut segments = allocator.snapshot();
    segments.sort_by_key(|segment| segment.address);
    segments
}

fn restored(config: &str, segments: &[SnapshotSegment]) -> Result<Simulated, Error> {
    restored_on(elsewhere(config), segments)
}

fn restored_on(mut other: Simulated, segments: &[SnapshotSegment]) -> Result<Simulated, Error> {
    script(&other, segments);
    other.restore(DEVICE, segments).map(|()| other)
}

#[test]
fn a_restored_state_is_the_snapshot_and_goes_on_alike() {
    for config in CONFIGS {
        for seed in 0..20 {
            let (mut program, mut held) = (Program(seed), Vec::new());
            let original = allocator(config);
            program.run(&original, &mut held, 200);
            original.pools(DEVICE).unwrap().begin_route(POOL, Route::All, RoutePurpose::Capture).unwrap();
            program.run(&original, &mut held, 50);
            original.pools(DEVICE).unwrap().end_route(POOL, RoutePurpose::Capture).unwrap();
            let segments = sorted(&original);
            let other = restored(config, &segments).unwrap();
            assert_eq!(sorted(&other), segments, "`{config}`, seed {seed}");
            other.check_invariants().unwrap();
            for key in ["allocated_bytes.all.peak", "requested_bytes.all.current", "inactive_split.all.current"] {
                let of = |allocator: &Simulated| allocator.stats(DEVICE).unwrap().totals().get(key).unwrap();
                let current = of(&original)
                    .min(original.stats(DEVICE).unwrap().totals().get(&key.replace("peak", "current")).unwrap());
                assert_eq!(of(&other), current, "`{config}`, seed {seed}: {key}");
            }
            // Blocks inside of the segments: what is obtained later has other addresses.
            let mut again = Program(program.0);
            let (mut held, mut others) = (held.clone(), held);
            let hits = |program: &mut Program, allocator: &Simulated, held: &mut Vec<DevicePtr>| {
                program.run(allocator, held, 100);
                let inside = |block: &&DevicePtr| {
                    segments.iter().any(|s| (s.address.0..s.address.0 + s.total_size).contains(&block.0))
                };
                held.iter().filter(inside).copied().collect::<Vec<_>>()
            };
            let (one, two) = (hits(&mut program, &original, &mut held), hits(&mut again, &other, &mut others));
            // Regions of `policy:bfc` begin to grow anew, so their lengths differ from here on.
            assert!(one == two || config == "policy:bfc", "`{config}`, seed {seed}");
            other.check_invariants().unwrap();
            others.into_iter().for_each(|block| other.free(block).unwrap());
            other.pools(DEVICE).unwrap().release(POOL).unwrap();
            other.trim(DEVICE, 0).unwrap();
            assert_eq!(other.device(DEVICE).unwrap().used(), 0, "`{config}`: everything could be given back");
        }
    }
}

#[test]
fn what_contradicts_itself_or_the_device_is_refused() {
    let (mut program, mut held) = (Program(7), Vec::new());
    let original = allocator("");
    program.run(&original, &mut held, 100);
    let segments = sorted(&original);
    let refused = |change: &dyn Fn(&mut Vec<SnapshotSegment>)| {
        let mut changed = segments.clone();
        change(&mut changed);
        match restored("", &changed) {
            Err(Error::SnapshotRefused(why)) => why,
            other => panic!("{:?}", other.map(|_| ())),
        }
    };
    assert_eq!(refused(&|s| s.swap(0, 1)), "two segments overlap, or are not in the order of their addresses");
    assert_eq!(refused(&|s| s[0].total_size += 512), "the blocks do not tile their segment");
    assert_eq!(refused(&|s| s[0].blocks.clear()), "the blocks do not tile their segment");
    assert_eq!(refused(&|s| s[0].blocks[0].size += 1), "a block's size is no multiple of the unit");
    assert_eq!(refused(&|s| s[0].blocks[0].size = 0), "a block's size is no multiple of the unit");
    assert_eq!(refused(&|s| s[0].address = DevicePtr(0)), "a segment's address is not aligned");
    let nothing = |s: &mut Vec<SnapshotSegment>| {
        s[0].total_size = 0;
        s[0].blocks.clear();
    };
    assert_eq!(refused(&nothing), "the blocks do not tile their segment");
    assert_eq!(refused(&|s| s[0].stream = StreamId(u64::MAX)), "the stream number u64::MAX is reserved");
    assert_eq!(refused(&|s| s[0].address.0 += 1), "a segment's address is not aligned");
    let split = |s: &mut Vec<SnapshotSegment>| {
        let segment = &mut s[0];
        for block in &mut segment.blocks {
            block.state = crate::snapshot::BlockState::Inactive;
        }
    };
    assert_eq!(refused(&split), "two free blocks are neighbours");
    assert_eq!(
        refused(&|s| s.iter_mut().for_each(|s| s.is_expandable = true)),
        "a part of an expandable segment does not begin and end on granules"
    );

    let mut holds = allocator("");
    holds.malloc(DEVICE, 1, StreamId(0)).unwrap();
    assert!(matches!(holds.restore(DEVICE, &segments), Err(Error::SnapshotRefused(_))));
    let mut unscripted = elsewhere("");
    assert!(matches!(unscripted.restore(DEVICE, &segments), Err(Error::SnapshotRefused(_))));
    assert_eq!(unscripted.device(DEVICE).unwrap().used(), 0, "what the device placed elsewhere is given back");
    let mut limited = allocator("");
    limited.settings(DEVICE).unwrap().set_limit(Some(MIB));
    assert_eq!(limited.restore(DEVICE, &segments), Err(Error::SnapshotRefused("the segments exceed the limit")));
    assert!(matches!(restored("policy:first_fit", &segments), Err(Error::SnapshotRefused(_))));
}

/// Restores the segments of a program on a device with a failing `nth` call of each of `calls`, and
/// with all later calls of the kind failing.
fn restored_with_failures(config: &str, calls: &[(Call, u64)]) -> (Simulated, Result<(), Error>) {
    let original = allocator(config);
    let (mut program, mut held) = (Program(7), Vec::new());
    program.run(&original, &mut held, 100);
    let segments = sorted(&original);
    let mut other = elsewhere(config);
    script(&other, &segments);
    for &(call, nth) in calls {
        let error = DeviceError::new(ErrorKind::Other, 1);
        other.device(DEVICE).unwrap().fail(Failure { call, nth, persistent: true, error });
    }
    let result = other.restore(DEVICE, &segments);
    other.check_invariants().unwrap();
    (other, result)
}

/// The bytes charged against the limit.
fn reserved(allocator: &Simulated) -> u64 {
    allocator.arena(DEVICE).unwrap().ledger.reserved()
}

#[test]
fn memory_in_doubt_after_a_failed_mapping_is_counted_as_leaked() {
    // The access to the first part fails, and so does the unmapping of its granules.
    let (other, result) = restored_with_failures("expandable_segments:True", &[(Call::SetAccess, 1), (Call::Unmap, 1)]);
    assert!(matches!(result, Err(Error::Device(_))), "{result:?}");
    let device = other.device(DEVICE).unwrap();
    assert!(device.used() > 0);
    assert_eq!(reserved(&other), device.used(), "the device may still hold the bytes");
    assert_eq!(other.stats(DEVICE).map(|stats| stats.leaked_bytes()), Ok(device.used()));
}

#[test]
fn a_failed_mapping_that_was_undone_leaves_nothing() {
    for calls in [[(Call::Create, 1)], [(Call::Map, 1)], [(Call::SetAccess, 1)]] {
        let (other, result) = restored_with_failures("expandable_segments:True", &calls);
        assert!(matches!(result, Err(Error::Device(_))), "{calls:?}: {result:?}");
        assert_eq!(other.device(DEVICE).unwrap().outstanding(), Outstanding::default(), "{calls:?}");
        assert_eq!(reserved(&other), 0, "{calls:?}");
    }
}

#[test]
fn a_segment_that_the_device_does_not_give_is_not_charged() {
    let (other, result) = restored_with_failures("", &[(Call::Obtain, 2)]);
    assert!(matches!(result, Err(Error::Device(_))), "{result:?}");
    assert_eq!(reserved(&other), other.device(DEVICE).unwrap().used());
    let mut small = on_device(SimulatedDevice::new(MIB), "");
    let original = allocator("");
    original.malloc(DEVICE, 1, StreamId(0)).unwrap();
    let lacks = Err(Error::SnapshotRefused("the device lacks the memory for the segments"));
    assert_eq!(small.restore(DEVICE, &sorted(&original)), lacks);
    assert_eq!(reserved(&small), 0);
}

/// A pool's earlier state comes back: the pool's blocks are freed, and the blocks of the earlier
/// state are allocated at their old addresses.
#[test]
fn a_pool_returns_to_an_earlier_state() {
    for config in ["", "expandable_segments:True", "max_split_size_mb:20", "policy:bfc"] {
        let allocator = allocator(config);
        allocator.pools(DEVICE).unwrap().begin_route(POOL, Route::All, RoutePurpose::Requests).unwrap();
        let (mut program, mut held) = (Program(7), Vec::new());
        program.run(&allocator, &mut held, 200);
        let earlier = sorted(&allocator);
        program.run(&allocator, &mut held, 200);
        held.into_iter().for_each(|block| allocator.free(block).unwrap());
        for segment in &earlier {
            for block in segment.blocks.iter().filter(|block| block.state == BlockState::ActiveAllocated) {
                allocator.malloc_at(POOL, block.address, block.size, block.requested_size).unwrap();
                let again = allocator.malloc_at(POOL, block.address, block.size, block.requested_size);
                assert_eq!(again, Err(Error::SnapshotRefused("the bytes of the block are not free")), "`{config}`");
            }
        }
        allocator.check_invariants().unwrap();
        let live = |segments: &[SnapshotSegment]| -> Vec<_> {
            let blocks = segments.iter().flat_map(|segment| &segment.blocks);
            let live = blocks.filter(|block| block.state == BlockState::ActiveAllocated);
            live.map(|block| (block.address, block.size, block.requested_size)).collect()
        };
        let later = sorted(&allocator);
        assert_eq!(live(&later), live(&earlier), "`{config}`");
        // A segment that had its length then has its free blocks again, too.
        for segment in &earlier {
            let same =
                later.iter().find(|later| (later.address, later.total_size) == (segment.address, segment.total_size));
            let shape = |segment: &SnapshotSegment| -> Vec<_> {
                segment.blocks.iter().map(|block| (block.address, block.size, block.state)).collect()
            };
            assert!(same.is_none_or(|same| shape(same) == shape(segment)), "`{config}`");
        }
        let bytes: u64 = live(&later).iter().map(|&(_, size, _)| size).sum();
        assert_eq!(allocator.stats(DEVICE).unwrap().totals().allocated_bytes().current, bytes as i64, "`{config}`");
    }
}

/// An address outside of free memory of the pool is refused, and nothing changes.
#[test]
fn a_block_is_placed_only_in_free_memory_of_its_pool() {
    let allocator = allocator("");
    let block = allocator.malloc(DEVICE, 3 * MIB, StreamId(1)).unwrap();
    let behind = DevicePtr(block.0 + 4 * MIB);
    let refused = |why| Err(Error::SnapshotRefused(why));
    let unit = "the address or the size of the block is no multiple of the unit";
    assert_eq!(allocator.malloc_at(PoolId::DEFAULT, block, MIB, MIB), refused("the bytes of the block are not free"));
    assert_eq!(allocator.malloc_at(POOL, behind, MIB, MIB), refused("the block is in another pool"));
    assert_eq!(
        allocator.malloc_at(PoolId::DEFAULT, behind, 17 * MIB, MIB),
        refused("the bytes of the block are not free")
    );
    assert_eq!(allocator.malloc_at(PoolId::DEFAULT, behind, 100, 100), refused(unit));
    assert_eq!(allocator.malloc_at(PoolId::DEFAULT, behind, 512, 513), refused(unit));
    assert_eq!(allocator.malloc_at(PoolId::DEFAULT, behind, 0, 0), refused(unit));
    assert!(matches!(
        allocator.malloc_at(PoolId::DEFAULT, DevicePtr(512), MIB, MIB),
        Err(Error::InvalidPointer { .. })
    ));
    allocator.malloc_at(PoolId::DEFAULT, behind, 16 * MIB, MIB).unwrap();
    allocator.check_invariants().unwrap();
    allocator.free(behind).unwrap();
    allocator.free(block).unwrap();
    assert_eq!(allocator.stats(DEVICE).unwrap().totals().get("inactive_split_bytes.all.current"), Some(0));
}

#[test]
fn parts_of_expandable_segments_are_whole_granules() {
    let config = "expandable_segments:True";
    let original = allocator(config);
    let blocks = [512, 20 * MIB, 40 * MIB].map(|bytes| original.malloc(DEVICE, bytes, StreamId(1)).unwrap());
    let segments = sorted(&original);
    let again = restored(config, &segments).unwrap();
    assert_eq!(sorted(&again), segments);
    assert!(blocks.iter().all(|&block| again.free(block).is_ok()));
    let shorter = |s: &mut SnapshotSegment| {
        s.total_size -= 512;
        let last = s.blocks.last_mut().unwrap();
        last.size -= 512;
        last.requested_size = last.requested_size.min(last.size);
    };
    for number in 0..segments.len() {
        let mut changed = segments.clone();
        shorter(&mut changed[number]);
        let why = "a part of an expandable segment does not begin and end on granules";
        assert_eq!(restored(config, &changed).map(|_| ()), Err(Error::SnapshotRefused(why)));
        // As many granules, which begin between two.
        let mut changed = segments.clone();
        changed[number].address = changed[number].address.offset(512);
        changed[number].blocks.iter_mut().for_each(|block| block.address = block.address.offset(512));
        let mut other = elsewhere(config);
        script(&other, &segments);
        assert_eq!(other.restore(DEVICE, &changed), Err(Error::SnapshotRefused(why)));
    }
}

#[test]
fn a_part_of_an_expandable_segment_may_fill_its_addresses_and_not_exceed_them() {
    let config = |part: &str| std::format!("expandable_segments:True,expandable_segments_reserve:{part}");
    // A quarter of the device is whole granules of 20 MiB.
    let capacity = 8000 * MIB;
    let original = on_device(SimulatedDevice::new(capacity), &config("0.25"));
    let quarter = original.device(DEVICE).unwrap().memory_info().unwrap().total / 4;
    assert_eq!(original.forecast(DEVICE).unwrap().malloc(quarter, StreamId(1)), Ok(Forecast::Expand));
    original.malloc(DEVICE, quarter, StreamId(1)).unwrap();
    let outstanding = original.device(DEVICE).unwrap().outstanding();
    assert_eq!((outstanding.segments, outstanding.reservations), (0, 1));
    let segments = sorted(&original);
    assert_eq!(segments[0].total_size, quarter);
    let again = restored_on(elsewhere_of(capacity, &config("0.25")), &segments).unwrap();
    assert_eq!(sorted(&again), segments);
    let why = "a part of an expandable segment does not begin and end on granules";
    let refused = restored_on(elsewhere_of(capacity, &config("0.125")), &segments).map(|_| ());
    assert_eq!(refused, Err(Error::SnapshotRefused(why)));
}

#[test]
fn the_peaks_of_a_restored_segment_count_all_of_it() {
    let original = allocator("");
    let whole = original.malloc(DEVICE, 60 * MIB, StreamId(1)).unwrap();
    original.free(whole).unwrap();
    original.malloc(DEVICE, 40 * MIB, StreamId(1)).unwrap();
    // Where 20 MiB are oversize, every statistic of the heap rises at once.
    let again = restored("max_split_size_mb:20", &sorted(&original)).unwrap();
    again.free(whole).unwrap();
    again.empty_cache(DEVICE).unwrap();
    let peak = |key: &str| again.stats(DEVICE).unwrap().totals().get(&std::format!("{key}.peak")).unwrap();
    assert_eq!((peak("allocated_bytes.all"), peak("reserved_bytes.all")), (40 << 20, 60 << 20));
    assert_eq!((peak("oversize_allocations"), peak("inactive_split_bytes.all")), (1, 20 << 20));
}
