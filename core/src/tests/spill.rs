//! Requests served from memory of the host, where the device has no more (`spill`).

use crate::allocator::Allocator;
use crate::arena::paging::moves::Advice;
use crate::arena::request::Forecast;
use crate::config::Config;
use crate::device::simulated::{Call, Failure, SimulatedDevice};
use crate::device::{DeviceError, ErrorKind, HostLack};
use crate::error::Error;
use crate::tables::Growable;
use crate::trace::{Action, TraceEntry};
use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
use spin::mutex::SpinMutex;
use std::string::ToString;
use std::vec::Vec;

mod moved;
mod pools;
mod ranges;
mod stitched;

type Spilling = Allocator<SimulatedDevice, SpinMutex<()>, Growable>;

const DEVICE: DeviceIndex = DeviceIndex(0);
const STREAM: StreamId = StreamId(1);
/// The length of a large page of expandable segments.
const PAGE: u64 = 20 * MIB;
/// The device has five pages.
const CAPACITY: u64 = 5 * PAGE;

/// Settings under which pages stay, and settings under which they move.
const BOTH: [&str; 2] = ["expandable_segments:True,spill:1.0", "policy:stitched,spill:1.0"];

/// An allocator over a device of [`CAPACITY`], on a host with as many pages.
fn allocator(config: &str) -> Spilling {
    let device = SimulatedDevice::new(CAPACITY);
    device.set_mappable_host_memory(CAPACITY);
    Spilling::new([device], &Config::parse(config).unwrap()).unwrap()
}

fn device(allocator: &Spilling) -> &SimulatedDevice {
    allocator.device(DEVICE).unwrap()
}

/// Returns the bytes of pages of the host: mapped and spare.
fn of_host(allocator: &Spilling) -> (u64, u64) {
    let stats = allocator.pages(DEVICE).unwrap().stats();
    allocator.check_invariants().unwrap();
    assert_eq!(device(allocator).used_of_host(), stats.spilled + stats.spare_of_host);
    (stats.spilled, stats.spare_of_host)
}

/// Requests a page, for which there is no memory. Returns what the report says of the host, in
/// fields and as text.
fn lack(allocator: &Spilling) -> (u64, HostLack, &'static str) {
    let refused = allocator.malloc(DEVICE, PAGE, STREAM);
    let Err(Error::OutOfMemory(report)) = refused else { panic!("{refused:?}") };
    let text = report.to_string();
    let said = [
        " 40 MiB lie on the host, and `spill` allows no more.",
        " 0 bytes lie on the host, which has no more memory.",
        " 0 bytes lie on the host, which would have too little memory left for itself after more.",
        " 0 bytes lie on the host: the device cannot map memory of the host.",
    ];
    let said = said.into_iter().find(|said| text.contains(said));
    assert_eq!(said.is_none(), !text.contains("on the host"), "{text}");
    (report.spilled, report.host_lack, said.unwrap_or_default())
}

/// Requests `count` blocks of a page each.
fn pages(allocator: &Spilling, count: usize) -> Vec<DevicePtr> {
    (0..count).map(|_| allocator.malloc(DEVICE, PAGE, STREAM).unwrap()).collect()
}

#[test]
fn requests_beyond_the_device_are_served_from_the_host_up_to_its_limit() {
    let allocator = allocator("expandable_segments:True,spill:0.5");
    let blocks = pages(&allocator, 7);
    let on_host: Vec<bool> = blocks.iter().map(|&block| device(&allocator).is_on_host(block)).collect();
    assert_eq!(on_host, [false, false, false, false, false, true, true]);
    assert_eq!(of_host(&allocator), (2 * PAGE, 0));
    // Half of the device is two pages and a half.
    assert_eq!(lack(&allocator), (2 * PAGE, HostLack::Limit, " 40 MiB lie on the host, and `spill` allows no more."));
    assert_eq!(of_host(&allocator), (2 * PAGE, 0));
    blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    allocator.empty_cache(DEVICE).unwrap();
    assert_eq!(of_host(&allocator), (0, 0));
    assert_eq!(allocator.stats(DEVICE).unwrap().totals().reserved_bytes().current, 0);
}

