//! Interface of the allocators under measurement.

/// An allocator under measurement.
///
/// `malloc` and `free` are never inlined into the measuring loop, because ordinary programs call an
/// allocator across a function boundary.
pub trait Subject {
    /// Identifies a block: returned by `malloc` and passed to `free`.
    type Handle: Copy;

    /// Allocates a block of at least `bytes` bytes for use on `stream`, or `None` if the request is
    /// refused.
    fn malloc(&mut self, bytes: u64, stream: u64) -> Option<Self::Handle>;

    /// Frees a live block that `malloc` returned.
    fn free(&mut self, handle: Self::Handle);
}
