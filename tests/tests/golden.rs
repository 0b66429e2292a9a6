//! Published figures: a training program of three epochs, eight small examples, and the table of
//! sizes.

use cachalot_core::simulated::Call;
use cachalot_core::{DevicePtr, Error, Range};
use cachalot_tests::host::{DEVICE, Host, MIB, STREAM};
use std::collections::HashMap;

const CAPACITY: u64 = 80 << 30;

/// Format of the lines: `alloc,id,bytes` · `free,id` · `empty_cache` ·
/// `stage,label,allocated,max_allocated,reserved,max_reserved`.
#[test]
fn three_epochs_of_training() {
    let host = Host::new("", CAPACITY);
    let mut blocks = HashMap::<String, DevicePtr>::new();
    let mut stages = 0;
    for record in training() {
        match &record[0] {
            "alloc" => {
                let before = blocks.insert(record[1].to_owned(), host.malloc(record[2].parse().unwrap()));
                assert_eq!(before, None, "{record:?}");
            }
            "free" => host.free(blocks.remove(&record[1]).unwrap()),
            "empty_cache" => host.empty_cache(),
            "stage" => {
                let expected: Vec<i64> = (2..6).map(|field| record[field].parse().unwrap()).collect();
                let keys = ["allocated", "reserved"]
                    .map(|name| ["current", "peak"].map(|field| host.stat(&format!("{name}_bytes.all.{field}"))));
                assert_eq!(keys.concat(), expected, "{}", &record[1]);
                stages += 1;
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!(stages, 42);
}

/// The lines of the training program.
fn training() -> Vec<csv::StringRecord> {
    let mut reader = csv::ReaderBuilder::new();
    let reader = reader.has_headers(false).flexible(true).comment(Some(b'#'));
    let lines = reader.from_path("golden/training_three_epochs.csv").unwrap().into_records();
    lines.map(Result::unwrap).collect()
}

/// The training program and an elastic range use the same memory by turns: the range grows until
/// the limit is reached, and gives its memory up for the next training.
#[test]
fn training_and_a_range_share_their_memory() {
    const PAGE: u64 = 2 * MIB;
    let limit = 512 * MIB;
    let host = Host::new("policy:stitched", CAPACITY);
    host.allocator.settings(DEVICE).unwrap().set_limit(Some(limit));
    let device = host.device();
    let range = Range::reserve(&host.allocator, DEVICE, limit).unwrap();
    let program = training();
    let (mut most_live, mut most_used) = (0, 0);
    for turn in 0..20 {
        let created = device.calls(Call::Create);
        let mut blocks = HashMap::<String, DevicePtr>::new();
        for record in &program {
            match &record[0] {
                "alloc" => {
                    blocks.insert(record[1].to_owned(), host.malloc(record[2].parse().unwrap()));
                    most_live = most_live.max(host.stat("requested_bytes.all.current"));
                    most_used = most_used.max(device.used());
                }
                "free" => host.free(blocks.remove(&record[1]).unwrap()),
                _ => {}
            }
        }
        device.complete(STREAM);
        let (mut pages, mut longest_ns) = (0, 0);
        let full = loop {
            let before = device.driver_ns();
            match range.commit(pages * PAGE, PAGE, STREAM) {
                Ok(()) => pages += 1,
                failed => break failed,
            }
            longest_ns = longest_ns.max(device.driver_ns() - before);
        };
        assert!(matches!(full, Err(Error::OutOfMemory(_))), "{full:?}");
        most_live = most_live.max(host.stat("requested_bytes.all.current"));
        most_used = most_used.max(device.used());
        assert!(turn < 2 || longest_ns <= 40_000, "turn {turn}: {longest_ns} ns for a page");
        assert!(turn < 2 || device.calls(Call::Create) == created, "turn {turn}: new memory");
        host.allocator.check_invariants().unwrap();
        range.decommit(0, pages * PAGE, STREAM).unwrap();
        for (_, block) in blocks {
            host.free(block);
        }
    }
    let ratio = most_used as f64 / most_live as f64;
    assert!(ratio <= 1.03, "{most_used} bytes used, {most_live} live: {ratio:.4}");
}

/// Expected state after an allocation.
struct After {
    /// Requested bytes.
    request: u64,
    /// Size of the block.
    block: u64,
    /// Size of the segment allocated for the block, if any.
    segment: Option<u64>,
    /// Reserved bytes in total.
    reserved: u64,
}

const fn after(request: u64, block: u64, segment: Option<u64>, reserved: u64) -> After {
    After { request, block, segment, reserved }
}

/// Runs a sequence of allocations from an empty cache. `inactive` is the expected number and size
/// of the split remainders at the end.
fn example(steps: &[After], inactive: (i64, u64)) {
    let host = Host::new("", CAPACITY);
    for (number, step) in steps.iter().enumerate() {
        let before = host.stat("segment.all.current");
        let ptr = host.malloc(step.request);
        let given = host.allocator.base_of(ptr).unwrap();
        assert_eq!(given.size, step.block, "allocation {number}");
        assert_eq!(host.stat("segment.all.current") - before, i64::from(step.segment.is_some()), "allocation {number}");
        if let Some(segment) = step.segment {
            assert_eq!((given.segment, given.segment_bytes), (ptr, segment), "allocation {number}");
        }
        assert_eq!(host.stat("reserved_bytes.all.current"), step.reserved.cast_signed(), "allocation {number}");
    }
    let left = ["", "_bytes"].map(|unit| host.stat(&format!("inactive_split{unit}.all.current")));
    assert_eq!(left, [inactive.0, inactive.1.cast_signed()]);
}

#[test]
fn example_0_a_block_one_mebibyte_larger_is_given_whole() {
    let host = Host::new("", CAPACITY);
    let whole = 20 * MIB.cast_signed();
    let first = host.malloc(3 * MIB);
    assert_eq!(host.figures(), [3 << 20, whole, 17 << 20]);
    host.malloc(17 * MIB);
    assert_eq!(host.figures(), [whole, whole, 0]);
    host.free(first);
    assert_eq!(host.figures(), [17 << 20, whole, 3 << 20]);
    assert_eq!(host.malloc(2 * MIB), first);
    assert_eq!(host.allocator.base_of(first).unwrap().size, 3 * MIB);
    assert_eq!(host.figures(), [whole, whole, 0]);
}

#[test]
fn example_1_small_requests_share_a_segment() {
    example(&[after(MIB, MIB, Some(2 * MIB), 2 * MIB), after(2, 512, None, 2 * MIB)], (1, 1_048_064));
}

#[test]
fn example_2_a_small_segment_holds_two_of_a_mebibyte() {
    example(&[after(MIB, MIB, Some(2 * MIB), 2 * MIB), after(MIB, MIB, None, 2 * MIB)], (0, 0));
}

#[test]
fn example_3_two_bytes_more_are_large() {
    let large = after(MIB + 2, 1_049_088, Some(20 * MIB), 22 * MIB);
    example(&[after(MIB, MIB, Some(2 * MIB), 2 * MIB), large], (2, 20_971_008));
}

#[test]
fn example_4_small_and_large_do_not_share() {
    let large = after(MIB + 2, 1_049_088, Some(20 * MIB), 22 * MIB);
    example(&[after(2, 512, Some(2 * MIB), 2 * MIB), large], (2, 22_019_072));
}

#[test]
fn example_5_eleven_mebibytes_take_a_segment_of_twelve() {
    let large = after(11 * MIB, 12_582_912, Some(12 * MIB), 12 * MIB);
    example(&[large, after(MIB, MIB, Some(2 * MIB), 14 * MIB)], (1, MIB));
}

#[test]
fn example_6_seventeen_fit_behind_two() {
    let first = after(2 * MIB, 2 * MIB, Some(20 * MIB), 20 * MIB);
    example(&[first, after(17 * MIB, 18_874_368, None, 20 * MIB), after(MIB, MIB, Some(2 * MIB), 22 * MIB)], (1, MIB));
}

#[test]
fn example_7_four_bytes_need_a_small_segment() {
    let first = after(2 * MIB, 2 * MIB, Some(20 * MIB), 20 * MIB);
    example(&[first, after(4, 512, Some(2 * MIB), 22 * MIB)], (2, 18 * MIB + 2_096_640));
}

/// Returns the sizes of the block and the segment of a first request.
fn published(r: u64) -> (u64, u64) {
    let plain = r.div_ceil(512) * 512;
    if r <= MIB {
        (plain, 2 * MIB)
    } else if r <= 10 * MIB - 512 {
        (plain, 20 * MIB)
    } else if r <= 10 * MIB {
        (10 * MIB, 10 * MIB)
    } else if r <= 11 * MIB - 512 {
        (plain, 12 * MIB)
    } else {
        let j = r.div_ceil(2 * MIB) * 2;
        // Below (j − 1) M − 511 more than 1 M would remain, which is split off.
        (if r >= (j - 1) * MIB - 511 { j * MIB } else { plain }, j * MIB)
    }
}

#[test]
fn the_table_of_sizes() {
    let host = Host::new("", CAPACITY);
    let around = (0..=64).flat_map(|mib: u64| {
        [1, 2, 511, 512, 513, 1024].into_iter().flat_map(move |d| [mib * MIB + d, (mib * MIB).saturating_sub(d)])
    });
    for r in around.chain((1..80 * MIB).step_by(65_521)).chain([MIB << 10, 5 << 30]).filter(|&r| r > 0) {
        let ptr = host.malloc(r);
        let given = host.allocator.base_of(ptr).unwrap();
        assert_eq!((given.size, given.segment_bytes), published(r), "{r}");
        assert_eq!((given.base, given.requested), (ptr, r));
        host.free(ptr);
        host.empty_cache();
    }
    assert_eq!(host.device().used(), 0);
}

#[test]
fn rounding_by_divisions() {
    let host = Host::new("roundup_power2_divisions:4", CAPACITY);
    for (bytes, size) in
        [(1200, 1536), (2049, 2560), (84 * MIB, 96 * MIB), (100 * MIB, 112 * MIB), (1025 * MIB, 1280 * MIB)]
    {
        let ptr = host.malloc(bytes);
        assert_eq!(host.allocator.base_of(ptr).unwrap().size, size, "{bytes}");
        host.free(ptr);
        host.empty_cache();
    }
}
