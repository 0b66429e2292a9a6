//! Best fit with coalescing: the expectations of the tests of TensorFlow (2.16) and XLA, with their
//! figures.
//!
//! Not applicable:
//! * `DefaultAlignment`, `RespectsRequestedAlignment`,
//!   `AlignmentWithHardcodedSubAllocatorAlignment`: requests here have no alignment; every block is
//!   aligned to 256 bytes.
//! * the tests of spatial partitioning: a heap here has no two ends.
//! * `AllocatorReceivesZeroMemory`: disabled in the original.
//! * `OomLogsAllocationAnnotations`: blocks here carry no names.
//! * `Log2FloorNonZeroSlow`: tests a private helper of the original.
//!
//! TensorFlow also counts the largest allocation so far. Where a test checks the count, the test
//! here reads the size from the allocated blocks.

use cachalot_core::simulated::{Call, Failure};
use cachalot_core::{Config, DeviceError, DevicePtr, Error, ErrorKind, SnapshotSegment};
use cachalot_snapshot::memory_map::{BINS, Bin, MemoryMap};
use cachalot_tests::host::{DEVICE, Host, MIB};

const GIB: u64 = 1 << 30;

/// Allocates all memory in one region, the default of the original tests.
const AT_ONCE: &str = "policy:bfc,allow_growth:False";
const GROWING: &str = "policy:bfc";
/// Grows one virtual address range, like the original's sub-allocator.
const VIRTUAL: &str = "policy:bfc,expandable_segments:True";

/// Returns the number of allocations, the bytes in use, and their peak.
fn stats(host: &Host) -> [i64; 3] {
    ["allocation.all.allocated", "allocated_bytes.all.current", "allocated_bytes.all.peak"].map(|key| host.stat(key))
}

fn largest_block(host: &Host) -> Option<u64> {
    MemoryMap::of(host.allocator.snapshot()).sizes_in_use.last().map(|in_use| in_use.size)
}

fn region_sizes(host: &Host) -> Vec<u64> {
    host.allocator.snapshot().iter().map(|region| region.total_size).collect()
}

/// Checks that no two blocks overlap, and that each block has the requested size.
fn assert_apart(host: &Host, blocks: &[DevicePtr]) {
    let mut blocks = blocks.to_vec();
    blocks.sort_unstable();
    for pair in blocks.windows(2) {
        let requested = host.allocator.base_of(pair[0]).unwrap().requested;
        assert!(requested > 0 && pair[1].0 - pair[0].0 >= requested);
    }
}

#[test]
fn no_dups() {
    for config in [AT_ONCE, GROWING, VIRTUAL] {
        let host = Host::new(config, GIB);
        assert_eq!((stats(&host), largest_block(&host)), ([0, 0, 0], None));
        let blocks: Vec<_> = (1..1024).map(|bytes| host.malloc(bytes)).collect();
        assert_eq!((stats(&host), largest_block(&host)), ([1023, 654_336, 654_336], Some(1024)), "{config}");
        assert_apart(&host, &blocks);
        blocks.into_iter().for_each(|ptr| host.free(ptr));
        assert_eq!(stats(&host), [1023, 0, 654_336], "{config}");
    }
}

#[test]
fn allocations_and_deallocations() {
    for config in [AT_ONCE, GROWING, VIRTUAL] {
        let host = Host::new(config, GIB);
        let mut random = fastrand::Rng::with_seed(1);
        let mut request = || host.malloc(random.u64(100..=MIB));
        let mut blocks: Vec<_> = (0..255).map(|_| request()).collect();
        for number in (0..blocks.len()).rev().filter(|number| number % 2 == 1) {
            host.free(blocks.remove(number));
        }
        assert!(matches!(host.refused(GIB + 1), Error::OutOfMemory(_)), "{config}");
        blocks.extend((0..255).map(|_| request()));
        assert_apart(&host, &blocks);
        blocks.into_iter().for_each(|ptr| host.free(ptr));
        assert_eq!(stats(&host)[1], 0, "{config}");
    }
}

