//! Stands in for the sub-allocators in builds without `alloc`, which have none.

use crate::config::Policy;
use crate::suballoc::{CapacityError, FreeDelta, SubAllocator, SubBlock, User};
use core::convert::Infallible;
use core::marker::PhantomData;

/// A sub-allocator, of which there is none.
#[derive(Clone)]
pub(crate) struct AnySubAllocator<S>(Infallible, PhantomData<fn(S)>);

impl<S> AnySubAllocator<S> {
    /// Returns `None`: no policy of the build cuts segments into sub-blocks.
    pub(crate) fn of(_: Policy) -> Option<Self> {
        None
    }

    /// Never returns.
    pub(crate) fn of_policy(&mut self) -> Option<&mut Self> {
        match self.0 {}
    }

    /// Never returns.
    pub(crate) fn lend<U: User>(&mut self, _: U) -> Option<U::Output> {
        match self.0 {}
    }

    /// Never returns.
    pub(crate) fn is_planned(&self) -> bool {
        match self.0 {}
    }

    /// Never returns.
    pub(crate) fn unlisted(&self) -> (u32, u64, u64) {
        match self.0 {}
    }
}

impl<S> core::ops::Deref for AnySubAllocator<S> {
    type Target = dyn SubAllocator;

    fn deref(&self) -> &Self::Target {
        match self.0 {}
    }
}

impl<S> core::ops::DerefMut for AnySubAllocator<S> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self.0 {}
    }
}

impl<S> SubAllocator for AnySubAllocator<S> {
    fn segment_bytes(&self, _: u64) -> u64 {
        match self.0 {}
    }

    fn make_room(&mut self, _: u64, _: u64) -> bool {
        match self.0 {}
    }

    fn add_segment(&mut self, _: u32, _: u64, _: u64, _: u64) {
        match self.0 {}
    }

    fn remove_segment(&mut self, _: u32) {
        match self.0 {}
    }

    fn allocate(&mut self, _: u64) -> Result<Option<(SubBlock, FreeDelta)>, CapacityError> {
        match self.0 {}
    }

    fn peek(&self, _: u64) -> Option<u64> {
        match self.0 {}
    }

    fn free(&mut self, _: SubBlock, _: u64) -> FreeDelta {
        match self.0 {}
    }

    fn visit_free(&self, _: u32, _: &mut dyn FnMut(u64, u64)) {
        match self.0 {}
    }
}
