//! The driver's answers about an address. They are those of driver 580.159 on an H100.

use crate::common::{Emulated, PAGE};
use std::ffi::c_void;

/// `CU_POINTER_ATTRIBUTE_*`.
const CONTEXT: i32 = 1;
const MEMORY_TYPE: i32 = 2;
const DEVICE_POINTER: i32 = 3;
const HOST_POINTER: i32 = 4;
const SYNC_MEMOPS: i32 = 6;
const BUFFER_ID: i32 = 7;
const IS_MANAGED: i32 = 8;
const DEVICE_ORDINAL: i32 = 9;
const IS_LEGACY_IPC_CAPABLE: i32 = 10;
const RANGE_START: i32 = 11;
const RANGE_SIZE: i32 = 12;
const ACCESS_FLAGS: i32 = 16;
const POOL_HANDLE: i32 = 17;
const MAPPING_SIZE: i32 = 18;
const MAPPING_BASE: i32 = 19;

/// A page as an offset.
const STEP: u64 = PAGE as u64;
/// The byte that no answer leaves in a value.
const UNTOUCHED: u8 = 0xee;

/// Asks for an attribute. A value of four bytes leaves the upper half untouched.
fn ask(driver: &Emulated, attribute: i32, address: u64) -> Result<u64, u32> {
    let mut value = [UNTOUCHED; 16];
    match driver.cuPointerGetAttribute(value.as_mut_ptr().cast(), attribute, address) {
        0 if value[4..8] == [UNTOUCHED; 4] => Ok(u32::from_ne_bytes(value[..4].try_into().expect("4 bytes")).into()),
        0 => Ok(u64::from_ne_bytes(value[..8].try_into().expect("8 bytes"))),
        code => Err(code),
    }
}

/// Asks for several attributes.
fn ask_all<const N: usize>(driver: &Emulated, attributes: [i32; N], address: u64) -> [Result<u64, u32>; N] {
    attributes.map(|attribute| ask(driver, attribute, address))
}

/// Allocates pinned memory of the host.
fn pinned(driver: &Emulated, bytes: usize) -> u64 {
    let mut memory = std::ptr::null_mut();
    assert_eq!(driver.cuMemAllocHost_v2(&mut memory, bytes), 0);
    memory as u64
}

/// Sets synchronous copies on or off.
fn set_sync(driver: &Emulated, address: u64, on: u32) -> u32 {
    driver.cuPointerSetAttribute((&raw const on).cast(), SYNC_MEMOPS, address)
}

#[test]
fn plain_memory_is_described_from_any_address_inside() {
    let driver = Emulated::new();
    let context = driver.enter(0).expect("a context");
    let large = driver.alloc(3 * PAGE + 5).expect("memory");
    let small = driver.alloc(1000).expect("memory");
    for (start, bytes, inside) in [(large, 3 * STEP + 5, 0), (large, 3 * STEP + 5, STEP + 1), (small, 1000, 999)] {
        let at = start + inside;
        let kind = ask_all(&driver, [CONTEXT, MEMORY_TYPE, DEVICE_POINTER, HOST_POINTER, IS_MANAGED], at);
        assert_eq!(kind, [Ok(context), Ok(2), Ok(at), Err(1), Ok(0)]);
        assert_eq!(ask_all(&driver, [DEVICE_ORDINAL, IS_LEGACY_IPC_CAPABLE, ACCESS_FLAGS], at), [Ok(0), Ok(1), Ok(3)]);
        assert_eq!(ask_all(&driver, [RANGE_START, RANGE_SIZE, POOL_HANDLE], at), [Ok(start), Ok(bytes), Ok(0)]);
    }
    assert_eq!(ask_all(&driver, [MAPPING_BASE, MAPPING_SIZE], large), [Ok(large), Ok(4 * STEP)]);
    assert_eq!(ask_all(&driver, [MAPPING_SIZE], small), [Ok(STEP)], "small memory shares a page");
    // Past the end, unknown, null, freed.
    assert_eq!(driver.cuMemFree_v2(large), 0);
    for address in [small + 1000, 4096, 0, large] {
        assert_eq!(ask_all(&driver, [MEMORY_TYPE, CONTEXT, RANGE_SIZE], address), [Err(1); 3], "{address:#x}");
    }
    assert_eq!(ask_all(&driver, [0, 22, 99, -1], small), [Err(1); 4]);
    assert_eq!(driver.cuPointerGetAttribute(std::ptr::null_mut(), MEMORY_TYPE, small), 1);
}

