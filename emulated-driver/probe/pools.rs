//! Pools of stream-ordered memory.

use crate::sheet::{PAGE, Sheet, code, yes};
use cachalot_emulated_driver::api::PoolProperties;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`, and the amounts.
const THRESHOLD: i32 = 4;
const RESERVED: i32 = 5;
const RESERVED_HIGH: i32 = 6;
const USED: i32 = 7;
const USED_HIGH: i32 = 8;
/// A size above every step in which a driver extends a pool.
const LARGE: usize = 128 << 20;

/// Whether the gate of the waiting stream is open.
static OPEN: AtomicBool = AtomicBool::new(false);

/// Host function that occupies the stream until the gate is open.
unsafe extern "C" fn wait_for_gate(_: *mut c_void) {
    while !OPEN.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
}

/// Asks for the codes of the calls, for reuse, and for the memory kept by a pool.
pub(crate) fn questions(sheet: &Sheet) {
    sheet.begin();
    let stream = sheet.stream(1).expect("a stream");
    let pool = sheet.default_pool(0).expect("a pool");
    attributes(sheet, pool);
    allocations(sheet, stream);
    frees(sheet, stream);
    order(sheet, stream);
    keeping(sheet, pool, stream);
    pools(sheet, pool, stream);
    capture(sheet, stream);
}

/// Asks for the attributes of a device's default pool.
fn attributes(sheet: &Sheet, pool: u64) {
    for attribute in 0..=USED_HIGH {
        let value =
            sheet.pool_attribute(pool, attribute).map_or_else(|code| format!("code {code}"), |it| it.to_string());
        sheet.line(&format!("attribute {attribute} of the default pool"), value);
    }
    let set = |attribute, value| sheet.set_pool_attribute(pool, attribute, value);
    for attribute in 0..=USED_HIGH {
        sheet.line(&format!("cuMemPoolSetAttribute of {attribute} to 1"), set(attribute, 1));
        sheet.line(&format!("cuMemPoolSetAttribute of {attribute} to 0"), set(attribute, 0));
    }
    for attribute in 1..=3 {
        set(attribute, 1);
    }
    sheet.line("cuMemPoolGetAttribute of pool 0", code(sheet.pool_attribute(0, USED)));
}

/// Sizes.
fn allocations(sheet: &Sheet, stream: u64) {
    sheet.line("cuMemAllocAsync of 0", code(sheet.alloc_async(0, stream)));
    let total = sheet.info().expect("cuMemGetInfo").1;
    for (name, bytes) in [("2^60", 1 << 60), ("2^64 - 1", usize::MAX), ("the total and one page", total + PAGE)] {
        sheet.line(&format!("cuMemAllocAsync of {name}"), code(sheet.alloc_async(bytes, stream)));
    }
    let pool = sheet.default_pool(0).expect("a pool");
    let first = sheet.alloc_async(1, stream).expect("memory");
    let used = || sheet.pool_attribute(pool, USED).expect("cuMemPoolGetAttribute");
    sheet.line("used by 1 byte", used());
    let second = sheet.alloc_async(1, stream).expect("memory");
    sheet.line("distance of 1-byte allocations", second.abs_diff(first));
    let (mut base, mut bytes) = (0, 0);
    let code = sheet.cuMemGetAddressRange_v2(&mut base, &mut bytes, first);
    sheet.line("cuMemGetAddressRange_v2 of 1 byte", format!("{code} base {} bytes {bytes}", yes(base == first)));
    sheet.cuMemFreeAsync(first, stream);
    sheet.cuStreamSynchronize(stream);
    sheet.line("used after cuMemFreeAsync", used());
    sheet.cuMemFreeAsync(second, stream);
    sheet.cuStreamSynchronize(stream);
    let large = sheet.alloc_async(LARGE + 1, stream).expect("memory");
    sheet.line("used by 128 MiB and 1 byte", used());
    sheet.cuMemFreeAsync(large, stream);
    sheet.cuStreamSynchronize(stream);
    sheet.line("cuMemAllocAsync on the legacy stream", code_and_free(sheet, 0));
    sheet.line("cuMemAllocAsync on the thread's stream", code_and_free(sheet, 2));
}

/// Allocates on a stream, and frees on the stream.
fn code_and_free(sheet: &Sheet, stream: u64) -> String {
    match sheet.alloc_async(PAGE, stream) {
        Ok(address) => format!("0 then {}", sheet.cuMemFreeAsync(address, stream)),
        Err(code) => code.to_string(),
    }
}

/// Frees, right and wrong.
fn frees(sheet: &Sheet, stream: u64) {
    let address = sheet.alloc_async(3 * PAGE, stream).expect("memory");
    let local = 0_u64;
    sheet.line("cuMemFreeAsync of 0", sheet.cuMemFreeAsync(0, stream));
    sheet.line("cuMemFreeAsync of 1", sheet.cuMemFreeAsync(1, stream));
    sheet.line("cuMemFreeAsync of a host address", sheet.cuMemFreeAsync(std::ptr::from_ref(&local) as u64, stream));
    sheet.line("cuMemFreeAsync of an interior address", sheet.cuMemFreeAsync(address + 512, stream));
    sheet.line("cuMemFreeAsync", sheet.cuMemFreeAsync(address, stream));
    sheet.line("cuMemFreeAsync again", sheet.cuMemFreeAsync(address, stream));
    sheet.line("cuMemFree_v2 after cuMemFreeAsync", sheet.cuMemFree_v2(address));
    let plain = sheet.alloc(PAGE).expect("memory");
    sheet.line("cuMemFreeAsync of cuMemAlloc_v2's", sheet.cuMemFreeAsync(plain, stream));
    let address = sheet.alloc_async(PAGE, stream).expect("memory");
    sheet.line("cuMemFree_v2 of cuMemAllocAsync's", sheet.cuMemFree_v2(address));
    sheet.line("cuMemFreeAsync of it then", sheet.cuMemFreeAsync(address, stream));
    let address = sheet.alloc_async(PAGE, stream).expect("memory");
    let other = sheet.stream(1).expect("a stream");
    sheet.cuStreamSynchronize(stream);
    sheet.line("cuMemFreeAsync on another stream", sheet.cuMemFreeAsync(address, other));
    sheet.cuStreamDestroy_v2(other);
}

/// Asks for the allocations that reuse freed memory, and when.
fn order(sheet: &Sheet, stream: u64) {
    let other = sheet.stream(1).expect("a stream");
    let pool = sheet.default_pool(0).expect("a pool");
    sheet.cuCtxSynchronize();
    let hold = || sheet.cuLaunchHostFunc(stream, wait_for_gate, std::ptr::null_mut());
    let address = sheet.alloc_async(PAGE, stream).expect("memory");
    sheet.line("cuMemsetD8Async at once", sheet.cuMemsetD8Async(address, 1, PAGE, stream));
    hold();
    sheet.line("cuMemFreeAsync behind a gate", sheet.cuMemFreeAsync(address, stream));
    sheet.line("cuStreamQuery behind the gate", sheet.cuStreamQuery(stream));
    let used = sheet.pool_attribute(pool, USED).expect("cuMemPoolGetAttribute");
    sheet.line("used, freed behind a gate", used);
    sheet.line("cuMemsetD8Async after cuMemFreeAsync", sheet.cuMemsetD8Async(address, 1, PAGE, stream));
    let elsewhere = sheet.alloc_async(PAGE, other).expect("memory");
    sheet.line("another stream gets it before the gate opens", yes(elsewhere == address));
    let again = sheet.alloc_async(PAGE, stream).expect("memory");
    sheet.line("the same stream gets it before the gate opens", yes(again == address));
    sheet.line("cuMemFreeAsync on the other stream", sheet.cuMemFreeAsync(elsewhere, other));
    OPEN.store(true, Ordering::Release);
    sheet.cuMemFreeAsync(again, stream);
    sheet.cuStreamSynchronize(stream);
    sheet.cuStreamSynchronize(other);
    sheet.cuStreamDestroy_v2(other);
}

/// Asks for the freed memory kept by a pool.
fn keeping(sheet: &Sheet, pool: u64, stream: u64) {
    let read = |attribute| sheet.pool_attribute(pool, attribute).expect("cuMemPoolGetAttribute");
    let set = |attribute, value| sheet.set_pool_attribute(pool, attribute, value);
    sheet.cuMemPoolTrimTo(pool, 0);
    sheet.line("reserved at first", read(RESERVED));
    set(RESERVED_HIGH, 0);
    let before = sheet.info().expect("cuMemGetInfo").0;
    let address = sheet.alloc_async(LARGE, stream).expect("memory");
    sheet.line("reserved by 128 MiB", read(RESERVED));
    sheet.line("cuMemGetInfo_v2 falls by it", yes(before - sheet.info().expect("cuMemGetInfo").0 >= LARGE));
    sheet.cuMemFreeAsync(address, stream);
    sheet.cuStreamSynchronize(stream);
    sheet.line("reserved after the free and a wait for the stream", read(RESERVED));
    sheet.line("the most reserved", read(RESERVED_HIGH));
    sheet.line("cuMemPoolSetAttribute of the threshold", set(THRESHOLD, u64::MAX));
    let address = sheet.alloc_async(LARGE, stream).expect("memory");
    sheet.cuMemFreeAsync(address, stream);
    sheet.cuStreamSynchronize(stream);
    sheet.line("reserved after the free and a wait, kept by the threshold", read(RESERVED));
    let again = sheet.alloc_async(LARGE, stream).expect("memory");
    sheet.line("the kept address comes again", yes(again == address));
    sheet.line("cuMemPoolTrimTo 0 of used memory", sheet.cuMemPoolTrimTo(pool, 0));
    sheet.line("reserved then", read(RESERVED));
    sheet.cuMemFreeAsync(again, stream);
    sheet.cuStreamSynchronize(stream);
    sheet.line("cuMemPoolTrimTo 0", sheet.cuMemPoolTrimTo(pool, 0));
    sheet.line("reserved after it", read(RESERVED));
    sheet.line("cuMemPoolTrimTo of pool 0", sheet.cuMemPoolTrimTo(0, 0));
    set(THRESHOLD, 0);
}

/// Pools of the program's own.
fn pools(sheet: &Sheet, default: u64, stream: u64) {
    let create = |properties: PoolProperties| {
        let mut pool = 0;
        match sheet.cuMemPoolCreate(&mut pool, &properties) {
            0 => Ok(pool),
            code => Err(code),
        }
    };
    let plain = PoolProperties::of_device(0);
    sheet.line("cuMemPoolCreate of another type", code(create(PoolProperties { kind: 7, ..plain })));
    sheet.line("cuMemPoolCreate nowhere", code(create(PoolProperties { location_kind: 0, ..plain })));
    sheet.line("cuMemPoolCreate on device 99", code(create(PoolProperties { location: 99, ..plain })));
    let own = create(plain).expect("a pool");
    let from = |pool| {
        let mut address = 0;
        match sheet.cuMemAllocFromPoolAsync(&mut address, PAGE, pool, stream) {
            0 => Ok(address),
            code => Err(code),
        }
    };
    sheet.line("cuMemAllocFromPoolAsync of pool 0", code(from(0)));
    sheet.line("threshold of a made pool", sheet.pool_attribute(own, THRESHOLD).expect("cuMemPoolGetAttribute"));
    let address = from(own).expect("memory");
    sheet.line("used of a made pool", sheet.pool_attribute(own, USED).expect("cuMemPoolGetAttribute"));
    sheet.line("used of the default pool", sheet.pool_attribute(default, USED).expect("cuMemPoolGetAttribute"));
    let current = || {
        let mut pool = 0;
        assert_eq!(sheet.cuDeviceGetMemPool(&mut pool, 0), 0);
        pool
    };
    sheet.line("the default pool is the current one", yes(current() == default));
    sheet.line("cuDeviceSetMemPool", sheet.cuDeviceSetMemPool(0, own));
    sheet.line("the set pool is the current one", yes(current() == own));
    sheet.line("cuDeviceSetMemPool of pool 0", sheet.cuDeviceSetMemPool(0, 0));
    sheet.line("cuMemPoolDestroy with memory in use", sheet.cuMemPoolDestroy(own));
    sheet.line("the default pool is the current one again", yes(current() == default));
    sheet.line("cuMemsetD8Async of memory of a destroyed pool", sheet.cuMemsetD8Async(address, 1, PAGE, stream));
    sheet.line("cuMemFreeAsync of it", sheet.cuMemFreeAsync(address, stream));
    sheet.line("cuMemPoolDestroy of the default pool", sheet.cuMemPoolDestroy(default));
    sheet.line("cuMemPoolDestroy of pool 0", sheet.cuMemPoolDestroy(0));
}

/// Asks about calls for a capturing stream.
fn capture(sheet: &Sheet, stream: u64) {
    let address = sheet.alloc_async(PAGE, stream).expect("memory");
    sheet.cuStreamSynchronize(stream);
    assert_eq!(sheet.cuStreamBeginCapture_v2(stream, 2), 0);
    sheet.line("cuMemFreeAsync while the stream captures", sheet.cuMemFreeAsync(address, stream));
    sheet.line("cuMemAllocAsync while the stream captures", code(sheet.alloc_async(PAGE, stream)));
    let _ended = sheet.end_capture(stream);
}
