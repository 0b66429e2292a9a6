//! Blocks at chosen addresses.

use super::Allocator;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::page_map::Owner;
use crate::pool::PoolId;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::DevicePtr;

/// Allocates blocks at addresses chosen by the program, from the free memory of a pool: a view of an [`Allocator`].
///
/// To restore an earlier state of a pool, a program frees the blocks of the pool, and then allocates the blocks of
/// the earlier state at their old addresses.
pub struct Placer<'a, D: DeviceMemory, R: Lock, S: Storage>(pub &'a Allocator<D, R, S>);

impl<D: DeviceMemory, R: Lock, S: Storage> Placer<'_, D, R, S> {
    /// Allocates the `size` bytes from `ptr` on for a request of `requested` bytes in `pool`. The block belongs to
    /// the stream of the memory at `ptr`. Memory before and behind the block stays free.
    ///
    /// Device: not called.
    ///
    /// # Errors
    /// * [`Error::InvalidPointer`]: no segment of the allocator has the address.
    /// * [`Error::SnapshotRefused`]: the bytes are not free and mapped, not in this pool, or no
    ///   multiple of the unit; or the policy divides segments by rules of its own.
    /// * [`Error::TableFull`].
    pub fn malloc_at(&self, pool: PoolId, ptr: DevicePtr, size: u64, requested: u64) -> Result<(), Error> {
        let _checked = self.0.checked_at("malloc_at", ptr);
        match self.0.pages.owner(ptr) {
            Owner::Heap(heap) => self.0.on_owner(heap.device).malloc_at(heap.heap, pool, ptr, (size, requested)),
            _ => Err(Error::foreign(ptr)),
        }
    }
}
