//! The sub-allocator of a heap: a plan, or that of a policy.

use crate::config::Policy;
use crate::planned::segment::PlanSegment;
use crate::suballoc::{SubAllocator, SubAllocators, User};
use crate::tables::Storage;
use alloc::boxed::Box;

/// The sub-allocator of a heap. Boxed, because most heaps have none.
#[derive(Clone)]
pub(crate) enum AnySubAllocator<S: Storage> {
    /// A plan, which serves a stream in the planned order.
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

    /// Returns the sub-allocator of the policy. `None` for a plan, which does not search.
    #[inline(always)]
    pub(crate) fn of_policy(&mut self) -> Option<&mut S::SubAllocators> {
        if let Self::Policy(own) = self { Some(own) } else { None }
    }

    /// Calls `user` with the sub-allocator of the policy, if the tables list it by value.
    #[inline(always)]
    pub(crate) fn lend<U: User>(&mut self, user: U) -> Option<U::Output> {
        if let Self::Policy(own) = self { own.lend(user) } else { None }
    }

    /// Whether the heap serves, or has served, from a plan.
    pub(crate) fn is_planned(&self) -> bool {
        matches!(self, Self::Planned(_))
    }

    /// Returns the number of live blocks without an entry in the heap, their bytes and their
    /// requested bytes.
    pub(crate) fn unlisted(&self) -> (u32, u64, u64) {
        if let Self::Planned(plan) = self { plan.unlisted() } else { (0, 0, 0) }
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
