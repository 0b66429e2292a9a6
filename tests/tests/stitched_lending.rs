//! Free blocks lent between streams under the stitched policy: free memory beside live blocks of a
//! page serves a request of another stream, in order, and no page moves.

use cachalot_core::simulated::{Call, Failure};
use cachalot_core::{BlockState, DevicePtr, PoolOptions, Route, RoutePurpose, StreamId};
use cachalot_tests::failures;
use cachalot_tests::host::{DEVICE, MIB};
use cachalot_tests::working::Working;

const ONE: StreamId = StreamId(1);
const TWO: StreamId = StreamId(2);

/// A device with room for every budget.
const CAPACITY: u64 = 1 << 30;

/// A program whose first stream has 3 MiB free between two live blocks: 3 to 6 MiB of the range,
/// with only one whole page. Returns the address of the free bytes.
fn with_hole(options: &str) -> (Working, DevicePtr) {
    let mut working = Working::new(&format!("policy:stitched,slack:0{options}"), CAPACITY);
    // The peak of live memory is that of the first block, 12 MiB.
    assert_eq!(working.malloc(12 * MIB, ONE), Ok(None));
    assert_eq!(working.free(0), None);
    for mib in [3, 3, 6] {
        assert_eq!(working.malloc(mib * MIB, ONE), Ok(None));
    }
    let hole = working.held[1].ptr;
    assert_eq!(working.free(1), None);
    (working, hole)
}

fn check(working: &Working) {
    assert_eq!(working.calls(Call::Wait) + working.calls(Call::Synchronize), 0);
    working.check_all().unwrap();
}

/// Frees the lent block, and lets the lender's next request have it again.
fn assert_goes_back(working: &mut Working, hole: DevicePtr) {
    assert_eq!(working.free(2), None);
    assert_eq!(working.malloc(3 * MIB, ONE), Ok(None));
    assert_eq!(working.held[2].ptr, hole);
    check(working);
}

#[test]
fn a_free_block_of_another_stream_serves_a_request_where_it_lies() {
    let (mut working, hole) = with_hole("");
    let before = working.calls(Call::OrderBehind);
    // `malloc` launches work, which the device checks for its order after the work of the first
    // stream.
    assert_eq!(working.malloc(3 * MIB, TWO), Ok(None));
    let lent = working.held[2].clone();
    assert_eq!((lent.ptr, working.used_mib(), working.calls(Call::OrderBehind) - before), (hole, 12, 1));
    let allocator = &working.host.allocator;
    assert_eq!(allocator.base_of(hole).unwrap().stream, TWO);
    assert_eq!(allocator.pages(DEVICE).unwrap().stats().moved, 0);
    check(&working);
    // The block waits for the work of the borrower. The lender's next request is ordered after
    // that.
    assert_eq!(working.free(2), None);
    assert_eq!(working.host.stat("active_bytes.all.current") / MIB as i64, 12);
    assert_eq!(working.malloc(3 * MIB, ONE), Ok(None));
    assert_eq!((working.held[2].ptr, working.used_mib()), (hole, 12));
    check(&working);
}

#[test]
fn growth_within_the_budget_and_free_pages_of_the_own_stream_come_first() {
    let (mut working, hole) = with_hole(",slack:0.5");
    assert_eq!(working.malloc(3 * MIB, TWO), Ok(None));
    assert!(working.held[2].ptr != hole && working.used_mib() == 16);
    assert_eq!(working.free(2), None);
    // 4 MiB are free in whole pages of the second stream, at a limit without room.
    working.host.allocator.settings(DEVICE).unwrap().set_limit(Some(16 * MIB));
    assert_eq!(working.malloc(3 * MIB, TWO), Ok(None));
    assert!(working.held[2].ptr != hole);
    // The limit leaves nothing for the next.
    assert_eq!(working.malloc(5 * MIB / 2, TWO), Ok(None));
    assert_eq!((working.held[3].ptr, working.used_mib()), (hole, 16));
    check(&working);
}

#[test]
fn nothing_is_lent_where_only_pages_of_complete_work_move() {
    let (mut working, hole) = with_hole(",completed_pages_only:True");
    assert_eq!(working.malloc(3 * MIB, TWO), Ok(None));
    assert!(working.held[2].ptr != hole);
    check(&working);
}

