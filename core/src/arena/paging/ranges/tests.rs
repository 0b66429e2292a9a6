use crate::allocator::{Allocator, Range};
use crate::arena::request::Forecast;
use crate::config::Config;
use crate::device::simulated::{Call, Failure, SimulatedDevice};
use crate::device::{DeviceError, ErrorKind};
use crate::error::Error;
use crate::pool::{PoolOptions, Route, RoutePurpose};
use crate::tables::{Fixed, Growable, Storage};
use crate::tests::own::parse;
use crate::units::{DeviceIndex, MAX_REQUEST, MIB, RangeId, StreamId};

mod ahead;
mod faults;
mod long_pages;
mod pieces;
mod shortage;

const DEVICE: DeviceIndex = DeviceIndex(0);
const ONE: StreamId = StreamId(1);
const TWO: StreamId = StreamId(2);
const PAGE: u64 = 2 * MIB;
const CAPACITY: u64 = 256 * MIB;

type In<S> = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, S>;
type Simulated = In<Growable>;
type Owned<'a> = Range<&'a Simulated>;

fn allocator(config: &str) -> Simulated {
    Simulated::new([SimulatedDevice::new(CAPACITY)], &parse(config)).unwrap()
}

fn device<S: Storage>(allocator: &In<S>) -> &SimulatedDevice {
    allocator.device(DEVICE).unwrap()
}

fn reserve(allocator: &Simulated, pages: u64) -> Owned<'_> {
    Range::reserve(allocator, DEVICE, pages * PAGE).unwrap()
}

/// Returns the number of calls that wait for the device.
fn waits(allocator: &Simulated) -> u64 {
    device(allocator).calls(Call::Wait) + device(allocator).calls(Call::Synchronize)
}

/// Returns the number of calls that map, unmap, or make memory.
fn mapping_calls(allocator: &Simulated) -> u64 {
    [Call::Create, Call::Destroy, Call::Map, Call::SetAccess, Call::Unmap]
        .map(|call| device(allocator).calls(call))
        .iter()
        .sum()
}

/// Returns the bytes that the statistics count as allocated and as reserved.
fn counted(allocator: &Simulated) -> (i64, i64) {
    let stats = allocator.stats(DEVICE).unwrap().totals();
    (stats.allocated_bytes().current, stats.reserved_bytes().current)
}

fn in_capture() -> Error {
    Error::Device(DeviceError::new(ErrorKind::NotPermittedInCapture, 0))
}

#[test]
fn a_commit_makes_a_part_accessible_and_is_idempotent() {
    let allocator = allocator("");
    let range = reserve(&allocator, 100);
    assert_eq!((range.bytes(), range.page_bytes(), counted(&allocator)), (100 * PAGE, PAGE, (0, 0)));
    range.commit(4 * PAGE, 6 * PAGE, ONE).unwrap();
    assert!(device(&allocator).is_accessible(range.base().offset(4 * PAGE), 6 * PAGE));
    assert!(!device(&allocator).is_accessible(range.base().offset(3 * PAGE), PAGE));
    assert_eq!(counted(&allocator), (12 << 20, 12 << 20));
    let calls = mapping_calls(&allocator);
    range.commit(5 * PAGE, 4 * PAGE, TWO).unwrap();
    assert_eq!(mapping_calls(&allocator), calls, "all of it is committed");
    let accesses = device(&allocator).calls(Call::SetAccess);
    range.commit(2 * PAGE, 10 * PAGE, ONE).unwrap();
    assert_eq!(device(&allocator).calls(Call::SetAccess) - accesses, 2, "once for each gap");
    assert!(device(&allocator).is_accessible(range.base().offset(2 * PAGE), 10 * PAGE));
    assert_eq!(range.committed_bytes(), Ok(10 * PAGE));
    let peak = allocator.stats(DEVICE).unwrap().totals().allocated_bytes().peak;
    assert_eq!(peak, 10 * PAGE as i64);
    allocator.check_invariants().unwrap();
}

