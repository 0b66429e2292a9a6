//! A fake driver for unit tests, as a table of entry points. It has two devices and a separate
//! state for each thread. Every call can fail on request, before or after its effect.

mod table;

pub(crate) use table::table;

use crate::driver::Driver;
use crate::driver::result::CuResult;
use crate::driver::table::Table;
use crate::driver::types::*;
use core::ffi::{CStr, c_char, c_int, c_void};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// The context of device 0. The context of device 1 has the next number.
pub(crate) const CONTEXT: CuContext = CuContext(0xc0);
/// A context of neither device.
pub(crate) const FOREIGN_CONTEXT: CuContext = CuContext(0xee);
/// The lowest handle of the streams of device 0.
pub(crate) const STREAM: CuStream = CuStream(0x1_0000);
/// The lowest handle of the streams of device 1.
pub(crate) const FOREIGN_STREAM: CuStream = CuStream(0x100_0000);

/// The moment at which a planned failure happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum When {
    /// The call fails without an effect.
    Before,
    /// The call takes effect, and then returns the failure.
    After,
}

/// A planned failure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// The failing function, or `None` if every function fails.
    pub(crate) function: Option<&'static str>,
    /// The number of matching calls that succeed before the failure.
    pub(crate) skip: usize,
    /// The code of the failing call.
    pub(crate) code: CuResult,
    /// Whether the failing call takes effect.
    pub(crate) when: When,
    /// Whether all later matching calls fail, too.
    pub(crate) permanent: bool,
}

/// The state of a fake event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FakeEvent {
    /// The context that was current when the event was created.
    pub(crate) context: CuContext,
    /// The flags with which the event was created.
    pub(crate) flags: CuEventFlags,
    /// The stream of the last recording, or `None` before the first recording.
    pub(crate) stream: Option<CuStream>,
    /// Whether the work before the event is complete.
    pub(crate) done: bool,
    /// The number of recordings up to the last recording of this event.
    recording: usize,
    /// The number of copies that had started before the last recording.
    copies: usize,
}

/// The state of the fake driver in a thread.
#[derive(Debug)]
pub(crate) struct Fake {
    /// The thread's stack of contexts, with the topmost context last.
    pub(crate) contexts: Vec<CuContext>,
    /// The thread's capture mode.
    pub(crate) mode: CuCaptureMode,
    /// Names of the called functions, in the order of the calls.
    pub(crate) log: Vec<&'static str>,
    /// The planned failure. It is removed after it has happened, unless it is permanent.
    pub(crate) plan: Option<Plan>,
    /// The version that `cuDriverGetVersion` reports.
    pub(crate) version: c_int,
    /// Attributes of the devices with a value other than 0.
    pub(crate) attributes: BTreeMap<u32, c_int>,
    /// The living events, by handle.
    pub(crate) events: BTreeMap<usize, FakeEvent>,
    /// The number of recordings of events.
    recordings: usize,
    /// The streams that the device has made.
    pub(crate) streams: BTreeSet<CuStream>,
    /// The stream and the event of each `cuStreamWaitEvent`.
    pub(crate) waits: Vec<(CuStream, CuEvent)>,
    /// The ids that `cuStreamGetId` reports, by handle. A handle without an entry is its own id.
    pub(crate) ids: BTreeMap<usize, u64>,
    /// The id of the capture that every capturing stream takes part in.
    pub(crate) capture: u64,
    /// The nodes right before the next work of each capturing stream.
    pub(crate) ends: BTreeMap<usize, Vec<CuGraphNode>>,
    /// The nodes right before each node of the captured graph.
    pub(crate) graph: BTreeMap<usize, Vec<CuGraphNode>>,
    /// The code and the status that `cuStreamIsCapturing` returns.
    pub(crate) capturing: (CuResult, CuCaptureStatus),
    /// Whether another thread starts a capture on the stream right before the next recording.
    pub(crate) capture_before_record: bool,
    /// The number of retains of each primary context.
    pub(crate) retained: [i32; 2],
    /// The allocated device memory, as addresses with sizes in bytes.
    pub(crate) memory: BTreeMap<u64, usize>,
    /// The number of allocations before the device is full, if it is limited.
    pub(crate) room: Option<usize>,
    /// The address of the next allocation.
    pub(crate) next_address: u64,
    /// The last handle that was given out.
    next: usize,
    /// The address and the devices of each `cuMemSetAccess`.
    pub(crate) access: Vec<(u64, Vec<c_int>)>,
    /// The address, value, length and stream of each fill.
    pub(crate) fills: Vec<(u64, u8, usize, CuStream)>,
    /// Registered host memory, as addresses with sizes in bytes.
    pub(crate) pinned: BTreeMap<usize, usize>,
    /// The host address of each copy between host and device, in the order of the calls.
    pub(crate) copies: Vec<usize>,
    /// The number of copies that have ended, which are the oldest ones.
    copies_ended: usize,
    /// Whether host memory was unregistered during a copy from or to it.
    pub(crate) torn: bool,
    /// The granularity that the query writes, even if it refuses.
    pub(crate) granularity: usize,
    /// Whether the granularity query (first) and `cuMemCreate` (second) refuse direct access from
    /// the bus.
    pub(crate) refuse_rdma: (bool, bool),
    /// Whether the granularity query (first) and `cuMemCreate` (second) refuse memory for export.
    pub(crate) refuse_export: (bool, bool),
    /// Whether memory for the decompression engine is refused when it is created.
    pub(crate) refuse_engine: bool,
}

