//! A device opened on first use. A program creates no context on a device without requests.

use cachalot_core::{DeviceResult, MemoryInfo, StreamId};
use cachalot_cuda::driver::types::CuStream;
use cachalot_cuda::{CuResult, CudaDevice, DeviceOptions, Driver, Streams};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A device of the driver, open or not yet open.
pub(crate) struct LazyDevice {
    driver: &'static Driver,
    ordinal: u32,
    options: DeviceOptions,
    opened: OnceLock<CudaDevice>,
    /// Lock of the thread that opens the device.
    opening: Mutex<()>,
}

impl LazyDevice {
    /// Creates a device that is not open. Calls no driver function.
    pub(crate) fn new(driver: &'static Driver, ordinal: u32, options: DeviceOptions) -> Self {
        Self { driver, ordinal, options, opened: OnceLock::new(), opening: Mutex::new(()) }
    }

    /// Returns the device, or `None` before the first use.
    pub(crate) fn opened(&self) -> Option<&CudaDevice> {
        self.opened.get()
    }

    /// Returns the device, and opens it first if necessary. After a failure the next call tries
    /// again.
    #[inline]
    pub(crate) fn open(&self) -> DeviceResult<&CudaDevice> {
        match self.opened.get() {
            Some(device) => Ok(device),
            None => self.open_first(),
        }
    }

    #[cold]
    fn open_first(&self) -> DeviceResult<&CudaDevice> {
        let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = self.opened.get() {
            return Ok(device);
        }
        let device = CudaDevice::open_with(self.driver, self.ordinal, self.options.clone())?;
        Ok(self.opened.get_or_init(|| device))
    }

    /// Returns the table of streams, which exists before the device is open.
    pub(crate) fn streams(&self) -> &Arc<Streams> {
        &self.options.streams
    }

    /// Returns the number of a stream. The number stays valid when the device is opened.
    #[inline]
    pub(crate) fn stream_id(&self, stream: CuStream) -> DeviceResult<StreamId> {
        match self.opened.get() {
            Some(device) => device.stream_id(stream),
            None => self.streams().number(stream).ok_or(CuResult::INVALID_HANDLE.error()),
        }
    }

    /// Returns the total memory, with all memory counted as free. Only an open device knows the
    /// free memory.
    pub(crate) fn unopened_memory(&self) -> DeviceResult<MemoryInfo> {
        let total = self.driver.total_memory(self.ordinal).map_err(CuResult::error)?;
        Ok(MemoryInfo { free: total, total })
    }
}