/// Returns the sizes of the events that tell how much lies on the host.
fn told(allocator: &Spilling) -> Vec<u64> {
    let mut told = Vec::new();
    let mut note = |event: &TraceEntry| told.extend((event.action == Action::Spilled).then_some(event.size));
    allocator.trace(DEVICE).unwrap().for_each(&mut note);
    told
}

#[test]
fn a_trace_tells_when_memory_goes_to_the_host_and_comes_back() {
    for config in BOTH {
        let allocator = allocator(config);
        allocator.trace(DEVICE).unwrap().record(1000).unwrap();
        let blocks = pages(&allocator, 7);
        assert_eq!(told(&allocator), [PAGE, 2 * PAGE], "{config}");
        // A trace that starts later tells it with the next change.
        allocator.trace(DEVICE).unwrap().record(1000).unwrap();
        allocator.free(blocks[0]).unwrap();
        allocator.empty_cache(DEVICE).unwrap();
        assert_eq!(told(&allocator), [2 * PAGE], "{config}");
        let hot = allocator.pages(DEVICE).unwrap().advise(blocks[6], Advice::Hot);
        assert_eq!((hot, told(&allocator).last()), (Ok(PAGE), Some(&PAGE)), "{config}");
        blocks.into_iter().skip(1).for_each(|block| allocator.free(block).unwrap());
        allocator.empty_cache(DEVICE).unwrap();
        assert_eq!((told(&allocator).last(), of_host(&allocator)), (Some(&0), (0, 0)), "{config}");
    }
}

#[test]
fn without_the_key_the_host_serves_nothing() {
    for config in ["expandable_segments:True", "spill:0.5"] {
        let allocator = allocator(config);
        let blocks = pages(&allocator, 5);
        assert_eq!(lack(&allocator), (0, HostLack::NotAsked, ""), "{config}");
        assert_eq!((of_host(&allocator), device(&allocator).calls(Call::CreateAtHost)), ((0, 0), 0), "{config}");
        blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    }
}

#[test]
fn only_the_rest_of_a_request_is_served_from_the_host() {
    for config in BOTH {
        let allocator = allocator(config);
        let _blocks = pages(&allocator, 3);
        let block = allocator.malloc(DEVICE, 4 * PAGE, STREAM).unwrap();
        let on_host: Vec<bool> =
            (0..4).map(|page| device(&allocator).is_on_host(DevicePtr(block.0 + page * PAGE))).collect();
        assert_eq!(on_host, [false, false, true, true], "{config}");
        assert_eq!(of_host(&allocator), (2 * PAGE, 0), "{config}");
        let segments = allocator.snapshot();
        let blocks = segments.iter().flat_map(|segment| &segment.blocks);
        let spilled: Vec<u64> = blocks.map(|block| block.spilled).filter(|&bytes| bytes > 0).collect();
        let of_segments: u64 = segments.iter().map(|segment| segment.spilled).sum();
        assert_eq!((spilled, of_segments), (Vec::from([2 * PAGE]), 2 * PAGE), "{config}");
    }
}

#[test]
fn free_memory_of_the_device_serves_before_a_better_fit_on_the_host() {
    for config in BOTH {
        let allocator = allocator(config);
        let blocks = pages(&allocator, 7);
        let (first, last) = (blocks[0], blocks[6]);
        assert!(device(&allocator).is_on_host(last), "{config}");
        // Four pages of the device in a row, and one page of the host, which fits best.
        for &block in blocks[..4].iter().chain([&last]) {
            allocator.free(block).unwrap();
        }
        let expected = [first, blocks[1], blocks[2], blocks[3], last];
        for (number, expected) in expected.into_iter().enumerate() {
            let forecast = allocator.forecast(DEVICE).unwrap().malloc(PAGE, STREAM).unwrap();
            assert_eq!(forecast, Forecast::Hit(expected), "{config}, request {number}");
            assert_eq!(allocator.malloc(DEVICE, PAGE, STREAM).unwrap(), expected, "{config}, request {number}");
            allocator.check_invariants().unwrap();
        }
        assert_eq!(of_host(&allocator), (2 * PAGE, 0), "{config}");
    }
}

