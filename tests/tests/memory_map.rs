//! The memory map: bins, sums, occupancy and text.

use cachalot_core::StreamId;
use cachalot_snapshot::memory_map::{BINS, Bin, MemoryMap, OCCUPANCY_WIDTH, bin_of};
use cachalot_tests::host::{DEVICE, Host, MIB};
use cachalot_tests::policies::policies;

#[test]
fn bins_double() {
    for (bytes, bin) in
        [(0, 0), (1, 0), (256, 0), (511, 0), (512, 1), (1023, 1), (1024, 2), (MIB, 12), (256 * MIB - 1, 19)]
    {
        assert_eq!(bin_of(bytes), bin, "{bytes}");
    }
    for bytes in [256 * MIB, 512 * MIB, u64::MAX] {
        assert_eq!(bin_of(bytes), BINS - 1);
    }
}

#[test]
fn nothing_held_is_nothing_to_see() {
    let map = MemoryMap::of(Vec::new());
    assert_eq!((map.occupancy().as_str(), map.fragmentation(), map.bytes_free()), ("", 0.0, 0));
    assert_eq!(
        map.to_string(),
        "Blocks by size:\nBlocks in use by size:\n\
         Of 0 bytes: in use 0 bytes, asked for 0 bytes, free 0 bytes, at most 0 bytes in one piece.\n[]"
    );
}

#[test]
fn the_report() {
    let host = Host::new("", 1 << 30);
    let blocks = [1000, 700].map(|bytes| host.malloc(bytes));
    let used = host.malloc(5 * MIB);
    host.malloc(16 * MIB + 512);
    host.allocator.record_stream(used, StreamId(7)).unwrap();
    host.free(used);
    host.free(blocks[0]);
    // A character stands for 0.4 MiB of the 40: the first segment has 5, the second 50, the third
    // 45.
    let expected = "Blocks by size:
  from 1024 bytes: blocks 2, in use 1; 2.00 KiB, in use 1024 bytes, asked for 700 bytes
  from 1024.00 KiB: blocks 2, in use 0; 4.00 MiB, in use 0 bytes, asked for 0 bytes
  from 4.00 MiB: blocks 1, in use 1; 5.00 MiB, in use 5.00 MiB, asked for 5.00 MiB
  from 8.00 MiB: blocks 1, in use 0; 15.00 MiB, in use 0 bytes, asked for 0 bytes
  from 16.00 MiB: blocks 1, in use 1; 16.00 MiB, in use 16.00 MiB, asked for 16.00 MiB
Segment at 0x100000000000 of 2097152 bytes, device 0, stream 0x0, pool (0, 0):
  free    at 0x100000000000 of 1024 bytes
  in use  at 0x100000000400 of 1024 bytes, 700 asked for
  free    at 0x100000000800 of 2095104 bytes
Segment at 0x100000200000 of 20971520 bytes, device 0, stream 0x0, pool (0, 0):
  pending at 0x100000200000 of 5242880 bytes, freed but not done with
  free    at 0x100000700000 of 15728640 bytes
Segment at 0x100001600000 of 18874368 bytes, device 0, stream 0x0, pool (0, 0):
  in use  at 0x100001600000 of 16777728 bytes, 16777728 asked for
  free    at 0x100002600200 of 2096640 bytes
Blocks in use by size:
  1 of 1024 bytes: 1024 bytes
  1 of 5242880 bytes: 5.00 MiB
  1 of 16777728 bytes: 16.00 MiB
Of 40.00 MiB: in use 21.00 MiB, asked for 21.00 MiB, free 19.00 MiB, at most 15.00 MiB in one piece.
[_____*************_____________________________________****************************************_____]";
    let map = MemoryMap::of(host.allocator.snapshot());
    assert_eq!(map.to_string(), expected);
    assert_eq!((map.bytes_free(), map.fragmentation()), (19_921_408, 1.0 - 15_728_640.0 / 19_921_408.0));
}

/// The sums of the map equal the statistics, under every policy.
#[test]
fn sums_are_those_of_the_statistics() {
    for policy in policies() {
        let host = Host::new(policy, 1 << 30);
        let mut random = fastrand::Rng::with_seed(5);
        let mut blocks = Vec::new();
        for _ in 0..200 {
            blocks.push(host.malloc(random.u64(1..3 * MIB)));
            if random.bool() {
                host.free(blocks.swap_remove(random.usize(..blocks.len())));
            }
        }
        let map = MemoryMap::of(host.allocator.snapshot());
        let stats = host.allocator.stats(DEVICE).unwrap().totals();
        let sums = [map.bytes, map.bytes_in_use, map.requested_in_use];
        let counters = [stats.reserved_bytes(), stats.active_bytes(), stats.requested_bytes()];
        assert_eq!(sums.map(u64::cast_signed), counters.map(|counter| counter.current), "{policy}");
        let of_bins = |figure: fn(&Bin) -> u64| map.bins.iter().map(figure).sum::<u64>();
        assert_eq!([of_bins(|bin| bin.bytes), of_bins(|bin| bin.bytes_in_use)], sums[..2]);
        assert_eq!(of_bins(|bin| bin.chunks), map.chunks().count() as u64);
        let in_use = map.sizes_in_use.iter();
        assert_eq!(in_use.map(|size| size.size * size.chunks).sum::<u64>(), map.bytes_in_use);
        assert!(map.largest_free <= map.bytes_free() && (0.0..=1.0).contains(&map.fragmentation()));
        assert_eq!(map.occupancy().len(), OCCUPANCY_WIDTH);
    }
}
