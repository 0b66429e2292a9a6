//! The places of memory: on the host, at fixed addresses, after its end; and the device's free
//! memory around it.

use crate::front::attribute;
use crate::sheet::{PAGE, Sheet, code, host_pages, yes};
use cachalot_emulated_driver::api::{Access, Properties};

/// A page as an offset.
const STEP: u64 = PAGE as u64;

/// Writes what is known of an address: type, device, start, size and whether it is mapped.
fn known(sheet: &Sheet, name: &str, address: u64) {
    let attributes = [2, 9, 11, 12, 13].map(|number| format!("{number}: {}", attribute(sheet, number, address)));
    let (mut kind, mut ordinal) = (7_u32, 7_i32);
    let mut values: [*mut std::ffi::c_void; 2] = [(&raw mut kind).cast(), (&raw mut ordinal).cast()];
    let both = sheet.cuPointerGetAttributes(2, [2, 9].as_mut_ptr(), values.as_mut_ptr(), address);
    let range = sheet.cuMemGetAddressRange_v2(&mut 0, &mut 0, address);
    sheet.line(name, format!("{}; both {both} type {kind} device {ordinal}; range {range}", attributes.join(", ")));
}

/// Asks for the attributes of memory that is freed.
pub(crate) fn freed(sheet: &Sheet) {
    sheet.begin();
    let stream = sheet.stream(1).expect("a stream");
    let plain = sheet.alloc(4 * PAGE).expect("memory");
    sheet.cuMemFree_v2(plain);
    known(sheet, "freed memory", plain);
    let (keeper, small) = (sheet.alloc(1000).expect("memory"), sheet.alloc(1000).expect("memory"));
    sheet.cuMemFree_v2(small);
    known(sheet, "freed small memory", small);
    sheet.cuMemFree_v2(keeper);
    let pooled = sheet.alloc_async(4 * PAGE, stream).expect("memory");
    let gate = crate::sheet::Gate::close(sheet, stream);
    sheet.cuMemFreeAsync(pooled, stream);
    known(sheet, "memory of a pool with a free that waits", pooled);
    gate.open();
    sheet.cuStreamSynchronize(stream);
    known(sheet, "freed memory of a pool", pooled);
    let (base, handle) = (sheet.reserve(PAGE).expect("addresses"), sheet.create(PAGE).expect("memory"));
    assert_eq!((sheet.cuMemMap(base, PAGE, 0, handle, 0), sheet.allow(base, PAGE)), (0, 0));
    known(sheet, "mapped memory", base);
    sheet.cuMemRelease(handle);
    known(sheet, "mapped memory without its handle", base);
    sheet.cuMemUnmap(base, PAGE);
    known(sheet, "unmapped memory", base);
    sheet.cuMemAddressFree(base, PAGE);
    known(sheet, "addresses given back", base);
    let (mut managed, mut pinned, pages) = (0, std::ptr::null_mut(), host_pages(1 << 16));
    assert_eq!((sheet.cuMemAllocManaged(&mut managed, 1000, 1), sheet.cuMemAllocHost_v2(&mut pinned, 1000)), (0, 0));
    sheet.cuMemFree_v2(managed);
    known(sheet, "freed managed memory", managed);
    sheet.cuMemFreeHost(pinned);
    known(sheet, "freed pinned memory", pinned as u64);
    assert_eq!(sheet.cuMemHostRegister_v2(pages, 1 << 16, 0), 0);
    sheet.cuMemHostUnregister(pages);
    known(sheet, "unregistered memory", pages as u64);
}

/// Asks for the memory that the device has free around the calls for virtual memory.
pub(crate) fn held(sheet: &Sheet) {
    const BYTES: usize = 64 << 20;
    sheet.begin();
    let free = || sheet.info().expect("cuMemGetInfo").0;
    let warm = sheet.create(BYTES).expect("memory");
    sheet.cuMemRelease(warm);
    let base = sheet.reserve(BYTES).expect("addresses");
    let before = free();
    let line = |when: &str| sheet.line(when, before as i64 - free() as i64);
    for order in ["unmapped first", "released first", "released twice"] {
        let handle = sheet.create(BYTES).expect("memory");
        line(&format!("{order}: taken after cuMemCreate"));
        assert_eq!(sheet.cuMemMap(base, BYTES, 0, handle, 0), 0, "cuMemMap");
        line(&format!("{order}: after cuMemMap"));
        assert_eq!(sheet.allow(base, BYTES), 0, "cuMemSetAccess");
        line(&format!("{order}: after cuMemSetAccess"));
        let unmap = || sheet.line(&format!("{order}: cuMemUnmap"), sheet.cuMemUnmap(base, BYTES));
        let release = || sheet.line(&format!("{order}: cuMemRelease"), sheet.cuMemRelease(handle));
        if order == "unmapped first" {
            unmap();
            line(&format!("{order}: after cuMemUnmap"));
            release();
        } else {
            release();
            line(&format!("{order}: after cuMemRelease"));
            if order == "released twice" {
                release();
            }
            unmap();
        }
        line(&format!("{order}: at the end"));
    }
    // A released handle, while the memory is mapped.
    let handle = sheet.create(BYTES).expect("memory");
    assert_eq!(sheet.cuMemMap(base, BYTES, 0, handle, 0), 0, "cuMemMap");
    sheet.cuMemRelease(handle);
    let elsewhere = sheet.reserve(BYTES).expect("addresses");
    sheet.line("cuMemMap of a released handle", sheet.cuMemMap(elsewhere, BYTES, 0, handle, 0));
    sheet.line("cuMemSetAccess of a mapping without its handle", sheet.allow(base, BYTES));
    sheet.line("cuMemUnmap of it", sheet.cuMemUnmap(base, BYTES));
    sheet.line("cuMemUnmap again", sheet.cuMemUnmap(base, BYTES));
    line("taken at last");
}

