//! Source of streams: numbers for simulated devices, the driver for real devices.

use super::library::{Answer, Stream};
use cachalot_cuda::driver::types::{CuStream, CuStreamFlags};
use cachalot_cuda::{CudaDevice, Driver};
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Creates and destroys streams.
pub(super) enum Source {
    /// Simulated streams: every handle is new.
    Simulated(AtomicUsize),
    /// Streams of the driver, which reuses the handles of destroyed streams.
    Driver(Vec<CudaDevice>),
}

/// The lowest handle of a simulated stream, and the distance between two handles.
const LOWEST: usize = 0x1_0000;
const STRIDE: usize = 64;

impl Source {
    /// Creates a source for simulated devices.
    pub(super) fn simulated() -> Self {
        Self::Simulated(AtomicUsize::new(LOWEST))
    }

    /// Creates a source for the driver's first `devices` devices.
    pub(super) fn driver(devices: u32) -> Answer<Self> {
        let driver = Driver::load().map_err(|error| error.to_string())?;
        let open = |ordinal| CudaDevice::open(driver, ordinal).map_err(|error| error.to_string());
        (0..devices).map(open).collect::<Result<_, _>>().map(Self::Driver)
    }

    /// Creates a stream.
    pub(super) fn make(&self, device: c_int) -> Answer<Stream> {
        match self {
            Self::Simulated(next) => Ok(Stream(next.fetch_add(STRIDE, Ordering::Relaxed))),
            Self::Driver(devices) => {
                let mut handle = CuStream::NULL;
                let made = devices[device as usize].with_context(|driver| {
                    // SAFETY: `handle` outlives the call, which writes one handle to it.
                    unsafe { driver.stream_create(&raw mut handle, CuStreamFlags::NON_BLOCKING) }
                });
                made.map(|()| Stream(handle.0)).map_err(|error| format!("cuStreamCreate: {error}"))
            }
        }
    }

    /// Destroys a stream of this source.
    pub(super) fn destroy(&self, device: c_int, stream: Stream) -> Answer {
        let Self::Driver(devices) = self else { return Ok(()) };
        let destroyed = devices[device as usize].with_context(|driver| {
            // SAFETY: takes no host pointers; `make` created the stream, and the caller no longer
            // uses the stream.
            unsafe { driver.stream_destroy(CuStream(stream.0)) }
        });
        destroyed.map_err(|error| format!("cuStreamDestroy: {error}"))
    }
}
