//! The allocator from outside, on the simulated device.

use crate::allocator::Allocator;
use crate::arena::request::Forecast;
use crate::config::Config;
use crate::config::rounding::PoolKind;
use crate::device::simulated::{Failure, SimulatedDevice};
use crate::device::{Call, DeviceError, ErrorKind, Segments};
use crate::error::{Error, PointerFault};
use crate::pool::{PoolId, PoolOptions, Route, RoutePurpose};
use crate::tables::Growable;
use crate::tests::altered::{self, AlteredDevice, Change};
use crate::tests::own::parse;
use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
use std::vec::Vec;

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

const DEVICE: DeviceIndex = DeviceIndex(0);
const STREAM: StreamId = StreamId(0);
const OTHER: StreamId = StreamId(7);

fn allocator(config: &str) -> Simulated {
    Allocator::new([SimulatedDevice::new(1 << 30)], &parse(config)).unwrap()
}

fn malloc_mib(allocator: &Simulated, mib: u64) -> DevicePtr {
    allocator.malloc(DEVICE, mib * MIB, STREAM).unwrap()
}

fn stat(allocator: &Simulated, key: &str) -> i64 {
    allocator.stats(DEVICE).unwrap().totals().get(key).unwrap()
}

#[test]
fn an_oversize_block_serves_no_smaller_request_however_little_is_lost() {
    let allocator = allocator("max_split_size_mb:100");
    let oversize = allocator.malloc(DEVICE, 100 * MIB, STREAM).unwrap();
    allocator.free(oversize).unwrap();
    let below = allocator.malloc(DEVICE, 98 * MIB, STREAM).unwrap();
    assert_ne!(below, oversize);
    assert_eq!(allocator.malloc(DEVICE, 100 * MIB, STREAM), Ok(oversize));
}

#[test]
fn the_name_of_a_pool_is_chosen_once() {
    let allocator = allocator("");
    let mut names = std::vec::Vec::new();
    for _ in 0..3 {
        let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
        assert!(!names.contains(&pool), "{pool:?} was the name of a pool that has gone");
        names.push(pool);
        allocator.pools(DEVICE).unwrap().release(pool).unwrap();
    }
    // The program's own names are not chosen, either.
    allocator.pools(DEVICE).unwrap().retain(PoolId(0, 9), PoolOptions::default()).unwrap();
    allocator.pools(DEVICE).unwrap().release(PoolId(0, 9)).unwrap();
    assert_eq!(allocator.pools(DEVICE).unwrap().create(PoolOptions::default()), Ok(PoolId(0, 10)));
}

#[test]
fn a_report_of_lacking_memory_names_the_device_and_what_its_settings_allow() {
    for (policy, expands) in [("caching", true), ("direct", false)] {
        let config = Config::parse(&std::format!("policy:{policy}")).unwrap();
        let devices = [SimulatedDevice::new(1 << 30), SimulatedDevice::new(1 << 30)];
        let allocator: Simulated = Allocator::new(devices, &config).unwrap();
        let second = DeviceIndex(1);
        let kept = allocator.malloc(second, 300 * MIB, STREAM).unwrap();
        let refused = allocator.malloc(second, 2 << 30, STREAM);
        let Err(Error::OutOfMemory(report)) = refused else { panic!("{policy}: {refused:?}") };
        assert_eq!((report.device, report.expandable_available), (second, expands), "{policy}");
        assert_eq!((report.requested, report.allocated), (2 << 30, 300 * MIB), "{policy}");
        allocator.free(kept).unwrap();
    }
}

#[test]
fn a_report_of_lacking_memory_tells_what_private_pools_keep() {
    let allocator = allocator("");
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Requests).unwrap();
    let [kept, freed] = [60 * MIB, 30 * MIB].map(|bytes| allocator.malloc(DEVICE, bytes, STREAM).unwrap());
    allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Requests).unwrap();
    allocator.free(freed).unwrap();
    let refused = |bytes| match allocator.malloc(DEVICE, bytes, STREAM) {
        Err(Error::OutOfMemory(report)) => report,
        other => panic!("{other:?}"),
    };
    let report = refused(950 * MIB);
    assert_eq!((report.allocated, report.reserved, report.private_free), (60 * MIB, 90 * MIB, 30 * MIB));
    assert_eq!((report.pending, report.largest_free, report.largest_free_elsewhere), (0, 0, 30 * MIB));
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Requests).unwrap();
    let report = refused(950 * MIB);
    assert_eq!((report.largest_free, report.largest_free_elsewhere), (30 * MIB, 0), "the request is one of the pool");
    allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Requests).unwrap();
    allocator.free(kept).unwrap();
}

