//! Blocks that are named cold or hot while they live.

use super::*;
use crate::arena::paging::parking::{ParkMode, ParkOrder, ParkReport, ParkTarget};
use crate::pool::{PoolOptions, Route, RoutePurpose, Tag};
use core::num::NonZeroU64;

const CONFIG: &str = "expandable_segments:True,spill:1.0";
const TAG: Tag = Tag(NonZeroU64::new(7).unwrap());
const TARGET: ParkTarget = ParkTarget::Tag(TAG);

fn advise(allocator: &Spilling, block: DevicePtr, advice: Advice) -> Result<u64, Error> {
    let moved = allocator.pages(DEVICE).unwrap().advise(block, advice);
    allocator.check_invariants().unwrap();
    moved
}

/// Requests a block of `count` pages, and writes to each.
fn written(allocator: &Spilling, count: u64) -> DevicePtr {
    let block = allocator.malloc(DEVICE, count * PAGE, STREAM).unwrap();
    write(allocator, block, count);
    block
}

fn write(allocator: &Spilling, block: DevicePtr, count: u64) {
    (0..count).for_each(|page| assert!(device(allocator).write(DevicePtr(block.0 + page * PAGE), 100 + page)));
}

/// Asserts that a block of `count` pages holds what was written. Returns how many are the host's.
fn check(allocator: &Spilling, block: DevicePtr, count: u64) -> u64 {
    let pages = (0..count).map(|page| (DevicePtr(block.0 + page * PAGE), 100 + page));
    pages
        .map(|(at, contents)| {
            assert_eq!(device(allocator).read(at), Some(contents), "{at}");
            u64::from(device(allocator).is_on_host(at))
        })
        .sum()
}

#[test]
fn a_cold_block_moves_to_the_host_and_back_with_its_contents() {
    let allocator = allocator(CONFIG);
    let block = written(&allocator, 3);
    assert_eq!(advise(&allocator, block, Advice::Cold), Ok(3 * PAGE));
    assert_eq!((check(&allocator, block, 3), of_host(&allocator)), (3, (3 * PAGE, 0)));
    // The device's pages serve others.
    let others = pages(&allocator, 5);
    assert!(others.iter().all(|&other| !device(&allocator).is_on_host(other)));
    assert_eq!(advise(&allocator, block, Advice::Cold), Ok(0));
    assert_eq!(advise(&allocator, block, Advice::Hot), Ok(0), "the device has no room");
    others.into_iter().take(2).for_each(|other| allocator.free(other).unwrap());
    allocator.empty_cache(DEVICE).unwrap();
    assert_eq!(advise(&allocator, block, Advice::Hot), Ok(2 * PAGE));
    assert_eq!((check(&allocator, block, 3), of_host(&allocator)), (1, (PAGE, 2 * PAGE)));
    allocator.free(block).unwrap();
    assert_eq!(device(&allocator).untold(), 0);
}

#[test]
fn only_pages_that_are_wholly_under_the_block_move() {
    let allocator = allocator(CONFIG);
    let sizes = [PAGE / 2, 2 * PAGE, PAGE / 2].map(|bytes| allocator.malloc(DEVICE, bytes, STREAM).unwrap());
    assert_eq!(sizes[1].0, sizes[0].0 + PAGE / 2);
    assert_eq!(advise(&allocator, sizes[1], Advice::Cold), Ok(PAGE));
    let on_host = [0, 1, 2].map(|page| device(&allocator).is_on_host(DevicePtr(sizes[0].0 + page * PAGE)));
    assert_eq!(on_host, [false, true, false]);
    // Neither moves the page that both have, also if each is cold, or one of them is freed.
    assert!(device(&allocator).write(sizes[0], 7));
    assert_eq!(advise(&allocator, sizes[0], Advice::Cold), Ok(0));
    allocator.free(sizes[2]).unwrap();
    assert_eq!(advise(&allocator, sizes[1], Advice::Cold), Ok(0));
    assert_eq!((advise(&allocator, sizes[1], Advice::Hot), device(&allocator).read(sizes[0])), (Ok(PAGE), Some(7)));
}

