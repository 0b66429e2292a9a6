//! What threads share: the atomics (under `--cfg loom` those of the model checker), and locks that know their rank.

mod ranked;

#[cfg(feature = "paranoid")]
pub(crate) use ranked::assert_no_lock_held;
pub(crate) use ranked::{MutexGuard, Rank, Ranked};

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

/// A lock: any [`lock_api::RawMutex`]. One that parks its waiters where there is an operating system, a spin lock where
/// there is none.
pub trait Lock: lock_api::RawMutex + Send + Sync + 'static {}

impl<R: lock_api::RawMutex + Send + Sync + 'static> Lock for R {}

/// Something that some threads write while others read what lies beside it: kept on cache lines of its own (128 bytes, for
/// processors fetch lines in pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub T);

impl<T> core::ops::Deref for CachePadded<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}
