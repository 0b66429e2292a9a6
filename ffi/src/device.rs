//! The devices behind the interface: CUDA's, or simulated ones, with the program's callbacks.

use crate::callbacks::Callbacks;
use crate::lazy_device::LazyDevice;
use crate::stacks::Stacks;
use crate::status::{CACHALOT_ERROR_INVALID_STREAM, Outcome, Status};
use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{
    CallSite, DeviceMemory, DevicePtr, DeviceResult, ErrorKind, Event, MemoryInfo, OutOfMemory, StreamId, VirtualMemory,
};
use cachalot_cuda::clock;
use cachalot_cuda::driver::types::CuStream;
use cachalot_cuda::{CudaDevice, this_thread};
use core::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

/// Where the memory of a device comes from.
#[allow(clippy::large_enum_variant, reason = "there are a few of these, and the larger one is the usual one")]
pub(crate) enum Backing {
    /// A device of the driver.
    Cuda(CudaDevice),
    /// One that is opened when it is needed.
    Lazy(LazyDevice),
    /// One in memory.
    Simulated(SimulatedDevice),
}

/// One device of an allocator.
pub(crate) struct Device {
    pub(crate) backing: Backing,
    /// Its number in the allocator.
    pub(crate) number: c_int,
    /// The driver's number of it.
    pub(crate) ordinal: c_int,
    pub(crate) callbacks: Arc<Callbacks>,
    pub(crate) stacks: Arc<Stacks>,
}

impl Device {
    /// The device as the core knows devices, opened if it was not yet.
    fn memory(&self) -> DeviceResult<&dyn DeviceMemory> {
        match &self.backing {
            Backing::Cuda(device) => Ok(device),
            Backing::Lazy(later) => Ok(later.open()?),
            Backing::Simulated(device) => Ok(device),
        }
    }

    /// Opens the device if it was not yet: requests do that before anything else.
    #[inline(always)]
    pub(crate) fn open(&self) -> Outcome {
        match &self.backing {
            Backing::Lazy(later) => later.open().map(|_| ()).map_err(Status::from),
            Backing::Cuda(_) | Backing::Simulated(_) => Ok(()),
        }
    }

    /// Whether the device is open.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        !matches!(&self.backing, Backing::Lazy(later) if later.opened().is_none())
    }

    /// The allocator's number of a stream.
    #[inline(always)]
    pub(crate) fn stream_id(&self, stream: CuStream) -> Outcome<StreamId> {
        match &self.backing {
            Backing::Cuda(device) => device.stream_id(stream).map_err(|error| refuse(stream, error.code)),
            Backing::Lazy(later) => later.stream_id(stream).map_err(|error| refuse(stream, error.code)),
            Backing::Simulated(_) => simulated_stream_id(stream),
        }
    }

    /// The allocator's number of a stream that uses a block of another one.
    pub(crate) fn stream_in_use(&self, stream: CuStream) -> Outcome<StreamId> {
        let device = match &self.backing {
            Backing::Cuda(device) => Some(device),
            Backing::Lazy(later) => later.opened(),
            Backing::Simulated(_) => None,
        };
        match device {
            Some(device) => device.stream_in_use(stream).map_err(|error| {
                if error.kind == ErrorKind::InvalidArgument { refuse(stream, error.code) } else { error.into() }
            }),
            None => self.stream_id(stream),
        }
    }

    /// The handle by which the calling thread knows a stream, if it has one.
    fn stream_handle(&self, stream: StreamId) -> Option<CuStream> {
        match &self.backing {
            Backing::Cuda(device) => device.streams().handle(stream),
            Backing::Lazy(later) => later.streams().handle(stream),
            Backing::Simulated(_) => simulated_stream_handle(stream),
        }
    }

    /// The device of the driver, if it is an open one.
    pub(crate) fn cuda(&self) -> Option<&CudaDevice> {
        match &self.backing {
            Backing::Cuda(device) => Some(device),
            Backing::Lazy(later) => later.opened(),
            Backing::Simulated(_) => None,
        }
    }

    /// The simulated device, if it is one.
    pub(crate) fn simulated(&self) -> Option<&SimulatedDevice> {
        match &self.backing {
            Backing::Cuda(_) | Backing::Lazy(_) => None,
            Backing::Simulated(device) => Some(device),
        }
    }
}

