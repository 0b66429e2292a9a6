//! Allocators for Rust programs: the types without parameters, and opening them in one call.

#[cfg(not(feature = "policies"))]
use cachalot_core::config::Policies;
use cachalot_core::config::{ConfigError, REFERENCE, SettingReference};
use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{Allocator, Config, DeviceError, DeviceResult, Error};
use cachalot_cuda::HeapLock;
use cachalot_cuda::{CudaDevice, DeviceOptions, Driver, HOST_SETTINGS, HostDevice, LoadError, StreamIdentity, Streams};
use core::fmt;
use std::sync::Arc;

/// The allocator over devices of the CUDA driver, as used by the C ABI.
pub type CudaAllocator = Allocator<CudaDevice, HeapLock, Tables>;

/// The allocator over simulated devices, which need no GPU. Their addresses stand for no memory.
pub type SimulatedAllocator = Allocator<SimulatedDevice, HeapLock, Tables>;

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
    let devices = open_devices(ordinals, CudaDevice::open_with, CudaDevice::close)?;
    Allocator::new(devices, config).map_err(|error| OpenError::Allocator(Box::new(error)))
}

/// The allocator over pinned memory of the host, as used by the C ABI with `CACHALOT_HOST`.
pub type HostAllocator = Allocator<HostDevice, HeapLock, Tables>;

/// Opens an allocator over pinned memory of the host, for the GPUs with the given ordinals:
/// `DeviceIndex(0)` is memory on the NUMA node of the first of `ordinals`. Every GPU may use all of
/// the memory. Requests name [`HOST_STREAM`](crate::HOST_STREAM).
///
/// `settings` are in the syntax of [`Config`]. Under the caching policy, those that are not named
/// have the values of [`HOST_SETTINGS`].
///
/// ```no_run
/// use cachalot::prelude::*;
///
/// let host = cachalot::open_host(&[0], "")?;
/// let staging = host.buffer::<f32>(DeviceIndex(0), 1 << 20, HOST_STREAM)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`OpenError`]. Devices opened before the failure are closed again.
pub fn open_host(ordinals: &[u32], settings: &str) -> Result<HostAllocator, OpenError> {
    let config = host_config(settings).map_err(OpenError::Config)?;
    let devices = open_devices(ordinals, HostDevice::open_with, HostDevice::close)?;
    Allocator::new(devices, &config).map_err(|error| OpenError::Allocator(Box::new(error)))
}

/// The policies besides the core's own: none without the feature `policies`.
#[cfg(not(feature = "policies"))]
pub const POLICIES: Policies = Policies::NONE;
#[cfg(feature = "policies")]
pub use cachalot_policies::{POLICIES, Tables};

/// The tables of an allocator, and the policies that its paths are compiled with.
#[cfg(not(feature = "policies"))]
pub type Tables = cachalot_core::Growable;

/// Returns all settings, sorted by key: those of the core, and of [`POLICIES`].
#[must_use]
pub fn settings() -> Vec<SettingReference> {
    let mut all: Vec<_> = REFERENCE.into_iter().copied().chain(POLICIES.settings()).collect();
    all.sort_by_key(|setting| setting.key);
    all
}

/// Parses settings, which may name a policy of [`POLICIES`].
///
/// ```
/// let allocator = cachalot::open_simulated(16 << 30, &cachalot::parse("policy:buddy,arena_mb:128")?)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`ConfigError`] at the first mistake.
pub fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse_with(POLICIES, text)
}

/// Parses settings of host memory. Only the caching policy has the keys of [`HOST_SETTINGS`].
pub(crate) fn host_config(settings: &str) -> Result<Config, ConfigError> {
    let config = parse(settings)?;
    if !config.policy().traits().follows_pytorch {
        return Ok(config);
    }
    // A later setting wins.
    let comma = if settings.is_empty() { "" } else { "," };
    parse(&format!("{HOST_SETTINGS}{comma}{settings}"))
}

/// Opens devices of one kind, with one table of streams. After a failure closes the devices already
/// open.
fn open_devices<D>(
    ordinals: &[u32],
    open: impl Fn(&'static Driver, u32, DeviceOptions) -> DeviceResult<D>,
    close: impl Fn(&D) -> DeviceResult<()>,
) -> Result<Vec<D>, OpenError> {
    let driver = Driver::load().map_err(OpenError::Driver)?;
    let streams = Arc::new(Streams::new());
    let mut devices: Vec<D> = Vec::with_capacity(ordinals.len());
    for &ordinal in ordinals {
        // A program that forgets a report must not crash.
        let identity = StreamIdentity::Unreported;
        let options = DeviceOptions { streams: Arc::clone(&streams), identity, ..DeviceOptions::default() };
        match open(driver, ordinal, options) {
            Ok(device) => devices.push(device),
            Err(error) => {
                for opened in &devices {
                    // The failure to open is the one to report.
                    let _ = close(opened);
                }
                return Err(OpenError::Device { ordinal, error });
            }
        }
    }
    Ok(devices)
}

/// The reason why [`open_cuda`] or [`open_host`] failed.
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
    /// The settings have a mistake.
    Config(ConfigError),
    /// The allocator refuses the devices or the configuration.
    Allocator(Box<Error>),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Driver(error) => error.fmt(f),
            Self::Device { ordinal, error } => write!(f, "device {ordinal} cannot be opened: {error}"),
            Self::Config(error) => error.fmt(f),
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
