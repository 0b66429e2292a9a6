//! Tests of memory, virtual memory, events and peers, over the fake driver.

use super::*;
use crate::driver::result::CuResult;
use crate::driver::table::Table;
use crate::fake::{Plan, When};
use cachalot_core::{Descriptor, ErrorKind, MemoryInfo};

#[test]
fn memory_is_obtained_and_released() {
    let device = device();
    let base = device.obtain(2 << 20).expect("memory");
    assert_eq!(fake::with(|fake| fake.memory.clone()), [(base.0, 2 << 20)].into());
    assert_eq!(device.address_range(base.offset(5)), Ok((base, 2 << 20)));
    assert_eq!(device.memory_info(), Ok(MemoryInfo { free: 3 << 30, total: 4 << 30 }));
    assert_eq!(device.release(base, 2 << 20), Ok(()));
    assert_eq!(fake::with(|fake| fake.memory.len()), 0);
    assert_eq!(device.release(base, 2 << 20).map_err(|error| error.kind), Err(ErrorKind::InvalidArgument));
}

#[test]
fn ordered_memory_is_obtained_and_released_on_its_stream() {
    let open = |stream_ordered| {
        let options = DeviceOptions { stream_ordered, ..DeviceOptions::default() };
        CudaDevice::open_with(fake::driver(), 0, options).expect("the fake has a device")
    };
    for (is_ordered, expected) in
        [(true, ["cuMemAllocAsync", "cuMemFreeAsync"]), (false, ["cuMemAlloc_v2", "cuMemFree_v2"])]
    {
        let device = open(is_ordered);
        assert_eq!(device.is_ordered(), is_ordered);
        let stream = device.stream_id(STREAM).expect("a stream");
        let called = calls(|| {
            let base = device.obtain_on(stream, 2 << 20).expect("memory");
            assert_eq!(device.release(base, 2 << 20), Ok(()));
        });
        let memory: Vec<_> = called.into_iter().filter(|name| name.starts_with("cuMem")).collect();
        assert_eq!(memory, expected);
        assert_eq!(fake::with(|fake| fake.memory.len()), 0);
    }
}

#[test]
fn a_driver_without_either_call_has_no_ordered_memory() {
    for change in [(|table| table.mem_alloc_async = None) as fn(&mut Table), |table| table.mem_free_async = None] {
        let _ = fake::driver();
        let mut table = fake::table();
        change(&mut table);
        let options = DeviceOptions { stream_ordered: true, ..DeviceOptions::default() };
        let device = CudaDevice::open_with(fake::load(&table).expect("loads"), 0, options).expect("opens");
        assert!(!device.is_ordered());
        assert!(device.obtain_on(id(STREAM), 512).is_ok());
    }
}

#[test]
fn ordered_memory_is_freed_at_once_while_its_stream_captures() {
    let options = DeviceOptions { stream_ordered: true, ..DeviceOptions::default() };
    let device = CudaDevice::open_with(fake::driver(), 0, options).expect("the fake has a device");
    let base = device.obtain_on(id(STREAM), 2 << 20).expect("memory");
    fake::with(|fake| fake.capturing.1 = crate::driver::types::CuCaptureStatus::ACTIVE);
    let called = calls(|| assert_eq!(device.release(base, 2 << 20), Ok(())));
    assert!(called.contains(&"cuMemFree_v2") && !called.contains(&"cuMemFreeAsync"), "{called:?}");
    let base = device.obtain_on(StreamId::DEFAULT, 2 << 20).expect("memory");
    fake::with(|fake| fake.capturing.1 = crate::driver::types::CuCaptureStatus::NONE);
    let called = calls(|| assert_eq!(device.release(base, 2 << 20), Ok(())));
    assert!(called.contains(&"cuMemFreeAsync"), "the legacy stream has an order, too: {called:?}");
}

#[test]
fn memory_lies_in_no_order_where_nothing_tells_of_the_end_of_streams() {
    let options = DeviceOptions { stream_ordered: true, identity: StreamIdentity::Asked, ..DeviceOptions::default() };
    let device = CudaDevice::open_with(fake::driver(), 0, options).expect("the fake has a device");
    assert!(!device.is_ordered());
}

#[test]
fn ordered_memory_of_a_stream_that_has_ended_is_released_in_no_order() {
    let options = DeviceOptions { stream_ordered: true, ..DeviceOptions::default() };
    let device = CudaDevice::open_with(fake::driver(), 0, options).expect("the fake has a device");
    let stream = device.stream_id(STREAM).expect("a stream");
    let base = device.obtain_on(stream, 2 << 20).expect("memory");
    device.stream_destroyed(STREAM).expect("reported");
    let called = calls(|| assert_eq!(device.release(base, 2 << 20), Ok(())));
    assert!(called.contains(&"cuMemFree_v2") && !called.contains(&"cuMemFreeAsync"), "{called:?}");
}

