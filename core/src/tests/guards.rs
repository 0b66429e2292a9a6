//! Guarded blocks: mapped for one block, unmapped once it is free, and explained afterwards.

use crate::allocator::Allocator;
use crate::config::Config;
use crate::device::simulated::{Call, Failure, SimulatedDevice};
use crate::device::{DeviceError, ErrorKind, Holder, Offset};
use crate::error::Error;
use crate::tables::Growable;
use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
use proptest::prelude::*;
use std::string::ToString;
use std::vec::Vec;

const DEVICE: DeviceIndex = DeviceIndex(0);
const STREAM: StreamId = StreamId(1);
const SIDE: StreamId = StreamId(2);

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

fn allocator(config: &str) -> Simulated {
    Simulated::new([SimulatedDevice::new(1 << 30)], &Config::parse(config).unwrap()).unwrap()
}

fn malloc(allocator: &Simulated, bytes: u64) -> DevicePtr {
    allocator.malloc(DEVICE, bytes, STREAM).unwrap()
}

fn device(allocator: &Simulated) -> &SimulatedDevice {
    allocator.device(DEVICE).unwrap()
}

/// Lets all work of both streams happen, and lets the allocator see it.
fn settle(allocator: &Simulated) {
    [STREAM, SIDE].into_iter().for_each(|stream| device(allocator).complete(stream));
    allocator.process_events(DEVICE).unwrap();
    allocator.check_invariants().unwrap();
}

#[test]
fn an_address_in_free_memory_is_explained_by_the_block_before() {
    let allocator = allocator("");
    // The second block is freed, so the memory behind the first one is free.
    let [first, second] = [MIB, 2 * MIB].map(|bytes| malloc(&allocator, bytes));
    allocator.free(second).unwrap();
    let explained = allocator.explain(first.offset(MIB + 4)).unwrap();
    assert_eq!((explained.block, explained.in_free_memory, explained.offset()), (first, true, Offset::Behind(4)));
    let text = explained.to_string();
    assert!(text.contains("lies in free memory, 4 bytes behind the end of the block of 1048576 bytes at"), "{text}");
    assert!(!allocator.explain(first).unwrap().in_free_memory);
    // Nothing is before the only free block of a segment.
    allocator.free(first).unwrap();
    allocator.explain(first).unwrap_err();
}

#[test]
fn the_settings_of_guards_are_written_as_they_are_read_and_stay() {
    for text in ["guard:all", "guard:after", "guard:before", "guard:sampled:7,quarantine:9", "zero:on_free,pattern:3"] {
        let mut config = Config::parse(text).unwrap();
        assert_eq!(config.to_string(), text);
        assert!(config.update("guard:sampled:8").is_err() && config.update("canary:True").is_err(), "{text}");
        config.update("quarantine:5").unwrap();
    }
    for text in ["policy:planned,guard:all", "policy:planned,canary:True", "policy:direct,guard:all", "guard:all:3"] {
        assert!(Config::parse(text).is_err(), "{text}");
    }
    assert!(Config::parse("policy:planned,guard:off,max_split_size_mb:64").is_ok());
}

#[test]
fn a_configuration_without_the_settings_of_guards_leaves_them_on() {
    for text in ["guard:all", "guard:after,pattern:165,canary:True", "zero:on_alloc,canary:True"] {
        let allocator = allocator(text);
        let old = malloc(&allocator, 100);
        allocator.configure(&Config::parse("max_split_size_mb:64").unwrap());
        let config = allocator.settings(DEVICE).unwrap().config();
        assert_eq!(config.to_string(), std::format!("max_split_size_mb:64,{text}"));
        // A guarded block is unmapped, and one with a canary is checked, as it would have been.
        let new = malloc(&allocator, 100);
        for block in [old, new] {
            allocator.free(block).unwrap();
            settle(&allocator);
            assert_eq!(device(&allocator).is_accessible(block, 1), !text.contains("guard"), "{text}");
        }
    }
}

#[test]
fn a_freed_block_stays_mapped_until_the_work_known_at_the_free_is_complete() {
    for config in ["guard:all", "guard:after", "guard:before", "guard:sampled:1", "policy:bfc,guard:all"] {
        let allocator = allocator(config);
        let block = malloc(&allocator, 3 * MIB);
        allocator.record_stream(block, SIDE).unwrap();
        allocator.free(block).unwrap();
        device(&allocator).complete(STREAM);
        allocator.process_events(DEVICE).unwrap();
        assert!(device(&allocator).is_accessible(block, 3 * MIB), "{config}: a stream said to use it may go on");
        settle(&allocator);
        assert!(!device(&allocator).is_accessible(block, 1), "{config}");
        let next = malloc(&allocator, 3 * MIB);
        assert_ne!(next, block, "{config}: the addresses are kept away");
        assert_eq!(device(&allocator).used(), 4 * MIB, "{config}: the pages are not");
    }
}

