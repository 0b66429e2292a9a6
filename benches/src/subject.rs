//! What is measured: anything that hands out blocks and takes them back.

/// An allocator under measurement.
///
/// `malloc` and `free` are never inlined into the loop that measures them: a program calls an allocator, it does not
/// contain one.
pub trait Subject {
    /// What `malloc` returns and `free` takes.
    type Handle: Copy;

    /// A block of at least `bytes` for use on `stream`; `None` if there is none to be had.
    fn malloc(&mut self, bytes: u64, stream: u64) -> Option<Self::Handle>;

    /// Gives a block back that `malloc` returned and that was not given back since.
    fn free(&mut self, handle: Self::Handle);
}
