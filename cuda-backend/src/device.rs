//! A CUDA device that implements the core's traits: memory, and the clock.

use crate::capture_marks::CaptureMarks;
use crate::clock;
use crate::context::Context;
use crate::context_wait::{begin_bytes, end_bytes, keep_bytes};
use crate::driver::Driver;
use crate::driver::result::CuResult;
use crate::driver::types::{CuContext, CuDevice, CuDeviceAttribute, CuStream};
use crate::handle::Handle;
use crate::host_claims::Claim;
use crate::host_memory;
use crate::own_stream::OwnStream;
use crate::peers::Peers;
use crate::spare_events::SpareEvents;
use crate::stand_ins::StandIns;
use crate::store::Store;
use crate::streams::{StreamIdentity, Streams};
use crate::virtual_support::{PageOptions, Virtual, has};
use cachalot_core::{
    CallSite, Contents, DeviceError, DevicePtr, DeviceResult, ErrorKind, Explanation, Host, MemoryInfo, OutOfMemory,
    PoolId, Segments, StreamId, TraceEntry, UNIT, VirtualMemory,
};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Options for opening a device.
#[derive(Clone, Default, Debug)]
pub struct DeviceOptions {
    /// The context to work in. The caller keeps it alive until the device is closed. `None` means
    /// the primary context of the device, which the CUDA runtime uses, too.
    pub context: Option<CuContext>,
    /// Whether the host reports the ends of streams, and when the driver is asked for a stream's
    /// own id.
    pub identity: StreamIdentity,
    /// The table of streams, which the devices of an allocator share. By default a device has its
    /// own.
    pub streams: Arc<Streams>,
    /// Whether `policy:direct` allocates by `cuMemAllocAsync` on the stream of each request, so
    /// that a memory checker can follow the order of streams. This has no effect if the driver does
    /// not have stream-ordered memory, or if the host does not [report](StreamIdentity::Reported)
    /// the ends of streams.
    pub stream_ordered: bool,
    /// What the device's pages have besides what every page has.
    pub pages: PageOptions,
}

/// A CUDA device in a context.
///
/// All methods may be called from any thread, at the same time, with any current context or with
/// none. Each method restores the caller's context before it returns, also after an error. During
/// driver calls the thread's capture mode is relaxed, so that the driver permits the calls while
/// streams capture. The capture mode is restored as well.
///
/// After the first sticky error, every method repeats this error and calls no driver. In a forked
/// child, every method fails with [`ErrorKind::Forked`]. The thread that drops a device makes no
/// driver call; [`close`](Self::close) releases the primary context.
#[derive(Debug)]
pub struct CudaDevice {
    /// The context, and whether the context still works.
    pub(crate) context: Arc<Context>,
    /// The driver's handle of the device.
    pub(crate) device: CuDevice,
    /// The UUID of the GPU, or of the MIG instance. `None` iff the driver does not say.
    uuid: Option<[u8; 16]>,
    /// The device's place on the bus, once asked for. `None` iff the driver does not say.
    pub(crate) place: OnceLock<Option<String>>,
    /// Whether the device has no memory besides that of the host.
    pub(crate) shares_host_memory: bool,
    /// Whether the device retains the primary context, and `close` must release it.
    retained: AtomicBool,
    /// Whether bytes may be kept for the device, and `close` must free them.
    has_bytes: AtomicBool,
    /// Whether bytes are wanted for waits for the whole context.
    wants_bytes: AtomicBool,
    /// The streams seen by all devices of the allocator.
    pub(crate) streams: Arc<Streams>,
    /// Whether the host reports the ends of streams, and when the driver is asked for a stream's
    /// own id.
    pub(crate) identity: StreamIdentity,
    /// Unused events.
    pub(crate) spare_events: SpareEvents,
    /// Events after announced work, which are used in place of events of the allocator.
    pub(crate) stand_ins: StandIns,
    /// Properties of virtual memory, or `None` iff the device has no virtual memory.
    virtual_memory: Option<Virtual>,
    /// The devices with access to the device's memory.
    pub(crate) peers: Peers,
    /// The contents of parked memory.
    pub(crate) store: Store,
    /// The streams of the memory that was allocated in their order, by address. `None` if no memory
    /// is allocated in this way.
    ordered: Option<Mutex<HashMap<u64, StreamId>>>,
    /// Marks in graphs under capture.
    pub(crate) capture_marks: CaptureMarks,
    /// The stream for waits for streams of other devices.
    pub(crate) bridge: OwnStream,
}

