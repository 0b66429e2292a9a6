//! A device of the driver that is opened when it is first needed, so that a program which never uses it has no context there.

use cachalot_core::{DeviceResult, MemoryInfo, StreamId};
use cachalot_cuda::driver::types::CuStream;
use cachalot_cuda::{CuResult, CudaDevice, DeviceOptions, Driver, Streams};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The device, open or not.
pub(crate) struct LazyDevice {
    driver: &'static Driver,
    ordinal: u32,
    options: DeviceOptions,
    opened: OnceLock<CudaDevice>,
    /// Held by the one who opens it.
    opening: Mutex<()>,
}

impl LazyDevice {
    /// A device with this ordinal. Calls no driver.
    pub(crate) fn new(driver: &'static Driver, ordinal: u32, options: DeviceOptions) -> Self {
        Self { driver, ordinal, options, opened: OnceLock::new(), opening: Mutex::new(()) }
    }

    /// The device, if it is open.
    pub(crate) fn opened(&self) -> Option<&CudaDevice> {
        self.opened.get()
    }

    /// The device, opened if it is not yet. If that fails, the next call tries again.
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

    /// The table of streams, which needs no open device.
    pub(crate) fn streams(&self) -> &Arc<Streams> {
        &self.options.streams
    }

    /// The number of a stream, as an open device has it.
    #[inline]
    pub(crate) fn stream_id(&self, stream: CuStream) -> DeviceResult<StreamId> {
        match self.opened.get() {
            Some(device) => device.stream_id(stream),
            None => self.streams().number(stream).ok_or(CuResult::INVALID_HANDLE.error()),
        }
    }

    /// How much memory there is. What is free of it only an open device can tell; here all of it is.
    pub(crate) fn unopened_memory(&self) -> DeviceResult<MemoryInfo> {
        let total = self.driver.total_memory(self.ordinal).map_err(CuResult::error)?;
        Ok(MemoryInfo { free: total, total })
    }
}
