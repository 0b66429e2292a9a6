//! Which part of a target is parked, which calls a park makes, and what is reported afterwards.

use super::*;
use crate::device::Segments;
use crate::tests::altered::{self, AlteredDevice, Change};

#[test]
fn a_stream_parks_whichever_of_its_heaps_has_memory() {
    for policy in ["expandable_segments:True", "policy:stitched"] {
        // Bytes of blocks, and MiB parked: the small heap alone, the large one alone, both, none.
        for (sizes, parked) in [(&[512][..], 2), (&[20 * MIB], 20), (&[512, 20 * MIB], 22), (&[], 0)] {
            let allocator = allocator(policy);
            let passing = allocator.malloc(DEVICE, 40 * MIB, ONE).unwrap();
            allocator.free(passing).unwrap();
            allocator.empty_cache(DEVICE).unwrap();
            sizes.iter().for_each(|&bytes| _ = allocator.malloc(DEVICE, bytes, ONE).unwrap());
            let parking = allocator.parking(DEVICE).unwrap();
            parking.park(ParkTarget::Streams, ParkMode::Keep, ParkOrder::Streams).unwrap();
            check(&allocator);
            let report = parking.report(ParkTarget::Streams).unwrap();
            assert_eq!((report.parked / MIB, device(&allocator).used()), (parked, 0), "`{policy}`, {sizes:?}");
            assert_eq!(device(&allocator).prepared(), None, "no further contents are kept");
            parking.wake(ParkTarget::Streams).unwrap();
            assert_eq!(device(&allocator).used() / MIB, parked, "`{policy}`, {sizes:?}");
        }
    }
}

#[test]
fn what_a_stream_has_lent_to_another_parks_with_both() {
    let allocator = allocator("policy:stitched,slack:0");
    let blocks = [41, 21, 41].map(|mib| allocator.malloc(DEVICE, mib * MIB + 512, ONE).unwrap());
    allocator.free(blocks[1]).unwrap();
    let lent = allocator.malloc(DEVICE, 20 * MIB, TWO).unwrap();
    assert!((blocks[0]..blocks[2]).contains(&lent), "it is lent");
    assert!(device(&allocator).write(lent, 5));
    let parking = allocator.parking(DEVICE).unwrap();
    parking.park(ParkTarget::Streams, ParkMode::Keep, ParkOrder::Streams).unwrap();
    check(&allocator);
    assert_eq!(device(&allocator).used(), 0);
    parking.wake(ParkTarget::Streams).unwrap();
    assert_eq!(device(&allocator).read(lent), Some(5));
}

#[test]
fn a_pool_that_serves_others_on_oom_does_not_while_its_memory_is_parked_or_lent() {
    for policy in ["expandable_segments:True", "policy:stitched"] {
        for lends in [false, true] {
            let allocator = allocator(policy);
            let pools = allocator.pools(DEVICE).unwrap();
            let pool = pools.create(PoolOptions { use_on_oom: true, ..PoolOptions::default() }).unwrap();
            let parking = allocator.parking(DEVICE).unwrap();
            parking.tag_pool(pool, Some(TAG)).unwrap();
            let block = malloc_in(&allocator, pool, 200, ONE).unwrap();
            if lends {
                allocator.free(block).unwrap();
                parking.lend(TARGET).unwrap();
            } else {
                park(&allocator, ParkMode::Drop).unwrap();
                allocator.free(block).unwrap();
            }
            let _live = allocator.malloc(DEVICE, 400 * MIB, ONE).unwrap();
            let refused = allocator.malloc(DEVICE, 150 * MIB, ONE);
            assert!(matches!(refused, Err(Error::OutOfMemory(_))), "`{policy}`, {lends}: {refused:?}");
            check(&allocator);
        }
    }
}

