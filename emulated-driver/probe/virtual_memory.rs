//! Virtual memory.

use crate::sheet::{PAGE, Sheet, yes};
use cachalot_emulated_driver::api::{Access, Properties};

/// A page as an offset.
const STEP: u64 = PAGE as u64;
/// Full access for device 0.
static FULL: Access = Access { location_kind: 1, location: 0, flags: 3 };

/// Asks for codes of reservations, physical memory, mappings and access.
pub(crate) fn questions(sheet: &Sheet) {
    sheet.begin();
    reservations(sheet);
    physical(sheet);
    mappings(sheet);
    access(sheet);
    lifetimes(sheet);
    sheet.line("cuCtxSynchronize at the end", sheet.cuCtxSynchronize());
}

/// Addresses.
fn reservations(sheet: &Sheet) {
    let mut granularity = 0;
    sheet.cuMemGetAllocationGranularity(&mut granularity, &Properties::of_device(0), 0);
    sheet.line("granularity", granularity);
    let reserve = |bytes, alignment, flags| sheet.cuMemAddressReserve(&mut 0, bytes, alignment, 0, flags);
    sheet.line("cuMemAddressReserve of 0", reserve(0, 0, 0));
    sheet.line("cuMemAddressReserve of 100 bytes", reserve(100, 0, 0));
    sheet.line("cuMemAddressReserve of 4096 bytes", reserve(4096, 0, 0));
    sheet.line("cuMemAddressReserve of a page and 4096 bytes", reserve(PAGE + 4096, 0, 0));
    sheet.line("cuMemAddressReserve with alignment 3", reserve(PAGE, 3, 0));
    sheet.line("cuMemAddressReserve with alignment 64 MiB", reserve(PAGE, 64 << 20, 0));
    sheet.line("cuMemAddressReserve with a flag", reserve(PAGE, 0, 1));
    sheet.line("cuMemAddressReserve of 2^60", reserve(1 << 60, 0, 0));
    let base = sheet.reserve(4 * PAGE).expect("addresses");
    sheet.line("cuMemAddressFree of a part", sheet.cuMemAddressFree(base, PAGE));
    sheet.line("cuMemAddressFree from inside", sheet.cuMemAddressFree(base + STEP, 3 * PAGE));
    sheet.line("cuMemAddressFree of more", sheet.cuMemAddressFree(base, 5 * PAGE));
    sheet.line("cuMemAddressFree", sheet.cuMemAddressFree(base, 4 * PAGE));
    sheet.line("cuMemAddressFree again", sheet.cuMemAddressFree(base, 4 * PAGE));
    let again = sheet.reserve(4 * PAGE).expect("addresses");
    sheet.line("the addresses come again", yes(again == base));
    let hint = again + 512 * STEP;
    let mut hinted = 0;
    sheet.cuMemAddressReserve(&mut hinted, PAGE, 0, hint, 0);
    sheet.line("a free hint is honoured", yes(hinted == hint));
    let code = sheet.cuMemAddressReserve(&mut hinted, PAGE, 0, hint, 0);
    sheet.line("cuMemAddressReserve at a taken hint", code);
}

/// Physical memory.
fn physical(sheet: &Sheet) {
    let plain = Properties::of_device(0);
    let create = |bytes, properties: &Properties, flags| sheet.cuMemCreate(&mut 0, bytes, properties, flags);
    sheet.line("cuMemCreate of 0", create(0, &plain, 0));
    sheet.line("cuMemCreate of 4096 bytes", create(4096, &plain, 0));
    sheet.line("cuMemCreate with a flag", create(PAGE, &plain, 1));
    sheet.line("cuMemCreate of type 0", create(PAGE, &Properties { kind: 0, ..plain }, 0));
    sheet.line("cuMemCreate at location type 0", create(PAGE, &Properties { location_kind: 0, ..plain }, 0));
    sheet.line("cuMemCreate on device 99", create(PAGE, &Properties::of_device(99), 0));
    let total = sheet.info().expect("cuMemGetInfo").1 / PAGE * PAGE;
    sheet.line("cuMemCreate of the total and one page", create(total + PAGE, &plain, 0));
    let free = || sheet.info().expect("cuMemGetInfo").0;
    let before = free();
    let handle = sheet.create(PAGE).expect("memory");
    sheet.line("memory taken by cuMemCreate of a page", before - free());
    sheet.line("cuMemRelease", sheet.cuMemRelease(handle));
    sheet.line("memory kept after cuMemRelease", before - free());
    sheet.line("cuMemRelease again", sheet.cuMemRelease(handle));
    let again = sheet.create(PAGE).expect("memory");
    sheet.line("the handle comes again", yes(again == handle));
    sheet.cuMemRelease(again);
}

