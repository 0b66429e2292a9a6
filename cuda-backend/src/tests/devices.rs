//! Tests of the properties that drivers and devices report, over the fake driver.

use super::*;
use crate::driver::result::CuResult;
use crate::driver::types::{CuCaptureStatus, CuDevice};
use crate::fake::{Plan, When};
use cachalot_core::{ErrorKind, Host, PoolId};

fn fail(function: &'static str, code: CuResult) {
    fake::with(|fake| {
        fake.plan = Some(Plan { function: Some(function), skip: 0, code, when: When::Before, permanent: false });
    });
}

#[test]
fn a_driver_tells_its_version_origin_and_devices() {
    let driver = fake::driver();
    assert_eq!((driver.version(), driver.origin(), driver.is_emulated()), (13_000, "the caller's table", false));
    assert_eq!(driver.device_count(), Ok(2));
    assert_eq!(driver.total_memory(1), Ok(4 << 30));
    assert_eq!(driver.total_memory(2), Err(CuResult::INVALID_DEVICE));
    assert_eq!(driver.total_memory(u32::MAX), Err(CuResult::INVALID_DEVICE));
    for (function, ask) in [
        ("cuDeviceGetCount", (|driver| driver.device_count().map(drop)) as fn(&crate::Driver) -> Result<(), CuResult>),
        ("cuDeviceGet", |driver| driver.total_memory(0).map(drop)),
        ("cuDeviceTotalMem_v2", |driver| driver.total_memory(0).map(drop)),
    ] {
        fail(function, CuResult::UNKNOWN);
        assert_eq!(ask(driver), Err(CuResult::UNKNOWN), "{function}");
    }
}