#[test]
fn the_calls_and_the_time_of_a_commit_are_counted() {
    for (config, stalls) in [("policy:stitched,max_stall_us:10", 1), ("policy:stitched", 0), ("", 0)] {
        let allocator = allocator(config);
        let range = reserve(&allocator, 10);
        range.commit(0, 10 * PAGE, ONE).unwrap();
        let stats = allocator.pages(DEVICE).unwrap().stats();
        let counted = [stats.calls.create, stats.calls.map, stats.calls.set_access].map(|count| count.calls);
        let calls = [Call::Create, Call::Map, Call::SetAccess];
        assert_eq!(counted, calls.map(|call| device(&allocator).calls(call)), "`{config}`");
        assert_eq!((stats.calls.reserve.calls, stats.stalls), (1, stalls), "`{config}`");
        // Reading the clock takes 2 ns.
        let us = calls.map(|call| device(&allocator).driver_ns_of(call)).iter().sum::<u64>() / 1000;
        assert!((us..=us + 1).contains(&stats.longest_stall_us), "`{config}`: {us} {stats:?}");
    }
}

#[test]
fn parts_that_are_not_whole_pages_of_the_range_are_refused() {
    let allocator = allocator("");
    let range = reserve(&allocator, 10);
    let refused = |result: Result<(), Error>| matches!(result, Err(Error::RangeRefused(_)));
    for (offset, bytes) in [(1, PAGE), (PAGE, PAGE + 1), (10 * PAGE, PAGE), (0, 11 * PAGE), (PAGE, u64::MAX - PAGE + 1)]
    {
        assert!(refused(range.commit(offset, bytes, ONE)), "{offset} {bytes}");
        assert!(refused(range.decommit(offset, bytes, ONE)), "{offset} {bytes}");
    }
    range.commit(10 * PAGE, 0, ONE).unwrap();
    assert_eq!(range.commit(0, PAGE, StreamId(u64::MAX)), Err(Error::InvalidStream));
    assert_eq!(range.decommit(0, PAGE, StreamId(u64::MAX)), Err(Error::InvalidStream));
    assert!(matches!(allocator.ranges(DEVICE).unwrap().reserve(0), Err(Error::RangeRefused(_))));
    for bytes in [MAX_REQUEST, u64::MAX] {
        assert_eq!(allocator.ranges(DEVICE).unwrap().reserve(bytes), Err(Error::TooLarge(bytes)));
    }
    let id = allocator.ranges(DEVICE).unwrap().reserve(1).unwrap().range;
    allocator.ranges(DEVICE).unwrap().release(id).unwrap();
    for unknown in [id, RangeId(99)] {
        assert_eq!(allocator.ranges(DEVICE).unwrap().commit(unknown, 0, PAGE, ONE), Err(Error::UnknownRange(unknown)));
        assert_eq!(allocator.ranges(DEVICE).unwrap().release(unknown), Err(Error::UnknownRange(unknown)));
    }
    assert_ne!(allocator.ranges(DEVICE).unwrap().reserve(1).unwrap().range, id, "a number is used once");
    let bare = Simulated::new([SimulatedDevice::new(CAPACITY).without_virtual_memory()], &Config::default()).unwrap();
    let error = bare.ranges(DEVICE).unwrap().reserve(PAGE).unwrap_err();
    assert!(matches!(error, Error::Device(DeviceError { kind: ErrorKind::Unsupported, .. })), "{error}");
}

#[test]
fn a_decommitted_page_serves_its_stream_at_once_and_is_unmapped_after_the_work() {
    let allocator = allocator("");
    let (first, second) = (reserve(&allocator, 10), reserve(&allocator, 10));
    first.commit(0, 4 * PAGE, ONE).unwrap();
    first.decommit(0, 4 * PAGE, ONE).unwrap();
    assert_eq!(counted(&allocator), (0, 0));
    let created = device(&allocator).calls(Call::Create);
    second.commit(0, 4 * PAGE, ONE).unwrap();
    assert_eq!(device(&allocator).calls(Call::Create), created, "the pages of the first range serve the second");
    assert_eq!(device(&allocator).outstanding().mappings, 8, "work may still use the old addresses");
    allocator.process_events(DEVICE).unwrap();
    assert_eq!(device(&allocator).outstanding().mappings, 8);
    device(&allocator).complete(ONE);
    allocator.process_events(DEVICE).unwrap();
    assert_eq!(device(&allocator).outstanding().mappings, 4);
    assert_eq!((waits(&allocator), device(&allocator).calls(Call::OrderBehind)), (0, 0));
    allocator.check_invariants().unwrap();
}

