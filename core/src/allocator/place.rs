//! Blocks at chosen addresses.

use super::Allocator;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::page_map::Owner;
use crate::pool::PoolId;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::DevicePtr;

impl<D: DeviceMemory, R: Lock, S: Storage> Allocator<D, R, S> {
    /// Allocates the `size` bytes from `ptr` on for a request of `requested` bytes in `pool`. The
    /// block belongs to the stream that the memory at `ptr` belongs to. The memory before and after
    /// the block remains free.
    ///
    /// To restore an earlier state of a pool, a program frees the blocks of the pool, and then
    /// allocates the blocks of the earlier state at their old addresses.
    ///
    /// Device: not called.
    ///
    /// # Errors
    /// * [`Error::InvalidPointer`]: no segment of the allocator contains the address.
    /// * [`Error::SnapshotRefused`]: the bytes are not free and mapped, not in this pool, or no
    ///   multiple of the unit; or the policy divides segments by its own rules.
    /// * [`Error::TableFull`].
    pub fn malloc_at(&self, pool: PoolId, ptr: DevicePtr, size: u64, requested: u64) -> Result<(), Error> {
        let _checked = self.checked_at("malloc_at", ptr);
        match self.pages.owner(ptr) {
            Owner::Heap(heap) => self.on_owner(heap.device).malloc_at(heap.heap, pool, ptr, (size, requested)),
            _ => Err(Error::foreign(ptr)),
        }
    }
}
