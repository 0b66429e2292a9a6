//! What is known of one block that the program holds.

use crate::arena::Arena;
use crate::device::DeviceMemory;
use crate::heap::block::Block;
use crate::sync::Lock;
use crate::tables::{OnceTable, Storage};
use crate::units::{DeviceIndex, DevicePtr, StreamId};

/// What is known of a block that the program holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// Its first byte.
    pub base: DevicePtr,
    /// Its length in bytes: at least what was asked for.
    pub size: u64,
    /// What was asked for, in bytes.
    pub requested: u64,
    /// The stream it was allocated on.
    pub stream: StreamId,
    /// Its device.
    pub device: DeviceIndex,
    /// The first byte of its segment.
    pub segment: DevicePtr,
    /// The length of its segment in bytes.
    pub segment_bytes: u64,
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    pub(crate) fn allocation(&self, slot: u32, ptr: DevicePtr) -> Option<Allocation> {
        let heap = self.slots.get(slot)?.heap.lock();
        let block = heap.lookup(ptr).or_else(|| heap.containing(ptr))?;
        let Block { addr, size, requested, segment, state, .. } = heap.blocks[block];
        let segment = &heap.segments[segment];
        (state == crate::heap::block::State::Allocated).then_some(Allocation {
            base: DevicePtr(addr),
            size,
            requested,
            stream: heap.stream,
            device: DeviceIndex(self.number),
            segment: DevicePtr(segment.base),
            segment_bytes: segment.bytes,
        })
    }
}
