//! Devices of an allocator, on CUDA or simulated, with the program's callbacks.

use crate::c::announced::Announced;
use crate::c::callbacks::Callbacks;
use crate::c::explanation;
use crate::c::known_streams::{simulated_stream, simulated_stream_handle};
use crate::c::lazy_device::LazyDevice;
use crate::c::recorder::Recorder;
use crate::c::stacks::Stacks;
use crate::c::status::{CACHALOT_ERROR_INVALID_STREAM, Outcome, Status};
use cachalot_core::forward::{ForwardSegments, ForwardStreamOrder, ForwardVirtualMemory, Forwarder};
use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{
    Allocator, CallSite, DeviceError, DeviceMemory, DevicePtr, DeviceResult, Error, Explanation, Host, MemoryInfo,
    OutOfMemory, PoolId, Segments, StreamId, TraceEntry, VirtualMemory,
};
use cachalot_cuda::clock;
use cachalot_cuda::driver::result::CuResult;
use cachalot_cuda::driver::types::CuStream;
use cachalot_cuda::{
    CudaDevice, HOST_STREAM, HeapLock, HostDevice, Streams, log, tell_of_missing_virtual_memory, this_thread,
};
use cachalot_tuner::program::Simulates;
use core::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

/// The size of a page of every device so far, for a device that is not open yet.
const PAGE: u64 = 2 << 20;

/// The allocator of a C program's devices.
pub(crate) type SharedAllocator = Allocator<Device, HeapLock, crate::Tables>;

/// The source of a device's memory.
#[allow(clippy::large_enum_variant, reason = "there are a few of these, and the larger one is the usual one")]
pub(crate) enum Backing {
    /// A device of the driver, open from the start.
    Cuda(CudaDevice),
    /// A device of the driver, opened on first use.
    Lazy(LazyDevice),
    /// Pinned memory of the host, for a device of the driver.
    Host(HostDevice),
    /// A simulated device, without a driver.
    Simulated(SimulatedDevice),
}

/// A device of an allocator.
pub(crate) struct Device {
    pub(crate) backing: Backing,
    /// Number of the device in the allocator.
    pub(crate) number: c_int,
    /// Number of the device in the driver.
    pub(crate) ordinal: c_int,
    pub(crate) callbacks: Arc<Callbacks>,
    pub(crate) stacks: Arc<Stacks>,
    pub(crate) recorder: Arc<Recorder>,
    /// The announcements to a memory checker, if one listens.
    pub(crate) announced: Option<Arc<Announced>>,
}

impl Device {
    /// Opens the device if necessary. Every request calls `open` before anything else.
    #[inline(always)]
    pub(crate) fn open(&self) -> Outcome {
        match &self.backing {
            Backing::Lazy(later) => later.open().map(|_| ()).map_err(Status::from),
            Backing::Cuda(_) | Backing::Host(_) | Backing::Simulated(_) => Ok(()),
        }
    }

    /// Makes a call with the device's context current. Makes none once the context is lost.
    fn in_context(&self, call: impl FnOnce()) {
        let device = match &self.backing {
            Backing::Cuda(device) => Some(device),
            Backing::Lazy(later) => later.opened(),
            Backing::Host(_) | Backing::Simulated(_) => None,
        };
        let Some(device) = device else { return call() };
        let _lost = device.with_context(|_| {
            call();
            CuResult::SUCCESS
        });
    }

