//! Start, contexts, peers.

use crate::calls::{CALLS, Things};
use crate::compare::ONE_DEVICE;
use crate::sheet::{Sheet, code, yes};
use std::ffi::CStr;

/// Before, during and after `cuInit`.
pub(crate) fn start(sheet: &Sheet) {
    sheet.line("cuDriverGetVersion before cuInit", sheet.cuDriverGetVersion(&mut 0));
    sheet.line("cuDeviceGetCount before cuInit", sheet.cuDeviceGetCount(&mut 0));
    sheet.line("cuCtxGetCurrent before cuInit", sheet.cuCtxGetCurrent(&mut 0));
    sheet.line("cuMemAlloc_v2 before cuInit", code(sheet.alloc(1)));
    sheet.line("cuMemFree_v2 before cuInit", sheet.cuMemFree_v2(0));
    sheet.line("cuMemAddressReserve before cuInit", code(sheet.reserve(1 << 21)));
    sheet.line("cuInit with a flag", sheet.cuInit(1));
    sheet.line("cuInit", sheet.cuInit(0));
    sheet.line("cuInit again", sheet.cuInit(0));
    let (mut version, mut count) = (0, 0);
    sheet.cuDriverGetVersion(&mut version);
    sheet.cuDeviceGetCount(&mut count);
    sheet.remark(format!("driver {version}, {count} devices"));
    sheet.line("cuDeviceGet of -1", sheet.cuDeviceGet(&mut 0, -1));
    sheet.line("cuDeviceGet of the count", sheet.cuDeviceGet(&mut 0, count));
    sheet.line("cuDeviceGetAttribute 0", sheet.cuDeviceGetAttribute(&mut 0, 0, 0));
    sheet.line("cuDeviceGetAttribute 99999", sheet.cuDeviceGetAttribute(&mut 0, 99_999, 0));
    sheet.line("cuDeviceGetAttribute of device 99", sheet.cuDeviceGetAttribute(&mut 0, 102, 99));
    names(sheet);
    addresses(sheet);
}

/// Names of codes.
fn names(sheet: &Sheet) {
    for number in [0, 1, 2, 3, 4, 201, 400, 600, 700, 709, 719, 900, 907, 999, 12_345] {
        let mut name = std::ptr::null();
        let answer = sheet.cuGetErrorName(number, &mut name);
        // SAFETY: a C string of the library when not null.
        let text = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
        sheet.line(&format!("cuGetErrorName of {number}"), format!("{answer} {}", text.as_deref().unwrap_or("null")));
    }
}

/// `cuGetProcAddress`.
fn addresses(sheet: &Sheet) {
    let cases = [
        ("an unknown symbol", c"cuNoSuchFunction", 12_000),
        ("a known symbol", c"cuMemAlloc", 12_000),
        ("a symbol older than itself", c"cuStreamGetId", 11_000),
        ("a version above the driver's", c"cuMemAlloc", 99_000),
    ];
    for (name, symbol, version) in cases {
        let (mut address, mut status) = (std::ptr::null_mut(), -1);
        let answer = sheet.cuGetProcAddress_v2(symbol.as_ptr(), &mut address, version, 0, &raw mut status);
        let found = yes(!address.is_null());
        sheet.line(&format!("cuGetProcAddress_v2 of {name}"), format!("{answer} status {status} found {found}"));
    }
}

/// Asks about the stack of contexts and the life of a context.
pub(crate) fn contexts(sheet: &Sheet) {
    assert_eq!(sheet.cuInit(0), 0, "cuInit");
    let mut current = 1;
    sheet.line("cuCtxGetCurrent without one", sheet.cuCtxGetCurrent(&mut current));
    sheet.line("the context without one is null", yes(current == 0));
    sheet.line("cuCtxPopCurrent_v2 of nothing", sheet.cuCtxPopCurrent_v2(&mut 0));
    sheet.line("cuCtxSetCurrent of null", sheet.cuCtxSetCurrent(0));
    sheet.line("cuCtxPushCurrent_v2 of null", sheet.cuCtxPushCurrent_v2(0));
    sheet.line("cuDevicePrimaryCtxRelease_v2 without a retain", sheet.cuDevicePrimaryCtxRelease_v2(0));
    let first = sheet.enter(0).expect("a context");
    let second = sheet.enter(0).expect("a context");
    sheet.line("a second retain gives the same context", yes(first == second));
    sheet.line("cuDevicePrimaryCtxRelease_v2, not the last", sheet.cuDevicePrimaryCtxRelease_v2(0));
    sheet.line("cuMemAlloc_v2 after it", code(sheet.alloc(1)));
    created(sheet);
    sheet.cuCtxSetCurrent(first);
    sheet.line("cuDevicePrimaryCtxRelease_v2, the last", sheet.cuDevicePrimaryCtxRelease_v2(0));
    sheet.line("cuMemAlloc_v2 in the released context", code(sheet.alloc(1)));
    sheet.line("cuCtxGetDevice in the released context", sheet.cuCtxGetDevice(&mut 0));
    sheet.line("cuCtxSynchronize in the released context", sheet.cuCtxSynchronize());
    sheet.line("cuCtxSetCurrent of the released context", sheet.cuCtxSetCurrent(first));
    let third = sheet.enter(0);
    sheet.line("a new life has the same context", yes(third == Ok(first)));
    sheet.line("cuMemAlloc_v2 in the new life", code(sheet.alloc(1)));
}

