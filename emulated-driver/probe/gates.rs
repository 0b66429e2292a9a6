//! Calls beside a busy stream: which of them wait for its work.
//!
//! Each stream first fills the memory in question, and is then kept busy by a gate that another
//! thread opens. The fill is complete before, so no work uses what a call takes away.

use crate::calls::do_nothing;
use crate::sheet::{Gate, PAGE, Sheet, code, host_pages, image, yes};
use cachalot_emulated_driver::api::{Access, ArrayShape, PoolProperties};
use std::ffi::c_void;

/// Bytes of the memory in question.
const BYTES: usize = 4 * PAGE;

/// Asks about a call beside a stream that used memory and is busy.
fn ask(sheet: &Sheet, name: &str, used: Option<u64>, act: impl FnOnce(u64) -> u32) {
    let stream = sheet.stream(1).expect("a stream");
    if let Some(address) = used {
        assert_eq!(sheet.cuMemsetD8Async(address, 1, BYTES, stream), 0, "{name}");
        assert_eq!(sheet.cuStreamSynchronize(stream), 0, "{name}");
    }
    let gate = Gate::close(sheet, stream);
    sheet.line(name, gate.asked(|| act(stream)));
    sheet.cuCtxSynchronize();
}

/// Asks about all calls.
pub(crate) fn questions(sheet: &Sheet) {
    sheet.begin();
    sheet.cuDevicePrimaryCtxRetain(&mut 0, 0);
    pages(sheet);
    memory(sheet);
    pools(sheet);
    objects(sheet);
    streams(sheet);
    contexts(sheet);
}

/// Memory of `cuMemCreate`.
fn pages(sheet: &Sheet) {
    let (base, handle) = (sheet.reserve(BYTES).expect("addresses"), sheet.create(BYTES).expect("memory"));
    let map = || {
        assert_eq!(sheet.cuMemMap(base, BYTES, 0, handle, 0), 0, "cuMemMap");
        assert_eq!(sheet.allow(base, BYTES), 0, "cuMemSetAccess");
    };
    map();
    ask(sheet, "cuMemSetAccess to none of used pages", Some(base), |_| {
        sheet.cuMemSetAccess(base, BYTES, &raw const *Box::leak(Box::new(Access { flags: 0, ..Access::full(0) })), 1)
    });
    ask(sheet, "cuMemSetAccess to all of them", None, |_| sheet.allow(base, BYTES));
    ask(sheet, "cuMemUnmap of used pages", Some(base), |_| sheet.cuMemUnmap(base, BYTES));
    map();
    ask(sheet, "cuMemRelease of used pages, mapped", Some(base), |_| sheet.cuMemRelease(handle));
    ask(sheet, "cuMemUnmap of used pages, released", Some(base), |_| sheet.cuMemUnmap(base, BYTES));
    ask(sheet, "cuMemAddressFree of them", None, |_| sheet.cuMemAddressFree(base, BYTES));
}

