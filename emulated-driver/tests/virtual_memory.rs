//! Virtual memory: reservations, physical memory, mappings, access.

use crate::common::{self, Emulated, PAGE, in_child, is_child};
use cachalot_emulated_driver::api::{Access, Properties};
use std::os::unix::process::ExitStatusExt;

/// A page as an offset.
const STEP: u64 = PAGE as u64;

/// Reserves `pages` and maps a new handle at each.
fn mapped(driver: &Emulated, pages: usize) -> (u64, Vec<u64>) {
    let base = driver.reserve(pages * PAGE).expect("addresses");
    let handles: Vec<u64> = (0..pages).map(|_| driver.create(PAGE).expect("memory")).collect();
    for (index, &handle) in handles.iter().enumerate() {
        assert_eq!(driver.cuMemMap(base + index as u64 * STEP, PAGE, 0, handle, 0), 0);
    }
    (base, handles)
}

#[test]
fn memory_is_reserved_made_mapped_used_and_given_back() {
    let driver = Emulated::new();
    let mut granularity = 0;
    assert_eq!(driver.cuMemGetAllocationGranularity(&mut granularity, &Properties::of_device(0), 0), 0);
    assert_eq!(granularity, PAGE);
    let free = driver.info().expect("info").0;
    let (base, handles) = mapped(&driver, 3);
    assert_eq!(driver.info().expect("info").0, free - 3 * PAGE);
    // Not accessible before access is set.
    assert_eq!(driver.cuMemsetD8Async(base, 1, PAGE, 0), 1);
    assert_eq!(driver.allow(base, 3 * PAGE), 0);
    assert_eq!(driver.cuMemsetD8Async(base, 1, 3 * PAGE, 0), 0);
    assert_eq!(driver.read(base + 2 * STEP - 1, 2), Ok(vec![1, 1]));
    assert_eq!(driver.cuMemUnmap(base, 3 * PAGE), 0);
    assert_eq!(driver.read(base, 1), Err(1));
    assert!(handles.iter().all(|&handle| driver.cuMemRelease(handle) == 0));
    assert_eq!(driver.info().expect("info").0, free);
    assert_eq!(driver.cuMemAddressFree(base, 3 * PAGE), 0);
    assert_eq!((driver.count("reservations"), driver.count("mappings"), driver.count("physical")), (0, 0, 0));
}

#[test]
fn a_handle_mapped_twice_is_one_memory() {
    let driver = Emulated::new();
    let (left, right) = (driver.reserve(PAGE).expect("addresses"), driver.reserve(PAGE).expect("addresses"));
    let handle = driver.create(PAGE).expect("memory");
    for base in [left, right] {
        assert_eq!(driver.cuMemMap(base, PAGE, 0, handle, 0), 0);
        assert_eq!(driver.allow(base, PAGE), 0);
    }
    assert_eq!(driver.write(left + 7, &[9]), 0);
    assert_eq!(driver.read(right + 7, 1), Ok(vec![9]));
    assert_eq!(driver.cuMemUnmap(left, PAGE), 0);
    assert_eq!(driver.read(right + 7, 1), Ok(vec![9]));
}

#[test]
fn a_released_handle_lives_until_it_is_unmapped() {
    let driver = Emulated::new();
    let free = driver.info().expect("info").0;
    let (base, handles) = mapped(&driver, 1);
    assert_eq!(driver.allow(base, PAGE), 0);
    assert_eq!(driver.cuMemRelease(handles[0]), 0);
    assert_eq!(driver.cuMemRelease(handles[0]), 1);
    assert_eq!(driver.write(base, &[1]), 0);
    assert_eq!(driver.info().expect("info").0, free - PAGE);
    assert_eq!(driver.cuMemUnmap(base, PAGE), 0);
    assert_eq!(driver.info().expect("info").0, free);
    // The number may be reused, and then names other memory.
    assert_eq!(driver.create(PAGE), Ok(handles[0]));
}