thread_local! {
    static FAKE: RefCell<Fake> = RefCell::new(Fake::new());
}

/// Reads or changes the calling thread's fake.
pub(crate) fn with<T>(body: impl FnOnce(&mut Fake) -> T) -> T {
    FAKE.with_borrow_mut(body)
}

/// Resets the calling thread's fake, and loads a driver over the fake.
pub(crate) fn driver() -> &'static Driver {
    with(|fake| *fake = Fake::new());
    load(&table()).expect("the fake starts")
}

/// Loads a driver from a table of the fake's functions.
pub(crate) fn load(table: &Table) -> Result<&'static Driver, crate::LoadError> {
    // SAFETY: the functions in this file write only where the driver's would, and live as long as
    // the process.
    unsafe { Driver::from_table(table) }
}

impl Fake {
    /// Creates the state of a driver that was not called yet.
    fn new() -> Self {
        Self {
            contexts: Vec::new(),
            mode: CuCaptureMode::GLOBAL,
            log: Vec::new(),
            plan: None,
            version: 13_000,
            attributes: BTreeMap::from([(102, 1), (103, 1), (110, 1)]),
            events: BTreeMap::new(),
            recordings: 0,
            streams: BTreeSet::new(),
            waits: Vec::new(),
            ids: BTreeMap::new(),
            capture: 77,
            ends: BTreeMap::new(),
            graph: BTreeMap::new(),
            capturing: (CuResult::SUCCESS, CuCaptureStatus::NONE),
            capture_before_record: false,
            retained: [0; 2],
            memory: BTreeMap::new(),
            room: None,
            next_address: 0x7000_0000_0000,
            next: 0x5000,
            access: Vec::new(),
            fills: Vec::new(),
            pinned: BTreeMap::new(),
            copies: Vec::new(),
            copies_ended: 0,
            torn: false,
            granularity: 2 << 20,
            refuse_rdma: (false, false),
            refuse_export: (false, false),
            refuse_engine: false,
        }
    }