#[test]
fn another_stream_is_ordered_behind_the_last_work_on_a_page() {
    let allocator = allocator("");
    let (first, second) = (reserve(&allocator, 10), reserve(&allocator, 10));
    first.commit(0, 4 * PAGE, ONE).unwrap();
    first.decommit(0, 4 * PAGE, ONE).unwrap();
    second.commit(0, 2 * PAGE, TWO).unwrap();
    assert_eq!(device(&allocator).calls(Call::OrderBehind), 1, "once for all pages of a decommit");
    device(&allocator).complete(ONE);
    second.commit(2 * PAGE, 2 * PAGE, TWO).unwrap();
    assert_eq!(device(&allocator).calls(Call::OrderBehind), 1, "the work is complete");
    assert_eq!((device(&allocator).calls(Call::Create), waits(&allocator)), (4, 0));
    allocator.check_invariants().unwrap();
}

#[test]
fn a_page_that_is_still_departed_is_taken_back_without_mapping() {
    let allocator = allocator("");
    let range = reserve(&allocator, 10);
    range.commit(0, 4 * PAGE, ONE).unwrap();
    range.decommit(0, 4 * PAGE, ONE).unwrap();
    let calls = mapping_calls(&allocator);
    range.commit(0, 3 * PAGE, TWO).unwrap();
    assert_eq!(mapping_calls(&allocator), calls);
    assert_eq!(device(&allocator).calls(Call::OrderBehind), 1);
    assert_eq!(counted(&allocator), (3 * PAGE as i64, 3 * PAGE as i64));
    assert!(device(&allocator).is_accessible(range.base(), 3 * PAGE));
    allocator.check_invariants().unwrap();
    // The fourth page is unmapped, and those in use are not.
    device(&allocator).complete(ONE);
    allocator.process_events(DEVICE).unwrap();
    assert_eq!(device(&allocator).outstanding().mappings, 3);
    allocator.check_invariants().unwrap();
}

#[test]
fn a_commit_waits_only_for_addresses_whose_page_serves_others() {
    let allocator = allocator("");
    let (first, second) = (reserve(&allocator, 10), reserve(&allocator, 10));
    first.commit(0, PAGE, ONE).unwrap();
    first.decommit(0, PAGE, ONE).unwrap();
    second.commit(0, PAGE, ONE).unwrap();
    assert_eq!(waits(&allocator), 0);
    first.commit(0, PAGE, ONE).unwrap();
    assert_eq!(waits(&allocator), 1, "the old mapping was in use");
    assert!(device(&allocator).is_accessible(first.base(), PAGE));
    second.decommit(0, PAGE, ONE).unwrap();
    first.commit(PAGE, PAGE, ONE).unwrap();
    device(&allocator).complete(ONE);
    second.commit(0, PAGE, ONE).unwrap();
    assert_eq!(waits(&allocator), 1, "the work is complete");
    allocator.check_invariants().unwrap();
}

