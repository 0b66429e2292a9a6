//! Mappings kept for the next user of a place, and pages mapped ahead of growth.

use super::*;

/// Returns how many calls of the device commits of one page each make, from page `from` on.
fn calls_of_growth(allocator: &Simulated, range: &Owned<'_>, pages: core::ops::Range<u64>) -> std::vec::Vec<u64> {
    pages
        .map(|page| {
            let before = mapping_calls(allocator);
            range.commit(page * PAGE, PAGE, ONE).unwrap();
            assert_eq!(range.committed_bytes(), Ok((page + 1) * PAGE));
            allocator.check_invariants().unwrap();
            mapping_calls(allocator) - before
        })
        .collect()
}

/// Gives up a part of a range that was committed, so that its pages are idle.
fn idle(allocator: &Simulated, pages: u64) -> Owned<'_> {
    let range = reserve(allocator, pages);
    for page in 0..pages {
        range.commit(page * PAGE, PAGE, TWO).unwrap();
    }
    range.decommit(0, pages * PAGE, TWO).unwrap();
    device(allocator).complete(TWO);
    range
}

#[test]
fn a_place_keeps_its_mapping_until_the_page_serves_elsewhere() {
    let allocator = allocator("");
    let (first, second) = (idle(&allocator, 24), reserve(&allocator, 8));
    allocator.pages(DEVICE).unwrap().maintain(1000).unwrap();
    let calls = mapping_calls(&allocator);
    first.commit(0, 24 * PAGE, ONE).unwrap();
    assert_eq!((mapping_calls(&allocator), device(&allocator).calls(Call::OrderBehind)), (calls, 0));
    first.decommit(0, 24 * PAGE, ONE).unwrap();
    device(&allocator).complete(ONE);
    // The last pages go, because the next user of the place is the least likely to come to them.
    second.commit(0, 8 * PAGE, TWO).unwrap();
    allocator.pages(DEVICE).unwrap().maintain(1000).unwrap();
    assert_eq!(device(&allocator).outstanding().mappings, 24);
    assert!(!device(&allocator).is_accessible(first.base().offset(16 * PAGE), PAGE), "the page has left");
    let calls = mapping_calls(&allocator);
    first.commit(0, 16 * PAGE, ONE).unwrap();
    assert_eq!(mapping_calls(&allocator), calls);
    allocator.check_invariants().unwrap();
}

#[test]
fn a_released_range_keeps_no_mapping() {
    let allocator = allocator("");
    let range = idle(&allocator, 4);
    allocator.pages(DEVICE).unwrap().maintain(1000).unwrap();
    assert_eq!(device(&allocator).outstanding().mappings, 4);
    range.release().unwrap();
    allocator.pages(DEVICE).unwrap().maintain(1000).unwrap();
    assert_eq!((device(&allocator).outstanding().mappings, device(&allocator).outstanding().reservations), (0, 0));
    allocator.check_invariants().unwrap();
}

#[test]
fn idle_mappings_go_where_idle_memory_goes_back() {
    let allocator = allocator("reclaim:auto");
    let range = idle(&allocator, 4);
    allocator.pages(DEVICE).unwrap().maintain(1000).unwrap();
    assert_eq!((device(&allocator).outstanding().mappings, range.committed_bytes()), (0, Ok(0)));
}

#[test]
fn growth_in_a_row_maps_two_pages_then_four_then_eight() {
    for config in ["", "policy:stitched"] {
        let allocator = allocator(config);
        let (_idle, range) = (idle(&allocator, 64), reserve(&allocator, 64));
        range.commit(0, 4 * PAGE, ONE).unwrap();
        let used = device(&allocator).used();
        let calls = calls_of_growth(&allocator, &range, 4..26);
        let mapped: std::vec::Vec<u64> = (4..26).zip(calls).filter(|&(_, calls)| calls > 0).map(|of| of.0).collect();
        assert_eq!(mapped, [4, 6, 10, 18], "`{config}`");
        assert_eq!(device(&allocator).used(), used, "`{config}`: idle memory is ahead");
        assert_eq!(counted(&allocator).0, 26 * PAGE as i64, "`{config}`");
    }
}

#[test]
fn a_first_part_and_one_that_follows_nothing_have_no_pages_ahead() {
    let allocator = allocator("");
    let (_idle, range) = (idle(&allocator, 64), reserve(&allocator, 64));
    let maps = || device(&allocator).calls(Call::Map);
    let before = maps();
    range.commit(0, PAGE, ONE).unwrap();
    range.commit(8 * PAGE, PAGE, ONE).unwrap();
    assert_eq!(maps() - before, 2);
    // More pages than a batch has are a first part again.
    range.commit(9 * PAGE, 9 * PAGE, ONE).unwrap();
    assert_eq!(maps() - before, 11);
    // Only the gap before the next page is free.
    range.commit(PAGE, 6 * PAGE, ONE).unwrap();
    assert_eq!(maps() - before, 17, "six pages and not eight");
    allocator.check_invariants().unwrap();
}