#[test]
fn nothing_is_lent_under_a_capture() {
    let (mut working, hole) = with_hole("");
    let allocator = &working.host.allocator;
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(StreamId(9)), RoutePurpose::Capture).unwrap();
    assert_eq!(working.malloc(3 * MIB, TWO), Ok(None));
    assert!(working.held[2].ptr != hole);
    working.host.allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
    assert_eq!(working.malloc(3 * MIB, StreamId(3)), Ok(None));
    assert_eq!(working.held[3].ptr, hole);
    check(&working);
}

#[test]
fn a_capture_that_nothing_announced_neither_lends_nor_borrows() {
    for capturing in [ONE, TWO] {
        let (working, hole) = with_hole("");
        working.host.device().set_capturing(capturing, true);
        let ptr = working.host.allocator.malloc(DEVICE, 3 * MIB, TWO).unwrap();
        assert_ne!(ptr, hole, "{capturing:?}");
        working.host.device().set_capturing(capturing, false);
        check(&working);
    }
}

#[test]
fn private_pools_neither_lend_nor_borrow() {
    let (mut working, hole) = with_hole("");
    let allocator = &working.host.allocator;
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(TWO), RoutePurpose::Requests).unwrap();
    let blocks = [3, 3, 6].map(|mib| allocator.malloc(DEVICE, mib * MIB, TWO).unwrap());
    allocator.free(blocks[1]).unwrap();
    allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Requests).unwrap();
    assert!(!blocks.contains(&hole));
    // Pages of the hole may have moved into the pool.
    assert_eq!(working.malloc(3 * MIB, StreamId(3)), Ok(None));
    assert_eq!(working.malloc(3 * MIB, StreamId(3)), Ok(None));
    assert!(working.held[2..].iter().all(|held| held.ptr != blocks[1]));
    check(&working);
}

/// A use of the program's own with an event ends at the event. The borrower's work goes on.
#[test]
fn a_use_announced_by_the_borrower_does_not_end_the_loan() {
    let (mut working, hole) = with_hole("");
    assert_eq!(working.malloc(3 * MIB, TWO), Ok(None));
    let allocator = &working.host.allocator;
    allocator.record_use(hole, TWO).unwrap();
    allocator.record_stream(hole, TWO).unwrap();
    working.work(2).unwrap();
    assert_goes_back(&mut working, hole);
}

/// Until its free, a lent block belongs to the requesting stream. The device records events after
/// the work of ended streams.
#[test]
fn a_borrower_that_ends_leaves_its_work_before_that_of_the_lender() {
    let (mut working, hole) = with_hole("");
    assert_eq!(working.malloc(3 * MIB, TWO), Ok(None));
    working.host.allocator.stream_destroyed(DEVICE, TWO).unwrap();
    assert_eq!(working.host.allocator.base_of(hole).unwrap().stream, TWO);
    check(&working);
    assert_eq!(working.free(2), None);
    assert_eq!(working.host.stat("active_bytes.all.current") / MIB as i64, 12, "the work goes on");
    // The lender is ordered after the work before the end.
    assert_eq!(working.malloc(3 * MIB, ONE), Ok(None));
    assert_eq!(working.held[2].ptr, hole);
    check(&working);
}

/// After the announced end of its stream, a thread may go on and use its blocks there again.
#[test]
fn a_stream_whose_end_was_announced_goes_on_with_what_it_has_borrowed() {
    let (mut working, hole) = with_hole("");
    assert_eq!(working.malloc(3 * MIB, TWO), Ok(None));
    working.host.allocator.stream_destroyed(DEVICE, TWO).unwrap();
    working.work(2).unwrap();
    assert_goes_back(&mut working, hole);
}

#[test]
fn a_lent_block_freed_during_a_capture_waits_for_its_borrower() {
    let (mut working, hole) = with_hole("");
    assert_eq!(working.malloc(3 * MIB, TWO), Ok(None));
    let allocator = &working.host.allocator;
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(StreamId(9)), RoutePurpose::Capture).unwrap();
    let before = working.calls(Call::Record);
    assert_eq!(working.free(2), None);
    working.host.allocator.stream_destroyed(DEVICE, TWO).unwrap();
    assert_eq!(working.calls(Call::Record), before);
    let allocator = &working.host.allocator;
    allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
    allocator.pools(DEVICE).unwrap().release(pool).unwrap();
    assert_eq!(working.malloc(3 * MIB, ONE), Ok(None));
    assert_eq!(working.held[2].ptr, hole);
    check(&working);
}