/// Asks for memory of `cuMemCreate` at the host.
pub(crate) fn places(sheet: &Sheet) {
    sheet.begin();
    for (name, location_kind, location) in [
        ("the host", 2, 0),
        ("the host, number 1", 2, 1),
        ("node 0", 3, 0),
        ("node 99", 3, 99),
        ("the thread's node", 4, 0),
    ] {
        let properties = Properties { location_kind, location, ..Properties::of_device(0) };
        for (option, number) in [("least", 0), ("best", 1)] {
            let mut bytes = 0;
            let answer = sheet.cuMemGetAllocationGranularity(&mut bytes, &properties, number);
            sheet.line(&format!("{option} granularity of {name}"), format!("{answer} {bytes}"));
        }
        let (before, mut handle) = (sheet.info().expect("cuMemGetInfo").0, 0);
        let answer = sheet.cuMemCreate(&mut handle, PAGE, &properties, 0);
        let taken = before as i64 - sheet.info().expect("cuMemGetInfo").0 as i64;
        sheet.line(&format!("cuMemCreate at {name}"), format!("{answer} of the device {taken}"));
        if answer != 0 {
            continue;
        }
        let base = sheet.reserve(PAGE).expect("addresses");
        sheet.line(&format!("cuMemMap of it, {name}"), sheet.cuMemMap(base, PAGE, 0, handle, 0));
        sheet.line(&format!("cuMemSetAccess for the device, {name}"), sheet.allow(base, PAGE));
        let own = Access { location_kind, location, flags: 3 };
        let answer = sheet.cuMemSetAccess(base, PAGE, &raw const own, 1);
        sheet.line(&format!("cuMemSetAccess for its place, {name}"), answer);
        let host = Access { location_kind: 2, location: 0, flags: 3 };
        let answer = sheet.cuMemSetAccess(base, PAGE, &raw const host, 1);
        sheet.line(&format!("cuMemSetAccess for the host, {name}"), answer);
        let filled = sheet.cuMemsetD8_v2(base, 9, PAGE);
        let read = sheet.read(base + STEP - 8, 8);
        sheet.line(
            &format!("fill and copy, {name}"),
            format!("{filled} {} {}", code(read.clone()), yes(read == Ok(vec![9; 8]))),
        );
        known(sheet, &format!("attributes, {name}"), base);
        sheet.line(&format!("cuMemUnmap, {name}"), sheet.cuMemUnmap(base, PAGE));
        sheet.line(&format!("cuMemRelease, {name}"), sheet.cuMemRelease(handle));
    }
}

/// Asks for addresses at fixed places and of every alignment.
pub(crate) fn addresses(sheet: &Sheet) {
    sheet.begin();
    for alignment in [0, 1, 2, 3, 512, 4096, 3 << 20, PAGE, 6 << 20, 1 << 30, 1 << 40] {
        let mut address = 0;
        let answer = sheet.cuMemAddressReserve(&mut address, PAGE, alignment, 0, 0);
        let kept = alignment == 0 || answer != 0 || address.is_multiple_of(alignment as u64);
        sheet.line(&format!("cuMemAddressReserve with alignment {alignment}"), format!("{answer} kept {}", yes(kept)));
        sheet.cuMemAddressFree(address, PAGE);
    }
    let base = sheet.reserve(64 * PAGE).expect("addresses");
    sheet.cuMemAddressFree(base, 64 * PAGE);
    let heap = host_pages(4 * PAGE) as u64;
    for (name, hint, alignment) in [
        ("given back before", base, 0),
        ("given back before and 8 pages", base + 8 * STEP, 0),
        ("off the granularity", base + 4096, 0),
        ("off the alignment", base + STEP, 1 << 30),
        ("of the host's memory", (heap + STEP) / STEP * STEP, 0),
        ("of the first page", STEP, 0),
        ("above all", 1 << 63, 0),
        ("of 2^46", 1 << 46, 0),
    ] {
        let mut address = 0;
        let answer = sheet.cuMemAddressReserve(&mut address, PAGE, alignment, hint, 0);
        sheet
            .line(&format!("cuMemAddressReserve at a hint {name}"), format!("{answer} there {}", yes(address == hint)));
        if answer == 0 {
            sheet.cuMemAddressFree(address, PAGE);
        }
    }
    let (first, second) = (sheet.reserve(PAGE).expect("addresses"), sheet.reserve(PAGE).expect("addresses"));
    sheet.line("two reservations of a page lie side by side", yes(first.abs_diff(second) == STEP));
}

/// Asks for the attributes of a device on which allocators rely.
pub(crate) fn attributes(sheet: &Sheet) {
    sheet.begin();
    for number in [33, 34, 50, 41, 83, 88, 89, 92, 99, 100, 101, 102, 103, 110, 115, 116, 119, 124, 130] {
        let mut value = 0;
        let answer = sheet.cuDeviceGetAttribute(&mut value, number, 0);
        // Where the device is says nothing of its kind.
        let value = if [33, 34, 50].contains(&number) { "a place".to_owned() } else { value.to_string() };
        sheet.line(&format!("cuDeviceGetAttribute {number}"), format!("{answer} {value}"));
    }
    for number in [16, 75, 76] {
        let mut value = 0;
        sheet.cuDeviceGetAttribute(&mut value, number, 0);
        sheet.remark(format!("cuDeviceGetAttribute {number} is {value}"));
    }
}
