//! Finds out why an address is refused: it was freed before, is inside a block, or does not belong
//! to the allocator.
//!
//! This runs only after a lookup has failed, so no successful call pays for it.

use crate::error::{Error, PointerFault};
use crate::heap::Heap;
use crate::heap::block::{BlockEntry, State};
use crate::tables::Storage;
use crate::tables::slot_table::NONE;
use crate::units::DevicePtr;

/// Returns the error for an address at which `heap` holds no allocated block.
#[cold]
pub(crate) fn not_in_heap<S: Storage>(heap: &Heap<S>, ptr: DevicePtr) -> Error {
    Error::InvalidPointer { ptr, fault: fault_in(heap, ptr) }
}

/// Returns what is wrong with `ptr` according to the entries of `heap` alone. The address may
/// belong to another heap.
fn fault_in<S: Storage>(heap: &Heap<S>, ptr: DevicePtr) -> PointerFault {
    let Some(block) = heap.containing(ptr) else {
        // Free sub-blocks have no entry, so the segment decides.
        return if has_segment_at(heap, ptr) { PointerFault::Free } else { PointerFault::Foreign };
    };
    let BlockEntry { addr, requested, state, .. } = heap.blocks[block];
    match state {
        State::Allocated => PointerFault::Interior { block: DevicePtr(addr), requested },
        State::Pending => PointerFault::Pending,
        // Detached blocks are free memory that is about to be mapped, unmapped or released.
        State::Free | State::Unmapped | State::Detached | State::Mapping | State::Stale | State::Lost => {
            PointerFault::Free
        }
    }
}

/// Returns whether a segment of `heap` contains `ptr`.
fn has_segment_at<S: Storage>(heap: &Heap<S>, ptr: DevicePtr) -> bool {
    let next = |&segment: &u32| Some(heap.segments[segment].next).filter(|&next| next != NONE);
    core::iter::successors(Some(heap.newest).filter(|&newest| newest != NONE), next).any(|segment| {
        let segment = &heap.segments[segment];
        (segment.base..segment.base + segment.bytes).contains(&ptr.0)
    })
}