/// Memory of the device and of the host.
fn memory(sheet: &Sheet) {
    let plain = sheet.alloc(BYTES).expect("memory");
    ask(sheet, "cuMemGetAddressRange_v2", Some(plain), |_| sheet.cuMemGetAddressRange_v2(&mut 0, &mut 0, plain));
    ask(sheet, "cuMemcpyHtoD_v2", Some(plain), |_| sheet.write(plain, &[1; 64]));
    ask(sheet, "cuMemcpyDtoH_v2", Some(plain), |_| code(sheet.read(plain, 64)));
    ask(sheet, "cuMemsetD8_v2", Some(plain), |_| sheet.cuMemsetD8_v2(plain, 1, 64));
    ask(sheet, "cuMemFree_v2 of used memory", Some(plain), |_| sheet.cuMemFree_v2(plain));
    ask(sheet, "cuMemFree_v2 of 0", None, |_| sheet.cuMemFree_v2(0));
    ask(sheet, "cuMemFree_v2 of an unknown address", None, |_| sheet.cuMemFree_v2(4096));
    let mut managed = 0;
    ask(sheet, "cuMemAllocManaged", None, |_| sheet.cuMemAllocManaged(&mut managed, BYTES, 1));
    ask(sheet, "cuMemFree_v2 of used managed memory", Some(managed), |_| sheet.cuMemFree_v2(managed));
    let mut pinned = std::ptr::null_mut::<c_void>();
    ask(sheet, "cuMemAllocHost_v2", None, |_| sheet.cuMemAllocHost_v2(&mut pinned, BYTES));
    ask(sheet, "cuMemFreeHost", None, |_| sheet.cuMemFreeHost(pinned));
    let pages = host_pages(BYTES);
    ask(sheet, "cuMemHostRegister_v2", None, |_| sheet.cuMemHostRegister_v2(pages, BYTES, 0));
    ask(sheet, "cuMemHostUnregister", None, |_| sheet.cuMemHostUnregister(pages));
    let shape = ArrayShape { width: 64, height: 64, format: 1, channels: 1 };
    let mut array = 0;
    ask(sheet, "cuArrayCreate_v2", None, |_| sheet.cuArrayCreate_v2(&mut array, &shape));
    ask(sheet, "cuArrayDestroy", None, |_| sheet.cuArrayDestroy(array));
}

/// Pools.
fn pools(sheet: &Sheet) {
    let other = sheet.stream(1).expect("a stream");
    let default = sheet.default_pool(0).expect("a pool");
    let mut pool = 0;
    ask(sheet, "cuMemPoolCreate", None, |_| sheet.cuMemPoolCreate(&mut pool, &PoolProperties::of_device(0)));
    let mut address = 0;
    ask(sheet, "cuMemAllocAsync on another stream", None, |_| sheet.cuMemAllocAsync(&mut address, BYTES, other));
    ask(sheet, "cuMemFreeAsync on another stream", None, |_| sheet.cuMemFreeAsync(address, other));
    ask(sheet, "cuMemPoolTrimTo 0", None, |_| sheet.cuMemPoolTrimTo(default, 0));
    ask(sheet, "cuMemPoolTrimTo 0 with a free that waits", None, |stream| {
        let address = sheet.alloc_async(BYTES, other).expect("memory");
        sheet.cuMemFreeAsync(address, stream);
        sheet.cuMemPoolTrimTo(default, 0)
    });
    let address = sheet.alloc_async(BYTES, other).expect("memory");
    sheet.cuStreamSynchronize(other);
    ask(sheet, "cuMemFree_v2 of used memory of a pool", Some(address), |_| sheet.cuMemFree_v2(address));
    let mut address = 0;
    assert_eq!(sheet.cuMemAllocFromPoolAsync(&mut address, BYTES, pool, other), 0);
    sheet.cuStreamSynchronize(other);
    ask(sheet, "cuMemPoolDestroy with a free that waits", Some(address), |stream| {
        sheet.cuMemFreeAsync(address, stream);
        sheet.cuMemPoolDestroy(pool)
    });
}

/// Modules and graphs.
fn objects(sheet: &Sheet) {
    let (text, mut module) = (image(sheet), 0);
    ask(sheet, "cuModuleLoadData", None, |_| sheet.cuModuleLoadData(&mut module, text.as_ptr().cast()));
    ask(sheet, "cuModuleUnload", None, |_| sheet.cuModuleUnload(module));
    let captured = sheet.stream(1).expect("a stream");
    sheet.cuStreamBeginCapture_v2(captured, 2);
    sheet.cuLaunchHostFunc(captured, do_nothing, std::ptr::null_mut());
    let graph = sheet.end_capture(captured).expect("a graph");
    let mut executable = 0;
    ask(sheet, "cuGraphInstantiateWithFlags", None, |_| sheet.cuGraphInstantiateWithFlags(&mut executable, graph, 0));
    ask(sheet, "cuGraphLaunch on the busy stream", None, |stream| sheet.cuGraphLaunch(executable, stream));
    ask(sheet, "cuGraphExecDestroy of a graph that waits", None, |stream| {
        sheet.cuGraphLaunch(executable, stream);
        sheet.cuGraphExecDestroy(executable)
    });
}

