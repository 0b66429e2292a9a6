//! Allocators for Rust programs: the types without parameters, and opening them in one call.

use crate::lock::HeapLock;
use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{Allocator, Config, DeviceError, Error, Growable};
use cachalot_cuda::{CudaDevice, DeviceOptions, Driver, LoadError, Streams};
use core::fmt;
use std::sync::Arc;

/// The allocator over devices of the CUDA driver, as used by the C ABI.
pub type CudaAllocator = Allocator<CudaDevice, HeapLock, Growable>;

/// The allocator over simulated devices, which need no GPU. Their addresses stand for no memory.
pub type SimulatedAllocator = Allocator<SimulatedDevice, HeapLock, Growable>;

/// Opens an allocator over one simulated device with `bytes` bytes of memory. Needs no GPU.
///
/// # Errors
/// Those of [`Allocator::new`].
pub fn open_simulated(bytes: u64, config: &Config) -> Result<SimulatedAllocator, Error> {
    Allocator::new([SimulatedDevice::new(bytes)], config)
}

/// Opens an allocator over the GPUs with the given ordinals, in their primary contexts, which the
/// CUDA runtime and cudarc also use. `DeviceIndex(0)` is the first of `ordinals`.
///
/// ```no_run
/// use cachalot::prelude::*;
///
/// let allocator = cachalot::open_cuda(&[0], &Config::new())?;
/// let block = allocator.block(DeviceIndex(0), 1 << 20, StreamId::DEFAULT)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`OpenError`]. Devices opened before the failure are closed again.
pub fn open_cuda(ordinals: &[u32], config: &Config) -> Result<CudaAllocator, OpenError> {
    let driver = Driver::load().map_err(OpenError::Driver)?;
    let streams = Arc::new(Streams::new());
    let mut devices: Vec<CudaDevice> = Vec::with_capacity(ordinals.len());
    for &ordinal in ordinals {
        let options = DeviceOptions { streams: Arc::clone(&streams), ..DeviceOptions::default() };
        match CudaDevice::open_with(driver, ordinal, options) {
            Ok(device) => devices.push(device),
            Err(error) => {
                for opened in devices {
                    // The failure to open is the one to report.
                    let _ = opened.close();
                }
                return Err(OpenError::Device { ordinal, error });
            }
        }
    }
    Allocator::new(devices, config).map_err(|error| OpenError::Allocator(Box::new(error)))
}

/// The reason why [`open_cuda`] failed.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no driver.
    Driver(LoadError),
    /// The driver has no such device, or cannot open it.
    Device {
        /// The ordinal of the device.
        ordinal: u32,
        /// The driver's reason.
        error: DeviceError,
    },
    /// The allocator refuses the devices or the configuration.
    Allocator(Box<Error>),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Driver(error) => error.fmt(f),
            Self::Device { ordinal, error } => write!(f, "device {ordinal} cannot be opened: {error}"),
            Self::Allocator(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for OpenError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_cannot_be_opened_is_named() {
        let error = cachalot_cuda::CuResult::INVALID_DEVICE.error();
        let text = OpenError::Device { ordinal: 9, error }.to_string();
        assert_eq!(text, "device 9 cannot be opened: invalid argument (code 101)");
    }
}