#[test]
fn only_code_2_is_out_of_memory() {
    let device = device();
    for (code, kind) in [(2, ErrorKind::OutOfMemory), (1, ErrorKind::InvalidArgument), (999, ErrorKind::Other)] {
        let (code, when) = (CuResult(code), When::Before);
        fake::with(|fake| {
            fake.plan = Some(Plan { function: Some("cuMemAlloc_v2"), skip: 0, code, when, permanent: false });
        });
        assert_eq!(device.obtain(512).map_err(|error| (error.kind, error.code)), Err((kind, code.0)));
    }
}

/// The table of the fake driver does not have the entry point.
#[test]
fn a_driver_without_uuids_has_devices_without() {
    assert_eq!(device().uuid(), None);
}

#[test]
fn misaligned_memory_is_freed_and_refused() {
    let device = device();
    fake::with(|fake| fake.next_address += 256);
    assert_eq!(device.obtain(512).map_err(|error| error.kind), Err(ErrorKind::Other));
    assert_eq!(fake::with(|fake| fake.memory.len()), 0);
}

#[test]
fn an_event_is_complete_once_its_stream_reaches_it() {
    let device = device();
    let event = device.create_event().expect("an event");
    assert_eq!(device.is_complete(event), Ok(true), "nothing was recorded");
    device.record(event, id(STREAM)).expect("recorded");
    assert_eq!(device.is_complete(event), Ok(false));
    assert_eq!(device.health(), Ok(()), "not ready is an answer");
    device.synchronize(id(STREAM)).expect("waited");
    assert_eq!(device.is_complete(event), Ok(true));
    assert_eq!(device.destroy_event(event), Ok(()));
}

#[test]
fn a_failed_query_of_an_event_is_an_error() {
    let device = device();
    let event = device.create_event().expect("an event");
    for code in [CuResult::CAPTURED_EVENT, CuResult::ILLEGAL_ADDRESS] {
        let (function, when) = (Some("cuEventQuery"), When::Before);
        fake::with(|fake| {
            fake.plan = Some(Plan { function, skip: 0, code, when, permanent: false });
        });
        assert_eq!(device.is_complete(event), Err(code.error()));
    }
}

#[test]
fn virtual_memory_needs_every_entry_point_and_attribute() {
    assert!(device().virtual_memory().is_some());
    assert_eq!(device().granularity(), 2 << 20);
    for change in [
        (|_| fake::with(|fake| fake.attributes.extend([(102, 0)]))) as fn(&mut Table),
        |_| fake::with(|fake| fake.granularity = 3 << 20),
        |table| table.mem_set_access = None,
        |table| table.mem_address_reserve = None,
    ] {
        let _ = fake::driver();
        let mut table = fake::table();
        change(&mut table);
        let device = CudaDevice::open(fake::load(&table).expect("loads"), 0).expect("opens");
        assert!(device.virtual_memory().is_none());
    }
}

#[test]
fn one_thread_at_a_time_changes_mappings() {
    let device = device();
    device.begin_mapping();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| device.begin_mapping());
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!other.is_finished());
        device.end_mapping();
        other.join().expect("no panic");
    });
    device.end_mapping();
    let made = calls(|| assert_eq!(device.unmap(DevicePtr(1 << 40), 2 << 20), Ok(())));
    assert!(made.contains(&"cuMemUnmap"), "{made:?}");
    device.begin_mapping();
}

#[test]
fn direct_access_from_the_bus_is_requested_until_refused() {
    let capable = device();
    assert!(capable.is_rdma_capable());

    let driver = fake::driver();
    fake::with(|fake| fake.refuse_rdma = (true, true));
    let refused_at_once = CudaDevice::open(driver, 0).expect("opens");
    assert!(refused_at_once.virtual_memory().is_some() && !refused_at_once.is_rdma_capable());

    let refused_later = device();
    fake::with(|fake| fake.refuse_rdma = (false, true));
    let twice = calls(|| assert!(refused_later.create(2 << 20).is_ok()));
    assert_eq!(twice.iter().filter(|name| **name == "cuMemCreate").count(), 2);
    assert!(!refused_later.is_rdma_capable());
    let once = calls(|| assert!(refused_later.create(2 << 20).is_ok()));
    assert_eq!(once.iter().filter(|name| **name == "cuMemCreate").count(), 1);
}

