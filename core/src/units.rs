//! The quantities used throughout the crate: device addresses, streams, devices, and sizes in
//! bytes.

use core::fmt;

/// The unit of every block size, in bytes: sizes and offsets are multiples of 512 (`kMinBlockSize`,
/// `PyTorch` 2.0–2.15).
pub const UNIT: u64 = 512;

/// The common divisor of all addresses and sizes under every policy, in bytes
/// (`kMinAllocationSize`, TensorFlow 2.16).
pub const GRAIN: u64 = 256;

/// One mebibyte, in bytes.
pub const MIB: u64 = 1 << 20;

/// The limit of a request, in bytes: requests of this size or more fail with
/// [`Error::TooLarge`](crate::Error::TooLarge) (`one_exa_bytes`, `PyTorch` 2.0–2.15).
pub const MAX_REQUEST: u64 = 1 << 60;

/// An address in device memory. The host never dereferences it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// The null address: the result of a request for zero bytes. It is never the address of a
    /// block.
    pub const NULL: Self = Self(0);

    /// Returns the address `bytes` higher. The result must be inside the same segment, so the sum
    /// cannot overflow.
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

impl fmt::Debug for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A stream: a queue of work on the device, executed in order. The host chooses the number, which
/// may be a handle or an id. The same number means the same stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct StreamId(pub u64);

impl StreamId {
    /// The device's default stream.
    pub const DEFAULT: Self = Self(0);

    /// All streams of a device. Used where a stream may be gone, so it cannot be waited for alone.
    /// No stream has this number: requests with it are refused.
    pub const EVERY: Self = Self(u64::MAX);
}

/// The stream of a heap that belongs to no stream.
pub(crate) const NO_STREAM: StreamId = StreamId::EVERY;

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {:#x}", self.0)
    }
}

/// A device of the allocator. Devices are numbered from 0 in the order in which they were passed at
/// creation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
#[repr(transparent)]
pub struct DeviceIndex(pub u32);

/// An elastic range of a device. The number of a released range is never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct RangeId(pub u64);
