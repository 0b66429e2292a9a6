//! The sub-allocator of a segment that a plan serves from. It knows the blocks in the care of the heap, and cuts nothing by itself.

use crate::heap::suballoc::{Free, SubAllocator, SubBlock};
use crate::tables::{CapacityError, Storage};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::marker::PhantomData;

/// The suballocator of a lane's heap. It cuts nothing by itself.
pub(crate) struct PlanSegment<S> {
    /// The lane is gone.
    pub(crate) ended: bool,
    segment: (u64, u64),
    /// Address and length of each block in the heap's care.
    pub(crate) taken: BTreeMap<u64, u64>,
    /// Addresses of those that have become free since the lane asked last.
    pub(crate) returned: Vec<u64>,
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

    fn take(&mut self, _size: u64) -> Result<Option<(SubBlock, Free)>, CapacityError> {
        Ok(None)
    }

    fn peek(&self, _size: u64) -> Option<u64> {
        None
    }

    /// What is free beside its blocks does not count as pieces, and to the last one the [heap](Heap::rest_if_free) sees itself. Not
    /// inlined: it comes seldom, where others come often.
    #[inline(never)]
    fn give(&mut self, piece: SubBlock, _size: u64) -> Free {
        self.taken.remove(&piece.addr);
        if !self.ended {
            self.returned.push(piece.addr);
        }
        Free { alone: true, before: 0, now: 0 }
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