#[test]
fn exercise_coalescing() {
    let host = Host::new(AT_ONCE, GIB);
    let first = host.malloc(4096);
    host.free(first);
    assert_eq!(stats(&host), [1, 0, 4096]);
    for _ in 0..1024 {
        let blocks = [4096, 8_388_608, 16_384, 41_943_040].map(|bytes| host.malloc(bytes));
        assert_eq!(largest_block(&host), Some(41_943_040));
        blocks.into_iter().for_each(|ptr| host.free(ptr));
    }
    assert_eq!(stats(&host), [4097, 0, 50_352_128]);
    assert_eq!(host.malloc(4096), first);
}

#[test]
fn zero_bytes_are_nothing() {
    assert_eq!(Host::new(GROWING, GIB).malloc(0), DevicePtr::NULL);
}

#[test]
fn allocated_and_requested_size() {
    for config in [AT_ONCE, GROWING, VIRTUAL] {
        let host = Host::new(config, GIB);
        let block = host.allocator.base_of(host.malloc(4)).unwrap();
        assert_eq!((block.requested, block.size), (4, 256), "{config}");
    }
}

#[test]
fn a_limit() {
    for config in [AT_ONCE, GROWING, VIRTUAL] {
        let host = Host::new(config, GIB);
        host.allocator.settings(DEVICE).unwrap().set_limit(Some(2 * MIB));
        if config != VIRTUAL {
            // There a granule is more than the limit.
            host.malloc(256);
            assert_eq!(region_sizes(&host), [2 * MIB], "{config}");
        }
        assert!(matches!(host.refused(8 * MIB), Error::OutOfMemory(_)), "{config}");
    }
}

#[test]
fn allocations_and_deallocations_with_growth() {
    for config in [GROWING, VIRTUAL] {
        let host = Host::new(config, 2 * GIB);
        let mut random = fastrand::Rng::with_seed(2);
        let mut blocks: Vec<_> = (0..9).map(|_| host.malloc(random.u64(1..=128 * MIB))).collect();
        for number in (0..blocks.len()).rev().filter(|number| number % 2 == 1) {
            host.free(blocks.remove(number));
        }
        blocks.extend((0..9).map(|_| host.malloc(random.u64(1..=64 * MIB))));
        assert_apart(&host, &blocks);
        blocks.into_iter().for_each(|ptr| host.free(ptr));
        assert_eq!(stats(&host)[1], 0, "{config}");
    }
}

#[test]
fn the_memory_map_counts_every_bin() {
    let host = Host::new(AT_ONCE, GIB);
    let sizes: Vec<u64> = (0..5).map(|bin| 256 << bin).collect();
    let blocks: Vec<_> = sizes.iter().map(|&size| [host.malloc(size), host.malloc(size)]).collect();
    let map = MemoryMap::of(host.allocator.snapshot());
    assert_eq!(map.chunks().count(), 11);
    for (number, bin) in map.bins.iter().enumerate() {
        let from = 256 << number;
        let bytes = 2 * from;
        let expected = match number {
            0..5 => Bin { from, chunks: 2, chunks_in_use: 2, bytes, bytes_in_use: bytes, requested_in_use: bytes },
            20 => Bin { from, chunks: 1, bytes: GIB - 2 * 31 * 256, ..Bin::default() },
            _ => Bin { from, ..Bin::default() },
        };
        assert_eq!((BINS, *bin), (21, expected));
    }
    blocks.iter().for_each(|pair| host.free(pair[1]));
    let map = MemoryMap::of(host.allocator.snapshot());
    for (bin, &size) in map.bins.iter().zip(&sizes) {
        assert_eq!((bin.chunks_in_use, bin.bytes_in_use, bin.requested_in_use), (1, size, size));
        assert!(bin.chunks >= 1 && bin.bytes >= size);
    }
    assert_eq!(map.bins[5..].iter().map(|bin| bin.chunks_in_use).sum::<u64>(), 0);
    assert_eq!((map.bytes, map.bytes_in_use), (GIB, 31 * 256));
}

/// `ForceAllowGrowth`: in the original by an environment variable, here by the configuration.
#[test]
fn growth_is_chosen_by_the_configuration() {
    for (config, first) in
        [(GROWING, 2 * MIB), ("policy:bfc,allow_growth:True", 2 * MIB), (AT_ONCE, 2 * GIB), (VIRTUAL, 20 * MIB)]
    {
        let host = Host::new(config, 2 * GIB);
        host.malloc(1);
        assert_eq!(region_sizes(&host), [first], "{config}");
    }
    assert!(Config::parse("policy:bfc,allow_growth:unparseable").is_err());
}

