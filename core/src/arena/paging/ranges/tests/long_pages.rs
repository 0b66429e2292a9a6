//! Pages of several steps that are given up or taken back in part.

use super::*;

const THREE: StreamId = StreamId(3);

/// Returns an allocator with a block of `gib`, so that the pages of ranges are long.
fn beside(gib: u64) -> Simulated {
    let allocator = Simulated::new([SimulatedDevice::new(64 << 30)], &Config::default()).unwrap();
    allocator.malloc(DEVICE, gib << 30, ONE).unwrap();
    allocator
}

/// Reserves and commits a range of four pages of eight steps.
fn committed(allocator: &Simulated) -> Owned<'_> {
    let handles = device(allocator).outstanding().handles;
    let range = reserve(allocator, 32);
    range.commit(0, 32 * PAGE, ONE).unwrap();
    assert_eq!(device(allocator).outstanding().handles - handles, 4);
    range
}

fn orders(allocator: &Simulated) -> u64 {
    device(allocator).calls(Call::OrderBehind)
}

fn stat(allocator: &Simulated, key: &str) -> i64 {
    allocator.stats(DEVICE).unwrap().totals().get(key).unwrap()
}

#[test]
fn a_commit_has_four_pages_or_more_each_of_some_512th_of_the_memory_held() {
    // GiB held, pages committed, and handles used for them.
    for (gib, pages, handles) in [
        (16, 64, 8),
        (16, 32, 4),
        (16, 16, 4),
        (16, 67, 9),
        (4, 64, 16),
        (1, 64, 64),
        (2, 64, 32),
        (16, 3, 3),
        (48, 256, 32),
    ] {
        let allocator = beside(gib);
        let range = reserve(&allocator, pages);
        range.commit(0, pages * PAGE, ONE).unwrap();
        assert_eq!(device(&allocator).outstanding().handles, handles, "{pages} pages beside {gib} GiB");
        let held = (gib << 30) + pages * PAGE;
        assert_eq!(device(&allocator).used(), held, "{pages} pages beside {gib} GiB");
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn who_gives_up_the_rest_of_a_page_is_behind_who_gave_up_the_first_part() {
    let allocator = beside(16);
    let range = committed(&allocator);
    assert_eq!((stat(&allocator, "num_device_alloc"), stat(&allocator, "num_device_free")), (2, 0));
    range.decommit(0, 4 * PAGE, ONE).unwrap();
    let recorded = device(&allocator).calls(Call::Record);
    range.decommit(0, 4 * PAGE, TWO).unwrap();
    assert_eq!((device(&allocator).calls(Call::Record), orders(&allocator)), (recorded, 0), "nothing was committed");
    assert_eq!(stat(&allocator, "num_device_free"), 0, "no page has gone");
    range.decommit(4 * PAGE, 4 * PAGE, TWO).unwrap();
    assert_eq!((orders(&allocator), stat(&allocator, "num_device_free")), (1, 1));
    range.commit(0, 8 * PAGE, THREE).unwrap();
    assert_eq!((orders(&allocator), waits(&allocator)), (2, 0), "behind the last one, who is behind the first");
    range.commit(0, 8 * PAGE, TWO).unwrap();
    assert_eq!((orders(&allocator), stat(&allocator, "num_device_alloc")), (2, 2), "all of it has memory");
    allocator.check_invariants().unwrap();
}

#[test]
fn each_part_taken_back_is_ordered_behind_the_work_before_it_was_given_up() {
    let allocator = beside(16);
    let range = committed(&allocator);
    range.decommit(0, 4 * PAGE, ONE).unwrap();
    range.commit(0, 2 * PAGE, TWO).unwrap();
    assert_eq!(orders(&allocator), 1);
    range.commit(0, 2 * PAGE, THREE).unwrap();
    range.commit(4 * PAGE, 4 * PAGE, THREE).unwrap();
    assert_eq!(orders(&allocator), 1, "nothing is taken back");
    range.commit(2 * PAGE, 2 * PAGE, THREE).unwrap();
    assert_eq!(orders(&allocator), 2, "the rest was given up by the same work");
    range.commit(0, 8 * PAGE, StreamId(4)).unwrap();
    assert_eq!((orders(&allocator), waits(&allocator)), (2, 0));
    allocator.check_invariants().unwrap();
}

#[test]
fn a_page_is_taken_back_whole_or_while_its_addresses_are_in_use() {
    let allocator = beside(16);
    let range = committed(&allocator);
    let reserved = || (counted(&allocator).1 - (16 << 30)) / PAGE as i64;
    range.decommit(0, 8 * PAGE, ONE).unwrap();
    let calls = mapping_calls(&allocator);
    range.commit(0, 4 * PAGE, ONE).unwrap();
    assert_eq!((mapping_calls(&allocator), waits(&allocator), reserved()), (calls, 0, 32), "work uses the addresses");
    // Whole pages at the start, in the middle and at the end of a part.
    range.decommit(8 * PAGE, 24 * PAGE, ONE).unwrap();
    device(&allocator).complete(ONE);
    range.commit(8 * PAGE, 24 * PAGE, ONE).unwrap();
    assert_eq!((mapping_calls(&allocator), reserved()), (calls, 32), "still at their addresses");
    // A long page for a short part would hold more than is committed.
    for (begin, pages) in [(0, 4), (12, 4), (18, 2)] {
        let page = begin / 8 * 8;
        range.decommit(page * PAGE, 8 * PAGE, ONE).unwrap();
        device(&allocator).complete(ONE);
        range.commit(begin * PAGE, pages * PAGE, ONE).unwrap();
        allocator.check_invariants().unwrap();
    }
    assert_eq!((reserved(), range.committed_bytes()), (18, Ok(18 * PAGE)));
    assert_eq!(waits(&allocator), 0);
}

#[test]
fn long_pages_serve_another_range_behind_the_work() {
    let allocator = beside(16);
    let range = committed(&allocator);
    range.decommit(0, 32 * PAGE, ONE).unwrap();
    let created = device(&allocator).calls(Call::Create);
    reserve(&allocator, 32).commit(0, 32 * PAGE, TWO).unwrap();
    assert_eq!((device(&allocator).calls(Call::Create), orders(&allocator), waits(&allocator)), (created, 1, 0));
}

#[test]
fn peaks_count_ranges_and_what_is_taken_back() {
    let allocator = beside(16);
    // Large blocks, because ranges count as large. The peak of allocations leaves room for both
    // ranges, and that of segments does not.
    let blocks = [(); 4].map(|()| allocator.malloc(DEVICE, 2 * MIB, ONE).unwrap());
    blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    let peak = |key: &str| stat(&allocator, &std::format!("{key}.all.peak"));
    {
        let _ranges = [(); 2].map(|()| reserve(&allocator, 1));
    }
    // Two segments of blocks and two ranges, and five blocks at once.
    assert_eq!((peak("segment"), peak("allocation")), (4, 5));
    let range = committed(&allocator);
    range.decommit(0, 4 * PAGE, ONE).unwrap();
    let block = allocator.malloc(DEVICE, 100 * MIB, ONE).unwrap();
    range.commit(0, 4 * PAGE, ONE).unwrap();
    range.decommit(0, 32 * PAGE, ONE).unwrap();
    allocator.free(block).unwrap();
    assert_eq!(peak("allocated_bytes"), (16 << 30) + 100 * MIB as i64 + 32 * PAGE as i64);
}

#[test]
fn the_rest_of_a_page_stays_once_the_work_before_a_part_is_complete() {
    let allocator = beside(16);
    let range = committed(&allocator);
    range.decommit(0, 4 * PAGE, ONE).unwrap();
    range.decommit(8 * PAGE, 8 * PAGE, ONE).unwrap();
    device(&allocator).complete(ONE);
    allocator.process_events(DEVICE).unwrap();
    allocator.check_invariants().unwrap();
    for (begin, pages, is_there) in [(4, 4, true), (8, 8, false), (16, 16, true)] {
        let at = range.base().offset(begin * PAGE);
        assert_eq!(device(&allocator).is_accessible(at, pages * PAGE), is_there, "{begin}");
    }
}