/// Asks about a created context beside the primary context.
fn created(sheet: &Sheet) {
    let address = sheet.alloc(4096).expect("memory");
    let event = sheet.event().expect("an event");
    let (mut context, mut current) = (0, 0);
    sheet.line("cuCtxCreate_v2", sheet.cuCtxCreate_v2(&mut context, 0, 0));
    sheet.cuCtxGetCurrent(&mut current);
    sheet.line("the created context is current", yes(context == current));
    sheet.line("cuMemFree_v2 of another context's memory", sheet.cuMemFree_v2(address));
    sheet.line("cuEventRecord of another context's event", sheet.cuEventRecord(event, 0));
    sheet.line("cuEventQuery of another context's event", sheet.cuEventQuery(event));
    sheet.line("cuEventDestroy_v2 of another context's event", sheet.cuEventDestroy_v2(event));
    let destroyed = std::thread::scope(|scope| scope.spawn(|| sheet.cuCtxDestroy_v2(context)).join());
    sheet.line("cuCtxDestroy_v2 by another thread", destroyed.unwrap_or(u32::MAX));
    sheet.line("cuMemAlloc_v2 in the destroyed context", code(sheet.alloc(1)));
    sheet.line("cuCtxSynchronize in the destroyed context", sheet.cuCtxSynchronize());
    sheet.line("cuCtxGetCurrent in the destroyed context", sheet.cuCtxGetCurrent(&mut current));
    sheet.line("cuCtxPopCurrent_v2 of the destroyed context", sheet.cuCtxPopCurrent_v2(&mut current));
}

/// Makes every call while no context is current.
pub(crate) fn without_context(sheet: &Sheet) {
    let context = sheet.begin();
    // The last release would destroy the objects, as would the calls that change the current
    // context.
    sheet.cuDevicePrimaryCtxRetain(&mut 0, 0);
    for (name, call) in CALLS {
        sheet.cuCtxSetCurrent(context);
        let things = Things::new(sheet, context, false);
        sheet.cuCtxSetCurrent(0);
        sheet.line(name, call(sheet, &things));
        sheet.cuCtxSetCurrent(context);
        things.close(sheet);
    }
}

/// Peer access between two devices, if present.
pub(crate) fn peers(sheet: &Sheet) {
    assert_eq!(sheet.cuInit(0), 0, "cuInit");
    let mut count = 0;
    sheet.cuDeviceGetCount(&mut count);
    let mut can = 7;
    sheet.line("cuDeviceCanAccessPeer of itself", format!("{} {can}", sheet.cuDeviceCanAccessPeer(&mut can, 0, 0)));
    if count < 2 {
        sheet.remark(ONE_DEVICE);
        return;
    }
    let other = sheet.enter(1).expect("a context");
    let address = sheet.alloc(1 << 21).expect("memory");
    let own = sheet.enter(0).expect("a context");
    sheet.line("cuMemFree_v2 while another device's context is current", sheet.cuMemFree_v2(address));
    sheet.line("cuCtxDisablePeerAccess before enabling", sheet.cuCtxDisablePeerAccess(other));
    sheet.line("cuCtxEnablePeerAccess with a flag", sheet.cuCtxEnablePeerAccess(other, 1));
    sheet.line("cuCtxEnablePeerAccess of itself", sheet.cuCtxEnablePeerAccess(own, 0));
    sheet.line("cuCtxEnablePeerAccess", sheet.cuCtxEnablePeerAccess(other, 0));
    sheet.line("cuCtxEnablePeerAccess again", sheet.cuCtxEnablePeerAccess(other, 0));
    sheet.line("cuCtxDisablePeerAccess", sheet.cuCtxDisablePeerAccess(other));
    let event = sheet.event().expect("an event");
    sheet.cuCtxSetCurrent(other);
    let stream = sheet.stream(1).expect("a stream");
    sheet.line("cuEventRecord on another device's stream", sheet.cuEventRecord(event, stream));
    sheet.line("cuStreamWaitEvent for another device's event", sheet.cuStreamWaitEvent(stream, event, 0));
}
