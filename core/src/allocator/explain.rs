//! Explanations of addresses: which block a kernel missed, and what happened to it.

use crate::allocator::Allocator;
use crate::arena::invalid_pointer::not_in_heap;
use crate::device::DeviceMemory;
use crate::device::{Explanation, Holder};
use crate::error::Error;
use crate::sync::Lock;
use crate::tables::{Devices, Storage};
use crate::units::{DeviceIndex, DevicePtr};

impl<D: DeviceMemory, R: Lock, S: Storage> Allocator<D, R, S> {
    /// Explains an address, such as one at which a kernel faulted: the block at the address or next
    /// to it, who holds the block, its call sites, and the streams that the program declared as its
    /// users.
    ///
    /// The allocator knows the blocks that the program has or that still wait for work, with the
    /// free memory after them. With [`guard`](crate::config::Guard) it also knows the blocks that
    /// were unmapped last, with the addresses around them. The call site of a request is known
    /// while a trace is recorded, and for each guarded block.
    ///
    /// Device: not called, so this works even after the context is lost.
    ///
    /// # Errors
    /// [`Error::InvalidPointer`]: nothing is known about the address.
    pub fn explain(&self, address: DevicePtr) -> Result<Explanation, Error> {
        let _checked = self.checked_at("explain", address);
        let guarded =
            self.arenas.published().iter().find_map(|arena| arena.paging.explain(DeviceIndex(arena.number()), address));
        if let Some(explanation) = guarded {
            if explanation.holder != Holder::Program {
                return Ok(explanation);
            }
            // The heap knows the uses of a block that the program has.
            let of_heap = self.explain_live(explanation.block);
            return Ok(if let Ok(live) = of_heap { explanation.with_uses(&live) } else { explanation });
        }
        self.explain_live(address)
    }

    /// Explains an address in a block that the program has, or that waits for work.
    fn explain_live(&self, address: DevicePtr) -> Result<Explanation, Error> {
        self.at_owner(address, |device, heap| {
            let explained = device.heaps.explain(&device.history.sites, heap.heap, address);
            explained.ok_or_else(|| not_in_heap(&device.heaps.lock(heap.heap), address))
        })
    }
}
