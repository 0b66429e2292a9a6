//! Pages that keep meeting become one.

use crate::allocator::Allocator;
use crate::config::Config;
use crate::device::simulated::{Call, Failure, SimulatedDevice};
use crate::device::{DeviceError, ErrorKind};
use crate::tables::Growable;
use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
use std::vec::Vec;

const DEVICE: DeviceIndex = DeviceIndex(0);
const ONE: StreamId = StreamId(1);
const TWO: StreamId = StreamId(2);

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

fn malloc(allocator: &Simulated, mib: u64, stream: StreamId) -> DevicePtr {
    allocator.malloc(DEVICE, mib * MIB, stream).unwrap()
}

fn maintain(allocator: &Simulated) -> Result<bool, crate::error::Error> {
    allocator.pages(DEVICE).unwrap().maintain(100_000)
}

/// How often the device was called.
fn calls(allocator: &Simulated, call: Call) -> u64 {
    allocator.device(DEVICE).unwrap().calls(call)
}

/// Bytes of the pages mapped in place of shorter pages, in MiB.
fn consolidated(allocator: &Simulated) -> u64 {
    allocator.pages(DEVICE).unwrap().stats().consolidated / MIB
}

/// An allocator with more than 2 GiB held and a block of 64 MiB on stream 2. The pages of the block
/// have 2 MiB, have lain side by side in fours since their creation, and have moved twice.
fn with_block() -> (Simulated, DevicePtr) {
    let device = SimulatedDevice::new(1 << 40).with_work_done_at_once();
    // Where only pages of complete work move, no stream lends the block to another instead.
    let config = Config::parse("policy:stitched,slack:0,completed_pages_only:True").unwrap();
    let allocator = Simulated::new([device], &config).unwrap();
    let blocks: Vec<_> = (0..16).map(|_| malloc(&allocator, 8, ONE)).collect();
    malloc(&allocator, 2048, ONE);
    blocks.iter().step_by(2).for_each(|&block| allocator.free(block).unwrap());
    let mapped = calls(&allocator, Call::Map);
    let moved = malloc(&allocator, 64, ONE);
    allocator.free(moved).unwrap();
    // Begins an epoch, and removes nothing.
    allocator.pages(DEVICE).unwrap().maintain(0).unwrap();
    let moved = malloc(&allocator, 64, TWO);
    assert_eq!(calls(&allocator, Call::Map) - mapped, 2 * 32, "all pages have moved, and moved again");
    (allocator, moved)
}

/// The allocator of `with_block`, with the block free and without stale mappings.
fn with_run() -> Simulated {
    let (allocator, block) = with_block();
    allocator.free(block).unwrap();
    let pages = allocator.pages(DEVICE).unwrap();
    // The first call begins an epoch. Each later call removes an old mapping, and has no time for
    // more.
    pages.maintain(0).unwrap();
    while pages.stats().stale > 0 {
        pages.maintain(15).unwrap();
    }
    assert_eq!(consolidated(&allocator), 0);
    allocator
}

#[test]
fn pages_that_keep_meeting_become_one_within_the_budget() {
    let allocator = with_run();
    let device = allocator.device(DEVICE).unwrap();
    let (peak, used) = (device.peak_used(), device.used());
    assert_eq!(maintain(&allocator), Ok(false));
    // Two pages of 2 MiB for one of 4 MiB, the longest page while 2.1 GiB are held. The first is
    // created in the room of two pages that went back to the device.
    assert_eq!(consolidated(&allocator), 60);
    assert_eq!((device.peak_used(), device.used()), (peak, used - 4 * MIB));
    assert_eq!(maintain(&allocator), Ok(false));
    assert_eq!(consolidated(&allocator), 60, "nothing is left to replace");
    allocator.check_invariants().unwrap();
    let mapped = calls(&allocator, Call::Map);
    malloc(&allocator, 60, TWO);
    assert_eq!(calls(&allocator, Call::Map), mapped, "the run serves a request in place");
    allocator.check_invariants().unwrap();
}

