//! The description of a block that the program holds.

use crate::arena::heaps::Heaps;
use crate::arena::platform::Platform;
use crate::heap::block::{BlockEntry, State};
use crate::tables::OnceTable;
use crate::units::{DeviceIndex, DevicePtr, StreamId};

/// Describes a block that the program holds; see [`Allocator::base_of`](crate::Allocator::base_of).
///
/// The block is within its segment: `segment ≤ base`, and `base + size ≤ segment + segment_bytes`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// The address of the first byte of the block.
    pub base: DevicePtr,
    /// The length of the block in bytes: `requested`, rounded up, or more.
    pub size: u64,
    /// The bytes that the program requested, which are not 0.
    pub requested: u64,
    /// The own stream of the block, which is the stream of the request. This remains so if the
    /// block was lent by another stream and is in that stream's segment, and after the stream has
    /// ended.
    pub stream: StreamId,
    /// The device of the block.
    pub device: DeviceIndex,
    /// The address of the first byte of the block's segment.
    pub segment: DevicePtr,
    /// The length of the segment in bytes.
    pub segment_bytes: u64,
}

impl<P: Platform> Heaps<P> {
    /// Describes the allocated block of a heap that contains `ptr`. Returns `None` if there is
    /// none.
    pub(crate) fn allocation(&self, slot: u32, ptr: DevicePtr) -> Option<Allocation> {
        let mut heap = self.slots.get(slot)?.heap.lock();
        // The first byte is found by a hash. Only an address inside a block needs the walk.
        let block = heap.lookup(ptr).or_else(|| heap.containing(ptr))?;
        let BlockEntry { addr, size, requested, segment, state, .. } = heap.blocks[block];
        let stream = heap.uses().borrower(block).unwrap_or(heap.stream);
        let segment = &heap.segments[segment];
        // `containing` also finds free and pending blocks, which do not belong to the program.
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
