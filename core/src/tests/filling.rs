//! What is written to blocks: cleared, filled, and checked behind the requested bytes.

use crate::allocator::Allocator;
use crate::config::Config;
use crate::device::simulated::{Call, Failure, SimulatedDevice};
use crate::device::{DeviceError, ErrorKind};
use crate::pool::{PoolOptions, Route, RoutePurpose};
use crate::tables::Growable;
use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
use std::vec::Vec;

const DEVICE: DeviceIndex = DeviceIndex(0);
const STREAM: StreamId = StreamId(1);
const SIDE: StreamId = StreamId(2);

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

fn allocator(config: &str) -> Simulated {
    Simulated::new([SimulatedDevice::new(1 << 30)], &Config::parse(config).unwrap()).unwrap()
}

fn device(allocator: &Simulated) -> &SimulatedDevice {
    allocator.device(DEVICE).unwrap()
}

fn malloc(allocator: &Simulated, bytes: u64) -> DevicePtr {
    allocator.malloc(DEVICE, bytes, STREAM).unwrap()
}

/// Returns the first byte, the last one and the one between.
fn bytes(allocator: &Simulated, at: DevicePtr, bytes: u64) -> [u8; 3] {
    [0, bytes / 2, bytes - 1].map(|offset| device(allocator).byte(at.offset(offset)))
}

fn settle(allocator: &Simulated) {
    [STREAM, SIDE].into_iter().for_each(|stream| device(allocator).complete(stream));
    allocator.process_events(DEVICE).unwrap();
    allocator.check_invariants().unwrap();
}

#[test]
fn a_new_block_is_cleared_or_filled() {
    for (config, value) in [("zero:on_alloc", 0), ("pattern:165", 165), ("pattern:165,zero:on_alloc", 0)] {
        for policy in ["", "policy:bfc,", "expandable_segments:True,", "guard:all,"] {
            let allocator = allocator(&[policy, config].concat());
            let first = malloc(&allocator, 3000);
            assert_eq!(bytes(&allocator, first, 3000), [value; 3], "{policy}{config}");
            [0, 1500, 2999].into_iter().for_each(|at| device(&allocator).overwrite(first.offset(at), 7));
            allocator.free(first).unwrap();
            settle(&allocator);
            let next = malloc(&allocator, 3000);
            assert_eq!(bytes(&allocator, next, 3000), [value; 3], "{policy}{config}");
            let behind = next.offset(3000);
            let is_filled = !policy.starts_with("guard");
            assert!(
                !is_filled || device(&allocator).byte(behind) == value,
                "{policy}{config}: to the end of the block"
            );
        }
    }
}

#[test]
fn a_block_whose_stream_has_gone_without_a_report_is_cleared_apart() {
    for policy in ["", "guard:all,"] {
        let config = Config::parse(&[policy, "zero:on_free"].concat()).unwrap();
        let allocator = Simulated::new([SimulatedDevice::new(1 << 30).with_unreported_ends()], &config).unwrap();
        let block = malloc(&allocator, MIB);
        device(&allocator).overwrite(block, 7);
        allocator.free(block).unwrap();
        device(&allocator).complete(STREAM);
        // The device panics where a call uses the stream.
        device(&allocator).let_go(STREAM);
        allocator.process_events(DEVICE).unwrap();
        allocator.check_invariants().unwrap();
        if policy.is_empty() {
            assert_eq!(device(&allocator).byte(block), 0);
        }
    }
}

#[test]
fn a_freed_block_is_cleared_when_no_stream_known_at_the_free_uses_it() {
    let allocator = allocator("zero:on_free");
    let block = malloc(&allocator, MIB);
    allocator.record_stream(block, SIDE).unwrap();
    device(&allocator).overwrite(block, 7);
    allocator.free(block).unwrap();
    device(&allocator).complete(STREAM);
    allocator.process_events(DEVICE).unwrap();
    assert_eq!(device(&allocator).byte(block), 7, "the side stream may still read it");
    settle(&allocator);
    assert_eq!(device(&allocator).byte(block), 0);
    assert_eq!(malloc(&allocator, MIB), block);
}

