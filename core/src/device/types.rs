//! Values created by a device.

/// An event: a point in a stream's order. Opaque to the allocator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct Event(pub u64);

/// A mark in a graph being captured: the work captured so far by some streams. Opaque to the
/// allocator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct CaptureMark(pub u64);

/// Physical memory for mapping into reserved addresses. Opaque to the allocator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct PhysicalHandle(pub u64);

/// A POSIX file descriptor of physical memory, for another process. The receiver owns the
/// descriptor, and closes it.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "the receiver closes the descriptor"]
pub struct Descriptor(pub i32);

/// The memory of the device, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MemoryInfo {
    /// Memory in use by no process.
    pub free: u64,
    /// All memory of the device.
    pub total: u64,
}