#[test]
fn a_block_that_begins_on_the_device_serves_what_fits_there() {
    for config in BOTH {
        let allocator = allocator(config);
        let blocks = pages(&allocator, 6);
        // The last page of the device and the page of the host become one free block.
        allocator.free(blocks[4]).unwrap();
        allocator.free(blocks[5]).unwrap();
        let small = allocator.malloc(DEVICE, PAGE, STREAM).unwrap();
        assert!(!device(&allocator).is_on_host(small), "{config}");
        let rest = allocator.malloc(DEVICE, PAGE, STREAM).unwrap();
        assert!(device(&allocator).is_on_host(rest), "{config}");
        assert_eq!(of_host(&allocator), (PAGE, 0), "{config}");
    }
}

#[test]
fn a_limit_counts_the_bytes_of_the_device_alone() {
    for config in BOTH {
        let allocator = allocator(&std::format!("{config},per_process_memory_fraction:0.4"));
        let blocks = pages(&allocator, 4);
        let on_host: Vec<bool> = blocks.iter().map(|&block| device(&allocator).is_on_host(block)).collect();
        assert_eq!(on_host, [false, false, true, true], "{config}");
        assert_eq!(of_host(&allocator), (2 * PAGE, 0), "{config}");
    }
}

#[test]
fn blocks_that_cannot_be_guarded_lie_on_the_host() {
    let allocator = allocator("guard:all,expandable_segments:True,spill:1.0");
    let blocks = pages(&allocator, 7);
    let guarded = allocator.pages(DEVICE).unwrap().stats().mapped - of_host(&allocator).0;
    assert!(of_host(&allocator).0 >= 2 * PAGE && guarded > 0, "{:?}, {guarded}", of_host(&allocator));
    blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    allocator.empty_cache(DEVICE).unwrap();
    assert_eq!(of_host(&allocator), (0, 0));
}

#[test]
fn pages_that_a_shortage_unmaps_are_kept_for_the_next_one() {
    let allocator = allocator("expandable_segments:True,spill:1.0");
    let blocks = pages(&allocator, 7);
    let made = device(&allocator).calls(Call::CreateAtHost);
    blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    // Another stream gets the device's pages first, and then those of the host.
    let other = StreamId(2);
    let blocks: Vec<_> = (0..7).map(|_| allocator.malloc(DEVICE, PAGE, other).unwrap()).collect();
    let on_host = blocks.iter().filter(|&&block| device(&allocator).is_on_host(block)).count();
    assert_eq!((on_host, of_host(&allocator)), (2, (2 * PAGE, 0)));
    assert_eq!(device(&allocator).calls(Call::CreateAtHost), made);
}

