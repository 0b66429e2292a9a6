//! Virtual memory of a device.

#[cfg(doc)]
use crate::device::ErrorKind;
use crate::device::forwarder::device_trait;
use crate::device::{Descriptor, DeviceResult, PhysicalHandle};
use crate::units::DevicePtr;

device_trait! {
    /// Virtual memory: addresses and physical memory are allocated separately, and joined by
    /// mappings.
    ///
    /// Sizes and addresses are multiples of [`granularity`](Self::granularity). A mapping covers a
    /// whole handle, and is unmapped as a whole.
    pub trait VirtualMemory: Send + Sync;

    /// Forwards [`VirtualMemory`] to the virtual memory of the inner device, except for the methods
    /// written in the implementation. [`virtual_memory`](crate::Segments::virtual_memory) of the
    /// wrapper then returns the wrapper.
    pub trait ForwardVirtualMemory, to crate::device::inner_virtual_memory;

    /// Returns the smallest size for creating and mapping, in bytes; a power of two.
    fn granularity(&self) -> u64 = 0;

    /// Reserves `bytes` of addresses without memory.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] if the device has no free range of `bytes` addresses.
    fn reserve(&self, bytes: u64) -> DeviceResult<DevicePtr> [Reserve];

    /// Releases a whole reservation without mappings.
    ///
    /// # Errors
    /// Any error leaves the range in doubt: the allocator never reuses the range.
    fn unreserve(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> [Unreserve];

    /// Allocates `bytes` of physical memory.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] only if the device certainly lacks the memory.
    fn create(&self, bytes: u64) -> DeviceResult<PhysicalHandle> [Create];

    /// Releases the handle. The device frees the memory once no mapping is left.
    ///
    /// # Errors
    /// Any error leaves the memory in doubt: the allocator counts the memory as leaked.
    fn destroy(&self, handle: PhysicalHandle) -> DeviceResult<()> [Destroy];

    /// Makes a descriptor of physical memory, with which another process maps the memory.
    ///
    /// # Errors
    /// * [`ErrorKind::Unsupported`] if the device shares no memory between processes.
    /// * Any error of the device. No descriptor exists then.
    fn export(&self, handle: PhysicalHandle) -> DeviceResult<Descriptor> [Export];

    /// Announces calls of [`map`](Self::map), and a single call of [`set_access`](Self::set_access)
    /// for all mappings, by this thread. [`end_mapping`](Self::end_mapping) follows, with no
    /// different call between.
    ///
    /// A device may fail if two threads change mappings concurrently. The implementation for a
    /// device with this limit lets a second thread wait in `begin_mapping`, and in
    /// [`unmap`](Self::unmap).
    fn begin_mapping(&self);

    /// Ends the calls announced by [`begin_mapping`](Self::begin_mapping).
    fn end_mapping(&self);

    /// Maps the whole of `handle`, `bytes` long, at `at`. The range is not accessible yet.
    ///
    /// # Errors
    /// Any error of the device; nothing is mapped then.
    fn map(&self, at: DevicePtr, bytes: u64, handle: PhysicalHandle) -> DeviceResult<()> [Map];

    /// Makes a mapped range readable and writable for this device and its peers.
    ///
    /// # Errors
    /// Any error of the device; the range stays mapped.
    fn set_access(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> [SetAccess];

    /// Removes a mapping. The caller has waited for all work that uses the range.
    ///
    /// # Errors
    /// Any error leaves the range in doubt: the allocator never reuses the range.
    fn unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> [Unmap];
}
