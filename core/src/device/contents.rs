//! The host's part for the contents of parked memory: keeping copies, and writing the copies back.

use crate::device::DeviceResult;
use crate::device::bare::LACKING;
use crate::device::forwarder::device_trait;
use crate::units::{DevicePtr, StreamId};
use core::num::NonZeroU64;

/// Kept contents of memory: the host's name for a copy. Opaque to the allocator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct Saved(pub NonZeroU64);

/// A moment between two copies: all copies begun before have lower numbers. 0 is before all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash, Debug)]
#[repr(transparent)]
pub struct CopyMark(pub u64);

device_trait! {
    /// The host's memory for the contents of parked memory, and the copies to and from it.
    ///
    /// A copy is *begun* by a call and may go on while the caller goes on; [`finish`](Self::finish)
    /// waits for the end. All work on the copied memory is complete before a copy begins. Copies
    /// are not ordered with any stream of the program.
    pub trait Contents: Send + Sync;

    /// Forwards [`Contents`] to the memory for contents of the inner device, except for the methods
    /// written in the implementation. [`contents`](crate::Segments::contents) of the wrapper then
    /// returns the wrapper.
    pub trait ForwardContents, to crate::device::inner_contents;

    /// Prepares to keep `bytes` more, in parts of at most `largest` bytes. The method obtains
    /// memory of the host. The memory belongs to the saves to follow until
    /// [`end_saves`](Self::end_saves). The allocator prepares for one park of a device at a time.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) if the host lacks the memory.
    /// Nothing is held then.
    fn prepare(&self, bytes: u64, largest: u64) -> DeviceResult<()> [Prepare];

    /// Ends the saves announced by [`prepare`](Self::prepare). Prepared memory without contents may
    /// go back. Copies begun before may still be in progress. Does nothing if nothing is prepared.
    fn end_saves(&self);

    /// Begins to copy `bytes` from `at` to memory of the host. The bytes do not change before the
    /// copy has ended.
    ///
    /// # Errors
    /// Any error of the device or host. Nothing is kept then.
    /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) if the host lacks the memory after
    /// all, or nothing is prepared.
    fn save(&self, at: DevicePtr, bytes: u64) -> DeviceResult<Saved> [Save];

    /// Begins to copy kept contents, of `bytes`, to the mapped memory at `at`. The contents are
    /// kept until [`forget`](Self::forget).
    ///
    /// # Errors
    /// Any error of the device. The memory has any contents then.
    fn restore(&self, saved: Saved, at: DevicePtr, bytes: u64) -> DeviceResult<()> [Restore];

    /// Begins to write zeroes to `bytes` of mapped memory at `at`.
    ///
    /// # Errors
    /// Any error of the device. The memory has any contents then.
    fn zero(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> [Zero];

    /// Queues on `stream`: the `bytes` from `at` on get the value `value`. On a stream that has
    /// ended, or under a number that no stream has, the call waits for the end of the fill.
    ///
    /// # Errors
    /// Any error of the device. The memory has any contents then.
    fn fill(&self, stream: StreamId, at: DevicePtr, bytes: u64, value: u8) -> DeviceResult<()> = Err(LACKING);

    /// Copies the memory from `at` on to `into`, and waits for the end of the copy. No work uses
    /// the memory.
    ///
    /// # Errors
    /// Any error of the device. `into` has any contents then.
    fn read(&self, at: DevicePtr, into: &mut [u8]) -> DeviceResult<()> = Err(LACKING);

    /// Marks the present moment, so [`finish`](Self::finish) can wait for the copies begun before.
    ///
    /// # Errors
    /// Any error of the device.
    fn mark(&self) -> DeviceResult<CopyMark> [Mark];

    /// Blocks the calling thread until every copy begun before `mark` has ended. A mark may be
    /// waited for more than once.
    ///
    /// # Errors
    /// The error of a failed copy, or of the device. The copied bytes are in doubt then.
    fn finish(&self, mark: CopyMark) -> DeviceResult<()> [Finish];

    /// Gives up kept contents. No copy in progress uses the contents.
    fn forget(&self, saved: Saved);
}