#[test]
fn every_memory_has_a_number_of_its_own() {
    let driver = Emulated::new();
    let stream = driver.stream(1).expect("a stream");
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..3 {
        let addresses = [
            driver.alloc(1000).expect("memory"),
            driver.alloc_async(1000, stream).expect("memory"),
            pinned(&driver, 1000),
        ];
        for address in addresses {
            let id = ask(&driver, BUFFER_ID, address).expect("a number");
            assert_eq!(ask(&driver, BUFFER_ID, address + 999), Ok(id));
            assert!(seen.insert(id), "{id} again");
        }
        // The same addresses come again, with other numbers.
        assert_eq!(driver.cuMemFree_v2(addresses[0]), 0);
        assert_eq!(driver.cuMemFreeAsync(addresses[1], stream), 0);
        assert_eq!(driver.cuMemFreeHost(addresses[2] as *mut c_void), 0);
    }
}

#[test]
fn memory_of_a_pool_belongs_to_no_context() {
    let driver = Emulated::new();
    let (stream, mut pool) = (driver.stream(1).expect("a stream"), 0);
    let address = driver.alloc_async(PAGE, stream).expect("memory");
    assert_eq!(driver.cuDeviceGetDefaultMemPool(&mut pool, 0), 0);
    assert_eq!(ask_all(&driver, [CONTEXT, MEMORY_TYPE, POOL_HANDLE], address + 1), [Ok(0), Ok(2), Ok(pool)]);
    assert_eq!(ask_all(&driver, [IS_LEGACY_IPC_CAPABLE, RANGE_SIZE], address), [Ok(0), Ok(STEP)]);
}

#[test]
fn a_mapping_tells_the_reservation_as_its_range() {
    let driver = Emulated::new();
    let (base, handle) = (driver.reserve(2 * PAGE).expect("addresses"), driver.create(PAGE).expect("memory"));
    assert_eq!(ask(&driver, MEMORY_TYPE, base), Err(1), "reserved only");
    assert_eq!(driver.cuMemMap(base, PAGE, 0, handle, 0), 0);
    assert_eq!(ask_all(&driver, [ACCESS_FLAGS, DEVICE_POINTER, MEMORY_TYPE], base), [Ok(0), Err(1), Ok(2)]);
    assert_eq!(driver.allow(base, PAGE), 0);
    assert_eq!(ask_all(&driver, [ACCESS_FLAGS, DEVICE_POINTER, CONTEXT], base + 7), [Ok(3), Ok(base + 7), Ok(0)]);
    assert_eq!(ask_all(&driver, [RANGE_START, RANGE_SIZE], base + 7), [Ok(base), Ok(2 * STEP)]);
    assert_eq!(ask_all(&driver, [MAPPING_BASE, MAPPING_SIZE], base + 7), [Ok(base), Ok(STEP)]);
    assert_eq!(ask_all(&driver, [IS_LEGACY_IPC_CAPABLE, SYNC_MEMOPS], base), [Ok(0), Ok(1)]);
    assert_eq!(ask(&driver, MEMORY_TYPE, base + STEP), Err(1));
}

#[test]
fn pinned_memory_is_of_the_host() {
    let driver = Emulated::new();
    let mut own = vec![0_u8; 8192];
    let registered = own.as_mut_ptr() as u64;
    assert_eq!(driver.cuMemHostRegister_v2(own.as_mut_ptr().cast(), 8192, 0), 0);
    for (start, bytes) in [(pinned(&driver, 1000), 1000), (registered, 8192)] {
        let at = start + 10;
        assert_eq!(ask_all(&driver, [MEMORY_TYPE, HOST_POINTER, DEVICE_POINTER], at), [Ok(1), Ok(at), Ok(at)]);
        assert_eq!(ask_all(&driver, [RANGE_START, RANGE_SIZE, SYNC_MEMOPS], at), [Ok(start), Ok(bytes), Ok(0)]);
        let (mut base, mut length) = (0, 0);
        assert_eq!(driver.cuMemGetAddressRange_v2(&mut base, &mut length, at), 0);
        assert_eq!((base, length as u64), (start, bytes));
    }
    assert_eq!(driver.cuMemHostUnregister(own.as_mut_ptr().cast()), 0);
    assert_eq!(ask(&driver, MEMORY_TYPE, registered), Err(1));
}

