//! Pinned memory of the host: registrations, allocations, codes, and copies that run later.

use crate::common::{Emulated, PAGE};
use std::ffi::c_void;
use std::ptr::null_mut;

const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const ALREADY_REGISTERED: u32 = 712;
const NOT_REGISTERED: u32 = 713;
/// Portable and mapped for the device.
const FLAGS: u32 = 3;

/// Memory of the program, for a registration.
fn memory(bytes: usize) -> Vec<u8> {
    vec![0; bytes]
}

fn address(of: &mut [u8]) -> *mut c_void {
    of.as_mut_ptr().cast()
}

fn pinned(driver: &Emulated) -> (u64, u64) {
    (driver.count("pinned"), driver.count("pinned_bytes"))
}

#[test]
fn a_range_is_registered_once() {
    let driver = Emulated::new();
    let mut bytes = memory(PAGE);
    let at = address(&mut bytes);
    assert_eq!(driver.cuMemHostRegister_v2(at, PAGE, FLAGS), 0);
    assert_eq!(pinned(&driver), (1, PAGE as u64));
    for (start, length) in [(0, PAGE), (0, 4096), (8192, 4096)] {
        let part = at.wrapping_byte_add(start);
        assert_eq!(driver.cuMemHostRegister_v2(part, length, FLAGS), ALREADY_REGISTERED);
    }
    let mut device = 0;
    assert_eq!(driver.cuMemHostGetDevicePointer_v2(&mut device, at.wrapping_byte_add(5), 0), 0);
    assert_eq!(device, at.addr() as u64 + 5);
    assert_eq!(driver.cuMemHostUnregister(at.wrapping_byte_add(4096)), NOT_REGISTERED);
    assert_eq!(driver.cuMemFreeHost(at), INVALID_VALUE, "the program's own memory");
    assert_eq!((driver.cuMemHostUnregister(at), driver.cuMemHostUnregister(at)), (0, NOT_REGISTERED));
    assert_eq!(driver.cuMemHostGetDevicePointer_v2(&mut device, at, 0), INVALID_VALUE);
    assert_eq!(pinned(&driver), (0, 0));
}

#[test]
fn what_is_no_memory_is_refused() {
    let driver = Emulated::new();
    let mut bytes = memory(PAGE);
    let at = address(&mut bytes);
    // The first page of a process is never mapped.
    for (start, length, flags) in [(null_mut(), PAGE, FLAGS), (at, 0, FLAGS), (at, PAGE, 0x80), (at, usize::MAX, FLAGS)]
    {
        assert_eq!(driver.cuMemHostRegister_v2(start, length, flags), INVALID_VALUE);
    }
    assert_eq!(driver.cuMemHostRegister_v2(std::ptr::without_provenance_mut(4096), 4096, FLAGS), INVALID_VALUE);
    let mut given = null_mut();
    assert_eq!(driver.cuMemHostAlloc(&mut given, 0, FLAGS), INVALID_VALUE);
    assert_eq!(driver.cuMemHostAlloc(&mut given, usize::MAX, FLAGS), OUT_OF_MEMORY);
    assert_eq!(pinned(&driver), (0, 0));
}

#[test]
fn the_driver_allocates_and_frees_its_own() {
    let driver = Emulated::new();
    let mut given = null_mut();
    assert_eq!(driver.cuMemHostAlloc(&mut given, 5000, FLAGS), 0);
    assert_eq!(pinned(&driver), (1, 5000));
    // SAFETY: the driver has mapped two pages, and nothing else uses them.
    let bytes = unsafe { std::slice::from_raw_parts_mut(given.cast::<u8>(), 5000) };
    bytes.fill(9);
    assert_eq!(driver.cuMemHostUnregister(given), NOT_REGISTERED, "the driver's own memory");
    assert_eq!((driver.cuMemFreeHost(given), driver.cuMemFreeHost(given)), (0, INVALID_VALUE));
    assert_eq!(pinned(&driver), (0, 0));
}

