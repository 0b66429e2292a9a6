//! A turn that one thread at a time can take.

use crate::sync::{AtomicU32, Ordering, impl_empty};

/// A turn. A thread that finds it taken is refused, and does not wait.
pub(crate) struct Turn {
    /// 1 ⟺ there is a [`Taken`] of this turn.
    taken: AtomicU32,
}

impl_empty! { Turn { taken } }

impl Turn {
    /// Takes the turn until the returned value is dropped. Returns `None` if the turn is taken.
    #[inline]
    pub(crate) fn try_take(&self) -> Option<Taken<'_>> {
        // Load first: a failed exchange would take the cache line away from the thread that has the
        // turn.
        if self.is_taken() || self.taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return None;
        }
        // Only this path creates a `Taken`: dropping one ends the turn.
        Some(Taken(self))
    }

    /// Returns whether a thread has the turn right now.
    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Relaxed) != 0
    }
}

/// A turn taken by this thread. Dropping it ends the turn.
pub(crate) struct Taken<'a>(&'a Turn);

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.taken.store(0, Ordering::Release);
    }
}
