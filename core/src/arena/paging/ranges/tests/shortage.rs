//! Commits for which there is not enough memory, and the work that their pages wait for.

use super::*;
use crate::device::Segments;
use crate::tests::altered::{self, AlteredDevice, Change};

const THREE: StreamId = StreamId(3);

fn limited(config: &str, bytes: u64) -> Simulated {
    let allocator = allocator(config);
    allocator.settings(DEVICE).unwrap().set_limit(Some(bytes));
    allocator
}

/// Allocates a block on stream ONE, and frees it.
fn cache(allocator: &Simulated, bytes: u64) {
    let block = allocator.malloc(DEVICE, bytes, ONE).unwrap();
    allocator.free(block).unwrap();
}

#[test]
fn a_commit_short_of_memory_during_a_capture_neither_waits_nor_takes_free_memory() {
    for config in ["", "policy:stitched"] {
        for is_announced in [true, false] {
            let allocator = limited(config, 64 * MIB);
            cache(&allocator, 40 * MIB);
            let range = reserve(&allocator, 64);
            let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
            if is_announced {
                allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(TWO), RoutePurpose::Capture).unwrap();
            } else {
                device(&allocator).set_capturing(ONE, true);
            }
            let failed = range.commit(0, 20 * PAGE, ONE);
            let Err(Error::OutOfMemory(report)) = failed else { panic!("`{config}`: {failed:?}") };
            assert!(report.capturing && waits(&allocator) == 0, "`{config}`, {is_announced}");
            assert_eq!(device(&allocator).used(), 40 * MIB, "`{config}`, {is_announced}: the cache stays");
            if is_announced {
                allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
            } else {
                device(&allocator).set_capturing(ONE, false);
            }
            range.commit(0, 20 * PAGE, ONE).unwrap();
            allocator.check_invariants().unwrap();
        }
    }
}

#[test]
fn a_host_that_frees_nothing_makes_no_room_for_a_commit() {
    let device = AlteredDevice::new(16 * MIB, Change::ClaimsToFree);
    let allocator = altered::Allocator::new([device], &Config::default()).unwrap();
    let range = allocator.ranges(DEVICE).unwrap().reserve(64 * PAGE).unwrap().range;
    let failed = allocator.ranges(DEVICE).unwrap().commit(range, 0, 20 * PAGE, ONE);
    assert!(matches!(failed, Err(Error::OutOfMemory(_))), "{failed:?}");
    assert_eq!(allocator.ranges(DEVICE).unwrap().committed_bytes(range), Ok(0));
}

#[test]
fn pages_that_a_failed_commit_had_taken_back_serve_others() {
    let allocator = limited("", 64 * MIB);
    let (range, other) = (reserve(&allocator, 64), reserve(&allocator, 64));
    range.commit(0, 4 * PAGE, ONE).unwrap();
    range.decommit(0, 4 * PAGE, ONE).unwrap();
    assert!(matches!(range.commit(0, 40 * PAGE, ONE), Err(Error::OutOfMemory(_))));
    allocator.check_invariants().unwrap();
    other.commit(0, 32 * PAGE, TWO).unwrap();
    assert_eq!((device(&allocator).used(), other.committed_bytes()), (64 * MIB, Ok(64 * MIB)));
    allocator.check_invariants().unwrap();
}

#[test]
fn the_work_before_every_decommit_is_waited_for_and_an_error_ends_the_wait() {
    let allocator = limited("", 16 * PAGE);
    let range = reserve(&allocator, 16);
    range.commit(0, 16 * PAGE, ONE).unwrap();
    for (page, stream) in [(0, ONE), (4, ONE), (8, TWO), (12, ONE)] {
        range.decommit(page * PAGE, 4 * PAGE, stream).unwrap();
    }
    let error = DeviceError::new(ErrorKind::Other, 5);
    device(&allocator).fail(Failure { call: Call::Wait, nth: 1, persistent: true, error });
    assert_eq!(allocator.malloc(DEVICE, 16 * PAGE, THREE), Err(Error::Device(error)));
    device(&allocator).clear_failures();
    // A segment as large as the limit, so no page may be left.
    allocator.malloc(DEVICE, 16 * PAGE, THREE).unwrap();
    assert_eq!(device(&allocator).outstanding().handles, 0);
    allocator.check_invariants().unwrap();
}