#[test]
fn new_pages_are_ahead_only_within_a_part_of_what_ranges_have() {
    let allocator = Simulated::new([SimulatedDevice::new(16 << 30)], &Config::default()).unwrap();
    let (large, range) = (reserve(&allocator, 320), reserve(&allocator, 640));
    let bound = |allocator: &Simulated| {
        let committed = large.committed_bytes().unwrap() + range.committed_bytes().unwrap();
        let used = device(allocator).used();
        assert!(used <= committed + committed / 128, "{used} {committed}");
        used > committed
    };
    range.commit(0, PAGE, ONE).unwrap();
    calls_of_growth(&allocator, &range, 1..8);
    assert!(!bound(&allocator), "a small cache has none");
    large.commit(0, 320 * PAGE, ONE).unwrap();
    let mut with_ahead = 0;
    for page in 8..300 {
        range.commit(page * PAGE, PAGE, ONE).unwrap();
        with_ahead += u32::from(bound(&allocator));
    }
    assert!(with_ahead > 100, "{with_ahead}");
}

#[test]
fn pages_ahead_serve_whatever_needs_memory() {
    for config in ["", "expandable_segments:True", "policy:stitched", "policy:bfc"] {
        let allocator = allocator(config);
        allocator.settings(DEVICE).unwrap().set_limit(Some(64 * MIB));
        let (_idle, range, other) = (idle(&allocator, 32), reserve(&allocator, 64), reserve(&allocator, 64));
        range.commit(0, 2 * PAGE, ONE).unwrap();
        range.commit(2 * PAGE, PAGE, ONE).unwrap();
        range.commit(3 * PAGE, PAGE, ONE).unwrap();
        range.commit(4 * PAGE, PAGE, ONE).unwrap();
        other.commit(0, 27 * PAGE, TWO).unwrap_or_else(|error| panic!("`{config}`: {error}"));
        allocator.check_invariants().unwrap();
        assert!(matches!(range.commit(5 * PAGE, PAGE, ONE), Err(Error::OutOfMemory(_))), "`{config}`");
        other.decommit(0, 27 * PAGE, TWO).unwrap();
        let block = allocator.malloc(DEVICE, 40 * MIB, ONE).unwrap_or_else(|error| panic!("`{config}`: {error}"));
        allocator.check_invariants().unwrap();
        allocator.free(block).unwrap();
        let (used, reserved) =
            (device(&allocator).used(), allocator.stats(DEVICE).unwrap().totals().reserved_bytes().current);
        assert!(used <= 64 * MIB, "`{config}`: {used} {reserved}");
    }
}

#[test]
fn upkeep_maps_ahead_so_that_a_commit_makes_no_call() {
    let allocator = allocator("");
    let (_idle, range) = (idle(&allocator, 64), reserve(&allocator, 64));
    range.commit(0, 4 * PAGE, ONE).unwrap();
    allocator.pages(DEVICE).unwrap().maintain(1000).unwrap();
    assert_eq!(calls_of_growth(&allocator, &range, 4..6).iter().filter(|&&calls| calls > 0).count(), 1);
    for page in 6..40 {
        allocator.pages(DEVICE).unwrap().maintain(1000).unwrap();
        assert_eq!(calls_of_growth(&allocator, &range, page..page + 1), [0], "{page}");
    }
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(TWO), RoutePurpose::Capture).unwrap();
    let maps = device(&allocator).calls(Call::Map);
    allocator.pages(DEVICE).unwrap().maintain(1000).unwrap();
    assert_eq!(device(&allocator).calls(Call::Map), maps, "nothing is mapped while a graph is captured");
}

#[test]
fn a_failure_while_pages_are_mapped_ahead_leaves_everything_as_it_was() {
    for call in [Call::Map, Call::SetAccess] {
        for nth in 1..4 {
            let allocator = allocator("");
            let (_idle, range) = (idle(&allocator, 64), reserve(&allocator, 64));
            range.commit(0, 4 * PAGE, ONE).unwrap();
            range.commit(4 * PAGE, 2 * PAGE, ONE).unwrap();
            let before = (counted(&allocator), range.committed_bytes(), device(&allocator).outstanding().mappings);
            let nth = device(&allocator).calls(call) + nth;
            let error = DeviceError::new(ErrorKind::Other, 7);
            device(&allocator).fail(Failure { call, nth, persistent: false, error });
            let failed = range.commit(6 * PAGE, PAGE, ONE);
            allocator.check_invariants().unwrap();
            if failed.is_err() {
                let after = (counted(&allocator), range.committed_bytes(), device(&allocator).outstanding().mappings);
                assert_eq!((failed, after), (Err(Error::Device(error)), before), "{call:?}");
            }
            device(&allocator).clear_failures();
            range.commit(6 * PAGE, PAGE, ONE).unwrap();
            allocator.check_invariants().unwrap();
            drop(range);
            device(&allocator).complete(ONE);
            allocator.empty_cache(DEVICE).unwrap();
            assert_eq!((device(&allocator).used(), device(&allocator).outstanding().mappings), (0, 0));
        }
    }
}