#[test]
fn memory_is_created_for_export_until_refused() {
    let capable = device();
    assert!(capable.can_export());
    let handle = capable.create(2 << 20).expect("memory");
    assert_eq!(capable.export(handle).map(|Descriptor(number)| number), Ok(handle.0 as i32));

    let changes: [fn(&mut Table); 3] = [
        |_| fake::with(|fake| fake.attributes.extend([(103, 0)])),
        |table| table.mem_export = None,
        |_| fake::with(|fake| fake.refuse_export = (true, true)),
    ];
    for change in changes {
        let _ = fake::driver();
        let mut table = fake::table();
        change(&mut table);
        let device = CudaDevice::open(fake::load(&table).expect("loads"), 0).expect("opens");
        let handle = device.create(2 << 20).expect("memory");
        assert_eq!((device.can_export(), device.is_rdma_capable()), (false, true));
        let made = calls(|| assert_eq!(device.export(handle), Err(CuResult::NOT_SUPPORTED.error())));
        assert!(!made.contains(&"cuMemExportToShareableHandle"));
    }

    let refused_later = device();
    fake::with(|fake| fake.refuse_export = (false, true));
    let thrice = calls(|| assert!(refused_later.create(2 << 20).is_ok()));
    assert_eq!(thrice.iter().filter(|name| **name == "cuMemCreate").count(), 3);
    assert_eq!((refused_later.can_export(), refused_later.is_rdma_capable()), (false, true));
    let once = calls(|| assert!(refused_later.create(2 << 20).is_ok()));
    assert_eq!(once.iter().filter(|name| **name == "cuMemCreate").count(), 1);
}

#[test]
fn a_peer_is_named_for_open_ranges_and_for_later_ones() {
    let device = device();
    let peer = second(&device);
    let (first, later) = (DevicePtr(1 << 40), DevicePtr(2 << 40));
    device.set_access(first, 2 << 20).expect("open");
    let closed = DevicePtr(3 << 40);
    device.set_access(closed, 4 << 20).expect("open");
    device.unmap(closed, 4 << 20).expect("closed");
    assert_eq!(device.allow_access_from(&peer), Ok(()));
    assert_eq!(device.allow_access_from(&peer), Ok(()), "twice is no error");
    device.set_access(later, 2 << 20).expect("open");
    let named = fake::with(|fake| fake.access.clone());
    let alone = vec![0];
    let both = vec![0, 1];
    let expected = [(first.0, alone.clone()), (closed.0, alone), (first.0, both.clone()), (later.0, both)];
    assert_eq!(named, expected);
}

#[test]
fn one_unmapping_forgets_every_range_inside() {
    let device = device();
    let base = 1 << 40;
    for piece in 0..4 {
        device.set_access(DevicePtr(base + piece * (2 << 20)), 2 << 20).expect("open");
    }
    device.unmap(DevicePtr(base + (2 << 20)), 4 << 20).expect("closed");
    fake::with(|fake| fake.access.clear());
    device.allow_access_from(&second(&device)).expect("a peer");
    let left: Vec<u64> = fake::with(|fake| fake.access.iter().map(|(at, _)| *at).collect());
    assert_eq!(left, [base, base + 3 * (2 << 20)]);
}

#[test]
fn devices_out_of_reach_and_old_peers_are_told_apart() {
    let device = device();
    let peer = second(&device);
    let (code, when) = (CuResult::PEER_ACCESS_ALREADY_ENABLED, When::Before);
    fake::with(|fake| {
        fake.plan = Some(Plan { function: Some("cuCtxEnablePeerAccess"), skip: 0, code, when, permanent: false });
    });
    assert_eq!(device.allow_access_from(&peer), Ok(()), "another library had enabled it");
    fake::with(|fake| fake.attributes.extend([(9999, 0)]));
    let refused = device.allow_access_from(&peer);
    assert_eq!(refused.map_err(|error| (error.kind, error.code)), Err((ErrorKind::Unsupported, 217)));
}

#[test]
fn the_size_of_the_drivers_own_pool_is_reported() {
    let users = device().memory_users().expect("reported");
    assert_eq!(users.pool_reserved, Some(12_345));
    for function in ["cuDeviceGetDefaultMemPool", "cuMemPoolGetAttribute"] {
        for (code, is_told) in [(CuResult::UNKNOWN, true), (CuResult::ILLEGAL_ADDRESS, false)] {
            let device = device();
            let (function, when) = (Some(function), When::Before);
            fake::with(|fake| fake.plan = Some(Plan { function, skip: 0, code, when, permanent: false }));
            assert_eq!(device.memory_users().expect("reported").pool_reserved, None);
            assert_eq!(device.health().is_ok(), is_told, "a lost context is remembered");
        }
    }
}

#[test]
fn a_fill_goes_to_its_stream() {
    let device = device();
    let base = device.obtain(512).expect("memory");
    // SAFETY: the fake has no real memory; the fake's fill only logs the call.
    let fill = || unsafe { device.fill(base, 0xdd, 512, STREAM) };
    let made = calls(|| assert_eq!(fill(), Ok(())));
    assert_eq!(made.iter().filter(|name| **name == "cuMemsetD8Async").count(), 1);
}
