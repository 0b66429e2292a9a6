//! The contents of parked memory: the host saves them, and writes them back.

use crate::device::DeviceResult;
use crate::device::bare::LACKING;
use crate::device::forwarder::device_trait;
use crate::units::{DevicePtr, StreamId};
use core::num::NonZeroU64;

/// The host's name for saved contents of memory. Opaque to the allocator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct Saved(pub NonZeroU64);

/// A point between two copies: all copies started before it have lower numbers. 0 is before all
/// copies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash, Debug)]
#[repr(transparent)]
pub struct CopyMark(pub u64);

device_trait! {
    /// The host's memory for the contents of parked memory, and the copies to and from it.
    ///
    /// A call *starts* a copy, which may still be running when the call returns;
    /// [`finish`](Self::finish) waits for it. All work on the memory is complete before a copy
    /// starts. Copies are not ordered with any stream of the program.
    pub trait Contents: Send + Sync;

    /// Forwards [`Contents`] to the inner device's memory for contents, except for the methods that
    /// the implementation defines. [`contents`](crate::Segments::contents) of the wrapper then
    /// returns the wrapper.
    pub trait ForwardContents, to crate::device::inner_contents;

    /// Returns whether contents that are saved from now on lie outside of the device's memory. If
    /// not, memory is not parked, because saving its contents would take as much as it frees.
    fn lie_elsewhere(&self) -> bool = false;

    /// Prepares to save `bytes` more, in parts of at most `largest` bytes. This obtains host
    /// memory, which is kept for the saves that follow until [`end_saves`](Self::end_saves). The
    /// allocator prepares for one park of a device at a time.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) if the host does not have the
    /// memory. Nothing is held then.
    fn prepare(&self, bytes: u64, largest: u64) -> DeviceResult<()> [Prepare];

    /// Ends the saves announced by [`prepare`](Self::prepare). Prepared memory that was not used
    /// may be given back. Copies that were started may still be running. Does nothing if nothing is
    /// prepared.
    fn end_saves(&self);

    /// Starts to copy `bytes` from `at` to host memory. The bytes do not change before the copy has
    /// ended.
    ///
    /// # Errors
    /// Any error of the device or host. Nothing is saved then.
    /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) if the host does not have the
    /// memory after all, or if nothing is prepared.
    fn save(&self, at: DevicePtr, bytes: u64) -> DeviceResult<Saved> [Save];

    /// Starts to copy saved contents of `bytes` back to the mapped memory at `at`. They remain
    /// saved until [`forget`](Self::forget).
    ///
    /// # Errors
    /// Any error of the device. The contents of the memory are undefined then.
    fn restore(&self, saved: Saved, at: DevicePtr, bytes: u64) -> DeviceResult<()> [Restore];

    /// Starts to write zeroes to `bytes` of mapped memory at `at`.
    ///
    /// # Errors
    /// Any error of the device. The contents of the memory are undefined then.
    fn zero(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> [Zero];

    /// Starts to copy `bytes` of mapped memory at `from` to mapped memory at `to`. The two do not
    /// overlap.
    ///
    /// # Errors
    /// Any error of the device. The contents of the memory at `to` are undefined then.
    fn copy(&self, from: DevicePtr, to: DevicePtr, bytes: u64) -> DeviceResult<()> [Copy];

    /// Queues on `stream` an operation that sets the `bytes` from `at` on to `value`. If the stream
    /// has ended, or no stream has this number, the call waits for the end of the fill.
    ///
    /// # Errors
    /// Any error of the device. The contents of the memory are undefined then.
    fn fill(&self, stream: StreamId, at: DevicePtr, bytes: u64, value: u8) -> DeviceResult<()> = Err(LACKING);

    /// Copies the memory from `at` on to `into`, and waits for the copy. No work uses the memory
    /// meanwhile.
    ///
    /// # Errors
    /// Any error of the device. The contents of `into` are undefined then.
    fn read(&self, at: DevicePtr, into: &mut [u8]) -> DeviceResult<()> = Err(LACKING);

    /// Marks the current moment, so that [`finish`](Self::finish) can wait for the copies started
    /// before it.
    ///
    /// # Errors
    /// Any error of the device.
    fn mark(&self) -> DeviceResult<CopyMark> [Mark];

    /// Blocks the calling thread until every copy started before `mark` has ended. The same mark
    /// may be waited for more than once.
    ///
    /// # Errors
    /// The error of a failed copy, or of the device. The copied bytes are in doubt then.
    fn finish(&self, mark: CopyMark) -> DeviceResult<()> [Finish];

    /// Drops saved contents. No running copy uses them.
    fn forget(&self, saved: Saved);
}