#[test]
fn the_host_takes_what_its_limit_allows_and_no_pinned_page() {
    let allocator = allocator("expandable_segments:True,spill:0.5");
    let block = written(&allocator, 4);
    allocator.pages(DEVICE).unwrap().pin(block).unwrap();
    assert_eq!(advise(&allocator, block, Advice::Cold), Ok(0));
    allocator.pages(DEVICE).unwrap().unpin(block).unwrap();
    // Half of the device is two pages and a half.
    assert_eq!(advise(&allocator, block, Advice::Cold), Ok(2 * PAGE));
    assert_eq!(check(&allocator, block, 4), 2);
}

#[test]
fn a_move_waits_for_the_work_on_the_block() {
    let allocator = allocator(CONFIG);
    let block = written(&allocator, 2);
    // The simulated device unmaps nothing that work uses.
    device(&allocator).launch(STREAM, block, PAGE).unwrap();
    device(&allocator).launch(StreamId(2), DevicePtr(block.0 + PAGE), PAGE).unwrap();
    allocator.record_stream(block, StreamId(2)).unwrap();
    assert_eq!(advise(&allocator, block, Advice::Cold), Ok(2 * PAGE));
    assert_eq!(check(&allocator, block, 2), 2);
}

#[test]
fn a_stream_that_ended_without_a_report_is_waited_for_and_not_asked() {
    let allocator = allocator(CONFIG);
    let block = written(&allocator, 2);
    allocator.record_stream(block, StreamId(9)).unwrap();
    device(&allocator).launch(StreamId(9), block, PAGE).unwrap();
    device(&allocator).let_go(StreamId(9));
    // The simulated device panics at a question about a stream that is gone.
    assert_eq!(advise(&allocator, block, Advice::Cold), Ok(2 * PAGE));
    assert_eq!(check(&allocator, block, 2), 2);
    allocator.free(block).unwrap();
}

#[test]
fn the_memory_of_a_captured_graph_moves_after_all_work() {
    let allocator = allocator(CONFIG);
    let pools = allocator.pools(DEVICE).unwrap();
    let pool = pools.create(PoolOptions::default()).unwrap();
    pools.begin_route(pool, Route::All, RoutePurpose::Capture).unwrap();
    let block = allocator.malloc(DEVICE, 2 * PAGE, STREAM).unwrap();
    let refused = advise(&allocator, block, Advice::Cold);
    assert!(matches!(refused, Err(Error::Device(DeviceError { kind: ErrorKind::NotPermittedInCapture, .. }))));
    pools.end_route(pool, RoutePurpose::Capture).unwrap();
    write(&allocator, block, 2);
    // A replay on a stream that nobody has announced.
    device(&allocator).launch(StreamId(9), block, PAGE).unwrap();
    assert_eq!(advise(&allocator, block, Advice::Cold), Ok(2 * PAGE));
    assert_eq!(check(&allocator, block, 2), 2);
}

#[test]
fn no_move_waits_for_a_stream_that_captures() {
    // Neither capture is announced.
    for capturing in [STREAM, StreamId(9)] {
        let allocator = allocator(CONFIG);
        let block = allocator.malloc(DEVICE, 2 * PAGE, STREAM).unwrap();
        allocator.record_stream(block, StreamId(9)).unwrap();
        device(&allocator).set_capturing(capturing, true);
        let refused = advise(&allocator, block, Advice::Cold);
        assert!(matches!(refused, Err(Error::Device(DeviceError { kind: ErrorKind::NotPermittedInCapture, .. }))));
        // The stream of the other use comes first.
        let waited = u64::from(capturing == STREAM);
        assert_eq!(device(&allocator).calls(Call::Synchronize), waited, "{capturing:?}");
        device(&allocator).set_capturing(capturing, false);
        assert_eq!(advise(&allocator, block, Advice::Cold), Ok(2 * PAGE));
    }
}