#[test]
fn copies_read_and_write_pinned_memory_when_they_run() {
    let driver = Emulated::new();
    let mut bytes = memory(PAGE);
    let at = address(&mut bytes);
    assert_eq!(driver.cuMemHostRegister_v2(at, PAGE, FLAGS), 0);
    let (device, stream) = (driver.alloc(PAGE).expect("memory"), driver.stream(1).expect("a stream"));
    driver.control.hold(stream).expect("a stream");
    bytes.fill(1);
    assert_eq!(driver.cuMemcpyHtoDAsync_v2(device, at, PAGE, stream), 0);
    // A program that does not wait sends what it writes here.
    bytes.fill(2);
    driver.control.release(stream).expect("a stream");
    assert_eq!(driver.cuStreamSynchronize(stream), 0);
    assert_eq!(driver.read(device, 4), Ok(vec![2; 4]));
    driver.control.hold(stream).expect("a stream");
    bytes.fill(3);
    // Returns although the copy waits.
    assert_eq!(driver.cuMemcpyDtoHAsync_v2(at, device, PAGE, stream), 0);
    assert_eq!(bytes[PAGE - 1], 3);
    driver.control.release(stream).expect("a stream");
    assert_eq!(driver.cuStreamSynchronize(stream), 0);
    assert!(bytes.iter().all(|&byte| byte == 2));
    // The call without a stream is complete when it returns.
    bytes.fill(4);
    assert_eq!(driver.cuMemcpyDtoH_v2(at, device, PAGE), 0);
    assert_eq!(bytes[0], 2);
    assert_eq!(driver.cuMemHostUnregister(at), 0);
}

#[test]
fn a_copy_over_the_end_of_a_registration_is_refused() {
    let driver = Emulated::new();
    let mut bytes = memory(3 * 4096);
    let at = address(&mut bytes);
    let (first, device) = (at.wrapping_byte_add(4096), driver.alloc(PAGE).expect("memory"));
    assert_eq!(driver.cuMemHostRegister_v2(at, 4096, FLAGS), 0);
    assert_eq!(driver.cuMemcpyHtoDAsync_v2(device, at, 4096, 0), 0);
    assert_eq!(driver.cuMemcpyHtoDAsync_v2(device, at, 4097, 0), INVALID_VALUE);
    assert_eq!(driver.cuMemcpyDtoHAsync_v2(at, device, 8192, 0), INVALID_VALUE);
    // Two registrations side by side are two.
    assert_eq!(driver.cuMemHostRegister_v2(first, 4096, FLAGS), 0);
    assert_eq!(driver.cuMemcpyHtoDAsync_v2(device, at, 8192, 0), INVALID_VALUE);
    assert_eq!(driver.cuMemcpyHtoDAsync_v2(device, first, 4096, 0), 0);
    assert_eq!((driver.cuMemHostUnregister(at), driver.cuMemHostUnregister(first)), (0, 0));
}

#[test]
fn a_fault_comes_before_or_after_the_call_acts() {
    let driver = Emulated::new();
    let mut bytes = memory(PAGE);
    let at = address(&mut bytes);
    for (when, left) in [("before", 0), ("after", 1)] {
        let rule = format!(r#"[{{"fn":"cuMemHostRegister_v2","code":999,"when":"{when}"}}]"#);
        driver.control.plan(&rule).expect("a rule");
        assert_eq!(driver.cuMemHostRegister_v2(at, PAGE, FLAGS), 999);
        assert_eq!(driver.count("pinned"), left);
    }
    for (when, left) in [("before", 1), ("after", 0)] {
        let rule = format!(r#"[{{"fn":"cuMemHostUnregister","code":999,"when":"{when}"}}]"#);
        driver.control.plan(&rule).expect("a rule");
        assert_eq!(driver.cuMemHostUnregister(at), 999);
        assert_eq!(driver.count("pinned"), left);
    }
    driver.control.plan(r#"[{"fn":"cuMemHostAlloc","code":2}]"#).expect("a rule");
    assert_eq!(driver.cuMemHostAlloc(&mut null_mut(), PAGE, FLAGS), OUT_OF_MEMORY);
}