#[test]
fn a_long_page_goes_when_all_of_it_is_decommitted() {
    let allocator = allocator("policy:stitched");
    // A page of the heap is longer than a page of the range.
    allocator.settings(DEVICE).unwrap().set_limit(Some(64 * MIB));
    let range = reserve(&allocator, 64);
    let handle = device(&allocator);
    range.commit(0, 16 * PAGE, ONE).unwrap();
    let pages = handle.outstanding().handles as u64;
    assert!(pages <= 16);
    range.decommit(3 * PAGE, 9 * PAGE, ONE).unwrap();
    assert_eq!(range.committed_bytes(), Ok(7 * PAGE));
    range.commit(4 * PAGE, PAGE, TWO).unwrap();
    range.decommit(0, 16 * PAGE, TWO).unwrap();
    assert_eq!(counted(&allocator), (0, 0));
    allocator.check_invariants().unwrap();
    handle.complete(ONE);
    handle.complete(TWO);
    allocator.empty_cache(DEVICE).unwrap();
    assert_eq!((handle.used(), handle.outstanding().mappings), (0, 0));
}

#[test]
fn memory_is_given_up_for_a_commit_under_the_limit_and_a_failed_one_changes_nothing() {
    for config in ["", "expandable_segments:True", "policy:bfc", "policy:stitched"] {
        let allocator = allocator(config);
        allocator.settings(DEVICE).unwrap().set_limit(Some(64 * MIB));
        let kept = allocator.malloc(DEVICE, 8 * MIB, ONE).unwrap();
        let freed = allocator.malloc(DEVICE, 30 * MIB, ONE).unwrap();
        allocator.free(freed).unwrap();
        let range = reserve(&allocator, 64);
        range.commit(0, 20 * PAGE, ONE).unwrap_or_else(|error| panic!("{config}: {error}"));
        allocator.check_invariants().unwrap();
        let before = (counted(&allocator), range.committed_bytes());
        let failed = range.commit(10 * PAGE, 25 * PAGE, ONE);
        let Err(Error::OutOfMemory(report)) = failed else { panic!("{config}: {failed:?}") };
        assert_eq!((report.requested, report.limit), (25 * PAGE, Some(64 * MIB)));
        assert!(report.allocated >= 48 * MIB && report.reserved >= report.allocated, "{config}: {report:?}");
        assert_eq!(before.1, range.committed_bytes());
        assert_eq!(before.0.0, counted(&allocator).0, "{config}");
        assert!(device(&allocator).used() <= 64 * MIB, "{config}");
        assert_eq!(allocator.stats(DEVICE).unwrap().totals().ooms(), 1);
        range.decommit(0, 20 * PAGE, ONE).unwrap();
        let again = allocator.malloc(DEVICE, 40 * MIB, TWO);
        assert!(again.is_ok(), "{config}: the memory of the range serves blocks: {again:?}");
        allocator.check_invariants().unwrap();
        allocator.free(again.unwrap()).unwrap();
        allocator.free(kept).unwrap();
    }
}

