//! The quantities that everything else is written in: device addresses, streams, and sizes in bytes.

use core::fmt;

/// The unit of every block size, in bytes: sizes and offsets are multiples of it (`kMinBlockSize`, `PyTorch` 2.0–2.15).
pub const UNIT: u64 = 512;

/// What every address and size is a multiple of under any policy, in bytes (`kMinAllocationSize`, TensorFlow 2.16).
pub const GRAIN: u64 = 256;

/// One mebibyte, in bytes.
pub const MIB: u64 = 1 << 20;

/// Requests of this many bytes or more are refused at the door (`one_exa_bytes`, `PyTorch` 2.0–2.15).
pub const MAX_REQUEST: u64 = 1 << 60;

/// An address in device memory. The host never dereferences it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// The null address: the answer to a request of zero bytes, never the address of a block.
    pub const NULL: Self = Self(0);

    /// The address `bytes` further on. Callers stay inside one segment, where it cannot overflow.
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

/// A queue of the device, in whose order a block is used. The host chooses the number (a handle or an id);
/// two streams are the same exactly when their numbers are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct StreamId(pub u64);

impl StreamId {
    /// The device's default stream.
    pub const DEFAULT: Self = Self(0);
}

/// The stream of a heap that belongs to none. No request has it.
pub(crate) const NO_STREAM: StreamId = StreamId(u64::MAX);

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {:#x}", self.0)
    }
}

/// A device of the allocator, counted from 0 in the order in which the allocator was given them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
#[repr(transparent)]
pub struct DeviceIndex(pub u32);
