//! Stands for all sub-allocators in builds without `alloc`, where their tables would lie in every heap.

use super::SubAllocator;
use crate::config::Policy;
use crate::tables::Storage;
use core::convert::Infallible;
use core::marker::PhantomData;

/// A sub-allocator, of which there is none.
#[derive(Clone)]
pub(crate) struct AnySubAllocator<S: Storage> {
    never: Infallible,
    storage: PhantomData<fn(S)>,
}

/// Stands for the call of a sub-allocator, of which there is none.
macro_rules! for_kind {
    ($any:expr, $Own:ident => $call:expr) => {
        $any.call()
    };
}
pub(crate) use for_kind;

impl<S: Storage> AnySubAllocator<S> {
    /// Returns `None`: no policy of the build cuts segments into sub-blocks.
    pub(crate) fn of(_: Policy) -> Option<Self> {
        None
    }

    /// Never returns.
    pub(crate) fn is_planned(&self) -> bool {
        self.call()
    }

    /// Never returns: there is no value to call this with.
    pub(crate) fn call<T>(&self) -> T {
        match self.never {}
    }
}

impl<S: Storage> core::ops::Deref for AnySubAllocator<S> {
    type Target = dyn SubAllocator<S>;

    fn deref(&self) -> &Self::Target {
        self.call()
    }
}

impl<S: Storage> core::ops::DerefMut for AnySubAllocator<S> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.call()
    }
}
