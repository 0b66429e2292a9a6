//! A turn of at most a single thread.

use crate::sync::{AtomicU32, Ordering, impl_empty};

/// A turn. A thread is refused a taken turn, and does not wait.
pub(crate) struct Turn {
    /// 1 ⟺ a [`Taken`] of the turn lives.
    taken: AtomicU32,
}

impl_empty! { Turn { taken } }

impl Turn {
    /// Takes the turn until the returned value is dropped. `None` if the turn is taken.
    #[inline]
    pub(crate) fn try_take(&self) -> Option<Taken<'_>> {
        // Load first: a failed exchange would take the cache line away from the thread that has the
        // turn.
        if self.is_taken() || self.taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return None;
        }
        // Made on this path only: the end of the value ends the turn.
        Some(Taken(self))
    }

    /// Returns whether a thread has the turn at the moment.
    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Relaxed) != 0
    }
}

/// The turn of the successful thread; ends with the value.
pub(crate) struct Taken<'a>(&'a Turn);

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.taken.store(0, Ordering::Release);
    }
}
