//! The slot of a thread, for the closer of a gate.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};

/// The slot of a thread: odd while the thread is inside, and different after every visit. A single thread at a time changes a
/// slot, at each visit: the slot belongs on a cache line of the thread's own.
#[derive(Debug, Default)]
pub struct ReaderSlot {
    /// Twice the number of visits, and 1 more inside.
    visits: AtomicU64,
}

impl ReaderSlot {
    /// Returns the slot of a thread outside.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { visits: AtomicU64::new(0) }
    }

    /// Returns the slot of a thread outside.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether the thread of the slot is inside. Called by the thread of the slot.
    #[inline]
    pub fn is_inside(&self) -> bool {
        self.visits.load(Ordering::Relaxed) & 1 == 1
    }

    /// Makes the slot odd. `None` if the slot is odd.
    #[inline]
    pub(crate) fn go_in(&self) -> Option<u64> {
        let before = self.visits.load(Ordering::Relaxed);
        if before & 1 == 1 {
            return None;
        }
        self.visits.store(before + 1, Ordering::Relaxed);
        Some(before)
    }

    /// Makes the slot even again after a visit. With the slot, the closer sees the thread's work inside.
    #[inline]
    pub(crate) fn go_out(&self) {
        let inside = self.visits.load(Ordering::Relaxed);
        self.visits.store(inside + 1, Ordering::Release);
    }

    /// Restores the slot from before a visit refused by a closed gate.
    #[inline]
    pub(crate) fn go_back(&self, before: u64) {
        self.visits.store(before, Ordering::Release);
    }
}

/// All slots at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Look {
    /// A number, changed by every visit.
    pub visits: u64,
    /// Whether a thread is inside.
    pub inside: bool,
}

/// Reads slots. Behind a closed gate, `inside` tells whether a thread may still use the memory.
pub fn look<'a>(slots: impl IntoIterator<Item = &'a ReaderSlot>) -> Look {
    slots.into_iter().fold(Look::default(), |look, slot| {
        let visits = slot.visits.load(Ordering::Acquire);
        Look { visits: look.visits.wrapping_add(visits / 2), inside: look.inside || visits & 1 == 1 }
    })
}