impl CudaDevice {
    /// Opens the device with the given ordinal in its primary context, with default options.
    ///
    /// # Errors
    /// As for [`open_with`](Self::open_with).
    pub fn open(driver: &'static Driver, ordinal: u32) -> DeviceResult<Self> {
        Self::open_with(driver, ordinal, DeviceOptions::default())
    }

    /// Opens the device with the given ordinal. Calls the driver. Creating a context takes 0.1 s
    /// and more.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if no device has the ordinal (101) or the given context
    /// belongs to another device; [`ErrorKind::Forked`]; the errors of the driver.
    pub fn open_with(driver: &'static Driver, ordinal: u32, options: DeviceOptions) -> DeviceResult<Self> {
        if crate::fork::in_child() {
            return Err(DeviceError::new(ErrorKind::Forked, CuResult::NOT_INITIALIZED.0));
        }
        let ordinal = c_int::try_from(ordinal).map_err(|_| CuResult::INVALID_DEVICE.error())?;
        // If ends are not reported, the stream may be gone at the free.
        let wants_order = options.stream_ordered && options.identity == StreamIdentity::Reported;
        let mut device = CuDevice::default();
        // SAFETY: `device` outlives the call, which writes one integer to it.
        checked(unsafe { driver.device_get(&raw mut device, ordinal) })?;
        let (handle, retained) = match options.context {
            Some(context) => (context, false),
            None => (retain(driver, device)?, true),
        };
        let context = Arc::new(Context::identified(driver, handle));
        let prepared = Self::prepare(&context, device, options.pages).and_then(|parts| {
            let wants_bytes = options.identity == StreamIdentity::Asked;
            begin_bytes(&context, options.streams.kept_bytes(), wants_bytes).map(|()| parts)
        });
        match prepared {
            Ok((shares_host_memory, virtual_memory)) => Ok(Self {
                context,
                device,
                uuid: driver.uuid(device),
                place: OnceLock::new(),
                shares_host_memory,
                retained: AtomicBool::new(retained),
                has_bytes: AtomicBool::new(true),
                wants_bytes: AtomicBool::new(options.identity != StreamIdentity::Unreported),
                streams: options.streams,
                identity: options.identity,
                spare_events: SpareEvents::default(),
                stand_ins: StandIns::default(),
                virtual_memory,
                peers: Peers::default(),
                store: Store::default(),
                ordered: (wants_order && can_order(driver)).then(Mutex::default),
                capture_marks: CaptureMarks::default(),
                bridge: OwnStream::default(),
            }),
            Err(error) => {
                if retained && error.kind != ErrorKind::Deinitialized {
                    // SAFETY: takes no pointers; releases the context retained above. The first
                    // error is the one to return.
                    let _ = unsafe { driver.device_primary_ctx_release(device) };
                }
                Err(error)
            }
        }
    }

    /// Returns the driver's number of the device.
    pub fn ordinal(&self) -> c_int {
        self.device.0
    }

    /// Returns the properties of virtual memory, or `None` if the device has no virtual memory.
    pub(crate) fn virtual_part(&self) -> Option<&Virtual> {
        self.virtual_memory.as_ref()
    }

    /// Keeps bytes for waits. This is called when the device gets physical memory, because all work
    /// of the context must be complete before pages of a stream that may be gone are unmapped. A
    /// segment needs no such wait, because its release waits.
    pub(crate) fn keep_bytes_for_pages(&self) {
        if !self.wants_bytes.load(Ordering::Relaxed) && !self.wants_bytes.swap(true, Ordering::Relaxed) {
            // If there is no memory for them now, a later wait tries again.
            let _ = keep_bytes(&self.context, self.streams.kept_bytes());
        }
    }

    /// Checks that the context belongs to the device. Returns whether the device shares the host's
    /// memory, and the device's virtual memory.
    fn prepare(context: &Context, device: CuDevice, pages: PageOptions) -> DeviceResult<(bool, Option<Virtual>)> {
        let _scope = context.enter()?;
        let driver = context.driver();
        if driver.ctx_get_device.is_some() {
            let mut of_context = CuDevice::default();
            // SAFETY: `of_context` outlives the call, which writes one integer to it.
            context.check(unsafe { driver.ctx_get_device(&raw mut of_context) })?;
            if of_context != device {
                return Err(CuResult::INVALID_CONTEXT.error());
            }
        }
        let shares_host_memory = has(context, device, CuDeviceAttribute::INTEGRATED)?;
        Virtual::of(context, device, shares_host_memory, pages)
            .map(|virtual_memory| (shares_host_memory, virtual_memory))
    }