    /// Returns a handle that was never returned before.
    fn fresh(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    /// Returns the topmost context.
    fn current(&self) -> CuContext {
        self.contexts.last().copied().unwrap_or(CuContext::NULL)
    }
}

/// Performs a call of `function`, logs the call, and fails as planned.
fn call(function: &'static str, body: impl FnOnce(&mut Fake) -> CuResult) -> CuResult {
    with(|fake| {
        fake.log.push(function);
        let failure = match &mut fake.plan {
            Some(plan) if plan.function.is_none_or(|name| name == function) => {
                if plan.skip > 0 {
                    plan.skip -= 1;
                    None
                } else {
                    Some(*plan)
                }
            }
            _ => None,
        };
        let Some(plan) = failure else {
            return body(fake);
        };
        if !plan.permanent {
            fake.plan = None;
        }
        if plan.when == When::After {
            let _ = body(fake);
        }
        plan.code
    })
}

/// Performs a call that needs a current context of a device.
fn in_context(function: &'static str, body: impl FnOnce(&mut Fake) -> CuResult) -> CuResult {
    call(function, |fake| match fake.current() {
        CuContext::NULL | FOREIGN_CONTEXT => CuResult::INVALID_CONTEXT,
        _ => body(fake),
    })
}

/// Writes an answer through a pointer of the caller.
fn answer<T>(to: *mut T, value: T) -> CuResult {
    // SAFETY: the code under test passes pointers to live variables of the right type. Miri and the
    // header test check the pointers.
    unsafe { to.write(value) };
    CuResult::SUCCESS
}

/// Returns the context of a stream.
fn context_of(stream: CuStream, current: CuContext) -> CuContext {
    match stream {
        CuStream(0..=2) => current,
        stream if stream < FOREIGN_STREAM => CONTEXT,
        _ => CuContext(CONTEXT.0 + 1),
    }
}

extern "C" fn init(_flags: u32) -> CuResult {
    call("cuInit", |_| CuResult::SUCCESS)
}
extern "C" fn version(version: *mut c_int) -> CuResult {
    call("cuDriverGetVersion", |fake| answer(version, fake.version))
}
extern "C" fn device_get(device: *mut CuDevice, ordinal: c_int) -> CuResult {
    call("cuDeviceGet", |_| match ordinal {
        0 | 1 => answer(device, CuDevice(ordinal)),
        _ => CuResult::INVALID_DEVICE,
    })
}
extern "C" fn total_mem(bytes: *mut usize, _device: CuDevice) -> CuResult {
    call("cuDeviceTotalMem_v2", |_| answer(bytes, 4 << 30))
}
/// A function like those of [`table`], for a driver with UUIDs.
pub(crate) extern "C" fn uuid(uuid: *mut CuUuid, device: CuDevice) -> CuResult {
    let bytes = core::array::from_fn(|at| (0xf8 + at as i32 + device.0) as c_char);
    call("cuDeviceGetUuid_v2", |_| answer(uuid, CuUuid { bytes }))
}
/// A function of a driver that reports the place on the bus. It is not in the table.
pub(crate) extern "C" fn bus_id(to: *mut c_char, length: c_int, device: CuDevice) -> CuResult {
    let text = if device.0 == 0 { c"0000:3b:00.0" } else { c"0000:3b:00.1" };
    call("cuDeviceGetPCIBusId", |_| {
        assert!(text.count_bytes() < length as usize);
        let bytes = text.to_bytes_with_nul().iter().enumerate();
        bytes.map(|(at, &byte)| answer(to.wrapping_add(at), byte as c_char)).fold(CuResult::SUCCESS, |_, code| code)
    })
}
/// Writes the text that the driver has for `CUDA_ERROR_OUT_OF_MEMORY`, and for a code without a
/// meaning.
fn text(code: CuResult, to: *mut *const c_char, texts: [(u32, &'static CStr); 2]) -> CuResult {
    match texts.iter().find(|(known, _)| *known == code.0) {
        Some((_, text)) => answer(to, text.as_ptr()),
        None => CuResult::INVALID_VALUE,
    }
}
extern "C" fn error_name(code: CuResult, to: *mut *const c_char) -> CuResult {
    let texts = [(2, c"CUDA_ERROR_OUT_OF_MEMORY"), (4711, c"CUDA_ERROR_NEW")];
    call("cuGetErrorName", |_| text(code, to, texts))
}
extern "C" fn error_string(code: CuResult, to: *mut *const c_char) -> CuResult {
    let texts = [(2, c"out of memory"), (4712, c"a meaning without a name")];
    // A null pointer means that there is no text.
    call("cuGetErrorString", |_| if code.0 == 4711 { answer(to, core::ptr::null()) } else { text(code, to, texts) })
}
extern "C" fn device_get_count(count: *mut c_int) -> CuResult {
    call("cuDeviceGetCount", |_| answer(count, 2))
}
extern "C" fn attribute(value: *mut c_int, attribute: CuDeviceAttribute, _device: CuDevice) -> CuResult {
    call("cuDeviceGetAttribute", |fake| answer(value, fake.attributes.get(&attribute.0).copied().unwrap_or(0)))
}
extern "C" fn can_access_peer(can: *mut c_int, _device: CuDevice, _peer: CuDevice) -> CuResult {
    call("cuDeviceCanAccessPeer", |fake| answer(can, fake.attributes.get(&9999).copied().unwrap_or(1)))
}
extern "C" fn enable_peer(_peer: CuContext, _flags: u32) -> CuResult {
    in_context("cuCtxEnablePeerAccess", |_| CuResult::SUCCESS)
}
extern "C" fn retain(context: *mut CuContext, device: CuDevice) -> CuResult {
    call("cuDevicePrimaryCtxRetain", |fake| {
        fake.retained[device.0 as usize] += 1;
        answer(context, CuContext(CONTEXT.0 + device.0 as usize))
    })
}
extern "C" fn release(device: CuDevice) -> CuResult {
    call("cuDevicePrimaryCtxRelease_v2", |fake| {
        fake.retained[device.0 as usize] -= 1;
        CuResult::SUCCESS
    })
}
extern "C" fn get_current(context: *mut CuContext) -> CuResult {
    call("cuCtxGetCurrent", |fake| answer(context, fake.current()))
}
extern "C" fn push(context: CuContext) -> CuResult {
    call("cuCtxPushCurrent_v2", |fake| {
        fake.contexts.push(context);
        CuResult::SUCCESS
    })
}
extern "C" fn pop(context: *mut CuContext) -> CuResult {
    call("cuCtxPopCurrent_v2", |fake| match fake.contexts.pop() {
        Some(top) => answer(context, top),
        None => CuResult::INVALID_CONTEXT,
    })
}
extern "C" fn get_device(device: *mut CuDevice) -> CuResult {
    in_context("cuCtxGetDevice", |fake| answer(device, CuDevice((fake.current().0 - CONTEXT.0) as c_int)))
}
extern "C" fn synchronize() -> CuResult {
    in_context("cuCtxSynchronize", |fake| {
        fake.events.values_mut().for_each(|event| event.done = true);
        CuResult::SUCCESS
    })
}
/// A function of drivers since 12.5. It is not in the table, as with older drivers.
pub(crate) extern "C" fn record_context(_context: CuContext, event: CuEvent) -> CuResult {
    in_context("cuCtxRecordEvent", |fake| match fake.events.get_mut(&event.0) {
        Some(event) => {
            event.done = false;
            CuResult::SUCCESS
        }
        None => CuResult::INVALID_HANDLE,
    })
}
extern "C" fn alloc(address: *mut u64, bytes: usize) -> CuResult {
    in_context("cuMemAlloc_v2", |fake| {
        if fake.room == Some(0) {
            return CuResult::OUT_OF_MEMORY;
        }
        fake.room = fake.room.map(|room| room - 1);
        let at = fake.next_address;
        fake.next_address += (bytes as u64).next_multiple_of(512);
        fake.memory.insert(at, bytes);
        answer(address, at)
    })
}
extern "C" fn free(address: u64) -> CuResult {
    in_context("cuMemFree_v2", |fake| match fake.memory.remove(&address) {
        Some(_) => {
            fake.room = fake.room.map(|room| room + 1);
            fake.events.values_mut().for_each(|event| event.done = true);
            CuResult::SUCCESS
        }
        None => CuResult::INVALID_VALUE,
    })
}
extern "C" fn alloc_async(address: *mut u64, bytes: usize, _: CuStream) -> CuResult {
    in_context("cuMemAllocAsync", |fake| {
        let at = fake.next_address;
        fake.next_address += (bytes as u64).next_multiple_of(512);
        fake.memory.insert(at, bytes);
        answer(address, at)
    })
}
extern "C" fn free_async(address: u64, _: CuStream) -> CuResult {
    in_context("cuMemFreeAsync", |fake| match fake.memory.remove(&address) {
        Some(_) => CuResult::SUCCESS,
        None => CuResult::INVALID_VALUE,
    })
}
extern "C" fn get_info(free: *mut usize, total: *mut usize) -> CuResult {
    in_context("cuMemGetInfo_v2", |_| {
        let _ = answer(free, 3 << 30);
        answer(total, 4 << 30)
    })
}
extern "C" fn memset(address: u64, value: u8, bytes: usize, stream: CuStream) -> CuResult {
    in_context("cuMemsetD8Async", |fake| {
        fake.fills.push((address, value, bytes, stream));
        CuResult::SUCCESS
    })
}
extern "C" fn read(to: *mut c_void, from: u64, bytes: usize) -> CuResult {
    // Each byte of the fake's memory is the low byte of its address.
    let read = |at: usize| (from as usize + at) as u8;
    in_context("cuMemcpyDtoH_v2", |_| {
        // SAFETY: as for `answer`: the caller has room for `bytes` bytes.
        (0..bytes).for_each(|at| unsafe { *to.cast::<u8>().wrapping_add(at) = read(at) });
        CuResult::SUCCESS
    })
}
/// Returns whether memory is requested for direct access from the bus, for export, and for the
/// decompression engine.
fn uses(properties: *const CuMemAllocationProp) -> [bool; 3] {
    // SAFETY: as for `answer`.
    let properties = unsafe { properties.read() };
    [
        properties.flags.gpu_direct_rdma_capable == 1,
        properties.requested_handle_types.0 & CuMemHandleType::POSIX_FD.0 != 0,
        properties.flags.usage == CuMemAllocationFlags::HW_DECOMPRESS,
    ]
}
extern "C" fn granularity(out: *mut usize, properties: *const CuMemAllocationProp, _option: CuGranularity) -> CuResult {
    in_context("cuMemGetAllocationGranularity", |fake| {
        let [rdma, export, _] = uses(properties);
        let refused = rdma && fake.refuse_rdma.0 || export && fake.refuse_export.0;
        let _ = answer(out, fake.granularity);
        if refused { CuResult::NOT_SUPPORTED } else { CuResult::SUCCESS }
    })
}
extern "C" fn reserve(address: *mut u64, bytes: usize, _alignment: usize, _hint: u64, _flags: u64) -> CuResult {
    in_context("cuMemAddressReserve", |fake| {
        let at = fake.next_address.next_multiple_of(2 << 20);
        fake.next_address = at + bytes as u64;
        answer(address, at)
    })
}
extern "C" fn unreserve(_address: u64, _bytes: usize) -> CuResult {
    in_context("cuMemAddressFree", |_| CuResult::SUCCESS)
}
extern "C" fn create(
    handle: *mut CuMemHandle,
    _bytes: usize,
    properties: *const CuMemAllocationProp,
    _flags: u64,
) -> CuResult {
    in_context("cuMemCreate", |fake| {
        let [rdma, export, engine] = uses(properties);
        if rdma && fake.refuse_rdma.1 || export && fake.refuse_export.1 || engine && fake.refuse_engine {
            return CuResult::NOT_SUPPORTED;
        }
        let fresh = fake.fresh() as u64;
        answer(handle, CuMemHandle(fresh))
    })
}
extern "C" fn drop_physical(_handle: CuMemHandle) -> CuResult {
    in_context("cuMemRelease", |_| CuResult::SUCCESS)
}
extern "C" fn export(shareable: *mut c_void, handle: CuMemHandle, kind: CuMemHandleType, _flags: u64) -> CuResult {
    in_context("cuMemExportToShareableHandle", |_| match kind {
        CuMemHandleType::POSIX_FD => answer(shareable.cast(), handle.0 as c_int),
        _ => CuResult::INVALID_VALUE,
    })
}
extern "C" fn map(_address: u64, _bytes: usize, _offset: usize, _handle: CuMemHandle, _flags: u64) -> CuResult {
    in_context("cuMemMap", |_| CuResult::SUCCESS)
}
extern "C" fn unmap(_address: u64, _bytes: usize) -> CuResult {
    in_context("cuMemUnmap", |_| CuResult::SUCCESS)
}
extern "C" fn set_access(address: u64, _bytes: usize, first: *const CuMemAccessDesc, count: usize) -> CuResult {
    in_context("cuMemSetAccess", |fake| {
        // SAFETY: as for `answer`: the caller passes `count` descriptors.
        let descriptors = unsafe { core::slice::from_raw_parts(first, count) };
        fake.access.push((address, descriptors.iter().map(|descriptor| descriptor.location.id).collect()));
        CuResult::SUCCESS
    })
}
extern "C" fn event_create(event: *mut CuEvent, flags: CuEventFlags) -> CuResult {
    in_context("cuEventCreate", |fake| {
        let (fresh, context) = (fake.fresh(), fake.current());
        fake.events.insert(fresh, FakeEvent { context, flags, stream: None, done: true, recording: 0, copies: 0 });
        answer(event, CuEvent(fresh))
    })
}
extern "C" fn event_record(event: CuEvent, stream: CuStream) -> CuResult {
    in_context("cuEventRecord", |fake| {
        if std::mem::take(&mut fake.capture_before_record) {
            fake.capturing.1 = CuCaptureStatus::ACTIVE;
        }
        fake.recordings += 1;
        let (current, copies, recording) = (fake.current(), fake.copies.len(), fake.recordings);
        match fake.events.get_mut(&event.0) {
            Some(known) if known.context == context_of(stream, current) => {
                (known.stream, known.done) = (Some(stream), false);
                (known.recording, known.copies) = (recording, copies);
                CuResult::SUCCESS
            }
            _ => CuResult::INVALID_HANDLE,
        }
    })
}
extern "C" fn event_query(event: CuEvent) -> CuResult {
    in_context("cuEventQuery", |fake| match fake.events.get(&event.0) {
        Some(known) if known.done => CuResult::SUCCESS,
        Some(_) => CuResult::NOT_READY,
        None => CuResult::INVALID_HANDLE,
    })
}
extern "C" fn event_synchronize(event: CuEvent) -> CuResult {
    in_context("cuEventSynchronize", |fake| {
        let Some(&known) = fake.events.get(&event.0) else { return CuResult::INVALID_HANDLE };
        let earlier = |event: &&mut FakeEvent| event.stream == known.stream && event.recording <= known.recording;
        fake.events.values_mut().filter(earlier).for_each(|event| event.done = true);
        fake.copies_ended = fake.copies_ended.max(known.copies);
        CuResult::SUCCESS
    })
}
extern "C" fn event_destroy(event: CuEvent) -> CuResult {
    in_context("cuEventDestroy_v2", |fake| match fake.events.remove(&event.0) {
        Some(_) => CuResult::SUCCESS,
        None => CuResult::INVALID_HANDLE,
    })
}
extern "C" fn stream_synchronize(stream: CuStream) -> CuResult {
    in_context("cuStreamSynchronize", |fake| {
        fake.events.values_mut().filter(|event| event.stream == Some(stream)).for_each(|event| event.done = true);
        fake.copies_ended = fake.copies.len();
        CuResult::SUCCESS
    })
}
/// A function of a driver that reports whether a stream has work. It is not in the table.
pub(crate) extern "C" fn stream_query(stream: CuStream) -> CuResult {
    call("cuStreamQuery", |fake| {
        let has_work = fake.events.values().any(|event| event.stream == Some(stream) && !event.done);
        if has_work { CuResult::NOT_READY } else { CuResult::SUCCESS }
    })
}
extern "C" fn host_register(address: *mut c_void, bytes: usize, flags: CuMemHostRegisterFlags) -> CuResult {
    in_context("cuMemHostRegister_v2", |fake| {
        // For every GPU of the process, and for kernels.
        if flags.0 != CuMemHostRegisterFlags::PORTABLE.0 + CuMemHostRegisterFlags::DEVICEMAP.0 {
            return CuResult::INVALID_VALUE;
        }
        match fake.pinned.insert(address.addr(), bytes) {
            None => CuResult::SUCCESS,
            Some(_) => CuResult::HOST_MEMORY_ALREADY_REGISTERED,
        }
    })
}
extern "C" fn host_unregister(address: *mut c_void) -> CuResult {
    in_context("cuMemHostUnregister", |fake| match fake.pinned.remove(&address.addr()) {
        Some(bytes) => {
            let range = address.addr()..address.addr() + bytes;
            fake.torn |= fake.copies[fake.copies_ended..].iter().any(|at| range.contains(at));
            CuResult::SUCCESS
        }
        None => CuResult::HOST_MEMORY_NOT_REGISTERED,
    })
}
/// Starts a copy between the device and the `bytes` bytes of host memory at `host`, which is
/// pinned.
fn copy(fake: &mut Fake, host: usize, bytes: usize) -> CuResult {
    let pinned = fake.pinned.range(..=host).next_back().is_some_and(|(at, pinned)| host + bytes <= at + pinned);
    if !pinned {
        return CuResult::INVALID_VALUE;
    }
    fake.copies.push(host);
    CuResult::SUCCESS
}
extern "C" fn copy_to_host(to: *mut c_void, _from: u64, bytes: usize, _stream: CuStream) -> CuResult {
    in_context("cuMemcpyDtoHAsync_v2", |fake| copy(fake, to.addr(), bytes))
}
extern "C" fn copy_from_host(_to: u64, from: *const c_void, bytes: usize, _stream: CuStream) -> CuResult {
    in_context("cuMemcpyHtoDAsync_v2", |fake| copy(fake, from.addr(), bytes))
}
extern "C" fn is_capturing(_stream: CuStream, status: *mut CuCaptureStatus) -> CuResult {
    in_context("cuStreamIsCapturing", |fake| {
        let _ = answer(status, fake.capturing.1);
        fake.capturing.0
    })
}
extern "C" fn capture_info(
    stream: CuStream,
    status: *mut CuCaptureStatus,
    id: *mut u64,
    _graph: *mut CuGraph,
    dependencies: *mut *const CuGraphNode,
    count: *mut usize,
) -> CuResult {
    in_context("cuStreamGetCaptureInfo_v2", |fake| {
        let _ = answer(id, fake.capture);
        if !dependencies.is_null() {
            let ends = fake.ends.get(&stream.0).map_or(&[][..], Vec::as_slice);
            // A driver has no list for a stream without work.
            let _ = answer(dependencies, if ends.is_empty() { core::ptr::null() } else { ends.as_ptr() });
            let _ = answer(count, ends.len());
        }
        answer(status, fake.capturing.1)
    })
}
/// Reports the nodes right before a node: their number, or the nodes if `nodes` has room.
fn before(fake: &Fake, node: CuGraphNode, nodes: *mut CuGraphNode, count: *mut usize) -> CuResult {
    let known = fake.graph.get(&node.0).map_or(&[][..], Vec::as_slice);
    if nodes.is_null() {
        return answer(count, known.len());
    }
    // SAFETY: as for `answer`: the caller has room for `count` nodes.
    let room = unsafe { *count };
    // SAFETY: as above.
    let nodes = unsafe { core::slice::from_raw_parts_mut(nodes, room) };
    nodes.iter_mut().zip(known).for_each(|(to, node)| *to = *node);
    answer(count, known.len().min(nodes.len()))
}
extern "C" fn dependencies(node: CuGraphNode, nodes: *mut CuGraphNode, count: *mut usize) -> CuResult {
    in_context("cuGraphNodeGetDependencies", |fake| before(fake, node, nodes, count))
}
extern "C" fn dependencies_v2(
    node: CuGraphNode,
    nodes: *mut CuGraphNode,
    properties: *mut CuGraphEdgeData,
    count: *mut usize,
) -> CuResult {
    in_context("cuGraphNodeGetDependencies_v2", |fake| {
        if nodes.is_null() == properties.is_null() { before(fake, node, nodes, count) } else { CuResult::INVALID_VALUE }
    })
}
extern "C" fn exchange(mode: *mut CuCaptureMode) -> CuResult {
    call("cuThreadExchangeStreamCaptureMode", |fake| {
        // SAFETY: as for `answer`.
        let new = unsafe { mode.read() };
        let old = core::mem::replace(&mut fake.mode, new);
        answer(mode, old)
    })
}
extern "C" fn get_id(stream: CuStream, id: *mut u64) -> CuResult {
    call("cuStreamGetId", |fake| answer(id, fake.ids.get(&stream.0).copied().unwrap_or(stream.0 as u64)))
}
extern "C" fn get_ctx(stream: CuStream, context: *mut CuContext) -> CuResult {
    call("cuStreamGetCtx", |fake| answer(context, context_of(stream, fake.current())))
}
extern "C" fn wait_event(stream: CuStream, event: CuEvent, _flags: u32) -> CuResult {
    in_context("cuStreamWaitEvent", |fake| {
        fake.waits.push((stream, event));
        if fake.events.contains_key(&event.0) { CuResult::SUCCESS } else { CuResult::INVALID_HANDLE }
    })
}
extern "C" fn stream_create(stream: *mut CuStream, _flags: CuStreamFlags) -> CuResult {
    in_context("cuStreamCreate", |fake| {
        let fresh = CuStream(STREAM.0 + fake.fresh());
        fake.streams.insert(fresh);
        answer(stream, fresh)
    })
}
extern "C" fn stream_destroy(stream: CuStream) -> CuResult {
    in_context("cuStreamDestroy_v2", |fake| {
        if fake.streams.remove(&stream) { CuResult::SUCCESS } else { CuResult::INVALID_HANDLE }
    })
}
extern "C" fn pool(pool: *mut CuMemoryPool, _device: CuDevice) -> CuResult {
    call("cuDeviceGetDefaultMemPool", |_| answer(pool, CuMemoryPool(0x99)))
}
extern "C" fn pool_attribute(_pool: CuMemoryPool, attribute: CuMemPoolAttribute, value: *mut c_void) -> CuResult {
    call("cuMemPoolGetAttribute", |_| match attribute {
        CuMemPoolAttribute::RESERVED_MEM_CURRENT => answer(value.cast(), 12_345_u64),
        _ => CuResult::INVALID_VALUE,
    })
}
extern "C" fn address_range(base: *mut u64, bytes: *mut usize, address: u64) -> CuResult {
    in_context("cuMemGetAddressRange_v2", |fake| match fake.memory.range(..=address).next_back() {
        Some((at, size)) if address - at < *size as u64 => {
            let _ = answer(base, *at);
            answer(bytes, *size)
        }
        _ => CuResult::NOT_FOUND,
    })
}