#[test]
fn a_part_of_a_mapping_is_refused_and_changes_nothing() {
    let driver = Emulated::new();
    let base = driver.reserve(8 * PAGE).expect("addresses");
    let handle = driver.create(2 * PAGE).expect("memory");
    assert_eq!(driver.cuMemMap(base + STEP, 2 * PAGE, 0, handle, 0), 0);
    for (at, bytes) in [(base + STEP, PAGE), (base + 2 * STEP, PAGE), (base, 2 * PAGE), (base + 2 * STEP, 2 * PAGE)] {
        assert_eq!((driver.cuMemUnmap(at, bytes), driver.allow(at, bytes)), (1, 1));
    }
    for (at, bytes) in [(base, 3 * PAGE), (base + STEP, 3 * PAGE), (base + 4 * STEP, PAGE), (base + STEP, 0)] {
        assert_eq!(driver.allow(at, bytes), 1);
    }
    assert_eq!((driver.cuMemUnmap(base + STEP, 0), driver.cuMemUnmap(base + 4096, PAGE)), (1, 1));
    assert_eq!(driver.count("mappings"), 1);
    assert_eq!(driver.cuMemAddressFree(base, 8 * PAGE), 1);
    assert_eq!(driver.cuMemUnmap(base + STEP, 2 * PAGE), 0);
    for (at, bytes) in [(base, PAGE), (base + STEP, 7 * PAGE), (base, 9 * PAGE)] {
        assert_eq!(driver.cuMemAddressFree(at, bytes), 1);
    }
    assert_eq!((driver.cuMemAddressFree(base, 8 * PAGE), driver.cuMemAddressFree(base, 8 * PAGE)), (0, 1));
}

#[test]
fn an_unmap_passes_over_gaps_unless_told_otherwise() {
    let driver = Emulated::new();
    let base = driver.reserve(8 * PAGE).expect("addresses");
    let handle = driver.create(PAGE).expect("memory");
    let map = |page| driver.cuMemMap(base + page * STEP, PAGE, 0, handle, 0);
    assert_eq!((map(1), map(3)), (0, 0));
    driver.control.answer("unmap_gap", 1).expect("an answer");
    assert_eq!((driver.cuMemUnmap(base, 8 * PAGE), driver.count("mappings")), (1, 2));
    driver.control.answer("unmap_gap", 0).expect("an answer");
    assert_eq!((driver.cuMemUnmap(base, 8 * PAGE), driver.count("mappings")), (0, 0));
    assert_eq!(driver.cuMemUnmap(base, 8 * PAGE), 0);
}

#[test]
fn an_unmap_lies_inside_a_reservation() {
    let driver = Emulated::new();
    let (base, _) = mapped(&driver, 2);
    for (at, bytes) in [(base - STEP, PAGE), (base + 2 * STEP, PAGE), (base - STEP, 3 * PAGE), (base, 3 * PAGE)] {
        assert_eq!(driver.cuMemUnmap(at, bytes), 1);
    }
    assert_eq!(driver.count("mappings"), 2);
    assert_eq!((driver.cuMemUnmap(base, 2 * PAGE), driver.cuMemAddressFree(base, 2 * PAGE)), (0, 0));
    assert_eq!(driver.cuMemUnmap(base, 2 * PAGE), 1);
}

#[test]
fn mappings_lie_inside_reservations_and_never_overlap() {
    let driver = Emulated::new();
    let base = driver.reserve(4 * PAGE).expect("addresses");
    let handle = driver.create(2 * PAGE).expect("memory");
    let wrong = [
        (base + 3 * STEP, 2 * PAGE, 0, handle, 0),
        (base - STEP, 2 * PAGE, 0, handle, 0),
        (base + 4096, 2 * PAGE, 0, handle, 0),
        (base, PAGE + 4096, 0, handle, 0),
        (base, 0, 0, handle, 0),
        (base, 2 * PAGE, 0, handle, 1),
        (base, 2 * PAGE, 0, 12345, 0),
    ];
    for (at, bytes, offset, handle, flags) in wrong {
        assert_eq!(driver.cuMemMap(at, bytes, offset, handle, flags), 1);
    }
    // The whole of a handle or nothing.
    for (bytes, offset) in [(3 * PAGE, 0), (PAGE, 0), (PAGE, PAGE)] {
        assert_eq!(driver.cuMemMap(base, bytes, offset, handle, 0), 801);
    }
    assert_eq!(driver.cuMemMap(base + STEP, 2 * PAGE, 0, handle, 0), 0);
    for at in [base, base + STEP, base + 2 * STEP] {
        assert_eq!(driver.cuMemMap(at, 2 * PAGE, 0, handle, 0), 1);
    }
    assert_eq!(driver.cuMemFree_v2(base + STEP), 1);
    assert_eq!(driver.count("mappings"), 1);
}

