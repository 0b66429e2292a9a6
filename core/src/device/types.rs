//! Values that a device creates.

/// An event: a point in the order of a stream. Opaque to the allocator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct Event(pub u64);

/// A mark in a graph that is being captured: the work that some streams have captured so far.
/// Opaque to the allocator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct CaptureMark(pub u64);

/// Physical memory that can be mapped at reserved addresses. Opaque to the allocator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct PhysicalHandle(pub u64);

/// A POSIX file descriptor of physical memory, for another process. The receiver owns it and closes
/// it.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "the receiver closes the descriptor"]
pub struct Descriptor(pub i32);

/// The memory of the device, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MemoryInfo {
    /// Memory that no process uses.
    pub free: u64,
    /// All memory of the device.
    pub total: u64,
}