#[test]
fn blocks_of_ever_new_sizes_take_addresses_and_twice_their_memory_at_most() {
    let allocator = allocator("guard:all");
    let granule = 2 * MIB;
    for round in 0..60 {
        let sizes = [3, 5].map(|size| (size + round) * granule);
        let most = sizes.iter().sum::<u64>();
        for block in sizes.map(|bytes| malloc(&allocator, bytes)) {
            allocator.free(block).unwrap();
        }
        settle(&allocator);
        let used = device(&allocator).used();
        // What the spare pages had at most, and a block that fits none of them.
        assert!(used <= 2 * most, "round {round}: {used} bytes for {most}");
    }
    // Blocks of the same sizes again use the same pages.
    let creates = || device(&allocator).calls(Call::Create);
    let before = creates();
    for block in [62, 64].map(|size| malloc(&allocator, size * granule)) {
        allocator.free(block).unwrap();
    }
    assert_eq!(creates(), before);
}

#[test]
fn a_stream_that_was_not_announced_is_not_waited_for_and_the_report_says_so() {
    let allocator = allocator("guard:all");
    let block = malloc(&allocator, 1000);
    allocator.free(block).unwrap();
    assert_eq!(allocator.explain(block).unwrap().holder, Holder::Work);
    settle(&allocator);
    // Work that the program queues on another stream now.
    assert!(device(&allocator).launch(SIDE, block, 8).is_err());
    let explained = allocator.explain(block.offset(8)).unwrap();
    assert_eq!((explained.block, explained.requested, explained.holder), (block, 1000, Holder::Nobody));
    assert_eq!((explained.offset(), explained.used_on(), explained.frees_since), (Offset::Inside(8), &[][..], 0));
    let text = explained.to_string();
    assert!(text.contains("8 bytes into the block of 1000 bytes"), "{text}");
    assert!(text.contains("No other stream was said to use it."), "{text}");
}

#[test]
fn the_report_names_the_streams_that_were_announced() {
    let allocator = allocator("guard:after");
    let block = malloc(&allocator, 5000);
    allocator.record_stream(block, SIDE).unwrap();
    allocator.record_use(block, StreamId(7)).unwrap();
    assert_eq!(allocator.explain(block).unwrap().used_on(), [StreamId(7), SIDE]);
    allocator.free(block).unwrap();
    device(&allocator).complete(StreamId(7));
    settle(&allocator);
    malloc(&allocator, 1);
    let explained = allocator.explain(block).unwrap();
    assert_eq!((explained.holder, explained.used_on()), (Holder::Nobody, &[StreamId(7), SIDE][..]));
}

#[test]
fn an_overrun_or_an_underrun_leaves_the_mapped_memory() {
    for (config, size) in [("guard:after", 512), ("guard:after", 3 * MIB), ("guard:all", 3 * MIB)] {
        let allocator = allocator(config);
        let block = malloc(&allocator, size);
        assert!(device(&allocator).is_accessible(block, size), "{config}");
        assert!(!device(&allocator).is_accessible(block.offset(size), 1), "{config}");
        let explained = allocator.explain(block.offset(size + 7)).unwrap();
        assert_eq!((explained.block, explained.offset()), (block, Offset::Behind(7)), "{config}");
        assert_eq!(explained.holder, Holder::Program);
        assert_eq!(allocator.explain(block.offset(size)).unwrap().offset(), Offset::Behind(0), "{config}");
    }
    let allocator = allocator("guard:before");
    let block = malloc(&allocator, 512);
    assert!(!device(&allocator).is_accessible(DevicePtr(block.0 - 1), 1));
    let explained = allocator.explain(DevicePtr(block.0 - 16)).unwrap();
    assert_eq!((explained.block, explained.offset()), (block, Offset::Before(16)));
}