    /// Releases the primary context, if the device has retained it. Afterwards every method fails
    /// with [`ErrorKind::Deinitialized`] without a driver call. Memory that was not released exists
    /// as long as another part of the program retains the context. No other thread may be inside a
    /// call of the device.
    ///
    /// Call this when the program destroys the allocator and continues. It is not needed at process
    /// exit.
    ///
    /// # Errors
    /// Those of the driver, and as for [`health`](Self::health). The device is closed even after an
    /// error. A second call does nothing.
    pub fn close(&self) -> DeviceResult<()> {
        let healthy = self.context.health();
        let retained = self.retained.swap(false, Ordering::AcqRel);
        let mut result = Ok(());
        if healthy.is_ok() {
            result = self.store.close(&self.context).and(self.drop_streams());
            if self.has_bytes.swap(false, Ordering::AcqRel) {
                result = result.and(end_bytes(&self.context, self.streams.kept_bytes()));
            }
            if retained {
                // SAFETY: takes no pointers; the swap of `retained` makes this the only release.
                let released = unsafe { self.driver().device_primary_ctx_release(self.device) };
                result = result.and(self.context.check(released));
            }
        } else {
            if self.context.is_gone() {
                // Each call of the driver in there is refused, and what it was to give back has
                // gone with the context.
                let _ = self.store.close(&self.context);
                if retained {
                    // SAFETY: takes no pointers; the swap of `retained` makes this the only
                    // release. A reset keeps the retains of others. The loss is the error to
                    // report.
                    let _ = unsafe { self.driver().device_primary_ctx_release(self.device) };
                }
            }
            if retained {
                result = healthy;
            }
        }
        self.context.close();
        result
    }

    /// Tells the device that the program has destroyed the context, so everything that the device
    /// had there is gone. Calls no driver. The contents of parked memory are forgotten, and their
    /// memory of the host goes back to the system, because the driver has ended the registrations
    /// with the context (asked of driver 580). Memory of `cuMemCreate` and reserved addresses
    /// outlive every context, so the caller must give them back. Afterwards every method fails with
    /// [`ErrorKind::Deinitialized`].
    pub fn context_ended(&self) {
        self.retained.store(false, Ordering::Release);
        self.context.close();
        // Each call of the driver in there is refused, and what it was to give back has gone with
        // the context.
        let _ = self.store.close(&self.context);
    }

    /// Checks whether the device is still usable. Calls no driver and takes no lock.
    ///
    /// # Errors
    /// The first sticky error of the device, with the driver's own code; [`ErrorKind::Forked`] in a
    /// forked child.
    pub fn health(&self) -> DeviceResult<()> {
        self.context.health()
    }

    /// Checks whether the device is still usable, and asks the driver whether the context is still
    /// the one in which the device was opened, because the program may have reset the device or
    /// destroyed the context. Drivers before 12.0 cannot tell whether a primary context is still
    /// the same.
    ///
    /// # Errors
    /// As for [`health`](Self::health).
    pub fn look(&self) -> DeviceResult<()> {
        self.context.look()
    }

    /// Returns whether the device has found that the program has reset or destroyed the context.
    /// Calls no driver.
    pub fn is_gone(&self) -> bool {
        self.context.is_gone()
    }