#[test]
fn sizes_properties_and_capacity_are_checked() {
    let driver = Emulated::new();
    for bytes in [0, 4096, PAGE + 1] {
        assert_eq!(driver.create(bytes), Err(1));
    }
    assert_eq!(driver.create((1 << 30) + PAGE), Err(2));
    let properties = |device| Properties::of_device(device);
    assert_eq!(driver.cuMemCreate(&mut 0, PAGE, &properties(7), 0), 101);
    assert_eq!(driver.cuMemCreate(&mut 0, PAGE, &properties(0), 1), 1);
    assert_eq!(driver.cuMemCreate(&mut 0, PAGE, &Properties { kind: 0, ..properties(0) }, 0), 1);
    assert_eq!(driver.cuMemCreate(&mut 0, PAGE, &Properties { location_kind: 5, ..properties(0) }, 0), 1);
    for (bytes, alignment, flags) in [(0, 0, 0), (100, 0, 0), (PAGE, 3, 0), (PAGE, 0, 1)] {
        assert_eq!(driver.cuMemAddressReserve(&mut 0, bytes, alignment, 0, flags), 1);
    }
    assert_eq!(driver.reserve(1 << 60), Err(2));
}

#[test]
fn addresses_are_aligned_hinted_and_reused() {
    let driver = Emulated::new();
    let first = driver.reserve(3 * PAGE).expect("addresses");
    let mut aligned = 0;
    assert_eq!(driver.cuMemAddressReserve(&mut aligned, PAGE, 64 * PAGE, 0, 0), 0);
    assert!(aligned.is_multiple_of(64 * STEP));
    let wanted = aligned + 100 * STEP;
    let mut hinted = 0;
    assert_eq!(driver.cuMemAddressReserve(&mut hinted, PAGE, 0, wanted, 0), 0);
    assert_eq!(hinted, wanted);
    assert_eq!(driver.cuMemAddressReserve(&mut hinted, PAGE, 0, wanted, 0), 0);
    assert_ne!(hinted, wanted);
    assert_eq!(driver.cuMemAddressFree(first, 3 * PAGE), 0);
    assert_eq!(driver.reserve(3 * PAGE), Ok(first));
}

#[test]
fn access_is_a_matter_of_each_device() {
    let driver = Emulated::new();
    let (base, _) = mapped(&driver, 1);
    let both = [Access::full(0), Access::full(1)];
    assert_eq!(driver.cuMemSetAccess(base, PAGE, both.as_ptr(), 2), 0);
    let seen = driver.control.seen_by(1, base).cast::<u8>();
    // SAFETY: device 1 was given access, and nothing else uses the memory.
    unsafe { seen.write_volatile(3) };
    assert_eq!(driver.read(base, 1), Ok(vec![3]));
    let none = [Access { flags: 0, ..Access::full(0) }];
    assert_eq!(driver.cuMemSetAccess(base, PAGE, none.as_ptr(), 1), 0);
    // Still device 1's, through which a copy may go.
    assert_eq!(driver.read(base, 1), Ok(vec![3]));
    let wrong = [Access::full(0), Access::full(9)];
    assert_eq!(driver.cuMemSetAccess(base, PAGE, wrong.as_ptr(), 2), 1);
    assert_eq!(driver.cuMemSetAccess(base, PAGE, std::ptr::null(), 0), 1);
}

#[test]
fn memory_to_read_only_is_read_and_not_written() {
    let test = "memory_to_read_only_is_read_and_not_written";
    let driver = Emulated::new();
    let (base, _) = mapped(&driver, 2);
    let set = |flags, bytes| {
        let access = Access { flags, ..Access::full(0) };
        driver.cuMemSetAccess(base, bytes, &raw const access, 1)
    };
    assert_eq!((set(3, 2 * PAGE), driver.write(base, &[7]), set(1, PAGE)), (0, 0, 0));
    assert_eq!(driver.read(base, 1), Ok(vec![7]));
    assert_eq!(driver.cuMemcpyDtoDAsync_v2(base + STEP, base, 1, 0), 0);
    assert_eq!(driver.read(base + STEP, 1), Ok(vec![7]));
    // A write without write access is refused, also if only part of the range is writable.
    assert_eq!((driver.write(base, &[8]), driver.cuMemsetD8Async(base, 8, 1, 0)), (1, 1));
    assert_eq!(driver.cuMemcpyDtoDAsync_v2(base, base + STEP, 1, 0), 1);
    assert_eq!(driver.cuMemsetD8Async(base, 8, 2 * PAGE, 0), 1);
    let seen = driver.control.seen_by(0, base).cast::<u8>();
    if is_child(test) {
        // SAFETY: the address is mapped. The process exists to be killed by the store.
        unsafe { seen.write_volatile(8) };
        std::process::exit(0);
    }
    // SAFETY: the address is mapped to be read, and nothing uses the memory.
    assert_eq!(unsafe { seen.read_volatile() }, 7);
    let output = in_child(test, &[]);
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{}", common::text(&output));
    assert_eq!((set(3, PAGE), driver.write(base, &[8]), driver.read(base, 1)), (0, 0, Ok(vec![8])));
}