#[test]
fn a_limit_holds_for_the_longer_page() {
    let allocator = with_run();
    let device = allocator.device(DEVICE).unwrap();
    let used = device.used();
    allocator.settings(DEVICE).unwrap().set_limit(Some(used));
    let peak = device.peak_used();
    assert_eq!(maintain(&allocator), Ok(false));
    assert_eq!((consolidated(&allocator), device.peak_used()), (60, peak));
    allocator.check_invariants().unwrap();
}

#[test]
fn pages_in_use_or_pinned_or_of_unfinished_work_stay() {
    let (allocator, block) = with_block();
    for _ in 0..2 {
        maintain(&allocator).unwrap();
    }
    assert_eq!(consolidated(&allocator), 0, "the block is live");
    let pages = allocator.pages(DEVICE).unwrap();
    pages.pin(block).unwrap();
    allocator.free(block).unwrap();
    for _ in 0..2 {
        maintain(&allocator).unwrap();
    }
    assert_eq!(consolidated(&allocator), 0, "the pages are pinned");
    pages.unpin(block).unwrap();
    let again = malloc(&allocator, 64, TWO);
    allocator.free(again).unwrap();
    maintain(&allocator).unwrap();
    assert_eq!(consolidated(&allocator), 0, "no event follows the last use");
    maintain(&allocator).unwrap();
    assert_eq!(consolidated(&allocator), 60);
}

#[test]
fn without_time_nothing_is_replaced_and_some_is_left() {
    let allocator = with_run();
    let pages = allocator.pages(DEVICE).unwrap();
    assert_eq!((pages.maintain(90), consolidated(&allocator)), (Ok(true), 0));
    // 91.1 µs for each page, and before the first 116 µs for two pages that go back.
    assert_eq!((pages.maintain(205), consolidated(&allocator)), (Ok(true), 0));
    assert_eq!((pages.maintain(121), consolidated(&allocator)), (Ok(true), 4));
    assert_eq!((pages.maintain(190), consolidated(&allocator)), (Ok(true), 12));
    allocator.check_invariants().unwrap();
}

/// Sweeps failures over the calls of a consolidation. Until the next call without failures all
/// memory in use is counted, and only memory possibly still held by the device is lost.
fn fail_at_every_call(kind: ErrorKind, persistent: bool) {
    let error = DeviceError::new(kind, 7);
    for call in [Call::Unmap, Call::Destroy, Call::Create, Call::Map, Call::SetAccess] {
        let made = {
            let allocator = with_run();
            let before = calls(&allocator, call);
            maintain(&allocator).unwrap();
            calls(&allocator, call) - before
        };
        assert!(made >= 15, "{call:?}: {made}");
        for nth in 1..=made {
            let allocator = with_run();
            let device = allocator.device(DEVICE).unwrap();
            device.fail(Failure { call, nth: device.calls(call) + nth, persistent, error });
            let failed = maintain(&allocator).is_err();
            assert!(failed || kind == ErrorKind::OutOfMemory, "{call:?} {nth}");
            allocator.check_invariants().unwrap();
            device.clear_failures();
            let in_doubt = matches!(call, Call::Unmap | Call::Destroy);
            assert!(in_doubt || allocator.stats(DEVICE).map(|stats| stats.leaked_bytes()) == Ok(0), "{call:?} {nth}");
            // Once alone the run is as before: it serves a request in place.
            if !in_doubt && !persistent {
                let mapped = device.calls(Call::Map);
                malloc(&allocator, 60, TWO);
                assert_eq!(device.calls(Call::Map), mapped, "{call:?} {nth}");
            } else {
                maintain(&allocator).unwrap();
            }
            allocator.check_invariants().unwrap();
        }
    }
}

#[test]
fn a_failure_leaves_the_run_as_it_was_or_counts_what_is_in_doubt() {
    for persistent in [false, true] {
        fail_at_every_call(ErrorKind::Other, persistent);
        fail_at_every_call(ErrorKind::OutOfMemory, persistent);
    }
}
