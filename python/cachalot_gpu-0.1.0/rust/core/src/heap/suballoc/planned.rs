//! The sub-allocator of a segment with a plan: a list of the blocks delegated to the heap. Allocates nothing.

use crate::heap::suballoc::{FreeDelta, SubAllocator, SubBlock};
use crate::tables::{CapacityError, Storage};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::marker::PhantomData;

/// The sub-allocator of the heap behind a lane.
#[derive(Clone)]
pub(crate) struct PlanSegment<S> {
    /// Whether the lane has ended.
    pub(crate) ended: bool,
    /// Address and bytes of the segment; (0, 0) without a segment.
    segment: (u64, u64),
    /// The delegated blocks: address and bytes of each.
    pub(crate) taken: BTreeMap<u64, u64>,
    /// Addresses of the delegated blocks freed since the lane's last collection. Empty once the lane has ended.
    pub(crate) returned: Vec<u64>,
    /// Ties the type to the tables of the heap.
    of_heap: PhantomData<fn(S)>,
}

impl<S> Default for PlanSegment<S> {
    fn default() -> Self {
        Self { ended: false, segment: (0, 0), taken: BTreeMap::new(), returned: Vec::new(), of_heap: PhantomData }
    }
}

impl<S: Storage> SubAllocator<S> for PlanSegment<S> {
    fn segment_bytes(&self, size: u64) -> u64 {
        size
    }

    fn make_room(&mut self, _bytes: u64, _size: u64) -> bool {
        true
    }

    fn add_segment(&mut self, _segment: u32, base: u64, bytes: u64, _size: u64) {
        self.segment = (base, bytes);
    }

    fn remove_segment(&mut self, _segment: u32) {
        self.segment = (0, 0);
    }

    fn allocate(&mut self, _size: u64) -> Result<Option<(SubBlock, FreeDelta)>, CapacityError> {
        Ok(None)
    }

    fn peek(&self, _size: u64) -> Option<u64> {
        None
    }

    /// Removes a delegated block. The free memory beside a delegated block does not count, so the returned delta is
    /// empty, and [`Heap::update_live`](crate::heap::Heap::update_live) decides whether the segment is wholly free.
    /// Not inlined: frees of delegated blocks are rare, unlike the frees of the other policies.
    #[inline(never)]
    fn free(&mut self, sub_block: SubBlock, _size: u64) -> FreeDelta {
        self.taken.remove(&sub_block.addr);
        if !self.ended {
            self.returned.push(sub_block.addr);
        }
        FreeDelta { alone: true, before: 0, now: 0 }
    }

    fn visit_free(&self, _segment: u32, visit: &mut dyn FnMut(u64, u64)) {
        let (base, bytes) = self.segment;
        let mut at = base;
        for (&addr, &size) in self.taken.iter().chain([(&(base + bytes), &0)]) {
            if addr > at {
                visit(at, addr - at);
            }
            at = addr + size;
        }
    }

    fn check(&self) -> Result<(), &'static str> {
        Ok(())
    }
}