    /// Returns whether the device is open.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        !matches!(&self.backing, Backing::Lazy(later) if later.opened().is_none())
    }

    /// Returns the allocator's number of a stream. Memory of the host has one stream, NULL.
    #[inline(always)]
    pub(crate) fn stream_id(&self, stream: CuStream) -> Outcome<StreamId> {
        match &self.backing {
            Backing::Cuda(device) => device.stream_id(stream).map_err(|error| of_stream(stream, error)),
            Backing::Lazy(later) => later.stream_id(stream).map_err(|error| of_stream(stream, error)),
            Backing::Host(_) => host_stream_id(stream),
            Backing::Simulated(_) => simulated_stream(stream).ok_or_else(|| refuse(stream, 0)),
        }
    }

    /// Opens the device if necessary, and returns the allocator's number of a stream.
    pub(crate) fn stream_of_request(&self, stream: CuStream) -> Outcome<StreamId> {
        // One look at the kind of the device for both.
        match &self.backing {
            Backing::Lazy(later) => later.open()?.stream_id(stream).map_err(|error| of_stream(stream, error)),
            Backing::Cuda(_) | Backing::Host(_) | Backing::Simulated(_) => self.stream_id(stream),
        }
    }

    /// Returns the number of a stream that uses a block of another stream. An open device asks the
    /// driver.
    pub(crate) fn stream_in_use(&self, stream: CuStream) -> Outcome<StreamId> {
        match self.cuda() {
            Some(device) => device.stream_in_use(stream).map_err(|error| of_stream(stream, error)),
            None => self.stream_id(stream),
        }
    }

    /// Returns the table of the driver's streams, which all devices of the allocator share. `None`
    /// for a simulated device.
    pub(crate) fn streams(&self) -> Option<&Streams> {
        match &self.backing {
            Backing::Cuda(device) => Some(device.streams()),
            Backing::Lazy(later) => Some(later.streams()),
            Backing::Host(device) => Some(device.cuda().streams()),
            Backing::Simulated(_) => None,
        }
    }

    /// Returns the calling thread's handle of a stream, or `None` if the thread has no handle.
    fn stream_handle(&self, stream: StreamId) -> Option<CuStream> {
        self.streams().map_or_else(|| simulated_stream_handle(stream), |streams| streams.handle(stream))
    }

    /// Returns the driver's device, or `None` if the device is simulated or not open yet.
    pub(crate) fn cuda(&self) -> Option<&CudaDevice> {
        match &self.backing {
            Backing::Cuda(device) => Some(device),
            Backing::Lazy(later) => later.opened(),
            Backing::Host(device) => Some(device.cuda()),
            Backing::Simulated(_) => None,
        }
    }

    /// Returns whether the memory is the host's.
    pub(crate) fn is_host(&self) -> bool {
        matches!(self.backing, Backing::Host(_))
    }
}

/// So that `tune:auto` tries settings on the allocator that is in the library anyway.
impl Simulates for Device {
    fn of_simulated(device: SimulatedDevice) -> Self {
        Self {
            backing: Backing::Simulated(device),
            number: 0,
            ordinal: 0,
            callbacks: Arc::default(),
            stacks: Arc::default(),
            recorder: Arc::default(),
            announced: None,
        }
    }

    fn simulated(&self) -> Option<&SimulatedDevice> {
        match &self.backing {
            Backing::Cuda(_) | Backing::Lazy(_) | Backing::Host(_) => None,
            Backing::Simulated(device) => Some(device),
        }
    }
}

/// Refuses a handle that belongs to no stream.
#[cold]
pub(crate) fn refuse(stream: CuStream, code: u32) -> Status {
    let text = format!("{:#x} is no stream's handle", stream.0);
    Status::with_driver_code(CACHALOT_ERROR_INVALID_STREAM, code, text)
}

/// Returns the status of a failed call about a stream: a mistake of the program if the handle is no
/// stream's, and otherwise a failure of the driver.
#[cold]
pub(crate) fn of_stream(stream: CuStream, error: DeviceError) -> Status {
    if error.code == CuResult::INVALID_HANDLE.0 { refuse(stream, error.code) } else { error.into() }
}

/// Returns the number of the stream of the host, for the handle NULL.
fn host_stream_id(stream: CuStream) -> Outcome<StreamId> {
    if stream.is_null() {
        return Ok(HOST_STREAM);
    }
    let text = "host memory belongs to no stream: pass NULL, and announce each stream that uses the block";
    Err(Status::new(CACHALOT_ERROR_INVALID_STREAM, text))
}

impl Forwarder for Device {
    type Inner = dyn DeviceMemory;

    /// Returns the device for the core, and opens the device first if necessary.
    fn inner(&self) -> DeviceResult<&dyn DeviceMemory> {
        match &self.backing {
            Backing::Cuda(device) => Ok(device),
            Backing::Lazy(later) => Ok(later.open()?),
            Backing::Host(device) => Ok(device),
            Backing::Simulated(device) => Ok(device),
        }
    }
}