#[test]
fn small_blocks_share_a_page_and_no_address() {
    let allocator = allocator("guard:all");
    let blocks: Vec<_> = (0..4).map(|_| malloc(&allocator, MIB / 2)).collect();
    assert_eq!(device(&allocator).used(), 2 * MIB);
    let pages = || allocator.pages(DEVICE).unwrap().stats();
    assert_eq!((pages().mapped, pages().spare), (2 * MIB, 0));
    let physical = |block| device(&allocator).physical(block, 512).unwrap();
    assert!(blocks.iter().skip(1).all(|&block| physical(block)[0] != physical(blocks[0])[0]));
    allocator.free(blocks[0]).unwrap();
    settle(&allocator);
    assert!(!device(&allocator).is_accessible(blocks[0], 1));
    assert!(device(&allocator).is_accessible(blocks[1], MIB / 2));
    assert_eq!((pages().mapped, pages().spare), (3 * MIB / 2, MIB / 2), "a part that no block has is spare");
    blocks[1..].iter().for_each(|&block| allocator.free(block).unwrap());
    settle(&allocator);
    allocator.empty_cache(DEVICE).unwrap();
    assert_eq!((device(&allocator).used(), device(&allocator).outstanding().mappings), (0, 0));
}

#[test]
fn a_request_takes_the_pages_of_work_that_has_ended_by_then() {
    let allocator = allocator("guard:all");
    let block = malloc(&allocator, 3 * MIB);
    allocator.free(block).unwrap();
    device(&allocator).complete(STREAM);
    malloc(&allocator, 3 * MIB);
    assert_eq!(device(&allocator).used(), 4 * MIB, "the pages of the first block, and no more");
}

#[test]
fn addresses_serve_again_after_as_many_frees_as_the_quarantine_says() {
    let allocator = allocator("guard:all,quarantine:2");
    let blocks: Vec<_> = (0..3).map(|_| malloc(&allocator, 3 * MIB)).collect();
    for &block in &blocks {
        allocator.free(block).unwrap();
        settle(&allocator);
    }
    assert_eq!(device(&allocator).outstanding().reservations, 2);
    assert!(allocator.explain(blocks[0]).is_err());
    assert_eq!(allocator.explain(blocks[1]).unwrap().frees_since, 1);
    assert!(allocator.explain(blocks[1]).unwrap().to_string().contains("Since then, 1 guarded"));
    assert!(!allocator.explain(blocks[2]).unwrap().to_string().contains("Since then"), "no free came after");
    assert_eq!(malloc(&allocator, 3 * MIB), blocks[0]);
}

#[test]
fn where_addresses_lack_those_kept_away_are_given_back() {
    let allocator = allocator("guard:all,quarantine:100");
    for _ in 0..3 {
        let block = malloc(&allocator, 3 * MIB);
        allocator.free(block).unwrap();
        settle(&allocator);
    }
    let reservations = || device(&allocator).outstanding().reservations;
    assert_eq!(reservations(), 3);
    let fail = |kind| {
        let (error, nth) = (DeviceError::new(kind, 7), device(&allocator).calls(Call::Reserve) + 1);
        device(&allocator).fail(Failure { call: Call::Reserve, nth, error, persistent: false });
        error
    };
    fail(ErrorKind::OutOfMemory);
    let block = malloc(&allocator, 3 * MIB);
    assert!(allocator.explain(block).unwrap().guarded);
    assert!(reservations() <= 3, "{} reservations", reservations());
    let error = fail(ErrorKind::Other);
    assert_eq!(allocator.malloc(DEVICE, 3 * MIB, STREAM), Err(Error::Device(error)));
    allocator.pages(DEVICE).unwrap().end_quarantine();
    assert_eq!(reservations(), 1, "that of the living block");
    allocator.check_invariants().unwrap();
}

#[test]
fn a_guarded_block_takes_a_granule_of_addresses_more_than_its_pages() {
    // 16 TiB of addresses.
    let device = SimulatedDevice::numbered(0, 1 << 40);
    let allocator = Simulated::new([device], &Config::parse("guard:all").unwrap()).unwrap();
    let blocks: Vec<_> = (0..12).map(|_| malloc(&allocator, 3 * MIB)).collect();
    assert!(blocks.iter().all(|&block| allocator.explain(block).unwrap().guarded));
}

#[test]
fn one_request_in_many_gets_a_guarded_block_and_the_others_the_cache() {
    let allocator = allocator("guard:sampled:10");
    let blocks: Vec<_> = (0..30).map(|_| malloc(&allocator, 4096)).collect();
    let guarded = blocks.iter().filter(|&&block| allocator.explain(block).unwrap().guarded).count();
    assert_eq!(guarded, 3);
    // One segment of the cache, and three pages.
    assert_eq!(device(&allocator).used(), 8 * MIB);
    blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    settle(&allocator);
    allocator.empty_cache(DEVICE).unwrap();
    assert_eq!(device(&allocator).used(), 0);
}