#[test]
fn what_cannot_move_is_refused_or_stays() {
    let unset = allocator("expandable_segments:True");
    let block = unset.malloc(DEVICE, PAGE, STREAM).unwrap();
    assert!(matches!(advise(&unset, block, Advice::Cold), Err(Error::SpillRefused(_))));
    assert_eq!(advise(&unset, block, Advice::Hot), Ok(0));
    let allocator = allocator("spill:1.0");
    let block = allocator.malloc(DEVICE, PAGE, STREAM).unwrap();
    assert_eq!(advise(&allocator, block, Advice::Cold), Ok(0), "an ordinary segment");
    let guarding = super::allocator("guard:all,expandable_segments:True,spill:1.0");
    let guarded = guarding.malloc(DEVICE, 2 * PAGE, STREAM).unwrap();
    assert_eq!(advise(&guarding, guarded, Advice::Cold), Ok(0), "a guarded block");
    assert_eq!(advise(&allocator, DevicePtr::NULL, Advice::Cold), Ok(0));
    let inside = advise(&allocator, DevicePtr(block.0 + 512), Advice::Cold);
    assert!(matches!(inside, Err(Error::InvalidPointer { .. })), "{inside:?}");
}

#[test]
fn any_call_of_a_move_may_fail_once_and_nothing_is_lost() {
    let counted = allocator(CONFIG);
    let block = written(&counted, 2);
    let before: Vec<u64> = Call::ALL.iter().map(|&call| device(&counted).calls(call)).collect();
    assert_eq!(advise(&counted, block, Advice::Cold), Ok(2 * PAGE));
    let made = |call: Call, before: u64| device(&counted).calls(call) - before;
    let mut tried = 0;
    for (call, before) in Call::ALL.into_iter().zip(before) {
        for nth in 1..=made(call, before) {
            for kind in [ErrorKind::OutOfMemory, ErrorKind::Other] {
                let allocator = allocator(CONFIG);
                let block = written(&allocator, 2);
                let nth = device(&allocator).calls(call) + nth;
                device(&allocator).fail(Failure { call, nth, persistent: false, error: DeviceError::new(kind, 77) });
                let told = advise(&allocator, block, Advice::Cold);
                assert!(
                    told != Ok(2 * PAGE) || call == Call::Unreserve || call == Call::Finish || call == Call::Mark,
                    "{call:?} {nth}: {told:?}"
                );
                let on_host = check(&allocator, block, 2);
                let spilled = allocator.pages(DEVICE).unwrap().stats().spilled;
                assert_eq!(spilled, on_host * PAGE, "{call:?} {nth}");
                // What an uncertain unmap may still hold is counted, and the block moves the next
                // time.
                let leaked = allocator.stats(DEVICE).unwrap().leaked_bytes();
                assert!(leaked == 0 || call == Call::Unmap, "{call:?} {nth}");
                assert_eq!(advise(&allocator, block, Advice::Cold), Ok((2 - on_host) * PAGE), "{call:?} {nth}");
                assert_eq!(check(&allocator, block, 2), 2, "{call:?} {nth}");
                tried += 1;
            }
        }
    }
    assert!(tried >= 40, "{tried}");
}

#[test]
fn a_device_that_maps_no_page_where_one_was_is_lost() {
    let allocator = allocator(CONFIG);
    let block = written(&allocator, 2);
    // The first mapping of a move is for the copy, and the second in place of the page.
    let nth = device(&allocator).calls(Call::Map) + 2;
    let error = DeviceError::new(ErrorKind::Other, 77);
    device(&allocator).fail(Failure { call: Call::Map, nth, persistent: true, error });
    let lost = DeviceError::new(ErrorKind::ContextLost, 77);
    assert_eq!(advise(&allocator, block, Advice::Cold), Err(Error::Device(lost)));
    // The addresses without memory serve nothing, not even if the block is freed.
    device(&allocator).clear_failures();
    let _freed = allocator.free(block);
    let maps = device(&allocator).calls(Call::Map);
    assert_eq!(allocator.malloc(DEVICE, 3 * PAGE, STREAM), Err(Error::Device(lost)));
    assert_eq!(device(&allocator).calls(Call::Map), maps);
}

