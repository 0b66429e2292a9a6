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

    /// Forwards [`Segments`], except for the methods that the implementation defines.
    pub trait ForwardSegments, to Forwarder::inner;

    /// Allocates a segment of exactly `bytes`, at an address that is a multiple of 512.
    ///
    /// `bytes` is a positive multiple of 512 or, under best fit with coalescing, of 256.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] only if the device certainly does not have the memory. The
    /// allocator then releases cached memory and retries. After any other error the request fails
    /// at once.
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> [Obtain];

    /// Releases a whole segment that [`obtain`](Self::obtain) returned. May wait for the device.
    ///
    /// # Errors
    /// After any error the segment is in doubt: the allocator counts it as leaked and never uses it
    /// again.
    fn release(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> [Release];

    /// Returns the device's total and free memory, with the use of all processes taken into
    /// account.
    ///
    /// # Errors
    /// Any error of the device.
    fn memory_info(&self) -> DeviceResult<MemoryInfo> [MemoryInfo];

    /// Returns how many bytes of the device this process uses, including all libraries. `None` if
    /// the device cannot say. Appears in out-of-memory reports.
    fn process_use(&self) -> Option<u64> = None;

    /// Returns whether the device has no memory besides that of the host, which every program and
    /// the contents of files take as well. Appears in out-of-memory reports. Must not call the
    /// driver.
    fn shares_host_memory(&self) -> bool = false;

    /// Returns whether the host certainly does not have `bytes` more for a device that shares its
    /// memory. Asked before a request takes many pages, of which each by itself would be had. Must
    /// not call the driver.
    fn lacks(&self, bytes: u64) -> bool = false;

    /// Returns how many bytes the system wants back from this process, because it uses more of the
    /// device than its share. Upkeep under `reclaim:auto` asks, without a lock, and gives as much
    /// idle memory back, whether or not it will be needed soon.
    fn owed(&self) -> u64 = 0;

    /// Returns the UUID of the GPU, with its bytes in the order in which they are printed. `None`
    /// if the memory is not on a GPU, or the device cannot say. Appears in metrics. Must not call
    /// the driver.
    fn uuid(&self) -> Option<[u8; 16]> = None;

    /// Returns whether [`obtain_for`](Self::obtain_for) allocates the segments of a private pool.
    /// The heaps of such a pool map no pages: under the stitched policy, they place blocks as under
    /// the caching policy. This is called without a lock at each request that a route leads to the
    /// pool. It must not call the allocator. If the answer changes, only new segments are affected.
    fn supplies(&self, pool: PoolId) -> bool = false;

    /// Allocates a segment of a private pool, as [`obtain`](Self::obtain) does, if the device
    /// [`supplies`](Self::supplies) the pool. [`release`](Self::release) releases the segment.
    ///
    /// # Errors
    /// The errors of [`obtain`](Self::obtain).
    fn obtain_for(&self, pool: PoolId, bytes: u64) -> DeviceResult<DevicePtr> [Obtain];

    /// Returns whether [`obtain_on`](Self::obtain_on) serves the requests of `policy:direct`. This
    /// is called without a lock at each of them. It must not call the driver.
    fn is_ordered(&self) -> bool = false;

    /// Returns whether it takes time for each byte to obtain a segment, as it does for pinned host
    /// memory. The allocator then widens segments when sizes keep changing, instead of obtaining
    /// new ones. Must not call the driver.
    fn pins(&self) -> bool = false;

    /// Allocates a segment, as [`obtain`](Self::obtain) does, in the order of `stream`, which
    /// captures no graph: work on another stream must be ordered after the current work of `stream`
    /// before it uses the segment. [`release`](Self::release) also releases the segment in the
    /// order of `stream`. Called only if the device [is ordered](Self::is_ordered).
    ///
    /// # Errors
    /// The errors of [`obtain`](Self::obtain).
    fn obtain_on(&self, stream: StreamId, bytes: u64) -> DeviceResult<DevicePtr> [Obtain];

    /// Returns the device's virtual memory, if it has any. Otherwise segments are never expandable,
    /// and the stitched policy places blocks as the caching policy does.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> = None;

    /// Returns the host's memory for the contents of parked memory, if there is any. Otherwise
    /// memory can only be parked without its contents.
    fn contents(&self) -> Option<&dyn Contents> = None;
}
