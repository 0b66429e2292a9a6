//! One call of each function with valid arguments. The questions vary the state around the call.

use crate::sheet::{PAGE, Sheet, code, host, host_pages};
use cachalot_emulated_driver::api::{Api, Properties};
use std::ffi::c_void;

/// Objects for one round of calls. Some calls consume their objects, so every call gets fresh
/// objects.
pub(crate) struct Things {
    pub(crate) context: u64,
    /// A non-blocking idle stream for a capture.
    pub(crate) stream: u64,
    /// Another non-blocking idle stream.
    pub(crate) other: u64,
    spare_stream: u64,
    /// An event recorded on `other`, already complete.
    pub(crate) event: u64,
    spare_event: u64,
    address: u64,
    spare_address: u64,
    /// Two pages: the first is mapped and accessible, the second is only reserved.
    base: u64,
    spare_base: u64,
    handle: u64,
    /// Not mapped.
    spare_handle: u64,
    /// Memory of the default pool, allocated on `other`.
    pooled: u64,
    pinned: u64,
    /// Host memory, of which the first half is registered.
    registered: u64,
}

/// Bytes of each half of [`Things::registered`].
const HALF: usize = 1 << 16;

/// Name and code of a call.
pub(crate) type Call = (&'static str, fn(&Api, &Things) -> u32);

/// A page as an offset.
const STEP: u64 = PAGE as u64;

pub(crate) unsafe extern "C" fn do_nothing(_argument: *mut c_void) {}

/// Calls whose answer depends on the state.
pub(crate) const CALLS: &[Call] = &[
    ("cuMemAlloc_v2", |api, _| code(api.alloc(4096))),
    ("cuMemFree_v2", |api, things| api.cuMemFree_v2(things.spare_address)),
    ("cuMemGetInfo_v2", |api, _| code(api.info())),
    ("cuMemGetAddressRange_v2", |api, things| api.cuMemGetAddressRange_v2(&mut 0, &mut 0, things.address)),
    ("cuMemsetD8Async", |api, things| api.cuMemsetD8Async(things.address, 0, 64, things.other)),
    ("cuMemcpyDtoDAsync_v2", |api, things| {
        api.cuMemcpyDtoDAsync_v2(things.address, things.address + 512, 64, things.other)
    }),
    ("cuMemcpyHtoD_v2", |api, things| api.write(things.address, &[0; 64])),
    ("cuMemcpyDtoH_v2", |api, things| code(api.read(things.address, 64))),
    ("cuMemGetAllocationGranularity", |api, _| api.cuMemGetAllocationGranularity(&mut 0, &Properties::of_device(0), 0)),
    ("cuMemAddressReserve", |api, _| code(api.reserve(PAGE))),
    ("cuMemAddressFree", |api, things| api.cuMemAddressFree(things.spare_base, PAGE)),
    ("cuMemCreate", |api, _| code(api.create(PAGE).map(|handle| api.cuMemRelease(handle)))),
    ("cuMemMap", |api, things| api.cuMemMap(things.base + STEP, PAGE, 0, things.spare_handle, 0)),
    ("cuMemSetAccess", |api, things| api.allow(things.base, PAGE)),
    ("cuMemUnmap", |api, things| api.cuMemUnmap(things.base, PAGE)),
    ("cuMemRelease", |api, things| api.cuMemRelease(things.spare_handle)),
    ("cuEventCreate", |api, _| code(api.event())),
    ("cuEventRecord", |api, things| api.cuEventRecord(things.event, things.other)),
    ("cuEventQuery", |api, things| api.cuEventQuery(things.event)),
    ("cuEventSynchronize", |api, things| api.cuEventSynchronize(things.event)),
    ("cuEventDestroy_v2", |api, things| api.cuEventDestroy_v2(things.spare_event)),
    ("cuStreamCreate", |api, _| code(api.stream(1))),
    ("cuStreamDestroy_v2", |api, things| api.cuStreamDestroy_v2(things.spare_stream)),
    ("cuStreamSynchronize", |api, things| api.cuStreamSynchronize(things.other)),
    ("cuStreamQuery", |api, things| api.cuStreamQuery(things.other)),
    ("cuStreamWaitEvent", |api, things| api.cuStreamWaitEvent(things.other, things.event, 0)),
    ("cuStreamGetId", |api, things| code(api.stream_id(things.other))),
    ("cuStreamGetId of the first stream", |api, things| code(api.stream_id(things.stream))),
    ("cuStreamGetId of the legacy stream", |api, _| code(api.stream_id(0))),
    ("cuStreamGetCtx", |api, things| api.cuStreamGetCtx(things.other, &mut 0)),
    ("cuStreamGetCtx of the first stream", |api, things| api.cuStreamGetCtx(things.stream, &mut 0)),
    ("cuStreamIsCapturing", |api, things| code(api.capturing(things.other))),
    ("cuStreamIsCapturing of the legacy stream", |api, _| code(api.capturing(0))),
    ("cuStreamGetCaptureInfo_v2", |api, things| {
        let null = std::ptr::null_mut();
        api.cuStreamGetCaptureInfo_v2(things.other, &mut 0, &mut 0, null, std::ptr::null_mut(), std::ptr::null_mut())
    }),
    ("cuThreadExchangeStreamCaptureMode", |api, _| {
        let mut mode = 2;
        let code = api.cuThreadExchangeStreamCaptureMode(&mut mode);
        api.cuThreadExchangeStreamCaptureMode(&mut mode);
        code
    }),
    ("cuLaunchHostFunc", |api, things| api.cuLaunchHostFunc(things.other, do_nothing, std::ptr::null_mut())),
    ("cuCtxGetCurrent", |api, _| api.cuCtxGetCurrent(&mut 0)),
    ("cuCtxGetDevice", |api, _| api.cuCtxGetDevice(&mut 0)),
    ("cuCtxPushCurrent_v2 and cuCtxPopCurrent_v2", |api, things| {
        let code = api.cuCtxPushCurrent_v2(things.context);
        if code == 0 { api.cuCtxPopCurrent_v2(&mut 0) } else { code }
    }),
    ("cuCtxSynchronize", |api, _| api.cuCtxSynchronize()),
    ("cuDevicePrimaryCtxRetain", |api, _| api.cuDevicePrimaryCtxRetain(&mut 0, 0)),
    ("cuDevicePrimaryCtxRelease_v2", |api, _| api.cuDevicePrimaryCtxRelease_v2(0)),
    ("cuDeviceGetAttribute", |api, _| api.cuDeviceGetAttribute(&mut 0, 102, 0)),
    ("cuDeviceCanAccessPeer", |api, _| api.cuDeviceCanAccessPeer(&mut 0, 0, 0)),
    ("cuDeviceGetDefaultMemPool", |api, _| api.cuDeviceGetDefaultMemPool(&mut 0, 0)),
    ("cuMemPoolGetAttribute", |api, _| {
        let mut pool = 0;
        let code = api.cuDeviceGetDefaultMemPool(&mut pool, 0);
        if code == 0 { api.pool_attribute(pool, 7).err().unwrap_or(0) } else { code }
    }),
    ("cuCtxRecordEvent", |api, things| api.cuCtxRecordEvent(things.context, things.event)),
    ("cuCtxWaitEvent", |api, things| api.cuCtxWaitEvent(things.context, things.event)),
    ("cuMemAllocAsync", |api, things| code(api.alloc_async(4096, things.other))),
    ("cuMemFreeAsync", |api, things| api.cuMemFreeAsync(things.pooled, things.other)),
    ("cuMemPoolTrimTo", |api, _| {
        let mut pool = 0;
        let code = api.cuDeviceGetDefaultMemPool(&mut pool, 0);
        if code == 0 { api.cuMemPoolTrimTo(pool, 0) } else { code }
    }),
    ("cuMemAllocHost_v2", |api, _| api.cuMemAllocHost_v2(&mut std::ptr::null_mut(), 4096)),
    ("cuMemFreeHost", |api, things| api.cuMemFreeHost(host(things.pinned))),
    ("cuMemHostRegister_v2", |api, things| {
        api.cuMemHostRegister_v2(host(things.registered).wrapping_byte_add(HALF), HALF, 0)
    }),
    ("cuMemHostUnregister", |api, things| api.cuMemHostUnregister(host(things.registered))),
    ("cuMemAllocManaged", |api, _| api.cuMemAllocManaged(&mut 0, 4096, 1)),
    ("cuPointerGetAttribute", |api, things| {
        let mut kind = 0_u32;
        api.cuPointerGetAttribute((&raw mut kind).cast(), 2, things.address)
    }),
];

impl Things {
    /// Creates fresh objects. With `blocking`, the legacy stream waits for the first stream.
    pub(crate) fn new(sheet: &Sheet, context: u64, blocking: bool) -> Self {
        let page = || sheet.create(PAGE).expect("physical memory");
        let mut things = Self {
            context,
            stream: sheet.stream(u32::from(!blocking)).expect("a stream"),
            other: sheet.stream(1).expect("a stream"),
            spare_stream: sheet.stream(1).expect("a stream"),
            event: sheet.event().expect("an event"),
            spare_event: sheet.event().expect("an event"),
            address: sheet.alloc(4096).expect("memory"),
            spare_address: sheet.alloc(4096).expect("memory"),
            base: sheet.reserve(2 * PAGE).expect("addresses"),
            spare_base: sheet.reserve(PAGE).expect("addresses"),
            handle: page(),
            spare_handle: page(),
            pooled: 0,
            pinned: 0,
            registered: host_pages(2 * HALF) as u64,
        };
        things.pooled = sheet.alloc_async(4096, things.other).expect("memory of the pool");
        let mut pinned = std::ptr::null_mut();
        assert_eq!(sheet.cuMemAllocHost_v2(&mut pinned, 4096), 0, "cuMemAllocHost");
        things.pinned = pinned as u64;
        assert_eq!(sheet.cuMemHostRegister_v2(host(things.registered), HALF, 0), 0, "cuMemHostRegister");
        assert_eq!(sheet.cuMemMap(things.base, PAGE, 0, things.handle, 0), 0, "cuMemMap");
        assert_eq!(sheet.allow(things.base, PAGE), 0, "cuMemSetAccess");
        assert_eq!(sheet.cuEventRecord(things.event, things.other), 0, "cuEventRecord");
        assert_eq!(sheet.cuCtxSynchronize(), 0, "cuCtxSynchronize");
        things
    }

    /// Releases all objects left by the calls. An object released already is no error.
    pub(crate) fn close(self, sheet: &Sheet) {
        sheet.cuMemFreeAsync(self.pooled, self.other);
        sheet.cuMemFreeHost(host(self.pinned));
        sheet.cuMemHostUnregister(host(self.registered));
        sheet.cuMemHostUnregister(host(self.registered).wrapping_byte_add(HALF));
        for stream in [self.stream, self.other] {
            sheet.cuStreamDestroy_v2(stream);
        }
        sheet.cuEventDestroy_v2(self.event);
        sheet.cuMemFree_v2(self.address);
        for page in [self.base, self.base + STEP] {
            sheet.cuMemUnmap(page, PAGE);
        }
        sheet.cuMemRelease(self.handle);
        sheet.cuMemAddressFree(self.base, 2 * PAGE);
    }
}