#[test]
fn the_range_of_a_mapping_is_told_while_a_device_may_use_it() {
    let driver = Emulated::new();
    let (base, _) = mapped(&driver, 2);
    let range = |address| {
        let (mut start, mut bytes) = (0, 0);
        (driver.cuMemGetAddressRange_v2(&mut start, &mut bytes, address), start, bytes)
    };
    assert_eq!(range(base).0, 500);
    assert_eq!(driver.allow(base + STEP, PAGE), 0);
    assert_eq!((range(base).0, range(base + STEP + 100)), (500, (0, base + STEP, PAGE)));
    let none = Access { flags: 0, ..Access::full(0) };
    assert_eq!(driver.cuMemSetAccess(base + STEP, PAGE, &raw const none, 1), 0);
    assert_eq!(range(base + STEP).0, 500);
}

#[test]
fn memory_in_pieces_is_mapped_as_one() {
    let driver = Emulated::new();
    let handles: Vec<u64> = (0..512).map(|_| driver.create(PAGE).expect("memory")).collect();
    assert_eq!(driver.create(PAGE), Err(2));
    for handle in handles.iter().step_by(2) {
        assert_eq!(driver.cuMemRelease(*handle), 0);
    }
    let handle = driver.create(200 * PAGE).expect("memory");
    let base = driver.reserve(200 * PAGE).expect("addresses");
    assert_eq!(driver.cuMemMap(base, 200 * PAGE, 0, handle, 0), 0);
    assert_eq!(driver.allow(base, 200 * PAGE), 0);
    let pattern: Vec<u8> = (0..=255).collect();
    for page in [0, 57, 198] {
        assert_eq!(driver.write(base + page * STEP + STEP - 128, &pattern), 0);
        assert_eq!(driver.read(base + page * STEP + STEP - 128, 256), Ok(pattern.clone()));
    }
}