/// A block of one long page in a pool with [`TAG`].
fn tagged(allocator: &Spilling) -> DevicePtr {
    let pools = allocator.pools(DEVICE).unwrap();
    let pool = pools.create(PoolOptions::default()).unwrap();
    allocator.parking(DEVICE).unwrap().tag_pool(pool, Some(TAG)).unwrap();
    let _route = pools.route(pool, Route::All, RoutePurpose::Requests).unwrap();
    // The memory of a tag has longer pages, here one.
    let block = allocator.malloc(DEVICE, 2 * PAGE, STREAM).unwrap();
    assert!(device(allocator).write(block, 100));
    block
}

fn report(allocator: &Spilling) -> ParkReport {
    allocator.parking(DEVICE).unwrap().report(TARGET).unwrap()
}

#[test]
fn memory_on_the_host_is_parked_without_a_copy() {
    let allocator = allocator(CONFIG);
    let block = allocator.malloc(DEVICE, 4 * PAGE, STREAM).unwrap();
    write(&allocator, block, 4);
    device(&allocator).set_mappable_host_memory(3 * PAGE);
    assert_eq!(advise(&allocator, block, Advice::Cold), Ok(3 * PAGE));
    let parking = allocator.parking(DEVICE).unwrap();
    let target = ParkTarget::Stream(STREAM);
    parking.park(target, ParkMode::Keep, ParkOrder::Device).unwrap();
    allocator.check_invariants().unwrap();
    assert_eq!((device(&allocator).used(), device(&allocator).calls(Call::Save)), (0, 1));
    let report = parking.report(target).unwrap();
    assert_eq!((report.mapped, report.parked, report.kept), (0, PAGE, PAGE));
    // There is nothing left to park.
    parking.park(target, ParkMode::Keep, ParkOrder::Device).unwrap();
    parking.wake(target).unwrap();
    assert_eq!((check(&allocator, block, 4), device(&allocator).calls(Call::Save)), (3, 1));
}

#[test]
fn a_parked_block_wakes_where_it_was_told() {
    let allocator = allocator(CONFIG);
    let block = tagged(&allocator);
    let page = report(&allocator).mapped;
    let parking = allocator.parking(DEVICE).unwrap();
    for (advice, on_host) in [(Advice::Cold, true), (Advice::Hot, false)] {
        parking.park(TARGET, ParkMode::Keep, ParkOrder::Device).unwrap();
        let calls = device(&allocator).calls(Call::Copy);
        if on_host {
            assert_eq!(advise(&allocator, block, Advice::Cold), Ok(page));
            assert_eq!(advise(&allocator, block, Advice::Cold), Ok(0), "it is said already");
        } else {
            assert_eq!(advise(&allocator, block, advice), Ok(0), "it has stayed on the host");
        }
        assert_eq!(device(&allocator).calls(Call::Copy), calls);
        parking.wake(TARGET).unwrap();
        allocator.check_invariants().unwrap();
        assert_eq!((device(&allocator).read(block), device(&allocator).is_on_host(block)), (Some(100), true));
    }
    // If the host has no more, it wakes on the device.
    assert_eq!(advise(&allocator, block, Advice::Hot), Ok(page));
    parking.park(TARGET, ParkMode::Keep, ParkOrder::Device).unwrap();
    assert_eq!(advise(&allocator, block, Advice::Cold), Ok(page));
    allocator.empty_cache(DEVICE).unwrap();
    device(&allocator).set_mappable_host_memory(0);
    parking.wake(TARGET).unwrap();
    assert_eq!((device(&allocator).read(block), device(&allocator).is_on_host(block)), (Some(100), false));
}