    /// Returns the driver.
    pub fn driver(&self) -> &'static Driver {
        self.context.driver()
    }

    /// Returns the context in which every call runs.
    pub fn cu_context(&self) -> CuContext {
        self.context.handle()
    }

    /// Returns the driver's handle of the device.
    pub fn cu_device(&self) -> CuDevice {
        self.device
    }

    /// Returns the table of streams, for opening another device of the allocator.
    pub fn streams(&self) -> &Arc<Streams> {
        &self.streams
    }

    /// Makes driver calls in the device's context, with the rules of every method: after a sticky
    /// error and in a forked child the call is refused, the caller's context and capture mode are
    /// restored, and a sticky code that `call` returns is remembered.
    ///
    /// # Errors
    /// The code that `call` returns, and as for [`look`](Self::look).
    pub fn with_context(&self, call: impl FnOnce(&Driver) -> CuResult) -> DeviceResult<()> {
        self.context.call(call)
    }

    /// Returns the value of a device attribute.
    ///
    /// # Errors
    /// The driver's.
    pub fn attribute(&self, attribute: CuDeviceAttribute) -> DeviceResult<i32> {
        let mut value: c_int = 0;
        self.context.call(|driver| {
            // SAFETY: `value` outlives the call, which writes one integer to it.
            unsafe { driver.device_get_attribute(&raw mut value, attribute, self.device) }
        })?;
        Ok(value)
    }

    /// Fills `bytes` bytes at `address` with `value`, in the order of `stream`. Does not wait.
    /// During a capture the fill becomes a node of the graph.
    ///
    /// # Errors
    /// Those of the driver, after which the contents of the range are undefined.
    /// [`ErrorKind::Unsupported`] if the driver does not have the entry point.
    ///
    /// # Safety
    /// The range is device memory, writable until the stream has completed the fill.
    pub unsafe fn fill(&self, address: DevicePtr, value: u8, bytes: u64, stream: CuStream) -> DeviceResult<()> {
        self.context.call(|driver| {
            // SAFETY: the caller vouches for the range.
            unsafe { Handle::vouched(stream).fill(driver, address.0, value, bytes as usize) }
        })
    }

    /// Returns the base and the size of the driver's allocation around `address`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] or the driver's code if the driver has no allocation at
    /// `address`.
    pub fn address_range(&self, address: DevicePtr) -> DeviceResult<(DevicePtr, u64)> {
        let (mut base, mut bytes) = (0, 0);
        self.context.call(|driver| {
            // SAFETY: both variables outlive the call, which writes one integer to each.
            unsafe { driver.mem_get_address_range(&raw mut base, &raw mut bytes, address.0) }
        })?;
        Ok((DevicePtr(base), bytes as u64))
    }
}

impl CudaDevice {
    /// Claims memory of the host that is about to become the device's, if they have one memory.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`](cachalot_core::ErrorKind::OutOfMemory) if the host does not have
    /// as much.
    pub(crate) fn claim_of_host(&self, bytes: u64) -> DeviceResult<Option<Claim>> {
        if !self.shares_host_memory {
            return Ok(None);
        }
        host_memory::claim_if_shared(bytes).map(Some).ok_or(CuResult::OUT_OF_MEMORY.error())
    }

    /// Refuses new memory at an address that is not a multiple of 512. Every driver returns a
    /// multiple, and the allocator relies on this, but `cuda.h` does not promise it.
    fn aligned(&self, address: u64) -> DeviceResult<DevicePtr> {
        if address != 0 && address.is_multiple_of(UNIT) {
            return Ok(DevicePtr(address));
        }
        let _ = self.context.call(|driver| {
            // SAFETY: takes no host pointers; the memory is new, and no other code has the
            // address.
            unsafe { driver.mem_free(address) }
        });
        Err(CuResult::UNKNOWN.error())
    }
}

/// Returns whether the driver allocates in the order of streams.
fn can_order(driver: &Driver) -> bool {
    driver.mem_alloc_async.is_some() && driver.mem_free_async.is_some()
}

/// Locks the streams of ordered memory. Poison is ignored, because a panic of another thread leaves
/// them as they are.
fn locked(ordered: &Mutex<HashMap<u64, StreamId>>) -> MutexGuard<'_, HashMap<u64, StreamId>> {
    ordered.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Retains the primary context of a device.
fn retain(driver: &Driver, device: CuDevice) -> DeviceResult<CuContext> {
    let mut context = CuContext::NULL;
    // SAFETY: `context` outlives the call, which writes one handle to it.
    checked(unsafe { driver.device_primary_ctx_retain(&raw mut context, device) })?;
    Ok(context)
}

/// Converts the code of a call outside any context to a result.
fn checked(code: CuResult) -> DeviceResult<()> {
    if code.is_success() { Ok(()) } else { Err(code.error()) }
}