/// Streams and events.
fn streams(sheet: &Sheet) {
    let event = sheet.event().expect("an event");
    ask(sheet, "cuCtxRecordEvent", None, |_| {
        let mut context = 0;
        sheet.cuCtxGetCurrent(&mut context);
        sheet.cuCtxRecordEvent(context, event)
    });
    // The value says whether the work of a destroyed stream runs.
    let address = sheet.alloc(BYTES).expect("memory");
    assert_eq!((sheet.cuMemsetD8_v2(address, 0, 64), sheet.cuCtxSynchronize()), (0, 0));
    let stream = sheet.stream(1).expect("a stream");
    let gate = Gate::close(sheet, stream);
    sheet.cuMemsetD8Async(address, 7, 64, stream);
    sheet.cuEventRecord(event, stream);
    sheet.line("cuStreamDestroy_v2 with work that waits", sheet.cuStreamDestroy_v2(stream));
    sheet.line("cuEventQuery of its event", sheet.cuEventQuery(event));
    let other = sheet.stream(1).expect("a stream");
    sheet.line("cuStreamWaitEvent for its event", sheet.cuStreamWaitEvent(other, event, 0));
    sheet.line("cuStreamQuery of the stream that waits for it", sheet.cuStreamQuery(other));
    sheet.line("cuCtxRecordEvent while only its work waits", {
        let (mut context, all) = (0, sheet.event().expect("an event"));
        sheet.cuCtxGetCurrent(&mut context);
        format!("{} query {}", sheet.cuCtxRecordEvent(context, all), sheet.cuEventQuery(all))
    });
    let again = sheet.stream(1).expect("a stream");
    sheet.line("its handle comes again while its work waits", yes(again == stream));
    gate.open();
    sheet.line("cuEventSynchronize of its event", sheet.cuEventSynchronize(event));
    sheet.line("cuStreamSynchronize of the stream that waits for it", sheet.cuStreamSynchronize(other));
    sheet.line("its work has run", yes(sheet.read(address, 1) == Ok(vec![7])));
    let never = sheet.event().expect("an event");
    sheet.line("cuEventElapsedTime of events without time", sheet.cuEventElapsedTime(&mut 0.0, event, event));
    sheet.line("cuEventElapsedTime of an event never recorded", sheet.cuEventElapsedTime(&mut 0.0, event, never));
}

/// Contexts.
fn contexts(sheet: &Sheet) {
    let (mut own, mut other) = (0, 0);
    sheet.cuCtxGetCurrent(&mut own);
    ask(sheet, "cuCtxCreate_v2", None, |_| {
        let answer = sheet.cuCtxCreate_v2(&mut other, 0, 0);
        sheet.cuCtxSetCurrent(own);
        answer
    });
    ask(sheet, "cuCtxDestroy_v2 of an idle context", None, |_| sheet.cuCtxDestroy_v2(other));
    ask(sheet, "cuDevicePrimaryCtxRelease_v2, not the last", None, |_| sheet.cuDevicePrimaryCtxRelease_v2(0));
    assert_eq!(sheet.cuCtxCreate_v2(&mut other, 0, 0), 0);
    ask(sheet, "cuCtxDestroy_v2 of the busy context", None, |_| sheet.cuCtxDestroy_v2(other));
    sheet.cuCtxSetCurrent(own);
    ask(sheet, "cuDevicePrimaryCtxReset_v2 of the busy context", None, |_| sheet.cuDevicePrimaryCtxReset_v2(0));
}