#[test]
fn without_memory_for_a_page_of_its_own_a_request_gets_an_ordinary_block() {
    let config = Config::parse("guard:sampled:2").unwrap();
    let allocator = Simulated::new([SimulatedDevice::new(6 * MIB)], &config).unwrap();
    let blocks: Vec<_> = (0..6).map(|_| malloc(&allocator, 512)).collect();
    let guarded: Vec<_> = blocks.iter().map(|&block| allocator.explain(block).unwrap().guarded).collect();
    // The cache has one segment, and two pages are left for the second, the fourth and the sixth
    // block.
    assert_eq!(guarded, [false, true, false, true, false, false]);
    allocator.free(blocks[1]).unwrap();
    let next = [malloc(&allocator, 512), malloc(&allocator, 512)];
    assert!(allocator.explain(next[1]).unwrap().guarded, "the request waits for the page of a freed block");
    assert_ne!(next[1], blocks[1]);
}

#[test]
fn a_device_without_virtual_memory_serves_ordinary_blocks() {
    let device = SimulatedDevice::new(1 << 30).without_virtual_memory();
    let allocator = Simulated::new([device], &Config::parse("guard:all").unwrap()).unwrap();
    let block = malloc(&allocator, 512);
    assert!(!allocator.explain(block).unwrap().guarded);
    allocator.free(block).unwrap();
    allocator.check_invariants().unwrap();
}