#[test]
fn counts_of_segments_and_of_second_attempts_are_those_of_the_program() {
    let allocator = allocator("");
    let blocks = [400 * MIB, 500 * MIB].map(|bytes| allocator.malloc(DEVICE, bytes, STREAM).unwrap());
    let counts = || {
        let stats = allocator.stats(DEVICE).unwrap().totals();
        (stats.segments().current, stats.segments().peak, stats.alloc_retries(), stats.ooms())
    };
    assert_eq!(counts(), (2, 2, 0, 0));
    blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    // Fits once the cache has gone back to the device.
    let block = allocator.malloc(DEVICE, 900 * MIB, STREAM).unwrap();
    assert_eq!(counts(), (1, 2, 1, 0));
    allocator.malloc(DEVICE, 900 * MIB, STREAM).unwrap_err();
    assert_eq!(counts(), (1, 2, 2, 1));
    allocator.free(block).unwrap();
}

#[test]
fn a_freed_block_is_reused_at_once() {
    let allocator = allocator("");
    let first = allocator.malloc(DEVICE, 1000, STREAM).unwrap();
    allocator.free(first).unwrap();
    assert_eq!(allocator.malloc(DEVICE, 700, STREAM), Ok(first));
    assert_eq!(stat(&allocator, "num_device_alloc"), 1);
    assert_eq!(stat(&allocator, "allocated_bytes.all.peak"), 1024);
    assert_eq!(stat(&allocator, "requested_bytes.all.current"), 700);
    allocator.check_invariants().unwrap();
}

#[test]
fn another_stream_does_not_get_it() {
    let allocator = allocator("");
    let first = allocator.malloc(DEVICE, 1000, STREAM).unwrap();
    allocator.free(first).unwrap();
    assert_ne!(allocator.malloc(DEVICE, 1000, OTHER), Ok(first));
}

#[test]
fn a_recorded_stream_holds_the_block_back() {
    let allocator = allocator("");
    let first = allocator.malloc(DEVICE, 5 * MIB, STREAM).unwrap();
    allocator.record_stream(first, OTHER).unwrap();
    allocator.free(first).unwrap();
    let second = allocator.malloc(DEVICE, 5 * MIB, STREAM).unwrap();
    assert_ne!(second, first);
    assert_eq!(stat(&allocator, "active.all.current"), 2);
    allocator.device(DEVICE).unwrap().complete(OTHER);
    assert_eq!(allocator.malloc(DEVICE, 5 * MIB, STREAM), Ok(first));
    allocator.check_invariants().unwrap();
}

#[test]
fn what_is_not_held_cannot_be_freed() {
    let allocator = allocator("");
    let ptr = allocator.malloc(DEVICE, 1000, STREAM).unwrap();
    let interior = PointerFault::Interior { block: ptr, requested: 1000 };
    for (wrong, fault) in [
        (DevicePtr(1), PointerFault::Foreign),
        (ptr.offset(512), interior),
        (ptr.offset(1023), interior),
        (ptr.offset(1024), PointerFault::Free),
        (ptr.offset(1 << 40), PointerFault::Foreign),
        (DevicePtr(u64::MAX), PointerFault::Foreign),
    ] {
        assert_eq!(allocator.free(wrong), Err(Error::InvalidPointer { ptr: wrong, fault }));
    }
    assert!(matches!(allocator.free_sized(ptr, 999), Err(Error::WrongSize { given: 999, requested: 1000, .. })));
    allocator.free_sized(ptr, 1000).unwrap();
    assert_eq!(allocator.free(ptr), Err(Error::InvalidPointer { ptr, fault: PointerFault::Free }));
    allocator.free(DevicePtr::NULL).unwrap();
}

