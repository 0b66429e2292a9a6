//! The description of a block held by the program.

use crate::arena::heaps::Heaps;
use crate::arena::platform::Platform;
use crate::heap::block::{BlockEntry, State};
use crate::tables::OnceTable;
use crate::units::{DeviceIndex, DevicePtr, StreamId};

/// Describes a block held by the program; see [`Allocator::base_of`](crate::Allocator::base_of).
///
/// The block lies in the segment: `segment ≤ base`, and `base + size ≤ segment + segment_bytes`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// Address of the first byte of the block.
    pub base: DevicePtr,
    /// Length of the block in bytes: `requested`, rounded up, or more.
    pub size: u64,
    /// Bytes requested by the program; not 0.
    pub requested: u64,
    /// Own stream of the block: the stream of the request, also if the segment is another stream's,
    /// which has lent the block, and after the stream has ended.
    pub stream: StreamId,
    /// Device of the block.
    pub device: DeviceIndex,
    /// Address of the first byte of the block's segment.
    pub segment: DevicePtr,
    /// Length of the segment in bytes.
    pub segment_bytes: u64,
}

impl<P: Platform> Heaps<P> {
    /// Describes the allocated block of a heap that contains `ptr`. `None` if the heap has none.
    pub(crate) fn allocation(&self, slot: u32, ptr: DevicePtr) -> Option<Allocation> {
        let mut heap = self.slots.get(slot)?.heap.lock();
        // The first byte is found by a hash. Only an address inside a block needs the walk.
        let block = heap.lookup(ptr).or_else(|| heap.containing(ptr))?;
        let BlockEntry { addr, size, requested, segment, state, .. } = heap.blocks[block];
        let stream = heap.uses().borrower(block).unwrap_or(heap.stream);
        let segment = &heap.segments[segment];
        // `containing` also finds free and pending blocks. These are not the program's.
        (state == State::Allocated).then_some(Allocation {
            base: DevicePtr(addr),
            size,
            requested,
            stream,
            device: DeviceIndex(self.device()),
            segment: DevicePtr(segment.base),
            segment_bytes: segment.bytes,
        })
    }
}
