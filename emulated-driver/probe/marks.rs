//! The amounts of a pool: in use, reserved, and the most of both, around frees that wait.

use crate::sheet::{Gate, Sheet, code, in_a_moment};
use cachalot_emulated_driver::api::PoolProperties;

/// A size above every step in which a driver extends a pool.
const LARGE: usize = 128 << 20;

/// Asks about the default pool and about a made pool.
pub(crate) fn questions(sheet: &Sheet) {
    sheet.begin();
    let stream = sheet.stream(1).expect("a stream");
    let default = sheet.default_pool(0).expect("a pool");
    amounts(sheet, "default", default, stream);
    let mut made = 0;
    assert_eq!(sheet.cuMemPoolCreate(&mut made, &PoolProperties::of_device(0)), 0, "cuMemPoolCreate");
    amounts(sheet, "made", made, stream);
    sheet.line("cuMemPoolDestroy", sheet.cuMemPoolDestroy(made));
    streams(sheet, default, stream);
}

/// Follows the amounts: reserved now and at most, used now and at most, in MiB.
fn amounts(sheet: &Sheet, kind: &str, pool: u64, stream: u64) {
    let line = |when: &str| {
        let read = |attribute| sheet.pool_attribute(pool, attribute).map_or(u64::MAX, |bytes| bytes >> 20);
        let text = format!("reserved {} most {} used {} most {}", read(5), read(6), read(7), read(8));
        sheet.line(&format!("{kind} pool, {when}"), text);
    };
    let set = |attribute, value| sheet.set_pool_attribute(pool, attribute, value);
    let alloc = || {
        let mut address = 0;
        assert_eq!(sheet.cuMemAllocFromPoolAsync(&mut address, LARGE, pool, stream), 0, "cuMemAllocFromPoolAsync");
        address
    };
    sheet.cuMemPoolTrimTo(pool, 0);
    set(6, 0);
    set(8, 0);
    line("at first");
    let first = alloc();
    line("after an allocation");
    let gate = Gate::close(sheet, stream);
    sheet.cuMemFreeAsync(first, stream);
    line("after a free that waits");
    sheet.line(&format!("{kind} pool, cuMemPoolTrimTo 0 then"), sheet.cuMemPoolTrimTo(pool, 0));
    line("after the trim");
    set(6, 0);
    set(8, 0);
    line("after a reset of the most");
    gate.open();
    sheet.cuStreamSynchronize(stream);
    line("after the free");
    set(4, u64::MAX);
    let (first, second) = (alloc(), alloc());
    sheet.cuMemFreeAsync(first, stream);
    sheet.cuMemFreeAsync(second, stream);
    sheet.cuStreamSynchronize(stream);
    line("after two frees, kept");
    sheet.cuMemPoolTrimTo(pool, LARGE);
    line("after a trim to one of them");
    set(8, 0);
    line("after a reset of the most used");
    sheet.cuMemPoolTrimTo(pool, usize::MAX);
    line("after a trim to more than that");
    sheet.cuMemPoolTrimTo(pool, 0);
    line("after a trim to nothing");
    set(4, 0);
}

/// Frees on other streams than the allocation's.
fn streams(sheet: &Sheet, pool: u64, stream: u64) {
    let alloc = |stream| sheet.alloc_async(LARGE, stream).expect("memory");
    let used = || sheet.pool_attribute(pool, 7).map_or(u64::MAX, |bytes| bytes >> 20);
    let gone = sheet.stream(1).expect("a stream");
    let address = alloc(gone);
    sheet.line("cuStreamDestroy_v2 of the stream of an allocation", sheet.cuStreamDestroy_v2(gone));
    sheet.line("used then", used());
    sheet.line("cuMemFreeAsync on another stream then", sheet.cuMemFreeAsync(address, stream));
    sheet.cuStreamSynchronize(stream);
    sheet.line("used after it", used());
    let address = alloc(stream);
    sheet.line("cuMemFreeAsync on the legacy stream", sheet.cuMemFreeAsync(address, 0));
    sheet.cuCtxSynchronize();
    let (mut own, mut elsewhere) = (0, 0);
    sheet.cuCtxGetCurrent(&mut own);
    assert_eq!(sheet.cuCtxCreate_v2(&mut elsewhere, 0, 0), 0, "cuCtxCreate");
    let its = sheet.stream(1).expect("a stream");
    sheet.cuCtxSetCurrent(own);
    let address = sheet.alloc_async(LARGE, 0).expect("memory");
    sheet.cuCtxSynchronize();
    sheet.line("cuMemFreeAsync on another context's stream", sheet.cuMemFreeAsync(address, its));
    sheet.line("cuMemAllocAsync on another context's stream", code(sheet.alloc_async(LARGE, its)));
    sheet.cuCtxSynchronize();
    // The allocation is queued behind a gate, and the free on a stream without order to it.
    let gate = Gate::close(sheet, stream);
    let address = alloc(stream);
    let other = sheet.stream(1).expect("a stream");
    sheet.line("cuMemFreeAsync on another stream before the allocation has run", sheet.cuMemFreeAsync(address, other));
    // The free takes a moment.
    sheet.line("cuStreamQuery of that stream", in_a_moment(|| sheet.cuStreamQuery(other)));
    gate.open();
    sheet.line("cuCtxSynchronize after it", sheet.cuCtxSynchronize());
    let gate = Gate::close(sheet, stream);
    let address = alloc(stream);
    let answer = gate.asked(|| sheet.cuMemFree_v2(address));
    sheet.line("cuMemFree_v2 before the allocation has run", answer);
    sheet.line("cuCtxSynchronize after it too", sheet.cuCtxSynchronize());
}