#[test]
fn a_block_whose_stream_is_captured_is_not_filled_by_the_graph() {
    for (captured, left) in [(STREAM, 7), (SIDE, 0)] {
        let allocator = allocator("zero:on_free");
        let block = malloc(&allocator, MIB);
        device(&allocator).overwrite(block, 7);
        allocator.free(block).unwrap();
        let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
        allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(captured), RoutePurpose::Capture).unwrap();
        device(&allocator).complete(STREAM);
        device(&allocator).set_capturing(captured, true);
        allocator.process_events(DEVICE).unwrap();
        assert_eq!(device(&allocator).byte(block), left, "{captured:?}");
        device(&allocator).set_capturing(captured, false);
        allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
        settle(&allocator);
        assert_eq!(malloc(&allocator, MIB), block, "{captured:?}");
    }
}

#[test]
fn a_write_behind_the_requested_bytes_is_reported_with_its_address() {
    for policy in ["", "guard:after,", "guard:before,", "policy:bfc,"] {
        let allocator = allocator(&[policy, "canary:True"].concat());
        let blocks: Vec<_> = (0..3).map(|_| malloc(&allocator, 1000)).collect();
        device(&allocator).overwrite(blocks[1].offset(1003), 9);
        device(&allocator).overwrite(blocks[1].offset(1010), 9);
        device(&allocator).overwrite(blocks[2].offset(999), 9);
        for block in &blocks {
            allocator.free(*block).unwrap();
            settle(&allocator);
        }
        assert_eq!(device(&allocator).take_damage(), [blocks[1].offset(1003)], "{policy}");
    }
}

#[test]
fn a_canary_lies_behind_requests_of_whole_units_too() {
    for (policy, margin) in [("", 512), ("policy:bfc,", 512), ("guard:all,", 512), ("guard:after,", 0)] {
        let allocator = allocator(&[policy, "canary:True"].concat());
        let blocks: Vec<_> = (0..3).map(|_| malloc(&allocator, 4096)).collect();
        let apart = blocks[2].0 - blocks[1].0;
        assert!(policy.starts_with("guard") || apart == 4096 + margin, "{policy}{apart}");
        // The first byte behind a block, and the last one before the next block.
        device(&allocator).overwrite(blocks[1].offset(4096), 9);
        device(&allocator).overwrite(blocks[1].offset(4096 + 511), 9);
        device(&allocator).overwrite(blocks[0].offset(4096 + 511), 9);
        for &block in &blocks {
            allocator.free(block).unwrap();
            settle(&allocator);
        }
        let found = [blocks[0].offset(4096 + 511), blocks[1].offset(4096)];
        assert_eq!(device(&allocator).take_damage(), found[..if margin > 0 { 2 } else { 0 }], "{policy}");
    }
}

#[test]
fn without_these_settings_no_byte_is_written() {
    let allocator = allocator("");
    let block = malloc(&allocator, 1000);
    device(&allocator).overwrite(block, 7);
    allocator.free(block).unwrap();
    settle(&allocator);
    assert_eq!((malloc(&allocator, 1000), device(&allocator).byte(block)), (block, 7));
}

#[test]
fn a_watched_free_is_complete_once_the_own_stream_is_done() {
    let allocator = allocator("");
    allocator.trace(DEVICE).unwrap().watch_frees(true);
    let block = malloc(&allocator, 1000);
    allocator.free(block).unwrap();
    allocator.process_events(DEVICE).unwrap();
    assert_ne!(malloc(&allocator, 1000), block, "the stream has not reached the free");
    settle(&allocator);
    assert_eq!(malloc(&allocator, 1000), block);
    allocator.trace(DEVICE).unwrap().watch_frees(false);
    let next = malloc(&allocator, 1000);
    allocator.free(next).unwrap();
    assert_eq!(malloc(&allocator, 1000), next, "the later work of the stream may use it");
    allocator.free(block).unwrap();
}

#[test]
fn blocks_that_are_filled_are_watched_whatever_the_host_asks_for() {
    let allocator = allocator("zero:on_free");
    allocator.trace(DEVICE).unwrap().watch_frees(true);
    allocator.trace(DEVICE).unwrap().watch_frees(false);
    let block = malloc(&allocator, 1000);
    allocator.free(block).unwrap();
    assert_ne!(malloc(&allocator, 1000), block, "the stream has not reached the free");
}

/// Three addresses on one page of the page map.
const SHARED: [DevicePtr; 3] = [DevicePtr(1 << 40), DevicePtr((1 << 40) + 8192), DevicePtr((1 << 40) + 16384)];

/// Lets the next three small blocks be segments, at [`SHARED`].
fn share_a_page(allocator: &Simulated) {
    allocator.settings(DEVICE).unwrap().set_caching(false);
    device(allocator).script_addresses(SHARED.map(|address| address.0));
}