#[test]
fn a_stream_is_ordered_behind_each_departure_of_its_pages_once() {
    let allocator = allocator("");
    let (first, second) = (reserve(&allocator, 16), reserve(&allocator, 16));
    first.commit(0, 8 * PAGE, ONE).unwrap();
    let orders = || device(&allocator).calls(Call::OrderBehind);
    first.decommit(0, PAGE, ONE).unwrap();
    second.commit(0, PAGE, TWO).unwrap();
    assert_eq!(orders(), 1, "a single page");
    first.decommit(PAGE, 2 * PAGE, ONE).unwrap();
    first.decommit(3 * PAGE, 2 * PAGE, THREE).unwrap();
    second.commit(PAGE, 4 * PAGE, TWO).unwrap();
    assert_eq!((orders(), device(&allocator).calls(Call::Create)), (3, 8), "two pages of each of two departures");
}

#[test]
fn work_of_a_stream_that_may_have_gone_is_waited_for_before_a_release() {
    let of_device = SimulatedDevice::new(CAPACITY).with_unreported_ends();
    let allocator = Simulated::new([of_device], &Config::default()).unwrap();
    let range = reserve(&allocator, 8);
    for stream in [ONE, TWO] {
        range.commit(stream.0 * PAGE, PAGE, stream).unwrap();
        device(&allocator).launch(stream, range.base().offset(stream.0 * PAGE), PAGE).unwrap();
        device(&allocator).let_go(stream);
    }
    range.release().unwrap();
    assert_eq!(device(&allocator).calls(Call::Synchronize), 2);
    allocator.process_events(DEVICE).unwrap();
    assert_eq!(
        (device(&allocator).outstanding().mappings, allocator.stats(DEVICE).map(|stats| stats.leaked_bytes())),
        (0, Ok(0))
    );
    allocator.check_invariants().unwrap();
}

#[test]
fn ended_streams_leave_no_departure_behind() {
    let allocator = allocator("");
    let range = reserve(&allocator, 8);
    let streams = || (1..7).map(StreamId);
    for stream in streams() {
        range.commit(stream.0 * PAGE, PAGE, stream).unwrap();
        allocator.stream_destroyed(DEVICE, stream).unwrap();
    }
    range.release().unwrap();
    streams().for_each(|stream| device(&allocator).complete(stream));
    allocator.process_events(DEVICE).unwrap();
    assert_eq!(device(&allocator).outstanding().reservations, 0);
    assert!(!allocator.arena(DEVICE).unwrap().paging.pool.lock().departures.has_pages());
}

#[test]
fn under_stitched_a_commit_takes_new_memory_within_the_limit_and_free_pages_beyond() {
    let allocator = limited("policy:stitched", 64 * MIB);
    cache(&allocator, 20 * MIB);
    let range = reserve(&allocator, 64);
    range.commit(0, 10 * PAGE, ONE).unwrap();
    assert_eq!(device(&allocator).used(), 40 * MIB, "the cache stays in its heap");
    range.commit(10 * PAGE, 20 * PAGE, ONE).unwrap();
    assert_eq!((device(&allocator).used(), range.committed_bytes()), (64 * MIB, Ok(60 * MIB)));
    allocator.check_invariants().unwrap();
}

#[test]
fn where_the_device_has_less_than_the_budget_allows_free_pages_fill_the_rest() {
    let of_device = SimulatedDevice::new(100 * MIB);
    let allocator = Simulated::new([of_device], &Config::parse("policy:stitched").unwrap()).unwrap();
    cache(&allocator, 64 * MIB);
    allocator.trim(DEVICE, 0).unwrap();
    cache(&allocator, 40 * MIB);
    // The memory of another program.
    Segments::obtain(device(&allocator), 50 * MIB).unwrap();
    let range = reserve(&allocator, 64);
    range.commit(0, 20 * PAGE, ONE).unwrap();
    assert_eq!((range.committed_bytes(), counted(&allocator).0), (Ok(20 * PAGE), 20 * PAGE as i64));
    allocator.check_invariants().unwrap();
}