#[test]
fn the_work_of_an_ended_stream_is_waited_for_with_all_work() {
    for (ended, calls) in [(false, (0, 1)), (true, (1, 0))] {
        let allocator = allocator("");
        let pool = tagged(&allocator);
        let block = malloc_in(&allocator, pool, 40, ONE).unwrap();
        device(&allocator).launch(ONE, block, MIB).unwrap();
        if ended {
            allocator.stream_destroyed(DEVICE, ONE).unwrap();
        }
        let device = device(&allocator);
        allocator.parking(DEVICE).unwrap().park(TARGET, ParkMode::Keep, ParkOrder::Streams).unwrap();
        let waits = (device.calls(Call::SynchronizeAll), device.calls(Call::Synchronize).min(1));
        assert_eq!((waits, device.used()), (calls, 0), "ended: {ended}");
    }
}

#[test]
fn pending_blocks_are_waited_for_and_none_makes_no_call() {
    for is_pending in [false, true] {
        let allocator = allocator("");
        let pool = tagged(&allocator);
        let [kept, freed] = [(); 2].map(|()| malloc_in(&allocator, pool, 40, ONE).unwrap());
        if is_pending {
            allocator.record_stream(freed, TWO).unwrap();
            device(&allocator).launch(TWO, freed, MIB).unwrap();
        }
        allocator.free(freed).unwrap();
        device(&allocator).write(kept, 3);
        allocator.parking(DEVICE).unwrap().park(TARGET, ParkMode::Keep, ParkOrder::Streams).unwrap();
        check(&allocator);
        let stats = allocator.stats(DEVICE).unwrap().totals();
        assert_eq!(stats.get("num_sync_all_streams"), Some(i64::from(is_pending)));
        assert_eq!(stats.active_bytes().current, 40 * MIB as i64);
        assert_eq!(device(&allocator).used(), 0);
    }
}

#[test]
fn a_host_that_keeps_no_contents_parks_what_may_be_dropped() {
    let config = Config::parse("expandable_segments:True").unwrap();
    let allocator = altered::Allocator::new([AlteredDevice::new(CAPACITY, Change::KeepsNothing)], &config).unwrap();
    let device = &allocator.device(DEVICE).unwrap().inner;
    allocator.malloc(DEVICE, 40 * MIB, ONE).unwrap();
    let parking = allocator.parking(DEVICE).unwrap();
    for mode in [ParkMode::Keep, ParkMode::Zero] {
        let refused = parking.park(ParkTarget::Streams, mode, ParkOrder::Device);
        assert_eq!(refused, Err(Error::ParkingRefused("the host keeps no contents of memory")));
        assert_eq!((device.used(), device.calls(Call::SynchronizeAll)), (40 * MIB, 0), "refused before any wait");
    }
    parking.park(ParkTarget::Streams, ParkMode::Drop, ParkOrder::Device).unwrap();
    assert_eq!(device.used(), 0);
    parking.wake(ParkTarget::Streams).unwrap();
    assert_eq!(device.used(), 40 * MIB);
}

#[test]
fn what_remains_on_the_device_is_told_by_name() {
    let allocator = allocator("policy:stitched");
    let parking = allocator.parking(DEVICE).unwrap();
    // The memory of another program.
    Segments::obtain(device(&allocator), 50 * MIB).unwrap();
    let [_live, pending, cached] = [40, 20, 30].map(|mib| allocator.malloc(DEVICE, mib * MIB, ONE).unwrap());
    allocator.record_stream(pending, TWO).unwrap();
    [pending, cached].into_iter().for_each(|block| allocator.free(block).unwrap());
    let range = allocator.ranges(DEVICE).unwrap().reserve(20 * MIB).unwrap().range;
    allocator.ranges(DEVICE).unwrap().commit(range, 0, 20 * MIB, ONE).unwrap();
    allocator.ranges(DEVICE).unwrap().decommit(range, 0, 20 * MIB, ONE).unwrap();
    let told = || {
        let remaining = parking.remaining().unwrap();
        assert_eq!(remaining.used, device(&allocator).used());
        let held = remaining.blocks + remaining.pending + remaining.cached + remaining.spare + remaining.leaked;
        assert_eq!(held + remaining.other, remaining.used);
        [remaining.blocks, remaining.pending, remaining.cached, remaining.spare, remaining.leaked, remaining.other]
            .map(|bytes| bytes / MIB)
    };
    // The commit took free pages for the part beyond the budget.
    assert_eq!(told(), [40, 20, 10, 20, 0, 50]);
    let error = DeviceError::new(ErrorKind::Other, 7);
    let nth = device(&allocator).calls(Call::Unmap) + 1;
    device(&allocator).fail(Failure { call: Call::Unmap, nth, persistent: false, error });
    device(&allocator).complete(ONE);
    device(&allocator).complete(TWO);
    allocator.process_events(DEVICE).unwrap();
    let after = told();
    assert_eq!((after[0], after[1], after[5]), (40, 0, 50));
    assert!(after[4] > 0, "a page could not be unmapped");
}

