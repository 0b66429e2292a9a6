//! Tests of fills and reads of contents, and of the wait for all work, over the fake driver.

use super::*;
use crate::driver::result::CuResult;
use crate::fake::{CONTEXT, Plan, When};
use cachalot_core::{Contents, ErrorKind};

/// Memory of the device.
const AT: DevicePtr = DevicePtr(1 << 40);

fn fills() -> Vec<(u64, u8, usize, CuStream)> {
    fake::with(|fake| core::mem::take(&mut fake.fills))
}

fn fail(function: &'static str, skip: usize) {
    let (code, when) = (CuResult::UNKNOWN, When::Before);
    fake::with(|fake| fake.plan = Some(Plan { function: Some(function), skip, code, when, permanent: false }));
}

#[test]
fn a_fill_goes_to_its_stream_or_is_waited_for() {
    let device = device();
    let made = calls(|| assert_eq!(Contents::fill(&device, id(STREAM), AT, 512, 0xdd), Ok(())));
    assert_eq!(fills(), [(AT.0, 0xdd, 512, STREAM)]);
    assert!(!made.contains(&"cuStreamSynchronize"), "{made:?}");
    let retired = device.stream_destroyed(STREAM).expect("retired");
    let made = calls(|| assert_eq!(Contents::fill(&device, retired, AT, 1024, 7), Ok(())));
    let own = device.store.copies.stream(&device.context).expect("a stream");
    assert_eq!(fills(), [(AT.0, 7, 1024, own)]);
    let of_work: Vec<_> =
        made.into_iter().filter(|name| ["cuMemsetD8Async", "cuStreamSynchronize"].contains(name)).collect();
    assert_eq!(of_work, ["cuMemsetD8Async", "cuStreamSynchronize"]);
    for failing in ["cuMemsetD8Async", "cuStreamSynchronize"] {
        fail(failing, 0);
        assert_eq!(Contents::fill(&device, retired, AT, 512, 7), Err(CuResult::UNKNOWN.error()), "{failing}");
    }
}

#[test]
fn zeroes_are_written_on_the_stream_of_the_copies() {
    let device = device();
    assert_eq!(device.zero(AT, 4096), Ok(()));
    let own = device.store.copies.stream(&device.context).expect("a stream");
    assert_eq!(fills(), [(AT.0, 0, 4096, own)]);
}

#[test]
fn bytes_of_the_device_are_read() {
    let device = device();
    let mut bytes = [0; 5];
    assert_eq!(device.read(AT.offset(3), &mut bytes), Ok(()));
    assert_eq!(bytes, [3, 4, 5, 6, 7]);
    fail("cuMemcpyDtoH_v2", 0);
    assert_eq!(device.read(AT, &mut bytes), Err(CuResult::UNKNOWN.error()));
}

#[test]
fn contents_need_copies_streams_and_pinned_memory() {
    assert!(device().contents().is_some());
    for change in [
        (|table| table.memcpy_dtoh_async = None) as fn(&mut crate::driver::table::Table),
        |table| table.memcpy_htod_async = None,
        |table| table.mem_host_register = None,
        |table| table.stream_create = None,
    ] {
        let _ = fake::driver();
        let mut table = fake::table();
        change(&mut table);
        let device = CudaDevice::open(fake::load(&table).expect("loads"), 0).expect("opens");
        assert!(device.contents().is_none());
    }
}

#[test]
fn an_event_behind_all_work_of_the_context_is_waited_for_and_destroyed() {
    let device = with_events_of_contexts();
    let expected = ["cuEventCreate", "cuCtxRecordEvent", "cuEventSynchronize", "cuEventDestroy_v2"];
    let made = calls(|| assert_eq!(device.synchronize_all(), Ok(())));
    let made: Vec<_> = made.into_iter().filter(|name| !name.starts_with("cuCtxP") && expected.contains(name)).collect();
    assert_eq!(made, expected);
    for failing in expected {
        fail(failing, 0);
        let made = calls(|| assert_eq!(device.synchronize_all(), Err(CuResult::UNKNOWN.error()), "{failing}"));
        assert_eq!(made.contains(&"cuEventSynchronize"), !["cuEventCreate", "cuCtxRecordEvent"].contains(&failing));
        // An event that the driver does not destroy is lost.
        let left = usize::from(failing == "cuEventDestroy_v2");
        assert_eq!(fake::with(|fake| fake.events.len()), left, "{failing}");
    }
}

#[test]
fn a_full_device_without_events_of_contexts_is_waited_for_in_the_driver() {
    let device = device();
    let waited = |device: &CudaDevice| calls(|| assert_eq!(device.synchronize_all(), Ok(())));
    let made = waited(&device);
    assert!(made.contains(&"cuMemFree_v2") && !made.contains(&"cuCtxSynchronize"), "{made:?}");
    fake::with(|fake| fake.room = Some(0));
    let made = waited(&device);
    assert!(!made.contains(&"cuMemFree_v2") && made.contains(&"cuCtxSynchronize"), "{made:?}");
    // Another error is reported, and nothing breaks a capture.
    fake::with(|fake| fake.room = None);
    fail("cuMemAlloc_v2", 0);
    let made = calls(|| assert_eq!(device.synchronize_all(), Err(CuResult::UNKNOWN.error())));
    assert!(!made.contains(&"cuCtxSynchronize"), "{made:?}");
    assert_eq!(device.cu_context(), CONTEXT);
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn contents_of_an_unknown_name_are_not_restored() {
    let device = device();
    device.prepare(4096, 4096).expect("prepared");
    let saved = device.save(AT, 4096).expect("saved");
    device.end_saves();
    device.forget(saved);
    let refused = device.restore(saved, AT, 4096).map_err(|error| error.kind);
    assert_eq!(refused, Err(ErrorKind::InvalidArgument));
    device.forget(saved);
    assert_eq!(device.host_memory_for_contents(), (0, 0));
}