impl Segments for CudaDevice {
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        let _claim = self.claim_of_host(bytes)?;
        let mut address = 0;
        self.context.call(|driver| {
            // SAFETY: `address` outlives the call, which writes one address to it.
            unsafe { driver.mem_alloc(&raw mut address, bytes as usize) }
        })?;
        self.aligned(address)
    }

    fn release(&self, base: DevicePtr, _bytes: u64) -> DeviceResult<()> {
        let stream = self.ordered.as_ref().and_then(|ordered| locked(ordered).remove(&base.0));
        if let Some(handle) = stream.and_then(|stream| self.streams.held(stream)) {
            return self.context.call(|driver| handle.free(driver, base.0));
        }
        self.context.call(|driver| {
            // SAFETY: takes no host pointers; the allocator releases each address of `obtain` once.
            unsafe { driver.mem_free(base.0) }
        })
    }

    fn pins(&self) -> bool {
        false
    }

    fn is_ordered(&self) -> bool {
        self.ordered.is_some()
    }

    fn obtain_on(&self, stream: StreamId, bytes: u64) -> DeviceResult<DevicePtr> {
        let (Some(ordered), Some(handle)) = (&self.ordered, self.streams.held(stream)) else {
            return self.obtain(bytes);
        };
        let _claim = self.claim_of_host(bytes)?;
        let mut address = 0;
        self.context.call(|driver| handle.allocate(driver, &mut address, bytes as usize))?;
        let base = self.aligned(address)?;
        locked(ordered).insert(base.0, stream);
        Ok(base)
    }

    /// Returns what the driver reports, except for the
    /// [free memory](host_memory::free_if_shared) of a device that shares the host's.
    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        let (mut free, mut total) = (0, 0);
        self.context.call(|driver| {
            // SAFETY: both variables outlive the call, which writes one integer to each.
            unsafe { driver.mem_get_info(&raw mut free, &raw mut total) }
        })?;
        let (free, total) = (free as u64, total as u64);
        let free = if self.shares_host_memory { host_memory::free_if_shared(free, total) } else { free };
        Ok(self.group_memory().within(MemoryInfo { free, total }))
    }

    fn shares_host_memory(&self) -> bool {
        self.shares_host_memory
    }

    fn lacks(&self, bytes: u64) -> bool {
        self.claim_of_host(bytes).is_err()
    }

    /// Returns the bytes of device memory used by the process, from the driver's management
    /// library. This is slow, and only for reports. Returns `None` if the library does not list the
    /// process, for example in a container with its own process ids.
    fn process_use(&self) -> Option<u64> {
        self.memory_users().ok()?.own()
    }

    fn owed(&self) -> u64 {
        let to_groups = self.group_memory().owed;
        if self.shares_host_memory { to_groups.max(host_memory::owed_if_shared()) } else { to_groups }
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        self.uuid
    }

    fn supplies(&self, _: PoolId) -> bool {
        false
    }

    fn obtain_for(&self, _: PoolId, bytes: u64) -> DeviceResult<DevicePtr> {
        self.obtain(bytes)
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.virtual_memory.is_some().then_some(self as &dyn VirtualMemory)
    }

    fn contents(&self) -> Option<&dyn Contents> {
        let driver = self.driver();
        let copies = driver.memcpy_dtoh_async.is_some() && driver.memcpy_htod_async.is_some();
        let keeps = copies && driver.mem_host_register.is_some() && driver.stream_create.is_some();
        keeps.then_some(self as &dyn Contents)
    }
}

/// A device of the driver has no routes, and reports nothing to the program.
impl Host for CudaDevice {
    /// Returns the calling thread's number. Threads are counted from 1 in the order of their first
    /// call.
    fn thread_id(&self) -> u64 {
        crate::streams::this_thread()
    }

    fn pause(&self, us: u64) -> bool {
        std::thread::sleep(Duration::from_micros(us));
        true
    }

    fn ticks(&self) -> u64 {
        clock::ticks()
    }

    fn time_us(&self, ticks: u64) -> u64 {
        clock::time_us(ticks)
    }

    fn leads(&self, _: u64, _: StreamId) -> bool {
        false
    }

    fn on_shortage(&self, _: u64) -> bool {
        false
    }

    fn on_out_of_memory(&self, _: &OutOfMemory) {}

    fn on_missing_virtual_memory(&self) {}

    fn on_map(&self, _: DevicePtr, _: u64) {}

    fn on_unmap(&self, _: DevicePtr, _: u64) {}

    fn on_event(&self, _: &TraceEntry, _: PoolId) {}

    fn on_damage(&self, _: &Explanation) {}

    fn call_site(&self, _: CallSite) -> u32 {
        0
    }
}
