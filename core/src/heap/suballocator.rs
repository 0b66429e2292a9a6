//! The sub-allocator of a heap: that of a lane's segment, or a policy's.

use crate::config::Policy;
use crate::suballoc::{CapacityError, FreeDelta, SubAllocator, SubAllocators, SubBlock, User};
use crate::tables::Storage;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// The sub-allocator of a heap. Boxed, because most heaps have none.
#[derive(Clone)]
pub(crate) enum AnySubAllocator<S: Storage> {
    /// That of a heap that belongs to a lane.
    Planned(Box<PlanSegment>),
    /// That of the allocator's policy.
    Policy(S::SubAllocators),
}

impl<S: Storage> AnySubAllocator<S> {
    /// Makes the sub-allocator of a heap, if the policy cuts segments into sub-blocks. `None` for
    /// any other policy.
    pub(crate) fn of(policy: Policy) -> Option<Self> {
        let Policy::Suballocated(own) = policy else { return None };
        Some(Self::Policy(S::SubAllocators::of(own)))
    }

    /// Returns the sub-allocator of the policy. `None` for that of a lane's segment, which serves
    /// no request.
    #[inline(always)]
    pub(crate) fn of_policy(&mut self) -> Option<&mut S::SubAllocators> {
        if let Self::Policy(own) = self { Some(own) } else { None }
    }

    /// Calls `user` with the sub-allocator of the policy, if the tables list it by value.
    #[inline(always)]
    pub(crate) fn lend<U: User>(&mut self, user: U) -> Option<U::Output> {
        if let Self::Policy(own) = self { own.lend(user) } else { None }
    }

    /// Whether the segment belongs to a lane of the planned policy.
    pub(crate) fn is_planned(&self) -> bool {
        matches!(self, Self::Planned(_))
    }
}

impl<S: Storage> core::ops::Deref for AnySubAllocator<S> {
    type Target = dyn SubAllocator;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Planned(own) => &**own,
            Self::Policy(own) => own,
        }
    }
}

impl<S: Storage> core::ops::DerefMut for AnySubAllocator<S> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Planned(own) => &mut **own,
            Self::Policy(own) => own,
        }
    }
}

/// The sub-allocator of a heap that belongs to a lane: a list of the blocks delegated to it.
/// Allocates nothing.
#[derive(Clone, Default)]
pub(crate) struct PlanSegment {
    /// Whether the lane has ended.
    pub(crate) ended: bool,
    /// Address and bytes of the segment; (0, 0) without a segment.
    segment: (u64, u64),
    /// The delegated blocks: address and bytes of each.
    pub(crate) taken: BTreeMap<u64, u64>,
    /// Addresses of the delegated blocks freed since the lane's last collection. Empty once the
    /// lane has ended.
    pub(crate) returned: Vec<u64>,
}

impl SubAllocator for PlanSegment {
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

    /// Removes a delegated block. The free memory next to a delegated block does not count, so the
    /// returned delta is empty, and the heap decides whether the segment is wholly free.
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

    fn copy(&self) -> Box<dyn SubAllocator> {
        Box::new(self.clone())
    }
}
