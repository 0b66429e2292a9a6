//! A device opened on first use. A program creates no context on a device without requests.

use cachalot_core::{DeviceResult, MemoryInfo, StreamId};
use cachalot_cuda::driver::types::CuStream;
use cachalot_cuda::{CuResult, CudaDevice, DeviceOptions, Driver, StreamIdentity, Streams};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A device of the driver, open or not yet open.
pub(crate) struct LazyDevice {
    driver: &'static Driver,
    ordinal: u32,
    options: DeviceOptions,
    opened: OnceLock<CudaDevice>,
    /// Lock of the thread that opens the device.
    opening: Mutex<()>,
    /// The driver's answer about virtual memory, before the device is open.
    virtual_memory: OnceLock<bool>,
}

impl LazyDevice {
    /// Creates a device that is not open. Calls no driver function.
    pub(crate) fn new(driver: &'static Driver, ordinal: u32, options: DeviceOptions) -> Self {
        Self {
            driver,
            ordinal,
            options,
            opened: OnceLock::new(),
            opening: Mutex::new(()),
            virtual_memory: OnceLock::new(),
        }
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

    /// Returns whether the end of a stream will be reported once the device is open.
    pub(crate) fn reports_end(&self, stream: StreamId) -> bool {
        let handle = self.streams().handle(stream);
        self.options.identity == StreamIdentity::Reported
            || handle.is_some_and(|handle| [CuStream::NULL, CuStream::PER_THREAD].contains(&handle))
    }

    /// Returns whether a device that is not open yet will have virtual memory. Creates no context.
    pub(crate) fn will_have_virtual_memory(&self) -> bool {
        // Asked once: later questions may come under a lock of the core.
        *self.virtual_memory.get_or_init(|| self.driver.has_virtual_memory(self.ordinal))
    }

    /// Returns the total memory, with all memory counted as free. Only an open device knows the
    /// free memory.
    pub(crate) fn unopened_memory(&self) -> DeviceResult<MemoryInfo> {
        let total = self.driver.total_memory(self.ordinal).map_err(CuResult::error)?;
        Ok(MemoryInfo { free: total, total })
    }
}
