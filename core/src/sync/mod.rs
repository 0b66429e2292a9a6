//! Primitives for threads: the atomics (those of the model checker under `--cfg loom`), ranked
//! locks, turns that one thread takes at a time, cache-line padding, and constant empty values.

mod empty;
mod ranked;
mod turn;

pub(crate) use empty::Empty;
pub(crate) use empty::{empty, empty_by, impl_empty};

#[cfg(feature = "paranoid")]
pub(crate) use ranked::assert_no_lock_held;
pub(crate) use ranked::{MutexGuard, Rank, Ranked};
pub(crate) use turn::{Taken, Turn};

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering, fence};

/// A lock: any [`lock_api::RawMutex`]. Use a lock that parks its waiters on an operating system,
/// and a spin lock elsewhere.
pub trait Lock: lock_api::RawMutex + Send + Sync + 'static {}

impl<R: lock_api::RawMutex + Send + Sync + 'static> Lock for R {}

/// A value that shares no cache line with its neighbours. It is for a field that some threads write
/// while other threads read the fields next to it. The alignment is 128 bytes because processors
/// fetch cache lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub T);

empty_by!([T: Empty] CachePadded<T> = Self(empty!()));

impl<T> core::ops::Deref for CachePadded<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}