#[test]
fn only_a_capture_excuses_a_wake_from_waiting_for_memory_beyond_the_budget() {
    for (kind, is_refused) in [(ErrorKind::NotPermittedInCapture, false), (ErrorKind::Other, true)] {
        let config = Config::parse("policy:stitched,slack:0").unwrap();
        let allocator = Simulated::new([SimulatedDevice::new(16 * CAPACITY)], &config).unwrap();
        let pool = tagged(&allocator);
        let _weights = malloc_in(&allocator, pool, 200, ONE).unwrap();
        park(&allocator, ParkMode::Keep).unwrap();
        // Free, but used by unfinished work. It is beyond the budget once the pool is awake.
        let block = allocator.malloc(DEVICE, 200 * MIB, TWO).unwrap();
        allocator.free(block).unwrap();
        let nth = device(&allocator).calls(Call::Synchronize) + 1;
        let error = DeviceError::new(kind, 7);
        device(&allocator).fail(Failure { call: Call::Synchronize, nth, persistent: false, error });
        let woken = allocator.parking(DEVICE).unwrap().wake(TARGET);
        assert_eq!(device(&allocator).calls(Call::Synchronize), nth, "it was asked");
        assert_eq!(woken, if is_refused { Err(Error::Device(error)) } else { Ok(()) });
        check(&allocator);
    }
}

#[test]
fn after_a_failure_only_a_park_without_contents_goes_on() {
    for mode in [ParkMode::Keep, ParkMode::Drop] {
        let allocator = allocator("expandable_segments:True");
        let pool = tagged(&allocator);
        malloc_in(&allocator, pool, 500, ONE).unwrap();
        let pages = device(&allocator).outstanding().handles as u64;
        let error = DeviceError::new(ErrorKind::Other, 7);
        device(&allocator).fail(Failure { call: Call::Unmap, nth: 1, persistent: false, error });
        assert_eq!(park(&allocator, mode), Err(Error::Device(error)));
        let unmapped = device(&allocator).calls(Call::Unmap);
        if mode == ParkMode::Keep {
            assert!(unmapped < pages, "{unmapped} of {pages}");
            assert_eq!(report(&allocator).state, ParkState::Awake);
        } else {
            assert_eq!((unmapped, device(&allocator).outstanding().handles), (pages, 1));
        }
    }
}

#[test]
fn a_park_waits_for_the_copies_that_a_failed_wake_has_left() {
    for policy in POLICIES {
        let allocator = allocator(policy);
        let pool = tagged(&allocator);
        let before = contents(&allocator, &fill(&allocator, pool));
        park(&allocator, ParkMode::Keep).unwrap();
        let error = DeviceError::new(ErrorKind::Other, 7);
        for (call, ahead, persistent) in [(Call::Create, 3, false), (Call::Finish, 1, true)] {
            let nth = device(&allocator).calls(call) + ahead;
            device(&allocator).fail(Failure { call, nth, persistent, error });
        }
        wake(&allocator).unwrap_err();
        device(&allocator).clear_failures();
        assert!(report(&allocator).mapped > 0, "`{policy}`: copies may be in progress");
        park(&allocator, ParkMode::Keep).unwrap();
        assert_eq!(device(&allocator).used(), 0, "`{policy}`");
        wake(&allocator).unwrap();
        assert_kept(&allocator, &before);
    }
}
