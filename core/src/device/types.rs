//! Values that a device hands out.

/// An event: a point in a stream's order. Opaque; made and destroyed by the device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct Event(pub u64);

/// A piece of physical memory that can be mapped into reserved addresses. Opaque.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct PhysicalHandle(pub u64);

/// How much memory the device has, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MemoryInfo {
    /// Not in use by any process.
    pub free: u64,
    /// In all.
    pub total: u64,
}