#[test]
fn decommitted_memory_serves_a_commit_where_the_policy_releases_no_segments() {
    for config in ["policy:bfc,region_garbage_collection:False", "policy:bfc", ""] {
        let device = SimulatedDevice::new(16 << 30);
        let allocator = Simulated::new([device], &Config::parse(config).unwrap()).unwrap();
        allocator.settings(DEVICE).unwrap().set_limit(Some(8 << 30));
        let [short, long, last] = [2048, 2048, 1].map(|pages| reserve(&allocator, pages));
        short.commit(0, 2048 * PAGE, ONE).unwrap();
        // With so much memory held the pages are longer, and none of them fits into a part of 2
        // MiB.
        long.commit(0, 2048 * PAGE, ONE).unwrap();
        long.decommit(0, 2048 * PAGE, ONE).unwrap();
        last.commit(0, PAGE, TWO).unwrap_or_else(|error| panic!("{config}: {error}"));
        short.decommit(0, 2048 * PAGE, ONE).unwrap();
        allocator.malloc(DEVICE, 5 << 30, TWO).unwrap_or_else(|error| panic!("a block under {config}: {error}"));
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn stitched_pages_go_to_and_fro_without_waits_and_without_new_memory() {
    let allocator = allocator("policy:stitched");
    allocator.settings(DEVICE).unwrap().set_limit(Some(64 * MIB));
    let range = reserve(&allocator, 32);
    for round in 0..6 {
        let created = device(&allocator).calls(Call::Create);
        let blocks = [10, 20, 30].map(|mib| allocator.malloc(DEVICE, mib * MIB, ONE).unwrap());
        for block in blocks {
            allocator.free(block).unwrap();
        }
        for page in 0..32 {
            range.commit(page * PAGE, PAGE, ONE).unwrap();
        }
        allocator.check_invariants().unwrap();
        assert_eq!(device(&allocator).used(), 64 * MIB);
        range.decommit(0, 32 * PAGE, ONE).unwrap();
        device(&allocator).complete(ONE);
        if round > 1 {
            assert_eq!(device(&allocator).calls(Call::Create), created, "round {round}");
        }
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn blocks_of_another_stream_get_departed_pages_behind_their_work() {
    let allocator = allocator("policy:stitched");
    allocator.settings(DEVICE).unwrap().set_limit(Some(32 * MIB));
    let range = reserve(&allocator, 16);
    range.commit(0, 16 * PAGE, ONE).unwrap();
    range.decommit(0, 16 * PAGE, ONE).unwrap();
    let created = device(&allocator).calls(Call::Create);
    let block = allocator.malloc(DEVICE, 30 * MIB, TWO).unwrap();
    assert!(device(&allocator).calls(Call::OrderBehind) > 0);
    assert_eq!((device(&allocator).calls(Call::Create), waits(&allocator)), (created, 0));
    allocator.check_invariants().unwrap();
    device(&allocator).complete(ONE);
    allocator.process_events(DEVICE).unwrap();
    assert!(device(&allocator).is_accessible(block, 30 * MIB));
    allocator.check_invariants().unwrap();
}

#[test]
fn a_page_that_a_heap_cannot_unmap_is_kept_until_its_last_alias_goes() {
    let allocator = allocator("policy:stitched");
    allocator.settings(DEVICE).unwrap().set_limit(Some(32 * MIB));
    let range = reserve(&allocator, 16);
    range.commit(0, 16 * PAGE, ONE).unwrap();
    range.decommit(0, 16 * PAGE, ONE).unwrap();
    let block = allocator.malloc(DEVICE, 30 * MIB, ONE).unwrap();
    allocator.free(block).unwrap();
    let nth = device(&allocator).calls(Call::Unmap) + 1;
    let error = DeviceError::new(ErrorKind::Other, 7);
    device(&allocator).fail(Failure { call: Call::Unmap, nth, persistent: false, error });
    assert_eq!(allocator.trim(DEVICE, 0), Err(Error::Device(error)));
    allocator.check_invariants().unwrap();
    device(&allocator).complete(ONE);
    allocator.process_events(DEVICE).unwrap();
    allocator.check_invariants().unwrap();
    allocator.empty_cache(DEVICE).unwrap();
    let leaked = allocator.stats(DEVICE).unwrap().leaked_bytes();
    assert!(leaked > 0 && device(&allocator).used() == leaked, "{leaked}");
    allocator.check_invariants().unwrap();
}

#[test]
fn a_released_range_keeps_its_addresses_until_the_work_of_all_its_streams_is_done() {
    let allocator = allocator("");
    let range = reserve(&allocator, 10);
    range.commit(0, 2 * PAGE, ONE).unwrap();
    range.commit(2 * PAGE, 2 * PAGE, TWO).unwrap();
    range.commit(4 * PAGE, 2 * PAGE, StreamId(3)).unwrap();
    allocator.stream_destroyed(DEVICE, StreamId(3)).unwrap();
    assert_eq!(device(&allocator).calls(Call::Record), 1, "the work of a stream that ends");
    range.release().unwrap();
    let left = || device(&allocator).outstanding();
    assert_eq!((device(&allocator).calls(Call::OrderBehind), left().reservations), (2, 1));
    assert_eq!(counted(&allocator), (0, 0));
    device(&allocator).complete(TWO);
    allocator.process_events(DEVICE).unwrap();
    assert_eq!((left().mappings, left().reservations), (6, 1));
    device(&allocator).complete(ONE);
    allocator.process_events(DEVICE).unwrap();
    assert_eq!((left().mappings, left().reservations, waits(&allocator)), (0, 0, 0));
    allocator.empty_cache(DEVICE).unwrap();
    assert_eq!((device(&allocator).used(), left().handles), (0, 0));
    drop(reserve(&allocator, 1));
    assert_eq!(left().reservations, 0, "a range without memory goes at once");
    allocator.check_invariants().unwrap();
}

#[test]
fn a_release_is_behind_the_work_of_streams_named_by_calls_without_effect() {
    for config in ["", "expandable_segments:True", "policy:stitched"] {
        // A commit of a part that already has memory, and a decommit of a part that has none.
        for name in [
            (|range, stream| range.commit(0, 2 * PAGE, stream)) as fn(&Owned<'_>, StreamId) -> Result<(), Error>,
            |range, stream| range.decommit(6 * PAGE, 2 * PAGE, stream),
        ] {
            let allocator = allocator(config);
            let range = reserve(&allocator, 8);
            range.commit(0, 4 * PAGE, ONE).unwrap();
            name(&range, TWO).unwrap();
            device(&allocator).launch(TWO, range.base(), PAGE).unwrap();
            range.release().unwrap();
            device(&allocator).complete(ONE);
            // The device refuses to unmap memory that unfinished work uses.
            allocator.process_events(DEVICE).unwrap();
            assert_eq!(allocator.stats(DEVICE).map(|stats| stats.leaked_bytes()), Ok(0), "`{config}`");
            assert_eq!(device(&allocator).outstanding().mappings, 0, "`{config}`");
            allocator.check_invariants().unwrap();
        }
    }
}

#[test]
fn a_range_of_ended_streams_alone_is_released_behind_their_work() {
    let allocator = allocator("");
    let range = reserve(&allocator, 10);
    for stream in [ONE, TWO] {
        range.commit(stream.0 * PAGE, PAGE, stream).unwrap();
        allocator.stream_destroyed(DEVICE, stream).unwrap();
    }
    range.release().unwrap();
    assert_eq!(device(&allocator).outstanding().reservations, 1);
    device(&allocator).complete(TWO);
    allocator.process_events(DEVICE).unwrap();
    assert_eq!(device(&allocator).outstanding().reservations, 0);
    allocator.empty_cache(DEVICE).unwrap();
    assert_eq!((device(&allocator).used(), waits(&allocator)), (0, 0));
}

#[test]
fn during_a_capture_only_quiet_memory_is_committed_and_nothing_is_given_up() {
    let allocator = allocator("");
    let (range, other) = (reserve(&allocator, 10), reserve(&allocator, 10));
    range.commit(0, 2 * PAGE, ONE).unwrap();
    range.decommit(0, PAGE, ONE).unwrap();
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(TWO), RoutePurpose::Capture).unwrap();
    assert_eq!(range.decommit(PAGE, PAGE, ONE), Err(in_capture()));
    assert_eq!(range.commit(0, PAGE, ONE), Err(in_capture()), "work may still use the page");
    assert_eq!(range.committed_bytes(), Ok(PAGE));
    let created = device(&allocator).calls(Call::Create);
    other.commit(0, PAGE, TWO).unwrap();
    assert_eq!(device(&allocator).calls(Call::Create), created + 1, "the departed page is not quiet");
    let (range, error) = range.release().unwrap_err();
    assert_eq!((error, range.committed_bytes()), (in_capture(), Ok(PAGE)));
    device(&allocator).complete(ONE);
    range.commit(0, PAGE, ONE).unwrap();
    allocator.stream_destroyed(DEVICE, ONE).unwrap();
    assert_eq!(device(&allocator).calls(Call::Synchronize), 1, "no event may be recorded");
    allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
    range.release().unwrap();
    allocator.check_invariants().unwrap();
}

#[test]
fn a_full_table_leaves_a_range_as_it_was() {
    type Small = In<Fixed<2, 4, 8, 64>>;
    let allocator = Small::new([SimulatedDevice::new(CAPACITY)], &Config::default()).unwrap();
    let range = Range::reserve(&allocator, DEVICE, 64 * PAGE).unwrap();
    range.commit(0, 6 * PAGE, ONE).unwrap();
    let failed = range.commit(0, 12 * PAGE, ONE);
    assert!(matches!(failed, Err(Error::TableFull(_))), "{failed:?}");
    allocator.check_invariants().unwrap();
    assert_eq!(range.committed_bytes(), Ok(6 * PAGE));
    range.commit(6 * PAGE, 2 * PAGE, ONE).unwrap();
    for stream in 0..16 {
        let decommitted = range.decommit(stream % 8 * PAGE, PAGE, StreamId(stream));
        assert!(matches!(decommitted, Ok(()) | Err(Error::TableFull(_))), "{decommitted:?}");
        allocator.check_invariants().unwrap();
    }
    let reserved: std::vec::Vec<_> = (0..8).map_while(|_| Range::reserve(&allocator, DEVICE, PAGE).ok()).collect();
    assert_eq!((reserved.len(), device(&allocator).outstanding().reservations), (7, 8));
}

#[test]
fn threads_may_share_a_range() {
    let allocator = allocator("policy:stitched");
    allocator.settings(DEVICE).unwrap().set_limit(Some(128 * MIB));
    let range = reserve(&allocator, 32);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (allocator, range) = (&allocator, &range);
            scope.spawn(move || {
                let stream = StreamId(thread);
                for step in 0..200 {
                    let page = (step * 7 + thread * 5) % 30;
                    range.commit(page * PAGE, 2 * PAGE, stream).unwrap();
                    let block = allocator.malloc(DEVICE, (page + 1) * MIB, stream).unwrap();
                    range.decommit(page * PAGE, 2 * PAGE, stream).unwrap();
                    allocator.free(block).unwrap();
                    device(allocator).complete(stream);
                }
            });
        }
    });
    allocator.check_invariants().unwrap();
    range.decommit(0, 32 * PAGE, ONE).unwrap();
    drop(range);
    allocator.empty_cache(DEVICE).unwrap();
    assert_eq!(device(&allocator).used(), 0);
}

#[test]
fn a_forecast_knows_that_given_up_pages_make_room() {
    let configs = ["", "expandable_segments:True", "policy:stitched", "policy:bfc", "policy:first_fit"];
    let more = ["policy:small_first_fit", "policy:direct", "policy:planned", "compact:0.05"];
    for config in configs.into_iter().chain(more) {
        // Pages of unfinished work, pages of finished work, and spare ones.
        for (is_done, is_collected) in [(false, false), (true, false), (true, true)] {
            let allocator = allocator(config);
            allocator.settings(DEVICE).unwrap().set_limit(Some(64 * MIB));
            let range = reserve(&allocator, 32);
            range.commit(0, 32 * PAGE, ONE).unwrap();
            range.decommit(0, 32 * PAGE, ONE).unwrap();
            if is_done {
                device(&allocator).complete(ONE);
            }
            if is_collected {
                allocator.process_events(DEVICE).unwrap();
            }
            let told = allocator.forecast(DEVICE).unwrap().malloc(20 * MIB, TWO).unwrap();
            let size = [20 * MIB];
            let fit = allocator.forecast(DEVICE).unwrap().would_fit(&size, TWO).unwrap();
            assert_eq!(fit.served, 1, "`{config}`, {is_done}, {is_collected}");
            allocator.malloc(DEVICE, 20 * MIB, TWO).unwrap();
            let grows = matches!(told, Forecast::Obtain(_) | Forecast::Expand);
            assert!(grows, "`{config}`, {is_done}, {is_collected}: {told:?}");
            allocator.check_invariants().unwrap();
            let more = 60 * MIB;
            let told = allocator.forecast(DEVICE).unwrap().malloc(more, TWO);
            assert_eq!(told, Ok(Forecast::OutOfMemory), "`{config}`");
            assert!(matches!(allocator.malloc(DEVICE, more, TWO), Err(Error::OutOfMemory(_))));
        }
    }
}
