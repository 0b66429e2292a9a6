//! Result codes: the runtime's own numbers.

/// The result of a call, or the `cudaError_t` of the failure.
pub(crate) type Answer<T> = Result<T, u32>;

/// `cudaErrorInvalidValue`.
pub(crate) const INVALID_VALUE: u32 = 1;
/// `cudaErrorMemoryAllocation`.
pub(crate) const MEMORY_ALLOCATION: u32 = 2;
/// `cudaErrorInvalidConfiguration`.
pub(crate) const INVALID_CONFIGURATION: u32 = 9;
/// `cudaErrorInvalidMemcpyDirection`.
pub(crate) const INVALID_MEMCPY_DIRECTION: u32 = 21;
/// `cudaErrorInsufficientDriver`.
pub(crate) const INSUFFICIENT_DRIVER: u32 = 35;
/// `cudaErrorInvalidDeviceFunction`.
pub(crate) const INVALID_DEVICE_FUNCTION: u32 = 98;
/// `cudaErrorInvalidDevice`.
pub(crate) const INVALID_DEVICE: u32 = 101;
/// `cudaErrorNoKernelImageForDevice`.
pub(crate) const NO_KERNEL_IMAGE: u32 = 209;
/// `cudaErrorStreamCaptureUnsupported`.
pub(crate) const CAPTURE_UNSUPPORTED: u32 = 900;
/// `cudaErrorNotSupported`.
pub(crate) const NOT_SUPPORTED: u32 = 801;
