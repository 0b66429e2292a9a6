//! Tests of devices without memory besides that of the host, over the fake driver.

use super::*;
use crate::driver::result::CuResult;
use crate::fake::{Plan, When};
use cachalot_core::{Contents, ErrorKind, MemoryInfo};

/// Opens a device that shares the host's memory, on a driver that fails as planned.
fn integrated(plan: Option<Plan>) -> DeviceResult<CudaDevice> {
    let driver = fake::driver();
    fake::with(|fake| {
        fake.attributes.extend([(18, 1), (141, 1)]);
        fake.log.clear();
        fake.plan = plan;
    });
    CudaDevice::open(driver, 0)
}

#[test]
#[cfg_attr(miri, ignore = "Miri does not have the system's files")]
fn free_memory_is_what_the_system_has_available() {
    let device = integrated(None).expect("opens");
    let MemoryInfo { free, total } = device.memory_info().expect("told");
    assert_eq!(total, 4 << 30, "the driver's");
    // The fake driver tells 3 GiB. The system's figure changes while the test runs.
    let available = crate::host_memory::available().expect("Linux").min(total);
    assert!(free.abs_diff(available) < total / 4 && free <= total, "{free} {available}");
    let (_, within_groups) = crate::memory_of_system().expect("Linux");
    assert!(within_groups <= crate::host_memory::available().expect("Linux") + (1 << 30));
    assert!(device.shares_host_memory() && !self::device().shares_host_memory());
}

#[test]
#[cfg_attr(miri, ignore = "Miri does not have the system's files")]
fn memory_that_the_system_does_not_have_is_refused_without_a_call_of_the_driver() {
    const TOO_MUCH: u64 = 1 << 50;
    let driver = fake::driver();
    fake::with(|fake| fake.attributes.extend([(18, 1)]));
    let options = DeviceOptions { stream_ordered: true, ..DeviceOptions::default() };
    let device = CudaDevice::open_with(driver, 0, options).expect("opens");
    assert!(device.shares_host_memory());
    let stream = device.stream_id(STREAM).expect("a stream");
    fake::with(|fake| fake.log.clear());
    let refused = Err(CuResult::OUT_OF_MEMORY.error());
    assert_eq!(device.obtain(TOO_MUCH), refused);
    assert_eq!(device.obtain_on(stream, TOO_MUCH), refused);
    assert_eq!(device.virtual_memory().expect("virtual memory").create(TOO_MUCH).map(drop), refused.map(drop));
    for name in ["cuMemAlloc_v2", "cuMemAllocAsync", "cuMemCreate"] {
        assert!(!fake::with(|fake| fake.log.contains(&name)), "{name}");
    }
    assert!(device.obtain(2 << 20).is_ok(), "a claim ends with its call");
}

#[test]
fn contents_lie_elsewhere_only_in_files() {
    let device = integrated(None).expect("opens");
    assert!(!device.lie_elsewhere() && self::device().lie_elsewhere());
    device.keep_contents_in(Some("/a folder".into()));
    assert!(device.lie_elsewhere());
    device.keep_contents_in(None);
    assert!(!device.lie_elsewhere());
}

#[test]
fn a_page_is_mapped_and_given_back_when_the_device_opens() {
    let device = integrated(None).expect("opens");
    let virtual_memory = device.virtual_memory().expect("virtual memory");
    let of_pages = ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"];
    let made = fake::with(|fake| fake.log.clone());
    let made: Vec<_> = made.into_iter().filter(|name| of_pages.contains(name) || *name == "cuMemAddressFree").collect();
    assert_eq!(made[..6], of_pages);
    assert_eq!(made[6..], ["cuMemAddressFree"]);
    // The host's pages are pages of the same memory.
    let refused = virtual_memory.create_at_host(2 << 20).map(drop);
    assert_eq!(refused.map_err(|error| error.kind), Err(ErrorKind::Unsupported));
}

#[test]
fn a_device_that_cannot_map_the_page_has_no_virtual_memory() {
    let steps = [
        "cuMemAddressReserve",
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemUnmap",
        "cuMemRelease",
        "cuMemAddressFree",
    ];
    for (at, step) in steps.into_iter().enumerate() {
        let failing = |code| Plan { function: Some(step), skip: 0, code, when: When::Before, permanent: false };
        for code in [CuResult::OUT_OF_MEMORY, CuResult::NOT_SUPPORTED, CuResult::INVALID_VALUE] {
            let device = integrated(Some(failing(code))).expect("opens");
            assert!(device.virtual_memory().is_none(), "{step} {code}");
            let made = |name: &str| fake::with(|fake| fake.log.contains(&name));
            assert_eq!(made("cuMemRelease"), at > 1, "{step}");
            assert_eq!(made("cuMemAddressFree"), at > 0, "{step}");
            assert!(device.obtain(2 << 20).is_ok(), "segments as ever");
        }
        // A context that is lost is an error, and not a device without virtual memory.
        let lost = integrated(Some(failing(CuResult::ILLEGAL_ADDRESS))).map(drop);
        assert_eq!(lost.map_err(|error| error.kind), Err(ErrorKind::ContextLost), "{step}");
    }
}