impl ForwardSegments for Device {
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        #[cfg(test)]
        crate::c::tests::panic_if_wanted();
        self.inner()?.obtain(bytes).inspect(|&base| self.callbacks.births.note(base))
    }

    fn release(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.callbacks.births.forget(base);
        if self.callbacks.supplied.release(self.number, base, bytes) {
            return Ok(());
        }
        self.inner()?.release(base, bytes)
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        match &self.backing {
            Backing::Lazy(later) if later.opened().is_none() => later.unopened_memory(),
            _ => self.inner()?.memory_info(),
        }
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        // A device that is not open stays so.
        match &self.backing {
            Backing::Lazy(later) => later.opened()?.uuid(),
            _ => self.inner().ok()?.uuid(),
        }
    }

    /// A device that is not open stays so: forecasts need the answer alone, and each request has
    /// opened the device.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        match &self.backing {
            Backing::Lazy(later) if later.opened().is_none() => {
                later.will_have_virtual_memory().then_some(self as &dyn VirtualMemory)
            }
            _ => self.inner().ok()?.virtual_memory(),
        }
    }

    fn supplies(&self, pool: PoolId) -> bool {
        self.callbacks.supplied.includes(self.number, pool)
    }

    fn obtain_for(&self, pool: PoolId, bytes: u64) -> DeviceResult<DevicePtr> {
        let obtained = self.callbacks.supplied.obtain(self.number, pool, bytes);
        obtained.inspect(|&base| self.callbacks.births.note(base))
    }
}

/// A device that is not open stays so: what calls no driver is answered from the table of streams.
impl ForwardStreamOrder for Device {
    fn can_order(&self, stream: StreamId) -> bool {
        match &self.backing {
            Backing::Lazy(later) if later.opened().is_none() => later.streams().handle(stream).is_some(),
            _ => self.inner().is_ok_and(|device| device.can_order(stream)),
        }
    }

    fn reports_end(&self, stream: StreamId) -> bool {
        match &self.backing {
            Backing::Lazy(later) if later.opened().is_none() => later.reports_end(stream),
            _ => self.inner().is_ok_and(|device| device.reports_end(stream)),
        }
    }
}

/// Virtual memory of a device that is opened by the first call.
impl ForwardVirtualMemory for Device {
    fn granularity(&self) -> u64 {
        if self.is_open() {
            self.inner().ok().and_then(Segments::virtual_memory).map_or(0, VirtualMemory::granularity)
        } else {
            PAGE
        }
    }
}

impl Host for Device {
    fn thread_id(&self) -> u64 {
        this_thread()
    }

    fn pause(&self, us: u64) -> bool {
        std::thread::sleep(Duration::from_micros(us));
        true
    }

    #[inline]
    fn ticks(&self) -> u64 {
        clock::ticks()
    }

    fn time_us(&self, ticks: u64) -> u64 {
        clock::time_us(ticks)
    }

    fn leads(&self, route: u64, stream: StreamId) -> bool {
        self.stream_handle(stream).is_some_and(|stream| self.callbacks.filters.leads(route, stream))
    }

    fn on_shortage(&self, bytes: u64) -> bool {
        self.callbacks.ask(self.number, bytes)
    }

    fn on_out_of_memory(&self, report: &OutOfMemory) {
        log::error(format_args!("device {}: {}", self.number, Error::OutOfMemory(*report)));
        // Before the program is told, because its callback may free memory.
        self.recorder.on_out_of_memory(self.number);
        self.callbacks.tell(report);
    }

    fn on_missing_virtual_memory(&self) {
        tell_of_missing_virtual_memory(self.number);
    }

    fn on_map(&self, at: DevicePtr, bytes: u64) {
        self.callbacks.births.note(at);
        self.callbacks.mapped(self.number, at, bytes);
    }

    fn on_unmap(&self, at: DevicePtr, bytes: u64) {
        self.callbacks.births.forget(at);
        self.callbacks.unmapping(self.number, at, bytes);
    }

    fn on_event(&self, entry: &TraceEntry, pool: PoolId) {
        if let Some(announced) = &self.announced {
            // compute-sanitizer is not ready for a thread without a context, as each thread is
            // before its first call of the driver.
            self.in_context(|| announced.event(entry, &self.stacks));
        }
        self.callbacks.event(self.number, entry, pool);
    }

    fn on_damage(&self, block: &Explanation) {
        let text = explanation::describe(block, &self.stacks);
        // No status tells the program of it, so the line is written without `CACHALOT_LOG`, too.
        log::warning(format_args!("device {}: memory was overwritten: {text}", self.number));
    }

    #[inline]
    fn call_site(&self, site: CallSite) -> u32 {
        self.stacks.number(site, &self.callbacks)
    }
}