/// Mapping and unmapping.
fn mappings(sheet: &Sheet) {
    let base = sheet.reserve(16 * PAGE).expect("addresses");
    let handle = sheet.create(2 * PAGE).expect("memory");
    let map = |at, bytes, offset, flags| sheet.cuMemMap(at, bytes, offset, handle, flags);
    sheet.line("cuMemMap of 0 bytes", map(base, 0, 0, 0));
    sheet.line("cuMemMap of more than the handle", map(base, 3 * PAGE, 0, 0));
    sheet.line("cuMemMap with an offset", map(base, PAGE, PAGE, 0));
    sheet.line("cuMemMap with a flag", map(base, 2 * PAGE, 0, 1));
    sheet.line("cuMemMap off the granularity", map(base + 4096, 2 * PAGE, 0, 0));
    sheet.line("cuMemMap past the reservation", map(base + 15 * STEP, 2 * PAGE, 0, 0));
    // Some drivers let a mapping reach into the next reservation, so remove the mapping.
    sheet.cuMemUnmap(base + 15 * STEP, 2 * PAGE);
    sheet.line("cuMemMap of a part of the handle", map(base + 8 * STEP, PAGE, 0, 0));
    sheet.cuMemUnmap(base + 8 * STEP, PAGE);
    sheet.line("cuMemMap", map(base, 2 * PAGE, 0, 0));
    sheet.line("cuMemMap at the same place", map(base, 2 * PAGE, 0, 0));
    sheet.line("cuMemMap over a part", map(base + STEP, 2 * PAGE, 0, 0));
    sheet.line("cuMemMap of the same handle elsewhere", map(base + 4 * STEP, 2 * PAGE, 0, 0));
    sheet.line("cuMemFree_v2 of a mapping", sheet.cuMemFree_v2(base));
    sheet.line("cuMemAddressFree with mappings", sheet.cuMemAddressFree(base, 16 * PAGE));
    sheet.line("cuMemUnmap of the first half", sheet.cuMemUnmap(base, PAGE));
    sheet.line("cuMemUnmap of the second half", sheet.cuMemUnmap(base + STEP, PAGE));
    sheet.line("cuMemUnmap of a mapping and a gap", sheet.cuMemUnmap(base, 3 * PAGE));
    sheet.line("cuMemUnmap of two mappings and a gap between", sheet.cuMemUnmap(base, 6 * PAGE));
    sheet.line("cuMemUnmap of nothing mapped", sheet.cuMemUnmap(base + 10 * STEP, PAGE));
    sheet.line("cuMemUnmap of 0 bytes", sheet.cuMemUnmap(base, 0));
    let mapped = sheet.cuMemSetAccess(base, 2 * PAGE, &raw const FULL, 1) == 0;
    sheet.line("the mappings are still there", yes(mapped));
    sheet.cuMemUnmap(base, 2 * PAGE);
    sheet.cuMemUnmap(base + 4 * STEP, 2 * PAGE);
    let pages: Vec<u64> = (0..3).map(|_| sheet.create(PAGE).expect("memory")).collect();
    for (index, &page) in pages.iter().enumerate() {
        sheet.cuMemMap(base + index as u64 * STEP, PAGE, 0, page, 0);
    }
    sheet.line("cuMemSetAccess of three adjacent mappings", sheet.allow(base, 3 * PAGE));
    sheet.line("cuMemUnmap of three adjacent mappings", sheet.cuMemUnmap(base, 3 * PAGE));
    for page in pages.into_iter().chain([handle]) {
        sheet.cuMemRelease(page);
    }
    sheet.line("cuMemAddressFree at the end", sheet.cuMemAddressFree(base, 16 * PAGE));
    let gone = sheet.create(PAGE).expect("memory");
    sheet.line("cuMemMap where nothing is reserved", sheet.cuMemMap(base, PAGE, 0, gone, 0));
    sheet.line("cuMemUnmap where nothing is reserved", sheet.cuMemUnmap(base, PAGE));
    sheet.cuMemRelease(gone);
}