/// At the count, all work in the block is done. An event reports the borrower's work as well.
#[test]
fn a_lent_block_freed_at_a_count_waits_for_both() {
    for reached in [false, true] {
        let (mut working, hole) = with_hole("");
        assert_eq!(working.malloc(3 * MIB, TWO), Ok(None));
        let allocator = &working.host.allocator;
        if reached {
            allocator.set_safe_frontier(DEVICE, 7).unwrap();
        }
        allocator.free_at(hole, 7).unwrap();
        working.held.remove(2);
        let active = |working: &Working| working.host.stat("active_bytes.all.current") / MIB as i64;
        working.host.allocator.set_safe_frontier(DEVICE, 7).unwrap();
        assert_eq!(active(&working), 12, "the borrower works");
        working.host.device().complete(TWO);
        working.host.allocator.process_events(DEVICE).unwrap();
        assert_eq!(active(&working), 9);
        assert_eq!(working.malloc(3 * MIB, ONE), Ok(None));
        assert_eq!(working.held[2].ptr, hole);
        check(&working);
    }
}

#[test]
fn snapshots_extents_and_pins_see_a_lent_block_in_the_memory_of_the_lender() {
    let (mut working, hole) = with_hole("");
    assert_eq!(working.malloc(3 * MIB, TWO), Ok(None));
    let allocator = &working.host.allocator;
    let snapshot = allocator.snapshot();
    let of =
        snapshot.iter().find(|segment| (segment.address..segment.address.offset(segment.total_size)).contains(&hole));
    let segment = of.unwrap();
    assert_eq!(segment.stream, ONE);
    assert!(segment.blocks.iter().any(|block| block.address == hole && block.state == BlockState::ActiveAllocated));
    let pages = allocator.pages(DEVICE).unwrap();
    let mut bytes = 0;
    pages.extents(hole, |extent| bytes += extent.bytes).unwrap();
    assert_eq!(bytes, 3 * MIB);
    // Pinned pages stay, also when the block goes back to the lender.
    pages.pin(hole).unwrap();
    let _receiver = pages.export(hole).unwrap();
    pages.unpin(hole).unwrap();
    assert_eq!(pages.stats().pinned, 0);
    check(&working);
}

#[test]
fn a_lender_that_ends_keeps_what_is_lent_until_the_borrower_is_done() {
    let (mut working, hole) = with_hole("");
    assert_eq!(working.malloc(3 * MIB, TWO), Ok(None));
    working.host.allocator.stream_destroyed(DEVICE, ONE).unwrap();
    for block in [0, 1] {
        assert_eq!(working.free(block), None);
    }
    assert_eq!((working.held.len(), working.held[0].ptr), (1, hole));
    working.check().unwrap();
    working.host.allocator.stream_destroyed(DEVICE, TWO).unwrap();
    assert_eq!(working.free(0), None);
    working.host.empty_cache();
    working.check_all().unwrap();
    assert_eq!(working.used_mib(), 0);
}

/// A program whose streams lend to each other, and end.
fn lending(failure: Option<Failure>) -> Working {
    let (mut working, _) = with_hole("");
    failure.into_iter().for_each(|failure| working.host.device().fail(failure));
    let ran = (|| {
        for stream in [TWO, StreamId(3)] {
            working.malloc(3 * MIB, stream)?;
            working.malloc(MIB / 2, stream)?;
        }
        working.free(2);
        working.malloc(3 * MIB, ONE)?;
        working.host.allocator.stream_destroyed(DEVICE, StreamId(3)).ok();
        working.free(2);
        working.malloc(MIB, TWO)?;
        working.check()
    })();
    ran.unwrap_or_else(|why| panic!("{failure:?}: {why}"));
    working
}

#[test]
fn a_failure_of_any_call_loses_nothing() {
    let (before, made) = (failures::calls(with_hole("").0.host.device()), failures::calls(lending(None).host.device()));
    assert!(made[&Call::OrderBehind] > before[&Call::OrderBehind] + 1, "{made:?}");
    for failure in failures::of_every_kind(&made).filter(|failure| failure.nth > before[&failure.call]) {
        lending(Some(failure)).survive(&failure).unwrap_or_else(|why| panic!("{failure:?}: {why}"));
    }
}