/// No stream can have this handle.
#[cold]
pub(crate) fn refuse(stream: CuStream, code: u32) -> Status {
    let text = format!("{:#x} is no stream's handle", stream.0);
    Status::with_driver_code(CACHALOT_ERROR_INVALID_STREAM, code, text)
}

/// On a simulated device a handle is the stream's number, but for those of default streams.
fn simulated_stream_id(stream: CuStream) -> Outcome<StreamId> {
    match stream {
        CuStream::NULL | CuStream::LEGACY => Ok(StreamId::DEFAULT),
        CuStream::PER_THREAD => Ok(StreamId(OWN_STREAM | this_thread())),
        // All ones is no stream to the core.
        CuStream(handle) if handle as u64 >= OWN_STREAM => Err(refuse(stream, 0)),
        CuStream(handle) => Ok(StreamId(handle as u64)),
    }
}

/// In the number of a thread's own default stream, as the CUDA backend has it.
const OWN_STREAM: u64 = 0xffff << 48;

/// The handle of a simulated device's stream, unless it is another thread's own.
fn simulated_stream_handle(stream: StreamId) -> Option<CuStream> {
    match stream.0 {
        0 => Some(CuStream::NULL),
        own if own == OWN_STREAM | this_thread() => Some(CuStream::PER_THREAD),
        other => (other < OWN_STREAM).then_some(CuStream(other as usize)),
    }
}

impl DeviceMemory for Device {
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        #[cfg(test)]
        crate::tests::panic_if_wanted();
        self.memory()?.obtain(bytes)
    }

    fn release(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.memory()?.release(base, bytes)
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        match &self.backing {
            Backing::Lazy(later) if later.opened().is_none() => later.unopened_memory(),
            _ => self.memory()?.memory_info(),
        }
    }

    fn create_event(&self) -> DeviceResult<Event> {
        self.memory()?.create_event()
    }

    fn destroy_event(&self, event: Event) -> DeviceResult<()> {
        self.memory()?.destroy_event(event)
    }

    fn record(&self, event: Event, stream: StreamId) -> DeviceResult<()> {
        self.memory()?.record(event, stream)
    }

    fn is_complete(&self, event: Event) -> DeviceResult<bool> {
        self.memory()?.is_complete(event)
    }

    fn wait(&self, event: Event) -> DeviceResult<()> {
        self.memory()?.wait(event)
    }

    fn order_behind(&self, stream: StreamId, event: Event) -> DeviceResult<()> {
        self.memory()?.order_behind(stream, event)
    }

    fn synchronize(&self, stream: StreamId) -> DeviceResult<()> {
        self.memory()?.synchronize(stream)
    }

    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool> {
        self.memory()?.is_capturing(stream)
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.memory().ok()?.virtual_memory()
    }

    fn process_use(&self) -> Option<u64> {
        self.memory().ok()?.process_use()
    }

    fn thread_id(&self) -> u64 {
        this_thread()
    }

    fn leads(&self, route: u64, stream: StreamId) -> bool {
        self.stream_handle(stream).is_some_and(|stream| self.callbacks.filters.leads(route, stream))
    }

    fn on_shortage(&self, bytes: u64) -> bool {
        self.callbacks.ask(self.number, bytes)
    }

    fn on_out_of_memory(&self, report: &OutOfMemory) {
        self.callbacks.tell(report);
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

    #[inline]
    fn call_site(&self, site: CallSite) -> u32 {
        self.stacks.number(site, &self.callbacks)
    }
}
