//! Tests of pinned memory of the host as a device, over the fake driver.

use super::*;
use crate::driver::result::CuResult;
use crate::driver::types::CuCaptureStatus;
use crate::fake::{Plan, When};
use crate::{HOST_STREAM, HostDevice};
use cachalot_core::{ErrorKind, MemoryInfo, PoolId};

const BYTES: u64 = 3 << 20;

/// Opens host memory over a fresh fake, with an empty log.
fn host() -> HostDevice {
    let host = HostDevice::open(fake::driver(), 0).expect("the fake has a device");
    fake::with(|fake| fake.log.clear());
    host
}

fn fail(function: &'static str, when: When) {
    let code = CuResult::UNKNOWN;
    fake::with(|fake| fake.plan = Some(Plan { function: Some(function), skip: 0, code, when, permanent: false }));
}

/// Returns whether the memory at an address is mapped.
pub(super) fn is_mapped(base: u64) -> bool {
    let mut present = [0_u8; 1];
    // SAFETY: the call reads no memory, and writes a byte for the page.
    unsafe { libc::mincore(base as *mut libc::c_void, 4096, present.as_mut_ptr()) == 0 }
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn host_memory_is_pinned_while_it_is_obtained() {
    let host = host();
    let base = host.obtain(BYTES).expect("memory");
    let others =
        [host.obtain_on(id(STREAM), BYTES).expect("memory"), host.obtain_for(PoolId(7, 7), BYTES).expect("memory")];
    let expected = [base, others[0], others[1]].map(|base| (base.0 as usize, BYTES as usize));
    assert_eq!(fake::with(|fake| fake.pinned.clone()), expected.into());
    // SAFETY: the memory is mapped, and no other code uses it.
    let memory = unsafe { core::slice::from_raw_parts_mut(base.0 as *mut u8, BYTES as usize) };
    assert!(memory.iter().all(|&byte| byte == 0));
    memory.fill(1);
    for base in others.into_iter().chain([base]) {
        assert_eq!(host.release(base, BYTES), Ok(()));
    }
    // Other tests may map memory at the same place right after.
    let is_unmapped = |_| {
        let base = host.obtain(BYTES).expect("memory");
        assert_eq!(host.release(base, BYTES), Ok(()));
        !is_mapped(base.0) && !is_mapped(base.0 + BYTES - 4096)
    };
    assert!((0..20).any(is_unmapped));
    assert!(fake::with(|fake| fake.pinned.is_empty()));
    let nowhere = host.release(DevicePtr(0), BYTES).map_err(|error| error.kind);
    assert_eq!(nowhere, Err(ErrorKind::InvalidArgument));
    let absurd = host.obtain(1 << 60).map_err(|error| (error.kind, error.code));
    assert_eq!(absurd, Err((ErrorKind::OutOfMemory, 2)));
    assert_eq!(host.close(), Ok(()));
    assert_eq!(fake::with(|fake| fake.retained), [0, 0]);
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn memory_that_the_driver_may_still_have_stays_mapped() {
    let host = host();
    // The fake lists them in the order of the calls.
    let registered = || fake::with(|fake| fake.pinned.keys().map(|&at| at as u64).next());
    fail("cuMemHostRegister_v2", When::Before);
    assert_eq!(host.obtain(BYTES), Err(CuResult::UNKNOWN.error()));
    assert_eq!(registered(), None);
    fail("cuMemHostRegister_v2", When::After);
    assert_eq!(host.obtain(BYTES), Err(CuResult::UNKNOWN.error()));
    assert_eq!(registered(), None, "the registration is ended");
    let base = host.obtain(BYTES).expect("memory");
    fail("cuMemHostUnregister", When::Before);
    assert_eq!(host.release(base, BYTES), Err(CuResult::UNKNOWN.error()));
    assert!(is_mapped(base.0));
    assert_eq!(host.release(base, BYTES), Ok(()));
    let is_unmapped_after_refusal = |_| {
        let kept = host.obtain(BYTES).expect("memory");
        assert_eq!(host.release(kept, BYTES), Ok(()));
        fail("cuMemHostRegister_v2", When::Before);
        assert_eq!(host.obtain(BYTES), Err(CuResult::UNKNOWN.error()));
        // The kernel uses the place of the earlier memory for the next.
        !is_mapped(kept.0)
    };
    assert!((0..20).any(is_unmapped_after_refusal));
    // The registration cannot be ended either.
    let mut table = fake::table();
    table.mem_host_unregister = Some(refuse);
    let host = HostDevice::open(fake::load(&table).expect("loads"), 0).expect("opens");
    fail("cuMemHostRegister_v2", When::After);
    assert_eq!(host.obtain(BYTES), Err(CuResult::UNKNOWN.error()));
    assert!(is_mapped(registered().expect("registered")));
}

extern "C" fn refuse(_: *mut core::ffi::c_void) -> CuResult {
    CuResult::UNKNOWN
}

#[test]
fn a_driver_that_cannot_register_memory_has_no_host_memory() {
    let _ = fake::driver();
    for lacks_register in [true, false] {
        let mut table = fake::table();
        table.mem_host_register = table.mem_host_register.filter(|_| !lacks_register);
        table.mem_host_unregister = table.mem_host_unregister.filter(|_| lacks_register);
        let driver = fake::load(&table).expect("loads");
        let refused = HostDevice::open(driver, 0).map(drop);
        assert_eq!(refused, Err(CuResult::NOT_SUPPORTED.error()));
    }
    assert_eq!(fake::with(|fake| fake.retained), [0, 0]);
}

#[test]
#[cfg_attr(miri, ignore = "Miri does not have the system's files")]
fn host_memory_tells_of_the_system_and_of_the_process() {
    let host = host();
    let MemoryInfo { free, total } = host.memory_info().expect("Linux");
    assert_eq!(Some(total), crate::memory_of_system().map(|(total, _)| total));
    assert!(0 < free && free <= total);
    assert_eq!(host.numa_node(), None, "the fake does not tell the place on the bus");
    let used = host.process_use().expect("Linux");
    assert!((1 << 20..total).contains(&used), "{used}");
    assert_eq!((host.uuid(), host.supplies(PoolId(7, 7)), host.is_ordered()), (None, false, false));
    assert!(host.virtual_memory().is_none() && host.contents().is_some());
    assert_eq!(host.cuda().cu_context(), fake::CONTEXT);
}

#[test]
fn the_stream_of_the_host_has_no_work_and_calls_no_driver() {
    let host = host();
    let event = host.create_event().expect("an event");
    host.record(event, id(STREAM)).expect("recorded");
    let recorded = fake::with(|fake| fake.events[&(event.0 as usize)]);
    let made = calls(|| {
        assert_eq!(host.record(event, HOST_STREAM), Ok(()));
        assert_eq!(host.record_announced(event, HOST_STREAM), Ok(()));
        assert_eq!(host.synchronize(HOST_STREAM), Ok(()));
        assert_eq!(host.is_idle(HOST_STREAM), Ok(Some(true)));
        assert_eq!(host.is_capturing(HOST_STREAM), Ok(false));
        assert_eq!((host.can_order(HOST_STREAM), host.reports_end(HOST_STREAM)), (false, true));
    });
    assert_eq!(made, Vec::<&str>::new());
    assert_eq!(fake::with(|fake| fake.events[&(event.0 as usize)]), recorded);
    // To order the host after work, the call waits.
    let made = calls(|| assert_eq!(host.order_behind(HOST_STREAM, event), Ok(())));
    assert!(made.contains(&"cuEventSynchronize"), "{made:?}");
    assert_eq!(host.is_complete(event), Ok(true));
}

#[test]
fn other_streams_of_host_memory_are_those_of_the_gpu() {
    let options = DeviceOptions { identity: StreamIdentity::Asked, ..DeviceOptions::default() };
    let asking = HostDevice::open_with(fake::driver(), 0, options).expect("opens");
    let created = asking.cuda().stream_id(STREAM).expect("a number");
    assert_eq!((asking.reports_end(created), asking.reports_end(StreamId::DEFAULT)), (false, true));
    let host = host();
    let event = host.create_order_event().expect("an event");
    let stream = |event: Event| fake::with(|fake| fake.events[&CudaDevice::cu_event(event).0].stream);
    assert_eq!(host.record(event, id(STREAM)), Ok(()));
    assert_eq!(stream(event), Some(STREAM));
    let other = CuStream(STREAM.0 + 0x100);
    assert_eq!(host.record_announced(event, id(other)), Ok(()));
    assert_eq!(stream(event), Some(other));
    assert_eq!(host.order_behind(id(STREAM), event), Ok(()));
    assert_eq!(fake::with(|fake| fake.waits.len()), 1);
    assert!(host.can_order(id(STREAM)) && host.reports_end(id(STREAM)));
    assert_eq!(host.is_complete(event), Ok(false));
    let made = calls(|| assert_eq!(host.synchronize(id(other)), Ok(())));
    assert!(made.contains(&"cuEventSynchronize"), "{made:?}");
    assert_eq!(host.is_complete(event), Ok(true));
    assert_eq!(host.is_idle(id(STREAM)), host.cuda().is_idle(id(STREAM)));
    fake::with(|fake| fake.capturing.1 = CuCaptureStatus::ACTIVE);
    assert_eq!(host.is_capturing(id(STREAM)), Ok(true));
    // The host writes at once to memory that a graph reads at each launch.
    assert_eq!(host.mark_capture(id(STREAM), None), Ok(None));
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn a_lost_context_is_told_by_every_call_of_host_memory() {
    let host = host();
    let event = host.create_event().expect("an event");
    let base = host.obtain(BYTES).expect("memory");
    let lost = CuResult::ILLEGAL_ADDRESS.error();
    assert_eq!(host.cuda().with_context(|_| CuResult::ILLEGAL_ADDRESS), Err(lost));
    let made = calls(|| {
        for stream in [HOST_STREAM, id(STREAM), StreamId::DEFAULT] {
            assert_eq!(host.record(event, stream), Err(lost));
            assert_eq!(host.record_announced(event, stream), Err(lost));
            assert_eq!(host.order_behind(stream, event), Err(lost));
            assert_eq!(host.synchronize(stream), Err(lost));
            assert_eq!(host.is_idle(stream), Err(lost));
            assert_eq!(host.is_capturing(stream), Err(lost));
        }
        assert_eq!((host.obtain(BYTES), host.obtain_on(id(STREAM), BYTES)), (Err(lost), Err(lost)));
        assert_eq!(host.memory_info().map(drop), Err(lost));
        assert_eq!(host.release(base, BYTES), Err(lost));
        assert_eq!(host.close(), Err(lost));
    });
    assert_eq!(made, Vec::<&str>::new());
}
