//! The devices behind the interface: CUDA's, or simulated ones, with the program's callbacks.

use crate::callbacks::Callbacks;
use crate::status::{CACHALOT_ERROR_INVALID_STREAM, Outcome, Status};
use cachalot_core::device::{DeviceMemory, DeviceResult, Event, MemoryInfo, VirtualMemory};
use cachalot_core::report::OutOfMemory;
use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::units::{DevicePtr, StreamId};
use cachalot_cuda::CudaDevice;
use cachalot_cuda::driver::types::CuStream;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Where the memory of a device comes from.
#[allow(clippy::large_enum_variant, reason = "there are a few of these, and the larger one is the usual one")]
pub(crate) enum Backing {
    /// A device of the driver.
    Cuda(CudaDevice),
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
}

impl Device {
    /// The device as the core knows devices.
    fn memory(&self) -> &dyn DeviceMemory {
        match &self.backing {
            Backing::Cuda(device) => device,
            Backing::Simulated(device) => device,
        }
    }

    /// The allocator's number of a stream.
    #[inline(always)]
    pub(crate) fn stream_id(&self, stream: CuStream) -> Outcome<StreamId> {
        match &self.backing {
            Backing::Cuda(device) => device.stream_id(stream).map_err(|error| refuse(stream, error.code)),
            Backing::Simulated(_) => simulated_stream_id(stream),
        }
    }

    /// The device of the driver, if it is one.
    pub(crate) fn cuda(&self) -> Option<&CudaDevice> {
        match &self.backing {
            Backing::Cuda(device) => Some(device),
            Backing::Simulated(_) => None,
        }
    }

    /// The simulated device, if it is one.
    pub(crate) fn simulated(&self) -> Option<&SimulatedDevice> {
        match &self.backing {
            Backing::Cuda(_) => None,
            Backing::Simulated(device) => Some(device),
        }
    }
}

/// No stream can have this handle.
#[cold]
pub(crate) fn refuse(stream: CuStream, code: u32) -> Status {
    let text = format_args!("{:#x} is no stream's handle", stream.0);
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

/// The calling thread's number, counted from 1 in the order in which threads first asked.
fn this_thread() -> u64 {
    static THREADS: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        // A plain number has no destructor, so nothing runs when the thread ends.
        static NUMBER: u64 = THREADS.fetch_add(1, Ordering::Relaxed) + 1;
    }
    NUMBER.with(|number| *number)
}

impl DeviceMemory for Device {
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        #[cfg(test)]
        crate::tests::panic_if_wanted();
        self.memory().obtain(bytes)
    }

    fn release(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.memory().release(base, bytes)
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        self.memory().memory_info()
    }

    fn create_event(&self) -> DeviceResult<Event> {
        self.memory().create_event()
    }

    fn destroy_event(&self, event: Event) -> DeviceResult<()> {
        self.memory().destroy_event(event)
    }

    fn record(&self, event: Event, stream: StreamId) -> DeviceResult<()> {
        self.memory().record(event, stream)
    }

    fn is_complete(&self, event: Event) -> DeviceResult<bool> {
        self.memory().is_complete(event)
    }

    fn wait(&self, event: Event) -> DeviceResult<()> {
        self.memory().wait(event)
    }

    fn synchronize(&self, stream: StreamId) -> DeviceResult<()> {
        self.memory().synchronize(stream)
    }

    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool> {
        self.memory().is_capturing(stream)
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.memory().virtual_memory()
    }

    fn process_use(&self) -> Option<u64> {
        self.memory().process_use()
    }

    fn thread_id(&self) -> u64 {
        match &self.backing {
            Backing::Cuda(device) => device.thread_id(),
            Backing::Simulated(_) => this_thread(),
        }
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

    fn now_us(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_micros() as u64)
    }
}