#[test]
fn a_failed_call_leaves_nothing_mapped_and_nothing_uncounted() {
    for call in [Call::Reserve, Call::Create, Call::Map, Call::SetAccess, Call::Unmap, Call::Unreserve, Call::Record] {
        let allocator = allocator("guard:after,quarantine:0");
        let error = DeviceError { kind: ErrorKind::Other, code: 7 };
        device(&allocator).fail(Failure { call, nth: 1, error, persistent: false });
        let first = allocator.malloc(DEVICE, 512, STREAM);
        allocator.check_invariants().unwrap();
        if let Ok(block) = first {
            let freed = allocator.free(block);
            assert_eq!(freed.is_err(), call == Call::Record, "{call:?}");
            if freed.is_err() {
                assert_eq!(allocator.explain(block).unwrap().holder, Holder::Program);
                allocator.free(block).unwrap();
            }
            settle(&allocator);
        }
        device(&allocator).clear_failures();
        let second = malloc(&allocator, 512);
        allocator.free(second).unwrap();
        settle(&allocator);
        allocator.empty_cache(DEVICE).unwrap();
        let leaked = allocator.stats(DEVICE).unwrap().leaked_bytes();
        assert_eq!(leaked, if call == Call::Unmap { 2 * MIB } else { 0 }, "{call:?}");
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Malloc { bytes: u64, stream: u64 },
    Free(usize),
    Use { of: usize, stream: u64 },
    UseSoFar { of: usize, stream: u64 },
    Complete(u64),
    Process,
    Empty,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop_oneof![1_u64..4096, 4096_u64..(2 << 20), (1_u64 << 20)..(9 << 20)];
    let step = prop_oneof![
        6 => (bytes, 0_u64..3).prop_map(|(bytes, stream)| Step::Malloc { bytes, stream }),
        5 => (0_usize..99).prop_map(Step::Free),
        2 => (0_usize..99, 0_u64..3).prop_map(|(of, stream)| Step::Use { of, stream }),
        1 => (0_usize..99, 0_u64..3).prop_map(|(of, stream)| Step::UseSoFar { of, stream }),
        3 => (0_u64..3).prop_map(Step::Complete),
        1 => Just(Step::Process),
        1 => Just(Step::Empty),
    ];
    prop::collection::vec(step, 1..120)
}

/// Returns the bytes held from the device, as the sum of the figures that programs can read.
fn counted(allocator: &Simulated) -> u64 {
    let reserved = allocator.stats(DEVICE).unwrap().totals().get("reserved_bytes.all.current").unwrap() as u64;
    let spare = allocator.pages(DEVICE).unwrap().stats().spare;
    reserved + spare + allocator.stats(DEVICE).unwrap().leaked_bytes()
}

/// Returns whether two blocks have common physical memory.
fn overlap(device: &SimulatedDevice, one: (DevicePtr, u64), other: (DevicePtr, u64)) -> bool {
    let pieces = |(at, bytes)| device.physical(at, bytes).unwrap();
    let others = pieces(other);
    pieces(one).iter().any(|(handle, bytes)| {
        others.iter().any(|(of, range)| of == handle && range.start < bytes.end && bytes.start < range.end)
    })
}

proptest! {
    #[test]
    fn every_block_has_memory_of_its_own_and_a_freed_one_has_none(
        steps in steps(),
        config in prop::sample::select(&["guard:all", "guard:after", "guard:before", "guard:sampled:3",
            "policy:bfc,guard:all", "guard:all,quarantine:1", "guard:all,parity:False,expandable_segments:True"][..]),
    ) {
        let config = Config::parse(config).unwrap();
        let allocator = Simulated::new([SimulatedDevice::new(96 << 20)], &config).unwrap();
        let (mut live, mut freed) = (Vec::<(DevicePtr, u64)>::new(), Vec::<DevicePtr>::new());
        for step in steps {
            let pick = |of: usize| (!live.is_empty()).then(|| live[of % live.len()].0);
            match step {
                Step::Malloc { bytes, stream } => {
                    if let Ok(block) = allocator.malloc(DEVICE, bytes, StreamId(stream)) {
                        freed.retain(|&old| old != block);
                        live.push((block, bytes));
                    }
                }
                Step::Free(of) => {
                    if let Some(block) = pick(of) {
                        allocator.free(block).unwrap();
                        live.retain(|&(at, _)| at != block);
                        freed.push(block);
                    }
                }
                Step::Use { of, stream } => {
                    if let Some(block) = pick(of) {
                        allocator.record_stream(block, StreamId(stream)).unwrap();
                    }
                }
                Step::UseSoFar { of, stream } => {
                    if let Some(block) = pick(of) {
                        allocator.record_use(block, StreamId(stream)).unwrap();
                    }
                }
                Step::Complete(stream) => device(&allocator).complete(StreamId(stream)),
                Step::Process => allocator.process_events(DEVICE).unwrap(),
                Step::Empty => allocator.empty_cache(DEVICE).unwrap(),
            }
            allocator.check_invariants().unwrap();
            let of_device = device(&allocator);
            prop_assert_eq!(of_device.used(), counted(&allocator));
            for (number, &block) in live.iter().enumerate() {
                prop_assert!(of_device.is_accessible(block.0, block.1));
                let explained = allocator.explain(block.0).unwrap();
                prop_assert_eq!((explained.block, explained.requested), block);
                prop_assert_eq!(explained.holder, Holder::Program);
                for &other in &live[..number] {
                    prop_assert!(!overlap(of_device, block, other));
                }
            }
            // With `guard:all`, an address that is explained as unmapped has no memory.
            for &block in &freed {
                if allocator.explain(block).is_ok_and(|explained| explained.holder == Holder::Nobody) {
                    prop_assert!(!of_device.is_accessible(block, 1));
                }
            }
        }
        live.iter().for_each(|&(block, _)| allocator.free(block).unwrap());
        (0..3).for_each(|stream| device(&allocator).complete(StreamId(stream)));
        allocator.empty_cache(DEVICE).unwrap();
        prop_assert_eq!(device(&allocator).used(), 0);
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn a_guarded_block_that_is_pinned_stays_pending_until_the_last_unpin() {
    for config in
        ["guard:all", "guard:after", "policy:bfc,expandable_segments:True,guard:after", "guard:all,zero:on_free"]
    {
        let allocator = allocator(config);
        let pages = allocator.pages(DEVICE).unwrap();
        let block = malloc(&allocator, 3 * MIB);
        (0..2).for_each(|_| pages.pin(block).unwrap());
        allocator.free(block).unwrap();
        for left in [1, 0] {
            (0..3).for_each(|_| settle(&allocator));
            // Nothing is waited for, and no other block gets the addresses.
            allocator.empty_cache(DEVICE).unwrap();
            let next = malloc(&allocator, 3 * MIB);
            assert_ne!(next, block, "{config}");
            allocator.free(next).unwrap();
            assert!(device(&allocator).is_accessible(block, 3 * MIB), "{config}: {left} pins are left after this one");
            pages.unpin(block).unwrap();
            allocator.check_invariants().unwrap();
        }
        assert!(!device(&allocator).is_accessible(block, 1), "{config}");
        (0..3).for_each(|_| settle(&allocator));
        allocator.empty_cache(DEVICE).unwrap();
        assert_eq!((device(&allocator).used(), allocator.stats(DEVICE).unwrap().leaked_bytes()), (0, 0), "{config}");
    }
}

#[test]
fn a_guarded_block_pinned_at_an_unpin_before_its_work_is_done_waits_for_the_work() {
    let allocator = allocator("guard:after");
    let pages = allocator.pages(DEVICE).unwrap();
    let block = malloc(&allocator, 3 * MIB);
    device(&allocator).launch(STREAM, block, 3 * MIB).unwrap();
    pages.pin(block).unwrap();
    allocator.free(block).unwrap();
    pages.unpin(block).unwrap();
    assert!(device(&allocator).is_accessible(block, 3 * MIB));
    settle(&allocator);
    assert!(!device(&allocator).is_accessible(block, 1));
}
