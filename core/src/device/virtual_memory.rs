//! The virtual memory of a device.

#[cfg(doc)]
use crate::device::ErrorKind;
use crate::device::forwarder::device_trait;
use crate::device::{Descriptor, DeviceResult, PhysicalHandle};
use crate::units::DevicePtr;

device_trait! {
    /// Virtual memory: addresses and physical memory are allocated separately, and mappings connect
    /// them.
    ///
    /// Sizes and addresses are multiples of [`granularity`](Self::granularity). A mapping covers a
    /// whole handle, and is unmapped as a whole.
    pub trait VirtualMemory: Send + Sync;

    /// Forwards [`VirtualMemory`] to the virtual memory of the inner device, except for the methods
    /// that the implementation defines. [`virtual_memory`](crate::Segments::virtual_memory) of the
    /// wrapper then returns the wrapper.
    pub trait ForwardVirtualMemory, to crate::device::inner_virtual_memory;

    /// Returns the smallest size that can be created and mapped, in bytes. It is a power of two.
    fn granularity(&self) -> u64 = 0;

    /// Reserves `bytes` of addresses, without memory.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] if the device has no free range of `bytes` addresses.
    fn reserve(&self, bytes: u64) -> DeviceResult<DevicePtr> [Reserve];

    /// Releases a whole reservation that has no mappings.
    ///
    /// # Errors
    /// After any error the range is in doubt, and the allocator never reuses it.
    fn unreserve(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> [Unreserve];

    /// Allocates `bytes` of physical memory.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] only if the device certainly does not have the memory.
    fn create(&self, bytes: u64) -> DeviceResult<PhysicalHandle> [Create];

    /// Allocates `bytes` of physical memory of the host, which the device reads and writes over the
    /// link. It is never swapped out.
    ///
    /// # Errors
    /// * [`ErrorKind::OutOfMemory`] only if the host certainly does not have the memory, or, with
    ///   the code 0, if it would have too little left for itself.
    /// * [`ErrorKind::Unsupported`] if the device cannot map memory of the host.
    fn create_at_host(&self, bytes: u64) -> DeviceResult<PhysicalHandle> [CreateAtHost];

    /// Releases the handle. The device frees the memory when no mapping is left.
    ///
    /// # Errors
    /// After any error the memory is in doubt, and the allocator counts it as leaked.
    fn destroy(&self, handle: PhysicalHandle) -> DeviceResult<()> [Destroy];

    /// Creates a descriptor of physical memory, with which another process can map the memory.
    ///
    /// # Errors
    /// * [`ErrorKind::Unsupported`] if the device does not share memory between processes.
    /// * Any error of the device. There is no descriptor then.
    fn export(&self, handle: PhysicalHandle) -> DeviceResult<Descriptor> [Export];

    /// Announces that this thread will call [`map`](Self::map), and then
    /// [`set_access`](Self::set_access) once for all mappings. [`end_mapping`](Self::end_mapping)
    /// follows, with no other call in between.
    ///
    /// Some devices fail if two threads change mappings at the same time. The implementation for
    /// such a device makes a second thread wait in `begin_mapping` and in [`unmap`](Self::unmap).
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

    /// Removes a mapping. The caller has already waited for all work that uses the range.
    ///
    /// # Errors
    /// After any error the range is in doubt, and the allocator never reuses it.
    fn unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> [Unmap];
}