#[test]
fn without_the_attribute_there_is_no_virtual_memory() {
    let test = "without_the_attribute_there_is_no_virtual_memory";
    if is_child(test) {
        let driver = Emulated::new();
        let mut value = 1;
        assert_eq!((driver.cuDeviceGetAttribute(&mut value, 102, 0), value), (0, 0));
        assert_eq!((driver.reserve(PAGE), driver.create(PAGE)), (Err(801), Err(801)));
        return;
    }
    let output = in_child(test, &[("CACHALOT_EMU_ATTRIBUTES", r#"{"102": 0}"#)]);
    assert!(output.status.success(), "{}", common::text(&output));
}

#[test]
fn work_that_outlives_its_mapping_is_killed() {
    let test = "work_that_outlives_its_mapping_is_killed";
    if is_child(test) {
        let driver = Emulated::new();
        let (base, _) = mapped(&driver, 1);
        let stream = driver.stream(1).expect("a stream");
        assert_eq!(driver.allow(base, PAGE), 0);
        driver.control.hold(stream).expect("a stream");
        assert_eq!(driver.cuMemsetD8Async(base, 1, PAGE, stream), 0);
        // Does not wait for the held stream.
        assert_eq!(driver.cuMemUnmap(base, PAGE), 0);
        driver.control.release(stream).expect("a stream");
        driver.cuStreamSynchronize(stream);
        std::process::exit(0);
    }
    let output = in_child(test, &[]);
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{}", common::text(&output));
}

/// The properties of memory at a location of the host: 2 of no certain node, 3 of a node.
fn of_host(location_kind: i32, node: i32) -> Properties {
    Properties { location_kind, ..Properties::of_device(node) }
}

/// Creates memory at a location of the host.
fn create_at(driver: &Emulated, bytes: usize, properties: &Properties) -> Result<u64, u32> {
    let mut handle = 0;
    let code = driver.cuMemCreate(&mut handle, bytes, properties, 0);
    if code == 0 { Ok(handle) } else { Err(code) }
}

#[test]
fn memory_of_the_host_is_mapped_beside_memory_of_the_device() {
    let driver = Emulated::new();
    let free = driver.info().expect("info").0;
    let base = driver.reserve(4 * PAGE).expect("addresses");
    let places = [Properties::of_device(0), of_host(2, 7), Properties::of_device(0), of_host(3, 0)];
    for (index, properties) in places.iter().enumerate() {
        let mut granularity = 0;
        assert_eq!(driver.cuMemGetAllocationGranularity(&mut granularity, properties, 0), 0);
        assert_eq!(granularity, PAGE);
        let handle = create_at(&driver, PAGE, properties).expect("memory");
        assert_eq!(driver.cuMemMap(base + index as u64 * STEP, PAGE, 0, handle, 0), 0);
        assert_eq!(driver.cuMemRelease(handle), 0);
    }
    assert_eq!(driver.info().expect("info").0, free - 2 * PAGE);
    assert_eq!(driver.allow(base, 4 * PAGE), 0);
    assert_eq!(driver.cuMemsetD8Async(base, 3, 4 * PAGE, 0), 0);
    assert_eq!(driver.cuCtxSynchronize(), 0);
    for page in 0..4 {
        assert_eq!(driver.read(base + page * STEP + STEP - 1, 1), Ok(vec![3]));
    }
    assert_eq!(driver.cuMemUnmap(base, 4 * PAGE), 0);
    assert_eq!((driver.info().expect("info").0, driver.count("physical")), (free, 0));
}

#[test]
fn the_host_has_access_to_its_own_memory_alone() {
    let driver = Emulated::new();
    let base = driver.reserve(2 * PAGE).expect("addresses");
    let handles = [driver.create(PAGE), create_at(&driver, PAGE, &of_host(3, 0))].map(|handle| handle.expect("memory"));
    for (at, handle) in [base, base + STEP].into_iter().zip(handles) {
        assert_eq!(driver.cuMemMap(at, PAGE, 0, handle, 0), 0);
    }
    assert_eq!(driver.allow(base, 2 * PAGE), 0);
    for location_kind in [2, 3] {
        let host = Access { location_kind, ..Access::full(0) };
        assert_eq!(driver.cuMemSetAccess(base, PAGE, &raw const host, 1), 1);
        // The whole range is refused, with the page of the host.
        assert_eq!(driver.cuMemSetAccess(base, 2 * PAGE, &raw const host, 1), 1);
        assert_eq!(driver.cuMemSetAccess(base + STEP, PAGE, &raw const host, 1), 0);
    }
    // SAFETY: the host may write to the page since the last call.
    unsafe { ((base + STEP) as *mut u8).write(7) };
    assert_eq!(driver.read(base + STEP, 1), Ok(vec![7]));
    let elsewhere = Access { location_kind: 4, ..Access::full(0) };
    assert_eq!(driver.cuMemSetAccess(base + STEP, PAGE, &raw const elsewhere, 1), 1);
}

#[test]
fn memory_of_the_host_is_refused_as_documented() {
    let test = "memory_of_the_host_is_refused_as_documented";
    if is_child(test) {
        let driver = Emulated::new();
        // The node of the calling thread is no place to create memory at, and there is one node.
        assert_eq!(create_at(&driver, PAGE, &of_host(4, 0)), Err(1));
        assert_eq!(create_at(&driver, PAGE, &of_host(3, 1)), Err(1));
        // Only memory of a certain node can be exported.
        let exported = |location_kind| Properties { handle_types: 1, ..of_host(location_kind, 0) };
        assert_eq!(create_at(&driver, PAGE, &exported(2)), Err(1));
        let handle = create_at(&driver, PAGE, &exported(3)).expect("memory");
        assert!(create_at(&driver, 3 * PAGE, &of_host(3, 0)).is_ok());
        assert_eq!(create_at(&driver, PAGE, &of_host(3, 0)), Err(2));
        assert_eq!(driver.cuMemRelease(handle), 0);
        assert!(create_at(&driver, PAGE, &of_host(3, 0)).is_ok());
        return;
    }
    let output = in_child(test, &[("CACHALOT_EMU_HOST_MEMORY", &(4 * PAGE).to_string())]);
    assert!(output.status.success(), "{}", common::text(&output));
}

#[test]
fn without_the_attributes_there_is_no_memory_of_the_host() {
    let test = "without_the_attributes_there_is_no_memory_of_the_host";
    if is_child(test) {
        let driver = Emulated::new();
        assert_eq!(create_at(&driver, PAGE, &of_host(2, 0)), Err(801));
        assert_eq!(create_at(&driver, PAGE, &of_host(3, 0)), Err(801));
        assert!(driver.create(PAGE).is_ok());
        return;
    }
    let output = in_child(test, &[("CACHALOT_EMU_ATTRIBUTES", r#"{"141": 0, "145": 0}"#)]);
    assert!(output.status.success(), "{}", common::text(&output));
}