#[test]
fn a_host_without_memory_is_out_of_memory_and_another_failure_is_told() {
    let allocator = allocator("expandable_segments:True,spill:1.0");
    device(&allocator).set_mappable_host_memory(0);
    let _blocks = pages(&allocator, 5);
    let no_more = " 0 bytes lie on the host, which has no more memory.";
    assert_eq!(lack(&allocator), (0, HostLack::Memory, no_more));
    let no_share = " 0 bytes lie on the host, which would have too little memory left for itself after more.";
    let cannot = " 0 bytes lie on the host: the device cannot map memory of the host.";
    for (kind, lacks, said) in
        [(ErrorKind::OutOfMemory, HostLack::Share, no_share), (ErrorKind::Unsupported, HostLack::Unsupported, cannot)]
    {
        let nth = device(&allocator).calls(Call::CreateAtHost) + 1;
        let error = DeviceError::new(kind, 0);
        device(&allocator).fail(Failure { call: Call::CreateAtHost, nth, persistent: false, error });
        assert_eq!(lack(&allocator), (0, lacks, said));
    }
    assert_eq!(of_host(&allocator), (0, 0));
    device(&allocator).set_mappable_host_memory(CAPACITY);
    let failure = DeviceError::new(ErrorKind::Other, 77);
    let nth = device(&allocator).calls(Call::CreateAtHost) + 1;
    device(&allocator).fail(Failure { call: Call::CreateAtHost, nth, persistent: false, error: failure });
    assert_eq!(allocator.malloc(DEVICE, 2 * PAGE, STREAM), Err(Error::Device(failure)));
    assert_eq!(of_host(&allocator), (0, 0));
    let _block = allocator.malloc(DEVICE, 2 * PAGE, STREAM).unwrap();
    assert_eq!(of_host(&allocator), (2 * PAGE, 0));
}

#[test]
fn a_request_that_the_host_serves_is_forecast() {
    // A forecast knows what the limit refuses, and not what the device would.
    for policy in ["expandable_segments:True", "policy:stitched"] {
        let allocator = allocator(&std::format!("{policy},spill:0.5,per_process_memory_fraction:0.8"));
        let _blocks = pages(&allocator, 5);
        assert_eq!(allocator.forecast(DEVICE).unwrap().malloc(PAGE, STREAM), Ok(Forecast::Expand), "{policy}");
        let _block = allocator.malloc(DEVICE, PAGE, STREAM).unwrap();
        assert_eq!(allocator.forecast(DEVICE).unwrap().malloc(PAGE, STREAM), Ok(Forecast::OutOfMemory), "{policy}");
    }
}

/// A program that spills, shrinks and spills again. Whatever fails, the books stay in order.
/// Returns the blocks that were served.
fn program(allocator: &Spilling) -> usize {
    let mut served = 0;
    for stream in [STREAM, StreamId(2)] {
        let blocks: Vec<_> = (1..5).filter_map(|pages| allocator.malloc(DEVICE, pages * PAGE, stream).ok()).collect();
        allocator.check_invariants().unwrap();
        served += blocks.len();
        for block in blocks {
            // A failed release is told, and the block is free nevertheless.
            let _told = allocator.free(block);
            allocator.check_invariants().unwrap();
        }
    }
    let _told = allocator.empty_cache(DEVICE);
    allocator.check_invariants().unwrap();
    served
}

#[test]
fn any_call_may_fail_once_and_nothing_is_lost_but_what_is_counted() {
    for config in BOTH {
        fail_each_call(config);
    }
}

fn fail_each_call(config: &str) {
    let counted = allocator(config);
    assert_eq!(program(&counted), 8);
    for call in
        [Call::Reserve, Call::Create, Call::CreateAtHost, Call::Map, Call::SetAccess, Call::Unmap, Call::Destroy]
    {
        let made = device(&counted).calls(call);
        assert!(made > 0, "{config}: {call:?}");
        for (nth, kind) in (1..=made).flat_map(|nth| [(nth, ErrorKind::OutOfMemory), (nth, ErrorKind::Other)]) {
            let allocator = allocator(config);
            device(&allocator).fail(Failure { call, nth, persistent: false, error: DeviceError::new(kind, 77) });
            program(&allocator);
            let leaked = allocator.stats(DEVICE).unwrap().leaked_bytes();
            let (used, of_host) = (device(&allocator).used(), device(&allocator).used_of_host());
            assert!(
                used + of_host <= leaked + allocator.pages(DEVICE).unwrap().stats().spare_of_host,
                "{config}: {call:?} {nth}"
            );
        }
    }
}