/// Access.
fn access(sheet: &Sheet) {
    let base = sheet.reserve(4 * PAGE).expect("addresses");
    let handle = sheet.create(2 * PAGE).expect("memory");
    sheet.line("cuMemSetAccess of nothing mapped", sheet.allow(base, PAGE));
    sheet.line("cuMemMap before access", sheet.cuMemMap(base, 2 * PAGE, 0, handle, 0));
    sheet.line("cuMemsetD8Async before access", sheet.cuMemsetD8Async(base, 0, 64, 0));
    sheet.line("cuMemSetAccess of a part", sheet.allow(base, PAGE));
    sheet.line("cuMemSetAccess of a mapping and a gap", sheet.allow(base, 3 * PAGE));
    let set = |access: Access, count| sheet.cuMemSetAccess(base, 2 * PAGE, &raw const access, count);
    sheet.line("cuMemSetAccess of no descriptors", set(Access::full(0), 0));
    sheet.line("cuMemSetAccess for device 99", set(Access::full(99), 1));
    sheet.line("cuMemSetAccess with flags 2", set(Access { flags: 2, ..Access::full(0) }, 1));
    sheet.line("cuMemSetAccess to read only", set(Access { flags: 1, ..Access::full(0) }, 1));
    sheet.line("cuMemSetAccess", set(Access::full(0), 1));
    sheet.line("cuMemsetD8Async with access", sheet.cuMemsetD8Async(base, 0, 2 * PAGE, 0));
    sheet.line("cuMemsetD8Async past the mapping", sheet.cuMemsetD8Async(base + STEP, 0, PAGE + 1, 0));
    sheet.line("cuCtxSynchronize with access", sheet.cuCtxSynchronize());
    sheet.line("cuMemSetAccess to none", set(Access { flags: 0, ..Access::full(0) }, 1));
    sheet.line("cuMemsetD8Async after none", sheet.cuMemsetD8Async(base, 0, 64, 0));
    // No device may use the mapping here.
    let (mut start, mut bytes) = (0, 0);
    let code = sheet.cuMemGetAddressRange_v2(&mut start, &mut bytes, base + STEP);
    let range =
        if code == 0 { format!("0 from the base {} bytes {bytes}", yes(start == base)) } else { code.to_string() };
    sheet.line("cuMemGetAddressRange_v2 of a mapping", range);
    sheet.cuMemUnmap(base, 2 * PAGE);
    sheet.line("cuMemsetD8Async after the unmap", sheet.cuMemsetD8Async(base, 0, 64, 0));
    sheet.cuMemMap(base, 2 * PAGE, 0, handle, 0);
    sheet.line("cuMemsetD8Async after a new mapping", sheet.cuMemsetD8Async(base, 0, 64, 0));
    sheet.cuMemUnmap(base, 2 * PAGE);
    sheet.cuMemRelease(handle);
    sheet.cuMemAddressFree(base, 4 * PAGE);
}

/// Asks about lifetimes of handles and mappings, and about aliases.
fn lifetimes(sheet: &Sheet) {
    let free = || sheet.info().expect("cuMemGetInfo").0;
    let before = free();
    let base = sheet.reserve(4 * PAGE).expect("addresses");
    let handle = sheet.create(PAGE).expect("memory");
    for at in [base, base + 2 * STEP] {
        sheet.cuMemMap(at, PAGE, 0, handle, 0);
        sheet.allow(at, PAGE);
    }
    sheet.line("cuMemRelease while mapped", sheet.cuMemRelease(handle));
    sheet.line("memory held by mappings alone", before - free());
    sheet.line("cuMemcpyHtoD_v2 through one mapping", sheet.write(base, &[0x42; 8]));
    sheet.line("the other mapping shows it", yes(sheet.read(base + 2 * STEP, 8) == Ok(vec![0x42; 8])));
    sheet.cuMemUnmap(base, PAGE);
    sheet.line("memory held by the last mapping", before - free());
    sheet.cuMemUnmap(base + 2 * STEP, PAGE);
    sheet.line("memory kept after the last unmap", before - free());
    sheet.line("cuMemAddressFree after all", sheet.cuMemAddressFree(base, 4 * PAGE));
}
