//! Explains addresses from the tables of the allocator. This works after the loss of the context,
//! too, because the device is not called.

use crate::arena::Platform;
use crate::arena::heaps::Heaps;
use crate::arena::paging::Paging;
use crate::device::explanation::{Explanation, Holder, STREAMS};
use crate::heap::block::State;
use crate::pages::guards::{GuardStage, Guards};
use crate::tables::OnceTable;
use crate::tables::slot_table::NONE;
use crate::trace::call_sites::CallSites;
use crate::units::{DeviceIndex, DevicePtr};

impl<P: Platform> Paging<P> {
    /// Explains an address of a guarded block, or one of the unmapped addresses around it.
    pub(crate) fn explain(&self, device: DeviceIndex, address: DevicePtr) -> Option<Explanation> {
        let around = |guards: &mut Guards<P::Storage>| Some((guards.around(address)?.clone(), guards.frees));
        let (block, frees) = self.with_guards(around)?;
        Some(Explanation {
            address,
            block: block.place.at,
            requested: block.requested,
            size: block.place.size,
            stream: block.stream,
            device,
            holder: match block.stage {
                GuardStage::Held => Holder::Program,
                GuardStage::Freed | GuardStage::Pinned => Holder::Work,
                GuardStage::Unmapped => Holder::Nobody,
            },
            guarded: true,
            in_free_memory: false,
            allocated_at: block.sites[0],
            freed_at: block.sites[1],
            frees_since: if block.stage == GuardStage::Held { 0 } else { frees - block.freed },
            used_on: block.uses,
        })
    }
}

impl<P: Platform> Heaps<P> {
    /// Explains an address in a block of the heap in `slot`, or in free memory right after a block.
    /// Returns `None` if there is no block.
    pub(crate) fn explain(&self, sites: &CallSites<P::Lock>, slot: u32, address: DevicePtr) -> Option<Explanation> {
        let mut heap = self.slots.get(slot)?.heap.lock();
        let around = heap.containing(address)?;
        let in_free_memory = heap.blocks[around].state == State::Free;
        let is_lent = in_free_memory && heap.loan.since > 0;
        // A kernel that runs past the end of a block reaches the free block after it.
        let block = if in_free_memory && !is_lent { heap.blocks[around].prev } else { around };
        if block == NONE {
            return None;
        }
        let entry = heap.blocks[block];
        let holder = match entry.state {
            State::Free if is_lent => Holder::Borrowers,
            State::Allocated => Holder::Program,
            State::Pending => Holder::Work,
            _ => return None,
        };
        let stream = heap.uses().borrower(block).unwrap_or(heap.stream);
        let mut next = entry.uses;
        let uses = heap.uses().next_streams(&mut next);
        Some(Explanation {
            address,
            block: DevicePtr(entry.addr),
            requested: entry.requested,
            size: entry.size,
            stream,
            device: DeviceIndex(self.device()),
            holder,
            guarded: false,
            in_free_memory,
            allocated_at: sites.block(DevicePtr(entry.addr)),
            freed_at: 0,
            frees_since: 0,
            used_on: uses.into_iter().filter(|&other| other != stream).take(STREAMS).collect(),
        })
    }
}