/// Allocates 128 blocks of 4 MiB and frees all but the last.
fn free_all_but_the_last(host: &Host) {
    let blocks: Vec<_> = (0..128).map(|_| host.malloc(4 * MIB)).collect();
    blocks[..127].iter().for_each(|&ptr| host.free(ptr));
}

#[test]
fn a_virtual_range_promotes_reuse() {
    let host = Host::new(VIRTUAL, GIB);
    host.allocator.settings(DEVICE).unwrap().set_limit(Some(512 * MIB));
    free_all_but_the_last(&host);
    host.malloc(508 * MIB);
}

#[test]
fn physical_memory_fragments() {
    let host = Host::new(GROWING, GIB);
    host.allocator.settings(DEVICE).unwrap().set_limit(Some(512 * MIB));
    free_all_but_the_last(&host);
    assert!(matches!(host.refused(508 * MIB), Error::OutOfMemory(_)));
}

#[test]
fn free_regions_go_back() {
    let host = Host::new(GROWING, 2 * GIB);
    free_all_but_the_last(&host);
    assert!(region_sizes(&host).len() > 1);
    host.empty_cache();
    let map = MemoryMap::of(host.allocator.snapshot());
    assert_eq!(map.regions.len(), 1);
    assert_eq!(map.bins.iter().map(|bin| bin.chunks - bin.chunks_in_use).sum::<u64>(), 1);
}

#[test]
fn a_virtual_range_is_one_region() {
    let host = Host::new(VIRTUAL, 2 * GIB);
    let one = |segments: &[SnapshotSegment]| segments.len() == 1 && segments[0].is_expandable;
    for _ in 0..128 {
        host.malloc(4 * MIB);
        assert!(one(&host.allocator.snapshot()));
    }
}

/// `AllocateAndFree` and `GetAndClearMemoryStats` of XLA.
#[test]
fn memory_stats() {
    let host = Host::new(GROWING, MIB);
    let first = host.malloc(1024);
    assert_eq!(stats(&host), [1, 1024, 1024]);
    let second = host.malloc(2048);
    assert_ne!(first, second);
    assert_eq!(stats(&host), [2, 3072, 3072]);
    host.free(second);
    assert_eq!(stats(&host), [2, 1024, 3072]);
    host.allocator.stats(DEVICE).unwrap().reset_peaks();
    host.allocator.stats(DEVICE).unwrap().reset_accumulated();
    assert_eq!(stats(&host), [0, 1024, 1024]);
}

/// `ExtendTerminatesWhenSubAllocatorAlwaysFails`: below 10 × 256 bytes, nine tenths would round to
/// an unchanged size forever.
#[test]
fn backing_off_ends_if_the_device_never_has_anything() {
    for config in [GROWING, AT_ONCE] {
        for pool in [2048, GIB] {
            let host = Host::new(config, pool);
            let error = DeviceError::new(ErrorKind::OutOfMemory, 2);
            host.device().fail(Failure { call: Call::Obtain, nth: 1, persistent: true, error });
            assert!(matches!(host.refused(100), Error::OutOfMemory(_)));
            assert!((1..1000).contains(&host.device().calls(Call::Obtain)), "{config}");
        }
    }
}

/// Allocates ten blocks of each size, five times over, in random order: all fit, every time. (The
/// original has five alignments.)
#[test]
fn stress_alloc_free() {
    for config in [GROWING, AT_ONCE] {
        let host = Host::new(config, 16 * MIB);
        let mut random = fastrand::Rng::with_seed(3);
        let sizes = [1, 128, 256, 700, 1024, 4096, 8192].repeat(50);
        for _ in 0..20 {
            let mut sizes = sizes.clone();
            random.shuffle(&mut sizes);
            let mut blocks: Vec<_> = sizes.into_iter().map(|bytes| host.malloc(bytes)).collect();
            assert!(blocks.iter().all(|ptr| ptr.0.is_multiple_of(256)));
            assert_apart(&host, &blocks);
            random.shuffle(&mut blocks);
            blocks.into_iter().for_each(|ptr| host.free(ptr));
        }
        assert_eq!(stats(&host)[..2], [20 * 350, 0]);
    }
}