#[test]
fn synchronous_copies_can_be_set_but_not_for_virtual_memory() {
    let driver = Emulated::new();
    let stream = driver.stream(1).expect("a stream");
    let plain = driver.alloc(PAGE).expect("memory");
    for address in [plain, plain + 8, driver.alloc_async(PAGE, stream).expect("memory"), pinned(&driver, 8)] {
        for on in [0, 1] {
            assert_eq!((set_sync(&driver, address, on), ask(&driver, SYNC_MEMOPS, address)), (0, Ok(on.into())));
        }
    }
    let (base, handle) = (driver.reserve(2 * PAGE).expect("addresses"), driver.create(PAGE).expect("memory"));
    assert_eq!((driver.cuMemMap(base, PAGE, 0, handle, 0), driver.allow(base, PAGE)), (0, 0));
    assert_eq!([base, base + STEP, 4096, 0].map(|address| set_sync(&driver, address, 1)), [801, 1, 1, 1]);
    let on = 1_u32;
    let others = (0..22).filter(|&attribute| attribute != SYNC_MEMOPS);
    let set = |attribute| driver.cuPointerSetAttribute((&raw const on).cast(), attribute, plain);
    assert!(others.map(set).all(|code| code == 1));
    assert_eq!(driver.cuPointerSetAttribute(std::ptr::null(), SYNC_MEMOPS, plain), 1);
}

#[test]
fn several_attributes_come_at_once_also_for_an_unknown_address() {
    let driver = Emulated::new();
    let address = driver.alloc(1000).expect("memory");
    let mut attributes = [MEMORY_TYPE, DEVICE_ORDINAL, RANGE_START, RANGE_SIZE];
    let (mut kind, mut ordinal, mut start, mut bytes) = (7_u32, 7_i32, 7_u64, 7_u64);
    let mut values: [*mut c_void; 4] =
        [(&raw mut kind).cast(), (&raw mut ordinal).cast(), (&raw mut start).cast(), (&raw mut bytes).cast()];
    let values = values.as_mut_ptr();
    let ask = |attributes: &mut [i32; 4], count, address| {
        driver.cuPointerGetAttributes(count, attributes.as_mut_ptr(), values, address)
    };
    assert_eq!(ask(&mut attributes, 4, address + 8), 0);
    assert_eq!((kind, ordinal, start, bytes), (2, 0, address, 1000));
    assert_eq!(ask(&mut attributes, 4, 4096), 0);
    assert_eq!((kind, ordinal, start, bytes), (0, -2, address, 1000), "without a range");
    assert_eq!(ask(&mut attributes, 0, address), 1);
    assert_eq!(driver.cuPointerGetAttributes(4, std::ptr::null_mut(), values, address), 1);
    assert_eq!(driver.cuPointerGetAttributes(4, attributes.as_mut_ptr(), std::ptr::null_mut(), address), 1);
    attributes[1] = 99;
    assert_eq!((ask(&mut attributes, 4, address), ask(&mut attributes, 4, 4096)), (1, 1));
}

#[test]
fn a_capture_permits_questions_and_forbids_the_setting() {
    let driver = Emulated::new();
    let (stream, address) = (driver.stream(1).expect("a stream"), driver.alloc(8).expect("memory"));
    assert_eq!(driver.cuStreamBeginCapture_v2(stream, 0), 0);
    assert_eq!(ask(&driver, MEMORY_TYPE, address), Ok(2));
    assert_eq!(driver.cuMemGetAddressRange_v2(&mut 0, &mut 0, address), 0);
    assert_eq!(driver.end_capture(stream).map(drop), Ok(()));
    assert_eq!(driver.cuStreamBeginCapture_v2(stream, 0), 0);
    assert_eq!((set_sync(&driver, address, 1), driver.end_capture(stream)), (900, Err(901)));
}