#[test]
fn a_new_block_that_cannot_be_filled_is_free_also_if_no_event_can_be_recorded() {
    for config in ["zero:on_alloc", "canary:True", "guard:all,zero:on_alloc,canary:True", "policy:bfc,pattern:3"] {
        let allocator = allocator(config);
        let error = DeviceError::new(ErrorKind::Other, 999);
        device(&allocator).fail_fills(error);
        for call in [Call::CreateEvent, Call::Record] {
            device(&allocator).fail(Failure { call, nth: 1, persistent: true, error });
        }
        for _ in 0..3 {
            allocator.malloc(DEVICE, 1000, STREAM).unwrap_err();
        }
        device(&allocator).fail_fills(None);
        device(&allocator).clear_failures();
        (0..3).for_each(|_| settle(&allocator));
        let live = allocator.stats(DEVICE).unwrap().totals().allocations();
        assert_eq!((live.current, live.allocated), (0, 3), "{config}");
        allocator.empty_cache(DEVICE).unwrap();
        assert_eq!(device(&allocator).used(), 0, "{config}");
    }
}

#[test]
fn blocks_on_a_page_of_several_segments_are_filled_and_checked_as_others() {
    for policy in ["", "policy:bfc,"] {
        for (fill, left) in [("zero:on_free", 0), ("zero:on_alloc", 0), ("pattern:165", 165)] {
            let config = Config::parse(&[policy, fill].concat()).unwrap();
            let allocator = Simulated::new([SimulatedDevice::new(1 << 30)], &config).unwrap();
            share_a_page(&allocator);
            SHARED.into_iter().for_each(|block| device(&allocator).overwrite(block, 7));
            let found = || SHARED.map(|block| device(&allocator).byte(block));
            for block in SHARED {
                assert_eq!(malloc(&allocator, 1000), block);
            }
            let is_filled_new = fill != "zero:on_free";
            assert_eq!(found(), [if is_filled_new { left } else { 7 }; 3], "{policy}{fill}");
            for block in SHARED {
                device(&allocator).overwrite(block, 8);
                allocator.free(block).unwrap();
            }
            (0..3).for_each(|_| settle(&allocator));
            let is_filled_free = fill != "zero:on_alloc";
            assert_eq!(found(), [if is_filled_free { left } else { 8 }; 3], "{policy}{fill}");
        }
        let allocator = allocator(&[policy, "canary:True"].concat());
        share_a_page(&allocator);
        let blocks: Vec<_> = (0..3).map(|_| malloc(&allocator, 1000)).collect();
        device(&allocator).overwrite(blocks[1].offset(1003), 9);
        for &block in blocks.iter().rev() {
            allocator.free(block).unwrap();
            (0..3).for_each(|_| settle(&allocator));
        }
        assert_eq!(device(&allocator).take_damage(), [blocks[1].offset(1003)], "{policy}: and no false alarm");
    }
}

#[test]
fn pages_that_leave_an_elastic_range_are_filled_as_freed_blocks_are() {
    const PAGE: u64 = 2 * MIB;
    for (config, left) in [("zero:on_free", 0), ("pattern:165", 165), ("zero:on_alloc", 7)] {
        for whole in [false, true] {
            let allocator = allocator(&["expandable_segments:True,", config].concat());
            let range = allocator.ranges(DEVICE).unwrap().reserve(4 * PAGE).unwrap();
            allocator.ranges(DEVICE).unwrap().commit(range.range, 0, 3 * PAGE, STREAM).unwrap();
            let pages = [0, 1, 2].map(|page| range.base.offset(page * PAGE));
            pages.into_iter().for_each(|page| device(&allocator).overwrite(page, 7));
            device(&allocator).launch(STREAM, pages[0], 3 * PAGE).unwrap();
            if whole {
                allocator.ranges(DEVICE).unwrap().release(range.range).unwrap();
            } else {
                allocator.ranges(DEVICE).unwrap().decommit(range.range, PAGE, PAGE, STREAM).unwrap();
            }
            let found = pages.map(|page| device(&allocator).byte(page));
            assert_eq!(found, if whole { [left; 3] } else { [7, left, 7] }, "{config}: {whole}");
            settle(&allocator);
            if !whole {
                allocator.ranges(DEVICE).unwrap().release(range.range).unwrap();
            }
            allocator.empty_cache(DEVICE).unwrap();
            assert_eq!(
                (device(&allocator).used(), allocator.stats(DEVICE).unwrap().leaked_bytes()),
                (0, 0),
                "{config}"
            );
        }
    }
}
