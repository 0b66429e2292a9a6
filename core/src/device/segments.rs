//! The memory of a device: segments, and the optional parts of a device.

#[cfg(doc)]
use crate::device::ErrorKind;
use crate::device::forwarder::{Forwarder, device_trait};
use crate::device::{Contents, DeviceResult, MemoryInfo, VirtualMemory};
use crate::pool::PoolId;
use crate::units::{DevicePtr, StreamId};

device_trait! {
    /// The memory of a device.
    pub trait Segments: Send + Sync;

    /// Forwards [`Segments`], except for the methods written in the implementation.
    pub trait ForwardSegments, to Forwarder::inner;

    /// Allocates a segment of exactly `bytes`, at an address that is a multiple of 512.
    ///
    /// `bytes` is a positive multiple of 512; under best fit with coalescing, of 256.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] only if the device certainly lacks the memory. The allocator then
    /// releases cached memory and retries. After other errors the request fails at once.
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> [Obtain];

    /// Releases a whole segment returned by [`obtain`](Self::obtain). May wait for the device.
    ///
    /// # Errors
    /// Any error leaves the segment in doubt: the allocator counts it as leaked and never uses it
    /// again.
    fn release(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> [Release];

    /// Returns the device's total memory and free memory, counting every process.
    ///
    /// # Errors
    /// Any error of the device.
    fn memory_info(&self) -> DeviceResult<MemoryInfo> [MemoryInfo];

    /// Returns the bytes of the device in use by this process, by all libraries together. `None` if
    /// the device cannot tell. Appears in out-of-memory reports.
    fn process_use(&self) -> Option<u64> = None;

    /// Returns the UUID of the GPU, in the order of printing. `None` if the memory is no GPU's, or
    /// the device cannot tell. Appears in metrics. Must not call the driver.
    fn uuid(&self) -> Option<[u8; 16]> = None;

    /// Returns whether [`obtain_for`](Self::obtain_for) allocates the segments of a private pool.
    /// The heaps of the pool then map no pages: under the stitched policy the heaps place blocks
    /// like under the caching policy. Called without a lock at each request led into the pool by a
    /// route. Must not call the allocator. A new answer concerns new segments only.
    fn supplies(&self, pool: PoolId) -> bool = false;

    /// Allocates a segment of a private pool, as [`obtain`](Self::obtain) does, for a pool with
    /// [`supplies`](Self::supplies). [`release`](Self::release) releases the segment.
    ///
    /// # Errors
    /// The errors of [`obtain`](Self::obtain).
    fn obtain_for(&self, pool: PoolId, bytes: u64) -> DeviceResult<DevicePtr> [Obtain];

    /// Returns whether [`obtain_on`](Self::obtain_on) serves the requests of `policy:direct`.
    /// Called without a lock at each of them. Must not call the driver.
    fn is_ordered(&self) -> bool = false;

    /// Returns whether to obtain a segment costs time for each byte, as memory of the host does
    /// that is pinned. The allocator then widens segments of ever other sizes, rather than obtain
    /// each anew. Must not call the driver.
    fn pins(&self) -> bool = false;

    /// Allocates a segment, as [`obtain`](Self::obtain) does, in the order of `stream`, which
    /// captures no graph: work on other streams has to be ordered after the present work of
    /// `stream` before it uses the segment. [`release`](Self::release) releases the segment in the
    /// order of `stream`, too. Only for a device that [is ordered](Self::is_ordered).
    ///
    /// # Errors
    /// The errors of [`obtain`](Self::obtain).
    fn obtain_on(&self, stream: StreamId, bytes: u64) -> DeviceResult<DevicePtr> [Obtain];

    /// Returns the device's virtual memory, if any. Without virtual memory, segments are never
    /// expandable, and the stitched policy places blocks like the caching policy.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> = None;

    /// Returns the host's memory for the contents of parked memory, if any. Without the host's
    /// memory, memory is parked only without contents.
    fn contents(&self) -> Option<&dyn Contents> = None;
}