/// Every policy stores blocks differently, and recognises a wrong address differently in every
/// operation.
#[test]
fn double_frees_interior_and_foreign_addresses_are_told_apart() {
    for config in
        ["", "expandable_segments:True", "policy:bfc", "policy:first_fit", "policy:small_first_fit", "policy:planned"]
    {
        let allocator = allocator(config);
        let operations: [&dyn Fn(DevicePtr) -> Result<(), Error>; 4] = [
            &|ptr| allocator.free(ptr),
            &|ptr| allocator.free_sized(ptr, 3000),
            &|ptr| allocator.free_at(ptr, 9),
            &|ptr| allocator.record_stream(ptr, OTHER),
        ];
        let expect = |ptr, fault| {
            for operation in operations {
                assert_eq!(operation(ptr), Err(Error::InvalidPointer { ptr, fault }), "`{config}`");
            }
        };
        let [live, freed, pending] = [0; 3].map(|_| allocator.malloc(DEVICE, 3000, STREAM).unwrap());
        expect(live.offset(2999), PointerFault::Interior { block: live, requested: 3000 });
        expect(DevicePtr(7), PointerFault::Foreign);
        allocator.free(freed).unwrap();
        expect(freed, PointerFault::Free);
        assert_eq!(
            allocator.base_of(freed),
            Err(Error::InvalidPointer { ptr: freed, fault: PointerFault::Free }),
            "`{config}`"
        );
        allocator.record_stream(pending, OTHER).unwrap();
        allocator.free(pending).unwrap();
        expect(pending, PointerFault::Pending);
        allocator.free(live).unwrap();
        allocator.device(DEVICE).unwrap().complete(OTHER);
        allocator.empty_cache(DEVICE).unwrap();
        expect(live, PointerFault::Foreign);
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn the_text_says_what_lies_at_an_address() {
    let ptr = DevicePtr(0x1008);
    for (fault, text) in [
        (
            PointerFault::Foreign,
            "invalid device pointer: 0x1008 lies in no segment of this allocator: it belongs to another allocator, \
             or was freed and its memory returned to the device",
        ),
        (
            PointerFault::Free,
            "invalid device pointer: 0x1008 lies in free memory: its block was freed before, or never allocated",
        ),
        (
            PointerFault::Pending,
            "invalid device pointer: 0x1008 lies in a block that was freed before and still waits for streams or \
             the safe frontier",
        ),
        (
            PointerFault::Interior { block: DevicePtr(0x1000), requested: 1000 },
            "invalid device pointer: 0x1008 lies 8 bytes into the live block of 1000 bytes at 0x1000",
        ),
    ] {
        assert_eq!(std::format!("{}", Error::InvalidPointer { ptr, fault }), text);
    }
}

#[test]
fn a_block_waiting_for_an_event_is_found_before_memory_runs_out() {
    let allocator = allocator("");
    let half = allocator.malloc(DEVICE, 600 * MIB, STREAM).unwrap();
    allocator.record_stream(half, OTHER).unwrap();
    allocator.free(half).unwrap();
    assert_eq!(allocator.malloc(DEVICE, 600 * MIB, STREAM), Ok(half));
    assert_eq!(stat(&allocator, "num_device_free"), 0);
    let error = allocator.malloc(DEVICE, 600 * MIB, STREAM).unwrap_err();
    let text = std::format!("{error}");
    assert!(
        text.starts_with("Device out of memory. Tried to allocate 600 MiB on device 0, which has 424 MiB"),
        "{text}"
    );
    let text = std::format!("{}", error.in_words_of_pytorch());
    assert!(
        text.starts_with("CUDA out of memory. Tried to allocate 600.00 MiB. GPU 0 has a total capacity of 1024.00 MiB"),
        "{text}"
    );
    allocator.check_invariants().unwrap();
}

#[test]
fn expandable_segments_grow_in_place_and_give_back() {
    let allocator = allocator("expandable_segments:True");
    let first = allocator.malloc(DEVICE, 30 * MIB, STREAM).unwrap();
    let second = allocator.malloc(DEVICE, 50 * MIB, STREAM).unwrap();
    assert_eq!(second, first.offset(30 * MIB));
    assert_eq!(stat(&allocator, "reserved_bytes.all.current"), 80 << 20);
    allocator.check_invariants().unwrap();
    allocator.free(first).unwrap();
    allocator.empty_cache(DEVICE).unwrap();
    assert_eq!(stat(&allocator, "reserved_bytes.all.current"), 60 << 20);
    allocator.check_invariants().unwrap();
    allocator.free(second).unwrap();
    allocator.empty_cache(DEVICE).unwrap();
    let device = allocator.device(DEVICE).unwrap();
    assert_eq!(device.outstanding(), crate::device::simulated::Outstanding::default());
    assert_eq!(device.memory_info().unwrap().free, 1 << 30);
    allocator.check_invariants().unwrap();
}

#[test]
fn the_highest_pool_number_leaves_names_for_others() {
    let allocator = allocator("");
    let highest = PoolId(0, u64::MAX);
    allocator.pools(DEVICE).unwrap().retain(highest, PoolOptions::default()).unwrap();
    let made = [0; 3].map(|_| allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap());
    assert!(made.iter().all(|&pool| pool != highest && pool != PoolId::DEFAULT));
    assert_eq!(std::collections::BTreeSet::from(made).len(), 3);
}

/// A case of generated programs: the memory stayed until the device had no memory left.
#[test]
fn a_stream_that_ends_inside_its_capture_gives_its_memory_back_later() {
    let allocator = allocator("expandable_segments:True");
    let ptr = allocator.malloc(DEVICE, 1000, OTHER).unwrap();
    allocator.free(ptr).unwrap();
    let device = allocator.device(DEVICE).unwrap();
    device.set_capturing(OTHER, true);
    allocator.stream_destroyed(DEVICE, OTHER).unwrap();
    assert_eq!(stat(&allocator, "reserved_bytes.all.current"), 2 * MIB as i64);
    device.set_capturing(OTHER, false);
    allocator.malloc(DEVICE, 20 * MIB, STREAM).unwrap();
    assert_eq!(stat(&allocator, "reserved_bytes.all.current"), 20 * MIB as i64);
    allocator.check_invariants().unwrap();
}

#[test]
fn the_reserved_number_is_no_stream_for_any_call() {
    const RESERVED: StreamId = StreamId(u64::MAX);
    for config in ["", "parity:False", "policy:stitched", "policy:planned"] {
        let allocator = allocator(config);
        let block = allocator.malloc(DEVICE, 1000, STREAM).unwrap();
        assert_eq!(allocator.malloc(DEVICE, 1000, RESERVED), Err(Error::InvalidStream), "{config}");
        assert_eq!(allocator.forecast(DEVICE).unwrap().malloc(1000, RESERVED), Err(Error::InvalidStream), "{config}");
        assert_eq!(allocator.record_stream(block, RESERVED), Err(Error::InvalidStream), "{config}");
        assert_eq!(allocator.record_use(block, RESERVED), Err(Error::InvalidStream), "{config}");
        assert_eq!(allocator.record_stream(DevicePtr::NULL, RESERVED), Ok(()), "{config}");
        assert_eq!(allocator.stream_destroyed(DEVICE, RESERVED), Ok(()), "{config}: it has no memory");
        allocator.free(block).unwrap();
        assert_eq!(allocator.malloc(DEVICE, 1000, STREAM), Ok(block), "{config}: no use was announced");
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn a_statistic_has_one_value_by_its_key_and_by_its_method() {
    let allocator = allocator("");
    let (first, second) = (malloc_mib(&allocator, 3), malloc_mib(&allocator, 40));
    allocator.record_stream(first, OTHER).unwrap();
    allocator.free(first).unwrap();
    allocator.free(second).unwrap();
    allocator.malloc(DEVICE, 100, STREAM).unwrap();
    allocator.malloc(DEVICE, 1 << 30, STREAM).unwrap_err();
    let stats = allocator.stats(DEVICE).unwrap().totals();
    for (name, counter) in [
        ("allocated_bytes", stats.allocated_bytes()),
        ("active_bytes", stats.active_bytes()),
        ("requested_bytes", stats.requested_bytes()),
        ("reserved_bytes", stats.reserved_bytes()),
        ("allocation", stats.allocations()),
        ("segment", stats.segments()),
    ] {
        let fields = [counter.current, counter.peak, counter.allocated, counter.freed];
        for (field, value) in ["current", "peak", "allocated", "freed"].into_iter().zip(fields) {
            assert_eq!(stats.get(&std::format!("{name}.all.{field}")), Some(value), "{name}.{field}");
        }
        assert!(counter.peak > 1 && counter.allocated > 1, "{name}: {counter:?}");
    }
    for (name, count) in [
        ("num_device_alloc", stats.device_allocs()),
        ("num_device_free", stats.device_frees()),
        ("num_ooms", stats.ooms()),
        ("num_alloc_retries", stats.alloc_retries()),
    ] {
        assert_eq!(stats.get(name), Some(count as i64), "{name}");
    }
    assert_eq!((stats.device_allocs(), stats.device_frees()), (3, 2));
    assert_eq!((stats.ooms(), stats.alloc_retries()), (1, 1));
    assert_eq!(stats.get("no key"), None);
}

#[test]
fn a_lost_context_is_told_without_a_call_of_the_device() {
    let allocator = allocator("");
    assert_eq!(allocator.health(DEVICE), Ok(()));
    let error = DeviceError::new(ErrorKind::ContextLost, 700);
    let device = allocator.device(DEVICE).unwrap();
    device.fail(Failure { call: Call::Obtain, nth: device.calls(Call::Obtain) + 1, persistent: false, error });
    assert_eq!(allocator.malloc(DEVICE, 512, STREAM), Err(Error::Device(error)));
    assert_eq!(allocator.health(DEVICE), Err(Error::Device(error)));
    assert_eq!(device.calls_after_loss(), 0);
}

#[test]
fn idle_events_are_destroyed_and_created_again_for_later_uses() {
    let allocator = allocator("");
    let device = allocator.device(DEVICE).unwrap();
    for created in 1..3 {
        let ptr = allocator.malloc(DEVICE, 512, STREAM).unwrap();
        allocator.record_stream(ptr, StreamId(9)).unwrap();
        allocator.free(ptr).unwrap();
        device.complete(StreamId(9));
        allocator.process_events(DEVICE).unwrap();
        assert_eq!([Call::CreateEvent, Call::DestroyEvent].map(|call| device.calls(call)), [created, created - 1]);
        allocator.destroy_idle_events(DEVICE).unwrap();
        assert_eq!(device.calls(Call::DestroyEvent), created);
    }
}

#[test]
fn private_pools_tell_the_bytes_of_each_kind() {
    let allocator = allocator("");
    allocator.malloc(DEVICE, 512, STREAM).unwrap();
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Requests).unwrap();
    [512, 3 * MIB].iter().for_each(|&bytes| _ = allocator.malloc(DEVICE, bytes, STREAM).unwrap());
    let mut told = Vec::new();
    allocator.pools(DEVICE).unwrap().reserved(|pool, kind, bytes| told.push((pool, kind, bytes)));
    told.retain(|&(.., bytes)| bytes > 0);
    told.sort_unstable();
    assert_eq!(told, [(pool, PoolKind::Small, 2 * MIB), (pool, PoolKind::Large, 20 * MIB)]);
}

#[test]
fn a_block_above_the_sub_allocator_s_largest_shares_a_segment_of_large_blocks() {
    let allocator = allocator("policy:small_first_fit");
    let block = malloc_mib(&allocator, 1);
    assert_eq!(allocator.base_of(block).unwrap().segment_bytes, 20 * MIB);
}

#[test]
fn a_request_above_the_largest_segment_of_the_policy_asks_nothing_of_the_device() {
    let config = parse("policy:first_fit");
    let allocator = Simulated::new([SimulatedDevice::new(1 << 50)], &config).unwrap();
    let refused = allocator.malloc(DEVICE, 1 << 46, STREAM);
    assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
    assert_eq!(allocator.device(DEVICE).unwrap().calls(Call::Obtain), 0);
}

#[test]
fn a_request_that_completes_a_pending_block_is_rounded_as_others_are() {
    let allocator = allocator("roundup_power2_divisions:4");
    let block = malloc_mib(&allocator, 8);
    allocator.record_stream(block, OTHER).unwrap();
    allocator.free(block).unwrap();
    allocator.device(DEVICE).unwrap().complete(OTHER);
    let again = allocator.malloc(DEVICE, 9 * MIB / 2, STREAM).unwrap();
    assert_eq!((again, allocator.base_of(again).unwrap().size), (block, 5 * MIB));
}

#[test]
fn a_rehearsal_searches_once_more_after_the_wait_where_requests_do() {
    for second_search in [true, false] {
        let allocator = allocator("");
        allocator.settings(DEVICE).unwrap().set_limit(Some(20 * MIB));
        allocator.settings(DEVICE).unwrap().set_second_search(second_search);
        let [pending, free, _live] = [8, 8, 3].map(|mib| malloc_mib(&allocator, mib));
        allocator.record_stream(pending, OTHER).unwrap();
        [pending, free].into_iter().for_each(|block| allocator.free(block).unwrap());
        // Neither block is large enough alone.
        let fit = allocator.forecast(DEVICE).unwrap().would_fit(&[16 * MIB], STREAM).unwrap();
        assert_eq!(fit.served, u64::from(second_search) as _);
        assert_eq!(allocator.malloc(DEVICE, 16 * MIB, STREAM).is_ok(), second_search);
    }
}

#[test]
fn a_forecast_names_the_memory_of_ended_streams_and_not_that_of_its_own() {
    let [two, three] = [2, 3].map(StreamId);
    let allocator = allocator("");
    let blocks = [STREAM, two, three].map(|stream| allocator.malloc(DEVICE, 40 * MIB, stream).unwrap());
    allocator.stream_destroyed(DEVICE, three).unwrap();
    // Freed after the end, so that the next request releases the segment.
    allocator.free(blocks[2]).unwrap();
    let forecast = |stream| allocator.forecast(DEVICE).unwrap().malloc(60 * MIB, stream).unwrap();
    assert_eq!(forecast(two), Forecast::Release(blocks[2]));
    assert_eq!(forecast(three), Forecast::Obtain(60 * MIB), "the request would revive the stream");
    allocator.free(blocks[1]).unwrap();
    allocator.stream_destroyed(DEVICE, two).unwrap();
    assert_eq!(forecast(STREAM), Forecast::Release(blocks[2]));
    allocator.malloc(DEVICE, 60 * MIB, STREAM).unwrap();
    assert_eq!(allocator.device(DEVICE).unwrap().used(), 100 * MIB);
}

#[test]
fn a_forecast_waits_for_the_work_before_pages_that_ranges_gave_up() {
    let allocator = allocator("policy:bfc,region_garbage_collection:False,first_region_mb:20");
    allocator.settings(DEVICE).unwrap().set_limit(Some(40 * MIB));
    let range = allocator.ranges(DEVICE).unwrap().reserve(40 * MIB).unwrap().range;
    allocator.ranges(DEVICE).unwrap().commit(range, 0, 40 * MIB, OTHER).unwrap();
    allocator.ranges(DEVICE).unwrap().decommit(range, 0, 40 * MIB, OTHER).unwrap();
    let forecast = allocator.forecast(DEVICE).unwrap().malloc(20 * MIB, STREAM).unwrap();
    assert!(matches!(forecast, Forecast::Obtain(_)), "{forecast:?}");
    allocator.malloc(DEVICE, 20 * MIB, STREAM).unwrap();
}

#[test]
fn a_report_of_lacking_memory_tells_what_the_process_uses() {
    let device = AlteredDevice::new(1 << 30, Change::TellsUse(7 * MIB));
    let allocator = altered::Allocator::new([device], &Config::default()).unwrap();
    let Err(Error::OutOfMemory(report)) = allocator.malloc(DEVICE, 2 << 30, STREAM) else { panic!("it fits") };
    assert_eq!(report.process, Some(7 * MIB));
}

/// Each request ends the waits that are complete in all heaps, not in its own alone: otherwise the
/// peak of inactive bytes, which are free memory in split segments, would depend on the heap that
/// the next request is for.
#[test]
fn a_request_of_one_heap_ends_the_complete_waits_of_another() {
    let allocator = allocator("");
    // The two blocks fill a segment of the large heap, and the other four one of the small heap.
    let [used, _held] = [8, 12].map(|mib| malloc_mib(&allocator, mib));
    let small = [0; 4].map(|_| allocator.malloc(DEVICE, MIB / 2, STREAM).unwrap());
    allocator.record_stream(used, OTHER).unwrap();
    allocator.free(small[1]).unwrap();
    allocator.free(used).unwrap();
    assert_eq!(stat(&allocator, "inactive_split_bytes.all.current"), MIB as i64 / 2);
    allocator.stats(DEVICE).unwrap().reset_peaks();
    allocator.device(DEVICE).unwrap().complete(OTHER);
    allocator.malloc(DEVICE, MIB / 2, STREAM).unwrap();
    assert_eq!(stat(&allocator, "inactive_split_bytes.all.current"), 8 * MIB as i64);
    assert_eq!(stat(&allocator, "inactive_split_bytes.all.peak"), 8 * MIB as i64 + MIB as i64 / 2);
}