#[test]
fn a_code_is_described_by_the_driver_as_far_as_the_driver_knows_it() {
    let driver = fake::driver();
    for (code, text) in [
        (CuResult::OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"),
        (CuResult(4711), "CUDA_ERROR_NEW (4711)"),
        (CuResult(4712), "CUDA result 4712"),
        (CuResult::UNKNOWN, "UNKNOWN (999)"),
    ] {
        assert_eq!(driver.describe(code), text);
    }
}

#[test]
fn a_device_tells_its_uuid_place_and_handles() {
    let _ = fake::driver();
    let mut table = fake::table();
    table.device_get_uuid = Some(fake::uuid);
    let driver = fake::load(&table).expect("loads");
    for ordinal in [0, 1] {
        let device = CudaDevice::open(driver, ordinal).expect("opens");
        assert_eq!(device.cu_device(), CuDevice(ordinal as i32));
        assert_eq!(device.cu_context().0, fake::CONTEXT.0 + ordinal as usize);
        let expected: [u8; 16] = core::array::from_fn(|at| (0xf8_u32 + at as u32 + ordinal) as u8);
        assert_eq!(device.uuid(), Some(expected));
    }
    fail("cuDeviceGetUuid_v2", CuResult::UNKNOWN);
    let device = CudaDevice::open(driver, 0).expect("opens");
    assert_eq!((device.uuid(), device.bus_id(), device.process_use()), (None, None, None));
    table.device_get_pci_bus_id = Some(fake::bus_id);
    let device = CudaDevice::open(fake::load(&table).expect("loads"), 1).expect("opens");
    let told = device.bus_id().expect("told").map(|letter| letter as u8);
    assert_eq!(core::ffi::CStr::from_bytes_until_nul(&told), Ok(c"0000:3b:00.1"));
    let handle = core::ptr::without_provenance_mut::<u8>(STREAM.0);
    assert_eq!(CuStream::from_handle(handle), STREAM);
}

#[test]
fn the_host_of_a_device_has_threads_and_a_clock_and_no_wishes() {
    let device = device();
    let own = device.thread_id();
    let other = std::thread::scope(|scope| scope.spawn(crate::this_thread).join().expect("no panic"));
    assert!(own == crate::this_thread() && own != other && own > 0);
    let before = device.time_us(device.ticks());
    assert!(device.pause(2000));
    let after = device.time_us(device.ticks());
    assert!(after - before >= 1900, "{before} {after}");
    let made = calls(|| {
        assert!(!device.leads(own, id(STREAM)) && !device.on_shortage(1) && !device.supplies(PoolId(7, 7)));
        assert_eq!(device.call_site(cachalot_core::CallSite::Alloc), 0);
        assert!(device.can_order(id(STREAM)));
    });
    assert_eq!(made, Vec::<&str>::new());
    let base = device.obtain_for(PoolId(7, 7), 2 << 20).expect("memory");
    assert_eq!(device.address_range(base), Ok((base, 2 << 20)));
}

#[test]
fn a_usual_stream_is_asked_and_recorded_on_without_its_context() {
    let _ = fake::driver();
    let mut table = fake::table();
    table.stream_query = Some(fake::stream_query);
    let device = CudaDevice::open(fake::load(&table).expect("loads"), 0).expect("opens");
    let event = device.create_event().expect("an event");
    let on_known = || device.record(event, id(STREAM)).expect("recorded");
    // The first call learns the driver's id of the stream.
    assert_eq!(device.is_idle(id(STREAM)), Ok(None));
    on_known();
    fake::with(|fake| fake.contexts = vec![fake::CONTEXT]);
    assert_eq!(calls(on_known), ["cuStreamIsCapturing", "cuStreamGetId", "cuEventRecord"]);
    let mut idle = Ok(None);
    let made = calls(|| idle = device.is_idle(id(STREAM)));
    let exchange = "cuThreadExchangeStreamCaptureMode";
    assert_eq!(
        (idle, made),
        (Ok(Some(false)), vec!["cuStreamIsCapturing", "cuStreamGetId", exchange, "cuStreamQuery", exchange])
    );
    device.wait(event).expect("waited");
    assert_eq!(device.is_idle(id(STREAM)), Ok(Some(true)));
    for (code, answer) in [
        (CuResult::INVALID_CONTEXT, Ok(None)),
        (CuResult::INVALID_HANDLE, Ok(None)),
        (CuResult::UNKNOWN, Err(CuResult::UNKNOWN.error())),
    ] {
        fail("cuStreamQuery", code);
        assert_eq!(device.is_idle(id(STREAM)), answer);
    }
    assert_eq!(device.is_idle(StreamId::DEFAULT), Ok(None));
    // A query of the id would break a capture.
    fake::with(|fake| fake.capturing.1 = CuCaptureStatus::ACTIVE);
    let made = calls(|| {
        let refused = device.record(event, id(STREAM)).map_err(|error| error.kind);
        assert_eq!(refused, Err(ErrorKind::NotPermittedInCapture));
        assert_eq!(device.is_idle(id(STREAM)), Ok(None));
    });
    let breaks = ["cuStreamGetId", "cuEventRecord", "cuStreamQuery"];
    assert!(!made.iter().any(|name| breaks.contains(name)), "{made:?}");
    fake::with(|fake| fake.capturing.1 = CuCaptureStatus::NONE);
    // Another stream has the handle, so only a wait shows the end of the work of the first one.
    fake::with(|fake| fake.ids.insert(STREAM.0, 4711));
    let made = calls(|| assert_eq!(device.is_idle(id(STREAM)), Ok(None)));
    assert!(!made.contains(&"cuStreamQuery"), "{made:?}");
}

#[test]
fn a_capture_begun_before_the_recording_is_told_where_none_are_announced() {
    let device = asking();
    let event = device.create_event().expect("an event");
    let number = device.stream_id(STREAM).expect("a number");
    fake::with(|fake| (fake.contexts, fake.capture_before_record) = (vec![fake::CONTEXT], true));
    let refused = device.record(event, number).map_err(|error| error.kind);
    assert_eq!(refused, Err(ErrorKind::NotPermittedInCapture));
}

#[test]
fn a_use_of_memory_is_given_up_only_for_memory_that_was_made_without() {
    let device = device();
    fake::with(|fake| fake.refuse_rdma = (false, true));
    let (code, when) = (CuResult::OUT_OF_MEMORY, When::Before);
    fake::with(|fake| {
        fake.plan = Some(Plan { function: Some("cuMemCreate"), skip: 1, code, when, permanent: false });
    });
    let made = calls(|| assert_eq!(device.create(2 << 20), Err(code.error())));
    assert_eq!(made.iter().filter(|name| **name == "cuMemCreate").count(), 2);
    assert!(device.is_rdma_capable() && device.can_export());
    for refused in [CuResult::NOT_SUPPORTED, CuResult::NOT_PERMITTED, CuResult::INVALID_VALUE] {
        let device = self::device();
        fail("cuMemCreate", refused);
        assert!(device.create(2 << 20).is_ok());
        assert!(!device.is_rdma_capable() && device.can_export(), "{refused}");
    }
}

#[test]
fn pages_are_for_a_fabric_and_in_a_locality_domain_if_asked_for_and_there() {
    let opened = |attributes: &[(u32, i32)], pages| {
        let driver = fake::driver();
        fake::with(|fake| fake.attributes.extend(attributes.iter().copied()));
        let device = CudaDevice::open_with(driver, 0, DeviceOptions { pages, ..DeviceOptions::default() });
        let device = device.expect("opens");
        assert!(device.create(2 << 20).is_ok() && device.can_export());
        (device.is_fabric_capable(), device.is_localized())
    };
    let asked = |domain| PageOptions { fabric: true, locality_domain: Some(domain) };
    let (both, neither) = ([(128, 1), (149, 2)], [(128, 0), (149, 0)]);
    assert_eq!(opened(&both, asked(1)), (true, true));
    assert_eq!(opened(&both, asked(2)), (true, false), "the device has two domains");
    assert_eq!(opened(&neither, asked(0)), (false, false));
    assert_eq!(opened(&[], asked(0)), (false, false), "an older driver");
    assert_eq!(opened(&both, PageOptions::default()), (false, false), "nobody asked");
}

#[test]
fn memory_for_a_decompression_engine_is_created_until_refused() {
    let opened = |algorithms| {
        let driver = fake::driver();
        fake::with(|fake| fake.attributes.extend([(136, algorithms)]));
        CudaDevice::open(driver, 0).expect("opens")
    };
    assert!(!opened(0).serves_decompression());
    let device = opened(7);
    assert!(device.serves_decompression() && device.create(2 << 20).is_ok());
    fake::with(|fake| fake.refuse_engine = true);
    let made = calls(|| assert!(device.create(2 << 20).is_ok()));
    assert!(made.iter().filter(|name| **name == "cuMemCreate").count() > 1);
    assert!(!device.serves_decompression() && device.is_rdma_capable() && device.can_export());
}
